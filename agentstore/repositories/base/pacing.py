"""How much one of many transactions does, so that other writers never wait long.

Rows differ: a tool log of a hundred bytes is deleted in microseconds, one of a megabyte takes
as long as thousands of them. So the time that one transaction took decides how many rows the next
one may delete. What it writes has to get to the disk too, after the body; that takes about as long
again.

SQLite cannot say whether somebody waits for its lock, only whether somebody has written. If nobody
has written during a pause, the next pause is short: long enough for each waiting writer of this
library to try once. Each eighth pause is long, since other programs may try only every 100 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from agentstore.engines.base.dialect import Mode
from agentstore.execution.unit import Unit, rest
from agentstore.repositories.base.units import Units

P = ParamSpec("P")
T = TypeVar("T")

LONG = 0.03
"""Seconds. A body that took longer makes the next one smaller."""

FIRST = 96
"""Rows, to begin with."""

LEAST = 96
"""Rows, however long they take: the statements alone take some time, which fewer rows would not
save."""

SHORTEST_PAUSE = 0.007
"""Seconds: longer than SQLite's writers sleep between two tries to get the lock."""

_LONG_AFTER = 8
"""So many short pauses are followed by a long one."""

_LONGEST_PAUSE = 0.1
"""Seconds, the longest that SQLite itself sleeps between two tries to get the lock."""


class Pace:
    """Runs transactions that delete rows, and pauses between them.

    Attributes:
        rows: How many rows the next transaction may delete.
    """

    __slots__ = ("_began", "_most", "_pauses", "_quiet", "_seen", "_took", "_units", "rows")

    def __init__(self, units: Units, most: int) -> None:
        """Begin small: how large the rows are is not known yet.

        Args:
            units: Runs the transactions.
            most: Rows in one transaction at most.
        """
        self._units = units
        self._most = most
        self._pauses = False
        self._began = self._took = 0.0
        self._seen: int | None = None
        self._quiet = 0
        self.rows = min(most, FIRST)

    def write(
        self, body: Callable[Concatenate[Unit, Pace, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a body that deletes up to ``rows`` rows, and adapt ``rows`` to the time it takes."""

        def timed(unit: Unit) -> T:
            # Where writers wait for the same lock, unless all is one transaction anyway.
            self._pauses = unit.dialect.single_writer and not unit.joined
            if self._pauses:
                seen = unit.dialect.writes_of_others(unit.connection)
                self._quiet = self._quiet + 1 if seen == self._seen else 0
                self._seen = seen
            self._began = time.monotonic()
            result = body(unit, self, *args, **kwargs)
            self._took = time.monotonic() - self._began
            if self._took > LONG:
                self.rows = max(min(LEAST, self._most), int(self.rows * LONG / self._took / 1.5))
            elif self._took < LONG / 2:
                self.rows = min(self._most, 2 * self.rows)
            return result

        return self._units.run(Mode.WRITE, timed)

    @property
    def is_spent(self) -> bool:
        """Whether the body that runs has taken long enough."""
        return time.monotonic() - self._began > LONG

    def pause(self) -> None:
        """Let others write: if they do, for as long as the last transaction kept them waiting."""
        if self._pauses:
            alone = self._quiet % _LONG_AFTER
            rest(min(max(SHORTEST_PAUSE, 0 if alone else 2 * self._took), _LONGEST_PAUSE))
