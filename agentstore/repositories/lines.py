"""The line of a branch: which messages it shows, and reading them.

Most branches are whole in themselves: they show their own messages and no others, and reading
them is one range of one index. The others are made of segments, each a range of one branch's
messages and all of them in the order of their sequence numbers, so that the line, too, is in that
order (see ``agentstore.models.sessions.BranchSegment``). Such a line is read from its newest
segment on, and no further than is asked for; how long its segments are does not matter.

What is read of the active branch is one statement if that is whole in itself, two if not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    select,
)

from agentstore.dialects.base import EngineDialect
from agentstore.errors import NotFound
from agentstore.prepared import Prepared
from agentstore.repositories.message_rows import message_columns, select_messages
from agentstore.schema import Tables
from agentstore.types import MAX_INTEGER
from agentstore.unit import Unit

Rows = Sequence[tuple[Any, ...]]
"""Of messages, with the columns of ``message_rows``."""

_SESSION_ID = "session_id"


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a line.

    Attributes:
        number: Its number in ``branch_segments``; None for what is not stored, a whole branch.
        branch: Whose messages it shows.
        first_seq: The first sequence number that belongs to it.
        last_seq: The last one that does.
        previous: The number of the segment before it.
    """

    number: int | None
    branch: int
    first_seq: int
    last_seq: int
    previous: int | None


def newest(
    unit: Unit,
    session_id: str,
    count: int,
    *,
    branch: str | None = None,
    through: int = MAX_INTEGER,
) -> Rows:
    """Read the newest messages of a line, the newest first.

    Args:
        unit: The open unit.
        session_id: The session.
        count: How many at most.
        branch: The branch's name; None for the active one.
        through: Leave out what has a larger sequence number.

    Raises:
        NotFound: There is no such session, or no such branch in it.
    """
    statements = _statements(unit.tables, unit.dialect, unit.connection.dialect, branch is None)
    parameters = {_SESSION_ID: session_id, "name": branch, "count": count, "through": through}
    return _read(unit, statements.newest_of_whole, statements.newest, parameters)


def between(
    unit: Unit,
    session_id: str,
    first_seq: int = 0,
    last_seq: int = MAX_INTEGER,
    *,
    branch: str | None = None,
) -> Rows:
    """Read all messages of a line between two sequence numbers, both included, in their order.

    Raises:
        NotFound: There is no such session, or no such branch in it.
    """
    statements = _statements(unit.tables, unit.dialect, unit.connection.dialect, branch is None)
    parameters = {_SESSION_ID: session_id, "name": branch, "first": first_seq, "last": last_seq}
    return _read(unit, statements.between_of_whole, statements.between, parameters)


def _read(
    unit: Unit, of_whole: Prepared | None, of_segments: Prepared, parameters: dict[str, Any]
) -> Rows:
    if of_whole is not None and (rows := of_whole.fetch(unit.connection, parameters)):
        return rows
    rows = of_segments.fetch(unit.connection, parameters)
    if not rows:
        require(unit, parameters[_SESSION_ID], parameters["name"])
    return rows


def require(unit: Unit, session_id: str, branch: str | None = None) -> None:
    """Require that there is such a session, and such a branch in it.

    Raises:
        NotFound: There is none.
    """
    sessions, branches = unit.tables.sessions.c, unit.tables.branches.c
    query = select(sessions.pk).where(sessions.id == session_id)
    if unit.connection.execute(query).first() is None:
        raise NotFound("session", session_id)
    if branch is None:
        return
    query = select(branches.number).where(
        branches.session_id == session_id, branches.name == branch, branches.gone.is_(False)
    )
    if unit.connection.execute(query).first() is None:
        raise no_branch(branch)


def no_branch(name: str) -> NotFound:
    """Make the error that says that a branch is not there."""
    return NotFound("branch", name, "branches.list() shows which there are.")


def segments_of(
    connection: Connection, tables: Tables, session_id: str, number: int
) -> list[Segment]:
    """Give the segments of a branch, the newest first; of a whole one, itself."""
    branches = tables.branches.c
    this = and_(branches.session_id == bindparam(_SESSION_ID), branches.number == number)
    line = _line(tables, Anchor(tables.branches, branches.number, branches.tip, this))
    query = select(line).order_by(line.c.depth)
    return [
        Segment(row.number, row.branch, row.first_seq, row.last_seq, row.previous)
        for row in connection.execute(query, {_SESSION_ID: session_id})
    ]


