"""Pydantic AI: the message history of an agent's runs.

Each ``ModelMessage`` is one message of a session. As ``ModelMessagesTypeAdapter`` writes it, whole,
it is the ``payload``, and is what is read back; its text, its calls and their results are the
content, in blocks, so that searches, ``find_by_tool`` and cuts know them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from agentstore.aio import AsyncRepositories
from agentstore.errors import InvalidInput
from agentstore.integrations import (
    AnyStore,
    Calls,
    history_of,
    of_kind,
    reading_payloads,
    require_message,
    run,
    run_async,
)
from agentstore.transactions import Repositories

if TYPE_CHECKING:
    from agentstore.records import MessageRecord

Unanswered = Literal["keep", "placeholder"]

_INTERRUPTED = "Interrupted: there is no result of this call."


class AgentStoreMessages:
    """The history of an agent's runs: ``load`` it for ``message_history=``, ``append`` what is new.

    The session is made when something is first appended. ``load`` and ``append`` want a ``Store``,
    ``aload`` and ``aappend`` an ``AsyncStore``. An object may outlive its store and its process: it
    keeps nothing but the id.
    """

    def __init__(
        self,
        session_id: str,
        store: AnyStore,
        *,
        limit: int | None = None,
        unanswered: Unanswered = "keep",
    ) -> None:
        """Read and write a session's messages.

        Args:
            session_id: The session; the application's own id.
            store: The store, or ``store.scoped(user_id)``.
            limit: How many messages to load, the last ones; there may be a few more, because a cut
                never separates a tool's result from its call. A system prompt is a part of the
                first request, and is cut off with it: use ``instructions=`` instead.
            unanswered: What becomes of a call without a result when it is loaded. ``keep`` leaves
                it: a run may go on with deferred tools. ``placeholder`` gives it a result that
                says that it was interrupted, so that a run can begin with a new prompt.

        Raises:
            InvalidInput: ``unanswered`` is neither.
        """
        self.session_id = session_id
        self.store = store
        if unanswered not in get_args(Unanswered):
            raise InvalidInput(f"unanswered must be {' or '.join(get_args(Unanswered))}.")
        self._unanswered = unanswered
        self._reading: dict[str, Any] = {"limit": limit, "unanswered": "keep"}

    def load(self) -> list[ModelMessage]:
        """Give the messages, the oldest first; none if there is no such session."""
        return run(self._load(), of_kind(self.store, Repositories))

    async def aload(self) -> list[ModelMessage]:
        """Give the messages, the oldest first; none if there is no such session."""
        return await run_async(self._load(), of_kind(self.store, AsyncRepositories))

    def append(
        self, messages: Sequence[ModelMessage], *, idempotency_key: str | None = None
    ) -> None:
        """Append the new messages of a run, all or none, in one call.

        Args:
            messages: What ``result.new_messages()`` gives.
            idempotency_key: Makes a repeated call a no-op.

        Raises:
            InvalidInput: One is no ``ModelMessage``, as in what ``new_messages_json()`` gives.
        """
        run(self._append(messages, idempotency_key), of_kind(self.store, Repositories))

    async def aappend(
        self, messages: Sequence[ModelMessage], *, idempotency_key: str | None = None
    ) -> None:
        """Append the new messages of a run, all or none, in one call; see ``append``."""
        store = of_kind(self.store, AsyncRepositories)
        await run_async(self._append(messages, idempotency_key), store)

    def _load(self) -> Calls[list[ModelMessage]]:
        records = yield from history_of(self.session_id, self._reading)
        payloads = [*map(_payload, records)]
        with reading_payloads():
            messages = ModelMessagesTypeAdapter.validate_python(payloads)
        return _with_placeholders(messages) if self._unanswered == "placeholder" else messages

    def _append(self, messages: Sequence[ModelMessage], key: str | None) -> Calls[None]:
        if messages:
            given = [*messages]  # a generator gives them once
            for message in given:  # Pydantic would only warn
                require_message(message, ModelRequest, ModelResponse)
            written = ModelMessagesTypeAdapter.dump_python(given, mode="json")
            new = [*map(_new_message, written)]
            options: dict[str, Any] = {"idempotency_key": key, "create_session": True}
            yield lambda store: store.messages.save_many(self.session_id, new, **options)


def _new_message(message: dict[str, Any]) -> dict[str, Any]:
    parts = message["parts"]
    kinds = {part["part_kind"] for part in parts}
    role = "assistant" if message["kind"] == "response" else "user"
    if kinds == {"system-prompt"}:
        role = "system"
    blocks = [block for part in parts for block in _blocks(part)]
    content: Any = blocks or None
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        content = blocks[0]["text"]
    return {"role": role, "content": content, "payload": message}


def _blocks(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Give what a part says, as content blocks; the payload has the rest."""
    content = part.get("content")
    match part["part_kind"]:
        case "tool-call":
            call = {"id": part["tool_call_id"], "name": part["tool_name"], "input": part["args"]}
            return [{"type": "tool_use", **call}]
        case "tool-return":
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            result = {"tool_use_id": part["tool_call_id"], "content": text}
            return [{"type": "tool_result", **result}]
        case "retry-prompt" if part["tool_name"] is not None:
            return _blocks({**part, "part_kind": "tool-return"})
        case "text" | "system-prompt" | "user-prompt":
            said = [content] if isinstance(content, str) else content or []
            return [{"type": "text", "text": text} for text in said if isinstance(text, str)]
    return []


def _payload(record: MessageRecord) -> Any:
    """Give what was appended, or make a message of what others have saved."""
    payload = record.payload
    kinds = ("request", "response")
    if (
        isinstance(payload, dict)
        and payload.get("kind") in kinds
        and isinstance(payload.get("parts"), list)
    ):
        return payload
    text = record.content
    if record.role == "tool" or record.tool_calls or not isinstance(text, str):
        raise InvalidInput(
            "This session holds calls, results or content blocks that were not saved by append(). "
            "Use a session of its own for the agent."
        )
    if record.role == "assistant":
        return ModelResponse(parts=[TextPart(text)])
    return ModelRequest(
        parts=[UserPromptPart(text) if record.role == "user" else SystemPromptPart(text)]
    )


def _with_placeholders(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Give each call without a result one that says so, behind the call."""
    answered = {
        part.tool_call_id
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }
    repaired: list[ModelMessage] = []
    for message in messages:
        repaired.append(message)
        calls = message.tool_calls if isinstance(message, ModelResponse) else ()
        placeholders = [
            ToolReturnPart(call.tool_name, _INTERRUPTED, call.tool_call_id)
            for call in calls
            if call.tool_call_id not in answered
        ]
        if placeholders:
            repaired.append(ModelRequest(parts=placeholders))
    return repaired
