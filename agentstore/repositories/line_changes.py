"""Changing what branches show: under the session's lock, which keeps counters and messages equal.

The counters of a branch, of its messages and its turns, and its last turn stand in its own row;
those of the active branch in the session's row, which every save writes anyway. They are written
back when another branch becomes the active one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Dialect,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    true,
    type_coerce,
    update,
)

from agentstore.engines.base.dialect import Change, EngineDialect, room_in
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.errors import CounterOverflow
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.records.base import SessionStatus
from agentstore.repositories import lines
from agentstore.repositories.attachments import attached_to, drop_unattached
from agentstore.repositories.listing import exact_sum, halves
from agentstore.repositories.operations import chunks, required
from agentstore.repositories.search import forget_deleted
from agentstore.schema import Tables, session_is_open, session_not_being_deleted
from agentstore.schema.conversations import in_sessions
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, from_nanos
from agentstore.values.validation import STREAMING


class Counts(NamedTuple):
    """How many messages, and how many of them begin a turn, being a user's."""

    messages: int = 0
    turns: int = 0


NOTHING = Counts()


@dataclass(slots=True)
class LockedSession:
    """What a session's row says of it and its branches, while nobody else can change it."""

    id: str
    active_branch: int
    last_branch: int
    last_seq: int
    turn: int
    status: SessionStatus
    last_active_at: datetime


def lock_session(unit: Unit, session_id: str) -> LockedSession:
    """Lock a session's row until the unit ends.

    A call that changes a session locks this row first, so that two changes wait for each other
    instead of deadlocking.

    Raises:
        NotFound: There is no such session.
    """
    found = unit.first(_locking, session_id=session_id)
    return LockedSession(session_id, *required(found, "session", session_id))


def lock_session_of(unit: Unit, message_id: str) -> None:
    """Lock the session of a message until the unit ends. The message may be deleted meanwhile.

    Raises:
        NotFound: There is no such message.
    """
    (session_id,) = required(unit.first(_session_of, id=message_id), "message", message_id)
    lock_session(unit, session_id)


def _locking(tables: Tables) -> Select[Any]:
    sessions = tables.sessions.c
    branches = (sessions.active_branch, sessions.last_branch, sessions.last_seq, sessions.turn)
    columns = (*branches, sessions.status, sessions.last_active_at)
    here = sessions.id == bindparam("session_id"), session_is_open(tables)
    return select(*columns).where(*here).with_for_update()


def _session_of(tables: Tables) -> Select[Any]:
    messages = tables.messages.c
    stays = session_not_being_deleted(tables, messages.session_id)
    return select(messages.session_id).where(messages.id == bindparam("id"), stays)


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
        raise lines.no_branch(name)
    return int(number)


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch.

    Attributes:
        number: Its number.
        name: Its name.
        parent: The number of the branch that it grew from.
        reserved: Whether its name is.
        gone: Whether it was deleted.
        line: What it shows.
        counts: How much that is.
        turn: Its last turn.
    """

    number: int
    name: str
    parent: int | None
    reserved: bool
    gone: bool
    line: list[lines.Range]
    counts: Counts
    turn: int


def own_counts(tables: Tables) -> tuple[ColumnElement[int], ColumnElement[int], ColumnElement[int]]:
    """Give the messages, the turns and the last turn of a branch, of its row and its session's."""
    branches, sessions = tables.branches.c, tables.sessions.c
    active = branches.number == sessions.active_branch
    return (
        case((active, sessions.branch_messages), else_=branches.messages),
        case((active, sessions.branch_turns), else_=branches.turns),
        case((active, sessions.turn), else_=branches.turn),
    )


