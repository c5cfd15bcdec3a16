"""Sessions, messages, branches, turns, search hits and memories; and how a notebook shows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING, Any, get_args

from agentstore.records.base import (
    MessageStatus,
    Role,
    SessionStatus,
    briefly,
    maker,
    maker_of_many,
    twin,
)

if TYPE_CHECKING:
    from agentstore.records.work import ReservationRecord, TaskRecord


@briefly("id", "user_id", "status", "model", "message_count", "last_active_at")
@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session without its documents, as ``sessions.list`` gives it.

    Attributes:
        version: Grows with each change of state, metadata, config or the pending question; pass
            it as ``expected_version`` to change only what you have read.
        message_count: Messages, on all branches.
        total_tokens: Sum of their ``token_count``.
        total_cost: Sum of their ``cost``.
        last_seq: The newest message's sequence number; it never goes down.
        last_turn: The number of the last turn on the active branch, 0 before the first one. That is
            how many turns there were, those that were deleted since included.
        has_failures: Whether the session failed, a logged call of a tool in it, or a task of it.
        failure: Why it failed, as ``sessions.fail`` was told; None where it did not.
        question: What the agent waits for the user to answer, in status ``waiting_user``.
        ttl: How long after its last activity the session expires; None means never.
        preview: The beginning of what the user said first, on one line, where ``sessions.list`` was
            asked for it; else None.
    """

    id: str
    user_id: str | None
    status: SessionStatus
    title: str | None
    model: str | None
    version: int
    question: str | None
    asked_at: datetime | None
    has_failures: bool
    failure: str | None
    message_count: int
    total_tokens: int
    total_cost: Decimal
    last_seq: int
    last_turn: int
    created_at: datetime
    last_active_at: datetime
    ttl: timedelta | None
    preview: str | None = field(default=None, kw_only=True, repr=False)

    def _repr_html_(self) -> str:
        """Show the session in a notebook; see ``sessions_as_html``."""
        return self._many_as_html([self])

    @staticmethod
    def _many_as_html(sessions: Sequence[SessionSummary]) -> str:

        return sessions_as_html(sessions)

    @property
    def expires_at(self) -> datetime | None:
        """When the session expires if nothing happens in it any more; None means never."""
        try:
            return None if self.ttl is None else self.last_active_at + self.ttl
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC)


make_session_summaries = maker_of_many(SessionSummary)
"""Makes summaries of all their fields, faster than their constructor."""


@briefly("id", "user_id", "status", "model", "version", "message_count", "last_active_at")
@dataclass(frozen=True, slots=True)
class SessionRecord(SessionSummary):
    """A session with its documents.

    Attributes:
        updated_at: When the documents or the pending question were last changed.
        epoch: How often the session was reset; see ``sessions.reset``.
    """

    metadata: dict[str, Any]
    config: dict[str, Any]
    state: Any
    updated_at: datetime
    epoch: int


@dataclass(frozen=True, slots=True)
class SessionCounters:
    """A session's counters beside what its messages add up to.

    Attributes:
        stored: ``message_count``, ``total_tokens`` and ``total_cost`` of the session.
        counted: The same, computed from the messages.
    """

    session_id: str
    stored: tuple[int, int, Decimal]
    counted: tuple[int, int, Decimal]

    @property
    def agree(self) -> bool:
        """Whether the counters are right."""
        return self.stored == self.counted


@briefly("session", "branch")
@dataclass(frozen=True, slots=True)
class RestoredSession:
    """All that an agent needs to go on with a session, of one moment.

    Attributes:
        session: The session, with its state.
        branch: The name of its active branch.
        history: That branch's messages, the oldest first, as ``messages.history`` gives them.
        summary: The compressed memory of that branch; None if there is none.
    """

    session: SessionRecord
    branch: str
    history: tuple[MessageRecord, ...]
    summary: str | None

    def _repr_html_(self) -> str:
        """Show the session in a notebook, and what was said; see ``messages_as_html``."""
        return self.session._repr_html_() + MessageRecord._many_as_html(self.history)

    @property
    def question(self) -> str | None:
        """What the user was asked and has not answered yet."""
        return self.session.question


