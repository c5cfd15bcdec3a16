"""The runner for coroutines where the engine is in this process.

The body runs in a thread, in one hop for each unit of work; those that write have one thread,
which leads for the tasks of the loop (see ``writer``). A call that waits for its turn is taken
back when it is cancelled, and leaves nothing; one that is running settles first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar, cast

from agentstore.engines.base.dialect import Mode
from agentstore.execution.async_runners import (
    AsyncJoinRunner,
    AsyncTurns,
    store_is_closed,
    sync_side,
)
from agentstore.execution.cancellation import Ending
from agentstore.execution.joining import JoinRunner, joined, other_engine
from agentstore.execution.queued_writes import QueuedWrite, turn_never_came
from agentstore.execution.runners import READING, UnitRunner
from agentstore.execution.scoped import Scope
from agentstore.execution.unit import AsyncRunner, Unit
from agentstore.execution.writer import Writer

T = TypeVar("T")

_MOST_WAITING = 1_000
"""Writes that may be queued for the writer of a store; more wait before they are."""


class _LoopWrite(QueuedWrite):
    """A write whose caller is a task of an event loop, which must not wait for a thread."""

    __slots__ = ("_lead", "ending")

    def __init__(self, work: Callable[[Unit], Any] | None, lead: Callable[[], None]) -> None:
        """Make a write of the running loop.

        Args:
            work: The body; None asks for the lead.
            lead: Has somebody run the next batch, which begins with this write.
        """
        super().__init__(work)
        self._context = copy_context()
        self.ending = Ending()
        self.place = self.ending.loop
        self._lead = lead

    def will_wait(self) -> None:
        """Need nothing more: future and context are there."""

    def lead(self) -> None:
        """Lead, or tell the task that it has the lead."""
        if self.work is None:
            self.tell([self])
        else:
            self._lead()

    @staticmethod
    def tell(writes: Sequence[QueuedWrite]) -> None:
        """Wake the tasks of one loop, in one call."""
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            writes[0].place.call_soon_threadsafe(_LoopWrite._wake, writes)

    @staticmethod
    def _wake(writes: Sequence[_LoopWrite]) -> None:
        for write in writes:
            write.ending.tell()

    def expire(self, writer: Writer) -> None:
        """Give up waiting, unless the write has begun."""
        if writer.take_back(self):
            self.error = turn_never_came()
            self.ending.tell()


class ThreadRunner:
    """Runs units of a synchronous engine in threads."""

    def __init__(self, runner: UnitRunner, *, owns_engine: bool) -> None:
        """Start no thread yet."""
        self._runner = runner
        self._owns_engine = owns_engine
        self._turns = AsyncTurns(runner.settings, one_by_one=False)
        self._room = asyncio.Semaphore(_MOST_WAITING)
        self._deadlines: dict[_LoopWrite, float] = {}
        self._timer: asyncio.TimerHandle | None = None
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
                self._runner.prepare(work)
                write = _LoopWrite(work, self._lead)
                return cast("T", await self._heard(write))
        finally:
            self._turns.release(writer=False)

    async def _heard(self, write: _LoopWrite) -> Any:
        """Queue a write, and wait until it is done, or, if it has no body, has the lead."""
        writer = self._job_writer
        if writer.enqueue(write):
            if self._deadlines:  # others of its batch are about to hear, and may write again
                write.place.call_soon(write.lead)
            else:
                write.lead()
        self._deadlines[write] = write.place.time() + self._runner.settings.busy_timeout
        if self._timer is None:
            self._expire()
        try:
            await write.ending.heard
        except asyncio.CancelledError:
            if not writer.take_back(write):
                await write.ending.settled()
                if write.work is None:
                    writer.leave(write)
            raise
        finally:
            del self._deadlines[write]
            if not self._deadlines and self._timer is not None:
                self._timer.cancel()
                self._timer = None
        return write.outcome()

    def _expire(self) -> None:
        """Have those who waited too long give up, and look again when the next one will have.

        All may wait equally long, so who came first is first; one timer is enough.
        """
        self._timer = None
        for write, deadline in self._deadlines.items():
            if deadline > write.place.time():
                self._timer = write.place.call_at(deadline, self._expire)
                return
            write.expire(self._job_writer)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncRunner]:
        """Open a transaction; raises Trouble."""
        await self._turns.acquire(Mode.WRITE)
        opened = ExitStack()  # begun, used and ended in the writer's thread, in this order
        write = _LoopWrite(None, self._lead)
        try:
            await self._heard(write)
        except BaseException:
            self._turns.release(writer=False)
            raise
        self._job_writer.begin_exclusive(write)

        def begin() -> JoinRunner:
            unit = opened.enter_context(self._runner.own_transaction(Mode.WRITE))
            unit.connection.begin()
            return opened.enter_context(joined(unit))

        try:
            runner = await _settled(self._writer, begin)
            yield AsyncJoinRunner(runner, lambda call: _settled(self._writer, call))
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
            self._job_writer.leave(write)
            self._turns.release(writer=False)
            self._dispose_if_over()

    def joined(self, into: object, scope: Scope | None) -> AsyncRunner:
        """Refuse: the store's engine is its own, so the application has no transaction on it."""
        sync_side(into)
        raise other_engine()

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


class _Hop:
    """A call that another thread makes for a task of the running loop."""

    __slots__ = ("_call", "_error", "_result", "ending")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self.ending = Ending()

    def run(self) -> None:
        """Make the call; in the other thread."""
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the task waits
            self._error = error
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self.ending.loop.call_soon_threadsafe(self.ending.tell)

    def outcome(self) -> Any:
        """Give what the call returned, or raise what it raised."""
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            error = None  # with its frames, of which this is one


async def _settled(
    executor: ThreadPoolExecutor, call: Callable[[], T], *, take_back: bool = True
) -> T:
    """Run a call in a thread; when cancelled, take it back or wait until it has settled.

    Args:
        executor: The thread.
        call: What to run there.
        take_back: Whether it may be left undone if it has not begun.
    """
    hop = _Hop(call)
    try:
        future = executor.submit(hop.run)
    except RuntimeError as error:  # closing did not wait any longer, and ended the threads
        if take_back:
            raise store_is_closed() from error
        return call()
    try:
        await hop.ending.heard
    except asyncio.CancelledError:
        if not (take_back and future.cancel()):
            await hop.ending.settled()
        raise
    return cast("T", hop.outcome())
