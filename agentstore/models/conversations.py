"""Sessions and their branches, messages and what is kept beside them.

``sessions`` holds what every message changes, the counters, and is kept narrow for that: an
UPDATE rewrites the whole row on both engines. The documents of a session, which may be large,
live in ``session_data``.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapped, column_property

from agentstore.models.base import Base, in_session, related
from agentstore.schema import conversations

if TYPE_CHECKING:
    from agentstore.models.work import CheckpointThread, Task, ToolLog, TurnUsage, User


class Session(Base):
    """A conversation of an agent.

    ``last_seq`` is the sequence number of its newest message, on any branch, and never goes
    down; ``turn`` is the number of the last turn of the active branch, and ``branch_messages`` and
    ``branch_turns`` count what that branch shows. ``activity`` grows with every message in the
    whole database: the session that was written to last has the largest.

    No index has ``activity``, which every message changes. The lists' indexes have
    ``listed_activity``: the activity at some earlier write, no two sessions the same. It is set to
    ``activity`` again by the write that would leave it 256 or more behind; see
    ``agentstore.repositories.listing``.

    ``newest_at`` is the latest time of a message, or 1970 before there was one. ``in_order`` says
    that no message was saved with a time more than a minute before that of an earlier one: then
    the messages of a window of time are found by their numbers, and no index has their times.
    ``has_failures`` says that the session failed, or that a logged call of a tool in it or a task
    of it did.
    """

    __table__ = conversations.sessions

    pk: Mapped[int]
    id: Mapped[str]
    user_id: Mapped[str | None]
    status: Mapped[str]
    active_branch: Mapped[int]
    branch_messages: Mapped[int]
    branch_turns: Mapped[int]
    last_branch: Mapped[int]
    last_seq: Mapped[int]
    turn: Mapped[int]
    message_count: Mapped[int]
    total_tokens: Mapped[int]
    total_cost: Mapped[Decimal]
    activity: Mapped[int]
    listed_activity: Mapped[int]
    ttl_seconds: Mapped[int | None]
    expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    last_active_at: Mapped[datetime]
    newest_at: Mapped[datetime]
    in_order: Mapped[bool]
    has_failures: Mapped[bool]
    title: Mapped[str | None]
    model: Mapped[str | None]

    user: Mapped[User | None] = related("User")
    data: Mapped[SessionData] = related("SessionData")
    messages: Mapped[list[Message]] = related(
        "Message", primaryjoin=in_session("Message"), order_by="Message.seq"
    )
    branches: Mapped[list[Branch]] = related("Branch", order_by="Branch.number")
    summaries: Mapped[list[Summary]] = related("Summary", order_by="Summary.branch")
    called_tools: Mapped[list[MessageToolCall]] = related(
        "MessageToolCall",
        primaryjoin=in_session("MessageToolCall"),
        order_by="MessageToolCall.seq, MessageToolCall.position",
    )
    marks: Mapped[list[MessageMark]] = related(
        "MessageMark",
        primaryjoin=in_session("MessageMark"),
        order_by="MessageMark.seq, MessageMark.mark",
    )
    chunks: Mapped[list[MessageChunk]] = related(
        "MessageChunk",
        primaryjoin=in_session("MessageChunk"),
        order_by="MessageChunk.message_id, MessageChunk.position",
    )
    message_vectors: Mapped[list[MessageVector]] = related(
        "MessageVector",
        primaryjoin=in_session("MessageVector"),
        order_by="MessageVector.message_pk, MessageVector.model",
    )
    attachments: Mapped[list[Attachment]] = related(
        "Attachment", primaryjoin=in_session("Attachment"), order_by="Attachment.pk"
    )
    tool_logs: Mapped[list[ToolLog]] = related("ToolLog", order_by="ToolLog.pk")
    usage: Mapped[list[TurnUsage]] = related("TurnUsage", order_by="TurnUsage.pk")
    tasks: Mapped[list[Task]] = related("Task", order_by="Task.pk")
    checkpoint_threads: Mapped[list[CheckpointThread]] = related(
        "CheckpointThread", order_by="CheckpointThread.pk"
    )


class SessionData(Base):
    """The documents of a session, under one version number (optimistic concurrency).

    ``layout`` keeps what an unusual line of an imported file looked like. Only an import writes
    it, and only an export reads it. ``epoch`` counts how often the session was reset, and
    ``failure`` says why it failed.
    """

    __table__ = conversations.session_data

    session_id: Mapped[str]
    version: Mapped[int]
    question: Mapped[str | None]
    asked_at: Mapped[datetime | None]
    failure: Mapped[str | None]
    metadata_: Mapped[dict[str, Any]] = column_property(conversations.session_data.c.metadata)
    config: Mapped[dict[str, Any]]
    state: Mapped[Any | None]
    updated_at: Mapped[datetime]
    layout: Mapped[Any | None]
    epoch: Mapped[int]

    session: Mapped[Session] = related("Session")


class Branch(Base):
    """A line of a conversation.

    ``number`` counts from 0, which is main, in each session and is never used again. ``line`` says
    which messages it shows, the oldest first: ``[branch, first, last]`` are those of a branch
    with sequence numbers from ``first`` to ``last``; the last of them is the branch's own, and
    open: its end is ``null``.
    ``parent`` is the branch that it grew from, ``fork_seq`` the last sequence number that they
    had in common then, and ``fork_turn`` the turn of that message. A branch that is ``gone`` is
    nobody's any more; it has left messages that others show, and some unique name. One that is gone
    and ``reserved`` has left its name alone, so that no other branch may have it.

    ``messages`` and ``turns`` count what it shows, user messages being turns; ``turn`` is the
    number of its last turn. For the active branch the session's row has these three: they are
    written back here when another one becomes that.
    """

    __table__ = conversations.branches

    session_id: Mapped[str]
    number: Mapped[int]
    name: Mapped[str]
    parent: Mapped[int | None]
    fork_seq: Mapped[int]
    fork_turn: Mapped[int]
    created_at: Mapped[datetime]
    line: Mapped[list[Any]]
    messages: Mapped[int]
    turns: Mapped[int]
    turn: Mapped[int]
    gone: Mapped[bool]
    reserved: Mapped[bool]

    session: Mapped[Session] = related("Session")
    saved_messages: Mapped[list[Message]] = related("Message", order_by="Message.seq")


class Summary(Base):
    """The compressed memory of one branch of a session; it survives a clear."""

    __table__ = conversations.summaries

    session_id: Mapped[str]
    branch: Mapped[int]
    content: Mapped[str]
    metadata_: Mapped[dict[str, Any]] = column_property(conversations.summaries.c.metadata)
    through_seq: Mapped[int | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    session: Mapped[Session] = related("Session")


class Message(Base):
    """One message.

    ``seq`` numbers the messages of a session, whatever the clock says; no two that a branch shows
    have the same. Text content is in ``content``, a list of content blocks in ``blocks``; at most
    one of them is set. ``payload`` holds a framework's own item whole. ``chat_keys`` is for the
    store alone: the keys of a chat message in their order, where they are not the usual ones. A
    user message that holds nothing but tools' results has the role ``tool``.
    """

    __table__ = conversations.messages

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
    metadata_: Mapped[dict[str, Any] | None] = column_property(conversations.messages.c.metadata)
    payload: Mapped[Any | None]
    chat_keys: Mapped[list[Any] | None]

    session: Mapped[Session] = related("Session", primaryjoin=in_session("Message"))
    in_branch: Mapped[Branch] = related("Branch", omit_join=False)
    called_tools: Mapped[list[MessageToolCall]] = related(
        "MessageToolCall", order_by="MessageToolCall.position"
    )
    marks: Mapped[list[MessageMark]] = related("MessageMark", order_by="MessageMark.mark")
    chunks: Mapped[list[MessageChunk]] = related("MessageChunk", order_by="MessageChunk.position")
    vectors: Mapped[list[MessageVector]] = related("MessageVector", order_by="MessageVector.model")
    attachments: Mapped[list[Attachment]] = related("Attachment", order_by="Attachment.pk")
    tool_logs: Mapped[list[ToolLog]] = related("ToolLog", order_by="ToolLog.pk")


class MessageToolCall(Base):
    """An index of tool calls, in any format: which message calls which tool.

    ``name`` is empty where a call has an id but names no tool.
    """

    __table__ = conversations.message_tool_calls

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

    __table__ = conversations.message_marks

    message_id: Mapped[str]
    mark: Mapped[str]
    session_id: Mapped[str]
    seq: Mapped[int]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageMark"))


class MessageVector(Base):
    """The vectors that a model made of a message's text, as those of ``MemoryVector``.

    They go when the text changes. No bytes stand where there is no text.
    """

    __table__ = conversations.message_vectors

    message_pk: Mapped[int]
    model: Mapped[int]
    session_id: Mapped[str]
    vectors: Mapped[bytes]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageVector"))


class MessageChunk(Base):
    """A piece of a message that is being streamed."""

    __table__ = conversations.message_chunks

    message_id: Mapped[str]
    position: Mapped[int]
    session_id: Mapped[str]
    content: Mapped[str]
    created_at: Mapped[datetime | None]

    message: Mapped[Message] = related("Message")
    session: Mapped[Session] = related("Session", primaryjoin=in_session("MessageChunk"))


class Blob(Base):
    """Bytes, stored once for all who attach them; the digest is SHA-256 in hexadecimal."""

    __table__ = conversations.blobs

    digest: Mapped[str]
    size: Mapped[int]
    data: Mapped[bytes]
    created_at: Mapped[datetime]

    attachments: Mapped[list[Attachment]] = related("Attachment", order_by="Attachment.pk")


class Attachment(Base):
    """Bytes with a media type beside a message."""

    __table__ = conversations.attachments

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
