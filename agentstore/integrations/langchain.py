"""LangChain: a chat message history.

Each LangChain message is one message of a session. Its role, its text and its calls are where
every message has them, so searches, ``messages.chat`` and ``find_by_tool`` know it; the message as
LangChain writes it, whole, is the ``payload``, and is what is read back.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
    message_to_dict,
    messages_from_dict,
)

from agentstore.aio import AsyncRepositories
from agentstore.errors import InvalidInput, InvalidJson, NotFound
from agentstore.integrations import (
    AnyStore,
    Calls,
    T,
    history_of,
    of_kind,
    require_message,
    run,
    run_async,
    settled,
)
from agentstore.transactions import Repositories

if TYPE_CHECKING:
    from agentstore.records import MessageRecord

_ROLES: dict[type[BaseMessage], str] = {
    HumanMessage: "user",
    AIMessage: "assistant",
    SystemMessage: "system",
    ToolMessage: "tool",
    FunctionMessage: "tool",
}


class AgentStoreChatMessageHistory(BaseChatMessageHistory):
    """The messages of a session, as LangChain has them.

    The session is made when something is first added. With a ``Store`` the asynchronous methods
    run in a thread; with an ``AsyncStore`` only these can be used. An object may outlive its store
    and its process: it keeps nothing but the id.
    """

    def __init__(
        self,
        session_id: str,
        store: AnyStore,
        *,
        limit: int | None = None,
        max_tokens: int | None = None,
        token_counter: Callable[[BaseMessage], int] | None = None,
        unanswered: Literal["placeholder", "drop", "keep"] = "placeholder",
    ) -> None:
        """Read and write a session's messages.

        Args:
            session_id: The session; the application's own id.
            store: The store, or ``store.scoped(user_id)``.
            limit: How many messages to read, the last ones; see ``messages.history``, as for the
                others: a cut never separates a tool's result from its call.
            max_tokens: Read the newest turns that have so many tokens together.
            token_counter: Counts the tokens of a LangChain message.
            unanswered: What becomes of a call that has no result; ``keep`` reads what was added
                and nothing else.
        """
        super().__init__()
        self.session_id = session_id
        self.store = store
        self._reading: dict[str, Any] = {
            "limit": limit,
            "max_tokens": max_tokens,
            "unanswered": unanswered,
        }
        if token_counter is not None:
            self._reading["token_counter"] = lambda record: token_counter(_message(record))

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The messages, the oldest first; none if there is no such session."""
        return self._run(self._read())

    async def aget_messages(self) -> list[BaseMessage]:
        """Give the messages, the oldest first; none if there is no such session."""
        return await self._arun(self._read())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages, all or none.

        What is no JSON, such as bytes, dates and NaN, comes back equal. An object of a class of
        its own is replaced by a note of its type where no model reads it: in an artifact, in
        metadata.

        Raises:
            InvalidJson: There is such an object in the content or in a call's arguments.
        """
        self._run(self._add(messages))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages, all or none."""
        await self._arun(self._add(messages))

    def clear(self) -> None:
        """Delete the messages; the session stays, with its logs, its usage and its state."""
        self._run(self._clear())

    async def aclear(self) -> None:
        """Delete the messages; the session stays, with its logs, its usage and its state."""
        await self._arun(self._clear())

    def _run(self, calls: Calls[T]) -> T:
        return run(calls, of_kind(self.store, Repositories))

    async def _arun(self, calls: Calls[T]) -> T:
        if isinstance(self.store, Repositories):
            return await settled(asyncio.to_thread(self._run, calls))
        return await run_async(calls, of_kind(self.store, AsyncRepositories))

    def _read(self) -> Calls[list[BaseMessage]]:
        return [*map(_message, (yield from history_of(self.session_id, self._reading)))]

    def _add(self, messages: Sequence[BaseMessage]) -> Calls[None]:
        if not messages:
            return
        new = [*map(_new_message, messages)]

        def save(store: Any) -> Any:
            return store.messages.save_many(self.session_id, new, create_session=True)

        try:
            yield save
        except InvalidJson:  # raised before anything was sent
            new = [*map(_marked_message, new)]
            yield save

    def _clear(self) -> Calls[None]:
        with suppress(NotFound):
            yield lambda store: store.messages.clear(self.session_id)


def _new_message(message: BaseMessage) -> dict[str, Any]:
    require_message(message, BaseMessage)
    kind = next((kind for kind in _ROLES if isinstance(message, kind)), None)
    role = "assistant" if kind is None else _ROLES[kind]
    if isinstance(message, ChatMessage) and message.role in (*_ROLES.values(), "developer"):
        role = message.role
    new: dict[str, Any] = {
        "role": role,
        "content": message.content,
        "name": message.name,
        "payload": message_to_dict(message),
    }
    if isinstance(message, ToolMessage):
        new["tool_call_id"] = message.tool_call_id
    elif isinstance(message, AIMessage) and message.tool_calls:
        new["tool_calls"] = [_call(call) for call in message.tool_calls]
    return new


