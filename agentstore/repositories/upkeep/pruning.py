"""Deleting what a policy says has had its time, in transactions that are over soon.

Each rule finds rows without a lock, page by page, and deletes them in transactions of their own,
in which it looks again: a session that was active meanwhile stays, and so does a task that was
revived. The pages go by row numbers or along an index, so nothing is read twice, and each row is
judged by its own time: a clock that jumped misleads nobody. What somebody else has locked is passed
over, and not looked at again: it is left to the next time. If it is interrupted, what is deleted is
deleted, and the next one goes on.

``pruning_preview`` counts what this would delete, and has to agree with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Table,
    delete,
    func,
    literal,
    select,
    tuple_,
    update,
)

from agentstore.engines.base.protocol import Mode
from agentstore.errors import InvalidInput
from agentstore.execution.unit import Unit
from agentstore.records import PruneReport
from agentstore.repositories.base.operations import window
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.base.units import Units
from agentstore.repositories.messages.messages import Messages
from agentstore.repositories.upkeep import erasing, expiry
from agentstore.repositories.upkeep.checkpoint_pruning import prune_checkpoints
from agentstore.repositories.upkeep.expiry import FIRST_OF_ALL, Ended, end_expired, end_idle
from agentstore.repositories.upkeep.pruning_preview import preview
from agentstore.repositories.upkeep.pruning_terms import (
    Progress,
    Terms,
    begin,
    doomed_idle,
    doomed_task,
    idle_messages,
    walked,
)
from agentstore.repositories.upkeep.reclaiming import reclaimed
from agentstore.retention import RetentionPolicy

Note = Callable[[dict[str, int], int], None]
"""Takes down what one transaction deleted: rows by table, and how many of the rule's things."""

Rule = Callable[[Units, Terms, Pace, Note], None]

Place = tuple[datetime, int] | None
"""A row's time and number, to go on behind; None at the beginning, and at the end."""

ROWS = 1_000
"""Rows of tool logs, tasks or reservations that one transaction deletes at most."""

_TOGETHER = 25
"""Rows that one statement deletes; after it the clock is looked at."""

_STREAMS = 20
_SESSIONS = 100


def prune(
    units: Units,
    policy: RetentionPolicy,
    *,
    dry_run: bool,
    reclaim: bool,
    progress: Progress | None,
) -> PruneReport:
    """Delete what a policy says, or count it; see ``Store.prune``."""
    if not isinstance(policy, RetentionPolicy):
        raise InvalidInput(f"policy must be a RetentionPolicy, not {type(policy).__name__}.")
    if policy.is_empty:
        raise InvalidInput(
            "The policy has no rule, so nothing would be deleted. Give one, such as "
            "sessions_idle, tool_logs, checkpoints_keep_last or finished_tasks."
        )
    tell = progress or (lambda _rule, _rows: None)
    terms = units.run(Mode.READ, begin, policy=policy)
    if dry_run:
        return preview(units, terms, tell)
    rows: Counter[str] = Counter()
    things: Counter[str] = Counter()
    for name, rule, most in _rules(policy):
        before = rows.total()

        def note(gone: dict[str, int], count: int, name: str = name, before: int = before) -> None:
            rows.update(gone)
            things[name] += count
            tell(name, rows.total() - before)

        rule(units, terms, Pace(units, most, pauses=terms.takes_turns), note)
    freed = 0
    if reclaim:
        freed = reclaimed(units, sorted(+rows), Pace(units, ROWS, pauses=terms.takes_turns))
    return PruneReport(
        rows=dict(sorted((+rows).items())), rules=dict(+things), freed_bytes=freed, dry_run=False
    )


def _rules(policy: RetentionPolicy) -> Iterator[tuple[str, Rule, int]]:
    # Users and sessions first: what goes with them need not be looked at again. Also without a
    # rule about them, what an interrupted deletion or clean-up has left of one is finished.
    yield "users", _users, erasing.ROWS
    yield "sessions", _sessions, expiry.ROWS
    if policy.tool_logs is not None:
        yield "tool_logs", _tool_logs, ROWS
    if policy.prunes_checkpoints:
        yield "checkpoints", prune_checkpoints, expiry.ROWS
    if policy.finished_tasks is not None:
        yield "tasks", _tasks, ROWS
    if policy.reservations is not None:
        yield "reservations", _reservations, ROWS
    if policy.streams is not None:
        yield "streams", _streams, ROWS


# --- Users and sessions ----------------------------------------------------------------------


def _users(units: Units, terms: Terms, pace: Pace, note: Note) -> None:
    for user_id in units.run(Mode.READ, erasing.unfinished):
        erasing.finish_user(user_id, pace, note)


