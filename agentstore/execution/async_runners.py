"""Runners for coroutines: they get a connection and run one unit of work.

There are two, with one hop for each unit of work and none for a statement:

- ``ThreadRunner``, where the engine is in this process (SQLite): the
  body runs in a thread.
- ``GreenletRunner``, where it is at the end of a socket (PostgreSQL), or where the application
  brings an ``AsyncEngine``: the body runs in a greenlet that awaits the driver.

Cancellation: a call that still waits for its turn is taken back and leaves nothing. One that is
running on an engine in this process settles first, committed or rolled back; then the
cancellation goes on. One that awaits PostgreSQL is cancelled there and rolled back, unless its
commit was under way. Whatever was cancelled, its connection is back in the pool afterwards.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet, finalize

from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
)
from sqlalchemy.util import await_only, greenlet_spawn

from agentstore.engines.base.dialect import WAIT_CANCELLED, EngineDialect, Mode, cause_of
from agentstore.errors import AgentStoreError, DatabaseBusy, InvalidInput, TransactionMisuse, shown
from agentstore.execution.gathering import AsyncGatherer
from agentstore.execution.observation import retried
from agentstore.execution.runners import (
    READING,
    CallersRunner,
    JoinRunner,
    UnitRunner,
    give_up,
    is_new,
    joined,
    migrate,
    open_transactions,
    other_engine,
    refuse_inside_own_transaction,
    refuse_to_write,
)
from agentstore.execution.unit import (
    HANDLED,
    AsyncRunner,
    GatheredCall,
    LoneRead,
    NeedsTransaction,
    Runner,
    Unit,
    UnitFailure,
    finished,
    performed,
    register_for_fork,
    unacknowledged,
    unit_failure,
)
from agentstore.execution.writer import QueuedWrite, State, turn_never_came
from agentstore.settings import Settings
from agentstore.values.embeddings import Embeddings

T = TypeVar("T")


class AsyncUnitRunner(Protocol):
    """What the asynchronous store needs of either way."""

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of its own, one time; raises UnitFailure."""

    def pause(self, problem: UnitFailure, attempt: int, *, repeatable: bool) -> float | None:
        """Give the seconds to wait before the next try; None if there is to be none."""

    def transaction(self) -> AbstractAsyncContextManager[AsyncRunner]:
        """Open a transaction; raises UnitFailure."""

    def joined(self, into: object) -> AsyncRunner:
        """Give what runs bodies inside the application's transaction.

        Raises:
            InvalidInput: It is neither a connection nor a session for coroutines.
        """

    async def close(self) -> None:
        """Close the engine, if it is the store's own."""


async def run_with_retries(
    runner: AsyncUnitRunner, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool
) -> T:
    """Run a body in a transaction of its own; see ``Runner``."""
    attempt = 0
    while True:
        try:
            return await runner.once(mode, work)
        except NeedsTransaction:
            mode = Mode.WRITE
            continue
        except UnitFailure as problem:
            attempt += 1
            pause = runner.pause(problem, attempt, repeatable=repeatable or mode in READING)
            if pause is None:
                raise problem.error from problem.__cause__
        retried()
        await asyncio.sleep(pause)


class _BridgedRunner:
    """Runs units for a function in a greenlet, which waits as a coroutine would."""

    def __init__(self, runner: AsyncRunner) -> None:
        self._runner = runner
        self.embeddings = getattr(runner, "embeddings", None)

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        return await_only(self._runner.run(mode, work, repeatable=repeatable))


async def bridged(runner: AsyncRunner, function: Callable[[Runner], T]) -> T:
    """Call a plain function of several units of work without blocking the event loop.

    A cancellation is raised in the function where it waits for a unit, or between two.
    """
    return await greenlet_spawn(function, _BridgedRunner(runner))


