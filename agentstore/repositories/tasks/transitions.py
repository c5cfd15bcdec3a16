"""From one status to another: in one conditional statement, or the reason why not."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, case, or_, select, update

from agentstore.errors import AgentStoreError, IllegalTransition, LeaseLost, SessionOccupied
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_stays
from agentstore.records import TaskRecord
from agentstore.records.words import TaskStatus
from agentstore.repositories.tasks.clock import present
from agentstore.repositories.tasks.rows import (
    RUNNING,
    STAMPS,
    another_runs_alone,
    get_task,
    task_record,
)
from agentstore.values.states import TASK_TRANSITIONS, sources

_ONLY_BY = {"paused": "tasks.resume()", "failed": "tasks.retry()", "dead": "tasks.retry()"}
"""What alone makes a task in this status pending again."""

_GIVEN_BACK = {"worker": None, "lease_expires_at": None}


def move(
    unit: Unit,
    task_id: str,
    wanted: TaskStatus,
    *,
    only_from: tuple[TaskStatus, ...] = (),
    holder: int | None = None,
    held: bool = False,
    **values: Any,
) -> TaskRecord:
    """Change the status if the present one allows it, in one conditional statement.

    Args:
        unit: The open unit.
        task_id: The task.
        wanted: The status to go to. A task whose cancellation was asked for while it ran is
            cancelled instead of being paused or made pending.
        only_from: The statuses from which alone; all from which it is legal if empty.
        holder: The fencing token of the worker that holds the task.
        held: Whether the holder alone may do this, if the task is held.
        values: Other columns to set.

    Raises:
        IllegalTransition: The task is in a status from which it cannot.
        LeaseLost: Somebody else holds the task, or nobody does any more.
        SessionOccupied: It asked to be alone in its session, and is not.
        NotFound: There is no such task.
    """
    tasks, now = unit.tables.tasks, present(unit)
    c = tasks.c
    conditions = [
        c.id == task_id,
        c.status.in_(only_from or sources(TASK_TRANSITIONS, wanted)),
        session_stays(unit.tables, c.session_id),
    ]
    if holder is not None:
        conditions.append(c.fence == holder)
    elif held:
        conditions.append(c.lease_expires_at.is_(None))
    if wanted == "running":
        conditions.append(or_(~c.alone_in_session, ~another_runs_alone(tasks, tasks)))
    values = _GIVEN_BACK | values | {"status": wanted, "updated_at": now}
    if wanted in STAMPS:
        values[STAMPS[wanted]] = now
    if wanted in ("paused", "pending"):
        values |= _unless_cancelled(tasks, now, values)
    query = update(tasks).where(*conditions).values(values).returning(*c)
    statement = unit.dialect.announcing(query, unit.tables)
    moved = unit.connection.execute(statement).first()
    if moved is None:
        raise why_not(unit, task_id, wanted, holder, held=held)
    return task_record(moved)


def why_not(
    unit: Unit,
    task_id: str,
    wanted: str,
    fence: int | None = None,
    *,
    held: bool = False,
) -> AgentStoreError:
    """Say why a conditional change found nothing to change."""
    task = get_task(unit, task_id)
    current = task.status
    # What the holder itself did before, perhaps in a call whose answer it never got.
    by_holder = current in ("completed", "failed") and task.fence == fence
    if fence is not None and not by_holder:
        return LeaseLost(task_id, fence, task.fence, current, task.worker)
    if held and current == "running":
        return LeaseLost(task_id, None, task.fence, current, task.worker)
    if wanted == "running" and current == "pending":
        return _occupied(unit, task)
    onward = TASK_TRANSITIONS[current]
    instead = _ONLY_BY.get(current, "") if wanted in onward else ""
    if not instead:
        onward -= {wanted}
    return IllegalTransition("task", task_id, current, wanted, tuple(sorted(onward)), instead)


def _occupied(unit: Unit, task: TaskRecord) -> AgentStoreError:
    c = unit.tables.tasks.c
    query = select(c.id).where(
        c.session_id == task.session_id, c.status == RUNNING, c.alone_in_session
    )
    running = unit.connection.execute(query).scalar()
    return SessionOccupied(str(task.session_id), task.id, str(running))


def _unless_cancelled(tasks: Table, now: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Give what to set so that a running task whose cancellation was asked for is cancelled."""
    asked = (tasks.c.status == RUNNING) & tasks.c.cancel_requested
    stamps = {
        column: case((asked, tasks.c[column]), else_=values[column])
        for column in STAMPS.values()
        if column in values
    }
    return {
        **stamps,
        "status": case((asked, "cancelled"), else_=values["status"]),
        "cancelled_at": case((asked, now), else_=tasks.c.cancelled_at),
    }
