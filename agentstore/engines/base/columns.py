"""Whole columns of values, for statements that go past SQLAlchemy's execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any

from sqlalchemy import ARRAY, Dialect
from sqlalchemy.types import Float, LargeBinary, TypeEngine

from agentstore.values.encoding import decode_texts, dump_json
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
    iso,
    require_utc,
    to_nanos,
)

_NOTHING = Decimal(0)


def binder(kind: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Give what turns a value that is not None into the driver's; None if nothing has to."""
    if isinstance(kind, SafeText):
        return partial(_text_in, kind, dialect)
    if isinstance(kind, Json):
        return _document_in
    if isinstance(kind, Nanos):
        return partial(to_nanos, "cost")
    if isinstance(kind, UtcDateTime):
        return _instant_text_in if kind.is_text(dialect) else partial(require_utc, "the time")
    if isinstance(kind, ARRAY):
        assert not isinstance(kind.item_type, LargeBinary), "bytes are written in another way"
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
    if isinstance(kind, SafeText):
        return partial(_texts_out, kind, _TEXT if required else _TEXTS)
    if isinstance(kind, Nanos):
        return partial(_money_out, kind, required)
    if isinstance(kind, Json):
        return partial(_all, kind.read) if required else partial(_each, kind.read)
    if isinstance(kind, UtcDateTime) and kind.is_text(dialect):
        return partial(_instants_out, kind, required)
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


def _instant_text_in(value: Any) -> str:
    return iso(require_utc("the time", value))


def _array_in(write: Callable[[Any], Any], values: Iterable[Any]) -> str:
    """Write an array of texts, whole numbers or instants as PostgreSQL reads it.

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


def _document_in(value: Any) -> str:
    return value if type(value) is Document else dump_json(value)


def _words_out(kind: Word, known: frozenset[str | None], column: Column) -> Column:
    if not known.issuperset(column):
        raise kind.unsound()
    return column


def _texts_out(kind: SafeText, known: Set[type[Any]], column: Column) -> Column:
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


def _instants_out(kind: UtcDateTime, required: bool, column: Column) -> Column:
    read = datetime.fromisoformat
    try:
        if required:
            instants: Column = [*map(read, column)]
        else:
            instants = [None if text is None else read(text) for text in column]
    except (TypeError, ValueError):
        raise kind.unsound() from None
    if not {instant.tzinfo for instant in instants if instant is not None} <= _IN_UTC:
        raise kind.unsound()
    return instants


_IN_UTC = {UTC}


def _all(read: Callable[[Any], Any], column: Column) -> Column:
    return [read(value) for value in column]


def _each(read: Callable[[Any], Any], column: Column) -> Column:
    return [None if value is None else read(value) for value in column]


def _none_missing(kind: Named, read: Callable[[Any], Any] | None, column: Column) -> Column:
    if None in column:
        raise kind.unsound()
    return column if read is None else [*map(read, column)]
