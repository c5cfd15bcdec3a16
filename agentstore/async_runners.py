"""Who opens units and runs bodies in them, for coroutines.

Two ways, one hop each per unit of work, never one per statement:

- ``ThreadRunner``, where the engine is in this process (SQLite): the body runs in a thread.
- ``GreenletRunner``, where it is at the end of a socket (PostgreSQL), or where the application
  brings an ``AsyncEngine``: the body runs in a greenlet that awaits the driver.

Cancellation: a call that still waits for its turn is taken back and leaves nothing. One that is
running on an engine in this process settles first, committed or rolled back; then the
cancellation goes on. One that awaits PostgreSQL is cancelled there and rolled back, unless its
commit was under way. Whatever was cancelled, its connection is back in the pool afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agentstore.dialects import EngineDialect
from agentstore.dialects.base import Mode
from agentstore.errors import TransactionMisuse
from agentstore.recovery import HANDLED, Trouble, cause_of, trouble
from agentstore.runners import (
    READING,
    JoinRunner,
    UnitRunner,
    is_new,
    joined,
    migrate,
)
from agentstore.settings import Settings
from agentstore.unit import AsyncRunner, Unit
from agentstore.writer import Job, Writer, turn_never_came

T = TypeVar("T")

_MOST_WAITING = 1_000
"""Writes that may be queued for the writer of a store; more wait before they are."""


class AsyncUnitRunner(Protocol):
    """What the asynchronous store needs of either way."""

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of its own, one time; raises Trouble."""

    def pause(self, problem: Trouble, attempt: int, *, repeatable: bool) -> float | None:
        """Give the seconds to wait before the next try; None if there is to be none."""

    def transaction(self) -> AbstractAsyncContextManager[AsyncRunner]:
        """Open a transaction; raises Trouble."""

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
        except Trouble as problem:
            attempt += 1
            pause = runner.pause(problem, attempt, repeatable=repeatable or mode in READING)
            if pause is None:
                raise problem.error from problem.__cause__
        await asyncio.sleep(pause)


async def open_database(runner: AsyncUnitRunner) -> None:
    """Bring a new database to head, or refuse one that is not there; see ``UnitRunner.open``."""
    if await run_with_retries(runner, Mode.READ, is_new, repeatable=True):
        await run_with_retries(runner, Mode.READ, migrate, repeatable=True)


class _AsyncJoinRunner:
    """Runs bodies inside a transaction that is open, one after the other."""

    def __init__(
        self, joined: JoinRunner, hop: Callable[[Callable[[], object]], Awaitable[object]]
    ) -> None:
        self._joined = joined
        self._hop = hop
        self._turn = asyncio.Lock()

    async def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        async with self._turn:
            result = await self._hop(lambda: self._joined.run(mode, work, repeatable=repeatable))
        return cast("T", result)

    async def close(self) -> None:
        """Refuse all further calls, and wait until one that another task is in has ended."""
        self._joined.refuse()
        async with self._turn:
            pass


class _AsyncTurns:
    """Counts who is inside, and lets nobody in any more once the store is closed; and where the
    writers of one event loop have to go one after the other, lets them.
    """

    def __init__(self, settings: Settings, *, one_by_one: bool) -> None:
        self._lock = asyncio.Lock() if one_by_one else None
        self._timeout = settings.busy_timeout
        self._closed = False
        self._inside = 0
        self._nobody_inside = asyncio.Event()

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
        self._inside += 1
        if self._closed:
            self.release(writer=writer)
            raise store_is_closed()
        return writer

    def release(self, *, writer: bool) -> None:
        """Give the turn back."""
        if self._lock is not None and writer:
            self._lock.release()
        self._inside -= 1
        if not self._inside:
            self._nobody_inside.set()

    @property
    def over(self) -> bool:
        """Whether the store is closed and nobody is inside any more."""
        return self._closed and not self._inside

    async def close(self) -> None:
        """Let nobody else in, and wait up to busy_timeout for those who are inside."""
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while self._inside:
                    self._nobody_inside.clear()
                    await self._nobody_inside.wait()


