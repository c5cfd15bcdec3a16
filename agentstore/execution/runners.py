"""Runners get a connection, run one unit of work, and repeat it after a conflict.

``UnitRunner`` gives each call a transaction of its own and repeats it where that is safe. Errors of
the driver and of SQLAlchemy end here: what leaves is an ``AgentStoreError``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, UnboundExecutionError

from agentstore import migrations
from agentstore.engines.base.dialect import MODE, WAIT_CANCELLED, EngineDialect, Mode, cause_of
from agentstore.engines.base.statements import NO_TRANSACTION
from agentstore.errors import (
    AgentStoreError,
    DatabaseReadOnly,
    InvalidInput,
    TransactionMisuse,
    shown,
)
from agentstore.execution.gathering import Gatherer
from agentstore.execution.observation import TRANSACTION, Observer, retried
from agentstore.execution.unit import (
    HANDLED,
    AsyncRunner,
    GatheredCall,
    KeptConnections,
    LoneRead,
    NeedsTransaction,
    Recent,
    RecentBodies,
    RecentIds,
    Runner,
    Unit,
    UnitFailure,
    pause_before_retry,
    performed,
    register_for_fork,
    store_of_parent,
    unacknowledged,
    unit_failure,
)
from agentstore.execution.writer import Writer
from agentstore.schema import Names, tables
from agentstore.settings import Settings
from agentstore.values import validation
from agentstore.values.embeddings import Embeddings
from agentstore.values.types import is_in_autocommit

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


T = TypeVar("T")

READING = (Mode.READ, Mode.SNAPSHOT)


class _Open:
    """A transaction that a thread or task has open, to catch calls that would wait for it."""

    __slots__ = ("active", "store")

    def __init__(self, store: object) -> None:
        self.store = store
        self.active = True


open_transactions: ContextVar[tuple[_Open, ...]] = ContextVar(
    "agentstore_open_transactions", default=()
)


def in_own_transaction(store: object) -> bool:
    """Say whether this thread or task has a transaction open on the store."""
    return any(opened.store is store and opened.active for opened in open_transactions.get())


def refuse_inside_own_transaction(store: object) -> None:
    """Refuse a call on a store by a caller that has a transaction open on it.

    On SQLite the call would wait for that transaction, and the transaction for the call; on
    PostgreSQL it would silently not belong to it.

    Raises:
        TransactionMisuse: There is such a transaction.
    """
    if open_transactions.get() and in_own_transaction(store):
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
    token = open_transactions.set((*open_transactions.get(), opened))
    try:
        yield
    finally:
        opened.active = False
        with suppress(ValueError):  # ended in another context than it began, as fixtures may
            open_transactions.reset(token)


def announcing(observer: Observer | None) -> Callable[[object], AbstractContextManager[None]]:
    """Give ``announce_transaction``, watched if there is somebody to watch."""
    if observer is None:
        return announce_transaction

    @contextmanager
    def announce(store: object) -> Iterator[None]:
        with observer.call(TRANSACTION), announce_transaction(store):
            yield

    return announce


def give_up(connection: Connection) -> None:
    """Roll back what is open, and check the connection in; if that fails, it is lost.

    Which rolls back too, so whatever was raised before gets out. The rollback is explicit, because
    after a commit that failed SQLAlchemy's ``close()`` takes the transaction for ended.
    """
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
        self.own = owns_engine
        self.dialect = dialect
        self.settings = settings
        self.tables = tables(names_on(dialect, settings))
        self._engines = dialect.modes(engine, settings.synchronous_commit)
        self.writer = self._make_writer(engine, owns_engine) if dialect.single_writer else None
        self.kept = self._keeps()
        self.connect = Engine.connect if self.kept is None or self.writer else self.kept.connect
        self._statement = self._in_autocommit
        if self.kept is not None:
            self._statement = partial(self.kept.run, Mode.STATEMENT)
        self._gatherer = None if dialect.single_writer else Gatherer(self._statement)
        self._branched = RecentIds()
        self._put_last = Recent[tuple[str, str], Any]()
        self._bodies = RecentBodies()
        self.unconnected = self.unit(cast("Connection", None), Mode.WRITE)

    def _make_writer(self, engine: Engine, owns_engine: bool) -> Writer:
        return Writer(
            self._engines[Mode.WRITE],
            self.dialect,
            lambda connection: self.unit(connection, Mode.WRITE),
            timeout=self.settings.busy_timeout,
            keeps_connection=owns_engine and self.dialect.many_connections(engine.url),
        )

    def _keeps(self) -> KeptConnections | None:
        """Make what keeps connections, if a call that is one statement needs no more than one."""
        alone = self.dialect.single_writer or all(
            NO_TRANSACTION in self._engines[mode].get_execution_options()
            for mode in (Mode.READ, Mode.STATEMENT)
        )
        if not (self.own and alone and self.dialect.many_connections(self.engine.url)):
            return None
        engine, settings = self._engines[Mode.READ], self.settings
        return KeptConnections(engine, self.dialect, lambda c: self.unit(c, Mode.READ), settings)

    def unit(self, connection: Connection, mode: Mode) -> Unit:
        """Give the unit of an open connection."""
        return Unit(
            connection,
            self.dialect,
            self.tables,
            self.settings,
            branched=self._branched,
            put_last=self._put_last,
            bodies=self._bodies,
        )

    @contextmanager
    def transaction(self, mode: Mode = Mode.WRITE) -> Iterator[Unit]:
        """Open a unit; commit at the end of the block, or roll back if it raises.

        Raises:
            UnitFailure: The database failed.
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
            connection = self.connect(self._engines[mode])
            try:
                if not self.own:
                    self.dialect.take_over(connection)
                yield self.unit(connection, mode)
                self.dialect.require_file(connection, each_time=mode not in READING)
                committing = True
                connection.commit()
                if WAIT_CANCELLED in connection.info:
                    raise unacknowledged(connection)
            except BaseException:
                give_up(connection)
                raise
            connection.close()
        except HANDLED as error:
            if self.kept is not None:
                self.kept.put_back()
            found = unit_failure(self.dialect, mode, error, committing=committing)
            raise found from cause_of(error)

    def once(self, mode: Mode, work: Callable[[Unit], T], *, here: bool = False) -> T:
        """Run a body in a transaction of its own, one time.

        Args:
            mode: What for.
            work: The body.
            here: Whether it has to be this thread that runs it, and not one that leads.

        Raises:
            UnitFailure: The database failed.
        """
        if self.kept is not None and mode is Mode.READ and isinstance(work, LoneRead):
            return cast("T", self.kept.run(mode, work))
        if not self.own:
            self.dialect.refuse_to_wait_for_caller(self.engine, mode)
        if isinstance(work, GatheredCall):
            write = work.prepare(self.unconnected)
            if write.needs_transaction:
                mode = Mode.WRITE
            elif self._gatherer is not None and mode is Mode.STATEMENT and not write.solo:
                return cast("T", self._gatherer.run(work))
        if self.writer is not None and mode not in READING and not here:
            return cast("T", self.writer.run(work))
        if mode is Mode.STATEMENT and not here:
            return cast("T", self._statement(work))
        with (self.transaction if here else self.own_transaction)(mode) as unit:
            return performed(unit, work)

    def _in_autocommit(self, work: Callable[[Unit], Any]) -> Any:
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
            except NeedsTransaction:
                mode = Mode.WRITE
                continue
            except UnitFailure as problem:
                attempt += 1
                pause = self.pause(problem, attempt, repeatable=repeatable or mode in READING)
                if pause is None:
                    raise problem.error from problem.__cause__
            retried()
            time.sleep(pause)

    def close(self, *, wait: bool) -> None:
        """Let the writer end, and close its connection; wait unless it waits for the caller.

        The connections that are kept are closed too.
        """
        if self.kept is not None:
            self.kept.close()
        if self.writer is not None:
            self.writer.close(wait=wait)

    def pause(self, problem: UnitFailure, attempt: int, *, repeatable: bool) -> float | None:
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


