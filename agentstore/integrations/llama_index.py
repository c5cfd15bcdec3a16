"""LlamaIndex: a chat store.

A key is a session, and each chat message one message of it. Its role, its text and its calls are
where every message has them; the message as LlamaIndex writes it, whole, is the ``payload``, and is
what is read back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.storage.chat_store.base import BaseChatStore

from agentstore.aio import AsyncRepositories
from agentstore.errors import NotFound
from agentstore.integrations import AnyStore, of_kind
from agentstore.transactions import Repositories, Transaction

if TYPE_CHECKING:
    from agentstore.records import MessageRecord

T = TypeVar("T")

_ROLES = {"function": "tool", "chatbot": "assistant", "model": "assistant"}
"""Roles that agentstore calls otherwise; ``payload`` keeps the name."""


class AgentStoreChatStore(BaseChatStore):
    """The messages of sessions, by key.

    A session is made when something is first added. With a ``Store`` the asynchronous methods run
    in a thread. With an ``AsyncStore`` the synchronous ones can be called from any thread but that
    of its event loop, as LlamaIndex's memories do; they run in that loop.

    Messages are read as they were added, because ``delete_message`` counts them: nothing is
    repaired.
    """

    _store: Any = PrivateAttr()
    _loop: asyncio.AbstractEventLoop | None = PrivateAttr(default=None)

    def __init__(self, store: AnyStore) -> None:
        """Read and write a store's sessions.

        Args:
            store: The store, or ``store.scoped(user_id)``. With an ``AsyncStore`` make this object
                in its event loop.
        """
        super().__init__()
        self._store = store
        if isinstance(store, AsyncRepositories):
            self._loop = _running()

    @classmethod
    def class_name(cls) -> str:
        """Give the name by which LlamaIndex knows the class."""
        return "AgentStoreChatStore"

    def set_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Replace the messages of a key, in one transaction."""
        if self._is_elsewhere():
            return self._there(self.aset_messages(key, messages))
        self._run(partial(_set, key, [*map(_new_message, messages)]))
        return None

    async def aset_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Replace the messages of a key, in one transaction."""
        await self._arun(partial(_set, key, [*map(_new_message, messages)]))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Give the messages of a key, the oldest first; none if there is no such key."""
        if self._is_elsewhere():
            return self._there(self.aget_messages(key))
        store = of_kind(self._store, Repositories)
        try:
            return [*map(_message, store.messages.history(key, None, unanswered="keep"))]
        except NotFound:
            return []

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Give the messages of a key, the oldest first; none if there is no such key."""
        if isinstance(self._store, Repositories):
            return list(await super().aget_messages(key))
        store = of_kind(self._store, AsyncRepositories)
        try:
            return [*map(_message, await store.messages.history(key, None, unanswered="keep"))]
        except NotFound:
            return []

    def add_message(self, key: str, message: ChatMessage) -> None:
        """Add a message."""
        if self._is_elsewhere():
            return self._there(self.async_add_message(key, message))
        store = of_kind(self._store, Repositories)
        store.messages.save(key, **_new_message(message), create_session=True)
        return None

    async def async_add_message(self, key: str, message: ChatMessage) -> None:
        """Add a message."""
        if isinstance(self._store, Repositories):
            await super().async_add_message(key, message)
        else:
            store = of_kind(self._store, AsyncRepositories)
            await store.messages.save(key, **_new_message(message), create_session=True)

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete the messages of a key; give what they were, or None if there is no such key."""
        if self._is_elsewhere():
            return self._there(self.adelete_messages(key))
        return self._run(partial(_delete_all, key))

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete the messages of a key; give what they were, or None if there is no such key."""
        return await self._arun(partial(_delete_all, key))

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at this place; give what it was, or None if there is none."""
        if self._is_elsewhere():
            return self._there(self.adelete_message(key, idx))
        return self._run(partial(_delete, key, idx))

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at this place; give what it was, or None if there is none."""
        return await self._arun(partial(_delete, key, idx))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message; give what it was, or None if there is none."""
        if self._is_elsewhere():
            return self._there(self.adelete_last_message(key))
        store = of_kind(self._store, Repositories)
        try:
            popped = store.messages.pop(key)
        except NotFound:
            return None
        return None if popped is None else _message(popped)

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message; give what it was, or None if there is none."""
        if isinstance(self._store, Repositories):
            return await super().adelete_last_message(key)
        store = of_kind(self._store, AsyncRepositories)
        try:
            popped = await store.messages.pop(key)
        except NotFound:
            return None
        return None if popped is None else _message(popped)

    def get_keys(self) -> list[str]:
        """Give the keys: the sessions that have messages, in the order of their creation."""
        if self._is_elsewhere():
            return self._there(self.aget_keys())
        sessions = of_kind(self._store, Repositories).sessions.iter_walk()
        return [session.id for session in sessions if session.message_count]

    async def aget_keys(self) -> list[str]:
        """Give the keys: the sessions that have messages, in the order of their creation."""
        if isinstance(self._store, Repositories):
            return await super().aget_keys()
        sessions = of_kind(self._store, AsyncRepositories).sessions.iter_walk()
        return [session.id async for session in sessions if session.message_count]

    def _is_elsewhere(self) -> bool:
        """Say whether the store's event loop runs, and in another thread than this one."""
        loop = self._loop
        return loop is not None and loop.is_running() and loop is not _running()

    def _there(self, call: Coroutine[Any, Any, T]) -> T:
        """Make an asynchronous call in the store's event loop, and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _run(self, work: Callable[[Transaction], T]) -> T:
        of_kind(self._store, Repositories)
        done: T = self._store.run(work)
        return done

    async def _arun(self, work: Callable[[Transaction], T]) -> T:
        if isinstance(self._store, Repositories):
            return await asyncio.to_thread(self._run, work)
        of_kind(self._store, AsyncRepositories)
        done: T = await self._store.run(work)
        return done


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _set(key: str, new: list[dict[str, Any]], tx: Transaction) -> None:
    tx.sessions.ensure(key)
    tx.messages.clear(key)
    tx.messages.save_many(key, new)


def _delete_all(key: str, tx: Transaction) -> list[ChatMessage] | None:
    if tx.sessions.find(key) is None:
        return None
    gone = tx.messages.history(key, None, unanswered="keep")
    tx.messages.clear(key)
    return [*map(_message, gone)]


def _delete(key: str, idx: int, tx: Transaction) -> ChatMessage | None:
    if tx.sessions.find(key) is None:
        return None
    there = tx.messages.history(key, None, unanswered="keep")
    if not -len(there) <= idx < len(there):
        return None
    tx.messages.delete([there[idx].id], session_id=key)
    return _message(there[idx])


def _new_message(message: ChatMessage) -> dict[str, Any]:
    role = message.role.value
    call_id = message.additional_kwargs.get("tool_call_id")
    return {
        "role": _ROLES.get(role, role),
        "content": message.content,
        "tool_calls": [*map(_call, _calls(message))] or None,
        "tool_call_id": call_id if isinstance(call_id, str) else None,
        "payload": message.model_dump(mode="json"),
    }


def _calls(message: ChatMessage) -> list[ToolCallBlock]:
    return [block for block in message.blocks if isinstance(block, ToolCallBlock)]


def _call(call: ToolCallBlock) -> dict[str, Any]:
    arguments = call.tool_kwargs
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    function = {"name": call.tool_name, "arguments": written}
    return {"id": call.tool_call_id, "type": "function", "function": function}


def _message(record: MessageRecord) -> ChatMessage:
    """Give what was added, or a message of what others have saved."""
    payload = record.payload
    if isinstance(payload, dict) and "blocks" in payload:
        return ChatMessage.model_validate(payload)
    said = record.content if isinstance(record.content, list) else [{"text": record.content}]
    texts = [block["text"] for block in said if isinstance(block, dict) and "text" in block]
    more = {"tool_calls": record.tool_calls, "tool_call_id": record.tool_call_id}
    return ChatMessage(
        role=record.role,
        blocks=[TextBlock(text=text) for text in texts if isinstance(text, str)],
        additional_kwargs={name: value for name, value in more.items() if value is not None},
    )
