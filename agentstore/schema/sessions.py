"""The tables of sessions and their branches; see ``agentstore.models.sessions``."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, text

from agentstore.schema.base import (
    FLAG,
    INSTANT,
    JSON,
    MONEY,
    OBJECT,
    TEXT,
    WHOLE,
    PartialIndex,
    column,
    nullable,
    one_of,
    row_number,
    table,
)
from agentstore.schema.session_ids import session_id
from agentstore.values.states import SESSION_STATUSES
from agentstore.values.types import Word

_OF_A_USER = text("user_id IS NOT NULL")

_NOT_NULL_EXPIRY = text("expires_at IS NOT NULL")

sessions = table(
    "sessions",
    row_number(),
    column("id", TEXT, unique=True),
    nullable("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE")),
    column("status", Word(SESSION_STATUSES), server_default=text("'active'")),
    column("active_branch", WHOLE, server_default=text("0")),
    nullable("tip", WHOLE),
    column("last_branch", WHOLE, server_default=text("0")),
    column("last_seq", WHOLE, server_default=text("0")),
    column("turn", WHOLE, server_default=text("0")),
    column("message_count", WHOLE, server_default=text("0")),
    column("total_tokens", WHOLE, server_default=text("0")),
    column("total_cost", MONEY, server_default=text("0")),
    column("activity", WHOLE),
    column("listed_activity", WHOLE, server_default=text("0")),
    nullable("ttl_seconds", WHOLE),
    nullable("expires_at", INSTANT),
    column("created_at", INSTANT),
    column("last_active_at", INSTANT),
    column("newest_at", INSTANT),
    column("in_order", FLAG, server_default=text("true")),
    nullable("title", TEXT),
    nullable("model", TEXT),
    CheckConstraint(one_of("status", SESSION_STATUSES), name="status"),
    CheckConstraint(
        "message_count >= 0 AND total_tokens >= 0 AND total_cost >= 0", name="counters"
    ),
    Index(None, "status", "listed_activity"),
    PartialIndex(None, "user_id", "status", "listed_activity", where=_OF_A_USER),
    PartialIndex(None, "expires_at", where=_NOT_NULL_EXPIRY),
)

session_data = table(
    "session_data",
    column("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    column("version", WHOLE, server_default=text("1")),
    nullable("question", TEXT),
    nullable("asked_at", INSTANT),
    column("metadata", OBJECT),
    column("config", OBJECT),
    nullable("state", JSON),
    column("updated_at", INSTANT),
    nullable("layout", JSON),
    column("epoch", WHOLE, server_default=text("0")),
)

branch_segments = table(
    "branch_segments",
    session_id(sessions, ForeignKey("sessions.pk", ondelete="CASCADE"), primary_key=True),
    column("number", WHOLE, primary_key=True, autoincrement=False),
    column("branch", WHOLE),
    column("first_seq", WHOLE),
    column("last_seq", WHOLE),
    nullable("previous", WHOLE),
    column("messages", WHOLE, server_default=text("0")),
    column("turns", WHOLE, server_default=text("0")),
    ForeignKeyConstraint(
        ["session_id", "previous"],
        ["branch_segments.session_id", "branch_segments.number"],
    ),
    Index(None, "session_id", "branch"),
    Index(None, "session_id", "previous"),
)

branches = table(
    "branches",
    session_id(sessions, ForeignKey("sessions.pk", ondelete="CASCADE"), primary_key=True),
    column("number", WHOLE, primary_key=True, autoincrement=False),
    column("name", TEXT),
    nullable("parent", WHOLE),
    column("fork_seq", WHOLE, server_default=text("0")),
    column("fork_turn", WHOLE, server_default=text("0")),
    column("created_at", INSTANT),
    nullable("tip", WHOLE),
    column("gone", FLAG, server_default=text("false")),
    column("own_messages", WHOLE, server_default=text("0")),
    column("own_turns", WHOLE, server_default=text("0")),
    column("reserved", FLAG, server_default=text("false")),
    ForeignKeyConstraint(
        ["session_id", "parent"],
        ["branches.session_id", "branches.number"],
    ),
    CheckConstraint("number >= 0 AND (parent < number OR parent IS NULL)", name="parent"),
    Index(None, "session_id", "name", unique=True),
    Index(None, "session_id", "parent"),
    Index(None, "session_id", "tip"),
)

summaries = table(
    "summaries",
    session_id(sessions, ForeignKey("sessions.pk", ondelete="CASCADE"), primary_key=True),
    column("branch", WHOLE, primary_key=True, autoincrement=False),
    column("content", TEXT),
    column("metadata", OBJECT),
    nullable("through_seq", WHOLE),
    column("created_at", INSTANT),
    column("updated_at", INSTANT),
)
