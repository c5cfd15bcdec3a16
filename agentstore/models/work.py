"""What an agent does and spends: tool logs, usage per turn, tasks."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapped

from agentstore.models.base import Base, related
from agentstore.schema import work as tables

if TYPE_CHECKING:
    from agentstore.models.messages import Message
    from agentstore.models.sessions import Session


class ToolLog(Base):
    """One call of a tool: what went in, what came out, how long it took."""

    __table__ = tables.tool_logs

    pk: Mapped[int]
    id: Mapped[str]
    session_id: Mapped[str]
    message_id: Mapped[str | None]
    tool: Mapped[str]
    success: Mapped[bool]
    elapsed_ms: Mapped[float | None]
    created_at: Mapped[datetime]
    error: Mapped[str | None]
    input: Mapped[Any | None]
    output: Mapped[Any | None]
    tool_call_id: Mapped[str | None]

    session: Mapped[Session] = related("Session")
    message: Mapped[Message | None] = related("Message")


class TurnUsage(Base):
    """What one or more requests of a turn used. Rows are only added; a turn is their sum.

    ``cost`` NULL means that nobody knows: the model had no price.
    """

    __table__ = tables.turn_usage

    pk: Mapped[int]
    id: Mapped[str]
    session_id: Mapped[str]
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

    session: Mapped[Session] = related("Session")


class Task(Base):
    """A piece of work, and its life.

    ``fence`` grows with every claim; a worker whose fence is not the row's has lost its lease.
    Of the tasks of a session that ask to be alone, a unique index lets one run at a time.
    """

    __table__ = tables.tasks

    pk: Mapped[int]
    id: Mapped[str]
    session_id: Mapped[str | None]
    queue: Mapped[str]
    kind: Mapped[str]
    status: Mapped[str]
    priority: Mapped[int]
    run_at: Mapped[datetime]
    attempts: Mapped[int]
    failures: Mapped[int]
    max_retries: Mapped[int]
    alone_in_session: Mapped[bool]
    cancel_requested: Mapped[bool]
    fence: Mapped[int]
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

    session: Mapped[Session | None] = related("Session")
