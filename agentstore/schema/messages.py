"""The tables of messages, and of what is beside them; see ``agentstore.models.messages``."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, text

from agentstore.schema.base import (
    ARRAY,
    BYTES,
    INSTANT,
    JSON,
    MONEY,
    OBJECT,
    OWN_ID,
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
from agentstore.schema.sessions import sessions
from agentstore.values.states import MESSAGE_STATUSES, ROLES
from agentstore.values.types import Word

_EXTERNAL = text("external_id IS NOT NULL")

_IDEMPOTENT = text("idempotency_key IS NOT NULL")

_USER = text("role = 'user'")

_UNFINISHED = text("status <> 'complete'")

messages = table(
    "messages",
    row_number(),
    column("id", OWN_ID, unique=True),
    session_id(sessions),
    column("branch", WHOLE),
    column("seq", WHOLE),
    column("turn", WHOLE),
    column("role", Word(ROLES)),
    column("status", Word(MESSAGE_STATUSES), server_default=text("'complete'")),
    column("token_count", WHOLE, server_default=text("0")),
    column("cost", MONEY, server_default=text("0")),
    column("created_at", INSTANT),
    nullable("name", TEXT),
    nullable("tool_call_id", TEXT),
    nullable("external_id", TEXT),
    nullable("idempotency_key", TEXT),
    nullable("content", TEXT),
    nullable("blocks", ARRAY),
    nullable("tool_calls", ARRAY),
    nullable("metadata", OBJECT),
    nullable("payload", JSON),
    nullable("chat_keys", ARRAY),
    ForeignKeyConstraint(
        ["session_id", "branch"],
        ["branches.session_id", "branches.number"],
        ondelete="CASCADE",
    ),
    CheckConstraint(one_of("role", ROLES), name="role"),
    CheckConstraint(one_of("status", MESSAGE_STATUSES), name="status"),
    CheckConstraint("token_count >= 0 AND cost >= 0", name="amounts"),
    CheckConstraint("content IS NULL OR blocks IS NULL", name="content"),
    Index(None, "session_id", "branch", "seq", unique=True),
    PartialIndex(None, "session_id", "branch", "turn", where=_USER),
    PartialIndex(None, "session_id", "external_id", unique=True, where=_EXTERNAL),
    PartialIndex(None, "session_id", "idempotency_key", unique=True, where=_IDEMPOTENT),
    PartialIndex(None, "status", "pk", where=_UNFINISHED),
)

message_tool_calls = table(
    "message_tool_calls",
    column("message_id", OWN_ID, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    column("position", WHOLE, primary_key=True, autoincrement=False),
    session_id(sessions),
    column("seq", WHOLE),
    column("name", TEXT),
    nullable("call_id", TEXT),
    Index(None, "session_id", "name", "seq"),
    Index(None, "session_id", "call_id"),
)

message_marks = table(
    "message_marks",
    column("message_id", OWN_ID, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    column("mark", TEXT, primary_key=True),
    session_id(sessions),
    column("seq", WHOLE),
    Index(None, "session_id", "mark", "seq"),
)

message_chunks = table(
    "message_chunks",
    column("message_id", OWN_ID, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    column("position", WHOLE, primary_key=True, autoincrement=False),
    session_id(sessions),
    column("content", TEXT),
    nullable("created_at", INSTANT),
    Index(None, "session_id"),
)

blobs = table(
    "blobs",
    column("digest", TEXT, primary_key=True),
    column("size", WHOLE),
    column("data", BYTES),
    column("created_at", INSTANT),
)

attachments = table(
    "attachments",
    row_number(),
    column("id", OWN_ID, unique=True),
    column("message_id", OWN_ID, ForeignKey("messages.id", ondelete="CASCADE")),
    session_id(sessions),
    column("digest", TEXT, ForeignKey("blobs.digest")),
    column("media_type", TEXT),
    nullable("name", TEXT),
    column("created_at", INSTANT),
    Index(None, "message_id", "pk"),
    Index(None, "session_id", "pk"),
    Index(None, "digest"),
)
