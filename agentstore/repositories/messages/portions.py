"""What a history reads of each message: all of it, what the chat APIs take, or its payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sqlalchemy import case

from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.records.messages import chat_message, users
from agentstore.repositories.lines.lines import Rows
from agentstore.repositories.lines.rows import (
    Columns,
    line_columns,
    message_records,
    streamed,
)
from agentstore.values.chat.formats import Said, said_by, said_in
from agentstore.values.chat.glances import is_settled
from agentstore.values.chat.layouts import from_chat
from agentstore.values.chat.repairs import Step, part_of
from agentstore.values.states import STREAMING


class MessageLine(Protocol):
    """A message as it is read: a record, or less."""

    @property
    def seq(self) -> int:
        """See ``MessageRecord``."""

    @property
    def role(self) -> str:
        """See ``MessageRecord``."""

    @property
    def tool_calls(self) -> list[Any] | None:
        """See ``MessageRecord``."""


M = TypeVar("M", bound=MessageLine)
V = TypeVar("V")
"""What callers get of each message."""


@dataclass(frozen=True, slots=True)
class Portion(Generic[M, V]):
    """What is read of each message.

    Attributes:
        columns: What is selected.
        made: Makes of such rows what a history is a list of, in the same order.
        settled: Says at a glance that nothing has to be repaired; if not, it may be so still.
        said: Says what each of these says to the models' APIs.
        part: Makes a part of a message, as a step of a repair asks for it.
        stub: Makes what stands for the results of calls that a message makes.
        shown: Makes of a history what callers get.
        seq: Where among the columns the sequence number is.
    """

    columns: Columns
    made: Callable[[Unit, Rows], list[M]]
    settled: Callable[[Sequence[M]], bool]
    said: Callable[[Sequence[M]], list[Said | None]]
    part: Callable[[M, Step], M]
    stub: Callable[[M, dict[str, Any]], M]
    shown: Callable[[list[M]], list[V]]
    seq: int = 0


class ChatLine(NamedTuple):
    """What the chat APIs take of a message.

    Attributes:
        streaming: The id, if the message is being streamed.
        payload: It is read only if there is a layout.
    """

    seq: int
    role: str
    content: str | None
    blocks: list[Any] | None
    tool_calls: list[Any] | None
    tool_call_id: str | None
    name: str | None
    layout: list[Any] | None
    payload: Any
    streaming: str | None = None

    def to_chat(self) -> dict[str, Any]:
        """See ``MessageRecord``."""
        return chat_message(
            self.role,
            self.content if self.blocks is None else self.blocks,
            self.tool_calls,
            self.tool_call_id,
            self.name,
            self.layout,
            self.payload,
        )


class PayloadLine(NamedTuple):
    """A message's payload, and what tells which calls belong to it."""

    seq: int
    role: str
    tool_calls: list[Any] | None
    tool_call_id: str | None
    payload: Any


def _chat_columns(messages: Any) -> list[Any]:
    return [
        messages.seq,
        messages.role,
        messages.content,
        messages.blocks,
        messages.tool_calls,
        messages.tool_call_id,
        messages.name,
        messages.chat_keys,
        case((messages.chat_keys.is_not(None), messages.payload)),
        case((messages.status == STREAMING, messages.id)),
    ]


def _chat_lines(unit: Unit, rows: Rows) -> list[ChatLine]:
    lines = [*map(ChatLine._make, rows)]
    streaming = [line.streaming for line in lines if line.streaming is not None]
    if not streaming:
        return lines
    partial, final = streamed(unit, streaming)

    def as_it_is(line: ChatLine) -> ChatLine:
        if line.streaming is None or line.streaming not in partial:
            return line
        if (ended := final.get(line.streaming)) is not None:
            return _chat_line(ended.seq, {name: getattr(ended, name) for name in _OF_A_RECORD})
        return line._replace(content=partial[line.streaming].text, blocks=None)

    return [*map(as_it_is, lines)]


_OF_A_RECORD = ("role", "content", "tool_calls", "tool_call_id", "name")


def _chat_line(seq: int, message: Mapping[str, Any], layout: Any = None) -> ChatLine:
    """Make a line of the arguments with which a message is saved."""
    get, content = message.get, message.get("content")
    blocks = content if isinstance(content, list) else None
    text = None if blocks is not None else content
    answers, name = get("tool_call_id"), get("name")
    payload = None if layout is None else get("payload")
    return ChatLine(
        seq, message["role"], text, blocks, get("tool_calls"), answers, name, layout, payload
    )


