"""How long to wait before a failed task is tried again.

The pause after failure ``n`` (from 1) is ``first * factor ** (n - 1)``, at most ``longest``;
then a random part of it, up to the share ``jitter``, is taken away, so that tasks that failed
together do not come back together.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import timedelta

from agentstore.errors import InvalidInput

_YEAR = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between the attempts of a task.

    Attributes:
        first: Seconds after the first failure.
        factor: How much longer each pause is than the one before.
        longest: Seconds that no pause exceeds.
        jitter: The share of a pause, from 0 to 1, that chance may take away.
    """

    first: float = 1.0
    factor: float = 2.0
    longest: float = 3600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what gives no pauses."""
        for name in ("first", "factor", "longest", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidInput(f"{name} must be a number, not {type(value).__name__}.")
        if not 0 <= self.first <= self.longest <= _YEAR:
            raise InvalidInput(
                "first must be from 0 to longest, and longest at most a year, in seconds."
            )
        if not 1 <= self.factor < math.inf or not 0 <= self.jitter <= 1:
            raise InvalidInput("factor must be 1 or more, and jitter from 0 to 1.")

    def pause(self, failures: int) -> timedelta:
        """Give the pause after so many failures."""
        try:
            seconds = min(self.longest, self.first * self.factor ** (failures - 1))
        except OverflowError:
            seconds = self.longest
        kept = 1 - self.jitter * random.random()  # noqa: S311 - jitter, not a secret
        return timedelta(seconds=seconds * kept)


DEFAULT_BACKOFF = Backoff()
"""Half a second to one second at first, then twice as long each time, up to an hour."""


def require_backoff(value: object) -> Backoff:
    """Require a ``Backoff``.

    Raises:
        InvalidInput: It is something else.
    """
    if not isinstance(value, Backoff):
        raise InvalidInput(f"backoff must be a Backoff, not {type(value).__name__}.")
    return value
