"""Pages of sessions, those with the newest activity first.

A page may have a thousand sessions, so the statement is prepared and its rows are read by columns.
It joins the documents' row for the version and the question, which lie before the documents in
it; what lies behind them is read with them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from operator import itemgetter
from typing import cast

from sqlalchemy import BigInteger, Dialect, bindparam, select

from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.models.tables import Tables
from agentstore.records import Page, SessionRecord, SessionSummary
from agentstore.records.sessions import make_session_summary
from agentstore.repositories.base.listing import newest
from agentstore.values import validation
from agentstore.values.paging import Cursors, check_limit
from agentstore.values.states import SESSION_STATUSES
from agentstore.values.types import Whole


def page_of_sessions(
    unit: Unit,
    user_id: str | None,
    status: str | None,
    limit: int,
    cursor: str | None,
    documents: bool,
) -> Page[SessionSummary]:
    """Give a page; see ``Sessions.list``."""
    cursors = Cursors("sessions", user_id, status)
    parameters = {
        "user_id": validation.optional_text("user_id", user_id),
        "status": None if status is None else validation.choice("status", status, SESSION_STATUSES),
        "most": check_limit(limit) + 1,
        "before": None if cursor is None else cursors.read(cursor, 1)[0],
    }
    asked = tuple(name for name, value in parameters.items() if value is not None)
    statement = _statement(unit.tables, dialect_of(unit.connection), asked, documents)
    rows = statement.rows(unit.connection, parameters)
    activity = cast("Whole", unit.tables.sessions.c.activity.type)
    activity.all_strictly([row[0] for row in rows], required=True)
    # Sorted here: an engine would take all columns of all rows through its sorter.
    rows.sort(key=itemgetter(0), reverse=True)
    following = cursors.make([rows[limit - 1][0]]) if len(rows) > limit else None
    if not rows:
        return Page((), None)
    _, seconds, *columns = statement.columns(rows[:limit])
    ttl = [None if each is None else timedelta(seconds=each) for each in seconds]
    if documents:
        first, last = columns[:-4], columns[-4:]
        return Page(tuple(map(_record, *first, ttl, *last)), following)
    return Page(tuple(map(make_session_summary, *columns, ttl)), following)


_record: Callable[..., SessionRecord] = SessionRecord


@lru_cache(maxsize=256)
def _statement(
    tables: Tables, driver: Dialect, asked: tuple[str, ...], documents: bool
) -> Prepared:
    sessions, data = tables.sessions.c, tables.session_data.c
    user_id, status, before = (
        bindparam(name, type_=column.type) if name in asked else None
        for name, column in (
            ("user_id", sessions.user_id),
            ("status", sessions.status),
            ("before", sessions.activity),
        )
    )
    found = newest(
        tables,
        *([] if user_id is None else [sessions.user_id == user_id]),
        owner_stays(tables, sessions.user_id),
        most=bindparam("most", type_=BigInteger),
        before=before,
        status=status,
    )
    query = select(
        sessions.activity,
        sessions.ttl_seconds,
        sessions.id,
        sessions.user_id,
        sessions.status,
        sessions.title,
        sessions.model,
        data.version,
        data.question,
        data.asked_at,
        sessions.message_count,
        sessions.total_tokens,
        sessions.total_cost,
        sessions.last_seq,
        sessions.created_at,
        sessions.last_active_at,
        *([data.metadata, data.config, data.state, data.updated_at] if documents else []),
    ).join_from(tables.sessions, tables.session_data)
    return Prepared(query.where(sessions.pk.in_(found)), driver)