def count_lines(unit: Unit, session_id: str, numbers: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Count messages, and user messages among them, of some branches by their numbers.

    A branch that shows none is left out.
    """
    branches, messages = unit.tables.branches.c, unit.tables.messages.c
    these = and_(branches.session_id == bindparam(_SESSION_ID), branches.number.in_(numbers))
    line = _line(unit.tables, Anchor(unit.tables.branches, branches.number, branches.tip, these))
    of_user = case((messages.role == "user", 1), else_=0)
    query = (
        select(line.c.of_branch, func.count(), func.sum(of_user))
        .join_from(line, unit.tables.messages, is_on(line, unit.tables))
        .group_by(line.c.of_branch)
    )
    rows = unit.connection.execute(query, {_SESSION_ID: session_id})
    return {number: (int(count), int(of_users)) for number, count, of_users in rows}


def is_on(line: CTE, tables: Tables) -> ColumnElement[bool]:
    """Say that a message is in a segment of the line, for a join of the two."""
    messages = tables.messages.c
    return and_(
        messages.session_id == bindparam(_SESSION_ID),
        messages.branch == line.c.branch,
        messages.seq.between(line.c.first_seq, line.c.last_seq),
    )


def line_of(tables: Tables, *, active: bool) -> CTE:
    """Give the segments of a line as a table: ``branch``, ``first_seq`` and ``last_seq``.

    Its parameters are ``session_id`` and, unless it is the active branch's, ``name``.
    """
    return _line(tables, anchor_of(tables, active=active))


def shown_by(line: CTE, messages: Any) -> ColumnElement[bool]:
    """Say that a message, given by its columns, is on the line."""
    return (
        select(line.c.branch)
        .where(
            line.c.branch == messages.branch,
            messages.seq.between(line.c.first_seq, line.c.last_seq),
        )
        .exists()
    )


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
            found.c.session_id == bindparam(_SESSION_ID),
            found.c.branch == line.c.branch,
            found.c.seq.between(line.c.first_seq, line.c.last_seq),
            *(condition(found.c) for condition in conditions),
        )
        .order_by(order(found.c))
        .limit(limit)
    )
    return dialect.for_each(line, tables.messages, query)


@dataclass(frozen=True, slots=True)
class _Statements:
    newest_of_whole: Prepared | None
    newest: Prepared
    between_of_whole: Prepared | None
    between: Prepared


@lru_cache(maxsize=64)
def _statements(
    tables: Tables, dialect: EngineDialect, driver: Dialect, active: bool
) -> _Statements:
    messages = tables.messages.c
    first, last = bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
    line = line_of(tables, active=active)
    between = (
        select(*message_columns(messages))
        .join_from(line, tables.messages, is_on(line, tables))
        .where(messages.seq.between(first, last))
        .order_by(messages.seq)
    )
    newest = Prepared(select_newest(tables, dialect, active=active), driver)
    if not active:
        return _Statements(None, newest, None, Prepared(between, driver))
    whole = _of_whole(tables)
    newest_of_whole = (
        whole.where(messages.seq <= bindparam("through"))
        .order_by(messages.seq.desc())
        .limit(bindparam("count"))
    )
    between_of_whole = whole.where(messages.seq.between(first, last)).order_by(messages.seq)
    return _Statements(
        Prepared(newest_of_whole, driver),
        newest,
        Prepared(between_of_whole, driver),
        Prepared(between, driver),
    )


def _of_whole(tables: Tables) -> Select[Any]:
    """Select from the active branch if it is whole in itself, else nothing."""
    # The branch is a subquery and not a join, so that PostgreSQL sees one branch and reads the
    # index backwards instead of sorting the session.
    messages, sessions = tables.messages.c, tables.sessions.c
    active = (
        select(sessions.active_branch)
        .where(sessions.id == bindparam(_SESSION_ID), sessions.tip.is_(None))
        .scalar_subquery()
    )
    return select_messages(tables).where(
        messages.session_id == bindparam(_SESSION_ID), messages.branch == active
    )


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
        this = sessions.id == bindparam(_SESSION_ID)
        return Anchor(tables.sessions, sessions.active_branch, sessions.tip, this)
    named = and_(
        branches.session_id == bindparam(_SESSION_ID),
        branches.name == bindparam("name"),
        branches.gone.is_(False),
    )
    return Anchor(tables.branches, branches.number, branches.tip, named)


def _line(
    tables: Tables,
    anchor: Anchor,
    measure: Callable[[Any, Any, Any], Any] | None = None,
    enough: Any = None,
) -> CTE:
    """Go from segment to segment, the newest first.

    Args:
        tables: The tables.
        anchor: Where it begins.
        measure: Gives what a segment counts, of its branch and its first and last number.
        enough: What the segments may count together before it stops.
    """
    newest, next_ = tables.branch_segments.alias("newest"), tables.branch_segments
    session_id: BindParameter[str] = bindparam(_SESSION_ID)
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
        .cte("line", recursive=True)
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
) -> Select[Any]:
    """Select the newest messages, from no more segments than are needed for so many.

    Its parameters are ``count`` and ``through`` beside those of the line. While it goes from
    segment to segment it counts what is in them, and stops when that is enough; a count ends at
    the limit, too. So what is read does not depend on how long the segments are, nor on how many
    there are further back.
    """
    count = bindparam("count", type_=BigInteger)
    through = bindparam("through", type_=BigInteger)

    def messages_in(branch: Any, first: Any, last: Any) -> Any:
        counted = tables.messages.alias("counted")
        some = (
            select(counted.c.seq)
            .where(
                counted.c.session_id == bindparam(_SESSION_ID),
                counted.c.branch == branch,
                counted.c.seq.between(first, last),
                counted.c.seq <= through,
                *(condition(counted.c) for condition in conditions),
            )
            .order_by(counted.c.seq.desc())
            .limit(count)
            .correlate_except(counted)
            .subquery()
        )
        return select(func.count()).select_from(some).scalar_subquery()

    line = _line(tables, anchor_of(tables, active=active), messages_in, count)
    source, found = for_each_segment(
        line,
        tables,
        dialect,
        lambda messages: messages.seq <= through,
        *conditions,
        order=lambda messages: messages.seq.desc(),
        limit=count,
    )
    newest = select(*message_columns(found)).select_from(source)
    return newest.order_by(found.seq.desc()).limit(count)
