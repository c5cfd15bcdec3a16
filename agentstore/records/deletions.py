"""What was deleted: receipts and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeletionReceipt:
    """What a deletion removed.

    Attributes:
        rows: For each table that lost rows, how many, by the table's plain name. In a scope without
            ``blobs``, whose bytes may be those of other users too.
    """

    rows: Mapping[str, int]

    @property
    def total(self) -> int:
        """How many rows are gone, in all tables together."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """What a clean-up of expired sessions did.

    Attributes:
        sessions: The ids of the sessions that are gone, those that expired first coming first.
        rows: For each table that lost rows, how many, by the table's plain name.
        postponed: How many sessions stayed because they had been active since it was last noted
            when they might expire.
    """

    sessions: tuple[str, ...]
    rows: Mapping[str, int]
    postponed: int

    @property
    def total(self) -> int:
        """How many rows are gone, in all tables together."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a retention policy deleted, or would delete.

    Attributes:
        rows: For each table that lost rows, how many, by the table's plain name.
        rules: What each rule removed of its own kind: ``users``, those whose deletion had been
            interrupted, ``sessions``, ``tool_logs``, ``checkpoints``, ``tasks``,
            ``reservations``, ``memories``; and ``streams``, the messages that were given up.
        freed_bytes: By how much the database's files have become smaller; what others wrote
            meanwhile is in it.
        dry_run: Whether this was only counted, and nothing was deleted.
    """

    rows: Mapping[str, int]
    rules: Mapping[str, int]
    freed_bytes: int
    dry_run: bool

    @property
    def total(self) -> int:
        """How many rows are gone, or would be, in all tables together."""
        return sum(self.rows.values())
