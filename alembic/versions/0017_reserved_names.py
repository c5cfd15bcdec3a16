"""Names of branches that are never used again, and how often a session began again.

Revision ID: 0017
Revises: 0016
"""

from agentstore.database.revisions import FLAG, WHOLE, Place, column

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both: no name is reserved yet, and no session is known to have begun again."""
    place = Place()
    place.add("branches", column("reserved", FLAG, default="false"))
    place.add("session_data", column("epoch", WHOLE, default="0"))


def downgrade() -> None:
    """Drop both: all names are free that no branch has."""
    place = Place()
    place.drop_column("session_data", "epoch")
    place.drop_column("branches", "reserved")
