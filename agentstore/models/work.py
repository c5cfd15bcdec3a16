"""What an agent does and spends: tool logs, usage per turn, tasks."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from agentstore.models.base import Base, PartialIndex, Pk, one_of
from agentstore.values.states import TASK_STATUSES
from agentstore.values.types import Word

_PENDING = text("status = 'pending'")
_RUNNING = text("status = 'running'")
_RUNNING_ALONE = text("status = 'running' AND alone_in_session")
_IDEMPOTENT = text("idempotency_key IS NOT NULL")
_OF_A_MESSAGE = text("message_id IS NOT NULL")


class ToolLog(Base):
    """One call of a tool: what went in, what came out, how long it took."""

    __tablename__ = "tool_logs"
    __table_args__ = (
        CheckConstraint("elapsed_ms >= 0", name="elapsed_ms"),
        Index(None, "session_id", "pk"),
        Index(None, "session_id", "tool", "pk"),
        Index(None, "tool", "pk"),
        Index(None, "tool", "created_at", "pk"),
        Index(None, "created_at", "pk"),
        Index(None, "session_id", "created_at", "pk"),
        PartialIndex(None, "message_id", where=_OF_A_MESSAGE),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    message_id: Mapped[str | None] = mapped_column(ForeignKey("messages.id", ondelete="SET NULL"))
    tool: Mapped[str]
    success: Mapped[bool]
    elapsed_ms: Mapped[float | None]
    created_at: Mapped[datetime]
    error: Mapped[str | None]
    input: Mapped[Any | None]
    output: Mapped[Any | None]


class TurnUsage(Base):
    """What one or more requests of a turn used. Rows are only added; a turn is their sum.

    ``cost`` NULL means that nobody knows: the model had no price.
    """

    __tablename__ = "turn_usage"
    __table_args__ = (
        CheckConstraint(
            "requests >= 0 AND input_tokens >= 0 AND output_tokens >= 0 AND total_tokens >= 0 "
            "AND cost >= 0",
            name="amounts",
        ),
        Index(None, "session_id", "branch", "turn"),
        Index(None, "session_id", "created_at"),
        Index(None, "model", "created_at"),
        Index(None, "created_at"),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    branch: Mapped[int]
    turn: Mapped[int]
    model: Mapped[str | None]
    requests: Mapped[int]
    input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    total_tokens: Mapped[int]
    cost: Mapped[Decimal | None]
    details: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime]


class Task(Base):
    """A piece of work, and its life.

    ``fence`` grows with every claim; a worker whose fence is not the row's has lost its lease.
    Of the tasks of a session that ask to be alone, a unique index lets one run at a time.
    """

    __tablename__ = "tasks"
    __table_args__ = (
        CheckConstraint(one_of("status", TASK_STATUSES), name="status"),
        CheckConstraint("attempts >= 0 AND failures >= 0 AND max_retries >= 0", name="attempts"),
        CheckConstraint("session_id IS NOT NULL OR NOT alone_in_session", name="alone_in_session"),
        PartialIndex("ix_tasks_lease_expires_at", "lease_expires_at", where=_RUNNING),
        Index(None, "session_id", "pk"),
        Index(None, "session_id", "status", "pk"),
        Index(None, "status", "pk"),
        Index(None, "queue", "pk"),
        Index(None, "queue", "status", "pk"),
        PartialIndex("ix_tasks_due", "queue", "run_at", where=_PENDING),
        PartialIndex("uq_tasks_running_alone", "session_id", unique=True, where=_RUNNING_ALONE),
        PartialIndex(None, "queue", "idempotency_key", unique=True, where=_IDEMPOTENT),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    session_id: Mapped[str | None] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    queue: Mapped[str] = mapped_column(server_default=text("'default'"))
    kind: Mapped[str]
    status: Mapped[str] = mapped_column(Word(TASK_STATUSES), server_default=text("'pending'"))
    priority: Mapped[int] = mapped_column(server_default=text("0"))
    run_at: Mapped[datetime]
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    max_retries: Mapped[int] = mapped_column(server_default=text("0"))
    alone_in_session: Mapped[bool] = mapped_column(server_default=text("false"))
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    fence: Mapped[int] = mapped_column(server_default=text("0"))
    worker: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    idempotency_key: Mapped[str | None]
    payload: Mapped[Any | None]
    result: Mapped[Any | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    dead_at: Mapped[datetime | None]


PartialIndex(
    "ix_tasks_claim",
    Task.queue,
    Task.priority.desc(),
    Task.pk,
    Task.run_at,  # last, so that what is not due yet is passed over without reading its row
    where=_PENDING,
)
