"""Who is measured."""

from __future__ import annotations

from benchmarks.peers.adk import GoogleADK
from benchmarks.peers.openai_sessions import OpenAIAdvanced, OpenAISQLAlchemy, OpenAISQLite
from benchmarks.peers.program import Program
from benchmarks.peers.savers import AsyncSaver, Saver
from benchmarks.peers.tutorial import Tutorial

PEERS: tuple[type[Program], ...] = (
    OpenAISQLite,
    OpenAIAdvanced,
    OpenAISQLAlchemy,
    GoogleADK,
    Tutorial,
    AsyncSaver,
    Saver,
)
