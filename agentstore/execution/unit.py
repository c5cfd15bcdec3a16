"""A unit of work: one transaction, and what the code in it needs.

A repository method is a body that runs inside a unit. Who opens the unit, in which thread, on
which kind of engine, and whether it is repeated after a conflict, is a ``Runner``'s business:
``Store`` has one, ``AsyncStore`` has others, a transaction has one that joins it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary, WeakSet, finalize, ref

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import (
    DBAPIError,
    InvalidRequestError,
    PendingRollbackError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool, QueuePool
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from agentstore.engines.base.dialect import (
    LAST_USED,
    MODE,
    UNKNOWN,
    WAIT_CANCELLED,
    EngineDialect,
    Failure,
    Mode,
    cause_of,
)
from agentstore.engines.base.statements import NO_TRANSACTION, Builder, dialect_of, prepared
from agentstore.errors import (
    AgentStoreError,
    ConnectionLost,
    DatabaseBusy,
    DatabaseError,
    InvalidRow,
    TransactionMisuse,
)
from agentstore.schema import Tables
from agentstore.settings import Settings
from agentstore.values.types import require_utc, unlist

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """What was noted last, of which it forgets the oldest where it is much; for any thread."""

    __slots__ = ()
    most = 256

    def note(self, key: K, value: V) -> None:
        """Remember something by its key."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self.most:
            self.pop(next(iter(self.copy()), key), None)


class RecentIds(Recent[str, None]):
    """A set of ids."""

    __slots__ = ()
    most = 10_000


RecentBodies = Recent[bytes, tuple[bytes, Any]]
"""Bodies by their digests, each with the hash object that has digested it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What a body works with.

    Attributes:
        connection: In a transaction, or in autocommit where the mode allows; never to be
            committed or closed by a body.
        branched: The store's: sessions that had more branches than one when they were read last.
            Only a hint which of two statements is likely to be the one that is needed.
        put_last: The store's, likewise a hint: the checkpoint that was put last in a place, as the
            next put needs it, which sees to it that it still is.
        bodies: The store's: those of values that were put last; see ``values.plan``.
        joined: Whether it is a transaction of the application's, so that all that is done in it
            is one, however many units it would be otherwise.
        scope: The user whose rows alone are there, and are all that the engine shows where it can;
            None for all.
        filters: Whether the queries keep to that user's rows by themselves. Not, only where a test
            is to see that the engine does.
    """

    connection: Connection
    dialect: EngineDialect
    tables: Tables
    settings: Settings
    branched: RecentIds = field(default_factory=RecentIds)
    put_last: Recent[tuple[str, str], Any] = field(default_factory=Recent, repr=False)
    bodies: RecentBodies = field(default_factory=RecentBodies, repr=False)
    joined: bool = False
    scope: str | None = None
    filters: bool = True

    @property
    def only(self) -> str | None:
        """The user to whose rows the queries are to keep; None for all."""
        return self.scope if self.filters else None

    def rows(self, build: Builder, /, *shape: Any, **parameters: Any) -> list[Any]:
        """Run a statement that is built and compiled once for each shape; see ``Builder``.

        Args:
            build: A function of a module; a closure would be compiled at each call.
            shape: What it is given behind the tables.
            parameters: The values; those that an INSERT does not place itself are its columns.

        Returns:
            The rows, with names.
        """
        driver = dialect_of(self.connection)
        statement, row = prepared(build, driver, (*parameters,), self.tables, *shape)
        return [*map(row, statement.fetch(self.connection, parameters))]

    def first(self, build: Builder, /, *shape: Any, **parameters: Any) -> Any:
        """Run a statement as ``rows`` does; give the first row, or None."""
        rows = self.rows(build, *shape, **parameters)
        return rows[0] if rows else None

    def count(self, build: Builder, /, *shape: Any, **parameters: Any) -> int:
        """Run a statement as ``rows`` does; give how many rows it wrote."""
        driver = dialect_of(self.connection)
        statement, _ = prepared(build, driver, (*parameters,), self.tables, *shape)
        return statement.count(self.connection, parameters)

    def each(self, build: Builder, rows: Sequence[Mapping[str, Any]], /, *shape: Any) -> int:
        """Run a statement for each row of parameters, all with the same names; count as ``count``.

        There must be at least one row.
        """
        driver = dialect_of(self.connection)
        statement, _ = prepared(build, driver, (*rows[0],), self.tables, *shape)
        return statement.execute_many(self.connection, rows)

    def now(self) -> datetime:
        """Read the store's clock, in UTC."""
        now = self.settings.clock()
        if type(now) is datetime and now.tzinfo is UTC:
            return now
        return require_utc("the clock's time", now)


