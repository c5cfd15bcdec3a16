"""How PostgreSQL is read whole, and loaded whole: with COPY, rows one by one, never in memory."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from sqlalchemy import Connection, Table, event
from sqlalchemy.exc import DBAPIError

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
    shapes,
)
from agentstore.engines.postgresql import search
from agentstore.engines.postgresql.row_security import hidden_rows, policy_name
from agentstore.errors import DatabaseCorrupt, DatabaseError, InvalidRow, named
from agentstore.schema import LONGEST_ENTRY, Names, Tables
from agentstore.values.types import EnumText, Json

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

_RESERVING = 7_310_867_143_522_948_097
"""The advisory lock of those who reserve numbers; any that nobody else uses."""

_TO_LOAD = """
    SELECT
        set_config('synchronous_commit', 'off', true),
        set_config('maintenance_work_mem', '256MB', true),
        set_config('statement_timeout', '0', true),
        set_config('idle_in_transaction_session_timeout', '0', true)
"""

_LONGEST_WAIT = "5s"
"""For transactions that have written, before tables are locked against writers."""

_APART = 2**30
"""Numbers that are left out before those that are reserved: see ``reserve``."""


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
                parent=named_object(parent),
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
            sql.SQL(_WRITTEN[kind]).format(_value(shape, name)) for name, kind in shape.columns
        )
        wanted = _wanted(shape, left_out, among)
        kinds = invalid_values(shape)
        wrong = either(condition for _, condition, _ in kinds)
        # OFFSET 0 keeps the planner from computing each hash once for each of its halves.
        query = sql.SQL("""
SELECT count(hash), count(*) - count(hash),
    coalesce(sum(('x' || encode(substr(hash, 1, 8), 'hex'))::bit(64)::bigint), 0),
    coalesce(sum(('x' || encode(substr(hash, 9, 8), 'hex'))::bit(64)::bigint), 0)
