"""The line of a branch as queries see it: its segments as a table, and messages joined to them.

Everything here is an expression; ``lines`` runs some. Where a line begins, at the active branch or
at one with a name, is an anchor, and from there it goes from segment to segment, the newest
first. The parameters are ``session_id`` and, unless it is the active branch's, ``name``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    select,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.models.deleting import owner_stays, session_stays
from agentstore.models.tables import Tables
from agentstore.repositories.lines.rows import Columns, line_columns
from agentstore.values.types import MAX_INTEGER

SESSION_ID = "session_id"
"""The name of the parameter that every line has."""

COUNT = bindparam("count", type_=BigInteger, literal_execute=True)
"""How many messages at most; it stands in the statement: see ``operations.written``."""


def is_on(line: CTE, tables: Tables) -> ColumnElement[bool]:
    """Say that a message is in a segment of the line, for a join of the two."""
    messages = tables.messages.c
    return and_(
        messages.session_id == bindparam(SESSION_ID),
        messages.branch == line.c.branch,
        messages.seq.between(line.c.first_seq, line.c.last_seq),
    )


def line_of(tables: Tables, *, active: bool, called: str = "line") -> CTE:
    """Give the segments of a line as a table: ``branch``, ``first_seq`` and ``last_seq``.

    Its parameters are ``session_id`` and, unless it is the active branch's, ``name``. In one
    statement with another line it is ``called`` something else.
    """
    return line_from(tables, anchor_of(tables, active=active), called=called)


def shown_by(line: CTE, messages: Any, *, in_order: bool = False) -> ColumnElement[bool]:
    """Say that a message, given by its columns, is on the line.

    Args:
        line: The segments.
        messages: The columns.
        in_order: Whether messages that an index gives in their order are to stay in it, because
            the first few are wanted: PostgreSQL may sort after a join, but makes none of an OFFSET.
    """
    this = select(line.c.branch).where(
        line.c.branch == messages.branch,
        messages.seq.between(line.c.first_seq, line.c.last_seq),
    )
    return (this.offset(literal_column("0")) if in_order else this).exists()


def for_each_segment(
    line: CTE, tables: Tables, dialect: EngineDialect, *conditions: Any, order: Any, limit: Any
) -> tuple[FromClause, Any]:
    """Join to each segment the first of its messages, in an order, that meet conditions.

    Args:
        line: The segments.
        tables: The tables.
        dialect: The engine's.
        conditions: Functions of an alias of ``messages``.
        order: A function of the same alias: what to order by.
        limit: How many of each segment.

    Returns:
        What to select from, and the columns of the messages in it.
    """
    found = tables.messages.alias("found")
    query = (
        select(found)
        .where(
            found.c.session_id == bindparam(SESSION_ID),
            found.c.branch == line.c.branch,
            found.c.seq.between(line.c.first_seq, line.c.last_seq),
            *(condition(found.c) for condition in conditions),
        )
        .order_by(order(found.c))
        .limit(limit)
    )
    return dialect.for_each(line, tables.messages, query)


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a line begins: at a row with the number of a branch and of its newest segment."""

    table: FromClause
    branch: ColumnElement[Any]
    tip: ColumnElement[Any]
    condition: ColumnElement[bool]


def anchor_of(tables: Tables, *, active: bool) -> Anchor:
    """Begin at the active branch of ``session_id``, or at the one with this ``name``."""
    sessions, branches = tables.sessions.c, tables.branches.c
    if active:
        stays = owner_stays(tables, sessions.user_id)
        this = and_(sessions.id == bindparam(SESSION_ID), stays)
        return Anchor(tables.sessions, sessions.active_branch, sessions.tip, this)
    named = and_(
        branches.session_id == bindparam(SESSION_ID),
        branches.name == bindparam("name"),
        branches.gone.is_(False),
        session_stays(tables, branches.session_id),
    )
    return Anchor(tables.branches, branches.number, branches.tip, named)


def line_from(
    tables: Tables,
    anchor: Anchor,
    measure: Callable[[Any, Any, Any], Any] | None = None,
    enough: Any = None,
    called: str = "line",
) -> CTE:
    """Go from segment to segment, the newest first.

    Args:
        tables: The tables.
        anchor: Where it begins.
        measure: Gives what a segment counts, of its branch and its first and last number.
        enough: What the segments may count together before it stops.
        called: The name of the table.
    """
    newest, next_ = tables.branch_segments.alias("newest"), tables.branch_segments
    session_id: BindParameter[str] = bindparam(SESSION_ID)
    tip = and_(newest.c.session_id == session_id, newest.c.number == anchor.tip)
    stretch: tuple[Any, Any, Any] = (
        func.coalesce(newest.c.branch, anchor.branch),
        func.coalesce(newest.c.first_seq, 1),
        func.coalesce(newest.c.last_seq, literal(MAX_INTEGER, BigInteger)),
    )
    names = ("branch", "first_seq", "last_seq")
    line = (
        select(
            anchor.branch.label("of_branch"),
            newest.c.number,
            newest.c.previous,
            literal(0, BigInteger).label("depth"),
            *(column.label(name) for column, name in zip(stretch, names, strict=True)),
            *([measure(*stretch).label("so_far")] if measure else []),
        )
        .select_from(anchor.table.outerjoin(newest, tip))
        .where(anchor.condition)
        .cte(called, recursive=True)
    )
    stretch = (next_.c.branch, next_.c.first_seq, next_.c.last_seq)
    is_previous = and_(next_.c.session_id == session_id, next_.c.number == line.c.previous)
    further = select(
        line.c.of_branch,
        next_.c.number,
        next_.c.previous,
        line.c.depth + 1,
        *stretch,
        *([line.c.so_far + measure(*stretch)] if measure else []),
    ).join_from(line, next_, is_previous)
    return line.union_all(further.where(line.c.so_far < enough) if measure else further)


def select_newest(
    tables: Tables,
    dialect: EngineDialect,
    *conditions: Callable[[Any], ColumnElement[bool]],
    active: bool,
    columns: Columns = line_columns,
    through: ColumnElement[int] | None = None,
) -> Select[Any]:
    """Select the newest messages, from no more segments than are needed for so many.

    Its parameters are ``count`` and, unless it is given as an expression, ``through``, beside those
    of the line. While it goes from segment to segment it counts what is in them, and stops when
    that is enough; a count ends at the limit, too. So what is read does not depend on how long the
    segments are, nor on how many there are further back.
    """
    if through is None:
        through = bindparam("through", type_=BigInteger)

    def messages_in(branch: Any, first: Any, last: Any) -> Any:
        counted = tables.messages.alias("counted")
        some = (
            select(counted.c.seq)
            .where(
                counted.c.session_id == bindparam(SESSION_ID),
                counted.c.branch == branch,
                counted.c.seq.between(first, last),
                counted.c.seq <= through,
                *(condition(counted.c) for condition in conditions),
            )
            .order_by(counted.c.seq.desc())
            .limit(COUNT)
            .correlate_except(counted)
            .subquery()
        )
        return select(func.count()).select_from(some).scalar_subquery()

    line = line_from(tables, anchor_of(tables, active=active), messages_in, COUNT)
    source, found = for_each_segment(
        line,
        tables,
        dialect,
        lambda messages: messages.seq <= through,
        *conditions,
        order=lambda messages: messages.seq.desc(),
        limit=COUNT,
    )
    newest = select(*columns(found)).select_from(source)
    return newest.order_by(found.seq.desc()).limit(COUNT)
