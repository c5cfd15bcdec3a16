"""Deleting what a policy says has had its time, in transactions that are over soon.

Each rule finds rows without a lock, page by page, and deletes them in transactions of their own,
in which it looks again: a session that was active meanwhile stays, and so does a task that was
revived. The pages go by row numbers or along an index, so nothing is read twice, and each row is
judged by its own time: a clock that jumped misleads nobody. If it is interrupted, what is deleted
is deleted, and the next one goes on.

``agentstore.repositories.pruning_preview`` counts what this would delete, and has to agree with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, func, select, update

from agentstore.dialects.base import Mode
from agentstore.errors import InvalidInput
from agentstore.records import PruneReport
from agentstore.repositories import expiry
from agentstore.repositories.base import window
from agentstore.repositories.checkpoint_pruning import prune_checkpoints
from agentstore.repositories.expiry import FIRST_OF_ALL, Ended, end_expired, end_idle
from agentstore.repositories.messages import Messages
from agentstore.repositories.pacing import Pace, Pruning
from agentstore.repositories.pruning_preview import preview
from agentstore.repositories.pruning_terms import (
    Progress,
    Terms,
    begin,
    doomed_idle,
    doomed_task,
    idle_messages,
    walked,
)
from agentstore.repositories.reclaiming import reclaimed
from agentstore.repositories.steps import Step
from agentstore.retention import RetentionPolicy
from agentstore.unit import Unit

Note = Callable[[dict[str, int], int], None]
"""Takes down what one transaction deleted: rows by table, and how many of the rule's things."""

Rule = Callable[[Terms, Pace, Note], Pruning[None]]

ROWS = 1_000
"""Rows of tool logs, tasks or reservations that one transaction deletes at most."""

_TOGETHER = 25
"""Rows that one statement deletes; after it the clock is looked at."""

_STREAMS = 20
_SESSIONS = 100


def prune(
    policy: RetentionPolicy, *, dry_run: bool, reclaim: bool, progress: Progress | None
) -> Pruning[PruneReport]:
    """Delete what a policy says, or count it; see ``Store.prune``."""
    if not isinstance(policy, RetentionPolicy):
        raise InvalidInput(f"policy must be a RetentionPolicy, not {type(policy).__name__}.")
    if policy.is_empty:
        raise InvalidInput(
            "The policy has no rule, so nothing would be deleted. Give one, such as "
            "sessions_idle, tool_logs, checkpoints_keep_last or finished_tasks."
        )
    tell = progress or (lambda _rule, _rows: None)
    terms: Terms = yield Step(Mode.READ, partial(begin, policy=policy))
    if dry_run:
        return (yield from preview(terms, tell))
    rows: Counter[str] = Counter()
    things: Counter[str] = Counter()
    for name, rule, most in _rules(policy):
        before = rows.total()

        def note(gone: dict[str, int], count: int, name: str = name, before: int = before) -> None:
            rows.update(gone)
            things[name] += count
            tell(name, rows.total() - before)

        yield from rule(terms, Pace(most, pauses=terms.takes_turns), note)
    freed = 0
    if reclaim:
        freed = yield from reclaimed(sorted(+rows), Pace(ROWS, pauses=terms.takes_turns))
    return PruneReport(
        rows=dict(sorted((+rows).items())), rules=dict(+things), freed_bytes=freed, dry_run=False
    )


def _rules(policy: RetentionPolicy) -> Iterator[tuple[str, Rule, int]]:
    # Sessions first: what goes with them need not be looked at again. Also without a rule about
    # them, what an interrupted clean-up has left of one is finished.
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


# --- Sessions --------------------------------------------------------------------------------


def _sessions(terms: Terms, pace: Pace, note: Note) -> Pruning[None]:
    deadline = terms.now if terms.policy.expired_sessions else FIRST_OF_ALL
    more: bool = yield Step(Mode.READ, partial(_any_candidates, deadline=deadline))
    while more:
        done: Ended = yield pace.write(end_expired, deadline=deadline, size=_SESSIONS, pace=pace)
        note(dict(done.rows), len(done.deleted))
        yield from pace.pause()
        more = done.more
    after: int | None = 0 if terms.policy.sessions_idle is not None else None
    while after is not None:
        found: tuple[list[int], int | None]
        found = yield Step(Mode.SNAPSHOT, partial(_idle, terms=terms, after=after))
        left, after = found
        while left:
            batch, later = left[:_SESSIONS], left[_SESSIONS:]
            done = yield pace.write(_end_idle, batch, terms, pace)
            note(dict(done.rows), len(done.deleted))
            yield from pace.pause()
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


def _end_idle(unit: Unit, pks: Sequence[int], terms: Terms, pace: Pace) -> Ended:
    return end_idle(unit, pks, doomed_idle(unit.tables, terms.seen_at(unit.now())), pace)


# --- Rows that nothing refers to -------------------------------------------------------------


def _tool_logs(terms: Terms, pace: Pace, note: Note) -> Pruning[None]:
    more: bool = yield Step(Mode.READ, partial(_any_tool_log, terms=terms))
    while more:
        deleted, more = yield pace.write(_delete_tool_logs, terms, pace)
        note({"tool_logs": deleted}, deleted)
        yield from pace.pause()


def _any_tool_log(unit: Unit, terms: Terms) -> bool:
    return bool(_old_tool_logs(unit, terms, 1))


