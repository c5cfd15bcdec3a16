"""Messages, attachments and summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, get_args

from agentstore.records.base import briefly, maker
from agentstore.records.words import MessageStatus, Role


@briefly("id", "session_id", "seq", "branch", "turn", "role", "status")
@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message.

    Attributes:
        seq: Its number in its session; larger is later. No two messages that a branch shows have
            the same; a compaction's summary has that of the last message that it stands for.
        branch: The name of the branch in which it was written, which every call takes; None if
            that is gone, or for a compaction's summary, which has no branch of its own.
        turn: The turn that it belongs to; a user message begins one, 0 precedes the first.
        content: Text, or a list of content blocks, or None.
        status: ``complete``; ``streaming`` while it is being written, ``incomplete`` if that was
            given up. Two are of what a history has and is not stored: ``summary``, on demand, and
            ``interrupted``, which stands for the result of a call that has none.
        payload: A framework's own item, whole, or the keys of a chat message that have no field.
    """

    id: str
    session_id: str
    seq: int
    branch: str | None
    turn: int
    role: Role
    content: str | list[Any] | None
    tool_calls: list[Any] | None
    tool_call_id: str | None
    name: str | None
    token_count: int
    cost: Decimal
    metadata: dict[str, Any] | None
    payload: Any
    external_id: str | None
    status: MessageStatus
    created_at: datetime
    _layout: Any = field(default=None, repr=False)

    @property
    def begins_turn(self) -> bool:
        """Whether it began its turn: a user message that does not only hold tools' results."""
        return stored_role(self) == "user"

    def _repr_html_(self) -> str:
        """Show the message in a notebook, with what it says; see ``records.html``."""
        return self._many_as_html([self])

    @staticmethod
    def _many_as_html(messages: Sequence[MessageRecord]) -> str:
        from agentstore.records.html import messages_as_html  # notebooks alone need it

        return messages_as_html(messages)

    def to_chat(self) -> dict[str, Any]:
        """Give the message as the chat APIs take it.

        Returns:
            A new dict with role, content and, where they are set, tool_calls, tool_call_id and
            name. What ``save_chat`` or an import stored has the very keys that it had, in their
            order; its role may be ``function``, which is stored as ``tool``, or, if it is an item
            of the Responses API, it has none.
        """
        return chat_message(
            self.role,
            self.content,
            self.tool_calls,
            self.tool_call_id,
            self.name,
            self._layout,
            self.payload,
        )


class MessageList(list[MessageRecord]):
    """A history: a list like any other, which a notebook shows as a conversation."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Show the conversation in a notebook, with what was said; see ``records.html``."""
        return MessageRecord._many_as_html(self)


def stored_role(message: MessageRecord) -> str:
    """Give the role under which a message is stored."""
    told = message.role == "user" and told_role("tool", message._layout) == "user"
    return "tool" if told else message.role


def told_role(stored: str, layout: Any) -> str:
    """Give the role that a message has for its reader.

    Anthropic's users answer the tools. Such a message is stored as a tool's, so that it begins no
    turn, and its layout says whose it is. A layout can say nothing else of a role.
    """
    if stored == "tool" and isinstance(layout, list) and layout and layout[-1] == _A_USERS:
        return "user"
    return stored


_A_USERS = {"role": "user"}


def users(layout: list[Any] | None) -> list[Any]:
    """Give the layout of a message that is a user's, and is stored as a tool's."""
    return [*(layout or ()), _A_USERS]


def chat_message(
    role: str,
    content: str | list[Any] | None,
    tool_calls: list[Any] | None,
    tool_call_id: str | None,
    name: str | None,
    layout: Any,
    payload: Any,
) -> dict[str, Any]:
    """Make a chat message of a message's fields; see ``MessageRecord.to_chat``.

    Args:
        role: See ``MessageRecord``, as for the others.
        content: See ``MessageRecord``.
        tool_calls: See ``MessageRecord``.
        tool_call_id: See ``MessageRecord``.
        name: See ``MessageRecord``.
        layout: The keys in their order, where these are unusual; an empty list says that the
            payload is the message, an item without a role.
        payload: It matters only with a layout.
    """
    chat: dict[str, Any] = {"role": role, "content": content}
    if tool_calls is not None:
        chat["tool_calls"] = tool_calls
    if tool_call_id is not None:
        chat["tool_call_id"] = tool_call_id
    if name is not None:
        chat["name"] = name
    return chat if layout is None else _laid_out(chat, layout, payload)


def _laid_out(chat: dict[str, Any], layout: Any, payload: Any) -> dict[str, Any]:
    """Put a chat message into the layout that it was saved with.

    Whatever the row says of that, the role is the message's, and nothing that is set is left out.
    """
    extra = payload if isinstance(payload, dict) else {}
    keys = layout if isinstance(layout, list) else []
    if layout == [] and isinstance(payload, dict) and _is_whole(payload, chat):
        return dict(payload)
    found = {
        key: chat.get(key) if key in CHAT_KEYS else extra[key]
        for key in keys
        if isinstance(key, str) and (key in CHAT_KEYS or key in extra)
    }
    missing = {
        key: value
        for key, value in chat.items()
        if key not in found and (key == "role" or value is not None)
    }
    found = {**missing, **found}
    if chat["role"] == "tool" and extra.get("role") == OLD_TOOL_ROLE:
        found["role"] = OLD_TOOL_ROLE
    else:
        found["role"] = told_role(chat["role"], layout)
    return found


def _is_whole(payload: dict[str, Any], chat: dict[str, Any]) -> bool:
    """Say whether a payload is a message by itself; it cannot claim the role of another one."""
    if "role" not in payload:
        return True
    role = payload["role"]
    known = role in get_args(Role) or role == OLD_TOOL_ROLE
    return (
        (not known or chat["role"] == ("tool" if role == OLD_TOOL_ROLE else role))
        and chat.keys() == {"role", "content"}
        and chat["content"] is None
    )


make_message_record = maker(MessageRecord)
"""Makes a message of all its fields, faster than its constructor."""


CHAT_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name")
"""The keys of a chat message that have columns of their own, in their usual order."""


OLD_TOOL_ROLE = "function"
"""What the role of tools was called; a message that has it is stored with the role ``tool``."""


@briefly("id", "message_id", "session_id", "size", "media_type")
@dataclass(frozen=True, slots=True)
class AttachmentRecord:
    """Bytes beside a message, without the bytes themselves.

    Attributes:
        digest: Their SHA-256, in hexadecimal.
        size: How many there are.
        media_type: What they are, as it was said when they were attached.
    """

    id: str
    message_id: str
    session_id: str
    digest: str
    size: int
    media_type: str
    name: str | None
    created_at: datetime


@briefly("session_id", "branch", "through_seq")
@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """The compressed memory of a branch of a session.

    Attributes:
        branch: The name of the branch for which it was written; None if that is gone.
        through_seq: The sequence number of the last message that it tells of.
    """

    session_id: str
    branch: str | None
    content: str
    through_seq: int
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    def to_message(self) -> MessageRecord:
        """Give it as the message with which a history begins; that is not stored as one."""
        return MessageRecord(
            id="",
            session_id=self.session_id,
            seq=0,
            branch=self.branch,
            turn=0,
            role="system",
            content=self.content,
            tool_calls=None,
            tool_call_id=None,
            name=None,
            token_count=0,
            cost=Decimal(0),
            metadata=self.metadata,
            payload=None,
            external_id=None,
            status="summary",
            created_at=self.updated_at,
        )
