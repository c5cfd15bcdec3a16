"""Messages of a window of time are found by their numbers, and no index has their times.

Sessions know the latest time of their messages, and whether the times rise with the numbers.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import FLAG, INSTANT, TEXT, WHOLE, Place, column

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


MINUTE = 60
NEVER = "'1970-01-01T00:00:00.000000+00:00'"


def upgrade() -> None:
    """Add the columns, look through the messages of each branch once, and drop the index."""
    place = Place()
    place.add("sessions", column("newest_at", INSTANT, default=NEVER))
    place.add("sessions", column("in_order", FLAG, default="true"))
    sessions, messages = _tables(place)
    newest = sa.select(sa.func.max(messages.c.created_at))
    theirs = newest.where(messages.c.session_id == sessions.c.id).scalar_subquery()
    known = sa.func.coalesce(theirs, sessions.c.newest_at)
    op.execute(sessions.update().values(newest_at=known))
    so_far = sa.func.max(messages.c.created_at).over(
        partition_by=(messages.c.session_id, messages.c.branch), order_by=messages.c.seq
    )
    rising = sa.select(messages.c.session_id, messages.c.created_at, so_far.label("so_far"))
    each = rising.subquery()
    late = sa.select(each.c.session_id).where(
        each.c.so_far > each.c.created_at, _seconds(place, each) > MINUTE - 0.001
    )
    op.execute(sessions.update().where(sessions.c.id.in_(late)).values(in_order=sa.false()))
    place.drop_index("session_id_created_at", "messages")


def downgrade() -> None:
    """Undo it."""
    place = Place()
    place.index("session_id_created_at", "messages", "session_id", "created_at")
    place.drop_column("sessions", "in_order")
    place.drop_column("sessions", "newest_at")


def _seconds(place: Place, each: sa.Subquery) -> sa.ColumnElement[float]:
    """Give how long a message was created before the latest of those before it."""
    if place.on_postgresql:
        return sa.extract("epoch", sa.func.age(each.c.so_far, each.c.created_at))
    days = sa.func.julianday(each.c.so_far) - sa.func.julianday(each.c.created_at)
    return days * (24 * 60 * 60)


def _tables(place: Place) -> tuple[sa.TableClause, sa.TableClause]:
    sessions = sa.table(
        place.table("sessions"),
        sa.column("id", TEXT),
        sa.column("newest_at", INSTANT),
        sa.column("in_order", FLAG),
        schema=place.schema,
    )
    messages = sa.table(
        place.table("messages"),
        sa.column("session_id", TEXT),
        sa.column("branch", WHOLE),
        sa.column("seq", WHOLE),
        sa.column("created_at", INSTANT),
        schema=place.schema,
    )
    return sessions, messages
