"""What people read in a terminal: text that it cannot obey, and figures at a glance."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from decimal import Decimal

_JOINERS = "\u200c\u200d"
"""They tie letters and emoji together; alone of what formats they are passed on."""

STATUS_STYLES = {
    "active": "green",
    "paused": "yellow",
    "waiting_user": "bold magenta",
    "completed": "blue",
    "cancelled": "dim",
    "failed": "bold red",
}
"""How the states of sessions are drawn, wherever there are colours."""


def printable(text: str, *, kept: str = "\n\t") -> str:
    """Show control characters, but those that are kept, instead of sending them to the terminal."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in kept or character.isprintable() or _is_harmless(character)
        else character.encode("unicode_escape").decode("ascii")
        for character in text.replace("\r\n", "\n")
    )


def _is_harmless(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character) == "Zs"


def on_one_line(text: str) -> str:
    """Give a text without its line breaks, for a cell of a table."""
    return printable(" ".join(text.split()))


def brief(number: int) -> str:
    """Write a number in up to five characters, such as 999, 1.2k or 34M."""
    if number < 1_000:
        return str(number)
    value = float(number)
    for unit in "kMGTP":
        value /= 1_000
        if value < 999.5:
            return f"{value:.1f}{unit}" if value < 9.95 else f"{value:.0f}{unit}"
    return f"{value:.0f}P"


def age(instant: datetime) -> str:
    """Say how long ago something was, such as 3 min; what is to come, or just was, is now."""
    seconds = (datetime.now(UTC) - instant).total_seconds()
    if seconds < 1:
        return "now"
    for limit, size, unit in (
        (60, 1, "s"),
        (3_600, 60, "min"),
        (86_400, 3_600, "h"),
        (60 * 86_400, 86_400, "d"),
        (730 * 86_400, 30 * 86_400, "mo"),
    ):
        if seconds < limit:
            return f"{int(seconds / size)} {unit}"
    return f"{int(seconds / (365 * 86_400))} y"


def money(amount: Decimal) -> str:
    """Write what something cost: two digits behind the point, or as many as a glance takes in.

    Those are six below 1, four below 1,000, and two from there on.
    """
    places = 6 if abs(amount) < 1 else 4 if abs(amount) < 1_000 else 2
    digits = f"{amount:.{places}f}".rstrip("0")
    whole, _, rest = digits.partition(".")
    return f"{int(whole):,}.{rest:0<2}"


def attached(name: str | None, media_type: str, size: int) -> str:
    """Write on one line what is attached to a message."""
    return f"{on_one_line(name or 'attachment')}  {on_one_line(media_type)}, {size:,} bytes"
