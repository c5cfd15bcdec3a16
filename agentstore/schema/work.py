"""The tables of tool logs, usage and tasks; see ``agentstore.models.work``."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, text

from agentstore.schema.base import (
    FLAG,
    INSTANT,
    JSON,
    MONEY,
    OBJECT,
    OWN_ID,
    REAL,
    TEXT,
    WHOLE,
    PartialIndex,
    column,
    nullable,
    one_of,
    row_number,
    table,
)
from agentstore.values.states import TASK_STATUSES
from agentstore.values.types import Word

_PENDING = text("status = 'pending'")

_RUNNING = text("status = 'running'")

_RUNNING_ALONE = text("status = 'running' AND alone_in_session")

_IDEMPOTENT = text("idempotency_key IS NOT NULL")

_OF_A_MESSAGE = text("message_id IS NOT NULL")

tool_logs = table(
    "tool_logs",
    row_number(),
    column("id", OWN_ID, unique=True),
    column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE")),
    nullable("message_id", OWN_ID, ForeignKey("messages.id", ondelete="SET NULL")),
    column("tool", TEXT),
    column("success", FLAG),
    nullable("elapsed_ms", REAL),
    column("created_at", INSTANT),
    nullable("error", TEXT),
    nullable("input", JSON),
    nullable("output", JSON),
    nullable("tool_call_id", TEXT),
    CheckConstraint("elapsed_ms >= 0", name="elapsed_ms"),
    Index(None, "session_id", "pk"),
    Index(None, "session_id", "tool", "pk"),
    Index(None, "tool", "pk"),
    Index(None, "tool", "created_at", "pk"),
    Index(None, "created_at", "pk"),
    Index(None, "session_id", "created_at", "pk"),
    PartialIndex(None, "message_id", where=_OF_A_MESSAGE),
)

turn_usage = table(
    "turn_usage",
    row_number(),
    column("id", OWN_ID, unique=True),
    column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE")),
    column("branch", WHOLE),
    column("turn", WHOLE),
    nullable("model", TEXT),
    column("requests", WHOLE),
    column("input_tokens", WHOLE),
    column("output_tokens", WHOLE),
    column("total_tokens", WHOLE),
    nullable("cost", MONEY),
    nullable("details", OBJECT),
    column("created_at", INSTANT),
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

tasks = table(
    "tasks",
    row_number(),
    column("id", OWN_ID, unique=True),
    nullable("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE")),
    column("queue", TEXT, server_default=text("'default'")),
    column("kind", TEXT),
    column("status", Word(TASK_STATUSES), server_default=text("'pending'")),
    column("priority", WHOLE, server_default=text("0")),
    column("run_at", INSTANT),
    column("attempts", WHOLE, server_default=text("0")),
    column("failures", WHOLE, server_default=text("0")),
    column("max_retries", WHOLE, server_default=text("0")),
    column("alone_in_session", FLAG, server_default=text("false")),
    column("cancel_requested", FLAG, server_default=text("false")),
    column("fence", WHOLE, server_default=text("0")),
    nullable("worker", TEXT),
    nullable("lease_expires_at", INSTANT),
    nullable("idempotency_key", TEXT),
    nullable("payload", JSON),
    nullable("result", JSON),
    nullable("error", TEXT),
    column("created_at", INSTANT),
    column("updated_at", INSTANT),
    nullable("started_at", INSTANT),
    nullable("paused_at", INSTANT),
    nullable("completed_at", INSTANT),
    nullable("failed_at", INSTANT),
    nullable("cancelled_at", INSTANT),
    nullable("dead_at", INSTANT),
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

PartialIndex(
    "ix_tasks_claim",
    tasks.c.queue,
    tasks.c.priority.desc(),
    tasks.c.pk,
    tasks.c.run_at,  # last, so that what is not due yet is passed over without reading its row
    where=_PENDING,
)
