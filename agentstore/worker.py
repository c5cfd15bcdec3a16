"""Workers: programs that claim tasks and run a handler for each.

```text
        +--> claim as many tasks as there is room for --> run their handlers
loop    |                                                     |
        +---- wait: a signal, the next due time, room <-------+--> complete, fail or release

beside it: one heartbeat renews all leases, three times within a lease
```

A *handler* is a function of the application's for one kind of task; it gets a *job*, which is one
attempt of a task. ``Worker`` runs handlers in threads, ``AsyncWorker`` in its event loop.

The invariant: a worker writes about a task only with the fence of its claim. If it dies, hangs or
loses the database, the lease runs out, another worker gets the task, and later calls of the first
one about it are refused. So a task is done at least once; a handler that changes something
elsewhere should be safe to repeat.

``WorkerLoop`` is what both kinds share, ``Job`` what a handler sees; ``Listener`` wakes the loop
and stops it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Real
from typing import Any, ClassVar, Generic, Literal, TypeVar

from agentstore.aio import AsyncScopedStore, AsyncStore
from agentstore.engines.base.dialect import TaskSignal
from agentstore.errors import (
    AgentStoreError,
    DatabaseError,
    InvalidInput,
    JobInterrupted,
    SecretRefused,
)
from agentstore.records import TaskBatch, TaskRecord
from agentstore.repositories.claims import length, names
from agentstore.store import Store
from agentstore.transactions import ScopedStore
from agentstore.values import validation
from agentstore.values.validation import DEFAULT_BACKOFF, Backoff, require_backoff

__all__ = ["AsyncWorker", "Backoff", "DoNotRetry", "Job", "Worker"]


# What a handler gets of a worker, and may say to it.


Interruption = Literal["cancelled", "lost", "stopping"]

_LONGEST_ERROR = 2_000
"""Characters of an error that are kept: enough to tell what happened, too few for a document."""


class DoNotRetry(Exception):
    """Raised by a handler: the task failed, and there is no use in trying again."""


class HandlerExit(Exception):
    """Carries what a handler in a thread raised that is no ``Exception``, as ``SystemExit``."""

    def __init__(self, raised: BaseException) -> None:
        """Carry it."""
        self.raised = raised
        super().__init__(type(raised).__name__)


class Job:
    """One attempt of a task, in a handler's hands.

    Attributes:
        task: The task as it was claimed; ``task.fence`` tells this attempt from all others, for
            systems beside the database that are to refuse a late one.
    """

    __slots__ = ("_handled", "_interruption", "_renewed", "task")

    def __init__(self, task: TaskRecord, renewed: float) -> None:
        """Begin, with a lease that was renewed at this moment of the worker's clock."""
        self.task = task
        self._renewed = renewed
        self._handled = False
        self._interruption: Interruption | None = None

    def __repr__(self) -> str:
        """Name the task; its payload is nobody's business in a log."""
        return f"Job({self.task.kind!r}, {self.task.id!r}, fence={self.task.fence})"

    @property
    def payload(self) -> Any:
        """The task's payload."""
        return self.task.payload

    @property
    def interruption(self) -> Interruption | None:
        """Why the handler is to stop: None as long as it is not.

        ``cancelled``: somebody asked for it. ``lost``: the lease is gone, and the result would be
        refused. ``stopping``: the worker's grace time is over.
        """
        return self._interruption

    def check(self) -> None:
        """Stop here if the handler is to stop. A long handler that cannot be cancelled from
        outside, as a thread cannot, calls this wherever it may end.

        Raises:
            JobInterrupted: It is to stop. Let it pass.
        """
        if self._interruption is not None:
            raise JobInterrupted(self.task.id, self._interruption)


def error_text(error: BaseException) -> str:
    """Say what kind of error it was and what it said, cut where it gets long."""
    if isinstance(error, HandlerExit):
        error = error.raised
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an application's error may fail at anything
        said = ""
    name = type(error).__name__
    text = f"{name}: {said}" if said else name
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"


