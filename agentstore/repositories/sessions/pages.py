"""Pages of sessions, those with the newest activity first, or those with the oldest.

A page may have a thousand sessions, so the statement is prepared and its rows are read by columns.
The limit is in its text, as ``listing`` says.
It joins the documents' row for the version and the question, which lie before the documents in
it; what lies behind them is read with them alone.

Where a filter lets some through, sessions are read in batches until the page is full, or
``MOST_READ`` were read: such a page has fewer sessions and says where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, cast, get_args

from sqlalchemy import BigInteger, Dialect, bindparam, select

from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.models.tables import Tables
from agentstore.records import Page, SessionRecord, SessionSummary
from agentstore.records.sessions import make_session_summary
from agentstore.records.words import SessionStatus
from agentstore.repositories.base.listing import newest
from agentstore.repositories.sessions.filters import Order, SessionFilter
from agentstore.repositories.sessions.previews import previews_of
from agentstore.values import validation
from agentstore.values.paging import Cursors, check_limit
from agentstore.values.states import SESSION_STATUSES
from agentstore.values.types import Whole

MOST_READ = 2_000
"""Sessions that are read for one page, if filters let few through: some 20 ms."""

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Listed:
    """Which sessions are listed, and in which order.

    Attributes:
        passing: What they must be like beyond that; None lets all through.
    """

    user_id: str | None
    status: SessionStatus | None
    passing: SessionFilter | None
    order: Order


def page_of_sessions(
    unit: Unit,
    listed: Listed,
    limit: int,
    cursor: str | None,
    *,
    documents: bool,
    preview: bool,
) -> Page[SessionSummary]:
    """Give a page; see ``Sessions.list``."""
    user_id, status, passing = listed.user_id, listed.status, listed.passing
    order = validation.choice("order", listed.order, get_args(Order))
    filters = (*(passing.named() if passing else ()), *(() if order == "newest" else (order,)))
    cursors = Cursors("sessions", user_id, status, *filters)
    parameters = {
        "user_id": validation.optional_text("user_id", user_id),
        "status": None if status is None else validation.choice("status", status, SESSION_STATUSES),
        "most": check_limit(limit) + 1,
        "beyond": None if cursor is None else cursors.read(cursor, 1)[0],
    }
    read = _passing if passing else _all
    columns, last = read(unit, parameters, limit, listed, documents)
    following = None if last is None else cursors.make([last])
    if not columns:
        return Page((), following)
    _, seconds, *rest = columns
    ttl = [None if each is None else timedelta(seconds=each) for each in seconds]
    items: tuple[SessionSummary, ...]
    if documents:
        first, behind = rest[:-5], rest[-5:]
        items = tuple(map(_record, *first, ttl, *behind))
    else:
        items = tuple(map(make_session_summary, *rest[:15], ttl, repeat(None)))
    if preview:
        texts = previews_of(unit, [each.id for each in items])
        items = tuple(replace(each, preview=texts.get(each.id)) for each in items)
    return Page(items, following)


_record: Callable[..., SessionRecord] = SessionRecord

_Read = tuple[Sequence[Sequence[Any]], int | None]
"""Columns, none if there are no sessions; and after which activity to go on, if there are more."""


def _all(
    unit: Unit, parameters: dict[str, Any], limit: int, listed: Listed, documents: bool
) -> _Read:
    statement = _statement_for(unit, parameters, "documents" if documents else "", listed.order)
    rows = _sorted(unit, statement, parameters, listed.order)
    last = rows[limit - 1][0] if len(rows) > limit else None
    return (statement.columns(rows[:limit]) if rows else ()), last


def _passing(
    unit: Unit,
    parameters: dict[str, Any],
    limit: int,
    listed: Listed,
    documents: bool,
) -> _Read:
    passing = listed.passing
    assert passing is not None
    behind = "documents" if documents else "metadata" if passing.metadata else ""
    found: list[tuple[Any, ...]] = []
    left = MOST_READ
    parameters["most"] = _BATCH
    while True:
        statement = _statement_for(unit, parameters, behind, listed.order)
        rows = _sorted(unit, statement, parameters, listed.order)
        columns = zip(*statement.columns(rows), strict=True) if rows else ()
        found += [
            row
            for row in columns
            if passing.passes(
                row[_TITLE], row[_MODEL], row[_ACTIVE], row[_METADATA] if behind else {}
            )
        ]
        if len(found) > limit:
            found = found[:limit]
            return [*zip(*found, strict=True)], found[-1][0]
        if len(rows) < _BATCH:
            return [*zip(*found, strict=True)], None
        left -= len(rows)
        parameters["beyond"] = rows[-1][0]
        if left <= 0:
            return [*zip(*found, strict=True)], rows[-1][0]


def _statement_for(unit: Unit, parameters: dict[str, Any], behind: str, order: Order) -> Prepared:
    asked = tuple(name for name, value in parameters.items() if value is not None)
    return _statement(unit.tables, dialect_of(unit.connection), asked, behind, order)


def _sorted(unit: Unit, statement: Prepared, parameters: dict[str, Any], order: Order) -> list[Any]:
    """Read rows, sorted here: an engine would take all columns of all rows through its sorter."""
    rows = statement.rows(unit.connection, parameters)
    activity = cast("Whole", unit.tables.sessions.c.activity.type)
    activity.all_strictly([row[0] for row in rows], required=True)
    rows.sort(key=itemgetter(0), reverse=order == "newest")
    return rows


_TITLE, _MODEL, _ACTIVE, _METADATA = 5, 6, 16, 17
"""Where these are in a row."""


@lru_cache(maxsize=1024)
def _statement(
    tables: Tables, driver: Dialect, asked: tuple[str, ...], behind: str, order: Order
) -> Prepared:
    """Compile; ``behind`` says what is read of what lies behind: documents, metadata or nothing."""
    sessions, data = tables.sessions.c, tables.session_data.c
    user_id, status, beyond = (
        bindparam(name, type_=column.type) if name in asked else None
        for name, column in (
            ("user_id", sessions.user_id),
            ("status", sessions.status),
            ("beyond", sessions.activity),
        )
    )
    found = newest(
        tables,
        *([] if user_id is None else [sessions.user_id == user_id]),
        owner_stays(tables, sessions.user_id),
        most=bindparam("most", type_=BigInteger, literal_execute=True),
        beyond=beyond,
        status=status,
        oldest=order == "oldest",
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
        sessions.turn,
        sessions.created_at,
        sessions.last_active_at,
        *([data.metadata] if behind else []),
        *([data.config, data.state, data.updated_at, data.epoch] if behind == "documents" else []),
    ).join_from(tables.sessions, tables.session_data)
    return Prepared(query.where(sessions.pk.in_(found)), driver)
