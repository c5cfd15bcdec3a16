"""The sessions with the newest or the oldest activity, by an index that few writes change.

Every message raises its session's ``activity``, so an index of it would be written with every
message. The indexes have ``listed_activity`` instead, which stays behind by less than
``LISTED_WITHIN``::

    listed_activity    100    340    352          activity of the first session: 100 to 355
    activity           355    340    361

The sessions with the n newest activities are among the n + LISTED_WITHIN with the newest
``listed_activity``. Let l be the smallest ``listed_activity`` of these. No two sessions have the
same, so at most LISTED_WITHIN of them are listed under l to l + LISTED_WITHIN - 1. The others, at
least n, have an activity of l + LISTED_WITHIN or more. Every session that is listed under less
than l has a smaller activity.

The n oldest activities are found likewise, among the n + LISTED_WITHIN with the smallest
``listed_activity``. Let l be the largest of these. At most LISTED_WITHIN of them are listed under
more than l - LISTED_WITHIN, and the others, at least n, have an activity of l or less. Every
session that is listed under more than l has a larger activity.

Mostly fewer will do: of the n with the newest ``listed_activity`` let a be the smallest activity.
The n newest activities are a or more, so they are listed under more than a - LISTED_WITHIN. Where
sessions are some messages apart that is hardly more than n; see ``Sooner``.

Sessions of different status are found apart, so that one index serves lists of one status and of
all. What is the same in each list is written into the statement, where PostgreSQL sees it when it
plans: of parameters it expects a tenth of the table, and then it plans each list anew.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from inspect import signature
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar, get_type_hints

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Float,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeDecorator, TypeEngine

from agentstore.engines.base.dialect import EngineDialect, Mode
from agentstore.errors import AgentStoreError
from agentstore.execution.unit import DEFERRED, Unit, rest
from agentstore.records import Page
from agentstore.repositories.operations import Repository, Units
from agentstore.schema import Tables
from agentstore.values.types import SOUGHT_ID, OwnId, Sooner
from agentstore.values.validation import LISTED_WITHIN, MAX_MILLISECONDS, SESSION_STATUSES


def newest(
    tables: Tables,
    *conditions: ColumnElement[bool],
    most: int | ColumnElement[int],
    beyond: ColumnElement[int] | None = None,
    status: ColumnElement[str] | None = None,
    oldest: bool = False,
) -> Select[Any]:
    """Select the ``pk`` of the sessions with the newest activity.

    Args:
        tables: The tables.
        conditions: Which sessions, of those that an index has side by side.
        most: How many, at most.
        beyond: Only sessions with a smaller activity; or with a larger one, of the oldest.
        status: Only sessions in this status.
        oldest: Select those with the oldest activity instead.
    """
    sessions = tables.sessions.c
    listed, activity = sessions.listed_activity, sessions.activity
    further: list[ColumnElement[bool]] = []
    if beyond is not None:
        further = [listed < beyond, activity < beyond]
        if oldest:
            further = [listed > beyond - LISTED_WITHIN, activity > beyond]

    def sorted_by(column: ColumnElement[int]) -> ColumnElement[int]:
        return column.asc() if oldest else column.desc()

    within = literal_column(str(LISTED_WITHIN), BigInteger)
    each_status = [
        bindparam(None, each, type_=sessions.status.type, literal_execute=True)
        for each in SESSION_STATUSES
    ]
    apart = []
    for each in each_status if status is None else (status,):
        here = sessions.status == each, *conditions, *further
        # The first rows of the index bound the page: one beyond them all cannot be on it.
        front = select(activity).where(*here).order_by(sorted_by(listed)).limit(most).subquery()
        if oldest:
            reach = listed <= select(func.max(front.c.activity)).scalar_subquery()
        else:
            reach = listed > select(func.min(front.c.activity) - within).scalar_subquery()
        query = select(sessions.pk, activity).where(*here, Sooner(reach))
        query = query.order_by(sorted_by(listed)).limit(most + within)
        apart.append(select(query.subquery()))
    found = union_all(*apart).subquery()
    return select(found.c.pk).order_by(sorted_by(found.c.activity)).limit(most)


# Methods that go over all pages of a list, made of the methods that give one page.
#
# ``iter = over_pages(list)`` makes the generator. It calls the repository's own method again with
# the cursor of the page before, until there is no further page: so it has that method's
# arguments, order and errors, in a scope and where calls are watched too. Between two pages
# nothing is open, so a generator that is abandoned holds no connection.


R = TypeVar("R", bound=Repository)
P = ParamSpec("P")
T = TypeVar("T")

_PRINCIPAL = ("list", "page")
"""What ``iter`` goes over; ``iter_x`` goes over ``x``."""


class Pages:
    """How to go over the pages of a method.

    Attributes:
        method: The name of the method that gives one page.
    """

    __slots__ = ("_backwards", "_cursor", "method")

    def __init__(self, method: Callable[..., Page[Any]], *, backwards: bool) -> None:
        """Look what the method calls its cursor."""
        self.method = method.__name__
        self._backwards = backwards
        self._cursor = next(n for n in ("cursor", "before") if n in signature(method).parameters)

    def items(self, page: Page[T]) -> tuple[T, ...]:
        """Give what a page has, in the order of the iteration."""
        return page.items[::-1] if self._backwards else page.items

    def following(self, page: Page[Any]) -> dict[str, str] | None:
        """Give the arguments that the call for the next page has instead; None behind the last."""
        return None if page.next_cursor is None else {self._cursor: page.next_cursor}


def over_pages(
    method: Callable[Concatenate[R, P], Page[T]], *, backwards: bool = False
) -> Callable[Concatenate[R, P], Generator[T, None, None]]:
    """Make the method that goes over all pages of another one.

    Args:
        method: Gives one page.
        backwards: Whether what is on a page comes in another order than the pages do.
    """
    pages = Pages(method, backwards=backwards)

    @wraps(method, updated=())
    def iterate(self: R, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        following: dict[str, str] | None = {}
        while following is not None:
            page: Page[T] = getattr(self, pages.method)(*args, **{**kwargs, **following})
            yield from pages.items(page)
            following = pages.following(page)

    iterate.__name__ = "iter" if pages.method in _PRINCIPAL else f"iter_{pages.method}"
    iterate.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{iterate.__name__}"
    iterate.__doc__ = (
        f"Go over all pages of ``{pages.method}``{', the newest first' if backwards else ''}.\n\n"
        f"Arguments, order and errors are those of ``{pages.method}``; ``limit`` says how many are "
        "read at a\ntime. Each page is a call of its own, made when it is needed. Nothing is open "
        "between two of them."
    )
    (item,) = get_type_hints(method)["return"].__args__
    declare(iterate, Generator, item, None, None)
    iterate.pages = pages  # type: ignore[attr-defined]
    return iterate


def declare(iterate: Callable[..., Any], kind: Any, *given: Any) -> None:
    """Have a generator function declare which kind of generator it makes, of what."""
    returned = kind[given]
    iterate.__annotations__ = iterate.__annotations__ | {"return": returned}
    of_method = signature(iterate)
    iterate.__signature__ = of_method.replace(return_annotation=returned)  # type: ignore[attr-defined]


# Sums that nothing overflows.
#
# SQLite adds whole numbers up in 64 bits and fails beyond. So the upper and the lower halves of
# the numbers are added up apart, which holds for 2**32 rows of any size, and a sum travels as
# text, as Python's int has no limit. What is compared in the database, or ordered by, is the two
# halves.


_BITS = literal_column("32", BigInteger)
_LOW = literal_column(str(2**32 - 1), BigInteger)
_FULL = literal_column(str(2**31), BigInteger)
_UP = literal_column(str(2**32), BigInteger)


class Halves(NamedTuple):
    """Two columns: a sum is the first times 2**32, and the second."""

    high: ColumnElement[Any]
    low: ColumnElement[Any]

    def labelled(self, name: str) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """Name them, for a subquery."""
        return self.high.label(f"{name}_high"), self.low.label(f"{name}_low")

    @classmethod
    def of(cls, columns: Any, name: str) -> Halves:
        """Find them again in a subquery."""
        return cls(columns[f"{name}_high"], columns[f"{name}_low"])

    def whole(self) -> ColumnElement[int]:
        """Give the sum itself, of any size; 0 where there is nothing."""
        return type_coerce(cast(self.high, Text) + ":" + cast(self.low, Text), _WholeSum())

    def carried(self) -> Halves:
        """Carry what the lower half has too much of; then halves are in order as their sums are."""
        high, low = (cast(func.coalesce(half, 0), BigInteger) for half in self)
        return Halves(high + low.op(">>")(_BITS), low.op("&")(_LOW))

    def fitting(self) -> ColumnElement[Any]:
        """Give the sum as a number of the database; 0 of nothing, NULL where it has no room."""
        high, low = self.carried()
        return case((high < _FULL, high * _UP + low))

    def larger(self, other: Halves) -> Halves:
        """Give the larger of two sums; both are carried."""
        mine = or_(self.high > other.high, and_(self.high == other.high, self.low > other.low))
        return Halves(
            case((mine, self.high), else_=other.high), case((mine, self.low), else_=other.low)
        )


class _WholeSum(TypeDecorator[int]):
    """A sum on its way, as text."""

    impl = Text
    cache_ok = True

    def process_result_value(self, value: Any | None, dialect: Dialect) -> int:
        """Put the halves together."""
        if value is None:
            return 0
        high, low = str(value).split(":")
        return (int(high) << 32) + int(low)


def halves(column: ColumnElement[Any]) -> Halves:
    """Add up whole numbers, or money as whole billionths."""
    number = type_coerce(column, BigInteger)
    return Halves(func.sum(number.op(">>")(_BITS)), func.sum(number.op("&")(_LOW)))


def halves_of_sums(sums: Halves) -> Halves:
    """Add sums up, of which there are few."""
    return Halves(func.sum(sums.high), func.sum(sums.low))


def exact_sum(column: ColumnElement[Any]) -> ColumnElement[int]:
    """Add up whole numbers, or money as whole billionths, whatever they come to; 0 of nothing."""
    return halves(column).whole()


class NoWholeSum(Exception):
    """A sum is not a whole number, because one of the values is not."""


def plain_sum(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Add up whole numbers as the engine does; ``read_sum`` reads it.

    SQLite fails where the sum has no room: see ``EngineDialect.has_no_room``.
    """
    return func.sum(type_coerce(column, BigInteger))


