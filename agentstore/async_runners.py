"""Who opens units and runs bodies in them, for coroutines.

Two ways, one hop each per unit of work, never one per statement:

- ``ThreadRunner``, where the engine is in this process (SQLite): the body runs in a thread.
- ``GreenletRunner``, where it is at the end of a socket (PostgreSQL), or where the application
  brings an ``AsyncEngine``: the body runs in a greenlet that awaits the driver.

Cancellation: a call that still waits for its turn is taken back and leaves nothing. One that is
running in a thread settles first, committed or rolled back; then the cancellation goes on. One
that awaits PostgreSQL is cancelled there and rolled back, unless its commit was under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from typing import Protocol, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncEngine

from agentstore.dialects import EngineDialect
from agentstore.dialects.base import Mode
from agentstore.recovery import HANDLED, Trouble, trouble
from agentstore.runners import READING, JoinRunner, UnitRunner, cause_of, is_new, migrate
from agentstore.settings import Settings
from agentstore.unit import AsyncRunner, Unit

T = TypeVar("T")


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


class ThreadRunner:
    """Runs units of a synchronous engine in threads."""

    def __init__(self, runner: UnitRunner, *, owns_engine: bool) -> None:
        """Start no thread yet."""
        self._runner = runner
        self._owns_engine = owns_engine
        self._writing = asyncio.Lock() if runner.dialect.single_writer else None
        workers = runner.settings.pool_size
        self._readers = ThreadPoolExecutor(workers, thread_name_prefix="agentstore-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="agentstore-write")
        self.pause = runner.pause

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of its own, one time; raises Trouble."""
        if mode in READING or self._writing is None:
            return await _settled(self._readers, lambda: self._runner.once(mode, work))
        async with self._writing:
            return await _settled(self._writer, lambda: self._runner.once(mode, work))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncRunner]:
        """Open a transaction; raises Trouble."""
        async with AsyncExitStack() as stack:
            if self._writing is not None:
                await stack.enter_async_context(self._writing)
            opened = self._runner.transaction()
            unit = await _settled(self._writer, lambda: _begin(opened))
            joined = JoinRunner(unit)
            try:
                yield _AsyncJoinRunner(joined, lambda call: _settled(self._writer, call))
            except BaseException as error:
                joined.close()
                raised = error
                await _settled(
                    self._writer,
                    lambda: opened.__exit__(type(raised), raised, raised.__traceback__),
                )
                raise
            joined.close()
            await _settled(self._writer, lambda: opened.__exit__(None, None, None))

    async def close(self) -> None:
        """Wait for what runs, end the threads, close the engine if it is the store's own."""

        def close() -> None:
            self._readers.shutdown()
            self._writer.shutdown()
            if self._owns_engine:
                self._runner.engine.dispose()

        await asyncio.to_thread(close)


def _begin(opened: AbstractContextManager[Unit]) -> Unit:
    unit = opened.__enter__()
    try:
        unit.connection.begin()
    except BaseException as error:
        opened.__exit__(type(error), error, error.__traceback__)
        raise
    return unit


async def _settled(executor: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """Run a call in a thread; when cancelled, take it back or wait until it has settled."""
    future = executor.submit(call)
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not future.cancel():
            while not waiting.done():
                try:
                    await asyncio.wait([waiting])
                except asyncio.CancelledError:  # again: settle first all the same
                    continue
            if not waiting.cancelled():
                waiting.exception()  # it is the cancellation that the caller asked for
        raise


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
        self._writing = asyncio.Lock() if dialect.single_writer else None
        self.pause = self._runner.pause

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body in a transaction of its own, one time; raises Trouble."""
        if mode in READING or self._writing is None:
            return await self._once(mode, work)
        async with self._writing:
            return await self._once(mode, work)

    async def _once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        committing = False
        try:
            async with self._engines[mode].connect() as connection:
                result = await connection.run_sync(lambda c: work(self._runner.unit(c)))
                committing = True
                await connection.commit()
                return result
        except HANDLED as error:
            found = trouble(self._runner.dialect, mode, error, committing=committing)
            raise found from cause_of(error)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncRunner]:
        """Open a transaction; raises Trouble."""
        committing = False
        async with AsyncExitStack() as stack:
            if self._writing is not None:
                await stack.enter_async_context(self._writing)
            try:
                async with self._engines[Mode.WRITE].connect() as connection:
                    await connection.begin()
                    sync_connection = connection.sync_connection
                    assert sync_connection is not None
                    joined = JoinRunner(self._runner.unit(sync_connection))
                    try:
                        yield _AsyncJoinRunner(
                            joined, lambda call: connection.run_sync(lambda _: call())
                        )
                    finally:
                        joined.close()
                    committing = True
                    await connection.commit()
            except HANDLED as error:
                found = trouble(self._runner.dialect, Mode.WRITE, error, committing=committing)
                raise found from cause_of(error)

    async def close(self) -> None:
        """Close the engine if it is the store's own."""
        if self._owns_engine:
            await self._engine.dispose()