def in_autocommit(unit: Unit) -> bool:
    """Say whether each statement of a unit that writes is a transaction of its own."""
    if unit.dialect.single_writer:
        return False
    options = unit.connection.get_execution_options()
    return options.get(MODE) is Mode.STATEMENT and NO_TRANSACTION in options


class Runner(Protocol):
    """Opens units and runs bodies in them, synchronously."""

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body in a unit.

        Args:
            mode: What the body needs from its transaction.
            work: The body. It may be run more than once, never after it was committed, unless
                repeatable.
            repeatable: Whether a write whose outcome is in doubt may be repeated, because it
                carries an idempotency key.
        """


def rest(seconds: float) -> None:
    """Let others write, between two units; where this runs in a greenlet, the loop goes on."""
    if in_greenlet():
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


class AsyncRunner(Protocol):
    """Opens units and runs bodies in them, for coroutines; see ``Runner``."""

    async def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body in a unit without holding up the event loop."""


# Calls on their way to a unit.
#
# The body of a method that writes what may go together with the writes of others has two halves,
# around a ``yield``: the first checks the arguments and yields a ``Write``, the second makes the
# result of what was written. So one body serves every call, and ``Write.write`` is the one way
# into the database, for one write or for many. Neither half uses the database. The caller runs
# them, the first before the call waits for its turn and the second once it has heard that it was
# written: in between the others wait, so nothing is done there that can be done elsewhere.
#
# The words: a *group* is the calls whose writes go together; a lone call is a group of one. A
# call that its group leaves out gets the outcome DEFERRED, and is run again *solo*: as the only
# one of its unit, where it may look things up first, wait for a lock, and raise its own error.


class Deferred:
    """The outcome of a call that its group left out; nothing of it was written."""

    def __repr__(self) -> str:
        """Show up well in errors."""
        return "DEFERRED"


DEFERRED: Final = Deferred()


class NeedsTransaction(Exception):
    """A write by itself turned out to need a transaction; nothing of it was written."""


class Write(Protocol):
    """Something to be written."""

    @property
    def solo(self) -> bool:
        """Whether it cannot go together with others: it looks something up first."""

    @property
    def needs_transaction(self) -> bool:
        """Whether it takes several statements."""

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, solo: bool) -> list[Any]:
        """Write a group, or one write by itself.

        Args:
            unit: Where. A group is one statement where the unit is in autocommit.
            writes: What to write; exactly one if by itself.
            solo: Whether to wait for locks, to look up first what has to be looked up, and to
                raise why nothing was written.

        Returns:
            For each in the same order what the second half of its body needs; DEFERRED, never by
            itself, where it was not written: because it would fail or wait, or needs more than a
            group does. If this raises, nothing was written.
        """


Body = Generator[Write, Any, T]
"""What such a method is written as: it yields once, and returns what the method returns."""


