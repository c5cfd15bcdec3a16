"""Sums that nothing overflows.

SQLite adds whole numbers up in 64 bits and fails beyond. So the upper and the lower halves of the
numbers are added up apart, which holds for 2**32 rows of any size, and a sum travels as text, as
Python's int has no limit. What is compared in the database, or ordered by, is the two halves.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Float,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    type_coerce,
)
from sqlalchemy.types import TypeDecorator

_BITS = literal_column("32", BigInteger)
_LOW = literal_column(str(2**32 - 1), BigInteger)
_FULL = literal_column(str(2**31), BigInteger)
_UP = literal_column(str(2**32), BigInteger)

_ORDINARY = 1e15
"""Milliseconds up to which times are added up as they are; each larger one is divided first."""
_SMALLER = 2.0**64


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


def milliseconds(column: ColumnElement[Any]) -> tuple[ColumnElement[Any], ...]:
    """Count and add up times; ``mean_of`` reads the three. What is not finite was never measured.

    Times up to the largest float there is may be in a database from before they were bounded.
    """
    ordinary = column <= literal(_ORDINARY, Float(53))
    finite = column <= literal(sys.float_info.max, Float(53))
    extreme = and_(finite, column > literal(_ORDINARY, Float(53)))
    return (
        func.count(case((finite, column))),
        func.sum(case((ordinary, column))),
        func.sum(case((extreme, column / literal(_SMALLER, Float(53))))),
    )


def mean_of(count: Any, ordinary: Any, extreme: Any) -> float | None:
    """Give the mean of times; None where none was measured."""
    if not count:
        return None
    if not extreme:
        return float(ordinary or 0) / int(count)
    mean = (float(ordinary or 0) / _SMALLER + float(extreme)) / int(count)
    return min(mean * _SMALLER, sys.float_info.max)


def finite(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Give a time, or NULL where it is not finite."""
    return case((column <= literal(sys.float_info.max, Float(53)), column))
