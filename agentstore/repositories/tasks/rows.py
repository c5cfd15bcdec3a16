"""The rows of tasks: found, and made records of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Table, exists, literal_column, select

from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_stays
from agentstore.records import TaskRecord
from agentstore.records.base import complete, maker

STAMPS = {
    "running": "started_at",
    "paused": "paused_at",
    "completed": "completed_at",
    "failed": "failed_at",
    "cancelled": "cancelled_at",
    "dead": "dead_at",
}
"""The column that says when a task last entered a status."""

# Written into the statements, not sent as parameters: an engine uses a partial index only where
# it can see that its condition holds.
PENDING: ColumnElement[str] = literal_column("'pending'")
RUNNING: ColumnElement[str] = literal_column("'running'")

FIELDS = tuple(field.name for field in fields(TaskRecord))
"""The fields of a task's record, in their order; each has a column of its name."""

fields_of: Callable[[Any], tuple[Any, ...]] = attrgetter(*FIELDS)
"""Gives the fields of a record, or of a row."""

make_task_record = maker(TaskRecord)
"""Makes a task of all its fields, faster than its constructor."""


def find_task(unit: Unit, task_id: str) -> TaskRecord | None:
    """Give a task, or None."""
    tasks = unit.tables.tasks
    stays = session_stays(unit.tables, tasks.c.session_id)
    row = unit.connection.execute(select(tasks).where(tasks.c.id == task_id, stays)).first()
    return None if row is None else task_record(row)


def get_task(unit: Unit, task_id: str) -> TaskRecord:
    """Give a task that must be there; raises NotFound."""
    found = find_task(unit, task_id)
    if found is None:
        raise NotFound("task", task_id)
    return found


def another_runs_alone(tasks: Table, of: FromClause) -> ColumnElement[bool]:
    """Say that a task which asked to be alone runs in the session of the row ``of``."""
    other = tasks.alias("running_alone")
    return exists().where(
        other.c.session_id == of.c.session_id, other.c.status == RUNNING, other.c.alone_in_session
    )


def task_record(row: Any) -> TaskRecord:
    """Make a record of a row of ``tasks``."""
    return complete(make_task_record(*fields_of(row)))
