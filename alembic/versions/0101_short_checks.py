"""Shorter CHECKs on PostgreSQL, which parses them again for each statement that writes.

They refuse the same rows, by the same names. Nothing else changes, and on SQLite nothing at all.
Each table is locked for a moment, not to be read either; its rows are checked behind the commit,
while others read and write.

Revision ID: 0101
Revises: 0100
"""

from alembic import op

from agentstore.database.revisions import Place

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None

SHORT = {
    "sessions": {
        "status": "status = ANY ('{active,paused,waiting_user,completed,cancelled,failed}')",
        "counters": "(message_count | total_tokens | total_cost) >= 0",
    },
    "messages": {
        "role": "role = ANY ('{system,developer,user,assistant,tool}')",
        "status": "status = ANY ('{complete,streaming,incomplete}')",
        "amounts": "(token_count | cost) >= 0",
    },
    "turn_usage": {
        "amounts": "(requests | input_tokens | output_tokens | total_tokens) >= 0 AND cost >= 0",
    },
    "tasks": {
        "status": "status = ANY ('{pending,running,paused,completed,failed,cancelled,dead}')",
        "attempts": "(attempts | failures | max_retries) >= 0",
    },
    "checkpoint_writes": {
        "kind": "kind = ANY ('{json,bytes}')",
        "encoding": "encoding = ANY ('{raw,zlib}')",
    },
}

LONG = {
    "sessions": {
        "status": (
            "status = 'active' OR status = 'paused' OR status = 'waiting_user' OR "
            "status = 'completed' OR status = 'cancelled' OR status = 'failed'"
        ),
        "counters": "message_count >= 0 AND total_tokens >= 0 AND total_cost >= 0",
    },
    "messages": {
        "role": (
            "role = 'system' OR role = 'developer' OR role = 'user' OR role = 'assistant' OR "
            "role = 'tool'"
        ),
        "status": "status = 'complete' OR status = 'streaming' OR status = 'incomplete'",
        "amounts": "token_count >= 0 AND cost >= 0",
    },
    "turn_usage": {
        "amounts": (
            "requests >= 0 AND input_tokens >= 0 AND output_tokens >= 0 AND "
            "total_tokens >= 0 AND cost >= 0"
        ),
    },
    "tasks": {
        "status": (
            "status = 'pending' OR status = 'running' OR status = 'paused' OR "
            "status = 'completed' OR status = 'failed' OR status = 'cancelled' OR "
            "status = 'dead'"
        ),
        "attempts": "attempts >= 0 AND failures >= 0 AND max_retries >= 0",
    },
    "checkpoint_writes": {
        "kind": "kind = 'json' OR kind = 'bytes'",
        "encoding": "encoding = 'raw' OR encoding = 'zlib'",
    },
}


def upgrade() -> None:
    """Put the short ones in the place of the long ones."""
    _replace(SHORT)


def downgrade() -> None:
    """Put the long ones back."""
    _replace(LONG)


def _replace(checks: dict[str, dict[str, str]]) -> None:
    place = Place()
    if not place.on_postgresql:
        return
    for name, conditions in checks.items():
        table = place.table(name)
        for label, condition in conditions.items():
            constraint = op.f(f"ck_{table}_{label}")
            op.drop_constraint(constraint, table, type_="check", schema=place.schema)
            op.create_check_constraint(
                constraint,
                table,
                condition,
                schema=place.schema,
                postgresql_not_valid=not op.get_context().as_sql,  # nothing follows a script
            )
