"""SQLite's connections: their pragmas, and files that are only to be read.

A store that only reads names its file with ``mode=ro``, and SQLite itself refuses all writes.
Reading a file in WAL mode needs the index of the WAL, the ``-shm`` file. Where that is not
there, and the folder does not let it be made, the file cannot be read. ``immutable=1`` would read
it, without any lock, and what others write meanwhile would be read in part.
"""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Engine, event

from agentstore import errors
from agentstore.engines.sqlite.stored import know_ids
from agentstore.settings import Settings

_NO_INDEX = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""What SQLite says where the index of a WAL is not there and cannot be made."""
LONGEST_LOG = 64 * 1024 * 1024
"""Bytes to which a WAL is cut when it starts over. A reader that stays for long makes it grow,
and without a limit it would keep that size for ever. A log of a usual size is never cut: to grow
again costs each commit more than to write over what is there."""


def in_memory(url: URL) -> bool:
    """Say whether a database lives in memory, and so in its connection."""
    database = url.database
    return (
        not database
        or database == ":memory:"
        or database.startswith("file::memory:")
        or url.query.get("mode") == "memory"
    )


def configure(dbapi_connection: Any, settings: Settings, *, adopted: bool) -> None:
    """Set the pragmas of a new connection.

    One that only reads keeps the file in the mode that it is in. An adopted one may still be
    written to by its application.
    """
    try:
        _configure(dbapi_connection, settings, adopted=adopted)
    except UnicodeDecodeError:  # of SQLite's words, which quote what is no text any more
        damaged = sqlite3.DatabaseError("malformed database schema")
        damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damaged from None


def _configure(dbapi_connection: Any, settings: Settings, *, adopted: bool) -> None:
    dbapi_connection.isolation_level = None  # we say BEGIN; the driver's own comes too late
    cursor = dbapi_connection.cursor()
    # First, so that the next pragmas wait for other processes too.
    cursor.execute(f"PRAGMA busy_timeout={int(settings.busy_timeout * 1000)}")
    if not settings.read_only:
        _switch_to_wal(cursor, settings.busy_timeout)
        cursor.execute(f"PRAGMA journal_size_limit={LONGEST_LOG}")
    elif not adopted:
        cursor.execute("PRAGMA query_only=ON")
        # Read the schema here, where words that are no text any more become a typed error.
        cursor.execute("SELECT 1 FROM sqlite_master LIMIT 1")
        cursor.fetchall()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA synchronous={settings.synchronous}")
    cursor.close()
    if isinstance(dbapi_connection, sqlite3.Connection):  # copies are made by no other
        know_ids(dbapi_connection)


def _switch_to_wal(cursor: Any, timeout: float) -> None:
    """Turn the WAL on, once in the life of a file.

    Two processes that open a new file at the same moment both want its exclusive lock; SQLite
    then answers one of them at once, without the busy timeout, lest they wait for each other.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            _make_able_to_shrink(cursor)
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF
            if code == sqlite3.SQLITE_READONLY:
                return  # reading works in whatever mode the file is in
            if code != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _make_able_to_shrink(cursor: Any) -> None:
    """Let a file that is new give back free pages later; see ``sqlite_space``.

    Only then: said to a file that can do so already it would write, and wait for other writers.
    """
    cursor.execute("PRAGMA page_count")
    if cursor.fetchone()[0] == 0:
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")


def only_read(engine: Engine) -> None:
    """Have an engine's connections open their file for reading alone; see the module."""

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Any, parameters: Any) -> Any:
        name, *rest = arguments
        path, query = _parts(name)
        try:
            return _opened(dialect, _named(path, query), rest, parameters)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_INDEX:
                _explain(path, error)
            raise


def _opened(dialect: Any, name: str, rest: Any, parameters: Any) -> Any:
    """Open a file, and read from it, which is when SQLite really opens it."""
    connection = dialect.connect(name, *rest, **{**parameters, "uri": True})
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT 1 FROM sqlite_master LIMIT 1")
        cursor.fetchall()
        cursor.close()
    except BaseException:
        connection.close()
        raise
    return connection


def _parts(name: str) -> tuple[str, str]:
    """Give the file's real path, beside which its WAL lies, and the rest of its URI."""
    plain = name.removeprefix("file:")
    path, _, query = plain.partition("?") if plain != name else (name, "", "")
    if path.startswith("//"):  # an authority, which SQLite wants empty or localhost
        path = "/" + path[2:].partition("/")[2]
    return os.path.realpath(path), query


def _named(path: str, query: str) -> str:
    return f"file:{quote(path)}?{'&'.join(part for part in (query, 'mode=ro') if part)}"


def _explain(path: str, error: sqlite3.Error) -> None:
    """Say of a file that cannot be read here what to do; raises DatabaseUnreachable."""
    if not os.access(path, os.R_OK):
        raise errors.DatabaseUnreachable(
            f"The file {path} cannot be read. Check its permissions, and those of its folder."
        ) from error
    if not os.access(os.path.dirname(path), os.W_OK):  # noqa: PTH120 - a string all along
        raise errors.DatabaseUnreachable(
            f"{path} cannot be read without {path}-shm, which cannot be created in its folder. "
            "Copy the file, and its -wal if there is one, to a writable folder; or read a "
            "backup, which needs no other file."
        ) from error
