"""The way of tutorials: a class around the driver that connects in each call."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from benchmarks.peers.program import Program, make_durable, with_driver
from benchmarks.peers.sample import Turn
from benchmarks.raw import durability

_TABLES = """
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY,
    title TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE IF NOT EXISTS messages (
    id {id},
    session_id TEXT NOT NULL REFERENCES sessions (session_id),
    role TEXT NOT NULL,
    content TEXT,
    metadata TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS messages_of_session ON messages (session_id, id);
"""
_IDS = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}
_SESSION = "INSERT INTO sessions (session_id) VALUES (?)"
_MESSAGE = "INSERT INTO messages (session_id, role, content) VALUES (?, ?, ?)"
_TOUCH = "UPDATE sessions SET updated_at = CURRENT_TIMESTAMP WHERE session_id = ?"
_LAST = (
    "SELECT role, content, metadata, created_at FROM messages WHERE session_id = ? "
    "ORDER BY id DESC LIMIT ?"
)
_NEWEST = "SELECT session_id, title, created_at, updated_at FROM sessions ORDER BY updated_at DESC"


class Tutorial(Program):
    """sqlite3 or psycopg, a connection in each call."""

    title = "tutorial, a connection per call"
    synchronous = True
    notes = {  # noqa: RUF012 - as declared
        "append": "a call a message: two commits a turn; no counters, no turns",
        "burst": "threads; a call a message: two commits a turn; no counters, no turns",
        "last": "rows of four columns",
        "beside": "rows of four columns",
        "list_all": "one page of all, rows of four columns",
        "list_newest": "rows of four columns; sorts all, by a time in seconds",
        "bytes": "no ids that are unique everywhere, no turns",
        "bytes_indexed": "has no search",
    }

    async def open(self) -> None:
        """Make the tables."""
        engine = self.url.get_backend_name()
        with self._connection() as connection:
            for statement in _TABLES.format(id=_IDS[engine]).split(";")[:-1]:
                connection.execute(statement)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """Connect, commit, close."""
        connection: Any
        if self.url.get_backend_name() == "sqlite":
            connection = sqlite3.connect(str(self.url.database))
            if self.ours:
                make_durable(connection)
        else:
            connection = psycopg.connect(with_driver(self.url, ""))
        with closing(connection), connection:
            yield connection

    def _sql(self, statement: str) -> str:
        return (
            statement if self.url.get_backend_name() == "sqlite" else statement.replace("?", "%s")
        )

    async def durability(self) -> str:
        """Ask a connection."""
        with self._connection() as connection:
            return durability(connection)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def fill(self, session_ids: list[str], turns: list[Turn]) -> None:
        """Make sessions with turns, in one transaction."""
        with self._connection() as connection:
            cursor = connection.cursor()
            for session_id in session_ids:
                cursor.execute(self._sql(_SESSION), (session_id,))
                items = [item for turn in turns for item in turn]
                rows = [(session_id, item["role"], item["content"]) for item in items]
                cursor.executemany(self._sql(_MESSAGE), rows)

    async def append(self, session_id: str, turn: Turn) -> None:
        """Save one message after the other."""
        for item in turn:
            with self._connection() as connection:
                row = (session_id, item["role"], item["content"])
                connection.execute(self._sql(_MESSAGE), row)
                connection.execute(self._sql(_TOUCH), (session_id,))

    async def last(self, session_id: str, limit: int) -> list[str]:
        """Give the newest texts."""
        with self._connection() as connection:
            rows = connection.execute(self._sql(_LAST), (session_id, limit)).fetchall()
        return [content for _, content, *_ in reversed(rows)]

    async def list_all(self) -> list[str]:
        """Give all sessions."""
        with self._connection() as connection:
            return [found for found, *_ in connection.execute(_NEWEST).fetchall()]

    async def list_newest(self, limit: int) -> list[str]:
        """Give the newest sessions."""
        with self._connection() as connection:
            rows = connection.execute(self._sql(f"{_NEWEST} LIMIT ?"), (limit,)).fetchall()
        return [found for found, *_ in rows]
