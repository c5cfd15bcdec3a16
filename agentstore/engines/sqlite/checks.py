"""How SQLite says how it is, and how large.

What a table takes is known exactly only to ``dbstat``, which reads every page and which not every
library has. Without it, the file's pages are shared out by what the newest rows of each table
hold times the number of its rows: good to about a factor of two.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    LargeBinary,
    Table,
    cast,
    column,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy import table as named_table
from sqlalchemy.exc import OperationalError

from agentstore.engines.base.moving import (
    FOREIGN_CODE,
    CheckContext,
    Checks,
    DatabaseStatus,
    Examination,
    Footprint,
    TableSize,
    version_of,
)
from agentstore.engines.base.search import INDEX
from agentstore.engines.sqlite.files import WATCHED, file_name, in_memory
from agentstore.engines.sqlite.moving import change_log_of
from agentstore.records.upkeep import Finding, Severity, listed
from agentstore.schema import Tables

_SAMPLE = 100
"""Rows that an estimate of a table's size looks at."""

_TRIAL = 64 * 1024
"""Bytes: about what a save adds to the log."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)

_SIZES = """
SELECT m.tbl_name, sum(s.pgsize) FROM dbstat AS s JOIN sqlite_master AS m ON m.name = s.name
WHERE s.aggregate = 1 GROUP BY m.tbl_name"""


class SQLiteChecks(Checks):
    """The checks of SQLite; see ``Checks`` for what each method promises."""

    system = "sqlite"

    def status(self, connection: Connection, tables: Tables) -> DatabaseStatus:
        """Read the revision, and look at the file."""
        watched = connection.info.get(WATCHED)
        if watched is not None:
            watched.look()
        revision = connection.execute(select(version_of(tables.names))).scalar()
        return DatabaseStatus(sqlite3.sqlite_version, revision, _writable(connection))

    def footprint(self, connection: Connection, tables: Tables) -> Footprint:
        """Ask for the number of pages; the log is a file beside."""
        page = pragma(connection, "PRAGMA page_size")
        pages = pragma(connection, "PRAGMA page_count")
        free = pragma(connection, "PRAGMA freelist_count")
        file = database_file(connection)
        log = None if file is None else file.with_name(f"{file.name}-wal")
        size = log.stat().st_size if log is not None and log.exists() else 0
        return Footprint(page * pages, page * free, size)

    def table_sizes(
        self, connection: Connection, tables: Tables, *, exact: bool
    ) -> Mapping[str, TableSize]:
        """Ask ``dbstat``, or estimate."""
        measured = _measured(connection) if exact else None
        every = {each.name: each for each in tables.metadata.sorted_tables}
        rows = {name: _rows(connection, each) for name, each in every.items()}
        prefix = tables.names.prefix
        index = f"{prefix}{INDEX}"
        if measured is not None:
            sizes = {name: measured.get(name, 0) for name in every}
            sizes[index] = sum(size for name, size in measured.items() if name.startswith(index))
        else:
            sizes = self._shared_out(connection, tables, every, rows, index)
        return {
            name.removeprefix(prefix): TableSize(rows.get(name, 0), size, measured is not None)
            for name, size in sizes.items()
        }

    def _shared_out(
        self,
        connection: Connection,
        tables: Tables,
        every: Mapping[str, Table],
        rows: Mapping[str, int],
        index: str,
    ) -> dict[str, int]:
        footprint = self.footprint(connection, tables)
        used = footprint.bytes - (footprint.free or 0)
        weights = {name: rows[name] * _row_bytes(connection, each) for name, each in every.items()}
        blocks = named_table(f"{index}_data", column("block"), column("id"))
        newest = select(blocks.c.block).order_by(blocks.c.id.desc()).limit(_SAMPLE).subquery()
        mean = connection.execute(select(func.avg(func.length(newest.c.block)))).scalar() or 0
        # Blocks of the index have ids that skip; what it holds is in proportion to the messages.
        weights[index] = float(mean) and weights[tables.messages.name] / 2
        total = sum(weights.values()) or 1
        return {name: round(used * weight / total) for name, weight in weights.items()}


def database_file(connection: Connection) -> Path | None:
    """Give the file of the database; None where it is in memory."""
    for _, name, file in connection.exec_driver_sql("PRAGMA database_list"):
        if name == "main" and file:
            return Path(file)
    return None


def pragma(connection: Connection, statement: str) -> int:
    """Read a pragma that is a number."""
    return int(connection.exec_driver_sql(statement).scalar_one())


def _writable(connection: Connection) -> bool:
    """Ask the connection and the file system; writing a row would wait for other writers."""
    url = connection.engine.url
    if pragma(connection, "PRAGMA query_only") or url.query.get("mode") == "ro":
        return False
    file = database_file(connection)
    if file is None:
        return True
    return os.access(file, os.W_OK) and os.access(file.parent, os.W_OK) and _has_room(file.parent)


def _has_room(folder: Path) -> bool:
    """Write a file without a name where the log would have to grow."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as trial:
            return trial.write(b"\xa5" * _TRIAL) == _TRIAL
    except OSError as error:
        return error.errno not in _NO_ROOM


