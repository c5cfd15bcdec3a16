"""What a history reads of each message: all of it, what the chat APIs take, or its payload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sqlalchemy import case

from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.records.messages import chat_message
from agentstore.repositories.lines.lines import Rows
from agentstore.repositories.lines.rows import (
    Columns,
    line_columns,
    message_records,
    streamed,
)
from agentstore.values.states import STREAMING


class Answering(Protocol):
    """What tells which tool calls a message makes, or which one it answers."""

    @property
    def seq(self) -> int:
        """See ``MessageRecord``."""

    @property
    def role(self) -> str:
        """See ``MessageRecord``."""

    @property
    def tool_calls(self) -> list[Any] | None:
        """See ``MessageRecord``."""

    @property
    def tool_call_id(self) -> str | None:
        """See ``MessageRecord``."""


M = TypeVar("M", bound=Answering)


@dataclass(frozen=True, slots=True)
class Portion(Generic[M]):
    """What is read of each message.

    Attributes:
        columns: What is selected.
        made: Makes of such rows what a history is a list of, in the same order.
    """

    columns: Columns
    made: Callable[[Unit, Rows], list[M]]


class ChatLine(NamedTuple):
    """What the chat APIs take of a message.

    Attributes:
        streaming: The id, if the message is being streamed.
        payload: It is read only if there are ``chat_keys``.
    """

    seq: int
    role: str
    content: str | None
    blocks: list[Any] | None
    tool_calls: list[Any] | None
    tool_call_id: str | None
    name: str | None
    chat_keys: list[str] | None
    payload: Any
    streaming: str | None

    def to_chat(self) -> dict[str, Any]:
        """See ``MessageRecord``."""
        return chat_message(
            self.role,
            self.content if self.blocks is None else self.blocks,
            self.tool_calls,
            self.tool_call_id,
            self.name,
            self.chat_keys,
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


def _chat_lines(unit: Unit, rows: Rows) -> list[ChatLine | MessageRecord]:
    lines = [*map(ChatLine._make, rows)]
    streaming = [line.streaming for line in lines if line.streaming is not None]
    if not streaming:
        return [*lines]
    partial, final = streamed(unit, streaming)

    def as_it_is(line: ChatLine) -> ChatLine | MessageRecord:
        if line.streaming is None or line.streaming not in partial:
            return line
        if line.streaming in final:
            return final[line.streaming]
        return line._replace(content=partial[line.streaming].text, blocks=None)

    return [*map(as_it_is, lines)]


def _payload_columns(messages: Any) -> list[Any]:
    return [getattr(messages, name) for name in PayloadLine._fields]


def _payload_lines(unit: Unit, rows: Rows) -> list[PayloadLine]:
    return [*map(PayloadLine._make, rows)]


def _bare_payload(messages: Any) -> list[Any]:
    return [messages.payload]


def _payloads(unit: Unit, rows: Rows) -> list[Any]:
    return [PayloadLine(0, "", None, None, payload) for (payload,) in rows]


RECORDS = Portion(line_columns, message_records)
CHAT = Portion(_chat_columns, _chat_lines)
PAYLOADS = Portion(_payload_columns, _payload_lines)
BARE_PAYLOADS: Portion[PayloadLine] = Portion(_bare_payload, _payloads)
"""Where no call has to be looked for."""
