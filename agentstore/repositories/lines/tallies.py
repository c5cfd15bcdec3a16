"""How many messages and turns a line shows: counters per segment, so that no query counts messages.

- A segment that has ended has counters of its own.
- The last part of a branch, the one that still grows, is counted in the branch's row
  (``own_messages``, ``own_turns``).
- For the active branch that row holds the count *minus* the session's counters (its number of
  messages and its last turn). A save raises the session's counters anyway, and so the sum stays
  right without another write.

Whatever else changes these numbers happens under the session's lock:

- switching branches: the session's counters are added to the old branch's row and subtracted from
  the new one's (``hand_on``; ``put_down`` and ``take_up`` where there is only one of them);
- deleting messages, which may also lower the session's turn (``take_off``);
- cutting a line: ``tally_through`` says what stays.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    CompoundSelect,
    Select,
    Update,
    and_,
    bindparam,
    case,
    func,
    literal,
    select,
    union_all,
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


@lru_cache(maxsize=64)
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


def put_down(unit: Unit, session_id: str) -> None:
    """Count what the active branch adds to in its own row: another one becomes active."""
    _by_the_session(unit, session_id, 1)


def take_up(unit: Unit, session_id: str) -> None:
    """Count what the active branch adds to in the session's row too, now that it is active."""
    _by_the_session(unit, session_id, -1)


def hand_on(unit: Unit, session_id: str, number: int, turn: int) -> None:
    """Count as ``put_down`` does, and as ``take_up`` will for the branch that becomes active now.

    Args:
        unit: In a write transaction.
        session_id: The session, locked.
        number: The branch, another one than the active one.
        turn: Its last turn, which will be the session's.
    """
    given = {"of_session": session_id, "following": number, "its_turn": turn}
    unit.connection.execute(_counting(unit.tables).both, given)


def _by_the_session(unit: Unit, session_id: str, times: int) -> None:
    given = {"of_session": session_id, "times": times}
    unit.connection.execute(_counting(unit.tables).active, given)


@dataclass(frozen=True, slots=True)
class _Counting:
    active: Update
    both: Update


@lru_cache(maxsize=64)
def _counting(tables: Tables) -> _Counting:
    branches, sessions = tables.branches, tables.sessions.c
    session_id: BindParameter[str] = bindparam("of_session")
    times, following, turn = (
        bindparam(name, type_=BigInteger) for name in ("times", "following", "its_turn")
    )

    def of_session(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return select(column).where(sessions.id == session_id).scalar_subquery()

    def adding(numbers: ColumnElement[bool], messages: Any, turns: Any) -> Update:
        return (
            update(branches)
            .where(branches.c.session_id == session_id, numbers)
            .values(
                own_messages=branches.c.own_messages + messages,
                own_turns=branches.c.own_turns + turns,
            )
        )

    active, number = of_session(sessions.active_branch), branches.c.number
    messages, last = of_session(sessions.message_count), of_session(sessions.turn)
    is_new = number == following
    return _Counting(
        adding(number == active, times * messages, times * last),
        adding(
            number.in_([following, active]),
            case((is_new, -messages), else_=messages),
            case((is_new, -turn), else_=last),
        ),
    )


def change(unit: Unit, session_id: str, branch: int, by: Tally) -> None:
    """Change what the row of a branch counts."""
    if by == NOTHING:
        return
    branches = unit.tables.branches
    unit.connection.execute(
        update(branches)
        .where(branches.c.session_id == session_id, branches.c.number == branch)
        .values(
            own_messages=branches.c.own_messages + by.messages,
            own_turns=branches.c.own_turns + by.turns,
        )
    )


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


def tally_through(unit: Unit, session_id: str, segment: Segment, through: int) -> Tally:
    """Count what a segment shows up to a number.

    As many messages as there are numbers from the first to the last leave no gap, and then the
    numbers say it; so do turns. Only where there are gaps, what comes before or what comes after
    is counted, whichever has fewer numbers.
    """
    if through < segment.first_seq:
        return NOTHING
    if segment.last_seq <= through:
        return segment.tally
    messages = unit.tables.messages.c
    here = {"session_id": session_id, "branch": segment.branch, "first": segment.first_seq}
    ends = {"through": through, "last": segment.last_seq}
    rows = unit.connection.execute(_edges(unit.tables), {**here, **ends})
    found = sorted(rows, key=lambda row: row.edge)
    if len(found) < 3:
        return NOTHING
    first, cut, last = found
    if last.seq <= through:
        return segment.tally
    before = first.turn - (first.role == "user")
    earlier = cut.seq - first.seq < last.seq - cut.seq
    stretch = (first.seq, cut.seq) if earlier else (cut.seq + 1, last.seq)

    def counted(of_all: int, *conditions: ColumnElement[bool]) -> int:
        query = select(func.count()).where(
            messages.session_id == session_id,
            messages.branch == segment.branch,
            messages.seq.between(*stretch),
            *conditions,
        )
        some = int(unit.connection.execute(query).scalar_one())
        return some if earlier else of_all - some

    tally = segment.tally
    no_gap = tally.messages == last.seq - first.seq + 1
    no_turn_gap = tally.turns == last.turn - before
    return Tally(
        cut.seq - first.seq + 1 if no_gap else counted(tally.messages),
        cut.turn - before if no_turn_gap else counted(tally.turns, messages.role == "user"),
    )


@lru_cache(maxsize=64)
def _edges(tables: Tables) -> CompoundSelect[Any]:
    """Select the first message of a stretch, the last one up to a number, and the last of all."""
    messages = tables.messages.c

    def edge(end: int, last: str, order: ColumnElement[Any]) -> Select[Any]:
        query = (
            select(literal(end).label("edge"), messages.seq, messages.turn, messages.role)
            .where(
                messages.session_id == bindparam("session_id"),
                messages.branch == bindparam("branch", type_=BigInteger),
                messages.seq.between(
                    bindparam("first", type_=BigInteger), bindparam(last, type_=BigInteger)
                ),
            )
            .order_by(order)
            .limit(1)
        )
        return select(query.subquery())

    return union_all(
        edge(0, "through", messages.seq.asc()),
        edge(1, "through", messages.seq.desc()),
        edge(2, "last", messages.seq.desc()),
    )