def read_branches(
    unit: Unit, session_id: str, *conditions: ColumnElement[bool], gone: bool = False
) -> list[BranchRow]:
    """Read the branches of a session that meet conditions, main first; perhaps some are gone."""
    branches, sessions = unit.tables.branches, unit.tables.sessions
    names = ("number", "name", "parent", "reserved", "gone", "line")
    if not gone:
        conditions = (*conditions, branches.c.gone.is_(False))
    query = (
        select(*(branches.c[name] for name in names), *own_counts(unit.tables))
        .join_from(branches, sessions, sessions.c.pk == branches.c.session_id)
        .where(branches.c.session_id == session_id, *conditions)
        .order_by(branches.c.number)
    )
    return [
        BranchRow(*row[:5], lines.read_line(row[5]), Counts(*row[6:8]), row[8])
        for row in unit.connection.execute(query)
    ]


def read_showing(unit: Unit, session: LockedSession, ranges: Iterable[int]) -> list[BranchRow]:
    """Read the branches of a session that show messages of some, by their numbers.

    The rows are found by the texts of their lines: those of others are not taken apart, which
    matters where a session forked a thousand times in a row.
    """
    branches = unit.tables.branches.c
    text = cast(type_coerce(branches.line, Text), Text)
    found: dict[int, BranchRow] = {}
    for numbers in chunks(sorted(set(ranges)), _MOST_RANGES):
        shows = or_(*(text.contains(f"[{number},") for number in numbers))
        found |= {each.number: each for each in read_branches(unit, session.id, shows)}
    return list(found.values())


def read_branch(unit: Unit, session_id: str, branch: int | str) -> BranchRow:
    """Read a branch, given by its number or its name.

    Raises:
        NotFound: There is no such branch.
    """
    branches = unit.tables.branches.c
    if isinstance(branch, str):
        this = branches.name == validation.text("branch", branch)
    else:
        this = branches.number == branch
    for found in read_branches(unit, session_id, this):
        return found
    raise lines.no_branch(str(branch))


def counts_of(unit: Unit, session_id: str, name: str | None) -> Counts | None:
    """Count what a branch shows, the active one if name is None; None where there is no such."""
    branches, sessions = unit.tables.branches, unit.tables.sessions
    active = branches.c.number == sessions.c.active_branch
    query = (
        select(*own_counts(unit.tables)[:2])
        .join_from(branches, sessions, sessions.c.pk == branches.c.session_id)
        .where(
            branches.c.session_id == session_id,
            active if name is None else branches.c.name == name,
            branches.c.gone.is_(False),
        )
    )
    row = unit.connection.execute(query).first()
    return None if row is None else Counts(*row)


def count_within(unit: Unit, session_id: str, ranges: lines.Line) -> Counts:
    """Count the messages in some ranges."""
    total = NOTHING
    messages = unit.tables.messages.c
    for some in chunks(ranges, _MOST_RANGES):
        query = select(func.count(), func.count(case((messages.role == "user", 1)))).where(
            messages.session_id == session_id, _in_ranges(unit.tables, some)
        )
        found = unit.connection.execute(query).one()
        total = Counts(total.messages + found[0], total.turns + found[1])
    return total


_MOST_RANGES = 100
"""In one condition."""


def _in_ranges(tables: Tables, ranges: lines.Line) -> ColumnElement[bool]:
    messages = tables.messages.c
    return or_(
        *(
            and_(messages.branch == branch, messages.seq.between(first, last))
            for branch, first, last in ranges
        )
    )


def change_branch(
    unit: Unit,
    session: LockedSession,
    number: int,
    by: Counts = NOTHING,
    line: lines.Line | None = None,
) -> None:
    """Change what a branch of a locked session counts, and perhaps what it shows."""
    branches, sessions = unit.tables.branches, unit.tables.sessions
    changes: list[Change] = []
    values: dict[str, Any] = {} if line is None else {"line": lines.stored_line(line)}
    if number != session.active_branch:
        values["messages"] = branches.c.messages + by.messages
        values["turns"] = branches.c.turns + by.turns
    elif by != NOTHING:
        counting = update(sessions).where(sessions.c.id == session.id)
        changes.append(
            counting.values(
                branch_messages=sessions.c.branch_messages + by.messages,
                branch_turns=sessions.c.branch_turns + by.turns,
            )
        )
    if values:
        this = branches.c.session_id == session.id, branches.c.number == number
        changes.append(update(branches).where(*this).values(values))
    if changes:
        unit.dialect.at_once(unit.connection, *changes)