def _measured(connection: Connection) -> dict[str, int] | None:
    try:
        return {name: int(size) for name, size in connection.exec_driver_sql(_SIZES)}
    except OperationalError:  # a library without dbstat
        return None


def _rows(connection: Connection, source: Table) -> int:
    """Give the span of row numbers, which deletions make too large: two look-ups."""
    rowid: ColumnElement[int] = literal_column("rowid")
    last = select(func.max(rowid)).select_from(source).scalar_subquery()
    first = select(func.min(rowid)).select_from(source).scalar_subquery()
    return int(connection.execute(select(last - first + 1)).scalar() or 0)


def _row_bytes(connection: Connection, source: Table) -> float:
    newest = select(source).order_by(literal_column("rowid").desc()).limit(_SAMPLE).subquery()
    lengths = [func.coalesce(func.length(cast(c, LargeBinary)), 0) for c in newest.c]
    total = sum(lengths[1:], lengths[0])
    return float(connection.execute(select(func.avg(total))).scalar() or 0)


# What there is to look at on SQLite: the library, the file, and what surrounds it.
#
# Sources: https://sqlite.org/wal.html#walresetbug and https://sqlite.org/changes.html for the bug
# of the WAL, https://sqlite.org/pragma.html for the checks of integrity.


_WAL_RESET_MENDED = (3, 51, 3)
_WAL_RESET_BACKPORTS = {(3, 44): 6, (3, 50): 7}
"""The releases of older lines that have the fix too."""

_QUICK_UP_TO = 256 * 1024 * 1024
"""Bytes of a file that are checked without being asked to: a few seconds."""

_LARGE_LOG = 256 * 1024 * 1024
_MUCH_FREE = 10 * 1024 * 1024
_LITTLE_SPACE = 5 * 1024**3
_NO_SPACE = 100 * 1024 * 1024
_DEFAULT_SYNCHRONOUS = 2


def has_wal_reset_bug(version: tuple[int, int, int]) -> bool:
    """Say whether two connections that write and checkpoint at once can damage a WAL database."""
    if not (3, 7, 0) <= version < _WAL_RESET_MENDED:
        return False
    fixed = _WAL_RESET_BACKPORTS.get(version[:2])
    return fixed is None or version[2] < fixed


def engine(context: CheckContext) -> Iterator[Finding]:
    """Look at the library's version."""
    version = sqlite3.sqlite_version
    if has_wal_reset_bug(sqlite3.sqlite_version_info):
        yield Finding(
            Severity.WARNING,
            "engine",
            f"SQLite {version} has the WAL-reset bug: two connections that write and checkpoint "
            "at the same instant can, very rarely, damage the file.",
            "sqlite3 library",
            "Use a Python whose sqlite3.sqlite_version is 3.51.3 or newer (or 3.50.7, 3.44.6); "
            "until then keep backups, and one process that writes",
        )
    else:
        yield Finding(Severity.INFO, "engine", f"SQLite {version}.", "sqlite3 library")


