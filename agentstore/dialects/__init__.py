"""The engines: what they have in common is a Protocol, what differs is a module each."""

from __future__ import annotations

from sqlalchemy import URL

from agentstore.dialects.base import EngineDialect
from agentstore.dialects.postgresql import PostgreSQL
from agentstore.dialects.sqlite import SQLite
from agentstore.errors import UnsupportedUrl

__all__ = ["EngineDialect", "dialect_for"]

_DIALECTS: dict[str, EngineDialect] = {"sqlite": SQLite(), "postgresql": PostgreSQL()}


def dialect_for(url: URL) -> EngineDialect:
    """Find the dialect of a URL.

    Raises:
        UnsupportedUrl: The URL is of another engine.
    """
    name = url.get_backend_name()
    if name not in _DIALECTS:
        raise UnsupportedUrl(f"The engine {name!r} is not supported")
    return _DIALECTS[name]
