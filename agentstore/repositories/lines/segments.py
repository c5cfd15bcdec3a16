"""Changing what a branch shows, without touching what others do.

Segments lead from the newest to the oldest, and are never changed, only replaced: so any number
of branches may share the older part of a line. Only the newest segment of a branch, which ends at
the largest number, is its own. A segment that no branch reaches any more is deleted at once, and a
message is kept as long as a branch shows it.

All of this happens under the session's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Dialect,
    Select,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    literal,
    literal_column,
    null,
    or_,
    select,
    type_coerce,
    union_all,
    update,
)
from sqlalchemy.sql.dml import ReturningDelete

from agentstore.engines.base.dialect import Change, EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.attachments.blobs import drop_unattached
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.lines.cutting import NewLine, read_cut
from agentstore.repositories.lines.queries import SESSION_ID
from agentstore.repositories.lines.removal import LockedSession, remove_messages
from agentstore.repositories.lines.tallies import NOTHING, Tally, of_session
from agentstore.repositories.search.search import forget_deleted
from agentstore.values.types import MAX_INTEGER, from_nanos

Stretch = tuple[int, int, int]
"""A branch, and the first and the last of a range of its messages' numbers."""


def set_tip(unit: Unit, session: LockedSession, branch: int, new: NewLine, own: Tally) -> None:
    """Write new segments, and have a branch show these; with none, it shows all its own messages.

    Args:
        unit: In a write transaction.
        session: The session, locked.
        branch: The branch.
        new: Its segments.
        own: What it counts itself; see ``tallies``.
    """
    tables, branches, sessions = unit.tables, unit.tables.branches, unit.tables.sessions
    messages: Any = own.messages
    turns: Any = own.turns
    changes: list[Change] = [*new.inserts(unit)]
    if branch == session.active_branch:
        session.tip = new.tip
        changes.append(update(sessions).where(sessions.c.id == session.id).values(tip=new.tip))
        messages -= of_session(tables, session.id, "message_count")
        turns -= of_session(tables, session.id, "turn")
    shown = update(branches).where(branches.c.session_id == session.id, branches.c.number == branch)
    changes.append(shown.values(tip=new.tip, own_messages=messages, own_turns=turns))
    unit.dialect.at_once(unit.connection, *changes)


def cut_line(unit: Unit, session: LockedSession, first_seq: int) -> None:
    """Have the active branch show nothing from a number on, and delete what no other shows.

    Args:
        unit: In a write transaction.
        session: The session, locked; ``settle_turn`` is left to the caller.
        first_seq: The number.
    """
    cut = read_cut(unit, session.id, session.active_branch, first_seq - 1)
    new = NewLine(unit, session.id, cut)
    new.show(session.active_branch, session.last_seq + 1)
    set_tip(unit, session, session.active_branch, new, NOTHING)
    release(unit, session.id, cut.segments[0].number)
    going = [
        (each.branch, max(first_seq, each.first_seq), each.last_seq)
        for each in cut.segments
        if each.last_seq >= first_seq
    ]
    remove_unseen(unit, session, going)
    remove_gone_branches(unit, session)


def remove_all(unit: Unit, session: LockedSession) -> int:
    """Delete all messages of a locked session, and have every branch show only its own: none.

    Returns:
        How many were deleted.
    """
    tables, connection = unit.tables, unit.connection
    messages, attachments = tables.messages.c, tables.attachments.c
    branches, sessions = tables.branches, tables.sessions
    counting = (
        branches.c.session_id == session.id,
        or_(branches.c.tip.is_not(None), branches.c.own_messages != 0, branches.c.own_turns != 0),
    )
    # One statement: what is attached, and NULL if a branch counts or shows more than its own.
    attached = select(attachments.digest).where(attachments.session_id == session.id)
    counts = select(type_coerce(null(), attachments.digest.type)).where(
        exists(branches.c.number).where(*counting)
    )
    found = set(connection.execute(attached.union_all(counts)).scalars())
    gone = connection.execute(delete(tables.messages).where(messages.session_id == session.id))
    drop_unattached(unit, found - {None})
    forget_deleted(unit)
    nothing = {"message_count": 0, "total_tokens": 0, "total_cost": from_nanos(0), "turn": 0}
    its_row = sessions.c.id == session.id
    connection.execute(update(sessions).where(its_row).values(tip=None, **nothing))
    if None in found:
        own = {"tip": None, "own_messages": 0, "own_turns": 0}
        connection.execute(update(branches).where(*counting).values(own))
    if session.last_branch:
        segments = tables.branch_segments
        connection.execute(delete(segments).where(segments.c.session_id == session.id))
        remove_gone_branches(unit, session)
    return gone.rowcount


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
        nothing = {"tip": None, "own_messages": 0, "own_turns": 0}
        left = update(branches).where(*others, branches.c.reserved)
        connection.execute(
            update(sessions).where(sessions.c.id == session.id).values(active_branch=0)
        )
        connection.execute(left.values(parent=None, gone=True, **nothing))
        connection.execute(delete(branches).where(*others, ~branches.c.reserved))
        unit.segmented.discard(session.id)
    return deleted


def release(unit: Unit, session_id: str, tip: int | None) -> None:
    """Delete a segment and those before it, as far as nothing leads to them any more."""
    if tip is not None:
        given = {SESSION_ID: session_id, "released": tip}
        _release(unit.tables, dialect_of(unit.connection)).rows(unit.connection, given)


