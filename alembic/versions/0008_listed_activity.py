"""Sessions are listed by an activity that few writes change, so that a save enters no such index.

Activity itself leaves all indexes. On SQLite it is counted on with the row numbers of messages, and
on PostgreSQL the rows of sessions leave room for their next version beside them.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import TEXT, WHOLE, Place, column

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

BEFORE = (("activity",), ("status", "activity"), ("user_id", "activity"))
BEFORE += (("user_id", "status", "activity"),)
AFTER = (("status", "listed_activity"), ("user_id", "status", "listed_activity"))

COUNTED = sa.table("sqlite_sequence", sa.column("name", TEXT), sa.column("seq", WHOLE))


def upgrade() -> None:
    """Add the column, list each session by its activity, and change the indexes."""
    place = Place()
    for columns in BEFORE:
        place.drop_index("_".join(columns), "sessions")
    place.add("sessions", column("listed_activity", WHOLE, default="0"))
    sessions = _sessions(place)
    op.execute(sessions.update().values(listed_activity=sessions.c.activity))
    for columns in AFTER:
        place.index("_".join(columns), "sessions", *columns)
    if place.on_postgresql:
        op.execute(f"ALTER TABLE {_quoted(place)} SET (fillfactor = 70)")
        return
    messages = COUNTED.c.name == place.table("messages")
    largest = sa.select(sa.func.coalesce(sa.func.max(sessions.c.activity), 0)).scalar_subquery()
    so_far = sa.select(COUNTED.c.seq).where(messages)
    there = sa.select(sa.literal(place.table("messages")), largest).where(~so_far.exists())
    op.execute(COUNTED.insert().from_select(["name", "seq"], there))
    op.execute(COUNTED.update().where(messages).values(seq=sa.func.max(COUNTED.c.seq, largest)))


def downgrade() -> None:
    """Undo it; on SQLite the row numbers of messages go on from where they are."""
    place = Place()
    for columns in AFTER:
        place.drop_index("_".join(columns), "sessions")
    place.drop_column("sessions", "listed_activity")
    for columns in BEFORE:
        place.index("_".join(columns), "sessions", *columns)
    if place.on_postgresql:
        op.execute(f"ALTER TABLE {_quoted(place)} RESET (fillfactor)")


def _quoted(place: Place) -> str:
    return op.get_context().dialect.identifier_preparer.format_table(_sessions(place))


def _sessions(place: Place) -> sa.TableClause:
    columns = [sa.column("activity", WHOLE), sa.column("listed_activity", WHOLE)]
    return sa.table(place.table("sessions"), *columns, schema=place.schema)
