"""How SQLite is read whole, and loaded whole.

SQLite lets anything into any column: a program other than this library may have left text in a
column of numbers, or bytes that are no UTF-8. Such rows are found before anything else happens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, func, select, update

from agentstore.engines.base.digests import Summing, batches
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
from agentstore.engines.sqlite import search_objects
from agentstore.engines.sqlite.activity import counter_of, last_taken
from agentstore.engines.sqlite.sound import (
    bytes_for_text,
    driver_of,
    entry,
    fits,
    listed,
    quoted,
    rules,
    sound_value,
    with_keys,
)
from agentstore.engines.sqlite.stored import as_stored, travels
from agentstore.errors import DatabaseCorrupt
from agentstore.models.tables import Tables
from agentstore.values.own_ids import ID_BYTES, id_text

_LONGEST_SHOWN = 255


class SQLiteMoving(Moving):
    """See ``Moving`` for what each method promises."""

    longest_entry: int | None = None

    def dangling(
        self, connection: Connection, shape: TableShape, left_out: LeftOut, among: Among = None
    ) -> list[Flaw]:
        """Look for the parent of each row, by the parents' index."""
        found: dict[int, Flaw] = {}
        wanted, keys = _wanted(driver_of(connection), shape, among)
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
                f" WHERE {given} AND child.rowid {_NOT_IN}{wanted} AND NOT EXISTS"
                f" (SELECT 1 FROM {quoted(parent.name)} AS parent"
                f" WHERE {there} AND parent.rowid {_NOT_IN})"
            )
            own = _list(left_out.get(shape.name, ()))
            with bytes_for_text(connection) as driver:
                parameters = (own, *keys, _list(missing))
                numbers = driver.execute(query, parameters).fetchmany(MOST_FLAWS + 1)
            for (number,) in numbers:
                columns = ", ".join(element.parent.name for element in constraint.elements)
                reason = f"{columns}: no such row of {plain}"
                found[number] = _flaw(connection, shape, number, reason)
                _refuse_too_many(found)
        return list(found.values())

    def examine(
        self,
        connection: Connection,
        shape: TableShape,
        left_out: LeftOut,
        longest: int | None = None,
        among: Among = None,
    ) -> tuple[TableDigest, list[Flaw]]:
        """Read it in batches; SQLite looks at the types, Python at the encoding."""
        summing = Summing([kind for _, kind in shape.columns])
        bad: dict[int, str | None] = {}
        with bytes_for_text(connection) as driver:
            rows = _rows(driver, shape, left_out.get(shape.name, ()), longest, among)
            for batch in batches(rows):
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
        self, connection: Connection, shape: TableShape, after: Key | None, left_out: LeftOut
    ) -> Generator[Row]:
        """Walk the primary key."""
        key = ", ".join(map(quoted, shape.key))
        conditions, parameters = [], list[Any]()
        if after is not None:
            kinds = dict(shape.columns)
            conditions.append(
                f"({key}) > ({', '.join(as_stored(kinds[n], '?') for n in shape.key)})"
            )
            parameters += after
        if missing := left_out.get(shape.name):
            conditions.append(f"rowid {_NOT_IN}")
            parameters.append(_list(missing))
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT {_travelling(shape)} FROM {quoted(shape.table.name)}{where} ORDER BY {key}"
        cursor = driver_of(connection).execute(query, parameters)
        try:
            yield from cursor
        finally:
            cursor.close()

    def load(self, connection: Connection, shape: TableShape, rows: Iterable[Row]) -> None:
        """Insert them one by one."""
        # Each is bound once, under a name: what is stored may be made of it in several places.
        given = ", ".join(f"? AS c{n}" for n in range(len(shape.columns)))
        stored = ", ".join(as_stored(kind, f"c{n}") for n, (_, kind) in enumerate(shape.columns))
        table = quoted(shape.table.name)
        query = f"INSERT INTO {table} ({_columns(shape)}) SELECT {stored} FROM (SELECT {given})"
        driver_of(connection).executemany(query, rows)

    def strip(self, connection: Connection, tables: Tables) -> Stripped:
        """Drop indexes and triggers; keys cannot be dropped here."""
        last = self.loosen(connection, tables)
        return Stripped(_dropped(connection, tables, "index"), last)

    def loosen(self, connection: Connection, tables: Tables) -> dict[str, str]:
        """Drop triggers; references are not checked on such a connection."""
        for statement in search_objects.drops(tables.names.prefix):
            connection.exec_driver_sql(statement)
        return _dropped(connection, tables, "trigger")

    def counters(self, connection: Connection, tables: Tables) -> dict[str, int]:
        """Read the counter, which messages and activity share."""
        last = connection.execute(select(last_taken(tables))).scalar()
        return {"messages": last} if isinstance(last, int) else {}

    def set_counters(
        self, connection: Connection, tables: Tables, counters: Mapping[str, int]
    ) -> None:
        """Set it; the tables' other numbers count from their largest."""
        largest = select(func.coalesce(func.max(tables.sessions.c.activity), 0))
        numbers = [counters.get(name, 0) for name in ("messages", "activity")]
        last = max(connection.execute(largest).scalar_one(), *numbers)
        connection.execute(update(counter_of(tables.names)).values(taken=last))

    def prepare_to_load(self, connection: Connection) -> None:
        """Let commits wait for the disk only now and then, and check no references.

        If the machine falls, the last commits are gone together with what they say of the copy's
        progress, so it is resumed from there.
        """
        for pragma in ("foreign_keys=OFF", "synchronous=NORMAL", "cache_size=-8192"):
            driver_of(connection).execute(f"PRAGMA {pragma}")


