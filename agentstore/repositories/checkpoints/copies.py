"""Copying a thread: its checkpoints, their values and the pending writes beside them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, bindparam, insert, literal, select, update

from agentstore.execution.unit import Unit
from agentstore.repositories.checkpoints.rows import ROOT, require_ids
from agentstore.repositories.checkpoints.threads import enter_thread
from agentstore.values.ids import new_id


def copy_all(unit: Unit, thread: Row[Any], target: str) -> int:
    """Copy all checkpoints and pending writes of a thread; give how many checkpoints.

    Args:
        unit: In a write transaction.
        thread: The thread, locked.
        target: The id of the new thread.

    Raises:
        InvalidInput: With this id an entry would be too long for an index.
    """
    source = thread.id
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
        require_ids((target, copied["namespace"]), copied["id"])
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
        require_ids((target, copied["namespace"]), copied["checkpoint_id"], copied["task_id"])
    if copies:
        connection.execute(insert(writes).inline(), copies)
    return len(rows)


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
