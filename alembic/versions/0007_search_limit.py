"""How many characters of a message are searched, and on PostgreSQL, whose changes wait.

The database keeps the number with its index. An index that holds a longer message goes on holding
all of it, until it is rebuilt.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import TEXT, Place, postgresql_search

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

WHOLE, LIMITED = "1", "1:250000"
"""How an index was made: by which version of the segmentation, of how many characters."""

CHARACTERS = 250_000


def upgrade() -> None:
    """Note the limit where no message is longer; sort the queue by sessions."""
    place = Place()
    _rename(place, WHOLE, LIMITED)
    if place.on_postgresql:
        for statement in postgresql_search.queue_by_session(place.schema, place.prefix):
            op.execute(statement)


def downgrade() -> None:
    """Forget the limit where no message is longer; elsewhere the index is to be rebuilt."""
    place = Place()
    _rename(place, LIMITED, WHOLE)
    if place.on_postgresql:
        for statement in postgresql_search.queue_by_session(place.schema, place.prefix, back=True):
            op.execute(statement)


def _rename(place: Place, before: str, after: str) -> None:
    state = sa.table(
        place.table("search_state"), sa.column("segmentation", TEXT), schema=place.schema
    )
    # SQLite's queue keeps what the index holds of messages that were changed or deleted since.
    holders = ["messages"] if place.on_postgresql else ["messages", "search_queue"]
    none_longer = [~sa.select(sa.literal(1)).where(_longer(place, n)).exists() for n in holders]
    op.execute(
        state.update()
        .where(state.c.segmentation == before, *none_longer)
        .values(segmentation=after)
    )


def _longer(place: Place, name: str) -> sa.ColumnElement[bool]:
    columns = [sa.column(column, TEXT) for column in ("content", "blocks", "payload")]
    holder = sa.table(place.table(name), *columns, schema=place.schema)
    return sa.or_(*(sa.func.length(sa.cast(column, TEXT)) > CHARACTERS for column in holder.c))
