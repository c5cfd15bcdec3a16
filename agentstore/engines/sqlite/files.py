"""SQLite's connections: their pragmas, and files that are only to be read.

A store that only reads names its file with ``mode=ro``, and SQLite itself refuses all writes.
Reading a file in WAL mode needs the index of the WAL, the ``-shm`` file. Where that is not
there, and the folder does not let it be made, the file cannot be read. ``immutable=1`` would read
it, without any lock, and what others write meanwhile would be read in part.

A file may be deleted or replaced while it is open: somebody restores a backup. SQLite goes on with
the old one, which has no name any more, and everything that is written is lost. So a store
remembers which file it opened, by device and inode, and compares before it commits. Two calls of
``stat`` take 3.5 us, of the 2,700 us of a save that waits for the disk (0.1 %). Of one that does
not, 290 us, they would be more than 1 %: there, and where it reads, it compares ten times a second
at most.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from sqlalchemy import URL, Connection, Engine, Table, event

from agentstore import errors
from agentstore.engines.base.dialect import Space
from agentstore.engines.sqlite.moving import know_ids
from agentstore.settings import Settings
from agentstore.values.types import raise_as_sqlalchemy

_NO_INDEX = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""What SQLite says where the index of a WAL is not there and cannot be made."""
LONGEST_LOG = 64 * 1024 * 1024
"""Bytes to which a WAL is cut when it starts over. A reader that stays for long makes it grow,
and without a limit it would keep that size for ever. A log of a usual size is never cut: to grow
again costs each commit more than to write over what is there."""


WATCHED = "agentstore_watched"
"""What holds, in the ``info`` of a connection, the files that it has open."""
_SELDOM = 0.1
"""Seconds between two looks at the files where each commit does not take one."""

_HEADER = struct.Struct(">16sHBB")
"""Of a database: magic, page size, and the versions to write and read, 1 or with a WAL 2.
Source: https://sqlite.org/fileformat2.html#the_database_header."""
_LOG = struct.Struct(">I4xII8s8x8x8s")
"""Of a WAL: magic, page size, checkpoints, salts; of its first frame the salts again.
Source: https://sqlite.org/fileformat2.html#the_write_ahead_log."""
_LOG_MAGIC = (0x377F0682, 0x377F0683)

Identity = tuple[int, int]


def in_memory(url: URL) -> bool:
    """Say whether a database lives in memory, and so in its connection."""
    database = url.database
    return (
        not database
        or database == ":memory:"
        or database.startswith("file::memory:")
        or url.query.get("mode") == "memory"
    )


def file_name(database: str) -> str:
    """Give the path of a database, which may be a URI of SQLite's own.

    Source: https://sqlite.org/uri.html.
    """
    if not database.startswith("file:"):
        return database
    path = database.removeprefix("file:").partition("#")[0].partition("?")[0]
    if path.startswith("//"):  # an authority, which SQLite wants empty or localhost
        path = "/" + path[2:].partition("/")[2]
    return unquote(path, errors="surrogateescape")


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
            cursor.execute("PRAGMA page_count")
            # A file that is new can give back free pages later, see FileSpace. Said to one that
            # can do so already, it would write, and wait for other writers.
            if cursor.fetchone()[0] == 0:
                cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF
            if code == sqlite3.SQLITE_READONLY:
                return  # reading works in whatever mode the file is in
            if code != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class Watch:
    """Which file the connections of an engine have open."""

    def __init__(self, url: URL, settings: Settings) -> None:
        """Look at nothing yet."""
        # Links stay links: one may be led to another file. The log lies beside the file itself.
        self.path = os.path.abspath(file_name(str(url.database)))  # noqa: PTH100
        self.log = f"{os.path.realpath(self.path)}-wal"
        self.each_time = False
        self.next_look = 0.0
        self.broken: errors.DatabaseReplaced | None = None
        may_create = url.query.get("mode") not in ("ro", "rw")
        self._creates = settings.create and not settings.read_only and may_create
        self._file: Identity | None = None

    def before(self, _dialect: Any, _record: Any, _arguments: Any, _parameters: Any) -> None:
        """Look before a connection opens the file, which would create one; a listener.

        Raises:
            DatabaseUnreachable: It is no file: to open a pipe could take for ever.
        """
        if self._file is not None:
            self.look()
            return
        with suppress(OSError):
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # noqa: PTH116 - a string all along
                raise errors.DatabaseUnreachable(
                    f"{self.path} is a folder, a device or a pipe. Check the path in the URL."
                )
        if not self._creates:
            return
        if not os.path.lexists(self.path):
            refuse_foreign_log(self.path, self.log)  # which SQLite would delete
            with suppress(OSError):  # SQLite itself says what is wrong
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def opened(self, dbapi_connection: Any, settings: Settings) -> None:
        """Look at a file that was opened, and from which nothing was read yet."""
        self.each_time = settings.synchronous in ("FULL", "EXTRA")
        try:
            if self._file is None:
                refuse_foreign_log(self.path, self.log)
                self._file = _identity(self.path)
            self.look()
        except errors.DatabaseError:
            dbapi_connection.close()
            raise

    def look(self, log: str | None = None, log_file: Identity | None = None) -> None:
        """Compare the file with the one that was opened first, and a log with what it was."""
        if self.broken is not None:
            raise errors.DatabaseReplaced(self.broken.path, self.broken.what)
        self.next_look = time.monotonic() + _SELDOM
        for path, expected in ((self.path, self._file), (log, log_file)):
            if path is not None and (found := _identity(path)) != expected:
                what = "deleted" if found is None else "replaced"
                self.broken = errors.DatabaseReplaced(path, what)
                raise errors.DatabaseReplaced(path, what)