FROM (
    SELECT CASE WHEN {wrong} IS NOT TRUE THEN sha256(convert_to(concat({written}), 'UTF8')) END
        AS hash FROM {table} AS child WHERE {wanted} OFFSET 0
) AS hashed""").format(wrong=wrong, written=written, table=named_object(shape.table), wanted=wanted)
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
            table=named_object(shape.table),
            wanted=sql.SQL(" AND ").join(conditions),
            key=key,
        )
        with driver_of(connection).cursor() as cursor, cursor.copy(query) as copy:
            copy.set_types([_TYPES[kind] for _, kind in shape.columns])
            yield from copy.rows()

    def load(self, connection: Connection, shape: TableShape, rows: Iterable[Row]) -> None:
        """Copy in."""
        _copy_in(connection, named_object(shape.table), shape, rows)

    def add(
        self, connection: Connection, shape: TableShape, rows: Iterable[Row], *, missing: bool
    ) -> None:
        """Copy into a table of the connection's own first: no COPY goes where policies are forced.

        So triggers see the rows too.
        """
        driver, own = driver_of(connection), sql.Identifier("pg_temp", "agentstore_rows")
        into = named_object(shape.table)
        driver.execute(sql.SQL("CREATE TABLE {} (LIKE {})").format(own, into))
        _copy_in(connection, own, shape, rows)
        names = _names(shape)
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(into, names, names, own)
        driver.execute(insert + sql.SQL(" ON CONFLICT DO NOTHING") if missing else insert)
        driver.execute(sql.SQL("DROP TABLE {}").format(own))

    def reserve(
        self, connection: Connection, tables: Tables, counts: Mapping[str, int]
    ) -> dict[str, int]:
        """Set the sequences far ahead; others who reserve wait until the transaction ends.

        Between the two calls of the expression others may take a few numbers, never as many as
        are left out here, so theirs stay below.
        """
        driver = driver_of(connection)
        driver.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        driver.execute("SELECT pg_advisory_xact_lock(%s)", [_RESERVING])
        sequences, found = dict(self._sequences(connection, tables)), dict[str, int]()
        for name, count in counts.items():
            sequence = sequences[_ACTIVITY if name == "puts" else name]
            query = "SELECT setval(%s::regclass, nextval(%s::regclass) + %s::int8)"
            row = driver.execute(query, [sequence, sequence, _APART + count]).fetchone()
            assert row is not None
            found[name] = row[0] - count
        return found

    def hold(self, connection: Connection, tables: Tables) -> None:
        """Lock the tables against writers; readers go on.

        Writers who come later wait behind this one, so it does not wait long for those before.
        """
        driver_of(connection).execute(
            "SELECT set_config('lock_timeout', %s, true)", [_LONGEST_WAIT]
        )
        every = sql.SQL(", ").join(map(named_object, tables.metadata.sorted_tables))
        lock = sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(every)
        driver_of(connection).execute(lock)

    def strip(self, connection: Connection, tables: Tables) -> Stripped:
        """Drop the keys too."""
        last = self.loosen(connection, tables)
        ours = _list(connection, tables)
        indexes = driver_of(connection).execute(_INDEXES, [ours]).fetchall()
        again = _drop_keys(connection, ours, "p", "u")
        for name, _ in indexes:
            connection.exec_driver_sql(f"DROP INDEX {name}")
        return Stripped(again | dict(indexes), last)

    def loosen(self, connection: Connection, tables: Tables) -> dict[str, str]:
        """Drop references, and bind no owner by policies: no COPY goes where they are forced."""
        for statement in search.drops(tables.names.schema, tables.names.prefix):
            connection.exec_driver_sql(statement)
        ours = _list(connection, tables)
        last = _drop_keys(connection, ours, "f")
        for (table,) in driver_of(connection).execute(_FORCED, [ours]).fetchall():
            connection.exec_driver_sql(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
            last[f"{table} row security"] = f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"
        return last

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
                    sql.Identifier(column), named_object(table)
                )
                row = driver_of(connection).execute(query).fetchone()
                assert row is not None
                numbers.append(row[0])
            if max(numbers):
                connection.exec_driver_sql("SELECT setval(%s, %s)", (sequence, max(numbers)))

    def prepare_to_load(self, connection: Connection) -> None:
        """Let commits not wait for the disk, and give the making of indexes some memory.

        If the server falls, the last commits are gone together with what they say of the copy's
        progress, so it is resumed from there. All of it is set in each transaction: a pooler lends
        the server's connection to others between two, and their commits are to wait.
        """

        @event.listens_for(connection, "begin")
        def prepare(beginning: Connection) -> None:
            driver_of(beginning).execute(_TO_LOAD)

    def refresh(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Say ANALYZE."""
        for table in tables:
            with connection.begin():
                driver_of(connection).execute(sql.SQL("ANALYZE {}").format(named_object(table)))

    def unproven(self, statement: str) -> str:
        """Add references as NOT VALID: they hold for every row that is written from then on."""
        return statement + _NOT_VALID if " FOREIGN KEY " in statement else statement

    def prove(self, connection: Connection, tables: Tables) -> None:
        """Validate them, one by one."""
        driver = driver_of(connection)
        for table, name in driver.execute(_UNPROVEN, [_list(connection, tables)]).fetchall():
            with connection.begin():
                driver.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}".encode())

    def _sequences(self, connection: Connection, tables: Tables) -> Iterator[tuple[str, str]]:
        """Give the sequences' names, quoted, by what they number."""
        driver = driver_of(connection)
        names = tables.names
        prefix = len(names.prefix)
        for table in tables.metadata.sorted_tables:
            if "pk" in table.c:
                quoted = named_object(table).as_string(driver)
                row = driver.execute("SELECT pg_get_serial_sequence(%s, 'pk')", [quoted]).fetchone()
                assert row is not None
                yield table.name[prefix:], row[0]
        yield _ACTIVITY, qualified(names.schema, f"{names.prefix}activity").as_string(driver)

    def name_row(self, connection: Connection, tables: Tables, error: InvalidRow) -> InvalidRow:
        """Say of the first row found, in the table or in any, that its column is not sound."""
        places = [
            (shape, column, condition, what)
            for shape in shapes(tables)
            if error.table in ("", shape.name)
            for column, condition, what in invalid_values(shape)
            if error.column in ("", column)
        ]
        with suppress(DBAPIError), _for_a_moment(connection):
            for shape, column, condition, what in places:
                row = connection.exec_driver_sql(_query(shape, condition)).first()
                if row is not None:
                    pairs = zip(shape.shown_key, row, strict=True)
                    key = ", ".join(f"{name}={named(value)}" for name, value in pairs)
                    return InvalidRow(shape.name, column, what, key)
        return error


MOVING = PostgreSQLMoving()


def _copy_in(
    connection: Connection, place: sql.Identifier, shape: TableShape, rows: Iterable[Row]
) -> None:
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(place, _names(shape))
    with driver_of(connection).cursor() as cursor, cursor.copy(query) as copy:
        write = copy.write_row
        for row in rows:
            write(row)


def _names(shape: TableShape) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name, _ in shape.columns)


