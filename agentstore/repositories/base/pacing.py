"""How much one of many transactions does, so that other writers never wait long.

Rows differ: a tool log of a hundred bytes is deleted in microseconds, one of a megabyte takes
as long as thousands of them. So what a transaction took says how many rows the next one may have.
What it writes has to get to the disk too, after the body; that takes about as long again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from agentstore.engines.base.protocol import Mode
from agentstore.execution.unit import Unit
from agentstore.repositories.base.steps import Pause, Step

T = TypeVar("T")

LONG = 0.03
"""Seconds. A body that took longer makes the next one smaller."""

FIRST = 64
"""Rows, to begin with."""

LEAST = 32
"""Rows, however long they take: the statements alone take some time, which fewer rows would not
save."""

SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1
"""Seconds, the longest that SQLite itself sleeps between two tries to get the lock."""


class Pace:
    """How many rows the next transaction may delete, and how long others have their turn."""

    __slots__ = ("_began", "_most", "_pauses", "_took", "rows")

    def __init__(self, most: int, *, pauses: bool = False) -> None:
        """Begin small, for nobody knows yet how large the rows are.

        Args:
            most: Rows in one transaction at most.
            pauses: Whether writers wait for each other, and are owed pauses.
        """
        self._most = most
        self._pauses = pauses
        self._began = self._took = 0.0
        self.rows = min(most, FIRST)

    def write(
        self, body: Callable[..., T], *args: Any, repeatable: bool = True, **kwargs: Any
    ) -> Step:
        """Make a step of a body that writes."""
        timed = partial(self._timed, lambda unit: body(unit, *args, **kwargs))
        return Step(Mode.WRITE, timed, repeatable)

    @property
    def is_spent(self) -> bool:
        """Whether the body that runs has taken long enough."""
        return time.monotonic() - self._began > LONG

    def pause(self) -> Iterator[Pause]:
        """Give a pause about as long as the last transaction kept others waiting."""
        if self._pauses:
            yield Pause(min(max(SHORTEST_PAUSE, 2 * self._took), _LONGEST_PAUSE))

    def _timed(self, body: Callable[[Unit], T], unit: Unit) -> T:
        self._began = time.monotonic()
        result = body(unit)
        self._took = time.monotonic() - self._began
        if self._took > LONG:
            self.rows = max(min(LEAST, self._most), int(self.rows * LONG / self._took / 1.5))
        elif self._took < LONG / 2:
            self.rows = min(self._most, 2 * self.rows)
        return result
