"""Writes that arrive together and are written together.

The body of such a method has two halves, around a ``yield``: the first checks the arguments and
yields a ``Write``, the second makes the result of what was written. So one body serves every call,
and ``Write.write`` is the one way into the database, for one write or for many.

The words: a *group* is the calls whose writes go together; a lone call is a group of one. A call
that its group leaves out gets the outcome LEFT_OUT, and is run again *by itself*: as the only one
of its unit, where it may look things up first, wait for a lock, and raise its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Protocol, Self, TypeVar

from agentstore.execution.unit import Unit

T = TypeVar("T")

MOST_TOGETHER = 100
"""Calls in a group at most: a commit's cost is well shared by then, and others wait for its end."""


class LeftOut:
    """The outcome of a call that its group left out; nothing of it was written."""

    def __repr__(self) -> str:
        """Show up well in errors."""
        return "LEFT_OUT"


LEFT_OUT: Final = LeftOut()


class Write(Protocol):
    """Something to be written."""

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, by_itself: bool) -> list[Any]:
        """Write a group, or one write by itself.

        Args:
            unit: Where. A group is one statement where the unit is in autocommit.
            writes: What to write; exactly one if by itself.
            by_itself: Whether to wait for locks, to look up first what has to be looked up, and to
                raise why nothing was written.

        Returns:
            For each in the same order what the second half of its body needs; LEFT_OUT, never by
            itself, where it was not written: because it would fail or wait, or needs more than a
            group does. If this raises, nothing was written.
        """


Body = Generator[Write, Any, T]
"""What such a method is written as: it yields once, and returns what the method returns."""


class GatheredCall:
    """A method and its arguments, on their way to a unit. May be run more than once.

    Attributes:
        kind: The kind of its write; a group is of one kind.
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
        return run_by_itself(self._body(self._repository(unit), *self._args, **self._kwargs), unit)


def run_by_itself(body: Body[T], unit: Unit) -> T:
    """Run a body that has not begun, by itself."""
    write = next(body)
    (written,) = write.write(unit, [write], by_itself=True)
    return _ended(body, written)


def _ended(body: Body[T], written: Any) -> T:
    """Run the second half of a body."""
    try:
        body.send(written)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a body yields once")


def run_group(
    unit: Unit,
    kind: type[Write],
    starts: Sequence[Callable[[Unit], tuple[Body[Any], Write]]],
) -> list[Any]:
    """Run the calls of a group.

    Args:
        unit: Where.
        kind: The kind of their writes.
        starts: What starts each.

    Returns:
        For each in the same order its result, or LEFT_OUT. If this raises, nothing was written.
    """
    outcomes: list[Any] = [LEFT_OUT] * len(starts)
    started: list[tuple[int, Body[Any], Write]] = []
    for position, start in enumerate(starts):
        try:
            body, write = start(unit)
        except Exception:  # noqa: BLE001, S112 - by itself it raises the same, for its caller
            continue
        started.append((position, body, write))
    written = kind.write(unit, [write for _, _, write in started], by_itself=False)
    for (position, body, _), result in zip(started, written, strict=True):
        if result is not LEFT_OUT:
            outcomes[position] = _ended(body, result)
    return outcomes
