"""Removing messages: with all that hangs on them, and off their session's counters.

Removing and appending both lock the session's row, so the counters agree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Dialect,
    ScalarSelect,
    Select,
    Update,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    type_coerce,
    union,
    update,
)

from agentstore.engines.base.dialect import Change, room_in
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.errors import CounterOverflow, InvalidRow, NotFound
from agentstore.execution.unit import Unit
from agentstore.models.tables import session_is_open, session_not_being_deleted
from agentstore.records import MessageRecord
from agentstore.repositories.attachments import attached_to, drop_unattached
from agentstore.repositories.lines import (
    SESSION_ID,
    main_columns,
    message_record,
    newest,
    no_branch,
    only_turn,
)
from agentstore.repositories.listing import exact_sum, halves
from agentstore.repositories.operations import chunks
from agentstore.repositories.search import forget_deleted
from agentstore.schema import Tables
from agentstore.schema.conversations import in_sessions
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, from_nanos
from agentstore.values.validation import STREAMING


@dataclass(slots=True)
class LockedSession:
    """What a session's row says of its branches, while nobody else can change it.

    Attributes:
        turns_gone: Turns of what the active branch adds to that were deleted since it was locked,
            and are still counted there; see ``settle_turn``.
    """

    id: str
    active_branch: int
    tip: int | None
    last_branch: int
    last_seq: int
    turn: int
    message_count: int
    turns_gone: int = 0


def lock_session(unit: Unit, session_id: str) -> LockedSession:
    """Lock a session's row until the unit ends.

    Raises:
        NotFound: There is no such session.
    """
    sessions = unit.tables.sessions.c
    query = (
        select(
            sessions.active_branch,
            sessions.tip,
            sessions.last_branch,
            sessions.last_seq,
            sessions.turn,
            sessions.message_count,
        )
        .where(sessions.id == session_id, session_is_open(unit.tables))
        .with_for_update()
    )
    row = unit.connection.execute(query).first()
    if row is None:
        raise NotFound("session", session_id)
    return LockedSession(session_id, *row)


def lock_session_of(unit: Unit, message_id: str) -> None:
    """Lock the session of a message until the unit ends. The message may be deleted meanwhile.

    Raises:
        NotFound: There is no such message.
    """
    messages = unit.tables.messages.c
    owner = select(messages.session_id).where(
        messages.id == message_id, session_not_being_deleted(unit.tables, messages.session_id)
    )
    session_id = unit.connection.execute(owner).scalar()
    if session_id is None:
        raise NotFound("message", message_id)
    lock_session(unit, session_id)


def branch_number(unit: Unit, session: LockedSession, name: str | None) -> int:
    """Give the number of a branch of a locked session; None names the active one.

    Raises:
        NotFound: There is no such branch.
    """
    if name is None:
        return session.active_branch
    branches = unit.tables.branches.c
    query = select(branches.number).where(
        branches.session_id == session.id,
        branches.name == validation.text("branch", name),
        branches.gone.is_(False),
    )
    number = unit.connection.execute(query).scalar()
    if number is None:
        raise no_branch(name)
    return int(number)


def remove_messages(
    unit: Unit,
    session: LockedSession,
    *conditions: Any,
    unseen: bool = False,
    by_id: bool = False,
    added: bool = False,
) -> int:
    """Delete those messages of a locked session that meet conditions; see ``settle_turn`` too.

    Args:
        unit: In a write transaction.
        session: The session.
        conditions: Of the messages; ``segments.remove_all`` deletes all of them.
        unseen: Whether no branch shows them.
        by_id: Whether the conditions give ids of messages of this session: then they are looked
            up, and not looked for among all that it has.
        added: Whether all of them were added to the active branch since it was divided last.

    Returns:
        How many were deleted.
    """
    messages = unit.tables.messages
    matching = conditions if by_id else (messages.c.session_id == session.id, *conditions)
    query = select(
        func.count(),
        exact_sum(messages.c.token_count),
        exact_sum(messages.c.cost),
        func.sum(case((messages.c.role == "user", 1), else_=0)),
        attached_to(unit.tables, session.id, *conditions),
    ).where(*matching)
    count, tokens, cost, turns, attached = unit.connection.execute(query).one()
    if not count:
        return 0
    changes: list[Change] = [delete(messages).where(*matching)]
    if unseen:
        changes.append(adding(unit.tables, session.id, session.active_branch, int(count), 0))
    elif added or session.last_branch == 0:
        session.turns_gone += int(turns)
    else:
        session.turns_gone += subtract(unit, session.id, session.active_branch, matching)
    if max(tokens, cost) > MAX_INTEGER:  # written before calls were bounded, so no counter has it
        unit.dialect.at_once(unit.connection, *changes)
        repair_sessions(unit, [session.id])
        session.turns_gone = 0
    elif not count_in(unit, session.id, -int(count), -tokens, -from_nanos(cost), *changes):
        session.turns_gone = 0
    drop_unattached(unit, attached.split(",") if attached else ())
    forget_deleted(unit)
    return int(count)


def settle_turn(unit: Unit, session: LockedSession) -> None:
    """Set the session's turn to that of the last message which its active branch shows now."""
    sessions = unit.tables.sessions
    rows = newest(unit, session.id, 1, whole=session.tip is None, columns=only_turn)
    turn = int(rows[0][0]) if rows else 0
    changes: list[Change] = []
    if more := session.turn - turn - session.turns_gone:
        changes.append(adding(unit.tables, session.id, session.active_branch, 0, more))
    changes.append(update(sessions).where(sessions.c.id == session.id).values(turn=turn))
    unit.dialect.at_once(unit.connection, *changes)
    session.turn, session.turns_gone = turn, 0


