"""Methods that are several units of work, one after the other.

Most methods are one body in one transaction. A few must not be: an index is brought up to date
in batches, each of which gives others their turn, and a search that finds it up to date should
not have to wait for the writer at all. Such a method is a generator: it yields steps, gets their
results, and returns what the method returns. Who drives it, synchronously or not, is not its
business; inside a transaction all steps join that one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from agentstore.engines.base.protocol import Mode
from agentstore.errors import DatabaseFull
from agentstore.execution.unit import Unit, rest
from agentstore.repositories.base.operations import Repository, declare_result

R = TypeVar("R", bound=Repository)
P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Step:
    """A unit of work: what it needs of its transaction, and its body, which may be repeated.

    Attributes:
        repeatable: Whether also if it is not known whether it was committed.
    """

    mode: Mode
    work: Callable[[Unit], Any]
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds in which nothing is to be done, and others have their turn."""

    seconds: float


Steps = Generator[Step | Pause, Any, T]
"""What a body in steps gives: steps, perhaps pauses between them, and in the end its result."""


def in_steps(
    body: Callable[Concatenate[R, P], Steps[T]],
) -> Callable[Concatenate[R, P], T]:
    """Make a method of a body that yields steps. The body itself has no unit."""

    @wraps(body)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def run(wanted: Step | Pause) -> Any:
            if isinstance(wanted, Pause):
                return rest(wanted.seconds)
            if self._runner is None:
                return wanted.work(self.unit)
            return self._runner.run(wanted.mode, wanted.work, repeatable=wanted.repeatable)

        return drive(body(self, *args, **kwargs), run)

    call.steps = body  # type: ignore[attr-defined]
    declare_result(call, body)
    return call


def drive(steps: Generator[W, Any, T], run: Callable[[W], Any]) -> T:
    """Drive a body in steps."""
    go_on = partial(steps.send, None)
    while True:
        try:
            wanted = go_on()
        except StopIteration as ended:
            found: T = ended.value
            return found
        try:
            go_on = partial(steps.send, run(wanted))
        except DatabaseFull as error:
            go_on = partial(steps.throw, error)  # it may know what to do without a write


async def driven(steps: Generator[W, Any, T], run: Callable[[W], Awaitable[Any]]) -> T:
    """Drive a body in steps from a coroutine."""
    go_on = partial(steps.send, None)
    while True:
        try:
            wanted = go_on()
        except StopIteration as ended:
            found: T = ended.value
            return found
        try:
            go_on = partial(steps.send, await run(wanted))
        except DatabaseFull as error:
            go_on = partial(steps.throw, error)
