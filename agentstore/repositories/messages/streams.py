"""Messages that come piece by piece, and can be read while they do.

A message that is being streamed is a row of ``messages`` in status ``streaming``, without text, and
its pieces are rows of ``message_chunks``. When it ends, the pieces become its text and are deleted.
What users call is in ``Messages``: ``begin``, ``append``, ``finish``, ``give_up``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
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
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_stays
from agentstore.models.tables import Tables
from agentstore.records import MessageRecord
from agentstore.repositories.lines.removal import lock_session, lock_session_of
from agentstore.repositories.lines.rows import message_records, select_messages
from agentstore.repositories.messages.drafts import Draft
from agentstore.repositories.messages.rewriting import rewrite_message
from agentstore.values.own_ids import SOUGHT_ID
from agentstore.values.states import COMPLETE, INCOMPLETE, STREAMING

_STREAMING: ColumnElement[str] = literal_column("'streaming'")
_COMPLETE: ColumnElement[str] = literal_column("'complete'")
"""Written into the statement: the index of what is not complete is of use to those alone who say
so in its own words.
"""


_GIVEN = ("content", "blocks", "tool_calls", "token_count", "cost", "metadata", "payload")
"""The columns that are said when a message is finished."""


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
    return select(messages.id, messages.session_id.label("session_id")).where(
        messages.status == _STREAMING,
        messages.status != _COMPLETE,
        messages.created_at < oldest,
        or_(last.is_(None), last < oldest),
    )


def add_piece(unit: Unit, message_id: str, text: str, position: int | None) -> int:
    """Add a piece of text; see ``Messages.append``."""
    messages, chunks = unit.tables.messages.c, unit.tables.message_chunks
    here = chunks.c.message_id == bindparam("id", type_=SOUGHT_ID)
    next_ = select(func.coalesce(func.max(chunks.c.position) + 1, 0)).where(here)
    piece = select(
        messages.id,
        next_.scalar_subquery(),
        messages.session_id,
        literal(text, chunks.c.content.type),
        literal(unit.now(), chunks.c.created_at.type),
    ).where(
        messages.id == bindparam("id", type_=SOUGHT_ID),
        messages.status == STREAMING,
        session_stays(unit.tables, messages.session_id),
    )
    if position is not None:
        piece = piece.where(next_.scalar_subquery() == position)
    # Who ends the message locks its row, and then looks which pieces there are: either this
    # one is among them, or it finds that the message has ended.
    piece = piece.with_for_update(read=True, of=unit.tables.messages)
    columns = ["message_id", "position", "session_id", "content", "created_at"]
    added = insert(chunks).from_select(columns, piece).returning(chunks.c.position)
    while True:
        landed = unit.connection.execute(added, {"id": message_id}).scalar()
        if landed is not None:
            return int(landed) + 1
        _require_streaming(unit, message_id)
        count = int(unit.connection.execute(next_, {"id": message_id}).scalar_one())
        if position is not None and position < count:
            return count
        if position is None or position > count:
            raise InvalidInput(f"position must be {count}, the next piece's, not {position}.")
        # The one before it has come meanwhile: now it is its turn.


def end_stream(
    unit: Unit, message_id: str, status: str, ending: Draft | None = None
) -> MessageRecord:
    """End a message that is being streamed; see ``Messages.finish`` and ``Messages.give_up``.

    Args:
        unit: The open unit.
        message_id: The message.
        status: The one in which it ends.
        ending: What it is to have then; what has no value in it stays as it is.
    """
    lock_session_of(unit, message_id)
    _require_streaming(unit, message_id)
    _end(unit, _read(unit, message_id), status, ending)
    return _read(unit, message_id)


def give_up_these(unit: Unit, idle: Sequence[Row[Any]]) -> int:
    """Give up messages, given by ``id`` and ``session_id``, that are idle still; say how many."""
    given_up = 0
    for row in sorted(idle, key=lambda row: (row.session_id, row.id)):
        # Another one, or its writer, may have been here since the look.
        with suppress(NotFound, StreamEnded):
            lock_session(unit, row.session_id)
            _require_streaming(unit, row.id)
            record = _read(unit, row.id)
            if record.status == INCOMPLETE:
                _end(unit, record, INCOMPLETE, None)
                given_up += 1
    return given_up


def _end(unit: Unit, old: MessageRecord, status: str, ending: Draft | None) -> None:
    """Write a locked message as it ends."""
    values: dict[str, Any] = {"status": status, "content": old.content}
    if ending is not None:
        values |= {name: ending.row[name] for name in _GIVEN if ending.row[name] is not None}
        if ending.row["blocks"] is not None:
            values["content"] = None
    rewrite_message(unit, old, values, () if ending is None else ending.calls)
    if status == COMPLETE:  # to give up is no activity
        sessions = unit.tables.sessions
        activity = unit.dialect.take_activity(unit.connection, unit.tables)
        unit.connection.execute(
            update(sessions)
            .where(sessions.c.id == old.session_id)
            .values(activity=activity, listed_activity=activity, last_active_at=unit.now())
        )


def _require_streaming(unit: Unit, message_id: str) -> None:
    """Lock a message that can still be added to, however long nothing has come of it.

    Raises:
        NotFound: There is no such message.
        StreamEnded: It is finished, or was given up.
    """
    messages = unit.tables.messages.c
    query = select(messages.status).where(
        messages.id == message_id, session_stays(unit.tables, messages.session_id)
    )
    status = unit.connection.execute(query.with_for_update()).scalar()
    if status is None:
        raise NotFound("message", message_id)
    if status != STREAMING:
        raise StreamEnded(message_id, status)


def _read(unit: Unit, message_id: str) -> MessageRecord:
    query = select_messages(unit.tables).where(unit.tables.messages.c.id == message_id)
    return message_records(unit, unit.connection.execute(query))[0]
