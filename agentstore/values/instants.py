"""Instants: aware datetimes in UTC, to the microsecond, and how they are written down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from agentstore.errors import InvalidInput, NaiveDatetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MICROSECOND = timedelta(microseconds=1)


def require_utc(name: str, value: datetime) -> datetime:
    """Give the same instant in UTC.

    Raises:
        NaiveDatetime: The datetime has no time zone.
        InvalidInput: It is not a datetime at all.
    """
    if type(value) is datetime and value.tzinfo is UTC:
        return value
    if not isinstance(value, datetime):
        raise InvalidInput(f"{name} must be an aware datetime, not {type(value).__name__}.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise NaiveDatetime(name)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{name} must be in the years 1 to 9999 in UTC.") from None


def shifted(instant: datetime, by: timedelta) -> datetime:
    """Give an instant so much later, or earlier; but none beyond the calendar's ends."""
    try:
        return instant + by
    except OverflowError:
        return _LAST if by > timedelta() else _FIRST


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def to_micros(instant: datetime) -> int:
    """Count the microseconds since 1970, exactly; before that they are negative."""
    return (instant - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """Undo ``to_micros``; raises OverflowError outside of the years 1 to 9999."""
    return EPOCH + micros * MICROSECOND


def iso(instant: datetime) -> str:
    """Write an instant in UTC as text of one width, so that texts sort as instants do."""
    return instant.isoformat(sep="T", timespec="microseconds")
