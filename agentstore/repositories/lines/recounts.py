"""Counting the tallies of segments and branches again; see ``tallies`` for what they are.

The messages of each branch are counted once, in pieces: between any two numbers at which a segment
begins or has ended. However many segments overlap, each of them is the sum of some pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    true,
    union,
    update,
)

from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_is_open
from agentstore.models.tables import Tables
from agentstore.schema.session_ids import in_sessions
from agentstore.values.types import MAX_INTEGER

Ids = Sequence[str] | Select[Any] | None
"""Of sessions, or what selects them; None for all."""


def wrong_segments(tables: Tables, ids: Ids) -> Select[Any]:
    """Select the segments whose tally is not what they show, with what is."""
    segments, pieces = tables.branch_segments, _pieces(tables, ids)
    ended = case((segments.c.last_seq < MAX_INTEGER, 1), else_=0)
    shows = and_(
        pieces.c.session_id == segments.c.session_id,
        pieces.c.branch == segments.c.branch,
        pieces.c.first_seq.between(segments.c.first_seq, segments.c.last_seq),
    )
    messages, turns = (ended * _sum(pieces.c[name]) for name in ("messages", "turns"))
    stored = segments.c.messages, segments.c.turns
    return (
        select(
            segments.c.session_id,
            segments.c.number,
            messages.label("messages"),
            turns.label("turns"),
        )
        .select_from(segments.outerjoin(pieces, shows))
        .where(_of(tables, ids, segments.c.session_id))
        .group_by(segments.c.session_id, segments.c.number)
        .having(or_(stored[0] != messages, stored[1] != turns))
    )


def wrong_branches(tables: Tables, ids: Ids) -> Select[Any]:
    """Select the branches whose tally is not what they add to, with what is."""
    branches, sessions, tips = tables.branches, tables.sessions, tables.branch_segments
    pieces = _pieces(tables, ids)
    tip = and_(tips.c.session_id == branches.c.session_id, tips.c.number == branches.c.tip)
    shows = and_(
        pieces.c.session_id == branches.c.session_id,
        pieces.c.branch == branches.c.number,
        pieces.c.first_seq >= func.coalesce(tips.c.first_seq, 1),
        branches.c.gone.is_(False),
    )
    active = branches.c.number == sessions.c.active_branch
    messages = _sum(pieces.c.messages) - case((active, sessions.c.message_count), else_=0)
    turns = _sum(pieces.c.turns) - case((active, sessions.c.turn), else_=0)
    return (
        select(
            branches.c.session_id,
            branches.c.number,
            messages.label("messages"),
            turns.label("turns"),
        )
        .select_from(
            branches.join(sessions, sessions.c.pk == branches.c.session_id)
            .outerjoin(tips, tip)
            .outerjoin(pieces, shows)
        )
        .where(_of(tables, ids, branches.c.session_id), session_is_open(tables))
        .group_by(branches.c.session_id, branches.c.number, sessions.c.pk)
        .having(or_(branches.c.own_messages != messages, branches.c.own_turns != turns))
    )


def mend_tallies(unit: Unit, ids: Sequence[str]) -> None:
    """Count again in sessions that are locked, by their counters, which are right."""
    segments, branches = unit.tables.branch_segments, unit.tables.branches
    wrong = (
        (segments, wrong_segments(unit.tables, ids), ("messages", "turns")),
        (branches, wrong_branches(unit.tables, ids), ("own_messages", "own_turns")),
    )
    for table, query, columns in wrong:
        right = [
            dict(zip(("session", "which", *columns), row, strict=True))
            for row in unit.connection.execute(query)
        ]
        if right:
            here = table.c.session_id == bindparam("session"), table.c.number == bindparam("which")
            values: dict[str, Any] = {name: bindparam(name) for name in columns}
            unit.connection.execute(update(table).where(*here).values(values), right)


def _of(tables: Tables, ids: Ids, column: ColumnElement[str]) -> ColumnElement[bool]:
    sessions = tables.sessions.c
    return true() if ids is None else in_sessions(sessions, column, sessions.id.in_(ids))


def _sum(column: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(func.coalesce(func.sum(column), 0), BigInteger)


def _pieces(tables: Tables, ids: Ids) -> CTE:
    """Count the messages of each branch between the numbers at which its segments begin and end."""
    segments, branches, messages = tables.branch_segments, tables.branches, tables.messages
    of_segments = _of(tables, ids, segments.c.session_id)
    beginnings = union(
        select(
            branches.c.session_id,
            branches.c.number.label("branch"),
            literal(1, BigInteger).label("first_seq"),
        ).where(_of(tables, ids, branches.c.session_id)),
        select(segments.c.session_id, segments.c.branch, segments.c.first_seq).where(of_segments),
        select(segments.c.session_id, segments.c.branch, segments.c.last_seq + 1).where(
            of_segments, segments.c.last_seq < MAX_INTEGER
        ),
    ).subquery("beginnings")
    following = func.lead(beginnings.c.first_seq).over(
        partition_by=(beginnings.c.session_id, beginnings.c.branch),
        order_by=beginnings.c.first_seq,
    )
    ranges = select(beginnings, following.label("next_seq")).cte("ranges")

    def count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
        last = func.coalesce(ranges.c.next_seq - 1, MAX_INTEGER)
        return (
            select(func.count())
            .where(
                messages.c.session_id == ranges.c.session_id,
                messages.c.branch == ranges.c.branch,
                messages.c.seq.between(ranges.c.first_seq, last),
                *conditions,
            )
            .scalar_subquery()
        )

    pieces = select(
        ranges.c.session_id,
        ranges.c.branch,
        ranges.c.first_seq,
        count().label("messages"),
        count(messages.c.role == "user").label("turns"),
    )
    # The limit keeps engines from counting again for each segment that a piece is joined to.
    return pieces.limit(MAX_INTEGER).cte("pieces")
