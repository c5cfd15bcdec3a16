"""The least that a program could do to save a message: a counter, a row and one index.

It has none of what a store keeps beside: no ids that are unique everywhere, sums, branches, search,
marks or activity. So it shows what the schema itself costs, which no replay of its statements does.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Protocol

import psycopg
from sqlalchemy import URL

from benchmarks.data import Message
from benchmarks.raw import RawSQLite

_SESSION = 1

_TABLES = (
    "CREATE TABLE minimal_sessions (id BIGINT PRIMARY KEY, last_seq BIGINT NOT NULL)",
    "CREATE TABLE minimal_messages (session_id BIGINT NOT NULL, seq BIGINT NOT NULL, "
    "role TEXT NOT NULL, content TEXT)",
    "CREATE UNIQUE INDEX minimal_seq ON minimal_messages (session_id, seq)",
    "INSERT INTO minimal_sessions VALUES (1, 0)",
)


class Minimal(Protocol):
    """A connection of a driver to tables of its own."""

    def save(self, message: Message) -> None:
        """Save a message; it is on the disk when this returns."""

    def count(self) -> int:
        """Count what was saved, by the counter."""

    def close(self) -> None:
        """Close the connection."""


class MinimalSQLite:
    """sqlite3, as durable as the store."""

    def __init__(self, url: URL) -> None:
        """Make the tables."""
        self._connection: sqlite3.Connection = RawSQLite(url).connection
        for statement in _TABLES:
            self._connection.execute(statement)

    def save(self, message: Message) -> None:
        """Save a message in a transaction of three statements."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        ((seq,),) = execute(
            "UPDATE minimal_sessions SET last_seq = last_seq + 1 WHERE id = ? RETURNING last_seq",
            (_SESSION,),
        ).fetchall()
        execute(
            "INSERT INTO minimal_messages VALUES (?, ?, ?, ?)",
            (_SESSION, seq, message["role"], message["content"]),
        )
        execute("COMMIT")

    def count(self) -> int:
        """Count what was saved."""
        return _counted(self._connection.execute(_COUNT).fetchone())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class MinimalPostgreSQL:
    """psycopg in autocommit, its one statement prepared."""

    def __init__(self, url: URL) -> None:
        """Make the tables."""
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(plain, autocommit=True, prepare_threshold=0)
        for statement in _TABLES:
            self._connection.execute(statement.encode())

    def save(self, message: Message) -> None:
        """Save a message in one round trip."""
        self._connection.execute(
            "WITH counted AS (UPDATE minimal_sessions SET last_seq = last_seq + 1 WHERE id = %s "
            "RETURNING id, last_seq) "
            "INSERT INTO minimal_messages SELECT id, last_seq, %s, %s FROM counted",
            (_SESSION, message["role"], message["content"]),
        )

    def count(self) -> int:
        """Count what was saved."""
        return _counted(self._connection.execute(_COUNT).fetchone())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


_COUNT = "SELECT last_seq, (SELECT count(*) FROM minimal_messages) FROM minimal_sessions"


def _counted(row: Any) -> int:
    counter, rows = row
    assert counter == rows
    return int(counter)


MINIMAL: dict[str, type[MinimalSQLite] | type[MinimalPostgreSQL]] = {
    "sqlite": MinimalSQLite,
    "postgresql": MinimalPostgreSQL,
}
"""By engine."""