class WatchedFile:
    """The file and the log that one connection has open."""

    __slots__ = ("_log", "watch")

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self._log = _identity(watch.log)

    def look(self) -> None:
        """Raise DatabaseReplaced if either was deleted or replaced; see ``EngineDialect``."""
        if self._log is None:  # a file without a log has one as soon as it is read
            self.watch.look()
            self._log = _identity(self.watch.log)
        else:
            self.watch.look(self.watch.log, self._log)


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - before each commit
    except OSError:
        return None
    return found.st_dev, found.st_ino


def refuse_foreign_log(path: str, log: str) -> None:
    """Refuse a log that cannot be that of the file beside it.

    Nothing in a log names its file. But a file that is not in WAL mode never has one (such as a
    backup; SQLite would take the log all the same), and both have pages of one size. A log that
    SQLite would not read, because its first frame is of an older one, does no harm.

    Raises:
        ForeignLog: It cannot be.
    """
    before = _read(log, _LOG)
    if before is None or before[0] not in _LOG_MAGIC or before[3] != before[4]:
        return
    gone = _identity(path) is None
    header = _header(path)
    if before != _read(log, _LOG):
        return  # others are at work, and it is theirs
    if gone:
        raise errors.ForeignLog(log, "there is no database")
    if header is None or not header[0].startswith(b"SQLite format 3"):
        return
    log_page = before[1]
    _, page, writes, reads = header
    if writes == reads == 1:
        raise errors.ForeignLog(log, "the database is not in WAL mode")
    if log_page != (65536 if page == 1 else page):
        raise errors.ForeignLog(log, "its pages are of another size")


def _header(path: str) -> tuple[Any, ...] | None:
    """Read the header through what SQLite has open.

    To close another descriptor of the file would give up all locks that this process has on it.
    """
    if os.name == "nt":
        return _read(path, _HEADER)
    file = _identity(path)
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):  # noqa: PTH208
            with suppress(OSError, struct.error):
                found = os.fstat(int(name))
                if (found.st_dev, found.st_ino) == file:
                    return _HEADER.unpack(os.pread(int(name), _HEADER.size, 0))
    return None


def _read(path: str, kind: struct.Struct) -> tuple[Any, ...] | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a string all along
            return kind.unpack(file.read(kind.size))
    except (OSError, struct.error):
        return None


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
    query = name.partition("#")[0].partition("?")[2] if name.startswith("file:") else ""
    return os.path.realpath(file_name(name)), query


def _named(path: str, query: str) -> str:
    return (
        f"file:{quote(os.fsencode(path))}?{'&'.join(part for part in (query, 'mode=ro') if part)}"
    )


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


# Free space in a SQLite file.
#
# Deleted rows leave free pages, which later rows fill. A file that was made with
# ``auto_vacuum=INCREMENTAL`` can also give them back, some at a time: pages from its end move into
# the gaps, and it is cut off. Any other file only ever grows, until ``VACUUM`` rewrites it.


_INCREMENTAL = 2


class FileSpace(Space):
    """See ``Space``."""

    def size(self, connection: Connection) -> int:
        """Multiply pages by their size. The WAL beside the file is not counted."""
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())

    def free_pages(self, connection: Connection) -> int:
        """Read the length of the free list; 0 where the file cannot give anything back."""
        if connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() != _INCREMENTAL:
            return 0
        return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())

    def give_back(self, connection: Connection, pages: int) -> int:
        """Move pages one by one: the driver stops at the first row of a pragma that has none to
        show, so that ``incremental_vacuum(100)`` would move one page too.
        """
        free, step = min(pages, self.free_pages(connection)), "PRAGMA incremental_vacuum(1)"
        cursor = connection.connection.cursor()
        try:
            for _ in range(free):
                cursor.execute(step)
                cursor.fetchall()
        except sqlite3.Error as error:
            raise_as_sqlalchemy(connection, error, step, cursor)
        cursor.close()
        return free

    def tidy(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Copy the WAL into the file, and cut it off if nobody is in its way.

        First as far as that goes beside others; then the rest, for which writers do wait, but it
        is little, and if a reader is in the way, or the disk is full, it is left to the next time.
        """
        driver: Any = connection.connection.dbapi_connection
        cursor = driver.cursor()
        try:
            cursor.execute("PRAGMA busy_timeout")
            (patience,) = cursor.fetchone()
            try:
                cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
                cursor.fetchall()
                cursor.execute("PRAGMA busy_timeout=0")
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                cursor.fetchall()
            except sqlite3.OperationalError:
                pass  # somebody else is at it, or the disk is full
            finally:
                cursor.execute(f"PRAGMA busy_timeout={int(patience)}")
        finally:
            cursor.close()
