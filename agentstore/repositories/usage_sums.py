"""Adding usage up by a dimension: one statement for each set of filters, compiled once.

The engine adds up as it does by itself. Where SQLite has no room for a sum, or a row holds what is
no whole number, it is added up again in halves, which takes longer and has room for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Self, TypeVar

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import AgentStoreError, CounterOverflow, InvalidRow, NotFound
from agentstore.execution.unit import Unit
from agentstore.records import UsageRecord, UsageSum, UserStats
from agentstore.repositories import operations
from agentstore.repositories.line_changes import own_counts
from agentstore.repositories.lines import no_branch, require
from agentstore.repositories.listing import (
    Halves,
    New,
    NewRow,
    NoWholeSum,
    exact_sum,
    halves,
    halves_of_sums,
    plain_sum,
    read_sum,
)
from agentstore.repositories.operations import (
    MOST,
    Only,
    Repository,
    among,
    chunks,
    reader,
    several,
    whose,
)
from agentstore.repositories.tool_logs import stats_of_tools, tool_stats
from agentstore.schema import (
    Tables,
    owner_not_being_deleted,
    session_is_open,
    session_not_being_deleted,
)
from agentstore.values import validation
from agentstore.values.prices import Prices
from agentstore.values.token_use import TokenUse
from agentstore.values.types import MAX_INTEGER, day, from_nanos, month, shifted, week
from agentstore.values.validation import MAX_SKEW, NO_BRANCH, check_limit

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
    wanted = {**given, "top": top}
    sums = _added_up(unit, lambda exact: _sums(unit, dimension, filters, wanted, exact=exact))
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
    by_model: dict[str, list[Any]] = {}
    for chunk in chunks(ids):
        asked = several("id", chunk)
        shape = unit.dialect, whose(unit), exact, most is not None, len(asked)
        for row in unit.rows(_by_model, *shape, only=unit.only, most=most, **asked):
            by_model.setdefault(row[0], []).append(row)
    found: dict[str, UsageSum] = {}
    for id, rows in by_model.items():
        *sums, records = (sum(map(read_sum, parts)) for parts in [*zip(*rows, strict=True)][1:8])
        named = sorted((-read_sum(row[1]), row[-1]) for row in rows if row[-1] is not None)
        models = tuple(model for _, model in named)
        found[id] = replace(usage_sum(id, (id, *sums)), partial=records == most, models=models)
    return found


def _by_model(
    tables: Tables, dialect: EngineDialect, only: Only, exact: bool, limited: bool, ids: int
) -> Select[Any]:
    sessions, used = tables.sessions, tables.turn_usage
    source: FromClause = sessions.join(used, used.c.session_id == sessions.c.id)
    added = used.c
    if limited:
        each = used.alias("each")
        last = select(each).where(each.c.session_id == sessions.c.id)
        last = last.order_by(each.c.created_at.desc()).limit(MOST)
        source, added = dialect.for_each(sessions, used, last)
    return (
        select(sessions.c.id, *added_up(added, exact_sum if exact else plain_sum), added.model)
        .select_from(source)
        .where(
            among(sessions.c.id, "id", ids),
            owner_not_being_deleted(tables, sessions.c.user_id),
            *operations.sessions(tables, only, sessions.c.id),
        )
        .group_by(sessions.c.id, added.model)
    )


def added_up(used: ReadOnlyColumnCollection[str, Any], add: Callable[[Any], Any]) -> list[Any]:
    """Give what is added up, as ``usage_sum`` reads it, and how many records there are."""
    unpriced = case((used.cost.is_(None), used.requests), else_=0)
    tokens = (used.requests, used.input_tokens, used.output_tokens, used.total_tokens)
    return [*map(add, (*tokens, used.cost, unpriced)), func.count()]


def _sums(
    unit: Unit, dimension: Keys, filters: Filters, wanted: Mapping[str, Any], *, exact: bool
) -> list[UsageSum]:
    rows = [row for row in unit.rows(_summing, dimension, filters, exact, **wanted) if row[-1]]
    sums = []
    for row in rows:
        values = zip(dimension, (row[0], row[-2]), strict=False)
        keys = [_day(value) if name in _SPANS else value for name, value in values]
        sums.append(usage_sum(tuple(keys) if len(keys) == 2 else keys[0] if keys else None, row))
    return sums


def _place(found: UsageSum) -> Any:
    """Say where a sum comes: by its keys, those that are None first."""
    keys = found.key if isinstance(found.key, tuple) else (found.key,)
    return [(key is not None, key) for key in keys]


def _summing(tables: Tables, dimension: Keys, filters: Filters, exact: bool) -> Select[Any]:
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
    *added, records = added_up(used, exact_sum if exact else plain_sum)
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
    if "session_id" in filters.given:  # asked once for the session, and not for each record
        one = given["session_id"]
        given["session_id"] = case((session_not_being_deleted(tables, one), one))
    else:
        query = query.where(session_not_being_deleted(tables, used.session_id))
    for name, column in filtered.items():
        if name in filters.given:
            query = query.where(column == given[name])
    if "since" in filters.given:
        until = bindparam("until", type_=used.created_at.type)
        query = query.where(
            used.created_at >= bindparam("since", type_=used.created_at.type),
            used.created_at <= until if filters.last else used.created_at < until,
        )
    if dimension:
        query = query.group_by(key, *beside)
    if filters.top:
        for each in (used.cost, used.total_tokens):  # a sum of nothing is 0
            ranks = halves(each).carried() if exact else [func.coalesce(plain_sum(each), 0)]
            query = query.order_by(*(rank.desc() for rank in ranks))
        query = query.limit(bindparam("top"))
    return query


def _day(text: Any) -> date:
    try:
        return date.fromisoformat(text)
    except (TypeError, ValueError):
        problem = "something that is not an instant in UTC"
        raise InvalidRow("turn_usage", "created_at", problem) from None


# The messages of a window of time, found by their numbers: no index has their times.
#
# The messages of a branch are numbered as they were saved, so their times rise with their numbers,
# but for clocks that differ or jump. ``sessions.in_order`` says that no message of a session was
# saved with a time more than ``MAX_SKEW`` before that of an earlier one. Then the end of what
# was created before an instant t is found by halving::
#
#     seq                1      2      3      4      5      6
#     created          9:58  10:00   9:59  10:02  10:03  10:09      t = 10:04
#     before t - 1 min   yes    yes    yes    yes    no     no     up to 4 nothing is of t or later
#     before t + 1 min   yes    yes    yes    yes    yes    no     from 6 on nothing is before t
#
# The messages between the two ends of a window are read, and their times looked at. Of a session
# that is not in order everything is read.


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
    begins = _halving(tables, "begins", may_have, shifted(since, -MAX_SKEW), case((all_later, 0)))
    ends = _halving(
        tables, "ends", may_have, shifted(until, MAX_SKEW), case((all_before, sessions.last_seq))
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


# Rows of what was used: on their way in, and as records.


def priced(prices: Prices, row: Mapping[str, Any], use: TokenUse) -> Decimal | None:
    """Compute what was used costs, by the model's price at that time; None if that is not known.

    Raises:
        InvalidInput: It is more than a call may cost.
    """
    price = prices.find(row["model"], row["created_at"])
    cost = None if price is None else price.cost_of(use)
    return None if cost is None else validation.cost("The cost by the store's prices", cost)


class NewUsage(NewRow):
    """What was used, on its way in; turn and branch are the session's where they are None.

    Attributes:
        unpriced: What was used, of a row whose model, and by it the price, are the session's; else
            None. The session has to be looked at first, so it does not go with others.
        reservation_id: The reservation that pays; None if none does.
    """

    __slots__ = ("reservation_id", "unpriced")

    def __init__(
        self, row: dict[str, Any], unpriced: TokenUse | None, reservation_id: str | None = None
    ) -> None:
        """Keep the row."""
        super().__init__(row)
        self.unpriced = unpriced
        self.reservation_id = reservation_id

    @staticmethod
    def table(tables: Tables) -> Table:
        """Say where it goes."""
        return tables.turn_usage

    @staticmethod
    def values(tables: Tables, new: New) -> Select[Any]:
        """Require the session."""
        sessions = tables.sessions.c
        values = dict(new)
        values["turn"] = func.coalesce(new["turn"], sessions.turn)
        values["branch"] = func.coalesce(new["branch"], sessions.active_branch)
        there = (sessions.id == new["session_id"], session_is_open(tables))
        return select(*values.values()).where(*there)

    def why_not(self, unit: Unit) -> AgentStoreError:
        """Say that it is missing."""
        return NotFound("session", self.row["session_id"])

    @property
    def solo(self) -> bool:
        """The session has to be asked first: for the model, and by it for the price; or for the
        number of a branch, or its last turn; or a reservation pays.
        """
        branch, turn = self.row["branch"], self.row["turn"]
        asks = isinstance(branch, str) or (branch is not None and turn is None)
        return asks or self.needs_transaction or self.unpriced is not None

    @property
    def needs_transaction(self) -> bool:
        """A reservation pays."""
        return self.reservation_id is not None

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, solo: bool) -> list[Any]:
        """Look up first what has to be; a group has nothing of the kind.

        The number of a branch, which is never used again, and its last turn are looked up by
        itself.
        """
        if solo:
            row = writes[0].row
            if writes[0].reservation_id is not None:
                _charge(unit, writes[0].reservation_id, row["total_tokens"])
            if row["branch"] is not None:
                place = place_of(unit, row["session_id"], row["branch"], row["turn"])
                row["branch"], row["turn"] = place
            if (used := writes[0].unpriced) is not None:
                found = unit.first(_model_of, session_id=row["session_id"])
                model = None if found is None else found.model
                # Plain SQL may have written it.
                row["model"] = validation.optional_label("The session's model", model)
                row["cost"] = priced(unit.settings.prices, row, used)
        return super().write(unit, writes, solo=solo)


def _charge(unit: Unit, reservation_id: str, tokens: int) -> None:
    """Consume tokens, out of a reservation as far as it goes.

    One token of it stays until it is settled: a reservation has at least one. The user's row is
    locked first, in the order in which everybody locks.
    """
    users, reservations = unit.tables.users, unit.tables.quota_reservations
    this = reservations.c.id == reservation_id
    owner = select(reservations.c.user_id).where(this).scalar_subquery()
    unit.connection.execute(select(users.c.pk).where(users.c.id == owner).with_for_update())
    query = select(reservations.c.user_id, reservations.c.tokens, reservations.c.lapsed)
    query = query.where(this, owner_not_being_deleted(unit.tables, reservations.c.user_id))
    found = unit.connection.execute(query).first()
    if found is None:
        raise NotFound("reservation", reservation_id, "It was settled, released, or never made.")
    less = 0 if found.lapsed else min(tokens, int(found.tokens) - 1)
    if less:
        smaller = update(reservations).where(this).values(tokens=reservations.c.tokens - less)
        unit.connection.execute(smaller)
    used, reserved = users.c.quota_used, users.c.quota_reserved
    charged = (
        update(users)
        .where(users.c.id == found.user_id, used + (reserved - less) <= MAX_INTEGER - tokens)
        .values(quota_used=used + tokens, quota_reserved=reserved - less)
    )
    if tokens and not unit.connection.execute(charged).rowcount:
        raise CounterOverflow("user", found.user_id)


def _model_of(tables: Tables) -> Select[Any]:
    sessions = tables.sessions.c
    return select(sessions.model).where(sessions.id == bindparam("session_id"))


usage_record = reader(UsageRecord)


def usage_sum(key: Any, row: Any) -> UsageSum:
    """Make the record of a row that begins with a key and the sums; raises NoWholeSum."""
    requests, input_tokens, output_tokens, total_tokens, cost, unpriced = map(read_sum, row[1:7])
    return UsageSum(
        key=key,
        requests=requests,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=total_tokens,
        cost=from_nanos(cost),
        unpriced_requests=unpriced,
    )


# Which branch and which turn are meant, for which something is recorded.


Branch = int | str | None
"""A branch's number, or the name of one that is there."""


