"""Putting checkpoints: the parent is found, and the values are shared with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, Row, insert, update

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import InvalidInput, NotFound, WrongThread
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.records.checkpoints import CheckpointInfo
from agentstore.repositories.checkpoints.rows import (
    ROOT,
    checkpoint_info,
    column_names,
    find_checkpoint,
    info_of,
    path_rows,
    read_parent,
)
from agentstore.repositories.checkpoints.small_values import Small, divided, packed, unpacked
from agentstore.repositories.checkpoints.threads import Lines
from agentstore.repositories.checkpoints.value_lines import (
    drop_entries,
    drop_unneeded,
    planned,
    put_at_once,
    stored_by,
    write_values,
)
from agentstore.repositories.checkpoints.values import Encoded, Plan, Stored, Version
from agentstore.values import validation
from agentstore.values.ids import new_id

NO_PARENT = ""
"""Instead of a parent's id: the checkpoint is a root."""


@dataclass(frozen=True, slots=True)
class CheckpointDraft:
    """A checkpoint that may be put, checked as far as it can be without the database.

    Attributes:
        id: None for a new one.
        parent_id: None for the latest, or what it was; see ``NO_PARENT``.
        roots: Whether it is a root if the parent is not there.
        step: None for one more than the parent's, or what it was.
        inherit: The names of values that are as in the parent; None for all that it has.
        owners: ``user_id`` and ``session_id`` of the thread.
        created_at: None for the present, or what it was.
        row: The columns that are stored as they are.
    """

    thread_id: str
    namespace: str
    id: str | None
    parent_id: str | None
    step: int | None
    values: Mapping[str, Encoded]
    inherit: Collection[str] | None
    owners: Mapping[str, str | None]
    created_at: datetime | None
    row: Mapping[str, Any]
    roots: bool = False


def tags_of(tags: object) -> tuple[str, ...]:
    """Require tags: a str is a single one, and the same one twice is one.

    Raises:
        InvalidInput: They are something else.
    """
    if isinstance(tags, str):
        tags = (tags,)
    if not isinstance(tags, list | tuple | set | frozenset):
        raise InvalidInput(f"tags must be a list of str, not {type(tags).__name__}.")
    return tuple(dict.fromkeys(validation.text("a tag", tag) for tag in tags))


def put_checkpoint(unit: Unit, new: CheckpointDraft) -> CheckpointInfo:
    """Put a checkpoint, or put one again."""
    lines = Lines(unit, new.thread_id, new.owners, len(new.values))
    looks_first = new.parent_id is None
    if looks_first and (existing := _existing(unit, new)) is not None:
        return _put_again(unit, new, existing, lines)
    try:
        row, plans, inherited = _planned(unit, new, lines)
    except NotFound:
        _existing(unit, new)  # an id of another thread is the first thing to be said
        raise
    written = put_at_once(unit, row, plans, inherited)
    if written is None:
        written = _put_in_turn(unit, row, plans, inherited, skips=True)
    if not written:
        if not looks_first and (existing := _existing(unit, new)) is not None:
            return _put_again(unit, new, existing, lines)
        # Whose id that is, is hidden: the engine itself says that it is taken.
        written = _put_in_turn(unit, row, plans, inherited, skips=False)
    return info_of(dict(zip(column_names(unit.tables), written, strict=True)))


def _existing(unit: Unit, new: CheckpointDraft) -> Row[Any] | None:
    """Find the checkpoint that has the id already; raises WrongThread."""
    if new.id is None:
        return None
    if new.namespace != ROOT:
        return find_checkpoint(unit, new.id, new.thread_id, new.namespace)
    found = find_checkpoint(unit, new.id, None, ROOT, any_owner=True)
    if found is not None and found.thread_id != new.thread_id:
        raise WrongThread(new.thread_id, new.id)
    return found


def _planned(
    unit: Unit, new: CheckpointDraft, lines: Lines
) -> tuple[dict[str, Any], dict[str, Plan], dict[str, Version]]:
    """Give the columns of a new checkpoint, what is to be stored on lines of its values, and what
    it has there as its parent does.
    """
    parent_id, step, shared, small = _parent(unit, new, new.parent_id)
    stored, plans, inherited = _divided(unit, new, lines, shared, small)
    row = {
        **new.row,
        "thread_id": new.thread_id,
        "namespace": new.namespace,
        "id": new_id() if new.id is None else new.id,
        "parent_id": parent_id,
        "step": validation.amount("step", step + 1) if new.step is None else new.step,
        "created_at": new.created_at or unit.now(),
        "small_values": stored,
    }
    return row, plans, inherited


