"""How PostgreSQL is read whole, and loaded whole: with COPY, rows one by one, never in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from sqlalchemy import URL, Connection, Table

from agentstore.dialects.moving import Digest, Flaw, Key, Kind, LeftOut, Row, Shape, Stripped
from agentstore.dialects.search_objects import postgresql_drops
from agentstore.errors import DatabaseError, InvalidInput
from agentstore.schema import Tables

_ISO: LiteralString = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""
_SELECTED: dict[Kind, LiteralString] = {
    Kind.JSON: "{}::text",
    Kind.INSTANT: _ISO,
    Kind.FLAG: "{}::int",
}
"""How a column is written in the form in which rows travel, where it is not as it stands."""

_TYPES = {
    Kind.TEXT: "text",
    Kind.JSON: "text",
    Kind.INSTANT: "text",
    Kind.WHOLE: "int8",
    Kind.REAL: "float8",
    Kind.FLAG: "int4",
    Kind.BYTES: "bytea",
}
_WRITTEN: dict[Kind, LiteralString] = {
    Kind.TEXT: "octet_length({0}), ':', {0}",
    Kind.JSON: "octet_length({0}::text), ':', {0}::text",
    Kind.INSTANT: _ISO + ", ','",
    Kind.WHOLE: "{0}, ','",
    Kind.REAL: "encode(float8send({0} + 0::float8), 'hex'), ','",
    Kind.FLAG: "{0}::int, ','",
    Kind.BYTES: "encode(sha256({0}), 'hex'), ','",
}
"""How a column is written in the line that is hashed; concat() leaves NULL out."""

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

_HIDDEN = """
SELECT row_security_active(%(table)s::regclass) AND (
    NOT has_table_privilege(%(table)s::regclass, 'TRUNCATE')
    OR coalesce(current_setting('agentstore.user_id', true), '') <> ''
)"""

_ACTIVITY = "activity"


class PostgreSQLMoving:
    """See ``Moving`` for what each method promises."""

    def dangling(self, connection: Connection, shape: Shape, left_out: LeftOut) -> list[Flaw]:
        """Find none: the server has let none in."""
        return []

    def examine(
        self, connection: Connection, shape: Shape, left_out: LeftOut
    ) -> tuple[Digest, list[Flaw]]:
        """Let the server compute the digest; what a column cannot hold is in none."""
        _require_all_rows(connection, shape.table)
        written = sql.SQL(", ").join(
            sql.SQL(_WRITTEN[kind]).format(sql.Identifier(name)) for name, kind in shape.columns
        )
        # OFFSET 0 keeps the planner from computing each hash once for each of its halves.
        query = sql.SQL("""
SELECT count(*),
    coalesce(sum(('x' || encode(substr(hash, 1, 8), 'hex'))::bit(64)::bigint), 0),
    coalesce(sum(('x' || encode(substr(hash, 9, 8), 'hex'))::bit(64)::bigint), 0)