def checked(branch: Branch) -> Branch:
    """Check what names a branch."""
    if isinstance(branch, str):
        return validation.text("branch", branch)
    return validation.optional_amount("branch", branch)


def place_of(unit: Unit, session_id: str, branch: Branch, turn: int | None) -> tuple[int, int]:
    """Give the number of a branch and of a turn: None means the active one, and its last.

    Raises:
        NotFound: There is no such session or branch.
    """
    if isinstance(branch, int) and turn is not None:
        return branch, turn
    tables = unit.tables
    branches, sessions = tables.branches.c, tables.sessions.c
    is_active = branches.number == sessions.active_branch
    if isinstance(branch, str):
        meant = branches.name == branch
    else:
        meant = is_active if branch is None else branches.number == branch
    query = (
        select(branches.number, own_counts(tables)[2])
        .join_from(tables.branches, tables.sessions, sessions.pk == branches.session_id)
        .where(
            branches.session_id == session_id,
            session_is_open(tables),
            branches.gone.is_(False),
            meant,
        )
    )
    row = unit.connection.execute(query).first()
    if row is None:
        require(unit, session_id)
        raise no_branch(str(branch)) if branch is not None else NotFound("session", session_id)
    number, last = row
    return number, last if turn is None else turn


# What a user did in a window of time.