def _delete_tool_logs(unit: Unit, terms: Terms, pace: Pace) -> tuple[int, bool]:
    pks = _old_tool_logs(unit, terms, pace.rows)
    deleted, done = _delete_by_pk(unit, unit.tables.tool_logs, pks, pace)
    return deleted, done < len(pks) or len(pks) == pace.rows


def _old_tool_logs(unit: Unit, terms: Terms, most: int) -> list[int]:
    assert terms.policy.tool_logs is not None
    logs = unit.tables.tool_logs.c
    until = terms.seen_at(unit.now()).before(terms.policy.tool_logs)
    query = select(logs.pk).where(*window(logs.created_at, None, until))
    return [
        *unit.connection.execute(query.order_by(logs.created_at, logs.pk).limit(most)).scalars()
    ]


def _tasks(terms: Terms, pace: Pace, note: Note) -> Pruning[None]:
    for status in terms.policy.task_statuses:
        after: int | None = 0
        while after is not None:
            found: tuple[list[int], int | None]
            found = yield Step(
                Mode.SNAPSHOT, partial(_finished, terms=terms, status=status, after=after)
            )
            left, after = found
            while left:
                result = yield pace.write(_delete_tasks, left[: pace.rows], terms, status, pace)
                deleted, done = result
                note({"tasks": deleted}, deleted)
                yield from pace.pause()
                left = left[done:]


def _finished(unit: Unit, terms: Terms, status: str, after: int) -> tuple[list[int], int | None]:
    tasks = unit.tables.tasks
    doomed = doomed_task(unit.tables, terms, status)
    along = [tasks.c.status == status]
    rows, edge = walked(unit, tasks, [tasks.c.pk], after, along, doomed)
    return [row.pk for row in rows], edge


def _delete_tasks(
    unit: Unit, pks: Sequence[int], terms: Terms, status: str, pace: Pace
) -> tuple[int, int]:
    doomed = doomed_task(unit.tables, terms.seen_at(unit.now()), status)
    return _delete_by_pk(unit, unit.tables.tasks, pks, pace, doomed)


def _delete_by_pk(
    unit: Unit, table: Table, pks: Sequence[int], pace: Pace, *conditions: ColumnElement[bool]
) -> tuple[int, int]:
    """Delete rows if conditions hold for them now, as far as one transaction goes.

    Returns:
        How many were deleted, and how many of the numbers were dealt with.
    """
    deleted = done = 0
    while done < len(pks) and not (done and pace.is_spent):
        few = pks[done : done + _TOGETHER]
        query = delete(table).where(table.c.pk.in_(few), *conditions)
        deleted += unit.connection.execute(query).rowcount
        done += len(few)
    return deleted, done


# --- Reservations and streams ------------------------------------------------------------------


def _reservations(terms: Terms, pace: Pace, note: Note) -> Pruning[None]:
    more: bool = yield Step(Mode.READ, partial(_any_reservation, terms=terms))
    while more:
        deleted, more = yield pace.write(_delete_reservations, terms, pace)
        note({"quota_reservations": deleted}, deleted)
        yield from pace.pause()


def _any_reservation(unit: Unit, terms: Terms) -> bool:
    return bool(_old_reservations(unit, terms, 1))


def _old_reservations(unit: Unit, terms: Terms, most: int) -> list[Any]:
    assert terms.policy.reservations is not None
    reservations = unit.tables.quota_reservations.c
    until = terms.seen_at(unit.now()).before(terms.policy.reservations)
    query = select(reservations.pk, reservations.user_id)
    query = query.where(*window(reservations.expires_at, None, until))
    return [*unit.connection.execute(query.order_by(reservations.expires_at).limit(most))]


def _delete_reservations(unit: Unit, terms: Terms, pace: Pace) -> tuple[int, bool]:
    """Delete reservations; those that have not lapsed yet do so. Users are locked first, as
    everybody does who changes a quota.
    """
    users, reservations = unit.tables.users, unit.tables.quota_reservations
    found = _old_reservations(unit, terms, pace.rows)
    owners = sorted({row.user_id for row in found})
    locked = select(users.c.pk).where(users.c.id.in_(owners)).order_by(users.c.pk)
    unit.connection.execute(locked.with_for_update())
    gone = delete(reservations).where(reservations.c.pk.in_([row.pk for row in found]))
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
    return len(gone_rows), len(found) == pace.rows


def _streams(terms: Terms, pace: Pace, note: Note) -> Pruning[None]:
    more = bool((yield Step(Mode.READ, partial(idle_messages, terms=terms, after=0, most=1))))
    while more:
        given_up, chunks = yield pace.write(_give_up, terms)
        note({"message_chunks": chunks}, given_up)
        yield from pace.pause()
        more = given_up == _STREAMS


def _give_up(unit: Unit, terms: Terms) -> tuple[int, int]:
    idle = idle_messages(unit, terms.seen_at(unit.now()), 0, _STREAMS)
    pieces = unit.tables.message_chunks.c
    theirs = pieces.message_id.in_([row.id for row in idle])
    count = select(func.count()).select_from(unit.tables.message_chunks).where(theirs)
    before = unit.connection.execute(count).scalar_one()
    given_up = Messages(unit)._give_up_these(idle)
    return given_up, before - unit.connection.execute(count).scalar_one()


__all__ = ["prune"]
