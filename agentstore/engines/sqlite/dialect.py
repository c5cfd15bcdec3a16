"""SQLite: a file, or memory, in this process.

The file is in WAL mode, so that readers and the writer do not wait for each other. SQLite has
one writer at a time; every unit that writes says so at its start (``BEGIN IMMEDIATE``), because
a transaction that begins as a reader and then writes cannot wait for its turn: it fails, or,
with the driver's own ways, loses the other's update silently.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Any
from weakref import WeakKeyDictionary, ref

from sqlalchemy import (
    URL,
    AsyncAdaptedQueuePool,
    BigInteger,
    BindParameter,
    Boolean,
    ColumnElement,
    Connection,
    Engine,
    ExceptionContext,
    FromClause,
    Insert,
    LargeBinary,
    QueuePool,
    Select,
    Table,
    Text,
    bindparam,
    case,
    cast,
    event,
    false,
    func,
    literal_column,
    select,
    table,
    type_coerce,
    update,
)
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstore import errors
from agentstore.engines.base.dialect import (
    MODE,
    OF_A_TRIGGER,
    UNKNOWN,
    Diagnosis,
    EngineDialect,
    Failure,
    Mode,
    OnSteps,
    Space,
    count_rows,
    listen_once,
    of_the_module,
)
from agentstore.engines.base.search import INDEX, QUEUE, STATE
from agentstore.engines.base.statements import NO_TRANSACTION, run_sql
from agentstore.engines.sqlite.append import (
    BEGIN_IMMEDIATE,
    WAITED,
    FileTasks,
    FileWrites,
    abandon,
    close_what_is_left,
    leave_behind,
    note_open,
    note_opening,
    pragma,
)
from agentstore.engines.sqlite.files import (
    WATCHED,
    FileSpace,
    Watch,
    WatchedFile,
    file_name,
    in_memory,
    only_read,
)
from agentstore.engines.sqlite.files import configure as configure_new
from agentstore.engines.sqlite.moving import (
    ChangeLog,
    change_log_of,
    counter_of,
    driver_of,
    drop_log,
    take_activity,
)
from agentstore.engines.sqlite.search import SQLiteSearch
from agentstore.errors import DatabaseCorrupt, InvalidInput, TransactionMisuse
from agentstore.records.upkeep import listed
from agentstore.schema import Names, Tables
from agentstore.settings import Settings
from agentstore.values.types import (
    MAX_INTEGER,
    innermost,
    is_in_autocommit,
)

# How transactions begin on SQLite, and the application's own on an engine that it handed in.
#
# A unit that writes begins with BEGIN IMMEDIATE. An application's transaction begins with BEGIN,
# as readers do, unless its connection or engine has the execution option ``agentstore_writes``.
# It takes the write lock when it first writes, and cannot do so once another connection has
# written since it first read.
#
# A thread or task that waits for the lock that its own transaction holds would wait in vain. So
# each transaction of an application is noted where it began, with what tells whether it has
# written.


CONFIGURED = "agentstore_configured"
"""What says, in the ``info`` of a connection, that its pragmas are set, and by which settings."""

WRITES = "agentstore_writes"
"""The execution option with which an application's transaction begins as a writer."""

_BEGIN = {Mode.READ: None, Mode.SNAPSHOT: "BEGIN"}
"""What begins a unit. A single SELECT is its own; all that write are immediate."""

_BEGUN = "agentstore_begun"


class _Begun:
    """A transaction that an application began."""

    __slots__ = ("_changes", "_connection", "_immediate", "_whose")

    def __init__(self, connection: Connection, *, immediate: bool) -> None:
        self._connection = ref(connection)
        self._whose = _who()
        self._immediate = immediate
        self._changes = _driver(connection).total_changes

    @property
    def connection(self) -> Connection | None:
        """Its connection, while it is open."""
        connection = self._connection()
        if connection is None or connection.closed or connection.invalidated:
            return None
        latest = connection.info.get(_BEGUN) is self and connection.in_transaction()
        return connection if latest else None

    def makes_wait(self, engine: Engine) -> bool:
        """Say whether it holds the lock of an engine's file, and its owner is who asks."""
        connection = self.connection
        if connection is None or connection.engine.pool is not engine.pool:
            return False
        driver = _driver(connection)
        writes = self._immediate or driver.total_changes != self._changes
        return self._whose == _who() and driver.in_transaction and writes