def pragmas(context: CheckContext) -> Iterator[Finding]:
    """Look at what the file says, and at what a connection of ours was given."""
    connection = context.connection
    mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())
    if mode not in ("wal", "memory"):
        # A backup is so until a store opens it. What lies beside a file tells that it is in use.
        used = any(Path(f"{file}-journal").exists() for file in _files(context.url)[:1])
        yield Finding(
            Severity.WARNING if used else Severity.INFO,
            "pragmas",
            f"The file is in journal_mode={mode}, as a backup is. A store turns the WAL on when it "
            "opens the file to write; until then readers and the writer wait for each other.",
            "journal_mode",
            f"sqlite3 {_file(context.url)} 'PRAGMA journal_mode=WAL'" if used else None,
        )
    if not pragma(connection, "PRAGMA foreign_keys"):
        yield Finding(
            Severity.ERROR,
            "pragmas",
            "This SQLite library does not enforce foreign keys, though it was told to.",
            "foreign_keys",
            "Use a library that is not compiled with SQLITE_OMIT_FOREIGN_KEY",
        )
    if pragma(connection, "PRAGMA synchronous") < _DEFAULT_SYNCHRONOUS:
        yield Finding(
            Severity.WARNING,
            "pragmas",
            "Commits are not synced: a power cut may lose the last ones.",
            "synchronous",
            "Open the store with synchronous='FULL'",
        )
    if not pragma(connection, "PRAGMA auto_vacuum"):
        yield Finding(
            Severity.INFO,
            "pragmas",
            "auto_vacuum is off: the file keeps its size when rows are deleted, for new rows.",
            "auto_vacuum",
        )


_TRIGGERS = text("""
SELECT name, tbl_name, printf('DROP TRIGGER "%w"', name) FROM sqlite_master
WHERE type = 'trigger' ORDER BY name""")


def triggers(context: CheckContext) -> Iterator[Finding]:
    """Look for triggers that no revision made, and no copy that follows."""
    names = context.tables.names
    own = tuple(f"{names.prefix}{each}" for each in ("activity_kept", "search_"))
    ours = {each.name for each in context.tables.metadata.sorted_tables}
    for name, home, dropping in context.connection.execute(_TRIGGERS):
        if home in ours and not name.startswith((*own, f"{change_log_of(names)}_")):
            fix = f"If nobody needs it: sqlite3 {_file(context.url)} {shlex.quote(dropping)}"
            what = FOREIGN_CODE.format("trigger", name)
            yield Finding(Severity.WARNING, "triggers", what, home, fix)


def integrity(context: CheckContext) -> Iterator[Finding]:
    """Have SQLite check the pages: all of them if asked to, or if they are not many."""
    connection = context.connection
    size = pragma(connection, "PRAGMA page_count") * pragma(connection, "PRAGMA page_size")
    if not context.deep and size > _QUICK_UP_TO:
        yield Finding(
            Severity.INFO,
            "integrity",
            f"The file has {size:,} bytes; its pages were not checked.",
            str(context.url.database),
            context.command("doctor --deep"),
        )
        return
    check = "PRAGMA integrity_check(20)" if context.deep else "PRAGMA quick_check(20)"
    said = [str(row[0]) for row in connection.exec_driver_sql(check)]
    if said != ["ok"]:
        yield Finding(
            Severity.ERROR,
            "integrity",
            f"The file is damaged: {' '.join(listed(said, 3).split())}.",
            str(context.url.database),
            f"Restore a backup; or sqlite3 {_file(context.url)} .recover > saved.sql",
        )
    if not context.deep:
        return
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(1000)
    for table in sorted({str(row[0]) for row in orphans}):
        rows = [row[1] for row in orphans if row[0] == table]
        yield Finding(
            Severity.ERROR,
            "orphans",
            f"{len(rows):,} rows refer to rows that are gone: somebody wrote without foreign "
            "keys. Row numbers: " + listed(rows) + ".",
            table,
            f"sqlite3 {_file(context.url)} 'PRAGMA foreign_key_check({table})', then delete them",
        )