def _value(shape: TableShape, name: str) -> sql.Composable:
    """Write what a column holds, with what is added to it."""
    place = sql.Identifier(name)
    if name not in shape.added:
        return place
    return sql.SQL("({} + {})").format(place, sql.Literal(shape.added[name]))


def _wanted(shape: TableShape, left_out: LeftOut, among: Among = None) -> sql.Composable:
    """Write the condition that a row is looked at, and not left out."""
    conditions: list[sql.Composable] = [sql.SQL("true")]
    if shape.only is not None:
        key = sql.SQL(", ").join(map(sql.Identifier, shape.key))
        conditions.append(sql.SQL("({}) IN ({})").format(key, sql.SQL(shape.only)))
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
        table=named_object(shape.table),
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
    name = named_object(table).as_string(driver_of(connection))
    names = Names(table.schema, table.name.removesuffix(shape.name))
    hidden = hidden_rows(connection, [name], policy_name(names))
    if hidden is not None:
        raise DatabaseError(
            f"This role cannot see all rows of {table.name}: {hidden.reason}. {hidden.fix}."
        )


def _columns(shape: TableShape) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL(_SELECTED.get(kind, "{}")).format(_value(shape, name))
        for name, kind in shape.columns
    )


# What is dropped of a server's tables before they are loaded, and how it comes back.


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


def _list(connection: Connection, tables: Tables) -> list[str]:
    driver = driver_of(connection)
    return [named_object(table).as_string(driver) for table in tables.metadata.sorted_tables]


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


def named_object(table: Table) -> sql.Identifier:
    """Write a table's name."""
    return qualified(table.schema, table.name)


def qualified(schema: str | None, name: str) -> sql.Identifier:
    """Write a name, with the schema where there is one."""
    return sql.Identifier(schema, name) if schema else sql.Identifier(name)


# Invalid rows of a server: the conditions that find them, and the name of one.
#
# A server's columns hold what their types allow, which is more than agentstore writes: JSON of
# another shape, instants that Python cannot express; and more where somebody dropped a
# constraint. A row that could not be read is looked for, but not for long; ``agentstore doctor
# --deep`` reads all.


_PQTRANS_IDLE = 0
"""libpq's word for a connection that is in no transaction."""

_PATIENCE = "SET LOCAL statement_timeout = '500ms'"

_INVALID: dict[Kind, LiteralString] = {
    Kind.INSTANT: "({0} < '0001-01-01 00:00+00' OR {0} >= '10000-01-01 00:00+00')",
    Kind.REAL: "{0} IN ('NaN', 'Infinity', '-Infinity')",
}
_MORE = {
    Kind.INSTANT: "an instant outside of the years 1 to 9999",
    Kind.REAL: "a number that is not finite",
}
_JSON_TYPES = {dict: "object", list: "array"}


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


def invalid_values(shape: TableShape) -> list[tuple[str, sql.Composable, str]]:
    """Give columns, each with what holds of a value that is not sound, and with what it then is.

    A condition may be NULL where the column is.
    """
    found: list[tuple[str, sql.Composable, str]] = []
    for name, kind in shape.columns:
        column, place = shape.column(name), sql.Identifier(name)
        if kind in _INVALID:
            found.append((name, sql.SQL(_INVALID[kind]).format(place), _MORE[kind]))
        if isinstance(column.type, Json) and column.type.document in _JSON_TYPES:
            wanted = sql.Literal(_JSON_TYPES[column.type.document])
            other = sql.SQL("json_typeof({}) <> {}").format(place, wanted)
            found.append((name, other, f"JSON that is not {column.type.holds}"))
        if isinstance(column.type, EnumText):
            words = sql.SQL(", ").join(map(sql.Literal, sorted(column.type.words)))
            other = sql.SQL("{} NOT IN ({})").format(place, words)
            found.append((name, other, f"text that is not {column.type.holds}"))
        if not column.nullable and name not in shape.key:
            found.append((name, sql.SQL("{} IS NULL").format(place), "NULL"))
    return found


def either(conditions: Iterable[sql.Composable]) -> sql.Composed:
    """Write the condition that one of several holds."""
    return sql.SQL("({})").format(sql.SQL(" OR ").join([sql.SQL("false"), *conditions]))


def _query(shape: TableShape, condition: sql.Composable) -> str:
    query = sql.SQL("SELECT {} FROM {} WHERE {} LIMIT 1").format(
        sql.SQL(", ").join(map(sql.Identifier, shape.shown_key)),
        named_object(shape.table),
        condition,
    )
    return query.as_string(None).replace("%", "%%")
