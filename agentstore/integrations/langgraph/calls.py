"""How LangGraph's interfaces are called on both kinds of store, and what sweeps for them."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import wraps
from threading import Event, Thread
from typing import Any, Concatenate, ParamSpec

from langgraph.store.base import TTLConfig

from agentstore.errors import AgentStoreError, InvalidInput, TransactionMisuse, shown
from agentstore.integrations import Calls, T

# Methods of operations that are written once for both kinds of store.


P = ParamSpec("P")


def awaited(
    operation: Callable[Concatenate[Any, P], Calls[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make a method that is awaited of an operation."""

    @wraps(operation)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        made: T = await self._arun(operation(self, *args, **kwargs))
        return made

    return call


def called(
    awaited: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Make the method that blocks, of the one that is awaited."""
    operation: Callable[..., Calls[T]] = awaited.__wrapped__  # type: ignore[attr-defined]

    @wraps(operation)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        made: T = self._run(operation(self, *args, **kwargs))
        return made

    call.__name__ = operation.__name__.removeprefix("a")
    return call


# Times to live, and what sweeps.


_MOST_MINUTES = 10**8

_TTL = frozenset({"default_ttl", "refresh_on_read", "sweep_interval_minutes", "strategy"})

log = logging.getLogger("agentstore.langgraph")


def checked(ttl: TTLConfig | None) -> TTLConfig | None:
    """Require a time to live as LangGraph writes it; raises InvalidInput."""
    if ttl is None:
        return None
    if not isinstance(ttl, Mapping) or ttl.keys() - _TTL:
        raise InvalidInput(
            f"ttl must be a dict of {', '.join(sorted(_TTL))}, such as {{'default_ttl': 60}}: "
            "a thread is kept for 60 minutes after its last use."
        )
    for name in ("default_ttl", "sweep_interval_minutes"):
        minutes: Any = ttl.get(name)
        is_number = type(minutes) in (int, float)
        if minutes is not None and not (is_number and 0 < minutes <= _MOST_MINUTES):
            raise InvalidInput(
                f"{name} must be a number of minutes above 0 and up to {_MOST_MINUTES:,}, "
                f"not {shown(minutes)}."
            )
    if not isinstance(ttl.get("refresh_on_read", True), bool):
        raise InvalidInput("refresh_on_read must be a bool.")
    if ttl.get("strategy", "delete") != "delete":
        raise InvalidInput(
            "strategy must be 'delete'. To keep the latest of each thread instead, prune with "
            "checkpoints_max_age of RetentionPolicy."
        )
    return ttl


class Sweeper:
    """What sweeps now and then in a thread, until it is stopped or its store is closed."""

    ttl_config: TTLConfig | None
    _sweeping: tuple[Future[None], Thread] | None = None

    @abstractmethod
    def sweep_ttl(self) -> int:
        """Delete what has expired; give how many."""

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Begin to sweep in a thread, unless that was begun, or there is no ``ttl``.

        Args:
            sweep_interval_minutes: How long to wait before each sweep; left out, as ``ttl`` says,
                or else 5.

        Returns:
            What is done when it has ended; cancelling it is a way to stop.
        """
        if self._sweeping is not None and self._sweeping[1].is_alive():
            return self._sweeping[0]
        stopped, ended = Event(), Future[None]()
        ended.add_done_callback(lambda _: stopped.set())
        if self.ttl_config is None:
            ended.set_result(None)
            return ended
        seconds = _interval(self.ttl_config, sweep_interval_minutes)

        def sweep() -> None:
            while not stopped.wait(seconds):
                try:
                    self.sweep_ttl()
                except TransactionMisuse:  # the store is closed
                    break
                except AgentStoreError as error:
                    log.warning("%s", error)
            with suppress(InvalidStateError):
                ended.set_result(None)

        thread = Thread(target=sweep, name="agentstore-ttl-sweeper", daemon=True)
        self._sweeping = ended, thread
        thread.start()
        return ended

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop sweeping; say whether it has ended, in so many seconds if they are given."""
        if self._sweeping is None:
            return True
        ended, thread = self._sweeping
        with suppress(InvalidStateError):
            ended.set_result(None)
        thread.join(timeout)
        return not thread.is_alive()


class AsyncSweeper:
    """What sweeps now and then in a task."""

    ttl_config: TTLConfig | None
    _sweeping: asyncio.Task[None] | None = None

    @abstractmethod
    async def sweep_ttl(self) -> int:
        """Delete what has expired; give how many."""

    async def start_ttl_sweeper(
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Task[None]:
        """Begin to sweep in a task; see ``Sweeper.start_ttl_sweeper``."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep(sweep_interval_minutes))
        return self._sweeping

    async def _sweep(self, minutes: float | None) -> None:
        while self.ttl_config is not None:
            await asyncio.sleep(_interval(self.ttl_config, minutes))
            try:
                await self.sweep_ttl()
            except TransactionMisuse:  # the store is closed
                return
            except AgentStoreError as error:
                log.warning("%s", error)

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Stop sweeping; say whether it has ended, in so many seconds if they are given."""
        if self._sweeping is None:
            return True
        self._sweeping.cancel()
        await asyncio.wait([self._sweeping], timeout=timeout)
        return self._sweeping.done()


def _interval(ttl: TTLConfig, minutes: float | None) -> float:
    """Give the seconds between two sweeps."""
    minutes = minutes or ttl.get("sweep_interval_minutes") or 5
    if type(minutes) not in (int, float) or not 0 < minutes <= _MOST_MINUTES:
        raise InvalidInput(
            f"sweep_interval_minutes must be a number of minutes above 0, not {shown(minutes)}."
        )
    return 60 * minutes
