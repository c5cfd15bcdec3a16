"""The statements of the queue, each built once; and what an attempt's end does to a row.

Claiming is one statement on both engines. Where several callers can claim at the same moment,
the rows are locked in the order in which they are to be taken, and rows that somebody else has
locked are passed over; an engine with a single writer leaves that clause out.

Whose clock counts is said below; without one the parameter ``expires`` says when a lease ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    FromClause,
    Interval,
    Select,
    Table,
    and_,
    bindparam,
    case,
    cast,
    exists,
    false,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    type_coerce,
    union_all,
    update,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.errors import (
    AgentStoreError,
    IllegalTransition,
    InvalidInput,
    LeaseLost,
    SessionBusy,
    shown,
)
from agentstore.execution.unit import Unit
from agentstore.records import TaskBatch, TaskRecord
from agentstore.records.base import TaskStatus, complete, maker
from agentstore.repositories.operations import (
    MOST,
    among,
    changing,
    chunks,
    required,
    several,
)
from agentstore.repositories.session_pages import FAILED_TASKS, show_failures
from agentstore.schema import Tables, session_is_open, session_not_being_deleted
from agentstore.values import validation
from agentstore.values.encoding import load_json
from agentstore.values.types import SOUGHT_ID, Document, UtcDateTime, shifted, utc_now
from agentstore.values.validation import MAX_LIMIT, TASK_TRANSITIONS, Backoff, sources

# From one status to another: in one conditional statement, or the reason why not.


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
        SessionBusy: It asked to be alone in its session, and is not.
        NotFound: There is no such task.
    """
    asked = {"task_id": task_id, "holder": holder, **values, **now_of(unit)}
    shape = wanted, only_from, holder is not None, held, *values
    moved = unit.first(_moving, unit.dialect, clock_of(unit), *shape, **asked)
    if moved is None:
        raise why_not(unit, task_id, wanted, holder, held=held)
    if wanted == "failed":
        show_failures(unit, {moved.session_id})
    return task_record(moved)


def _moving(
    tables: Tables,
    dialect: EngineDialect,
    clock: EngineDialect | None,
    wanted: TaskStatus,
    only_from: tuple[TaskStatus, ...],
    fenced: bool,
    held: bool,
    *names: str,
) -> Executable:
    """Build the statement of ``move``; ``names`` are the other columns to set."""
    tasks, now = tables.tasks, current(clock)
    c, before = tasks.c, only_from or sources(TASK_TRANSITIONS, wanted)
    conditions = [
        c.id == bindparam("task_id"),
        c.status.in_([literal(status, c.status.type) for status in before]),
        session_not_being_deleted(tables, c.session_id),
    ]
    values: dict[str, Any] = {name: bindparam(name) for name in names}
    values |= {**_GIVEN_BACK, "status": wanted, "updated_at": now}
    if fenced:
        conditions.append(c.fence == bindparam("holder"))
    elif held:
        conditions.append(c.lease_expires_at.is_(None))
    if wanted == "running":
        conditions.append(or_(~c.alone_in_session, ~another_runs_alone(tasks, tasks)))
        values |= {"attempts": c.attempts + 1, "fence": c.fence + 1, "cancel_requested": false()}
    if wanted in STAMPS:
        values[STAMPS[wanted]] = now
    if wanted in ("paused", "pending"):
        values |= _unless_cancelled(tasks, now, values)
    query = update(tasks).where(*conditions).values(values).returning(*c)
    return dialect.announcing(query, tables)


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
        c = unit.tables.tasks.c
        alone = c.session_id == task.session_id, c.status == RUNNING, c.alone_in_session
        running = unit.connection.execute(select(c.id).where(*alone)).scalar()
        return SessionBusy(str(task.session_id), task.id, str(running))
    onward = TASK_TRANSITIONS[current]
    instead = _ONLY_BY.get(current, "") if wanted in onward else ""
    if not instead:
        onward -= {wanted}
    return IllegalTransition("task", task_id, current, wanted, tuple(sorted(onward)), instead)


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


# Whose clock says what the time is: one clock for every time in a task's row.
#
# It is the server's, if there is a server, so that a lease means the same to every worker,
# whatever their own clocks say. A store that was opened with a ``clock`` of its own uses that one
# instead; that is for tests.
#
# In statements that are built once, a *clock* is the dialect whose server's clock counts, or None:
# then the parameter ``now`` says what the time is.