_begun_here: ContextVar[tuple[_Begun, ...]] = ContextVar("agentstore_begun", default=())


def _who() -> tuple[int, int | None]:
    """Name the thread, and the task if there is one: a context is copied to others."""
    task = None
    with suppress(RuntimeError):  # no event loop
        task = asyncio.current_task()
    return threading.get_ident(), None if task is None else id(task)


def _driver(connection: Connection) -> Any:
    return innermost(connection.connection.dbapi_connection)


def begin(connection: Connection) -> None:
    """Begin a transaction of an engine of the store's own; a listener."""
    statement = _first_statement(connection)
    if statement is not None:
        run_sql(connection, statement, begin=False)


def _first_statement(connection: Connection) -> str | None:
    options = connection.get_execution_options()
    if NO_TRANSACTION in options:
        return None
    if MODE not in options:
        return BEGIN_IMMEDIATE if options.get(WRITES) else "BEGIN"
    return _BEGIN.get(options[MODE], BEGIN_IMMEDIATE)


def begin_on_adopted(connection: Connection) -> None:
    """Begin on an engine whose application may have told it, before us, to begin by itself."""
    begun = bool(_driver(connection).in_transaction)
    statement = _first_statement(connection)
    own = MODE in connection.get_execution_options()
    if own and begun:
        _refuse_to_share(connection)
    if begun and statement == BEGIN_IMMEDIATE:
        connection.exec_driver_sql("ROLLBACK")  # it may have begun as a reader
        begun = False
    if not begun and statement is not None and (own or not is_in_autocommit(connection)):
        run_sql(connection, statement, begin=False)
    if not own:
        _note(connection, immediate=statement == BEGIN_IMMEDIATE)


def _note(connection: Connection, *, immediate: bool) -> None:
    begun = connection.info[_BEGUN] = _Begun(connection, immediate=immediate)
    still = (each for each in _begun_here.get() if each.connection is not None)
    _begun_here.set((*still, begun))


def _refuse_to_share(connection: Connection) -> None:
    """Refuse a unit on a connection of the driver that an application has a transaction on.

    Pools of databases in memory give all of a thread the same one.
    """
    begun = connection.info.get(_BEGUN)
    if begun is not None and begun.connection not in (None, connection):
        raise TransactionMisuse(
            "The store was called while the application has a transaction open on the only "
            "connection to a database in memory. Call store.joined(connection) to work inside "
            "that transaction, or end it first."
        )


def refuse_to_wait_for_caller(engine: Engine, mode: Mode) -> None:
    """Refuse to write where the caller itself holds the lock; see ``EngineDialect``."""
    if mode in _BEGIN:
        return
    for begun in _begun_here.get():
        if not begun.makes_wait(engine):
            continue
        raise TransactionMisuse(
            "The store would wait for its own caller, whose transaction on the same engine holds "
            "SQLite's write lock. Call store.joined(connection) to work inside that transaction, "
            "or end it first."
        )


def require_joinable(connection: Connection, tables: Tables) -> None:
    """Refuse what cannot be joined; see ``EngineDialect``."""
    if CONFIGURED not in connection.info:
        raise TransactionMisuse(
            "This connection was opened before the store, so foreign keys are not enforced on it. "
            "Open the store first, then connect."
        )
    if not _driver(connection).in_transaction:
        raise TransactionMisuse(
            "SQLite has no transaction open on this connection: an error rolled it back, or it "
            "was ended past SQLAlchemy. Roll back, and begin again."
        )
    temporary = run_sql(connection, _TEMPORARY, fetch=True)
    if temporary and (hiding := {row[0] for row in temporary}.intersection(_names_of(tables))):
        raise TransactionMisuse(
            f"Temporary tables of yours hide agentstore's: {listed(sorted(hiding))}. "
            "What is written there would be gone with them. Give them other names, or open the "
            "store with a table_prefix."
        )


_TEMPORARY = "SELECT lower(name) FROM temp.sqlite_master WHERE type IN ('table', 'view')"


def _names_of(tables: Tables) -> list[str]:
    names, others = tables.names, (INDEX, QUEUE, STATE, "alembic_version")
    counter = counter_of(names).name
    known = [table.name for table in tables.metadata.sorted_tables]
    return [*known, counter, *(f"{names.prefix}{name}" for name in others)]


