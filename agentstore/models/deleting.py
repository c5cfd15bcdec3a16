"""Users who are being deleted: nothing of theirs is there any more, as conditions of queries.

Deleting a user takes many transactions. The first marks the user's row, and nothing else: from
then on every call leaves out what belongs to a user with this mark, as if it had gone
already. So the moment at which everything is closed does not depend on how much there is.

While nobody is being deleted, which is nearly always, a condition costs one look into an index
that is empty, once for a statement and not once for a row. Otherwise it is a look-up of a
session's or thread's row for each row that is read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, literal_column, not_, or_, select

from agentstore.models.tables import Tables
from agentstore.schema.session_ids import key_for
from agentstore.values.states import NO_BRANCH


@lru_cache(maxsize=256)
def being_deleted(tables: Tables) -> Select[Any]:
    """Select the ids of the users who are being deleted."""
    users = tables.users.alias("being_deleted")
    return select(users.c.id).where(users.c.deleting.is_not(None))


@lru_cache(maxsize=1024)
def owner_stays(tables: Tables, user_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Require that a column is NULL, or names a user who is not being deleted."""
    return or_(user_id.is_(None), user_id.not_in(being_deleted(tables)))


@lru_cache(maxsize=256)
def session_is_open(tables: Tables) -> ColumnElement[bool]:
    """Say that a row of ``sessions`` can be written to."""
    sessions = tables.sessions.c
    # Nothing is bound: each save has this condition.
    open_ = sessions.active_branch > literal_column(str(NO_BRANCH))
    return and_(open_, owner_stays(tables, sessions.user_id))


@lru_cache(maxsize=1024)
def session_stays(tables: Tables, session_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Require that the user of the session in a column, if any, is not being deleted."""
    return _unless_deleting(tables, _of_deleting(tables, session_id))


@lru_cache(maxsize=1024)
def thread_stays(tables: Tables, thread_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Require that the user of the thread in a column, if any, is not being deleted."""
    threads = tables.checkpoint_threads.alias("thread_of_deleting")
    theirs = select(threads.c.pk).where(
        threads.c.id == thread_id,
        or_(
            threads.c.user_id.in_(being_deleted(tables)),
            _of_deleting(tables, threads.c.session_id),
        ),
    )
    return _unless_deleting(tables, exists(theirs.correlate_except(threads)))


def _of_deleting(tables: Tables, session_id: ColumnElement[Any]) -> ColumnElement[bool]:
    sessions = tables.sessions.alias("of_deleting")
    theirs = select(sessions.c.pk).where(
        key_for(sessions.c, session_id) == session_id, sessions.c.user_id.in_(being_deleted(tables))
    )
    return exists(theirs.correlate_except(sessions))


def _unless_deleting(tables: Tables, theirs: ColumnElement[bool]) -> ColumnElement[bool]:
    # As it stands, neither half is made a join of: a query keeps the plan that it has without.
    return not_(and_(exists(being_deleted(tables)), theirs))


__all__ = [
    "being_deleted",
    "owner_stays",
    "session_is_open",
    "session_stays",
    "thread_stays",
]
