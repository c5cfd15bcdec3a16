"""Bringing an agent back to life: everything of a session, of one moment, in two queries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Select, and_

from agentstore.errors import LimitOutOfRange, NotFound
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.records import MessageRecord, RestoredSession
from agentstore.repositories.messages.histories import History, Terms
from agentstore.repositories.messages.portions import RECORDS
from agentstore.repositories.messages.summaries import select_summary
from agentstore.repositories.sessions.rows import select_session, session_record


def restored(unit: Unit, session_id: str, limit: int | None) -> RestoredSession:
    """Read a session whole; see ``Sessions.restore``.

    Args:
        unit: Its statements see one state of the database.
        session_id: The session.
        limit: How many messages; None means all.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise LimitOutOfRange(limit, None)
    row = unit.connection.execute(_query(unit.tables), {"session_id": session_id}).first()
    if row is None:
        raise NotFound("session", session_id)
    history: list[MessageRecord] = []
    if row.message_count and limit != 0:
        of_branch = History(unit, session_id, None, None, RECORDS, whole=row.tip is None)
        history = of_branch.told(limit, Terms()).lines
    return RestoredSession(session_record(row), row.branch_name, tuple(history), row.summary)


@lru_cache(maxsize=256)
def _query(tables: Tables) -> Select[Any]:
    sessions, branches = tables.sessions, tables.branches
    branch = and_(
        branches.c.session_id == sessions.c.pk, branches.c.number == sessions.c.active_branch
    )
    summary = select_summary(tables, active=True).with_only_columns(tables.summaries.c.content)
    return (
        select_session(tables)
        .add_columns(
            sessions.c.tip,
            branches.c.name.label("branch_name"),
            summary.scalar_subquery().label("summary"),
        )
        .join(branches, branch)
    )
