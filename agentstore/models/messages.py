"""Messages, and what is kept beside them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from agentstore.models.base import Base, PartialIndex, Pk, one_of
from agentstore.values.states import MESSAGE_STATUSES, ROLES
from agentstore.values.types import Word

_EXTERNAL = text("external_id IS NOT NULL")
_IDEMPOTENT = text("idempotency_key IS NOT NULL")
_USER = text("role = 'user'")
_UNFINISHED = text("status <> 'complete'")


class Message(Base):
    """One message.

    ``seq`` numbers the messages of a session without ties, whatever the clock says. Text
    content is in ``content``, a list of content blocks in ``blocks``; at most one of them is
    set. ``payload`` holds a framework's own item whole, and ``chat_keys`` the keys of an
    imported chat message in their order, where they are not the usual ones.
    """

    __tablename__ = "messages"
    __table_args__ = (
        ForeignKeyConstraint(
            ["session_id", "branch"],
            ["branches.session_id", "branches.number"],
            ondelete="CASCADE",
        ),
        CheckConstraint(one_of("role", ROLES), name="role"),
        CheckConstraint(one_of("status", MESSAGE_STATUSES), name="status"),
        CheckConstraint("token_count >= 0 AND cost >= 0", name="amounts"),
        CheckConstraint("content IS NULL OR blocks IS NULL", name="content"),
        Index(None, "session_id", "branch", "seq", unique=True),
        Index(None, "session_id", "created_at"),
        PartialIndex(None, "session_id", "branch", "turn", where=_USER),
        PartialIndex(None, "session_id", "external_id", unique=True, where=_EXTERNAL),
        PartialIndex(None, "session_id", "idempotency_key", unique=True, where=_IDEMPOTENT),
        PartialIndex(None, "status", "pk", where=_UNFINISHED),
        {"sqlite_autoincrement": True},
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    session_id: Mapped[str]
    branch: Mapped[int]
    seq: Mapped[int]
    turn: Mapped[int]
    role: Mapped[str] = mapped_column(Word(ROLES))
    status: Mapped[str] = mapped_column(Word(MESSAGE_STATUSES), server_default=text("'complete'"))
    token_count: Mapped[int] = mapped_column(server_default=text("0"))
    cost: Mapped[Decimal] = mapped_column(server_default=text("0"))
    created_at: Mapped[datetime]
    name: Mapped[str | None]
    tool_call_id: Mapped[str | None]
    external_id: Mapped[str | None]
    idempotency_key: Mapped[str | None]
    content: Mapped[str | None]
    blocks: Mapped[list[Any] | None]
    tool_calls: Mapped[list[Any] | None]
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    payload: Mapped[Any | None]
    chat_keys: Mapped[list[Any] | None]


class MessageToolCall(Base):
    """An index of the calls in ``messages.tool_calls``: which message calls which tool.

    ``name`` is empty where a call has an id but names no tool.
    """

    __tablename__ = "message_tool_calls"
    __table_args__ = (
        Index(None, "session_id", "name", "seq"),
        Index(None, "session_id", "call_id"),
    )

    message_id: Mapped[str] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    session_id: Mapped[str]
    seq: Mapped[int]
    name: Mapped[str]
    call_id: Mapped[str | None]


class MessageMark(Base):
    """A mark on a message."""

    __tablename__ = "message_marks"
    __table_args__ = (Index(None, "session_id", "mark", "seq"),)

    message_id: Mapped[str] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True
    )
    mark: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str]
    seq: Mapped[int]


class MessageChunk(Base):
    """A piece of a message that is being streamed."""

    __tablename__ = "message_chunks"
    __table_args__ = (Index(None, "session_id"),)

    message_id: Mapped[str] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    session_id: Mapped[str]
    content: Mapped[str]
    created_at: Mapped[datetime | None]


class Blob(Base):
    """Bytes, stored once for all who attach them; the digest is SHA-256 in hexadecimal."""

    __tablename__ = "blobs"

    digest: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int]
    data: Mapped[bytes]
    created_at: Mapped[datetime]


class Attachment(Base):
    """Bytes with a media type beside a message."""

    __tablename__ = "attachments"
    __table_args__ = (
        Index(None, "message_id", "pk"),
        Index(None, "session_id", "pk"),
        Index(None, "digest"),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    message_id: Mapped[str] = mapped_column(ForeignKey("messages.id", ondelete="CASCADE"))
    session_id: Mapped[str]
    digest: Mapped[str] = mapped_column(ForeignKey("blobs.digest"))
    media_type: Mapped[str]
    name: Mapped[str | None]
    created_at: Mapped[datetime]
