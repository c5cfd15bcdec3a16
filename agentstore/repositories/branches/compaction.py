"""Compaction: one message in the place of many, on one branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import insert, update

from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.repositories.branches.growing import insert_branch
from agentstore.repositories.lines.counters import count_in
from agentstore.repositories.lines.cutting import NewLine, read_cut
from agentstore.repositories.lines.removal import LockedSession
from agentstore.repositories.lines.segments import (
    Stretch,
    release,
    remove_gone_branches,
    remove_unseen,
    set_tip,
)
from agentstore.repositories.lines.tallies import NOTHING, Segment, Tally, change
from agentstore.repositories.messages.drafts import draft
from agentstore.values.ids import new_id
from agentstore.values.types import from_nanos


def tell_shorter(
    unit: Unit,
    session: LockedSession,
    number: int,
    replaced: Sequence[MessageRecord],
    summary: Mapping[str, Any],
) -> MessageRecord:
    """Put a summary into the place of messages that follow one another on a branch.

    The summary has the number of the last message that it replaces, so it cannot be stored on
    the same branch. It gets a branch of its own, which is marked as gone from the beginning.

    Args:
        unit: In a write transaction.
        session: The session, locked.
        number: The branch.
        replaced: The messages, one at least.
        summary: Role, content and token count.
    """
    first, last = replaced[0], replaced[-1]
    turns = {"from_turn": first.turn, "to_turn": last.turn, "messages": len(replaced)}
    told = draft({**summary, "metadata": {"summary_of": turns}})
    home = session.last_branch + 1
    insert_branch(unit, session, number, last.seq, last.turn, name=new_id(), gone=True)
    told.row |= {
        "session_id": session.id,
        "branch": home,
        "seq": last.seq,
        "turn": last.turn,
        "created_at": unit.now(),
        **unit.dialect.message_number(unit.connection, unit.tables),
    }
    unit.connection.execute(insert(unit.tables.messages), told.row)
    count_in(unit, session.id, 1, told.row["token_count"], from_nanos(0))
    sessions, now = unit.tables.sessions, told.row["created_at"]
    here = update(sessions).where(sessions.c.id == session.id, sessions.c.newest_at < now)
    unit.connection.execute(here.values(newest_at=now))
    change(unit, session.id, session.active_branch, Tally(-1, 0))
    cut = read_cut(unit, session.id, number, first.seq - 1)
    line, new = cut.segments, NewLine(unit, session.id, cut)
    new.show(home, last.seq, last.seq, Tally(1, 0))
    own = NOTHING
    for segment in reversed(line):
        if segment.last_seq <= last.seq:
            continue
        own = segment.tally
        if segment.first_seq <= last.seq:
            own -= _tally_of(replaced, segment)
        if segment.first_seq < first.seq:
            own -= new.divided
        new.show(segment.branch, max(segment.first_seq, last.seq + 1), segment.last_seq, own)
    set_tip(unit, session, number, new, own)
    release(unit, session.id, line[0].number)
    remove_unseen(unit, session, _within(line, first.seq, last.seq))
    remove_gone_branches(unit, session)
    told.row["branch"] = None  # its home has no name
    return told.record(session.id)


def _within(line: Sequence[Segment], first: int, last: int) -> list[Stretch]:
    """Give what of a line lies between two numbers."""
    cut = [(s.branch, max(s.first_seq, first), min(s.last_seq, last)) for s in line]
    return [(branch, low, high) for branch, low, high in cut if low <= high]


def _tally_of(messages: Sequence[MessageRecord], segment: Segment) -> Tally:
    """Count those that the segment shows: no two segments of a line have numbers in common."""
    shown = [
        message for message in messages if segment.first_seq <= message.seq <= segment.last_seq
    ]
    return Tally(len(shown), sum(message.begins_turn for message in shown))
