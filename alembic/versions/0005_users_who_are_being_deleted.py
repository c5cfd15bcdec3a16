"""Users who are being deleted in pieces: a mark on their rows, and an index of those that have it.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa

from agentstore.database.revisions import JSON, Place

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the mark, which nobody has yet."""
    place = Place()
    place.add("users", lambda place, table: sa.Column("deleting", JSON))
    place.index("deleting", "users", "id", where="deleting IS NOT NULL")


def downgrade() -> None:
    """Take the mark away: what is left of users who were being deleted can be seen again."""
    place = Place()
    place.drop_index("deleting", "users")
    place.drop_column("users", "deleting")
