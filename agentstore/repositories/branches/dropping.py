"""Deleting a branch, and those messages that no other one shows.

One statement reads all that has to be known, and one changes what leads to the branch. Then the
messages go, and last what is left of branches that were deleted before.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    Stretch,
    releasing,
    remove_gone_branches,
    remove_unseen,
    select_seen,
)
from agentstore.repositories.lines.tallies import Segment, taking_up
from agentstore.values.ids import new_id
from agentstore.values.states import MAIN


@dataclass(frozen=True, slots=True)
class _Going:
    """A branch that is to go.

    Attributes:
        number: Its number.
        reserved: Whether its name is.
        parent: The name of the branch that it grew from; None if that is gone.
        line: Its segments, the newest first.
        following: Number, tip and last turn of the branch that was asked for in its place.
        seen: What is shown of the branches that its line has messages of: by which branch, from
            where, up to where, and by which segment; None for a whole branch.
    """

    number: int
    reserved: bool
    parent: str | None
    line: list[Segment]
    following: tuple[int, int | None, int] | None
    seen: list[tuple[int, int, int, int | None]]

    def seen_without(self, released: set[int]) -> list[Stretch]:
        """Give what is seen once the branch is gone, and these segments with it."""
        return [
            (branch, first, last)
            for branch, first, last, segment in self.seen
            if (branch != self.number if segment is None else segment not in released)
        ]


def drop(unit: Unit, session: LockedSession, name: str, *, force: bool, then: str | None) -> int:
    """Delete a branch of a locked session; see ``Branches.delete``."""
    going = _read(unit, session, name, then)
    if going.number == 0:
        raise InvalidInput("main cannot be deleted. Use messages.clear, or delete the session.")
    if then is not None and going.following is None:
        raise no_branch(then)
    was_active = going.number == session.active_branch
    given = {SESSION_ID: session.id, "going": going.number, "gone_name": new_id()}
    given["released"] = going.line[0].number
    if was_active:
        if then is None and not force:
            raise BranchInUse(session.id, name)
        end = going.following or end_of(unit, session.id, going.parent or MAIN)
        given["following"], given["its_tip"], given["its_turn"] = end
        note_active(unit, session, *end)
    *others, last = _changing(unit.tables, unit.dialect, dialect_of(unit.connection), was_active)
    for each in others:
        each.execute_many(unit.connection, [given])
    released = {segment for (segment,) in last.rows(unit.connection, given)}
    if going.reserved:
        keep_name(unit, session, name)
    shown = [(each.branch, each.first_seq, each.last_seq) for each in going.line]
    deleted = remove_unseen(unit, session, shown, going.seen_without(released))
    remove_gone_branches(unit, session)
    return deleted


def _read(unit: Unit, session: LockedSession, name: str, then: str | None) -> _Going:
    wanted = {SESSION_ID: session.id, "branch": name, "name": then, **LAST_ONE}
    reading = _reading(unit.tables, unit.dialect, dialect_of(unit.connection))
    going, ends, line, by_segments, whole = reading.fetch(unit.connection, wanted)
    if not going:
        raise no_branch(name)
    number, reserved, parent = going[0]
    number_tip_turn = next(iter(ends), None)
    seen: list[Any] = [*by_segments, *whole]
    return _Going(number, reserved, parent, segments_from(line), number_tip_turn, seen)


@lru_cache(maxsize=256)
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


@lru_cache(maxsize=256)
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
        names = ("following", "its_tip", "its_turn")
        its_number, tip, turn = (bindparam(name, type_=BigInteger) for name in names)
        changes.append(taking_up(tables, session_id, its_number, turn))
        changes.append(activating(tables, session_id, its_number, tip, turn))
    changes.append(releasing(tables, session_id, released, number))
    return [Prepared(change, driver) for change in dialect.together(*changes)]