def _payload_columns(messages: Any) -> list[Any]:
    return [getattr(messages, name) for name in PayloadLine._fields]


def _payload_lines(unit: Unit, rows: Rows) -> list[PayloadLine]:
    return [*map(PayloadLine._make, rows)]


def _bare_payload(messages: Any) -> list[Any]:
    return [messages.payload]


def _payloads(unit: Unit, rows: Rows) -> list[Any]:
    return [PayloadLine(0, "", None, None, payload) for (payload,) in rows]


def _said_by_records(records: Sequence[MessageRecord]) -> list[Said | None]:
    return [
        said_by(m.role, m.content, m.tool_calls, m.tool_call_id, m.name, m.payload) for m in records
    ]


def _said_by_chat(lines: Sequence[ChatLine]) -> list[Said | None]:
    return [
        said_by(m.role, m.blocks, m.tool_calls, m.tool_call_id, m.name, m.payload) for m in lines
    ]


def _said_by_payload(line: PayloadLine) -> Said | None:
    said = said_in(line.payload) if isinstance(line.payload, dict) else None
    if said is None:
        said = said_by(line.role, None, line.tool_calls, line.tool_call_id, None, None)
        if said is not None:  # in a format of the application's: no stub can be made in it
            said = said._replace(calls=tuple(c._replace(required=False) for c in said.calls))
    return said


def _is_plain(line: PayloadLine) -> bool:
    """Say at a glance that a message is a role and a text, as most are: it calls and answers
    nothing.
    """
    _, _, made, answered, payload = line
    return (
        made is None
        and answered is None
        and type(payload) is dict
        and len(payload) == 2
        and type(payload.get("content")) is str
        and "role" in payload
    )


def _part_of_record(record: MessageRecord, step: Step) -> MessageRecord:
    layout = record._layout if step.rest or record.role != "user" else users(record._layout)
    if isinstance(record.content, list):
        return replace(record, content=part_of(record.content, step), _layout=layout)
    return replace(record, payload=_part_of_payload(record.payload, step), _layout=layout)


def _part_of_chat(line: ChatLine, step: Step) -> ChatLine:
    return line if line.blocks is None else line._replace(blocks=part_of(line.blocks, step))


def _part_of_payload(payload: Any, step: Step) -> Any:
    blocks = payload.get("content") if isinstance(payload, dict) else None
    return {**payload, "content": part_of(blocks, step)} if isinstance(blocks, list) else payload


def _stub_record(calling: MessageRecord, stub: dict[str, Any]) -> MessageRecord:
    made = from_chat(stub)
    return replace(
        calling,
        id="",
        role=made["role"],
        content=made.get("content"),
        tool_calls=None,
        tool_call_id=made.get("tool_call_id"),
        name=made.get("name"),
        token_count=_STUB_TOKENS,
        cost=Decimal(0),
        metadata=None,
        payload=made.get("payload"),
        external_id=None,
        status="interrupted",
        _layout=users(None) if made["role"] == "user" else made.layout,
    )


def _stub_chat(calling: ChatLine, stub: dict[str, Any]) -> ChatLine:
    made = from_chat(stub)
    return _chat_line(calling.seq, made, made.layout)


_STUB_TOKENS = 16
"""What a stub counts for where tokens are counted by what was stored: a few more than it has."""

RECORDS: Portion[MessageRecord, MessageRecord] = Portion(
    line_columns,
    message_records,
    lambda records: is_settled(records, [m.content for m in records]),
    _said_by_records,
    _part_of_record,
    _stub_record,
    lambda records: records,
    seq=2,
)
CHAT: Portion[ChatLine, dict[str, Any]] = Portion(
    _chat_columns,
    _chat_lines,
    lambda lines: is_settled(lines, [m.blocks for m in lines]),
    _said_by_chat,
    _part_of_chat,
    _stub_chat,
    lambda lines: [line.to_chat() for line in lines],
)
PAYLOADS: Portion[PayloadLine, Any] = Portion(
    _payload_columns,
    _payload_lines,
    lambda lines: all(_is_plain(line) or _said_by_payload(line) is None for line in lines),
    lambda lines: [*map(_said_by_payload, lines)],
    lambda line, step: line._replace(payload=_part_of_payload(line.payload, step)),
    lambda calling, stub: PayloadLine(calling.seq, "tool", None, None, stub),
    lambda lines: [line.payload for line in lines],
)
BARE_PAYLOADS: Portion[PayloadLine, Any] = replace(PAYLOADS, columns=_bare_payload, made=_payloads)
"""Where no call has to be looked for."""
