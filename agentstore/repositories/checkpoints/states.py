"""Checkpoints with their values and the writes after them, each of one moment.

One statement reads whatever a checkpoint has: a row for each piece of a value, and one for each
pending write. So a reader sees all of a put, a prune or a write, or nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import starmap
from typing import Any, NamedTuple

from sqlalchemy import CTE, BigInteger, Dialect, Select, and_, bindparam, select

from agentstore.engines.base.prepared import Stacked, dialect_of
from agentstore.engines.registry import EngineDialect
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.records.checkpoints import CheckpointRecord
from agentstore.repositories.checkpoints.pending import WRITE, in_order, write_record
from agentstore.repositories.checkpoints.rows import COLUMNS, chosen_by
from agentstore.repositories.checkpoints.small_values import Small, unpacked
from agentstore.repositories.checkpoints.value_parts import (
    Held,
    Part,
    held_by,
    value_queries,
    values_of,
)
from agentstore.repositories.checkpoints.values import Encoded
from agentstore.values.encoding import encode_text

_AMONG = (8, 32, 128, 512, 1024)
"""How many numbers of checkpoints a statement takes: the next that is enough."""


class _ReadState(NamedTuple):
    """What was read of a checkpoint: its columns, its values, the rows of writes."""

    point: tuple[Any, ...]
    versions: Mapping[str, Held]
    small: Small
    writes: list[Any]

    @property
    def pk(self) -> int:
        """Its number."""
        return int(self.point[0])

    def record(self, *, writes: bool) -> CheckpointRecord:
        """Make a record, with the pending writes or without any."""
        pending = in_order(starmap(write_record, self.writes)) if writes else None
        pk, id, thread, space, parent, step, tags, summary, node, metadata, run, at = self.point
        info = id, thread, space, parent, step, tuple(tags), summary, node, metadata or {}, run, at
        return CheckpointRecord(*info, values_of(pk, self.versions, self.small), pending)


def find_state(
    unit: Unit, by: str, parameters: Mapping[str, Any], *, writes: bool = False
) -> CheckpointRecord | None:
    """Find a checkpoint with its values, by one statement.

    Args:
        unit: The open unit.
        by: What finds it; see ``chosen_by``.
        parameters: What that needs.
        writes: Whether the writes after it are read as well.
    """
    found = _read(unit, by, parameters, writes=writes)
    return found[0].record(writes=writes) if found else None


def find_encoded(unit: Unit, pk: int) -> dict[str, Encoded]:
    """Read the values of a checkpoint without decoding them."""
    [state] = _read(unit, "pk", {"wanted": pk})
    return {**{name: held.encoded for name, held in state.versions.items()}, **state.small}


def states_page(
    unit: Unit,
    place: tuple[str, str],
    order: str,
    limit: int,
    after: Sequence[Any] | None,
    *,
    writes: bool,
) -> list[tuple[list[Any], CheckpointRecord]]:
    """Read checkpoints of a place with all their values, the latest first, by one statement.

    Args:
        unit: The open unit.
        place: The thread and the namespace.
        order: ``step`` or ``id``.
        limit: How many to give at most.
        after: The key of the one before; in the order of ids, an id does.
        writes: Whether the writes after them are read as well.

    Returns:
        Each with its key: its step or its id, and its number.
    """
    parameters = {"thread_id": place[0], "namespace": place[1], "limit": limit}
    by = "page" if order == "step" else "page by id"
    if after is not None:
        by = f"next {by}"
        parameters |= dict(zip((order if order == "step" else "below", "pk"), after, strict=False))
    states = _read(unit, by, parameters, several=True, writes=writes)
    first = COLUMNS.index(order)
    found = [([state.point[first], state.pk], state) for state in states]
    found.sort(key=lambda each: _as_stored(*each[0]), reverse=True)
    return [(key, state.record(writes=writes)) for key, state in found]


def _as_stored(first: Any, pk: int) -> tuple[Any, int]:
    """Give a key that sorts as the engine does: a text as it is there; UTF-8 has the same order."""
    return (encode_text(first) if isinstance(first, str) else first), pk


def states_of(unit: Unit, pks: Sequence[int], *, writes: bool) -> dict[int, CheckpointRecord]:
    """Read checkpoints by their numbers, with their values; those that are gone are left out.

    Args:
        unit: The open unit.
        pks: Their numbers, as many as a page may have.
        writes: Whether the writes after them are read as well.
    """
    if not pks:
        return {}
    size = next(size for size in _AMONG if size >= len(pks))
    parameters = {f"pk_{n}": pks[min(n, len(pks) - 1)] for n in range(size)}
    states = _read(unit, size, parameters, several=True, writes=writes)
    return {state.pk: state.record(writes=writes) for state in states}


def _read(
    unit: Unit,
    by: str | int,
    parameters: Mapping[str, Any],
    *,
    several: bool = False,
    writes: bool = False,
) -> list[_ReadState]:
    what = unit.tables, unit.dialect, dialect_of(unit.connection), by, several, writes
    found = _statement(*what, False).fetch(unit.connection, parameters)
    if any(part[_BASE] is not None for part in found[2]):
        found = _statement(*what, True).fetch(unit.connection, parameters)
    points, lines, parts, *pending = found
    versions = held_by(lines, parts)
    states = {}
    for *point, stored in points:
        pk = point[0]
        small = unpacked(stored, pk)
        states[pk] = _ReadState(tuple(point), versions.get(pk, {}), small, [])
    for row in pending[0] if pending else ():
        states[row[0]].writes.append(row[1:])
    return [*states.values()]


_BASE = Part._fields.index("base_line")


@lru_cache(maxsize=512)
def _statement(
    tables: Tables,
    dialect: EngineDialect,
    driver: Dialect,
    by: str | int,
    several: bool,
    writes: bool,
    bases: bool,
) -> Stacked:
    chosen = _among(tables, by) if isinstance(by, int) else chosen_by(tables, dialect, by)
    columns = [tables.checkpoints.c[column] for column in (*COLUMNS, "small_values")]
    points = chosen.with_only_columns(*columns).cte("chosen")
    queries = [
        select(points),
        *value_queries(tables, points, bases=bases, several=several),
    ]
    return Stacked([*queries, _pending(tables, points)] if writes else queries, driver)


def _among(tables: Tables, size: int) -> Select[Any]:
    points = tables.checkpoints
    return select(points).where(
        points.c.pk.in_([bindparam(f"pk_{n}", type_=BigInteger) for n in range(size)])
    )


def _pending(tables: Tables, points: CTE) -> Select[Any]:
    """Read the writes after checkpoints, each behind the number of its own."""
    pending = tables.checkpoint_writes.c
    after = and_(
        pending.thread_id == points.c.thread_id,
        pending.namespace == points.c.namespace,
        pending.checkpoint_id == points.c.id,
    )
    columns = (pending[name] for name in WRITE)
    return select(points.c.pk, *columns).join_from(points, tables.checkpoint_writes, after)