def bloat(context: CheckContext) -> Iterator[Finding]:
    """Look at the free pages."""
    connection = context.connection
    page = pragma(connection, "PRAGMA page_size")
    pages = pragma(connection, "PRAGMA page_count")
    free = pragma(connection, "PRAGMA freelist_count")
    if free * page > _MUCH_FREE and free * 4 > pages:
        yield Finding(
            Severity.WARNING,
            "bloat",
            f"{free * page:,} of {pages * page:,} bytes of the file are free.",
            str(context.url.database),
            f"sqlite3 {_file(context.url)} VACUUM",
        )


def log(context: CheckContext) -> Iterator[Finding]:
    """Look at the size of the WAL, without opening anything."""
    for file in _files(context.url):
        if file.name.endswith("-wal") and (size := file.stat().st_size) > _LARGE_LOG:
            yield Finding(
                Severity.WARNING,
                "log",
                f"The write-ahead log has {size:,} bytes; a reader may have been open for long.",
                str(file),
                f"End long reads, then: sqlite3 {_file(context.url)} "
                "'PRAGMA wal_checkpoint(TRUNCATE)'",
            )


def permissions(context: CheckContext) -> Iterator[Finding]:
    """Look at who else may read or write the file, and at whose its companions are."""
    files = _files(context.url)
    owners: dict[int, str] = {}
    readable: list[Path] = []
    writable: list[Path] = []
    for file in files:
        found = file.stat()
        owners.setdefault(found.st_uid, file.name)
        mode = stat.S_IMODE(found.st_mode)
        if all(parent.stat().st_mode & stat.S_IXOTH for parent in file.parents):
            if mode & stat.S_IWOTH:
                writable.append(file)
            elif mode & stat.S_IROTH:
                readable.append(file)
        if not os.access(file, os.W_OK):
            yield Finding(
                Severity.INFO,
                "permissions",
                "The user who runs this may not write to the file.",
                f"{file} ({mode:o})",
            )
    for severity, what, which in (
        (Severity.ERROR, "write to", writable),
        (Severity.WARNING, "read", readable),
    ):
        if which:
            yield Finding(
                severity,
                "permissions",
                f"Everybody on this machine may {what} the file.",
                ", ".join(map(str, which)),
                f"chmod 600 {shlex.join(map(str, which))}",
            )
    if len(owners) > 1:
        yield Finding(
            Severity.WARNING,
            "permissions",
            "The file and its -wal and -shm belong to different users, who shut each other out.",
            ", ".join(owners.values()),
            f"chown --reference={_file(context.url)} {_file(context.url)}-*",
        )
    if files:
        folder = files[0].parent
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            yield Finding(
                Severity.WARNING,
                "permissions",
                "Everybody on this machine may replace the file: its folder is open to all.",
                f"{folder} ({stat.S_IMODE(mode):o})",
                f"chmod o-w {shlex.quote(str(folder))}",
            )


def disk(context: CheckContext) -> Iterator[Finding]:
    """Look at the room that the file has to grow."""
    for file in _files(context.url)[:1]:
        room = shutil.disk_usage(file.parent)
        if room.free < _NO_SPACE or (room.free < _LITTLE_SPACE and room.free * 10 < room.total):
            yield Finding(
                Severity.ERROR if room.free < _NO_SPACE else Severity.WARNING,
                "disk",
                f"Only {room.free:,} of {room.total:,} bytes of the disk are free.",
                str(file.parent),
                "Free some space, or move the file to a larger disk",
            )


SQLiteChecks.examinations = (
    Examination("engine", engine, unconnected=True),
    Examination("permissions", permissions, unconnected=True),
    Examination("disk", disk, unconnected=True),
    Examination("log", log, unconnected=True),
    Examination("pragmas", pragmas),
    Examination("integrity", integrity),
    Examination("triggers", triggers),
    Examination("bloat", bloat),
)
CHECKS = SQLiteChecks()


def _files(url: URL) -> list[Path]:
    """Give the file and its companions, as far as they are there."""
    if in_memory(url):
        return []
    file = Path(file_name(str(url.database))).resolve()
    every = (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm"))
    return [each for each in every if each.exists()]


def _file(url: URL) -> str:
    """Give the file's name as a shell takes it."""
    return shlex.quote(str(url.database))