def _sessions(units: Units, terms: Terms, pace: Pace, note: Note) -> None:
    deadline = terms.now if terms.policy.expired_sessions else FIRST_OF_ALL
    more = units.run(Mode.READ, _any_candidates, deadline=deadline)
    while more:
        done = pace.write(end_expired, deadline, _SESSIONS)
        note(dict(done.rows), len(done.deleted))
        pace.pause()
        more = done.more
    after: int | None = 0 if terms.policy.sessions_idle is not None else None
    while after is not None:
        left, after = units.run(Mode.SNAPSHOT, _idle, terms, after)
        while left:
            batch, later = left[:_SESSIONS], left[_SESSIONS:]
            done = pace.write(_end_idle, batch, terms)
            note(dict(done.rows), len(done.deleted))
            pace.pause()
            left = [*done.left, *later]


def _any_candidates(unit: Unit, deadline: Any) -> bool:
    expires_at = unit.tables.sessions.c.expires_at
    query = select(expires_at).where(expires_at <= deadline).order_by(expires_at).limit(1)
    return unit.connection.execute(query).first() is not None


def _idle(unit: Unit, terms: Terms, after: int) -> tuple[list[int], int | None]:
    sessions = unit.tables.sessions
    doomed = doomed_idle(unit.tables, terms)
    rows, edge = walked(unit, sessions, [sessions.c.pk], after, [], doomed)
    return [row.pk for row in rows], edge


def _end_idle(unit: Unit, pace: Pace, pks: Sequence[int], terms: Terms) -> Ended:
    return end_idle(unit, pace, pks, doomed_idle(unit.tables, terms.seen_at(unit.now())))


# --- Rows that nothing refers to -------------------------------------------------------------


def _tool_logs(units: Units, terms: Terms, pace: Pace, note: Note) -> None:
    more = units.run(Mode.READ, _any_tool_log, terms=terms)
    place: Place = None
    while more:
        deleted, place = pace.write(_delete_tool_logs, terms, place)
        note({"tool_logs": deleted}, deleted)
        pace.pause()
        more = place is not None


def _any_tool_log(unit: Unit, terms: Terms) -> bool:
    return bool(_old_tool_logs(unit, terms, None, 1))


def _delete_tool_logs(unit: Unit, pace: Pace, terms: Terms, place: Place) -> tuple[int, Place]:
    most = pace.rows
    found = _old_tool_logs(unit, terms, place, most)
    pks = [row.pk for row in found]
    deleted, done = _delete_by_pk(unit, unit.tables.tool_logs, pks, pace)
    over = done == len(found) < most
    return deleted, None if over else (found[done - 1].created_at, found[done - 1].pk)


def _old_tool_logs(unit: Unit, terms: Terms, place: Place, most: int) -> list[Any]:
    assert terms.policy.tool_logs is not None
    logs = unit.tables.tool_logs.c
    until = terms.seen_at(unit.now()).before(terms.policy.tool_logs)
    query = select(logs.created_at, logs.pk).where(*_behind(logs.created_at, logs.pk, place, until))
    query = query.order_by(logs.created_at, logs.pk).limit(most)
    return [*unit.connection.execute(query)]


def _behind(
    column: ColumnElement[Any], pk: ColumnElement[int], place: Place, until: datetime
) -> list[ColumnElement[bool]]:
    """Give the conditions for what comes behind a place and before a time."""
    conditions = window(column, None if place is None else place[0], until)
    if place is not None:
        # With its type: SQLAlchemy's own for a datetime writes another text, which is never larger.
        here = tuple_(literal(place[0], column.type), place[1])
        conditions.append(tuple_(column, pk) > here)
    return conditions


def _tasks(units: Units, terms: Terms, pace: Pace, note: Note) -> None:
    for status in terms.policy.task_statuses:
        after: int | None = 0
        while after is not None:
            left, after = units.run(Mode.SNAPSHOT, _finished, terms, status, after)
            while left:
                result = pace.write(_delete_tasks, left[: pace.rows], terms, status)
                deleted, done = result
                note({"tasks": deleted}, deleted)
                pace.pause()
                left = left[done:]


def _finished(unit: Unit, terms: Terms, status: str, after: int) -> tuple[list[int], int | None]:
    tasks = unit.tables.tasks
    doomed = doomed_task(unit.tables, terms, status)
    along = [tasks.c.status == status]
    rows, edge = walked(unit, tasks, [tasks.c.pk], after, along, doomed)
    return [row.pk for row in rows], edge


def _delete_tasks(
    unit: Unit, pace: Pace, pks: Sequence[int], terms: Terms, status: str
) -> tuple[int, int]:
    doomed = doomed_task(unit.tables, terms.seen_at(unit.now()), status)
    return _delete_by_pk(unit, unit.tables.tasks, pks, pace, doomed)


