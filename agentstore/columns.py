"""Whole columns of values, for statements that go past SQLAlchemy's execution."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.types import TypeEngine

from agentstore.encoding import decode_texts, dump_json
from agentstore.types import Column, Document, Json, Nanos, SafeText, Strict, UtcDateTime

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
        return partial(_texts_out, kind)
    if isinstance(kind, Nanos):
        return partial(_money_out, kind)
    if isinstance(kind, Json):
        return partial(_each, kind.read)
    if isinstance(kind, UtcDateTime) and kind.is_text(dialect):
        return partial(_instants_out, kind)
    if isinstance(kind, Strict) and kind.result_processor(dialect, None) is not None:
        return kind.all_strictly
    read = kind.dialect_impl(dialect).result_processor(dialect, None)
    return None if read is None else partial(_each, read)


def _text_in(kind: SafeText, dialect: Dialect, value: Any) -> Any:
    if type(value) is str and value.isascii() and "\x00" not in value:
        return value
    return kind.process_bind_param(value, dialect)


def _document_in(value: Any) -> str:
    return value if type(value) is Document else dump_json(value)


def _texts_out(kind: SafeText, column: Column) -> Column:
    kinds = {*map(type, column)}
    if kinds == _NO_TEXT:
        return column  # most columns are mostly empty
    if not kinds <= _TEXTS:
        raise kind.unsound()
    return decode_texts(column)


_NO_TEXT = {NoneType}
_TEXTS = {NoneType, str}


def _money_out(kind: Nanos, column: Column) -> Column:
    return [_NOTHING if n == 0 else None if n is None else kind.read(n) for n in column]


def _instants_out(kind: UtcDateTime, column: Column) -> Column:
    try:
        instants = [None if text is None else datetime.fromisoformat(text) for text in column]
    except (TypeError, ValueError):
        raise kind.unsound() from None
    if not {instant.tzinfo for instant in instants if instant is not None} <= _IN_UTC:
        raise kind.unsound()
    return instants


_IN_UTC = {UTC}


def _each(read: Callable[[Any], Any], column: Column) -> Column:
    return [None if value is None else read(value) for value in column]
