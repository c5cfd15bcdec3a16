"""Writes that arrive together and are written together.

The body of such a method has two halves, around a ``yield``: the first checks the arguments and
yields a ``Write``, the second makes the result of what was written. So one body serves every call,
and ``Write.write`` is the one way into the database, for one write or for many.

Neither half uses the database. The caller runs them, the first before the call waits for its turn
and the second once it has heard that it was written: in between the others wait, so nothing is
done there that can be done elsewhere.

The words: a *group* is the calls whose writes go together; a lone call is a group of one. A call
that its group leaves out gets the outcome DEFERRED, and is run again *solo*: as the only one
of its unit, where it may look things up first, wait for a lock, and raise its own error.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, Protocol, Self, TypeGuard, TypeVar

from agentstore import errors
from agentstore.errors import ConnectionLost, DatabaseBusy
from agentstore.execution.unit import OwnTask, Unit, UnitFailure, performed, until_done

T = TypeVar("T")

MOST_TOGETHER = 100
"""Calls in a group at most: a commit's cost is well shared by then, and others wait for its end."""


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


class GatheredCall:
    """A method and its arguments, on their way to a unit. May be run more than once.

    Attributes:
        kind: The kind of its write; a group is of one kind. None if it goes with no others.
    """

    __slots__ = ("_args", "_body", "_kwargs", "_prepared", "_repository", "_rest", "kind")

    _rest: Body[Any]

    def __init__(
        self,
        kind: type[Write] | None,
        body: Callable[..., Body[Any]],
        repository: Callable[[Unit], Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Keep what to call, and on what."""
        self.kind = kind
        self._body = body
        self._repository = repository
        self._args = args
        self._kwargs = kwargs
        self._prepared: Write | None = None

    def prepare(self, unit: Unit) -> None:
        """Run the first half, unless what it gave has not been written yet.

        Args:
            unit: Any; it needs no connection.
        """
        if self._prepared is None:
            self._rest = self._body(self._repository(unit), *self._args, **self._kwargs)
            self._prepared = next(self._rest)

    def take(self, unit: Unit) -> Write:
        """Give what is to be written. It is given once; to write again, make it again."""
        self.prepare(unit)
        write, self._prepared = self._prepared, None
        assert write is not None, "it was prepared"
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
        write = self.take(unit)
        (written,) = write.write(unit, [write], solo=True)
        return self.finish(written)


def goes_with_others(work: Callable[[Unit], Any]) -> TypeGuard[GatheredCall]:
    """Say whether a body's write can go together with others."""
    return isinstance(work, GatheredCall) and work.kind is not None


def write_group(unit: Unit, calls: Sequence[GatheredCall]) -> list[Any]:
    """Write what calls of one kind have prepared.

    Returns:
        For each in the same order what its second half needs, or DEFERRED. If this raises, nothing
        was written.
    """
    kind = calls[0].kind
    assert kind is not None, "only such calls go together"
    return kind.write(unit, [call.take(unit) for call in calls], solo=False)


# What waits in the writer's queue: a unit of work, its outcome, and how its caller is told.
#
# A thread waits for an event, a task for a future: each kind of caller has its class. The writer
# decides what becomes of a write, and when.


class State(Enum):
    """Where a write is."""

    WAITING = "in the queue"
    LEADING = "first in the queue, and to lead"
    RUNNING = "taken out of the queue"
    COMMITTING = "its commit is under way"
    DONE = "its outcome is known"
    TAKEN_BACK = "its caller does not want it any more"


class QueuedWrite:
    """A unit in the queue, and its outcome. The caller is a thread, which waits.

    Whichever thread runs the body, it runs in the caller's context.

    Attributes:
        work: The body; None asks only for the lead, for a transaction of the caller's own.
        result: What the body returned, once that is committed; or, where it went with a group, what
            its second half needs.
        error: What the caller is to see instead.
        finish: The second half, where it went with a group.
        place: Where the caller waits, if callers in one place are told together.
    """

    __slots__ = (
        "_context",
        "_heard",
        "error",
        "finish",
        "place",
        "result",
        "state",
        "work",
    )

    def __init__(self, work: Callable[[Unit], Any] | None) -> None:
        """Make a write that is not queued yet."""
        self.work = work
        self.state = State.WAITING
        self.place: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.finish: Callable[[Any], Any] | None = None
        self._heard: threading.Event | None = None
        self._context: Context | None = None

    def will_wait(self) -> None:
        """Prepare to wait, because another write leads; one that leads at once never waits."""
        self._context = copy_context()
        self._heard = threading.Event()

    def run(self, unit: Unit) -> None:
        """Run the body, and keep what it returns."""
        assert self.work is not None, "a caller that asked for the lead runs its own work"
        self.finish = None
        if self._context is None:
            self.result = performed(unit, self.work)
        else:
            self.result = self._context.run(performed, unit, self.work)

    def outcome(self) -> Any:
        """Give the result, or raise the error; for the caller, once it has heard."""
        if self.error is not None:
            raise self.error
        return self.result if self.finish is None else self.finish(self.result)

    @property
    def kind(self) -> type[Write] | None:
        """What it can be written together with, if with anything."""
        return self.work.kind if isinstance(self.work, GatheredCall) else None

    def lead(self) -> None:
        """Wake the caller: this write is first in the queue, and is to lead."""
        if self._heard is not None:
            self._heard.set()

    @staticmethod
    def tell(writes: Sequence[QueuedWrite]) -> None:
        """Wake the callers of writes of this kind: their outcome is known."""
        for write in writes:
            if write._heard is not None:
                write._heard.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the lead or the outcome; say whether it came in time."""
        assert self._heard is not None, "a leader does not wait"
        return self._heard.wait(timeout)


class GroupFailed(Exception):
    """Writes of a group failed together; each is to be run by itself."""


def turn_never_came() -> DatabaseBusy:
    """Say that other writers of this store were in front for too long."""
    return DatabaseBusy(
        "Timed out waiting to write: other transactions of this store took longer than "
        "busy_timeout. Keep transactions short, and do not wait for a model inside one."
    )


def interrupted(*, in_doubt: bool) -> UnitFailure:
    """Say that the thread was interrupted in whose hands a unit was.

    Args:
        in_doubt: Whether that was in the commit; if not, nothing was written.
    """
    said = "Another thread, which was writing for this call as well as for itself, was interrupted"
    if in_doubt:
        advice = (
            f"{said} during its commit. The write may or may not have been committed: check, or "
            "repeat it with the same idempotency_key."
        )
    else:
        advice = f"{said} before its commit. Nothing was written; repeat the call."
    lost = ConnectionLost(advice, in_doubt=in_doubt)
    return UnitFailure(lost, repeatable=not in_doubt, in_doubt=in_doubt)


def of_the_body(error: BaseException) -> bool:
    """Say whether an error is the body's own, to be raised where its caller is.

    If it is not, the thread was interrupted that happened to run the body; only the main one is.
    """
    return isinstance(error, Exception) or (
        threading.current_thread() is not threading.main_thread()
    )


# Gathers the writes of an engine that takes many writers; here for threads.
#
# There is a queue for each kind of write. A call that finds fewer than two groups running goes at
# once, as a group of one. Otherwise it waits, and goes together with all that wait as soon as a
# group has ended: in one statement, with one commit. So groups grow with the load, and a lone
# caller never waits. Tasks of an event loop wait a little longer, for those that write again at
# once (see ``async_gatherer``).
#
# A call that cannot go with its group, because it would fail or wait for a locked session, is run
# by its caller afterwards, by itself, and delays nobody. If a group fails as a whole, nothing of
# it was written, and each of its calls is run by itself; unless each would fail for the same
# reason: then all get that error. If a group of one fails, the error is that call's own. Where
# the outcome is in doubt, because the connection broke, it is in doubt for each call of the
# group.


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
        busy: How many groups are running.
        had_company: Whether the last group was more than one call, so that the next may be.
        waiting: The calls that wait, in their order.
    """

    __slots__ = ("busy", "had_company", "waiting")

    def __init__(self) -> None:
        self.busy = 0
        self.had_company = False
        self.waiting: deque[J] = deque()

    @property
    def has_room(self) -> bool:
        """Whether another group may run."""
        return self.busy < MOST_GROUPS

    def enter(self) -> bool:
        """Begin a group if there is room, and say whether there was; it ends with ``leave``."""
        if not self.has_room:
            return False
        self.busy += 1
        return True

    def leave(self) -> None:
        """End a group."""
        self.busy -= 1

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
        write = _ThreadWrite(call)
        with self._lock:
            queue = self._queues[call.kind]
            goes_at_once = queue.enter()
            if not goes_at_once:
                write.will_wait()
                queue.waiting.append(write)
        if goes_at_once:
            self._lead(queue, [write])
        else:
            try:
                write.wait(None)
            except BaseException:
                self._leave(queue, write)
                raise
            if write.state is State.LEADING:
                self._lead(queue, write.group)
        if write.error is not None:
            raise write.error
        return self._run(call) if write.result is DEFERRED else call.finish(write.result)

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
                queue.leave()
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
    return lambda unit: write_group(unit, calls)


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
        write.result, write.state = outcome, State.DONE


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


# Gathers the writes of the tasks of an event loop; see ``gatherers``.
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
        write = _TaskWrite(call)
        if not (queue.waiting or queue.had_company) and queue.enter():
            await self._run_one(queue, write)
        else:
            await self._wait(queue, write)
        if write.error is not None:
            raise write.error
        return await self._run(call) if write.result is DEFERRED else call.finish(write.result)

    async def _run_one(self, queue: GatherQueue[_TaskWrite], write: _TaskWrite) -> None:
        """Run a group of one; cancelled, it ends at once."""
        try:
            settle([write], await self._run(together([write])))
        finally:
            self._come_back(queue)

    async def _wait(self, queue: GatherQueue[_TaskWrite], write: _TaskWrite) -> None:
        queue.waiting.append(write)
        if len(queue.waiting) == 1 and queue.has_room:
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
        queue.leave()
        if queue.waiting:
            queue.waiting[0].place.call_soon(self._set_out, queue)

    def _set_out(self, queue: GatherQueue[_TaskWrite]) -> None:
        """Start a group of those that wait, if there is room."""
        while queue.waiting and queue.enter():
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
        queue.leave()
        self._set_out(queue)
