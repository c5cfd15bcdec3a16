"""The tables under the names that a database gives them; see ``agentstore.schema``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    exists,
    literal_column,
    not_,
    or_,
    select,
)

from agentstore.schema import LONGEST_ENTRY, MAX_PREFIX, PLAIN, Names, Tables, indexed_texts, tables
from agentstore.schema.conversations import key_for
from agentstore.values.validation import NO_BRANCH

__all__ = ["LONGEST_ENTRY", "MAX_PREFIX", "PLAIN", "Names", "Tables", "indexed_texts", "tables"]


# Users who are being deleted: nothing of theirs is there any more, as conditions of queries.
#
# Deleting a user takes many transactions. The first marks the user's row, and nothing else: from
# then on every call leaves out what belongs to a user with this mark, as if it had gone
# already. So the moment at which everything is closed does not depend on how much there is.
#
# While nobody is being deleted, which is nearly always, a condition costs one look into an index
# that is empty, once for a statement and not once for a row. Otherwise it is a look-up of a
# session's or thread's row for each row that is read.


@lru_cache(maxsize=256)
def being_deleted(tables: Tables) -> Select[Any]:
    """Select the ids of the users who are being deleted."""
    users = tables.users.alias("being_deleted")
    return select(users.c.id).where(users.c.deleting.is_not(None))


@lru_cache(maxsize=1024)
def owner_not_being_deleted(tables: Tables, user_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Require that a column is NULL, or names a user who is not being deleted."""
    return or_(user_id.is_(None), user_id.not_in(being_deleted(tables)))


@lru_cache(maxsize=256)
def session_is_open(tables: Tables) -> ColumnElement[bool]:
    """Say that a row of ``sessions`` can be written to."""
    sessions = tables.sessions.c
    # Nothing is bound: each save has this condition.
    open_ = sessions.active_branch > literal_column(str(NO_BRANCH))
    return and_(open_, owner_not_being_deleted(tables, sessions.user_id))


@lru_cache(maxsize=1024)
def session_not_being_deleted(
    tables: Tables, session_id: ColumnElement[Any]
) -> ColumnElement[bool]:
    """Require that the user of the session in a column, if any, is not being deleted."""
    return _unless_deleting(tables, _of_deleting(tables, session_id))


@lru_cache(maxsize=1024)
def thread_not_being_deleted(tables: Tables, thread_id: ColumnElement[Any]) -> ColumnElement[bool]:
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


# Branches have numbers, by which rows refer to them, and names, by which callers do.


def name_of_branch(
    branches: FromClause, session_id: ColumnElement[Any], number: ColumnElement[Any]
) -> ColumnElement[Any]:
    """Give the name of a branch, or NULL if it is gone; main's, without a look at its row.

    Args:
        branches: The table.
        session_id: Its session's.
        number: Its number.
    """
    home = branches.alias("home")
    named = (
        select(home.c.name)
        .where(home.c.session_id == session_id, home.c.number == number, home.c.gone.is_(False))
        .correlate_except(home)
        .scalar_subquery()
    )
    main = literal_column("'main'", home.c.name.type)
    return case((number == literal_column("0"), main), else_=named)
