"""Microsoft's Agent Framework: histories of agents, and checkpoints of workflows.

A session of the framework's is a session, and each message one message of it. The message as the
framework writes it, whole, is the ``payload``, and is what is read back; its text, its calls and
their results are the content. A workflow is a thread of checkpoints, whose step is the checkpoint's
time in microseconds: the framework's latest is the one that was taken last, in whichever run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from agent_framework import HistoryProvider, Message, WorkflowCheckpoint
from agent_framework._workflows._checkpoint_encoding import (
    decode_checkpoint_value,
    encode_checkpoint_value,
)
from agent_framework.exceptions import WorkflowCheckpointException

from agentstore.aio import AsyncRepositories, AsyncScopedStore, AsyncStore
from agentstore.errors import InvalidInput, InvalidJson, NotFound
from agentstore.integrations import key_of, of_kind, settled, with_user

if TYPE_CHECKING:
    from agent_framework import AgentResponse, AgentSession, SessionContext

    from agentstore.records import CheckpointRecord, MessageRecord
    from agentstore.transactions import Transaction

AnyScope = AsyncStore | AsyncScopedStore

_ROLES = {"user", "assistant", "system", "tool", "developer"}
_USED: ContextVar[dict[str, Any] | None] = ContextVar("used", default=None)
"""What the run that is being saved has used; the framework's hook does not pass it on."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AgentStoreHistoryProvider(HistoryProvider):
    """The histories of an agent's sessions, in an ``AsyncStore``: one of its context providers.

    A session is made with its first messages. Whose it is says ``user_id`` in the provider's part
    of the session's state, ``session.state[provider.source_id]``; else the store's scope, or the
    argument. It is then in the user's scope alone, and other users may have one of the same id.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "agentstore"

    def __init__(
        self,
        store: AnyScope,
        *,
        source_id: str = DEFAULT_SOURCE_ID,
        user_id: str | None = None,
        limit: int | None = None,
        skip_excluded: bool = False,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
    ) -> None:
        """Read and write a store's sessions.

        Args:
            store: An ``AsyncStore``, or ``store.scoped(user_id)``.
            source_id: The provider's name in the agent. Each name but the default one has histories
                of its own, so that an agent may have several providers on one store.
            user_id: The owner of sessions whose state names no user; is made if missing.
            limit: How many messages to load, the last ones; a cut never separates a tool's result
                from its call.
            skip_excluded: Whether to leave out the messages that a compaction has excluded.
            load_messages: The framework's, as the others: whether the model sees the history.
            store_inputs: Whether to store what the agent was asked.
            store_context_messages: Whether to store what other providers added.
            store_context_from: Only what these added, by their ``source_id``.
            store_outputs: Whether to store what the agent answered.
        """
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        of_kind(store, AsyncRepositories)
        self.store = store
        self.user_id = user_id
        self.limit = limit
        self.skip_excluded = skip_excluded

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """Give the messages, the oldest first; none if there is no such session."""
        store, _, key = self._place(session_id, state)
        try:
            found = await store.messages.history(key, self.limit, unanswered="keep")
        except NotFound:
            return []
        messages = [*map(_message, found)]
        if self.skip_excluded:
            return [each for each in messages if not each.additional_properties.get("_excluded")]
        return messages

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Append messages, all or none; a write that was begun ends before a cancellation goes on.

        Args:
            session_id: The session; None is one for all calls that name none.
            messages: The messages.
            state: The provider's part of the session's state, which may name the user.
            idempotency_key: Makes a repeated call a no-op.
            **kwargs: Ignored.
        """
        if not messages:
            return
        store, user_id, key = self._place(session_id, state)
        written = [message.to_dict() for message in messages]
        options: dict[str, Any] = {
            "idempotency_key": idempotency_key,
            "create_session": {"user_id": user_id},
        }
        used = _USED.get()

        async def save(new: list[dict[str, Any]]) -> None:
            def save_and_record(tx: Transaction) -> None:
                tx.messages.save_many(key, new, **options)
                with suppress(InvalidInput):  # counts that are none: the messages are what matters
                    tx.usage.record(key, **used or {})

            if used is None:
                await store.messages.save_many(key, new, **options)
            else:
                await store.run(save_and_record)

        async def save_all() -> None:
            try:
                await save([*map(_new_message, written)])
            except InvalidJson:  # NaN, or infinity; raised before anything was sent
                await save([*map(_new_message_as_text, written)])

        await settled(with_user(self.store, user_id, save_all))

    async def after_run(
        self,
        *,
        agent: Any,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Save what was said, with what the models used for it, in one transaction.

        What they used is recorded by a provider that loads messages, not by one that only stores.
        """
        used = _usage(context.response) if self.load_messages and context.response else None
        before = _USED.set(used)
        try:
            await super().after_run(agent=agent, session=session, context=context, state=state)
        finally:
            _USED.reset(before)

    async def clear(self, session_id: str | None, *, state: dict[str, Any] | None = None) -> None:
        """Delete the messages; the session stays, with its usage and its logs."""
        store, _, key = self._place(session_id, state)
        try:
            await settled(store.messages.clear(key))
        except NotFound:
            return

    def session_key(self, session_id: str | None, user_id: str | None = None) -> str:
        """Give the id of a session in the store, such as ``alice/chat-1``, or ``chat-1#audit``.

        Args:
            session_id: The framework's id.
            user_id: Whose it is; None if it is nobody's.
        """
        key = key_of(*(() if user_id is None else (user_id,)), session_id or "default")
        if self.source_id == self.DEFAULT_SOURCE_ID:
            return key
        return f"{key}#{key_of(self.source_id)}"

    def _place(
        self, session_id: str | None, state: Mapping[str, Any] | None
    ) -> tuple[AnyScope, str | None, str]:
        """Say where a session is: in which scope, whose, and under which id."""
        store, user_id = _scope(self.store, (state or {}).get("user_id", self.user_id))
        return store, user_id, self.session_key(session_id, user_id)


class AgentStoreCheckpointStorage:
    """The checkpoints of workflows, in an ``AsyncStore``: give it to ``WorkflowBuilder``.

    With a user, a workflow has other checkpoints for each user, and those of others are not there.
    """

    def __init__(
        self,
        store: AnyScope,
        *,
        user_id: str | None = None,
        allowed_checkpoint_types: Sequence[str] = (),
    ) -> None:
        """Read and write a store's threads of checkpoints.

        Args:
            store: An ``AsyncStore``, or ``store.scoped(user_id)``.
            user_id: The owner of the checkpoints; is made if missing.
            allowed_checkpoint_types: The application's classes that checkpoints may hold, each as
                ``"module:qualname"``; the framework's own, and common ones, always may.
        """
        of_kind(store, AsyncRepositories)
        self._base = store
        self.store, self.user_id = _scope(store, user_id)
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Save a checkpoint, or save one again, which replaces it; give its id.

        Raises:
            WrongThread: The id is taken in another workflow.
            InvalidInput: The timestamp is not in ISO 8601.
        """
        try:
            taken_at = datetime.fromisoformat(checkpoint.timestamp)
        except ValueError:
            raise InvalidInput("timestamp must be a time in ISO 8601.") from None
        if taken_at.tzinfo is None:
            taken_at = taken_at.replace(tzinfo=UTC)
        values = encode_checkpoint_value(checkpoint.to_dict())

        async def put(values: Mapping[str, Any]) -> None:
            await self.store.checkpoints.put(
                self._thread(checkpoint.workflow_name),
                values,
                checkpoint.checkpoint_id,
                checkpoint.previous_checkpoint_id or "",
                step=max(0, (taken_at - _EPOCH) // timedelta(microseconds=1)),
                summary=f"iteration {checkpoint.iteration_count}",
                created_at=taken_at,
                parent_missing="root",
                user_id=self.user_id,
            )

        async def save() -> None:
            try:
                await put(values)
            except InvalidJson:  # NaN, or infinity; raised before anything was sent
                await put({name: json.dumps(value).encode() for name, value in values.items()})

        await settled(with_user(self._base, self.user_id, save))
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Give a checkpoint.

        Raises:
            WorkflowCheckpointException: Of the framework's: there is no such checkpoint, or it
                holds what ``allowed_checkpoint_types`` does not name.
        """
        found = await self.store.checkpoints.find(checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return self._checkpoint(found)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Give the checkpoints of a workflow, the oldest first, by their timestamps.

        Raises:
            WorkflowCheckpointException: One cannot be read, as in ``load``.
        """
        thread = self._thread(workflow_name)
        found = [each async for each in self.store.checkpoints.iter(thread, values=True)]
        return [self._checkpoint(each) for each in reversed(found)]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; say whether it was there."""
        found = await self.store.checkpoints.find(checkpoint_id)
        if found is None:
            return False
        try:
            deleting = self.store.checkpoints.delete(found.thread_id, [checkpoint_id])
            return bool((await settled(deleting)).rows.get("checkpoints"))
        except NotFound:
            return False

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Give the newest checkpoint of a workflow, by timestamp; None if it has none."""
        found = await self.store.checkpoints.latest(self._thread(workflow_name))
        return None if found is None else self._checkpoint(found)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Give the ids of the checkpoints of a workflow, the oldest first."""
        thread = self._thread(workflow_name)
        return [each.id async for each in self.store.checkpoints.iter(thread)][::-1]

    def _thread(self, workflow_name: str) -> str:
        users = () if self.user_id is None else (self.user_id,)
        return key_of(*users, workflow_name)

    def _checkpoint(self, record: CheckpointRecord) -> WorkflowCheckpoint:
        written = {
            name: json.loads(value) if isinstance(value, bytes) else value
            for name, value in record.values.items()
        }
        return WorkflowCheckpoint.from_dict(
            decode_checkpoint_value(written, allowed_types=self._allowed)
        )


def _usage(response: AgentResponse) -> dict[str, Any] | None:
    """Give what an answer used, for ``usage.record``; None if it does not say."""
    counts = response.usage_details
    if not counts:
        return None
    model = getattr(response.raw_representation, "model", None)
    return {
        "usage": {
            "input_tokens": counts.get("input_token_count") or 0,
            "output_tokens": counts.get("output_token_count") or 0,
            "total_tokens": counts.get("total_token_count"),
            "input_tokens_details": {
                "cached_tokens": counts.get("cache_read_input_token_count"),
                "cache_write_tokens": counts.get("cache_creation_input_token_count"),
            },
            "output_tokens_details": {
                "reasoning_tokens": counts.get("reasoning_output_token_count")
            },
        },
        "model": model if isinstance(model, str) else None,
    }


def _scope(store: AnyScope, user_id: str | None) -> tuple[AnyScope, str | None]:
    """Give the scope of a user, and who it is."""
    if isinstance(store, AsyncScopedStore):
        if user_id not in (None, store.user_id):
            raise InvalidInput(
                "user_id names another user than the store's scope. Pass the store itself, or a "
                "scope of this user."
            )
        return store, store.user_id
    return (store, None) if user_id is None else (store.scoped(user_id), user_id)


def _new_message(written: dict[str, Any]) -> dict[str, Any]:
    blocks = [*_blocks(written["contents"])]
    content: Any = blocks or None
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        content = blocks[0]["text"]
    role = written["role"]
    return {
        "role": role if role in _ROLES else "assistant",
        "content": content,
        "name": written.get("author_name"),
        "payload": written,
    }


def _new_message_as_text(written: dict[str, Any]) -> dict[str, Any]:
    """Give a message with a number that JSON does not have; its payload is Python's JSON."""
    text = json.dumps(written)
    shown = json.loads(text, parse_constant=str)
    return {**_new_message(shown), "payload": {"type": "message", "json": text}}


def _blocks(contents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Give what a message says, as content blocks; the payload has the rest."""
    for content in contents:
        match content["type"]:
            case "text":
                yield {"type": "text", "text": content.get("text", "")}
            case "function_call":
                yield {
                    "type": "tool_use",
                    "id": content.get("call_id"),
                    "name": content.get("name"),
                    "input": content.get("arguments"),
                }
            case "function_result":
                yield {
                    "type": "tool_result",
                    "tool_use_id": content.get("call_id"),
                    "content": str(content.get("result") or content.get("exception", "")),
                }


def _message(record: MessageRecord) -> Message:
    """Give what was saved, or make a message of what others have saved."""
    payload = record.payload
    if isinstance(payload, dict) and payload.get("type") == "message":
        if "json" in payload:
            return Message.from_dict(json.loads(payload["json"]))
        if "contents" in payload:
            return Message.from_dict(payload)
    if record.role == "tool" or record.tool_calls or not isinstance(record.content, str):
        raise InvalidInput(
            "This session holds calls, results or content blocks that were not saved by the "
            "framework. Use a session of its own for the agent."
        )
    return Message(record.role, [record.content], author_name=record.name)
