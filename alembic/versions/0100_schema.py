"""The schema of 0.1.0: everything that agents persist, for both engines.

Revision ID: 0100
Revises:
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import CreateSequence, DropSequence, Sequence

from agentstore.database.revisions import (
    BYTES,
    FLAG,
    INSTANT,
    JSON,
    NANOS,
    OWN_ID,
    REAL,
    ROW_NUMBER,
    TEXT,
    WHOLE,
    Place,
    check,
    column,
    postgresql_search,
    primary_key,
    references,
    row_number,
    row_security,
    sqlite_activity,
    sqlite_search,
    unique,
)

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "blobs",
    "users",
    "api_keys",
    "memories",
    "vector_models",
    "memory_vectors",
    "quota_reservations",
    "sessions",
    "user_preferences",
    "branches",
    "checkpoint_threads",
    "session_data",
    "summaries",
    "tasks",
    "turn_usage",
    "checkpoint_values",
    "checkpoint_writes",
    "checkpoints",
    "messages",
    "attachments",
    "message_chunks",
    "message_marks",
    "message_tool_calls",
    "message_vectors",
    "tool_logs",
)
"""In the order of their creation."""

SEGMENTATION = "2:250000"
"""How the search index, empty as it is, counts as made: the version of the segmentation, and how
many characters of a message are searched."""


def upgrade() -> None:
    """Create the tables; then what belongs to one engine alone, and the search index."""
    place = Place()
    _tables(place)
    if place.on_postgresql:
        op.execute(CreateSequence(Sequence(place.table("activity"), schema=place.schema)))
        sessions = sa.table(place.table("sessions"), schema=place.schema)
        named = op.get_context().dialect.identifier_preparer.format_table(sessions)
        # Room in each page, so that a save that changes counters changes no index.
        op.execute(f"ALTER TABLE {named} SET (fillfactor = 70)")
        statements = [
            *postgresql_search.objects(place.schema, place.prefix).values(),
            *row_security.policies(place.names),
        ]
    else:
        statements = [
            *sqlite_activity.objects(place.prefix).values(),
            *sqlite_search.objects(place.prefix).values(),
        ]
    for statement in statements:
        op.execute(statement)
    if not place.on_postgresql:
        activity = _state(place, "activity", taken=WHOLE)
        op.execute(activity.insert().values(number=1, taken=0))
    kinds = {"segmentation": TEXT, "indexed_through": WHOLE, "walk_through": WHOLE}
    op.execute(
        _state(place, "search_state", **kinds)
        .insert()
        .values(number=1, segmentation=SEGMENTATION, indexed_through=0)
    )


def downgrade() -> None:
    """Drop everything: this is the first revision, and it keeps nothing."""
    place = Place()
    if place.on_postgresql:
        drops = [
            *row_security.drops(place.names),
            *postgresql_search.drops(place.schema, place.prefix),
        ]
    else:
        drops = sqlite_search.drops(place.prefix)
    for statement in drops:
        op.execute(statement)
    for name in reversed(TABLES):
        place.drop(name)
    if place.on_postgresql:
        op.execute(DropSequence(Sequence(place.table("activity"), schema=place.schema)))
    else:
        place.drop("activity")


def _state(place: Place, name: str, **columns: sa.types.TypeEngine[object]) -> sa.TableClause:
    """Describe a table of one row."""
    described = (sa.column(each, kind) for each, kind in {"number": WHOLE, **columns}.items())
    return sa.table(place.table(name), *described, schema=place.schema)


def _tables(place: Place) -> None:
    place.create(
        "blobs",
        column("digest", TEXT),
        column("size", WHOLE),
        column("data", BYTES),
        column("created_at", INSTANT),
        primary_key("digest"),
    )
    place.create(
        "users",
        row_number(),
        column("id", TEXT),
        column("name", TEXT),
        column("email", TEXT, null=True),
        column("quota_total", WHOLE, null=True),
        column("quota_used", WHOLE, default="0"),
        column("quota_reserved", WHOLE, default="0"),
        column("preferences", JSON),
        column("created_at", INSTANT),
        column("updated_at", INSTANT),
        column("deleting", JSON, null=True),
        primary_key("pk"),
        check("quota_reserved", "quota_reserved >= 0"),
        check("quota_total", "quota_total >= 0"),
        check("quota_used", "quota_used >= 0"),
        unique("id"),
    )
    place.index("deleting", "users", "id", where="deleting IS NOT NULL")
    place.index("email_pk", "users", "email", "pk")
    place.create(
        "api_keys",
        row_number(),
        column("id", OWN_ID),
        column("user_id", TEXT),
        column("name", TEXT),
        column("prefix", TEXT),
        column("digest", TEXT),
        column("created_at", INSTANT),
        column("last_used_at", INSTANT, null=True),
        column("expires_at", INSTANT, null=True),
        column("revoked_at", INSTANT, null=True),
        primary_key("pk"),
        references("user_id", "users", "id", ondelete="CASCADE"),
        unique("id"),
        unique("prefix"),
    )
    place.index("user_id_pk", "api_keys", "user_id", "pk")
    place.create(
        "memories",
        row_number(),
        column("user_id", TEXT, null=True),
        column("place", BYTES),
        column("key", TEXT),
        column("value", JSON),
        column("ttl", WHOLE, null=True),
        column("created_at", INSTANT),
        column("updated_at", INSTANT),
        column("expires_at", INSTANT, null=True),
        column("version", WHOLE, default="1"),
        column("embedded_fields", JSON, null=True),
        primary_key("pk"),
        references("user_id", "users", "id", ondelete="CASCADE"),
        unique("place", "key"),
    )
    place.index("expires_at_pk", "memories", "expires_at", "pk", where="expires_at IS NOT NULL")
    place.index("place_updated_at_pk", "memories", "place", "updated_at", "pk")
    place.index("user_id", "memories", "user_id", where="user_id IS NOT NULL")
    place.create(
        "vector_models",
        column("number", WHOLE),
        column("name", TEXT),
        column("dims", WHOLE),
        column("complete", FLAG),
        primary_key("number"),
        unique("name", "dims"),
    )
    place.create(
        "memory_vectors",
        column("memory_pk", ROW_NUMBER),
        column("model", WHOLE),
        column("version", WHOLE),
        column("vectors", BYTES, null=True),
        primary_key("memory_pk", "model"),
        references("memory_pk", "memories", "pk", ondelete="CASCADE"),
    )
    place.index("model_memory_pk", "memory_vectors", "model", "memory_pk", where="vectors IS NULL")
    place.create(
        "quota_reservations",
        row_number(),
        column("id", OWN_ID),
        column("user_id", TEXT),
        column("session_id", TEXT, null=True),
        column("tokens", WHOLE),
        column("lapsed", FLAG, default="false"),
        column("created_at", INSTANT),
        column("expires_at", INSTANT),
        primary_key("pk"),
        check("tokens", "tokens > 0"),
        references("user_id", "users", "id", ondelete="CASCADE"),
        unique("id"),
    )
    place.index("expires_at", "quota_reservations", "expires_at")
    place.index("session_id", "quota_reservations", "session_id", where="session_id IS NOT NULL")
    place.index("user_id_expires_at", "quota_reservations", "user_id", "expires_at")
    place.create(
        "sessions",
        row_number(),
        column("id", TEXT),
        column("user_id", TEXT, null=True),
        column("status", TEXT, default="'active'"),
        column("active_branch", WHOLE, default="0"),
        column("branch_messages", WHOLE, default="0"),
        column("branch_turns", WHOLE, default="0"),
        column("last_branch", WHOLE, default="0"),
        column("last_seq", WHOLE, default="0"),
        column("turn", WHOLE, default="0"),
        column("message_count", WHOLE, default="0"),
        column("total_tokens", WHOLE, default="0"),
        column("total_cost", NANOS, default="0"),
        column("activity", WHOLE),
        column("listed_activity", WHOLE, default="0"),
        column("ttl_seconds", WHOLE, null=True),
        column("expires_at", INSTANT, null=True),
        column("created_at", INSTANT),
        column("last_active_at", INSTANT),
        column("newest_at", INSTANT),
        column("in_order", FLAG, default="true"),
        column("has_failures", FLAG, default="false"),
        column("title", TEXT, null=True),
        column("model", TEXT, null=True),
        primary_key("pk"),
        check("counters", "message_count >= 0 AND total_tokens >= 0 AND total_cost >= 0"),
        check(
            "status",
            "status = 'active' OR status = 'paused' OR status = 'waiting_user' OR "
            "status = 'completed' OR status = 'cancelled' OR status = 'failed'",
        ),
        references("user_id", "users", "id", ondelete="CASCADE"),
        unique("id"),
    )
    place.index("expires_at", "sessions", "expires_at", where="expires_at IS NOT NULL")
    failed = ("sessions", "status", "listed_activity")
    place.index("failed", *failed, where="has_failures")
    place.index(
        "failed_user_id",
        "sessions",
        "user_id",
        "status",
        "listed_activity",
        where="has_failures AND user_id IS NOT NULL",
    )
    place.index("status_listed_activity", "sessions", "status", "listed_activity")
    place.index(
        "user_id_status_listed_activity",
        "sessions",
        "user_id",
        "status",
        "listed_activity",
        where="user_id IS NOT NULL",
    )
    place.create(
        "user_preferences",
        column("digest", TEXT),
        column("user_id", TEXT),
        primary_key("digest", "user_id"),
        references("user_id", "users", "id", ondelete="CASCADE"),
    )
    place.index("user_id", "user_preferences", "user_id")
    place.create(
        "branches",
        column("session", WHOLE),
        column("number", WHOLE),
        column("name", TEXT),
        column("parent", WHOLE, null=True),
        column("fork_seq", WHOLE, default="0"),
        column("fork_turn", WHOLE, default="0"),
        column("created_at", INSTANT),
        column("line", JSON),
        column("messages", WHOLE, default="0"),
        column("turns", WHOLE, default="0"),
        column("turn", WHOLE, default="0"),
        column("gone", FLAG, default="false"),
        column("reserved", FLAG, default="false"),
        primary_key("session", "number"),
        check("parent", "number >= 0 AND (parent < number OR parent IS NULL)"),
        references("session", "sessions", "pk", ondelete="CASCADE"),
        references("session parent", "branches", "session number"),
    )
    place.index("session_name", "branches", "session", "name", unique=True)
    place.index("session_parent", "branches", "session", "parent")
    place.create(
        "checkpoint_threads",
        row_number(),
        column("id", TEXT),
        column("user_id", TEXT, null=True),
        column("session_id", TEXT, null=True),
        column("activity", WHOLE),
        column("last_line", WHOLE, default="0"),
        column("created_at", INSTANT),
        primary_key("pk"),
        references("session_id", "sessions", "id", ondelete="CASCADE"),
        references("user_id", "users", "id", ondelete="CASCADE"),
        unique("id"),
    )
    place.index("activity", "checkpoint_threads", "activity")
    place.index(
        "session_id_activity",
        "checkpoint_threads",
        "session_id",
        "activity",
        where="session_id IS NOT NULL",
    )
    place.index(
        "user_id_activity", "checkpoint_threads", "user_id", "activity", where="user_id IS NOT NULL"
    )
    place.create(
        "session_data",
        column("session_id", TEXT),
        column("version", WHOLE, default="1"),
        column("question", TEXT, null=True),
        column("asked_at", INSTANT, null=True),
        column("failure", TEXT, null=True),
        column("metadata", JSON),
        column("config", JSON),
        column("state", JSON, null=True),
        column("updated_at", INSTANT),
        column("layout", JSON, null=True),
        column("epoch", WHOLE, default="0"),
        primary_key("session_id"),
        references("session_id", "sessions", "id", ondelete="CASCADE"),
    )
    place.create(
        "summaries",
        column("session", WHOLE),
        column("branch", WHOLE),
        column("content", TEXT),
        column("metadata", JSON),
        column("through_seq", WHOLE, null=True),
        column("created_at", INSTANT),
        column("updated_at", INSTANT),
        primary_key("session", "branch"),
        references("session", "sessions", "pk", ondelete="CASCADE"),
    )
    place.create(
        "tasks",
        row_number(),
        column("id", OWN_ID),
        column("session_id", TEXT, null=True),
        column("queue", TEXT, default="'default'"),
        column("kind", TEXT),
        column("status", TEXT, default="'pending'"),
        column("priority", WHOLE, default="0"),
        column("run_at", INSTANT),
        column("attempts", WHOLE, default="0"),
        column("failures", WHOLE, default="0"),
        column("max_retries", WHOLE, default="0"),
        column("alone_in_session", FLAG, default="false"),
        column("cancel_requested", FLAG, default="false"),
        column("fence", WHOLE, default="0"),
        column("worker", TEXT, null=True),
        column("lease_expires_at", INSTANT, null=True),
        column("idempotency_key", TEXT, null=True),
        column("payload", JSON, null=True),
        column("result", JSON, null=True),
        column("error", TEXT, null=True),
        column("created_at", INSTANT),
        column("updated_at", INSTANT),
        column("started_at", INSTANT, null=True),
        column("paused_at", INSTANT, null=True),
        column("completed_at", INSTANT, null=True),
        column("failed_at", INSTANT, null=True),
        column("cancelled_at", INSTANT, null=True),
        column("dead_at", INSTANT, null=True),
        primary_key("pk"),
        check("alone_in_session", "session_id IS NOT NULL OR NOT alone_in_session"),
        check("attempts", "attempts >= 0 AND failures >= 0 AND max_retries >= 0"),
        check(
            "status",
            "status = 'pending' OR status = 'running' OR status = 'paused' OR "
            "status = 'completed' OR status = 'failed' OR status = 'cancelled' OR "
            "status = 'dead'",
        ),
        references("session_id", "sessions", "id", ondelete="CASCADE"),
        unique("id"),
    )
    place.index(
        "claim", "tasks", "queue", "priority DESC", "pk", "run_at", where="status = 'pending'"
    )
    place.index("due", "tasks", "queue", "run_at", where="status = 'pending'")
    place.index("lease_expires_at", "tasks", "lease_expires_at", where="status = 'running'")
    place.index(
        "queue_idempotency_key",
        "tasks",
        "queue",
        "idempotency_key",
        unique=True,
        where="idempotency_key IS NOT NULL",
    )
    place.index("queue_pk", "tasks", "queue", "pk")
    place.index("queue_status_pk", "tasks", "queue", "status", "pk")
    place.index("session_id_pk", "tasks", "session_id", "pk")
    place.index("session_id_status_pk", "tasks", "session_id", "status", "pk")
    place.index("status_pk", "tasks", "status", "pk")
    place.index(
        "!running_alone",
        "tasks",
        "session_id",
        unique=True,
        where="status = 'running' AND alone_in_session",
    )
    place.create(
        "turn_usage",
        row_number(),
        column("id", OWN_ID),
        column("session_id", TEXT),
        column("branch", WHOLE),
        column("turn", WHOLE),
        column("model", TEXT, null=True),
        column("requests", WHOLE),
        column("input_tokens", WHOLE),
        column("output_tokens", WHOLE),
        column("total_tokens", WHOLE),
        column("cost", NANOS, null=True),
        column("details", JSON, null=True),
        column("created_at", INSTANT),
        primary_key("pk"),
        check(
            "amounts",
            "requests >= 0 AND input_tokens >= 0 AND output_tokens >= 0 AND "
            "total_tokens >= 0 AND cost >= 0",
        ),
        references("session_id", "sessions", "id", ondelete="CASCADE"),
        unique("id"),
    )
    place.index("created_at", "turn_usage", "created_at")
    place.index("model_created_at", "turn_usage", "model", "created_at")
    place.index("session_id_branch_turn", "turn_usage", "session_id", "branch", "turn")
    place.index("session_id_created_at", "turn_usage", "session_id", "created_at")
    place.create(
        "checkpoint_values",
        column("thread_id", TEXT),
        column("line", WHOLE),
        column("start", WHOLE),
        column("prefix", WHOLE, null=True),
        column("suffix", WHOLE, default="0"),
        column("data", BYTES),
        primary_key("thread_id", "line", "start"),
        check("start", "start >= 0 AND prefix >= 0 AND suffix >= 0"),
        references("thread_id", "checkpoint_threads", "id", ondelete="CASCADE"),
    )
    place.create(
        "checkpoint_writes",
        column("thread_id", TEXT),
        column("namespace", TEXT),
        column("checkpoint_id", TEXT),
        column("task_id", TEXT),
        column("position", WHOLE),
        column("task_path", TEXT, default="''"),
        column("channel", TEXT),
        column("kind", TEXT),
        column("encoding", TEXT),
        column("data", BYTES),
        primary_key("thread_id", "namespace", "checkpoint_id", "task_id", "position"),
        check("encoding", "encoding = 'raw' OR encoding = 'zlib'"),
        check("kind", "kind = 'json' OR kind = 'bytes'"),
        references("thread_id", "checkpoint_threads", "id", ondelete="CASCADE"),
    )
    place.create(
        "checkpoints",
        row_number(),
        column("thread_id", TEXT),
        column("namespace", TEXT, default="''"),
        column("id", TEXT),
        column("parent_id", TEXT, null=True),
        column("step", WHOLE),
        column("run_id", TEXT, null=True),
        column("tags", JSON),
        column("summary", TEXT),
        column("next_node", TEXT),
        column("metadata", JSON, null=True),
        column("created_at", INSTANT),
        column("entries", BYTES, null=True),
        column("lines", JSON, null=True),
        primary_key("pk"),
        check("step", "step >= 0"),
        references("thread_id", "checkpoint_threads", "id", ondelete="CASCADE"),
        references("thread_id namespace parent_id", "checkpoints", "thread_id namespace id"),
        unique("thread_id", "namespace", "id"),
    )
    place.index("run_id_pk", "checkpoints", "run_id", "pk", where="run_id IS NOT NULL")
    place.index(
        "thread_id_namespace_parent_id", "checkpoints", "thread_id", "namespace", "parent_id"
    )
    place.index(
        "thread_id_namespace_step_pk", "checkpoints", "thread_id", "namespace", "step", "pk"
    )
    place.index("!id", "checkpoints", "id", unique=True, where="namespace = ''")
    place.create(
        "messages",
        row_number(),
        column("id", OWN_ID),
        column("session", WHOLE),
        column("branch", WHOLE),
        column("seq", WHOLE),
        column("turn", WHOLE),
        column("role", TEXT),
        column("status", TEXT, default="'complete'"),
        column("token_count", WHOLE, default="0"),
        column("cost", NANOS, default="0"),
        column("created_at", INSTANT),
        column("name", TEXT, null=True),
        column("tool_call_id", TEXT, null=True),
        column("external_id", TEXT, null=True),
        column("idempotency_key", TEXT, null=True),
        column("content", TEXT, null=True),
        column("blocks", JSON, null=True),
        column("tool_calls", JSON, null=True),
        column("metadata", JSON, null=True),
        column("payload", JSON, null=True),
        column("chat_keys", JSON, null=True),
        primary_key("pk"),
        check("amounts", "token_count >= 0 AND cost >= 0"),
        check("content", "content IS NULL OR blocks IS NULL"),
        check(
            "role",
            "role = 'system' OR role = 'developer' OR role = 'user' OR role = 'assistant' OR "
            "role = 'tool'",
        ),
        check("status", "status = 'complete' OR status = 'streaming' OR status = 'incomplete'"),
        references("session branch", "branches", "session number", ondelete="CASCADE"),
        unique("id"),
    )
    place.index("session_branch_seq", "messages", "session", "branch", "seq", unique=True)
    place.index(
        "session_branch_turn", "messages", "session", "branch", "turn", where="role = 'user'"
    )
    place.index(
        "session_external_id",
        "messages",
        "session",
        "external_id",
        unique=True,
        where="external_id IS NOT NULL",
    )
    place.index(
        "session_idempotency_key",
        "messages",
        "session",
        "idempotency_key",
        unique=True,
        where="idempotency_key IS NOT NULL",
    )
    place.index("status_pk", "messages", "status", "pk", where="status <> 'complete'")
    place.create(
        "attachments",
        row_number(),
        column("id", OWN_ID),
        column("message_id", OWN_ID),
        column("session", WHOLE),
        column("digest", TEXT),
        column("media_type", TEXT),
        column("name", TEXT, null=True),
        column("created_at", INSTANT),
        primary_key("pk"),
        references("digest", "blobs", "digest"),
        references("message_id", "messages", "id", ondelete="CASCADE"),
        unique("id"),
    )
    place.index("digest", "attachments", "digest")
    place.index("message_id_pk", "attachments", "message_id", "pk")
    place.index("session_pk", "attachments", "session", "pk")
    place.create(
        "message_chunks",
        column("message_id", OWN_ID),
        column("position", WHOLE),
        column("session", WHOLE),
        column("content", TEXT),
        column("created_at", INSTANT, null=True),
        primary_key("message_id", "position"),
        references("message_id", "messages", "id", ondelete="CASCADE"),
    )
    place.index("session", "message_chunks", "session")
    place.create(
        "message_marks",
        column("message_id", OWN_ID),
        column("mark", TEXT),
        column("session", WHOLE),
        column("seq", WHOLE),
        primary_key("message_id", "mark"),
        references("message_id", "messages", "id", ondelete="CASCADE"),
    )
    place.index("session_mark_seq", "message_marks", "session", "mark", "seq")
    place.create(
        "message_tool_calls",
        column("message_id", OWN_ID),
        column("position", WHOLE),
        column("session", WHOLE),
        column("seq", WHOLE),
        column("name", TEXT),
        column("call_id", TEXT, null=True),
        primary_key("message_id", "position"),
        references("message_id", "messages", "id", ondelete="CASCADE"),
    )
    place.index("session_call_id", "message_tool_calls", "session", "call_id")
    place.index("session_name_seq", "message_tool_calls", "session", "name", "seq")
    place.create(
        "message_vectors",
        column("message_pk", ROW_NUMBER),
        column("model", WHOLE),
        column("session", WHOLE),
        column("vectors", BYTES),
        primary_key("message_pk", "model"),
        references("message_pk", "messages", "pk", ondelete="CASCADE"),
    )
    place.index("session_message_pk", "message_vectors", "session", "message_pk")
    place.create(
        "tool_logs",
        row_number(),
        column("id", OWN_ID),
        column("session_id", TEXT),
        column("message_id", OWN_ID, null=True),
        column("tool", TEXT),
        column("success", FLAG),
        column("elapsed_ms", REAL, null=True),
        column("created_at", INSTANT),
        column("error", TEXT, null=True),
        column("input", JSON, null=True),
        column("output", JSON, null=True),
        column("tool_call_id", TEXT, null=True),
        primary_key("pk"),
        check("elapsed_ms", "elapsed_ms >= 0"),
        references("message_id", "messages", "id", ondelete="SET NULL"),
        references("session_id", "sessions", "id", ondelete="CASCADE"),
        unique("id"),
    )
    place.index("created_at_pk", "tool_logs", "created_at", "pk")
    place.index("failed_created_at_pk", "tool_logs", "created_at", "pk", where="NOT success")
    place.index("failed_pk", "tool_logs", "pk", where="NOT success")
    failed = ("tool_logs", "tool", "created_at", "pk")
    place.index("failed_tool_created_at_pk", *failed, where="NOT success")
    place.index("failed_tool_pk", "tool_logs", "tool", "pk", where="NOT success")
    place.index("message_id", "tool_logs", "message_id", where="message_id IS NOT NULL")
    place.index("session_id_created_at_pk", "tool_logs", "session_id", "created_at", "pk")
    place.index("session_id_pk", "tool_logs", "session_id", "pk")
    place.index("session_id_tool_pk", "tool_logs", "session_id", "tool", "pk")
    place.index("tool_created_at_pk", "tool_logs", "tool", "created_at", "pk")
    place.index("tool_pk", "tool_logs", "tool", "pk")
