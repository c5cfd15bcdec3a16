"""The type of columns that say whose session a row is.

A session's id is text, which callers may choose, and a row number takes a fifth of its room in
every row and index. So the database holds the session's ``pk``, in a column ``session``, and Python
sees the id, as ``session_id``: what is compared with the column, or put into it, is an id, and what
a statement answers with is one. Inside a statement the column is the number: one such column equals
another, or ``sessions.pk``, and never ``sessions.id``.
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
    Table,
    select,
    type_coerce,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

from agentstore.values.types import Named, SafeText


class SessionId(Named, TypeDecorator[str]):
    """The id of a session outside the database, and its row number inside."""

    impl = BigInteger
    cache_ok = True
    holds = "a session"

    def __init__(self, sessions: Table) -> None:
        """Say where the numbers are looked up."""
        super().__init__()
        self.sessions = sessions

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