# Taking back the last message of a session that has only its first branch, in three statements.
#
# ::
#
#     read       the last message, the turn of the one before it, and the session's counters; and
#                lock the session
#     count off  in the session's row, if its counters are still those, and its branch the only one
#     delete     the message
#
# On PostgreSQL the first statement may wait for the lock, and has read what was there before. But
# each message that comes, goes or is replaced changes the counters. So if the second statement
# finds them as they were, the first one read what is there. Otherwise nothing was changed, and
# the caller takes the longer way.
#
# Attachments go with their message. They change under the session's lock too: PostgreSQL sees them
# when it deletes the message, and SQLite, where nobody else writes meanwhile, when it reads it.


_COUNTERS = ("last_seq", "message_count", "total_tokens", "total_cost")
_MESSAGE = ("id", "seq", "turn", "role", "status", "token_count", "cost")


def pop_of_whole(unit: Unit, session_id: str) -> MessageRecord | None:
    """Delete and give the last message; None if there is none, or if it is not that simple.

    Args:
        unit: In a write transaction.
        session_id: The session.
    """
    statements = _statements(unit.tables, dialect_of(unit.connection))
    rows = statements.read.fetch(unit.connection, {SESSION_ID: session_id})
    if not rows:
        return None
    message_id, _, _, role, status, tokens, cost, attached, session_turn, *counters = rows[0]
    if status == STREAMING:  # its text is in pieces
        return None
    turn = rows[1][_MESSAGE.index("turn")] if len(rows) > 1 else 0
    given = {SESSION_ID: session_id, "tokens": tokens, "cost": cost, "now_turn": turn}
    given |= dict(zip(_COUNTERS, counters, strict=True))
    if not statements.count_off.rows(unit.connection, given):
        return None
    given = {SESSION_ID: session_id, "message_id": message_id}
    ((*columns, attached_now),) = statements.delete.fetch(unit.connection, given)
    digests = ",".join(filter(None, (attached, attached_now)))
    drop_unattached(unit, digests.split(",") if digests else ())
    forget_deleted(unit)
    change(unit, session_id, 0, Counts(0, session_turn - turn - (role == "user")))
    return message_record(columns)


