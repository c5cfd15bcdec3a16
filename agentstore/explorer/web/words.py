"""Numbers and times in few characters, for tables and axes."""

from __future__ import annotations

from datetime import UTC, datetime


def brief(number: float) -> str:
    """Write a number in few characters, such as 0.05, 250, 1.2k or 34M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def last_line(text: str) -> str:
    """Give the last line of a text that is not empty: of a traceback, the error."""
    return text.rstrip().rpartition("\n")[2].strip()


def ahead(instant: datetime) -> str:
    """Write how far ahead a time is, such as in 4 min; of one that has passed, that it is over."""
    seconds = (instant - datetime.now(UTC)).total_seconds()
    if seconds <= 0:
        return "over"
    for limit, size, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"in {seconds / size:.0f} {unit}"
    return f"in {seconds / 86_400:,.0f} d"


def weight(count: int) -> str:
    """Write how many bytes there are, such as 512 bytes, 3.4 kB or 12 MB."""
    return f"{count} bytes" if count < 1_000 else f"{brief(count)[:-1]} {brief(count)[-1]}B"
