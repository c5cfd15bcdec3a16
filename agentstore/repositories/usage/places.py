"""Which branch and which turn are meant, for which something is recorded."""

from __future__ import annotations

from sqlalchemy import select

from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_is_open
from agentstore.repositories.lines.active import last_turn
from agentstore.repositories.lines.lines import no_branch, require
from agentstore.values import validation

Branch = int | str | None
"""A branch's number, or the name of one that is there."""


def checked(branch: Branch) -> Branch:
    """Check what names a branch."""
    if isinstance(branch, str):
        return validation.text("branch", branch)
    return validation.optional_amount("branch", branch)


def place_of(unit: Unit, session_id: str, branch: Branch, turn: int | None) -> tuple[int, int]:
    """Give the number of a branch and of a turn: None means the active one, and its last.

    Raises:
        NotFound: There is no such session or branch.
    """
    if isinstance(branch, int) and turn is not None:
        return branch, turn
    tables = unit.tables
    branches, sessions = tables.branches.c, tables.sessions.c
    is_active = branches.number == sessions.active_branch
    if isinstance(branch, str):
        meant = branches.name == branch
    else:
        meant = is_active if branch is None else branches.number == branch
    query = (
        select(branches.number, branches.name, is_active, sessions.turn)
        .join_from(tables.branches, tables.sessions, sessions.pk == branches.session_id)
        .where(
            branches.session_id == session_id,
            session_is_open(tables),
            branches.gone.is_(False),
            meant,
        )
    )
    row = unit.connection.execute(query).first()
    if row is None:
        require(unit, session_id)
        raise no_branch(str(branch)) if branch is not None else NotFound("session", session_id)
    number, name, active, last = row
    if turn is None and not active:
        last = last_turn(unit, session_id, name)
    return number, last if turn is None else turn
