"""Which line of a file had which id, in little memory for many lines.

24 bytes a slot, a third of them free or more: a million lines take 36 to 72 MB, a third of what a
dict of theirs takes.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class Before:
    """An earlier line with the same id.

    Attributes:
        same: Whether it is the same line.
    """

    number: int
    same: bool


class LinesSeen:
    """A hash table of lines by the ids of their conversations.

    It knows both by digests of 64 bits, under a key of its own, so that nobody can write ids that
    it would take for one another.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._key = os.urandom(16)
        self._used = 0
        self._ids, self._lines, self._numbers = _slots(1024)

    def note(self, id: str, line: bytes, number: int) -> Before | None:
        """Note a line under an id, unless there is one; give that."""
        mark = self._digest(id.encode("utf-8", "surrogatepass")) or 1
        content = self._digest(line)
        place = self._place(mark)
        if self._ids[place]:
            return Before(self._numbers[place], self._lines[place] == content)
        self._set(place, mark, content, number)
        self._used += 1
        if 3 * self._used > 2 * len(self._ids):
            self._grow()
        return None

    def _digest(self, data: bytes) -> int:
        return int.from_bytes(blake2b(data, digest_size=8, key=self._key).digest())

    def _place(self, mark: int) -> int:
        """Find the slot of an id, or the free one that it would have."""
        place = mark % len(self._ids)
        while self._ids[place] not in (0, mark):
            place = (place + 1) % len(self._ids)
        return place

    def _set(self, place: int, mark: int, content: int, number: int) -> None:
        self._ids[place], self._lines[place], self._numbers[place] = mark, content, number

    def _grow(self) -> None:
        before = zip(self._ids, self._lines, self._numbers, strict=True)
        self._ids, self._lines, self._numbers = _slots(2 * len(self._ids))
        for mark, content, number in before:
            if mark:
                self._set(self._place(mark), mark, content, number)


def _slots(count: int) -> tuple[array[int], array[int], array[int]]:
    """Give free slots for ids, lines and their numbers."""
    empty = bytes(8 * count)
    return array("Q", empty), array("Q", empty), array("Q", empty)
