"""How columns of text are compared with columns that show text and hold something else.

Inside a statement nothing of such a column is translated by itself: a text would be compared with
a number, which is an error on one engine and simply false on the other. So whichever of the two
is asked to compare itself has the other side translated.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, ColumnElement, SelectBase, String, Subquery, Text
from sqlalchemy.sql import operators
from sqlalchemy.types import NullType, TypeDecorator


class Translated:
    """A type whose columns hold something else than the texts that it shows."""

    def texts(self, inside: Any, *, many: bool) -> Any:
        """Give the texts for a column, or if they are many, for a subquery of it."""
        raise NotImplementedError


def kind_of(compared: Any) -> Any:
    """Give the type of a column, or of a subquery of one column; None for a value of Python's."""
    if isinstance(compared, SelectBase | Subquery):
        compared = compared.exported_columns[0]
    kind = getattr(compared, "type", None)
    return None if isinstance(compared, BindParameter) and isinstance(kind, NullType) else kind


class _TextComparator(TypeDecorator.Comparator[str], String.Comparator[str]):
    """How text is compared: with text, also where a column has something else inside."""

    __slots__ = ()

    def operate(self, op: Any, *other: Any, **options: Any) -> ColumnElement[Any]:
        """Compare with what the other side shows."""
        if other and isinstance(kind := kind_of(other[0]), Translated):
            many = op in (operators.in_op, operators.not_in_op)
            other = (kind.texts(other[0], many=many), *other[1:])
        return super().operate(op, *other, **options)


class ComparedText(Text):
    """Text, compared so."""

    comparator_factory = _TextComparator
