"""Pending writes: what a task wrote after a checkpoint, before the next one is put."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, bindparam, delete

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import InvalidInput, UnsoundRow, named, shown
from agentstore.execution.gathering import SeveralStatements
from agentstore.execution.unit import Unit, in_autocommit
from agentstore.models.tables import Tables
from agentstore.records.base import maker
from agentstore.records.checkpoints import WriteRecord
from agentstore.repositories.checkpoints.threads import (
    enter_thread,
    entering,
    make_thread,
    why_not,
)
from agentstore.values import validation
from agentstore.values.encoding import dump_json, load_json

COMPRESS_FROM = 256
"""Bytes from which compressing is tried; below, zlib's header eats what is gained."""

_WORTHWHILE = 0.9
"""What is compressed by less than a tenth is stored as it is, and read without the work."""


def rows_of(
    writes: Sequence[tuple[str, Any]], positions: Sequence[int] | None
) -> dict[int, dict[str, Any]]:
    """Check the writes of a task; give their columns by position.

    Raises:
        InvalidInput: They are no pairs, or the positions are not as many, or not different.
        InvalidJson: JSON cannot say a value.
    """
    if not isinstance(writes, list | tuple):
        raise InvalidInput("writes must be a list of pairs: a channel and a value.")
    if not isinstance(positions, list | tuple | range | None):
        raise InvalidInput(f"positions must be a list of whole numbers, not {shown(positions)}.")
    places = [
        validation.amount(f"positions[{number}]", position, least=-(2**31))
        for number, position in enumerate(range(len(writes)) if positions is None else positions)
    ]
    if len(places) != len(writes) or len(set(places)) != len(places):
        raise InvalidInput(
            "positions must be as many whole numbers as there are writes, no two same."
        )
    rows = {}
    for number, (place, write) in enumerate(zip(places, writes, strict=True)):
        if not isinstance(write, list | tuple) or len(write) != 2:
            raise InvalidInput(f"writes[{number}] must be a pair: a channel and a value.")
        channel, value = write
        kind, encoding, data = encode(value, f"writes[{number}]")
        rows[place] = {
            "position": place,
            "channel": validation.text(f"writes[{number}]", channel),
            "kind": kind,
            "encoding": encoding,
            "data": data,
        }
    return rows


def replacing(replace: bool | Sequence[bool], positions: Iterable[int]) -> list[int]:
    """Give the positions of the writes that take the place of others.

    Raises:
        InvalidInput: It is no flag, nor one for each write.
    """
    places = [*positions]
    if isinstance(replace, list | tuple):
        if len(replace) != len(places):
            raise InvalidInput("replace must be a bool, or one for each write.")
        for number, flag in enumerate(replace):
            validation.flag(f"replace[{number}]", flag)
        return [place for place, flag in zip(places, replace, strict=True) if flag]
    validation.flag("replace", replace)
    return places if replace else []


def store_pending(
    unit: Unit,
    task: Mapping[str, str],
    rows: dict[int, dict[str, Any]],
    owners: Mapping[str, str | None],
    *,
    replaced: Sequence[int],
    makes_thread: bool,
) -> int:
    """Store the writes of a task; give how many.

    Where another write is at a position, it stays, unless the position is in ``replaced``.

    Args:
        unit: One that can write; in a transaction if the thread has to be given owners.
        task: The columns that name the task's: thread, namespace, checkpoint, task.
        rows: What ``rows_of`` gave, and what else is in their rows.
        owners: As ``enter_thread`` takes them.
        replaced: Positions at which what is there gives way.
        makes_thread: Whether the thread is made if it is not there.

    Raises:
        SeveralStatements: In autocommit: there is no such thread yet.
        NotFound: There is no such thread, and it is not to be made.
    """
    driver = dialect_of(unit.connection)
    storing = _storing(unit.tables, unit.dialect, driver, bool(replaced))
    if storing is None or any(owners.values()):
        enter_thread(unit, task["thread_id"], owners, lines=0, makes=makes_thread)
        return _store(unit, task, rows, replaced)
    fresh = [{**task, **row} for row in rows.values()]
    columns = unit.tables.checkpoint_writes.columns
    parameters: dict[str, Any] = {c.name: [row[c.name] for row in fresh] for c in columns}
    parameters |= {"wanted": task["thread_id"], "lines": 0}
    if replaced:
        parameters["replaced"] = [*replaced]
    [[entered, stored]] = storing.fetch(unit.connection, parameters)
    if not entered:
        if in_autocommit(unit):  # a thread without these writes would stay, if the second failed
            raise SeveralStatements
        make_thread(unit, task["thread_id"], owners, makes=makes_thread)
        [[entered, stored]] = storing.fetch(unit.connection, parameters)
        if not entered:
            raise why_not(unit, task["thread_id"])
    return int(stored)


