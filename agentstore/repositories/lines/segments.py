"""Changing what a branch shows, without touching what others do.

Segments lead from the newest to the oldest, and are never changed, only replaced: so any number
of branches may share the older part of a line. Only the newest segment of a branch, which ends at
the largest number, is its own. A segment that no branch reaches any more is deleted at once, and a
message is kept as long as a branch shows it.

All of this happens under the session's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import delete, exists, func, insert, null, or_, select, type_coerce, update

from agentstore.execution.unit import Unit
from agentstore.repositories.attachments.blobs import drop_unattached
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.lines.removal import LockedSession, remove_messages
from agentstore.repositories.lines.tallies import NOTHING, Segment, Tally, take_up, tally_through
from agentstore.repositories.search.search import forget_deleted
from agentstore.values.types import MAX_INTEGER, from_nanos

Stretch = tuple[int, int, int]
"""A branch, and the first and the last of a range of its messages' numbers."""


class NewLine:
    """Segments on their way in, the oldest first.

    Attributes:
        tip: The number of the newest one so far; None for a line without any.
    """

    def __init__(self, unit: Unit, session_id: str) -> None:
        """Begin with no segment."""
        self.tip: int | None = None
        self._unit = unit
        self._session_id = session_id
        self._rows: list[dict[str, Any]] = []
        numbers = unit.tables.branch_segments.c
        last = select(func.max(numbers.number)).where(numbers.session_id == session_id)
        self._last: int = unit.connection.execute(last).scalar() or 0

    def show(
        self, branch: int, first_seq: int, last_seq: int = MAX_INTEGER, tally: Tally = NOTHING
    ) -> None:
        """Add a stretch; an empty one is left out, unless it is the open end of a branch.

        Args:
            branch: Whose messages it shows.
            first_seq: The first sequence number.
            last_seq: The last one.
            tally: What it shows, but for the open end, which is counted with its branch.
        """
        if first_seq > last_seq:
            return
        self._last += 1
        if last_seq == MAX_INTEGER:
            tally = NOTHING
        self._rows.append(
            {
                "session_id": self._session_id,
                "number": self._last,
                "branch": branch,
                "first_seq": first_seq,
                "last_seq": last_seq,
                "previous": self.tip,
                "messages": tally.messages,
                "turns": tally.turns,
            }
        )
        self.tip = self._last

    def begin_like(self, line: Sequence[Segment], through: int) -> Tally:
        """Begin with what a line shows up to a number, sharing its segments where they end there.

        Args:
            line: The segments of a branch, the newest first.
            through: The last number that is shown.

        Returns:
            What is shown of the segment that was cut.
        """
        for segment in line:
            if segment.first_seq > through:
                continue
            if segment.number is not None and segment.last_seq <= through:
                self.tip = segment.number
            else:
                self.tip = segment.previous
                tally = tally_through(self._unit, self._session_id, segment, through)
                self.show(segment.branch, segment.first_seq, through, tally)
                return tally
            break
        return NOTHING

    def write(self) -> int | None:
        """Write the segments, and give the number of the newest."""
        if self._rows:
            self._unit.connection.execute(insert(self._unit.tables.branch_segments), self._rows)
            self._rows = []
        return self.tip


def set_tip(unit: Unit, session: LockedSession, branch: int, tip: int | None, own: Tally) -> None:
    """Set the newest segment of a branch; with none, it shows all its own messages.

    Args:
        unit: In a write transaction.
        session: The session, locked.
        branch: The branch.
        tip: Its newest segment; None for a whole branch.
        own: What it counts itself; see ``tallies``.
    """
    branches, sessions = unit.tables.branches, unit.tables.sessions
    unit.connection.execute(
        update(branches)
        .where(branches.c.session_id == session.id, branches.c.number == branch)
        .values(tip=tip, own_messages=own.messages, own_turns=own.turns)
    )
    if branch == session.active_branch:
        unit.connection.execute(update(sessions).where(sessions.c.id == session.id).values(tip=tip))
        take_up(unit, session.id)


