"""Putting checkpoints: the parent is found, and the values are shared with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Dialect, Row, insert, update
from sqlalchemy.exc import DBAPIError

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import InvalidInput, NotFound, UnsoundRow, WrongThread
from agentstore.execution.gathering import SeveralStatements
from agentstore.execution.unit import Unit, in_autocommit
from agentstore.models.tables import Tables
from agentstore.records.checkpoints import CheckpointInfo
from agentstore.repositories.checkpoints.rows import (
    ROOT,
    Parent,
    checkpoint_info,
    fields_of,
    find_checkpoint,
    path_rows,
    read_parent,
    read_thread,
)
from agentstore.repositories.checkpoints.small_values import Small, divided, packed, unpacked
from agentstore.repositories.checkpoints.threads import Lines, Unused, unchanged
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
from agentstore.values.encoding import load_json
from agentstore.values.ids import new_id
from agentstore.values.types import Document

NO_PARENT = ""
"""Instead of a parent's id: the checkpoint is a root."""

NO_TAGS = Document("[]")


@dataclass(frozen=True, slots=True)
class CheckpointDraft:
    """A checkpoint that may be put, checked as far as it can be without the database.

    Attributes:
        id: None for a new one.
        parent_id: None for the latest, or what it was; see ``NO_PARENT``.
        roots: Whether it is a root if the parent is not there.
        makes_thread: Whether the thread is made if it is not there.
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
    makes_thread: bool = True


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
    """Put a checkpoint, or put one again.

    Raises:
        SeveralStatements: In autocommit: it needs a transaction.
    """
    if in_autocommit(unit):
        return _put_if_unchanged(unit, new)
    looks_first, found, seen = new.parent_id is None, None, None
    if unit.dialect.single_writer:
        found, seen = read_thread(unit, *_wanted(new, new.parent_id))
    most = len(new.values)
    lines = Lines(unit, new.thread_id, new.owners, most, seen, makes=new.makes_thread)
    if looks_first and (existing := _existing(unit, new)) is not None:
        return _put_again(unit, new, existing, lines)
    try:
        if seen is None:
            parent = _parent(unit, new, new.parent_id)
        else:
            parent = _origin(new, new.parent_id, found)
        row, plans, inherited = _planned(unit, new, parent, lines.new)
    except NotFound:
        _existing(unit, new)  # an id of another thread is the first thing to be said
        raise
    lines.keep()
    written = put_at_once(unit, row, plans, inherited)
    if written is None:
        written = _put_in_turn(unit, row, plans, inherited, skips=True)
    if not written:
        if not looks_first and (existing := _existing(unit, new)) is not None:
            return _put_again(unit, new, existing, lines)
        # Whose id that is, is hidden: the engine itself says that it is taken.
        written = _put_in_turn(unit, row, plans, inherited, skips=False)
    return _info(row)


def _put_if_unchanged(unit: Unit, new: CheckpointDraft) -> CheckpointInfo:
    """Put a new checkpoint by two statements, without a lock between them.

    The first one reads the thread and the parent. The second one inserts, unless another caller has
    put into the thread since. So a put waits for the server twice, and others do not wait for it.

    Raises:
        SeveralStatements: Another caller has, or reading failed, or there is no such thread or
            parent, or the checkpoint is there already. Nothing of it is stored; a transaction finds
            out.
    """
    if new.parent_id == NO_PARENT or any(new.owners.values()):
        raise SeveralStatements
    try:
        found, threads = read_thread(unit, *_wanted(new, new.parent_id))
        if not threads:
            raise SeveralStatements
        pk, last_line = threads[0]
        numbers = count(last_line + 1)
        parent = _origin(new, new.parent_id, found)
        planned = _planned(unit, new, parent, numbers.__next__)
    except (NotFound, UnsoundRow, DBAPIError):
        raise SeveralStatements from None
    seen = {"thread_pk": pk, "seen": last_line}
    entered = {"wanted": new.thread_id, "lines": next(numbers) - last_line, **seen}
    unused: Unused | None = "root" if new.namespace == ROOT else "place"
    entering = unchanged(unit.tables, unit.dialect, None if new.id is None else unused)
    if not put_at_once(unit, *planned, (entering, entered)):
        raise SeveralStatements
    return _info(planned[0])


def _info(row: Mapping[str, Any]) -> CheckpointInfo:
    """Give the record of a row that was put."""
    written = ("tags", "metadata")
    read = {name: row[name] and load_json(str(row[name])) for name in written}
    return CheckpointInfo(**fields_of({**row, **read}))


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


class _Origin(NamedTuple):
    """What a parent has for a new checkpoint.

    Attributes:
        id: None for a root's.
        step: -1 for a root's.
        shared: Its versions on lines.
        small: Its small values; none where none can be inherited.
    """

    id: str | None = None
    step: int = -1
    shared: Mapping[str, Stored] = MappingProxyType({})
    small: Mapping[str, Encoded] = MappingProxyType({})


def _planned(
    unit: Unit, new: CheckpointDraft, parent: _Origin, new_line: Callable[[], int]
) -> tuple[dict[str, Any], dict[str, Plan], dict[str, Version]]:
    """Give the columns of a new checkpoint, what is to be stored on lines of its values, and what
    it has there as its parent does.
    """
    stored, plans, inherited = _divided(unit, new, parent, {}, new_line)
    row = {
        **new.row,
        "thread_id": new.thread_id,
        "namespace": new.namespace,
        "id": new_id() if new.id is None else new.id,
        "parent_id": parent.id,
        "step": validation.amount("step", parent.step + 1) if new.step is None else new.step,
        "created_at": new.created_at or unit.now(),
        "small_values": stored,
    }
    return row, plans, inherited


def _divided(
    unit: Unit,
    new: CheckpointDraft,
    parent: _Origin,
    own: Mapping[str, Stored],
    new_line: Callable[[], int],
) -> tuple[bytes | None, dict[str, Plan], dict[str, Version]]:
    """Give the small values as they are stored, what is to be stored on lines, and what is
    inherited there.

    Args:
        unit: In a write transaction.
        new: The checkpoint.
        parent: What it goes on from.
        own: Versions of the checkpoint itself, if it is put again.
        new_line: Gives the number of a line that nobody uses.
    """
    inherited: dict[str, Version] = {}
    kept: Small = {}
    _, _, shared, small = parent
    for name in (*shared, *small) if new.inherit is None else new.inherit:
        if name in small:
            kept[name] = small[name]
        elif name in shared:
            inherited[name] = shared[name].version
        else:
            raise NotFound("value", name, "The parent has none of this name; pass it in values.")
    added, others = divided(new.values, kept)
    plans = planned(unit, others, {**shared, **own}, new_line)
    return packed({**kept, **added}), plans, inherited


def _put_again(
    unit: Unit, new: CheckpointDraft, existing: Row[Any], lines: Lines
) -> CheckpointInfo:
    """Change a checkpoint; its place in the tree stays, unless another one is given."""
    parent_id, step = existing.parent_id, existing.step
    parent = _Origin()
    if new.parent_id is not None or new.inherit:
        asked = (parent_id or NO_PARENT) if new.parent_id is None else new.parent_id
        parent = _parent(unit, new, asked)
        parent_id = parent.id
        if new.parent_id is not None:
            step = validation.amount("step", parent.step + 1)
            _refuse_cycle(unit, new, existing)
    itself = read_parent(unit, "pk", {"wanted": existing.pk})
    own = {} if itself is None else stored_by(itself.pieces)
    stored, plans, inherited = _divided(unit, new, parent, own, lines.new)
    lines.keep()
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


def _parent(unit: Unit, new: CheckpointDraft, parent_id: str | None) -> _Origin:
    """Read what the parent has; raises NotFound if it is not in this namespace of this thread."""
    if parent_id == NO_PARENT:
        return _Origin()
    return _origin(new, parent_id, read_parent(unit, *_wanted(new, parent_id)))


def _wanted(new: CheckpointDraft, parent_id: str | None) -> tuple[str, dict[str, Any]]:
    """Say how a parent is found; see ``chosen_by``."""
    place = {"thread_id": new.thread_id, "namespace": new.namespace, "wanted": parent_id}
    return "latest" if parent_id is None else "place", place


def _origin(new: CheckpointDraft, parent_id: str | None, found: Parent | None) -> _Origin:
    """Give what a parent has; raises NotFound if it is not there and has to be."""
    if found is not None:
        inherits = new.inherit is None or new.inherit
        small = unpacked(found.small_values, found.pk) if inherits else {}
        return _Origin(found.id, found.step, stored_by(found.pieces), small)
    if parent_id in (None, NO_PARENT) or new.roots:
        return _Origin()
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
) -> bool:
    """Insert a checkpoint, then its values; ``skips`` is to give False if the id is taken."""
    inserting = _insert(unit.tables, unit.dialect, dialect_of(unit.connection), skips)
    for (pk,) in inserting.fetch(unit.connection, row):
        write_values(unit, row["thread_id"], pk, plans, inherited)
        return True
    return False


@lru_cache(maxsize=256)
def _insert(tables: Tables, dialect: EngineDialect, driver: Dialect, skips: bool) -> Prepared:
    points = tables.checkpoints
    columns = [column.name for column in points.c if column.name != "pk"]
    inserting = dialect.insert_missing(points) if skips else insert(points)
    return Prepared(inserting.returning(points.c.pk), driver, columns)
