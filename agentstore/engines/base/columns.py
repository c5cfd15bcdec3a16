"""Whole columns of values, for statements that go past SQLAlchemy's execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any

from sqlalchemy import ARRAY, Dialect
from sqlalchemy.types import Float, Integer, LargeBinary, TypeEngine

from agentstore.schema.session_ids import SessionId
from agentstore.values.encoding import decode_texts, dump_json
from agentstore.values.instants import EPOCH, MICROSECOND, require_utc, to_micros
from agentstore.values.own_ids import ID_BYTES, OwnId
from agentstore.values.types import (
    Column,
    Document,
    Json,
    Named,
    Nanos,
    SafeText,
    Strict,
    UtcDateTime,
    Word,
    to_nanos,
)

_NOTHING = Decimal(0)


def binder(kind: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Give what turns a value that is not None into the driver's; None if nothing has to."""
    if isinstance(kind, SafeText):
        return partial(_text_in, kind, dialect)
    if isinstance(kind, Json):
        return _document_in
    if isinstance(kind, OwnId):
        return kind.write_bytes if kind.is_bytes(dialect) else kind.write_text
    if isinstance(kind, Nanos):
        return partial(to_nanos, "cost")
    if isinstance(kind, UtcDateTime):
        return _micros_in if kind.is_number(dialect) else partial(require_utc, "the time")
    if isinstance(kind, ARRAY):
        if isinstance(kind.item_type, LargeBinary):
            return _bytes_in
        if isinstance(kind.item_type, Integer):
            return _numbers_in
        return partial(_array_in, binder(kind.item_type, dialect) or str)
    return kind.dialect_impl(dialect).bind_processor(dialect)


def column_reader(
    kind: TypeEngine[Any], dialect: Dialect, *, required: bool = False
) -> Callable[[Column], Column] | None:
    """Give what reads the values of a column; None if they are as the driver gives them.

    Args:
        kind: The column's type.
        dialect: Whose driver gives them.
        required: Whether none may be None. The reader then raises UnsoundRow.
    """
    if isinstance(kind, Word):
        return partial(_words_out, kind, kind.words.union(() if required else (None,)))
    if isinstance(kind, SafeText | SessionId):
        return partial(_texts_out, kind, _TEXT if required else _TEXTS)
    if isinstance(kind, Nanos):
        return partial(_money_out, kind, required)
    if isinstance(kind, Json):
        return partial(_all, kind.read) if required else partial(_each, kind.read)
    if isinstance(kind, UtcDateTime) and kind.is_number(dialect):
        return partial(_instants_out, kind, _NUMBER if required else _NUMBERS)
    if isinstance(kind, OwnId):
        if kind.is_bytes(dialect):
            return partial(_ids_out, kind, required)
        return partial(_given_ids_out, kind, _TEXT if required else _TEXTS)
    if isinstance(kind, Strict) and kind.result_processor(dialect, None) is not None:
        return partial(kind.all_strictly, required=required)
    # Drivers give floats as they are; SQLAlchemy would have to know the server's type for that.
    real = isinstance(kind, Float)
    read = None if real else kind.dialect_impl(dialect).result_processor(dialect, None)
    if required and isinstance(kind, Named):
        return partial(_none_missing, kind, read)
    return None if read is None else partial(_each, read)


def _text_in(kind: SafeText, dialect: Dialect, value: Any) -> Any:
    if type(value) is str and value.isascii() and "\x00" not in value:
        return value
    return kind.process_bind_param(value, dialect)


def _micros_in(value: Any) -> int:
    return to_micros(require_utc("the time", value))


def _array_in(write: Callable[[Any], Any], values: Iterable[Any]) -> str:
    """Write an array of texts or instants as PostgreSQL reads it.

    SQLAlchemy and psycopg take each element through a dozen calls: of 64 saves that go together,
    the arrays took 44 % of the client's time.
    """
    parts = []
    for value in values:
        if value is None:
            parts.append("NULL")
        else:
            text = str(write(value)).replace("\\", "\\\\").replace('"', '\\"')
            parts.append(f'"{text}"')
    return f"{{{','.join(parts)}}}"


def _bytes_in(values: Iterable[bytes | None]) -> str:
    """Write an array of bytes, in which nothing has to be quoted but the backslash in front."""
    parts = ["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]
    return f"{{{','.join(parts)}}}"


def _numbers_in(values: Iterable[int | None]) -> str:
    """Write an array of whole numbers."""
    parts = ["NULL" if value is None else f"{value:d}" for value in values]
    return f"{{{','.join(parts)}}}"


def _document_in(value: Any) -> str:
    return value if type(value) is Document else dump_json(value)


def _words_out(kind: Word, known: frozenset[str | None], column: Column) -> Column:
    if not known.issuperset(column):
        raise kind.unsound()
    return column


def _texts_out(kind: SafeText | SessionId, known: Set[type[Any]], column: Column) -> Column:
    kinds = {*map(type, column)}
    if not kinds <= known:
        raise kind.unsound()
    return decode_texts(column) if str in kinds else column  # most columns are mostly empty


_TEXT: Set[type[Any]] = {str}
_TEXTS = _TEXT | {NoneType}


def _money_out(kind: Nanos, required: bool, column: Column) -> Column:
    if required:
        return [_NOTHING if n == 0 else kind.read(n) for n in column]
    return [_NOTHING if n == 0 else None if n is None else kind.read(n) for n in column]


def _instants_out(kind: UtcDateTime, known: Set[type[Any]], column: Column) -> Column:
    if not {*map(type, column)} <= known:
        raise kind.unsound()
    unit = MICROSECOND
    try:
        return [None if n is None else EPOCH + n * unit for n in column]
    except OverflowError:
        raise kind.unsound() from None


_NUMBER: Set[type[Any]] = {int}
_NUMBERS = _NUMBER | {NoneType}


def _ids_out(kind: OwnId, required: bool, column: Column) -> Column:
    given = column if required else [value for value in column if value is not None]
    if {*map(type, given)} - _BYTES or {*map(len, given)} - _ID_LENGTH:
        raise kind.unsound()
    # As ``id_text`` does: a call for each would cost half as much again.
    return [
        value if value is None else pairs[:4] + pairs[5:29] + pairs[30:34] + pairs[35:]
        for value in column
        if value is None or (pairs := value.hex("-", 2))
    ]


_BYTES: Set[type[Any]] = {bytes}
_ID_LENGTH = {ID_BYTES}


def _given_ids_out(kind: OwnId, known: Set[type[Any]], column: Column) -> Column:
    """Take ids as our own connections give them, or as those of an application's engine do."""
    if {*map(type, column)} <= known:
        return column
    if None in column and NoneType not in known:
        raise kind.unsound()
    return [None if value is None else str(value) for value in column]


def _all(read: Callable[[Any], Any], column: Column) -> Column:
    return [read(value) for value in column]


def _each(read: Callable[[Any], Any], column: Column) -> Column:
    return [None if value is None else read(value) for value in column]


def _none_missing(kind: Named, read: Callable[[Any], Any] | None, column: Column) -> Column:
    if None in column:
        raise kind.unsound()
    return column if read is None else [*map(read, column)]