# Messages, attachments and summaries.


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
        tool_calls: The calls of an assistant's message, as chat completions have them.
        tool_call_id: Which call a tool's message answers.
        token_count: Its size, as ``save`` was told; 0 if it was not.
        cost: What it cost, as ``save`` was told; what requests cost is in ``store.usage``.
        external_id: The application's own id for it, unique in its session.
        status: ``complete``; ``streaming`` while it is being written, ``incomplete`` if that was
            aborted. Two are of what a history has and is not stored: ``summary``, on demand, and
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
    def text(self) -> str:
        """What a reader reads in it, of blocks and frameworks' items too, a line for each piece."""
        if isinstance(self.content, str):
            return readable_text(self.content, None, self.payload)
        return readable_text(None, self.content, self.payload)

    @property
    def begins_turn(self) -> bool:
        """Whether it began its turn: a user message that does not only hold tools' results."""
        return stored_role(self) == "user"

    def _repr_html_(self) -> str:
        """Show the message in a notebook, with what it says; see ``messages_as_html``."""
        return self._many_as_html([self])

    @staticmethod
    def _many_as_html(messages: Sequence[MessageRecord]) -> str:

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
        """Show the conversation in a notebook, with what was said; see ``messages_as_html``."""
        return MessageRecord._many_as_html(self)


_KEYS = ("text", "content", "output")
"""Where the chat APIs, and the frameworks' own items, keep text. Other values, such as ids, urls
and pictures in base64, are none."""


def readable_text(content: str | None, blocks: Any, payload: Any) -> str:
    """Give the text of a message, a line for each piece.

    Args:
        content: Its text, where that is no list.
        blocks: Its content blocks.
        payload: A framework's own item. Read only where content and blocks give nothing.
    """
    return content or "\n".join(_texts_in(blocks)) or "\n".join(_texts_in(payload))


