"""On SQLite, row numbers of messages and activity count together, and a save counts nowhere else.

AUTOINCREMENT kept the largest row number in a table of SQLite's, which each save wrote. A table of
one row and a trigger keep it instead, and are written only when the newest message is deleted.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import (
    INSTANT,
    JSON,
    NANOS,
    TEXT,
    WHOLE,
    Place,
    check,
    column,
    primary_key,
    references,
    row_number,
    sqlite_activity,
    sqlite_search,
    unique,
)

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

COUNTED = sa.table("sqlite_sequence", sa.column("name", TEXT), sa.column("seq", WHOLE))


def upgrade() -> None:
    """Make the counter, and the table of messages without the other."""
    place = Place()
    if place.on_postgresql:
        return
    counter, kept = sqlite_activity.objects(place.prefix).values()
    op.execute(counter)
    last = sa.select(sa.func.max(COUNTED.c.seq)).where(COUNTED.c.name == place.table("messages"))
    taken = sa.func.coalesce(last.scalar_subquery(), 0)
    op.execute(_counter(place).insert().values(number=1, taken=taken))
    _copy_messages(place, counts=False)
    op.execute(kept)


def downgrade() -> None:
    """Let SQLite count again."""
    place = Place()
    if place.on_postgresql:
        return
    op.execute(f"DROP TRIGGER {place.table('activity_kept')}")
    _copy_messages(place, counts=True)
    name, counter = place.table("messages"), _counter(place)
    newest = sa.select(sa.func.max(sa.table(name, sa.column("pk", WHOLE)).c.pk)).scalar_subquery()
    last = sa.select(sa.literal(name), sa.func.max(counter.c.taken, sa.func.coalesce(newest, 0)))
    op.execute(COUNTED.delete().where(COUNTED.c.name == name))
    op.execute(COUNTED.insert().from_select(["name", "seq"], last))
    place.drop("activity")


def _counter(place: Place) -> sa.TableClause:
    return sa.table(place.table("activity"), sa.column("number", WHOLE), sa.column("taken", WHOLE))


def _copy_messages(place: Place, *, counts: bool) -> None:
    """Copy the table, which is the only way to have AUTOINCREMENT or not.

    The old one makes room under its name first, so that what refers to messages goes on doing so.
    """
    messages, before = place.table("messages"), place.table("messages_before")
    op.execute("PRAGMA legacy_alter_table=ON")
    op.execute(f'ALTER TABLE "{messages}" RENAME TO "{before}"')
    op.execute("PRAGMA legacy_alter_table=OFF")
    place.create(
        "messages",
        row_number(),
        column("id", TEXT),
        column("session_id", TEXT),
        column("branch", WHOLE),
        column("seq", WHOLE),
        column("turn", WHOLE),
        column("role", TEXT),
        column("status", TEXT, default="'complete'"),
        column("token_count", WHOLE, default="0"),
        column("cost", NANOS, default="0"),
        column("created_at", INSTANT),
        column("name", TEXT, null=True),
        column("tool_call_id", TEXT, null=True),
        column("external_id", TEXT, null=True),
        column("idempotency_key", TEXT, null=True),
        column("content", TEXT, null=True),
        column("blocks", JSON, null=True),
        column("tool_calls", JSON, null=True),
        column("metadata", JSON, null=True),
        column("payload", JSON, null=True),
        column("chat_keys", JSON, null=True),
        primary_key("pk"),
        check("amounts", "token_count >= 0 AND cost >= 0"),
        check("content", "content IS NULL OR blocks IS NULL"),
        check("role", "role IN ('system', 'developer', 'user', 'assistant', 'tool')"),
        check("status", "status IN ('complete', 'streaming', 'incomplete')"),
        references("session_id branch", "branches", "session_id number", ondelete="CASCADE"),
        unique("id"),
        sqlite_autoincrement=counts,
    )
    op.execute(f'INSERT INTO "{messages}" SELECT * FROM "{before}"')  # noqa: S608
    op.execute(f'DROP TABLE "{before}"')
    place.index("session_id_branch_seq", "messages", "session_id", "branch", "seq", unique=True)
    place.index(
        "session_id_branch_turn", "messages", "session_id", "branch", "turn", where="role = 'user'"
    )
    place.index(
        "session_id_external_id",
        "messages",
        "session_id",
        "external_id",
        unique=True,
        where="external_id IS NOT NULL",
    )
    place.index(
        "session_id_idempotency_key",
        "messages",
        "session_id",
        "idempotency_key",
        unique=True,
        where="idempotency_key IS NOT NULL",
    )
    place.index("status_pk", "messages", "status", "pk", where="status <> 'complete'")
    for name, statement in sqlite_search.objects(place.prefix).items():
        if statement.startswith("CREATE TRIGGER"):
            op.execute(f"DROP TRIGGER IF EXISTS {name}")
            op.execute(statement)
