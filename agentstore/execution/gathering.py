"""Writes that arrive together and are written together.

The body of such a method comes in two halves, around a ``yield``: the first checks the arguments
and yields what is to be written, the second makes the result of what was. So the same body serves
one call alone, and many calls whose writes go to the database as one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Protocol, Self, TypeVar

from agentstore.execution.unit import Unit

T = TypeVar("T")

MOST_TOGETHER = 100
"""Calls that go together: a commit's cost is well shared by then, and others wait for its end."""


class Alone:
    """The outcome of a call that has to be run by itself; nothing of it was written."""

    def __repr__(self) -> str:
        """Show up well in errors."""
        return "ALONE"


ALONE: Final = Alone()


class Write(Protocol):
    """Something to be written."""

    def alone(self, unit: Unit) -> Any:
        """Write it, and give what the second half of the body needs."""

    @classmethod
    def together(cls, unit: Unit, writes: Sequence[Self]) -> list[Any]:
        """Write several as one: in one statement, where the unit is in autocommit.

        Returns:
            For each in the same order what ``alone`` would give, or ALONE where it was not
            written: because it would fail, or needs more than goes together. If this raises,
            nothing was written.
        """


Body = Generator[Write, Any, T]
"""What such a method is written as: it yields once, and returns what the method returns."""


class Call:
    """A method and its arguments, on their way to a unit. May be run more than once.

    Attributes:
        kind: Which writes it may go together with.
    """

    __slots__ = ("_args", "_body", "_kwargs", "_repository", "kind")

    def __init__(
        self,
        kind: type[Write],
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

    def start(self, unit: Unit) -> tuple[Body[Any], Write]:
        """Run the first half; give the rest, and what it wants to be written."""
        body = self._body(self._repository(unit), *self._args, **self._kwargs)
        return body, next(body)

    def __call__(self, unit: Unit) -> Any:
        """Run it by itself."""
        body, write = self.start(unit)
        return ended(body, write.alone(unit))


def run_alone(body: Body[T], unit: Unit) -> T:
    """Run a body that has not begun."""
    return ended(body, next(body).alone(unit))


def ended(body: Body[T], written: Any) -> T:
    """Run the second half of a body."""
    try:
        body.send(written)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a body yields once")


def run_together(
    unit: Unit,
    kind: type[Write],
    starts: Sequence[Callable[[Unit], tuple[Body[Any], Write]]],
) -> list[Any]:
    """Run several calls of one kind.

    Args:
        unit: Where.
        kind: Theirs.
        starts: What starts each.

    Returns:
        For each in the same order its result, or ALONE. If this raises, nothing was written.
    """
    outcomes: list[Any] = [ALONE] * len(starts)
    started: list[tuple[int, Body[Any], Write]] = []
    for position, start in enumerate(starts):
        try:
            body, write = start(unit)
        except Exception:  # noqa: BLE001, S112 - alone it raises the same, for its own caller
            continue
        started.append((position, body, write))
    written = kind.together(unit, [write for _, _, write in started])
    for (position, body, _), result in zip(started, written, strict=True):
        if result is not ALONE:
            outcomes[position] = ended(body, result)
    return outcomes