def _delete_by_pk(
    unit: Unit, table: Table, pks: Sequence[int], pace: Pace, *conditions: ColumnElement[bool]
) -> tuple[int, int]:
    """Delete rows if conditions on them alone hold now, as far as one transaction goes.

    Those that another transaction has locked are passed over.

    Returns:
        How many were deleted, and how many of the numbers were dealt with.
    """
    deleted = done = 0
    while done < len(pks) and not (done and pace.is_spent):
        few = pks[done : done + _TOGETHER]
        these = [table.c.pk.in_(few), *conditions]
        if not unit.dialect.single_writer:
            free = select(table.c.pk).where(*these).order_by(table.c.pk)
            locked = unit.connection.execute(free.with_for_update(skip_locked=True))
            these = [table.c.pk.in_(locked.scalars().all())]
        deleted += unit.connection.execute(delete(table).where(*these)).rowcount
        done += len(few)
    return deleted, done


# --- Reservations and streams ------------------------------------------------------------------


def _reservations(units: Units, terms: Terms, pace: Pace, note: Note) -> None:
    more = units.run(Mode.READ, _any_reservation, terms=terms)
    place: Place = None
    while more:
        deleted, place = pace.write(_delete_reservations, terms, place)
        note({"quota_reservations": deleted}, deleted)
        pace.pause()
        more = place is not None


def _any_reservation(unit: Unit, terms: Terms) -> bool:
    return bool(_old_reservations(unit, terms, None, 1))


def _old_reservations(unit: Unit, terms: Terms, place: Place, most: int) -> list[Any]:
    assert terms.policy.reservations is not None
    reservations = unit.tables.quota_reservations.c
    until = terms.seen_at(unit.now()).before(terms.policy.reservations)
    behind = _behind(reservations.expires_at, reservations.pk, place, until)
    query = select(reservations.expires_at, reservations.pk, reservations.user_id).where(*behind)
    query = query.order_by(reservations.expires_at, reservations.pk).limit(most)
    return [*unit.connection.execute(query)]


def _delete_reservations(unit: Unit, pace: Pace, terms: Terms, place: Place) -> tuple[int, Place]:
    """Delete reservations; those that have not lapsed yet do so. Users are locked first, as
    everybody does who changes a quota; those of users whom somebody else has locked stay.
    """
    users, reservations = unit.tables.users, unit.tables.quota_reservations
    most = pace.rows
    found = _old_reservations(unit, terms, place, most)
    owners = sorted({row.user_id for row in found})
    free = select(users.c.id).where(users.c.id.in_(owners)).order_by(users.c.pk)
    locked = {*unit.connection.execute(free.with_for_update(skip_locked=True)).scalars()}
    pks = [row.pk for row in found if row.user_id in locked]
    gone = delete(reservations).where(reservations.c.pk.in_(pks))
    gone_rows = unit.connection.execute(
        gone.returning(reservations.c.user_id, reservations.c.tokens, reservations.c.lapsed)
    ).all()
    counted: Counter[str] = Counter()
    for row in gone_rows:
        if not row.lapsed:
            counted[row.user_id] += row.tokens
    for user_id, tokens in sorted(counted.items()):
        less = users.c.quota_reserved - tokens
        unit.connection.execute(
            update(users).where(users.c.id == user_id).values(quota_reserved=less)
        )
    over = len(found) < most
    return len(gone_rows), None if over else (found[-1].expires_at, found[-1].pk)


def _streams(units: Units, terms: Terms, pace: Pace, note: Note) -> None:
    more = bool(units.run(Mode.READ, idle_messages, terms=terms, after=0, most=1))
    after: int | None = 0 if more else None
    while after is not None:
        given_up, chunks, after = pace.write(_give_up, terms, after)
        note({"message_chunks": chunks}, given_up)
        pace.pause()


def _give_up(unit: Unit, pace: Pace, terms: Terms, after: int) -> tuple[int, int, int | None]:
    found = idle_messages(unit, terms.seen_at(unit.now()), after, _STREAMS)
    idle = _free_streams(unit, found)
    pieces = unit.tables.message_chunks.c
    theirs = pieces.message_id.in_([row.id for row in idle])
    count = select(func.count()).select_from(unit.tables.message_chunks).where(theirs)
    before = unit.connection.execute(count).scalar_one()
    given_up = Messages(unit)._give_up_these(idle)
    gone = before - unit.connection.execute(count).scalar_one()
    return given_up, gone, found[-1].pk if len(found) == _STREAMS else None


def _free_streams(unit: Unit, found: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Lock messages that are streamed, and their sessions first; give those that are ours then."""
    sessions, messages = unit.tables.sessions.c, unit.tables.messages.c
    owners = sorted({row.session_id for row in found})
    free = select(sessions.id).where(sessions.id.in_(owners)).order_by(sessions.pk)
    locked = {*unit.connection.execute(free.with_for_update(skip_locked=True)).scalars()}
    ids = [row.id for row in found if row.session_id in locked]
    these = select(messages.id).where(messages.id.in_(ids)).order_by(messages.pk)
    ours = {*unit.connection.execute(these.with_for_update(skip_locked=True)).scalars()}
    return [row for row in found if row.id in ours]


__all__ = ["prune"]