def cut_line(unit: Unit, session: LockedSession, line: Sequence[Segment], first_seq: int) -> None:
    """Have the active branch show nothing from a number on, and delete what no other shows.

    Args:
        unit: In a write transaction.
        session: The session, locked; ``settle_turn`` is left to the caller.
        line: The segments of its active branch.
        first_seq: The number.
    """
    new = NewLine(unit, session.id)
    new.begin_like(line, first_seq - 1)
    new.show(session.active_branch, session.last_seq + 1)
    set_tip(unit, session, session.active_branch, new.write(), NOTHING)
    release(unit, session.id, session.tip)
    going = [
        (each.branch, max(first_seq, each.first_seq), each.last_seq)
        for each in line
        if each.last_seq >= first_seq
    ]
    remove_unseen(unit, session, going)
    remove_gone_branches(unit, session.id)


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
    of_session = sessions.c.id == session.id
    connection.execute(update(sessions).where(of_session).values(tip=None, **nothing))
    if None in found:
        own = {"tip": None, "own_messages": 0, "own_turns": 0}
        connection.execute(update(branches).where(*counting).values(own))
    if session.last_branch:
        segments = tables.branch_segments
        connection.execute(delete(segments).where(segments.c.session_id == session.id))
        remove_gone_branches(unit, session.id)
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
    segments, branches = unit.tables.branch_segments, unit.tables.branches
    later = segments.alias("later")
    while tip is not None:
        needed = or_(
            exists().where(branches.c.session_id == session_id, branches.c.tip == tip),
            exists().where(later.c.session_id == session_id, later.c.previous == tip),
        )
        gone = (
            delete(segments)
            .where(segments.c.session_id == session_id, segments.c.number == tip, ~needed)
            .returning(segments.c.previous)
        )
        row = unit.connection.execute(gone).first()
        tip = None if row is None else row.previous


def remove_unseen(unit: Unit, session: LockedSession, stretches: Sequence[Stretch]) -> int:
    """Delete those messages of these stretches that no branch shows.

    What others show is found by their segments, and not by asking for each message, of which a
    stretch may have any number.

    Returns:
        How many were deleted.
    """
    messages = unit.tables.messages.c
    return sum(
        remove_messages(
            unit,
            session,
            messages.branch == branch,
            messages.seq.between(first, last),
            unseen=True,
        )
        for branch, first, last in _unseen(unit, session.id, stretches)
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
    return unit.connection.execute(query.limit(1)).first() is not None


def remove_gone_branches(unit: Unit, session_id: str) -> None:
    """Delete the rows of branches that are gone and have neither messages nor children left."""
    branches, messages = unit.tables.branches, unit.tables.messages
    child = branches.alias("child")
    query = delete(branches).where(
        branches.c.session_id == session_id,
        branches.c.gone,
        ~branches.c.reserved,
        ~exists().where(
            messages.c.session_id == session_id, messages.c.branch == branches.c.number
        ),
        ~exists().where(child.c.session_id == session_id, child.c.parent == branches.c.number),
    )
    summaries = unit.tables.summaries
    while gone := unit.connection.execute(query.returning(branches.c.number)).scalars().all():
        # Now their parents may have no children left.
        of_them = summaries.c.session_id == session_id, summaries.c.branch.in_(gone)
        unit.connection.execute(delete(summaries).where(*of_them))


def _unseen(unit: Unit, session_id: str, stretches: Sequence[Stretch]) -> Iterator[Stretch]:
    """Give what no branch shows of some stretches."""
    segments, branches = unit.tables.branch_segments.c, unit.tables.branches.c
    covered: dict[int, list[tuple[int, int]]] = {}
    for numbers in chunks(sorted({branch for branch, _, _ in stretches})):
        whole = select(branches.number).where(
            branches.session_id == session_id,
            branches.number.in_(numbers),
            branches.tip.is_(None),
            branches.gone.is_(False),
        )
        for number in unit.connection.execute(whole).scalars():
            covered[number] = [(1, MAX_INTEGER)]
        shown = select(segments.branch, segments.first_seq, segments.last_seq).where(
            segments.session_id == session_id, segments.branch.in_(numbers)
        )
        for branch, first, last in unit.connection.execute(shown):
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
