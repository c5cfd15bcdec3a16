"""What all tables share: names of constraints, types of columns, and the row number.

Every table has ``pk``, the number of its rows in the order of creation. It never leaves the
database: it gives lists an order that no clock can disturb, and on SQLite it is the rowid and
costs nothing. What the world sees is ``id``, text, and other tables refer to that, so that a
person who reads the tables can follow them; but messages, and what belongs to them, refer to the
``pk`` of their session, see ``SessionId``.

Whatever belongs to a user, a session or a checkpoint thread says so itself in ``user_id``,
``session_id`` or ``thread_id``, even where it could be found through another table: scoping,
deleting and counting then need no joins.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

from sqlalchemy import Column, ColumnElement, Index, MetaData, Table, TextClause
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from agentstore.values.types import (
    Bytes,
    Condition,
    Json,
    Named,
    Nanos,
    OwnId,
    RowNumber,
    SafeText,
    StrictBoolean,
    StrictFloat,
    StrictInteger,
    UtcDateTime,
)

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""How indexes and constraints are named, where a table does not say it."""

METADATA = MetaData(naming_convention=NAMING_CONVENTION)
"""All tables, under their plain names."""

OWN_ID = OwnId()
TEXT = SafeText()
INTEGER = StrictInteger()
FLOAT = StrictFloat(53)
BOOLEAN = StrictBoolean(create_constraint=False)
BYTES = Bytes()
INSTANT = UtcDateTime()
MONEY = Nanos()
OBJECT = Json(dict)
ARRAY = Json(list)
JSON = Json()


def table(name: str, *parts: SchemaItem, **options: Any) -> Table:
    """Define a table, whose columns' types know the column: an error of reading it names it."""
    defined = Table(name, METADATA, *parts, **options)
    for each in defined.columns:
        if isinstance(each.type, Named):
            each.type = each.type.of(name, each.name)
    return defined


def column(name: str, kind: TypeEngine[Any], *parts: SchemaItem, **options: Any) -> Column[Any]:
    """Define a column that is never NULL."""
    return Column(name, kind, *parts, nullable=False, **options)


def nullable(name: str, kind: TypeEngine[Any], *parts: SchemaItem, **options: Any) -> Column[Any]:
    """Define a column that may be NULL."""
    return Column(name, kind, *parts, nullable=True, **options)


def row_number() -> Column[int]:
    """Define the row number."""
    return Column("pk", RowNumber, primary_key=True, autoincrement=True)


class PartialIndex(Index):
    """An index of those rows alone for which a condition holds, on either engine.

    SQLAlchemy loads a dialect, with modules for all its drivers, as soon as something has one of
    its options. This has them when it is asked, which is when somebody writes DDL of it.
    """

    def __init__(
        self,
        name: str | None,
        *expressions: Any,
        where: ColumnElement[bool] | TextClause,
        **options: Any,
    ) -> None:
        """Make an index of the expressions; the rest is as for ``Index``."""
        self.where = where
        super().__init__(name, *expressions, **options)

    @cached_property
    def dialect_options(self) -> Any:
        """Give the options by dialect, the condition among them."""
        options = super().dialect_options
        self.__dict__["dialect_options"] = options
        self.dialect_kwargs.update(sqlite_where=self.where, postgresql_where=self.where)
        return options


# PostgreSQL parses a table's CHECKs again for each statement that writes to it, and each column,
# constant and comparison in them takes thousands of instructions. So they are short there.


def one_of(column: str, values: Collection[str]) -> Condition:
    """Write the condition of a CHECK: the column holds one of these plain names.

    By OR: of an IN with three or more, SQLite makes a b-tree for each row that is inserted.
    """
    either = " OR ".join(f"{column} = {value!r}" for value in values)
    return Condition(either, f"{column} = ANY ('{{{','.join(values)}}}')")


def not_negative(*columns: str, unless_null: str | None = None) -> Condition:
    """Write the condition of a CHECK: none of these columns of whole numbers is negative.

    Args:
        columns: They are never NULL, which would let a negative number beside it pass.
        unless_null: One that may be NULL.
    """
    also = "" if unless_null is None else f" AND {unless_null} >= 0"
    each = " AND ".join(f"{column} >= 0" for column in columns)
    return Condition(each + also, f"({' | '.join(columns)}) >= 0{also}")