def _divided(
    unit: Unit,
    new: CheckpointDraft,
    lines: Lines,
    shared: dict[str, Stored],
    small: Small,
    own: Mapping[str, Stored] | None = None,
) -> tuple[bytes | None, dict[str, Plan], dict[str, Version]]:
    """Give the small values as they are stored, what is to be stored on lines, and what is
    inherited there.

    Args:
        unit: In a write transaction.
        new: The checkpoint.
        lines: Numbers of lines.
        shared: The parent's versions.
        small: Its small values.
        own: Versions of the checkpoint itself, if it is put again.
    """
    inherited: dict[str, Version] = {}
    kept: Small = {}
    for name in (*shared, *small) if new.inherit is None else new.inherit:
        if name in small:
            kept[name] = small[name]
        elif name in shared:
            inherited[name] = shared[name].version
        else:
            raise NotFound("value", name, "The parent has none of this name; pass it in values.")
    added, others = divided(new.values, kept)
    plans = planned(unit, others, {**shared, **(own or {})}, lines.new)
    lines.keep()
    return packed({**kept, **added}), plans, inherited


def _put_again(
    unit: Unit, new: CheckpointDraft, existing: Row[Any], lines: Lines
) -> CheckpointInfo:
    """Change a checkpoint; its place in the tree stays, unless another one is given."""
    parent_id, step = existing.parent_id, existing.step
    shared: dict[str, Stored] = {}
    small: Small = {}
    if new.parent_id is not None or new.inherit:
        asked = (parent_id or NO_PARENT) if new.parent_id is None else new.parent_id
        parent_id, before, shared, small = _parent(unit, new, asked)
        if new.parent_id is not None:
            step = validation.amount("step", before + 1)
            _refuse_cycle(unit, new, existing)
    itself = read_parent(unit, "pk", {"wanted": existing.pk})
    own = {} if itself is None else stored_by(itself.pieces)
    stored, plans, inherited = _divided(unit, new, lines, shared, small, own)
    checkpoints = unit.tables.checkpoints
    values = {
        **new.row,
        "parent_id": parent_id,
        "step": step if new.step is None else new.step,
        "created_at": new.created_at or existing.created_at,
        "small_values": stored,
    }
    change = update(checkpoints).where(checkpoints.c.pk == existing.pk).values(values)
    written = unit.connection.execute(change.returning(*checkpoints.c)).one()
    _, left = drop_entries(unit, [existing.pk])
    write_values(unit, new.thread_id, existing.pk, plans, inherited)
    drop_unneeded(unit, new.thread_id, left)
    return checkpoint_info(written)


def _refuse_cycle(unit: Unit, new: CheckpointDraft, existing: Row[Any]) -> None:
    if new.parent_id == NO_PARENT:
        return
    parent = find_checkpoint(unit, str(new.parent_id), new.thread_id, new.namespace)
    if parent is not None and any(row.pk == existing.pk for row in path_rows(unit, parent)):
        raise InvalidInput(
            "parent_id names the checkpoint itself, or one that came from it. Pass one that was "
            "there before, or leave it out."
        )


def _parent(
    unit: Unit, new: CheckpointDraft, parent_id: str | None
) -> tuple[str | None, int, dict[str, Stored], Small]:
    """Give the parent's id, its step, and its values; a root's parent has step -1.

    Its small values are left out where none can be inherited.

    Raises:
        NotFound: The parent is not in this namespace of this thread.
    """
    if parent_id == NO_PARENT:
        return None, -1, {}, {}
    place = {"thread_id": new.thread_id, "namespace": new.namespace, "wanted": parent_id}
    found = read_parent(unit, "latest" if parent_id is None else "place", place)
    if found is not None:
        inherits = new.inherit is None or new.inherit
        small = unpacked(found.small_values, found.pk) if inherits else {}
        return found.id, found.step, stored_by(found.pieces), small
    if parent_id is None or new.roots:
        return None, -1, {}, {}
    raise NotFound(
        "checkpoint",
        parent_id,
        "A parent must be in the same thread and namespace; fork() leads to another thread.",
    )


def _put_in_turn(
    unit: Unit,
    row: Mapping[str, Any],
    plans: Mapping[str, Plan],
    inherited: Mapping[str, Version],
    *,
    skips: bool,
) -> Sequence[Any]:
    """Insert a checkpoint, then its values; ``skips`` is to give () if the id is taken."""
    inserting = _insert(unit.tables, unit.dialect, dialect_of(unit.connection), skips)
    for written in inserting.fetch(unit.connection, row):
        write_values(unit, row["thread_id"], written[0], plans, inherited)
        return written
    return ()


@lru_cache(maxsize=64)
def _insert(tables: Tables, dialect: EngineDialect, driver: Dialect, skips: bool) -> Prepared:
    points = tables.checkpoints
    columns = [column.name for column in points.c if column.name != "pk"]
    inserting = dialect.insert_missing(points) if skips else insert(points)
    return Prepared(inserting.returning(*points.c), driver, columns)