@dataclass(frozen=True, slots=True)
class _Popping:
    read: Prepared
    count_off: Prepared
    delete: Prepared


@lru_cache(maxsize=256)
def _statements(tables: Tables, driver: Dialect) -> _Popping:
    messages, sessions = tables.messages.c, tables.sessions.c
    never_branched = sessions.last_branch == 0
    this = (sessions.id == bindparam(SESSION_ID), session_is_open(tables), never_branched)
    last = (
        select(*(messages[name] for name in _MESSAGE))
        .where(
            messages.session_id == bindparam(SESSION_ID),
            messages.branch == select(sessions.last_branch).where(*this).scalar_subquery(),
        )
        .order_by(messages.seq.desc())
        .limit(literal_column("2"))
        .subquery("last")
    )
    # After a wait the row that was locked is the newest; what was read with it is not.
    seen = tables.sessions.alias("seen")
    read = (
        select(
            *last.c,
            _attached_to(tables, last.c.id),
            seen.c.turn,
            *(seen.c[name] for name in _COUNTERS),
        )
        .join_from(last, seen, seen.c.id == bindparam(SESSION_ID))
        .join(tables.sessions, sessions.pk == seen.c.pk)
        .order_by(last.c.seq.desc())
        .with_for_update(of=tables.sessions)
    )
    as_read = [sessions[name] == bindparam(name) for name in _COUNTERS]
    tokens = bindparam("tokens", type_=BigInteger)
    cost = bindparam("cost", type_=messages.cost.type)
    count_off = (
        update(tables.sessions)
        .where(*this, *as_read, sessions.total_tokens >= tokens, sessions.total_cost >= cost)
        .values(
            message_count=sessions.message_count - 1,
            total_tokens=sessions.total_tokens - tokens,
            total_cost=sessions.total_cost - cost,
            turn=bindparam("now_turn"),
        )
        .returning(sessions.pk)
    )
    message_id = bindparam("message_id", type_=messages.id.type)
    gone = delete(tables.messages).where(messages.id == message_id)
    deleted = gone.returning(*main_columns(messages), _attached_to(tables, message_id))
    return _Popping(*(Prepared(each, driver) for each in (read, count_off, deleted)))


def _attached_to(tables: Tables, message_id: ColumnElement[Any]) -> ColumnElement[str | None]:
    """Select the digests of what is attached to a message, with commas between them."""
    attachments = tables.attachments.c
    digests = select(func.aggregate_strings(attachments.digest, ","))
    return digests.where(attachments.message_id == message_id).scalar_subquery().label("attached")


# How many messages and turns a line shows: counters per segment, so that no query counts messages.
#
# - A segment that has ended has counters of its own.
# - The last part of a branch, the one that still grows, is counted in the branch's row
#   (``own_messages``, ``own_turns``).
# - For the active branch that row holds the count *minus* the session's counters (its number of
#   messages and its last turn). A save raises the session's counters anyway, and so the sum stays
#   right without another write.
#
# Whatever else changes these numbers happens under the session's lock:
#
# - switching branches: the session's counters are added to the old branch's row and subtracted
#   from the new one's (``detach``, ``attach``);
# - deleting messages, which may also lower the session's turn (``subtract``);
# - cutting a line; see ``cutting``.


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages, and how many of them begin a turn, being a user's."""

    messages: int = 0
    turns: int = 0

    def __post_init__(self) -> None:
        """Refuse what a damaged row counts: sums of it would be no numbers.

        Raises:
            InvalidRow: It has no number where there always is one.
        """
        if None in (self.messages, self.turns):
            raise InvalidRow("", "", "NULL")

    def __add__(self, other: Counts) -> Counts:
        """Count both."""
        return Counts(self.messages + other.messages, self.turns + other.turns)

    def __sub__(self, other: Counts) -> Counts:
        """Leave out what the other counts."""
        return Counts(self.messages - other.messages, self.turns - other.turns)


