"""LlamaIndex: the chat store of its older memories, and that of ``Memory``.

A key is a session, and each chat message one message of it. Its role, its text and its calls are
where every message has them; the message as LlamaIndex writes it, whole, is the ``payload``, and is
what is read back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus

from agentstore.aio import AsyncRepositories
from agentstore.errors import NotFound
from agentstore.integrations import (
    AnyStore,
    Calls,
    T,
    history_of,
    of_kind,
    reading_payloads,
    require_message,
    run,
    run_async,
    settled,
)
from agentstore.transactions import Repositories, Transaction

if TYPE_CHECKING:
    from agentstore.records import MessageRecord

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
        self._run(_done(partial(_set, key, [*map(_new_message, messages)])))

    async def aset_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Replace the messages of a key, in one transaction."""
        await self._arun(_done(partial(_set, key, [*map(_new_message, messages)])))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Give the messages of a key, the oldest first; none if there is no such key."""
        return self._run(_read(key))

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Give the messages of a key, the oldest first; none if there is no such key."""
        return await self._arun(_read(key))

    def add_message(self, key: str, message: ChatMessage) -> None:
        """Add a message."""
        self._run(_add(key, message))

    async def async_add_message(self, key: str, message: ChatMessage) -> None:
        """Add a message."""
        await self._arun(_add(key, message))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete the messages of a key; give what they were, or None if there is no such key."""
        return self._run(_done(partial(_delete_all, key)))

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete the messages of a key; give what they were, or None if there is no such key."""
        return await self._arun(_done(partial(_delete_all, key)))

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at this place; give what it was, or None if there is none."""
        return self._run(_done(partial(_delete, key, idx)))

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at this place; give what it was, or None if there is none."""
        return await self._arun(_done(partial(_delete, key, idx)))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message; give what it was, or None if there is none."""
        return self._run(_pop(key))

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message; give what it was, or None if there is none."""
        return await self._arun(_pop(key))

    def get_keys(self) -> list[str]:
        """Give the keys: the sessions that have messages, in the order of their creation."""
        return self._run(_keys())

    async def aget_keys(self) -> list[str]:
        """Give the keys: the sessions that have messages, in the order of their creation."""
        return await self._arun(_keys())

    def _run(self, calls: Calls[T]) -> T:
        loop = self._loop  # of an asynchronous store, perhaps in another thread than this one
        if loop is not None and loop.is_running() and loop is not _running():
            return asyncio.run_coroutine_threadsafe(self._arun(calls), loop).result()
        return run(calls, of_kind(self._store, Repositories))

    async def _arun(self, calls: Calls[T]) -> T:
        if isinstance(self._store, Repositories):
            return await settled(asyncio.to_thread(self._run, calls))
        return await run_async(calls, of_kind(self._store, AsyncRepositories))


