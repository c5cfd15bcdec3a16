"""What wakes a worker: the database's signal that there are tasks, the system's to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from agentstore.engines.base.signals import TaskSignal
from agentstore.errors import DatabaseError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("agentstore.worker")


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
