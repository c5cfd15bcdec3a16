"""Sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from agentstore.records.base import briefly, maker
from agentstore.records.messages import MessageRecord
from agentstore.records.words import SessionStatus


@briefly("id", "user_id", "status", "model", "message_count", "last_active_at")
@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session without its documents, as ``sessions.list`` gives it.

    Attributes:
        version: Grows with each change of state, metadata, config or the pending question; pass
            it as ``expected_version`` to change only what you have read.
        message_count: Messages, on all branches.
        total_tokens: Sum of their ``token_count``.
        total_cost: Sum of their ``cost``.
        last_seq: The newest message's sequence number; it never goes down.
        last_turn: The number of the last turn on the active branch, 0 before the first one. That is
            how many turns there were, those that were deleted since included.
        question: What the agent waits for the user to answer, in status ``waiting_user``.
        ttl: How long after its last activity the session expires; None means never.
        preview: The beginning of what the user said first, on one line, where ``sessions.list`` was
            asked for it; else None.
    """

    id: str
    user_id: str | None
    status: SessionStatus
    title: str | None
    model: str | None
    version: int
    question: str | None
    asked_at: datetime | None
    message_count: int
    total_tokens: int
    total_cost: Decimal
    last_seq: int
    last_turn: int
    created_at: datetime
    last_active_at: datetime
    ttl: timedelta | None
    preview: str | None = field(default=None, kw_only=True, repr=False)

    def _repr_html_(self) -> str:
        """Show the session in a notebook; see ``records.html``."""
        return self._many_as_html([self])

    @staticmethod
    def _many_as_html(sessions: Sequence[SessionSummary]) -> str:
        from agentstore.records.html import sessions_as_html  # notebooks alone need it

        return sessions_as_html(sessions)

    @property
    def expires_at(self) -> datetime | None:
        """When the session expires if nothing happens in it any more; None means never."""
        try:
            return None if self.ttl is None else self.last_active_at + self.ttl
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC)


make_session_summary = maker(SessionSummary)
"""Makes a summary of all its fields, faster than its constructor."""


@briefly("id", "user_id", "status", "model", "version", "message_count", "last_active_at")
@dataclass(frozen=True, slots=True)
class SessionRecord(SessionSummary):
    """A session with its documents.

    Attributes:
        updated_at: When the documents or the pending question were last changed.
        epoch: How often the session was reset; see ``sessions.reset``.
    """

    metadata: dict[str, Any]
    config: dict[str, Any]
    state: Any
    updated_at: datetime
    epoch: int


@dataclass(frozen=True, slots=True)
class SessionCounters:
    """A session's counters beside what its messages add up to.

    Attributes:
        stored: ``message_count``, ``total_tokens`` and ``total_cost`` of the session.
        counted: The same, computed from the messages.
    """

    session_id: str
    stored: tuple[int, int, Decimal]
    counted: tuple[int, int, Decimal]

    @property
    def agree(self) -> bool:
        """Whether the counters are right."""
        return self.stored == self.counted


@briefly("session", "branch")
@dataclass(frozen=True, slots=True)
class RestoredSession:
    """All that an agent needs to go on with a session, of one moment.

    Attributes:
        session: The session, with its state.
        branch: The name of its active branch.
        history: That branch's messages, the oldest first, as ``messages.history`` gives them.
        summary: The compressed memory of that branch; None if there is none.
    """

    session: SessionRecord
    branch: str
    history: tuple[MessageRecord, ...]
    summary: str | None

    def _repr_html_(self) -> str:
        """Show the session in a notebook, and what was said; see ``records.html``."""
        return self.session._repr_html_() + MessageRecord._many_as_html(self.history)

    @property
    def question(self) -> str | None:
        """What the user was asked and has not answered yet."""
        return self.session.question
