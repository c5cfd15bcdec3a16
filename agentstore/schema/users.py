"""The tables of users, what they may spend, and their keys; see ``agentstore.models.users``."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, text

from agentstore.schema.base import (
    FLAG,
    INSTANT,
    OBJECT,
    OWN_ID,
    TEXT,
    WHOLE,
    PartialIndex,
    column,
    nullable,
    row_number,
    table,
)

_DELETING = text("deleting IS NOT NULL")

users = table(
    "users",
    row_number(),
    column("id", TEXT, unique=True),
    column("name", TEXT),
    nullable("email", TEXT),
    nullable("quota_total", WHOLE),
    column("quota_used", WHOLE, server_default=text("0")),
    column("quota_reserved", WHOLE, server_default=text("0")),
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
    column("tokens", WHOLE),
    column("lapsed", FLAG, server_default=text("false")),
    column("created_at", INSTANT),
    column("expires_at", INSTANT),
    CheckConstraint("tokens > 0", name="tokens"),
    Index(None, "user_id", "expires_at"),
    Index(None, "expires_at"),
)
