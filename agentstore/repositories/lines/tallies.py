"""How many messages and turns a line shows: counters per segment, so that no query counts messages.

- A segment that has ended has counters of its own.
- The last part of a branch, the one that still grows, is counted in the branch's row
  (``own_messages``, ``own_turns``).
- For the active branch that row holds the count *minus* the session's counters (its number of
  messages and its last turn). A save raises the session's counters anyway, and so the sum stays
  right without another write.

Whatever else changes these numbers happens under the session's lock:

- switching branches: the session's counters are added to the old branch's row and subtracted from
  the new one's (``putting_down``, ``taking_up``);
- deleting messages, which may also lower the session's turn (``take_off``);
- cutting a line; see ``cutting``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    Update,
    and_,
    bindparam,
    case,
    func,
    select,
    update,
)

from agentstore.errors import UnsoundRow
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.base.operations import chunks
from agentstore.values.types import MAX_INTEGER


@dataclass(frozen=True, slots=True)
class Tally:
    """How many messages, and how many of them begin a turn, being a user's."""

    messages: int = 0
    turns: int = 0

    def __post_init__(self) -> None:
        """Refuse what a damaged row counts: sums of it would be no numbers.

        Raises:
            UnsoundRow: It has no number where there always is one.
        """
        if None in (self.messages, self.turns):
            raise UnsoundRow("", "", "NULL")

    def __add__(self, other: Tally) -> Tally:
        """Count both."""
        return Tally(self.messages + other.messages, self.turns + other.turns)

    def __sub__(self, other: Tally) -> Tally:
        """Leave out what the other counts."""
        return Tally(self.messages - other.messages, self.turns - other.turns)


NOTHING = Tally()


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a line.

    Attributes:
        number: Its number in ``branch_segments``; None for what is not stored, a whole branch.
        branch: Whose messages it shows.
        first_seq: The first sequence number that belongs to it.
        last_seq: The last one that does.
        previous: The number of the segment before it.
        tally: What it shows.
    """

    number: int | None
    branch: int
    first_seq: int
    last_seq: int
    previous: int | None
    tally: Tally


def own_tally(tables: Tables) -> tuple[ColumnElement[int], ColumnElement[int]]:
    """Give what a branch adds to, of its row and its session's."""
    branches, sessions = tables.branches.c, tables.sessions.c
    active = branches.number == sessions.active_branch
    return (
        branches.own_messages + case((active, sessions.message_count), else_=0),
        branches.own_turns + case((active, sessions.turn), else_=0),
    )


def add_up(unit: Unit, session_id: str, tips: Sequence[int]) -> dict[int, Tally]:
    """Count what lines show up to some of their segments, by these, but for what is added to.

    Each segment is read once, however many of the lines lead to it.
    """
    if not tips:
        return {}
    found: dict[int, Tally] = {}
    # A segment has a larger number than the one before it.
    given = {"session_id": session_id, "tips": list(tips)}
    rows = unit.connection.execute(_reached(unit.tables), given).all()
    for row in sorted(rows, key=lambda row: row.number):
        found[row.number] = Tally(row.messages, row.turns) + found.get(row.previous, NOTHING)
    return found


@lru_cache(maxsize=256)
def _reached(tables: Tables) -> Select[Any]:
    segments = tables.branch_segments
    columns = [segments.c[name] for name in ("number", "previous", "messages", "turns")]
    here = segments.c.session_id == bindparam("session_id")
    tips = segments.c.number.in_(bindparam("tips", expanding=True))
    reached = select(*columns).where(here, tips).cte("reached", recursive=True)
    is_previous = and_(here, segments.c.number == reached.c.previous)
    return select(reached.union(select(*columns).join_from(reached, segments, is_previous)))


def tally_of(unit: Unit, session_id: str, name: str | None) -> Tally | None:
    """Count what a branch shows, the active one if name is None; None where there is no such."""
    branches, sessions = unit.tables.branches, unit.tables.sessions
    active = branches.c.number == sessions.c.active_branch
    query = (
        select(branches.c.tip, *own_tally(unit.tables))
        .join_from(branches, sessions, sessions.c.pk == branches.c.session_id)
        .where(
            branches.c.session_id == session_id,
            active if name is None else branches.c.name == name,
            branches.c.gone.is_(False),
        )
    )
    row = unit.connection.execute(query).first()
    if row is None:
        return None
    before = {} if row.tip is None else add_up(unit, session_id, [row.tip])
    return Tally(*row[1:]) + before.get(row.tip, NOTHING)