class AgentStoreMemoryStore(AsyncDBChatStore):
    """The messages of ``Memory``, by its session id: pass it as ``chat_store``.

    A message that the memory has archived has a mark, and is still a message of the session. A
    write that was begun ends before a cancellation of its caller goes on. Messages are read as they
    were added: nothing is repaired.
    """

    _store: Any = PrivateAttr()

    def __init__(self, store: AnyStore) -> None:
        """Read and write a store's sessions.

        Args:
            store: The store, or ``store.scoped(user_id)``. An ``AsyncStore`` can be used in its
                event loop alone; the memory's synchronous methods need a ``Store``.
        """
        super().__init__()
        self._store = store

    @classmethod
    def class_name(cls) -> str:
        """Give the name by which LlamaIndex knows the class."""
        return "AgentStoreMemoryStore"

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Give messages of a session, the oldest first; none if there is no such session.

        Args:
            key: The session.
            status: Only the active ones, or the archived ones; None for both.
            limit: How many at most, the oldest.
            offset: How many of the oldest to leave out.
        """
        found = await self._run(partial(_with_status, key, status))
        begin = offset or 0
        end = None if limit is None else begin + limit
        return [*map(_message, found[begin:end])]

    async def count_messages(
        self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE
    ) -> int:
        """Count messages of a session."""

        def count(tx: Transaction) -> int:
            return tx.messages.size(key, **_marks(status)) if tx.sessions.find(key) else 0

        return await self._run(count)

    async def add_message(
        self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Add a message; makes the session if it does not exist."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Add messages, all or none."""
        new = _with_marks(messages, status)

        def add(tx: Transaction) -> None:
            tx.messages.save_many(key, new, create_session=True)

        await self._run(add)

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace the messages of a session, the archived ones too, in one transaction."""
        await self._run(partial(_set, key, _with_marks(messages, status)))

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message with this number, its ``seq``; give what it was, or None."""

        def delete(tx: Transaction) -> ChatMessage | None:
            found = [each for each in _with_status(key, None, tx) if each.seq == idx]
            return _taken(tx, key, found)[0] if found else None

        return await self._run(delete)

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete the messages of a session, or only those with a status; the session stays."""

        def delete(tx: Transaction) -> None:
            if status is not None:
                _taken(tx, key, _with_status(key, status, tx))
            elif tx.sessions.find(key) is not None:
                tx.messages.clear(key)

        await self._run(delete)

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest active messages of a session; give what they were."""
        active = partial(_with_status, key, MessageStatus.ACTIVE)
        return await self._run(lambda tx: _taken(tx, key, active(tx)[:n]))

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest active messages of a session; give them."""

        def archive(tx: Transaction) -> list[ChatMessage]:
            oldest = _with_status(key, MessageStatus.ACTIVE, tx)[:n]
            for begin in range(0, len(oldest), _AT_ONCE):
                ids = [each.id for each in oldest[begin : begin + _AT_ONCE]]
                tx.marks.update(key, _ARCHIVED, ids=ids)
            return [*map(_message, oldest)]

        return await self._run(archive)

    async def get_keys(self) -> list[str]:
        """Give the sessions that have messages, in the order of their creation."""
        return await self._run(_with_messages)

    async def _run(self, work: Callable[[Transaction], T]) -> T:
        run = self._store.run
        call = asyncio.to_thread(run, work) if isinstance(self._store, Repositories) else run(work)
        done: T = await settled(call)
        return done


_ARCHIVED = MessageStatus.ARCHIVED.value
"""The mark of archived messages."""

_AT_ONCE = 5_000
"""Ids that ``messages.delete`` and ``marks.update`` take."""


def _marks(status: MessageStatus | None) -> dict[str, Any]:
    if status is None:
        return {}
    return {"mark" if status is MessageStatus.ARCHIVED else "exclude_mark": _ARCHIVED}


def _with_marks(messages: Sequence[ChatMessage], status: MessageStatus) -> list[dict[str, Any]]:
    marks = [_ARCHIVED] if status is MessageStatus.ARCHIVED else []
    return [{**_new_message(message), "marks": marks} for message in messages]


def _with_status(key: str, status: MessageStatus | None, tx: Transaction) -> list[MessageRecord]:
    if tx.sessions.find(key) is None:
        return []
    return tx.messages.history(key, None, unanswered="keep", **_marks(status))


def _taken(tx: Transaction, key: str, going: Sequence[MessageRecord]) -> list[ChatMessage]:
    """Delete messages; give what they were."""
    for begin in range(0, len(going), _AT_ONCE):
        ids = [each.id for each in going[begin : begin + _AT_ONCE]]
        tx.messages.delete(ids, session_id=key)
    return [*map(_message, going)]


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _done(work: Callable[[Transaction], T]) -> Calls[T]:
    """Do something in one transaction."""
    done: T = yield lambda store: store.run(work)
    return done


def _read(key: str) -> Calls[list[ChatMessage]]:
    return [*map(_message, (yield from history_of(key, {"limit": None, "unanswered": "keep"})))]


def _add(key: str, message: ChatMessage) -> Calls[None]:
    new = _new_message(message)
    yield lambda store: store.messages.save(key, **new, create_session=True)


def _pop(key: str) -> Calls[ChatMessage | None]:
    try:
        popped = yield lambda store: store.messages.pop(key)
    except NotFound:
        return None
    return None if popped is None else _message(popped)


def _keys() -> Calls[list[str]]:
    found: list[str] = yield lambda store: store.read(_with_messages)
    return found


def _with_messages(tx: Transaction) -> list[str]:
    return [each.id for each in tx.sessions.iter_walk() if each.message_count]


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
    require_message(message, ChatMessage)
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
        with reading_payloads():
            return ChatMessage.model_validate(payload)
    said = record.content if isinstance(record.content, list) else [{"text": record.content}]
    texts = [block["text"] for block in said if isinstance(block, dict) and "text" in block]
    more = {"tool_calls": record.tool_calls, "tool_call_id": record.tool_call_id}
    return ChatMessage(
        role=record.role,
        blocks=[TextBlock(text=text) for text in texts if isinstance(text, str)],
        additional_kwargs={name: value for name, value in more.items() if value is not None},
    )
