"""Column types that mean the same on both engines.

===============  =======================  =======================
type             SQLite                   PostgreSQL
===============  =======================  =======================
``SafeText``     TEXT                     text
``Word``         TEXT, of a few words     text, likewise
``Json``         TEXT                     json, never jsonb
``UtcDateTime``  BIGINT, microseconds     timestamptz
``RowNumber``    INTEGER (the rowid)      bigint
``Whole``        BIGINT                   bigint
``Real``         FLOAT                    double precision
``Flag``         BOOLEAN (0 and 1)        boolean
``Bytes``        BLOB                     bytea
``Nanos``        BIGINT                   bigint
===============  =======================  =======================

``Json`` on SQLite is TEXT and not JSON, because a column declared JSON has numeric affinity
there and would turn the document ``1e22`` into a number. On PostgreSQL it is read as text, so
that no driver's own JSON decoding comes between; ``agentstore.values.encoding`` says why not jsonb.

``OwnId``, in ``agentstore.values.own_ids``, is a BLOB of 16 bytes and a uuid.

SQLite lets anything into any column, so each type looks at what it reads there. What it cannot read
is an ``UnsoundRow`` that names the column: the types of the models' columns know which they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, Underflow
from types import NoneType
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    DateTime,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    Text,
    case,
    cast,
    func,
    literal_column,
    type_coerce,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from agentstore.errors import InvalidInput, UnsoundRow, shown
from agentstore.values.comparing import ComparedText
from agentstore.values.encoding import decode_text, dump_json, encode_text, load_json
from agentstore.values.instants import from_micros, require_utc, to_micros

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

    def unsound(self) -> UnsoundRow:
        """Say that the column holds what cannot be read."""
        return UnsoundRow(self.table, self.column, f"something that is not {self.holds}")


class Strict(Named):
    """A type whose values SQLite gives as they are, whatever they are."""

    kinds: tuple[type, ...]

    def strictly(self, value: Any) -> Any:
        """Give a value that SQLite read, if it is of the right kind."""
        if value is None or type(value) in self.kinds:
            return value
        raise self.unsound()

    def all_strictly(self, column: Column, *, required: bool = False) -> Column:
        """Give the values of a column, if they are of the right kind; if required, all of them."""
        if not {*map(type, column)} <= {*self.kinds, *(() if required else (NoneType,))}:
            raise self.unsound()
        return column

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Look at what SQLite reads; what a server reads is of the column's type."""
        return self.strictly if dialect.name == "sqlite" else None


class Whole(Strict, BigInteger):
    """A whole number."""

    kinds = (int,)
    holds = "a whole number"


class Real(Strict, Float[float]):
    """A number."""

    kinds = (float, int)
    holds = "a number"


class Bytes(Strict, LargeBinary):
    """Bytes."""

    kinds = (bytes,)
    holds = "bytes"


class Flag(Strict, Boolean):
    """A flag."""

    holds = "a flag"

    def strictly(self, value: Any) -> bool | None:
        """Give a flag that SQLite read as a number."""
        if value is None or value == 0 or value == 1:
            return None if value is None else bool(value)
        raise self.unsound()

    def all_strictly(self, column: Column, *, required: bool = False) -> Column:
        """Give flags that SQLite read as numbers; if required, all of them."""
        if required and None in column:
            raise self.unsound()
        return [*map(self.strictly, column)]


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
        """Give back the text as it went in; raises UnsoundRow."""
        if value is None:
            return None
        if type(value) is not str:
            raise self.unsound()
        return decode_text(value)


class Word(SafeText):
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
        """Give the word; raises UnsoundRow."""
        if value is None or value in self.words:
            return value
        raise self.unsound()


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
        """Read the document; raises UnsoundRow."""
        return None if value is None else self.read(value)

    def read(self, value: Any) -> Any:
        """Read a document that is not NULL; raises UnsoundRow."""
        try:
            document = load_json(value)
        except Exception:  # noqa: BLE001 - its words would quote the document
            raise self.unsound() from None
        if not isinstance(document, self.document):
            raise self.unsound()
        return document


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
        """Read the instant, in UTC; raises UnsoundRow."""
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return self.read(value)

    def read(self, value: Any) -> datetime:
        """Read an instant that is a number; raises UnsoundRow."""
        if type(value) is not int:
            raise self.unsound()
        try:
            return from_micros(value)
        except OverflowError:
            raise self.unsound() from None


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
    """The first day of a span of time in which an instant is, in UTC."""

    name = "utc_span"
    type = _Day()
    inherit_cache = True


class _InDay(_Span):
    inherit_cache = True


class _InWeek(_Span):
    inherit_cache = True


class _InMonth(_Span):
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
    return _InDay(instant)


def week(instant: Any) -> ColumnElement[date]:
    """Give the Monday of the week of an instant of ours, in UTC; see ``day``."""
    return _InWeek(instant)


def month(instant: Any) -> ColumnElement[date]:
    """Give the first of the month of an instant of ours, in UTC; see ``day``."""
    return _InMonth(instant)


_YEAR_1 = 62_135_596_800
"""Seconds from year 1 to 1970: whole seconds are rounded down on both sides of 1970."""


@compiles(_Span, "sqlite")
def _on_sqlite(span: _Span, compiler: Any, **options: Any) -> Any:
    """Let SQLite write the day of the whole second; NULL for what is damaged."""
    (instant,) = span.clauses
    micros = instant.op("+", return_type=BigInteger())(literal_column(str(_YEAR_1 * 10**6)))
    seconds = micros // 10**6 - _YEAR_1
    change = {
        _InWeek: ("-6 days", "weekday 1"),
        _InMonth: ("start of month",),
    }.get(type(span), ())
    found = func.date(seconds, "unixepoch", *change)
    return compiler.process(case((func.typeof(instant) == "integer", found)), **options)


@compiles(_Span, "postgresql")
def _on_postgresql(span: _Span, compiler: Any, **options: Any) -> Any:
    """Let the server write the day, in UTC whatever the connection's time zone."""
    (instant,) = span.clauses
    # Constants, not parameters: GROUP BY must be the same expression as what is selected.
    found = func.timezone(literal_column("'UTC'"), instant)
    unit = {_InWeek: "'week'", _InMonth: "'month'"}.get(type(span))
    if unit is not None:
        found = func.date_trunc(literal_column(unit), found)
    return compiler.process(func.to_char(found, literal_column("'YYYY-MM-DD'")), **options)


class Nanos(Named, TypeDecorator[Decimal]):
    """Money, exactly: Decimal in Python, whole billionths in the database."""

    impl = BigInteger
    cache_ok = True
    holds = "a whole number"

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> int | None:
        """Write whole billionths."""
        return None if value is None else to_nanos("cost", value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> Decimal | None:
        """Read billionths as a Decimal; raises UnsoundRow."""
        return None if value is None else self.read(value)

    def read(self, value: Any) -> Decimal:
        """Read billionths that are not NULL; raises UnsoundRow."""
        if not isinstance(value, int | Decimal):  # a server's sums are Decimals
            raise self.unsound()
        return from_nanos(int(value))


RowNumber = BigInteger().with_variant(Integer(), "sqlite")
"""The type of ``pk`` columns: SQLite's rowid, always a whole number, and PostgreSQL's identity."""
