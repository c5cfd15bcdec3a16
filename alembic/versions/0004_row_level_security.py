"""Row-level security: in a scope, PostgreSQL itself hides what belongs to other users.

Nothing changes for the owner of the tables who works without a scope, nor on SQLite.

Revision ID: 0004
Revises: 0003
"""

from alembic import op

from agentstore.database.revisions import Place, row_security

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Put the policies in force."""
    place = Place()
    if place.on_postgresql:
        for statement in row_security.policies(place.names):
            op.execute(statement)


def downgrade() -> None:
    """Take them away; who sees what is then a matter of the store alone."""
    place = Place()
    if place.on_postgresql:
        for statement in row_security.drops(place.names):
            op.execute(statement)
