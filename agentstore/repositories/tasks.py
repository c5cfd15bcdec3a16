"""Tasks, and the queue that workers claim them from.

```text
create             pending
claim, start       pending --> running
complete                       running --> completed
release            pending <-- running
fail, rescue       pending <-- running --> failed, dead
pause              pending ------> paused <------ running
resume             pending <------ paused
cancel             pending, running, paused --> cancelled
retry, requeue     pending <------ failed, dead
```

A failed attempt makes a claimed task pending again until its retries are used up; then it is
*dead*. A worker that holds a task is asked to cancel it; it stops and confirms.

A worker that claims a task gets a *lease*, which ends at some time unless a heartbeat renews it,
and a *fence* (a fencing token): a number that grows with every attempt.

```text
worker A   claim, fence 4 ... hangs ...........................  complete(fence=4): LeaseLost
           |------ lease ------|
worker B                        rescue, claim, fence 5 ... complete(fence=5): completed
```

The invariants: no two workers hold a task at the same time, and a write with an old fence changes
nothing. So a worker that was believed dead does no harm when it comes back.

This module has the methods; ``claims`` has the statements of the queue, checks, clocks and leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Executable,
    Select,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    update,
)

from agentstore.engines.base.dialect import EngineDialect, TaskSignal
from agentstore.errors import AlreadyExists, InvalidInput
from agentstore.execution.unit import Unit
from agentstore.records import Page, TaskBatch, TaskRecord
from agentstore.records.base import TaskStatus
from agentstore.repositories import operations, scopes
from agentstore.repositories.claims import (
    DEFAULT_LEASE,
    RUNNING,
    batch,
    claim_statement,
    clock_of,
    completed,
    current,
    due_statement,
    failed_attempt,
    find_task,
    get_task,
    in_order_of_claims,
    insert_statement,
    length,
    lock_held,
    make_task_record,
    move,
    names,
    now_of,
    pairs,
    records,
    renew,
    restart,
    settle,
    task_record,
    until,
    why_not,
)
from agentstore.repositories.listing import over_pages
from agentstore.repositories.operations import (
    MOST,
    Conditions,
    Only,
    Paged,
    Repository,
    appends,
    equal,
    given,
    one_page,
    reads,
    reads_primary,
    required,
    whose,
    writes,
)
from agentstore.repositories.session_pages import settle_failures
from agentstore.schema import Tables, session_not_being_deleted
from agentstore.values import validation
from agentstore.values.types import new_id, require_utc
from agentstore.values.validation import (
    DEFAULT_BACKOFF,
    DEFAULT_LIMIT,
    MAX_LIMIT,
    TASK_STATUSES,
    TASK_TRANSITIONS,
    Backoff,
    Cursors,
    check_limit,
    require_backoff,
    sources,
)

# Tasks: work to be done, and its life.


_MAX_PRIORITY = 2**31 - 1

_ABANDONED = "The lease ran out: the worker died, hung, or could not reach the database."


class Tasks(Repository):
    """The tasks, in a session or on their own.

    ``start``, ``complete`` and ``fail`` alone are enough where one program does its own tasks.
    Workers that share them ``claim`` them: such a task is held under a lease, and from then on
    only its holder, who passes its ``fence``, can complete it or make it fail.
    """

    __slots__ = ()

    @scopes.Guard(
        {"session_id": scopes.own_session, "idempotency_key": scopes.task_key},
        scopes.task_key_taken,
    )
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
            session_id: The session that it belongs to; None for a task on its own.
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
        if idempotency_key is not None:
            key = {name: row[name] for name in ("queue", "idempotency_key")}
            if (first := self.unit.first(_of_key, *key, **key)) is not None:
                if not first.stays:
                    raise AlreadyExists("idempotency key of a task", idempotency_key)
                return task_record(first)
        shape = self.unit.dialect, clock_of(self.unit), session_id is not None
        written = self.unit.first(insert_statement, *shape, **row, **now_of(self.unit))
        required(written, "session", session_id)
        return task_record(written)

    @scopes.TASK
    @reads
    def get(self, task_id: str) -> TaskRecord:
        """Give a task.

        Raises:
            NotFound: There is no such task.
        """
        return get_task(self.unit, task_id)

    @scopes.TASK
    @reads
    def find(self, task_id: str) -> TaskRecord | None:
        """Give a task, or None."""
        return find_task(self.unit, task_id)

    @scopes.SESSION
    @reads
    def list(
        self,
        *,
        session_id: str | None = None,
        status: TaskStatus | None = None,
        queue: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[TaskRecord]:
        """List tasks, the newest first, of a session, in a status, in a queue if given."""
        if status is not None:
            validation.choice("status", status, TASK_STATUSES)
        wanted = given(
            session_id=validation.optional_text("session_id", session_id),
            status=status,
            queue=validation.optional_text("queue", queue),
        )
        cursors, shape = Cursors("tasks", session_id, status, queue), (whose(self.unit), *wanted)
        return one_page(self.unit, _listed, wanted, cursors, limit, cursor, task_record, *shape)

    iter = over_pages(list)
    """Go over the tasks of all pages; see ``list``."""

    @scopes.SESSION
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
        wanted = given(
            session_id=validation.optional_text("session_id", session_id),
            queue=validation.optional_text("queue", queue),
        )
        rows = self.unit.rows(_counted, whose(self.unit), *wanted, only=self.unit.only, **wanted)
        found: dict[str, dict[str, int]] = {}
        for name, status, number in sorted(rows):
            found.setdefault(name, {})[status] = int(number)
        return found

    @scopes.TASK
    @appends
    def start(self, task_id: str) -> TaskRecord:
        """Go from pending to running, and count the attempt; nobody else can claim it then.

        There is no lease: if this process dies, the task stays running.

        Raises:
            IllegalTransition: The task is in a status from which it cannot.
            SessionBusy: It asked to be alone in its session, and is not.
            NotFound: There is no such task.
        """
        return move(self.unit, task_id, "running")

    @scopes.TASK
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
        fence = validation.optional_amount("fence", fence)
        return move(self.unit, task_id, "completed", holder=fence, held=True, result=document)

    @scopes.TASK
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
        """Record that the attempt failed, and why; secrets are redacted by the store's policy.

        A task that was claimed is pending again after a pause as long as ``failures`` does not
        exceed ``max_retries``, then dead. A task that was started with ``start``, or with
        ``retry=False``, is failed. If its cancellation was requested, it is cancelled.

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
            InvalidInput: An argument cannot be stored, or ``backoff`` is no ``Backoff``.
        """
        again, told = validation.flag("retry", retry), _without_secrets(self.unit, error)
        require_backoff(backoff)
        if fence is None:
            return move(self.unit, task_id, "failed", held=True, error=told)
        fences = {validation.text("task_id", task_id): validation.amount("fence", fence)}
        held, now = lock_held(self.unit, fences)
        if not held:
            raise why_not(self.unit, task_id, "failed", fence)
        row, task = held[0]
        end = failed_attempt(task, now, told, backoff if again else None)
        return settle(self.unit, [(row, task, end)], [task_id]).settled[0]

    @scopes.TASK
    @appends
    def pause(self, task_id: str) -> TaskRecord:
        """Go from pending or running to paused. Raises as ``start`` does.

        A task that a worker holds is taken away from it: the worker learns of it at its next
        heartbeat, and its later calls about the task are refused.
        """
        return move(self.unit, task_id, "paused")

    @scopes.TASK
    @appends
    def resume(self, task_id: str) -> TaskRecord:
        """Go from paused to pending. Raises as ``start`` does."""
        return move(self.unit, task_id, "pending", only_from=("paused",))

    @scopes.TASK
    @writes
    def retry(self, task_id: str) -> TaskRecord:
        """Go from failed or dead to pending, to be started again. Raises as ``start`` does.

        What failed before still counts: a dead task is given one more attempt. ``requeue`` gives
        dead tasks all their retries again.
        """
        task = move(self.unit, task_id, "pending", only_from=("failed", "dead"))
        settle_failures(self.unit, {task.session_id})
        return task

    @scopes.TASK
    @appends
    def cancel(self, task_id: str, *, fence: int | None = None) -> TaskRecord:
        """Go to cancelled from pending, running or paused. Raises as ``start`` does.

        A task that a worker holds keeps running, with ``cancel_requested``: the worker learns of
        it at its next heartbeat, and confirms by calling this with its fence. If it completes the
        task instead, that counts; if it fails, dies or gives it back, the task is cancelled.

        Args:
            task_id: The task.
            fence: The fence of the worker that holds the task, to confirm.

        Raises:
            LeaseLost: The caller with this fence does not hold the task any more.
        """
        if fence is not None:
            fence = validation.amount("fence", fence)
            return move(self.unit, task_id, "cancelled", only_from=("running",), holder=fence)
        shape = self.unit.dialect, clock_of(self.unit)
        cancelled = self.unit.first(_cancelling, *shape, task_id=task_id, **now_of(self.unit))
        if cancelled is None:
            raise why_not(self.unit, task_id, "cancelled")
        return task_record(cancelled)

    @scopes.WORKERS
    @appends
    def claim(
        self,
        worker: str,
        *,
        queues: str | Sequence[str] = "default",
        kinds: str | Sequence[str] | None = None,
        limit: int = 1,
        lease: float = DEFAULT_LEASE,
    ) -> tuple[TaskRecord, ...]:
        """Take tasks that are due, each with a lease and a fencing token.

        No task is given to two callers, however many ask at once, and no caller waits: tasks that
        another one is claiming are skipped.

        Args:
            worker: Who claims; for people, and for ``worker`` of the records.
            queues: From which queues, all alike: up to 100.
            kinds: Only tasks of these kinds; None means all.
            limit: How many at most, up to 1,000.
            lease: Seconds until the tasks are given to others if no heartbeat comes.

        Returns:
            The tasks, running now: highest priority first, then oldest. Empty if none is due.
            Of the tasks of a session that ask to be alone there is at most one, and none while
            another one runs.

        Raises:
            InvalidInput: An argument cannot be asked for.
        """
        named = names("queues", queues)
        wanted = None if kinds is None else names("kinds", kinds)
        asked = {
            "claimant": validation.key("worker", worker),
            "limit": check_limit(limit),
            **_asked(named, wanted),
            **until(self.unit, length(lease)),
        }
        shape = self.unit.dialect, clock_of(self.unit), len(named), len(wanted or ())
        rows = self.unit.rows(claim_statement, *shape, **asked)
        return tuple([make_task_record(*row[1:]) for row in sorted(rows, key=in_order_of_claims)])

    @scopes.TASK
    @appends
    def heartbeat(self, task_id: str, *, fence: int, lease: float = DEFAULT_LEASE) -> TaskRecord:
        """Renew the lease on a task.

        Args:
            task_id: The task.
            fence: ``fence`` of the record that ``claim`` returned.
            lease: Seconds from now until it runs out.

        Returns:
            The task. If ``cancel_requested``, stop and call ``cancel`` with the fence.

        Raises:
            LeaseLost: The caller does not hold the task any more: stop.
            NotFound: There is no such task.
        """
        fence = validation.amount("fence", fence)
        renewed = renew(self.unit, [(task_id, fence)], length(lease))
        if not renewed:
            raise why_not(self.unit, task_id, "running", fence)
        return renewed[0]

    @scopes.WORKERS
    @appends
    def heartbeat_many(
        self, held: Sequence[TaskRecord], *, lease: float = DEFAULT_LEASE
    ) -> TaskBatch:
        """Renew the leases on tasks, in one statement.

        Args:
            held: Records that ``claim`` returned, up to 1,000.
            lease: Seconds from now until they run out.
        """
        tasks = records("held", held)
        renewed = renew(self.unit, [(task.id, task.fence) for task in tasks], length(lease))
        return batch({task.id: task for task in renewed}, [task.id for task in tasks])

    @scopes.TASK
    @appends
    def release(self, task_id: str, *, fence: int) -> TaskRecord:
        """Give a task back, to be claimed by others at once; it does not count as a failure.

        Returns:
            The task: pending, or cancelled if that was asked for.

        Raises:
            LeaseLost: The caller does not hold the task any more.
            NotFound: There is no such task.
        """
        fence = validation.amount("fence", fence)
        return move(self.unit, task_id, "pending", only_from=("running",), holder=fence)

    @scopes.WORKERS
    @writes
    def complete_many(self, done: Sequence[tuple[TaskRecord, Any]]) -> TaskBatch:
        """Complete tasks with their results, in one transaction.

        Args:
            done: Records that ``claim`` returned, up to 1,000, each with its result, any JSON.

        Returns:
            The tasks that were completed, and the ids of those that were lost.

        Raises:
            InvalidJson: A result is not JSON; nothing was written.
        """
        given = pairs("done", done)
        results = {
            task.id: validation.document(f"done[{n}]", result)
            for n, (task, result) in enumerate(given)
        }
        held, now = lock_held(self.unit, {task.id: task.fence for task, _ in given})
        ends = [(row, task, completed(now, results[task.id])) for row, task in held]
        return settle(self.unit, ends, [task.id for task, _ in given])

    @scopes.WORKERS
    @writes
    def fail_many(
        self,
        failed: Sequence[tuple[TaskRecord, str | None]],
        *,
        retry: bool = True,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> TaskBatch:
        """Say that attempts failed, each with its error, in one transaction; see ``fail``.

        Args:
            failed: Records that ``claim`` returned, up to 1,000, each with what went wrong.
            retry: Whether trying again may help.
            backoff: How long to wait before.

        Returns:
            The tasks that were held, and the ids of those that were lost.
        """
        given = pairs("failed", failed)
        errors = {task.id: _without_secrets(self.unit, error) for task, error in given}
        again = validation.flag("retry", retry)
        require_backoff(backoff)
        held, now = lock_held(self.unit, {task.id: task.fence for task, _ in given})
        pause = backoff if again else None
        ends = [
            (row, task, failed_attempt(task, now, errors[task.id], pause)) for row, task in held
        ]
        return settle(self.unit, ends, [task.id for task, _ in given])

    @scopes.WORKERS
    @writes
    def rescue(
        self, *, limit: int = 100, backoff: Backoff = DEFAULT_BACKOFF
    ) -> tuple[TaskRecord, ...]:
        """Recover the tasks of all queues whose leases have run out.

        Each counts as a failed attempt: the task is pending again after a pause, or dead if it
        has no retries left, or cancelled if that was asked for. Workers call this now and then.

        If the clock was set back since a lease was given or renewed, the lease starts again now,
        with the length that it had.

        Args:
            limit: How many at most, up to 1,000.
            backoff: How long to wait before they are tried again.

        Returns:
            The tasks, as they are now, the longest overdue first, then the one that was created
            first.
        """
        check_limit(limit)
        require_backoff(backoff)
        restart(self.unit)
        rows = self.unit.rows(_overdue, clock_of(self.unit), most=limit, **now_of(self.unit))
        if not rows:
            return ()
        now = rows[0].now.astimezone(UTC)
        overdue = [(row.pk, task_record(row)) for row in rows]
        ends = [(pk, task, failed_attempt(task, now, _ABANDONED, backoff)) for pk, task in overdue]
        return settle(self.unit, ends, [task.id for _, task in overdue]).settled

    @scopes.WORKERS
    @writes
    def requeue(
        self, *, queue: str = "default", kind: str | None = None, limit: int = MAX_LIMIT
    ) -> int:
        """Make dead tasks pending again, the oldest first, with all their retries.

        Args:
            queue: Of which queue.
            kind: Only tasks of this kind; None means all.
            limit: How many at most, up to 1,000.

        Returns:
            How many were made pending.
        """
        dead = given(
            queue=validation.key("queue", queue), kind=validation.optional_key("kind", kind)
        )
        asked = {**dead, "most": check_limit(limit), **now_of(self.unit)}
        again = self.unit.rows(_requeueing, self.unit.dialect, clock_of(self.unit), *dead, **asked)
        settle_failures(self.unit, {task.session_id for task in again})
        return len(again)

    @scopes.WORKERS
    @reads_primary
    def due(
        self,
        *,
        queues: str | Sequence[str] = "default",
        kinds: str | Sequence[str] | None = None,
    ) -> float | None:
        """Give the seconds until a pending task is due: 0.0 if one is, None if there is none.

        Tasks that wait to be alone in their session count as the others do, so there may be
        nothing to claim although the answer is 0.0.
        """
        named = names("queues", queues)
        wanted = None if kinds is None else names("kinds", kinds)
        shape = clock_of(self.unit), len(named), len(wanted or ())
        asked = {**_asked(named, wanted), **now_of(self.unit)}
        row = self.unit.first(due_statement, *shape, **asked)
        return None if row is None else max(0.0, (row.run_at - row.now).total_seconds())

    @scopes.WORKERS
    @reads_primary
    def watch(self) -> TaskSignal:
        """Give what tells that tasks may have become claimable; ``Worker`` waits for it.

        It has a connection of its own, to the primary, from ``open()`` to ``close()``.
        """
        return self.unit.dialect.task_signal(self.connection, self.tables)


def _of_key(tables: Tables, *key: str) -> Select[Any]:
    tasks = tables.tasks
    stays = session_not_being_deleted(tables, tasks.c.session_id).label("stays")
    return select(tasks, stays).where(*equal(tasks.c, key))


def _cancelling(tables: Tables, dialect: EngineDialect, clock: EngineDialect | None) -> Executable:
    tasks, now = tables.tasks, current(clock)
    c = tasks.c
    held = (c.status == RUNNING) & c.lease_expires_at.is_not(None)
    ahead = held & (c.updated_at > now)  # what says that the clock was set back; see ``claims``
    query = (
        update(tasks)
        .where(
            c.id == bindparam("task_id"),
            c.status.in_([literal(each) for each in sources(TASK_TRANSITIONS, "cancelled")]),
            session_not_being_deleted(tables, c.session_id),
        )
        .values(
            status=case((held, RUNNING), else_=literal_column("'cancelled'")),
            cancel_requested=or_(c.cancel_requested, held),
            cancelled_at=case((held, c.cancelled_at), else_=now),
            updated_at=case((ahead, c.updated_at), else_=now),
        )
        .returning(*c)
    )
    return dialect.announcing(query, tables)


def _overdue(tables: Tables, clock: EngineDialect | None) -> Executable:
    tasks, now = tables.tasks, current(clock)
    query = select(*tasks.c, now.label("now")).where(
        tasks.c.status == RUNNING,
        tasks.c.lease_expires_at <= now,
        session_not_being_deleted(tables, tasks.c.session_id),
    )
    query = query.order_by(tasks.c.lease_expires_at, tasks.c.pk).limit(MOST)
    return query.with_for_update(skip_locked=True)


def _requeueing(
    tables: Tables, dialect: EngineDialect, clock: EngineDialect | None, *asked: str
) -> Executable:
    tasks, now = tables.tasks, current(clock)
    stays = session_not_being_deleted(tables, tasks.c.session_id)
    dead = select(tasks.c.pk).where(*equal(tasks.c, asked), tasks.c.status == "dead", stays)
    dead = dead.order_by(tasks.c.pk).limit(MOST).with_for_update(skip_locked=True)
    chosen = dead.cte("chosen").prefix_with("MATERIALIZED")
    query = (
        update(tasks)
        .where(tasks.c.pk.in_(select(chosen.c.pk)))
        .values(status="pending", failures=0, run_at=now, updated_at=now)
        .returning(*tasks.c)
    )
    return dialect.announcing(query, tables)


def _listed(tables: Tables, only: Only, *asked: str) -> Paged:
    tasks = tables.tasks
    return select(tasks).where(*_these(tables, only, *asked)), [tasks.c.pk]


def _counted(tables: Tables, only: Only, *asked: str) -> Select[Any]:
    key = tables.tasks.c.queue, tables.tasks.c.status
    return select(*key, func.count()).where(*_these(tables, only, *asked)).group_by(*key)


def _these(tables: Tables, only: Only, *asked: str) -> Conditions:
    """Give the conditions of tasks in a scope whose columns equal these parameters."""
    tasks = tables.tasks.c
    stays = session_not_being_deleted(tables, tasks.session_id)
    return [stays, *operations.sessions(tables, only, tasks.session_id), *equal(tasks, asked)]


def _asked(queues: list[str], kinds: list[str] | None) -> dict[str, Any]:
    """Give the parameters that name queues and kinds."""
    parameters: dict[str, Any] = {f"queue_{n}": queue for n, queue in enumerate(queues)}
    return parameters | {f"kind_{n}": kind for n, kind in enumerate(kinds or ())}


def _without_secrets(unit: Unit, error: object) -> str | None:
    """Check what went wrong, and take the secrets out of it."""
    secrets = unit.settings.secrets
    told = validation.optional_text("error", error)
    cleaned = secrets.apply(secrets.on_tool_logs, told, "error")
    return None if cleaned is None else str(cleaned)
