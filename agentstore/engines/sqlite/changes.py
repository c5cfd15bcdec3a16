"""A log of the rows that change in a SQLite file, kept by triggers, so by whoever writes there."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from agentstore.engines.base.moving import Key, Row, TableShape
from agentstore.engines.sqlite.sound import driver_of, quoted, sound, sound_rows
from agentstore.engines.sqlite.stored import as_stored, know_ids, travels
from agentstore.models.tables import Names

_CHUNK = 500


class ChangeLog:
    """The log of the rows that change, kept by the database that they change in."""

    def is_kept(self, connection: Connection, names: Names) -> bool:
        """Say whether there is one."""
        query = "SELECT 1 FROM sqlite_master WHERE name = ?"
        return driver_of(connection).execute(query, (_log(names),)).fetchone() is not None

    def identity(self, connection: Connection, names: Names) -> str | None:
        """Tell the log from every other one, also of the same source; None if there is none."""
        if not self.is_kept(connection, names):
            return None
        query = f"SELECT key FROM {quoted(_log(names))} WHERE number = 0"
        found = driver_of(connection).execute(query).fetchone()
        return None if found is None else str(found[0])

    def begin(self, connection: Connection, names: Names, shapes: Sequence[TableShape]) -> str:
        """Begin to log, or begin anew; numbers may begin anew too.

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
        for shape in shapes:
            new, old = _key(shape, "new"), _key(shape, "old")
            note = f"INSERT INTO {log} (name, key)"
            bodies = {
                "INSERT": f"{note} VALUES ('{shape.name}', {new});",
                "DELETE": f"{note} VALUES ('{shape.name}', {old});",
                "UPDATE": (
                    f"{note} VALUES ('{shape.name}', {new});"
                    f"{note} SELECT '{shape.name}', {old} WHERE {old} <> {new};"
                ),
            }
            for event, body in bodies.items():
                driver_of(connection).execute(
                    f"CREATE TRIGGER {_trigger(names, shape, event)} AFTER {event}"
                    f" ON {quoted(shape.table.name)} BEGIN {body} END"
                )
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
        kinds = dict(shape.columns)
        know_ids(driver_of(connection))
        same = " AND ".join(
            f"row.{quoted(name)} = {as_stored(kinds[name], _part(place))}"
            for place, name in enumerate(shape.key)
        )
        table = quoted(shape.table.name)
        columns = ", ".join(travels(kind, f"row.{quoted(name)}") for name, kind in shape.columns)
        query = (
            f"SELECT {columns} FROM json_each(?) AS wanted"
            f" JOIN {table} AS row ON {same}"
            f" WHERE EXISTS (SELECT 1 FROM {table} WHERE rowid = row.rowid AND {sound(shape)})"
        )
        # As it is stored: a key may hold what ``encoding`` writes in the place of a NUL.
        wanted = json.dumps(keys, ensure_ascii=False)
        return sound_rows(connection, shape, query, (wanted,))


def _log(names: Names) -> str:
    return f"{names.prefix}agentstore_changes"


def _trigger(names: Names, shape: TableShape, event: str) -> str:
    return quoted(f"{_log(names)}_{shape.name}_{event.lower()}")


def _key(shape: TableShape, row: str) -> str:
    kinds = dict(shape.columns)
    parts = (travels(kinds[name], f"{row}.{quoted(name)}") for name in shape.key)
    return f"json_array({', '.join(parts)})"


def _part(place: int) -> str:
    return f"json_extract(wanted.value, '$[{place}]')"