# Which branch is the active one.


def written_back(tables: Tables, session: LockedSession) -> Update:
    """Write the counters of the active branch back to its row: another one becomes active."""
    branches, sessions = tables.branches, tables.sessions.c

    def its(column: ColumnElement[int]) -> Any:
        return select(column).where(sessions.id == session.id).scalar_subquery()

    return (
        update(branches)
        .where(branches.c.session_id == session.id, branches.c.number == session.active_branch)
        .values(
            messages=its(sessions.branch_messages),
            turns=its(sessions.branch_turns),
            turn=its(sessions.turn),
        )
    )


def activated(
    tables: Tables, session: LockedSession, number: int, counts: Counts, turn: int
) -> Update:
    """Make a branch the active one, with the counters of its row."""
    session.active_branch, session.turn = number, turn
    sessions = tables.sessions
    return (
        update(sessions)
        .where(sessions.c.id == session.id)
        .values(
            active_branch=number,
            branch_messages=counts.messages,
            branch_turns=counts.turns,
            turn=turn,
        )
    )


def activate(unit: Unit, session: LockedSession, number: int, counts: Counts, turn: int) -> None:
    """Make another branch of a locked session the active one."""
    before = written_back(unit.tables, session)
    unit.dialect.at_once(
        unit.connection, before, activated(unit.tables, session, number, counts, turn)
    )


@contextmanager
def working_on(unit: Unit, session: LockedSession, branch: str | None) -> Iterator[None]:
    """Have a branch of a locked session be the active one in the block; None means that which is.

    Whoever else looks sees the one that was, which is so again in the end.

    Raises:
        NotFound: There is no such branch.
    """
    before = session.active_branch
    if branch is not None:
        wanted = read_branch(unit, session.id, branch)
        if wanted.number != before:
            activate(unit, session, wanted.number, wanted.counts, wanted.turn)
    yield
    if session.active_branch != before:
        wanted = read_branch(unit, session.id, before)
        activate(unit, session, before, wanted.counts, wanted.turn)


# Removing messages, with all that hangs on them.


