"""What all methods of tasks share: the clock, the change of a status, and why it was refused.

Every time in a task's row comes from one clock: the server's, where there is one, so that what a
lease means does not depend on the clock of whoever claims or renews it. A store that was opened
with a ``clock`` of its own has the last word instead; that is for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Table,
    case,
    exists,
    literal,
    literal_column,
    or_,
    select,
    update,
)

from agentstore.errors import (
    AgentStoreError,
    IllegalTransition,
    LeaseLost,
    NotFound,
    SessionOccupied,
)
from agentstore.models.leaving import session_stays
from agentstore.records import TaskRecord
from agentstore.records.base import complete, maker
from agentstore.repositories.base.operations import Repository, reads
from agentstore.settings import utc_now
from agentstore.values import validation
from agentstore.values.states import TASK_TRANSITIONS, sources

STAMPS = {
    "running": "started_at",
    "paused": "paused_at",
    "completed": "completed_at",
    "failed": "failed_at",
    "cancelled": "cancelled_at",
    "dead": "dead_at",
}
"""The column that says when a task last entered a status."""

_ONLY_BY = {"paused": "tasks.resume()", "failed": "tasks.retry()", "dead": "tasks.retry()"}
"""What alone makes a task in this status pending again."""

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

_GIVEN_BACK = {"worker": None, "lease_expires_at": None}


class TaskRows(Repository):
    """Reading a task, and moving it from one status to another."""

    __slots__ = ()

    @reads
    def get(self, task_id: str) -> TaskRecord:
        """Give a task.

        Raises:
            NotFound: There is none with this id.
        """
        found = self.find(task_id)
        if found is None:
            raise NotFound("task", task_id)
        return found

    @reads
    def find(self, task_id: str) -> TaskRecord | None:
        """Give a task, or None."""
        tasks = self.tables.tasks
        stays = session_stays(self.tables, tasks.c.session_id)
        row = self.connection.execute(select(tasks).where(tasks.c.id == task_id, stays)).first()
        return None if row is None else task_record(row)

    def _server_clock(self) -> ColumnElement[datetime] | None:
        """Give the server's present as an expression; None where the store's clock counts."""
        unit = self.unit
        return unit.dialect.server_clock() if unit.settings.clock is utc_now else None

    def _now(self) -> ColumnElement[Any]:
        """Give the present, as an expression."""
        server = self._server_clock()
        if server is not None:
            return server
        return literal(self.unit.now(), self.tables.tasks.c.updated_at.type)

    def _move(
        self,
        task_id: str,
        wanted: str,
        *,
        only_from: tuple[str, ...] = (),
        token: int | None = None,
        held: bool = False,
        **values: Any,
    ) -> TaskRecord:
        """Change the status if the present one allows it, in one conditional statement.

        Args:
            task_id: The task.
            wanted: The status to go to. A task whose cancellation was asked for while it ran is
                cancelled instead of being paused or made pending.
            only_from: The statuses from which alone; all from which it is legal if empty.
            token: The fencing token of whoever holds the task.
            held: Whether the holder alone may do this, if the task is held.
            values: Other columns to set.
        """
        tasks, now = self.tables.tasks, self._now()
        c = tasks.c
        conditions = [
            c.id == task_id,
            c.status.in_(only_from or sources(TASK_TRANSITIONS, wanted)),
            session_stays(self.tables, c.session_id),
        ]
        if token is not None:
            conditions.append(c.fence == validation.amount("fence", token))
        elif held:
            conditions.append(c.lease_expires_at.is_(None))
        if wanted == "running":
            conditions.append(or_(~c.alone_in_session, ~another_runs_alone(tasks, tasks)))
        values = _GIVEN_BACK | values | {"status": wanted, "updated_at": now}
        if wanted in STAMPS:
            values[STAMPS[wanted]] = now
        if wanted in ("paused", "pending"):
            values |= unless_cancelled(tasks, now, values)
        query = update(tasks).where(*conditions).values(values).returning(*c)
        statement = self.unit.dialect.announcing(query, self.tables)
        moved = self.connection.execute(statement).first()
        if moved is None:
            raise self._why_not(task_id, wanted, token, held=held)
        return task_record(moved)

    def _why_not(
        self,
        task_id: str,
        wanted: str,
        token: int | None = None,
        *,
        held: bool = False,
    ) -> AgentStoreError:
        """Say why a conditional change found nothing to change."""
        task = self.get(task_id)
        current = task.status
        # What the holder itself did before, perhaps in a call whose answer it never got.
        by_holder = current in ("completed", "failed") and task.fence == token
        if token is not None and not by_holder:
            return LeaseLost(task_id, token, task.fence, current, task.worker)
        if held and current == "running":
            return LeaseLost(task_id, None, task.fence, current, task.worker)
        if wanted == "running" and current == "pending":
            return self._occupied(task)
        onward = TASK_TRANSITIONS[current]
        instead = _ONLY_BY.get(current, "") if wanted in onward else ""
        if not instead:
            onward -= {wanted}
        return IllegalTransition("task", task_id, current, wanted, tuple(sorted(onward)), instead)

    def _occupied(self, task: TaskRecord) -> AgentStoreError:
        c = self.tables.tasks.c
        query = select(c.id).where(
            c.session_id == task.session_id, c.status == RUNNING, c.alone_in_session
        )
        running = self.connection.execute(query).scalar()
        return SessionOccupied(str(task.session_id), task.id, str(running))


def another_runs_alone(tasks: Table, of: FromClause) -> ColumnElement[bool]:
    """Say that a task which asked to be alone runs in the session of the row ``of``."""
    other = tasks.alias("running_alone")
    return exists().where(
        other.c.session_id == of.c.session_id, other.c.status == RUNNING, other.c.alone_in_session
    )


def unless_cancelled(tasks: Table, now: Any, values: dict[str, Any]) -> dict[str, Any]:
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


def task_record(row: Any) -> TaskRecord:
    """Make a record of a row of ``tasks``."""
    return complete(make_task_record(*fields_of(row)))
