"""Gathers the writes of the tasks of an event loop; see ``gatherers``.

Callers of one group get their outcomes together, and each of them may write again at once. If the
first of them started a group without the others, every second group would be a group of one. So a
group starts only after the loop has given all of them their turn. A caller that was alone last time
goes at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from agentstore.execution.cancellation import OwnTask, until_done
from agentstore.execution.gatherers import GatherQueue, delivering, settle, together
from agentstore.execution.gathering import LEFT_OUT, GatheredCall
from agentstore.execution.queued_writes import QueuedWrite, State
from agentstore.execution.unit import Unit


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
        """Gather what this runs in a unit that is one statement; it raises Trouble."""
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
        return await self._run(call) if write.result is LEFT_OUT else call.finish(write.result)

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
