"""A clock for tests."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        """Begin at noon."""
        self.now = NOON

    def __call__(self) -> datetime:
        """Say what it shows."""
        return self.now
