"""The engines: what they have in common is a Protocol, what differs is a module each."""

from __future__ import annotations

from functools import cache

from sqlalchemy import URL

from agentstore.dialects.base import EngineDialect
from agentstore.dialects.checks import Checks, Examination
from agentstore.dialects.saving import Archives, Files
from agentstore.errors import UnsupportedUrl

__all__ = [
    "Checks",
    "EngineDialect",
    "archives_for",
    "checks_for",
    "database_files",
    "dialect_for",
    "examinations_for",
]


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
        from agentstore.dialects.sqlite import SQLite

        return SQLite()
    if name == "postgresql":
        from agentstore.dialects.postgresql import PostgreSQL

        return PostgreSQL()
    raise UnsupportedUrl(f"The engine {name!r} is not supported")


def checks_for(url: URL) -> Checks:
    """Find the checks of a URL's engine.

    Raises:
        UnsupportedUrl: The URL is of another engine.
    """
    return _checks(url.get_backend_name())


@cache
def _checks(name: str) -> Checks:
    if name == "sqlite":
        from agentstore.dialects.sqlite_checks import SQLiteChecks

        return SQLiteChecks()
    if name == "postgresql":
        from agentstore.dialects.postgresql_checks import PostgreSQLChecks

        return PostgreSQLChecks()
    raise UnsupportedUrl(f"The engine {name!r} is not supported")


def examinations_for(url: URL) -> tuple[Examination, ...]:
    """Give what ``agentstore doctor`` looks at on a URL's engine, apart from what it always does.

    Raises:
        UnsupportedUrl: The URL is of another engine.
    """
    return _examinations(url.get_backend_name())


@cache
def _examinations(name: str) -> tuple[Examination, ...]:
    if name == "sqlite":
        from agentstore.dialects.sqlite_file_checks import EXAMINATIONS as OF_A_FILE

        return OF_A_FILE
    if name == "postgresql":
        from agentstore.dialects.postgresql_server_checks import EXAMINATIONS as OF_A_SERVER

        return OF_A_SERVER
    raise UnsupportedUrl(f"The engine {name!r} is not supported")


def database_files() -> Files:
    """Give those who make database files, whatever engine the rows come from."""
    from agentstore.dialects.sqlite_saving import SQLiteFiles

    return SQLiteFiles()


def archives_for(url: URL) -> Archives | None:
    """Give those who make archives of such databases; None where a database is a file itself."""
    if url.get_backend_name() == "sqlite":
        return None
    from agentstore.dialects.postgresql_saving import PostgreSQLArchives

    return PostgreSQLArchives()
