"""Whether bytes are still those that were stored, for the doctor; reads whole tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, Table, select, tuple_

from agentstore.errors import UnsoundRow, named
from agentstore.models.tables import Tables
from agentstore.records.findings import Finding, Severity, listed
from agentstore.repositories.checkpoints import pending
from agentstore.repositories.checkpoints.small_values import unpacked
from agentstore.repositories.checkpoints.value_parts import damaged_versions
from agentstore.repositories.checkpoints.values import OTHER_BYTES, decode

_MOST = 1_000
_READ = 20
"""Rows at a time: each may have megabytes."""

_RESTORE = "Restore them from a backup, or delete what they belong to"


def stored_bytes(connection: Connection, tables: Tables) -> Iterator[Finding]:
    """Compare the bytes of attachments and checkpoints with their digests, and decode them."""
    blobs, writes = tables.blobs, tables.checkpoint_writes
    yield from _compared(connection, blobs, [blobs.c.digest, blobs.c.data], _is_attached)
    wrong = damaged_versions(connection, tables, _READ)
    yield from _found(tables.checkpoint_values, [*islice(wrong, _MOST)])
    points = tables.checkpoints
    yield from _compared(
        connection, points, [points.c.pk, points.c.small_values], _is_packed, "small_values"
    )
    kinds = [writes.c.kind, writes.c.encoding]
    yield from _compared(connection, writes, [*kinds, writes.c.data], _is_written)


def _is_attached(digest: str, data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == digest


def _is_written(kind: str, encoding: str, data: bytes) -> bool:
    pending.decode(kind, encoding, data)
    return True


def _is_packed(pk: int, stored: bytes | None) -> bool:
    for each in unpacked(stored, pk).values():
        decode(each.kind, [each.body], 0)
    return True


def _compared(
    connection: Connection, table: Any, columns: Any, sound: Any, where: str = "data"
) -> Iterator[Finding]:
    key = list(table.primary_key.columns)
    query: Select[Any] = select(*key, *columns).order_by(*key).limit(_READ)
    after: Select[Any] = query
    wrong: list[str] = []
    while rows := connection.execute(after).all():
        for row in rows:
            try:
                held = sound(*row[len(key) :])
            except UnsoundRow:
                held = False
            if not held:
                pairs = zip(key, row, strict=False)
                wrong.append(", ".join(f"{column.name}={named(value)}" for column, value in pairs))
        if len(wrong) >= _MOST:
            break
        after = query.where(tuple_(*key) > tuple(rows[-1][: len(key)]))
    yield from _found(table, wrong, where)


def _found(table: Table, wrong: list[str], column: str = "data") -> Iterator[Finding]:
    if wrong:
        rows_hold = "1 row holds" if len(wrong) == 1 else f"{len(wrong):,} rows hold"
        what = f"{rows_hold} {OTHER_BYTES} ({column})."
        where = f"{table.name}: {listed(wrong)}"
        yield Finding(Severity.ERROR, "bytes", what, where, _RESTORE)
