"""Full-text search over messages: an index of each engine's own, and what keeps it up to date.

Messages that are there already are not indexed here, which may take minutes, but afterwards, by
``agentstore reindex`` or, where they are few, by the first search.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import TEXT, WHOLE, Place, postgresql_search, sqlite_search

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SEGMENTATION = "1"
"""The version of the segmentation that the index, empty as it is, counts as made with."""


def upgrade() -> None:
    """Create the index, its queue and its triggers; then note which messages are to be walked."""
    place = Place()
    if place.on_postgresql:
        objects = postgresql_search.objects(place.schema, place.prefix)
    else:
        objects = sqlite_search.objects(place.prefix)
    for statement in objects.values():
        op.execute(statement)
    newest = None
    if place.on_postgresql:  # from here on the triggers see every message
        messages = sa.table(place.table("messages"), sa.column("pk"), schema=place.schema)
        newest = sa.select(sa.func.coalesce(sa.func.max(messages.c.pk), 0)).scalar_subquery()
    state = sa.table(
        place.table("search_state"),
        sa.column("number", WHOLE),
        sa.column("segmentation", TEXT),
        sa.column("indexed_through", WHOLE),
        sa.column("walk_through", WHOLE),
        schema=place.schema,
    )
    op.execute(
        state.insert().values(
            number=1,
            segmentation=SEGMENTATION,
            indexed_through=0,
            walk_through=sa.null() if newest is None else newest,
        )
    )


def downgrade() -> None:
    """Drop all of it; messages stay as they are."""
    place = Place()
    drops = (
        postgresql_search.drops(place.schema, place.prefix)
        if place.on_postgresql
        else sqlite_search.drops(place.prefix)
    )
    for statement in drops:
        op.execute(statement)
