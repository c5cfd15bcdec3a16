"""SQLite: a file, or memory, in this process.

The file is in WAL mode, so that readers and the writer do not wait for each other. SQLite has
one writer at a time; every unit that writes says so at its start (``BEGIN IMMEDIATE``), because
a transaction that begins as a reader and then writes cannot wait for its turn: it fails, or,
with the driver's own ways, loses the other's update silently.
"""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    URL,
    AsyncAdaptedQueuePool,
    BindParameter,
    ColumnElement,
    Connection,
    Engine,
    ExceptionContext,
    FromClause,
    Insert,
    QueuePool,
    Select,
    Table,
    event,
    func,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstore import errors
from agentstore.engines.base.dialect import MODE, Diagnosis, EngineDialect, Mode
from agentstore.engines.base.listening import listen_once
from agentstore.engines.base.search import SearchIndex
from agentstore.engines.base.space import Space
from agentstore.engines.sqlite.activity import take_activity
from agentstore.engines.sqlite.append import append_messages
from agentstore.engines.sqlite.diagnosis import WAITED, diagnose
from agentstore.engines.sqlite.files import WATCHED, Watch, WatchedFile, in_memory, only_read
from agentstore.engines.sqlite.files import configure as configure_new
from agentstore.engines.sqlite.forks import abandon, close_what_is_left, leave_behind, note
from agentstore.engines.sqlite.new_files import statements_of_head
from agentstore.engines.sqlite.parts import FileParts
from agentstore.engines.sqlite.search import SQLiteSearch
from agentstore.engines.sqlite.space import FileSpace
from agentstore.engines.sqlite.tasks import FileTasks
from agentstore.engines.sqlite.transactions import (
    CONFIGURED,
    begin,
    begin_on_adopted,
    join_to_write,
    refuse_to_wait_for_caller,
    require_joinable,
)
from agentstore.models.tables import Names, Tables
from agentstore.settings import Settings
from agentstore.values.types import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine


_SYNCHRONOUS = "agentstore_synchronous"
_FULL = 2
_PAUSES = (0.001, 0.006)
"""Seconds between two tries to begin to write, the shortest and the longest."""


