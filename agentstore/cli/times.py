"""Times and ages on the command line: each option that takes one of the two takes the other too.

A time is in ISO 8601, such as 2026-03-01 or 2026-03-01T12:30+01:00; without a zone it is in UTC.
An age is made of whole numbers of w, d, h, m or s, such as 30d or 1d12h.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from agentstore.errors import InvalidInput
from agentstore.retention import duration


def since_option() -> Any:
    """Make the option that begins a stretch of time."""
    words = "Not before this time, such as 2026-03-01 (UTC), or 7d ago."
    return typer.Option("--since", parser=instant, metavar="TIME", help=words)


def until_option() -> Any:
    """Make the option that ends a stretch of time."""
    return typer.Option("--until", parser=instant, metavar="TIME", help="Only before this time.")


def instant(text: str) -> datetime:
    """Read a time; an age means so long ago.

    Raises:
        InvalidInput: It is neither.
    """
    found = _read(text)
    return datetime.now(UTC) - found if isinstance(found, timedelta) else found


def age(text: str) -> timedelta:
    """Read an age; a time means from then until now.

    Raises:
        InvalidInput: It is neither, or a time that is to come.
    """
    found = _read(text)
    if isinstance(found, timedelta):
        return found
    if (passed := datetime.now(UTC) - found) < timedelta(0):
        raise InvalidInput("This time must be in the past.")
    return passed


def seconds(text: str | float) -> float:
    """Read how long to wait: a number of seconds, or as an age is written.

    Raises:
        InvalidInput: It is neither.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return duration(str(text)).total_seconds()
    except InvalidInput:
        raise InvalidInput("This must be a number of seconds, or such as 30s or 5m.") from None


def _read(text: str) -> datetime | timedelta:
    try:
        return duration(text)
    except InvalidInput:
        pass
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            "A time must be like 2026-03-01 or 2026-03-01T12:30+01:00 (without a zone it is UTC), "
            "an age like 30d or 1d12h."
        ) from None