FROM (
    SELECT sha256(convert_to(concat({written}), 'UTF8')) AS hash FROM {table} OFFSET 0
) AS hashed""").format(written=written, table=_named(shape.table))
        found = _driver(connection).execute(query).fetchone()
        assert found is not None
        rows, first, second = found
        return Digest(rows, (int(first), int(second))), []

    def read(
        self, connection: Connection, shape: Shape, after: Key | None, left_out: LeftOut
    ) -> Iterator[Row]:
        """Copy out, in the order of the primary key."""
        key = sql.SQL(", ").join(map(sql.Identifier, shape.key))
        behind = sql.Composed([])
        if after is not None:
            values = sql.SQL(", ").join(map(sql.Literal, after))
            behind = sql.SQL(" WHERE ({}) > ({})").format(key, values)
        query = sql.SQL(
            "COPY (SELECT {columns} FROM {table}{behind} ORDER BY {key}) TO STDOUT"
        ).format(columns=_columns(shape), table=_named(shape.table), behind=behind, key=key)
        with _driver(connection).cursor() as cursor, cursor.copy(query) as copy:
            copy.set_types([_TYPES[kind] for _, kind in shape.columns])
            yield from copy.rows()

    def load(self, connection: Connection, shape: Shape, rows: Iterable[Row]) -> None:
        """Copy in."""
        query = sql.SQL("COPY {} ({}) FROM STDIN").format(
            _named(shape.table),
            sql.SQL(", ").join(sql.Identifier(name) for name, _ in shape.columns),
        )
        with _driver(connection).cursor() as cursor, cursor.copy(query) as copy:
            write = copy.write_row
            for row in rows:
                write(row)

    def strip(self, connection: Connection, tables: Tables) -> Stripped:
        """Drop the keys too."""
        last = self.loosen(connection, tables)
        driver = _driver(connection)
        ours = _list(connection, tables)
        indexes = driver.execute(_INDEXES, [ours]).fetchall()
        again = _drop_keys(connection, ours, "p", "u")
        for name, _ in indexes:
            connection.exec_driver_sql(f"DROP INDEX {name}")
        return Stripped(again | dict(indexes), last)

    def loosen(self, connection: Connection, tables: Tables) -> dict[str, str]:
        """Drop references, and bind no owner by policies: no COPY goes where they are forced."""
        names = tables.names
        for statement in postgresql_drops(names.schema, names.prefix):
            connection.exec_driver_sql(statement)
        ours = _list(connection, tables)
        last = _drop_keys(connection, ours, "f")
        for (table,) in _driver(connection).execute(_FORCED, [ours]).fetchall():
            connection.exec_driver_sql(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
            last[f"{table} row security"] = f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"
        return last

    def counters(self, connection: Connection, tables: Tables) -> dict[str, int]:
        """Read the sequences: of the row numbers, and of the activity."""
        found = {}
        for name, sequence in self._sequences(connection, tables):
            query = sql.SQL("SELECT last_value, is_called FROM {}").format(sql.SQL(sequence))
            row = _driver(connection).execute(query).fetchone()
            assert row is not None
            found[name] = row[0] if row[1] else 0
        return found

    def set_counters(
        self, connection: Connection, tables: Tables, counters: Mapping[str, int]
    ) -> None:
        """Set the sequences."""
        largest = {
            _ACTIVITY: [(tables.sessions, "activity"), (tables.checkpoint_threads, "activity")]
        }
        for name, sequence in self._sequences(connection, tables):
            columns = largest.get(name) or [(tables[name], "pk")]
            numbers = [counters.get(name, 0)]
            for table, column in columns:
                query = sql.SQL("SELECT coalesce(max({}), 0) FROM {}").format(
                    sql.Identifier(column), _named(table)
                )
                row = _driver(connection).execute(query).fetchone()
                assert row is not None
                numbers.append(row[0])
            if max(numbers):
                connection.exec_driver_sql("SELECT setval(%s, %s)", (sequence, max(numbers)))

    def hasten(self, connection: Connection) -> None:
        """Let commits not wait for the disk, and give the making of indexes some memory.

        If the server falls, the last commits are gone together with what they say of the copy's
        progress, so it is gone on with from there.
        """
        for statement in (
            "SET synchronous_commit = off",
            "SET maintenance_work_mem = '256MB'",
            "SET statement_timeout = 0",
            "SET idle_in_transaction_session_timeout = 0",
        ):
            _driver(connection).execute(statement)

    def duplicate(self, connection: Connection, folder: Path) -> URL:
        """Refuse it."""
        raise InvalidInput(
            "Only a SQLite file can be upgraded in a copy. Upgrade the source itself."
        )

    def refresh(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Say ANALYZE."""
        for table in tables:
            _driver(connection).execute(sql.SQL("ANALYZE {}").format(_named(table)))

    def _sequences(self, connection: Connection, tables: Tables) -> Iterator[tuple[str, str]]:
        """Give the sequences' names, quoted, by what they number."""
        driver = _driver(connection)
        names = tables.names
        prefix = len(names.prefix)
        for table in tables.metadata.sorted_tables:
            if "pk" in table.c:
                quoted = _named(table).as_string(driver)
                row = driver.execute("SELECT pg_get_serial_sequence(%s, 'pk')", [quoted]).fetchone()
                assert row is not None
                yield table.name[prefix:], row[0]
        yield _ACTIVITY, _qualified(names.schema, f"{names.prefix}activity").as_string(driver)


def _require_all_rows(connection: Connection, table: Table) -> None:
    """Refuse to read for a role from which a policy hides rows: they would be missing silently.

    Raises:
        DatabaseError: It is one.
    """
    name = _named(table).as_string(_driver(connection))
    row = _driver(connection).execute(_HIDDEN, {"table": name}).fetchone()
    if row != (False,):
        raise DatabaseError(
            f"This role does not see all rows of {table.name}: row-level security is in force for "
            "it. Connect as the owner of the tables, without agentstore.user_id."
        )


def _list(connection: Connection, tables: Tables) -> list[str]:
    driver = _driver(connection)
    return [_named(table).as_string(driver) for table in tables.metadata.sorted_tables]


def _drop_keys(connection: Connection, ours: list[str], *kinds: str) -> dict[str, str]:
    """Drop the constraints of these kinds; give what creates them again, by names."""
    found = _driver(connection).execute(_KEYS, [list(kinds), ours]).fetchall()
    for table, name, _ in found:
        connection.exec_driver_sql(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    return {
        f"{table}.{name}": f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}"
        for table, name, definition in found
    }


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _named(table: Table) -> sql.Identifier:
    return _qualified(table.schema, table.name)


def _qualified(schema: str | None, name: str) -> sql.Identifier:
    return sql.Identifier(schema, name) if schema else sql.Identifier(name)


def _columns(shape: Shape) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL(_SELECTED.get(kind, "{}")).format(sql.Identifier(name))
        for name, kind in shape.columns
    )
