"""What the two search indexes have in common below the models: names, and the row of their state.

Each engine's own tables, triggers and functions are in its ``search_objects``. The revision that
brings the index creates them, and ``reindex`` creates again what is missing. A revision must create
tomorrow what it created before, so that SQL never changes: an index that needs other objects needs
a new revision, and functions beside those that are there.

No table of the index is a model: all of it is made from ``messages`` and can be made again. So
backups may leave it out, and a copy of a database gets a new one.

``search_state`` is one row: the version of the segmentation, and how far the index has come.
Messages over ``indexed_through``, up to ``walk_through`` where that is set, are still to be
indexed; so is everything in ``search_queue``. On SQLite row numbers become visible in order, so
that alone finds new messages, and saving one costs a comparison. On PostgreSQL they become visible
in any order, and are queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from sqlalchemy import Column, Integer, MetaData, Table, Text

from agentstore.models.tables import Names

INDEX, QUEUE, STATE = "search_index", "search_queue", "search_state"


@lru_cache(maxsize=256)
def state_of(names: Names) -> Table:
    """Describe the row that says what the index is and how far it has come."""
    return Table(
        f"{names.prefix}{STATE}",
        MetaData(schema=names.schema),
        Column("number", Integer, primary_key=True),
        Column("segmentation", Text),
        Column("indexed_through", Integer),
        Column("walk_through", Integer),
    )


def named(sql: str, schema: str | None, prefix: str) -> str:
    """Write the names in; ``Names`` lets none pass that would have to be quoted."""
    return sql.strip().format(s=f'"{schema}".' if schema else "", p=prefix)


def all_named(
    objects: Mapping[str, str], schema: str | None = None, prefix: str = ""
) -> dict[str, str]:
    """Write the names into statements, and into the objects' names that they have."""
    return {
        named(name, schema, prefix): named(sql, schema, prefix) for name, sql in objects.items()
    }
