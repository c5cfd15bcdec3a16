"""Workers: programs that claim tasks and run a handler for each.

``AsyncWorker`` awaits the handlers in its event loop. ``Worker`` runs a loop of its own, the
handlers in threads, and calls the store in threads too; the rest they share, see
``agentstore.worker.loop``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from agentstore.errors import InvalidInput
from agentstore.stores.aio import AsyncStore
from agentstore.stores.store import Store
from agentstore.values.backoff import Backoff
from agentstore.worker.jobs import DoNotRetry, HandlerExit, Job
from agentstore.worker.loop import Handler, WorkerLoop

__all__ = ["AsyncWorker", "Backoff", "DoNotRetry", "Job", "Worker"]

AsyncHandler = Callable[[Job], Coroutine[Any, Any, Any]]


class Worker(WorkerLoop[Store, Handler]):
    """Does tasks of a ``Store``, each handler in a thread.

    Examples:
        >>> worker = Worker(store, concurrency=4)
        >>> @worker.handler("summarize")
        ... def summarize(job):
        ...     return {"summary": shorten(job.payload["text"])}
        >>> worker.run()
    """

    def run(self, *, until_idle: bool = False) -> None:
        """Do tasks until ``stop()`` is called, or SIGTERM or SIGINT comes to the main thread.

        A handler cannot be stopped from outside: a long one calls ``job.check()``. One that still
        runs when the grace time is over is given back and left to itself, in a thread that does
        not keep the process alive.

        Args:
            until_idle: Return as soon as there is nothing to claim and nothing runs; and raise
                where the database fails, which is otherwise logged and tried again.
        """
        asyncio.run(self._run(until_idle=until_idle))

    def _check(self, handler: Handler) -> None:
        super()._check(handler)
        if asyncio.iscoroutinefunction(handler):
            raise InvalidInput(
                "A handler of a Worker must be a plain function; use an AsyncWorker for a "
                "coroutine function (async def)."
            )

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return asyncio.to_thread(getattr(self._store.tasks, method), *args, **kwargs)

    async def _perform(self, job: Job) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def answer(outcome: tuple[Any, BaseException | None]) -> None:
            if not done.done():
                done.set_result(outcome)

        def work() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = self._handlers[job.task.kind](job), None
            except BaseException as error:  # noqa: BLE001 - it is the task's, not the thread's
                outcome = None, error
            with suppress(RuntimeError):  # the worker has given the job back, and ended
                loop.call_soon_threadsafe(answer, outcome)

        threading.Thread(target=work, name="agentstore-job", daemon=True).start()
        result, error = await done
        if error is not None:
            # What is no Exception would end the loop, and with it the program.
            raise error if isinstance(error, Exception) else HandlerExit(error)
        return result

    def _reach(self, running: asyncio.Task[None]) -> None:
        """A thread hears of it by ``job.check()``."""


class AsyncWorker(WorkerLoop[AsyncStore, AsyncHandler]):
    """Does tasks of an ``AsyncStore``; the handlers are coroutine functions.

    A handler that is to stop is cancelled: it gets ``CancelledError`` where it awaits.
    """

    async def run(self, *, until_idle: bool = False) -> None:
        """Do tasks until ``stop()`` is called, or SIGTERM or SIGINT comes; see ``Worker.run``.

        If this is cancelled itself, it stops as ``stop()`` does.
        """
        await self._run(until_idle=until_idle)

    def _check(self, handler: AsyncHandler) -> None:
        if not asyncio.iscoroutinefunction(handler):
            raise InvalidInput(
                "A handler of an AsyncWorker must be a coroutine function (async def)."
            )

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        called: Awaitable[Any] = getattr(self._store.tasks, method)(*args, **kwargs)
        return called

    async def _perform(self, job: Job) -> Any:
        return await self._handlers[job.task.kind](job)

    def _reach(self, running: asyncio.Task[None]) -> None:
        running.cancel()
