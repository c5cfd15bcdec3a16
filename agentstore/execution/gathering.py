"""Gathers the writes of threads and tasks, where the engine takes many writers.

There is a queue for each kind of write. A call that finds fewer than two groups running goes at
once, as a group of one. Otherwise it waits, and goes together with all that wait as soon as a
group has ended: in one statement, with one commit. So groups grow with the load, and a lone
caller never waits. Tasks of an event loop wait a little longer, for those that write again at
once (see ``AsyncGatherer``).

A call that cannot go with its group, because it would fail or wait for a locked session, is run
by its caller afterwards, by itself, and delays nobody. If a group fails as a whole, nothing of
it was written, and each of its calls is run by itself; unless each would fail for the same
reason: then all get that error. If a group of one fails, the error is that call's own. Where
the outcome is in doubt, because the connection broke, it is in doubt for each call of the
group.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from agentstore import errors
from agentstore.execution.unit import (
    DEFERRED,
    GatheredCall,
    OwnTask,
    Unit,
    UnitFailure,
    until_done,
    write_group,
)
from agentstore.execution.writer import MOST_TOGETHER, QueuedWrite, State, interrupted

MOST_GROUPS = 2
"""Groups of a kind at once: one is made and read here while the server works on the other."""

_OF_ALL = (
    errors.DatabaseUnreachable,
    errors.DatabaseReadOnly,
    errors.DatabaseFull,
    errors.ConnectionLost,
)
"""Errors that each call of a group would get again."""

J = TypeVar("J", bound=QueuedWrite)


class GatherQueue(Generic[J]):
    """The queue of the calls of one kind.

    Attributes:
        busy: How many groups are running, MOST_GROUPS at most.
        had_company: Whether the last group was more than one call, so that the next may be.
        waiting: The calls that wait, in their order.
    """

    __slots__ = ("busy", "had_company", "waiting")

    def __init__(self) -> None:
        self.busy = 0
        self.had_company = False
        self.waiting: deque[J] = deque()

    def next_group(self) -> list[J]:
        """Take the calls that wait, in their order, up to ``MOST_TOGETHER``."""
        count = min(len(self.waiting), MOST_TOGETHER)
        self.had_company = count > 1
        group = [self.waiting.popleft() for _ in range(count)]
        for write in group:
            write.state = State.RUNNING
        return group


class _ThreadWrite(QueuedWrite):
    """A call of a thread.

    Attributes:
        group: Whom it is to run, itself included; empty unless it has the lead.
    """

    __slots__ = ("group",)

    def __init__(self, call: GatheredCall) -> None:
        super().__init__(call)
        self.group: list[_ThreadWrite] = []


class Gatherer:
    """Gathers the calls of threads."""

    def __init__(self, run: Callable[[Callable[[Unit], Any]], Any]) -> None:
        """Gather what this runs in a unit that is one statement; it raises UnitFailure."""
        self._run = run
        self._lock = threading.Lock()
        self._queues: defaultdict[Any, GatherQueue[_ThreadWrite]] = defaultdict(GatherQueue)

    def run(self, call: GatheredCall) -> Any:
        """Run a call, in a group of one or more.

        Raises:
            UnitFailure: The database failed.
        """
        with self._lock:
            queue = self._queues[call.kind]
            goes_at_once = queue.busy < MOST_GROUPS
            if goes_at_once:
                queue.busy += 1
            else:
                write = _ThreadWrite(call)
                write.will_wait()
                queue.waiting.append(write)
        if goes_at_once:
            outcome: Any = DEFERRED
            try:
                [outcome] = self._run(partial(write_group, calls=[call]))
            except UnitFailure:
                raise
            except Exception:  # noqa: BLE001, S110 - by itself it raises it again
                pass
            finally:
                self._come_back(queue)
            return self._run(call) if outcome is DEFERRED else call.finish(outcome)
        try:
            write.wait(None)
        except BaseException:
            self._leave(queue, write)
            raise
        if write.state is State.LEADING:
            self._lead(queue, write.group)
        if write.error is not None:
            raise write.error
        return self._run(call) if write.returned is DEFERRED else call.finish(write.returned)

    def _lead(self, queue: GatherQueue[_ThreadWrite], group: Sequence[_ThreadWrite]) -> None:
        """Run a group, the caller's own write included, and tell the others."""
        try:
            with delivering(group):
                settle(group, self._run(together(group)))
        finally:
            self._come_back(queue)

    def _come_back(self, queue: GatherQueue[_ThreadWrite]) -> None:
        """Start the next group, led by its first call, or leave the queue."""
        with self._lock:
            if not queue.waiting:
                queue.busy -= 1
                return
            group = queue.next_group()
            group[0].group, group[0].state = group, State.LEADING
        group[0].lead()

    def _leave(self, queue: GatherQueue[_ThreadWrite], write: _ThreadWrite) -> None:
        """Give up a write whose thread is interrupted while it waits; if it leads, others do."""
        with self._lock:
            state, write.state = write.state, State.TAKEN_BACK
            if state is State.WAITING:
                queue.waiting.remove(write)
            others = [other for other in write.group if other is not write]
            for other in reversed(others):
                other.state = State.WAITING
                queue.waiting.appendleft(other)
        if state is State.LEADING:
            self._come_back(queue)


