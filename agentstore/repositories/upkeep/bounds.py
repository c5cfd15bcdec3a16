"""Rows from before arguments were bounded as they are now, for the doctor; reads whole tables.

They are no harm where they are. But not every engine takes such a text in an index, so it may stand
in the way of a move.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Table, func, or_, select, type_coerce

from agentstore.engines.base.checks import Checks
from agentstore.models.tables import LONGEST_ENTRY, Tables, indexed_texts
from agentstore.records.findings import Finding, Severity, listed
from agentstore.values import validation
from agentstore.values.types import SafeText

_MOST = 1_000
"""Rows that are counted at most."""

_LONGEST_SHOWN = 64


def texts(connection: Connection, tables: Tables, checks: Checks) -> Iterator[Finding]:
    """Look for texts that are too long for an index of some engine."""
    for table in tables.metadata.sorted_tables:
        for names in indexed_texts(table):
            yield from _too_long(connection, table, names, checks)


def amounts(connection: Connection, tables: Tables) -> Iterator[Finding]:
    """Look for amounts that no call may say any more."""
    said, used, logs = tables.messages.c, tables.turn_usage.c, tables.tool_logs.c
    counted = [used.requests, used.input_tokens, used.output_tokens, used.total_tokens]
    bounds = (
        (tables.messages, [said.token_count], said.cost),
        (tables.turn_usage, counted, used.cost),
    )
    for table, tokens, cost in bounds:
        dear = type_coerce(cost, BigInteger) > validation.MAX_COST_NANOS
        yield from _beyond(
            connection, table, or_(dear, *(each > validation.MAX_TOKENS for each in tokens))
        )
    long = logs.elapsed_ms > validation.MAX_MILLISECONDS
    yield from _beyond(connection, tables.tool_logs, long)


def _too_long(
    connection: Connection, table: Table, names: tuple[str, ...], checks: Checks
) -> Iterator[Finding]:
    lengths = [func.coalesce(checks.octets(table.c[name]), 0) for name in names]
    size: ColumnElement[Any] = lengths[0]
    for length in lengths[1:]:
        size = size + length
    key = list(table.primary_key.columns)
    shown = [
        func.substr(column, 1, _LONGEST_SHOWN + 1) if isinstance(column.type, SafeText) else column
        for column in key
    ]
    query = select(*shown, *lengths).where(size > LONGEST_ENTRY).limit(_MOST)
    rows = [
        ", ".join(
            [
                *(f"{column.name}={_short(row[at])}" for at, column in enumerate(key)),
                *(
                    f"{name} has {bytes_:,} bytes"
                    for name, bytes_ in zip(names, row[len(key) :], strict=True)
                ),
            ]
        )
        for row in connection.execute(query)
    ]
    if rows:
        yield Finding(
            Severity.WARNING,
            "texts",
            f"{_many(len(rows))} rows hold text in an index that not every engine takes: more than "
            f"{LONGEST_ENTRY:,} bytes.",
            f"{table.name}: {listed(rows)}",
            "Shorten it, or set these rows aside with agentstore copy --quarantine FILE",
        )


def _beyond(
    connection: Connection, table: Table, condition: ColumnElement[bool]
) -> Iterator[Finding]:
    found = connection.execute(select(table.c.id).where(condition).limit(_MOST)).scalars().all()
    if found:
        yield Finding(
            Severity.INFO,
            "amounts",
            f"{_many(len(found))} rows hold amounts that no call may say any more. Sums are right.",
            f"{table.name}, ids {listed(found)}",
        )


def _many(found: int) -> str:
    return f"{found:,}" if found < _MOST else f"{_MOST:,} or more"


def _short(value: Any) -> Any:
    """Leave out what may be anybody's words."""
    return "(long)" if isinstance(value, str) and len(value) > _LONGEST_SHOWN else value
