"""Removing messages: with all that hangs on them, and off their session's counters.

Whoever removes has locked the session's row; so has whoever appends, and the counters agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, update

from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_is_open
from agentstore.repositories.attachments.blobs import attached_to, drop_unattached
from agentstore.repositories.base.sums import exact_sum
from agentstore.repositories.lines.counters import count_in, mend_sessions
from agentstore.repositories.lines.lines import newest, no_branch
from agentstore.repositories.lines.rows import message_record
from agentstore.repositories.search.search import forget_deleted
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, from_nanos


@dataclass(frozen=True, slots=True)
class LockedSession:
    """What a session's row says of its branches, while nobody else can change it."""

    id: str
    active_branch: int
    tip: int | None
    last_branch: int
    last_seq: int
    turn: int


def lock_session(unit: Unit, session_id: str) -> LockedSession:
    """Lock a session's row until the unit ends.

    Raises:
        NotFound: There is no such session.
    """
    sessions = unit.tables.sessions.c
    query = (
        select(
            sessions.active_branch,
            sessions.tip,
            sessions.last_branch,
            sessions.last_seq,
            sessions.turn,
        )
        .where(sessions.id == session_id, session_is_open(unit.tables))
        .with_for_update()
    )
    row = unit.connection.execute(query).first()
    if row is None:
        raise NotFound("session", session_id)
    return LockedSession(session_id, *row)


def branch_number(unit: Unit, session: LockedSession, name: str | None) -> int:
    """Give the number of a branch of a locked session; None names the active one.

    Raises:
        NotFound: There is no such branch.
    """
    if name is None:
        return session.active_branch
    branches = unit.tables.branches.c
    query = select(branches.number).where(
        branches.session_id == session.id,
        branches.name == validation.text("branch", name),
        branches.gone.is_(False),
    )
    number = unit.connection.execute(query).scalar()
    if number is None:
        raise no_branch(name)
    return int(number)


def remove_messages(unit: Unit, session_id: str, *conditions: Any) -> int:
    """Delete those messages of a locked session that meet conditions; see ``settle_turn`` too.

    Returns:
        How many were deleted.
    """
    messages = unit.tables.messages
    matching = (messages.c.session_id == session_id, *conditions)
    query = select(
        func.count(),
        exact_sum(messages.c.token_count),
        exact_sum(messages.c.cost),
    ).where(*matching)
    count, tokens, cost = unit.connection.execute(query).one()
    if not count:
        return 0
    attached = attached_to(unit, session_id, *conditions)
    unit.connection.execute(delete(messages).where(*matching))
    drop_unattached(unit, attached)
    forget_deleted(unit)
    if max(tokens, cost) > MAX_INTEGER:  # written before calls were bounded, so no counter has it
        mend_sessions(unit, [session_id])
    else:
        count_in(unit, session_id, -int(count), -tokens, -from_nanos(cost))
    return int(count)


def settle_turn(unit: Unit, session_id: str) -> None:
    """Set the session's turn to that of the last message which its active branch shows now."""
    sessions = unit.tables.sessions
    rows = newest(unit, session_id, 1)
    turn = message_record(rows[0]).turn if rows else 0
    unit.connection.execute(update(sessions).where(sessions.c.id == session_id).values(turn=turn))
