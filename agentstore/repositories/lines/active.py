"""Which branch is the active one: the session's row has its tip and its last turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Dialect,
    Select,
    Update,
    bindparam,
    func,
    select,
    update,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.lines.lines import newest, no_branch
from agentstore.repositories.lines.queries import SESSION_ID, anchor_of, select_newest
from agentstore.repositories.lines.removal import LockedSession
from agentstore.repositories.lines.rows import only_turn
from agentstore.repositories.lines.tallies import putting_down, taking_up
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER

LAST_ONE = {"count": 1, "through": MAX_INTEGER}
"""Parameters that ``end_columns`` needs, beside those of the line."""


def last_turn(unit: Unit, session_id: str, branch: str) -> int:
    """Give the number of the last turn that a branch shows; 0 where it shows nothing.

    Raises:
        NotFound: There is no such session or branch.
    """
    rows = newest(unit, session_id, 1, branch=branch, columns=only_turn)
    return int(rows[0][0]) if rows else 0


@lru_cache(maxsize=256)
def end_columns(
    tables: Tables, dialect: EngineDialect
) -> tuple[ColumnElement[int | None], ColumnElement[int]]:
    """Give the tip and the last turn of the branch with a ``name``, for a query of its row."""
    turn = select_newest(tables, dialect, active=False, columns=only_turn).scalar_subquery()
    return tables.branches.c.tip, func.coalesce(turn, 0).label("turn")


def activate(unit: Unit, session: LockedSession, number: int, tip: int | None, turn: int) -> None:
    """Make another branch of a locked session the active one.

    Args:
        unit: In a write transaction.
        session: The session.
        number: The branch.
        tip: Its newest segment.
        turn: Its last turn.
    """
    given = {
        SESSION_ID: session.id,
        "until_now": session.active_branch,
        "following": number,
        "its_tip": tip,
        "its_turn": turn,
    }
    statements = _activating(unit.tables, unit.dialect, dialect_of(unit.connection))
    for statement in statements:
        statement.execute_many(unit.connection, [given])
    note_active(unit, session, number, tip, turn)


def note_active(
    unit: Unit, session: LockedSession, number: int, tip: int | None, turn: int
) -> None:
    """Take note that a branch of a locked session is the active one now."""
    session.active_branch, session.tip, session.turn = number, tip, turn
    unit.segmented.discard(session.id)


@lru_cache(maxsize=256)
def _activating(tables: Tables, dialect: EngineDialect, driver: Dialect) -> list[Prepared]:
    session_id: BindParameter[str] = bindparam(SESSION_ID)
    before, number, tip, turn = (
        bindparam(name, type_=BigInteger)
        for name in ("until_now", "following", "its_tip", "its_turn")
    )
    changes = dialect.together(
        putting_down(tables, session_id, before),
        taking_up(tables, session_id, number, turn),
        activating(tables, session_id, number, tip, turn),
    )
    return [Prepared(change, driver) for change in changes]


def activating(tables: Tables, session_id: Any, number: Any, tip: Any, turn: Any) -> Update:
    """Say in a session's row which branch is the active one."""
    sessions = tables.sessions
    values = {"active_branch": number, "tip": tip, "turn": turn}
    return update(sessions).where(sessions.c.id == session_id).values(values)


@contextmanager
def working_on(unit: Unit, session: LockedSession, branch: str | None) -> Iterator[None]:
    """Have a branch of a locked session be the active one in the block; None means that which is.

    Whoever else looks sees the one that was, which is so again in the end. What is done in the
    block must not change what that one shows.

    Raises:
        NotFound: There is no such branch.
    """
    before = session.active_branch, session.tip, session.turn
    number = before[0]
    if branch is not None:
        number, tip, turn = end_of(unit, session.id, branch)
        if number != session.active_branch:
            activate(unit, session, number, tip, turn)
    yield
    if number != before[0]:
        activate(unit, session, *before)


def end_of(unit: Unit, session_id: str, branch: str) -> tuple[int, int | None, int]:
    """Give number, tip and last turn of a branch.

    Raises:
        NotFound: There is no such branch.
    """
    name = validation.text("branch", branch)
    given = {SESSION_ID: session_id, "name": name, **LAST_ONE}
    row = unit.connection.execute(select_end(unit.tables, unit.dialect), given).first()
    if row is None:
        raise no_branch(branch)
    return row.number, row.tip, row.turn


@lru_cache(maxsize=256)
def select_end(tables: Tables, dialect: EngineDialect) -> Select[Any]:
    """Select number, tip and last turn of the branch with a ``name``."""
    named = anchor_of(tables, active=False)
    return select(named.branch, *end_columns(tables, dialect)).where(named.condition)
