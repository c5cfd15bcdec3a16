"""Taking checkpoints to another thread, and the pending writes beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, bindparam, delete, insert, literal, select, update

from agentstore.errors import AlreadyExists, InvalidInput, UnsoundRow, named, shown
from agentstore.execution.unit import Unit
from agentstore.records.base import complete
from agentstore.records.checkpoints import CheckpointInfo, WriteRecord
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.checkpoints.puts import (
    NO_PARENT,
    Draft,
    enter_thread,
    lock_thread,
    put,
    require_new_thread,
)
from agentstore.repositories.checkpoints.rows import ROOT, get_checkpoint, require_place
from agentstore.repositories.checkpoints.value_lines import load_values
from agentstore.repositories.checkpoints.values import decode, encode, kind_of
from agentstore.values import validation
from agentstore.values.ids import new_id
from agentstore.values.types import Document


def fork(
    unit: Unit,
    checkpoint_id: str,
    *,
    thread_id: str | None,
    to_thread: str | None,
    new_checkpoint_id: str | None,
    namespace: str,
) -> CheckpointInfo:
    """Begin another line at a checkpoint; see ``Checkpoints.fork``."""
    source = get_checkpoint(unit, checkpoint_id, thread_id, namespace)
    thread = lock_thread(unit, source.thread_id)
    source = get_checkpoint(unit, checkpoint_id, source.thread_id, namespace)
    target = source.thread_id if to_thread is None else to_thread
    if to_thread is not None and not require_new_thread(unit, to_thread):
        raise AlreadyExists("checkpoint thread", to_thread)
    require_place(target, namespace, *([] if new_checkpoint_id is None else [new_checkpoint_id]))
    inside = to_thread is None
    new = Draft(
        thread_id=target,
        namespace=namespace,
        id=new_id() if new_checkpoint_id is None else new_checkpoint_id,
        parent_id=checkpoint_id if inside else NO_PARENT,
        step=None if inside else source.step,
        values=load_values(unit, source.thread_id, source.pk),
        owners={"user_id": thread.user_id, "session_id": thread.session_id},
        created_at=None,
        row={
            "tags": Document("[]"),
            "summary": source.summary,
            "next_node": source.next_node,
            "metadata": source.metadata,
            "run_id": None,
        },
    )
    if inside and new_checkpoint_id is not None:
        _require_free(unit, new_checkpoint_id, target, namespace)
    return put(unit, new)


def copy_thread(unit: Unit, source: str, target: str) -> int:
    """Copy a thread whole; see ``Checkpoints.copy_thread``."""
    thread = lock_thread(unit, source)
    if not require_new_thread(unit, target):
        raise AlreadyExists("checkpoint thread", target)
    owners = {"user_id": thread.user_id, "session_id": thread.session_id}
    enter_thread(unit, target, owners, lines=thread.last_line)
    tables, connection = unit.tables, unit.connection
    checkpoints = tables.checkpoints
    query = select(checkpoints).where(checkpoints.c.thread_id == source)
    rows = sorted(connection.execute(query).mappings(), key=lambda row: int(row["pk"]))
    new_ids = {
        (row["namespace"], row["id"]): new_id() if row["namespace"] == ROOT else row["id"]
        for row in rows
    }
    # A parent may stand behind its child, if it was put again; so parents are told afterwards.
    copies = [
        {
            **{column: value for column, value in row.items() if column != "pk"},
            "thread_id": target,
            "id": new_ids[row["namespace"], row["id"]],
            "parent_id": None,
        }
        for row in rows
    ]
    for copied in copies:
        require_place(target, copied["namespace"], copied["id"])
    if copies:
        connection.execute(insert(checkpoints).inline(), copies)
    query = select(checkpoints.c.pk, checkpoints.c.namespace, checkpoints.c.id)
    query = query.where(checkpoints.c.thread_id == target)
    new_pks = {(row.namespace, row.id): row.pk for row in connection.execute(query)}
    copied_pks = {
        row["pk"]: new_pks[row["namespace"], new_ids[row["namespace"], row["id"]]] for row in rows
    }
    parents = [
        {
            "its_pk": copied_pks[row["pk"]],
            "new_parent": new_ids[row["namespace"], row["parent_id"]],
        }
        for row in rows
        if row["parent_id"] is not None
    ]
    if parents:
        change = update(checkpoints).where(checkpoints.c.pk == bindparam("its_pk"))
        connection.execute(change.values(parent_id=bindparam("new_parent")), parents)
    _copy_rows(unit, "checkpoint_values", source, target)
    entries = tables.checkpoint_entries
    theirs = connection.execute(select(entries).where(entries.c.thread_id == source)).mappings()
    copies = [
        {**row, "thread_id": target, "checkpoint_pk": copied_pks[row["checkpoint_pk"]]}
        for row in theirs
    ]
    if copies:
        connection.execute(insert(entries).inline(), copies)
    writes = tables.checkpoint_writes
    pending = connection.execute(select(writes).where(writes.c.thread_id == source)).mappings()
    copies = [
        {
            **row,
            "thread_id": target,
            "checkpoint_id": new_ids.get(
                (row["namespace"], row["checkpoint_id"]), row["checkpoint_id"]
            ),
        }
        for row in pending
    ]
    for copied in copies:
        require_place(target, copied["namespace"], copied["checkpoint_id"], copied["task_id"])
    if copies:
        connection.execute(insert(writes).inline(), copies)
    return len(rows)


def put_writes(
    unit: Unit,
    thread_id: str,
    checkpoint_id: str,
    task_id: str,
    writes: Sequence[tuple[str, Any]],
    *,
    task_path: str,
    namespace: str,
    positions: Sequence[int] | None,
    replace: bool,
    owners: Mapping[str, str | None],
) -> int:
    """Store the writes of a task; see ``Checkpoints.put_writes``."""
    require_place(thread_id, namespace, checkpoint_id, task_id)
    validation.text("task_path", task_path)
    validation.flag("replace", replace)
    rows = _write_rows(writes, positions)
    enter_thread(unit, thread_id, owners, lines=0)
    table = unit.tables.checkpoint_writes
    place = {
        "thread_id": thread_id,
        "namespace": namespace,
        "checkpoint_id": checkpoint_id,
        "task_id": task_id,
    }
    mine = [table.c[column] == value for column, value in place.items()]
    if replace:
        for chunk in chunks(list(rows)):
            unit.connection.execute(delete(table).where(*mine, table.c.position.in_(chunk)))
    else:
        query = select(table.c.position).where(*mine)
        for there in unit.connection.execute(query).scalars():
            rows.pop(there, None)
    if rows:
        fresh = [{**place, "task_path": task_path, **row} for row in rows.values()]
        unit.connection.execute(insert(table).inline(), fresh)
    return len(rows)


def write_record(row: Row[Any]) -> WriteRecord:
    """Make a record of a row of ``checkpoint_writes``."""
    try:
        value = decode(row.kind, row.encoding, row.data, "checkpoint_writes")
    except UnsoundRow as error:
        key = f"task_id={named(row.task_id)}, position={row.position}"
        raise UnsoundRow(error.table, error.column, error.problem, key) from None
    return complete(WriteRecord(row.task_id, row.position, row.channel, value, row.task_path))


def _write_rows(
    writes: Sequence[tuple[str, Any]], positions: Sequence[int] | None
) -> dict[int, dict[str, Any]]:
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
        kind = kind_of(value)
        encoding, data = encode(kind, value, f"writes[{number}]")
        rows[place] = {
            "position": place,
            "channel": validation.key(f"writes[{number}]", channel),
            "kind": kind,
            "encoding": encoding,
            "data": data,
        }
    return rows


def _require_free(unit: Unit, checkpoint_id: str, thread_id: str, namespace: str) -> None:
    checkpoints = unit.tables.checkpoints
    query = select(checkpoints.c.pk).where(
        checkpoints.c.thread_id == thread_id,
        checkpoints.c.namespace == namespace,
        checkpoints.c.id == checkpoint_id,
    )
    if unit.connection.execute(query).first() is not None:
        raise AlreadyExists("checkpoint", checkpoint_id)


def _copy_rows(unit: Unit, name: str, source: str, target: str) -> None:
    """Copy a thread's rows of a table in the database, without bringing their data here."""
    table = unit.tables[name]
    thread_id = table.c.thread_id
    values = [
        literal(target, thread_id.type).label("thread_id") if column is thread_id else column
        for column in table.c
    ]
    rows = select(*values).where(thread_id == source)
    unit.connection.execute(insert(table).from_select([c.name for c in table.c], rows))
