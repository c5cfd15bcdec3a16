"""What all models share: names of constraints, types of columns, and the row number.

Every table has ``pk``, the number of its rows in the order of creation. It never leaves the
database: it gives lists an order that no clock can disturb, and on SQLite it is the rowid and
costs nothing. What the world sees is ``id``, text, and other tables refer to that, so that a
person who reads the tables can follow them.

Whatever belongs to a user, a session or a checkpoint thread says so itself in ``user_id``,
``session_id`` or ``thread_id``, even where it could be found through another table: scoping,
deleting and counting then need no joins.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, ClassVar

from sqlalchemy import Index, MetaData, TextClause
from sqlalchemy.orm import DeclarativeBase, mapped_column

from agentstore.values.types import (
    Bytes,
    Flag,
    Json,
    Named,
    Nanos,
    Real,
    RowNumber,
    SafeText,
    UtcDateTime,
    Whole,
)

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""How indexes and constraints are named, where a model does not say it."""

Pk = Annotated[int, mapped_column(RowNumber, primary_key=True, autoincrement=True)]
"""The row number."""


class Base(DeclarativeBase):
    """The declarative base of all agentstore tables."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: SafeText,
        int: Whole(),
        float: Real(53),
        bool: Flag(create_constraint=False),
        bytes: Bytes(),
        datetime: UtcDateTime,
        Decimal: Nanos,
        dict[str, Any]: Json(dict),
        list[Any]: Json(list),
        Any: Json,
    }


def name_types(metadata: MetaData) -> None:
    """Let each column's type know the column, so that an error of reading it can name it."""
    for table in metadata.tables.values():
        for column in table.columns:
            if isinstance(column.type, Named):
                column.type = column.type.of(table.name, column.name)


class PartialIndex(Index):
    """An index of those rows alone for which a condition holds, on either engine.

    SQLAlchemy loads a dialect, with modules for all its drivers, as soon as something has one of
    its options. This has them when it is asked, which is when somebody writes DDL of it.
    """

    def __init__(
        self, name: str | None, *expressions: Any, where: TextClause, **options: Any
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


def one_of(column: str, values: Iterable[str]) -> str:
    """Write the condition of a CHECK: the column holds one of these plain names."""
    return f"{column} IN ({', '.join(repr(value) for value in values)})"
