"""Counting what users and sessions own, exactly, for whoever only wants to know."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, select

from agentstore.execution.unit import Unit
from agentstore.repositories.upkeep.ownership import owned, sessions_of


def count_of_sessions(unit: Unit, session_ids: list[str]) -> dict[str, int]:
    """Count all that some sessions own, and themselves, by the tables' plain names."""
    tables = unit.tables
    prefix = len(tables.names.prefix)
    counts = {"sessions": len(session_ids)}
    for table in tables.metadata.sorted_tables:
        condition = owned(tables, table, "session", session_ids)
        if condition is not None:
            query = select(func.count()).select_from(table).where(condition)
            counts[table.name[prefix:]] = unit.connection.execute(query).scalar_one()
    return counts


def count_of_user(unit: Unit, user_id: str) -> dict[str, int]:
    """Count what a user owns besides sessions and what is theirs, and the user, by plain names."""
    tables = unit.tables
    prefix = len(tables.names.prefix)
    threads = tables.checkpoint_threads.c
    in_a_session = threads.session_id.is_not(None) & threads.session_id.in_(
        sessions_of(tables, user_id)
    )
    own_threads = select(threads.id).where(threads.user_id == user_id, ~in_a_session)
    counts = {"users": 1}
    for table in tables.metadata.sorted_tables:
        theirs: ColumnElement[bool]
        if table is tables.checkpoint_threads:
            theirs = table.c.id.in_(own_threads)
        elif "thread_id" in table.c:
            theirs = table.c.thread_id.in_(own_threads)
        elif "user_id" in table.c and table is not tables.sessions:
            theirs = table.c.user_id == user_id
        else:
            continue
        query = select(func.count()).select_from(table).where(theirs)
        counts[table.name[prefix:]] = unit.connection.execute(query).scalar_one()
    return counts