class Call:
    """A method and its arguments, on their way to a unit. May be run more than once."""

    __slots__ = ("args", "body", "kwargs", "repository")

    def __init__(
        self,
        body: Callable[..., Any],
        repository: Callable[[Unit], Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Keep what to call, and on what; no argument may be used up by it."""
        self.body = body
        self.repository = repository
        self.args = args
        self.kwargs = kwargs

    def __call__(self, unit: Unit) -> Any:
        """Run it."""
        return self.body(self.repository(unit), *self.args, **self.kwargs)


class LoneRead(Call):
    """A method that is one SELECT, and so needs no transaction around it."""

    __slots__ = ()


class PrimaryRead(LoneRead):
    """One that no standby can answer."""

    __slots__ = ()


class GatheredCall(Call):
    """A method whose body is in two halves.

    Attributes:
        kind: The kind of its write, with others of which it can go; None if it cannot. It is known
            once the call is prepared.
    """

    kind: type[Write] | None = None
    _prepared: Write | None = None
    _rest: Body[Any]

    def prepare(self, unit: Unit) -> Write:
        """Run the first half, unless what it gave has not been written yet.

        Args:
            unit: Any; it needs no connection.
        """
        write = self._prepared
        if write is None:
            self._rest = self.body(self.repository(unit), *self.args, **self.kwargs)
            write = self._prepared = next(self._rest)
            self.kind = None if write.solo else type(write)
        return write

    def finish(self, written: Any) -> Any:
        """Run the second half; give the result."""
        try:
            self._rest.send(written)
        except StopIteration as end:
            return end.value
        raise AssertionError("a body yields once")

    def __call__(self, unit: Unit) -> Any:
        """Run it by itself, both halves included."""
        write = self._prepared or self.prepare(unit)
        self._prepared = None  # to write again, it is made again
        (written,) = write.write(unit, [write], solo=True)
        return self.finish(written)


def write_group(unit: Unit, calls: Sequence[GatheredCall]) -> list[Any]:
    """Write what calls of one kind have prepared.

    Returns:
        For each in the same order what its second half needs, or DEFERRED. If this raises, nothing
        was written.
    """
    writes = [call.prepare(unit) for call in calls]
    for call in calls:
        call._prepared = None  # to write again, it is made again
    return type(writes[0]).write(unit, writes, solo=False)


# Connections that are kept between calls that are one statement.
#
# Such a call needs no transaction, and to check a connection out of the pool and in again took as
# long as a small read on SQLite, and a quarter of the client's time of a save on PostgreSQL. So
# those that have been used are kept, and the next call takes one as it is. What needs a transaction
# has the pool's.
#
# Those to a file are taken out of the pool: they are cheap, and a reader waits for nobody. A server
# counts connections, so those to a server stay checked out of the pool, whose limits hold for them.
# Nobody may wait while one lies idle: an idle one is put back before a connection is checked out,
# and none is kept while somebody waits for the pool, or while more are open than ``pool_size``.


class KeptConnections:
    """Runs what is one statement, each on a connection that nobody else has at that moment.

    Attributes:
        going: An entry for each caller that is getting a connection from the pool.
    """

    def __init__(
        self,
        engine: Engine,
        dialect: EngineDialect,
        make_unit: Callable[[Connection], Unit],
        settings: Settings,
    ) -> None:
        """Open nothing yet.

        Args:
            engine: For ``Mode.READ``; its connections are the store's own.
            dialect: The engine's.
            make_unit: Makes the unit of an open connection.
            settings: The store's. No more than ``pool_size`` are kept, and none that lay idle for
                ``ping_after`` is used before the pool has looked at it.
        """
        self._engine = engine
        self._dialect = dialect
        self._make_unit = make_unit
        self._most = settings.pool_size
        self._rest = settings.ping_after
        self._detaches = dialect.single_writer
        self._idle: list[_Kept] = []
        self._kept: set[_Kept] = set()
        self.going: list[None] = []
        self._closed = False
        _kept_of[engine.pool] = ref(self)
        if not self._detaches:  # a store that nobody closed; SQLAlchemy would complain
            finalize(self, _return_all, self._idle)
        register_for_fork(self)

    def run(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body that is one statement.

        Raises:
            UnitFailure: The database failed.
        """
        kept: _Kept | None = None
        try:
            kept = self.take(mode)
            result = performed(kept.unit, work)
            self.give_back(kept)
        except HANDLED as error:
            self.drop(kept)
            self.put_back()
            raise unit_failure(self._dialect, mode, error, committing=False) from cause_of(error)
        except UnitFailure:
            raise
        except Exception:  # the body's own, such as NotFound; the connection may be broken, too
            if kept is not None and kept.connection.invalidated:
                self.drop(kept)
            elif kept is not None:
                kept.connection.rollback()
                self.give_back(kept)
            raise
        except BaseException:
            self.drop(kept)
            raise
        return result

    def take(self, mode: Mode) -> _Kept:
        """Take a connection for one statement."""
        try:
            kept = self._idle.pop()
        except IndexError:
            return _Kept(self.connect(self._engine), self._make_unit, mode)
        if self._detaches:
            try:
                self._dialect.require_file(kept.connection, each_time=False)
            except BaseException:
                self.drop(kept)
                raise
        elif time.monotonic() - kept.used > self._rest:
            self._idle.append(kept)
            self.put_back()
            return self.take(mode)
        if kept.mode is not mode:
            kept.connection.execution_options(**{MODE: mode})
            kept.mode = mode
        return kept

    def give_back(self, kept: _Kept) -> None:
        """End a call that went well; keep its connection for the next one, if there is room.

        Raises:
            UnitFailure: It was not acknowledged.
        """
        try:
            if kept.connection.in_transaction():  # a tracer listens, and so SQLAlchemy began one
                kept.connection.commit()
            if WAIT_CANCELLED in kept.info:
                raise unacknowledged(kept.connection)
            pool: Any = self._engine.pool
            self._kept.add(kept)  # first, so that no two take the last place
            if len(self._kept) > self._most or (not self._detaches and pool.overflow() > 0):
                self._kept.discard(kept)
                kept.connection.close()
                return
            if self._detaches and kept.driver_connection is None:
                kept.detach()
        except BaseException:
            self.drop(kept)
            raise
        kept.used = time.monotonic()
        self._idle.append(kept)
        if self._closed:
            self.close()
        elif self.going:
            self.put_back(1)

    def connect(self, engine: Engine) -> Connection:
        """Check a connection out of the pool."""
        self.going.append(None)
        try:
            self.put_back(1)
            return engine.connect()
        finally:
            self.going.pop()

    def put_back(self, most: int | None = None) -> None:
        """Put idle connections back into the pool, so many or all, if they count there."""
        while self._idle and not self._detaches and most != 0:
            with suppress(IndexError):  # another thread was faster
                kept = self._idle.pop()
                info = kept.connection.info
                self.drop(kept)
                info[LAST_USED] = kept.used  # the pool looks at those that lay idle
            most = None if most is None else most - 1

    def idle(self) -> int:
        """Count the connections that nobody uses although the pool has none of them."""
        return 0 if self._detaches else len(self._idle)

    def close(self) -> None:
        """Let go of idle connections, and of the others once they come back."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self.drop(self._idle.pop())

    def after_fork(self) -> None:
        """Leave the connections to the parent; in a child that was forked."""
        self._closed = True
        idle, self._idle = self._idle, []
        for kept in self._kept:
            self._dialect.leave_behind(kept.connection, busy=kept not in idle)

    def drop(self, kept: _Kept | None) -> None:
        """Let go of a connection."""
        if kept is None:
            return
        self._kept.discard(kept)
        with suppress(*HANDLED):
            kept.connection.close()
        if kept.driver_connection is not None:
            # After an interrupt SQLAlchemy lets go of it unclosed, and with it of a lock.
            with suppress(Exception):
                self._engine.dialect.do_close(kept.driver_connection)


class _Kept:
    """A connection with the unit of those who use it.

    Attributes:
        driver_connection: The driver's, once it is out of the pool.
        info: What is known of it.
        mode: What it was used for last.
        used: When.
    """

    __slots__ = ("__weakref__", "connection", "driver_connection", "info", "mode", "unit", "used")

    def __init__(
        self, connection: Connection, make_unit: Callable[[Connection], Unit], mode: Mode
    ) -> None:
        self.connection = connection.execution_options(**{NO_TRANSACTION: True, MODE: mode})
        self.unit = make_unit(connection)
        self.driver_connection: Any = None
        self.info = connection.info
        self.mode = mode
        self.used = 0.0

    def detach(self) -> None:
        """Take it out of the pool, which is for those who come and go."""
        self.connection.detach()
        self.driver_connection = self.connection.connection.dbapi_connection
        self.info = self.connection.info


def _return_all(idle: list[_Kept]) -> None:
    for kept in idle:
        with suppress(Exception):
            kept.connection.close()


_kept_of: WeakKeyDictionary[Pool, ref[KeptConnections]] = WeakKeyDictionary()


def in_use(pool: QueuePool) -> int:
    """Count the connections of a pool that somebody uses."""
    known = _kept_of.get(pool)
    kept = None if known is None else known()
    return pool.checkedout() - (0 if kept is None else kept.idle())


# What a process that was forked has of its parent's stores: nothing that it may use.
#
# Connections, locks and threads do not go through a fork: a socket would be read by two
# processes, each of which gets the other's answers; SQLite forgets its locks; a lock may be held
# by a thread that is not there. So whatever holds one is told in the child, once, and refuses
# from then on. That costs nothing where nobody forks. ``subprocess``, and ``multiprocessing`` by
# ``spawn``, begin fresh.


class ForkAware(Protocol):
    """What belongs to the process that made it."""

    def after_fork(self) -> None:
        """Learn, in a child that was forked, that this is the parent's; take no lock."""


_ours: WeakSet[ForkAware] = WeakSet()


def register_for_fork(thing: ForkAware) -> None:
    """Have ``after_fork`` called in each child that is forked from now on."""
    _ours.add(thing)


def _in_child() -> None:
    things = list(_ours)
    _ours.clear()
    for thing in things:
        with suppress(Exception):  # the others have to hear all the same
            thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def store_of_parent() -> TransactionMisuse:
    """Say that a store was taken through a fork."""
    return TransactionMisuse(
        "This store was opened before the process was forked and belongs to the parent process. "
        "Open one store in each process after the fork, or start processes by spawn."
    )


# From a driver's error to ours, and whether to try again.
#
# The one place that decides what may be repeated. A conflict that the server rolled back has left
# nothing and is repeated. A broken connection is: a read has done nothing, and a write that had
# not come to its commit has left nothing; from the commit on the outcome is in doubt, and only a
# call with an idempotency key may be repeated, because it finds what it wrote the first time.


_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0

HANDLED = (StatementError, PoolTimeout, InvalidRequestError)
"""What SQLAlchemy raises in a unit."""


def performed(unit: Unit, work: Callable[[Unit], T]) -> T:
    """Run a body; if it meets a row that cannot be read, say which one, as far as that is known.

    Raises:
        InvalidRow: It did.
    """
    try:
        return work(unit)
    except (InvalidRow, DBAPIError) as error:
        _name_row(unit, error)
        raise


def _name_row(unit: Unit, error: Exception) -> None:
    # Not in a scope: the first such row may be somebody else's.
    found: Exception = error
    if isinstance(error, DBAPIError):
        found = unit.dialect.diagnose(error).error
    if not isinstance(found, InvalidRow) or found.sought or found.key:
        return
    if unit.only is None and unit.scope is None:
        found = unit.dialect.moving.name_row(unit.connection, unit.tables, found)
    found.sought = True
    raise found from None


class UnitFailure(Exception):
    """A unit failed.

    Attributes:
        error: What the caller is to see.
        repeatable: Whether the unit certainly left nothing and another try may succeed.
        in_doubt: Whether the unit may have been committed.
    """

    def __init__(self, error: Exception, *, repeatable: bool, in_doubt: bool) -> None:
        self.error = error
        self.repeatable = repeatable
        self.in_doubt = in_doubt


def unit_failure(
    dialect: EngineDialect, mode: Mode, error: Exception, *, committing: bool
) -> UnitFailure:
    """Say what an error of SQLAlchemy's means.

    Args:
        dialect: The engine's dialect.
        mode: What the unit was run for.
        error: One of ``HANDLED``.
        committing: Whether it came from the commit.
    """
    if isinstance(error, PoolTimeout):
        busy = DatabaseBusy(
            "Timed out waiting for a connection: all of the pool's were in use for longer than "
            "pool_timeout. Raise pool_size, or look for a transaction that stays open."
        )
        return UnitFailure(busy, repeatable=False, in_doubt=False)
    if isinstance(error, DBAPIError):
        found = dialect.diagnose(error)
        if found.failure is Failure.ROLLED_BACK:
            return UnitFailure(found.error, repeatable=True, in_doubt=False)
        if found.failure is Failure.DISCONNECTED or error.connection_invalidated:
            in_doubt = mode is Mode.STATEMENT or (committing and mode is Mode.WRITE)
            advice = (
                "The write may or may not have been committed: check, or repeat it with the same "
                "idempotency_key."
                if in_doubt
                else "Nothing was written; repeat the call."
            )
            known = found.failure is Failure.DISCONNECTED or not found.words
            said = found.error if known else f"{found.words} The connection is lost."
            lost = ConnectionLost(f"{said} {advice}", in_doubt=in_doubt)
            return UnitFailure(lost, repeatable=not in_doubt, in_doubt=in_doubt)
        return UnitFailure(found.error, repeatable=False, in_doubt=False)
    if isinstance(error, PendingRollbackError):
        lost = ConnectionLost(
            "The connection broke earlier in this transaction. Nothing was written; repeat the "
            "transaction.",
            in_doubt=False,
        )
        return UnitFailure(lost, repeatable=True, in_doubt=False)
    if isinstance(error, StatementError) and isinstance(error.orig, AgentStoreError):
        return UnitFailure(error.orig, repeatable=False, in_doubt=False)
    failed = DatabaseError(
        f"{type(error).__name__} in the database layer. {UNKNOWN} Please report it."
    )
    return UnitFailure(failed, repeatable=False, in_doubt=False)


def unacknowledged(connection: Connection) -> UnitFailure:
    """Say that a commit returned before its standby had it; not to be repeated.

    A call with a key would find what it wrote, and pass for done.
    """
    del connection.info[WAIT_CANCELLED]
    lost = ConnectionLost(
        "Somebody cancelled the commit's wait for its synchronous standby. The write is on "
        "this server, and is lost if a standby takes over that has not received it. Check "
        "health(), then look whether the write is there before you repeat it.",
        in_doubt=True,
    )
    return UnitFailure(lost, repeatable=False, in_doubt=False)


def pause_before_retry(
    problem: UnitFailure, attempt: int, *, repeatable: bool, max_retries: int
) -> float | None:
    """Give the seconds to wait before the next try; None if there is to be none.

    Args:
        problem: What went wrong.
        attempt: How many tries there were.
        repeatable: Whether the unit may be run again although it may have been committed.
        max_retries: The setting.
    """
    if attempt > max_retries:
        return None
    if not (problem.repeatable or (problem.in_doubt and repeatable)):
        return None
    doublings = min(attempt, 10)  # more would change nothing, and overflow at last
    longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**doublings)
    return random.uniform(0, longest)  # noqa: S311 - jitter, not a secret


# Work that settles although who asked for it is cancelled: the cancellation goes on after it.
#
# It runs in a task of its own, which its event loop does not list: cancelling all tasks of a
# loop, as ``asyncio.run`` does in the end, would cancel it as well, perhaps before its first
# step. Then a connection would never come back to its pool, and callers who wait for an outcome
# never hear of one. They wait, so the loop does not end before it. Only who started it can cancel
# it, and what runs in it itself: that is how ``asyncio.timeout`` ends what takes too long.


class OwnTask(asyncio.Task[T]):
    """A task that ``asyncio.all_tasks`` does not know."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        """Start it in the running loop."""
        super().__init__(work, loop=asyncio.get_running_loop())
        unlist(self)


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; when cancelled, let the cancellation go on only then."""
    task = OwnTask(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await until_done(task)
        raise


async def until_done(waiting: asyncio.Future[Any]) -> None:
    """Wait until this is done, however often one is cancelled meanwhile."""
    while not waiting.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # it is the cancellation that the caller asked for
