"""Deleting a branch, and those messages that no other one shows.

One statement reads all that has to be known, and one changes what leads to the branch. Then the
messages go, and last what is left of branches that were deleted before.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, BindParameter, Dialect, and_, bindparam, select, update

from agentstore.engines.base.dialect import Change, EngineDialect
from agentstore.engines.base.prepared import Prepared, Stacked, dialect_of
from agentstore.errors import BranchInUse, InvalidInput
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.branches.growing import keep_name
from agentstore.repositories.lines.active import (
    LAST_ONE,
    activating,
    end_of,
    note_active,
    select_end,
)
from agentstore.repositories.lines.cutting import segments_from, select_segments
from agentstore.repositories.lines.lines import no_branch
from agentstore.repositories.lines.queries import SESSION_ID
from agentstore.repositories.lines.removal import LockedSession
from agentstore.repositories.lines.segments import (
    releasing,
    remove_gone_branches,
    remove_unseen,
    select_seen,
)
from agentstore.repositories.lines.tallies import taking_up
from agentstore.values.ids import new_id
from agentstore.values.states import MAIN


def drop(unit: Unit, session: LockedSession, name: str, *, force: bool, then: str | None) -> int:
    """Delete a branch of a locked session; see ``Branches.delete``."""
    tables, driver = unit.tables, dialect_of(unit.connection)
    wanted = {SESSION_ID: session.id, "branch": name, "name": then, **LAST_ONE}
    reading = _reading(tables, unit.dialect, driver)
    going, ends, line, by_segments, whole = reading.fetch(unit.connection, wanted)
    if not going:
        raise no_branch(name)
    number, reserved, parent = going[0]
    if number == 0:
        raise InvalidInput("main cannot be deleted. Use messages.clear, or delete the session.")
    if then is not None and not ends:
        raise no_branch(then)
    segments = segments_from(line)
    given = {SESSION_ID: session.id, "going": number, "gone_name": new_id()}
    given["released"] = segments[0].number
    was_active = number == session.active_branch
    if was_active:
        if then is None and not force:
            raise BranchInUse(session.id, name)
        end = ends[0] if ends else end_of(unit, session.id, parent or MAIN)
        given |= zip(_FOLLOWING, end, strict=True)
        note_active(unit, session, *end)
    *others, last = _changing(tables, unit.dialect, driver, was_active)
    for each in others:
        each.execute_many(unit.connection, [given])
    released = {segment for (segment,) in last.rows(unit.connection, given)}
    if reserved:
        keep_name(unit, session, name)
    shown = [(each.branch, each.first_seq, each.last_seq) for each in segments]
    seen = [
        (branch, first, last)
        for branch, first, last, segment in (*by_segments, *whole)
        if (branch != number if segment is None else segment not in released)
    ]
    deleted = remove_unseen(unit, session, shown, seen)
    remove_gone_branches(unit, session)
    return deleted


@lru_cache(maxsize=64)
def _reading(tables: Tables, dialect: EngineDialect, driver: Dialect) -> Stacked:
    """Read the branch, the one that follows, the line, and what is seen of the line's branches."""
    branches, parents = tables.branches, tables.branches.alias("parents")
    grew_from = and_(
        parents.c.session_id == branches.c.session_id,
        parents.c.number == branches.c.parent,
        parents.c.gone.is_(False),
    )
    going = (
        select(branches.c.number, branches.c.reserved, parents.c.name)
        .select_from(branches.outerjoin(parents, grew_from))
        .where(
            branches.c.session_id == bindparam(SESSION_ID),
            branches.c.name == bindparam("branch"),
            branches.c.gone.is_(False),
        )
    )
    segments, line = select_segments(tables, named=True)
    seen = select_seen(tables, bindparam(SESSION_ID), select(line.c.branch))
    return Stacked([going, select_end(tables, dialect), segments, *seen], driver)


_FOLLOWING = ("following", "its_tip", "its_turn")


@lru_cache(maxsize=64)
def _changing(
    tables: Tables, dialect: EngineDialect, driver: Dialect, was_active: bool
) -> list[Prepared]:
    """Have nothing lead to the branch, and another one be active if it was.

    The last statement gives the numbers of the segments that are no more.
    """
    branches = tables.branches
    session_id: BindParameter[str] = bindparam(SESSION_ID)
    number, released = (bindparam(name, type_=BigInteger) for name in ("going", "released"))
    nothing: dict[str, Any] = {"tip": None, "own_messages": 0, "own_turns": 0}
    gone: dict[str, Any] = {
        "name": bindparam("gone_name"),
        "gone": True,
        "reserved": False,
        **nothing,
    }
    this = branches.c.session_id == session_id, branches.c.number == number
    changes: list[Change] = [update(branches).where(*this).values(gone)]
    if was_active:
        its_number, tip, turn = (bindparam(name, type_=BigInteger) for name in _FOLLOWING)
        changes.append(taking_up(tables, session_id, its_number, turn))
        changes.append(activating(tables, session_id, its_number, tip, turn))
    changes.append(releasing(tables, session_id, released, number))
    return [Prepared(change, driver) for change in dialect.together(*changes)]
