"""What a copy says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is.

    Attributes:
        step: ``reading``, ``loading``, ``indexing``, ``following`` or ``verifying``.
        subject: The table, or the name of the index.
        done: Rows so far.
        total: Rows in all; None where that is not known.
    """

    step: str
    subject: str
    done: int
    total: int | None


OnProgress = Callable[[Progress], None]
"""Gets the progress of a copy, in the thread of the call."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """A table on both sides.

    Attributes:
        name: Its plain name.
        source_rows: Rows of the source, without those that were set aside.
        target_rows: Rows of the target.
        source_digest: What the source holds; ``agentstore.engines.base.moving`` has the formula.
        target_digest: What the target holds.
    """

    name: str
    source_rows: int
    target_rows: int
    source_digest: str
    target_digest: str

    @property
    def equal(self) -> bool:
        """Whether both hold the same."""
        return (self.source_rows, self.source_digest) == (self.target_rows, self.target_digest)


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy, or a comparison, found.

    Attributes:
        tables: All tables, those that others refer to first.
        set_aside: How many rows of the source were set aside as not sound.
        resumed: Whether this went on with a copy that had been begun.
        seconds: How long each step took.
        quarantine: The file that lists the rows that were set aside; None if there are none.
    """

    tables: tuple[TableReport, ...]
    set_aside: int = 0
    resumed: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    quarantine: str | None = None

    @property
    def rows(self) -> int:
        """How many rows the target holds."""
        return sum(table.target_rows for table in self.tables)

    @property
    def equal(self) -> bool:
        """Whether both sides hold the same."""
        return all(table.equal for table in self.tables)
