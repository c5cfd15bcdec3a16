"""Checkpoints with their values and the writes after them, each of one moment.

One statement reads whatever a checkpoint has: a row for each piece of a value, and one for each
pending write. So a reader sees all of a put, a prune or a write, or nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    CompoundSelect,
    Dialect,
    Integer,
    Select,
    and_,
    literal_column,
    null,
    select,
)

from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.engines.registry import EngineDialect
from agentstore.errors import UnsoundRow
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.records.base import complete
from agentstore.records.checkpoints import CheckpointRecord
from agentstore.repositories.checkpoints.pending import in_order, write_record
from agentstore.repositories.checkpoints.rows import chosen_by, column_names, fields_of
from agentstore.repositories.checkpoints.value_parts import (
    BASE,
    Held,
    Part,
    held_by,
    shared_out,
    values_of,
    with_parts,
)
from agentstore.values.encoding import encode_text

_OWN = len(Part._fields)
"""Where the columns of the checkpoint begin in a row, or of a write."""

_LEVEL = Part._fields.index("level")

_WRITE = -1
"""The ``level`` of a row that is no part of a value but a pending write."""


class _ReadState(NamedTuple):
    """What was read of a checkpoint: its columns, its versions, the rows of writes."""

    point: dict[str, Any]
    versions: Mapping[str, Held]
    writes: list[Any]

    def record(self, *, writes: bool) -> CheckpointRecord:
        """Make a record, with the pending writes or without any."""
        pending = in_order(map(write_record, self.writes)) if writes else None
        values = values_of(self.point["pk"], self.versions)
        fields = fields_of(self.point)
        return complete(CheckpointRecord(**fields, values=values, writes=pending))


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


def find_held(unit: Unit, pk: int) -> dict[str, Held]:
    """Read the values of a checkpoint without decoding them."""
    [state] = _read(unit, "pk", {"wanted": pk})
    return dict(state.versions)


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
    found = [([state.point[order], state.point["pk"]], state) for state in states]
    found.sort(key=lambda each: _as_stored(*each[0]), reverse=True)
    return [(key, state.record(writes=writes)) for key, state in found]


def _as_stored(first: Any, pk: int) -> tuple[Any, int]:
    """Give a key that sorts as the engine does: a text by the bytes that stand for it there."""
    return (encode_text(first).encode() if isinstance(first, str) else first), pk


def states_of(
    unit: Unit, pks: Sequence[int], *, writes: bool, one_thread: bool
) -> dict[int, CheckpointRecord]:
    """Read checkpoints by their numbers, with their values; those that are gone are left out.

    Args:
        unit: The open unit.
        pks: Their numbers, as many as a page may have.
        writes: Whether the writes after them are read as well.
        one_thread: Whether all are of one thread, and may share what was read of a line.
    """
    if not pks:
        return {}
    points = unit.tables.checkpoints
    chosen = select(points).where(points.c.pk.in_(pks))

    def rows(*, bases: bool) -> Sequence[Any]:
        several = one_thread and not bases
        query = _statement(unit.tables, chosen, bases=bases, several=several, writes=writes)
        try:
            return unit.connection.execute(query).all()
        except UnsoundRow as error:  # of a checkpoint, or of a write in its columns
            raise UnsoundRow("", "", error.problem) if writes else error from None

    found, several = rows(bases=False), one_thread
    if any(row[BASE] is not None for row in found):
        found, several = rows(bases=True), False
    states = _states_of(unit.tables, found, several=several)
    return {state.point["pk"]: state.record(writes=writes) for state in states}


def _read(
    unit: Unit,
    by: str,
    parameters: Mapping[str, Any],
    *,
    several: bool = False,
    writes: bool = False,
) -> list[_ReadState]:
    driver = dialect_of(unit.connection)
    plain, with_bases = _statements(unit.tables, unit.dialect, driver, by, several, writes)
    read, rows = plain.read, plain.rows(unit.connection, parameters)
    if any(row[BASE] is not None for row in rows):
        several, read = False, with_bases.read
        rows = with_bases.rows(unit.connection, parameters)
    return _states_of(unit.tables, rows, several=several, read=read)


def _states_of(
    tables: Tables,
    rows: Sequence[Any],
    *,
    several: bool,
    read: Callable[[Sequence[Any]], Sequence[Any]] = lambda rows: rows,
) -> list[_ReadState]:
    """Put together what was read; ``read`` is what reads the values of rows, where they are the
    driver's own. The columns of a checkpoint are read once, not with each of its values.
    """
    names = column_names(tables)
    of_parts, of_writes, firsts = [], [], dict[int, Any]()
    for row in rows:
        if row[_LEVEL] == _WRITE:
            of_writes.append(row)
            continue
        of_parts.append(row[:_OWN])
        if row[_OWN] is not None:
            firsts[row[_OWN]] = row
    parts = [Part(*row) for row in read(of_parts)]
    versions: Mapping[int, Mapping[str, Held]]
    if several:
        versions = shared_out(parts)
    else:
        apart: dict[int, list[Part]] = {}
        for part in parts:
            apart.setdefault(part.checkpoint_pk, []).append(part)
        versions = {pk: held_by(own) for pk, own in apart.items()}
    try:
        whole = read([*firsts.values(), *of_writes])
    except UnsoundRow as error:
        read([*firsts.values()])  # raises it, if it is of these
        column = _OF_WRITES.get(error.column, error.column)
        raise UnsoundRow("checkpoint_writes", column, error.problem) from None
    states = {
        row[_OWN]: _ReadState(dict(zip(names, row[_OWN:], strict=True)), versions[row[_OWN]], [])
        for row in whole[: len(firsts)]
    }
    for row in whole[len(firsts) :]:
        states[row[0]].writes.append(_WriteRow.of(row, names))
    return list(states.values())


class _WriteRow(NamedTuple):
    """A pending write, as ``pending.write_record`` reads it."""

    task_id: str
    position: int
    channel: str
    task_path: str
    kind: str
    encoding: str
    data: bytes

    @classmethod
    def of(cls, row: Any, names: Sequence[str]) -> _WriteRow:
        """Read a row of ``_pending``."""
        part = Part(*row[:_OWN])
        task_id, task_path, encoding = (row[_OWN + names.index(each)] for each in _IN_PLACE_OF)
        at = part.item_count
        return cls(task_id, at, part.name, task_path, part.kind, encoding, part.data)


_IN_PLACE_OF = ("id", "summary", "next_node")
"""The columns of a checkpoint, all text, in which a row of a write has what ``_pending`` says."""

_OF_WRITES = {"id": "task_id", "summary": "task_path", "next_node": "encoding", "name": "channel"}
"""By the columns in which they are read, those of a write that are called otherwise."""


@lru_cache(maxsize=64)
def _statements(
    tables: Tables, dialect: EngineDialect, driver: Dialect, by: str, several: bool, writes: bool
) -> tuple[Prepared, Prepared]:
    chosen = chosen_by(tables, dialect, by)
    plain = _statement(tables, chosen, bases=False, several=several, writes=writes)
    with_bases = _statement(tables, chosen, bases=True, several=False, writes=writes)
    shape = with_parts(tables, chosen, bases=False)
    return Prepared(plain, driver, shape=shape), Prepared(with_bases, driver, shape=shape)


def _statement(
    tables: Tables, chosen: Select[Any], *, bases: bool, several: bool, writes: bool
) -> Select[Any] | CompoundSelect[Any]:
    if not writes:
        return with_parts(tables, chosen, bases=bases, several=several)
    points = chosen.cte("chosen")
    parts = with_parts(tables, points, bases=bases, several=several)
    return parts.union_all(_pending(tables, points))


def _pending(tables: Tables, points: CTE) -> Select[Any]:
    """Read the writes after checkpoints, in the columns of ``with_parts``."""
    pending = tables.checkpoint_writes.c
    of_part = {
        "checkpoint_pk": points.c.pk,
        "name": pending.channel,
        "kind": pending.kind,
        "item_count": pending.position,
        "level": literal_column(str(_WRITE), Integer),
        "data": pending.data,
    }
    texts = (pending.task_id, pending.task_path, pending.encoding)
    of_point = dict(zip(_IN_PLACE_OF, texts, strict=True))
    after = and_(
        pending.thread_id == points.c.thread_id,
        pending.namespace == points.c.namespace,
        pending.checkpoint_id == points.c.id,
    )
    columns = [of_part.get(name, null()) for name in Part._fields]
    columns += [of_point.get(name, null()) for name in column_names(tables)]
    return select(*columns).join_from(points, tables.checkpoint_writes, after)