def clock_of(unit: Unit) -> EngineDialect | None:
    """Give the clock that counts in a unit."""
    servers = unit.settings.clock is utc_now and unit.dialect.server_clock() is not None
    return unit.dialect if servers else None


def current(clock: EngineDialect | None) -> ColumnElement[Any]:
    """Give the present as an expression: the server's, or the parameter ``now``."""
    server = None if clock is None else clock.server_clock()
    return bindparam("now", type_=UtcDateTime()) if server is None else server


def now_of(unit: Unit) -> dict[str, datetime]:
    """Give the parameter ``now``, where the server's clock does not count."""
    return {"now": unit.now()} if clock_of(unit) is None else {}


# What the queue requires of its arguments.


DEFAULT_LEASE = 60.0
MAX_LEASE = 86_400.0
"""Seconds. A task that needs longer sends heartbeats."""

MAX_QUEUES = 100
"""Queues, or kinds, in one claim."""


def names(name: str, value: str | Sequence[str]) -> list[str]:
    """Require a queue or a kind, or several; sorted, each once."""
    if isinstance(value, str):
        return [validation.key(name, value)]
    several = isinstance(value, Iterable) and not isinstance(value, Mapping)
    given = [*islice(value, MAX_QUEUES + 1)] if several else []
    if not 1 <= len(given) <= MAX_QUEUES:
        raise InvalidInput(f"{name} must be a str, or a list of 1 to {MAX_QUEUES} of them.")
    return sorted({validation.key(name, each) for each in given})


def length(lease: object) -> timedelta:
    """Require the seconds of a lease: more than none, up to a day."""
    if isinstance(lease, bool) or not isinstance(lease, int | float):
        raise InvalidInput(f"lease must be a number of seconds, not {type(lease).__name__}.")
    if not 0 < lease <= MAX_LEASE:
        raise InvalidInput(
            f"lease must be more than 0 and up to {MAX_LEASE:.0f} seconds, not {shown(lease)}."
        )
    return timedelta(seconds=lease)


def records(name: str, tasks: object) -> list[TaskRecord]:
    """Require records of claimed tasks, each task once."""
    if not isinstance(tasks, list | tuple) or not all(isinstance(t, TaskRecord) for t in tasks):
        raise InvalidInput(f"{name} must be a list of the records that claim() returned.")
    if len(tasks) > MAX_LIMIT:
        raise InvalidInput(f"{name} must hold up to {MAX_LIMIT} tasks, not {len(tasks)}.")
    if len({task.id for task in tasks}) < len(tasks):
        raise InvalidInput(f"{name} must not hold a task twice.")
    return list(tasks)


def pairs(name: str, pairs: object) -> list[tuple[TaskRecord, Any]]:
    """Require pairs of a claimed task's record and something else."""
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in pairs
    ):
        raise InvalidInput(f"{name} must be a list of pairs: a record, and what came of it.")
    records(name, [task for task, _ in pairs])
    return list(pairs)


# Leases: renewed, found by their fences, ended; and started again after a clock was set back.
#
# A lease that has run out but was not taken away yet may still be renewed, or the task completed:
# nobody else can have begun meanwhile, because that changes the fence.
#
# None is held for longer than it was given for. A lease says when it ends, and with
# ``updated_at`` when it was given or renewed. If that is yet to come, the clock was set back
# meanwhile, and the end is as far away as that. Such a lease starts again now, with the length
# that it had: a dead worker's task is taken away after that, and a living one's heartbeat comes
# before.


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
    clock = clock_of(unit)
    held: list[tuple[int, TaskRecord]] = []
    now = None
    for ids in chunks(sorted(fences)):
        asked = several("id", ids)
        for row, *fields in unit.rows(_held, clock, len(asked), **asked):
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
    unit.each(_settling, [{"row": pk, **change} for pk, _, change in ends], *ends[0][2])
    settled = {task.id: changed(task, change) for _, task, change in ends}
    show_failures(unit, {t.session_id for t in settled.values() if t.status in FAILED_TASKS})
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


def restart(unit: Unit) -> None:
    """Start the leases again that were given at a time which is still in the future.

    Args:
        unit: In a write transaction. What others have locked is passed over.
    """
    leases = [
        {
            "pk": row.pk,
            "updated_at": row.now,
            "lease_expires_at": shifted(
                row.now, min(row.lease_expires_at - row.updated_at, _LONGEST)
            ),
        }
        for row in unit.rows(_given_later, clock_of(unit), most=_LATEST, **now_of(unit))
        if row.updated_at > row.now  # it may have been renewed since it was chosen
    ]
    if leases:
        unit.each(changing, leases, unit.tables.tasks, ("pk",), "updated_at", "lease_expires_at")


