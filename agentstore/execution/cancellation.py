"""Work that settles although who asked for it is cancelled: the cancellation goes on after it.

It runs in a task of its own, which its event loop does not list: cancelling all tasks of
a loop, as ``asyncio.run`` does in the end, would cancel it as well, perhaps before its first step.
Then a connection would never come back to its pool, and callers who wait for an outcome never hear
of one. They wait, so the loop does not end before it. Only who started it can cancel it, and what
runs in it itself: that is how ``asyncio.timeout`` ends what takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from agentstore.values.internals import unlist

T = TypeVar("T")


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


class Ending:
    """The end of what another thread does for a task of the running loop, which waits for it.

    ``asyncio.wrap_future`` and ``shield`` do the same with more futures and callbacks, and take 1.4
    times as long.

    Attributes:
        loop: The task's.
        heard: What the task awaits first. When it is cancelled, it waits for ``settled`` instead.
    """

    __slots__ = ("_told", "heard", "loop")

    def __init__(self) -> None:
        """Take the running loop."""
        self.loop = asyncio.get_running_loop()
        self.heard: asyncio.Future[None] = self.loop.create_future()
        self._told = False

    def tell(self) -> None:
        """Wake the task; in its loop."""
        self._told = True
        if not self.heard.done():  # its task is cancelled, and may wait for another
            self.heard.set_result(None)

    async def settled(self) -> None:
        """Wait until the task is told, however often it is cancelled meanwhile."""
        if not self._told:
            self.heard = self.loop.create_future()  # the first was cancelled with the task
            await until_done(self.heard)
