"""Deleting expired sessions, a few at a time.

``sessions.expires_at`` is a lower bound: messages move ``last_active_at`` and not it, so that they
need not change an index. So a session is a candidate by that column, and expired if its last
activity, read under its lock, is long enough ago; otherwise the bound is moved up and it stays.

No transaction is large. Sessions are deleted together as long as they have few rows in all. A
session with many is *closed* in the transaction that finds it expired: this deletes its documents
and all of its tasks that could still be done, and clears its active branch, so nobody can read,
change or append to it by its id any more. So it ends at a single moment for all its writers,
and the rest can be deleted in pieces. If that is interrupted, the next clean-up continues with it
first. ``docs/retention.md`` says what can be read meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, or_, select, update

from agentstore.engines.base.dialect import Mode
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.records import ExpiryReport
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.base.units import Units
from agentstore.repositories.upkeep.erasing import finish_user, unfinished
from agentstore.repositories.upkeep.ownership import (
    delete_sessions,
    delete_some_owned,
    found_owned,
)
from agentstore.values import validation
from agentstore.values.instants import shifted
from agentstore.values.paging import check_limit
from agentstore.values.states import NO_BRANCH, TASK_TRANSITIONS

ROWS = 500
"""Rows that one transaction deletes at most, besides blobs that nobody attaches any more: some
40 ms for which SQLite's other writers wait, most of it for the search index of messages. Where
rows are large it is fewer, see ``agentstore.repositories.base.pacing``."""

FIRST_OF_ALL = datetime(1970, 1, 1, tzinfo=UTC)
"""When a closed session expires, so that it is found whatever the clock says later."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one transaction deleted.

    Attributes:
        left: The row numbers of sessions that it found but did not delete completely.
        postponed: How many candidates had not expired.
        more: Whether there may be more candidates.
    """

    ids: tuple[str, ...]
    rows: Mapping[str, int]
    left: tuple[int, ...] = ()
    postponed: int = 0
    more: bool = False


def delete_expired(units: Units, batch_size: int, limit: int | None) -> ExpiryReport:
    """Delete expired sessions; see ``Sessions.delete_expired``."""
    check_limit(batch_size)
    validation.optional_amount("limit", limit)
    pace = Pace(units, ROWS)
    ids: list[str] = []
    rows: Counter[str] = Counter()
    postponed = 0
    # A session that expires after this moment is left to the next clean-up: so there is an end.
    deadline = units.run(Mode.READ, first_deadline)
    for user_id in units.run(Mode.READ, unfinished):  # left by a deletion that was interrupted
        rows.update(finish_user(user_id, pace).rows)
    more = deadline is not None
    while deadline is not None and more and (limit is None or len(ids) < limit):
        size = batch_size if limit is None else min(batch_size, limit - len(ids))
        batch = pace.write(delete_expired_now, deadline, size)
        ids += batch.ids
        rows.update(batch.rows)
        postponed += batch.postponed
        more = batch.more
    return ExpiryReport(tuple(ids), dict(sorted(rows.items())), postponed)


def first_deadline(unit: Unit) -> datetime | None:
    """Give the present, or None if nothing can have expired: then nothing needs to be locked."""
    now = unit.now()
    expires_at = unit.tables.sessions.c.expires_at
    query = select(expires_at).where(expires_at <= now).order_by(expires_at).limit(1)
    return None if unit.connection.execute(query).first() is None else now


def delete_expired_now(
    unit: Unit, pace: Pace, deadline: datetime, size: int, *among: ColumnElement[bool]
) -> Deleted:
    """Delete expired sessions, as far as one transaction goes.

    Sessions that another transaction has locked are skipped: somebody writes to them, or another
    clean-up deletes them.

    Args:
        unit: In a write transaction.
        pace: How many rows may go.
        deadline: With ``FIRST_OF_ALL`` only closed sessions are found.
        size: How many candidates to look at.
        among: Conditions on the candidates.
    """
    sessions = unit.tables.sessions
    deadline = min(deadline, unit.now())  # a clock that was set back brings sessions back to life
    query = (
        select(*columns(unit))
        .where(
            sessions.c.expires_at <= deadline, owner_stays(unit.tables, sessions.c.user_id), *among
        )
        .order_by(sessions.c.expires_at)
        .limit(size)
        .with_for_update(skip_locked=True)
    )
    candidates = unit.connection.execute(query).all()
    matching: list[Any] = []
    for session in candidates:
        if not is_closed(session):
            expires_at = shifted(session.last_active_at, timedelta(seconds=session.ttl_seconds))
            if expires_at > deadline:
                _change(unit, session, expires_at=expires_at)
                continue
        matching.append(session)
    done = _delete_locked(unit, matching, pace)
    more = len(candidates) == size or bool(done.left)
    return replace(done, postponed=len(candidates) - len(matching), more=more)


def delete_matching(
    unit: Unit, pace: Pace, pks: Sequence[int], matching: ColumnElement[bool]
) -> Deleted:
    """Delete those of the sessions with these row numbers for which a condition holds now.

    Sessions that another transaction has locked are skipped.
    """
    sessions = unit.tables.sessions.c
    # Two statements: the one that locks looks at other tables as they were when it began, so it
    # would not see what somebody committed who had the lock until then, such as a mark.
    locked = select(sessions.pk).where(sessions.pk.in_(pks)).order_by(sessions.pk)
    ours = unit.connection.execute(locked.with_for_update(skip_locked=True)).scalars().all()
    query = (
        select(*columns(unit))
        .where(
            sessions.pk.in_(ours),
            or_(sessions.active_branch == NO_BRANCH, matching),
            owner_stays(unit.tables, sessions.user_id),
        )
        .order_by(sessions.pk)
    )
    return _delete_locked(unit, unit.connection.execute(query).all(), pace)


def _delete_locked(unit: Unit, matching: Sequence[Any], pace: Pace) -> Deleted:
    """Delete sessions that are locked, as far as one transaction goes."""
    ids: list[str] = []
    owned: Counter[str] = Counter()
    for session in matching:
        found = found_owned(unit, "session", session.id, pace.rows)
        if len(ids) + 1 + (owned + found).total() > pace.rows or (ids and pace.is_spent):
            break
        ids.append(session.id)
        owned += found
    left = tuple(session.pk for session in matching[len(ids) :])
    if ids or not left:
        gone = delete_sessions(unit, ids, owned) if ids else Counter[str]()
        return Deleted(tuple(ids), gone, left)
    # The first has more rows than one transaction may delete.
    rows = Counter(_closed(unit, matching[0]))
    if pace.rows > rows.total():
        most = pace.rows - rows.total()
        rows += delete_some_owned(unit, "session", matching[0].id, most)
    return Deleted((), rows, left)


def columns(unit: Unit) -> list[ColumnElement[Any]]:
    """Give what says of a session whether it is to be deleted."""
    c = unit.tables.sessions.c
    return [c.pk, c.id, c.active_branch, c.ttl_seconds, c.last_active_at]


def is_closed(session: Any) -> bool:
    """Say whether a session is closed: it is being deleted in pieces."""
    return bool(session.active_branch == NO_BRANCH)


def _closed(unit: Unit, session: Any) -> Mapping[str, int]:
    """Close a session; give the rows that this deletes."""
    if is_closed(session):
        return {}
    _change(unit, session, active_branch=NO_BRANCH, tip=None, expires_at=FIRST_OF_ALL)
    data, tasks = unit.tables.session_data, unit.tables.tasks
    documents = delete(data).where(data.c.session_id == session.id)
    gone = Counter(session_data=unit.connection.execute(documents).rowcount)
    to_be_done = tasks.c.status.in_([each for each, onward in TASK_TRANSITIONS.items() if onward])
    to_do = delete(tasks).where(tasks.c.session_id == session.id, to_be_done)
    gone["tasks"] = unit.connection.execute(to_do).rowcount
    return +gone


def _change(unit: Unit, session: Any, **values: Any) -> None:
    sessions = unit.tables.sessions
    query = update(sessions).where(sessions.c.pk == session.pk).values(values)
    unit.connection.execute(query)
