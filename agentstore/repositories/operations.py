"""What all repositories share: how a method becomes a unit of work.

A repository has no SQL engine, no connection and no transaction of its own. Its methods are
*bodies*: plain functions that use ``self.unit``. A decorator says what the body needs of its
transaction and makes an *operation* of it:

```text
@reads            one SELECT
@reads_snapshot   several SELECTs that see one state of the database
@appends          a write of one statement
@writes           several statements, all or nothing
@gathers          a body in two halves around a yield; writes of one kind are sent together
@several_units    a method that runs several bodies, each in a transaction of its own
```

Called on a store, an operation gets a unit of its own from the store's runner. Called by another
body, or in ``store.transaction()``, it joins the unit that is open. ``AsyncStore`` runs the same
bodies. So each method is written once.

The invariant: a body never commits, rolls back, sleeps, or keeps anything between two calls. A
runner may therefore run it again after a conflict.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache, wraps
from operator import attrgetter
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast, get_args, get_type_hints

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Integer,
    Select,
    Table,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    union,
    update,
)

from agentstore.engines.base.dialect import EngineDialect, Mode
from agentstore.errors import InvalidCursor, InvalidInput, NotFound
from agentstore.execution.unit import Body, Call, GatheredCall, LoneRead, PrimaryRead, Runner, Unit
from agentstore.records import Page
from agentstore.records.base import complete
from agentstore.schema import Tables
from agentstore.schema.conversations import in_sessions
from agentstore.values.embeddings import Embeddings
from agentstore.values.types import UtcDateTime, from_micros, require_utc, to_micros
from agentstore.values.validation import Cursors, check_limit

# What repositories share: how a method becomes an operation that a unit runs.
#
# A method is written once, synchronously, against ``self.unit``. Its decorator says what it needs
# from a transaction; called on a store's repository it runs in a unit of its own, called from
# another repository's body, or in a transaction, it joins the one that is open.


R = TypeVar("R", bound="Repository")
P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 500
"""Ids in one IN list: far below the engines' limits on parameters, 32,766 and 65,535."""


MOST_IDS = 5_000
"""Ids that one call changes something of at most: others wait for its end."""


class Unset:
    """The default of an argument that can be None: left out means left as it is."""

    def __repr__(self) -> str:
        """Show up well in signatures."""
        return "UNSET"


UNSET = Unset()


class Repository:
    """The queries of one aggregate.

    Attributes:
        unit: The open unit, which bodies use; there is none where a runner opens one for each call.
    """

    __slots__ = ("_runner", "unit")
    _runner: Runner | None
    unit: Unit

    def __init__(self, runner: Runner | Unit) -> None:
        """Bind to a runner, which opens a unit for each call, or to a unit that is open."""
        if isinstance(runner, Unit):
            self.unit, self._runner = runner, None
        else:
            self._runner = runner

    def _units(self, *, repeatable: bool = True) -> Units:
        """Give what runs the units of a method that is several; see ``Units``."""
        return Units(self.unit if self._runner is None else self._runner, repeatable=repeatable)

    @property
    def connection(self) -> Connection:
        """The open unit's connection."""
        return self.unit.connection

    @property
    def tables(self) -> Tables:
        """The tables of the open unit's database."""
        return self.unit.tables


class Operation(NamedTuple):
    """What the decorator knows of a method; the asynchronous side lifts it.

    Attributes:
        body: The method as it is written.
        mode: What it needs of its transaction.
        call: What a runner is given of it.
        owners: Keyword arguments with which, unless they are None, it needs ``Mode.WRITE``.
    """

    body: Callable[..., Any]
    mode: Mode
    call: type[Call] = Call
    owners: tuple[str, ...] = ()