@lru_cache(maxsize=256)
def _storing(
    tables: Tables, dialect: EngineDialect, driver: Dialect, replace: bool
) -> Prepared | None:
    statement = dialect.storing_writes(entering(tables, dialect), tables, replace=replace)
    return None if statement is None else Prepared(statement, driver)


def _store(
    unit: Unit, task: Mapping[str, str], rows: dict[int, dict[str, Any]], replaced: Sequence[int]
) -> int:
    fresh = [{**task, **row} for row in rows.values()]
    if not fresh:
        return 0
    drop, store = _in_turn(unit.tables, unit.dialect, dialect_of(unit.connection))
    if replaced:
        drop.execute_many(unit.connection, [{**task, **rows[place]} for place in replaced])
    return store.execute_many(unit.connection, fresh)


@lru_cache(maxsize=256)
def _in_turn(tables: Tables, dialect: EngineDialect, driver: Dialect) -> tuple[Prepared, Prepared]:
    """Give what deletes a write, and what stores one unless there is one."""
    table = tables.checkpoint_writes
    this = (column == bindparam(column.name, type_=column.type) for column in table.primary_key)
    storing = dialect.insert_missing(table).inline()
    return (
        Prepared(delete(table).where(*this), driver),
        Prepared(storing, driver, [column.name for column in table.c]),
    )


def in_order(records: Iterable[WriteRecord]) -> tuple[WriteRecord, ...]:
    """Sort writes by task path, task and position."""
    return tuple(sorted(records, key=lambda w: (w.task_path, w.task_id, w.position)))


WRITE = ("task_id", "position", "channel", "task_path", "kind", "encoding", "data")
"""The columns that ``write_record`` takes."""

_make = maker(WriteRecord)


def write_record(
    task: str, position: int, channel: str, path: str, kind: str, encoding: str, data: bytes
) -> WriteRecord:
    """Make a record of the columns of a pending write."""
    try:
        return _make(task, position, channel, decode(kind, encoding, data), path)
    except UnsoundRow as error:
        key = f"task_id={named(task)}, position={position}"
        raise UnsoundRow(error.table, error.column, error.problem, key) from None


def encode(value: Any, name: str = "value") -> tuple[str, str, bytes]:
    """Write a value: its kind, ``bytes`` or ``json``, its encoding, ``raw`` or ``zlib``, and the
    bytes.

    Raises:
        InvalidJson: It is not bytes, and JSON cannot say it.
    """
    is_bytes = isinstance(value, bytes | bytearray | memoryview)
    raw = bytes(value) if is_bytes else dump_json(value, name).encode()
    kind = "bytes" if is_bytes else "json"
    if len(raw) >= COMPRESS_FROM:
        packed = zlib.compress(raw)
        if len(packed) < len(raw) * _WORTHWHILE:
            return kind, "zlib", packed
    return kind, "raw", raw


def decode(kind: str, encoding: str, data: bytes) -> Any:
    """Undo ``encode``.

    Raises:
        UnsoundRow: The bytes are no such value.
    """
    try:
        plain = zlib.decompress(data) if encoding == "zlib" else bytes(data)
        return plain if kind == "bytes" else load_json(plain.decode())
    except Exception:  # noqa: BLE001 - whose words would quote it
        wrong = f"bytes that are not {kind} in {encoding}"
        raise UnsoundRow("checkpoint_writes", "data", wrong) from None
