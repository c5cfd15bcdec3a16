"""Removing messages: with all that hangs on them, and off their session's counters.

Removing and appending both lock the session's row, so the counters agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, delete, func, select, update

from agentstore.engines.base.dialect import Change
from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_is_open, session_stays
from agentstore.repositories.attachments.blobs import attached_to, drop_unattached
from agentstore.repositories.base.sums import exact_sum
from agentstore.repositories.lines.counters import count_in, mend_sessions
from agentstore.repositories.lines.lines import newest, no_branch
from agentstore.repositories.lines.rows import only_turn
from agentstore.repositories.lines.tallies import adding, take_off
from agentstore.repositories.search.search import forget_deleted
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, from_nanos


@dataclass(slots=True)
class LockedSession:
    """What a session's row says of its branches, while nobody else can change it.

    Attributes:
        turns_gone: Turns of what the active branch adds to that were deleted since it was locked,
            and are still counted there; see ``settle_turn``.
    """

    id: str
    active_branch: int
    tip: int | None
    last_branch: int
    last_seq: int
    turn: int
    message_count: int
    turns_gone: int = 0


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
            sessions.message_count,
        )
        .where(sessions.id == session_id, session_is_open(unit.tables))
        .with_for_update()
    )
    row = unit.connection.execute(query).first()
    if row is None:
        raise NotFound("session", session_id)
    return LockedSession(session_id, *row)


def lock_session_of(unit: Unit, message_id: str) -> None:
    """Lock the session of a message until the unit ends. The message may be deleted meanwhile.

    Raises:
        NotFound: There is no such message.
    """
    messages = unit.tables.messages.c
    owner = select(messages.session_id).where(
        messages.id == message_id, session_stays(unit.tables, messages.session_id)
    )
    session_id = unit.connection.execute(owner).scalar()
    if session_id is None:
        raise NotFound("message", message_id)
    lock_session(unit, session_id)


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


def remove_messages(
    unit: Unit,
    session: LockedSession,
    *conditions: Any,
    unseen: bool = False,
    by_id: bool = False,
    added: bool = False,
) -> int:
    """Delete those messages of a locked session that meet conditions; see ``settle_turn`` too.

    Args:
        unit: In a write transaction.
        session: The session.
        conditions: Of the messages; ``segments.remove_all`` deletes all of them.
        unseen: Whether no branch shows them.
        by_id: Whether the conditions give ids of messages of this session: then they are looked
            up, and not looked for among all that it has.
        added: Whether all of them were added to the active branch since it was divided last.

    Returns:
        How many were deleted.
    """
    messages = unit.tables.messages
    matching = conditions if by_id else (messages.c.session_id == session.id, *conditions)
    query = select(
        func.count(),
        exact_sum(messages.c.token_count),
        exact_sum(messages.c.cost),
        func.sum(case((messages.c.role == "user", 1), else_=0)),
        attached_to(unit.tables, session.id, *conditions),
    ).where(*matching)
    count, tokens, cost, turns, attached = unit.connection.execute(query).one()
    if not count:
        return 0
    changes: list[Change] = [delete(messages).where(*matching)]
    if unseen:
        changes.append(adding(unit.tables, session.id, session.active_branch, int(count), 0))
    elif added or session.last_branch == 0:
        session.turns_gone += int(turns)
    else:
        session.turns_gone += take_off(unit, session.id, session.active_branch, matching)
    if max(tokens, cost) > MAX_INTEGER:  # written before calls were bounded, so no counter has it
        unit.dialect.at_once(unit.connection, *changes)
        mend_sessions(unit, [session.id])
        session.turns_gone = 0
    elif not count_in(unit, session.id, -int(count), -tokens, -from_nanos(cost), *changes):
        session.turns_gone = 0
    drop_unattached(unit, attached.split(",") if attached else ())
    forget_deleted(unit)
    return int(count)


def settle_turn(unit: Unit, session: LockedSession) -> None:
    """Set the session's turn to that of the last message which its active branch shows now."""
    sessions = unit.tables.sessions
    rows = newest(unit, session.id, 1, whole=session.tip is None, columns=only_turn)
    turn = int(rows[0][0]) if rows else 0
    changes: list[Change] = []
    if more := session.turn - turn - session.turns_gone:
        changes.append(adding(unit.tables, session.id, session.active_branch, 0, more))
    changes.append(update(sessions).where(sessions.c.id == session.id).values(turn=turn))
    unit.dialect.at_once(unit.connection, *changes)
    session.turn, session.turns_gone = turn, 0