def _given_later(tables: Tables, clock: EngineDialect | None) -> Executable:
    """Select the leases that were given later than now."""
    tasks, now = tables.tasks, current(clock)
    leased = tasks.c.status == RUNNING, tasks.c.lease_expires_at > now
    latest = (
        select(tasks.c.pk, tasks.c.updated_at)
        .where(*leased)
        .order_by(tasks.c.lease_expires_at.desc())
        .limit(MOST)
        .cte("latest")
        .prefix_with("MATERIALIZED")
    )
    return (
        select(tasks.c.pk, tasks.c.lease_expires_at, tasks.c.updated_at, now.label("now"))
        .where(tasks.c.pk.in_(select(latest.c.pk).where(latest.c.updated_at > now)))
        .where(*leased)  # again: it may have ended since it was chosen
        .with_for_update(skip_locked=True)
    )


# The rows of tasks: found, and made records of.


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

FIELDS = tuple(field.name for field in dataclasses.fields(TaskRecord))
"""The fields of a task's record, in their order; each has a column of its name."""

fields_of: Callable[[Any], tuple[Any, ...]] = attrgetter(*FIELDS)
"""Gives the fields of a record, or of a row."""

make_task_record = maker(TaskRecord)
"""Makes a task of all its fields, faster than its constructor."""


def find_task(unit: Unit, task_id: str) -> TaskRecord | None:
    """Give a task, or None."""
    row = unit.first(_finding, task_id=task_id)
    return None if row is None else task_record(row)


def _finding(tables: Tables) -> Executable:
    tasks = tables.tasks
    stays = session_not_being_deleted(tables, tasks.c.session_id)
    return select(tasks).where(tasks.c.id == bindparam("task_id"), stays)


def get_task(unit: Unit, task_id: str) -> TaskRecord:
    """Give a task that must be there; raises NotFound."""
    return required(find_task(unit, task_id), "task", task_id)


def another_runs_alone(tasks: Table, of: FromClause) -> ColumnElement[bool]:
    """Say that a task which asked to be alone runs in the session of the row ``of``."""
    other = tasks.alias("running_alone")
    return exists().where(
        other.c.session_id == of.c.session_id, other.c.status == RUNNING, other.c.alone_in_session
    )


def task_record(row: Any) -> TaskRecord:
    """Make a record of a row of ``tasks``."""
    return complete(make_task_record(*fields_of(row)))


_PASSED_OVER = 500
"""How many tasks that others claim at this very moment a claim from several queues passes over
in each of them. Beyond that it may find fewer than there are, never a wrong one."""

_OF_FAILURES = ("run_at", "failed_at", "cancelled_at", "dead_at")
"""Columns that the end of a failed attempt may change, or leave."""

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

_POSITIONS = {field: position for position, field in enumerate(FIELDS)}


def insert_statement(
    tables: Tables, dialect: EngineDialect, clock: EngineDialect | None, in_session: bool
) -> Executable:
    """Insert a task if its session is there, or if it is in none; times by the leases' clock."""
    tasks, sessions = tables.tasks, tables.sessions.c
    now = current(clock)
    values: dict[str, ColumnElement[Any]] = {
        name: cast(bindparam(name, type_=tasks.c[name].type), tasks.c[name].type) for name in _GIVEN
    }
    values["run_at"] = func.coalesce(bindparam("run_at", type_=tasks.c.run_at.type), now)
    values |= {"created_at": now, "updated_at": now}
    row = select(*values.values())
    if in_session:
        there = (sessions.id == bindparam("session_id"), session_is_open(tables))
        row = row.where(select(sessions.pk).where(*there).exists())
    added = insert(tasks).from_select(list(values), row).returning(*tasks.c)
    return dialect.announcing(added, tables)