async def open_database(runner: AsyncUnitRunner) -> None:
    """Bring a new database to head, or refuse one that is not there; see ``UnitRunner.open``."""
    if await run_with_retries(runner, Mode.READ, is_new, repeatable=True):
        await run_with_retries(runner, Mode.READ, migrate, repeatable=True)


class AsyncJoinRunner:
    """Runs bodies inside a transaction that is open, one after the other."""

    def __init__(
        self, joined: Runner, hop: Callable[[Callable[[], object]], Awaitable[object]]
    ) -> None:
        self._joined = joined
        self._hop = hop
        self._turn = asyncio.Lock()

    async def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body when those before it have ended; see ``AsyncRunner``."""
        async with self._turn:
            result = await self._hop(lambda: self._joined.run(mode, work, repeatable=repeatable))
        return cast("T", result)

    async def settled(self) -> None:
        """Wait until a call that another task is in has ended."""
        async with self._turn:
            pass


class AsyncTurns:
    """Counts the calls that run, and refuses new ones once the store is closed. Where the engine
    takes one writer, those of an event loop take turns.

    Attributes:
        closed: Whether it is closed.
        inside: How many run.
    """

    def __init__(self, settings: Settings, *, one_by_one: bool) -> None:
        self._lock = asyncio.Lock() if one_by_one else None
        self._timeout = settings.busy_timeout
        self._nobody_inside = asyncio.Event()
        self.closed = False
        self.inside = 0

    async def acquire(self, mode: Mode) -> bool:
        """Wait for the turn; say whether it is the one of the writer.

        Raises:
            DatabaseBusy: It did not come within busy_timeout.
            TransactionMisuse: The store is closed.
        """
        writer = self._lock is not None and mode not in READING
        if self._lock is not None and writer:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._lock.acquire()
            except TimeoutError:
                raise turn_never_came() from None
        self.inside += 1
        if self.closed:
            self.release(writer=writer)
            raise store_is_closed()
        return writer

    def release(self, *, writer: bool) -> None:
        """Give the turn back."""
        if self._lock is not None and writer:
            self._lock.release()
        self.inside -= 1
        if self.closed:
            self.look()

    def look(self) -> None:
        """Tell who closes the store if nobody is inside any more."""
        if not self.inside:
            self._nobody_inside.set()

    @property
    def over(self) -> bool:
        """Whether the store is closed and nobody is inside any more."""
        return self.closed and not self.inside

    async def close(self) -> None:
        """Let nobody else in, and wait up to busy_timeout for those who are inside."""
        self.closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while self.inside:
                    self._nobody_inside.clear()
                    await self._nobody_inside.wait()


def sync_side(into: object) -> object:
    """Give what is behind a connection or a session for coroutines.

    Raises:
        InvalidInput: It is neither.
        TransactionMisuse: It is not open.
    """
    if isinstance(into, async_scoped_session):
        into = into()
    if isinstance(into, AsyncSession):
        return into.sync_session
    if not isinstance(into, AsyncConnection):
        raise InvalidInput(
            "connection must be an AsyncConnection or an AsyncSession of the application's, not "
            f"{shown(into)}."
        )
    if into.sync_connection is None:
        raise TransactionMisuse(
            "This connection is not open. Open it: async with engine.connect() as connection."
        )
    return into.sync_connection


def store_is_closed() -> TransactionMisuse:
    """Say that a store is used after it was closed."""
    return TransactionMisuse("This store is closed. Open another AsyncStore.")


def _cancellable(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    return work


@asynccontextmanager
async def _opened(connection: AsyncConnection, start: Awaitable[object]) -> AsyncIterator[None]:
    """Check a connection out, and in again, as ``UnitRunner.own_transaction`` does."""
    try:
        await start
        yield
    except BaseException:
        try:
            with suppress(*HANDLED):
                await finished(connection.rollback())
        finally:
            with suppress(*HANDLED):
                await finished(connection.close())
        raise
    await finished(connection.close())


class _UnitProgress:
    """How far a unit has come: what fails is cleaned up outside of its greenlet, where no
    cancellation comes between.

    Attributes:
        give_up: Gives back what was checked out.
        committing: Whether its commit has begun.
    """

    give_up: Callable[[], None] | None = None
    committing = False


class GreenletRunner:
    """Runs units of an asynchronous engine in greenlets."""

    def __init__(
        self,
        engine: AsyncEngine,
        dialect: EngineDialect,
        settings: Settings,
        *,
        owns_engine: bool,
    ) -> None:
        """Prepare the engine for each mode."""
        # The synchronous runner of the same engine knows tables, settings and retries.
        keeps = owns_engine and not dialect.single_writer
        self._runner = UnitRunner(engine.sync_engine, dialect, settings, owns_engine=keeps)
        self._engine = engine
        self._engines = dialect.async_modes(engine, settings.synchronous_commit)
        self._kept = self._runner.kept
        self._owns_engine = owns_engine
        self._turns = AsyncTurns(settings, one_by_one=dialect.single_writer)
        statement = partial(self._once, Mode.STATEMENT)  # in no thread, so it may be cut
        self._gatherer = None if dialect.single_writer else AsyncGatherer(statement)
        # Cancelled in the middle, a driver that keeps a thread would leave it to itself.
        self._uncut = finished if dialect.threads_async_work else _cancellable
        self.pause = self._runner.pause

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of its own, one time; raises UnitFailure."""
        if not self._runner.own:
            self._runner.dialect.refuse_to_wait_for_caller(self._runner.engine, mode)
        together: GatheredCall | None = None
        if isinstance(work, GatheredCall):
            write = work.prepare(self._runner.unconnected)
            if write.needs_transaction:
                mode = Mode.WRITE
            elif self._gatherer is not None and mode is Mode.STATEMENT and not write.solo:
                together = work
        writer = await self._turns.acquire(mode)
        try:
            result: T
            if together is not None and self._gatherer is not None:
                result = await self._gatherer.run(together)
            else:
                result = await self._uncut(self._once(mode, work))
            return result
        finally:
            self._turns.release(writer=writer)

    async def _once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        progress = _UnitProgress()
        try:
            result: T = await greenlet_spawn(self._run, progress, mode, work)
            return result
        except HANDLED as error:
            found = await self._failure(mode, error, committing=progress.committing)
            raise found from cause_of(error)
        finally:
            if progress.give_up is not None:
                await finished(greenlet_spawn(progress.give_up))

    def _run(self, progress: _UnitProgress, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a unit from end to end in one greenlet: each switch to one costs a lone caller."""
        if self._kept is not None and (mode is Mode.STATEMENT or isinstance(work, LoneRead)):
            kept = self._kept.take(mode)
            progress.give_up = partial(self._kept.drop, kept)
            result = performed(kept.unit, work)
            self._kept.give_back(kept)
            progress.give_up = None
            return result
        connection = self._runner.connect(self._engines[mode].sync_engine)
        progress.give_up = partial(give_up, connection)
        if not self._owns_engine:
            self._runner.dialect.take_over(connection)
        unit = self._runner.unit(connection, mode)
        result = performed(unit, work)
        self._runner.dialect.require_file(connection, each_time=mode not in READING)
        progress.committing = True
        connection.commit()
        if WAIT_CANCELLED in connection.info:
            raise unacknowledged(connection)
        connection.close()
        progress.give_up = None
        return result

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncRunner]:
        """Open a transaction; raises UnitFailure."""
        committing = False
        self._runner.dialect.refuse_to_wait_for_caller(self._runner.engine, Mode.WRITE)
        writer = await self._turns.acquire(Mode.WRITE)
        connection = self._engines[Mode.WRITE].connect()
        try:
            async with _opened(connection, self._uncut(self._started(connection))):
                sync_connection = connection.sync_connection
                assert sync_connection is not None
                await self._uncut(connection.run_sync(self._runner.dialect.take_over))
                await self._uncut(connection.begin().start())
                unit = self._runner.unit(sync_connection, Mode.WRITE)
                with joined(unit) as runner:
                    calls = AsyncJoinRunner(
                        runner, lambda call: self._uncut(connection.run_sync(lambda _: call()))
                    )
                    try:
                        yield calls
                    finally:
                        runner.refuse()
                        await finished(calls.settled())
                self._runner.dialect.require_file(sync_connection)
                committing = True
                await self._uncut(connection.commit())
                if WAIT_CANCELLED in sync_connection.info:
                    raise unacknowledged(sync_connection)
        except HANDLED as error:
            found = await self._failure(Mode.WRITE, error, committing=committing)
            raise found from cause_of(error)
        finally:
            self._turns.release(writer=writer)
            await self._dispose_if_over()

    async def _failure(self, mode: Mode, error: Exception, *, committing: bool) -> UnitFailure:
        if self._kept is not None:
            await greenlet_spawn(self._kept.put_back)
        return unit_failure(self._runner.dialect, mode, error, committing=committing)

    async def _started(self, connection: AsyncConnection) -> None:
        if self._kept is None:
            await connection.start()
            return
        self._kept.going.append(None)
        try:
            await greenlet_spawn(self._kept.put_back, 1)
            await connection.start()
        finally:
            self._kept.going.pop()

    def joined(self, into: object) -> AsyncRunner:
        """Give what runs bodies inside the application's transaction; see ``AsyncUnitRunner``."""
        callers = CallersRunner(self._runner, sync_side(into))

        async def hop(call: Callable[[], object]) -> object:
            if self._uncut is finished:  # which has a task of its own: the caller's is to begin
                await greenlet_spawn(callers.begin)
            return await self._uncut(greenlet_spawn(call))

        return AsyncJoinRunner(callers, hop)

    async def close(self) -> None:
        """Wait for what runs, close the engine if it is the store's own."""
        await self._turns.close()
        await self._dispose_if_over()

    async def _dispose_if_over(self) -> None:
        # A transaction that outlives its store is the last one out.
        if self._owns_engine and self._turns.over:
            if self._kept is not None:
                await greenlet_spawn(self._kept.close)
            await self._engine.dispose()


# The runner for coroutines where the engine is in this process.
#
# The body runs in a thread, in one hop for each unit of work; those that write have one thread,
# which leads for the tasks of the loop (see ``writer``). A call that waits for its turn is taken
# back when it is cancelled, and leaves nothing; one that is running settles first.


_MOST_WAITING = 1_000
"""Writes that may be queued for the writer of a store; more wait before they are."""


class _Threads:
    """Threads that make calls in the order in which these come, and are started as they are needed.

    An executor makes a future for each call, with locks of its own, and that costs nearly as much
    as the whole hop. These end when they are told to, when the store is forgotten, and with the
    program, which waits for what they are doing.

    Attributes:
        idle: An entry for each thread that has nothing to do. Once all threads run it may have
            more, of calls that had to wait, and decides nothing any more.
        lock: Held for a moment, where a call is submitted, begun or taken back.
    """

    def __init__(self, most: int, name: str) -> None:
        """Start none yet."""
        self._most, self._name = most, name
        self._ended = False
        self._begin()
        _all_threads.add(self)
        register_for_fork(self)

    def _begin(self) -> None:
        self.lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.idle: deque[None] = deque(maxlen=self._most)
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._forgotten = finalize(self, self._calls.put, None)
        self._forgotten.atexit = False

    def submit(self, call: Callable[[], object]) -> None:
        """Have a call made.

        Raises:
            TransactionMisuse: Closing the store did not wait any longer, and ended them.
            DatabaseBusy: The system gives this process no thread.
        """
        with self.lock:
            if self._ended:
                raise store_is_closed()
            if self.idle:
                self.idle.pop()
            elif len(self._threads) < self._most:
                name, calls = f"{self._name}_{len(self._threads)}", self._calls
                thread = threading.Thread(target=_serve, args=(calls,), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    if not self._threads:  # else those that are there make it
                        raise DatabaseBusy(
                            "The system gives this process no more threads. Nothing was done: "
                            "raise the limit of processes or threads, or call again later."
                        ) from error
                else:
                    self._threads.append(thread)
            self._calls.put(call)

    def shutdown(self) -> None:
        """Take no more calls, and wait until those that were taken are made."""
        with self.lock:
            self._ended = True
        self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def after_fork(self) -> None:
        """Know of no thread; in a child that was forked, which has none of them."""
        self._forgotten.detach()
        self._begin()


_all_threads: WeakSet[_Threads] = WeakSet()


@atexit.register
def _end_threads() -> None:
    for threads in list(_all_threads):
        threads.shutdown()


def _serve(calls: SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := calls.get()) is not None:
        with suppress(BaseException):  # a call reports its own errors
            call()
        del call  # lest a thread that waits keep what it did last
    calls.put(None)  # for the next thread: also for one that nobody wrote down


class _LoopCall(QueuedWrite):
    """What a task of an event loop awaits while a thread does it.

    To a task it is a future (see ``asyncio.isfuture``). One of asyncio's own would wake its task
    one iteration of the loop later. When the task is cancelled, what has not begun is taken back;
    what has begun settles first, and the cancellation goes on then, however often it was asked for.
    """

    __slots__ = ("_asyncio_future_blocking", "_loop", "_step", "_steps_in", "by")

    result = type(None)
    """Gives None to asyncio, which calls it when it wakes the task; ``await`` gives the outcome."""

    def __init__(self, work: Callable[..., Any] | None, by: Any) -> None:
        """Take the running loop.

        Args:
            work: The call, or the body.
            by: Who makes it.
        """
        super().__init__(work)
        self._loop = self.place = asyncio.get_running_loop()  # asyncio reads a future's _loop
        self._step: Callable[[_LoopCall], object] | None = None
        self.by = by

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait; give the result, or raise the error."""
        self._asyncio_future_blocking = True
        yield self
        error, self.error = self.error, None
        if error is None:
            return self.returned if self.finish is None else self.finish(self.returned)
        try:
            raise error
        finally:
            error = None  # with its frames, of which this is one

    def add_done_callback(self, step: Callable[[_LoopCall], object], *, context: Context) -> None:
        """Learn how the task goes on; called by the task that awaits this."""
        self._step, self._steps_in = step, context

    def cancel(self, msg: object = None) -> bool:
        """Take it back if it has not begun; called by ``Task.cancel``.

        Returns:
            False: once woken, the task raises the cancellation by itself.
        """
        if self.take_back():
            self.error = asyncio.CancelledError()  # Task.uncancel may come before the task wakes
            self._loop.call_soon(self.wake, iter([self]))
        return False

    def take_back(self) -> bool:
        """Take it back if it has not begun; say whether that was so."""
        raise NotImplementedError

    @staticmethod
    def wake(calls: Iterator[_LoopCall]) -> None:
        """Let the tasks go on; in their loop."""
        for call in calls:
            step, call._step = call._step, None  # not woken twice
            if step is not None:
                try:
                    call._steps_in.run(step, call)
                except BaseException:  # an interrupt; the others go on all the same
                    call._loop.call_soon(call.wake, calls)
                    raise


class _LoopWrite(_LoopCall):
    """A write whose caller is a task of an event loop, which must not wait for a thread.

    It is made by a ``ThreadRunner``; without a body it asks for the lead.
    """

    __slots__ = ()

    def will_wait(self) -> None:
        """Need nothing more: the task awaits it in any case."""

    def lead(self) -> None:
        """Lead, or tell the task that it has the lead."""
        if self.work is None:
            self.tell([self])
            return
        try:
            self.by.thread.submit(self.by.writer.lead)
        except AgentStoreError:  # there is no thread
            self.by.writer.lead()

    @staticmethod
    def tell(writes: Sequence[QueuedWrite]) -> None:
        """Wake the tasks of one loop, in one call."""
        first: Any = writes[0]
        first.by.had_company = len(writes) > 1
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            first.place.call_soon_threadsafe(first.wake, iter(writes))

    def take_back(self) -> bool:
        """Take it back if it has neither begun nor got the lead."""
        taken: bool = self.by.writer.take_back(self)
        return taken

    def expire(self) -> None:
        """Give up waiting, unless the write has begun."""
        if self.take_back():
            self.error = turn_never_came()
            self._loop.call_soon(self.wake, iter([self]))


class _Hop(_LoopCall):
    """A call that a thread of ``_Threads`` makes for a task of the running loop."""

    __slots__ = ()

    def take_back(self) -> bool:
        """Take it back if it has not begun."""
        with self.by.lock:
            if self.state is State.WAITING:
                self.state = State.TAKEN_BACK
                return True
        return False

    def make(self) -> None:
        """Make the call; in the other thread."""
        with self.by.lock:
            wanted = self.state is not State.TAKEN_BACK
            if wanted:
                self.state = State.RUNNING
        if wanted:
            try:
                self.returned = cast("Callable[[], Any]", self.work)()
            except BaseException as error:  # noqa: BLE001 - it is raised where the task waits
                self.error = error
        self.by.idle.append(None)  # before another call comes
        if wanted:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self.wake, iter([self]))


class ThreadRunner:
    """Runs units of a synchronous engine in threads.

    Attributes:
        writer: Whose queue the writes of all tasks go into.
        thread: Where the writer runs a batch that begins with the write of a task.
        had_company: Whether the last batch had several writes. Their tasks may write again at once,
            so the next leader waits one iteration of the loop for them.
    """

    def __init__(self, runner: UnitRunner, *, owns_engine: bool) -> None:
        """Start no thread yet."""
        self._runner = runner
        self._owns_engine = owns_engine
        self._turns = AsyncTurns(runner.settings, one_by_one=False)
        self._room = asyncio.Semaphore(_MOST_WAITING // 2)
        self._deadlines: dict[_LoopWrite, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        assert runner.writer is not None, "an engine in this process has one writer"
        self.writer = runner.writer
        self._readers = _Threads(runner.settings.pool_size, "agentstore-read")
        self.thread = _Threads(1, "agentstore-write")
        self.had_company = False
        self.pause = runner.pause

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of its own, one time; raises UnitFailure."""
        turns, room = self._turns, None
        if turns.closed:
            raise store_is_closed()
        turns.inside += 1
        try:
            if mode in READING:
                hop = _Hop(partial(self._runner.once, mode, work), self._readers)
                self._readers.submit(hop.make)
                return cast("T", await hop)
            if turns.inside > _MOST_WAITING // 2:  # the others share the other half
                await self._room.acquire()
                room = self._room
            if isinstance(work, GatheredCall):
                work.prepare(self._runner.unconnected)
            write = _LoopWrite(work, self)
            write.context = copy_context()
            if not self.writer.enqueue(write):
                return cast("T", await self._in_time(write))
            try:
                if self.had_company:  # others of that batch hear now, and may write again
                    write.place.call_soon(write.lead)
                else:
                    write.lead()
            except BaseException:  # an interrupt
                self.writer.leave(write)
                raise
            return cast("T", await write)
        finally:
            if room is not None:
                room.release()
            turns.inside -= 1
            if self._turns.closed:  # meanwhile
                turns.look()

    async def _in_time(self, write: _LoopWrite) -> Any:
        """Await a write that waits for its turn, but that no longer than busy_timeout."""
        deadline = write.place.time() + self._runner.settings.busy_timeout
        self._deadlines[write] = deadline
        if self._timer is None:
            self._timer = write.place.call_at(deadline, self._expire)
        try:
            return await write
        finally:
            del self._deadlines[write]
            if not self._deadlines and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _expire(self) -> None:
        """Have those who waited too long give up, and look again when the next one will have.

        All may wait equally long, so who came first is first; one timer is enough.
        """
        self._timer = None
        for write, deadline in list(self._deadlines.items()):
            if deadline > write.place.time():
                self._timer = write.place.call_at(deadline, self._expire)
                return
            write.expire()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncRunner]:
        """Open a transaction; raises UnitFailure."""
        await self._turns.acquire(Mode.WRITE)
        opened = ExitStack()  # begun, used and ended in the writer's thread, in this order
        write = _LoopWrite(None, self)
        try:
            if not self.writer.enqueue(write):
                await self._in_time(write)
        except BaseException:
            self.writer.leave(write)
            self._turns.release(writer=False)
            raise
        self.writer.begin_exclusive(write)

        def begin() -> JoinRunner:
            unit = opened.enter_context(self._runner.own_transaction(Mode.WRITE))
            unit.connection.begin()
            return opened.enter_context(joined(unit))

        try:
            runner = await _settled(self.thread, begin)
            yield AsyncJoinRunner(runner, lambda call: _settled(self.thread, call))
        except BaseException as error:
            raised = error
            await _settled(
                self.thread,
                lambda: opened.__exit__(type(raised), raised, raised.__traceback__),
                is_wanted=True,
            )
            raise
        else:
            await _settled(self.thread, opened.close, is_wanted=True)
        finally:
            self.writer.leave(write)
            self._turns.release(writer=False)
            self._dispose_if_over()

    def joined(self, into: object) -> AsyncRunner:
        """Refuse: the store's engine is its own, so the application has no transaction on it."""
        sync_side(into)
        raise other_engine()

    async def close(self) -> None:
        """Wait for what runs, end the threads, close the engine if it is the store's own."""
        await self._turns.close()

        def close() -> None:
            self._runner.close(wait=False)
            self._readers.shutdown()
            self.thread.shutdown()
            self._dispose_if_over()

        await asyncio.to_thread(close)

    def _dispose_if_over(self) -> None:
        # A transaction that outlives its store is the last one out.
        if self._owns_engine and self._turns.over:
            self._runner.engine.dispose()


async def _settled(threads: _Threads, call: Callable[[], T], *, is_wanted: bool = False) -> T:
    """Run a call in a thread; when cancelled, take it back or wait until it has settled.

    Args:
        threads: Which.
        call: What to run there.
        is_wanted: Whether it is made even if the task is cancelled before it has begun.
    """
    hop = _Hop(call, threads)
    if is_wanted:
        hop.state = State.RUNNING  # so it is not taken back
    try:
        threads.submit(hop.make)
    except AgentStoreError:  # there is no thread
        if is_wanted:
            return call()
        raise
    return cast("T", await hop)


class AsyncStoreRunner:
    """Runs a store's own calls, and catches those inside its own transaction.

    Calls that join a transaction of the application's have another runner than the others.
    """

    def __init__(self, store: Any, joined: AsyncRunner | None = None) -> None:
        """Run the store's calls, or those that join a transaction."""
        self._store = store
        self._joined = joined

    @property
    def embeddings(self) -> Embeddings | None:
        """Those of the store; None for calls that join a transaction of the application's."""
        refuse_inside_own_transaction(self._store)
        return None if self._joined is not None else self._store._settings.embeddings

    async def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body; see ``AsyncRunner``."""
        store = self._store
        if open_transactions.get():
            refuse_inside_own_transaction(store)
        if not store._opened:
            await store.open()
        if store._settings.read_only:
            refuse_to_write(store._settings, mode)
        if self._joined is not None:
            return await self._joined.run(mode, work, repeatable=repeatable)
        return await run_with_retries(store._unit_runner, mode, work, repeatable=repeatable)
