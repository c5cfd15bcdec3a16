"""Counting what a retention policy would delete, exactly, without a lock and in bounded memory.

It has to agree with ``pruning``, where a row goes with the first rule
that dooms it: what belongs to a session that would go is counted with the session, and no other
rule counts it again. Memory holds a page of rows, and of the checkpoints one thread's lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, literal, or_, select, tuple_

from agentstore.engines.base.protocol import Mode
from agentstore.execution.unit import Unit
from agentstore.models.leaving import owner_stays
from agentstore.records import PruneReport
from agentstore.repositories.base.operations import window
from agentstore.repositories.base.units import Units
from agentstore.repositories.upkeep.erasing import unfinished
from agentstore.repositories.upkeep.expiry import is_closed
from agentstore.repositories.upkeep.owned_counts import count_of_sessions, count_of_user
from agentstore.repositories.upkeep.pruning_terms import (
    PAGE,
    Progress,
    Terms,
    doomed_checkpoint,
    doomed_idle,
    doomed_sessions,
    doomed_task,
    has_expired,
    idle_messages,
    is_milestone,
    walked,
)

_SESSIONS = 100
"""Sessions that are counted together."""


class _Counts:
    """What was counted so far."""

    def __init__(self, tell: Progress) -> None:
        self.rows: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self._tell = tell

    def add(self, rule: str, things: int, rows: dict[str, int]) -> None:
        self.rules[rule] += things
        self.rows.update(rows)
        self._tell(rule, self.rules[rule])


def preview(units: Units, terms: Terms, tell: Progress) -> PruneReport:
    """Count what would go; see ``Store.prune``."""
    policy, counts = terms.policy, _Counts(tell)
    for user_id in units.run(Mode.READ, unfinished):
        _user(units, terms, counts, user_id)
    _sessions(units, terms, counts)
    if policy.tool_logs is not None:
        _tool_logs(units, terms, counts)
    if policy.prunes_checkpoints:
        _checkpoints(units, terms, counts)
    if policy.finished_tasks is not None:
        _tasks(units, terms, counts)
    if policy.reservations is not None:
        gone: int = units.run(Mode.READ, _reservations, terms=terms)
        counts.add("reservations", gone, {"quota_reservations": gone})
    if policy.streams is not None:
        _streams(units, terms, counts)
    return PruneReport(
        rows=dict(sorted((+counts.rows).items())),
        rules=dict(+counts.rules),
        freed_bytes=0,
        dry_run=True,
    )


# --- Users and sessions ----------------------------------------------------------------------


def _user(units: Units, terms: Terms, counts: _Counts, user_id: str) -> None:
    """Count what is left of a user who is being deleted."""
    after: int | None = 0
    while after is not None:
        ids, after = units.run(Mode.SNAPSHOT, _theirs, user_id=user_id, after=after)
        _count_sessions(units, terms, counts, ids, of_users=True)
    rows = units.run(Mode.SNAPSHOT, count_of_user, user_id=user_id)
    counts.add("users", 1, rows)


def _theirs(unit: Unit, user_id: str, after: int) -> tuple[list[str], int | None]:
    sessions = unit.tables.sessions.c
    query = select(sessions.id, sessions.activity)
    query = query.where(sessions.user_id == user_id, sessions.activity > after)
    rows = unit.connection.execute(query.order_by(sessions.activity).limit(PAGE)).all()
    return [row.id for row in rows], rows[-1].activity if len(rows) == PAGE else None


def _sessions(units: Units, terms: Terms, counts: _Counts) -> None:
    place: tuple[datetime, int] | None = None
    while True:
        ids, place = units.run(Mode.SNAPSHOT, _expired, terms=terms, place=place)
        _count_sessions(units, terms, counts, ids)
        if place is None:
            break
    after: int | None = 0 if terms.policy.sessions_idle is not None else None
    while after is not None:
        ids, after = units.run(Mode.SNAPSHOT, _idle, terms=terms, after=after)
        _count_sessions(units, terms, counts, ids)


def _expired(
    unit: Unit, terms: Terms, place: tuple[datetime, int] | None
) -> tuple[list[str], tuple[datetime, int] | None]:
    """Give the next sessions that have expired, or are closed, and where to go on."""
    sessions = unit.tables.sessions.c
    query = select(
        sessions.id,
        sessions.pk,
        sessions.active_branch,
        sessions.expires_at,
        sessions.ttl_seconds,
        sessions.last_active_at,
    ).where(sessions.expires_at <= terms.now, owner_stays(unit.tables, sessions.user_id))
    if place is not None:
        here, pk = place
        later = and_(sessions.expires_at == here, sessions.pk > pk)
        query = query.where(sessions.expires_at >= here)
        query = query.where(or_(sessions.expires_at > here, later))
    rows = unit.connection.execute(
        query.order_by(sessions.expires_at, sessions.pk).limit(PAGE)
    ).all()
    ids = [row.id for row in rows if _goes_by_itself(row, terms)]
    return ids, (rows[-1].expires_at, rows[-1].pk) if len(rows) == PAGE else None


def _goes_by_itself(session: Any, terms: Terms) -> bool:
    expired = terms.policy.expired_sessions and has_expired(session, terms.now)
    return is_closed(session) or expired


def _idle(unit: Unit, terms: Terms, after: int) -> tuple[list[str], int | None]:
    sessions = unit.tables.sessions
    c = sessions.c
    columns = [c.pk, c.id, c.active_branch, c.ttl_seconds, c.last_active_at]
    doomed = (doomed_idle(unit.tables, terms), owner_stays(unit.tables, c.user_id))
    rows, edge = walked(unit, sessions, columns, after, [], *doomed)
    return [row.id for row in rows if not _goes_by_itself(row, terms)], edge


def _count_sessions(
    units: Units, terms: Terms, counts: _Counts, ids: Sequence[str], *, of_users: bool = False
) -> None:
    for start in range(0, len(ids), _SESSIONS):
        some = [*ids[start : start + _SESSIONS]]
        rows = units.run(Mode.SNAPSHOT, _all_of, terms=terms, ids=some)
        rule, things = ("users", 0) if of_users else ("sessions", len(some))
        counts.add(rule, things, rows)


def _all_of(unit: Unit, terms: Terms, ids: list[str]) -> dict[str, int]:
    rows = count_of_sessions(unit, ids)
    rows["blobs"] = sum(
        _goes_with(unit, terms, digest, pk) for digest, pk in _last_attached(unit, ids)
    )
    return rows


def _last_attached(unit: Unit, ids: list[str]) -> Sequence[Any]:
    """Give the blobs of which the last attachment is one of these sessions', with its number: so
    each is met once, however many sessions have it.
    """
    attachments = unit.tables.attachments
    later = attachments.alias("later")
    another = select(later.c.pk).where(
        later.c.digest == attachments.c.digest, later.c.pk > attachments.c.pk
    )
    query = select(attachments.c.digest, attachments.c.pk)
    query = query.where(attachments.c.session_id.in_(ids), ~another.exists())
    return unit.connection.execute(query).all()


def _goes_with(unit: Unit, terms: Terms, digest: str, last: int) -> bool:
    """Say whether all who have attached a blob would go."""
    attachments = unit.tables.attachments.c
    before = last + 1
    while True:
        query = select(attachments.pk, attachments.session_id)
        query = query.where(attachments.digest == digest, attachments.pk < before)
        rows = unit.connection.execute(query.order_by(attachments.pk.desc()).limit(PAGE)).all()
        owners = {row.session_id for row in rows}
        if owners - doomed_sessions(unit, terms, sorted(owners)):
            return False
        if len(rows) < PAGE:
            return True
        before = rows[-1].pk


def _staying(unit: Unit, terms: Terms, owners: Sequence[str | None]) -> int:
    """Count the rows whose session stays, or that have none."""
    doomed = doomed_sessions(unit, terms, sorted({owner for owner in owners if owner is not None}))
    return sum(owner not in doomed for owner in owners)


# --- Tool logs, tasks, reservations, streams ---------------------------------------------------


def _tool_logs(units: Units, terms: Terms, counts: _Counts) -> None:
    place: tuple[datetime, int] | None = None
    while True:
        gone, place = units.run(Mode.SNAPSHOT, _old_logs, terms=terms, place=place)
        counts.add("tool_logs", gone, {"tool_logs": gone})
        if place is None:
            break


def _old_logs(
    unit: Unit, terms: Terms, place: tuple[datetime, int] | None
) -> tuple[int, tuple[datetime, int] | None]:
    assert terms.policy.tool_logs is not None
    logs = unit.tables.tool_logs.c
    since = None if place is None else place[0]
    query = select(logs.session_id, logs.created_at, logs.pk)
    query = query.where(*window(logs.created_at, since, terms.before(terms.policy.tool_logs)))
    if place is not None:
        # With its type: SQLAlchemy's own for a datetime writes another text, which is never larger.
        behind = tuple_(literal(place[0], logs.created_at.type), place[1])
        query = query.where(tuple_(logs.created_at, logs.pk) > behind)
    rows = unit.connection.execute(query.order_by(logs.created_at, logs.pk).limit(PAGE)).all()
    gone = _staying(unit, terms, [row.session_id for row in rows])
    return gone, (rows[-1].created_at, rows[-1].pk) if len(rows) == PAGE else None


def _tasks(units: Units, terms: Terms, counts: _Counts) -> None:
    for status in terms.policy.task_statuses:
        after: int | None = 0
        while after is not None:
            gone, after = units.run(Mode.SNAPSHOT, _finished, terms, status, after)
            counts.add("tasks", gone, {"tasks": gone})


def _finished(unit: Unit, terms: Terms, status: str, after: int) -> tuple[int, int | None]:
    tasks = unit.tables.tasks
    doomed = doomed_task(unit.tables, terms, status)
    columns = [tasks.c.pk, tasks.c.session_id]
    rows, edge = walked(unit, tasks, columns, after, [tasks.c.status == status], doomed)
    return _staying(unit, terms, [row.session_id for row in rows]), edge


def _reservations(unit: Unit, terms: Terms) -> int:
    assert terms.policy.reservations is not None
    expires_at = unit.tables.quota_reservations.c.expires_at
    query = select(func.count()).where(
        *window(expires_at, None, terms.before(terms.policy.reservations)),
        owner_stays(unit.tables, unit.tables.quota_reservations.c.user_id),
    )
    return int(unit.connection.execute(query).scalar_one())


def _streams(units: Units, terms: Terms, counts: _Counts) -> None:
    after = 0
    while True:
        given_up, pieces, last = units.run(Mode.SNAPSHOT, _idle_streams, terms=terms, after=after)
        counts.add("streams", given_up, {"message_chunks": pieces})
        if last is None:
            break
        after = last


def _idle_streams(unit: Unit, terms: Terms, after: int) -> tuple[int, int, int | None]:
    rows = idle_messages(unit, terms, after, PAGE)
    doomed = doomed_sessions(unit, terms, sorted({row.session_id for row in rows}))
    ids = [row.id for row in rows if row.session_id not in doomed]
    chunks = unit.tables.message_chunks
    query = select(func.count()).select_from(chunks).where(chunks.c.message_id.in_(ids))
    pieces = int(unit.connection.execute(query).scalar_one())
    return len(ids), pieces, rows[-1].pk if len(rows) == PAGE else None


# --- Checkpoints -----------------------------------------------------------------------------


def _checkpoints(units: Units, terms: Terms, counts: _Counts) -> None:
    after: int | None = 0
    while after is not None:
        threads, after = units.run(Mode.SNAPSHOT, _threads, terms=terms, after=after)
        for thread_id in threads:
            rows = units.run(Mode.SNAPSHOT, _of_thread, terms=terms, thread_id=thread_id)
            counts.add("checkpoints", rows["checkpoints"], rows)


def _threads(unit: Unit, terms: Terms, after: int) -> tuple[list[str], int | None]:
    """Give the next threads that have something to lose and do not go with their session."""
    threads = unit.tables.checkpoint_threads
    checkpoints = unit.tables.checkpoints
    old = select(checkpoints.c.pk).where(
        checkpoints.c.thread_id == threads.c.id,
        doomed_checkpoint(unit.tables, terms, checkpoints),
    )
    columns = [threads.c.pk, threads.c.id, threads.c.session_id]
    stays = owner_stays(unit.tables, threads.c.user_id)
    rows, edge = walked(unit, threads, columns, after, [], old.exists(), stays)
    owners = sorted({row.session_id for row in rows if row.session_id is not None})
    doomed = doomed_sessions(unit, terms, owners)
    return [row.id for row in rows if row.session_id not in doomed], edge


def _of_thread(unit: Unit, terms: Terms, thread_id: str) -> Counter[str]:
    """Count what a thread would lose, page by page."""
    tables = unit.tables
    checkpoints, entries, writes = (
        tables.checkpoints,
        tables.checkpoint_entries,
        tables.checkpoint_writes,
    )
    c = checkpoints.c
    doomed = doomed_checkpoint(tables, terms, checkpoints).label("doomed")
    query = select(c.pk, c.id, c.namespace, c.step, c.tags, doomed).where(c.thread_id == thread_id)
    query = query.order_by(c.namespace, c.step, c.pk).limit(PAGE)
    counts: Counter[str] = Counter()
    needed: dict[int, int] = {}
    touched: set[int] = set()
    place: tuple[str, int, int] | None = None
    while True:
        here = tuple_(c.namespace, c.step, c.pk)
        page = query if place is None else query.where(here > tuple_(*place))
        rows = unit.connection.execute(page).all()
        going = [r for r in rows if r.doomed and not is_milestone(terms.policy, r.tags)]
        gone = {row.pk for row in going}
        counts["checkpoints"] += len(going)
        held = select(entries.c.checkpoint_pk, entries.c.line, entries.c.length).where(
            entries.c.checkpoint_pk.in_([row.pk for row in rows])
        )
        for pk, line, length in unit.connection.execute(held):
            if pk in gone:
                counts["checkpoint_entries"] += 1
                touched.add(line)
            else:
                needed[line] = max(needed.get(line, -1), length)
        for namespace in sorted({row.namespace for row in going}):
            theirs = select(func.count()).where(
                writes.c.thread_id == thread_id,
                writes.c.namespace == namespace,
                writes.c.checkpoint_id.in_([r.id for r in going if r.namespace == namespace]),
            )
            counts["checkpoint_writes"] += unit.connection.execute(theirs).scalar_one()
        if len(rows) < PAGE:
            break
        place = (rows[-1].namespace, rows[-1].step, rows[-1].pk)
    counts["checkpoint_values"] = _unneeded(unit, thread_id, needed, touched)
    return counts


def _unneeded(unit: Unit, thread_id: str, needed: dict[int, int], touched: set[int]) -> int:
    """Count the nodes on touched lines, and below, that nothing is left to need.

    Lines are numbered as they are begun, so those that a line is built on have smaller numbers.

    Args:
        unit: One that sees one state.
        thread_id: The thread.
        needed: For each line, the length up to which checkpoints that stay hold it; is changed.
        touched: The lines that checkpoints hold which go; is changed.
    """
    nodes = unit.tables.checkpoint_values.c
    query = select(nodes.line, nodes.length, nodes.base_line, nodes.base_length)
    query = query.where(nodes.thread_id == thread_id)
    query = query.order_by(nodes.line.desc(), nodes.length.desc()).limit(PAGE)
    gone = 0
    place: tuple[int, int] | None = None
    while True:
        page = query
        if place is not None:
            page = query.where(tuple_(nodes.line, nodes.length) < tuple_(*place))
        rows = unit.connection.execute(page).all()
        for line, length, base_line, base_length in rows:
            goes = line in touched and needed.get(line, -1) < length
            gone += goes
            if base_line is None:
                continue
            if goes:
                touched.add(base_line)
            else:
                needed[base_line] = max(needed.get(base_line, -1), base_length)
        if len(rows) < PAGE:
            return gone
        place = (rows[-1].line, rows[-1].length)