def _call(call: Any) -> dict[str, Any]:
    try:
        arguments = json.dumps(call["args"], default=str)
    except (TypeError, ValueError, RecursionError):
        arguments = json.dumps(_marked(call["args"], strict=False))
    function = {"name": call["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}


def _marked_message(new: dict[str, Any]) -> dict[str, Any]:
    """Give a message in which what JSON cannot say is marked; only such a one is looked through."""
    said = new["payload"]["data"]
    data = {
        key: _marked(value, strict=key in _READ) if type(key) is str else value
        for key, value in said.items()
    }
    content = new["content"]
    return {
        **new,
        "content": content if isinstance(content, str) else data["content"],
        "payload": {"type": new["payload"]["type"], "data": data, _MARK: True},
    }


_READ = frozenset({"content", "tool_calls", "name", "tool_call_id"})
"""What models read. Nothing is left out of it."""

_MARK = "__agentstore__"

_DEEPEST = 180
"""What lies deeper is left out: JSON of 200 levels can be stored, and marks take some."""

_WRITTEN: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda v: b64encode(v).decode(), b64decode),
    bytearray: ("bytearray", lambda v: b64encode(v).decode(), lambda v: bytearray(b64decode(v))),
    float: ("float", repr, float),
    int: ("int", hex, lambda v: int(v, 16)),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: (
        "timedelta",
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: timedelta(*v),
    ),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
    complex: ("complex", repr, complex),
}
"""Types that come back equal: the name, how it is written, how it is read."""

_GATHERED: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}

_READERS: dict[str, Callable[[Any], Any]] = {
    **{name: read for name, _, read in _WRITTEN.values()},
    **{name: kind for kind, name in _GATHERED.items()},
    "dict": dict,
}


def _marked(value: Any, *, strict: bool, depth: int = 0) -> Any:
    """Mark what JSON cannot say; what cannot be written is left as it is if ``strict``."""
    if depth > _DEEPEST:
        return value if strict else {_MARK: "not stored", "type": "nested too deeply"}

    def inner(each: Any) -> Any:
        return _marked(each, strict=strict, depth=depth + 3)

    kind = type(value)
    if (
        value is None
        or isinstance(value, str | bool)
        or (kind is float and isfinite(value))
        or (isinstance(value, int) and value.bit_length() < _MANY_BITS)
    ):
        return value
    if isinstance(value, list):
        return [inner(each) for each in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and _MARK not in value:
            return {key: inner(each) for key, each in value.items()}
        return {_MARK: "dict", "value": [[inner(k), inner(v)] for k, v in value.items()]}
    if kind in _GATHERED:
        return {_MARK: _GATHERED[kind], "value": [inner(each) for each in value]}
    if kind in _WRITTEN:
        name, write, _ = _WRITTEN[kind]
        return {_MARK: name, "value": write(value)}
    if strict:
        return value
    return {_MARK: "not stored", "type": f"{kind.__module__}.{kind.__qualname__}"}


_MANY_BITS = 14_000
"""Python writes whole numbers of up to 4,300 digits."""


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(each) for each in value]
    if not isinstance(value, dict):
        return value
    read = _READERS.get(value[_MARK]) if isinstance(value.get(_MARK), str) else None
    if read is not None and "value" in value:
        return read(_unmarked(value["value"]))
    return {key: _unmarked(each) for key, each in value.items()}


def _message(record: MessageRecord) -> BaseMessage:
    """Give what was added, or, of a message that others have saved, what LangChain makes of it."""
    payload = record.payload
    if isinstance(payload, dict) and "type" in payload and isinstance(payload.get("data"), dict):
        if payload.get(_MARK) is True:
            payload = {"type": payload["type"], "data": _unmarked(payload["data"])}
        return messages_from_dict([payload])[0]
    chat = record.to_chat()
    made = [*map(_made_call, chat.pop("tool_calls", None) or ())]
    call_id = {"tool_call_id": ""} if chat.get("role") == "tool" else {}
    try:
        message = convert_to_messages([call_id | chat])[0]
    except (KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"This session holds an item that LangChain cannot read ({type(error).__name__}). "
            "Use a session of its own for the history."
        ) from None
    if isinstance(message, AIMessage):
        message.tool_calls = [call for call in made if call["type"] == "tool_call"]
        message.invalid_tool_calls = [call for call in made if call["type"] != "tool_call"]
    return message


def _made_call(call: dict[str, Any]) -> Any:
    """Make a call of one that others have saved; an invalid one if its arguments are no object."""
    said = call["function"] if isinstance(call.get("function"), dict) else call
    args = said.get("arguments", said.get("args", said.get("input")))
    name, id = (
        each if isinstance(each, str) else None for each in (said.get("name"), call.get("id"))
    )
    text = args if isinstance(args, str) else None
    with suppress(ValueError, RecursionError):
        args = args if text is None else json.loads(text, strict=False)
    if name is not None and isinstance(args, dict):
        return {"name": name, "args": args, "id": id, "type": "tool_call"}
    return {"name": name, "args": text, "id": id, "error": None, "type": "invalid_tool_call"}