class _LoopJob(Job):
    """A job whose caller is a task of an event loop, which must not wait for a thread."""

    __slots__ = ("_lead", "heard")

    def __init__(self, work: Callable[[Unit], Any] | None, lead: Callable[[], None]) -> None:
        """Make a job of the running loop.

        Args:
            work: The body; None asks for the lead.
            lead: Has somebody run the next batch, which begins with this job.
        """
        super().__init__(work)
        self.place = asyncio.get_running_loop()
        self.heard: asyncio.Future[None] = self.place.create_future()
        self._lead = lead

    def will_wait(self) -> None:
        """Need nothing more: the future is there."""

    def lead(self) -> None:
        """Lead, or tell the task that it has the lead."""
        if self.work is None:
            self.tell([self])
        else:
            self._lead()

    @staticmethod
    def tell(jobs: Sequence[Job]) -> None:
        """Wake the tasks of one loop, in one call."""
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            jobs[0].place.call_soon_threadsafe(_LoopJob._wake, jobs)

    @staticmethod
    def _wake(jobs: Sequence[_LoopJob]) -> None:
        for job in jobs:
            if not job.heard.done():
                job.heard.set_result(None)

    def expire(self, writer: Writer) -> None:
        """Give up waiting, unless the job has begun."""
        if writer.take_back(self):
            self.error = turn_never_came()
            self._wake([self])


