"""What was found wrong, how bad that is, and what fixes it.

Both ``agentstore doctor`` and the alerts about sizes say what they found in these words, and
exit by the same codes: 0 where there is nothing worse than information, 3 for warnings, 4 for
errors. 1 is left for a command that failed itself, 2 for one that was called wrongly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad a finding is."""

    INFO = "info"
    """Good to know; nothing has to be done."""
    WARNING = "warning"
    """Nothing is lost or wrong yet."""
    ERROR = "error"
    """Data are wrong, damaged or about to be lost, or the application does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        check: Which check found it, by its name.
        what: What is the case, in one sentence.
        where: The table, file, setting or rows that it is about.
        mend: The command or the SQL that fixes it, or what to do; None where nothing has to be.
    """

    severity: Severity
    check: str
    what: str
    where: str
    mend: str | None = None


def exit_code(findings: Iterable[Finding]) -> int:
    """Give what a command exits with that found this: 0, 3 for warnings, 4 for errors."""
    worst = {finding.severity for finding in findings}
    if Severity.ERROR in worst:
        return 4
    return 3 if Severity.WARNING in worst else 0


def counted(number: int, what: str, many: str | None = None) -> str:
    """Write how many there are, such as 1 message, or 1,200 messages."""
    return f"{number:,} {what if number == 1 else many or f'{what}s'}"


def listed(names: Iterable[object], most: int = 5) -> str:
    """Write the first few of many, and how many more there are."""
    every = [str(name) for name in names]
    more = len(every) - most
    return ", ".join(every[:most]) + (f" and {more} more" if more > 0 else "")
