"""A log of the rows that change in a SQLite file, by any program: triggers keep it.

A row whose parent goes or gets another key without it has changed too, for it refers to nothing
now: a connection that does not enforce references does that. So such children are logged with
their parent. Where references are enforced there are none left at that moment.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from agentstore.engines.base.moving import Key, Row, TableShape
from agentstore.engines.sqlite.sound import (
    driver_of,
    listed,
    quoted,
    sound,
    sound_rows,
    with_keys,
)
from agentstore.engines.sqlite.stored import travels
from agentstore.models.tables import Names

_CHUNK = 500


class ChangeLog:
    """The log of the rows that change, kept by the database that they change in."""

    def is_kept(self, connection: Connection, names: Names) -> bool:
        """Say whether there is one."""
        query = "SELECT 1 FROM sqlite_master WHERE name = ?"
        return driver_of(connection).execute(query, (_log(names),)).fetchone() is not None

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
        query = f"SELECT key FROM {quoted(_log(names))} WHERE number = 0"
        found = driver_of(connection).execute(query).fetchone()
        return None if found is None else str(found[0])

    def begin(self, connection: Connection, names: Names, shapes: Sequence[TableShape]) -> str:
        """Start a log, or start it over; its numbers may start over too.

        Returns:
            The log's identity.
        """
        identity = secrets.token_hex(8)
        self.end(connection, names, shapes)
        log = quoted(_log(names))
        driver_of(connection).execute(
            f"CREATE TABLE {log} (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, key TEXT)"
        )
        driver_of(connection).execute(f"INSERT INTO {log} VALUES (0, NULL, ?)", (identity,))
        for trigger in _triggers(names, shapes):
            driver_of(connection).execute(trigger)
        return identity

    def end(self, connection: Connection, names: Names, shapes: Sequence[TableShape]) -> None:
        """Drop the log, if there is one, and the triggers that keep it."""
        for shape in shapes:
            for event in ("INSERT", "DELETE", "UPDATE"):
                trigger = _trigger(names, shape, event)
                driver_of(connection).execute(f"DROP TRIGGER IF EXISTS {trigger}")
        driver_of(connection).execute(f"DROP TABLE IF EXISTS {quoted(_log(names))}")

    def newest(self, connection: Connection, names: Names) -> int:
        """Give the number of the last change; 0 if there is none."""
        query = f"SELECT coalesce(max(number), 0) FROM {quoted(_log(names))}"
        number: int = driver_of(connection).execute(query).fetchone()[0]
        return number

    def keys(
        self, connection: Connection, names: Names, shape: TableShape, after: int, upto: int
    ) -> Iterator[list[Key]]:
        """Give the keys of a table's rows that changed after one number, up to another."""
        query = (
            f"SELECT DISTINCT key FROM {quoted(_log(names))}"
            " WHERE number > ? AND number <= ? AND name = ?"
        )
        cursor = driver_of(connection).execute(query, (after, upto, shape.name))
        while found := cursor.fetchmany(_CHUNK):
            yield [tuple(json.loads(key)) for (key,) in found]

    def rows(self, connection: Connection, shape: TableShape, keys: Sequence[Key]) -> list[Row]:
        """Give those rows with these keys that are there, and sound."""
        table = quoted(shape.table.name)
        columns = ", ".join(travels(kind, f"row.{quoted(name)}") for name, kind in shape.columns)
        query = (
            f"SELECT {columns} {with_keys(shape, 'row')}"
            f" WHERE EXISTS (SELECT 1 FROM {table} WHERE rowid = row.rowid AND {sound(shape)})"
        )
        return sound_rows(connection, shape, query, (listed(keys),))


def _log(names: Names) -> str:
    return f"{names.prefix}agentstore_changes"


def _triggers(names: Names, shapes: Sequence[TableShape]) -> list[str]:
    """Write all that the log needs, as the file will hold it."""
    made = []
    for shape in shapes:
        new, old = _key(shape, "new"), _key(shape, "old")
        note = f"INSERT INTO {quoted(_log(names))} (name, key)"
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
    return quoted(f"{_log(names)}_{shape.name}_{event.lower()}")


def _key(shape: TableShape, row: str) -> str:
    kinds = dict(shape.columns)
    parts = (travels(kinds[name], f"{row}.{quoted(name)}") for name in shape.key)
    return f"json_array({', '.join(parts)})"
