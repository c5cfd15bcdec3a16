"""Column types that mean the same on both engines.

=================  =======================  =======================
type               SQLite                   PostgreSQL
=================  =======================  =======================
``SafeText``       TEXT                     text
``EnumText``       TEXT, of a few words     text, likewise
``Json``           TEXT                     json, never jsonb
``UtcDateTime``    BIGINT, microseconds     timestamptz
``RowNumber``      INTEGER (the rowid)      bigint
``StrictInteger``  BIGINT                   bigint
``StrictFloat``    FLOAT                    double precision
``StrictBoolean``  BOOLEAN (0 and 1)        boolean
``Bytes``          BLOB                     bytea
``Nanos``          BIGINT                   bigint
=================  =======================  =======================

``Json`` on SQLite is TEXT and not JSON, because a column declared JSON has numeric affinity
there and would turn the document ``1e22`` into a number. On PostgreSQL it is read as text, so
that no driver's own JSON decoding comes between; ``agentstore.values.encoding`` says why not jsonb.

``OwnId``, in ``agentstore.values.types``, is a BLOB of 16 bytes and a uuid.

SQLite lets anything into any column, so each type looks at what it reads there. What it cannot read
is an ``InvalidRow`` that names the column: the types of the models' columns know which they are.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, Underflow
from types import NoneType
from typing import Any, NoReturn, Self

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
    case,
    cast,
    func,
    literal_column,
    type_coerce,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine, UserDefinedType

from agentstore.errors import InvalidInput, InvalidRow, NaiveDatetime, named, shown
from agentstore.values.encoding import (
    ComparedText,
    decode_text,
    dump_json,
    encode_text,
    load_json,
    load_many,
)

_MOST_MONEY = Decimal("9223372036.854775807")
_EXACT = Context(prec=40, traps=[Inexact, InvalidOperation, Overflow, Underflow])
"""For money: the caller's own decimal context may round to a few digits."""

MAX_INTEGER = 2**63 - 1
"""The largest number that a column of whole numbers holds, on both engines."""


Column = Sequence[Any]
"""The values of one column, in the order of the rows."""


def to_nanos(name: str, amount: Decimal | int | str) -> int:
    """Turn an amount of money into whole billionths, exactly.

    Raises:
        InvalidInput: The amount is a float, negative, not finite, finer than a billionth, or
            more than fits.
    """
    if type(amount) is Decimal and not amount:
        return 0  # most messages cost nothing that is known
    if isinstance(amount, bool | float) or not isinstance(amount, Decimal | int | str):
        raise InvalidInput(
            f"{name} must be a Decimal, an int or a str such as '0.0021', "
            f"not {type(amount).__name__}: floats cannot hold money exactly."
        )
    try:
        value = Decimal(amount)
    except (ArithmeticError, ValueError):
        value = Decimal("NaN")
    if not value.is_finite():
        raise InvalidInput(
            f"{name} must be an amount of money, such as Decimal('0.0021'), 2 or '0.0021', not "
            f"{shown(amount)}."
        )
    if not 0 <= value <= _MOST_MONEY:
        raise InvalidInput(f"{name} must be from 0 to 9223372036, not {value:.6g}.")
    try:
        nanos = value.scaleb(9, _EXACT)
    except ArithmeticError:  # more digits than whole billionths in that range have
        nanos = None
    if nanos is None or nanos != int(nanos):
        raise InvalidInput(
            f"{name} must be a multiple of 0.000000001, and this one, about {value:.6g}, is not. "
            "Round it with quantize()."
        )
    return int(nanos)


def from_nanos(nanos: int) -> Decimal:
    """Undo ``to_nanos``."""
    return Decimal(nanos).scaleb(-9, _EXACT) if nanos else Decimal(0)


class Named:
    """What a type knows of its column: the plain name of its table, and its own; "" if it has none.

    Of what is stored there an error says only of what kind it is not.
    """

    table = column = ""
    holds: str

    def of(self, table: str, column: str) -> Self:
        """Give the same type for a column."""
        named: Self = self.copy()  # type: ignore[attr-defined]
        named.table, named.column = table, column
        return named

    def adapt(self, cls: type[Any], **options: Any) -> Any:
        """Make the type of an engine, which knows the column too."""
        adapted = super().adapt(cls, **options)  # type: ignore[misc]
        if isinstance(adapted, Named):
            adapted.table, adapted.column = self.table, self.column
        return adapted

    def invalid_row(self) -> InvalidRow:
        """Say that the column holds what cannot be read."""
        return InvalidRow(self.table, self.column, f"something that is not {self.holds}")


