"""Tasks: work to be done, and its life."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from agentstore.engines.base.protocol import EngineDialect
from agentstore.errors import AlreadyExists, InvalidInput, NotFound, shown
from agentstore.models.leaving import session_is_open, session_stays
from agentstore.models.tables import Tables
from agentstore.records import Page, TaskRecord
from agentstore.repositories.base import scoping
from agentstore.repositories.base.operations import appends, one_page, reads, writes
from agentstore.repositories.tasks.queue import TaskQueue
from agentstore.repositories.tasks.rows import RUNNING, task_record
from agentstore.repositories.tasks.statements import current
from agentstore.values import validation
from agentstore.values.backoff import DEFAULT_BACKOFF, Backoff
from agentstore.values.ids import new_id
from agentstore.values.paging import DEFAULT_LIMIT, Cursors
from agentstore.values.states import TASK_STATUSES, TASK_TRANSITIONS, sources
from agentstore.values.types import require_utc

_MAX_PRIORITY = 2**31 - 1


class Tasks(TaskQueue):
    """The tasks, in a session or on their own.

    ``start``, ``complete`` and ``fail`` alone are enough where one program does its own tasks.
    Workers that share them ``claim`` them: such a task is held under a lease, and from then on
    only its holder, who passes its ``fence``, can complete it or make it fail.
    """

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
        alone_in_session: bool = False,
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
            run_at: When it may be started at the earliest; None means now, by the clock that
                leases go by.
            max_retries: How often a failed attempt may be repeated. That a worker dies is one:
                with 0 the task is dead then.
            queue: Which workers take it.
            alone_in_session: Whether it waits while another task of its session that asked for
                the same runs.
            idempotency_key: Unique in its queue: a repeated call returns the first one's task.

        Raises:
            NotFound: There is no such session, or it is being deleted.
            AlreadyExists: The idempotency key is that of a task whose user is being deleted.
            NaiveDatetime: ``run_at`` has no time zone.
            InvalidInput: An argument cannot be stored.
        """
        row = {
            "id": new_id(),
            "session_id": validation.optional_text("session_id", session_id),
            "queue": validation.key("queue", queue),
            "kind": validation.key("kind", kind),
            "priority": validation.amount(
                "priority", priority, least=-_MAX_PRIORITY, most=_MAX_PRIORITY
            ),
            "payload": validation.document("payload", payload),
            "run_at": None if run_at is None else require_utc("run_at", run_at),
            "max_retries": validation.amount("max_retries", max_retries, most=_MAX_PRIORITY),
            "alone_in_session": validation.flag("alone_in_session", alone_in_session),
            "idempotency_key": validation.optional_key("idempotency_key", idempotency_key),
        }
        if alone_in_session and session_id is None:
            raise InvalidInput("alone_in_session needs a session: pass the session_id.")
        tasks = self.tables.tasks
        if idempotency_key is not None:
            stays = session_stays(self.tables, tasks.c.session_id).label("stays")
            query = select(tasks, stays).where(
                tasks.c.queue == queue, tasks.c.idempotency_key == idempotency_key
            )
            if (first := self.connection.execute(query).first()) is not None:
                if not first.stays:
                    raise AlreadyExists("idempotency key of a task", idempotency_key)
                return task_record(first)
        clock = self._clock()
        if clock is None:
            row["now"] = self.unit.now()
        statement = _insert(self.tables, self.unit.dialect, clock, sessionless=session_id is None)
        written = self.connection.execute(statement, row).first()
        if written is None:
            raise NotFound("session", session_id)
        return task_record(written)

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
        query = select(tasks).where(
            session_stays(self.tables, tasks.c.session_id),
            *scoping.sessions(self.unit, tasks.c.session_id),
        )
        if session_id is not None:
            query = query.where(tasks.c.session_id == validation.text("session_id", session_id))
        if status is not None:
            if status not in TASK_STATUSES:
                raise InvalidInput(
                    f"status is {shown(status)}; use one of {', '.join(TASK_STATUSES)}."
                )
            query = query.where(tasks.c.status == status)
        if queue is not None:
            query = query.where(tasks.c.queue == validation.text("queue", queue))
        cursors = Cursors("tasks", session_id, status, queue)
        return one_page(self.connection, query, [tasks.c.pk], cursors, limit, cursor, task_record)

    @reads
    def count(
        self, *, session_id: str | None = None, queue: str | None = None
    ) -> dict[str, dict[str, int]]:
        """Count tasks: for each queue, how many are in which status; what is 0 is left out.

        Reads an index of all tasks, or of those of the session or the queue.

        Args:
            session_id: Only this session's.
            queue: Only this queue's.
        """
        tasks = self.tables.tasks.c
        query = select(tasks.queue, tasks.status, func.count()).group_by(tasks.queue, tasks.status)
        query = query.where(
            session_stays(self.tables, tasks.session_id),
            *scoping.sessions(self.unit, tasks.session_id),
        )
        if session_id is not None:
            query = query.where(tasks.session_id == validation.text("session_id", session_id))
        if queue is not None:
            query = query.where(tasks.queue == validation.text("queue", queue))
        found: dict[str, dict[str, int]] = {}
        for name, status, number in sorted(map(tuple, self.connection.execute(query))):
            found.setdefault(name, {})[status] = int(number)
        return found

    @appends
    def start(self, task_id: str) -> TaskRecord:
        """Go from pending to running, and count the attempt; nobody else can claim it then.

        There is no lease: if this process dies, the task stays running.

        Raises:
            IllegalTransition: The task is in a status from which it cannot.
            SessionOccupied: It asked to be alone in its session, and is not.
            NotFound: There is no such task.
        """
        c = self.tables.tasks.c
        return self._move(
            task_id,
            "running",
            attempts=c.attempts + 1,
            fence=c.fence + 1,
            cancel_requested=False,
        )

    @appends
    def complete(self, task_id: str, result: Any = None, *, fence: int | None = None) -> TaskRecord:
        """Go from running to completed, with a result, any JSON.

        Args:
            task_id: The task.
            result: What came of it.
            fence: ``fence`` of the record that ``claim`` returned, if it was claimed.

        Raises:
            LeaseLost: Somebody else holds the task, or nobody does any more.
            IllegalTransition: The task is not running.
            NotFound: There is no such task.
        """
        document = validation.document("result", result)
        return self._move(task_id, "completed", token=fence, held=True, result=document)

    @writes
    def fail(
        self,
        task_id: str,
        error: str | None = None,
        *,
        fence: int | None = None,
        retry: bool = True,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> TaskRecord:
        """Say that the attempt failed, and with what; secrets are redacted by the store's policy.

        A task that was claimed is pending again after a pause as long as ``failures`` does not
        exceed ``max_retries``, and dead then. One that was started with ``start``, or that there
        is no use in retrying, is failed. If its cancellation was asked for it is cancelled.

        Args:
            task_id: The task.
            error: What went wrong.
            fence: ``fence`` of the record that ``claim`` returned, if it was claimed.
            retry: Whether trying again may help.
            backoff: How long to wait before.

        Raises:
            LeaseLost: Somebody else holds the task, or nobody does any more.
            IllegalTransition: The task is not running.
            NotFound: There is no such task.
            SecretRefused: A secret was found and the policy refuses it.
        """
        if fence is not None:
            return self._fail_held(task_id, error, fence, retry=retry, backoff=backoff)
        return self._move(task_id, "failed", held=True, error=self._error(error))

    @appends
    def pause(self, task_id: str) -> TaskRecord:
        """Go from pending or running to paused. Raises as ``start`` does.

        A task that a worker holds is taken away from it: the worker hears of it by its next
        heartbeat, and what it still does for the task is refused.
        """
        return self._move(task_id, "paused")

    @appends
    def resume(self, task_id: str) -> TaskRecord:
        """Go from paused to pending. Raises as ``start`` does."""
        return self._move(task_id, "pending", only_from=("paused",))

    @appends
    def retry(self, task_id: str) -> TaskRecord:
        """Go from failed or dead to pending, to be started again. Raises as ``start`` does.

        What failed before still counts: a dead task is given one more attempt. ``requeue`` gives
        dead tasks all their retries again.
        """
        return self._move(task_id, "pending", only_from=("failed", "dead"))

    @appends
    def cancel(self, task_id: str, *, fence: int | None = None) -> TaskRecord:
        """Go to cancelled from pending, running or paused. Raises as ``start`` does.

        A task that a worker holds goes on running, with ``cancel_requested``: the worker hears of
        it by its next heartbeat, and confirms by calling this with its fence. If it completes the
        task instead, that counts; if it fails, dies or gives it back, the task is cancelled.

        Args:
            task_id: The task.
            fence: Of whoever holds the task, to confirm.

        Raises:
            LeaseLost: The caller with this fence does not hold the task any more.
        """
        if fence is not None:
            return self._move(task_id, "cancelled", only_from=("running",), token=fence)
        c = self.tables.tasks.c
        now = self._now()
        held = (c.status == RUNNING) & c.lease_expires_at.is_not(None)
        ahead = held & (c.updated_at > now)  # what says that the clock was set back; see ``leases``
        query = (
            update(self.tables.tasks)
            .where(
                c.id == task_id,
                c.status.in_(sources(TASK_TRANSITIONS, "cancelled")),
                session_stays(self.tables, c.session_id),
            )
            .values(
                status=case((held, RUNNING), else_=literal_column("'cancelled'")),
                cancel_requested=or_(c.cancel_requested, held),
                cancelled_at=case((held, c.cancelled_at), else_=now),
                updated_at=case((ahead, c.updated_at), else_=now),
            )
            .returning(*c)
        )
        statement = self.unit.dialect.announcing(query, self.tables)
        cancelled = self.connection.execute(statement).first()
        if cancelled is None:
            raise self._why_not(task_id, "cancelled")
        return task_record(cancelled)


_GIVEN = (
    "id",
    "session_id",
    "queue",
    "kind",
    "priority",
    "payload",
    "max_retries",
    "alone_in_session",
    "idempotency_key",
)
"""The columns that a new task has a say in; the others have defaults, or are times."""


@lru_cache(maxsize=64)
def _insert(
    tables: Tables, dialect: EngineDialect, clock: EngineDialect | None, *, sessionless: bool
) -> Executable:
    """Insert a task if its session is there, or if it has none; times by the leases' clock."""
    tasks, sessions = tables.tasks, tables.sessions.c
    now = current(clock)
    values: dict[str, ColumnElement[Any]] = {
        name: cast(bindparam(name, type_=tasks.c[name].type), tasks.c[name].type) for name in _GIVEN
    }
    values["run_at"] = func.coalesce(bindparam("run_at", type_=tasks.c.run_at.type), now)
    values |= {"created_at": now, "updated_at": now}
    row = select(*values.values())
    if not sessionless:
        there = (sessions.id == bindparam("session_id"), session_is_open(tables))
        row = row.where(select(sessions.pk).where(*there).exists())
    added = insert(tasks).from_select(list(values), row).returning(*tasks.c)
    return dialect.announcing(added, tables)
