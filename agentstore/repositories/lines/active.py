"""Which branch is the active one: the session's row has its tip and its last turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select, update

from agentstore.execution.unit import Unit
from agentstore.repositories.lines.lines import newest
from agentstore.repositories.lines.removal import LockedSession, branch_number
from agentstore.repositories.lines.tallies import hand_on


def last_turn(unit: Unit, session_id: str, branch: str) -> int:
    """Give the number of the last turn that a branch shows; 0 where it shows nothing.

    Raises:
        NotFound: There is no such session or branch.
    """
    rows = newest(unit, session_id, 1, branch=branch, columns=_turn)
    return int(rows[0][0]) if rows else 0


def activate(unit: Unit, session: LockedSession, number: int, turn: int) -> None:
    """Make a branch of a locked session the active one.

    Args:
        unit: In a write transaction.
        session: The session.
        number: The branch.
        turn: Its last turn.
    """
    branches, sessions = unit.tables.branches.c, unit.tables.sessions
    tip = (
        select(branches.tip)
        .where(branches.session_id == session.id, branches.number == number)
        .scalar_subquery()
    )
    hand_on(unit, session.id, number, turn)
    activated = (
        update(sessions)
        .where(sessions.c.id == session.id)
        .values(active_branch=number, tip=tip, turn=turn)
        .returning(sessions.c.tip)
    )
    session.active_branch, session.turn = number, turn
    session.tip = unit.connection.execute(activated).scalar()
    unit.segmented.discard(session.id)


@contextmanager
def working_on(unit: Unit, session: LockedSession, branch: str | None) -> Iterator[None]:
    """Have a branch of a locked session be the active one in the block; None means that which is.

    Whoever else looks sees the one that was, which is so again in the end. What is done in the
    block must not change what that one shows.

    Raises:
        NotFound: There is no such branch.
    """
    number, before = branch_number(unit, session, branch), session.active_branch
    turn = session.turn
    if branch is not None and number != before:
        activate(unit, session, number, last_turn(unit, session.id, branch))
    yield
    if number != before:
        activate(unit, session, before, turn)


def _turn(messages: Any) -> list[Any]:
    return [messages.turn]
