"""The end of a branch: taking its last message back, and replacing its last ones by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.repositories.lines.active import working_on
from agentstore.repositories.lines.lines import newest
from agentstore.repositories.lines.popping import pop_of_whole
from agentstore.repositories.lines.removal import (
    LockedSession,
    lock_session,
    remove_messages,
    settle_turn,
)
from agentstore.repositories.lines.rows import line_columns, message_records
from agentstore.repositories.lines.segments import cut_line, is_seen_elsewhere
from agentstore.repositories.messages.appending import Append
from agentstore.repositories.messages.drafts import Draft
from agentstore.values.states import MAIN


def pop_last(unit: Unit, session_id: str, branch: str | None) -> MessageRecord | None:
    """Take the last message of a branch back; see ``Messages.pop``."""
    if branch in (None, MAIN) and (popped := pop_of_whole(unit, session_id)) is not None:
        return popped
    session = lock_session(unit, session_id)
    with working_on(unit, session, branch):
        whole = session.tip is None
        rows = newest(unit, session_id, 1, whole=whole, columns=_with_number_of_branch)
        if not rows:
            return None
        (last,) = message_records(unit, rows)
        _cut(unit, session, last.seq, [(last.id, rows[0][-1])])
    return last


def replace_last(
    unit: Unit, session_id: str, branch: str | None, expected: Sequence[str], drafts: list[Draft]
) -> bool:
    """Replace the last messages of a branch; see ``Messages.replace_tail``."""
    session = lock_session(unit, session_id)
    with working_on(unit, session, branch):
        whole = session.tip is None
        rows = newest(unit, session_id, len(expected), whole=whole, columns=_places)
        if [row[1] for row in rows] != [*reversed(expected)]:
            return False
        _cut(unit, session, rows[-1][0], [row[1:] for row in rows])
        if drafts:
            append = Append(session_id, drafts, "skip", None, unit.now())
            Append.write(unit, [append], by_itself=True)
    return True


def _with_number_of_branch(messages: Any) -> list[Any]:
    return [*line_columns(messages), messages.branch]


def _places(messages: Any) -> list[Any]:
    return [messages.seq, messages.id, messages.branch]


def _cut(
    unit: Unit, session: LockedSession, first_seq: int, last: Sequence[tuple[str, int]]
) -> None:
    """Take the last messages off the active branch: their ids, and the branches they are of."""
    messages = unit.tables.messages.c
    if session.last_branch == 0:
        remove_messages(unit, session, messages.seq >= first_seq)
    elif _is_alone(unit, session, first_seq, last):
        remove_messages(unit, session, messages.id == last[0][0], by_id=True, added=True)
    else:
        cut_line(unit, session, first_seq)
    settle_turn(unit, session)


def _is_alone(
    unit: Unit, session: LockedSession, seq: int, last: Sequence[tuple[str, int]]
) -> bool:
    """Say whether it is one message, of the active branch, that no other branch shows."""
    return (
        len(last) == 1
        and last[0][1] == session.active_branch
        and not is_seen_elsewhere(unit, session, session.active_branch, seq)
    )
