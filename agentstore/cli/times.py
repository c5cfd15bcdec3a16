"""Times on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

from agentstore.errors import InvalidInput


def instant(text: str) -> datetime:
    """Read a day or an instant in ISO 8601; what has no time zone is in UTC.

    Raises:
        InvalidInput: It is none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            "A time must be like 2026-03-01 or 2026-03-01T12:30+01:00; without a zone it is UTC."
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
