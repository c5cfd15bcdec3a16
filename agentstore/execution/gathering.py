"""Writes that arrive together and are written together.

The body of such a method has two halves, around a ``yield``: the first checks the arguments and
yields a ``Write``, the second makes the result of what was written. So one body serves every call,
and ``Write.write`` is the one way into the database, for one write or for many.

Neither half uses the database. The caller runs them, the first before the call waits for its turn
and the second once it has heard that it was written: in between the others wait, so nothing is
done there that can be done elsewhere.

The words: a *group* is the calls whose writes go together; a lone call is a group of one. A call
that its group leaves out gets the outcome LEFT_OUT, and is run again *by itself*: as the only one
of its unit, where it may look things up first, wait for a lock, and raise its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Protocol, Self, TypeGuard, TypeVar

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


class SeveralStatements(Exception):
    """A write by itself turned out to need a transaction; nothing of it was written."""


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
        kind: The kind of its write; a group is of one kind. None if it goes with no others.
    """

    __slots__ = ("_args", "_body", "_kwargs", "_prepared", "_repository", "_rest", "kind")

    _rest: Body[Any]

    def __init__(
        self,
        kind: type[Write] | None,
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
        self._prepared: Write | None = None

    def prepare(self, unit: Unit) -> None:
        """Run the first half, unless what it gave has not been written yet.

        Args:
            unit: Any; it needs no connection.
        """
        if self._prepared is None:
            self._rest = self._body(self._repository(unit), *self._args, **self._kwargs)
            self._prepared = next(self._rest)

    def take(self, unit: Unit) -> Write:
        """Give what is to be written. It is given once; to write again, make it again."""
        self.prepare(unit)
        write, self._prepared = self._prepared, None
        assert write is not None, "it was prepared"
        return write

    def finish(self, written: Any) -> Any:
        """Run the second half; give the result."""
        try:
            self._rest.send(written)
        except StopIteration as end:
            return end.value
        raise AssertionError("a body yields once")

    def __call__(self, unit: Unit) -> Any:
        """Run it by itself, both halves included."""
        write = self.take(unit)
        (written,) = write.write(unit, [write], by_itself=True)
        return self.finish(written)


def goes_with_others(work: Callable[[Unit], Any]) -> TypeGuard[GatheredCall]:
    """Say whether a body's write can go together with others."""
    return isinstance(work, GatheredCall) and work.kind is not None


def write_group(unit: Unit, calls: Sequence[GatheredCall]) -> list[Any]:
    """Write what calls of one kind have prepared.

    Returns:
        For each in the same order what its second half needs, or LEFT_OUT. If this raises, nothing
        was written.
    """
    kind = calls[0].kind
    assert kind is not None, "only such calls go together"
    return kind.write(unit, [call.take(unit) for call in calls], by_itself=False)