class StoreRunner:
    """Runs a store's own calls, and catches those inside its own transaction."""

    def __init__(self, store: Any, runner: Runner) -> None:
        """Run the store's calls on this runner."""
        self._store = store
        self._runner = runner

    @property
    def embeddings(self) -> Embeddings | None:
        """Those of the store; None for calls that join a transaction of the application's."""
        store = self._store
        store._require_open()
        refuse_inside_own_transaction(store)
        joins = self._runner is not store._runner
        return None if joins else store._runner.settings.embeddings

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body; see ``Runner``."""
        store = self._store
        if store._closed:
            store._require_open()
        if open_transactions.get():
            refuse_inside_own_transaction(store)
        if store._runner.settings.read_only:
            refuse_to_write(store._runner.settings, mode)
        return self._runner.run(mode, work, repeatable=repeatable)


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


# Scopes: runners for which only one user's data are there, around those for which all are.
#
# A scope runs what it runs on its store's own runner, in a transaction in which the engine was
# told whose it is before anything else. A single statement, which would need no transaction, gets
# one: it is looked first whether what is named belongs to the user, and both must see one state.


_MODES = {Mode.READ: Mode.SNAPSHOT, Mode.STATEMENT: Mode.WRITE}
"""What a unit of one statement is in a scope."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose data are there.

    Attributes:
        user_id: The user.
        filters: See ``Unit``.
    """

    user_id: str
    filters: bool = True

    def __post_init__(self) -> None:
        """Check that the user id can be one; whether there is such a user is not checked."""
        validation.key("user_id", self.user_id)

    def enter(self, unit: Unit) -> None:
        """Tell the engine whose the transaction is, until it ends."""
        unit.dialect.enter_scope(unit.connection, self.user_id)

    def run(self, unit: Unit, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of the scope's own."""
        self.enter(unit)
        return self.run_entered(unit, work)

    def run_entered(self, unit: Unit, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of which the engine was told whose it is."""
        return performed(replace(unit, scope=self.user_id, filters=self.filters), work)

    def visit(self, unit: Unit, work: Callable[[Unit], T]) -> T:
        """Run a body in the application's transaction, and leave it as the engine knew it."""
        before = unit.dialect.scope_of(unit.connection)
        try:
            return self.run(unit, work)
        finally:
            with suppress(*HANDLED):  # it has failed, and so would this
                unit.dialect.enter_scope(unit.connection, before)


class Within(Protocol):
    """Runs a body in a unit that is made of an open one, as a ``Scope`` does."""

    def __call__(self, unit: Unit, work: Callable[[Unit], T], /) -> T:
        """Run it."""


class ScopedRunner:
    """Runs what is run in a scope: for threads on a ``Runner``, for tasks on an ``AsyncRunner``."""

    def __init__(self, runner: Runner | AsyncRunner, within: Within) -> None:
        """Run it on this runner, which is the store's or a transaction's."""
        self._runner = runner
        self._within = within

    @property
    def embeddings(self) -> Embeddings | None:
        """Those of the runner, if it has some."""
        found: Embeddings | None = getattr(self._runner, "embeddings", None)
        return found

    def run(self, mode: Mode, work: Callable[[Unit], Any], *, repeatable: bool) -> Any:
        """Run a body in a unit of the scope; gives its result, or what is awaited for it."""
        within = self._within
        return self._runner.run(
            _MODES.get(mode, mode), lambda unit: within(unit, work), repeatable=repeatable
        )


# Running units inside a transaction that is open: the store's, or one of the application's own.
#
# Who began it commits and rolls back; a unit here is a savepoint at most. Whether a connection of
# the application's can carry one is looked at for each call, as the application may have done
# anything to it meanwhile: it has to be of the store's engine, whose connections are set up as
# units need them, and in a transaction that is whole.
#
# With an ORM session a call goes where the session is: into its transaction and savepoint, after a
# flush if the session flushes by itself.


class JoinRunner:
    """Runs bodies inside a transaction that is open.

    Each write is a savepoint: if it fails and the caller goes on, nothing of it stays, and on
    PostgreSQL the transaction can go on at all.
    """

    def __init__(self, unit: Unit) -> None:
        """Join this unit."""
        self._unit = replace(unit, joined=True)
        self._only_reads = unit.connection.get_execution_options().get(MODE) in READING
        self._closed = False
        self._busy = threading.Lock()
        self.failure: UnitFailure | None = None
        """What the last call that failed met with."""
        self.lost: UnitFailure | None = None
        """Why the transaction is gone as a whole, if a savepoint could not be gone back to: what
        came after that would be in no transaction at all."""
        register_for_fork(self)

    def after_fork(self) -> None:
        """Refuse all further calls; in a child that was forked inside the transaction."""
        self._busy = threading.Lock()
        self.lost = UnitFailure(store_of_parent(), repeatable=False, in_doubt=False)
        self._unit.dialect.abandon(self._unit.connection)

    def refuse(self) -> None:
        """Refuse all further calls."""
        self._closed = True

    def close(self) -> None:
        """Refuse all further calls, and wait until one that another thread is in has ended."""
        self.refuse()
        with self._busy:
            pass

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body; see ``Runner``."""
        with self._busy:  # a transaction shared by threads takes their calls one by one
            if self._closed:
                raise TransactionMisuse(
                    "This transaction has ended. Begin another with store.transaction()."
                )
            if self.lost is not None:
                raise self.lost.error from self.lost.__cause__
            if self._only_reads and mode not in READING:
                raise TransactionMisuse(
                    "The function of read() called something that writes; nothing was written. "
                    "Use run() or transaction()."
                )
            failed: BaseException | None = None
            try:
                if mode in READING:
                    return performed(self._unit, work)
                with self._unit.connection.begin_nested():
                    try:
                        return performed(self._unit, work)
                    except BaseException as error:
                        failed = error
                        raise
            except HANDLED as error:
                shown = failed if isinstance(failed, HANDLED) else error
                found = unit_failure(self._unit.dialect, Mode.WRITE, shown, committing=False)
                found.__cause__ = cause_of(shown)
                self.failure = found
                if mode not in READING and error is not failed:
                    self.lost = found
                raise found.error from found.__cause__
            finally:
                failed = None  # with its frames, of which this is one


@contextmanager
def joined(unit: Unit) -> Iterator[JoinRunner]:
    """Give a block of the application's what it needs to join the unit.

    Raises:
        UnitFailure: The block raised what the database did to one of its calls, or went on after it
            although the transaction was gone; or it raised an error of SQLAlchemy's, which is of
            some other database then, and is passed on as it is.
    """
    runner = JoinRunner(unit)
    try:
        yield runner
        if runner.lost is not None:
            raise runner.lost
    except HANDLED as error:
        raise UnitFailure(error, repeatable=False, in_doubt=False) from error.__cause__
    except AgentStoreError as error:
        if runner.failure is not None and runner.failure.error is error:
            raise runner.failure from error.__cause__
        raise
    finally:
        runner.close()


class CallersRunner:
    """Runs bodies inside whatever transaction the application has open."""

    def __init__(self, runner: UnitRunner, into: object) -> None:
        """Prepare to join.

        Args:
            runner: The store's.
            into: A connection, or an ORM session.

        Raises:
            InvalidInput: It is something else.
        """
        self._runner = runner
        self._into = _connection_or_session(into)
        self._busy = threading.RLock()

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body; see ``Runner``.

        Raises:
            TransactionMisuse: The application has no transaction in which it could run.
        """
        runner = self._runner

        def body(unit: Unit) -> T:
            if mode not in READING:
                unit.dialect.join_to_write(unit.connection, unit.tables)
            return performed(unit, work)

        with self._busy:  # threads that share it go one by one
            connection = self.begin()
            if not isinstance(self._into, Connection) and self._into.autoflush:
                self._into.flush()
            unit = runner.unit(connection, Mode.WRITE)
            calls = JoinRunner(unit)
            try:
                return calls.run(mode, body, repeatable=repeatable)
            finally:
                if calls.lost is not None:
                    _let_fail(runner, connection)

    def begin(self) -> Connection:
        """Give the connection, in a transaction, which is begun if there is none.

        Raises:
            TransactionMisuse: No unit can run in it.
            DatabaseError: It could not begin.
        """
        runner = self._runner
        try:
            connection = self._connection()
            _require_fitting(runner, connection)
            if not connection.in_transaction():
                connection.begin()
            transaction = connection.get_nested_transaction() or connection.get_transaction()
            if transaction is None or not transaction.is_active:
                raise _ended()
        except PendingRollbackError as error:
            raise TransactionMisuse(
                "The application's transaction has failed. Roll it back, and begin again."
            ) from error
        except InvalidRequestError as error:
            raise _ended() from error
        except HANDLED as error:
            found = unit_failure(runner.dialect, Mode.WRITE, error, committing=False)
            raise found.error from cause_of(error)
        runner.dialect.require_joinable(connection, runner.tables)
        return connection

    def _connection(self) -> Connection:
        if isinstance(self._into, Connection):
            return self._into
        try:
            return self._into.connection()
        except UnboundExecutionError:  # each of its models has an engine of its own
            return self._into.connection(bind_arguments={"bind": self._runner.engine})


def _connection_or_session(into: object) -> Connection | Session:
    orm = sys.modules.get("sqlalchemy.orm")  # without which nobody has a session
    if orm is not None and isinstance(into, orm.scoped_session):
        into = into()
    if isinstance(into, Connection) or (orm is not None and isinstance(into, orm.Session)):
        return into
    raise InvalidInput(
        "connection must be a Connection or an ORM Session, for an AsyncStore an AsyncConnection "
        f"or an AsyncSession, not {shown(into)}."
    )


def _require_fitting(runner: UnitRunner, connection: Connection) -> None:
    """Refuse a connection on which a unit could not do what it promises; see the module."""
    if connection.closed:
        raise TransactionMisuse("This connection is closed. Pass an open one.")
    if connection.engine.pool is not runner.engine.pool:
        raise other_engine()
    if connection.invalidated and connection.in_transaction():
        raise TransactionMisuse(
            "The connection broke, or an error undid its transaction. Roll back, and begin again."
        )
    if is_in_autocommit(connection):
        raise TransactionMisuse(
            "This connection is in AUTOCOMMIT, so nothing on it can be rolled back. Pass one that "
            "has transactions, or call the store itself."
        )
    translated = connection.get_execution_options().get("schema_translate_map") or {}
    if runner.tables.names.schema in translated:
        raise TransactionMisuse(
            "The connection's schema_translate_map would move some of the store's statements to "
            "another schema, and others not. Open the store with schema=, and leave it out."
        )


def other_engine() -> TransactionMisuse:
    """Say that a connection is of an engine that the store does not know."""
    return TransactionMisuse(
        "This connection is not of the store's engine. Open the store with the engine of the "
        "application: Store(engine=engine), or AsyncStore(engine=async_engine)."
    )


def _ended() -> TransactionMisuse:
    return TransactionMisuse(
        "The application's transaction has ended, or takes no statements now. Begin another one, "
        "or call the store before it ends."
    )


def _let_fail(runner: UnitRunner, connection: Connection) -> None:
    """See to it that an application cannot commit a transaction that the database has undone."""
    transaction = connection.get_transaction()
    if runner.dialect.many_connections(runner.engine.url):
        connection.invalidate()
    elif transaction is not None:  # the database is gone with its only connection
        transaction.rollback()
