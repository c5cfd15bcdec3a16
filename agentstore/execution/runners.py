"""Runners get a connection, run one unit of work, and repeat it after a conflict.

``UnitRunner`` gives each call a transaction of its own and repeats it where that is safe. Errors of
the driver and of SQLAlchemy end here: what leaves is an ``AgentStoreError``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar, cast

from sqlalchemy import Connection, Engine

from agentstore import migrations
from agentstore.engines.base.causes import cause_of
from agentstore.engines.base.dialect import Mode
from agentstore.engines.registry import EngineDialect
from agentstore.errors import DatabaseReadOnly, TransactionMisuse
from agentstore.execution.gatherers import Gatherer
from agentstore.execution.gathering import GatheredCall, SeveralStatements, goes_with_others
from agentstore.execution.observation import TRANSACTION, Observer, retried
from agentstore.execution.readers import LoneRead, Readers
from agentstore.execution.recovery import HANDLED, Trouble, pause_before_retry, performed, trouble
from agentstore.execution.session_cache import SessionCache
from agentstore.execution.unit import RecentIds, Unit
from agentstore.execution.writer import Writer
from agentstore.models.tables import Names, tables
from agentstore.settings import Settings

T = TypeVar("T")

READING = (Mode.READ, Mode.SNAPSHOT)


class _Open:
    """A transaction that a thread or task has open, to catch calls that would wait for it."""

    __slots__ = ("active", "store")

    def __init__(self, store: object) -> None:
        self.store = store
        self.active = True


_open_here: ContextVar[tuple[_Open, ...]] = ContextVar("agentstore_open_transactions", default=())


def in_own_transaction(store: object) -> bool:
    """Say whether this thread or task has a transaction open on the store."""
    return any(opened.store is store and opened.active for opened in _open_here.get())


def refuse_inside_own_transaction(store: object) -> None:
    """Refuse a call on a store by a caller that has a transaction open on it.

    On SQLite the call would wait for that transaction, and the transaction for the call; on
    PostgreSQL it would silently not belong to it.

    Raises:
        TransactionMisuse: There is such a transaction.
    """
    if in_own_transaction(store):
        raise TransactionMisuse(
            "The store was called inside its own transaction. Call the transaction instead: "
            "with store.transaction() as tx: tx.messages.save(...)."
        )


def refuse_to_write(settings: Settings, mode: Mode = Mode.WRITE) -> None:
    """Refuse what would write, on a store that only reads.

    Raises:
        DatabaseReadOnly: It is one.
    """
    if settings.read_only and mode not in READING:
        raise DatabaseReadOnly(
            "This store is read-only; nothing was written. To write, or for a transaction, open "
            "a store without read_only=True."
        )


@contextmanager
def announce_transaction(store: object) -> Iterator[None]:
    """Mark that this thread or task has a transaction open on the store."""
    refuse_inside_own_transaction(store)
    opened = _Open(store)
    token = _open_here.set((*_open_here.get(), opened))
    try:
        yield
    finally:
        opened.active = False
        with suppress(ValueError):  # ended in another context than it began, as fixtures may
            _open_here.reset(token)


def announcing(observer: Observer | None) -> Callable[[object], AbstractContextManager[None]]:
    """Give ``announce_transaction``, watched if there is somebody to watch."""
    if observer is None:
        return announce_transaction

    @contextmanager
    def announce(store: object) -> Iterator[None]:
        with observer.call(TRANSACTION), announce_transaction(store):
            yield

    return announce


@contextmanager
def opened(engine: Engine) -> Iterator[Connection]:
    """Check a connection out; in the end roll back what is open and check it in again.

    What the block raises gets out even if the rollback fails: then the connection is lost, which
    rolls back too. The rollback is explicit, because after a commit that failed SQLAlchemy's
    ``close()`` takes the transaction for ended.
    """
    connection = engine.connect()
    try:
        yield connection
    except BaseException:
        give_up(connection)
        raise
    connection.close()


def give_up(connection: Connection) -> None:
    """Roll back what is open, and check the connection in; if that fails, it is lost."""
    try:
        with suppress(*HANDLED):
            connection.rollback()
    finally:
        with suppress(*HANDLED):
            connection.close()


class UnitRunner:
    """Opens a unit on a synchronous engine, runs a body, commits."""

    def __init__(
        self,
        engine: Engine,
        dialect: EngineDialect,
        settings: Settings,
        *,
        owns_engine: bool = False,
    ) -> None:
        """Prepare the engine for each mode.

        Args:
            engine: The engine, synchronous or the synchronous side of another.
            dialect: The engine's.
            settings: The store's.
            owns_engine: Whether it is the store's own, and nobody else misses a connection.
        """
        self.engine = engine
        self.dialect = dialect
        self.settings = settings
        self.tables = tables(names_on(dialect, settings))
        self._engines = dialect.modes(engine)
        self.writer = self._make_writer(engine, owns_engine) if dialect.single_writer else None
        keeps = dialect.single_writer and owns_engine and dialect.many_connections(engine.url)
        self._readers = self._make_readers() if keeps else None
        self._gatherer = None if dialect.single_writer else Gatherer(self._statement)
        self._segmented = RecentIds()
        self._unconnected = self.unit(cast("Connection", None), Mode.WRITE)
        self._cache = SessionCache(settings.session_cache) if settings.session_cache else None

    def _make_writer(self, engine: Engine, owns_engine: bool) -> Writer:
        return Writer(
            self._engines[Mode.WRITE],
            self.dialect,
            lambda connection: self.unit(connection, Mode.WRITE),
            self.committed,
            timeout=self.settings.busy_timeout,
            keeps_connection=owns_engine and self.dialect.many_connections(engine.url),
        )

    def _make_readers(self) -> Readers:
        return Readers(
            self._engines[Mode.READ],
            self.dialect,
            lambda connection: self.unit(connection, Mode.READ),
            most=self.settings.pool_size,
        )

    def unit(self, connection: Connection, mode: Mode) -> Unit:
        """Give the unit of an open connection."""
        cache = self._cache if mode is Mode.READ else None
        what = (self.dialect, self.tables, self.settings)
        return Unit(connection, *what, cache, segmented=self._segmented)

    def prepare(self, work: Callable[[Unit], T]) -> None:
        """Do what a body does without the database, before it waits for anything."""
        if isinstance(work, GatheredCall):
            work.prepare(self._unconnected)

    def committed(self, unit: Unit) -> None:
        """Take note of what a unit did, now that it is committed."""
        if self._cache is not None:
            self._cache.forget(unit.deleted_sessions)

    @contextmanager
    def transaction(self, mode: Mode = Mode.WRITE) -> Iterator[Unit]:
        """Open a unit; commit at the end of the block, or roll back if it raises.

        Raises:
            Trouble: The database failed.
        """
        self.dialect.refuse_to_wait_for_caller(self.engine, mode)
        if self.writer is None or mode in READING:
            with self.own_transaction(mode) as unit:
                yield unit
            return
        with self.writer.exclusive(), self.own_transaction(mode) as unit:
            yield unit

    @contextmanager
    def own_transaction(self, mode: Mode) -> Iterator[Unit]:
        """Do what ``transaction`` does, for callers that need not wait for the writer."""
        committing = False
        try:
            with opened(self._engines[mode]) as connection:
                self.dialect.take_over(connection)
                unit = self.unit(connection, mode)
                yield unit
                self.dialect.require_file(connection, each_time=mode not in READING)
                committing = True
                connection.commit()
                self.committed(unit)
        except HANDLED as error:
            found = trouble(self.dialect, mode, error, committing=committing)
            raise found from cause_of(error)

    def once(self, mode: Mode, work: Callable[[Unit], T], *, here: bool = False) -> T:
        """Run a body in a transaction of its own, one time.

        Args:
            mode: What for.
            work: The body.
            here: Whether it has to be this thread that runs it, and not one that leads.

        Raises:
            Trouble: The database failed.
        """
        if self._readers is not None and mode is Mode.READ and isinstance(work, LoneRead):
            return cast("T", self._readers.run(work))
        self.dialect.refuse_to_wait_for_caller(self.engine, mode)
        self.prepare(work)
        if self.writer is not None and mode not in READING and not here:
            return cast("T", self.writer.run(work))
        if self._gatherer is not None and mode is Mode.STATEMENT and goes_with_others(work):
            return cast("T", self._gatherer.run(work))
        with self.transaction(mode) as unit:
            return performed(unit, work)

    def _statement(self, work: Callable[[Unit], T]) -> T:
        with self.own_transaction(Mode.STATEMENT) as unit:
            return performed(unit, work)

    def run(
        self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool, here: bool = False
    ) -> T:
        """Run a body in a transaction of its own; see ``Runner``, and ``once`` for ``here``."""
        attempt = 0
        while True:
            try:
                return self.once(mode, work, here=here)
            except SeveralStatements:
                mode = Mode.WRITE
                continue
            except Trouble as problem:
                attempt += 1
                pause = self.pause(problem, attempt, repeatable=repeatable or mode in READING)
                if pause is None:
                    raise problem.error from problem.__cause__
            retried()
            time.sleep(pause)

    def close(self, *, wait: bool) -> None:
        """Let the writer end, and close its connection; wait unless it waits for the caller.

        The connections that are kept for reading are closed too.
        """
        if self._readers is not None:
            self._readers.close()
        if self.writer is not None:
            self.writer.close(wait=wait)

    def pause(self, problem: Trouble, attempt: int, *, repeatable: bool) -> float | None:
        """Give the seconds to wait before the next try; None if there is to be none."""
        retries = self.settings.max_retries
        return pause_before_retry(problem, attempt, repeatable=repeatable, max_retries=retries)

    def open(self) -> None:
        """Bring a new database to head, or refuse one that is not there.

        Raises:
            SchemaError: The schema is missing, behind or ahead.
            DatabaseError: The database cannot be reached or read.
        """
        if self.run(Mode.READ, is_new, repeatable=True):
            self.run(Mode.READ, migrate, repeatable=True)


def is_new(unit: Unit) -> bool:
    """Say whether the database is to be brought to head; refuse one that is not at head."""
    if not unit.settings.read_only and unit.dialect.brings_itself_to_head(unit.connection):
        return True
    migrations.check(unit.connection, unit.tables.names)
    return False


def migrate(unit: Unit) -> None:
    """Bring a database to head, unless another process has done so meanwhile."""
    unit.connection.rollback()
    migrations.create(unit.connection, unit.tables.names)


def names_on(dialect: EngineDialect, settings: Settings) -> Names:
    """Give schema and prefix as the engine knows them."""
    return settings.names if dialect.schemas else Names(None, settings.table_prefix)
