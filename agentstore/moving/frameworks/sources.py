"""The database of a framework, opened to be read and for nothing else.

All that is read is of one moment: one transaction lasts from the beginning to the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    URL,
    ColumnClause,
    ColumnElement,
    Connection,
    CursorResult,
    Row,
    Select,
    TableClause,
    column,
    inspect,
    table,
)
from sqlalchemy.exc import DBAPIError

from agentstore.database.engine import parse_url, show_url
from agentstore.engines.foreign import foreign, in_utc
from agentstore.engines.registry import database_files, dialect_for
from agentstore.errors import InvalidInput, NotASource

_AT_ONCE = 50
"""Rows of a query that are in memory."""


def table_of(name: str, *columns: str) -> TableClause:
    """Describe a table of a framework: those of its columns that are read."""
    return table(name, *map(column, columns))


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A database that is being read.

    Attributes:
        connection: In a transaction, which sees one moment.
        name: What to call it in words; without a password.
        fingerprint: What tells it from others; nobody can read it.
        allowed: The classes that its values may name, beside a framework's own.
        unread: Results of which not all rows were read.
    """

    connection: Connection
    name: str
    fingerprint: str
    allowed: tuple[tuple[str, str], ...] = ()
    unread: set[CursorResult[Any]] = field(default_factory=set, compare=False, repr=False)

    def rows(self, query: Select[Any]) -> Iterator[Row[Any]]:
        """Give the rows of a query, of which only some are in memory at a time.

        A server keeps them until all were read, or the generator is closed.
        """
        with self.connection.execute(query.execution_options(yield_per=_AT_ONCE)) as result:
            self.unread.add(result)
            try:
                yield from result
            finally:
                self.unread.discard(result)

    def set_by_database(self, time: ColumnClause[Any]) -> ColumnElement[Any]:
        """Give a column of times that the database itself set, in UTC."""
        return in_utc(self.connection, time)

    def columns(self, table: str) -> frozenset[str]:
        """Give the names of a table's columns; none if there is no such table."""
        inspector = inspect(self.connection)
        if not inspector.has_table(table):
            return frozenset()
        return frozenset(column["name"] for column in inspector.get_columns(table))

    def require(self, needed: TableClause, framework: str) -> None:
        """Require a table that has these columns.

        Raises:
            NotASource: The table is missing, or lacks a column.
        """
        wanted = set(needed.c.keys()) - {"rowid"}  # which every table has, and none lists
        if not wanted <= self.columns(needed.name):
            raise NotASource(self.name, framework, f"it has no table {needed.name} like that")


def require_another(source: str, target: str | URL | None) -> None:
    """Refuse to write into the file that is read.

    Raises:
        InvalidInput: The two are one file.
    """
    files = []
    for url in (parse_url(source), parse_url(target)):
        dialect = dialect_for(url)
        if dialect.file_based and dialect.many_connections(url):
            files.append(database_files().path(url).resolve())
    if len(files) == 2 and files[0] == files[1]:
        raise InvalidInput(
            "The file is to be read and not to be changed. Import it into another database."
        )


@contextmanager
def opened(source: str, framework: str) -> Iterator[OpenSource]:
    """Open the database of a framework.

    Args:
        source: The path of a file, or a URL.
        framework: Which one, for the words of an error.

    Raises:
        DatabaseUnreachable: There is no such file.
        NotASource: It cannot be read.
        SourceChanged: Somebody wrote to a file that nobody seemed to have open.
    """
    url = parse_url(source)
    asked = sorted((name, value) for name, value in url.query.items() if "password" not in name)
    place = [str(part) for part in (url.host, url.port, url.database, asked)]
    if dialect_for(url).file_based:
        place = [str(database_files().path(url).resolve())]
    digest = hashlib.sha256(json.dumps(place).encode()).hexdigest()
    try:
        with foreign(url) as engine, engine.connect() as connection:
            found = OpenSource(connection, show_url(url), digest)
            try:
                yield found
            finally:
                for result in [*found.unread]:  # before the connection, which they read from
                    result.close()
    except DBAPIError as error:
        raise NotASource(show_url(url), framework, _problem(error.orig)) from None


def _problem(error: BaseException | None) -> str:
    """Say why it cannot be read, in no words that may quote a row."""
    code = getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None)
    kind = type(error).__name__
    return f"it cannot be read ({kind}{f', {code}' if code else ''})"
