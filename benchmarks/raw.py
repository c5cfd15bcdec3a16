"""The raw sides: a bare driver that replays what the library told its own.

They do what a program without a library would have to do as well: send the statements, fetch the
rows, and for reads make dicts of the rows, JSON decoded. Statements are prepared once (sqlite3
does so by itself), and a commit waits for the disk as the library's does.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import URL

from agentstore.schema import tables
from agentstore.values.types import Json, id_text
from benchmarks.recording import Script

DOCUMENTS = frozenset(
    column.name
    for table in tables().metadata.tables.values()
    for column in table.columns
    if isinstance(column.type, Json)
)
"""The names of the columns that hold JSON."""


class Raw(Protocol):
    """A connection of a driver, and nothing around it."""

    @staticmethod
    def ids(stored: Any) -> str:
        """Make text of an id, as the driver gives it."""

    def write(self, script: Script) -> None:
        """Replay what writes."""

    def read(self, script: Script) -> list[dict[str, Any]]:
        """Replay what reads; give the rows of the last statement as dicts."""

    def durability(self) -> str:
        """Say what a commit waits for."""

    def close(self) -> None:
        """Close the connection."""


class RawSQLite:
    """sqlite3 in WAL mode with synchronous=FULL."""

    @staticmethod
    def ids(stored: Any) -> str:
        """Read those of 16 bytes."""
        return id_text(stored) if isinstance(stored, bytes) else str(stored)

    def __init__(self, url: URL) -> None:
        self.connection = sqlite3.connect(str(url.database), isolation_level=None)
        for pragma in ("journal_mode=WAL", "foreign_keys=ON", "synchronous=FULL"):
            self.connection.execute(f"PRAGMA {pragma}")

    def write(self, script: Script) -> None:
        """Replay what writes."""
        cursor = self.connection.cursor()
        for step in script:
            if step.many:
                cursor.executemany(step.sql, step.parameters)
            else:
                cursor.execute(step.sql, step.parameters).fetchall()

    def read(self, script: Script) -> list[dict[str, Any]]:
        """Replay what reads."""
        rows: list[dict[str, Any]] = []
        cursor = self.connection.cursor()
        for step in script:
            cursor.execute(step.sql, step.parameters)
            if cursor.description is not None:
                names = [column[0] for column in cursor.description]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return _decoded(rows)

    def durability(self) -> str:
        """Read the pragmas."""
        return durability(self.connection)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class RawPostgreSQL:
    """psycopg in autocommit, every statement prepared."""

    @staticmethod
    def ids(stored: Any) -> str:
        """Read UUIDs."""
        return str(stored)

    def __init__(self, url: URL) -> None:
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.connection = psycopg.connect(
            plain, autocommit=True, prepare_threshold=0, row_factory=dict_row
        )

    def write(self, script: Script) -> None:
        """Replay what writes."""
        cursor = self.connection.cursor()
        for step in script:
            if step.many:
                cursor.executemany(step.sql, step.parameters)
            else:
                cursor.execute(step.sql, step.parameters)
                if cursor.description is not None:
                    cursor.fetchall()

    def read(self, script: Script) -> list[dict[str, Any]]:
        """Replay what reads."""
        rows: list[dict[str, Any]] = []
        cursor = self.connection.cursor()
        for step in script:
            cursor.execute(step.sql, step.parameters)
            if cursor.description is not None:
                rows = cursor.fetchall()
        return _decoded(rows)

    def durability(self) -> str:
        """Read the server's settings."""
        return durability(self.connection)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def durability(connection: Any) -> str:
    """Say, as the engine itself says, what a commit on any driver's idle connection waits for."""
    if isinstance(connection, sqlite3.Connection):
        (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        (level,) = connection.execute("PRAGMA synchronous").fetchone()
        return f"journal_mode={journal}, synchronous={('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"
    shown = []
    for setting in ("fsync", "synchronous_commit"):
        # libpq itself answers for psycopg's connections of either kind.
        value = connection.pgconn.exec_(f"SHOW {setting}".encode()).get_value(0, 0)
        shown.append(f"{setting}={value.decode()}")
    return ", ".join(shown)


def _decoded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    wanted = DOCUMENTS.intersection(rows[0]) if rows else ()
    for row in rows:
        for name in wanted:
            if row[name] is not None:
                row[name] = json.loads(row[name])
    return rows
