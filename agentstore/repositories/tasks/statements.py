"""The statements of the queue, each built once; and what an attempt's end does to a row.

Claiming is one statement on both engines. Where several callers can claim at the same moment,
the rows are locked in the order in which they are to be taken, and rows that somebody else has
locked are passed over; an engine with a single writer leaves that clause out.

What a clock is, is said in ``clock``; without one the parameter ``expires`` says when a lease ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Executable,
    FromClause,
    Interval,
    Select,
    Table,
    and_,
    bindparam,
    cast,
    exists,
    false,
    func,
    insert,
    null,
    or_,
    select,
    tuple_,
    type_coerce,
    union_all,
    update,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared
from agentstore.models.deleting import session_is_open, session_stays
from agentstore.models.tables import Tables
from agentstore.records import TaskRecord
from agentstore.repositories.tasks.clock import current
from agentstore.repositories.tasks.rows import (
    FIELDS,
    PENDING,
    RUNNING,
    STAMPS,
    another_runs_alone,
    fields_of,
    make_task_record,
)
from agentstore.values.backoff import Backoff
from agentstore.values.encoding import load_json
from agentstore.values.instants import shifted
from agentstore.values.own_ids import SOUGHT_ID
from agentstore.values.types import Document, UtcDateTime

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


@lru_cache(maxsize=256)
def insert_statement(
    tables: Tables, dialect: EngineDialect, clock: EngineDialect | None, *, in_session: bool
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


@lru_cache(maxsize=1024)
def claim_statement(
    tables: Tables,
    dialect: EngineDialect,
    clock: EngineDialect | None,
    driver: Dialect,
    queues: int,
    kinds: int,
) -> Prepared:
    """Take the first ``limit`` tasks that are due; parameters ``queue_0``, ..., ``kind_0``, ...

    It returns rows of ``pk`` and ``FIELDS``.
    """
    tasks, now = tables.tasks, current(clock)
    stays = session_stays(tables, tasks.c.session_id)
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
    taken = (
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
    return Prepared(taken, driver)


@lru_cache(maxsize=1024)
def due_statement(
    tables: Tables, clock: EngineDialect | None, queues: int, kinds: int
) -> Select[Any]:
    """Find when the next task is due, and the present."""
    tasks = tables.tasks
    stays = session_stays(tables, tasks.c.session_id)
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
        .where(tasks.c.status == RUNNING, session_stays(tables, tasks.c.session_id))
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


@lru_cache(maxsize=256)
def held_statement(
    tables: Tables, clock: EngineDialect | None, driver: Dialect, ids: int
) -> Prepared:
    """Lock the running tasks of so many ids, ``id_0``, ..., in the order of their creation.

    It gives rows of ``pk`` and ``FIELDS``, and the server's present where its clock counts.
    """
    tasks = tables.tasks
    named = [bindparam(f"id_{n}", type_=SOUGHT_ID) for n in range(ids)]
    query = (
        select(*_record_columns(tasks), *(() if clock is None else (current(clock),)))
        .where(
            tasks.c.id.in_(named),
            tasks.c.status == RUNNING,
            session_stays(tables, tasks.c.session_id),
        )
        .order_by(tasks.c.pk)
        .with_for_update()
    )
    return Prepared(query, driver)


def held_parameters(ids: Sequence[str]) -> dict[str, str]:
    """Give the parameters of ``held_statement``: as many as the next power of two.

    So there are few statements, whatever the sizes of batches; an id twice finds a task once.
    """
    size = 1 << (len(ids) - 1).bit_length()
    return {f"id_{n}": ids[min(n, len(ids) - 1)] for n in range(size)}


@lru_cache(maxsize=256)
def settle_statement(tables: Tables, driver: Dialect, columns: tuple[str, ...]) -> Prepared:
    """End the attempt of the row ``row``, with a value for each of these columns."""
    tasks = tables.tasks
    values = {column: bindparam(column, type_=tasks.c[column].type) for column in columns}
    query = (
        update(tasks)
        .where(tasks.c.pk == bindparam("row", type_=tasks.c.pk.type))
        .values(worker=null(), lease_expires_at=null(), **values)
    )
    return Prepared(query, driver)


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
