"""The tables of tool logs, usage and tasks; see ``agentstore.models``."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    UniqueConstraint,
    text,
)

from agentstore.schema.base import (
    ARRAY,
    BOOLEAN,
    BYTES,
    FLOAT,
    INSTANT,
    INTEGER,
    JSON,
    MONEY,
    OBJECT,
    OWN_ID,
    TEXT,
    PartialIndex,
    column,
    not_negative,
    nullable,
    one_of,
    row_number,
    table,
)
from agentstore.values.types import EnumText, RowNumber
from agentstore.values.validation import TASK_STATUSES

_PENDING = text("status = 'pending'")

_RUNNING = text("status = 'running'")

_RUNNING_ALONE = text("status = 'running' AND alone_in_session")

_IDEMPOTENT = text("idempotency_key IS NOT NULL")

_OF_A_MESSAGE = text("message_id IS NOT NULL")

FAILED = text("NOT success")
"""The condition of the indexes of failed calls, word by word as queries must have it."""

tool_logs = table(
    "tool_logs",
    row_number(),
    column("id", OWN_ID, unique=True),
    column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE")),
    nullable("message_id", OWN_ID, ForeignKey("messages.id", ondelete="SET NULL")),
    column("tool", TEXT),
    column("success", BOOLEAN),
    nullable("elapsed_ms", FLOAT),
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
    PartialIndex("ix_tool_logs_failed_pk", "pk", where=FAILED),
    PartialIndex("ix_tool_logs_failed_tool_pk", "tool", "pk", where=FAILED),
    PartialIndex(
        "ix_tool_logs_failed_tool_created_at_pk", "tool", "created_at", "pk", where=FAILED
    ),
    PartialIndex("ix_tool_logs_failed_created_at_pk", "created_at", "pk", where=FAILED),
)

turn_usage = table(
    "turn_usage",
    row_number(),
    column("id", OWN_ID, unique=True),
    column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE")),
    column("branch", INTEGER),
    column("turn", INTEGER),
    nullable("model", TEXT),
    column("requests", INTEGER),
    column("input_tokens", INTEGER),
    column("output_tokens", INTEGER),
    column("total_tokens", INTEGER),
    nullable("cost", MONEY),
    nullable("details", OBJECT),
    column("created_at", INSTANT),
    CheckConstraint(
        not_negative(
            "requests", "input_tokens", "output_tokens", "total_tokens", unless_null="cost"
        ),
        name="amounts",
    ),
    Index(None, "session_id", "branch", "turn"),
    Index(  # with what is added up: rows of a session are far apart, and a sum reads none of them
        "ix_turn_usage_sums",
        "session_id",
        "created_at",
        "requests",
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "cost",
    ),
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
    column("status", EnumText(TASK_STATUSES), server_default=text("'pending'")),
    column("priority", INTEGER, server_default=text("0")),
    column("run_at", INSTANT),
    column("attempts", INTEGER, server_default=text("0")),
    column("failures", INTEGER, server_default=text("0")),
    column("max_retries", INTEGER, server_default=text("0")),
    column("alone_in_session", BOOLEAN, server_default=text("false")),
    column("cancel_requested", BOOLEAN, server_default=text("false")),
    column("fence", INTEGER, server_default=text("0")),
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
    CheckConstraint(not_negative("attempts", "failures", "max_retries"), name="attempts"),
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


# The tables of users, what they may spend, and their keys; see ``agentstore.models``.


_DELETING = text("deleting IS NOT NULL")

_IN_A_SESSION = text("session_id IS NOT NULL")

users = table(
    "users",
    row_number(),
    column("id", TEXT, unique=True),
    column("name", TEXT),
    nullable("email", TEXT),
    nullable("quota_total", INTEGER),
    column("quota_used", INTEGER, server_default=text("0")),
    column("quota_reserved", INTEGER, server_default=text("0")),
    column("preferences", OBJECT),
    column("created_at", INSTANT),
    column("updated_at", INSTANT),
    nullable("deleting", OBJECT),
    CheckConstraint("quota_total >= 0", name="quota_total"),
    CheckConstraint("quota_used >= 0", name="quota_used"),
    CheckConstraint("quota_reserved >= 0", name="quota_reserved"),
    Index(None, "email", "pk"),
    PartialIndex("ix_users_deleting", "id", where=_DELETING),
)

user_preferences = table(
    "user_preferences",
    column("digest", TEXT, primary_key=True),
    column("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "user_id"),
)

api_keys = table(
    "api_keys",
    row_number(),
    column("id", OWN_ID, unique=True),
    column("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE")),
    column("name", TEXT),
    column("prefix", TEXT, unique=True),
    column("digest", TEXT),
    column("created_at", INSTANT),
    nullable("last_used_at", INSTANT),
    nullable("expires_at", INSTANT),
    nullable("revoked_at", INSTANT),
    Index(None, "user_id", "pk"),
)

quota_reservations = table(
    "quota_reservations",
    row_number(),
    column("id", OWN_ID, unique=True),
    column("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE")),
    nullable("session_id", TEXT),
    column("tokens", INTEGER),
    column("lapsed", BOOLEAN, server_default=text("false")),
    column("created_at", INSTANT),
    column("expires_at", INSTANT),
    CheckConstraint("tokens > 0", name="tokens"),
    Index(None, "user_id", "expires_at"),
    Index(None, "expires_at"),
    PartialIndex(None, "session_id", where=_IN_A_SESSION),
)


# The table of memories; see ``agentstore.models``.


_OF_A_USER = text("user_id IS NOT NULL")

_EXPIRING = text("expires_at IS NOT NULL")

memories = table(
    "memories",
    row_number(),
    nullable("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE")),
    column("place", BYTES),
    column("key", TEXT),
    column("value", OBJECT),
    nullable("ttl", INTEGER),
    column("created_at", INSTANT),
    column("updated_at", INSTANT),
    nullable("expires_at", INSTANT),
    column("version", INTEGER, server_default=text("1")),
    nullable("embedded_fields", ARRAY),
    UniqueConstraint("place", "key"),
    Index(None, "place", "updated_at", "pk"),
    PartialIndex(None, "user_id", where=_OF_A_USER),
    PartialIndex(None, "expires_at", "pk", where=_EXPIRING),
)

_NO_VECTOR = text("vectors IS NULL")

vector_models = table(
    "vector_models",
    column("number", INTEGER, primary_key=True, autoincrement=False),
    column("name", TEXT),
    column("dims", INTEGER),
    column("complete", BOOLEAN),
    UniqueConstraint("name", "dims"),
)

memory_vectors = table(
    "memory_vectors",
    column(
        "memory_pk",
        RowNumber,
        ForeignKey("memories.pk", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    column("model", INTEGER, primary_key=True, autoincrement=False),
    column("version", INTEGER),
    nullable("vectors", BYTES),
    PartialIndex(None, "model", "memory_pk", where=_NO_VECTOR),
)


# The tables of checkpoints; see ``agentstore.models``.


_ROOT_NAMESPACE = text("namespace = ''")

_OF_A_RUN = text("run_id IS NOT NULL")

_ENCODINGS = ("raw", "zlib")

checkpoint_threads = table(
    "checkpoint_threads",
    row_number(),
    column("id", TEXT, unique=True),
    nullable("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE")),
    nullable("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE")),
    column("activity", INTEGER),
    column("last_line", INTEGER, server_default=text("0")),
    column("created_at", INSTANT),
    Index(None, "activity"),
    PartialIndex(None, "user_id", "activity", where=_OF_A_USER),
    PartialIndex(None, "session_id", "activity", where=_IN_A_SESSION),
)

checkpoints = table(
    "checkpoints",
    row_number(),
    column("thread_id", TEXT, ForeignKey("checkpoint_threads.id", ondelete="CASCADE")),
    column("namespace", TEXT, server_default=text("''")),
    column("id", TEXT),
    nullable("parent_id", TEXT),
    column("step", INTEGER),
    nullable("run_id", TEXT),
    column("tags", ARRAY),
    column("summary", TEXT),
    column("next_node", TEXT),
    nullable("metadata", OBJECT),
    column("created_at", INSTANT),
    nullable("entries", BYTES),
    nullable("lines", OBJECT),
    UniqueConstraint("thread_id", "namespace", "id"),
    ForeignKeyConstraint(
        ["thread_id", "namespace", "parent_id"],
        ["checkpoints.thread_id", "checkpoints.namespace", "checkpoints.id"],
    ),
    CheckConstraint("step >= 0", name="step"),
    Index(None, "thread_id", "namespace", "step", "pk"),
    Index(None, "thread_id", "namespace", "parent_id"),
    PartialIndex("uq_checkpoints_id", "id", unique=True, where=_ROOT_NAMESPACE),
    PartialIndex(None, "run_id", "pk", where=_OF_A_RUN),
)

checkpoint_values = table(
    "checkpoint_values",
    column(
        "thread_id", TEXT, ForeignKey("checkpoint_threads.id", ondelete="CASCADE"), primary_key=True
    ),
    column("line", INTEGER, primary_key=True, autoincrement=False),
    column("start", INTEGER, primary_key=True, autoincrement=False),
    nullable("prefix", INTEGER),
    column("suffix", INTEGER, server_default=text("0")),
    column("data", BYTES),
    CheckConstraint("start >= 0 AND prefix >= 0 AND suffix >= 0", name="start"),
)

checkpoint_writes = table(
    "checkpoint_writes",
    column(
        "thread_id", TEXT, ForeignKey("checkpoint_threads.id", ondelete="CASCADE"), primary_key=True
    ),
    column("namespace", TEXT, primary_key=True),
    column("checkpoint_id", TEXT, primary_key=True),
    column("task_id", TEXT, primary_key=True),
    column("position", INTEGER, primary_key=True, autoincrement=False),
    column("task_path", TEXT, server_default=text("''")),
    column("channel", TEXT),
    column("kind", EnumText(("json", "bytes"))),
    column("encoding", EnumText(_ENCODINGS)),
    column("data", BYTES),
    CheckConstraint(one_of("kind", ("json", "bytes")), name="kind"),
    CheckConstraint(one_of("encoding", _ENCODINGS), name="encoding"),
)
