"""Which values of a server's columns are not sound, though their types may hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import LiteralString

from psycopg import sql

from agentstore.engines.base.moving import Kind, TableShape
from agentstore.values.types import Json, Word

_UNSOUND: dict[Kind, LiteralString] = {
    Kind.INSTANT: "({0} < '0001-01-01 00:00+00' OR {0} >= '10000-01-01 00:00+00')",
    Kind.REAL: "{0} IN ('NaN', 'Infinity', '-Infinity')",
}
_MORE = {
    Kind.INSTANT: "an instant outside of the years 1 to 9999",
    Kind.REAL: "a number that is not finite",
}
_JSON_TYPES = {dict: "object", list: "array"}


def unsound(shape: TableShape) -> list[tuple[str, sql.Composable, str]]:
    """Give columns, each with what holds of a value that is not sound, and with what it then is.

    A condition may be NULL where the column is.
    """
    found: list[tuple[str, sql.Composable, str]] = []
    for name, kind in shape.columns:
        column, place = shape.table.c[name], sql.Identifier(name)
        if kind in _UNSOUND:
            found.append((name, sql.SQL(_UNSOUND[kind]).format(place), _MORE[kind]))
        if isinstance(column.type, Json) and column.type.document in _JSON_TYPES:
            wanted = sql.Literal(_JSON_TYPES[column.type.document])
            other = sql.SQL("json_typeof({}) <> {}").format(place, wanted)
            found.append((name, other, f"JSON that is not {column.type.holds}"))
        if isinstance(column.type, Word):
            words = sql.SQL(", ").join(map(sql.Literal, sorted(column.type.words)))
            other = sql.SQL("{} NOT IN ({})").format(place, words)
            found.append((name, other, f"text that is not {column.type.holds}"))
        if not column.nullable and name not in shape.key:
            found.append((name, sql.SQL("{} IS NULL").format(place), "NULL"))
    return found


def either(conditions: Iterable[sql.Composable]) -> sql.Composed:
    """Write the condition that one of several holds."""
    return sql.SQL("({})").format(sql.SQL(" OR ").join([sql.SQL("false"), *conditions]))
