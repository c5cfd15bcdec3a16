"""What was recorded of a session: found again by branch and turn, and which branch is meant."""

from __future__ import annotations

from sqlalchemy import ColumnElement, delete, select

from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_is_open, session_stays
from agentstore.records import Page, UsageRecord
from agentstore.repositories.base.operations import one_page
from agentstore.repositories.lines.lines import newest, no_branch, require
from agentstore.repositories.usage.rows import usage_record
from agentstore.values import validation
from agentstore.values.paging import Cursors

Branch = int | str | None
"""A branch's number, or the name of one that is there."""


def checked(branch: Branch) -> Branch:
    """Check what names a branch."""
    if isinstance(branch, str):
        return validation.text("branch", branch)
    return validation.optional_amount("branch", branch)


def list_usage(
    unit: Unit,
    session_id: str,
    branch: Branch,
    turns: tuple[int | None, int | None],
    limit: int,
    cursor: str | None,
) -> Page[UsageRecord]:
    """Give one page; see ``Usage.list``."""
    used = unit.tables.turn_usage
    query = select(used).where(
        *_recorded(unit, session_id, branch, turns), session_stays(unit.tables, used.c.session_id)
    )
    cursors = Cursors("usage", session_id, branch, *turns)
    key = [used.c.branch, used.c.turn, used.c.pk]
    page = one_page(
        unit.connection, query, key, cursors, limit, cursor, usage_record, ascending=True
    )
    if not page.items:
        require(unit, session_id, branch if isinstance(branch, str) else None)
    return page


def delete_usage(unit: Unit, session_id: str, branch: Branch, turn: int | None) -> int:
    """Delete what was recorded; see ``Usage.delete``."""
    used = unit.tables.turn_usage
    gone = delete(used).where(
        *_recorded(unit, session_id, branch, (turn, turn)),
        session_stays(unit.tables, used.c.session_id),
    )
    count = unit.connection.execute(gone).rowcount
    if not count:
        require(unit, session_id, branch if isinstance(branch, str) else None)
    return count


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
        rows = newest(unit, session_id, 1, branch=name, columns=lambda messages: [messages.turn])
        last = rows[0][0] if rows else 0
    return number, last if turn is None else turn


def _recorded(
    unit: Unit, session_id: str, branch: Branch, turns: tuple[int | None, int | None]
) -> list[ColumnElement[bool]]:
    """Give the conditions of what is of a session, a branch, and of turns up to the second."""
    used, branches = unit.tables.turn_usage.c, unit.tables.branches.c
    conditions = [used.session_id == session_id]
    if isinstance(branch, str):
        named = select(branches.number).where(
            branches.session_id == session_id, branches.name == branch, branches.gone.is_(False)
        )
        conditions.append(used.branch == named.scalar_subquery())
    elif branch is not None:
        conditions.append(used.branch == branch)
    first, last = turns
    if first is not None and first == last:
        conditions.append(used.turn == first)
    else:
        conditions += [] if first is None else [used.turn >= first]
        conditions += [] if last is None else [used.turn <= last]
    return conditions
