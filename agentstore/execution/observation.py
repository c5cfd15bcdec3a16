"""Watching calls from outside: which are slow, and what OpenTelemetry is told.

A store that is watched has repositories of derived classes, whose methods are wrapped; one that
is not has the plain ones. So who watches nothing pays nothing: no call is longer and no test is
made. What is watched is what an application calls, on a store or in a transaction; what a
method calls of its own inside its unit is part of it. A transaction is watched as a whole too,
and the calls in it are its children. What a store itself offers, such as ``prune``, is watched
under its own name.

Only names and numbers leave: no argument, no value, no id, no words of an error.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import URL

from agentstore.engines import dialect_for
from agentstore.errors import InvalidInput
from agentstore.settings import Settings

if TYPE_CHECKING:
    from agentstore.execution.telemetry import Telemetry

R = TypeVar("R")

TRANSACTION = "transaction"
"""What a transaction is called as a whole."""

_slow = logging.getLogger("agentstore.slow")


class _ObservedCall:
    """A call that is under way."""

    __slots__ = ("attempts", "node")

    def __init__(self) -> None:
        self.attempts = 1
        self.node: str | None = None


_current: ContextVar[_ObservedCall | None] = ContextVar("agentstore_call", default=None)


def retried() -> None:
    """Hear that a call is being repeated."""
    call = _current.get()
    if call is not None:
        call.attempts += 1


def served_by(node: str) -> None:
    """Hear which standby answered a call."""
    call = _current.get()
    if call is not None:
        call.node = node


class Observer:
    """Watches the calls of one store."""

    def __init__(self, slow_after: float | None, telemetry: Telemetry | None) -> None:
        """Watch nothing yet.

        Args:
            slow_after: From how many seconds on a call is logged; None means never.
            telemetry: Who is told of every call; None means nobody.
        """
        self._slow_after = slow_after
        self._telemetry = telemetry
        self._classes: dict[type, Any] = {}

    def follow(self, lags: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Tell of standbys, too: a method gives their names and by how many seconds they lag."""
        if self._telemetry is not None:
            self._telemetry.follow(lags)

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Watch what happens in the block, under a name."""
        call = _ObservedCall()
        token = _current.set(call)
        error: BaseException | None = None
        began = time.perf_counter()
        try:
            with (
                nullcontext()
                if self._telemetry is None
                else self._telemetry.span(name, lambda: call.node)
            ):
                yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            with suppress(ValueError):  # ended in another context than it began
                _current.reset(token)
            self._ended(name, time.perf_counter() - began, call, error)
            error = None  # with its frames, of which this is one

    def _ended(
        self, name: str, seconds: float, call: _ObservedCall, error: BaseException | None
    ) -> None:
        attempts = call.attempts
        if self._telemetry is not None:
            self._telemetry.record(name, seconds, attempts, error, call.node)
        if self._slow_after is None or seconds < self._slow_after:
            return
        repository, _, method = name.rpartition(".")
        outcome = "" if error is None else f", then raised {type(error).__name__}"
        _slow.warning(
            "%s took %.3f s in %d attempt%s%s",
            name,
            seconds,
            attempts,
            "" if attempts == 1 else "s",
            outcome,
            extra={
                "repository": repository or None,
                "method": method,
                "seconds": seconds,
                "attempts": attempts,
            },
        )

    def watched(self, name: str, kind: type[R]) -> type[R]:
        """Give a class of repositories that is watched; a store has it under the name."""
        if kind not in self._classes:
            members: dict[str, Any] = {"__slots__": (), "__doc__": kind.__doc__}
            for member in dir(kind):
                method = getattr(kind, member)
                if _is_call(method):
                    members[member] = self._wrapped(f"{name}.{member}", method)
            self._classes[kind] = type(kind.__name__, (kind,), members)
        watched: type[R] = self._classes[kind]
        return watched

    def _wrapped(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        observer = self
        if inspect.iscoroutinefunction(method):

            @wraps(method)
            async def call_later(self: Any, /, *args: Any, **kwargs: Any) -> Any:
                with observer.call(name):
                    return await method(self, *args, **kwargs)

            return call_later

        @wraps(method)
        def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._runner is None:  # another method calls it in its own unit
                return method(self, *args, **kwargs)
            with observer.call(name):
                return method(self, *args, **kwargs)

        return call


def observer_for(settings: Settings, url: URL) -> Observer | None:
    """Give who watches the calls of a store; None if the settings want nobody to.

    Raises:
        InvalidInput: They want telemetry, and OpenTelemetry's API is not installed.
    """
    if settings.slow_after is None and not settings.telemetry:
        return None
    telemetry = None
    if settings.telemetry:
        try:
            from agentstore.execution.telemetry import Telemetry
        except ImportError as error:
            raise InvalidInput(
                "telemetry=True needs OpenTelemetry's API. Run: pip install opentelemetry-api"
            ) from error
        telemetry = Telemetry(dialect_for(url).checks.system)
    return Observer(settings.slow_after, telemetry)


def watching(observer: Observer | None) -> Callable[[str], AbstractContextManager[None]]:
    """Give what watches a block under a name, if there is somebody to watch."""
    return (lambda _: nullcontext()) if observer is None else observer.call


def _is_call(member: object) -> bool:
    return hasattr(member, "operation") or hasattr(member, "several_units")