def together(group: Sequence[QueuedWrite]) -> Callable[[Unit], list[Any]]:
    """Make a unit's work of a group."""
    calls = [write.work for write in group if isinstance(write.work, GatheredCall)]
    return partial(write_group, calls=calls)


@contextmanager
def delivering(group: Sequence[QueuedWrite]) -> Iterator[None]:
    """Run a group in the block, and tell all of its callers the outcome, whatever it is."""
    try:
        yield
    except UnitFailure as problem:
        _fail(group, problem)
    except Exception:  # noqa: BLE001 - by itself the one that is wrong raises it again
        settle(group, [DEFERRED] * len(group))
    finally:
        _abandon(group)
        group[0].tell(group)


def settle(group: Sequence[QueuedWrite], outcomes: Sequence[Any]) -> None:
    """Give each of a group its outcome."""
    for write, outcome in zip(group, outcomes, strict=True):
        write.returned, write.state = outcome, State.DONE


def _fail(group: Sequence[QueuedWrite], problem: UnitFailure) -> None:
    """Say what a group's failure means for each of its calls."""
    if len(group) > 1 and not _is_of_each(problem):
        settle(group, [DEFERRED] * len(group))
        return
    for write in group:
        own = UnitFailure(
            copy.copy(problem.error), repeatable=problem.repeatable, in_doubt=problem.in_doubt
        )
        own.__cause__ = problem.__cause__
        write.error, write.state = own, State.DONE


def _is_of_each(problem: UnitFailure) -> bool:
    """Say whether each call of a group has it, or would meet it again."""
    if problem.in_doubt or isinstance(problem.error, _OF_ALL):
        return True
    # What no driver said is the pool's: each would wait pool_timeout again.
    return isinstance(problem.error, errors.DatabaseBusy) and problem.__cause__ is None


def _abandon(group: Sequence[QueuedWrite]) -> None:
    """Give an outcome to those who have none, because who ran them was interrupted."""
    for write in group:
        if write.state is not State.DONE:
            write.error, write.state = interrupted(in_doubt=True), State.DONE


# Gathers the writes of the tasks of an event loop.
#
# Callers of one group get their outcomes together, and each of them may write again at once. If
# the first of them started a group without the others, every second group would be a group of
# one. So a group starts only after the loop has given all of them their turn. A caller that was
# alone last time goes at once.