def remove_messages(
    unit: Unit,
    session: LockedSession,
    *conditions: Any,
    unseen: bool = False,
    by_id: bool = False,
) -> int:
    """Delete those messages of a locked session that meet conditions; see ``settle_turn`` too.

    Args:
        unit: In a write transaction.
        session: The session.
        conditions: Of the messages; ``remove_all`` deletes all of them.
        unseen: Whether no branch shows them.
        by_id: Whether the conditions give ids of messages of this session: then they are looked
            up, and not looked for among all that it has.

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
    shown, ended = NOTHING, list[str]()
    if not unseen and session.last_branch == 0:
        shown = Counts(-int(count), -int(turns))
    elif not unseen:
        shown, ended = _take_off(unit, session, matching)
    gone = delete(messages).where(*matching)
    if max(tokens, cost) > MAX_INTEGER:  # by plain SQL: no counter has it
        unit.connection.execute(gone)
        repair_sessions(unit, [session.id])
    else:
        less = (-int(count), -tokens, -from_nanos(cost))
        count_in(unit, session.id, *less, gone, shown=shown)
    branches = unit.tables.branches
    for name in ended:
        rows = lines.newest(unit, session.id, 1, branch=name, columns=lines.only_turn).read()
        this = update(branches).where(branches.c.session_id == session.id, branches.c.name == name)
        unit.connection.execute(this.values(turn=rows[0][0] if rows else 0))
    drop_unattached(unit, attached.split(",") if attached else ())
    forget_deleted(unit)
    return int(count)


def _take_off(
    unit: Unit, session: LockedSession, going: Sequence[ColumnElement[bool]]
) -> tuple[Counts, list[str]]:
    """Take messages that go now off the counters of the branches that show them.

    Returns:
        By how much the active branch shows less, which is not written yet; and the names of others
        whose last turn may end with it.
    """
    messages = unit.tables.messages.c
    gone: dict[int, list[tuple[int, int, bool]]] = {}
    query = select(messages.branch, messages.seq, messages.turn, messages.role == "user")
    for branch, *rest in unit.connection.execute(query.where(*going).order_by(messages.seq)):
        gone.setdefault(branch, []).append((rest[0], rest[1], bool(rest[2])))
    shown, ended = NOTHING, list[str]()
    less: list[dict[str, Any]] = []
    for each in read_branches(unit, session.id):
        taken = [
            message
            for branch, first, last in each.line
            if (of_branch := gone.get(branch))
            for message in of_branch[
                bisect_left(of_branch, (first,)) : bisect_right(of_branch, (last, MAX_INTEGER))
            ]
        ]
        turns = sum(is_users for _, _, is_users in taken)
        if each.number == session.active_branch:
            shown = Counts(-len(taken), -turns)
        elif taken:
            less.append({"which": each.number, "less": len(taken), "less_turns": turns})
            if max(turn for _, turn, _ in taken) >= each.turn:
                ended.append(each.name)
    if less:
        branches = unit.tables.branches
        here = branches.c.session_id == session.id, branches.c.number == bindparam("which")
        values = {
            "messages": branches.c.messages - bindparam("less"),
            "turns": branches.c.turns - bindparam("less_turns"),
        }
        unit.connection.execute(update(branches).where(*here).values(values), less)
    return shown, ended


def settle_turn(unit: Unit, session: LockedSession, less: Counts = NOTHING) -> None:
    """Set the session's turn to that of the last message which its active branch shows now.

    ``less`` is how much less it shows, if that is not counted yet.
    """
    sessions = unit.tables.sessions
    rows = lines.newest(
        unit, session.id, 1, only_main=session.last_branch == 0, columns=lines.only_turn
    ).read()
    turn = int(rows[0][0]) if rows else 0
    if turn != session.turn or less != NOTHING:
        values = {
            "branch_messages": sessions.c.branch_messages - less.messages,
            "branch_turns": sessions.c.branch_turns - less.turns,
        }
        here = update(sessions).where(sessions.c.id == session.id)
        unit.connection.execute(here.values(turn=turn, **(values if less != NOTHING else {})))
        session.turn = turn


def cut_line(unit: Unit, session: LockedSession, first_seq: int) -> None:
    """Have the active branch show nothing from a number on, and delete what no other shows.

    Args:
        unit: In a write transaction.
        session: The session, locked; ``settle_turn`` is left to the caller.
        first_seq: The number.
    """
    showing = read_showing(unit, session, [session.active_branch])
    (this,) = (each for each in showing if each.number == session.active_branch)
    going = lines.between_numbers(this.line, first_seq)
    if earlier := {each.branch for each in going} - {this.number}:
        showing += read_showing(unit, session, earlier)
    seen = [each for branch in showing if branch.number != this.number for each in branch.line]
    kept, own = lines.between_numbers(this.line, last=first_seq - 1), this.line[-1]
    shared = any(each.branch == own.branch and each.last >= first_seq for each in seen)
    if first_seq < own.first or shared:
        begins = session.last_seq + 1 if shared else own.first
        line = [*kept, lines.Range(this.number, begins)]
        change_branch(unit, session, this.number, line=line)
    remove_unseen(unit, session, going, seen)
    if not {each.branch for each in going} <= {branch.number for branch in showing}:
        remove_gone_branches(unit, session)


def remove_unseen(
    unit: Unit,
    session: LockedSession,
    ranges: lines.Line,
    seen: Iterable[lines.Range] | None = None,
) -> int:
    """Delete those messages of these ranges that no branch shows.

    Args:
        unit: In a write transaction.
        session: The session, locked.
        ranges: The ranges.
        seen: What branches show, if the caller knows.

    Returns:
        How many were deleted.
    """
    if seen is None:
        showing = read_showing(unit, session, [each.branch for each in ranges])
        seen = [each for branch in showing for each in branch.line]
    return sum(
        remove_messages(unit, session, _in_ranges(unit.tables, some), unseen=True)
        for some in chunks([*_outside(ranges, seen)], _MOST_RANGES)
    )


def _outside(ranges: lines.Line, seen: Iterable[lines.Range]) -> Iterator[lines.Range]:
    """Give what lies in some ranges and not in what is seen."""
    covered: dict[int, list[tuple[int, int]]] = {}
    for branch, first, last in seen:
        covered.setdefault(branch, []).append((first, last))
    for branch, first, last in ranges:
        for low, high in sorted(covered.get(branch, ())):
            if low > last:
                break
            if low > first:
                yield lines.Range(branch, first, low - 1)
            first = max(first, high + 1)
        if first <= last:
            yield lines.Range(branch, first, last)


def remove_gone_branches(unit: Unit, session: LockedSession) -> None:
    """Delete the rows of branches that are gone and have neither messages nor children left."""
    if session.last_branch:
        for statement in _removing_gone(unit.tables, unit.dialect, dialect_of(unit.connection)):
            statement.execute_many(unit.connection, [{lines.SESSION_ID: session.id}])


@lru_cache(maxsize=256)
def _removing_gone(tables: Tables, dialect: EngineDialect, driver: Dialect) -> list[Prepared]:
    session_id: BindParameter[str] = bindparam(lines.SESSION_ID)
    branches, messages, summaries = tables.branches, tables.messages, tables.summaries
    branch, child = branches.alias("branch"), branches.alias("child")
    is_gone = and_(branch.c.session_id == session_id, branch.c.gone, ~branch.c.reserved)
    has_messages = exists().where(
        messages.c.session_id == session_id, messages.c.branch == branch.c.number
    )
    has_child = exists().where(
        child.c.session_id == session_id,
        child.c.parent == branch.c.number,
        or_(~child.c.gone, child.c.reserved),
    )
    columns = (branch.c.number, branch.c.parent)
    staying = select(*columns).where(is_gone, or_(has_messages, has_child))
    stay = staying.cte("stay", recursive=True)
    parents = select(*columns).join_from(stay, branch, branch.c.number == stay.c.parent)
    stay = stay.union(parents.where(is_gone))
    going = select(branch.c.number).where(is_gone, branch.c.number.not_in(select(stay.c.number)))
    changes = dialect.together(
        delete(summaries).where(
            summaries.c.session_id == session_id, summaries.c.branch.in_(going)
        ),
        delete(branches).where(branches.c.session_id == session_id, branches.c.number.in_(going)),
    )
    return [Prepared(change, driver) for change in changes]


def remove_all(unit: Unit, session: LockedSession) -> int:
    """Delete all messages of a locked session, and have every branch show only its own: none.

    Returns:
        How many were deleted.
    """
    tables, connection = unit.tables, unit.connection
    messages, attachments = tables.messages.c, tables.attachments.c
    branches, sessions = tables.branches, tables.sessions
    attached = select(attachments.digest).where(attachments.session_id == session.id)
    found = set(connection.execute(attached).scalars())
    gone = connection.execute(delete(tables.messages).where(messages.session_id == session.id))
    drop_unattached(unit, found)
    forget_deleted(unit)
    names = ("message_count", "total_tokens", "turn", "branch_messages", "branch_turns")
    nothing: dict[str, Any] = {**dict.fromkeys(names, 0), "total_cost": from_nanos(0)}
    connection.execute(update(sessions).where(sessions.c.id == session.id).values(nothing))
    if session.last_branch:
        here = branches.c.session_id == session.id
        there = select(branches.c.number).where(here, branches.c.gone.is_(False))
        own = [
            {"which": number, "whole": lines.stored_line([lines.Range(number, 1)])}
            for number in connection.execute(there).scalars()
        ]
        values = {"line": bindparam("whole", type_=branches.c.line.type), **_NO_COUNTS}
        this = update(branches).where(here, branches.c.number == bindparam("which"))
        connection.execute(this.values(values), own)
        remove_gone_branches(unit, session)
    return gone.rowcount


_NO_COUNTS: dict[str, Any] = {"messages": 0, "turns": 0, "turn": 0}

SHOWS_NOTHING: dict[str, Any] = {"line": [], **_NO_COUNTS}
"""Of the row of a branch that is gone."""


def start_again(unit: Unit, session: LockedSession) -> int:
    """Delete all messages of a locked session, and its branches and summaries; main stays, empty,
    and so do names that are reserved.

    Returns:
        How many messages were deleted.
    """
    tables, connection = unit.tables, unit.connection
    deleted = remove_all(unit, session)
    for table in (tables.summaries, tables.turn_usage):
        connection.execute(delete(table).where(table.c.session_id == session.id))
    if session.last_branch:
        branches, sessions = tables.branches, tables.sessions
        others = branches.c.session_id == session.id, branches.c.number > 0
        left = update(branches).where(*others, branches.c.reserved)
        connection.execute(
            update(sessions).where(sessions.c.id == session.id).values(active_branch=0)
        )
        connection.execute(left.values(parent=None, gone=True, **SHOWS_NOTHING))
        connection.execute(delete(branches).where(*others, ~branches.c.reserved))
    return deleted


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


def pop_of_main(unit: Unit, session_id: str) -> MessageRecord | None:
    """Delete and give the last message; None if there is none, or if it is not that simple.

    Args:
        unit: In a write transaction.
        session_id: The session.
    """
    statements = _statements(unit.tables, dialect_of(unit.connection))
    rows = statements.read.fetch(unit.connection, {lines.SESSION_ID: session_id})
    if not rows:
        return None
    message_id, _, _, role, status, tokens, cost, attached, *counters = rows[0]
    if status == STREAMING:  # its text is in pieces
        return None
    turn = rows[1][_MESSAGE.index("turn")] if len(rows) > 1 else 0
    given = {lines.SESSION_ID: session_id, "tokens": tokens, "cost": cost, "now_turn": turn}
    given["turns"] = int(role == "user")
    given |= dict(zip(_COUNTERS, counters, strict=True))
    if not statements.count_off.rows(unit.connection, given):
        return None
    given = {lines.SESSION_ID: session_id, "message_id": message_id}
    ((*columns, attached_now),) = statements.delete.fetch(unit.connection, given)
    digests = ",".join(filter(None, (attached, attached_now)))
    drop_unattached(unit, digests.split(",") if digests else ())
    forget_deleted(unit)
    return lines.message_record(columns)


@dataclass(frozen=True, slots=True)
class _Popping:
    read: Prepared
    count_off: Prepared
    delete: Prepared


@lru_cache(maxsize=256)
def _statements(tables: Tables, driver: Dialect) -> _Popping:
    messages, sessions = tables.messages.c, tables.sessions.c
    never_branched = sessions.last_branch == 0
    this = (sessions.id == bindparam(lines.SESSION_ID), session_is_open(tables), never_branched)
    last = (
        select(*(messages[name] for name in _MESSAGE))
        .where(
            messages.session_id == bindparam(lines.SESSION_ID),
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
            *(seen.c[name] for name in _COUNTERS),
        )
        .join_from(last, seen, seen.c.id == bindparam(lines.SESSION_ID))
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
            branch_messages=sessions.branch_messages - 1,
            branch_turns=sessions.branch_turns - bindparam("turns"),
            total_tokens=sessions.total_tokens - tokens,
            total_cost=sessions.total_cost - cost,
            turn=bindparam("now_turn"),
        )
        .returning(sessions.pk)
    )
    message_id = bindparam("message_id", type_=messages.id.type)
    gone = delete(tables.messages).where(messages.id == message_id)
    deleted = gone.returning(*lines.main_columns(messages), _attached_to(tables, message_id))
    return _Popping(*(Prepared(each, driver) for each in (read, count_off, deleted)))


def _attached_to(tables: Tables, message_id: ColumnElement[Any]) -> ColumnElement[str | None]:
    """Select the digests of what is attached to a message, with commas between them."""
    attachments = tables.attachments.c
    digests = select(func.aggregate_strings(attachments.digest, ","))
    return digests.where(attachments.message_id == message_id).scalar_subquery().label("attached")


# The counters of a session: changed with the rows they count, and counted again where wrong.


def count_in(
    unit: Unit,
    session_id: str,
    messages: int,
    tokens: int,
    cost: Decimal,
    *beside: Change,
    shown: Counts = NOTHING,
) -> bool:
    """Change a locked session's counters by so much, in the transaction that changes the rows.

    ``shown`` is by how much what its active branch shows changes.

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
            branch_messages=sessions.c.branch_messages + shown.messages,
            branch_turns=sessions.c.branch_turns + shown.turns,
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
        repair_branches(unit, chunk)


