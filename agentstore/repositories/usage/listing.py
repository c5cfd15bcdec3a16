"""What was recorded of a session, found again by branch and turn."""

from __future__ import annotations

from sqlalchemy import ColumnElement, delete, select

from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_stays
from agentstore.records import Page, UsageRecord
from agentstore.repositories.base.operations import one_page
from agentstore.repositories.lines.lines import require
from agentstore.repositories.usage.places import Branch
from agentstore.repositories.usage.rows import usage_record
from agentstore.values.paging import Cursors


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
