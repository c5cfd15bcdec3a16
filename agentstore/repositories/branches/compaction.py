"""Compaction: one message in the place of many, on one branch."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert

from agentstore.errors import InvalidInput, shown
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.repositories.branches.growing import grow, insert_branch
from agentstore.repositories.branches.turn_places import no_turn, of_turns
from agentstore.repositories.lines.counters import count_in
from agentstore.repositories.lines.lines import Segment, segments_of
from agentstore.repositories.lines.removal import branch_number, lock_session
from agentstore.repositories.lines.segments import (
    NewLine,
    Stretch,
    release,
    remove_gone_branches,
    remove_unseen,
    set_tip,
)
from agentstore.repositories.messages.drafts import draft
from agentstore.values import validation
from agentstore.values.ids import new_id
from agentstore.values.types import from_nanos

_ROLES = ("system", "developer", "assistant")


def compact(
    unit: Unit,
    session_id: str,
    summary: str,
    *,
    from_turn: int,
    to_turn: int,
    role: str,
    token_count: int,
    branch: str | None,
    keep_as: str | None,
) -> MessageRecord:
    """Replace turns of a branch with a summary; see ``Branches.compact``.

    The summary has a branch of its own for a home, which is gone from the beginning: as it takes
    the number of the last message that it replaces, it could be nowhere beside that.
    """
    validation.text("summary", summary)
    validation.amount("from_turn", from_turn)
    validation.amount("to_turn", to_turn)
    validation.optional_key("keep_as", keep_as)
    validation.optional_text("branch", branch)
    if to_turn < from_turn:
        raise InvalidInput(f"to_turn is {to_turn}, before from_turn, which is {from_turn}.")
    if role not in _ROLES:
        raise InvalidInput(f"role is {shown(role)}; use one of {', '.join(_ROLES)}.")
    session = lock_session(unit, session_id)
    number = branch_number(unit, session, branch)
    replaced = of_turns(unit, session_id, branch, from_turn, to_turn)
    if not replaced:
        raise no_turn(to_turn)
    first, last = replaced[0], replaced[-1]
    line = segments_of(unit.connection, unit.tables, session_id, number)
    if keep_as is not None:
        grow(unit, session, number, session.last_seq, keep_as, activate=False)
        session = lock_session(unit, session_id)
    told = draft(
        {
            "role": role,
            "content": summary,
            "token_count": token_count,
            "metadata": {
                "summary_of": {
                    "from_turn": first.turn,
                    "to_turn": last.turn,
                    "messages": len(replaced),
                }
            },
        }
    )
    home = session.last_branch + 1
    insert_branch(unit, session, home, number, last.seq, last.turn, name=new_id(), gone=True)
    told.row |= {
        "session_id": session_id,
        "branch": home,
        "seq": last.seq,
        "turn": last.turn,
        "created_at": unit.now(),
    }
    unit.connection.execute(insert(unit.tables.messages), told.row)
    count_in(unit, session_id, 1, token_count, from_nanos(0))
    new = NewLine(unit, session_id)
    new.begin_like(line, first.seq - 1)
    new.show(home, last.seq, last.seq)
    for segment in reversed(line):
        new.show(segment.branch, max(segment.first_seq, last.seq + 1), segment.last_seq)
    set_tip(unit, session, number, new.write())
    release(unit, session_id, line[0].number)
    remove_unseen(unit, session_id, _within(line, first.seq, last.seq))
    remove_gone_branches(unit, session_id)
    return told.record()


def _within(line: Sequence[Segment], first: int, last: int) -> list[Stretch]:
    """Give what of a line lies between two numbers."""
    cut = [(s.branch, max(s.first_seq, first), min(s.last_seq, last)) for s in line]
    return [(branch, low, high) for branch, low, high in cut if low <= high]
