"""Branches that share what they have in common, and when each piece of a stream came.

A branch is whole in itself, or it is made of segments of itself and of others. A branch that is
gone may leave rows that others show.

Revision ID: 0003
Revises: 0002
"""

from agentstore.database.revisions import (
    FLAG,
    INSTANT,
    TEXT,
    WHOLE,
    Place,
    column,
    primary_key,
    references,
)

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the segments, and what refers to them: columns without constraints, which every engine
    adds without copying a table.
    """
    place = Place()
    place.create(
        "branch_segments",
        column("session_id", TEXT),
        column("number", WHOLE),
        column("branch", WHOLE),
        column("first_seq", WHOLE),
        column("last_seq", WHOLE),
        column("previous", WHOLE, null=True),
        primary_key("session_id", "number"),
        references("session_id", "sessions", "id", ondelete="CASCADE"),
        references("session_id previous", "branch_segments", "session_id number"),
    )
    place.index("session_id_branch", "branch_segments", "session_id", "branch")
    place.index("session_id_previous", "branch_segments", "session_id", "previous")
    place.add("sessions", column("tip", WHOLE, null=True))
    place.add("branches", column("tip", WHOLE, null=True))
    place.add("branches", column("gone", FLAG, default="false"))
    place.index("session_id_tip", "branches", "session_id", "tip")
    place.add("message_chunks", column("created_at", INSTANT, null=True))


def downgrade() -> None:
    """Drop all of it. What a branch shows of others is lost to it; no message is."""
    place = Place()
    place.drop_column("message_chunks", "created_at")
    place.drop_index("session_id_tip", "branches")
    place.drop_column("branches", "gone")
    place.drop_column("branches", "tip")
    place.drop_column("sessions", "tip")
    place.drop("branch_segments")
