"""Who gathers the writes of the tasks of an event loop; see ``gatherers``."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Any

from agentstore.cancellation import until_done
from agentstore.gatherers import Way, on_the_way, settle, together
from agentstore.gathering import ALONE, Call, Write
from agentstore.unit import Unit
from agentstore.write_jobs import Job, State


class _TaskJob(Job):
    """A call of a task."""

    __slots__ = ("heard",)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._context = copy_context()
        self.heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @staticmethod
    def tell(jobs: Sequence[Job]) -> None:
        """Wake the tasks."""
        for job in jobs:
            assert isinstance(job, _TaskJob), "tasks go with tasks"
            job.heard.set_result(None)


class AsyncGatherer:
    """Gathers the calls of the tasks of one event loop."""

    def __init__(self, run: Callable[[Callable[[Unit], Any]], Awaitable[Any]]) -> None:
        """Gather what this runs in a unit that is one statement; it raises Trouble."""
        self._run = run
        self._ways: defaultdict[type[Write], Way[_TaskJob]] = defaultdict(Way)
        self._groups: set[asyncio.Task[None]] = set()

    async def run(self, call: Call) -> Any:
        """Run a call, by itself or with others; see ``Gatherer``.

        Cancelled while it waits, it writes nothing. Once its group has set out, it settles first.
        """
        way = self._ways[call.kind]
        job = _TaskJob(call)
        if way.enter():
            await self._run_one(way, job)
        else:
            await self._wait(way, job)
        if job.error is not None:
            raise job.error
        return await self._run(call) if job.result is ALONE else job.result

    async def _run_one(self, way: Way[_TaskJob], job: _TaskJob) -> None:
        """Run a call that is nobody else's business; cancelled, it ends at once."""
        try:
            settle([job], await self._run(together([job])))
        finally:
            self._come_back(way)

    async def _wait(self, way: Way[_TaskJob], job: _TaskJob) -> None:
        way.waiting.append(job)
        try:
            await asyncio.shield(job.heard)
        except asyncio.CancelledError:
            if job.state is State.WAITING:
                way.waiting.remove(job)
            else:
                await until_done(job.heard)
            raise

    def _come_back(self, way: Way[_TaskJob]) -> None:
        """Let the next group set out, or make room."""
        if group := way.come_back():
            # A task of its own: no one caller's cancellation may hit the others.
            task = asyncio.create_task(self._run_group(way, group))
            self._groups.add(task)
            task.add_done_callback(self._groups.discard)

    async def _run_group(self, way: Way[_TaskJob], group: Sequence[_TaskJob]) -> None:
        with on_the_way(group, lambda: self._come_back(way)):
            settle(group, await self._run(together(group)))
