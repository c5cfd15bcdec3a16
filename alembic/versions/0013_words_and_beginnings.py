"""The search index knows the characters that words begin with, and PostgreSQL stores no vectors.

Text is also cut otherwise since, so the index is emptied: messages that are there are indexed by
``agentstore reindex`` or, where they are few, by the first search.

Revision ID: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import TEXT, WHOLE, Place, postgresql_search, sqlite_search

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

BEFORE, AFTER = "1", "2"
"""The versions of the segmentation."""

CHARACTERS = ":250000"


def upgrade() -> None:
    """Change the index, and have every message walked again."""
    _change(back=False)


def downgrade() -> None:
    """Undo it, and have every message walked again."""
    _change(back=True)


def _change(*, back: bool) -> None:
    place = Place()
    if place.on_postgresql:
        statements = postgresql_search.words_as_text(place.schema, place.prefix, back=back)
    else:
        statements = sqlite_search.with_beginnings(place.prefix, back=back)
    for statement in statements:
        op.execute(statement)
    columns = [sa.column("segmentation", TEXT)]
    columns += [sa.column(name, WHOLE) for name in ("indexed_through", "walk_through")]
    state = sa.table(place.table("search_state"), *columns, schema=place.schema)
    made, old, new = state.c.segmentation, *((AFTER, BEFORE) if back else (BEFORE, AFTER))
    characters = sa.case((made == old, CHARACTERS), else_=sa.func.substr(made, 2))
    emptied = {made: sa.literal(new).concat(characters), state.c.indexed_through: sa.literal(0)}
    if place.on_postgresql:  # on SQLite all that is newer is walked
        pk = sa.column("pk", WHOLE)
        messages = sa.table(place.table("messages"), pk, schema=place.schema)
        newest = sa.select(sa.func.coalesce(sa.func.max(pk), 0))
        emptied[state.c.walk_through] = newest.scalar_subquery()
        number = sa.column("message_pk", WHOLE)
        queue = sa.table(place.table("search_queue"), number, schema=place.schema)
        op.execute(queue.delete().where(number.in_(sa.select(pk).select_from(messages))))
    op.execute(state.update().where(sa.or_(made == old, made.like(f"{old}:%"))).values(emptied))
