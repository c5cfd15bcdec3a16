"""A part of a list that is too long to hold: what was loaded around a place, and no more.

A list is read by parts. Each says where the one before it and the one behind it are, so one can go
both ways; parts at the other end are let go when there are more than ``MOST`` items. However far
somebody scrolls, memory stays the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from agentstore.records import Page

T = TypeVar("T")

MOST = 300
"""Items that are held, and one part more while it is added."""


@dataclass(frozen=True, slots=True)
class ListPart(Generic[T]):
    """A few items in their order.

    Attributes:
        earlier: Where the part before this one is; None at the beginning.
        later: Where the next one is; None at the end.
    """

    items: tuple[T, ...]
    earlier: Any
    later: Any


class PartSource(Protocol[T]):
    """Reads a part of a list; None means where reading begins."""

    async def __call__(self, place: Any, /) -> ListPart[T]:
        """Read the part that is at a place."""
        ...


async def nothing(_: Any) -> ListPart[Any]:
    """Read an empty list."""
    return ListPart((), None, None)


class ByCursor(Generic[T]):
    """Reads a list that is paged by cursors, forwards and, by remembering these, backwards."""

    def __init__(self, read: Callable[[str | None], Awaitable[Page[T]]]) -> None:
        """Say how to read the page at a cursor."""
        self._read = read
        self._cursors: list[str | None] = [None]

    async def __call__(self, place: int | None) -> ListPart[T]:
        """Read the page with this number."""
        number = place or 0
        page = await self._read(self._cursors[number])
        more = page.next_cursor is not None
        if more:
            self._cursors[number + 1 :] = [page.next_cursor]
        return ListPart(page.items, number - 1 if number else None, number + 1 if more else None)


class Stretch(Generic[T]):
    """What is held of a list."""

    def __init__(self, source: PartSource[T]) -> None:
        """Hold nothing yet."""
        self._source = source
        self._parts: list[ListPart[T]] = []

    @property
    def items(self) -> list[T]:
        """All that is held, in order."""
        return [item for part in self._parts for item in part.items]

    @property
    def has_earlier(self) -> bool:
        """Whether there is more before what is held."""
        return bool(self._parts) and self._parts[0].earlier is not None

    @property
    def has_later(self) -> bool:
        """Whether there is more behind what is held."""
        return bool(self._parts) and self._parts[-1].later is not None

    async def open(self, place: Any = None) -> None:
        """Start over at a place."""
        self._parts = [await self._source(place)]

    async def load_earlier(self) -> None:
        """Read the part before what is held."""
        part = await self._source(self._parts[0].earlier)
        self._parts.insert(0, part)
        while self._held() - len(self._parts[-1].items) >= MOST:
            self._parts.pop()

    async def load_later(self) -> None:
        """Read the part behind what is held."""
        self._parts.append(await self._source(self._parts[-1].later))
        while self._held() - len(self._parts[0].items) >= MOST:
            self._parts.pop(0)

    def put(self, items: Sequence[T], earlier: Any, later: Any = None) -> None:
        """Hold these instead; see ``ListPart``."""
        self._parts = [ListPart(tuple(items), earlier, later)]

    def _held(self) -> int:
        return sum(len(part.items) for part in self._parts)
