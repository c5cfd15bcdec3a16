"""Which rows of a SQLite file are sound: what a condition, and Python, say of their columns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import CheckConstraint, Connection

from agentstore.engines.base.moving import Key, Kind, Row, TableShape
from agentstore.engines.sqlite.stored import YEAR_1, YEAR_10000, as_stored
from agentstore.values.own_ids import ID_BYTES

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


def sound(shape: TableShape) -> str:
    """Write the condition that holds of a row that is sound."""
    checks = [sound_value(shape, name, kind) for name, kind in shape.columns]
    return " AND ".join([*checks, *(f"({rule}) IS NOT 0" for rule in rules(shape).values())])


def fits(shape: TableShape, longest: int | None) -> str:
    """Write what else holds of one that fits into indexes of this limit."""
    if longest is None:
        return sound(shape)
    return " AND ".join([sound(shape), *(f"{entry(e)} <= {longest}" for e in shape.indexed)])


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
    """Select whole rows that SQLite finds sound; leave those out whose text is no UTF-8."""
    kinds = [kind for _, kind in shape.columns]
    found = []
    with bytes_for_text(connection) as driver:
        for row in driver.execute(query, parameters):
            with suppress(UnicodeDecodeError):
                pairs = zip(kinds, row, strict=True)
                found.append(tuple(_decoded(kind, value) for kind, value in pairs))
    return found


def _decoded(kind: Kind, value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) and kind is not Kind.BYTES else value
