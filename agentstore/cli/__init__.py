"""The command line: arguments in, tables out. The work is done elsewhere.

Each module holds the commands of one subject, and is imported here so that they are there.
"""

from __future__ import annotations

from agentstore.cli import (
    browse,
    conversations,
    health,
    keeping,
    moving,
    probing,
    revisions,
    saving,
    search,
    sessions,
    spending,
    tasks,
    transcripts,
    ui,
)
from agentstore.cli.application import app, main
from agentstore.cli.help import Command

for _command in app.registered_commands:
    _command.cls = Command

__all__ = [
    "app",
    "browse",
    "conversations",
    "health",
    "keeping",
    "main",
    "moving",
    "probing",
    "revisions",
    "saving",
    "search",
    "sessions",
    "spending",
    "tasks",
    "transcripts",
    "ui",
]
