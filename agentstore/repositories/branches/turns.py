"""The turns of a branch: reading a conversation by what the user said.

A turn is a user message and all that follows it up to the next one; what precedes the first is
turn 0. Every message carries the number of its turn, and keeps it on each branch that shows it.
"""

from __future__ import annotations

from itertools import groupby

from sqlalchemy import bindparam, func, select

from agentstore.records import MessageRecord, Page, TurnMessages, TurnRecord, TurnToolUse
from agentstore.repositories.base.operations import Repository, reads, reads_snapshot
from agentstore.repositories.branches.turn_places import (
    find_messages,
    last_user_message,
    message_text,
    user_messages,
    wanted_text,
)
from agentstore.repositories.lines.lines import between, require
from agentstore.repositories.lines.queries import line_of, shown_by
from agentstore.repositories.lines.rows import message_records
from agentstore.values import validation
from agentstore.values.paging import Cursors, check_limit
from agentstore.values.types import MAX_INTEGER


class Turns(Repository):
    """The turns of branches."""

    __slots__ = ()

    @reads
    def turns(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TurnRecord]:
        """List the turns of a branch, in the order of the conversation.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.
            limit: How many at most.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session or branch.
        """
        check_limit(limit)
        validation.optional_text("branch", branch)
        cursors = Cursors("turns", session_id, branch)
        after = 0 if cursor is None else cursors.read(cursor, 1)[0]
        found = user_messages(self.unit, session_id, branch, after, limit + 1)
        following = cursors.make([found[limit - 1].turn]) if len(found) > limit else None
        return Page(tuple(map(_turn, found[:limit])), following)

    @reads_snapshot
    def by_turn(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[TurnMessages]:
        """Give the messages of a branch grouped by turn, in the order of the conversation.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.
            limit: How many turns; turn 0 comes with the first ones and is not counted.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session or branch.
        """
        check_limit(limit)
        validation.optional_text("branch", branch)
        cursors = Cursors("messages by turn", session_id, branch)
        first = 0 if cursor is None else cursors.read(cursor, 1)[0]
        begun = user_messages(self.unit, session_id, branch, max(0, first - 1), limit + 1)
        # Where the page before ended, though what begins this one may have been deleted since.
        ended = last_user_message(self.unit, session_id, branch, first) if first else None
        low = ended.seq + 1 if ended else 0
        more = len(begun) > limit
        high = begun[limit].seq - 1 if more else MAX_INTEGER
        rows = between(self.unit, session_id, low, high, branch=branch)
        records = (r for r in message_records(self.unit, rows) if r.turn >= first)
        grouped = groupby(records, key=lambda message: message.turn)
        turns = tuple(TurnMessages(number, tuple(messages)) for number, messages in grouped)
        return Page(turns, cursors.make([begun[limit].turn]) if more else None)

    @reads
    def tool_usage(self, session_id: str, *, branch: str | None = None) -> list[TurnToolUse]:
        """Count the calls of each tool in each turn of a branch.

        Returns:
            In the order of the turns, and of the tools' names in each.

        Raises:
            NotFound: There is no such session or branch.
        """
        messages, calls = self.tables.messages, self.tables.message_tool_calls
        line = line_of(self.tables, active=branch is None)
        query = (
            select(messages.c.turn, calls.c.name, func.count().label("calls"))
            .join_from(calls, messages, messages.c.id == calls.c.message_id)
            .where(
                calls.c.session_id == bindparam("session_id"),
                calls.c.name != "",
                shown_by(line, messages.c),
            )
            .group_by(messages.c.turn, calls.c.name)
            .order_by(messages.c.turn, calls.c.name)
        )
        parameters = {"session_id": session_id, "name": branch}
        rows = self.connection.execute(query, parameters).all()
        if not rows:
            require(self.unit, session_id, branch)
        used = [TurnToolUse(turn, tool, calls) for turn, tool, calls in rows]
        return sorted(used, key=lambda use: (use.turn, use.tool))  # engines collate differently

    @reads_snapshot
    def find_turns(
        self,
        session_id: str,
        text: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TurnRecord]:
        """Find the turns of a branch whose user message contains a text, in their order.

        Every character counts as itself. Case does not, in any script that has it, nor does how
        accents are encoded. All turns of the branch may have to be read; ``messages.search``
        looks words up in an index instead.

        Args:
            session_id: The session.
            text: What to look for.
            branch: The branch's name; None for the active one.
            limit: How many at most.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: The text is empty.
        """
        check_limit(limit)
        validation.optional_text("branch", branch)
        wanted = wanted_text("text", text)
        cursors = Cursors("turns by text", session_id, branch, text)
        after = 0 if cursor is None else cursors.read(cursor, 1)[0]
        found = find_messages(self.unit, session_id, branch, wanted, after, limit + 1)
        following = cursors.make([found[limit - 1].turn]) if len(found) > limit else None
        return Page(tuple(map(_turn, found[:limit])), following)


def _turn(message: MessageRecord) -> TurnRecord:
    return TurnRecord(
        session_id=message.session_id,
        number=message.turn,
        seq=message.seq,
        message_id=message.id,
        text=message_text(message),
        can_branch=message.status == "complete",
        created_at=message.created_at,
    )