# What both kinds of worker do: one body, a coroutine.
#
# The loop claims as many tasks as it has room for. Then it waits for a signal, for the time of the
# next task, or for room, and claims again. A heartbeat beside it renews all leases.
#
# The invariant: a worker writes to a task only with the fence of its claim. If it hangs, is
# killed or loses its network, another worker gets the task when the lease has expired, and from
# then on every write of the first one is refused.
#
# Time is measured by the monotonic clock here, and by the server's where leases are concerned.


T = TypeVar("T")
S = TypeVar("S", Store, AsyncStore)
Handler = Callable[[Job], Any]
H = TypeVar("H", bound=Handler)

_BEATS = 3
"""Heartbeats within a lease: two may be late before it runs out."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between tries when the database does not answer."""

_log = logging.getLogger("agentstore.worker")


class WorkerLoop(Generic[S, H]):
    """What both kinds of worker do.

    Attributes:
        name: What the tasks' ``worker`` says.
    """

    _refused: ClassVar[tuple[type, ...]]

    def __init__(
        self,
        store: S,
        handlers: Mapping[str, H] | None = None,
        *,
        queues: str | Sequence[str] = "default",
        name: str | None = None,
        concurrency: int = 1,
        lease: float = 60.0,
        grace: float = 10.0,
        poll: float = 5.0,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        """Say what is to be done, and how; ``run`` does it.

        Args:
            store: Where the tasks are; the worker leaves it open.
            handlers: By the kind of task, what does it; ``handler`` adds more.
            queues: Whose tasks, all alike.
            name: What the tasks' ``worker`` says; without one host, process and a random part.
            concurrency: How many tasks it does at once, up to 1,000.
            lease: Seconds after which others get what a dead worker was doing. It is renewed
                three times as often, so it may be shorter than a task takes.
            grace: Seconds that running handlers have to finish when the worker stops.
            poll: Seconds after which it looks for tasks even if nothing called.
            backoff: How long to wait before a failed task is tried again.

        Raises:
            InvalidInput: One of the numbers is out of range, or an argument is of a wrong type.
        """
        length(lease)
        for what, seconds in (("grace", grace), ("poll", poll)):
            if isinstance(seconds, bool) or not isinstance(seconds, Real):
                raise InvalidInput(
                    f"{what} must be a number of seconds, not {type(seconds).__name__}."
                )
        if not (grace >= 0 and poll > 0):
            raise InvalidInput("poll must be more than 0 seconds, and grace 0 or more.")
        if handlers is not None and not isinstance(handlers, Mapping):
            raise InvalidInput(
                "handlers must map the kind of a task to its handler, and be no "
                f"{type(handlers).__name__}."
            )
        usual = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.name = validation.key("name", name or usual)
        self._store: S = store
        self._handlers: dict[str, H] = {}
        self._queues = names("queues", queues)
        self._concurrency = validation.amount("concurrency", concurrency, least=1, most=1_000)
        self._lease = lease
        self._grace = grace
        self._poll = poll
        self._backoff = require_backoff(backoff)
        self._listener = Listener(self.name, self._queues, self._wake)
        self._jobs: dict[str, tuple[Job, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taking: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stopping = self._hurried = self._until_idle = False
        for kind, handler in (handlers or {}).items():
            self.handler(kind)(handler)
        if isinstance(store, self._refused) or not hasattr(store, "tasks"):
            raise InvalidInput(
                f"{type(self).__name__} takes no {type(store).__name__}: a Worker needs a Store, "
                "and an AsyncWorker an AsyncStore. A scoped store has no worker."
            )

    def handler(self, kind: str) -> Callable[[H], H]:
        """Decorate what does the tasks of a kind.

        It gets the ``Job``. What it returns, any JSON, is the task's result; what it raises makes
        the attempt fail, with the error's type and message, secrets redacted.
        """

        def register(handler: H) -> H:
            self._check(handler)
            self._handlers[validation.key("kind", kind)] = handler
            return handler

        return register

    def stop(self) -> None:
        """Stop soon; from any thread, or a signal handler.

        No more tasks are claimed. What runs may finish within the grace time; what has not by
        then is given back, as if it had never been claimed. A second call ends the grace time.
        A call that comes before ``run()``, or between two of them, ends the next one at once.
        """
        self._hurried, self._stopping = self._stopping, True
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(self._wake)

    def _check(self, handler: H) -> None:
        """Refuse what cannot be a handler."""
        if not callable(handler):
            raise InvalidInput("A handler must be a function that takes a Job.")

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call a method of ``store.tasks``."""
        raise NotImplementedError

    def _perform(self, job: Job) -> Awaitable[Any]:
        """Run the handler of a job."""
        raise NotImplementedError

    def _reach(self, running: asyncio.Task[None]) -> None:
        """Make a handler hear at once that it is to stop, where that can be done."""
        raise NotImplementedError

    # --- The loop --------------------------------------------------------------------------

    def _require_idle(self) -> None:
        if self._loop is not None:
            raise InvalidInput(
                "This worker is running already. Create another one, or raise concurrency."
            )

    async def _run(self, *, until_idle: bool) -> None:
        self._require_idle()
        if not self._handlers:
            raise InvalidInput(
                "A worker must have a handler. Pass handlers, or use worker.handler()."
            )
        self._loop = asyncio.get_running_loop()
        self._taking = asyncio.current_task()
        self._woken = asyncio.Event()
        self._until_idle = until_idle  # not _stopping: a call of stop() may come first
        beating = asyncio.create_task(self._beat())
        try:
            with stopped_by_signals(self._loop, self.stop):
                try:
                    await self._take_tasks()
                finally:
                    await self._wind_up()
        finally:
            beating.cancel()
            await asyncio.wait([beating])
            self._listener.close()
            self._jobs.clear()
            self._loop = None
            self._stopping = self._hurried = False

    async def _take_tasks(self) -> None:
        rescue_at = listen_at = 0.0
        may_claim, looked = True, False
        while not self._stopping:
            now = self._time()
            if not self._listener.hears and now >= listen_at:
                await self._listen()
                listen_at = now + self._poll
            if now >= rescue_at:
                await self._tried("rescue", backoff=self._backoff)
                rescue_at = now + min(self._lease, self._poll)
            free = self._concurrency - len(self._jobs)
            if free and may_claim:
                may_claim = await self._claim(free) == free  # then there may be more
                continue
            seconds = max(0.0, rescue_at - self._time())
            if free:
                due = await self._tried("due", queues=self._queues, kinds=list(self._handlers))
                if due == 0.0 and not looked:
                    # Since the claim, or to be alone in a session: a second claim tells.
                    may_claim = looked = True
                    continue
                if self._until_idle and not self._jobs:
                    return
                if due:
                    seconds = min(seconds, due)
            await self._wait(seconds)
            looked = False

    async def _claim(self, limit: int) -> int:
        """Claim tasks and begin them; give their number."""
        renewed = self._time()
        claimed: tuple[TaskRecord, ...] | None = await self._tried(
            "claim",
            self.name,
            queues=self._queues,
            kinds=list(self._handlers),
            limit=limit,
            lease=self._lease,
        )
        for task in claimed or ():
            job = Job(task, renewed)
            self._jobs[task.id] = job, asyncio.create_task(self._do(job))
        return len(claimed or ())

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until there is room, or a signal, or the worker is to stop."""
        end = self._time() + seconds
        while not self._woken.is_set() and (left := end - self._time()) > 0:
            interval = self._listener.interval
            with suppress(TimeoutError):
                async with asyncio.timeout(left if interval is None else min(left, interval)):
                    await self._woken.wait()
            if interval is not None:
                self._listener.look()
        self._woken.clear()

    async def _tried(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of ``store.tasks``; None, after a pause, if the database fails.

        Raises:
            DatabaseError: It fails, and the worker is not one that goes on until it is stopped.
        """
        try:
            return await self._call(method, *args, **kwargs)
        except DatabaseError as error:
            if self._until_idle:
                raise
            _log.warning("%s: %s failed (%s)", self.name, method, type(error).__name__)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_PAUSE):
                    await self._woken.wait()
            return None

    async def _wind_up(self) -> None:
        """Let running handlers finish within the grace time; give back what has not."""
        self._stopping = True
        end = self._time() + self._grace
        while self._jobs and not self._hurried and (left := end - self._time()) > 0:
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._woken.wait()
        left_over = list(self._jobs.values())
        for job, running in left_over:
            job._interruption = job._interruption or "stopping"
            if job._handled:
                running.cancel()
        if left_over:
            # A handler that does not let itself be cancelled is left to itself.
            _, unfinished = await asyncio.wait([t for _, t in left_over], timeout=_LONGEST_PAUSE)
            for job, running in left_over:
                if running in unfinished:
                    await self._settle(job, "release", job.task.id, fence=job.task.fence)

    # --- One task --------------------------------------------------------------------------

    async def _do(self, job: Job) -> None:
        """Run the handler, and write what came of it; only the handler is ever cancelled."""
        task, result, error = job.task, None, None
        try:
            job.check()  # it may have been interrupted before this began
            job._handled = True
            result = await self._perform(job)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - handed on below
            error = raised
        job._handled = False
        if isinstance(error, asyncio.CancelledError) and self._taking and self._taking.cancelling():
            job._interruption = job._interruption or "stopping"  # the loop itself ends
        own = {"fence": task.fence}
        try:
            if error is None:
                try:
                    await self._settle(job, "complete", task.id, result, **own)
                except InvalidInput as refused:
                    error = refused
            if isinstance(error, JobInterrupted | asyncio.CancelledError) and job.interruption:
                if job.interruption == "cancelled":
                    await self._settle(job, "cancel", task.id, **own)
                elif job.interruption == "stopping":
                    await self._settle(job, "release", task.id, **own)
            elif error is not None:
                await self._fail(job, error)
        finally:
            self._jobs.pop(task.id, None)
            self._wake()

    async def _fail(self, job: Job, error: BaseException) -> None:
        _log.warning("%r failed (%s)", job, type(error).__name__)
        again = {"retry": not isinstance(error, DoNotRetry), "backoff": self._backoff}
        own = {"fence": job.task.fence, **again}
        try:
            await self._settle(job, "fail", job.task.id, error_text(error), **own)
        except SecretRefused:
            await self._settle(job, "fail", job.task.id, type(error).__name__, **own)

    async def _settle(self, job: Job, method: str, *args: Any, **kwargs: Any) -> None:
        """Write about a task that is held.

        If the database fails, it tries again until the lease may have run out. One cancellation
        is ignored, as the loop may end meanwhile.

        Raises:
            InvalidInput: What is to be written cannot be stored.
        """
        pause, cancelled = 0.0, False
        while True:
            try:
                if pause:
                    await asyncio.sleep(pause)
                await self._call(method, *args, **kwargs)
                return
            except asyncio.CancelledError:
                if cancelled:
                    raise
                cancelled = True
            except InvalidInput:
                raise
            except DatabaseError as error:
                pause = min(2 * pause, _LONGEST_PAUSE) or _FIRST_PAUSE
                if self._time() + pause > job._renewed + self._lease:
                    _log.warning("%r: %s failed (%s)", job, method, type(error).__name__)
                    return
            except AgentStoreError as error:
                # The lease is lost, or the task is gone: what was done counts for nothing.
                _log.info("%r: %s was refused (%s)", job, method, type(error).__name__)
                return

    # --- The heartbeat ---------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease / _BEATS)
            held = [job for job, _ in self._jobs.values()]
            if held:
                await self._renew(held)

    async def _renew(self, held: list[Job]) -> None:
        now = self._time()
        try:
            batch: TaskBatch = await self._call(
                "heartbeat_many", [job.task for job in held], lease=self._lease
            )
        except DatabaseError as error:
            _log.warning("%s: the heartbeat failed (%s)", self.name, type(error).__name__)
            for job in held:
                if now > job._renewed + self._lease:
                    self._interrupt(job, "lost")
            return
        lost, asked = set(batch.lost), {t.id for t in batch.settled if t.cancel_requested}
        for job in held:
            if job.task.id in lost:
                self._interrupt(job, "lost")
                continue
            job._renewed = now
            if job.task.id in asked:
                self._interrupt(job, "cancelled")

    def _interrupt(self, job: Job, reason: Interruption) -> None:
        """Tell the handler of a job to stop, once."""
        current, running = self._jobs.get(job.task.id, (None, None))
        if current is job and running is not None and job._interruption is None:
            job._interruption = reason
            if job._handled:
                self._reach(running)

    async def _listen(self) -> None:
        watched: TaskSignal | None = await self._tried("watch")
        if watched is not None:
            await self._listener.open(watched)

    def _wake(self) -> None:
        self._woken.set()

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()


# Workers: programs that claim tasks and run a handler for each.
#
# ``AsyncWorker`` awaits the handlers in its event loop. ``Worker`` runs a loop of its own, the
# handlers in threads, and calls the store in threads too; the rest they share, see
# ``agentstore.worker``.


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

    _refused = (AsyncStore, ScopedStore, AsyncScopedStore)

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

    _refused = (Store, ScopedStore, AsyncScopedStore)

    async def run(self, *, until_idle: bool = False) -> None:
        """Do tasks until ``stop()`` is called, or SIGTERM or SIGINT comes; see ``Worker.run``.

        If this is cancelled itself, it stops as ``stop()`` does. A second cancellation ends the
        grace time; a third one ends it at once, and what is being claimed then keeps its lease.
        """
        self._require_idle()
        running = asyncio.create_task(self._run(until_idle=until_idle))
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:  # in a claim, nobody would do what it took
                cancelled = error
                if self._hurried:
                    running.cancel()
                self.stop()
        running.result()
        if cancelled is not None:
            raise cancelled

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


# What wakes a worker: the database's signal that there are tasks, the system's to stop.


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Listener:
    """Listens for tasks in an event loop; without a signal it never wakes the worker."""

    def __init__(self, name: str, queues: Collection[str], wake: Callable[[], None]) -> None:
        """Prepare to call ``wake`` whenever something may have happened to the queues."""
        self._name = name
        self._queues = queues
        self._wake = wake
        self._signal: TaskSignal | None = None
        self._descriptor: int | None = None

    @property
    def hears(self) -> bool:
        """Whether a signal is open."""
        return self._signal is not None

    @property
    def interval(self) -> float | None:
        """Seconds after which to call ``look``; None where the loop calls it."""
        return None if self._signal is None else self._signal.interval

    async def open(self, watched: TaskSignal) -> None:
        """Open a signal, in a thread because that may take a while."""
        try:
            await asyncio.to_thread(watched.open)
        except DatabaseError as error:
            _log.warning("%s: not listening (%s)", self._name, type(error).__name__)
            watched.close()
            return
        self._signal, self._descriptor = watched, watched.fileno()
        if self._descriptor is not None:
            asyncio.get_running_loop().add_reader(self._descriptor, self.look)

    def look(self) -> None:
        """Ask the signal; wake the worker if something may have happened, or the signal broke."""
        if self._signal is None:
            return
        try:
            happened = self._signal.happened(self._queues)
        except DatabaseError as error:
            _log.warning("%s: not listening any more (%s)", self._name, type(error).__name__)
            self.close()
            happened = True
        if happened:
            self._wake()

    def close(self) -> None:
        """Close the signal, if one is open."""
        watched, self._signal = self._signal, None
        if watched is not None:
            if self._descriptor is not None:
                asyncio.get_running_loop().remove_reader(self._descriptor)
            watched.close()


@contextmanager
def stopped_by_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT, where this thread is the one that gets them."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    installed = []
    for number in _SIGNALS:
        # Not in the main thread, or in a loop that knows no signals: stop() remains.
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, stop)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
