"""Which row of a file it is that cannot be read: looked for only when one could not.

For a short time, so that an error comes soon: ``agentstore doctor --deep`` takes its time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection

from agentstore.engines.base.moving import Kind, TableShape, shapes, words_of
from agentstore.engines.sqlite.sound import quoted, sound_value
from agentstore.engines.sqlite.stored import travels
from agentstore.errors import UnsoundRow, named
from agentstore.models.tables import Tables

_SECONDS = 0.5
_STEPS = 10_000
"""Of SQLite's machine, between two looks at the clock: less than a millisecond."""


def name_row(connection: Connection, tables: Tables, error: UnsoundRow) -> UnsoundRow:
    """Say of the first row found, in the table or in any, that its column is not sound.

    What a query calls by another name than its column's, which may be that of another column, is
    looked for in all columns of text.
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
                return UnsoundRow(shape.name, column, error.problem, _key(shape, row, column))
    return error if error.table else UnsoundRow("", "", error.problem)


def _query(shape: TableShape, column: str, kind: Kind) -> str:
    place = quoted(column)
    wrong = f"NOT {sound_value(shape, column, kind)}"
    if kind in (Kind.TEXT, Kind.JSON):
        wrong += f" OR {place} IS NOT NULL AND no_utf8(CAST({place} AS BLOB))"
    if (words := words_of(shape, column)) is not None:
        wrong += f" OR {place} NOT IN {words}"
    kinds = dict(shape.columns)
    key = ", ".join(travels(kinds[name], quoted(name)) for name in _key_columns(shape))
    table = quoted(shape.table.name)
    return f"SELECT {key} FROM {table} WHERE {wrong}"


def _key_columns(shape: TableShape) -> tuple[str, ...]:
    beside = tuple(name for name in ("id",) if name in shape.table.c and name not in shape.key)
    return shape.key + beside


def _key(shape: TableShape, row: tuple[Any, ...], unsound: str) -> str:
    pairs = zip(_key_columns(shape), row, strict=True)
    return ", ".join(
        f"{name}={named(value.decode(errors='replace') if isinstance(value, bytes) else value)}"
        for name, value in pairs
        if name != unsound
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