class Strict(Named):
    """A type whose values SQLite gives as they are, whatever they are."""

    kinds: tuple[type, ...]

    def strictly(self, value: Any) -> Any:
        """Give a value that SQLite read, if it is of the right kind."""
        if value is None or type(value) in self.kinds:
            return value
        raise self.invalid_row()

    def all_strictly(self, column: Column, *, required: bool = False) -> Column:
        """Give the values of a column, if they are of the right kind; if required, all of them."""
        if int in self.kinds and add_up(column):
            return column
        if not {*map(type, column)} <= {*self.kinds, *(() if required else (NoneType,))}:
            raise self.invalid_row()
        return column

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Look at what SQLite reads; what a server reads is of the column's type."""
        return self.strictly if dialect.name == "sqlite" else None


def add_up(column: Column) -> bool:
    """Say whether all values of a column are whole numbers.

    With a float the sum is a float; None, a text or bytes cannot be added. A bool can, but no
    driver gives one for such a column. To look at their types takes ten times as long.
    """
    try:
        return type(sum(column)) is int
    except TypeError:
        return False


class StrictInteger(Strict, BigInteger):
    """A whole number."""

    kinds = (int,)
    holds = "a whole number"


class StrictFloat(Strict, Float[float]):
    """A number."""

    kinds = (float, int)
    holds = "a number"


class Bytes(Strict, LargeBinary):
    """Bytes."""

    kinds = (bytes,)
    holds = "bytes"


class StrictBoolean(Strict, Boolean):
    """A flag."""

    holds = "a flag"

    def strictly(self, value: Any) -> bool | None:
        """Give a flag that SQLite read as a number."""
        flag: bool | None = self.all_strictly([value])[0]
        return flag

    def all_strictly(self, column: Column, *, required: bool = False) -> Column:
        """Give flags that SQLite read as numbers; if required, all of them."""
        if required and None in column:
            raise self.invalid_row()
        try:
            return [_FLAGS[value] for value in column]
        except KeyError:
            raise self.invalid_row() from None


_FLAGS = {0: False, 1: True, None: None}


class SafeText(Named, TypeDecorator[str]):
    """Text that both engines can carry, NUL and lone surrogates included."""

    impl = ComparedText
    cache_ok = True
    holds = "text"

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape what the engines cannot carry; raises InvalidInput."""
        if value is None:
            return None
        if not isinstance(value, str):
            raise InvalidInput(f"An id or a text must be a str, not {type(value).__name__}.")
        return encode_text(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Give back the text as it went in; raises InvalidRow."""
        if value is None:
            return None
        if type(value) is not str:
            raise self.invalid_row()
        return decode_text(value)


class EnumText(SafeText):
    """One of a few plain words."""

    cache_ok = True

    def __init__(self, words: Iterable[str]) -> None:
        """Say which."""
        super().__init__()
        self.words = frozenset(words)

    @property
    def holds(self) -> str:  # type: ignore[override]
        """Name what it holds."""
        return f"one of {', '.join(sorted(self.words))}"

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Give the word; raises InvalidRow."""
        if value is None or value in self.words:
            return value
        raise self.invalid_row()


class _PgJson(UserDefinedType[Any]):
    """PostgreSQL's json, which keeps a document as it was written, read as text."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        kind = colexpr.type if isinstance(colexpr.type, Json) else Json()
        return type_coerce(cast(colexpr, Text()), kind)


class Document(str):
    """JSON that is written already, by ``dump_json``; a ``Json`` column takes it as it is."""

    __slots__ = ()


