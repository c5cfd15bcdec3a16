"""The databases that are measured: migrated by the library, filled fast, and copied.

Filling goes past the library (executemany in one transaction, COPY), because it is not what is
measured; ANALYZE follows, so that both sides meet an engine that knows its tables.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg import sql
from sqlalchemy import URL, column, insert, make_url
from sqlalchemy import table as described
from sqlalchemy.dialects import sqlite as sqlite_dialect

from agentstore import migrations
from agentstore.schema import tables
from agentstore.values.types import OwnId, id_bytes, to_micros
from benchmarks.data import Row
from benchmarks.raw import Raw, RawPostgreSQL, RawSQLite
from tests.servers import Server


class Filling(Protocol):
    """What a database is filled with."""

    @property
    def sessions(self) -> int:
        """How many there are."""

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """Give the tables by their plain names, parents first, with their rows."""


class Databases(Protocol):
    """Where databases of one engine are made."""

    name: str

    def make(self, name: str) -> URL:
        """Make an empty database at head."""

    def create(self, name: str, contents: Filling) -> URL:
        """Make a database at head, filled and analyzed."""

    def url(self, name: str) -> URL:
        """Say where a database is."""

    def copy(self, name: str, new_name: str) -> URL:
        """Make a twin of a database that nobody is connected to."""

    def raw(self, url: URL) -> Raw:
        """Connect with the bare driver."""


class SQLiteDatabases:
    """Files in one folder."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, name: str) -> URL:
        """Make an empty database at head."""
        url = self.url(name)
        migrations.upgrade(url)
        return url

    def create(self, name: str, contents: Filling) -> URL:
        """Make a database at head, filled and analyzed."""
        url = self.make(name)
        with closing(sqlite3.connect(str(url.database), isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            for table, rows in contents.tables():
                _insert(connection, table, rows)
            connection.execute("COMMIT")
            connection.execute("ANALYZE")
            # All is in the file itself, and none of it in a WAL that a copy would miss.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return url

    def copy(self, name: str, new_name: str) -> URL:
        """Copy the file."""
        copied = self.url(new_name)
        shutil.copy(str(self.url(name).database), str(copied.database))
        return copied

    def raw(self, url: URL) -> Raw:
        """Connect with sqlite3."""
        return RawSQLite(url)

    def url(self, name: str) -> URL:
        """Say where a database is."""
        return URL.create("sqlite", database=str(self._folder / f"{name}.db"))


class PostgreSQLDatabases:
    """Databases of one server."""

    name = "postgresql"

    def __init__(self, server: Server) -> None:
        self._server = server

    def make(self, name: str) -> URL:
        """Make an empty database at head."""
        self._server.create_database(name)
        url = self.url(name)
        migrations.upgrade(url)
        return url

    def create(self, name: str, contents: Filling) -> URL:
        """Make a database at head, filled and analyzed."""
        url = self.make(name)
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain, autocommit=True) as connection:
            with connection.transaction():
                for table, rows in contents.tables():
                    _copy_in(connection, table, rows)
                newest = "(SELECT max(activity) FROM sessions)"
                connection.execute(f"SELECT setval('activity', {newest})")
            # The first reader after a load marks every row that it sees: not while we measure.
            connection.execute("VACUUM (FREEZE, ANALYZE)")
            connection.execute("CHECKPOINT")
        return url

    def copy(self, name: str, new_name: str) -> URL:
        """Copy the database in the server."""
        self._server.create_database(new_name, template=name)
        return self.url(new_name)

    def url(self, name: str) -> URL:
        """Say where a database is."""
        return make_url(self._server.url).set(database=name)

    def raw(self, url: URL) -> Raw:
        """Connect with psycopg."""
        return RawPostgreSQL(url)


def _insert(connection: sqlite3.Connection, table: str, rows: Iterator[Row]) -> None:
    first = next(rows, None)
    if first is None:
        return
    statement = insert(described(table, *map(column, first)))
    sql = str(statement.compile(dialect=sqlite_dialect.dialect()))
    own_ids = {c.name for c in tables()[table].columns if isinstance(c.type, OwnId)}

    def stored(name: str, value: Any) -> Any:
        if isinstance(value, datetime):
            return to_micros(value)
        return id_bytes(value) if name in own_ids and value is not None else value

    def values(row: Row) -> list[Any]:
        return [stored(name, value) for name, value in row.items()]

    connection.execute(sql, values(first))
    connection.executemany(sql, map(values, rows))


def _copy_in(connection: psycopg.Connection[Any], table: str, rows: Iterator[Row]) -> None:
    first = next(rows, None)
    if first is None:
        return
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, first))
    )
    with connection.cursor().copy(statement) as copy:
        copy.write_row(list(first.values()))
        for row in rows:
            copy.write_row(list(row.values()))
