"""Which branch is the active one: the session's row has its tip and its last turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import select, update

from agentstore.execution.unit import Unit
from agentstore.repositories.lines.removal import LockedSession, branch_number, set_turn
from agentstore.repositories.lines.tallies import put_down, take_up


def activate(unit: Unit, session: LockedSession, number: int) -> None:
    """Make a branch of a locked session the active one."""
    branches, sessions = unit.tables.branches.c, unit.tables.sessions
    tip = (
        select(branches.tip)
        .where(branches.session_id == session.id, branches.number == number)
        .scalar_subquery()
    )
    put_down(unit, session.id)
    activated = (
        update(sessions)
        .where(sessions.c.id == session.id)
        .values(active_branch=number, tip=tip)
        .returning(sessions.c.tip)
    )
    session.active_branch = number
    session.tip = unit.connection.execute(activated).scalar()
    unit.segmented.discard(session.id)
    session.turn = set_turn(unit, session.id)
    take_up(unit, session.id)


@contextmanager
def working_on(unit: Unit, session: LockedSession, branch: str | None) -> Iterator[None]:
    """Have a branch of a locked session be the active one in the block; None means that which is.

    Whoever else looks sees the one that was, which is so again in the end.

    Raises:
        NotFound: There is no such branch.
    """
    number, before = branch_number(unit, session, branch), session.active_branch
    if number != before:
        activate(unit, session, number)
    yield
    if number != before:
        activate(unit, session, before)
