"""How PostgreSQL is read whole, and loaded whole: with COPY, rows one by one, never in memory."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import LiteralString

from psycopg import sql
from sqlalchemy import Connection, Table

from agentstore.engines.base.moving import (
    MOST_FLAWS,
    Among,
    Flaw,
    Key,
    Kind,
    LeftOut,
    Moving,
    Row,
    Stripped,
    TableDigest,
    TableShape,
)
from agentstore.engines.postgresql import stripping
from agentstore.engines.postgresql.row_security import policy_name
from agentstore.engines.postgresql.rows import either, unsound
from agentstore.engines.postgresql.stripping import driver_of, named, qualified
from agentstore.engines.postgresql.visibility import hidden_rows
from agentstore.errors import DatabaseCorrupt, DatabaseError
from agentstore.models.tables import LONGEST_ENTRY, Names, Tables

_ISO: LiteralString = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""
_SELECTED: dict[Kind, LiteralString] = {
    Kind.ID: "{}::text",
    Kind.JSON: "{}::text",
    Kind.INSTANT: _ISO,
    Kind.FLAG: "{}::int",
}
"""How a column is written in the form in which rows travel, where it is not as it stands."""

_TYPES = {
    Kind.TEXT: "text",
    Kind.ID: "text",
    Kind.JSON: "text",
    Kind.INSTANT: "text",
    Kind.WHOLE: "int8",
    Kind.REAL: "float8",
    Kind.FLAG: "int4",
    Kind.BYTES: "bytea",
}
_KEY_TYPES = _TYPES | {Kind.ID: "uuid"}
_WRITTEN: dict[Kind, LiteralString] = {
    Kind.TEXT: "octet_length({0}), ':', {0}",
    Kind.ID: "octet_length({0}::text), ':', {0}::text",
    Kind.JSON: "octet_length({0}::text), ':', {0}::text",
    Kind.INSTANT: _ISO + ", ','",
    Kind.WHOLE: "{0}, ','",
    Kind.REAL: "encode(float8send({0} + 0::float8), 'hex'), ','",
    Kind.FLAG: "{0}::int, ','",
    Kind.BYTES: "encode(sha256({0}), 'hex'), ','",
}
"""How a column is written in the line that is hashed; concat() leaves NULL out."""

_NUMBER: LiteralString = (
    "((({0}.ctid::text::point)[0])::bigint << 16 | (({0}.ctid::text::point)[1])::bigint)"
)
"""A number for a row, by its place, which stays the same as long as the row does."""

_ACTIVITY = "activity"


class PostgreSQLMoving(Moving):
    """See ``Moving`` for what each method promises."""

    longest_entry: int | None = LONGEST_ENTRY

    def dangling(
        self, connection: Connection, shape: TableShape, left_out: LeftOut, among: Among = None
    ) -> list[Flaw]:
        """Find those alone whose parent is left out: the server has let no others in."""
        found: dict[int, Flaw] = {}
        for constraint in shape.table.foreign_key_constraints:
            parent = constraint.referred_table
            plain = parent.name[len(shape.table.name) - len(shape.name) :]
            if not left_out.get(plain):
                continue
            same = sql.SQL(" AND ").join(
                sql.SQL("parent.{} = child.{}").format(
                    sql.Identifier(element.column.name), sql.Identifier(element.parent.name)
                )
                for element in constraint.elements
            )
            condition = sql.SQL(
                "EXISTS (SELECT FROM {parent} AS parent WHERE {same} AND {number} = ANY({missing}))"
            ).format(
                parent=named(parent),
                same=same,
                number=sql.SQL(_NUMBER).format(sql.SQL("parent")),
                missing=sql.Literal(list(left_out[plain])),
            )
            columns = ", ".join(element.parent.name for element in constraint.elements)
            reason = sql.Literal(f"{columns}: no such row of {plain}")
            wanted = _wanted(shape, left_out, among)
            for flaw in _flaws(connection, shape, wanted, condition, reason):
                found[flaw.number] = flaw
        return list(found.values())

    def examine(
        self,
        connection: Connection,
        shape: TableShape,
        left_out: LeftOut,
        longest: int | None = None,
        among: Among = None,
    ) -> tuple[TableDigest, list[Flaw]]:
        """Let the server compute the digest; what no other engine can hold is in none."""
        if among is None:
            _require_all_rows(connection, shape)
        written = sql.SQL(", ").join(
            sql.SQL(_WRITTEN[kind]).format(sql.Identifier(name)) for name, kind in shape.columns
        )
        wanted = _wanted(shape, left_out, among)
        kinds = unsound(shape)
        wrong = either(condition for _, condition, _ in kinds)
        # OFFSET 0 keeps the planner from computing each hash once for each of its halves.
        query = sql.SQL("""
