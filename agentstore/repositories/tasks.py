"""Tasks: work to be done, and its life."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.sql.dml import ReturningInsert

from agentstore import validation
from agentstore.errors import IllegalTransition, InvalidInput, NotFound
from agentstore.ids import new_id
from agentstore.paging import DEFAULT_LIMIT, Cursors
from agentstore.records import Page, TaskRecord
from agentstore.repositories.base import Repository, appends, insert_where, one_page, reads
from agentstore.schema import Tables
from agentstore.states import TASK_STATUSES, TASK_TRANSITIONS, sources
from agentstore.types import require_utc

_MAX_PRIORITY = 2**31 - 1

_STAMPS = {
    "running": "started_at",
    "paused": "paused_at",
    "completed": "completed_at",
    "failed": "failed_at",
    "cancelled": "cancelled_at",
    "dead": "dead_at",
}
"""The column that says when a task last entered a status."""


class Tasks(Repository):
    """The tasks, in a session or on their own."""

    __slots__ = ()

    @appends
    def create(
        self,
        session_id: str | None,
        kind: str,
        payload: Any = None,
        *,
        priority: int = 0,
        run_at: datetime | None = None,
        max_retries: int = 0,
        queue: str = "default",
        idempotency_key: str | None = None,
    ) -> TaskRecord:
        """Create a task, pending.

        In ``store.transaction()`` it is created together with whatever else is written there, or
        not at all.

        Args:
            session_id: The session that it belongs to; None for none.
            kind: What is to be done; the application's own word.
            payload: Any JSON.
            priority: The highest goes first.
            run_at: When it may be started at the earliest; None means now.
            max_retries: How often a failed attempt may be repeated.
            queue: Which workers take it.
            idempotency_key: Unique in its queue: a repeated call returns the first one's task.

        Raises:
            NotFound: There is no such session.
            NaiveDatetime: ``run_at`` has no time zone.
            InvalidInput: An argument cannot be stored.
        """
        now = self.unit.now()
        row = {
            "id": new_id(),
            "session_id": validation.optional_text("session_id", session_id),
            "queue": validation.key("queue", queue),
            "kind": validation.key("kind", kind),
            "priority": validation.amount(
                "priority", priority, least=-_MAX_PRIORITY, most=_MAX_PRIORITY
            ),
            "payload": validation.document("payload", payload),
            "run_at": now if run_at is None else require_utc("run_at", run_at),
            "max_retries": validation.amount("max_retries", max_retries, most=_MAX_PRIORITY),
            "idempotency_key": validation.optional_key("idempotency_key", idempotency_key),
            "created_at": now,
            "updated_at": now,
        }
        tasks = self.tables.tasks
        if idempotency_key is not None:
            query = select(tasks).where(
                tasks.c.queue == queue, tasks.c.idempotency_key == idempotency_key
            )
            if (first := self.connection.execute(query).first()) is not None:
                return task_record(first)
        statement = _insert(self.tables, in_a_session=session_id is not None)
        written = self.connection.execute(statement, row).first()
        if written is None:
            raise NotFound("session", session_id)
        return task_record(written)

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
        row = self.connection.execute(select(tasks).where(tasks.c.id == task_id)).first()
        return None if row is None else task_record(row)

    @reads
    def list(
        self,
        *,
        session_id: str | None = None,
        status: str | None = None,
        queue: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[TaskRecord]:
        """List tasks, the newest first, of a session, in a status, in a queue if given."""
        tasks = self.tables.tasks
        query = select(tasks)
        if session_id is not None:
            query = query.where(tasks.c.session_id == validation.text("session_id", session_id))
        if status is not None:
            if status not in TASK_STATUSES:
                raise InvalidInput(f"status is {status!r}; use one of {', '.join(TASK_STATUSES)}.")
            query = query.where(tasks.c.status == status)
        if queue is not None:
            query = query.where(tasks.c.queue == validation.text("queue", queue))
        cursors = Cursors("tasks", session_id, status, queue)
        return one_page(
            self.connection, query, [tasks.c.pk], cursors, limit, cursor, task_record
        )

    @appends
    def start(self, task_id: str) -> TaskRecord:
        """Go from pending to running, and count the attempt.

        Raises:
            IllegalTransition: The task is in a status from which it cannot.
            NotFound: There is no such task.
        """
        attempts = self.tables.tasks.c.attempts + 1
        fence = self.tables.tasks.c.fence + 1
        return self._move(task_id, "running", attempts=attempts, fence=fence)

    @appends
    def complete(self, task_id: str, result: Any = None) -> TaskRecord:
        """Go from running to completed, with a result, any JSON. Raises as ``start`` does."""
        return self._move(task_id, "completed", result=validation.document("result", result))

    @appends
    def fail(self, task_id: str, error: str | None = None) -> TaskRecord:
        """Go from running to failed, with what went wrong. Raises as ``start`` does."""
        return self._move(task_id, "failed", error=validation.optional_text("error", error))

    @appends
    def pause(self, task_id: str) -> TaskRecord:
        """Go from pending or running to paused. Raises as ``start`` does."""
        return self._move(task_id, "paused")

    @appends
    def resume(self, task_id: str) -> TaskRecord:
        """Go from paused to pending. Raises as ``start`` does."""
        return self._move(task_id, "pending", only_from=("paused",))

    @appends
    def retry(self, task_id: str) -> TaskRecord:
        """Go from failed or dead to pending, to be started again. Raises as ``start`` does."""
        return self._move(task_id, "pending", only_from=("failed", "dead"))

    @appends
    def cancel(self, task_id: str) -> TaskRecord:
        """Go to cancelled from pending, running or paused. Raises as ``start`` does."""
        return self._move(task_id, "cancelled")

    def _move(
        self, task_id: str, wanted: str, *, only_from: tuple[str, ...] = (), **values: Any
    ) -> TaskRecord:
        """Change the status if the present one allows it, in one conditional statement."""
        tasks, now = self.tables.tasks, self.unit.now()
        allowed = only_from or sources(TASK_TRANSITIONS, wanted)
        values |= {"status": wanted, "updated_at": now}
        if wanted in _STAMPS:
            values[_STAMPS[wanted]] = now
        query = update(tasks).where(tasks.c.id == task_id, tasks.c.status.in_(allowed))
        moved = self.connection.execute(query.values(values).returning(*tasks.c)).first()
        if moved is None:
            current = self.get(task_id).status
            onward = TASK_TRANSITIONS[current]
            if only_from:
                onward -= {wanted}
            raise IllegalTransition("task", task_id, current, wanted, onward)
        return task_record(moved)


_GIVEN = (
    "id",
    "session_id",
    "queue",
    "kind",
    "priority",
    "payload",
    "run_at",
    "max_retries",
    "idempotency_key",
    "created_at",
    "updated_at",
)
"""The columns that a new task has a say in; the others have defaults."""


@lru_cache(maxsize=64)
def _insert(tables: Tables, *, in_a_session: bool) -> ReturningInsert[Any]:
    sessions = tables.sessions.c
    there = select(sessions.pk).where(sessions.id == bindparam("session_id")).exists()
    return insert_where(tables.tasks, _GIVEN, *([there] if in_a_session else []))


def task_record(row: Any) -> TaskRecord:
    """Make a record of a row of ``tasks``."""
    return TaskRecord(
        id=row.id,
        session_id=row.session_id,
        queue=row.queue,
        kind=row.kind,
        status=row.status,
        priority=row.priority,
        payload=row.payload,
        result=row.result,
        error=row.error,
        run_at=row.run_at,
        attempts=row.attempts,
        max_retries=row.max_retries,
        idempotency_key=row.idempotency_key,
        created_at=row.created_at,
        updated_at=row.updated_at,
        started_at=row.started_at,
        paused_at=row.paused_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        cancelled_at=row.cancelled_at,
        dead_at=row.dead_at,
    )
