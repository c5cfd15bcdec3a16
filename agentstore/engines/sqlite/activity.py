"""The counter of SQLite: activity, and the row numbers of messages, count together.

A saved message takes the next number, which becomes its row number and its session's activity; a
new session takes one for its activity alone. The last number is the larger of two: the newest
message's, which is at the end of its table, and ``taken`` in the one row of the table ``activity``.
A save writes nothing but its message. Numbers never come again: what follows new messages, and the
search index, know them by their numbers. So a trigger raises ``taken`` when the newest is deleted.

The revision that brings the table and the trigger has this SQL, which never changes.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, TableClause, column, func, select, table, update

from agentstore.engines.base.search_objects import all_named
from agentstore.models.tables import Names, Tables
from agentstore.values.types import Whole

_OBJECTS = {
    "{p}activity": """
CREATE TABLE {p}activity (
    number INTEGER NOT NULL CONSTRAINT pk_{p}activity PRIMARY KEY
        CONSTRAINT ck_{p}activity_number CHECK (number = 1),
    taken BIGINT NOT NULL
)""",
    "{p}activity_kept": """
CREATE TRIGGER {p}activity_kept AFTER DELETE ON {p}messages
WHEN old.pk > (SELECT coalesce(max(pk), 0) FROM {p}messages)
BEGIN
    UPDATE {p}activity SET taken = max(taken, old.pk);
END""",
}


def objects(prefix: str = "") -> dict[str, str]:
    """Give the statements that create the objects, in order, by the objects' names."""
    return all_named(_OBJECTS, None, prefix)


def counter_of(names: Names) -> TableClause:
    """Describe the table of one row."""
    return table(f"{names.prefix}activity", column("taken", Whole()))


def last_taken(tables: Tables) -> ColumnElement[int]:
    """Give the last number as an expression."""
    counter, messages = counter_of(tables.names), tables.messages
    newest = select(func.max(messages.c.pk)).scalar_subquery()
    taken = select(counter.c.taken).scalar_subquery()
    return func.max(taken, func.coalesce(newest, 0))


def take_activity(connection: Connection, tables: Tables) -> int:
    """Take a number that is no message's."""
    counter = counter_of(tables.names)
    took = update(counter).values(taken=last_taken(tables) + 1).returning(counter.c.taken)
    return int(connection.execute(took).scalar_one())