def _texts_in(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        if document:
            yield document
    elif isinstance(document, list):
        for item in document:
            yield from _texts_in(item)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key in _KEYS or isinstance(value, dict | list):
                yield from _texts_in(value)


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


MESSAGE_FIELDS = (
    *("id", "session_id", "seq", "branch", "turn", "role", "content"),
    *("token_count", "cost", "status", "created_at"),
    *("tool_calls", "tool_call_id", "name", "metadata", "payload", "external_id", "_layout"),
)
"""The fields of a message: those first that each has, then those that most have not."""

make_message_record = maker(MessageRecord, MESSAGE_FIELDS, "blocks")
"""Makes a message of all its fields, in the order of ``MESSAGE_FIELDS``, faster than its
constructor.
"""

blank_message = twin(MessageRecord, MESSAGE_FIELDS, "blocks")
"""Makes what equals a message, and is to be declared one: its ``__class__`` is set."""

make_message_records = maker_of_many(MessageRecord, MESSAGE_FIELDS, "blocks")
"""Makes messages of their fields, and their blocks, which are not looked at."""


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


# Branches and turns.


@dataclass(frozen=True, slots=True)
class InterruptedTurn:
    """A turn that began and did not end, and what is known of it, each in the order of creation.

    Attributes:
        last: The last message of the session's active branch; None where it has none.
        unanswered: The ids of the calls of tools that were made last and have no result.
        streams: The ids of messages that were being streamed.
        tasks: Tasks of the session that were running when their lease ran out.
        reservations: What was reserved for the session and neither settled nor released.
    """

    session: SessionSummary
    last: MessageRecord | None
    unanswered: tuple[str, ...]
    streams: tuple[str, ...]
    tasks: tuple[TaskRecord, ...]
    reservations: tuple[ReservationRecord, ...]


@dataclass(frozen=True, slots=True)
class BranchRecord:
    """A branch of a session.

    Attributes:
        number: Counts from 0, which is main, in its session; never used again.
        parent: The branch that it grew from; None for main, or if that is gone.
        fork_turn: The last turn that they had in common when it grew.
        fork_seq: The last sequence number that they had in common.
        current: Whether it is the active one, to which messages are added.
        reserved: Whether no other branch of the session may ever have its name, also once it is
            deleted.
    """

    session_id: str
    number: int
    name: str
    parent: str | None
    fork_turn: int
    fork_seq: int
    current: bool
    created_at: datetime
    reserved: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class CountedBranch(BranchRecord):
    """A branch, and how much it shows.

    Attributes:
        messages: Messages, those that it shares with others included.
        turns: User messages among them.
    """

    messages: int
    turns: int


@briefly("session_id", "number", "seq", "message_id")
@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn of a branch: a user message, and what follows it.

    Attributes:
        number: Its number; turns that were deleted leave gaps.
        seq: The sequence number of the user message.
        text: What the user said, as far as it is text.
        can_branch: Whether ``branches.create(from_turn=...)`` can begin here: not while the
            user message is still being written.
        message: The user message, where ``branches.turns`` was asked for it; else None.
    """

    session_id: str
    number: int
    seq: int
    message_id: str
    text: str
    can_branch: bool
    created_at: datetime
    message: MessageRecord | None = field(default=None, kw_only=True, repr=False)


# Hits of a search, and the state of the index.


@briefly("message", "score")
@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that was found.

    Attributes:
        snippet: Up to some 160 characters of its text around the first hit, with ``⟦`` before
            and ``⟧`` after each; nothing in it is escaped.
        score: How well it fits: above 0, and up to 2.2 for each word or phrase. Of two messages
            that hold a word equally often the shorter one has more.
    """

    message: MessageRecord
    snippet: str
    score: float


@dataclass(frozen=True, slots=True)
class SearchStatus:
    """The state of the search index.

    Attributes:
        tokenizer: The version of the tokenizer that made it, the stems, and how many characters
            of a message are in it, such as ``2:250000`` or ``2+english-3.1.1:250000``; None if
            that is lost.
        needed: The same of an index that ``reindex`` would make.
        pending: Changes of messages that are not in it yet; a search takes them in first.
        problem: What is wrong with it, if only ``reindex`` can repair it; None if all is well.
    """

    tokenizer: str | None
    needed: str
    pending: int
    problem: str | None


# What agents remember across conversations.


@briefly("ttl", "updated_at")
@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A JSON object under a namespace and a key.

    Attributes:
        user_id: Whose it is; None for nobody's.
        ttl: How long it is kept after it was put or touched; None for ever.
        updated_at: When it was put last.
        expires_at: From when on it is not there any more.
    """

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    user_id: str | None
    ttl: timedelta | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class MemoryHit:
    """A memory that was found.

    Attributes:
        score: How well it fits, only to compare hits of one search: by words above 0; by meaning
            the cosine, from -1 to 1.
    """

    memory: MemoryRecord
    score: float


@dataclass(frozen=True, slots=True)
class VectorModelRecord:
    """A model of which there are vectors.

    Attributes:
        complete: Whether it is searched: it was the first here, or ``reembed`` has come to its end.
        vectors: Of how many memories there are some.
        messages: Of how many messages.
    """

    name: str
    dims: int
    complete: bool
    vectors: int
    messages: int


@dataclass(frozen=True, slots=True)
class VectorStatus:
    """What has vectors.

    Attributes:
        models: In the order in which they were used first.
        pending: How many memories wait for their vectors.
        pending_messages: How many messages, of the roles that the store's embeddings name.
    """

    models: tuple[VectorModelRecord, ...]
    pending: int
    pending_messages: int = 0


# Records as HTML, for notebooks: sessions, and histories with what was said.
#
# A repr says nothing of what was said, since it gets into logs and errors. A notebook asks for
# HTML only of what somebody displays, and who displays a conversation wants to read it: so what
# was said is shown here. All of it is escaped, and long texts are cut.


MOST_CHARACTERS = 2_000
"""Of a text."""

MOST_ROWS = 200
"""Of a table; the last ones."""

_SESSION = ("id", "user_id", "status", "title", "model", "message_count", "total_tokens")
_MESSAGE = ("seq", "role", "name")


def sessions_as_html(sessions: Sequence[Any]) -> str:
    """Show sessions as a table."""
    shown = ["preview"] if any(each.preview is not None for each in sessions) else []
    names = (*_SESSION, "last_active_at", *shown)
    rows = ([_text(getattr(each, name)) for name in names] for each in sessions[-MOST_ROWS:])
    return _table(names, rows, len(sessions))


def messages_as_html(messages: Sequence[Any]) -> str:
    """Show a conversation as a table, with what was said."""
    rows = (
        [*(_text(getattr(each, name)) for name in _MESSAGE), _said(each)]
        for each in messages[-MOST_ROWS:]
    )
    return _table((*_MESSAGE, "content"), rows, len(messages))


def _said(message: Any) -> str:
    item = message.payload if message.content is None else None
    parts = (message.content, message.tool_calls, item)
    return "".join(f"<pre>{_text(part)}</pre>" for part in parts if part is not None)


def _text(value: Any) -> str:
    """Write a value so that HTML can hold it, whatever is in it."""
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, indent=1)
    text = "" if value is None else str(value)
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}… ({len(text) - MOST_CHARACTERS} more characters)"
    text = text.replace("\x00", "\ufffd").encode("utf-8", "backslashreplace").decode("utf-8")
    return escape(text)


def _table(names: Iterable[str], rows: Iterable[Sequence[str]], count: int) -> str:
    """Put cells, which are HTML, into a table."""
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    left = f"<caption>the last {MOST_ROWS} of {count}</caption>" if count > MOST_ROWS else ""
    return f"<table>{left}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
