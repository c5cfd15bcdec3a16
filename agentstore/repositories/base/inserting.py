"""Rows that are inserted where their session is there: one, or many in one statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

from sqlalchemy import ColumnElement, Dialect, Select, Table, bindparam, cast, insert
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeEngine

from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.engines.registry import EngineDialect
from agentstore.errors import AgentStoreError
from agentstore.execution.gathering import LEFT_OUT
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.values.own_ids import SOUGHT_ID, OwnId

New = Mapping[str, ColumnElement[Any]]
"""The columns of a row on its way in."""


class NewRow(ABC):
    """A row to be inserted: a ``Write`` that gives it as it is stored."""

    __slots__ = ("row",)

    def __init__(self, row: dict[str, Any]) -> None:
        """Keep the row, whole but for ``pk``; its ``id`` tells it from others."""
        self.row = row

    @staticmethod
    @abstractmethod
    def table(tables: Tables) -> Table:
        """Say where it goes."""

    @staticmethod
    @abstractmethod
    def values(tables: Tables, new: New) -> Select[Any]:
        """Select the values of all columns but ``pk``, in their order.

        Args:
            tables: The tables.
            new: The columns. The condition that the session is there is part of the query.
        """

    @abstractmethod
    def why_not(self, unit: Unit) -> AgentStoreError:
        """Say why it was not inserted."""

    @classmethod
    def write(cls, unit: Unit, writes: Sequence[Self], *, by_itself: bool) -> list[Any]:
        """Insert those whose session is there; in a group, only if nobody has it locked."""
        if not writes:
            return []
        statement = None if by_itself else _many(cls, unit.tables, unit.dialect)
        if statement is None:
            one, record = _one(cls, unit.tables, dialect_of(unit.connection))
            found = [one.fetch(unit.connection, write.row) for write in writes]
            if by_itself and not found[0]:
                raise writes[0].why_not(unit)
            return [record(*rows[0]) if rows else LEFT_OUT for rows in found]
        arrays = {
            name: [write.row[name] for write in writes] for name in _columns(cls, unit.tables)
        }
        written = {row.id: row for row in unit.connection.execute(statement, arrays)}
        return [written.get(write.row["id"], LEFT_OUT) for write in writes]


@lru_cache(maxsize=256)
def _columns(kind: type[NewRow], tables: Tables) -> tuple[str, ...]:
    return tuple(column.name for column in kind.table(tables).columns if column.name != "pk")


def _types(kind: type[NewRow], tables: Tables) -> dict[str, TypeEngine[Any]]:
    """Give the types in which a row arrives: what it refers to is looked for, and may not exist."""
    columns = kind.table(tables).c
    return {
        name: SOUGHT_ID
        if isinstance(columns[name].type, OwnId) and columns[name].foreign_keys
        else columns[name].type
        for name in _columns(kind, tables)
    }


@lru_cache(maxsize=256)
def _one(
    kind: type[NewRow], tables: Tables, driver: Dialect
) -> tuple[Prepared, Callable[..., Any]]:
    """Give the statement for one row, and what makes a row with names of what it returns."""
    table = kind.table(tables)
    types = _types(kind, tables)
    new = {name: cast(bindparam(name, type_=of), of) for name, of in types.items()}
    statement = _insert(kind, tables, kind.values(tables, new))
    return Prepared(statement, driver), namedtuple("Row", table.c.keys())


@lru_cache(maxsize=256)
def _many(
    kind: type[NewRow], tables: Tables, dialect: EngineDialect
) -> ReturningInsert[Any] | None:
    arriving = dialect.arriving(tables, _types(kind, tables))
    if arriving is None:
        return None
    new, free = arriving
    return _insert(kind, tables, kind.values(tables, new).where(free))


def _insert(kind: type[NewRow], tables: Tables, values: Select[Any]) -> ReturningInsert[Any]:
    table = kind.table(tables)
    return insert(table).from_select(list(_columns(kind, tables)), values).returning(*table.c)
