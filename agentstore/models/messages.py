"""Messages, and what is kept beside them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapped, column_property

from agentstore.models.base import Base, in_session, related
from agentstore.schema import messages as tables

if TYPE_CHECKING:
    from agentstore.models.sessions import Branch, Session
    from agentstore.models.work import ToolLog


class Message(Base):
    """One message.

    ``seq`` numbers the messages of a session, whatever the clock says; no two that a branch shows
    have the same. Text content is in ``content``, a list of content blocks in ``blocks``; at most
    one of them is set. ``payload`` holds a framework's own item whole. ``chat_keys`` is for the
    store alone: the keys of a chat message in their order, where they are not the usual ones. A
    user message that holds nothing but tools' results has the role ``tool``.
    """

    __table__ = tables.messages

    pk: Mapped[int]
    id: Mapped[str]
    session_id: Mapped[str]
    branch: Mapped[int]
    seq: Mapped[int]
    turn: Mapped[int]
    role: Mapped[str]
    status: Mapped[str]
    token_count: Mapped[int]
    cost: Mapped[Decimal]
    created_at: Mapped[datetime]
    name: Mapped[str | None]
    tool_call_id: Mapped[str | None]
    external_id: Mapped[str | None]
    idempotency_key: Mapped[str | None]
    content: Mapped[str | None]
    blocks: Mapped[list[Any] | None]
    tool_calls: Mapped[list[Any] | None]
    metadata_: Mapped[dict[str, Any] | None] = column_property(tables.messages.c.metadata)
    payload: Mapped[Any | None]
    chat_keys: Mapped[list[Any] | None]

    session: Mapped[Session] = related("Session", primaryjoin=in_session("Message"))
    in_branch: Mapped[Branch] = related("Branch", omit_join=False)
    called_tools: Mapped[list[MessageToolCall]] = related(
        "MessageToolCall", order_by="MessageToolCall.position"
    )
    marks: Mapped[list[MessageMark]] = related("MessageMark", order_by="MessageMark.mark")
    chunks: Mapped[list[MessageChunk]] = related("MessageChunk", order_by="MessageChunk.position")
    attachments: Mapped[list[Attachment]] = related("Attachment", order_by="Attachment.pk")
    tool_logs: Mapped[list[ToolLog]] = related("ToolLog", order_by="ToolLog.pk")


class MessageToolCall(Base):
    """An index of tool calls, in any format: which message calls which tool.

    ``name`` is empty where a call has an id but names no tool.
    """

    __table__ = tables.message_tool_calls

    message_id: Mapped[str]
    position: Mapped[int]
    session_id: Mapped[str]
    seq: Mapped[int]
    name: Mapped[str]
    call_id: Mapped[str | None]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageToolCall"))


class MessageMark(Base):
    """A mark on a message."""

    __table__ = tables.message_marks

    message_id: Mapped[str]
    mark: Mapped[str]
    session_id: Mapped[str]
    seq: Mapped[int]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageMark"))


class MessageChunk(Base):
    """A piece of a message that is being streamed."""

    __table__ = tables.message_chunks

    message_id: Mapped[str]
    position: Mapped[int]
    session_id: Mapped[str]
    content: Mapped[str]
    created_at: Mapped[datetime | None]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageChunk"))


class Blob(Base):
    """Bytes, stored once for all who attach them; the digest is SHA-256 in hexadecimal."""

    __table__ = tables.blobs

    digest: Mapped[str]
    size: Mapped[int]
    data: Mapped[bytes]
    created_at: Mapped[datetime]

    attachments: Mapped[list[Attachment]] = related("Attachment", order_by="Attachment.pk")


class Attachment(Base):
    """Bytes with a media type beside a message."""

    __table__ = tables.attachments

    pk: Mapped[int]
    id: Mapped[str]
    message_id: Mapped[str]
    session_id: Mapped[str]
    digest: Mapped[str]
    media_type: Mapped[str]
    name: Mapped[str | None]
    created_at: Mapped[datetime]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("Attachment"))
    blob: Mapped[Blob] = related("Blob")
