"""Memories: what agents keep across conversations, by namespace and key.

Revision ID: 0016
Revises: 0015
"""

from alembic import op

from agentstore.database.revisions import (
    BYTES,
    JSON,
    MICROS,
    TEXT,
    WHOLE,
    Place,
    column,
    primary_key,
    references,
    row_number,
    row_security,
    unique,
)

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, with its policy."""
    place = Place()
    place.create(
        "memories",
        row_number(),
        column("user_id", TEXT, null=True),
        column("place", BYTES),
        column("key", TEXT),
        column("value", JSON),
        column("ttl", WHOLE, null=True),
        column("created_at", MICROS),
        column("updated_at", MICROS),
        column("expires_at", MICROS, null=True),
        primary_key("pk"),
        unique("place", "key"),
        references("user_id", "users", "id", ondelete="CASCADE"),
    )
    place.index("place_updated_at_pk", "memories", "place", "updated_at", "pk")
    place.index("user_id", "memories", "user_id", where="user_id IS NOT NULL")
    place.index("expires_at_pk", "memories", "expires_at", "pk", where="expires_at IS NOT NULL")
    if place.on_postgresql:
        for statement in row_security.policy(place.names, "memories"):
            op.execute(statement)


def downgrade() -> None:
    """Drop it, with all memories."""
    Place().drop("memories")
