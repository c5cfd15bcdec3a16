"""Whose rows are whose, as conditions: what belongs to the user of a scope.

A session belongs to its user, and so does all that is in it. A thread of checkpoints belongs to its
user or, if it has none, to its session's. What belongs to nobody is in no scope.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, select, union

from agentstore.execution.unit import Unit
from agentstore.schema.session_ids import in_sessions

Conditions = list[ColumnElement[bool]]


def users(unit: Unit) -> Conditions:
    """Give the condition on ``users`` that it is the unit's user; none if the unit sees all."""
    return [] if unit.only is None else [unit.tables.users.c.id == unit.only]


def sessions(unit: Unit, session_id: ColumnElement[Any]) -> Conditions:
    """Give the condition that a column names a session of the unit's user."""
    if unit.only is None:
        return []
    theirs = unit.tables.sessions.c
    return [in_sessions(theirs, session_id, theirs.user_id == unit.only)]


def threads(unit: Unit, thread_id: ColumnElement[Any]) -> Conditions:
    """Give the condition that a column names a thread of the unit's user.

    A UNION, for PostgreSQL reads the whole table where an OR joins a column and a subquery.
    """
    if unit.only is None:
        return []
    every = unit.tables.checkpoint_threads.c
    by_session = select(every.id).where(every.user_id.is_(None), *sessions(unit, every.session_id))
    return [thread_id.in_(union(select(every.id).where(every.user_id == unit.only), by_session))]


__all__ = ["sessions", "threads", "users"]
