"""Timing things in turn, so that what disturbs one disturbs the other.

A round is many operations of each side, each operation timed, in turns of a few: on a machine
that others use as well, turns of a second would meet different weather. What is compared are the
means in a round, because a stall now and then is part of a side's cost; and of the rounds' ratios
the median counts, because a round that something else disturbed is not.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Turn = Callable[[range], list[int]]
"""Runs the operations of these numbers and gives the nanoseconds of each."""


@dataclass(frozen=True, slots=True)
class Timings:
    """What one side took: the nanoseconds of each operation, for each round."""

    rounds: list[list[int]] = field(default_factory=list)

    @property
    def means(self) -> list[float]:
        """Nanoseconds per operation, for each round."""
        return [statistics.fmean(taken) for taken in self.rounds]

    @property
    def median(self) -> float:
        """Nanoseconds per operation."""
        return statistics.median(self.means)

    @property
    def per_second(self) -> float:
        """Operations per second."""
        return 1e9 / self.median

    @property
    def typical(self) -> float:
        """Nanoseconds that half of the operations did not exceed."""
        return statistics.median(nanos for turn in self.rounds for nanos in turn)

    @property
    def p99(self) -> float:
        """Nanoseconds that 99 % of the operations did not exceed, by the nearest rank."""
        taken = sorted(nanos for turn in self.rounds for nanos in turn)
        return taken[-(len(taken) // 100) - 1]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The time of one side over the time of another.

    Attributes:
        ratio: The median of the rounds' own ratios.
        lowest: The lowest of the rounds' own ratios.
        highest: The highest of them. Far from the lowest, the machine was busy elsewhere.
    """

    ratio: float
    lowest: float
    highest: float

    def inverted(self) -> Comparison:
        """Give the same as rates."""
        return Comparison(1 / self.ratio, 1 / self.highest, 1 / self.lowest)


def compare(one: Timings, other: Timings) -> Comparison:
    """Compare what was measured in turn."""
    ratios = [a / b for a, b in zip(one.means, other.means, strict=True)]
    return Comparison(statistics.median(ratios), min(ratios), max(ratios))


def in_turn(sides: Sequence[Turn], *, rounds: int, per_round: int, per_turn: int) -> list[Timings]:
    """Measure sides in turn, after each has warmed up with a round that is not counted."""
    timings = [Timings() for _ in sides]
    for side in sides:
        side(range(per_round))
    gc.collect()
    gc.freeze()  # what loading and warming up left is not to be walked through while we measure
    for number in range(1, rounds + 1):
        gc.collect()
        for timing in timings:
            timing.rounds.append([])
        end = (number + 1) * per_round
        for turn, start in enumerate(range(number * per_round, end, per_turn)):
            for n in range(len(sides)):
                position = (turn + n) % len(sides)  # nobody always comes after the same one
                numbers = range(start, min(start + per_turn, end))
                timings[position].rounds[-1] += sides[position](numbers)
    gc.unfreeze()
    return timings