NOTHING = Counts()


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a line.

    Attributes:
        number: Its number in ``branch_segments``; None for what is not stored, a whole branch.
        branch: Whose messages it shows.
        first_seq: The first sequence number that belongs to it.
        last_seq: The last one that does.
        previous: The number of the segment before it.
        counts: What it shows.
    """

    number: int | None
    branch: int
    first_seq: int
    last_seq: int
    previous: int | None
    counts: Counts


def own_counts(tables: Tables) -> tuple[ColumnElement[int], ColumnElement[int]]:
    """Give what a branch adds to, of its row and its session's."""
    branches, sessions = tables.branches.c, tables.sessions.c
    active = branches.number == sessions.active_branch
    return (
        branches.own_messages + case((active, sessions.message_count), else_=0),
        branches.own_turns + case((active, sessions.turn), else_=0),
    )


def add_up(unit: Unit, session_id: str, tips: Sequence[int]) -> dict[int, Counts]:
    """Count what lines show up to some of their segments, by these, but for what is added to.

    Each segment is read once, however many of the lines lead to it.
    """
    if not tips:
        return {}
    found: dict[int, Counts] = {}
    # A segment has a larger number than the one before it.
    given = {"session_id": session_id, "tips": list(tips)}
    rows = unit.connection.execute(_reached(unit.tables), given).all()
    for row in sorted(rows, key=lambda row: row.number):
        found[row.number] = Counts(row.messages, row.turns) + found.get(row.previous, NOTHING)
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


