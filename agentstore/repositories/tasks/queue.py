"""The tasks as a queue: claiming them, holding them under a lease, handing them back.

A worker claims tasks, which gives it a lease and a fencing token on each, a number that no other
attempt of the task has. Until the lease runs out, or is renewed by a heartbeat, nobody else gets
the task; afterwards ``rescue`` makes it pending again, or dead. All that the worker says about
the task carries the token, and is refused with ``LeaseLost`` if another attempt has begun, or
the task was taken away. So a worker that was believed dead can do no harm when it comes back.

A lease that has run out but was not taken away yet may still be renewed, or the task completed:
nobody else can have begun meanwhile, because that changes the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select, update

from agentstore.engines.base.prepared import dialect_of
from agentstore.engines.base.protocol import EngineDialect
from agentstore.engines.base.signals import TaskSignal
from agentstore.models.leaving import session_stays
from agentstore.records import TaskBatch, TaskRecord
from agentstore.repositories.base.operations import appends, chunks, reads, writes
from agentstore.repositories.tasks.arguments import (
    DEFAULT_LEASE,
    names,
    pairs,
    records,
    seconds,
)
from agentstore.repositories.tasks.leases import begin_anew
from agentstore.repositories.tasks.rows import RUNNING, TaskRows, make_task_record, task_record
from agentstore.repositories.tasks.statements import (
    changed,
    claim_statement,
    completed,
    due_statement,
    failed_attempt,
    heartbeat_statement,
    held_parameters,
    held_statement,
    in_order_of_claims,
    settle_statement,
)
from agentstore.values import validation
from agentstore.values.backoff import DEFAULT_BACKOFF, Backoff
from agentstore.values.paging import MAX_LIMIT, check_limit

_ABANDONED = "The lease ran out: the worker died, hung, or could not reach the database."


class TaskQueue(TaskRows):
    """What workers do with tasks."""

    __slots__ = ()

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

        No task is given to two callers, however many ask at once, and nobody waits for anybody:
        what another one is just claiming is passed over.

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
        parameters = {
            "claimant": validation.key("worker", worker),
            "limit": check_limit(limit),
            **_asked(named, wanted),
            **self._until(lease),
        }
        statement = claim_statement(
            self.tables,
            self.unit.dialect,
            self._clock(),
            dialect_of(self.connection),
            len(named),
            len(wanted or ()),
        )
        rows = statement.fetch(self.connection, parameters)
        return tuple([make_task_record(*row[1:]) for row in sorted(rows, key=in_order_of_claims)])

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
        renewed = self._renew([(task_id, validation.amount("fence", fence))], lease)
        if not renewed:
            raise self._why_not(task_id, "running", fence)
        return renewed[0]

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
        renewed = self._renew([(task.id, task.fence) for task in tasks], lease)
        return _batch({task.id: task for task in renewed}, [task.id for task in tasks])

    @reads
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
        clock = self._clock()
        parameters = _asked(named, wanted)
        if clock is None:
            parameters["now"] = self.unit.now()
        statement = due_statement(self.tables, clock, len(named), len(wanted or ()))
        row = self.connection.execute(statement, parameters).first()
        return None if row is None else max(0.0, (row.run_at - row.now).total_seconds())

    @reads
    def watch(self) -> TaskSignal:
        """Give what tells that tasks may have become claimable; ``Worker`` waits for it.

        It has a connection of its own, from ``open()`` to ``close()``.
        """
        return self.unit.dialect.task_signal(self.connection, self.tables)

    @appends
    def release(self, task_id: str, *, fence: int) -> TaskRecord:
        """Give a task back, to be claimed by others at once; it does not count as a failure.

        Returns:
            The task: pending, or cancelled if that was asked for.

        Raises:
            LeaseLost: The caller does not hold the task any more.
            NotFound: There is no such task.
        """
        token = validation.amount("fence", fence)
        return self._move(task_id, "pending", only_from=("running",), token=token)

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
        held, now = self._held({task.id: task.fence for task, _ in given})
        ends = [(row, task, completed(now, results[task.id])) for row, task in held]
        return self._write(ends, [task.id for task, _ in given])

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
        errors = {task.id: self._error(error) for task, error in given}
        again = validation.flag("retry", retry)
        held, now = self._held({task.id: task.fence for task, _ in given})
        pause = backoff if again else None
        ends = [
            (row, task, failed_attempt(task, now, errors[task.id], pause)) for row, task in held
        ]
        return self._write(ends, [task.id for task, _ in given])

    @writes
    def rescue(
        self, *, limit: int = 100, backoff: Backoff = DEFAULT_BACKOFF
    ) -> tuple[TaskRecord, ...]:
        """Take away the tasks of all queues whose leases have run out.

        Each counts as a failed attempt: the task is pending again after a pause, or dead if it
        has no retries left, or cancelled if that was asked for. Workers call this now and then.

        A lease that was given or renewed at a time which is yet to come, because the clock was set
        back since, begins anew at the present.

        Args:
            limit: How many at most, up to 1,000.
            backoff: How long to wait before they are tried again.

        Returns:
            The tasks, as they are now, the longest overdue first.
        """
        tasks = self.tables.tasks
        check_limit(limit)
        begin_anew(self.unit, self._now())
        query = (
            select(*tasks.c, self._now().label("now"))
            .where(
                tasks.c.status == RUNNING,
                tasks.c.lease_expires_at <= self._now(),
                session_stays(self.tables, tasks.c.session_id),
            )
            .order_by(tasks.c.lease_expires_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        rows = self.connection.execute(query).all()
        if not rows:
            return ()
        now = rows[0].now.astimezone(UTC)
        overdue = [(row.pk, task_record(row)) for row in rows]
        ends = [(pk, task, failed_attempt(task, now, _ABANDONED, backoff)) for pk, task in overdue]
        return self._write(ends, [task.id for _, task in overdue]).settled

    @appends
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
        tasks = self.tables.tasks
        dead = select(tasks.c.pk).where(
            tasks.c.queue == validation.key("queue", queue),
            tasks.c.status == "dead",
            session_stays(self.tables, tasks.c.session_id),
        )
        if kind is not None:
            dead = dead.where(tasks.c.kind == validation.key("kind", kind))
        dead = dead.order_by(tasks.c.pk).limit(check_limit(limit)).with_for_update(skip_locked=True)
        now = self._now()
        chosen = dead.cte("chosen").prefix_with("MATERIALIZED")
        query = (
            update(tasks)
            .where(tasks.c.pk.in_(select(chosen.c.pk)))
            .values(status="pending", failures=0, run_at=now, updated_at=now)
            .returning(*tasks.c)
        )
        statement = self.unit.dialect.announcing(query, self.tables)
        return len(self.connection.execute(statement).all())

    def _error(self, error: str | None) -> str | None:
        """Check what went wrong, and take the secrets out of it."""
        secrets = self.unit.settings.secrets
        cleaned = secrets.apply(
            secrets.on_tool_logs, validation.optional_text("error", error), "error"
        )
        return None if cleaned is None else str(cleaned)

    def _fail_held(
        self, task_id: str, error: str | None, fence: int, *, retry: bool, backoff: Backoff
    ) -> TaskRecord:
        """Settle a failed attempt of the holder's."""
        again, cleaned = validation.flag("retry", retry), self._error(error)
        held, now = self._held({task_id: validation.amount("fence", fence)})
        if not held:
            raise self._why_not(task_id, "failed", fence)
        row, task = held[0]
        change = failed_attempt(task, now, cleaned, backoff if again else None)
        return self._write([(row, task, change)], [task_id]).settled[0]

    def _clock(self) -> EngineDialect | None:
        """Give whose clock counts, for statements that are built once: the server's, or None."""
        return None if self._server_clock() is None else self.unit.dialect

    def _until(self, lease: float) -> dict[str, Any]:
        """Give the parameters that say when a lease of so many seconds, from now on, ends."""
        ahead = timedelta(seconds=seconds("lease", lease))
        if self._server_clock() is not None:
            return {"lease": ahead}
        now = self.unit.now()
        return {"now": now, "expires": now + ahead}

    def _renew(self, held: list[tuple[str, int]], lease: float) -> list[TaskRecord]:
        ending = self._until(lease)
        if not held:
            return []
        statement = heartbeat_statement(self.tables, self._clock())
        ids = [id for id, _ in held]
        rows = self.connection.execute(statement, {"ids": ids, "held": held, **ending})
        return [task_record(row) for row in rows]

    def _held(self, fences: dict[str, int]) -> tuple[list[tuple[int, TaskRecord]], datetime]:
        """Lock those tasks that are held with these fences; give them, their ``pk``, and the time.

        In the order of their creation, as heartbeats do, so that the two never wait crosswise.
        """
        clock, driver = self._clock(), dialect_of(self.connection)
        held: list[tuple[int, TaskRecord]] = []
        now = None
        for ids in chunks(sorted(fences)):
            parameters = held_parameters(ids)
            statement = held_statement(self.tables, clock, driver, len(parameters))
            for row, *fields in statement.fetch(self.connection, parameters):
                if clock is not None:
                    found = fields.pop().astimezone(UTC)
                    now = now or found
                task = make_task_record(*fields)
                if task.fence == fences[task.id]:
                    held.append((row, task))
        return held, now or self.unit.now()

    def _write(
        self, ends: Sequence[tuple[int, TaskRecord, dict[str, Any]]], asked: list[str]
    ) -> TaskBatch:
        """Write what was decided about locked tasks, each with its ``pk``, and tell the workers."""
        if not ends:
            return _batch({}, asked)
        statement = settle_statement(self.tables, dialect_of(self.connection), tuple(ends[0][2]))
        statement.execute_many(self.connection, [{"row": pk, **change} for pk, _, change in ends])
        settled = {task.id: changed(task, change) for _, task, change in ends}
        told = {task.queue for task in settled.values() if task.status == "pending"}
        if any(task.alone_in_session for task in settled.values()):
            told = {""}
        self.unit.dialect.announce(self.connection, self.tables, told)
        return _batch(settled, asked)


def _batch(settled: dict[str, TaskRecord], asked: list[str]) -> TaskBatch:
    return TaskBatch(
        tuple(settled[id] for id in asked if id in settled),
        tuple(id for id in asked if id not in settled),
    )


def _asked(queues: list[str], kinds: list[str] | None) -> dict[str, Any]:
    """Give the parameters that name queues and kinds."""
    parameters: dict[str, Any] = {f"queue_{n}": queue for n, queue in enumerate(queues)}
    return parameters | {f"kind_{n}": kind for n, kind in enumerate(kinds or ())}
