"""The engines: what they have in common is a Protocol, what differs is a module each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from sqlalchemy import URL

from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import UnsupportedUrl

if TYPE_CHECKING:
    from agentstore.engines.base.saving import Files

__all__ = ["EngineDialect", "database_files", "dialect_for"]


def dialect_for(url: URL) -> EngineDialect:
    """Find the dialect of a URL.

    Raises:
        UnsupportedUrl: The URL is of another engine.
    """
    return _dialect(url.get_backend_name())


@cache
def _dialect(name: str) -> EngineDialect:
    # Imported when its first URL comes: who stays with one engine need not load the other.
    if name == "sqlite":
        from agentstore.engines.sqlite.dialect import SQLite

        return SQLite()
    if name == "postgresql":
        from agentstore.engines.postgresql.dialect import PostgreSQL

        return PostgreSQL()
    raise UnsupportedUrl(f"The engine {name!r} is not supported")


def database_files() -> Files:
    """Give those who make database files, whatever engine the rows come from."""
    from agentstore.engines.sqlite.saving import SQLiteFiles

    return SQLiteFiles()