def counts_of(unit: Unit, session_id: str, name: str | None) -> Counts | None:
    """Count what a branch shows, the active one if name is None; None where there is no such."""
    branches, sessions = unit.tables.branches, unit.tables.sessions
    active = branches.c.number == sessions.c.active_branch
    query = (
        select(branches.c.tip, *own_counts(unit.tables))
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
    return Counts(*row[1:]) + before.get(row.tip, NOTHING)


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


def detach(tables: Tables, session_id: Any, number: Any) -> Update:
    """Count what the active branch adds to in its own row: another one becomes active."""
    counted = (of_session(tables, session_id, name) for name in ("message_count", "turn"))
    return adding(tables, session_id, number, *counted)


def attach(tables: Tables, session_id: Any, number: Any, turn: Any) -> Update:
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


def change(unit: Unit, session_id: str, branch: int, by: Counts) -> None:
    """Change what the row of a branch counts."""
    if by != NOTHING:
        unit.connection.execute(adding(unit.tables, session_id, branch, by.messages, by.turns))


def subtract(
    unit: Unit, session_id: str, active_branch: int, going: Sequence[ColumnElement[bool]]
) -> int:
    """Subtract messages of a session that go now from all segments that show them.

    Returns:
        Turns of what the active branch adds to. They are not subtracted yet: it may be by just as
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

    def within(branch: int, first: int, last: int) -> Counts:
        return Counts(*(_within(found.get(branch, ()), first, last) for found in (seqs, users)))

    of_active = NOTHING
    for numbers in chunks(list(seqs)):
        _subtract_from_segments(unit, session_id, numbers, within)
        for number, first in _ends(unit, session_id, numbers):
            counts = within(number, first, MAX_INTEGER)
            if number == active_branch:
                of_active = counts
            else:
                change(unit, session_id, number, NOTHING - counts)
    elsewhere = sum(map(len, seqs.values())) - of_active.messages
    change(unit, session_id, active_branch, Counts(elsewhere, 0))
    return of_active.turns


def _subtract_from_segments(
    unit: Unit, session_id: str, branches: Sequence[int], within: Callable[[int, int, int], Counts]
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
        {"segment": number, "less": counts.messages, "less_turns": counts.turns}
        for number, counts in gone.items()
        if counts.messages
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


# The counters of a session: changed with the rows they count, and counted again where wrong.


def count_in(
    unit: Unit, session_id: str, messages: int, tokens: int, cost: Decimal, *beside: Change
) -> bool:
    """Change a locked session's counters by so much, in the transaction that changes the rows.

    Counters that say less than what goes were wrong, and are counted again. Other changes are
    made beside it; see ``EngineDialect.at_once``.

    Returns:
        Whether they were right, as far as can be seen.

    Raises:
        CounterOverflow: They have no room for it.
    """
    sessions = unit.tables.sessions
    so_far, nothing = sessions.c.total_cost, from_nanos(0)
    less = max(nothing, -cost)  # money is no debt
    grows = tokens > 0 or cost > 0
    counted = unit.dialect.at_once(
        unit.connection,
        *beside,
        update(sessions)
        .where(
            sessions.c.id == session_id,
            *([room_in(sessions)] if grows else []),
            sessions.c.total_tokens >= -tokens,
            so_far >= less,
        )
        .values(
            message_count=sessions.c.message_count + messages,
            total_tokens=sessions.c.total_tokens + tokens,
            total_cost=so_far + cost if cost >= 0 else so_far - less,
        ),
    )
    if counted.rowcount:
        return True
    if grows:
        raise CounterOverflow("session", session_id)
    repair_sessions(unit, [session_id])
    return False


def repair_sessions(unit: Unit, ids: Sequence[str]) -> None:
    """Count again, with each session locked, so that no message comes in between."""
    sessions, messages = unit.tables.sessions, unit.tables.messages
    for chunk in chunks(list(ids)):
        mine = sessions.c.id.in_(chunk)
        lock = select(sessions.c.pk).where(mine).order_by(sessions.c.pk).with_for_update()
        unit.connection.execute(lock).all()
        of_session = messages.c.session_id == sessions.c.pk
        sums = {
            "message_count": func.count(),
            "total_tokens": halves(messages.c.token_count).fitting(),
            "total_cost": halves(messages.c.cost).fitting(),
        }
        counted = {
            name: func.coalesce(
                select(value).where(of_session).scalar_subquery(),
                type_coerce(sessions.c[name], BigInteger),  # what has no room stays
            )
            for name, value in sums.items()
        }
        unit.connection.execute(update(sessions).where(mine).values(counted))
        newest = select(func.max(messages.c.seq)).where(of_session).scalar_subquery()
        behind = update(sessions).where(mine, sessions.c.last_seq < newest)
        unit.connection.execute(behind.values(last_seq=newest))
        mend_tallies(unit, chunk)


# Counting what segments and branches count again; see ``Counts`` for what they are.
#
# The messages of each branch are counted once, in pieces: between any two numbers at which a
# segment begins or has ended. However many segments overlap, each of them is the sum of some
# pieces.


Ids = Sequence[str] | Select[Any] | None
"""Of sessions, or what selects them; None for all."""


def wrong_segments(tables: Tables, ids: Ids) -> Select[Any]:
    """Select the segments whose counts are not what they show, with what is."""
    segments, pieces = tables.branch_segments, _pieces(tables, ids)
    ended = case((segments.c.last_seq < MAX_INTEGER, 1), else_=0)
    shows = and_(
        pieces.c.session_id == segments.c.session_id,
        pieces.c.branch == segments.c.branch,
        pieces.c.first_seq.between(segments.c.first_seq, segments.c.last_seq),
    )
    messages, turns = (ended * _sum(pieces.c[name]) for name in ("messages", "turns"))
    stored = segments.c.messages, segments.c.turns
    return (
        select(
            segments.c.session_id,
            segments.c.number,
            messages.label("messages"),
            turns.label("turns"),
        )
        .select_from(segments.outerjoin(pieces, shows))
        .where(_of(tables, ids, segments.c.session_id))
        .group_by(segments.c.session_id, segments.c.number)
        .having(or_(stored[0] != messages, stored[1] != turns))
    )


def wrong_branches(tables: Tables, ids: Ids) -> Select[Any]:
    """Select the branches whose counts are not what they add to, with what is."""
    branches, sessions, tips = tables.branches, tables.sessions, tables.branch_segments
    pieces = _pieces(tables, ids)
    tip = and_(tips.c.session_id == branches.c.session_id, tips.c.number == branches.c.tip)
    shows = and_(
        pieces.c.session_id == branches.c.session_id,
        pieces.c.branch == branches.c.number,
        pieces.c.first_seq >= func.coalesce(tips.c.first_seq, 1),
        branches.c.gone.is_(False),
    )
    active = branches.c.number == sessions.c.active_branch
    messages = _sum(pieces.c.messages) - case((active, sessions.c.message_count), else_=0)
    turns = _sum(pieces.c.turns) - case((active, sessions.c.turn), else_=0)
    return (
        select(
            branches.c.session_id,
            branches.c.number,
            messages.label("messages"),
            turns.label("turns"),
        )
        .select_from(
            branches.join(sessions, sessions.c.pk == branches.c.session_id)
            .outerjoin(tips, tip)
            .outerjoin(pieces, shows)
        )
        .where(_of(tables, ids, branches.c.session_id), session_is_open(tables))
        .group_by(branches.c.session_id, branches.c.number, sessions.c.pk)
        .having(or_(branches.c.own_messages != messages, branches.c.own_turns != turns))
    )


def mend_tallies(unit: Unit, ids: Sequence[str]) -> None:
    """Count again in sessions that are locked, by their counters, which are right."""
    segments, branches = unit.tables.branch_segments, unit.tables.branches
    wrong = (
        (segments, wrong_segments(unit.tables, ids), ("messages", "turns")),
        (branches, wrong_branches(unit.tables, ids), ("own_messages", "own_turns")),
    )
    for table, query, columns in wrong:
        right = [
            dict(zip(("session", "which", *columns), row, strict=True))
            for row in unit.connection.execute(query)
        ]
        if right:
            here = table.c.session_id == bindparam("session"), table.c.number == bindparam("which")
            values: dict[str, Any] = {name: bindparam(name) for name in columns}
            unit.connection.execute(update(table).where(*here).values(values), right)


def _of(tables: Tables, ids: Ids, column: ColumnElement[str]) -> ColumnElement[bool]:
    sessions = tables.sessions.c
    return true() if ids is None else in_sessions(sessions, column, sessions.id.in_(ids))


def _sum(column: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(func.coalesce(func.sum(column), 0), BigInteger)


def _pieces(tables: Tables, ids: Ids) -> CTE:
    """Count the messages of each branch between the numbers at which its segments begin and end."""
    segments, branches, messages = tables.branch_segments, tables.branches, tables.messages
    of_segments = _of(tables, ids, segments.c.session_id)
    beginnings = union(
        select(
            branches.c.session_id,
            branches.c.number.label("branch"),
            literal(1, BigInteger).label("first_seq"),
        ).where(_of(tables, ids, branches.c.session_id)),
        select(segments.c.session_id, segments.c.branch, segments.c.first_seq).where(of_segments),
        select(segments.c.session_id, segments.c.branch, segments.c.last_seq + 1).where(
            of_segments, segments.c.last_seq < MAX_INTEGER
        ),
    ).subquery("beginnings")
    following = func.lead(beginnings.c.first_seq).over(
        partition_by=(beginnings.c.session_id, beginnings.c.branch),
        order_by=beginnings.c.first_seq,
    )
    ranges = select(beginnings, following.label("next_seq")).cte("ranges")

    def count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
        last = func.coalesce(ranges.c.next_seq - 1, MAX_INTEGER)
        return (
            select(func.count())
            .where(
                messages.c.session_id == ranges.c.session_id,
                messages.c.branch == ranges.c.branch,
                messages.c.seq.between(ranges.c.first_seq, last),
                *conditions,
            )
            .scalar_subquery()
        )

    pieces = select(
        ranges.c.session_id,
        ranges.c.branch,
        ranges.c.first_seq,
        count().label("messages"),
        count(messages.c.role == "user").label("turns"),
    )
    # The limit keeps engines from counting again for each segment that a piece is joined to.
    return pieces.limit(MAX_INTEGER).cte("pieces")
