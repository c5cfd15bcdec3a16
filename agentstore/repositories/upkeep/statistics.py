"""How much a database holds, how fast it grows, and by whom: the body of ``store.statistics()``.

Everything is added up by the engine, a list at a time that has as many rows as are asked for; so
what is held in memory does not depend on the size of the database. What it costs does, unless an
estimate is enough:

- counted: every table is scanned once, ``messages`` twice, and on SQLite every page of the file is
  read for the sizes of the tables;
- estimated: only rows of the window are read. Messages and sessions have no index on the time
  alone, so the first row of the window is searched by halving, in the order of creation. That
  takes for granted that the clock ran forward.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Table,
    case,
    func,
    literal,
    select,
    union_all,
)

from agentstore.engines.base.moving import Footprint, TableSize
from agentstore.errors import InvalidInput, shown
from agentstore.execution.unit import Unit
from agentstore.records import UsageSum
from agentstore.records.upkeep import (
    DayStatistics,
    Statistics,
    TableStatistics,
    ToolStatistics,
    UserStatistics,
)
from agentstore.repositories.listing import (
    Halves,
    exact_sum,
    halves,
    halves_of_sums,
    measured,
)
from agentstore.repositories.operations import window
from agentstore.repositories.usage_sums import added_up, usage_sum
from agentstore.schema import owner_not_being_deleted, session_not_being_deleted
from agentstore.values import validation
from agentstore.values.types import day, from_nanos, shifted
from agentstore.values.validation import NO_BRANCH, check_limit

Order = Literal["cost", "tokens"]
"""What the top users and models are ordered by."""

EXACT_UP_TO = 256 * 1024 * 1024
"""Bytes up to which everything is counted unless somebody says otherwise: about a second."""

_COUNT_UP_TO = 16 * 1024 * 1024
"""Bytes up to which a table is counted that has no estimate: some 20 ms."""

_MOST_DAYS = 3660
_EXPIRED_UP_TO = 10_000
_SEARCH = "search_index"
_SPENT = ("tokens", "used_tokens", "cost", "used_cost")


def statistics(unit: Unit, days: int, top: int, order: Order, exact: bool | None) -> Statistics:
    """Add everything up; a body for ``Mode.SNAPSHOT``. See ``Store.statistics``.

    Raises:
        InvalidInput: An argument is out of range.
    """
    if type(days) is not int or not 1 <= days <= _MOST_DAYS:
        raise InvalidInput(
            f"days must be a whole number from 1 to {_MOST_DAYS}, not {shown(days)}."
        )
    check_limit(top)
    validation.choice("order", order, ("cost", "tokens"))
    if exact is not None and type(exact) is not bool:
        raise InvalidInput(f"exact must be True, False or None, not {shown(exact)}.")
    checks = unit.dialect.checks
    footprint = checks.footprint(unit.connection, unit.tables)
    counted = footprint.bytes <= EXACT_UP_TO if exact is None else exact
    sizes = checks.table_sizes(unit.connection, unit.tables, exact=counted)
    now = unit.now()
    try:
        since = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=days - 1)
    except OverflowError:
        raise InvalidInput("days must not reach back before the year 1.") from None
    tables = tuple(
        sorted(
            (_table(unit, name, size, counted) for name, size in sizes.items()),
            key=lambda found: (-found.bytes, found.name),
        )
    )
    messages = next(found.rows or 0 for found in tables if found.name == "messages")
    window = _Window(unit, since, counted)
    totals = unit.tables.sessions.c
    by_status: dict[str, int] = {}
    tokens: int | None = None
    cost: Decimal | None = None
    used: tuple[int | None, Decimal | None] = (None, None)
    if counted:
        stays = owner_not_being_deleted(unit.tables, totals.user_id)
        found = select(totals.status, func.count()).where(stays).group_by(totals.status)
        by_status = {status: int(count) for status, count in unit.connection.execute(found)}
        summed = unit.connection.execute(
            select(exact_sum(totals.total_tokens), exact_sum(totals.total_cost)).where(stays)
        ).one()
        tokens, cost = summed[0], from_nanos(summed[1])
        usage = unit.tables.turn_usage.c
        recorded = unit.connection.execute(
            select(exact_sum(usage.total_tokens), exact_sum(usage.cost)).where(
                session_not_being_deleted(unit.tables, usage.session_id)
            )
        ).one()
        used = (recorded[0], from_nanos(recorded[1]))
    return Statistics(
        measured_at=now,
        engine=checks.system,
        since=since,
        exact=counted,
        bytes=footprint.bytes,
        free_bytes=footprint.free,
        wal_bytes=footprint.log,
        tables=tables,
        sessions_by_status=dict(sorted(by_status.items())),
        tokens=tokens,
        cost=cost,
        used_tokens=used[0],
        used_cost=used[1],
        expired_sessions=_expired(unit, now),
        growth=_growth(window, days, footprint, messages),
        users=_users(window, top, order),
        tools=_tools(window, top),
        models=_models(window, top, order),
    )


class _Window:
    """The rows from an instant on, as conditions that do not read those before."""

    def __init__(self, unit: Unit, since: datetime, counted: bool) -> None:
        self.unit = unit
        self.since = since
        tables = unit.tables
        said, made, used, logs = (
            tables.messages.c,
            tables.sessions.c,
            tables.turn_usage.c,
            tables.tool_logs.c,
        )
        self.messages = self._from(tables.messages, counted)
        self.messages.append(session_not_being_deleted(tables, said.session_id))
        self.sessions = self._from(tables.sessions, counted)
        self.sessions.append(owner_not_being_deleted(tables, made.user_id))
        self.used = window(used.created_at, since, None)
        self.used.append(session_not_being_deleted(tables, used.session_id))
        self.logs = window(logs.created_at, since, None)
        self.logs.append(session_not_being_deleted(tables, logs.session_id))

    def _from(self, table: Table, counted: bool) -> list[ColumnElement[bool]]:
        in_time = table.c.created_at >= self.since
        return [in_time] if counted else [table.c.pk >= self._first(table), in_time]

    def _first(self, table: Table) -> int:
        """Find the first row of the window by halving: some 30 look-ups by the primary key."""
        execute = self.unit.connection.execute
        low, high = execute(select(func.min(table.c.pk), func.max(table.c.pk))).one()
        if low is None:
            return 0
        low, high = int(low), int(high) + 1
        while low < high:
            middle = (low + high) // 2
            query = select(table.c.pk, table.c.created_at).where(table.c.pk >= middle)
            row = execute(query.order_by(table.c.pk).limit(1)).first()
            if row is None or row.created_at >= self.since:
                high = middle
            else:
                low = int(row.pk) + 1
        return low


def _table(unit: Unit, name: str, size: TableSize, counted: bool) -> TableStatistics:
    rows: int | None = size.rows
    if name == _SEARCH:
        rows = None
    # A server that has not looked at a table yet takes it for empty.
    elif counted or (size.measured and not size.rows and size.bytes <= _COUNT_UP_TO):
        count = select(func.count()).select_from(unit.tables[name])
        rows = int(unit.connection.execute(count).scalar_one())
        counted = True
    return TableStatistics(name, rows, counted and rows is not None, size.bytes, size.measured)


def _growth(
    window: _Window, days: int, footprint: Footprint, messages: int
) -> tuple[DayStatistics, ...]:
    tables = window.unit.tables
    said, made, used = tables.messages.c, tables.sessions.c, tables.turn_usage.c
    sessions = _by_day(window.unit, made.created_at, window.sessions, func.count())
    written = _by_day(
        window.unit,
        said.created_at,
        window.messages,
        func.count(),
        exact_sum(said.token_count),
        exact_sum(said.cost),
    )
    recorded = _by_day(
        window.unit,
        used.created_at,
        window.used,
        exact_sum(used.total_tokens),
        exact_sum(used.cost),
    )
    found: list[DayStatistics] = []
    for number in range(days):
        day = (window.since + timedelta(days=number)).date()
        count, tokens, cost = written.get(day, (0, 0, 0))
        used_tokens, used_cost = recorded.get(day, (0, 0))
        found.append(
            DayStatistics(
                day=day,
                sessions=sessions.get(day, (0,))[0],
                messages=count,
                tokens=tokens,
                cost=from_nanos(cost),
                used_tokens=used_tokens,
                used_cost=from_nanos(used_cost),
                bytes=footprint.bytes * count // messages if messages else 0,
            )
        )
    return tuple(found)


def _by_day(
    unit: Unit,
    instant: ColumnElement[Any],
    conditions: list[ColumnElement[bool]],
    *sums: ColumnElement[Any],
) -> dict[date, tuple[int, ...]]:
    of = day(instant).label("day")
    query = select(of, *sums).where(*conditions).group_by(of)
    return {
        each: tuple(int(value) for value in values)
        for each, *values in unit.connection.execute(query)
    }


def _users(window: _Window, top: int, order: Order) -> tuple[UserStatistics, ...]:
    tables = window.unit.tables
    said, made, used = tables.messages, tables.sessions, tables.turn_usage
    none = literal(0, BigInteger)
    nothing = Halves(none, none)
    written: Select[Any] = (
        select(
            made.c.user_id,
            func.count().label("messages"),
            *halves(said.c.token_count).labelled("tokens"),
            *nothing.labelled("used_tokens"),
            *halves(said.c.cost).labelled("cost"),
            *nothing.labelled("used_cost"),
        )
        .join_from(said, made, made.c.pk == said.c.session_id)
        .where(*window.messages)
        .group_by(made.c.user_id)
    )
    recorded: Select[Any] = (
        select(
            made.c.user_id,
            none,
            *nothing,
            *halves(used.c.total_tokens),
            *nothing,
            *halves(used.c.cost),
        )
        .join_from(used, made, made.c.id == used.c.session_id)
        .where(*window.used)
        .group_by(made.c.user_id)
    )
    both = union_all(written, recorded).subquery().c
    sums = {name: halves_of_sums(Halves.of(both, name)) for name in _SPENT}
    # What was recorded and what the messages say is often the same money, said twice.
    ranks: dict[str, tuple[ColumnElement[Any], ...]] = {
        "tokens": (*sums["used_tokens"].carried(), *sums["tokens"].carried()),
        "cost": sums["cost"].carried().larger(sums["used_cost"].carried()),
    }
    first, second = ("cost", "tokens") if order == "cost" else ("tokens", "cost")
    query = (
        select(both.user_id, func.sum(both.messages), *(each.whole() for each in sums.values()))
        .group_by(both.user_id)
        .order_by(
            *(half.desc() for half in (*ranks[first], *ranks[second])),
            *_by_name(window.unit, both.user_id),
        )
        .limit(top)
    )
    return tuple(
        UserStatistics(
            user_id=row[0],
            messages=int(row[1]),
            tokens=row[2],
            used_tokens=row[3],
            cost=from_nanos(row[4]),
            used_cost=from_nanos(row[5]),
        )
        for row in window.unit.connection.execute(query)
    )


def _by_name(unit: Unit, name: ColumnElement[Any]) -> tuple[ColumnElement[Any], ...]:
    """Give the order of names, none first, which is the same on every server."""
    return name.is_not(None), unit.dialect.by_bytes(name)


def _tools(window: _Window, top: int) -> tuple[ToolStatistics, ...]:
    logs = window.unit.tables.tool_logs.c
    calls = func.count().label("calls")
    failures = func.coalesce(func.sum(case((logs.success.is_(False), 1), else_=0)), 0)
    query = (
        select(logs.tool, calls, failures, func.avg(measured(logs.elapsed_ms)))
        .where(*window.logs)
        .group_by(logs.tool)
        .order_by(calls.desc(), *_by_name(window.unit, logs.tool))
        .limit(top)
    )
    return tuple(
        ToolStatistics(tool, int(count), int(failed), None if mean is None else float(mean))
        for tool, count, failed, mean in window.unit.connection.execute(query)
    )


def _models(window: _Window, top: int, order: Order) -> tuple[UsageSum, ...]:
    used = window.unit.tables.turn_usage.c
    cost, tokens = halves(used.cost), halves(used.total_tokens)
    ranks = (cost, tokens) if order == "cost" else (tokens, cost)
    query = (
        select(used.model, *added_up(used, exact_sum))
        .where(*window.used)
        .group_by(used.model)
        .order_by(
            *(half.desc() for rank in ranks for half in rank.carried()),
            *_by_name(window.unit, used.model),
        )
        .limit(top)
    )
    return tuple(usage_sum(row[0], row) for row in window.unit.connection.execute(query))


def _expired(unit: Unit, now: datetime) -> int:
    """Count sessions that are over; ``expires_at`` is only a lower bound, see ``deletion``."""
    sessions = unit.tables.sessions.c
    query = (
        select(sessions.ttl_seconds, sessions.last_active_at, sessions.active_branch)
        .where(sessions.expires_at <= now, owner_not_being_deleted(unit.tables, sessions.user_id))
        .order_by(sessions.expires_at)
        .limit(_EXPIRED_UP_TO)
    )
    return sum(
        row.active_branch == NO_BRANCH
        or shifted(row.last_active_at, timedelta(seconds=row.ttl_seconds)) <= now
        for row in unit.connection.execute(query)
    )
