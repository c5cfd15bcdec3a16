"""The table of memories; see ``agentstore.models.memories``."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text

from agentstore.schema.base import (
    BYTES,
    INSTANT,
    OBJECT,
    TEXT,
    WHOLE,
    PartialIndex,
    column,
    nullable,
    row_number,
    table,
)

_OF_A_USER = text("user_id IS NOT NULL")

_EXPIRING = text("expires_at IS NOT NULL")

memories = table(
    "memories",
    row_number(),
    nullable("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE")),
    column("place", BYTES),
    column("key", TEXT),
    column("value", OBJECT),
    nullable("ttl", WHOLE),
    column("created_at", INSTANT),
    column("updated_at", INSTANT),
    nullable("expires_at", INSTANT),
    UniqueConstraint("place", "key"),
    Index(None, "place", "updated_at", "pk"),
    PartialIndex(None, "user_id", where=_OF_A_USER),
    PartialIndex(None, "expires_at", "pk", where=_EXPIRING),
)
