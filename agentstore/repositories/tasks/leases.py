"""Leases: renewed, found by their fences, ended; and started again after a clock was set back.

A lease that has run out but was not taken away yet may still be renewed, or the task completed:
nobody else can have begun meanwhile, because that changes the fence.

None is held for longer than it was given for. A lease says when it ends, and with ``updated_at``
when it was given or renewed. If that is yet to come, the clock was set back meanwhile, and the end
is as far away as that. Such a lease starts again now, with the length that it had: a dead
worker's task is taken away after that, and a living one's heartbeat comes before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, select, update

from agentstore.engines.base.prepared import dialect_of
from agentstore.execution.unit import Unit
from agentstore.records import TaskBatch, TaskRecord
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.tasks.arguments import MAX_LEASE
from agentstore.repositories.tasks.clock import clock_of
from agentstore.repositories.tasks.rows import RUNNING, make_task_record, task_record
from agentstore.repositories.tasks.statements import (
    changed,
    heartbeat_statement,
    held_parameters,
    held_statement,
    settle_statement,
)
from agentstore.values.instants import shifted
from agentstore.values.types import UtcDateTime

_LATEST = 1_000
"""Leases that are looked at, those that end last. Only if as many end even later, because they are
longer than the clock was set back, do others have to wait for these."""

_LONGEST = timedelta(seconds=MAX_LEASE)


def until(unit: Unit, length: timedelta) -> dict[str, Any]:
    """Give the parameters that say when a lease that begins now ends."""
    if clock_of(unit) is not None:
        return {"lease": length}
    now = unit.now()
    return {"now": now, "expires": shifted(now, length)}


def renew(unit: Unit, held: list[tuple[str, int]], length: timedelta) -> list[TaskRecord]:
    """Renew leases, of tasks that are named with the fences of their holders; give those tasks."""
    if not held:
        return []
    statement = heartbeat_statement(unit.tables, clock_of(unit))
    asked = {"ids": [id for id, _ in held], "held": held}
    rows = unit.connection.execute(statement, asked | until(unit, length))
    return [task_record(row) for row in rows]


def lock_held(unit: Unit, fences: dict[str, int]) -> tuple[list[tuple[int, TaskRecord]], datetime]:
    """Lock those tasks that are held with these fences; give them, their ``pk``, and the time.

    In the order of their creation, as heartbeats do, so that the two never deadlock.
    """
    clock, driver = clock_of(unit), dialect_of(unit.connection)
    held: list[tuple[int, TaskRecord]] = []
    now = None
    for ids in chunks(sorted(fences)):
        parameters = held_parameters(ids)
        statement = held_statement(unit.tables, clock, driver, len(parameters))
        for row, *fields in statement.fetch(unit.connection, parameters):
            if clock is not None:
                found = fields.pop().astimezone(UTC)
                now = now or found
            task = make_task_record(*fields)
            if task.fence == fences[task.id]:
                held.append((row, task))
    return held, now or unit.now()


def settle(
    unit: Unit, ends: Sequence[tuple[int, TaskRecord, dict[str, Any]]], asked: list[str]
) -> TaskBatch:
    """Write what was decided about locked tasks, each with its ``pk``, and tell the workers."""
    if not ends:
        return batch({}, asked)
    statement = settle_statement(unit.tables, dialect_of(unit.connection), tuple(ends[0][2]))
    statement.execute_many(unit.connection, [{"row": pk, **change} for pk, _, change in ends])
    settled = {task.id: changed(task, change) for _, task, change in ends}
    told = {task.queue for task in settled.values() if task.status == "pending"}
    if any(task.alone_in_session for task in settled.values()):
        told = {""}
    unit.dialect.announce(unit.connection, unit.tables, told)
    return batch(settled, asked)


def batch(settled: dict[str, TaskRecord], asked: list[str]) -> TaskBatch:
    """Tell the tasks that were settled from those that were lost, in the order of the asking."""
    return TaskBatch(
        tuple(settled[id] for id in asked if id in settled),
        tuple(id for id in asked if id not in settled),
    )


def restart(unit: Unit, now: ColumnElement[Any]) -> None:
    """Start the leases again that were given at a time which is still in the future.

    Args:
        unit: In a write transaction. What others have locked is passed over.
        now: The present, by the clock of the leases.
    """
    tasks = unit.tables.tasks
    latest = (
        select(tasks.c.pk, tasks.c.updated_at)
        .where(tasks.c.status == RUNNING, tasks.c.lease_expires_at > now)
        .order_by(tasks.c.lease_expires_at.desc())
        .limit(_LATEST)
        .cte("latest")
        .prefix_with("MATERIALIZED")
    )
    query = (
        select(tasks.c.pk, tasks.c.lease_expires_at, tasks.c.updated_at, now.label("now"))
        .where(tasks.c.pk.in_(select(latest.c.pk).where(latest.c.updated_at > now)))
        .with_for_update(skip_locked=True)
    )
    leases = [
        {
            "row": row.pk,
            "begin": row.now,
            "end": shifted(row.now, min(row.lease_expires_at - row.updated_at, _LONGEST)),
        }
        for row in unit.connection.execute(query).all()
        if row.updated_at > row.now  # it may have been renewed since it was chosen
    ]
    if leases:
        moved = update(tasks).where(tasks.c.pk == bindparam("row", type_=tasks.c.pk.type))
        begin, end = (bindparam(name, type_=UtcDateTime()) for name in ("begin", "end"))
        unit.connection.execute(moved.values(lease_expires_at=end, updated_at=begin), leases)