@lru_cache(maxsize=256)
def _release(tables: Tables, driver: Dialect) -> Prepared:
    session_id: BindParameter[str] = bindparam(SESSION_ID)
    tip = bindparam("released", type_=BigInteger)
    return Prepared(releasing(tables, session_id, tip), driver)


def releasing(
    tables: Tables, session_id: Any, tip: Any, branch: Any = None
) -> ReturningDelete[Any]:
    """Give what ``release`` does; it returns the numbers of the segments.

    Args:
        tables: The tables.
        session_id: The session, locked.
        tip: The segment.
        branch: A branch that may still have it as its tip, for it goes in the same statement.
    """
    segments, branches = tables.branch_segments, tables.branches
    segment, later = segments.alias("segment"), segments.alias("later")
    columns = (segment.c.number, segment.c.previous)

    def is_free(newer: Any) -> ColumnElement[bool]:
        is_tip = exists().where(
            branches.c.session_id == session_id,
            branches.c.tip == segment.c.number,
            branches.c.number.is_distinct_from(branch),
        )
        is_previous = exists().where(
            later.c.session_id == session_id,
            later.c.previous == segment.c.number,
            later.c.number.is_distinct_from(newer),
        )
        return and_(segment.c.session_id == session_id, ~is_tip, ~is_previous)

    free = select(*columns).where(segment.c.number == tip, is_free(None))
    line = free.cte("free", recursive=True)
    before = select(*columns).join_from(line, segment, segment.c.number == line.c.previous)
    line = line.union_all(before.where(is_free(line.c.number)))
    going = segments.c.session_id == session_id, segments.c.number.in_(select(line.c.number))
    return delete(segments).where(*going).returning(segments.c.number)


def remove_unseen(
    unit: Unit,
    session: LockedSession,
    stretches: Sequence[Stretch],
    seen: Iterable[Stretch] | None = None,
) -> int:
    """Delete those messages of these stretches that no branch shows.

    What others show is found by their segments, and not by asking for each message, of which a
    stretch may have any number.

    Args:
        unit: In a write transaction.
        session: The session, locked.
        stretches: The stretches.
        seen: What branches show of the same branches' messages, if the caller knows.

    Returns:
        How many were deleted.
    """
    messages = unit.tables.messages.c
    if seen is None:
        seen = _seen(unit, session.id, {branch for branch, _, _ in stretches})
    return sum(
        remove_messages(
            unit,
            session,
            messages.branch == branch,
            messages.seq.between(first, last),
            unseen=True,
        )
        for branch, first, last in _outside(stretches, seen)
    )


def is_seen_elsewhere(unit: Unit, session: LockedSession, branch: int, seq: int) -> bool:
    """Say whether a message is shown by another segment than the active branch's newest."""
    segments = unit.tables.branch_segments.c
    query = select(segments.number).where(
        segments.session_id == session.id,
        segments.branch == branch,
        segments.first_seq <= seq,
        segments.last_seq >= seq,
        segments.number.is_distinct_from(session.tip),
    )
    return unit.connection.execute(query.limit(literal_column("1"))).first() is not None


def remove_gone_branches(unit: Unit, session: LockedSession) -> None:
    """Delete the rows of branches that are gone and have neither messages nor children left."""
    if session.last_branch:
        for statement in _removing_gone(unit.tables, unit.dialect, dialect_of(unit.connection)):
            statement.execute_many(unit.connection, [{SESSION_ID: session.id}])


@lru_cache(maxsize=256)
def _removing_gone(tables: Tables, dialect: EngineDialect, driver: Dialect) -> list[Prepared]:
    session_id: BindParameter[str] = bindparam(SESSION_ID)
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


def _seen(unit: Unit, session_id: str, branches: Iterable[int]) -> list[Stretch]:
    """Give what branches show of the messages of some branches."""
    found: list[Stretch] = []
    for numbers in chunks(sorted(branches)):
        seen = union_all(*select_seen(unit.tables, session_id, numbers))
        rows = unit.connection.execute(seen)
        found += [(branch, first, last) for branch, first, last, _ in rows]
    return found


def select_seen(tables: Tables, session_id: Any, numbers: Any) -> list[Select[Any]]:
    """Select what branches show of the messages of some: by segments, and whole.

    Behind each stretch comes the number of its segment; NULL for a branch that is whole.
    """
    segments, branches = tables.branch_segments.c, tables.branches.c
    end = literal(MAX_INTEGER, BigInteger)
    return [
        select(segments.branch, segments.first_seq, segments.last_seq, segments.number).where(
            segments.session_id == session_id, segments.branch.in_(numbers)
        ),
        select(branches.number, literal(1, BigInteger), end, cast(null(), BigInteger)).where(
            branches.session_id == session_id,
            branches.number.in_(numbers),
            branches.tip.is_(None),
            branches.gone.is_(False),
        ),
    ]


def _outside(stretches: Iterable[Stretch], seen: Iterable[Stretch]) -> Iterator[Stretch]:
    """Give what lies in some stretches and not in what is seen."""
    covered: dict[int, list[tuple[int, int]]] = {}
    for branch, first, last in seen:
        covered.setdefault(branch, []).append((first, last))
    for branch, first, last in stretches:
        for low, high in sorted(covered.get(branch, ())):
            if low > last:
                break
            if low > first:
                yield branch, first, low - 1
            first = max(first, high + 1)
        if first <= last:
            yield branch, first, last
