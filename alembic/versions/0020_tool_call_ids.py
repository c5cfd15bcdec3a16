"""Tool logs name the call that they are of.

A downgrade drops the ids of calls.

Revision ID: 0020
Revises: 0018
"""

from agentstore.database.revisions import TEXT, Place, column

revision = "0020"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column: no log has any yet."""
    Place().add("tool_logs", column("tool_call_id", TEXT, null=True))


def downgrade() -> None:
    """Drop it."""
    Place().drop_column("tool_logs", "tool_call_id")
