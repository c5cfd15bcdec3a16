"""Adding usage up by a dimension: one statement for each set of filters, compiled once.

The engine adds up as it does by itself. Where SQLite has no room for a sum, or a row holds what is
no whole number, it is added up again in halves, which takes longer and has room for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

from sqlalchemy import (
    ColumnElement,
    Dialect,
    FromClause,
    Text,
    bindparam,
    case,
    func,
    null,
    select,
    type_coerce,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import UnsoundRow
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays, session_stays
from agentstore.models.tables import Tables
from agentstore.records import UsageSum
from agentstore.repositories.base import scoping
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.base.sums import NoWholeSum, exact_sum, halves, plain_sum
from agentstore.repositories.lines.lines import require
from agentstore.repositories.usage.rows import usage_sum
from agentstore.values.paging import check_limit
from agentstore.values.types import day, month, week

T = TypeVar("T")

Dimension = Literal[
    "turn", "branch", "branch_turn", "session", "user", "model", "day", "week", "month", "total"
]

One = Literal["turn", "branch", "session", "user", "model", "day", "week", "month"]
"""Of which two can be had together."""

Keys = tuple[str, ...]
"""None for a total, one, or two: ``branch_turn`` is both of its numbers."""

_SPANS = {"day": day, "week": week, "month": month}

IN_SESSION = ("turn", "branch", "branch_turn")
"""The dimensions whose values are numbers in a session."""


class Filters(NamedTuple):
    """Which filters there are.

    Attributes:
        given: The names of those parameters that are not None: ``session_id``, ``user_id``,
            ``model``, ``branch``, or ``since`` and ``until``, which come together.
        last: Whether the end of the window belongs to it.
        top: Whether only so many are given that cost most, by the parameter ``top``.
        named: Whether the branch is given by its name, and not by its number.
    """

    given: frozenset[str]
    last: bool
    top: bool = False
    named: bool = False


def sum_usage(
    unit: Unit, dimension: Keys, given: Mapping[str, Any], *, last: bool, top: int | None
) -> tuple[UsageSum, ...]:
    """Add up what passes the filters, by its keys; or so many that cost most, these first.

    Args:
        unit: The unit.
        dimension: What has sums of its own: nothing, one thing or two.
        given: The filters' parameters; None does not filter.
        last: Whether the end of the window belongs to it.
        top: How many; None gives all.

    Raises:
        LimitOutOfRange: It is no number of sums that may be asked for.
        NotFound: There are no sums, and no branch has the name.
    """
    if top is not None:
        check_limit(top)
    names = frozenset(name for name, value in given.items() if value is not None)
    named = isinstance(given["branch"], str)
    filters = Filters(names, last, top is not None, named)
    of = (unit.tables, unit.dialect, dialect_of(unit.connection), dimension, filters)
    parameters = {**given, **({"top": top} if top else {})}
    sums = _added_up(
        unit, lambda exact: _sums(unit, _statement(*of, exact=exact), parameters, dimension)
    )
    if not sums and named:
        require(unit, given["session_id"], given["branch"])
    # Sorted here, since the engines' collations differ.
    sums.sort(key=_place)
    if top is not None:
        sums.sort(key=lambda found: (-found.cost, -found.total_tokens))
    return tuple(sums)


def _added_up(unit: Unit, add: Callable[[bool], T]) -> T:
    """Have the engine add up by itself, or, where it has no room for a sum, exactly."""
    try:
        return add(False)
    except NoWholeSum:
        pass
    except DBAPIError as error:
        if not unit.dialect.has_no_room(error):
            raise
    return add(True)


def sums_of_sessions(unit: Unit, ids: Sequence[str], most: int | None) -> dict[str, UsageSum]:
    """Add up what each of some sessions used; those that are not there, or used nothing, lack."""
    found = _added_up(unit, lambda exact: _sums_of_sessions(unit, ids, most, exact=exact))
    return {id: found[id] for id in ids if id in found}


def _sums_of_sessions(
    unit: Unit, ids: Sequence[str], most: int | None, *, exact: bool
) -> dict[str, UsageSum]:
    sessions, used = unit.tables.sessions, unit.tables.turn_usage
    source: FromClause = sessions.join(used, used.c.session_id == sessions.c.id)
    added = used.c
    if most is not None:
        each = used.alias("each")
        last = select(each).where(each.c.session_id == sessions.c.id)
        last = last.order_by(each.c.created_at.desc()).limit(most)
        source, added = unit.dialect.for_each(sessions, used, last)
    query = (
        select(sessions.c.id, *_added(added, exact_sum if exact else plain_sum))
        .select_from(source)
        .where(
            sessions.c.id.in_(bindparam("ids", expanding=True)),
            owner_stays(unit.tables, sessions.c.user_id),
            *scoping.sessions(unit, sessions.c.id),
        )
        .group_by(sessions.c.id)
    )
    found: dict[str, UsageSum] = {}
    for chunk in chunks(ids):
        for row in unit.connection.execute(query, {"ids": list(chunk)}):
            found[row[0]] = replace(usage_sum(row[0], row), partial=row[-1] == most)
    return found


def _added(used: ReadOnlyColumnCollection[str, Any], add: Callable[[Any], Any]) -> list[Any]:
    """Give what is added up, and how many records there are."""
    unpriced = case((used.cost.is_(None), used.requests), else_=0)
    tokens = (used.requests, used.input_tokens, used.output_tokens, used.total_tokens)
    return [*map(add, (*tokens, used.cost, unpriced)), func.count()]


def _sums(
    unit: Unit, statement: Prepared, parameters: Mapping[str, Any], dimension: Keys
) -> list[UsageSum]:
    rows = [row for row in statement.fetch(unit.connection, parameters) if row[-1]]
    if len(dimension) == 2:
        one, two = dimension
        return [usage_sum((_key(one, row[0]), _key(two, row[-2])), row) for row in rows]
    only = dimension[0] if dimension else "total"
    return [usage_sum(_key(only, row[0]), row) for row in rows]


def _key(dimension: str, value: Any) -> Any:
    return _day(value) if dimension in _SPANS else value


def _place(found: UsageSum) -> Any:
    """Say where a sum comes: by its keys, those that are None first."""
    keys = found.key if isinstance(found.key, tuple) else (found.key,)
    return [(key is not None, key) for key in keys]


@lru_cache(maxsize=1024)
def _statement(
    tables: Tables,
    dialect: EngineDialect,
    driver: Dialect,
    dimension: Keys,
    filters: Filters,
    *,
    exact: bool,
) -> Prepared:
    used, sessions = tables.turn_usage.c, tables.sessions.c
    keys: dict[str, ColumnElement[Any]] = {
        "turn": used.turn,
        "branch": used.branch,
        "session": used.session_id,
        "user": sessions.user_id,
        "model": used.model,
        **{name: type_coerce(of(used.created_at), Text()) for name, of in _SPANS.items()},
    }
    key, *beside = [keys[name].label(f"key_{name}") for name in dimension] or [null().label("key")]
    *added, records = _added(used, exact_sum if exact else plain_sum)
    query = select(key, *added, *beside, records)
    if "user" in dimension or "user_id" in filters.given:
        query = query.join_from(tables.turn_usage, tables.sessions, sessions.id == used.session_id)
    filtered = {
        "session_id": used.session_id,
        "user_id": sessions.user_id,
        "model": used.model,
        "branch": used.branch,
    }
    given: dict[str, ColumnElement[Any]] = {
        name: bindparam(name, type_=column.type) for name, column in filtered.items()
    }
    if filters.named:
        branches = tables.branches.c
        named = select(branches.number).where(
            branches.session_id == given["session_id"],
            branches.name == bindparam("branch", type_=branches.name.type),
            branches.gone.is_(False),
        )
        given["branch"] = named.scalar_subquery()
    for name, column in filtered.items():
        if name in filters.given:
            query = query.where(column == given[name])
    if "since" in filters.given:
        until = bindparam("until", type_=used.created_at.type)
        query = query.where(
            used.created_at >= bindparam("since", type_=used.created_at.type),
            used.created_at <= until if filters.last else used.created_at < until,
        )
    query = query.where(session_stays(tables, used.session_id))
    if dimension:
        query = query.group_by(key, *beside)
    if filters.top:
        ranks = (rank for each in (used.cost, used.total_tokens) for rank in _ranks(each, exact))
        query = query.order_by(*(rank.desc() for rank in ranks)).limit(bindparam("top"))
    return Prepared(query, driver)


def _ranks(column: ColumnElement[Any], exact: bool) -> tuple[ColumnElement[Any], ...]:
    """Give what sums are in the order of; a sum of nothing is 0."""
    return tuple(halves(column).carried()) if exact else (func.coalesce(plain_sum(column), 0),)


def _day(text: Any) -> date:
    try:
        return date.fromisoformat(text)
    except (TypeError, ValueError):
        problem = "something that is not an instant in UTC"
        raise UnsoundRow("turn_usage", "created_at", problem) from None
