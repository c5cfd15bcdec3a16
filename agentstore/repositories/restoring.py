"""Bringing an agent back to life: everything of a session, of one moment, in two queries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Select, and_

from agentstore.errors import LimitOutOfRange, NotFound
from agentstore.records import RestoredSession
from agentstore.repositories.messages import Messages
from agentstore.repositories.session_rows import select_session, session_record
from agentstore.schema import Tables
from agentstore.unit import Unit


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
    wanted = row.message_count and limit != 0
    history = Messages(unit).history(session_id, limit) if wanted else ()
    return RestoredSession(session_record(row), row.branch_name, tuple(history), row.summary)


@lru_cache(maxsize=64)
def _query(tables: Tables) -> Select[Any]:
    sessions, branches, summaries = tables.sessions, tables.branches, tables["summaries"]
    branch = and_(
        branches.c.session_id == sessions.c.id, branches.c.number == sessions.c.active_branch
    )
    summary = and_(
        summaries.c.session_id == sessions.c.id, summaries.c.branch == sessions.c.active_branch
    )
    return (
        select_session(tables)
        .add_columns(branches.c.name.label("branch_name"), summaries.c.content.label("summary"))
        .join(branches, branch)
        .outerjoin(summaries, summary)
    )
