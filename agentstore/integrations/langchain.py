"""LangChain: a chat message history.

Each LangChain message is one message of a session. Its role, its text and its calls are where
every message has them, so searches, ``messages.chat`` and ``find_by_tool`` know it; the message as
LangChain writes it, whole, is the ``payload``, and is what is read back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

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

from agentstore.errors import NotFound
from agentstore.integrations.sessions import AnyStore, of_kind
from agentstore.stores.aio import AsyncRepositories
from agentstore.stores.bound import Repositories

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
        unanswered: Literal["stub", "drop", "keep"] = "stub",
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
        store = of_kind(self.store, Repositories)
        try:
            return [*map(_message, store.messages.history(self.session_id, **self._reading))]
        except NotFound:
            return []

    async def aget_messages(self) -> list[BaseMessage]:
        """Give the messages, the oldest first; none if there is no such session."""
        if isinstance(self.store, Repositories):
            return await super().aget_messages()
        store = of_kind(self.store, AsyncRepositories)
        try:
            return [*map(_message, await store.messages.history(self.session_id, **self._reading))]
        except NotFound:
            return []

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages, all or none."""
        store = of_kind(self.store, Repositories)
        if messages:
            new = [*map(_new_message, messages)]
            store.messages.save_many(self.session_id, new, create_session=True)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages, all or none."""
        if isinstance(self.store, Repositories):
            return await super().aadd_messages(messages)
        if messages:
            store = of_kind(self.store, AsyncRepositories)
            new = [*map(_new_message, messages)]
            await store.messages.save_many(self.session_id, new, create_session=True)
        return None

    def clear(self) -> None:
        """Delete the messages; the session stays, with its logs, its usage and its state."""
        store = of_kind(self.store, Repositories)
        try:
            store.messages.clear(self.session_id)
        except NotFound:
            return

    async def aclear(self) -> None:
        """Delete the messages; the session stays, with its logs, its usage and its state."""
        if isinstance(self.store, Repositories):
            return await super().aclear()
        store = of_kind(self.store, AsyncRepositories)
        try:
            await store.messages.clear(self.session_id)
        except NotFound:
            return None
        return None


def _new_message(message: BaseMessage) -> dict[str, Any]:
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


_LONGEST_NAME = 255
"""Characters of a tool's name by which its calls can be found."""


def _call(call: Any) -> dict[str, Any]:
    name = call["name"][:_LONGEST_NAME] or "unnamed"  # the payload has it as it is
    function = {"name": name, "arguments": json.dumps(call["args"], default=str)}
    return {"id": call["id"], "type": "function", "function": function}


def _message(record: MessageRecord) -> BaseMessage:
    """Give what was added, or, of a message that others have saved, what LangChain makes of it."""
    payload = record.payload
    if isinstance(payload, dict) and "type" in payload and isinstance(payload.get("data"), dict):
        return messages_from_dict([payload])[0]
    return convert_to_messages([record.to_chat()])[0]
