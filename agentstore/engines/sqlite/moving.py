"""How SQLite is read whole, and loaded whole.

SQLite lets anything into any column: a program other than this library may have left text in a
column of numbers, or bytes that are no UTF-8. Such rows are found before anything else happens.
"""

from __future__ import annotations

import json
import math
import secrets
import sqlite3
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    Connection,
    Dialect,
    TableClause,
    column,
    func,
    literal_column,
    select,
    table,
    update,
)

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
    Summing,
    TableDigest,
    TableShape,
    batches,
    shapes,
    words_of,
)
from agentstore.engines.base.search import all_named
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.engines.sqlite import search
from agentstore.errors import DatabaseCorrupt, InvalidRow, named
from agentstore.schema import Names, Tables
from agentstore.values.types import ID_BYTES, StrictInteger, id_text

_LONGEST_SHOWN = 255


class SQLiteMoving(Moving):
    """See ``Moving`` for what each method promises."""

    longest_entry: int | None = None

    def dangling(
        self, connection: Connection, shape: TableShape, left_out: LeftOut, among: Among = None
    ) -> list[Flaw]:
        """Look for the parent of each row, by the parents' index."""
        found: dict[int, Flaw] = {}
        wanted, keys = _wanted(shape, among)
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
                valid = [row for row in batch if row[1]]
                bad |= {row[0]: None for row in batch if not row[1]}
                wrong = _undecodable(shape, valid)
                if wrong:
                    valid = [row for row in valid if row[0] not in wrong]
                    bad |= wrong
                _refuse_too_many(bad)
                summing.add([row[2:-1] for row in valid])
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
        if shape.only is not None:
            conditions.append(f"({key}) IN ({shape.only})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT {_travelling(shape)} FROM {quoted(shape.table.name)}{where} ORDER BY {key}"
        cursor = driver_of(connection).execute(query, parameters)
        try:
            yield from cursor
        finally:
            cursor.close()

    def load(self, connection: Connection, shape: TableShape, rows: Iterable[Row]) -> None:
        """Insert them one by one."""
        driver_of(connection).executemany(_insertion(shape), rows)

    def add(
        self, connection: Connection, shape: TableShape, rows: Iterable[Row], *, missing: bool
    ) -> None:
        """Insert them one by one, too; references are checked, and triggers run."""
        skipping = " WHERE true ON CONFLICT DO NOTHING" if missing else ""
        driver_of(connection).executemany(_insertion(shape) + skipping, rows)

    def reserve(
        self, connection: Connection, tables: Tables, counts: Mapping[str, int]
    ) -> dict[str, int]:
        """Count on from the counter, or from the largest: there is one writer."""
        counter, found = counter_of(tables.names), dict[str, int]()
        for name, count in counts.items():
            if name in ("messages", "activity"):
                took = update(counter).values(taken=last_taken(tables) + count)
                taken = connection.execute(took.returning(counter.c.taken)).scalar_one()
                found[name] = taken - count
                continue
            threads = tables.checkpoint_threads.c
            number = threads.activity if name == "puts" else tables[name].c.pk
            largest = select(func.coalesce(func.max(number), 0))
            found[name] = connection.execute(largest).scalar_one()
        return found

    def strip(self, connection: Connection, tables: Tables) -> Stripped:
        """Drop indexes and triggers; keys cannot be dropped here."""
        last = self.loosen(connection, tables)
        return Stripped(_dropped(connection, tables, "index"), last)

    def loosen(self, connection: Connection, tables: Tables) -> dict[str, str]:
        """Drop triggers; references are not checked on such a connection."""
        for statement in search.drops(tables.names.prefix):
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

    def name_row(self, connection: Connection, tables: Tables, error: InvalidRow) -> InvalidRow:
        """Say of the first row found, in the table or in any, that its column is not sound.

        What a query calls by another name than its column's, which may be that of another column,
        is looked for in all columns of text.
        """
        # Not driver_connection, which one that is detached from its pool does not have.
        driver: Any = connection.connection.dbapi_connection
        if not isinstance(driver, sqlite3.Connection):
            return error
        columns = [(shape, *column) for shape in shapes(tables) for column in shape.columns]
        so_called = [each for each in columns if each[1] == error.column]
        own = [each for each in so_called if error.table in ("", each[0].name)]
        if not error.table:
            own += [each for each in columns if each[2] in (Kind.TEXT, Kind.JSON)]
        with _for_a_moment(driver), suppress(sqlite3.Error):
            for shape, column, kind in own:
                if (row := driver.execute(_query(shape, column, kind)).fetchone()) is not None:
                    key = _row_key(shape, row, column)
                    return InvalidRow(shape.name, column, error.problem, key)
            # It is of another table, or no row is like that by now.
            return InvalidRow("", "", error.problem)
        return error if error.table else InvalidRow("", "", error.problem)


MOVING = SQLiteMoving()

_NOT_IN = "NOT IN (SELECT value FROM json_each(?))"


def _dropped(connection: Connection, tables: Tables, kind: str) -> dict[str, str]:
    """Drop all indexes or triggers of the tables; give what creates them again, by names.

    In the order in which they were made: of equals, SQLite takes the index that was made last.
    """
    query = (
        "SELECT name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL"
        " AND tbl_name IN (SELECT value FROM json_each(?)) ORDER BY rowid"
    )
    ours = json.dumps([table.name for table in tables.metadata.sorted_tables])
    found = dict(driver_of(connection).execute(query, (kind, ours)).fetchall())
    for name in found:
        connection.exec_driver_sql(f"DROP {kind} {quoted(name)}")
    return found


def _columns(shape: TableShape) -> str:
    return ", ".join(quoted(name) for name, _ in shape.columns)


def _insertion(shape: TableShape) -> str:
    # Each is bound once, under a name: what is stored may be made of it in several places.
    given = ", ".join(f"? AS c{n}" for n in range(len(shape.columns)))
    stored = ", ".join(as_stored(kind, f"c{n}") for n, (_, kind) in enumerate(shape.columns))
    table = quoted(shape.table.name)
    return f"INSERT INTO {table} ({_columns(shape)}) SELECT {stored} FROM (SELECT {given})"


def _travelling(shape: TableShape) -> str:
    values = {name: f"({quoted(name)} + {number})" for name, number in shape.added.items()}
    return ", ".join(travels(kind, values.get(name, quoted(name))) for name, kind in shape.columns)


def _list(numbers: Collection[int]) -> str:
    return json.dumps(list(numbers))


def _wanted(shape: TableShape, among: Among) -> tuple[str, list[str]]:
    """Write what else holds of the rowid of a row that is looked at, with its parameters."""
    if among is None:
        return "", []
    found = f"SELECT wanted.rowid {with_keys(shape, 'wanted')}"
    return f" AND rowid IN ({found})", [listed(among)]


def _rows(
    driver: Any, shape: TableShape, missing: Collection[int], longest: int | None, among: Among
) -> Iterable[Row]:
    """Give rows: number, whether SQLite finds it valid, the columns, and its length or so."""
    length = " + ".join(
        f"coalesce(length({quoted(name)}), 0)"
        for name, kind in shape.columns
        if kind in (Kind.TEXT, Kind.JSON, Kind.BYTES)
    )
    wanted, keys = _wanted(shape, among)
    if shape.only is not None:
        wanted += f" AND ({', '.join(map(quoted, shape.key))}) IN ({shape.only})"
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
    """Say which column SQLite does not find valid."""
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


# A log of the rows that change in a SQLite file, by any program: triggers keep it.
#
# A row whose parent goes or gets another key without it has changed too, for it refers to nothing
# now: a connection that does not enforce references does that. So such children are logged with
# their parent. Where references are enforced there are none left at that moment.


_CHUNK = 500


class ChangeLog:
    """The log of the rows that change, kept by the database that they change in."""

    def is_kept(self, connection: Connection, names: Names) -> bool:
        """Say whether there is one."""
        query = "SELECT 1 FROM sqlite_master WHERE name = ?"
        return driver_of(connection).execute(query, (change_log_of(names),)).fetchone() is not None

    def identity(
        self, connection: Connection, names: Names, shapes: Sequence[TableShape]
    ) -> str | None:
        """Tell the log from every other one, also of the same source.

        None if there is none, or one that misses changes: a table that was made again, by a
        migration or another program, has lost its triggers.
        """
        if not self.is_kept(connection, names):
            return None
        query = "SELECT sql FROM sqlite_master WHERE type = 'trigger'"
        there = {sql for (sql,) in driver_of(connection).execute(query)}
        if not there.issuperset(_triggers(names, shapes)):
            return None
        query = f"SELECT key FROM {quoted(change_log_of(names))} WHERE number = 0"
        found = driver_of(connection).execute(query).fetchone()
        return None if found is None else str(found[0])

    def begin(self, connection: Connection, names: Names, shapes: Sequence[TableShape]) -> str:
        """Start a log, or start it over; its numbers may start over too.

        Returns:
            The log's identity.
        """
        identity = secrets.token_hex(8)
        self.end(connection, names)
        log = quoted(change_log_of(names))
        driver_of(connection).execute(
            f"CREATE TABLE {log} (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, key TEXT)"
        )
        driver_of(connection).execute(f"INSERT INTO {log} VALUES (0, NULL, ?)", (identity,))
        for trigger in _triggers(names, shapes):
            driver_of(connection).execute(trigger)
        return identity

    def end(self, connection: Connection, names: Names) -> None:
        """Drop the log, if there is one, and the triggers that keep it."""
        drop_log(driver_of(connection), names)

    def newest(self, connection: Connection, names: Names) -> int:
        """Give the number of the last change; 0 if there is none."""
        query = f"SELECT coalesce(max(number), 0) FROM {quoted(change_log_of(names))}"
        number: int = driver_of(connection).execute(query).fetchone()[0]
        return number

    def gather(self, connection: Connection, names: Names, after: int, upto: int) -> None:
        """Note which rows changed after one number, up to another, for ``keys``.

        In a table that this connection alone has, and whose pages SQLite writes to a temporary
        file when they are many: so a round of any size takes little memory, and the log is read
        once for all tables.
        """
        driver = driver_of(connection)
        driver.execute(
            "CREATE TEMP TABLE IF NOT EXISTS agentstore_round"
            " (name TEXT, key TEXT, PRIMARY KEY (name, key)) WITHOUT ROWID"
        )
        driver.execute("DELETE FROM temp.agentstore_round")
        driver.execute(
            "INSERT INTO temp.agentstore_round"
            f" SELECT name, key FROM {quoted(change_log_of(names))}"
            " WHERE number > ? AND number <= ? GROUP BY name, key ORDER BY name, key",
            (after, upto),
        )

    def keys(self, connection: Connection, shape: TableShape) -> Iterator[list[Key]]:
        """Give the keys of a table's rows that were gathered, some at a time.

        Each time in the same order, and with no statement left running in between.
        """
        query = (
            "SELECT key FROM temp.agentstore_round WHERE name = ? AND key > ? ORDER BY key LIMIT ?"
        )
        last = ""
        while found := driver_of(connection).execute(query, (shape.name, last, _CHUNK)).fetchall():
            yield [tuple(json.loads(key)) for (key,) in found]
            last = found[-1][0]

    def rows(self, connection: Connection, shape: TableShape, keys: Sequence[Key]) -> list[Row]:
        """Give those rows with these keys that are there, and valid."""
        table = quoted(shape.table.name)
        columns = ", ".join(travels(kind, f"row.{quoted(name)}") for name, kind in shape.columns)
        query = (
            f"SELECT {columns} {with_keys(shape, 'row')}"
            f" WHERE EXISTS (SELECT 1 FROM {table} WHERE rowid = row.rowid AND {valid(shape)})"
        )
        return sound_rows(connection, shape, query, (listed(keys),))


def change_log_of(names: Names) -> str:
    """Name the table of the log; the names of its triggers begin so."""
    return f"{names.prefix}agentstore_changes"


def drop_log(driver: Any, names: Names) -> None:
    """Drop the log by the names of its objects, whatever its triggers do."""
    query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    for (name,) in driver.execute(query).fetchall():
        if name.startswith(f"{change_log_of(names)}_"):
            driver.execute(f"DROP TRIGGER {quoted(name)}")
    driver.execute(f"DROP TABLE IF EXISTS {quoted(change_log_of(names))}")


def _triggers(names: Names, shapes: Sequence[TableShape]) -> list[str]:
    """Write all that the log needs, as the file will hold it."""
    made = []
    for shape in shapes:
        new, old = _key(shape, "new"), _key(shape, "old")
        note = f"INSERT INTO {quoted(change_log_of(names))} (name, key)"
        left = "".join(f"{note} {each};" for each in _children(shape, shapes, "TRUE"))
        moved = "".join(
            f"{note} {each};" for each in _children(shape, shapes, "old.{0} <> new.{0}")
        )
        bodies = {
            "INSERT": f"{note} VALUES ('{shape.name}', {new});",
            "DELETE": f"{note} VALUES ('{shape.name}', {old});{left}",
            "UPDATE": (
                f"{note} VALUES ('{shape.name}', {new});"
                f"{note} SELECT '{shape.name}', {old} WHERE {old} <> {new};{moved}"
            ),
        }
        made += [
            f"CREATE TRIGGER {_trigger(names, shape, event)} AFTER {event}"
            f" ON {quoted(shape.table.name)} BEGIN {body} END"
            for event, body in bodies.items()
        ]
    return made


def _children(shape: TableShape, shapes: Sequence[TableShape], changed: str) -> Iterator[str]:
    """Select the keys of rows that refer to what a row of the table was."""
    for child in shapes:
        for reference in child.table.foreign_key_constraints:
            if reference.referred_table is not shape.table:
                continue
            pairs = [(each.parent.name, each.column.name) for each in reference.elements]
            same = " AND ".join(f"child.{quoted(own)} = old.{quoted(its)}" for own, its in pairs)
            differs = " OR ".join(changed.format(quoted(its)) for _, its in pairs)
            yield (
                f"SELECT '{child.name}', {_key(child, 'child')}"
                f" FROM {quoted(child.table.name)} AS child WHERE ({differs}) AND {same}"
            )


def _trigger(names: Names, shape: TableShape, event: str) -> str:
    return quoted(f"{change_log_of(names)}_{shape.name}_{event.lower()}")


def _key(shape: TableShape, row: str) -> str:
    kinds = dict(shape.columns)
    parts = (travels(kinds[name], f"{row}.{quoted(name)}") for name in shape.key)
    return f"json_array({', '.join(parts)})"


# What SQLite stores in another form than it travels in, as SQL: ids, and instants.
#
# Ids that agentstore made are 16 bytes, instants are microseconds since 1970. Both travel as text;
# see ``agentstore.engines.base.moving``. Back to bytes leads only a function of Python's, which
# ``know_ids`` gives to a connection.


MICROS = 10**6
YEAR_1 = 62_135_596_800 * MICROS
"""Microseconds from the year 1 to 1970. With these added no instant is negative, so SQLite's
division, which cuts off towards zero, cuts off towards the past."""

YEAR_10000 = 253_402_300_800 * MICROS

_HEX = "hex({0})"
_TRAVELS = {
    Kind.ID: (
        "CASE WHEN {0} IS NOT NULL THEN lower("
        f"substr({_HEX}, 1, 8) || '-' || substr({_HEX}, 9, 4) || '-' || substr({_HEX}, 13, 4)"
        f" || '-' || substr({_HEX}, 17, 4) || '-' || substr({_HEX}, 21)) END"
    ),
    Kind.INSTANT: (
        f"strftime('%Y-%m-%dT%H:%M:%S', ({{0}} + {YEAR_1}) / {MICROS} - {YEAR_1 // MICROS},"
        f" 'unixepoch') || printf('.%06d+00:00', ({{0}} + {YEAR_1}) % {MICROS})"
    ),
}
_STORED = {
    Kind.ID: "agentstore_id({0})",
    Kind.INSTANT: (
        f"CAST(strftime('%s', substr({{0}}, 1, 19)) AS INTEGER) * {MICROS}"
        " + CAST(substr({0}, 21, 6) AS INTEGER)"
    ),
}


def travels(kind: Kind, column: str) -> str:
    """Write a stored column, as SQL names it, in the form in which it travels."""
    return _TRAVELS.get(kind, "{0}").format(column)


def as_stored(kind: Kind, value: str) -> str:
    """Write a value that travels, as SQL names it, as it is stored."""
    return _STORED.get(kind, "{0}").format(value)


def know_ids(driver: Any) -> None:
    """Give a new connection the function that makes bytes of an id, and so of one that is damaged.

    Once: SQLite refuses to make a function again while a statement runs that may call it.
    """
    driver.create_function("agentstore_id", 1, _bytes, deterministic=True)


def _bytes(text: Any) -> bytes | None:
    return None if text is None else bytes.fromhex(text.replace("-", ""))


# Which rows of a SQLite file are valid: what a condition, and Python, say of their columns.


_SOUND = {
    Kind.TEXT: "typeof({0}) = 'text' AND instr({0}, char(0)) = 0",
    Kind.JSON: "typeof({0}) = 'text' AND json_valid({0}) AND instr({0}, char(0)) = 0",
    Kind.ID: f"typeof({{0}}) = 'blob' AND length({{0}}) = {ID_BYTES}",
    Kind.INSTANT: (f"typeof({{0}}) = 'integer' AND {{0}} >= -{YEAR_1} AND {{0}} < {YEAR_10000}"),
    Kind.WHOLE: "typeof({0}) = 'integer'",
    Kind.REAL: "typeof({0}) IN ('real', 'integer') AND abs({0}) < 9e999",
    Kind.FLAG: "typeof({0}) = 'integer' AND {0} IN (0, 1)",
    Kind.BYTES: "typeof({0}) = 'blob'",
}
"""What holds of a column that is not NULL."""
_JSON_TYPES = {dict: "object", list: "array"}


def driver_of(connection: Connection) -> Any:
    """Give the driver's own connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


@contextmanager
def bytes_for_text(connection: Connection) -> Iterator[Any]:
    """Read text as bytes, for it may be no text."""
    driver = driver_of(connection)
    before = driver.text_factory
    driver.text_factory = bytes
    try:
        yield driver
    finally:
        driver.text_factory = before


def quoted(name: str) -> str:
    """Quote a name."""
    return '"' + name.replace('"', '""') + '"'


def with_keys(shape: TableShape, row: str) -> str:
    """Write what selects, under a name, the rows of a table whose keys a parameter lists."""
    kinds = dict(shape.columns)
    parts = (
        (name, as_stored(kinds[name], f"json_extract(listed.value, '$[{place}]')"))
        for place, name in enumerate(shape.key)
    )
    same = " AND ".join(f"{row}.{quoted(name)} = {part}" for name, part in parts)
    return f"FROM json_each(?) AS listed JOIN {quoted(shape.table.name)} AS {row} ON {same}"


def listed(keys: Sequence[Key]) -> str:
    """List keys as they are stored: one may hold what ``encoding`` writes in place of a NUL."""
    return json.dumps(keys, ensure_ascii=False)


def holds(shape: TableShape, name: str, kind: Kind) -> str:
    """Write the condition that holds of a column that is not NULL."""
    condition = _SOUND[kind].format(quoted(name))
    document = getattr(shape.column(name).type, "document", None)
    if document in _JSON_TYPES:
        # CASE, since nothing keeps AND from asking for the type of what is no JSON.
        kind_of = f"json_type({quoted(name)}) = '{_JSON_TYPES[document]}'"
        condition = f"CASE WHEN {condition} THEN {kind_of} ELSE 0 END"
    return condition


def sound_value(shape: TableShape, name: str, kind: Kind) -> str:
    """Write the condition that holds of a column, NULL or not."""
    if shape.column(name).nullable:
        return f"({quoted(name)} IS NULL OR {holds(shape, name, kind)})"
    return f"({quoted(name)} IS NOT NULL AND {holds(shape, name, kind)})"


def valid(shape: TableShape) -> str:
    """Write the condition that holds of a valid row."""
    checks = [sound_value(shape, name, kind) for name, kind in shape.columns]
    return " AND ".join([*checks, *(f"({rule}) IS NOT 0" for rule in rules(shape).values())])


def fits(shape: TableShape, longest: int | None) -> str:
    """Write what else holds of one that fits into indexes of this limit."""
    if longest is None:
        return valid(shape)
    return " AND ".join([valid(shape), *(f"{entry(e)} <= {longest}" for e in shape.indexed)])


def entry(columns: Sequence[str]) -> str:
    """Write how many bytes of text an entry of an index has."""
    lengths = [f"coalesce(length(CAST({quoted(name)} AS BLOB)), 0)" for name in columns]
    return f"({' + '.join(lengths)})"


def rules(shape: TableShape) -> dict[str, str]:
    """Give the table's CHECKs, which a connection can turn off, by their names."""
    return {
        str(constraint.name): str(constraint.sqltext)
        for constraint in shape.table.constraints
        if isinstance(constraint, CheckConstraint)
    }


def sound_rows(connection: Connection, shape: TableShape, query: str, parameters: Any) -> list[Row]:
    """Select whole rows that SQLite finds valid; leave those out whose text is no UTF-8."""
    kinds = [kind for _, kind in shape.columns]
    found = []
    with bytes_for_text(connection) as driver:
        for row in driver.execute(query, parameters):
            with suppress(UnicodeDecodeError):
                decoded = (
                    value.decode() if isinstance(value, bytes) and kind is not Kind.BYTES else value
                    for kind, value in zip(kinds, row, strict=True)
                )
                found.append(tuple(decoded))
    return found


# The counter of SQLite: activity, and the row numbers of messages, count together.
#
# A saved message takes the next number, which becomes its row number and its session's activity;
# a new session takes one for its activity alone. The last number is the larger of two: the newest
# message's, which is at the end of its table, and ``taken`` in the one row of the table
# ``activity``. A save writes nothing but its message. Numbers never come again: what follows new
# messages, and the search index, know them by their numbers. So a trigger raises ``taken`` when
# the newest is deleted.
#
# The revision that brings the table and the trigger has this SQL, which never changes.


_OBJECTS = {
    "{p}activity": """
CREATE TABLE {p}activity (
    number INTEGER NOT NULL CONSTRAINT pk_{p}activity PRIMARY KEY
        CONSTRAINT ck_{p}activity_number CHECK (number = 1),
    taken BIGINT NOT NULL
)""",
    "{p}activity_kept": """
CREATE TRIGGER {p}activity_kept AFTER DELETE ON {p}messages
WHEN old.pk > (SELECT coalesce(max(pk), 0) FROM {p}messages)
BEGIN
    UPDATE {p}activity SET taken = max(taken, old.pk);
END""",
}


def objects(prefix: str = "") -> dict[str, str]:
    """Give the statements that create the objects, in order, by the objects' names."""
    return all_named(_OBJECTS, None, prefix)


def counter_of(names: Names) -> TableClause:
    """Describe the table of one row."""
    return table(f"{names.prefix}activity", column("taken", StrictInteger()))


def last_taken(tables: Tables) -> ColumnElement[int]:
    """Give the last number as an expression."""
    counter, messages = counter_of(tables.names), tables.messages
    newest = select(func.max(messages.c.pk)).scalar_subquery()
    taken = select(counter.c.taken).scalar_subquery()
    return func.max(taken, func.coalesce(newest, literal_column("0")))


def take_activity(connection: Connection, tables: Tables) -> int:
    """Take a number that is no message's."""
    ((taken,),) = _taking(tables, dialect_of(connection)).rows(connection, {})
    return int(taken)


@lru_cache(maxsize=256)
def _taking(tables: Tables, driver: Dialect) -> Prepared:
    counter = counter_of(tables.names)
    took = update(counter).values(taken=last_taken(tables) + 1).returning(counter.c.taken)
    return Prepared(took, driver)


# Which row of a file it is that cannot be read: looked for only when one could not.
#
# For a short time, so that an error comes soon: ``agentstore doctor --deep`` takes its time.


_SECONDS = 0.5
_STEPS = 10_000
"""Of SQLite's machine, between two looks at the clock: less than a millisecond."""


def _query(shape: TableShape, column: str, kind: Kind) -> str:
    place = quoted(column)
    wrong = f"NOT {sound_value(shape, column, kind)}"
    if kind in (Kind.TEXT, Kind.JSON):
        wrong += f" OR {place} IS NOT NULL AND no_utf8(CAST({place} AS BLOB))"
    if (words := words_of(shape, column)) is not None:
        wrong += f" OR {place} NOT IN {words}"
    kinds = dict(shape.columns)
    key = ", ".join(travels(kinds[name], quoted(name)) for name in shape.shown_key)
    table = quoted(shape.table.name)
    return f"SELECT {key} FROM {table} WHERE {wrong}"


def _row_key(shape: TableShape, row: tuple[Any, ...], invalid: str) -> str:
    pairs = zip(shape.shown_key, row, strict=True)
    return ", ".join(
        f"{name}={named(value.decode(errors='replace') if isinstance(value, bytes) else value)}"
        for name, value in pairs
        if name != invalid
    )


@contextmanager
def _for_a_moment(driver: sqlite3.Connection) -> Iterator[None]:
    """Read text as bytes, look at how these decode, and give up when the time is over."""
    before, driver.text_factory = driver.text_factory, bytes
    deadline = time.monotonic() + _SECONDS
    driver.create_function("no_utf8", 1, _no_utf8, deterministic=True)
    driver.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)
        driver.create_function("no_utf8", 1, None)
        driver.text_factory = before


def _no_utf8(stored: bytes) -> bool:
    try:
        stored.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False
