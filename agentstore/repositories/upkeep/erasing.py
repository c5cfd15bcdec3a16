"""Deleting users with all that is theirs, in transactions that are over soon.

A user with few rows is deleted in one transaction. A user with more is only marked in the first,
and from then on no query finds anything of the user, see ``agentstore.models.deleting``. The
following transactions delete the rows, some sessions at a time, or a part of a large session. How
many rows were deleted so far is stored with the mark, so the receipt is complete whether the same
call finishes, a later one after a crash, or a clean-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from sqlalchemy import func, literal, select, update

from agentstore.engines.base.dialect import Mode
from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import being_deleted
from agentstore.records import DeletionReceipt
from agentstore.repositories.base import scoping
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.base.units import Units
from agentstore.repositories.upkeep.ownership import (
    count_owned,
    delete_owned,
    delete_sessions,
    delete_some_owned,
    found_owned,
)

ROWS = 500
"""Rows that one transaction deletes at most, besides blobs that nobody attaches any more."""

_SESSIONS = 50
"""Sessions that go together at most."""


@dataclass(frozen=True, slots=True)
class Erased:
    """How far the deletion of a user has come.

    Attributes:
        rows: How many rows this transaction deleted, by table.
        so_far: How many rows have gone, in this transaction and those before, by table.
        finished: Whether nothing is left.
    """

    rows: Mapping[str, int]
    so_far: Mapping[str, int]
    finished: bool


def delete_user(units: Units, user_id: str) -> DeletionReceipt:
    """Delete a user, see ``Users.delete``."""
    begun = units.run(Mode.WRITE, _begin, user_id)
    if not begun.finished:
        begun = finish_user(user_id, Pace(units, ROWS))
    return DeletionReceipt(dict(sorted(begun.so_far.items())))


def finish_user(user_id: str, pace: Pace) -> Erased:
    """Delete what is left of a user who is being deleted; ``rows`` is all that this deletes."""
    rows: Counter[str] = Counter()
    while True:
        done = pace.write(delete_some, user_id)
        rows.update(done.rows)
        if done.finished:
            return replace(done, rows=rows)
        pace.pause()


def unfinished(unit: Unit) -> list[str]:
    """Give the ids of users who are being deleted, up to a hundred."""
    return [*unit.connection.execute(being_deleted(unit.tables).limit(100)).scalars()]


def _begin(unit: Unit, user_id: str) -> Erased:
    """Delete a user with few rows; mark one with more.

    Raises:
        NotFound: There is no such user.
    """
    users, sessions = unit.tables.users, unit.tables.sessions.c
    so_far = _locked(unit, user_id)
    if so_far is None:
        raise NotFound("user", user_id)
    # Sessions first, and no more of them than may go: the rest is looked for in each of them.
    some = select(literal(1)).where(sessions.user_id == user_id).limit(ROWS + 1).subquery()
    few = int(unit.connection.execute(select(func.count()).select_from(some)).scalar_one())
    if unit.joined or (few <= ROWS and count_owned(unit, "user", user_id, ROWS) < ROWS):
        return _finish(unit, user_id, so_far)
    mark = update(users).where(users.c.id == user_id, users.c.deleting.is_(None))
    unit.connection.execute(mark.values(deleting={}))
    return Erased({}, so_far, finished=False)


def delete_some(unit: Unit, pace: Pace, user_id: str) -> Erased:
    """Delete some of what is left of a user."""
    so_far = _locked(unit, user_id)
    if so_far is None:  # another call finished it and has the receipt
        return Erased({}, {}, finished=True)
    users = unit.tables.users
    gone = _delete_some_sessions(unit, user_id, pace.rows)
    if not gone:
        if count_owned(unit, "user", user_id, pace.rows) < pace.rows:
            return _finish(unit, user_id, so_far)
        gone = delete_some_owned(unit, "user", user_id, pace.rows)
    so_far += gone
    tally = update(users).where(users.c.id == user_id).values(deleting=dict(so_far))
    unit.connection.execute(tally)
    return Erased(gone, so_far, finished=False)


def _finish(unit: Unit, user_id: str, so_far: Counter[str]) -> Erased:
    rows = delete_owned(unit, "user", user_id).rows
    return Erased(rows, so_far + Counter(rows), finished=True)


def _locked(unit: Unit, user_id: str) -> Counter[str] | None:
    """Lock a user's row until the unit ends, so that nothing is added below it meanwhile.

    Returns:
        How many rows have gone so far; None if there is no such user.
    """
    users = unit.tables.users.c
    query = select(users.deleting).where(users.id == user_id, *scoping.users(unit))
    row = unit.connection.execute(query.with_for_update()).first()
    return None if row is None else Counter(row.deleting or {})


def _delete_some_sessions(unit: Unit, user_id: str, most: int) -> Counter[str]:
    """Delete some sessions of a user, or some rows of one that has more than so many."""
    sessions = unit.tables.sessions.c
    query = select(sessions.id, sessions.message_count).where(sessions.user_id == user_id)
    rows = unit.connection.execute(
        query.order_by(sessions.status, sessions.listed_activity).limit(_SESSIONS)
    ).all()
    if not rows:
        return Counter()
    messages = accumulate(row.message_count + 1 for row in rows)
    ids = [row.id for row, so_far in zip(rows, messages, strict=True) if so_far <= most]
    ids = ids or [rows[0].id]
    # Locked, nobody adds to them after they were counted.
    lock = select(sessions.pk).where(sessions.id.in_(ids)).order_by(sessions.pk)
    unit.connection.execute(lock.with_for_update())
    while len(ids) + (found := found_owned(unit, "sessions", ids, most)).total() > most:
        if len(ids) == 1:
            return delete_some_owned(unit, "sessions", ids, most, found)
        ids = ids[: len(ids) // 2]
    return delete_sessions(unit, ids, found)


__all__ = ["Erased", "delete_user", "finish_user", "unfinished"]