class ThreadRunner:
    """Runs units of a synchronous engine in threads."""

    def __init__(self, runner: UnitRunner, *, owns_engine: bool) -> None:
        """Start no thread yet."""
        self._runner = runner
        self._owns_engine = owns_engine
        self._turns = _AsyncTurns(runner.settings, one_by_one=False)
        self._room = asyncio.Semaphore(_MOST_WAITING)
        assert runner.writer is not None, "an engine in this process has one writer"
        self._job_writer = runner.writer
        workers = runner.settings.pool_size
        self._readers = ThreadPoolExecutor(workers, thread_name_prefix="agentstore-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="agentstore-write")
        self.pause = runner.pause

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of its own, one time; raises Trouble."""
        await self._turns.acquire(mode)
        try:
            if mode in READING:
                return await _settled(self._readers, lambda: self._runner.once(mode, work))
            async with self._room:
                job = _LoopJob(work, self._lead)
                await self._heard(job)
                return cast("T", job.result)
        finally:
            self._turns.release(writer=False)

    async def _heard(self, job: _LoopJob) -> None:
        """Queue a job, and wait until it is done, or, if it has no body, has the lead."""
        writer = self._job_writer
        if writer.enqueue(job):
            job.lead()
        too_long = job.place.call_later(self._runner.settings.busy_timeout, job.expire, writer)
        try:
            await asyncio.shield(job.heard)
        except asyncio.CancelledError:
            if not writer.take_back(job):
                await _done(job.heard)
                if job.work is None:
                    writer.begin_alone(job)
                    writer.hand_over()
            raise
        finally:
            too_long.cancel()
        if job.error is not None:
            raise job.error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncRunner]:
        """Open a transaction; raises Trouble."""
        await self._turns.acquire(Mode.WRITE)
        opened = ExitStack()  # begun, used and ended in the writer's thread, in this order
        job = _LoopJob(None, self._lead)
        try:
            await self._heard(job)
        except BaseException:
            self._turns.release(writer=False)
            raise
        self._job_writer.begin_alone(job)

        def begin() -> JoinRunner:
            unit = opened.enter_context(self._runner.own_transaction(Mode.WRITE))
            unit.connection.begin()
            return opened.enter_context(joined(unit))

        try:
            runner = await _settled(self._writer, begin)
            yield _AsyncJoinRunner(runner, lambda call: _settled(self._writer, call))
        except BaseException as error:
            raised = error
            await _settled(
                self._writer,
                lambda: opened.__exit__(type(raised), raised, raised.__traceback__),
                take_back=False,
            )
            raise
        else:
            await _settled(self._writer, opened.close, take_back=False)
        finally:
            self._job_writer.hand_over()
            self._turns.release(writer=False)
            self._dispose_if_over()

    async def close(self) -> None:
        """Wait for what runs, end the threads, close the engine if it is the store's own."""
        await self._turns.close()

        def close() -> None:
            self._runner.close(wait=False)
            self._readers.shutdown()
            self._writer.shutdown()
            self._dispose_if_over()

        await asyncio.to_thread(close)

    def _lead(self) -> None:
        """Have the writer's thread run the next batch."""
        try:
            self._writer.submit(self._job_writer.lead)
        except RuntimeError:  # closing did not wait any longer, and ended the threads
            self._job_writer.lead()

    def _dispose_if_over(self) -> None:
        # A transaction that outlives its store is the last one out.
        if self._owns_engine and self._turns.over:
            self._runner.engine.dispose()


async def _settled(
    executor: ThreadPoolExecutor, call: Callable[[], T], *, take_back: bool = True
) -> T:
    """Run a call in a thread; when cancelled, take it back or wait until it has settled.

    Args:
        executor: The thread.
        call: What to run there.
        take_back: Whether it may be left undone if it has not begun.
    """
    try:
        future = executor.submit(call)
    except RuntimeError as error:  # closing did not wait any longer, and ended the threads
        if take_back:
            raise store_is_closed() from error
        return call()
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not (take_back and future.cancel()):
            await _done(waiting)
        raise


def store_is_closed() -> TransactionMisuse:
    """Say that a store is used after it was closed."""
    return TransactionMisuse("This store is closed. Open another AsyncStore.")


async def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; when cancelled, let the cancellation go on only then."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _done(task)
        raise


async def _done(waiting: asyncio.Future[Any]) -> None:
    """Wait until this is done, however often one is cancelled meanwhile."""
    while not waiting.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # it is the cancellation that the caller asked for


async def _cancellable(work: Coroutine[Any, Any, T]) -> T:
    return await work


@asynccontextmanager
async def _opened(connection: AsyncConnection, start: Awaitable[object]) -> AsyncIterator[None]:
    """Check a connection out, and in again, as ``runners.opened`` does."""
    try:
        await start
        yield
    except BaseException:
        try:
            with suppress(*HANDLED):
                await _finished(connection.rollback())
        finally:
            with suppress(*HANDLED):
                await _finished(connection.close())
        raise
    await _finished(connection.close())


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
        self._runner = UnitRunner(engine.sync_engine, dialect, settings)
        self._engine = engine
        self._engines = dialect.async_modes(engine)
        self._owns_engine = owns_engine
        self._turns = _AsyncTurns(settings, one_by_one=dialect.single_writer)
        # Cancelled in the middle, a driver that keeps a thread would leave it to itself.
        self._uncut = _finished if dialect.threads_async_work else _cancellable
        self.pause = self._runner.pause

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of its own, one time; raises Trouble."""
        writer = await self._turns.acquire(mode)
        try:
            result: T = await self._uncut(self._once(mode, work))
            return result
        finally:
            self._turns.release(writer=writer)

    async def _once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        committing = False
        connection = self._engines[mode].connect()
        try:
            async with _opened(connection, connection.start()):
                sync_connection = connection.sync_connection
                assert sync_connection is not None
                unit = self._runner.unit(sync_connection, mode)
                result = await connection.run_sync(lambda _: work(unit))
                committing = True
                await connection.commit()
                self._runner.committed(unit)
                return result
        except HANDLED as error:
            found = trouble(self._runner.dialect, mode, error, committing=committing)
            raise found from cause_of(error)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncRunner]:
        """Open a transaction; raises Trouble."""
        committing = False
        writer = await self._turns.acquire(Mode.WRITE)
        connection = self._engines[Mode.WRITE].connect()
        try:
            async with _opened(connection, self._uncut(connection.start())):
                await self._uncut(connection.begin().start())
                sync_connection = connection.sync_connection
                assert sync_connection is not None
                unit = self._runner.unit(sync_connection, Mode.WRITE)
                with joined(unit) as runner:
                    calls = _AsyncJoinRunner(
                        runner, lambda call: self._uncut(connection.run_sync(lambda _: call()))
                    )
                    try:
                        yield calls
                    finally:
                        await _finished(calls.close())
                committing = True
                await self._uncut(connection.commit())
                self._runner.committed(unit)
        except HANDLED as error:
            found = trouble(self._runner.dialect, Mode.WRITE, error, committing=committing)
            raise found from cause_of(error)
        finally:
            self._turns.release(writer=writer)
            await self._dispose_if_over()

    async def close(self) -> None:
        """Wait for what runs, close the engine if it is the store's own."""
        await self._turns.close()
        await self._dispose_if_over()

    async def _dispose_if_over(self) -> None:
        # A transaction that outlives its store is the last one out.
        if self._owns_engine and self._turns.over:
            await self._engine.dispose()
