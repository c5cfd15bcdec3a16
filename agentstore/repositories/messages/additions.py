"""What is appended to each session: its rows, numbered from one, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agentstore.values.paging import OUT_OF_ORDER
from agentstore.values.types import from_nanos, to_nanos

if TYPE_CHECKING:
    from agentstore.repositories.messages.appending import Append

_NEVER = datetime.min.replace(tzinfo=UTC)


def additions_of(writes: Sequence[Append]) -> list[Addition]:
    """Put the rows of each session together, in the order of the writes."""
    sessions: dict[str, Addition] = {}
    for write in writes:
        addition = sessions.get(write.session_id)
        if addition is None:
            addition = sessions[write.session_id] = Addition(write)
        addition.add(write)
    return list(sessions.values())


class Addition:
    """The rows that are to be appended to one session, and what they add to its counters."""

    __slots__ = (
        "branch",
        "calls",
        "cost",
        "earliest",
        "latest",
        "marks",
        "rows",
        "session_id",
        "tokens",
        "users",
    )

    def __init__(self, first: Append) -> None:
        self.session_id, self.branch = first.session_id, first.branch
        self.earliest = self.latest = first.now
        self.users = self.tokens = self.cost = 0
        self.rows: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []

    def add(self, write: Append) -> None:
        """Add what a write has left to be written, behind what was added before."""
        now = write.now
        self.earliest, self.latest = min(now, self.earliest), max(now, self.latest)
        write.fresh[0].row["idempotency_key"] = write.idempotency_key
        for new in write.fresh:
            row = new.row
            self.users += row["role"] == "user"
            self.tokens += row["token_count"]
            self.cost += to_nanos("cost", row["cost"])
            seq = len(self.rows) + 1
            row.update(session_id=self.session_id, seq=seq, turn=self.users, created_at=now)
            self.rows.append(row)
            if new.calls or new.marks:
                own = {"session_id": self.session_id, "seq": seq}
                self.calls += [{**call, **own} for call in new.calls]
                self.marks += [{**mark, **own} for mark in new.marks or ()]

    def counts(self) -> dict[str, Any]:
        """Say what to count in the session; see ``EngineDialect.append_messages``."""
        return {
            "session_id": self.session_id,
            "branch": self.branch,
            "now": self.latest,
            "bearable": self._bearable(),
            "messages": len(self.rows),
            "users": self.users,
            "tokens": self.tokens,
            "cost": from_nanos(self.cost),
        }

    def _bearable(self) -> datetime:
        """Give the time up to which earlier messages may have been saved; none if these are not
        in order themselves.
        """
        try:
            bearable = self.earliest + OUT_OF_ORDER
        except OverflowError:  # the calendar ends with the year 9999
            bearable = self.earliest
        return bearable if self.latest <= bearable else _NEVER