def operation(
    mode: Mode, *owners: str
) -> Callable[[Callable[Concatenate[R, P], T]], Callable[Concatenate[R, P], T]]:
    """Make a method an operation that needs this of its transaction."""

    def decorate(body: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
        return _method(Operation(body, mode, owners=owners))

    return decorate


def gathers(body: Callable[Concatenate[R, P], Body[T]]) -> Callable[Concatenate[R, P], T]:
    """Make a method of a body in two halves, whose write goes together with others of its kind."""
    call: Callable[Concatenate[R, P], T] = _method(Operation(body, Mode.STATEMENT, GatheredCall))
    declare_result(call, body)
    return call


def _method(described: Operation) -> Callable[Concatenate[R, P], T]:
    body, mode, make, owners = described

    @wraps(body)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = make(body, type(self), args, kwargs)
        if self._runner is None:
            here: T = work(self.unit)
            return here
        result: T = self._runner.run(
            Mode.WRITE if owners and [n for n in owners if kwargs.get(n) is not None] else mode,
            work,
            repeatable=kwargs.get("idempotency_key") is not None,
        )
        return result

    call.operation = described  # type: ignore[attr-defined]
    return call


def declare_result(call: Callable[..., Any], body: Callable[..., Generator[Any, Any, Any]]) -> None:
    """Have a method declare what its caller gets, where its body is a generator.

    The body's own annotation is ``Generator[..., ..., T]``, by whatever alias; callers get the T.
    """
    returned = get_args(get_type_hints(body)["return"])[-1]
    call.__annotations__ = body.__annotations__ | {"return": returned}
    signature = inspect.signature(body).replace(return_annotation=returned)
    call.__signature__ = signature  # type: ignore[attr-defined]


def reads(body: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Make a method an operation that is one SELECT."""
    return _method(Operation(body, Mode.READ, LoneRead))


def reads_primary(body: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Make a method an operation that is one SELECT, and nothing that a standby can answer."""
    return _method(Operation(body, Mode.READ, PrimaryRead))


def asks_first(
    prepare: Callable[[Embeddings, dict[str, Any]], None],
) -> Callable[[Callable[Concatenate[R, P], T]], Callable[Concatenate[R, P], T]]:
    """Have a method call the application's embedding function before its unit begins.

    Only where it has a unit of its own, on a store with embeddings. ``AsyncStore`` prepares in a
    greenlet, in which the function is awaited.

    Args:
        prepare: Is given the arguments by name, and changes them.
    """

    def decorate(
        method: Callable[Concatenate[R, P], T],
    ) -> Callable[Concatenate[R, P], T]:
        signature = inspect.signature(method)

        def prepared(embeddings: Embeddings, args: Any, kwargs: Any) -> dict[str, Any]:
            arguments = signature.bind(None, *args, **kwargs).arguments
            del arguments["self"]
            prepare(embeddings, arguments)
            return arguments

        @wraps(method)
        def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
            embeddings = getattr(self._runner, "embeddings", None)  # None in a transaction
            if embeddings is None:
                return method(self, *args, **kwargs)
            return method(self, **prepared(embeddings, args, kwargs))  # type: ignore[call-arg]

        call.prepare, call.prepared = prepare, prepared  # type: ignore[attr-defined]
        return call

    return decorate


reads_snapshot = operation(Mode.SNAPSHOT)
"""Several SELECTs that see one state of the database."""
appends = operation(Mode.STATEMENT)
"""A write that is one statement where the engine can say it in one."""
appends_unless_owned = operation(Mode.STATEMENT, "session_id", "user_id")
"""A write that is one statement, unless an owner is named: then it is several."""
writes = operation(Mode.WRITE)
"""Several statements, all or nothing."""


def required(found: T | None, kind: str, id: object) -> T:
    """Give what was found; raises NotFound where that is nothing."""
    if found is None:
        raise NotFound(kind, id)
    return found


def require_user(unit: Unit, user_id: str | None) -> None:
    """Require that a user is there and stays, where one is named; raises NotFound."""
    if user_id is not None:
        required(unit.first(_user, user_id=user_id), "user", user_id)


def _user(tables: Tables) -> Select[Any]:
    users = tables.users.c
    return select(users.pk).where(users.id == bindparam("user_id"), users.deleting.is_(None))


def chunks(values: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """Cut a long list of ids into pieces that fit into one statement."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def ids_of(name: str, values: object, *, most: int | None = None) -> list[str]:
    """Require a list of ids, and drop what it holds twice.

    Args:
        name: The argument's.
        values: The list.
        most: How many it may hold, where what is done with them is one transaction.

    Raises:
        InvalidInput: It is a single str, holds something else than str, or too many.
    """
    if isinstance(values, str) or not isinstance(values, list | tuple | set | frozenset):
        raise InvalidInput(f"{name} must be a list of ids, not {type(values).__name__}.")
    if most is not None and len(values) > most:
        raise InvalidInput(
            f"{name} must hold up to {most} ids, not {len(values)}. Call again for the rest."
        )
    if not all(isinstance(value, str) for value in values):
        raise InvalidInput(f"{name} must hold ids, which are str.")
    return list(dict.fromkeys(values))


def one_page(
    unit: Unit,
    build: Callable[..., Paged],
    wanted: Mapping[str, Any],
    cursors: Cursors,
    limit: int,
    cursor: str | None,
    record: Callable[[Any], T],
    *shape: Any,
    ascending: bool = False,
) -> Page[T]:
    """Run a query as one page, the largest key first, or the smallest if ascending.

    Args:
        unit: Where to run it.
        build: Builds the query, of the tables and the shape; see ``Unit.rows``.
        wanted: Its parameters; ``only`` is there too.
        cursors: What reads and makes the cursors of this query.
        limit: How many records the page may hold.
        cursor: Where to go on, or None.
        record: Makes a record of a row.
        shape: What else the query depends on.
        ascending: Whether the smallest key comes first.
    """
    check_limit(limit)
    values: dict[str, Any] = {**wanted, "only": unit.only, "most": limit + 1}
    instants = _instants(build, unit.tables, *shape)
    if cursor is not None:
        position = zip(instants, cursors.read(cursor, len(instants)), strict=True)
        values |= {f"after_{n}": _key_value(*each) for n, each in enumerate(position)}
    rows = unit.rows(_page, build, cursor is not None, ascending, *shape, **values)
    following = None
    if len(rows) > limit:
        key = rows[limit - 1][-len(instants) :]
        following = cursors.make(
            [to_micros(each) if isinstance(each, datetime) else int(each) for each in key]
        )
    return Page(tuple(map(record, rows[:limit])), following)


Paged = tuple[Select[Any], Sequence[ColumnElement[Any]]]
"""A query, filtered, unordered; and columns that together no two rows share, whole numbers or
instants. An index on the filters and then the key makes a page cheap."""


def _page(
    tables: Tables, build: Callable[..., Paged], onward: bool, ascending: bool, *shape: Any
) -> Select[Any]:
    query, key = build(tables, *shape)
    if onward:
        after = [bindparam(f"after_{n}", type_=column.type) for n, column in enumerate(key)]
        last, this = (key[0], after[0]) if len(key) == 1 else (tuple_(*key), tuple_(*after))
        query = query.where(last > this if ascending else last < this)
    labelled = [column.label(f"page_key_{n}") for n, column in enumerate(key)]
    order = [column.asc() if ascending else column.desc() for column in key]
    return query.add_columns(*labelled).order_by(*order).limit(MOST)


@lru_cache(maxsize=1024)
def _instants(build: Callable[..., Paged], tables: Tables, *shape: Any) -> list[bool]:
    """Say which columns of a key are instants."""
    return [isinstance(column.type, UtcDateTime) for column in build(tables, *shape)[1]]


def reader(record: type[T]) -> Callable[[Any], T]:
    """Make what makes such a record of a row, which has a column for each field, by its name."""
    names = [field.name for field in fields(cast("Any", record))]
    columns = attrgetter(*names)

    def read(row: Any) -> T:
        return complete(record(**dict(zip(names, columns(row), strict=True))))

    return read


def given(**values: Any) -> dict[str, Any]:
    """Give those that are not None: what is asked for, of what may be."""
    return {name: value for name, value in values.items() if value is not None}


def equal(columns: Any, names: Sequence[str]) -> Conditions:
    """Give the conditions that columns equal the parameters of their names."""
    return [columns[name] == bindparam(name) for name in names]


def written(limit: int) -> ColumnElement[int]:
    """Give a LIMIT that stands in the statement itself.

    Of a parameter PostgreSQL expects that it lets a tenth of the rows through. A plan for all
    parameters then looks costly, so it plans each time, which takes as long as reading a page.
    """
    return bindparam(None, limit, type_=Integer, literal_execute=True)


def several(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Give the parameters of ``among``: as many as the next power of two, the last one repeated.

    So there are few statements, whatever the numbers of values.
    """
    size = 1 << (len(values) - 1).bit_length()
    return {f"{name}_{n}": values[min(n, len(values) - 1)] for n in range(size)}


def among(column: ColumnElement[Any], name: str, size: int) -> ColumnElement[bool]:
    """Give the condition that a column has one of so many values, at least one."""
    return column.in_([bindparam(f"{name}_{n}", type_=column.type) for n in range(size)])


# The statements that several repositories have: a row more, rows changed, rows less.


def adding(_: Tables, table: Table) -> Executable:
    """Insert a row whose columns are the parameters."""
    return insert(table)


def adding_missing(_: Tables, table: Table, dialect: EngineDialect) -> Executable:
    """Insert a row whose columns are the parameters, unless its key is there."""
    return dialect.insert_missing(table).inline()


def making(_: Tables, table: Table, dialect: EngineDialect) -> Executable:
    """Insert a row as ``adding_missing`` does, and give it."""
    return dialect.insert_missing(table).returning(*table.c)


def changing(_: Tables, table: Table, keys: Sequence[str], *names: str) -> Executable:
    """Set the columns of these names where others equal the parameters of theirs."""
    values: dict[str, Any] = {name: bindparam(name) for name in names}
    return update(table).where(*equal(table.c, keys)).values(values)


def removing(_: Tables, table: Table, *keys: str) -> Executable:
    """Delete where columns equal the parameters of their names."""
    return delete(table).where(*equal(table.c, keys))


MOST = bindparam("most", type_=Integer, literal_execute=True)
"""The parameter ``most`` as a LIMIT that stands in the statement itself; see ``written``."""


def window(
    column: ColumnElement[datetime], since: datetime | None, until: datetime | None
) -> list[ColumnElement[bool]]:
    """Give the conditions of a window of time: from ``since`` on, before ``until``.

    Either both ends or none: SQLite counts a range with one end for a quarter of the table,
    however short it is, and then reads all of the table instead.

    Raises:
        NaiveDatetime: ``since`` or ``until`` has no time zone.
    """
    begins, ends, last = ends_of(since, until)
    if begins is None:
        return []
    return [column >= begins, column <= ends if last else column < ends]


def ends_of(
    since: datetime | None, until: datetime | None
) -> tuple[datetime | None, datetime | None, bool]:
    """Give both ends of a window of time, or none, and whether the second belongs to it.

    Raises:
        NaiveDatetime: ``since`` or ``until`` has no time zone.
    """
    if since is None and until is None:
        return None, None, False
    begins = _FIRST if since is None else require_utc("since", since)
    ends = _LAST if until is None else require_utc("until", until)
    return begins, ends, until is None


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def _key_value(instant: bool, number: int) -> Any:
    try:
        return from_micros(number) if instant else number
    except OverflowError:
        raise InvalidCursor("cannot be read") from None


# Methods that are several units of work, one after the other.
#
# Most methods are one body in one transaction. A few must not be: an index is brought up to date
# in batches, so that others can write between two of them, and a search that finds the index up to
# date should not wait for the writer at all. Such a method is a plain function that passes each
# body to ``Units.run``. ``AsyncStore`` calls the same function in a greenlet, see
# ``agentstore.execution.async_runners.bridged``; inside a transaction every unit joins that one.


Method = TypeVar("Method", bound=Callable[..., object])


class Units:
    """Runs units of work, one after the other."""

    __slots__ = ("_repeatable", "_runner")

    def __init__(self, runner: Runner | Unit, *, repeatable: bool = True) -> None:
        """Run them on a runner, or in a unit that is open.

        Args:
            runner: The runner, or the unit.
            repeatable: Whether to repeat a write if it is not known whether it was committed.
        """
        self._runner = runner
        self._repeatable = repeatable

    def run(
        self, mode: Mode, body: Callable[Concatenate[Unit, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a body in a unit of its own; it may be repeated after a conflict."""
        if isinstance(self._runner, Unit):
            return body(self._runner, *args, **kwargs)
        return self._runner.run(
            mode, lambda unit: body(unit, *args, **kwargs), repeatable=self._repeatable
        )


def several_units(method: Method) -> Method:
    """Mark a repository's method that is several units of work: it has no unit of its own."""
    method.several_units = True  # type: ignore[attr-defined]
    return method


# Whose rows are whose, as conditions: what belongs to the user of a scope.
#
# A session belongs to its user, and so does all that is in it. A thread of checkpoints belongs to
# its user or, if it has none, to its session's. What belongs to nobody is in no scope.


Conditions = list[ColumnElement[bool]]


Only = str | ColumnElement[str] | None
"""The user of a scope, ``Unit.only``, or ``whose``; None for all."""


def whose(unit: Unit) -> ColumnElement[str] | None:
    """Give ``unit.only`` as the parameter ``only``, so that a statement is the same for all."""
    return None if unit.only is None else _ONLY


_ONLY: ColumnElement[str] = bindparam("only")


def users(tables: Tables, only: Only) -> Conditions:
    """Give the condition that limits ``users`` to the user of the scope; without a scope, none."""
    return [] if only is None else [tables.users.c.id == only]


def sessions(tables: Tables, only: Only, session_id: ColumnElement[Any]) -> Conditions:
    """Give the condition that a column names a session of the scope's user."""
    if only is None:
        return []
    theirs = tables.sessions.c
    return [in_sessions(theirs, session_id, theirs.user_id == only)]


def threads(tables: Tables, only: Only, thread_id: ColumnElement[Any]) -> Conditions:
    """Give the condition that a column names a thread of the scope's user.

    A UNION, for PostgreSQL reads the whole table where an OR joins a column and a subquery.
    """
    if only is None:
        return []
    every = tables.checkpoint_threads.c
    theirs = sessions(tables, only, every.session_id)
    by_session = select(every.id).where(every.user_id.is_(None), *theirs)
    return [thread_id.in_(union(select(every.id).where(every.user_id == only), by_session))]