def claim_statement(
    tables: Tables, dialect: EngineDialect, clock: EngineDialect | None, queues: int, kinds: int
) -> Executable:
    """Take the first ``limit`` tasks that are due; parameters ``queue_0``, ..., ``kind_0``, ...

    It returns rows of ``pk`` and ``FIELDS``.
    """
    tasks, now = tables.tasks, current(clock)
    stays = session_not_being_deleted(tables, tasks.c.session_id)
    limit = bindparam("limit", type_=BigInteger, literal_execute=True)
    first = tasks.c.priority.desc(), tasks.c.pk
    if queues == 1:
        # In the order of the index, so that only what is taken is read.
        waiting = select(tasks.c.pk).where(*_due(dialect, tasks, now, ["queue_0"], kinds), stays)
        waiting = waiting.where(_may_start(dialect, tasks, now, ["queue_0"], kinds))
    else:
        names = [f"queue_{n}" for n in range(queues)]
        heads = [
            select(tasks.c.pk)
            .where(*_due(dialect, tasks, now, [name], kinds), stays)
            .where(_may_start(dialect, tasks, now, names, kinds))
            .order_by(*first)
            .limit(limit + _PASSED_OVER)
            .subquery()
            for name in names
        ]
        candidates = union_all(*(select(head.c.pk) for head in heads)).subquery()
        waiting = select(tasks.c.pk).where(
            tasks.c.pk.in_(select(candidates.c.pk)), tasks.c.status == PENDING
        )
    locked = waiting.order_by(*first).limit(limit).with_for_update(skip_locked=True)
    # Materialized: computed once, whatever the planner thinks of the join.
    chosen = locked.cte("chosen").prefix_with("MATERIALIZED")
    return (
        update(tasks)
        .where(tasks.c.pk.in_(select(chosen.c.pk)))
        .values(
            status="running",
            worker=bindparam("claimant", type_=tasks.c.worker.type),
            fence=tasks.c.fence + 1,
            attempts=tasks.c.attempts + 1,
            cancel_requested=false(),
            lease_expires_at=_expires(clock),
            started_at=now,
            updated_at=now,
        )
        .returning(*_record_columns(tasks))
    )


def due_statement(
    tables: Tables, clock: EngineDialect | None, queues: int, kinds: int
) -> Select[Any]:
    """Find when the next task is due, and the present."""
    tasks = tables.tasks
    stays = session_not_being_deleted(tables, tasks.c.session_id)
    earliest = []
    for n in range(queues):
        head = select(tasks.c.run_at).where(*_waiting(tasks, [f"queue_{n}"], kinds), stays)
        earliest.append(head.order_by(tasks.c.run_at).limit(1).subquery())
    found = union_all(*(select(head.c.run_at) for head in earliest)).subquery()
    query = select(found.c.run_at, current(clock).label("now"))
    return query.order_by(found.c.run_at).limit(1)


@lru_cache(maxsize=256)
def heartbeat_statement(tables: Tables, clock: EngineDialect | None) -> Any:
    """Renew what is held: parameters ``ids``, and ``held``, pairs of an id and a fence."""
    tasks = tables.tasks
    pair = tuple_(type_coerce(tasks.c.id, SOUGHT_ID), tasks.c.fence)
    pairs = pair.in_(bindparam("held", expanding=True))
    holding = (
        select(tasks.c.pk)
        # The ids apart, because not every engine finds pairs by an index.
        .where(tasks.c.id.in_(bindparam("ids", type_=SOUGHT_ID, expanding=True)), pairs)
        .where(tasks.c.status == RUNNING, session_not_being_deleted(tables, tasks.c.session_id))
        .order_by(tasks.c.pk)
        .with_for_update()
    )
    chosen = holding.cte("chosen").prefix_with("MATERIALIZED")
    return (
        update(tasks)
        .where(tasks.c.pk.in_(select(chosen.c.pk)))
        .values(lease_expires_at=_expires(clock), updated_at=current(clock))
        .returning(*tasks.c)
    )


def _held(tables: Tables, clock: EngineDialect | None, ids: int) -> Executable:
    """Lock the running tasks of so many ids, ``id_0``, ..., in the order of their creation.

    It gives rows of ``pk`` and ``FIELDS``, and the server's present where its clock counts.
    """
    tasks = tables.tasks
    return (
        select(*_record_columns(tasks), *(() if clock is None else (current(clock),)))
        .where(
            among(tasks.c.id, "id", ids),
            tasks.c.status == RUNNING,
            session_not_being_deleted(tables, tasks.c.session_id),
        )
        .order_by(tasks.c.pk)
        .with_for_update()
    )


