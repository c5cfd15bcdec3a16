"""An index that has what a session used, so that adding it up reads no row.

It takes the place of the one that had the session and the time alone. While it is built, usage
cannot be recorded, but read. An index of this name that is there already is taken as it is, unless
a server could not finish it.

On SQLite the indexes of what failed are made again: of two that serve a query as well, it takes the
one that was made last, and those of what failed are shorter.

Revision ID: 0102
Revises: 0101
"""

from agentstore.database.revisions import Place

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None

COUNTED = ("requests", "input_tokens", "output_tokens", "total_tokens", "cost")

FAILED = (
    ("failed", "has_failures", "sessions", "status", "listed_activity"),
    (
        "failed_user_id",
        "has_failures AND user_id IS NOT NULL",
        "sessions",
        "user_id",
        "status",
        "listed_activity",
    ),
    ("failed_created_at_pk", "NOT success", "tool_logs", "created_at", "pk"),
    ("failed_tool_created_at_pk", "NOT success", "tool_logs", "tool", "created_at", "pk"),
    ("failed_tool_pk", "NOT success", "tool_logs", "tool", "pk"),
)


def upgrade() -> None:
    """Make the index with what is added up, then drop the one without."""
    place = Place()
    place.index("sums", "turn_usage", "session_id", "created_at", *COUNTED, if_missing=True)
    place.drop_index("session_id_created_at", "turn_usage")
    for label, where, table, *columns in () if place.on_postgresql else FAILED:
        place.drop_index(label, table)
        place.index(label, table, *columns, where=where)


def downgrade() -> None:
    """Make the index without it again; nothing is lost."""
    place = Place()
    place.index("session_id_created_at", "turn_usage", "session_id", "created_at")
    place.drop_index("sums", "turn_usage")