SELECT count(hash), count(*) - count(hash),
    coalesce(sum(('x' || encode(substr(hash, 1, 8), 'hex'))::bit(64)::bigint), 0),
    coalesce(sum(('x' || encode(substr(hash, 9, 8), 'hex'))::bit(64)::bigint), 0)
FROM (
    SELECT CASE WHEN {wrong} IS NOT TRUE THEN sha256(convert_to(concat({written}), 'UTF8')) END
        AS hash FROM {table} AS child WHERE {wanted} OFFSET 0
) AS hashed""").format(wrong=wrong, written=written, table=named(shape.table), wanted=wanted)
        found = driver_of(connection).execute(query).fetchone()
        assert found is not None
        rows, others, first, second = found
        digest = TableDigest(rows, (int(first), int(second)))
        if not others:
            return digest, []
        reasons = sql.SQL("concat_ws('; ', {})").format(
            sql.SQL(", ").join(
                [
                    sql.SQL("NULL"),
                    *(
                        sql.SQL("CASE WHEN {} THEN {} END").format(
                            condition, sql.Literal(f"{name}: {what}")
                        )
                        for name, condition, what in kinds
                    ),
                ]
            )
        )
        return digest, _flaws(connection, shape, wanted, wrong, reasons)

    def read(
        self, connection: Connection, shape: TableShape, after: Key | None, left_out: LeftOut
    ) -> Generator[Row]:
        """Copy out, in the order of the primary key."""
        key = sql.SQL(", ").join(map(sql.Identifier, shape.key))
        conditions: list[sql.Composable] = [_wanted(shape, left_out)]
        if after is not None:
            values = sql.SQL(", ").join(map(sql.Literal, after))
            conditions.append(sql.SQL("({}) > ({})").format(key, values))
        query = sql.SQL(
            "COPY (SELECT {columns} FROM {table} AS child WHERE {wanted} ORDER BY {key}) TO STDOUT"
        ).format(
            columns=_columns(shape),
            table=named(shape.table),
            wanted=sql.SQL(" AND ").join(conditions),
            key=key,
        )
        with driver_of(connection).cursor() as cursor, cursor.copy(query) as copy:
            copy.set_types([_TYPES[kind] for _, kind in shape.columns])
            yield from copy.rows()

    def load(self, connection: Connection, shape: TableShape, rows: Iterable[Row]) -> None:
        """Copy in."""
        query = sql.SQL("COPY {} ({}) FROM STDIN").format(
            named(shape.table),
            sql.SQL(", ").join(sql.Identifier(name) for name, _ in shape.columns),
        )
        with driver_of(connection).cursor() as cursor, cursor.copy(query) as copy:
            write = copy.write_row
            for row in rows:
                write(row)

    def strip(self, connection: Connection, tables: Tables) -> Stripped:
        """Drop the keys too."""
        return stripping.strip(connection, tables)

    def loosen(self, connection: Connection, tables: Tables) -> dict[str, str]:
        """Drop references, and bind no owner by policies: no COPY goes where they are forced."""
        return stripping.loosen(connection, tables)

    def counters(self, connection: Connection, tables: Tables) -> dict[str, int]:
        """Read the sequences: of the row numbers, and of the activity."""
        found = {}
        for name, sequence in self._sequences(connection, tables):
            query = f"SELECT last_value, is_called FROM {sequence}"  # noqa: S608
            row = connection.exec_driver_sql(query).fetchone()
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
                    sql.Identifier(column), named(table)
                )
                row = driver_of(connection).execute(query).fetchone()
                assert row is not None
                numbers.append(row[0])
            if max(numbers):
                connection.exec_driver_sql("SELECT setval(%s, %s)", (sequence, max(numbers)))

    def prepare_to_load(self, connection: Connection) -> None:
        """Let commits not wait for the disk, and give the making of indexes some memory.

        If the server falls, the last commits are gone together with what they say of the copy's
        progress, so it is resumed from there.
        """
        for statement in (
            "SET synchronous_commit = off",
            "SET maintenance_work_mem = '256MB'",
            "SET statement_timeout = 0",
            "SET idle_in_transaction_session_timeout = 0",
        ):
            driver_of(connection).execute(statement)

    def refresh(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Say ANALYZE."""
        for table in tables:
            driver_of(connection).execute(sql.SQL("ANALYZE {}").format(named(table)))

    def unproven(self, statement: str) -> str:
        """Add references as NOT VALID: they hold for every row that is written from then on."""
        return stripping.unproven(statement)

    def prove(self, connection: Connection, tables: Tables) -> None:
        """Validate them, one by one."""
        stripping.prove(connection, tables)

    def _sequences(self, connection: Connection, tables: Tables) -> Iterator[tuple[str, str]]:
        """Give the sequences' names, quoted, by what they number."""
        driver = driver_of(connection)
        names = tables.names
        prefix = len(names.prefix)
        for table in tables.metadata.sorted_tables:
            if "pk" in table.c:
                quoted = named(table).as_string(driver)
                row = driver.execute("SELECT pg_get_serial_sequence(%s, 'pk')", [quoted]).fetchone()
                assert row is not None
                yield table.name[prefix:], row[0]
        yield _ACTIVITY, qualified(names.schema, f"{names.prefix}activity").as_string(driver)