class Json(Named, TypeDecorator[Any]):
    """A JSON document; a Python None is SQL NULL, and the document ``null`` is never stored."""

    impl = Text
    cache_ok = True

    def __init__(self, document: type = object) -> None:
        """Say what its documents are in Python."""
        super().__init__()
        self.document = document

    @property
    def holds(self) -> str:  # type: ignore[override]
        """Name what it holds."""
        return _DOCUMENTS[self.document]

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose text or json."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(_PgJson())
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: Any | None, dialect: Dialect) -> str | None:
        """Write the document; raises InvalidJson."""
        if value is None or type(value) is Document:
            return value
        return dump_json(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> Any:
        """Read the document; raises InvalidRow."""
        return None if value is None else self.read(value)

    def read(self, value: Any) -> Any:
        """Read a document that is not NULL; raises InvalidRow."""
        try:
            document = load_json(value)
        except Exception:  # noqa: BLE001 - its words would quote the document
            raise self.invalid_row() from None
        if not isinstance(document, self.document):
            raise self.invalid_row()
        return document

    def read_many(self, column: Column, *, required: bool = False) -> Column:
        """Read a column of documents; raises InvalidRow, for NULL too if all are required."""
        given = column if required else [value for value in column if value is not None]
        if len(given) == len(column) == 1:
            return [self.read(given[0])]
        try:
            documents = load_many(given)
        except Exception:  # noqa: BLE001 - its words would quote a document
            raise self.invalid_row() from None
        if self.document is not object and {*map(type, documents)} - {self.document}:
            raise self.invalid_row()
        if len(documents) == len(column):
            return documents
        following = iter(documents)
        return [value if value is None else next(following) for value in column]


_DOCUMENTS: dict[type, str] = {object: "JSON", dict: "a JSON object", list: "a JSON array"}


class UtcDateTime(Named, TypeDecorator[datetime]):
    """An instant: aware in, UTC out, to the microsecond."""

    impl = BigInteger
    cache_ok = True
    holds = "an instant in UTC"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose a whole number or timestamptz."""
        if self.is_number(dialect):
            return dialect.type_descriptor(BigInteger())
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Write the instant; raises NaiveDatetime."""
        if value is None:
            return None
        instant = require_utc("the time", value)
        return to_micros(instant) if self.is_number(dialect) else instant

    def is_number(self, dialect: Dialect) -> bool:
        """Say whether the engine keeps it as microseconds since 1970."""
        return dialect.name == "sqlite"

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Read the instant, in UTC; raises InvalidRow."""
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return self.read(value)

    def read(self, value: Any) -> datetime:
        """Read an instant that is a number; raises InvalidRow."""
        if type(value) is not int:
            raise self.invalid_row()
        try:
            return from_micros(value)
        except OverflowError:
            raise self.invalid_row() from None


class _Day(TypeDecorator[date]):
    """A day that a query makes: YYYY-MM-DD there, a ``date`` here."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: date | None, dialect: Dialect) -> str | None:
        """Write a day to compare with."""
        return None if value is None else value.isoformat()

    def process_result_value(self, value: str | None, dialect: Dialect) -> date | None:
        """Read it."""
        return None if value is None else date.fromisoformat(value)


class _Span(FunctionElement[date]):
    """The first day of a span of time, a unit, in which an instant is, in UTC."""

    name = "utc_span"
    type = _Day()
    inherit_cache = True


def day(instant: Any) -> ColumnElement[date]:
    """Give the day of an instant of ours, in UTC, in a query of yours.

    An instant is a number on SQLite and a ``timestamptz`` on PostgreSQL, so what either engine
    brings for dates (``strftime``, ``date_trunc``) does not work on both.

    Examples:
        >>> select(models.day(Message.created_at), func.count()).group_by(
        ...     models.day(Message.created_at)
        ... )
    """
    return _Span(literal_column("'day'"), instant)


def week(instant: Any) -> ColumnElement[date]:
    """Give the Monday of the week of an instant of ours, in UTC; see ``day``."""
    return _Span(literal_column("'week'"), instant)


def month(instant: Any) -> ColumnElement[date]:
    """Give the first of the month of an instant of ours, in UTC; see ``day``."""
    return _Span(literal_column("'month'"), instant)


_YEAR_1 = 62_135_596_800
"""Seconds from year 1 to 1970: whole seconds are rounded down on both sides of 1970."""


@compiles(_Span, "sqlite")
def _on_sqlite(span: _Span, compiler: Any, **options: Any) -> Any:
    """Let SQLite write the day of the whole second; NULL for what is damaged."""
    unit, instant = span.clauses
    micros = instant.op("+", return_type=BigInteger())(literal_column(str(_YEAR_1 * 10**6)))
    seconds = micros // 10**6 - _YEAR_1
    found = func.date(seconds, "unixepoch", *_CHANGES[unit.name])
    return compiler.process(case((func.typeof(instant) == "integer", found)), **options)


_CHANGES = {"'day'": (), "'week'": ("-6 days", "weekday 1"), "'month'": ("start of month",)}


@compiles(_Span, "postgresql")
def _on_postgresql(span: _Span, compiler: Any, **options: Any) -> Any:
    """Let the server write the day, in UTC whatever the connection's time zone."""
    # Constants, not parameters: GROUP BY must be the same expression as what is selected.
    unit, instant = span.clauses
    found = func.date_trunc(unit, func.timezone(literal_column("'UTC'"), instant))
    return compiler.process(func.to_char(found, literal_column("'YYYY-MM-DD'")), **options)


class Condition(ColumnElement[bool]):
    """The condition of a CHECK, in the words that each engine evaluates fastest."""

    inherit_cache = True

    def __init__(self, words: str, on_postgresql: str) -> None:
        """Take the words, which say the same."""
        self.words = words
        self.on_postgresql = on_postgresql


@compiles(Condition)
def _usual_words(condition: Condition, compiler: Any, **options: Any) -> str:
    return condition.words


@compiles(Condition, "postgresql")
def _words_on_postgresql(condition: Condition, compiler: Any, **options: Any) -> str:
    return condition.on_postgresql


class Sooner(FunctionElement[Any]):
    """A condition that changes no result, because all rows of the answer meet it.

    SQLite reads fewer rows because of it. PostgreSQL would not, and would plan the statement again
    each time, so it gets ``true``.
    """

    inherit_cache = True
    type = NullType()  # of a Boolean, SQLAlchemy would ask whether it is 1, which no index answers


@compiles(Sooner)
def _sooner(condition: Sooner, compiler: Any, **options: Any) -> str:
    return str(compiler.process(condition.clauses, **options))


@compiles(Sooner, "postgresql")
def _no_sooner(*_: Any, **__: Any) -> str:
    return "true"


class Nanos(Named, TypeDecorator[Decimal]):
    """Money, exactly: Decimal in Python, whole billionths in the database."""

    impl = BigInteger
    cache_ok = True
    holds = "a whole number"

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> int | None:
        """Write whole billionths."""
        return None if value is None else to_nanos("cost", value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> Decimal | None:
        """Read billionths as a Decimal; raises InvalidRow."""
        return None if value is None else self.read(value)

    def read(self, value: Any) -> Decimal:
        """Read billionths that are not NULL; raises InvalidRow."""
        if not isinstance(value, int | Decimal):  # a server's sums are Decimals
            raise self.invalid_row()
        return from_nanos(int(value))


RowNumber = BigInteger().with_variant(Integer(), "sqlite")
"""The type of ``pk`` columns: SQLite's rowid, always a whole number, and PostgreSQL's identity."""


# Instants: aware datetimes in UTC, to the microsecond, and how they are written down.


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MICROSECOND = timedelta(microseconds=1)


def require_utc(name: str, value: datetime) -> datetime:
    """Give the same instant in UTC.

    Raises:
        NaiveDatetime: The datetime has no time zone.
        InvalidInput: It is not a datetime at all.
    """
    if type(value) is datetime and value.tzinfo is UTC:
        return value
    if not isinstance(value, datetime):
        raise InvalidInput(f"{name} must be an aware datetime, not {type(value).__name__}.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise NaiveDatetime(name)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{name} must be in the years 1 to 9999 in UTC.") from None


def utc_now() -> datetime:
    """Give the present instant, in UTC."""
    return datetime.now(UTC)


def shifted(instant: datetime, by: timedelta) -> datetime:
    """Give an instant so much later, or earlier; but none beyond the calendar's ends."""
    try:
        return instant + by
    except OverflowError:
        return _LAST if by > timedelta() else _FIRST


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def to_micros(instant: datetime) -> int:
    """Count the microseconds since 1970, exactly; before that they are negative."""
    return (instant - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """Undo ``to_micros``; raises OverflowError outside of the years 1 to 9999."""
    return EPOCH + micros * MICROSECOND


def iso(instant: datetime) -> str:
    """Write an instant in UTC as text of one width, so that texts sort as instants do."""
    return instant.isoformat(sep="T", timespec="microseconds")


# The names of other packages that they do not promise to keep, all in one place.
#
# Each has a reason to be used, and a test in tests/unit/test_internals.py that fails, and says
# which release it was, when a release changes it. No other module may use one.


def raise_as_sqlalchemy(
    connection: Connection, error: BaseException, sql: str, cursor: Any
) -> NoReturn:
    """Do what SQLAlchemy does with an error of the driver: ``Connection._handle_dbapi_exception``.

    It knows which errors mean that the connection is lost, tells listeners, and raises its own kind
    of error. Nothing public does that for a statement that SQLAlchemy did not run. After an
    interrupt it leaves the cursor open, and SQLite keeps its lock as long as that has rows to give.
    """
    if cursor is not None and not isinstance(error, Exception):
        with suppress(Exception):
            cursor.close()
    connection._handle_dbapi_exception(error, sql, None, cursor, None)


def send_bytes(cursor: Any) -> None:
    """Have a server send rows as they are and not as text, which takes four times as long."""
    cursor = getattr(cursor, "_cursor", cursor)  # that of psycopg, below the one for greenlets
    if hasattr(cursor, "format"):
        cursor.format = type(cursor.format)(1)


def has_listeners(connection: Connection, *, commits: bool = False) -> bool:
    """Say whether there are listeners to what is executed: on the engine, or on all engines.

    With ``commits`` those count too that listen to the end of a transaction.

    An engine with options has listeners of its own and those of the engine that it was made from,
    its ``_proxied``; ``dispatch`` is where the listeners are, in two collections for each event:
    the engine's own and those of all engines. To ask the event itself takes twice as long.
    ``event.contains`` finds only a listener that one knows.
    """
    engine: Any = connection.engine
    while (behind := getattr(engine, "_proxied", None)) is not None:
        engine = behind
    heard = engine.dispatch
    before, after = heard.before_cursor_execute, heard.after_cursor_execute
    if before.listeners or before.parent_listeners or after.listeners or after.parent_listeners:
        return True
    if not commits:
        return False
    done, undone = heard.commit, heard.rollback
    return bool(
        done.listeners or done.parent_listeners or undone.listeners or undone.parent_listeners
    )


def is_in_autocommit(connection: Connection) -> bool:
    """Say whether the application chose autocommit: ``Connection._is_autocommit_isolation``.

    It knows the connection's option and the engine's; ``get_isolation_level`` asks the database.
    """
    return connection._is_autocommit_isolation()


def places_to_write(compiled: SQLCompiler) -> dict[str, str]:
    """Give what stands in a compiled text for each ``literal_execute`` parameter, by its name.

    ``__[POSTCOMPILE_name]`` is how SQLAlchemy marks what it writes in only when it executes.
    """
    names = [compiled.bind_names[bind] for bind in compiled.literal_execute_params]
    return {name: f"__[POSTCOMPILE_{name}]" for name in names}


def number_statements_from(own: Any, first: int) -> None:
    """Let a connection of psycopg number its prepared statements from here on.

    Their names come from ``_prepared._prepared_idx``, and psycopg has no setting for them. A
    release without it numbers from 0 as always.
    """
    names = getattr(own, "_prepared", None)
    if names is not None:
        names._prepared_idx = first


def names_of_prepared(own: Any) -> Any:
    """Give the names of what a connection of psycopg has prepared: ``_prepared._names``.

    They are kept by text and types, the one that was used last behind the others; psycopg drops
    those in front. A release without them has to send all by its cursors.
    """
    return getattr(getattr(own, "_prepared", None), "_names", _NONE_PREPARED)


_NONE_PREPARED: dict[Any, bytes] = {}


def innermost(dbapi_connection: Any) -> Any:
    """Give the connection of ``sqlite3`` under what SQLAlchemy and aiosqlite put around it.

    ``driver_connection`` is SQLAlchemy's and public; aiosqlite calls its own ``_connection``.
    """
    for name in ("driver_connection", "_connection"):
        dbapi_connection = getattr(dbapi_connection, name, dbapi_connection)
    return dbapi_connection


def unlist(task: asyncio.Task[Any]) -> None:
    """Take a task off the list of ``asyncio.all_tasks``: ``asyncio._unregister_task``.

    Python documents it, underscore and all, for those who implement tasks of their own ("Extending
    asyncio" in the documentation of the library).
    """
    asyncio._unregister_task(task)


def add_table(metadata: MetaData, table: Table) -> None:
    """Put a table into another metadata, beside its own: ``MetaData._add_table``.

    What is public makes a copy, which no mapped class has and no query knows.
    """
    metadata._add_table(table.name, table.schema, table)


# Ids that agentstore made, as columns: text outside, the 16 bytes of the UUID inside.
#
# SQLite keeps them as a BLOB, PostgreSQL as uuid. Only the usual form is such an id: 36
# characters, lower case, with hyphens. PostgreSQL would also read capitals and braces; here these
# are other texts, so that a text finds the same rows on both engines. A text that is no such id
# cannot be stored. Looking for one finds nothing: it is sent as ``NOBODYS``, which no row has.


NOBODYS = "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""The largest UUID, which RFC 9562 (section 5.10) keeps from being anything's id."""

ID_BYTES = 16

_is_own = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def is_own_id(text: str) -> bool:
    """Say whether a text has the form of an id that agentstore makes, and is not ``NOBODYS``."""
    return _is_own(text) is not None and text != NOBODYS


def id_bytes(text: str) -> bytearray:
    """Write an id as bytes: in what sqlite3 takes without looking for an adapter."""
    return bytearray.fromhex(text.replace("-", ""))


def id_text(stored: bytes) -> str:
    """Read an id from its 16 bytes."""
    pairs = stored.hex("-", 2)  # two bytes each, where the first and the last ones have more
    return pairs[:4] + pairs[5:29] + pairs[30:34] + pairs[35:]


class OwnId(Named, TypeDecorator[str]):
    """An id that agentstore made; see the module."""

    impl = LargeBinary
    cache_ok = True
    holds = "an id"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose bytes or uuid."""
        kind = LargeBinary() if self.is_bytes(dialect) else Uuid(as_uuid=False)
        return dialect.type_descriptor(kind)

    def is_bytes(self, dialect: Dialect) -> bool:
        """Say whether the engine keeps it as bytes."""
        return dialect.name == "sqlite"

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        """Look for whatever text it is compared with."""
        return SOUGHT_ID

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytearray | str | None:
        """Write the id; raises InvalidInput."""
        if value is None:
            return None
        return self.write_bytes(value) if self.is_bytes(dialect) else self.write_text(value)

    def write_bytes(self, value: str) -> bytearray:
        """Write the id as bytes; raises InvalidInput."""
        if type(value) is str and _is_own(value) is not None and value != NOBODYS:
            return bytearray.fromhex(value.replace("-", ""))
        return id_bytes(self.write_text(value))

    def write_text(self, value: str) -> str:
        """Give the id as it is; raises InvalidInput."""
        if not isinstance(value, str):
            raise InvalidInput(f"An id or a text must be a str, not {type(value).__name__}.")
        return value if is_own_id(value) else self.other(value)

    def other(self, value: str) -> str:
        """Refuse a text that is no such id; raises InvalidInput."""
        raise InvalidInput(
            f"{self.table}.{self.column} holds ids that agentstore makes, not {named(value)}."
        )

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Read the id; raises InvalidRow."""
        if value is None:
            return None
        return self.read(value) if self.is_bytes(dialect) else str(value)

    def read(self, value: Any) -> str:
        """Read an id that is bytes; raises InvalidRow."""
        if type(value) is not bytes or len(value) != ID_BYTES:
            raise self.invalid_row()
        return id_text(value)


class SoughtId(OwnId):
    """An id that is looked for, or is stored only where a row with it was found."""

    cache_ok = True

    def other(self, value: str) -> str:
        """Look for nothing."""
        return NOBODYS


SOUGHT_ID = SoughtId()


class MadeId(OwnId):
    """An id that ``new_id`` made a moment ago: ``statements.binder`` has nothing to check."""

    cache_ok = True


# Ids that agentstore makes: UUID version 7, as text (RFC 9562, section 5.7).
#
# The leading 48 bits are the milliseconds of the clock, so new ids land at the end of an index;
# the other 74 bits are random, so that neither a tie nor a clock that jumps can make two equal.
# Nothing in agentstore relies on their order.


def new_id() -> str:
    """Make an id that nobody else has: 36 characters, lower case, with hyphens."""
    milliseconds = (time.time_ns() // 1_000_000) & ((1 << 48) - 1)
    given = milliseconds.to_bytes(6, "big") + os.urandom(10)
    digits = given.hex()
    variant = "89ab"[given[8] >> 6]
    return f"{digits[:8]}-{digits[8:12]}-7{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