_NOT_IN = "NOT IN (SELECT value FROM json_each(?))"


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


def _columns(shape: TableShape) -> str:
    return ", ".join(quoted(name) for name, _ in shape.columns)


def _travelling(shape: TableShape) -> str:
    return ", ".join(travels(kind, quoted(name)) for name, kind in shape.columns)


def _list(numbers: Collection[int]) -> str:
    return json.dumps(list(numbers))


def _wanted(driver: Any, shape: TableShape, among: Among) -> tuple[str, list[str]]:
    """Write what else holds of the rowid of a row that is looked at, with its parameters."""
    if among is None:
        return "", []
    found = f"SELECT wanted.rowid {with_keys(shape, 'wanted')}"
    return f" AND rowid IN ({found})", [listed(among)]


def _rows(
    driver: Any, shape: TableShape, missing: Collection[int], longest: int | None, among: Among
) -> Iterable[Row]:
    """Give rows: number, whether SQLite finds it sound, the columns, and its length or so."""
    length = " + ".join(
        f"coalesce(length({quoted(name)}), 0)"
        for name, kind in shape.columns
        if kind in (Kind.TEXT, Kind.JSON, Kind.BYTES)
    )
    wanted, keys = _wanted(driver, shape, among)
    query = (
        f"SELECT rowid, {fits(shape, longest)}, {_travelling(shape)}, {length or 0}"
        f" FROM {quoted(shape.table.name)} WHERE rowid {_NOT_IN}{wanted}"
    )
    rows: Iterable[Row] = driver.execute(query, (_list(missing), *keys))
    return rows


def _undecodable(shape: TableShape, rows: list[Row]) -> dict[int, str | None]:
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


def _reason(connection: Connection, shape: TableShape, number: int, longest: int | None) -> str:
    """Say which column SQLite does not find sound."""
    columns = ", ".join(
        f"{sound_value(shape, name, kind)}, typeof({quoted(name)})" for name, kind in shape.columns
    )
    checked = rules(shape)
    checks = ", ".join([columns, *(f"({rule}) IS NOT 0" for rule in checked.values())])
    query = f"SELECT {checks} FROM {quoted(shape.table.name)} WHERE rowid = ?"
    found = _again(driver_of(connection), query, number)
    wrong = []
    for (name, kind), held, stored in zip(shape.columns, found[::2], found[1::2], strict=False):
        if not held:
            if stored == "null":
                wrong.append(f"{name}: NULL")
                continue
            what = _ARTICLES.get(stored, stored)
            same = what == kind.value
            instead = "with a NUL" if same else f"that is not {_of(shape, name, kind)}"
            wrong.append(f"{name}: {what} {instead}")
    kept = found[2 * len(shape.columns) :]
    wrong += [f"against {name}" for name, held in zip(checked, kept, strict=True) if not held]
    if longest is not None:
        wrong += _too_long(connection, shape, number, longest)
    return "; ".join(wrong)


def _too_long(connection: Connection, shape: TableShape, number: int, longest: int) -> list[str]:
    lengths = ", ".join(map(entry, shape.indexed))
    query = f"SELECT {lengths} FROM {quoted(shape.table.name)} WHERE rowid = ?"
    found = _again(driver_of(connection), query, number)
    return [
        f"{', '.join(columns)}: {length:,} bytes, and an index takes {longest:,}"
        for columns, length in zip(shape.indexed, found, strict=True)
        if length > longest
    ]


def _of(shape: TableShape, name: str, kind: Kind) -> str:
    holds = getattr(shape.column(name).type, "holds", kind.value)
    return holds if kind is Kind.JSON else kind.value


_ARTICLES = {"text": "text", "blob": "bytes", "integer": "a whole number", "real": "a number"}


def _flaw(connection: Connection, shape: TableShape, number: int, reason: str) -> Flaw:
    types = ", ".join(f"typeof({quoted(name)})" for name, _ in shape.columns)
    query = f"SELECT {_columns(shape)}, {types} FROM {quoted(shape.table.name)} WHERE rowid = ?"
    with bytes_for_text(connection) as driver:
        row = _again(driver, query, number)
    stored_as = row[len(shape.columns) :]
    values = {
        name: _shown(kind, value, stored)
        for (name, kind), value, stored in zip(shape.columns, row, stored_as, strict=False)
    }
    key = ", ".join(f"{name}={short(values[name])}" for name in shape.key)
    return Flaw(shape.name, key, reason, number, values)


def _again(driver: Any, query: str, number: int) -> Row:
    """Read a row that was found by walking the table.

    Raises:
        DatabaseCorrupt: Its number does not lead to it.
    """
    row: Row | None = driver.execute(query, (number,)).fetchone()
    if row is None:
        raise DatabaseCorrupt(
            "A row is not where its number says: the file is damaged. Check it with PRAGMA "
            "integrity_check; restore a backup, or save what can be read with sqlite3 .recover."
        )
    return row


def short(value: Any) -> Any:
    """Show a value of a key, or how long it is: it may be anybody's words."""
    is_long = isinstance(value, str) and len(value) > _LONGEST_SHOWN
    return f"({len(value):,} characters)" if is_long else value


def _shown(kind: Kind, value: Any, stored_as: bytes) -> Any:
    if stored_as == b"blob":
        is_id = kind is Kind.ID and len(value) == ID_BYTES
        return id_text(value) if is_id else {"hex": value.hex()}
    if stored_as == b"text":
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
            f"More than {MOST_FLAWS:,} rows of a table hold values that agentstore never writes. "
            "Check the file: it may belong to another program, or be damaged."
        )