def _wanted(shape: TableShape, left_out: LeftOut, among: Among = None) -> sql.Composable:
    """Write the condition that a row is looked at, and not left out."""
    conditions: list[sql.Composable] = [sql.SQL("true")]
    if missing := left_out.get(shape.name):
        number = sql.SQL(_NUMBER).format(sql.SQL("child"))
        conditions.append(sql.SQL("{} <> ALL ({})").format(number, sql.Literal(list(missing))))
    if among is not None:
        kinds = dict(shape.columns)
        columns = [
            sql.SQL("{}::{}[]").format(
                sql.Literal([key[place] for key in among]), sql.SQL(_KEY_TYPES[kinds[name]])
            )
            for place, name in enumerate(shape.key)
        ]
        conditions.append(
            sql.SQL("({}) IN (SELECT * FROM unnest({}))").format(
                sql.SQL(", ").join(map(sql.Identifier, shape.key)), sql.SQL(", ").join(columns)
            )
        )
    return sql.SQL(" AND ").join(conditions)


def _flaws(
    connection: Connection,
    shape: TableShape,
    wanted: sql.Composable,
    condition: sql.Composable,
    reason: sql.Composable,
) -> list[Flaw]:
    """Find the rows of which a condition holds; raises DatabaseCorrupt where there are too many."""
    query = sql.SQL(
        "SELECT {number}, {reason}, to_json(child) FROM {table} AS child"
        " WHERE {wanted} AND {condition} LIMIT {limit}"
    ).format(
        number=sql.SQL(_NUMBER).format(sql.SQL("child")),
        reason=reason,
        table=named(shape.table),
        wanted=wanted,
        condition=condition,
        limit=sql.Literal(MOST_FLAWS + 1),
    )
    found = driver_of(connection).execute(query).fetchall()
    if len(found) > MOST_FLAWS:
        raise DatabaseCorrupt(
            f"More than {MOST_FLAWS:,} rows of {shape.table.name} hold values that agentstore "
            "never writes. Check the database: it may belong to another program."
        )
    return [
        Flaw(
            shape.name,
            ", ".join(f"{name}={values[name]}" for name in shape.key),
            reason,
            number,
            values,
        )
        for number, reason, values in found
    ]


def _require_all_rows(connection: Connection, shape: TableShape) -> None:
    """Refuse to read for a role from which a policy hides rows: they would be missing silently.

    Raises:
        DatabaseError: It is one.
    """
    table = shape.table
    name = named(table).as_string(driver_of(connection))
    names = Names(table.schema, table.name.removesuffix(shape.name))
    hidden = hidden_rows(connection, [name], policy_name(names))
    if hidden is not None:
        raise DatabaseError(
            f"This role cannot see all rows of {table.name}: {hidden.reason}. {hidden.mend}."
        )


def _columns(shape: TableShape) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL(_SELECTED.get(kind, "{}")).format(sql.Identifier(name))
        for name, kind in shape.columns
    )
