"""Sessions and their branches.

``sessions`` holds what every message changes, the counters, and is kept narrow for that: an
UPDATE rewrites the whole row on both engines. The documents of a session, which may be large,
live in ``session_data``.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from agentstore.models.base import Base, PartialIndex, Pk, one_of
from agentstore.values.states import SESSION_STATUSES
from agentstore.values.types import Word

_NOT_NULL_EXPIRY = text("expires_at IS NOT NULL")


class Session(Base):
    """A conversation of an agent.

    ``last_seq`` is the sequence number of its newest message, on any branch, and never goes
    down; ``turn`` is the number of the last turn of the active branch, and ``tip`` that
    branch's. ``activity`` grows with
    every message in the whole database: the session that was written to last has the largest.
    """

    __tablename__ = "sessions"
    __table_args__ = (
        CheckConstraint(one_of("status", SESSION_STATUSES), name="status"),
        CheckConstraint(
            "message_count >= 0 AND total_tokens >= 0 AND total_cost >= 0", name="counters"
        ),
        Index(None, "activity"),
        Index(None, "user_id", "activity"),
        Index(None, "status", "activity"),
        Index(None, "user_id", "status", "activity"),
        PartialIndex(None, "expires_at", where=_NOT_NULL_EXPIRY),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    status: Mapped[str] = mapped_column(Word(SESSION_STATUSES), server_default=text("'active'"))
    active_branch: Mapped[int] = mapped_column(server_default=text("0"))
    tip: Mapped[int | None]
    last_branch: Mapped[int] = mapped_column(server_default=text("0"))
    last_seq: Mapped[int] = mapped_column(server_default=text("0"))
    turn: Mapped[int] = mapped_column(server_default=text("0"))
    message_count: Mapped[int] = mapped_column(server_default=text("0"))
    total_tokens: Mapped[int] = mapped_column(server_default=text("0"))
    total_cost: Mapped[Decimal] = mapped_column(server_default=text("0"))
    activity: Mapped[int]
    ttl_seconds: Mapped[int | None]
    expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    last_active_at: Mapped[datetime]
    title: Mapped[str | None]
    model: Mapped[str | None]


class SessionData(Base):
    """The documents of a session, under one version number (optimistic concurrency).

    ``layout`` keeps what an unusual line of an imported file looked like. Only an import writes
    it, and only an export reads it.
    """

    __tablename__ = "session_data"

    session_id: Mapped[str] = mapped_column(
        ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    version: Mapped[int] = mapped_column(server_default=text("1"))
    question: Mapped[str | None]
    asked_at: Mapped[datetime | None]
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata")
    config: Mapped[dict[str, Any]]
    state: Mapped[Any | None]
    updated_at: Mapped[datetime]
    layout: Mapped[Any | None]


class BranchSegment(Base):
    """A stretch of messages that a branch shows, and the segment before it.

    It shows the messages of one branch from ``first_seq`` to ``last_seq``, both included; a
    branch's own stretch, to which it adds, ends at the largest number. Segments that several
    branches show are stored once, each of these branches leading to them.
    """

    __tablename__ = "branch_segments"
    __table_args__ = (
        ForeignKeyConstraint(
            ["session_id", "previous"],
            ["branch_segments.session_id", "branch_segments.number"],
        ),
        Index(None, "session_id", "branch"),
        Index(None, "session_id", "previous"),
    )

    session_id: Mapped[str] = mapped_column(
        ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    branch: Mapped[int]
    first_seq: Mapped[int]
    last_seq: Mapped[int]
    previous: Mapped[int | None]


class Branch(Base):
    """A line of a conversation.

    ``number`` counts from 0, which is main, in each session and is never used again. ``tip`` is
    the newest of its segments; without one it shows its own messages, all of them, and no other.
    ``parent`` is the branch that it grew from, ``fork_seq`` the last sequence number that they
    had in common then, and ``fork_turn`` the turn of that message. A branch that is ``gone`` is
    nobody's any more; it has left messages that others show, and some unique name.
    """

    __tablename__ = "branches"
    __table_args__ = (
        ForeignKeyConstraint(
            ["session_id", "parent"],
            ["branches.session_id", "branches.number"],
        ),
        CheckConstraint("number >= 0 AND (parent < number OR parent IS NULL)", name="parent"),
        Index(None, "session_id", "name", unique=True),
        Index(None, "session_id", "parent"),
        Index(None, "session_id", "tip"),
    )

    session_id: Mapped[str] = mapped_column(
        ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str]
    parent: Mapped[int | None]
    fork_seq: Mapped[int] = mapped_column(server_default=text("0"))
    fork_turn: Mapped[int] = mapped_column(server_default=text("0"))
    created_at: Mapped[datetime]
    tip: Mapped[int | None]
    gone: Mapped[bool] = mapped_column(server_default=text("false"))


class Summary(Base):
    """The compressed memory of one branch of a session; it survives a clear."""

    __tablename__ = "summaries"

    session_id: Mapped[str] = mapped_column(
        ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    branch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content: Mapped[str]
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata")
    through_seq: Mapped[int | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
