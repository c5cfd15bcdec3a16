"""The type of columns that say whose session a row is.

A session's id is text, which callers may choose, and a row number takes a fifth of its room in
every row and index. So the database holds the session's ``pk``, in a column ``session``, and Python
sees the id, as ``session_id``: what is compared with the column, or put into it, is an id, and what
a statement answers with is one. Inside a statement the column is the number: one such column equals
another, or ``sessions.pk``. Where it is compared with a column or a subquery of ids, either side is
translated, so that ``Session.id == Message.session_id`` means what it says; a join by the number
(``Message.session``) spares a look-up for each row.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    ColumnElement,
    Dialect,
    FromClause,
    String,
    Table,
    Text,
    select,
    type_coerce,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql import operators
from sqlalchemy.types import TypeDecorator, TypeEngine

from agentstore.errors import InvalidInput
from agentstore.values.comparing import Translated, kind_of
from agentstore.values.types import Named, SafeText

_IN = (operators.in_op, operators.not_in_op)
_SAME = (*_IN, operators.eq, operators.ne, operators.is_, operators.is_not)
_TEXTS = (String, SafeText)


class _Comparator(TypeDecorator.Comparator[str], String.Comparator[str]):
    """How such a column is compared: as a number, with the number of whatever id is given."""

    __slots__ = ()

    def operate(self, op: Any, *other: Any, **options: Any) -> ColumnElement[Any]:
        """Translate a list, a column or a subquery of ids; raises InvalidInput."""
        kind = self.type
        assert isinstance(kind, SessionId)
        if other and op not in _SAME:
            raise InvalidInput(
                f"{kind.table}.session_id can be compared with == and != and in_(), no other "
                "way: inside the database it is a number. Join sessions and compare Session.id."
            )
        if other and (op in _IN or isinstance(kind_of(other[0]), _TEXTS)):
            other = (kind.numbers(other[0], many=op in _IN), *other[1:])
        return super().operate(op, *other, **options)


class _Number(Text):
    comparator_factory = _Comparator


class SessionId(Translated, Named, TypeDecorator[str]):
    """The id of a session outside the database, and its row number inside."""

    impl = _Number  # outside; so the ORM never takes an id for the key of a session's row
    cache_ok = True
    holds = "a session"

    def __init__(self, sessions: Table) -> None:
        """Say where the numbers are looked up."""
        super().__init__()
        self.sessions = sessions

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose a whole number."""
        return dialect.type_descriptor(BigInteger())

    def bind_expression(self, bindvalue: BindParameter[str]) -> ColumnElement[Any]:
        """Look up the number of an id; NULL where there is no such session."""
        named: FromClause = self.sessions.alias("named")
        given = type_coerce(bindvalue, SafeText())
        return select(named.c.pk).where(named.c.id == given).scalar_subquery()

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Look up the id of a number."""
        numbered = self.sessions.alias("numbered")
        theirs = select(numbered.c.id).where(numbered.c.pk == column)
        return theirs.correlate_except(numbered).scalar_subquery()

    def numbers(self, ids: Any, *, many: bool) -> Any:
        """Give the numbers of a column, a list or a subquery of ids, as it is if it has numbers."""
        if (kind := kind_of(ids)) is not None and not isinstance(kind, _TEXTS):
            return ids
        named = self.sessions.alias("named")
        found = select(named.c.pk).where(named.c.id.in_(ids) if many else named.c.id == ids)
        return found if many else found.correlate_except(named).scalar_subquery()

    def texts(self, numbers: Any, *, many: bool) -> Any:
        """Give the ids of a column or a subquery of such numbers."""
        if not many:
            return self.column_expression(numbers)
        numbered = self.sessions.alias("numbered")
        return select(numbered.c.id).where(numbered.c.pk.in_(numbers))

    def process_bind_param(self, value: Any | None, dialect: Dialect) -> Any:
        """Refuse an id that no statement translates; raises InvalidInput."""
        raise InvalidInput(
            "session_id cannot be part of a tuple that is compared. selectinload() compares such "
            "tuples of branches, segments and summaries: load from them with joinedload()."
        )

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Read the id; raises UnsoundRow where there is no such session."""
        if value is None:
            raise self.unsound()
        return SafeText().process_result_value(value, dialect)


def session_id(sessions: Table, *parts: SchemaItem, **options: Any) -> Column[str]:
    """Define the column."""
    kind = SessionId(sessions)
    return Column("session", kind, *parts, key="session_id", nullable=False, **options)


def number_of(column: ColumnElement[Any]) -> ColumnElement[int]:
    """Give what the database holds, as a number."""
    return type_coerce(column, BigInteger)


def key_for(sessions: Any, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Give what a column of any table, be it of numbers or of ids, has of a session.

    Args:
        sessions: The columns of ``sessions``, or of an alias of it.
        column: The column.
    """
    key: ColumnElement[Any] = sessions.pk if isinstance(column.type, SessionId) else sessions.id
    return key


def in_sessions(
    sessions: Any, column: ColumnElement[Any], *conditions: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Say that a column of any table names one of the sessions that meet conditions."""
    return column.in_(select(key_for(sessions, column)).where(*conditions))