# Counting what branches count again.


Ids = Sequence[str] | Select[Any] | None
"""Of sessions, or what selects them; None for all."""


def wrong_branches(tables: Tables, dialect: EngineDialect, ids: Ids) -> Select[Any]:
    """Select the branches whose counters are not what they show, with what is, and with whether
    it is the active branch.
    """
    branches, sessions, messages = tables.branches, tables.sessions, tables.messages.c
    ranges, (_, branch, first, last) = dialect.ranges(branches.c.line)

    def count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
        of_range = (
            select(func.count())
            .where(
                messages.session_id == branches.c.session_id,
                messages.branch == branch,
                messages.seq.between(first, func.coalesce(last, MAX_INTEGER)),
                *conditions,
            )
            .correlate(branches, ranges)
            .scalar_subquery()
        )
        return cast(func.sum(of_range), BigInteger)

    shows = count(), count(messages.role == "user")
    stored = own_counts(tables)
    active = branches.c.number == sessions.c.active_branch
    mine = (
        true()
        if ids is None
        else in_sessions(sessions.c, branches.c.session_id, sessions.c.id.in_(ids))
    )
    return (
        select(
            branches.c.session_id,
            branches.c.number,
            shows[0].label("messages"),
            shows[1].label("turns"),
            active.label("active"),
        )
        .select_from(branches.join(sessions, sessions.c.pk == branches.c.session_id))
        .select_from(ranges)
        .where(mine, session_is_open(tables))
        .group_by(branches.c.session_id, branches.c.number, sessions.c.pk)
        .having(or_(stored[0] != shows[0], stored[1] != shows[1]))
    )


def repair_branches(unit: Unit, ids: Sequence[str]) -> None:
    """Count again in sessions that are locked."""
    branches, sessions = unit.tables.branches, unit.tables.sessions
    for row in unit.connection.execute(wrong_branches(unit.tables, unit.dialect, ids)).all():
        if row.active:
            right = update(sessions).where(sessions.c.id == row.session_id)
            right = right.values(branch_messages=row.messages, branch_turns=row.turns)
        else:
            right = update(branches).where(
                branches.c.session_id == row.session_id, branches.c.number == row.number
            )
            right = right.values(messages=row.messages, turns=row.turns)
        unit.connection.execute(right)
