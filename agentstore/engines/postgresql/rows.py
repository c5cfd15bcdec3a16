"""Which row of a server's it is that cannot be read: looked for only when one could not.

A server's columns hold what their types say, which is more than agentstore writes: JSON of another
shape, instants that Python has no word for; and more yet where somebody dropped a constraint. It is
looked for a short time; ``agentstore doctor --deep`` takes its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from psycopg import sql
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from agentstore.engines.base.moving import TableShape, shapes
from agentstore.engines.postgresql.sound import unsound
from agentstore.errors import UnsoundRow, named
from agentstore.models.tables import Tables

_PQTRANS_IDLE = 0
"""libpq's word for a connection that is in no transaction."""

_PATIENCE = "SET LOCAL statement_timeout = '500ms'"


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
