"""What is dropped of a server's tables before they are loaded, and how it comes back."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection, Table

from agentstore.engines.base.moving import Stripped
from agentstore.engines.postgresql import search_objects
from agentstore.models.tables import Tables

_KEYS = """
SELECT conrelid::regclass::text, quote_ident(conname), pg_get_constraintdef(oid)
FROM pg_constraint WHERE contype = ANY(%s::"char"[]) AND conrelid = ANY(%s::regclass[])
ORDER BY contype, conrelid::regclass::text, conname"""
_INDEXES = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = ANY(%s::regclass[])
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
ORDER BY 1"""
_FORCED = """
SELECT oid::regclass::text FROM pg_class
WHERE relforcerowsecurity AND oid = ANY(%s::regclass[]) ORDER BY 1"""

_UNPROVEN = """
SELECT conrelid::regclass::text, quote_ident(conname) FROM pg_constraint
WHERE NOT convalidated AND conrelid = ANY(%s::regclass[]) ORDER BY 1, 2"""
_ADD, _NOT_VALID = "ALTER TABLE {} ADD CONSTRAINT {} {}", " NOT VALID"


def strip(connection: Connection, tables: Tables) -> Stripped:
    """Drop the keys too."""
    last = loosen(connection, tables)
    driver = driver_of(connection)
    ours = _list(connection, tables)
    indexes = driver.execute(_INDEXES, [ours]).fetchall()
    again = _drop_keys(connection, ours, "p", "u")
    for name, _ in indexes:
        connection.exec_driver_sql(f"DROP INDEX {name}")
    return Stripped(again | dict(indexes), last)


def loosen(connection: Connection, tables: Tables) -> dict[str, str]:
    """Drop references, and bind no owner by policies: no COPY goes where they are forced."""
    names = tables.names
    for statement in search_objects.drops(names.schema, names.prefix):
        connection.exec_driver_sql(statement)
    ours = _list(connection, tables)
    last = _drop_keys(connection, ours, "f")
    for (table,) in driver_of(connection).execute(_FORCED, [ours]).fetchall():
        connection.exec_driver_sql(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
        last[f"{table} row security"] = f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"
    return last


def unproven(statement: str) -> str:
    """Add references as NOT VALID: they hold for every row that is written from then on."""
    return statement + _NOT_VALID if " FOREIGN KEY " in statement else statement


def prove(connection: Connection, tables: Tables) -> None:
    """Validate them, one by one."""
    driver = driver_of(connection)
    for table, name in driver.execute(_UNPROVEN, [_list(connection, tables)]).fetchall():
        driver.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}".encode())


def _list(connection: Connection, tables: Tables) -> list[str]:
    driver = driver_of(connection)
    return [named(table).as_string(driver) for table in tables.metadata.sorted_tables]


def _drop_keys(connection: Connection, ours: list[str], *kinds: str) -> dict[str, str]:
    """Drop the constraints of these kinds; give what creates them again, by names."""
    found = driver_of(connection).execute(_KEYS, [list(kinds), ours]).fetchall()
    for table, name, _ in found:
        connection.exec_driver_sql(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    return {
        f"{table}.{name}": _ADD.format(table, name, definition.removesuffix(_NOT_VALID))
        for table, name, definition in found
    }


def driver_of(connection: Connection) -> psycopg.Connection[Any]:
    """Give the driver's own connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def named(table: Table) -> sql.Identifier:
    """Write a table's name."""
    return qualified(table.schema, table.name)


def qualified(schema: str | None, name: str) -> sql.Identifier:
    """Write a name, with the schema where there is one."""
    return sql.Identifier(schema, name) if schema else sql.Identifier(name)