def _settling(tables: Tables, *columns: str) -> Executable:
    """End the attempt of the row ``row``, with a value for each of these columns."""
    tasks = tables.tasks
    values: dict[str, Any] = {column: bindparam(column) for column in columns}
    this = tasks.c.pk == bindparam("row")
    return update(tasks).where(this).values(worker=null(), lease_expires_at=null(), **values)


def completed(now: datetime, result: Document | None) -> dict[str, Any]:
    """Say what is to change when an attempt succeeded; the lease ends too."""
    return {"status": "completed", "result": result, "updated_at": now, "completed_at": now}


def failed_attempt(
    task: TaskRecord, now: datetime, error: str | None, backoff: Backoff | None
) -> dict[str, Any]:
    """Say what the columns are to be when an attempt failed, the same columns for all.

    Args:
        task: The task, locked.
        now: The present, by the clock of the leases.
        error: What went wrong.
        backoff: How long to wait before the next attempt; None if there is to be none.
    """
    failures = task.failures + 1
    if task.cancel_requested:
        status = "cancelled"
    elif backoff is None:
        status = "failed"
    else:
        status = "pending" if failures <= task.max_retries else "dead"
    changes: dict[str, Any] = {column: getattr(task, column) for column in _OF_FAILURES}
    changes |= {"status": status, "failures": failures, "error": error, "updated_at": now}
    if status in STAMPS:
        changes[STAMPS[status]] = now
    if status == "pending" and backoff is not None:
        changes["run_at"] = shifted(now, backoff.pause(failures))
    return changes


def changed(task: TaskRecord, changes: dict[str, Any]) -> TaskRecord:
    """Make the record of a task after its attempt has ended."""
    values = list(fields_of(task))
    values[_POSITIONS["worker"]] = values[_POSITIONS["lease_expires_at"]] = None
    for name, value in changes.items():
        values[_POSITIONS[name]] = load_json(value) if type(value) is Document else value
    return make_task_record(*values)


def in_order_of_claims(row: tuple[Any, ...]) -> tuple[int, int]:
    """Give what to sort the rows of ``claim_statement`` by: the highest priority, the oldest."""
    return -row[1 + _POSITIONS["priority"]], row[0]


def _record_columns(tasks: Table) -> list[ColumnElement[Any]]:
    return [tasks.c.pk, *(tasks.c[field] for field in FIELDS)]


def _expires(clock: EngineDialect | None) -> ColumnElement[Any]:
    if clock is None:
        return bindparam("expires", type_=UtcDateTime())
    return current(clock) + bindparam("lease", type_=Interval())


def _waiting(tasks: FromClause, queues: list[str], kinds: int) -> list[ColumnElement[bool]]:
    """Give the conditions for a task that is pending in these queues."""
    queue = tasks.c.queue
    named = [bindparam(name, type_=queue.type) for name in queues]
    conditions = [
        tasks.c.status == PENDING,
        queue == named[0] if len(named) == 1 else or_(*(queue == name for name in named)),
    ]
    if kinds:
        kind = tasks.c.kind
        asked = [bindparam(f"kind_{n}", type_=kind.type) for n in range(kinds)]
        conditions.append(kind.in_(asked))
    return conditions


def _due(
    dialect: EngineDialect,
    tasks: FromClause,
    now: ColumnElement[Any],
    queues: list[str],
    kinds: int,
) -> list[ColumnElement[bool]]:
    # Found by the time they would have to be sorted, all of them, to take the first.
    run_at = dialect.only_checked(tasks.c.run_at)
    return [*_waiting(tasks, queues, kinds), run_at <= now]


def _may_start(
    dialect: EngineDialect, tasks: Any, now: ColumnElement[Any], queues: list[str], kinds: int
) -> ColumnElement[bool]:
    """Say that a task need not be alone, or is the one of its session whose turn it is.

    The unique index on running tasks is what keeps the promise. That only the first in line is
    ever a candidate is what keeps concurrent claims from running into it: the second one
    finds that row locked and passes over it, and no other row of the session is a candidate.
    """
    other = tasks.alias("before")
    in_front = or_(
        other.c.priority > tasks.c.priority,
        and_(other.c.priority == tasks.c.priority, other.c.pk < tasks.c.pk),
    )
    before = exists().where(
        other.c.session_id == tasks.c.session_id,
        other.c.alone_in_session,
        *_due(dialect, other, now, queues, kinds),
        in_front,
    )
    return or_(~tasks.c.alone_in_session, and_(~another_runs_alone(tasks, tasks), ~before))
