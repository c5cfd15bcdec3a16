"""Deleting a user or a session with all that is theirs, and saying what went.

Which rows belong to whom is read off the tables themselves: everything that a user, a session
or a checkpoint thread owns has ``user_id``, ``session_id`` or ``thread_id`` (see
``agentstore.models.base``), so a table that is added later is counted and deleted without
anybody thinking of it. What refers goes before what it refers to: on PostgreSQL a cascade from
the root would come upon rows that are still in use, such as the values that a checkpoint names.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Select, Table, delete, select, union

from agentstore.errors import NotFound
from agentstore.records import DeletionReceipt
from agentstore.repositories.blobs import attached_digests, drop_unattached
from agentstore.repositories.search import forget_deleted
from agentstore.schema import Tables
from agentstore.unit import Unit


def delete_owned(unit: Unit, kind: str, key: str) -> DeletionReceipt:
    """Delete a user or a session, and everything below.

    Args:
        unit: In a write transaction.
        kind: ``user`` or ``session``.
        key: Its id.

    Raises:
        NotFound: There is none with this id.
    """
    tables, connection = unit.tables, unit.connection
    root = tables[f"{kind}s"]
    # The root goes first: its row lock keeps others from adding below it meanwhile.
    locked = select(root.c.pk).where(root.c.id == key).with_for_update()
    if connection.execute(locked).first() is None:
        raise NotFound(kind, key)
    if kind == "user":
        theirs = tables.sessions.c
        every = select(theirs.pk).where(theirs.user_id == key).order_by(theirs.pk)
        connection.execute(every.with_for_update())
    threads = tables.checkpoint_threads
    of_them = threads.c.id.in_(_threads(tables, kind, key))
    put_into = select(threads.c.pk).where(of_them).order_by(threads.c.pk)
    connection.execute(put_into.with_for_update())
    prefix = len(tables.names.prefix)
    attached = _attached(unit, kind, key)
    counts: dict[str, int] = {}
    for table in reversed(tables.metadata.sorted_tables):
        condition = _owned(tables, table, kind, key)
        if condition is None:
            continue
        if found := connection.execute(delete(table).where(condition)).rowcount:
            counts[table.name[prefix:]] = found
    connection.execute(delete(root).where(root.c.id == key))
    forget_deleted(unit)
    if gone := drop_unattached(unit, attached):
        counts["blobs"] = gone
    counts[f"{kind}s"] = 1
    return DeletionReceipt(dict(sorted(counts.items())))


def _owned(tables: Tables, table: Table, kind: str, key: str) -> ColumnElement[bool] | None:
    """Give the condition under which a row of the table belongs to the user or session."""
    columns = table.c
    if table is tables.checkpoint_threads:
        return columns.id.in_(_threads(tables, kind, key))
    if "thread_id" in columns:
        return columns.thread_id.in_(_threads(tables, kind, key))
    if kind == "user" and "user_id" in columns:
        return columns.user_id == key
    if "session_id" in columns:
        return (
            columns.session_id.in_(_sessions(tables, key))
            if kind == "user"
            else (columns.session_id == key)
        )
    return None


def _sessions(tables: Tables, user_id: str) -> Select[Any]:
    return select(tables.sessions.c.id).where(tables.sessions.c.user_id == user_id)


def _threads(tables: Tables, kind: str, key: str) -> Select[Any] | CompoundSelect[Any]:
    """Select the ids of the threads that the user or the session has.

    A user's are theirs, or of their sessions: a UNION, for PostgreSQL reads the whole table where
    an OR joins a column and a subquery.
    """
    threads = tables.checkpoint_threads.c
    if kind == "session":
        return select(threads.id).where(threads.session_id == key)
    of_sessions = threads.session_id.in_(_sessions(tables, key))
    return union(
        select(threads.id).where(threads.user_id == key), select(threads.id).where(of_sessions)
    )


def _attached(unit: Unit, kind: str, key: str) -> list[str]:
    condition = _owned(unit.tables, unit.tables.attachments, kind, key)
    assert condition is not None
    return attached_digests(unit, condition)