def stats_of(repository: Repository, user_id: str, since: datetime, until: datetime) -> UserStats:
    """Add it up; see ``Usage.stats``."""
    tables = repository.tables
    sessions = tables.sessions
    operations.require_user(repository.unit, user_id)
    of_user = (sessions.c.user_id == user_id, sessions.c.active_branch > NO_BRANCH)
    source, found = messages_between(tables, repository.unit.dialect, and_(*of_user), since, until)
    of_session = (
        select(
            found.session_id,
            func.count().label("messages"),
            *halves(found.token_count).labelled("tokens"),
            *halves(found.cost).labelled("cost"),
        )
        .select_from(source)
        .group_by(found.session_id)
        .cte("of_session")
    )
    created = (sessions.c.created_at >= since) & (sessions.c.created_at < until)
    tokens, cost = (halves_of_sums(Halves.of(of_session.c, n)) for n in ("tokens", "cost"))
    written = (
        select(
            func.coalesce(func.sum(of_session.c.messages), 0),
            tokens.whole(),
            cost.whole(),
            func.count(case((~created, 1))).label("only_written_to"),
        )
        .select_from(of_session)
        .join(sessions, sessions.c.pk == of_session.c.session_id)
    )
    messages, tokens, cost, only_written_to = repository.connection.execute(written).one()
    made = select(func.count()).select_from(sessions).where(*of_user, created)
    return UserStats(
        user_id=user_id,
        since=since,
        until=until,
        sessions=only_written_to + int(repository.connection.execute(made).scalar_one()),
        messages=int(messages),
        tokens=tokens,
        cost=from_nanos(cost),
        tools=tool_stats(repository.unit, _logs_of_user, user_id=user_id, since=since, until=until),
    )


def _logs_of_user(tables: Tables) -> Select[Any]:
    logs, sessions = tables.tool_logs.c, tables.sessions.c
    of_user = sessions.user_id == bindparam("user_id"), sessions.active_branch > NO_BRANCH
    begun = logs.session_id.in_(select(sessions.id).where(*of_user))
    window = logs.created_at >= bindparam("since"), logs.created_at < bindparam("until")
    return stats_of_tools(tables, [begun, *window])