class SQLite(FileTasks, FileParts, EngineDialect):
    """The dialect of SQLite; see ``EngineDialect`` for what each method promises."""

    schemas = False
    single_writer = True
    threads_async_work = True
    most_bytes = 999_999_000  # a row may have 1,000,000,000, with all of its columns
    search: SearchIndex = SQLiteSearch()
    space: Space = FileSpace()
    append_messages = staticmethod(append_messages)
    require_joinable = staticmethod(require_joinable)
    join_to_write = staticmethod(join_to_write)
    refuse_to_wait_for_caller = staticmethod(refuse_to_wait_for_caller)

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
        if not in_memory(url) and not Path(str(url.database).removeprefix("file:")).exists():
            raise errors.DatabaseUnreachable(
                f"There is no file {url.database}. Check the path (--url, or AGENTSTORE_URL), or "
                f"create the database with: agentstore upgrade --url {quote(str(url.database))}"
            )

    def engine_options(self, url: URL, settings: Settings) -> dict[str, Any]:
        """Pool the connections; memory lives in a single one, which all threads share in turn."""
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
        if adopted and not listen_once(engine, "begin", begin_on_adopted):
            return  # another store of the application's has it already

        watch = None if in_memory(engine.url) else Watch(engine.url, settings)
        if watch is not None:
            event.listen(engine, "do_connect", watch.before)

        @event.listens_for(engine, "connect")
        def configure(dbapi_connection: Any, record: Any) -> None:
            if watch is not None:
                watch.opened(dbapi_connection)
            configure_new(dbapi_connection, settings, adopted=adopted)
            record.info[CONFIGURED] = True
            if watch is not None:
                record.info[WATCHED] = WatchedFile(watch)
            if not adopted:
                note(record, engine.url)

        if adopted:

            @event.listens_for(engine, "checkout")
            def configure_open_ones(dbapi_connection: Any, record: Any, _proxy: Any) -> None:
                if CONFIGURED not in record.info:
                    configure(dbapi_connection, record)

            return
        event.listen(engine, "begin", begin)
        if settings.read_only and not in_memory(engine.url):
            only_read(engine)
        if in_memory(engine.url):
            event.listen(engine, "handle_error", _keep_connection)

    def leave_behind(self, connection: Connection, *, busy: bool) -> None:
        """Keep it for good, or until the child opens the file."""
        leave_behind(connection, busy=busy)

    def abandon(self, connection: Connection) -> None:
        """Keep it for good."""
        abandon(connection)

    def many_connections(self, url: URL) -> bool:
        """Memory has but one."""
        return not in_memory(url)

    def prepare_writer(self, connection: Connection) -> None:
        """Let it hear at once that another process writes; see ``begin_to_write``.

        With a WAL nobody is waited for once the transaction has begun.
        """
        if _pragma(connection, "journal_mode") == "wal":
            _pragma(connection, "busy_timeout=0")

    def begin_to_write(self, connection: Connection, patience: float) -> None:
        """Try again after short pauses of different lengths.

        SQLite's own pauses grow to 100 ms. As the lock goes to the one who happens to try in the
        moments between two transactions, a writer that rarely tries waits very long beside one
        that is busy.
        """
        begun = time.monotonic()
        while True:
            try:
                connection.begin()
                return
            except DBAPIError as error:
                code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
                waited = time.monotonic() - begun
                if code != sqlite3.SQLITE_BUSY or waited > patience:
                    setattr(error.orig, WAITED, waited)
                    raise
            time.sleep(random.uniform(*_PAUSES))  # noqa: S311 - that they do not try in step

    def writes_of_others(self, connection: Connection) -> int:
        """Read what SQLite itself uses to tell whether its cache is old."""
        return int(_pragma(connection, "data_version"))

    def require_file(self, connection: Connection, *, each_time: bool = True) -> None:
        """Compare device and inode, of the log too."""
        watched = connection.info.get(WATCHED)
        if watched is not None:
            watched.require(each_time=each_time)

    def modes(self, engine: Engine) -> dict[Mode, Engine]:
        """Tag the engine with the mode, for the begin event."""
        return {mode: engine.execution_options(**{MODE: mode}) for mode in Mode}

    def async_modes(self, engine: AsyncEngine) -> dict[Mode, AsyncEngine]:
        """Tag the engine with the mode, for the begin event."""
        return {mode: engine.execution_options(**{MODE: mode}) for mode in Mode}

    def diagnose(self, error: DBAPIError) -> Diagnosis:
        """Read SQLite's result code."""
        return diagnose(error)

    def brings_itself_to_head(self, connection: Connection) -> bool:
        """Accept a file without a single table."""
        return not connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").first()

    def script_of_head(self, names: Names) -> Sequence[str]:
        """Give the script that the revisions were written down as."""
        return statements_of_head(names.prefix)

    def lock_for_migration(self, connection: Connection, names: Names) -> None:
        """Take the write lock at once; foreign keys are off, or a rebuilt table empties others.

        The commit waits for the disk, however the store's others do: a schema is not made twice.
        """
        _pragma(connection, "foreign_keys=OFF")
        connection.info[_SYNCHRONOUS] = before = int(_pragma(connection, "synchronous"))
        _pragma(connection, f"synchronous={max(before, _FULL)}")
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
            _pragma(connection, "wal_checkpoint(PASSIVE)")
        before = connection.info.pop(_SYNCHRONOUS, None)
        if before is not None:
            _pragma(connection, f"synchronous={before}")
        _pragma(connection, "foreign_keys=ON")

    def has_no_room(self, error: DBAPIError) -> bool:
        """Look for what SQLite says where a sum is more than 64 bits hold."""
        return str(error.orig) == "integer overflow"

    def take_activity(self, connection: Connection, tables: Tables) -> int:
        """Count on the row numbers of messages."""
        return take_activity(connection, tables)

    def message_number(self, connection: Connection, tables: Tables) -> dict[str, int]:
        """Take it of the counter."""
        return {"pk": take_activity(connection, tables)}

    def next_put(self, tables: Tables) -> Any:
        """Count on from the largest; there is one writer, so no two can take the same."""
        largest = func.max(tables.checkpoint_threads.c.activity)
        return select(func.coalesce(largest, 0) + 1).scalar_subquery()

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


def _pragma(connection: Connection, pragma: str) -> Any:
    """Set or read a pragma outside of a transaction, where alone some of them work."""
    driver = connection.connection.dbapi_connection
    assert driver is not None
    cursor = driver.cursor()
    cursor.execute(f"PRAGMA {pragma}")
    row = cursor.fetchone()
    cursor.close()
    return row and row[0]
