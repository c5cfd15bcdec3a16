"""What SQLite stores in another form than it travels in, as SQL: ids, and instants.

Ids that agentstore made are 16 bytes, instants are microseconds since 1970. Both travel as text;
see ``agentstore.engines.base.moving``. Back to bytes leads only a function of Python's, which
``know_ids`` gives to a connection.
"""

from __future__ import annotations

from typing import Any

from agentstore.engines.base.moving import Kind

MICROS = 10**6
YEAR_1 = 62_135_596_800 * MICROS
"""Microseconds from the year 1 to 1970. With these added no instant is negative, so SQLite's
division, which cuts off towards zero, cuts off towards the past."""

YEAR_10000 = 253_402_300_800 * MICROS

_HEX = "hex({0})"
_TRAVELS = {
    Kind.ID: (
        "CASE WHEN {0} IS NOT NULL THEN lower("
        f"substr({_HEX}, 1, 8) || '-' || substr({_HEX}, 9, 4) || '-' || substr({_HEX}, 13, 4)"
        f" || '-' || substr({_HEX}, 17, 4) || '-' || substr({_HEX}, 21)) END"
    ),
    Kind.INSTANT: (
        f"strftime('%Y-%m-%dT%H:%M:%S', ({{0}} + {YEAR_1}) / {MICROS} - {YEAR_1 // MICROS},"
        f" 'unixepoch') || printf('.%06d+00:00', ({{0}} + {YEAR_1}) % {MICROS})"
    ),
}
_STORED = {
    Kind.ID: "agentstore_id({0})",
    Kind.INSTANT: (
        f"CAST(strftime('%s', substr({{0}}, 1, 19)) AS INTEGER) * {MICROS}"
        " + CAST(substr({0}, 21, 6) AS INTEGER)"
    ),
}


def travels(kind: Kind, column: str) -> str:
    """Write a stored column, as SQL names it, in the form in which it travels."""
    return _TRAVELS.get(kind, "{0}").format(column)


def as_stored(kind: Kind, value: str) -> str:
    """Write a value that travels, as SQL names it, as it is stored."""
    return _STORED.get(kind, "{0}").format(value)


def know_ids(driver: Any) -> None:
    """Give a new connection the function that makes bytes of an id, and so of one that is damaged.

    Once: SQLite refuses to make a function again while a statement runs that may call it.
    """
    driver.create_function("agentstore_id", 1, _bytes, deterministic=True)


def _bytes(text: Any) -> bytes | None:
    return None if text is None else bytes.fromhex(text.replace("-", ""))