def join_to_write(connection: Connection, tables: Tables) -> None:
    """Take the write lock before anything is read; see ``EngineDialect``."""
    users = tables.users
    connection.execute(update(users).values(pk=users.c.pk).where(false()))


# What SQLite's errors mean, and what to do about them.


_ADVICE: dict[int, tuple[type[errors.DatabaseError], str]] = {
    sqlite3.SQLITE_BUSY: (
        errors.DatabaseBusy,
        "Timed out waiting for the file's lock, which another process, or another store or "
        "connection in this one, held for longer than busy_timeout{}. Nothing was written: repeat "
        "the call, raise busy_timeout, or look for a transaction that stays open. To work inside "
        "a transaction of your own, call store.joined(connection).",
    ),
    sqlite3.SQLITE_LOCKED: (
        errors.DatabaseBusy,
        "Another connection in this process holds the table. End its transaction first.",
    ),
    sqlite3.SQLITE_READONLY: (
        errors.DatabaseReadOnly,
        "The database may only be read. Check the permissions of the file and of its folder, "
        "and that the URL does not say mode=ro.",
    ),
    sqlite3.SQLITE_FULL: (
        errors.DatabaseFull,
        "The disk is full; nothing was written. Free some space and repeat the call.",
    ),
    sqlite3.SQLITE_IOERR: (
        errors.DatabaseError,
        "The disk failed or is full; nothing was written. Check the disk and its free space.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        errors.DatabaseCorrupt,
        "The file is damaged. Restore a backup, or save what can be read with sqlite3 .recover.",
    ),
    sqlite3.SQLITE_NOTADB: (
        errors.NotADatabase,
        "The file is not a SQLite database. Check the path in the URL.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        errors.DatabaseUnreachable,
        "The file cannot be opened. Check that its folder exists and may be written to.",
    ),
}

_COMPARE = (
    "The schema is incomplete; nothing was written. Run agentstore doctor, which checks all of it."
)
_BLOB = "JSON cannot hold BLOB values"
"""What ``Packed`` meets where a column of texts holds bytes."""
_LOST = re.compile(r"no such (table|column): ([\w.]{1,130})\Z")

_STALE = (
    "Another connection wrote after this transaction had read, so SQLite does not let it write any "
    "more. Roll it back and repeat it. So that it cannot happen, begin it as a writer, with the "
    "execution option agentstore_writes=True of the connection or the engine."
)

_DAMAGED_INDEX = (
    "The search index is damaged; messages are not affected. Run agentstore reindex, or call "
    "store.search.reindex()."
)


def diagnose(error: DBAPIError) -> Diagnosis:
    """Read SQLite's primary result code."""
    extended = getattr(error.orig, "sqlite_errorcode", None)
    if extended is None:  # not SQLite's words, but those of Python's module, which quote values
        return Diagnosis(Failure.FINAL, of_the_module(error))
    if extended == sqlite3.SQLITE_CORRUPT_VTAB:
        return Diagnosis(Failure.FINAL, errors.DatabaseCorrupt(_DAMAGED_INDEX))
    if extended == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return Diagnosis(Failure.ROLLED_BACK, errors.TransactionConflict(_STALE))
    no_room = extended == sqlite3.SQLITE_IOERR_SHMSIZE  # for the index of the WAL
    code = sqlite3.SQLITE_FULL if no_room else extended & 0xFF
    if code == sqlite3.SQLITE_CONSTRAINT:
        words = OF_A_TRIGGER if extended == sqlite3.SQLITE_CONSTRAINT_TRIGGER else error.orig
        violation = errors.ConstraintViolation(f"{words}. Nothing was written.")
        return Diagnosis(Failure.FINAL, violation)
    if code == sqlite3.SQLITE_ERROR and str(error.orig) == _BLOB:
        return Diagnosis(Failure.FINAL, errors.InvalidRow("", "", "bytes"))
    if code == sqlite3.SQLITE_ERROR and (lost := _LOST.match(str(error.orig))) is not None:
        return Diagnosis(Failure.FINAL, errors.SchemaDamaged(f"{lost[0]}. {_COMPARE}"))
    kind, advice = _ADVICE.get(code, (errors.DatabaseError, UNKNOWN))
    waited = getattr(error.orig, WAITED, None)
    long = "" if waited is None else f" ({waited:.1f} s)"
    return Diagnosis(Failure.FINAL, kind(f"{error.orig}. {advice.replace('{}', long)}"))


