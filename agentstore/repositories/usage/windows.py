"""The messages of a window of time, found by their numbers: no index has their times.

The messages of a branch are numbered as they were saved, so their times rise with their numbers,
but for clocks that differ or jump. ``sessions.in_order`` says that no message of a session was
saved with a time more than ``OUT_OF_ORDER`` before that of an earlier one. Then the end of what
was created before an instant t is found by halving::

    seq                1      2      3      4      5      6
    created          9:58  10:00   9:59  10:02  10:03  10:09      t = 10:04
    before t - 1 min   yes    yes    yes    yes    no     no     up to 4 nothing is of t or later
    before t + 1 min   yes    yes    yes    yes    yes    no     from 6 on nothing is before t

The messages between the two ends of a window are read, and their times looked at. Of a session
that is not in order everything is read.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.models.tables import Tables
from agentstore.values.paging import OUT_OF_ORDER
from agentstore.values.types import MAX_INTEGER


def messages_between(
    tables: Tables,
    dialect: EngineDialect,
    session: ColumnElement[bool],
    since: datetime,
    until: datetime,
) -> tuple[FromClause, Any]:
    """Find the messages of sessions that were created in a window of time.

    Args:
        tables: The tables.
        dialect: The engine's.
        session: Which sessions, as a condition of ``sessions``.
        since: The window's beginning, which is in it.
        until: Its end, which is not.

    Returns:
        What to select from, and the columns of the messages in it.
    """
    sessions = tables.sessions.c
    may_have = and_(session, sessions.newest_at >= since)
    all_later = or_(sessions.in_order.is_(False), sessions.created_at >= since)
    all_before = or_(sessions.in_order.is_(False), sessions.newest_at < until)
    begins = _halving(
        tables, "begins", may_have, _moved(since, -OUT_OF_ORDER), case((all_later, 0))
    )
    ends = _halving(
        tables, "ends", may_have, _moved(until, OUT_OF_ORDER), case((all_before, sessions.last_seq))
    )
    same = and_(ends.c.session_id == begins.c.session_id, ends.c.branch == begins.c.branch)
    stretch = (
        select(begins.c.session_id, begins.c.branch, begins.c.seq, ends.c.seq.label("last_seq"))
        .join(ends, same)
        .where(begins.c.left == 0, ends.c.left == 0, begins.c.seq < ends.c.seq)
        .cte("stretch")
    )
    found = tables.messages.alias("in_window")
    query = (
        select(found)
        .where(
            found.c.session_id == stretch.c.session_id,
            found.c.branch == stretch.c.branch,
            found.c.seq > stretch.c.seq,
            found.c.seq <= stretch.c.last_seq,
            found.c.created_at >= since,
            found.c.created_at < until,
        )
        .order_by(found.c.seq)
        .limit(MAX_INTEGER)
    )
    return dialect.for_each(stretch, tables.messages, query)


def _halving(
    tables: Tables,
    name: str,
    session: ColumnElement[bool],
    instant: datetime,
    known: ColumnElement[int | None],
) -> CTE:
    """Give, of each branch, where what was created before an instant ends, in ``seq``.

    Rows whose ``left`` is not 0 are steps on the way there.

    Args:
        tables: The tables.
        name: A name for it.
        session: Which sessions, as a condition of ``sessions``.
        instant: The instant.
        known: The answer, where it needs no search.
    """
    sessions, branches = tables.sessions, tables.branches
    searched = case((known.is_(None), sessions.c.last_seq), else_=0)
    first = (
        select(
            branches.c.session_id,
            branches.c.number.label("branch"),
            cast(func.coalesce(known, 0), BigInteger).label("seq"),
            cast(searched, BigInteger).label("left"),
        )
        .join(sessions, sessions.c.pk == branches.c.session_id)
        .where(session)
    )
    step = first.cte(name, recursive=True)
    half = (step.c.left + 1) // 2
    message = tables.messages.alias(f"{name}_message")
    created = (
        select(message.c.created_at)
        .where(
            message.c.session_id == step.c.session_id,
            message.c.branch == step.c.branch,
            message.c.seq <= step.c.seq + half,
        )
        .order_by(message.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    following = select(
        step.c.session_id,
        step.c.branch,
        step.c.seq + case((func.coalesce(created < instant, literal(True)), half), else_=0),
        step.c.left // 2,
    ).where(step.c.left > 0)
    return step.union_all(following)


def _moved(instant: datetime, by: timedelta) -> datetime:
    """Move an instant, within what there is."""
    try:
        return instant + by
    except OverflowError:
        return instant
