"""Histories: the last messages of a line, with tools' results kept beside their calls.

The chat APIs refuse a result whose call is not in the conversation before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from sqlalchemy import Select, bindparam, func, select

from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.lines.lines import between, newest
from agentstore.repositories.lines.queries import line_of, shown_by
from agentstore.repositories.messages.drafts import indexed_call_id
from agentstore.repositories.messages.marked import MarkFilter, marked_between, newest_marked
from agentstore.repositories.messages.portions import Answering, M, Portion
from agentstore.values.types import MAX_INTEGER

_LOOKBACK = 4
"""Rows read beyond a history's limit, in case it would cut a tool's result from its call. One
assistant message with up to four parallel calls is then found without a second query."""


@dataclass(frozen=True, slots=True)
class History(Generic[M]):
    """What is read of a session: a branch, the active one if it has no name, and which messages
    of it, all of them if nothing filters them.

    Attributes:
        portion: What is read of each message.
        whole: Whether the active branch is whole in itself, where that is known.
    """

    unit: Unit
    session_id: str
    branch: str | None
    marks: MarkFilter | None
    portion: Portion[M]
    whole: bool | None = None

    def last(self, limit: int | None, *, keep_tool_calls: bool) -> list[M]:
        """Give the last messages, the oldest of them first; None means all.

        Raises:
            NotFound: There is no such session or branch.
        """
        if limit is None:
            return self._between(0, MAX_INTEGER)
        extra = _LOOKBACK if keep_tool_calls and limit else 0
        records = self._newest(min(limit + extra, MAX_INTEGER))
        start = max(0, len(records) - limit)
        if not keep_tool_calls or len(records) <= limit:
            return records[start:]
        return self._with_their_calls(records, start)

    def _newest(self, count: int) -> list[M]:
        if self.marks is None:
            rows = newest(
                self.unit,
                self.session_id,
                count,
                branch=self.branch,
                whole=self.whole,
                columns=self.portion.columns,
            )
        else:
            rows = newest_marked(
                self.unit, self.session_id, count, self.marks, self.branch, self.portion.columns
            )
        return self.portion.made(self.unit, rows[::-1])

    def _between(self, first: int, last: int) -> list[M]:
        if self.marks is None:
            rows = between(
                self.unit,
                self.session_id,
                first,
                last,
                branch=self.branch,
                whole=self.whole,
                columns=self.portion.columns,
            )
        else:
            rows = marked_between(
                self.unit,
                self.session_id,
                first,
                last,
                self.marks,
                self.branch,
                self.portion.columns,
            )
        return self.portion.made(self.unit, rows)

    def _with_their_calls(self, records: list[M], start: int) -> list[M]:
        """Begin early enough that every tool's result has its call.

        Args:
            records: The history, with some messages before it.
            start: Where it begins if nothing is cut apart.
        """
        before = records[0].seq
        while True:
            start, wanted = _start_with_calls(records, start)
            if not wanted:
                return records[start:]
            # Calls further back than the lookback, or on another branch, or never stored. An id may
            # have been used before: the last call that has it is meant.
            made: list[int] = []
            for chunk in chunks([indexed_call_id(call) for call in sorted(wanted)]):
                query = _last_calls(self.unit.tables, chunk, before, active=self.branch is None)
                parameters = {"session_id": self.session_id, "name": self.branch}
                made.extend(self.unit.connection.execute(query, parameters).scalars())
            if not made:
                return records[start:]
            before = min(made)
            further = self._between(before, records[0].seq - 1)
            records = further + records
            start += len(further)


def _last_calls(tables: Tables, ids: Sequence[str], before: int, *, active: bool) -> Select[Any]:
    """Select where on a line each of these calls was made last: another branch may use the same
    ids, and as often as it likes.
    """
    calls, messages = tables.message_tool_calls, tables.messages
    return (
        select(func.max(calls.c.seq))
        .join_from(calls, messages, messages.c.id == calls.c.message_id)
        .where(
            calls.c.session_id == bindparam("session_id"),
            calls.c.call_id.in_(ids),
            calls.c.seq < before,
            shown_by(line_of(tables, active=active), messages.c),
        )
        .group_by(calls.c.call_id)
    )


def _start_with_calls(records: Sequence[Answering], start: int) -> tuple[int, set[str]]:
    """Move the start back, among the records that are there, to the calls that are wanted.

    Returns:
        Where it is then, and the calls that are wanted still.
    """
    while wanted := _calls_wanted(records[start:]):
        making = [n for n in range(start) if _calls_made(records[n]) & wanted]
        if not making:
            break
        start = making[-1]
    return start, wanted


def _calls_wanted(records: Sequence[Answering]) -> set[str]:
    """Give the calls that tool messages answer and no message before them makes."""
    made: set[str] = set()
    wanted: set[str] = set()
    for record in records:
        if record.tool_calls:
            made |= _calls_made(record)
        if record.role == "tool" and record.tool_call_id and record.tool_call_id not in made:
            wanted.add(record.tool_call_id)
    return wanted


def _calls_made(record: Answering) -> set[str]:
    return {
        call["id"]
        for call in record.tool_calls or ()
        if isinstance(call, dict) and isinstance(call.get("id"), str)
    }
