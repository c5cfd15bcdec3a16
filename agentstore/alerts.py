"""Alerts about sizes: how much a database may hold before somebody should know.

The limits come from options, or from the ``[alerts]`` table of ``agentstore.toml``::

    [alerts]
    warn_bytes = "5GB"
    fail_bytes = "20GB"
    warn_rows = 10_000_000
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentstore.errors import InvalidInput, shown
from agentstore.records.upkeep import Finding, Severity, Statistics
from agentstore.retention import read_table

SIZES = "sizes"
"""The name of this check."""

_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([KMGT]?i?B?)", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MOST = 2**63 - 1
"""More than any database can hold."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The sizes from which a database warns or fails. None sets no limit.

    Attributes:
        warn_bytes: The database's bytes, those of a log beside it included.
        fail_bytes: The same.
        warn_rows: The rows of its largest table.
        fail_rows: The same.
    """

    warn_bytes: int | None = None
    fail_bytes: int | None = None
    warn_rows: int | None = None
    fail_rows: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no limit, and limits the wrong way round."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (type(value) is not int or not 0 <= value <= _MOST):
                raise InvalidInput(
                    f"{field.name} must be a whole number from 0 to {_MOST}, or None, not "
                    f"{shown(value)}."
                )
        for what in ("bytes", "rows"):
            warn, fail = getattr(self, f"warn_{what}"), getattr(self, f"fail_{what}")
            if warn is not None and fail is not None and warn > fail:
                raise InvalidInput(
                    f"warn_{what} must be at most fail_{what}, which is {fail}, not {warn}."
                )


def check_sizes(statistics: Statistics, thresholds: Thresholds) -> list[Finding]:
    """Compare a database with limits; a limit that is reached gives one finding, the worse one."""
    size = statistics.bytes + (statistics.wal_bytes or 0)
    largest = max(statistics.tables, key=lambda table: table.rows or 0)
    rows = largest.rows or 0
    about = "" if largest.rows_exact else "about "
    found = [
        _reached(size, thresholds.warn_bytes, thresholds.fail_bytes),
        _reached(rows, thresholds.warn_rows, thresholds.fail_rows),
    ]
    said = [
        (f"The database takes {size:,} bytes", "database"),
        (f"The largest table has {about}{rows:,} rows", largest.name),
    ]
    fix = "agentstore prune, or delete_expired; or raise the limit in [alerts]"
    return [
        Finding(reached[0], SIZES, f"{what}; the limit is {reached[1]:,}.", where, fix)
        for reached, (what, where) in zip(found, said, strict=True)
        if reached is not None
    ]


def _reached(value: int, warn: int | None, fail: int | None) -> tuple[Severity, int] | None:
    if fail is not None and value >= fail:
        return Severity.ERROR, fail
    if warn is not None and value >= warn:
        return Severity.WARNING, warn
    return None


def parse_bytes(size: str | int) -> int:
    """Read a size: a number of bytes, or one with KB, MB, GB, TB or KiB, MiB, GiB, TiB.

    Raises:
        InvalidInput: It is not a size, or more than 2**63 - 1 bytes.
    """
    if type(size) is int and 0 <= size <= _MOST:
        return size
    found = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    unit = "i" if found is None else found[2].lower().removesuffix("b")
    power = _POWERS.get(unit.removesuffix("i"))
    if found is None or power is None or unit == "i":
        raise InvalidInput(
            f"A size must be a number of bytes, or text such as 5GB or 500MiB, not {shown(size)}."
        )
    base = 1024 if unit.endswith("i") else 1000
    number = Decimal(found[1]) * base**power
    if number > _MOST:
        raise InvalidInput(f"A size must be at most {_MOST} bytes, not {shown(size)}.")
    return int(number)


def read_thresholds(file: Path) -> Thresholds:
    """Read the ``[alerts]`` table of a file; no limits where there is none.

    Raises:
        InvalidInput: The file is no TOML, or the table holds something else than limits.
        OSError: The file cannot be read.
    """
    table = read_table(file, "alerts")
    if table is None:
        return Thresholds()
    known = [field.name for field in fields(Thresholds)]
    if not isinstance(table, Mapping) or not table.keys() <= set(known):
        raise InvalidInput(f"[alerts] in {file} must be a table of {', '.join(known)} only.")
    limits: dict[str, Any] = {
        name: parse_bytes(value) if name.endswith("bytes") else value
        for name, value in table.items()
    }
    return Thresholds(**limits)
