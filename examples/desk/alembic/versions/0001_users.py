"""The users, as autogenerate wrote it: the key leads to agentstore's, and nothing else is touched.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "users",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("email", sa.String(), nullable=False),
        sa.Column("agent_user_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["agent_user_id"], ["agents_users.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("agent_user_id"),
        sa.UniqueConstraint("email"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("users")
