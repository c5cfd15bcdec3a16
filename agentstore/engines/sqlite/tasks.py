"""How SQLite's workers learn of tasks: they look whether the file has changed.

``PRAGMA data_version`` changes on a connection when any other one, of this process or another,
has committed. It reads a counter in shared memory and takes a few microseconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, UnaryExpression
from sqlalchemy.sql.operators import custom_op

from agentstore import errors
from agentstore.engines.base.signals import TaskSignal
from agentstore.models.tables import Tables

_INTERVAL = 0.02
"""Seconds. A look takes 5 µs, so fifty in a second are a four-thousandth of a core."""


class FileTasks:
    """What ``EngineDialect`` says of tasks."""

    def only_checked(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Put SQLite's unary plus in front, which keeps a term from choosing an index."""
        return UnaryExpression(column, operator=custom_op("+"), type_=column.type)

    def task_signal(self, connection: Connection, tables: Tables) -> TaskSignal:
        """Watch the file that this connection is to."""
        databases = connection.exec_driver_sql("PRAGMA database_list").all()
        return FileSignal(next(file for _, name, file in databases if name == "main"))


class FileSignal(TaskSignal):
    """A connection of its own that looks whether others have committed.

    A database in memory has no other connections. There the answer is always that something may
    have happened, and the worker asks the tasks themselves.
    """

    interval: float | None = _INTERVAL

    def __init__(self, file: str) -> None:
        """Watch this file; the empty name is memory."""
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None

    def open(self) -> None:
        """Connect, and remember how things are now."""
        if self._file:
            self._guarded(self._connect)

    def happened(self, queues: Collection[str]) -> bool:
        """Look."""
        if self._connection is None:
            return True
        before = self._version
        self._guarded(self._look)
        return self._version != before

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        self._connection = sqlite3.connect(
            self._file, isolation_level=None, check_same_thread=False
        )
        self._look()

    def _look(self) -> None:
        assert self._connection is not None
        (self._version,) = self._connection.execute("PRAGMA data_version").fetchone()

    def _guarded(self, call: Any) -> None:
        try:
            call()
        except sqlite3.Error as error:
            raise errors.DatabaseError(
                f"The file cannot be watched ({error}). Check the path in the URL and the disk."
            ) from error
