"""Keeping tools' results with their calls where a history is cut.

The chat APIs refuse a result whose call is not in the conversation before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from agentstore.records import MessageRecord
from agentstore.repositories.base import chunks
from agentstore.repositories.drafts import indexed_call_id
from agentstore.repositories.lines import between
from agentstore.repositories.message_rows import message_record
from agentstore.unit import Unit

LOOKBACK = 4
"""Rows read beyond a history's limit, in case it would cut a tool's result from its call. One
assistant message with up to four parallel calls is then found without a second query."""


def with_their_calls(
    unit: Unit, session_id: str, records: list[MessageRecord], start: int, branch: str | None
) -> list[MessageRecord]:
    """Begin a history early enough that every tool's result has its call.

    Args:
        unit: The open unit.
        session_id: The session.
        records: The history, with some messages before it.
        start: Where it begins if nothing is cut apart.
        branch: The branch's name; None for the active one.
    """
    calls = unit.tables.message_tool_calls.c
    before = records[0].seq
    while True:
        start = _start_with_calls(records, start)
        wanted = _calls_wanted(records[start:])
        if not wanted:
            return records[start:]
        # Calls further back than the lookback, or on another branch, or never stored. An id may
        # have been used before: the last call that has it is meant.
        made: list[int] = []
        for chunk in chunks([indexed_call_id(call) for call in sorted(wanted)]):
            query = (
                select(func.max(calls.seq))
                .where(
                    calls.session_id == session_id,
                    calls.call_id.in_(chunk),
                    calls.seq < before,
                )
                .group_by(calls.call_id)
            )
            made.extend(unit.connection.execute(query).scalars())
        if not made:
            return records[start:]
        before = min(made)
        rows = between(unit, session_id, before, records[0].seq - 1, branch=branch)
        records = [message_record(row) for row in rows] + records
        start += len(rows)


def _start_with_calls(records: Sequence[MessageRecord], start: int) -> int:
    """Move the start back, among the records that are there, to the calls that are wanted."""
    while wanted := _calls_wanted(records[start:]):
        making = [n for n in range(start) if _calls_made(records[n]) & wanted]
        if not making:
            break
        start = making[-1]
    return start


def _calls_wanted(records: Sequence[MessageRecord]) -> set[str]:
    """Give the calls that tool messages answer and no message before them makes."""
    made: set[str] = set()
    wanted: set[str] = set()
    for record in records:
        if record.tool_calls:
            made |= _calls_made(record)
        if record.role == "tool" and record.tool_call_id and record.tool_call_id not in made:
            wanted.add(record.tool_call_id)
    return wanted


def _calls_made(record: MessageRecord) -> set[str]:
    return {
        call["id"]
        for call in record.tool_calls or ()
        if isinstance(call, dict) and isinstance(call.get("id"), str)
    }
