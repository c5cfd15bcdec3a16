"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from alembic import op

from agentstore.database.revisions import Place
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Say what changes, and why."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Say what is kept."""
    ${downgrades if downgrades else "pass"}
