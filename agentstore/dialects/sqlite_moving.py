"""How SQLite is read whole, and loaded whole.

SQLite lets anything into any column: a program other than this library may have left text in a
column of numbers, or bytes that are no UTF-8. Such rows are found before anything else happens.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import CheckConstraint, Connection, Table

from agentstore.dialects.digests import Summing, batches
from agentstore.dialects.moving import (
    MOST_FLAWS,
    Digest,
    Flaw,
    Key,
    Kind,
    LeftOut,
    Row,
    Shape,
    Stripped,
)
from agentstore.dialects.search_objects import sqlite_drops
from agentstore.errors import DatabaseCorrupt
from agentstore.schema import Tables

_DAY = "[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9]"
_TIME = "[0-2][0-9]:[0-5][0-9]:[0-5][0-9]." + "[0-9]" * 6
_LONGEST_SHOWN = 255
_SOUND = {
    Kind.TEXT: "typeof({0}) = 'text' AND instr({0}, char(0)) = 0",
    Kind.JSON: "typeof({0}) = 'text' AND json_valid({0}) AND instr({0}, char(0)) = 0",
    Kind.INSTANT: (
        f"typeof({{0}}) = 'text' AND {{0}} GLOB '{_DAY}T{_TIME}+00:00'"
        " AND date(julianday(substr({0}, 1, 19))) = substr({0}, 1, 10) AND {0} >= '0001'"
        " AND instr({0}, char(0)) = 0"  # what follows one is seen by neither of these
    ),
    Kind.WHOLE: "typeof({0}) = 'integer'",
    Kind.REAL: "typeof({0}) IN ('real', 'integer') AND abs({0}) < 9e999",
    Kind.FLAG: "typeof({0}) = 'integer' AND {0} IN (0, 1)",
    Kind.BYTES: "typeof({0}) = 'blob'",
}
"""What holds of a column that is not NULL."""


class SQLiteMoving:
    """See ``Moving`` for what each method promises."""

    longest_entry: int | None = None

    def dangling(self, connection: Connection, shape: Shape, left_out: LeftOut) -> list[Flaw]:
        """Look for the parent of each row, by the parents' index."""
        found: dict[int, Flaw] = {}
        for constraint in shape.table.foreign_key_constraints:
            parent = constraint.referred_table
            plain = parent.name[len(shape.table.name) - len(shape.name) :]
            pairs = [
                (quoted(element.parent.name), quoted(element.column.name))
                for element in constraint.elements
            ]
            there = " AND ".join(f"parent.{theirs} = child.{own}" for own, theirs in pairs)
            given = " AND ".join(f"child.{own} IS NOT NULL" for own, _ in pairs)
            missing = left_out.get(plain, ())
            query = (
                f"SELECT child.rowid FROM {quoted(shape.table.name)} AS child"
                f" WHERE {given} AND child.rowid {_NOT_IN} AND NOT EXISTS"
                f" (SELECT 1 FROM {quoted(parent.name)} AS parent"
                f" WHERE {there} AND parent.rowid {_NOT_IN})"
            )
            own = _list(left_out.get(shape.name, ()))
            with _bytes_for_text(connection) as driver:
                numbers = driver.execute(query, (own, _list(missing))).fetchmany(MOST_FLAWS + 1)
            for (number,) in numbers:
                columns = ", ".join(element.parent.name for element in constraint.elements)
                reason = f"{columns}: no such row of {plain}"
                found[number] = _flaw(connection, shape, number, reason)
                _refuse_too_many(found)
        return list(found.values())

    def examine(
        self, connection: Connection, shape: Shape, left_out: LeftOut, longest: int | None = None
    ) -> tuple[Digest, list[Flaw]]:
        """Read it in batches; SQLite looks at the types, Python at the encoding."""
        summing = Summing([kind for _, kind in shape.columns])
        bad: dict[int, str | None] = {}
        with _bytes_for_text(connection) as driver:
            for batch in batches(_rows(driver, shape, left_out.get(shape.name, ()), longest)):
                sound = [row for row in batch if row[1]]
                bad |= {row[0]: None for row in batch if not row[1]}
                wrong = _undecodable(shape, sound)
                if wrong:
                    sound = [row for row in sound if row[0] not in wrong]
                    bad |= wrong
                _refuse_too_many(bad)
                summing.add([row[2:-1] for row in sound])
        flaws = [
            _flaw(connection, shape, number, reason or _reason(connection, shape, number, longest))
            for number, reason in bad.items()
        ]
        return summing.digest(), flaws

    def read(
        self, connection: Connection, shape: Shape, after: Key | None, left_out: LeftOut
    ) -> Generator[Row]:
        """Walk the primary key."""
        key = ", ".join(map(quoted, shape.key))
        conditions, parameters = [], list[Any]()
        if after is not None:
            conditions.append(f"({key}) > ({', '.join('?' * len(after))})")
            parameters += after
        if missing := left_out.get(shape.name):
            conditions.append(f"rowid {_NOT_IN}")
            parameters.append(_list(missing))
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT {_columns(shape)} FROM {quoted(shape.table.name)}{where} ORDER BY {key}"
        cursor = driver_of(connection).execute(query, parameters)
        try:
            yield from cursor
        finally:
            cursor.close()

    def load(self, connection: Connection, shape: Shape, rows: Iterable[Row]) -> None:
        """Insert them one by one."""
        places = ", ".join("?" * len(shape.columns))
        table = quoted(shape.table.name)
        query = f"INSERT INTO {table} ({_columns(shape)}) VALUES ({places})"
        driver_of(connection).executemany(query, rows)

    def strip(self, connection: Connection, tables: Tables) -> Stripped:
        """Drop indexes and triggers; keys cannot be dropped here."""
        last = self.loosen(connection, tables)
        return Stripped(_dropped(connection, tables, "index"), last)

    def loosen(self, connection: Connection, tables: Tables) -> dict[str, str]:
        """Drop triggers; references are not checked on such a connection."""
        for statement in sqlite_drops(tables.names.prefix):
            connection.exec_driver_sql(statement)
        return _dropped(connection, tables, "trigger")

    def counters(self, connection: Connection, tables: Tables) -> dict[str, int]:
        """Read what SQLite remembers of tables whose row numbers never come again."""
        prefix = tables.names.prefix
        numbered = {table.name for table in tables.metadata.sorted_tables if "pk" in table.c}
        found = driver_of(connection).execute("SELECT name, seq FROM sqlite_sequence").fetchall()
        return {
            name.removeprefix(prefix): seq
            for name, seq in found
            if name in numbered and isinstance(seq, int)
        }

    def set_counters(
        self, connection: Connection, tables: Tables, counters: Mapping[str, int]
    ) -> None:
        """Write it, for the tables that are counted here; the others count from their largest."""
        driver = driver_of(connection)
        for table in tables.metadata.sorted_tables:
            if not table.dialect_options["sqlite"]["autoincrement"]:
                continue
            largest = f"SELECT coalesce(max(pk), 0) FROM {quoted(table.name)}"
            plain = table.name.removeprefix(tables.names.prefix)
            number = max(driver.execute(largest).fetchone()[0], counters.get(plain, 0))
            driver.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table.name,))
            driver.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table.name, number))

    def hasten(self, connection: Connection) -> None:
        """Let commits wait for the disk only now and then, and check no references.

        If the machine falls, the last commits are gone together with what they say of the copy's
        progress, so it is gone on with from there.
        """
        for pragma in ("foreign_keys=OFF", "synchronous=NORMAL", "cache_size=-8192"):
            driver_of(connection).execute(f"PRAGMA {pragma}")

    def refresh(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Do nothing: without statistics SQLite plans by the indexes, as for every new file."""


_NOT_IN = "NOT IN (SELECT value FROM json_each(?))"


def driver_of(connection: Connection) -> Any:
    """Give the driver's own connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


@contextmanager
def _bytes_for_text(connection: Connection) -> Iterator[Any]:
    """Read text as bytes, for it may be no text."""
    driver = driver_of(connection)
    before = driver.text_factory
    driver.text_factory = bytes
    try:
        yield driver
    finally:
        driver.text_factory = before


def _dropped(connection: Connection, tables: Tables, kind: str) -> dict[str, str]:
    """Drop all indexes or triggers of the tables; give what creates them again, by names."""
    query = (
        "SELECT name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL"
        " AND tbl_name IN (SELECT value FROM json_each(?)) ORDER BY 1"
    )
    ours = json.dumps([table.name for table in tables.metadata.sorted_tables])
    found = dict(driver_of(connection).execute(query, (kind, ours)).fetchall())
    for name in found:
        connection.exec_driver_sql(f"DROP {kind} {quoted(name)}")
    return found


def quoted(name: str) -> str:
    """Quote a name."""
    return '"' + name.replace('"', '""') + '"'


def _columns(shape: Shape) -> str:
    return ", ".join(quoted(name) for name, _ in shape.columns)


def _list(numbers: Collection[int]) -> str:
    return json.dumps(list(numbers))


def holds(shape: Shape, name: str, kind: Kind) -> str:
    """Write the condition that holds of a column that is not NULL."""
    condition = _SOUND[kind].format(quoted(name))
    document = getattr(shape.table.c[name].type, "document", None)
    if document in _JSON_TYPES:
        # CASE, since nothing keeps AND from asking for the type of what is no JSON.
        kind_of = f"json_type({quoted(name)}) = '{_JSON_TYPES[document]}'"
        condition = f"CASE WHEN {condition} THEN {kind_of} ELSE 0 END"
    return condition


_JSON_TYPES = {dict: "object", list: "array"}


def sound(shape: Shape) -> str:
    """Write the condition that holds of a row that is sound."""
    checks = [
        f"({quoted(name)} IS NULL OR {holds(shape, name, kind)})" for name, kind in shape.columns
    ]
    return " AND ".join([*checks, *(f"({rule}) IS NOT 0" for rule in _rules(shape).values())])


def _fits(shape: Shape, longest: int | None) -> str:
    """Write what else holds of one that fits into indexes of this limit."""
    if longest is None:
        return sound(shape)
    return " AND ".join([sound(shape), *(f"{_entry(e)} <= {longest}" for e in shape.indexed)])


def _entry(columns: Sequence[str]) -> str:
    """Write how many bytes of text an entry of an index has."""
    lengths = [f"coalesce(length(CAST({quoted(name)} AS BLOB)), 0)" for name in columns]
    return f"({' + '.join(lengths)})"


def _rules(shape: Shape) -> dict[str, str]:
    """Give the table's CHECKs, which a connection can turn off, by their names."""
    return {
        str(constraint.name): str(constraint.sqltext)
        for constraint in shape.table.constraints
        if isinstance(constraint, CheckConstraint)
    }


def sound_rows(connection: Connection, shape: Shape, query: str, parameters: Any) -> list[Row]:
    """Select whole rows that SQLite finds sound; leave those out whose text is no UTF-8."""
    kinds = [kind for _, kind in shape.columns]
    found = []
    with _bytes_for_text(connection) as driver:
        for row in driver.execute(query, parameters):
            with suppress(UnicodeDecodeError):
                pairs = zip(kinds, row, strict=True)
                found.append(tuple(_decoded(kind, value) for kind, value in pairs))
    return found


def _decoded(kind: Kind, value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) and kind is not Kind.BYTES else value


def _rows(
    driver: Any, shape: Shape, missing: Collection[int], longest: int | None
) -> Iterable[Row]:
    """Give rows: number, whether SQLite finds it sound, the columns, and its length or so."""
    length = " + ".join(
        f"coalesce(length({quoted(name)}), 0)"
        for name, kind in shape.columns
        if kind in (Kind.TEXT, Kind.JSON, Kind.BYTES)
    )
    query = (
        f"SELECT rowid, {_fits(shape, longest)}, {_columns(shape)}, {length or 0}"
        f" FROM {quoted(shape.table.name)} WHERE rowid {_NOT_IN}"
    )
    rows: Iterable[Row] = driver.execute(query, (_list(missing),))
    return rows


def _undecodable(shape: Shape, rows: list[Row]) -> dict[int, str | None]:
    """Find the rows whose text is no UTF-8, with the reason."""
    found: dict[int, str | None] = {}
    for place, (name, kind) in enumerate(shape.columns, start=2):
        if kind not in (Kind.TEXT, Kind.JSON):
            continue
        column = [row[place] for row in rows if row[place] is not None]
        try:
            b"\n".join(column).decode("utf-8")
        except UnicodeDecodeError:
            for row in rows:
                try:
                    (row[place] or b"").decode("utf-8")
                except UnicodeDecodeError as error:
                    found[row[0]] = f"{name}: no UTF-8 ({error.reason} at byte {error.start})"
    return found


def _reason(connection: Connection, shape: Shape, number: int, longest: int | None) -> str:
    """Say which column SQLite does not find sound."""
    columns = ", ".join(
        f"{quoted(name)} IS NULL OR {holds(shape, name, kind)}, typeof({quoted(name)})"
        for name, kind in shape.columns
    )
    rules = _rules(shape)
    checks = ", ".join([columns, *(f"({rule}) IS NOT 0" for rule in rules.values())])
    query = f"SELECT {checks} FROM {quoted(shape.table.name)} WHERE rowid = ?"
    found = driver_of(connection).execute(query, (number,)).fetchone()
    wrong = []
    for (name, kind), sound, stored in zip(shape.columns, found[::2], found[1::2], strict=False):
        if not sound:
            what = _ARTICLES.get(stored, stored)
            same = what == kind.value
            instead = "with a NUL" if same else f"that is not {_of(shape, name, kind)}"
            wrong.append(f"{name}: {what} {instead}")
    kept = found[2 * len(shape.columns) :]
    wrong += [f"against {name}" for name, sound in zip(rules, kept, strict=True) if not sound]
    if longest is not None:
        wrong += _too_long(connection, shape, number, longest)
    return "; ".join(wrong)


def _too_long(connection: Connection, shape: Shape, number: int, longest: int) -> list[str]:
    lengths = ", ".join(map(_entry, shape.indexed))
    query = f"SELECT {lengths} FROM {quoted(shape.table.name)} WHERE rowid = ?"
    found = driver_of(connection).execute(query, (number,)).fetchone()
    return [
        f"{', '.join(columns)}: {length:,} bytes, and an index takes {longest:,}"
        for columns, length in zip(shape.indexed, found, strict=True)
        if length > longest
    ]


def _of(shape: Shape, name: str, kind: Kind) -> str:
    holds = getattr(shape.table.c[name].type, "holds", kind.value)
    return holds if kind is Kind.JSON else kind.value


_ARTICLES = {"text": "text", "blob": "bytes", "integer": "a whole number", "real": "a number"}


def _flaw(connection: Connection, shape: Shape, number: int, reason: str) -> Flaw:
    types = ", ".join(f"typeof({quoted(name)})" for name, _ in shape.columns)
    query = f"SELECT {_columns(shape)}, {types} FROM {quoted(shape.table.name)} WHERE rowid = ?"
    with _bytes_for_text(connection) as driver:
        row = driver.execute(query, (number,)).fetchone()
    names = [name for name, _ in shape.columns]
    values = {
        name: _shown(value, kind)
        for name, value, kind in zip(names, row, row[len(names) :], strict=False)
    }
    key = ", ".join(f"{name}={short(values[name])}" for name in shape.key)
    return Flaw(shape.name, key, reason, number, values)


def short(value: Any) -> Any:
    """Show a value of a key, or how long it is: it may be anybody's words."""
    is_long = isinstance(value, str) and len(value) > _LONGEST_SHOWN
    return f"({len(value):,} characters)" if is_long else value


def _shown(value: Any, kind: bytes) -> Any:
    if kind == b"blob":
        return {"hex": value.hex()}
    if kind == b"text":
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"text": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value


def _refuse_too_many(found: Collection[Any]) -> None:
    if len(found) > MOST_FLAWS:
        raise DatabaseCorrupt(
            f"More than {MOST_FLAWS:,} rows of a table hold what agentstore never writes there. "
            "Look at the file: it may be of another program, or damaged."
        )
