"""Messages that come piece by piece, and can be read while they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    bindparam,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)

from agentstore.errors import InvalidInput, NotFound, StreamEnded
from agentstore.models.leaving import session_stays
from agentstore.models.tables import Tables
from agentstore.records import MessageRecord
from agentstore.repositories.base.operations import Repository, appends, writes
from agentstore.repositories.lines.removal import lock_session
from agentstore.repositories.lines.rows import message_records, select_messages
from agentstore.repositories.messages.appending import append_drafts
from agentstore.repositories.messages.drafts import Marks, draft
from agentstore.repositories.messages.rewriting import rewrite_message
from agentstore.values import validation
from agentstore.values.paging import check_limit
from agentstore.values.states import COMPLETE, INCOMPLETE, STREAMING

_STREAMING: ColumnElement[str] = literal_column("'streaming'")
_COMPLETE: ColumnElement[str] = literal_column("'complete'")
"""Written into the statement: the index of what is not complete is of use to those alone who say
so in its own words.
"""


def idle_streams(tables: Tables, oldest: datetime) -> Select[Any]:
    """Select the ids of messages that are being streamed, and of their sessions, of which nothing
    has come since an instant; in no order.
    """
    messages, chunks = tables.messages.c, tables.message_chunks.c
    last = (
        select(func.max(chunks.created_at))
        .where(chunks.message_id == messages.id)
        .scalar_subquery()
    )
    return select(messages.id, messages.session_id).where(
        messages.status == _STREAMING,
        messages.status != _COMPLETE,
        messages.created_at < oldest,
        or_(last.is_(None), last < oldest),
    )


class Streams(Repository):
    """Streaming: begin a message, add to it, finish it.

    Whoever reads it meanwhile sees the text that has come so far, in status ``streaming``, and in
    status ``incomplete`` if nothing has come for ``stream_timeout`` seconds: its writer has died,
    then, or hangs. Nobody needs to notice that for it to be so. To begin and to finish is activity
    of the session; a piece is not.
    """

    __slots__ = ()

    @appends
    def begin(
        self,
        session_id: str,
        role: str = "assistant",
        *,
        name: str | None = None,
        tool_call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        external_id: str | None = None,
        marks: Marks = None,
        idempotency_key: str | None = None,
    ) -> MessageRecord:
        """Append an empty message, to be written piece by piece; see ``save``.

        Returns:
            The message, in status ``streaming``; its ``id`` is what the other calls want.

        Raises:
            NotFound: There is no such session.
            AlreadyExists: The external id is taken.
            InvalidInput: An argument cannot be stored.
        """
        begun = draft(
            {
                "role": role,
                "content": "",
                "name": name,
                "tool_call_id": tool_call_id,
                "metadata": metadata,
                "external_id": external_id,
                "marks": marks,
            }
        )
        begun.row["status"] = STREAMING
        now = self.unit.now()
        return append_drafts(self.unit, session_id, [begun], "refuse", idempotency_key, now)[0]

    @appends
    def append(self, message_id: str, text: str, *, position: int | None = None) -> int:
        """Add a piece of text to a message that is being streamed; one statement.

        Each call is as durable as any write, so gather what comes within some tenths of a second
        into one.

        Args:
            message_id: The message.
            text: The piece.
            position: The number of this piece, counted from 0. With it a repeated call adds
                nothing; without it every call adds.

        Returns:
            How many pieces the message has now.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was given up.
            InvalidInput: The text is no str, or a piece before this one is missing.
        """
        validation.text("text", text)
        validation.optional_amount("position", position)
        messages, chunks = self.tables.messages.c, self.tables.message_chunks
        here = chunks.c.message_id == bindparam("id")
        next_ = select(func.coalesce(func.max(chunks.c.position) + 1, 0)).where(here)
        piece = select(
            messages.id,
            next_.scalar_subquery(),
            messages.session_id,
            literal(text, chunks.c.content.type),
            literal(self.unit.now(), chunks.c.created_at.type),
        ).where(
            messages.id == bindparam("id"),
            messages.status == STREAMING,
            session_stays(self.tables, messages.session_id),
        )
        if position is not None:
            piece = piece.where(next_.scalar_subquery() == position)
        # Who ends the message locks its row, and then looks which pieces there are: either this
        # one is among them, or it finds that the message has ended.
        piece = piece.with_for_update(read=True, of=self.tables.messages)
        columns = ["message_id", "position", "session_id", "content", "created_at"]
        added = insert(chunks).from_select(columns, piece).returning(chunks.c.position)
        while True:
            landed = self.connection.execute(added, {"id": message_id}).scalar()
            if landed is not None:
                return int(landed) + 1
            self._require_streaming(message_id)
            count = int(self.connection.execute(next_, {"id": message_id}).scalar_one())
            if position is not None and position < count:
                return count
            if position is None or position > count:
                raise InvalidInput(f"position is {position}, but the next piece is number {count}.")
            # The one before it has come meanwhile: now it is its turn.

    @writes
    def finish(
        self,
        message_id: str,
        content: str | list[Any] | None = None,
        *,
        tool_calls: list[dict[str, Any]] | None = None,
        token_count: int = 0,
        cost: Decimal | int | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Any = None,
    ) -> MessageRecord:
        """Finish a message that is being streamed; from now on it is like any other.

        Args:
            message_id: The message.
            content: What it says; None means what has come. The other arguments are those of
                ``save``; metadata left out is what ``begin`` was given.
            tool_calls: See ``save``.
            token_count: See ``save``.
            cost: See ``save``.
            metadata: See ``save``.
            payload: See ``save``.

        Returns:
            The message, in status ``complete``.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was given up.
            InvalidInput: An argument cannot be stored.
        """
        given = {
            "content": content,
            "tool_calls": tool_calls,
            "token_count": token_count,
            "cost": cost,
            "metadata": metadata,
            "payload": payload,
        }
        draft({"role": "assistant", **given})  # refuses what cannot be stored before all else
        return self._end(message_id, COMPLETE, given)

    @writes
    def give_up(self, message_id: str) -> MessageRecord:
        """End a message that is being streamed as it is; it stays in status ``incomplete``.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was given up before.
        """
        return self._end(message_id, INCOMPLETE, {})

    @writes
    def give_up_idle(self, limit: int = 100) -> int:
        """Give up the messages of which nothing has come for ``stream_timeout`` seconds.

        Readers see these as incomplete anyway; this puts their pieces together, and ends them
        for their writers too, if there still are any.

        Args:
            limit: How many at most, up to 1,000.

        Returns:
            How many were given up; call again if that is the limit.
        """
        check_limit(limit)
        oldest = self.unit.now() - timedelta(seconds=self.unit.settings.stream_timeout)
        query = idle_streams(self.tables, oldest).order_by(self.tables.messages.c.pk)
        return self._give_up_these(self.connection.execute(query.limit(limit)).all())

    def _give_up_these(self, idle: Sequence[Row[Any]]) -> int:
        given_up = 0
        for row in sorted(idle, key=lambda row: (row.session_id, row.id)):
            # Another one, or its writer, may have been here since the look.
            with suppress(NotFound, StreamEnded):
                lock_session(self.unit, row.session_id)
                self._require_streaming(row.id)
                record = self._read(row.id)
                if record.status == INCOMPLETE:
                    self._rewrite(record, INCOMPLETE, {})
                    given_up += 1
        return given_up

    def _end(self, message_id: str, status: str, given: dict[str, Any]) -> MessageRecord:
        messages = self.tables.messages.c
        owner = select(messages.session_id).where(
            messages.id == message_id, session_stays(self.tables, messages.session_id)
        )
        session_id = self.connection.execute(owner).scalar()
        if session_id is None:
            raise NotFound("message", message_id)
        lock_session(self.unit, session_id)
        self._require_streaming(message_id)
        self._rewrite(self._read(message_id), status, given)
        return self._read(message_id)

    def _rewrite(self, old: MessageRecord, status: str, given: dict[str, Any]) -> None:
        """Write a locked message as it ends."""
        given = {key: value for key, value in given.items() if value is not None}
        values = {"content": old.content, "metadata": old.metadata, **given}
        new = draft(
            {"role": old.role, "name": old.name, "tool_call_id": old.tool_call_id, **values}
        )
        new.row["status"] = status
        rewrite_message(self.unit, old, new)
        if status == COMPLETE:  # to give up is no activity
            sessions = self.tables.sessions
            activity = self.unit.dialect.next_activity(self.tables)
            self.connection.execute(
                update(sessions)
                .where(sessions.c.id == old.session_id)
                .values(activity=activity, last_active_at=self.unit.now())
            )

    def _require_streaming(self, message_id: str) -> None:
        """Lock a message that can still be added to, however long nothing has come of it.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was given up.
        """
        messages = self.tables.messages.c
        query = select(messages.status).where(
            messages.id == message_id, session_stays(self.tables, messages.session_id)
        )
        status = self.connection.execute(query.with_for_update()).scalar()
        if status is None:
            raise NotFound("message", message_id)
        if status != STREAMING:
            raise StreamEnded(message_id, status)

    def _read(self, message_id: str) -> MessageRecord:
        query = select_messages(self.tables).where(self.tables.messages.c.id == message_id)
        return message_records(self.unit, self.connection.execute(query))[0]