_OF_THE_DRIVER = {
    "uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements",
}  # fmt: skip
"""Parameters of a URL that the driver takes for itself. Others are SQLite's, in a URI alone."""

_SYNCHRONOUS = "agentstore_synchronous"
_FULL = 2


_asked: WeakKeyDictionary[Engine, Settings] = WeakKeyDictionary()
"""What the stores on an application's engine ask of its connections, which they share."""

_LEVELS = ("OFF", "NORMAL", "FULL", "EXTRA")


def _of_both(known: Settings, more: Settings) -> Settings:
    """Give settings that keep what either store promises; the first ones where they do."""
    level = max(known.synchronous, more.synchronous, key=_LEVELS.index)
    read_only = known.read_only and more.read_only
    if (level, read_only) == (known.synchronous, known.read_only):
        return known
    return replace(known, synchronous=level, read_only=read_only)


class SQLite(FileWrites, FileTasks, EngineDialect):
    """The dialect of SQLite; see ``EngineDialect`` for what each method promises."""

    package = "agentstore.engines.sqlite"
    schemas = False
    file_based = True
    single_writer = True
    threads_async_work = True
    most_bytes = 999_999_000  # a row may have 1,000,000,000, with all of its columns
    search = SQLiteSearch
    space: Space = FileSpace()
    require_joinable = staticmethod(require_joinable)
    join_to_write = staticmethod(join_to_write)
    refuse_to_wait_for_caller = staticmethod(refuse_to_wait_for_caller)
    diagnose = staticmethod(diagnose)
    leave_behind = staticmethod(leave_behind)
    abandon = staticmethod(abandon)
    take_activity = staticmethod(take_activity)

    @property
    def change_log(self) -> ChangeLog:
        """How a file is followed while others write to it."""
        return ChangeLog()

    def url(self, url: URL, *, asynchronous: bool) -> URL:
        """Name pysqlite or aiosqlite."""
        if url.get_driver_name() not in ("pysqlite", "aiosqlite"):
            raise errors.UnsupportedUrl(
                f"The SQLite driver {url.get_driver_name()!r} is not supported. Leave it out"
            )
        return url.set(drivername="sqlite+aiosqlite" if asynchronous else "sqlite+pysqlite")

    def names_async_driver(self, url: URL) -> bool:
        """Say whether the URL names aiosqlite."""
        return url.get_driver_name() == "aiosqlite"

    def require_existing(self, url: URL) -> None:
        """Look for the file."""
        # Not of pathlib, which raises an error of the system's for a name that is too long.
        if not in_memory(url) and not os.path.exists(file_name(str(url.database))):  # noqa: PTH110
            raise errors.DatabaseUnreachable(
                f"There is no file {url.database}. Check the path (--url, or AGENTSTORE_URL), or "
                f"create the database with: agentstore upgrade --url {quote(str(url.database))}"
            )

    def engine_options(self, url: URL, settings: Settings) -> dict[str, Any]:
        """Pool the connections; memory lives in a single one, which all threads share in turn.

        Raises:
            UnsupportedUrl: The driver would pass over a part of the URL, such as ``mode=ro``.
        """
        of_sqlite = sorted({*url.query} - _OF_THE_DRIVER)
        begun = str(url.database).startswith("file:")
        if (begun or of_sqlite) and not (begun and "uri" in url.query):
            raise errors.UnsupportedUrl(
                f"{', '.join(of_sqlite) or 'file:'} in the URL has an effect only with file: and "
                "uri=true, as in sqlite:///file:PATH?NAME=VALUE&uri=true. To read a file and never "
                "write to it, pass read_only=True; other settings of the store are arguments too"
            )
        one_connection = in_memory(url)
        options: dict[str, Any] = {
            "pool_size": 1 if one_connection else settings.pool_size,
            "max_overflow": 0 if one_connection else settings.max_overflow,
            "pool_timeout": settings.pool_timeout,
            "poolclass": AsyncAdaptedQueuePool if self.names_async_driver(url) else QueuePool,
            "connect_args": {"check_same_thread": False},
        }
        return options

    def install(self, engine: Engine, settings: Settings, *, adopted: bool) -> None:
        """Set the pragmas on each connection, and begin each transaction as its mode needs."""
        close_what_is_left(engine.url)
        if adopted:
            _asked[engine] = _of_both(_asked.get(engine, settings), settings)
            if not listen_once(engine, "begin", begin_on_adopted):
                return  # another store of the application's has it already

        watch = None if in_memory(engine.url) else Watch(engine.url, settings)
        if watch is not None:
            event.listen(engine, "do_connect", watch.before)

        @event.listens_for(engine, "connect")
        def configure(dbapi_connection: Any, record: Any) -> None:
            asked = _asked[engine] if adopted else settings
            if not adopted:
                note_opening(record)
            if watch is not None:
                watch.opened(dbapi_connection, asked)
            configure_new(dbapi_connection, asked, adopted=adopted)
            record.info[CONFIGURED] = asked
            if watch is not None:
                record.info[WATCHED] = WatchedFile(watch)
            if not adopted:
                note_open(record, engine.url)

        if adopted:

            @event.listens_for(engine, "checkout")
            def configure_open_ones(dbapi_connection: Any, record: Any, _proxy: Any) -> None:
                if record.info.get(CONFIGURED) is not _asked[engine]:
                    configure(dbapi_connection, record)

            return
        event.listen(engine, "begin", begin)
        if settings.read_only and not in_memory(engine.url):
            only_read(engine)
        if in_memory(engine.url):
            event.listen(engine, "handle_error", _keep_connection)

    def many_connections(self, url: URL) -> bool:
        """Memory has but one."""
        return not in_memory(url)

    def writes_of_others(self, connection: Connection) -> int:
        """Read what SQLite itself uses to tell whether its cache is old."""
        return int(pragma(connection, "data_version"))

    def modes(self, engine: Engine, synchronous_commit: str | None = None) -> dict[Mode, Engine]:
        """Tag the engine with the mode, for the begin event."""
        return {mode: engine.execution_options(**{MODE: mode}) for mode in Mode}

    def brings_itself_to_head(self, connection: Connection) -> bool:
        """Accept a file without a single table."""
        return not connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").first()

    def lock_for_migration(self, connection: Connection, names: Names) -> None:
        """Take the write lock at once; foreign keys are off, or a rebuilt table empties others.

        The commit waits for the disk, however the store's others do: a schema is not made twice.
        """
        pragma(connection, "foreign_keys=OFF")
        connection.info[_SYNCHRONOUS] = before = int(pragma(connection, "synchronous"))
        pragma(connection, f"synchronous={max(before, _FULL)}")
        connection.execution_options(**{MODE: Mode.WRITE})
        connection.begin()

    def check_after_migration(self, connection: Connection) -> None:
        """Look for rows that refer to nothing."""
        orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(5)
        if orphans:
            found = ", ".join(
                f"{table} row {rowid} -> {parent}" for table, rowid, parent, _ in orphans
            )
            raise errors.DatabaseError(
                f"The migration would leave rows that refer to missing rows ({found}); it was "
                "rolled back. Repair these rows and run it again."
            )

    def unlock_after_migration(self, connection: Connection) -> None:
        """Enforce foreign keys again, and bring what was committed from the log into the file.

        As far as readers let it: it is on the disk already, but only until the log starts over,
        which with ``synchronous=OFF`` waits for nothing.
        """
        with suppress(sqlite3.Error):  # a disk that is full, say; the commit stands
            pragma(connection, "wal_checkpoint(PASSIVE)")
        before = connection.info.pop(_SYNCHRONOUS, None)
        if before is not None:
            pragma(connection, f"synchronous={before}")
        pragma(connection, "foreign_keys=ON")

    def has_no_room(self, error: DBAPIError) -> bool:
        """Look for what SQLite says where a sum is more than 64 bits hold."""
        return str(error.orig) == "integer overflow"

    def message_number(self, connection: Connection, tables: Tables) -> dict[str, int]:
        """Take it of the counter."""
        return {"pk": take_activity(connection, tables)}

    def octets(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        """Count them; not every library has a function for it."""
        return func.length(cast(text, LargeBinary))

    def holds(self, text: ColumnElement[str], part: str, *, ascii: bool) -> ColumnElement[bool]:
        """LIKE takes the least time for ASCII, and instr for the rest.

        An application may have set PRAGMA case_sensitive_like, which cannot be asked, only tried;
        SQLite tries it once for a statement.
        """
        given = bindparam(part, type_=Text)
        if ascii:
            ignores_case = literal_column("'A' LIKE 'a'", Boolean)
            return case((ignores_case, text), else_=func.lower(text)).contains(given)
        return func.instr(text, given) > 0

    def next_put(self, tables: Tables) -> Any:
        """Count on from the largest; there is one writer, so no two can take the same."""
        largest = func.max(tables.checkpoint_threads.c.activity)
        return select(func.coalesce(largest, 0) + 1).scalar_subquery()

    def each_line(
        self, lines: ColumnElement[Any]
    ) -> tuple[FromClause, ColumnElement[int], ColumnElement[int]]:
        """Say json_each."""
        held = func.json_each(lines).table_valued("key", "value", name="held")
        return held, cast(held.c.key, BigInteger), type_coerce(held.c.value, BigInteger)

    def insert_missing(self, table: Table) -> Insert:
        """Say ON CONFLICT DO NOTHING."""
        return sqlite_insert(table).on_conflict_do_nothing()

    def for_each(
        self, outer: FromClause, table: Table, found: Select[Any], *, all_outer: bool = False
    ) -> tuple[FromClause, ReadOnlyColumnCollection[str, Any]]:
        """Find the row numbers, for what is joined cannot refer to its neighbour here."""
        (alias,) = (each for each in found.get_final_froms() if each is not outer)
        numbers = found.with_only_columns(alias.c.pk).correlate(outer).scalar_subquery()
        return outer.join(table, table.c.pk.in_(numbers), isouter=all_outer), table.c

    def ranges(self, line: ColumnElement[Any]) -> tuple[FromClause, list[ColumnElement[int]]]:
        """Read JSON."""
        elements = func.json_each(line)
        each = elements.table_valued("key", "value", name="ranges", joins_implicitly=True)
        paths = [literal_column(path, Text) for path in ("'$[0]'", "'$[1]'", "'$[2]'")]
        of_each = [func.json_extract(each.c.value, path, type_=BigInteger) for path in paths]
        return each, [type_coerce(each.c.key, BigInteger), *of_each]

    def last_of(
        self, query: Select[Any], key: ColumnElement[int], count: BindParameter[int]
    ) -> Select[Any]:
        """Look up in the index where they begin: rows of a subquery would be copied one by one."""
        keys = query.with_only_columns(key).order_by(key.desc()).limit(1).offset(count - 1)
        first = keys.correlate(None).scalar_subquery()
        return query.where(key >= func.coalesce(first, 0))

    def lapse_reservations(
        self, connection: Connection, tables: Tables, user_id: str, now: datetime
    ) -> int:
        """Mark them, then subtract: nobody else writes meanwhile."""
        reservations, users = tables.quota_reservations, tables.users
        marked = (
            update(reservations)
            .where(
                reservations.c.user_id == user_id,
                reservations.c.expires_at <= now,
                reservations.c.lapsed.is_(False),
            )
            .values(lapsed=True)
            .returning(reservations.c.tokens)
        )
        lapsed = connection.execute(marked).scalars().all()
        if lapsed:
            less = users.c.quota_reserved - min(sum(lapsed), MAX_INTEGER)
            connection.execute(
                update(users).where(users.c.id == user_id).values(quota_reserved=less)
            )
        return len(lapsed)


def _keep_connection(context: ExceptionContext) -> None:
    """Keep the one connection of a database in memory, which would be gone with it.

    SQLAlchemy gives a connection up when an interrupt comes in the middle of a statement, because
    other drivers are then in no known state. This one is.
    """
    if not isinstance(context.original_exception, Exception):
        context.is_disconnect = False


# Saving SQLite databases: page by page, while others write, and what is checked afterwards.
#
# The backup is read through a connection that is in a read transaction, from its first page to
# its last. SQLite starts a backup over whenever another connection has written between two steps:
# beside a process that committed a hundred times a second, a file of 164 MB in steps of 500 pages
# started over 549 times in 20 seconds and was not done then. In the transaction there is but one
# state, and it took half a second. With a WAL, writers do not notice; what they write stays in
# the WAL until the transaction ends.


_PAGES = 2_000
"""Pages in a step, after which the progress is shown: 8 MB."""


_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name"
"""Without virtual ones, which are made of others."""


class SQLiteFiles:
    """Database files, as a backup, a copy or an import reads and makes them."""

    def url(self, file: Path) -> URL:
        """Name a file by its whole path."""
        return URL.create("sqlite", database=str(file.absolute()))

    def path(self, url: URL) -> Path:
        """Give the file of a URL, or of a URI in it.

        Raises:
            InvalidInput: The database lives in memory.
        """
        if in_memory(url):
            raise InvalidInput(
                "A database in memory can be neither saved nor restored. Use a database file."
            )
        return Path(file_name(str(url.database)))

    def same(self, one: URL, other: URL) -> bool:
        """Say whether two URLs are of one file, which may have several names; see ``path``."""
        files = [self.path(url) for url in (one, other)]
        with suppress(OSError):
            return os.path.samefile(*files)  # noqa: PTH121 - as everywhere here
        return os.path.realpath(files[0]) == os.path.realpath(files[1])

    def beside(self, file: Path) -> tuple[Path, ...]:
        """Name what would be taken for a part of the database if it was there.

        A WAL is brought into whatever database it lies beside, even where that is another one.
        """
        return tuple(file.with_name(file.name + suffix) for suffix in ("-wal", "-journal", "-shm"))

    def copy(self, connection: Connection, file: Path, progress: OnSteps) -> None:
        """Copy the state that a connection sees into a file that is empty; see above.

        Args:
            connection: In a transaction that has read already. Others may write meanwhile.
            file: Where to; whatever is in it after an error is of no use.
            progress: Gets the pages.
        """
        with _translating(), closing(_open(file)) as target:
            # Nobody ever goes on with what is in the file after a failure.
            target.execute("PRAGMA journal_mode=OFF")
            target.execute("PRAGMA synchronous=OFF")
            driver_of(connection).backup(
                target,
                pages=_PAGES,
                progress=lambda _status, left, total: progress(total - left, total),
            )

    def finish(self, file: Path) -> None:
        """Make a database one file, with nothing beside it; nobody else has it open."""
        with _translating(), closing(_open(file)) as database:
            database.execute("PRAGMA journal_mode=DELETE").fetchall()

    def check(self, file: Path) -> int:
        """Read a file whole, and see whether it is sound; nothing is written.

        Returns:
            How many rows refer to nothing.

        Raises:
            DatabaseCorrupt: It is damaged.
        """
        with _translating(), closing(_open(file, "mode=ro")) as database:
            found = database.execute("PRAGMA integrity_check(3)").fetchall()
            if found != [("ok",)]:
                words = "; ".join(" ".join(str(row[0]).split()) for row in found)
                raise DatabaseCorrupt(
                    f"The file, or what it was copied from, is damaged ({words}). Nothing was "
                    "kept. Check the source with PRAGMA integrity_check; restore an older backup, "
                    "or save what can be read with sqlite3 .recover."
                )
            return sum(1 for _ in database.execute("PRAGMA foreign_key_check"))

    def counts(self, connection: Connection) -> dict[str, int]:
        """Count the rows of every table in the file, of all users and of the search index."""
        names = connection.exec_driver_sql(_TABLES).scalars().all()
        return count_rows(connection, map(table, names), set(names))

    def code(self, connection: Connection) -> list[tuple[str, str, str]]:
        """Give kind, name and SQL of all that is neither a plain table nor an index.

        By the SQL: SQLite refuses a file in which other columns say otherwise.
        """
        query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        found = []
        for name, sql in connection.exec_driver_sql(query):
            begun = _CODE.match(sql)
            if begun is not None:
                found.append((begun[1].lower(), name, sql))
        return found

    def logs(self, trigger: str, names: Names) -> bool:
        """Say whether a trigger is named as those that keep the log of a copy that follows."""
        return trigger.startswith(f"{change_log_of(names)}_")

    def unfollow(self, file: Path, names: Names) -> None:
        """Take out of a file the log of changes that a copy follows, by its objects' names."""
        with _translating(), closing(_open(file, "mode=rw")) as database:
            drop_log(database, names)


_CODE = re.compile("CREATE (TRIGGER|VIEW|VIRTUAL TABLE) ")
"""How the SQL begins that SQLite keeps: these words it writes itself."""


def _open(file: Path, options: str = "mode=rwc") -> Any:
    return sqlite3.connect(f"{file.absolute().as_uri()}?{options}", isolation_level=None, uri=True)


@contextmanager
def _translating() -> Iterator[None]:
    """Make the driver's errors ours."""
    try:
        yield
    except sqlite3.Error as error:
        wrapped = DBAPIError.instance(None, None, error, sqlite3.Error, hide_parameters=True)
        assert isinstance(wrapped, DBAPIError)
        raise diagnose(wrapped).error from error
