"""Rows of a server that are not sound: the conditions that find them, and the name of one.

A server's columns hold what their types allow, which is more than agentstore writes: JSON of
another shape, instants that Python cannot express; and more where somebody dropped a constraint. A
row that could not be read is looked for, but not for long; ``agentstore doctor --deep`` reads all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, LiteralString

from psycopg import sql
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from agentstore.engines.base.moving import Kind, TableShape, shapes
from agentstore.errors import UnsoundRow, named
from agentstore.models.tables import Tables
from agentstore.values.types import Json, Word

_PQTRANS_IDLE = 0
"""libpq's word for a connection that is in no transaction."""

_PATIENCE = "SET LOCAL statement_timeout = '500ms'"

_UNSOUND: dict[Kind, LiteralString] = {
    Kind.INSTANT: "({0} < '0001-01-01 00:00+00' OR {0} >= '10000-01-01 00:00+00')",
    Kind.REAL: "{0} IN ('NaN', 'Infinity', '-Infinity')",
}
_MORE = {
    Kind.INSTANT: "an instant outside of the years 1 to 9999",
    Kind.REAL: "a number that is not finite",
}
_JSON_TYPES = {dict: "object", list: "array"}


def name_row(connection: Connection, tables: Tables, error: UnsoundRow) -> UnsoundRow:
    """Say of the first row found, in the table or in any, that its column is not sound."""
    places = [
        (shape, column, condition, what)
        for shape in shapes(tables)
        if error.table in ("", shape.name)
        for column, condition, what in unsound(shape)
        if error.column in ("", column)
    ]
    with suppress(DBAPIError), _for_a_moment(connection):
        for shape, column, condition, what in places:
            row = connection.exec_driver_sql(_query(shape, condition)).first()
            if row is not None:
                pairs = zip(_key(shape), row, strict=True)
                key = ", ".join(f"{name}={named(value)}" for name, value in pairs)
                return UnsoundRow(shape.name, column, what, key)
    return error


@contextmanager
def _for_a_moment(connection: Connection) -> Iterator[None]:
    """Begin a transaction, or a savepoint in one, in which no statement takes long."""
    driver_s: Any = connection.connection.driver_connection
    inside = driver_s.pgconn.transaction_status != _PQTRANS_IDLE
    connection.exec_driver_sql("SAVEPOINT agentstore_row" if inside else "BEGIN")
    try:
        connection.exec_driver_sql(_PATIENCE)
        yield
    finally:
        # Not released: whatever ends the transaction ends it too.
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT agentstore_row" if inside else "ROLLBACK")


def unsound(shape: TableShape) -> list[tuple[str, sql.Composable, str]]:
    """Give columns, each with what holds of a value that is not sound, and with what it then is.

    A condition may be NULL where the column is.
    """
    found: list[tuple[str, sql.Composable, str]] = []
    for name, kind in shape.columns:
        column, place = shape.column(name), sql.Identifier(name)
        if kind in _UNSOUND:
            found.append((name, sql.SQL(_UNSOUND[kind]).format(place), _MORE[kind]))
        if isinstance(column.type, Json) and column.type.document in _JSON_TYPES:
            wanted = sql.Literal(_JSON_TYPES[column.type.document])
            other = sql.SQL("json_typeof({}) <> {}").format(place, wanted)
            found.append((name, other, f"JSON that is not {column.type.holds}"))
        if isinstance(column.type, Word):
            words = sql.SQL(", ").join(map(sql.Literal, sorted(column.type.words)))
            other = sql.SQL("{} NOT IN ({})").format(place, words)
            found.append((name, other, f"text that is not {column.type.holds}"))
        if not column.nullable and name not in shape.key:
            found.append((name, sql.SQL("{} IS NULL").format(place), "NULL"))
    return found


def either(conditions: Iterable[sql.Composable]) -> sql.Composed:
    """Write the condition that one of several holds."""
    return sql.SQL("({})").format(sql.SQL(" OR ").join([sql.SQL("false"), *conditions]))


def _key(shape: TableShape) -> tuple[str, ...]:
    beside = tuple(name for name in ("id",) if name in shape.table.c and name not in shape.key)
    return shape.key + beside


def _query(shape: TableShape, condition: sql.Composable) -> str:
    table = shape.table
    place = (table.schema, table.name) if table.schema else (table.name,)
    query = sql.SQL("SELECT {} FROM {} WHERE {} LIMIT 1").format(
        sql.SQL(", ").join(map(sql.Identifier, _key(shape))), sql.Identifier(*place), condition
    )
    return query.as_string(None).replace("%", "%%")
