"""Column types that mean the same on both engines.

===============  =======================  =======================
type             SQLite                   PostgreSQL
===============  =======================  =======================
``SafeText``     TEXT                     text
``Json``         TEXT                     json, never jsonb
``UtcDateTime``  TEXT, ISO-8601, sorts    timestamptz
``RowNumber``    INTEGER (the rowid)      bigint
``Nanos``        BIGINT                   bigint
===============  =======================  =======================

``Json`` on SQLite is TEXT and not JSON, because a column declared JSON has numeric affinity
there and would turn the document ``1e22`` into a number. On PostgreSQL it is read as text, so
that no driver's own JSON decoding comes between; see ``agentstore.encoding`` for why not jsonb.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, Underflow
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Dialect,
    Integer,
    Text,
    cast,
    type_coerce,
)
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from agentstore.encoding import decode_text, decode_texts, dump_json, encode_text, load_json
from agentstore.errors import InvalidInput, NaiveDatetime, shown

_MOST_MONEY = Decimal("9223372036.854775807")
_EXACT = Context(prec=40, traps=[Inexact, InvalidOperation, Overflow, Underflow])
"""For money: the caller's own decimal context may round to a few digits."""

MAX_INTEGER = 2**63 - 1
"""The largest number that a column of whole numbers holds, on both engines."""

RowNumber = BigInteger().with_variant(Integer(), "sqlite")
"""The type of ``pk`` columns: SQLite's rowid, PostgreSQL's identity."""


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
        raise InvalidInput(f"{name} is outside the years 1 to 9999 in UTC.") from None


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
            f"{name} is {shown(amount)}, which is not an amount of money. Pass a Decimal, an int "
            "or a str such as '0.0021'."
        )
    if not 0 <= value <= _MOST_MONEY:
        raise InvalidInput(f"{name} is {value:.6g}; it must be from 0 to 9223372036.")
    try:
        nanos = value.scaleb(9, _EXACT)
    except ArithmeticError:  # more digits than whole billionths in that range have
        nanos = None
    if nanos is None or nanos != int(nanos):
        raise InvalidInput(
            f"{name} is {value:.6g} or so; the smallest unit is 0.000000001: quantize it."
        )
    return int(nanos)


def from_nanos(nanos: int) -> Decimal:
    """Undo ``to_nanos``."""
    return Decimal(nanos).scaleb(-9, _EXACT) if nanos else Decimal(0)


class SafeText(TypeDecorator[str]):
    """Text that both engines can carry, NUL and lone surrogates included."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape what the engines cannot carry; raises InvalidInput."""
        if value is None:
            return None
        if not isinstance(value, str):
            raise InvalidInput(f"An id or a text must be a str, not {type(value).__name__}.")
        return encode_text(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Give back the text as it went in."""
        return None if value is None else decode_text(value)


class _PgJson(UserDefinedType[Any]):
    """PostgreSQL's json, which keeps a document as it was written, read as text."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(cast(colexpr, Text()), Json())


class Document(str):
    """JSON that is written already, by ``dump_json``; a ``Json`` column takes it as it is."""

    __slots__ = ()


class Json(TypeDecorator[Any]):
    """A JSON document; a Python None is SQL NULL, and the document ``null`` is never stored."""

    impl = Text
    cache_ok = True

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
        """Read the document."""
        return None if value is None else load_json(value)


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: aware in, UTC out, to the microsecond."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose text or timestamptz."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(DateTime(timezone=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Write the instant; raises NaiveDatetime."""
        if value is None:
            return None
        instant = require_utc("the time", value)
        return instant if dialect.name == "postgresql" else iso(instant)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Read the instant, in UTC."""
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return datetime.fromisoformat(value)


def iso(instant: datetime) -> str:
    """Write an instant in UTC as text of one width, so that texts sort as instants do."""
    return instant.isoformat(sep="T", timespec="microseconds")


class Nanos(TypeDecorator[Decimal]):
    """Money, exactly: Decimal in Python, whole billionths in the database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> int | None:
        """Write whole billionths."""
        return None if value is None else to_nanos("cost", value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> Decimal | None:
        """Read billionths as a Decimal."""
        return None if value is None else from_nanos(int(value))


# --- Whole columns, for statements that go past SQLAlchemy's execution ---------------------------

Column = Sequence[Any]
"""The values of one column, in the order of the rows."""

_NOTHING = Decimal(0)


def binder(kind: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Give what turns a value that is not None into the driver's; None if nothing has to."""
    if isinstance(kind, SafeText):
        return partial(_text_in, kind, dialect)
    if isinstance(kind, Json):
        return _document_in
    if isinstance(kind, Nanos | UtcDateTime):
        return partial(kind.process_bind_param, dialect=dialect)
    return kind.dialect_impl(dialect).bind_processor(dialect)


def column_reader(kind: TypeEngine[Any], dialect: Dialect) -> Callable[[Column], Column] | None:
    """Give what reads the values of a column; None if they are as the driver gives them."""
    if isinstance(kind, SafeText):
        return decode_texts
    if isinstance(kind, Json):
        return partial(_each, load_json)
    if isinstance(kind, Nanos):
        return _money_out
    if isinstance(kind, UtcDateTime) and dialect.name != "postgresql":
        return _instants_out
    read = kind.dialect_impl(dialect).result_processor(dialect, None)
    return None if read is None else partial(_each, read)


def _text_in(kind: SafeText, dialect: Dialect, value: Any) -> Any:
    if type(value) is str and value.isascii() and "\x00" not in value:
        return value
    return kind.process_bind_param(value, dialect)


def _document_in(value: Any) -> str:
    return value if type(value) is Document else dump_json(value)


def _money_out(column: Column) -> Column:
    return [_NOTHING if n == 0 else None if n is None else from_nanos(int(n)) for n in column]


def _instants_out(column: Column) -> Column:
    return [None if text is None else datetime.fromisoformat(text) for text in column]


def _each(read: Callable[[Any], Any], column: Column) -> Column:
    return [None if value is None else read(value) for value in column]
