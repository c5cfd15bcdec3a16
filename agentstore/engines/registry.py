"""The engines: what they have in common is a Protocol, what differs is a module each."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from sqlalchemy import URL

from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import UnsupportedUrl

if TYPE_CHECKING:
    from agentstore.engines.base.saving import Files

__all__ = ["EngineDialect", "database_files", "dialect_for", "unabbreviated"]


_PATH = re.compile(r"(?:[A-Za-z]:)?[^:@?]*[./\\][^:@?]*")
"""A path has a dot or a slash, so that a forgotten scheme or host makes no file, and nothing that a
URL with a password would have."""


def unabbreviated(url: str) -> str | URL:
    """Give the URL of a path, and PostgreSQL's for what providers of databases call it."""
    if _PATH.fullmatch(url):
        return URL.create("sqlite", database=url)
    scheme, there, rest = url.partition("://")
    name, plus, driver = scheme.partition("+")
    return f"postgresql{plus}{driver}{there}{rest}" if there and name == "postgres" else url


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