def read_sum(value: Any) -> int:
    """Read what ``plain_sum`` or ``exact_sum`` gave; raises NoWholeSum."""
    if isinstance(value, float):
        raise NoWholeSum
    return 0 if value is None else int(value)


def measured(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Give a time, or NULL where it is longer than a call may say: that was not measured."""
    return case((column <= literal(MAX_MILLISECONDS, Float(53)), column))


# Rows that are inserted where their session is there: one, or many in one statement.


New = Mapping[str, ColumnElement[Any]]
"""The columns of a row on its way in."""


class NewRow(ABC):
    """A row to be inserted: a ``Write`` that gives it as it is stored."""

    __slots__ = ("row",)

    def __init__(self, row: dict[str, Any]) -> None:
        """Keep the row, whole but for ``pk``; its ``id`` tells it from others."""
        self.row = row

    @property
    def solo(self) -> bool:
        """It can go with others."""
        return False

    @property
    def needs_transaction(self) -> bool:
        """It is one statement."""
        return False

    @staticmethod
    @abstractmethod
    def table(tables: Tables) -> Table:
        """Say where it goes."""

    @staticmethod
    @abstractmethod
    def values(tables: Tables, new: New) -> Select[Any]:
        """Select the values of all columns but ``pk``, in their order.

        Args:
            tables: The tables.
            new: The columns. The condition that the session is there is part of the query.
        """

    @abstractmethod
    def why_not(self, unit: Unit) -> AgentStoreError:
        """Say why it was not inserted."""

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, solo: bool) -> list[Any]:
        """Insert those whose session is there; in a group, only if nobody has it locked."""
        if not writes:
            return []
        statement = None if solo else _many(cls, unit.tables, unit.dialect)
        if statement is None:
            found = [unit.first(_one, cls, **write.row) for write in writes]
            if solo and found[0] is None:
                raise writes[0].why_not(unit)
            return [DEFERRED if row is None else row for row in found]
        arrays = {
            name: [write.row[name] for write in writes] for name in _columns(cls, unit.tables)
        }
        written = {row.id: row for row in unit.connection.execute(statement, arrays)}
        return [written.get(write.row["id"], DEFERRED) for write in writes]


@lru_cache(maxsize=256)
def _columns(kind: type[NewRow], tables: Tables) -> tuple[str, ...]:
    return tuple(column.name for column in kind.table(tables).columns if column.name != "pk")


def _types(kind: type[NewRow], tables: Tables) -> dict[str, TypeEngine[Any]]:
    """Give the types in which a row arrives: what it refers to is looked for, and may not exist."""
    columns = kind.table(tables).c
    return {
        name: SOUGHT_ID
        if isinstance(columns[name].type, OwnId) and columns[name].foreign_keys
        else columns[name].type
        for name in _columns(kind, tables)
    }


def _one(tables: Tables, kind: type[NewRow]) -> ReturningInsert[Any]:
    """Insert one row."""
    types = _types(kind, tables)
    new = {name: cast(bindparam(name, type_=of), of) for name, of in types.items()}
    return _insert(kind, tables, kind.values(tables, new))


@lru_cache(maxsize=256)
def _many(
    kind: type[NewRow], tables: Tables, dialect: EngineDialect
) -> ReturningInsert[Any] | None:
    arriving = dialect.arriving(tables, _types(kind, tables))
    if arriving is None:
        return None
    new, free = arriving
    return _insert(kind, tables, kind.values(tables, new).where(free))


def _insert(kind: type[NewRow], tables: Tables, values: Select[Any]) -> ReturningInsert[Any]:
    table = kind.table(tables)
    return insert(table).from_select(list(_columns(kind, tables)), values).returning(*table.c)


# How much one of many transactions does, so that other writers never wait long.
#
# Rows differ: a tool log of a hundred bytes is deleted in microseconds, one of a megabyte takes
# as long as thousands of them. So the time that one transaction took decides how many rows the
# next one may delete. What it writes has to get to the disk too, after the body; that takes about
# as long again.
#
# SQLite cannot say whether somebody waits for its lock, only whether somebody has written. If
# nobody has written during a pause, the next pause is short: long enough for each waiting writer
# of this library to try once. Each eighth pause is long, since other programs may try only every
# 100 ms.


LONG = 0.03
"""Seconds. A body that took longer makes the next one smaller."""

ALONE = 3
"""Where others wait only for the rows that a body deletes, and hardly anybody writes to those, it
may take so many times as long, and delete so many times as many."""

FIRST = 96
"""Rows, to begin with."""

LEAST = 96
"""Rows, however long they take: the statements alone take some time, which fewer rows would not
save."""

SHORTEST_PAUSE = 0.007
"""Seconds: longer than SQLite's writers sleep between two tries to get the lock."""

_LONG_AFTER = 8
"""So many short pauses are followed by a long one."""

_LONGEST_PAUSE = 0.1
"""Seconds, the longest that SQLite itself sleeps between two tries to get the lock."""


def first_deadline(unit: Unit, table: str) -> datetime | None:
    """Give the present, or None if nothing can have expired: then nothing needs to be locked."""
    now, expires_at = unit.now(), unit.tables[table].c.expires_at
    query = select(expires_at).where(expires_at <= now).order_by(expires_at).limit(1)
    return None if unit.connection.execute(query).first() is None else now


class Pace:
    """Runs transactions that delete rows, and pauses between them.

    Attributes:
        rows: How many rows the next transaction may delete.
    """

    __slots__ = ("_began", "_most", "_pauses", "_quiet", "_seen", "_took", "_units", "rows")

    def __init__(self, units: Units, most: int) -> None:
        """Begin small: how large the rows are is not known yet.

        Args:
            units: Runs the transactions.
            most: Rows in one transaction at most, where others wait for the same lock.
        """
        self._units = units
        self._most = most
        self._pauses = False
        self._began = self._took = 0.0
        self._seen: int | None = None
        self._quiet = 0
        self.rows = min(most, FIRST)

    def write(
        self, body: Callable[Concatenate[Unit, Pace, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a body that deletes up to ``rows`` rows, and adapt ``rows`` to the time it takes."""

        def timed(unit: Unit) -> T:
            # Where writers wait for the same lock, unless all is one transaction anyway.
            self._pauses = unit.dialect.single_writer and not unit.joined
            if self._pauses:
                seen = unit.dialect.writes_of_others(unit.connection)
                self._quiet = self._quiet + 1 if seen == self._seen else 0
                self._seen = seen
            self._began = time.monotonic()
            result = body(unit, self, *args, **kwargs)
            self._took = time.monotonic() - self._began
            ease = 1 if unit.dialect.single_writer else ALONE
            long, least = ease * LONG, ease * LEAST
            if self._took > long:
                self.rows = max(min(least, self._most), int(self.rows * long / self._took / 1.5))
            elif self._took < long / 2:
                self.rows = min(ease * self._most, 2 * self.rows)
            return result

        return self._units.run(Mode.WRITE, timed)

    @property
    def is_spent(self) -> bool:
        """Whether the body that runs has taken long enough."""
        return time.monotonic() - self._began > LONG

    def pause(self) -> None:
        """Let others write: if they do, for as long as the last transaction kept them waiting."""
        if self._pauses:
            alone = self._quiet % _LONG_AFTER
            rest(min(max(SHORTEST_PAUSE, 0 if alone else 2 * self._took), _LONGEST_PAUSE))