class _TaskWrite(QueuedWrite):
    """A call of a task.

    Attributes:
        group: With whom it went, itself included; empty until it has set out.
        carrier: What runs the group.
        wanted: Whether its task still waits for the outcome.
    """

    __slots__ = ("carrier", "group", "heard", "wanted")

    def __init__(self, call: GatheredCall) -> None:
        super().__init__(call)
        self.place = asyncio.get_running_loop()
        self.heard: asyncio.Future[None] = self.place.create_future()
        self.group: Sequence[_TaskWrite] = ()
        self.carrier: OwnTask[None] | None = None
        self.wanted = True

    async def settled(self) -> None:
        """Wait until the group has settled, however often the task is cancelled meanwhile.

        If nobody of the group waits for an outcome any more, it is cancelled, as a lone call
        would be: a server that does not answer keeps no task from ending.
        """
        assert self.carrier is not None, "it has set out"
        self.wanted = False
        if not any(write.wanted for write in self.group):
            self.carrier.cancel()
        await until_done(self.carrier)

    @staticmethod
    def tell(writes: Sequence[QueuedWrite]) -> None:
        """Wake the tasks."""
        for write in writes:
            assert isinstance(write, _TaskWrite), "tasks go with tasks"
            if not write.heard.done():  # its task is cancelled, and finds out by itself
                write.heard.set_result(None)


class AsyncGatherer:
    """Gathers the calls of the tasks of one event loop."""

    def __init__(self, run: Callable[[Callable[[Unit], Any]], Awaitable[Any]]) -> None:
        """Gather what this runs in a unit that is one statement; it raises UnitFailure."""
        self._run = run
        self._queues: defaultdict[Any, GatherQueue[_TaskWrite]] = defaultdict(GatherQueue)
        self._carriers: set[OwnTask[None]] = set()

    async def run(self, call: GatheredCall) -> Any:
        """Run a call, in a group of one or more; see ``Gatherer``.

        Cancelled while it waits, it writes nothing. Once its group has set out, it settles first;
        if all of the group are cancelled, so is the group.
        """
        queue = self._queues[call.kind]
        if not (queue.waiting or queue.had_company) and queue.busy < MOST_GROUPS:
            queue.busy += 1
            try:
                [outcome] = await self._run(partial(write_group, calls=[call]))
            finally:
                self._come_back(queue)
        else:
            write = _TaskWrite(call)
            await self._wait(queue, write)
            if write.error is not None:
                raise write.error
            outcome = write.returned
        return await self._run(call) if outcome is DEFERRED else call.finish(outcome)

    async def _wait(self, queue: GatherQueue[_TaskWrite], write: _TaskWrite) -> None:
        queue.waiting.append(write)
        if len(queue.waiting) == 1 and queue.busy < MOST_GROUPS:
            write.place.call_soon(self._set_out, queue)
        try:
            await write.heard
        except asyncio.CancelledError:
            if write.state is State.WAITING:
                queue.waiting.remove(write)
            else:
                await write.settled()
            raise

    def _come_back(self, queue: GatherQueue[_TaskWrite]) -> None:
        """End a group. The next one starts behind the callers that get their outcome now.

        They may write again at once, and then go with it.
        """
        queue.busy -= 1
        if queue.waiting:
            queue.waiting[0].place.call_soon(self._set_out, queue)

    def _set_out(self, queue: GatherQueue[_TaskWrite]) -> None:
        """Start a group of those that wait, if there is room."""
        while queue.waiting and queue.busy < MOST_GROUPS:
            queue.busy += 1
            group = queue.next_group()
            # A task of its own: no one caller's cancellation may hit the others.
            carrier = OwnTask(self._carry(group))
            for write in group:
                write.group, write.carrier = group, carrier
            self._carriers.add(carrier)
            carrier.add_done_callback(partial(self._arrive, queue))

    async def _carry(self, group: Sequence[_TaskWrite]) -> None:
        with delivering(group):
            settle(group, await self._run(together(group)))

    def _arrive(self, queue: GatherQueue[_TaskWrite], carrier: OwnTask[None]) -> None:
        """Start the next group; the callers of this one have had their turn."""
        self._carriers.discard(carrier)
        queue.busy -= 1
        self._set_out(queue)