def adding(tables: Tables, session_id: Any, number: Any, messages: Any, turns: Any) -> Update:
    """Change what the row of a branch counts by so much."""
    branches = tables.branches
    return (
        update(branches)
        .where(branches.c.session_id == session_id, branches.c.number == number)
        .values(
            own_messages=branches.c.own_messages + messages,
            own_turns=branches.c.own_turns + turns,
        )
    )


def putting_down(tables: Tables, session_id: Any, number: Any) -> Update:
    """Count what the active branch adds to in its own row: another one becomes active."""
    counted = (of_session(tables, session_id, name) for name in ("message_count", "turn"))
    return adding(tables, session_id, number, *counted)


def taking_up(tables: Tables, session_id: Any, number: Any, turn: Any) -> Update:
    """Count what a branch adds to in the session's row too: it becomes active.

    Args:
        tables: The tables.
        session_id: The session, locked.
        number: The branch.
        turn: Its last turn, which will be the session's.
    """
    messages = of_session(tables, session_id, "message_count")
    return adding(tables, session_id, number, -messages, -turn)


def of_session(tables: Tables, session_id: Any, column: str) -> ScalarSelect[int]:
    """Select a column of a session's row."""
    sessions = tables.sessions.c
    return select(sessions[column]).where(sessions.id == session_id).scalar_subquery()


def change(unit: Unit, session_id: str, branch: int, by: Tally) -> None:
    """Change what the row of a branch counts."""
    if by != NOTHING:
        unit.connection.execute(adding(unit.tables, session_id, branch, by.messages, by.turns))


def take_off(
    unit: Unit, session_id: str, active_branch: int, going: Sequence[ColumnElement[bool]]
) -> int:
    """Count messages of a session off that go now, in all segments that show them.

    Returns:
        Turns of what the active branch adds to. They are not counted off yet: it may be by just as
        many that the session's turn falls.
    """
    messages = unit.tables.messages.c
    seqs: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    query = select(messages.branch, messages.seq, messages.role == "user").where(*going)
    for branch, seq, is_users in unit.connection.execute(query.order_by(messages.seq)):
        seqs.setdefault(branch, []).append(seq)
        if is_users:
            users.setdefault(branch, []).append(seq)

    def within(branch: int, first: int, last: int) -> Tally:
        return Tally(*(_within(found.get(branch, ()), first, last) for found in (seqs, users)))

    of_active = NOTHING
    for numbers in chunks(list(seqs)):
        _take_off_segments(unit, session_id, numbers, within)
        for number, first in _ends(unit, session_id, numbers):
            tally = within(number, first, MAX_INTEGER)
            if number == active_branch:
                of_active = tally
            else:
                change(unit, session_id, number, NOTHING - tally)
    elsewhere = sum(map(len, seqs.values())) - of_active.messages
    change(unit, session_id, active_branch, Tally(elsewhere, 0))
    return of_active.turns


def _take_off_segments(
    unit: Unit, session_id: str, branches: Sequence[int], within: Callable[[int, int, int], Tally]
) -> None:
    segments = unit.tables.branch_segments
    shown = select(segments).where(
        segments.c.session_id == session_id,
        segments.c.branch.in_(branches),
        segments.c.last_seq < MAX_INTEGER,
    )
    gone = {
        row.number: within(row.branch, row.first_seq, row.last_seq)
        for row in unit.connection.execute(shown)
    }
    less = [
        {"segment": number, "less": tally.messages, "less_turns": tally.turns}
        for number, tally in gone.items()
        if tally.messages
    ]
    if less:
        here = segments.c.session_id == session_id, segments.c.number == bindparam("segment")
        values = {
            "messages": segments.c.messages - bindparam("less"),
            "turns": segments.c.turns - bindparam("less_turns"),
        }
        unit.connection.execute(update(segments).where(*here).values(values), less)


def _ends(unit: Unit, session_id: str, numbers: Sequence[int]) -> Sequence[Any]:
    """Give the number of each of these branches that is there, and where it begins to add."""
    branches, segments = unit.tables.branches, unit.tables.branch_segments
    tip = and_(segments.c.session_id == session_id, segments.c.number == branches.c.tip)
    query = (
        select(branches.c.number, func.coalesce(segments.c.first_seq, 1))
        .select_from(branches.outerjoin(segments, tip))
        .where(
            branches.c.session_id == session_id,
            branches.c.number.in_(numbers),
            branches.c.gone.is_(False),
        )
    )
    return unit.connection.execute(query).all()


def _within(seqs: Sequence[int], first: int, last: int) -> int:
    return bisect_right(seqs, last) - bisect_left(seqs, first)
