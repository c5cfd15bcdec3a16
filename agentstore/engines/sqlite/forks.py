"""SQLite's connections in a process that was forked.

SQLite notes the locks of all connections to a file in one place in the process, and the system has
them by process: a child inherits the notes and not the locks. Its own connections to that file
would not take what the notes say is taken already, and a third process could delete the WAL into
which they write. So before a child opens such a file, what it inherited is closed, which writes
nothing as long as it is idle, and the notes are gone with it.

A connection that another thread was using at the fork cannot be closed: it may be in the middle of
a write, part of which is memory that the parent shares. It is kept for good, also from Python's
collection. And as that thread may have held one of SQLite's own locks, which nobody in the child
will ever let go, the child opens no file at all, and calls nothing of SQLite's.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import URL, Connection

from agentstore import errors
from agentstore.values.internals import innermost

_FILE = "agentstore_file"

File = tuple[int, int]

_records: WeakSet[Any] = WeakSet()
"""Where the pools of our engines keep connections to files."""

_left: list[tuple[File, sqlite3.Connection]] = []
"""What the parent had open at the fork, and did not use."""

_in_use = False
"""Whether it used some."""


def note(record: Any, url: URL) -> None:
    """Take note of a new connection to a file."""
    record.info[_FILE] = str(url.database)
    _records.add(record)


def close_what_is_left(url: URL) -> None:
    """Close what was inherited of a file.

    Raises:
        TransactionMisuse: The parent was using some file at the fork.
    """
    if _in_use:
        raise errors.TransactionMisuse(
            "This process was forked while its parent was using a SQLite file, in a transaction or "
            "in another thread, so it cannot open any. Fork before a store is used, close the "
            "store before the fork, or start processes by spawn."
        )
    file = _identity(str(url.database)) if _left else None
    for entry in [entry for entry in _left if entry[0] == file]:
        _left.remove(entry)
        entry[1].close()


def leave_behind(connection: Connection, *, busy: bool) -> None:
    """Leave one connection, which is in no pool, to the parent; in the child."""
    _leave(connection.connection, str(connection.engine.url.database), busy=busy)


def abandon(connection: Connection) -> None:
    """Put nothing in the place of a connection that the forking thread itself is using."""
    _leave(connection.connection, str(connection.engine.url.database), busy=True)


class _Nothing:
    """What the holder of a connection rolls back and closes instead."""

    def rollback(self) -> None:
        """Do nothing."""

    commit = close = rollback


def _in_child() -> None:
    for record in list(_records):
        if record.dbapi_connection is not None:
            _leave(record, record.info[_FILE], busy=record.in_use)
    _records.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _leave(holder: Any, path: str, *, busy: bool) -> None:
    """Take the driver's connection out of what holds it."""
    global _in_use
    inherited = innermost(holder.dbapi_connection)
    if not isinstance(inherited, sqlite3.Connection):
        return
    holder.dbapi_connection = _Nothing()
    # Python closes what it collects. Nobody but we may close this.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
    file = _identity(path)
    if busy:
        _in_use = True
    elif file is not None:
        _left.append((file, inherited))


def _identity(path: str) -> File | None:
    plain = path.removeprefix("file:").partition("?")[0] if path.startswith("file:") else path
    try:
        found = Path(plain).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
