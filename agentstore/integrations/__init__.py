"""Sessions, savers and memories for the frameworks that agents are written in.

There is one module for each framework; only this module imports it, and the extra of the same name
installs it. Each is a thin layer over the store's public methods. A framework's session, chat or
key is a session here, and a thread of checkpoints is a thread of ``store.checkpoints``: backups,
copies and, for sessions, ``agentstore show`` and searches treat them like any other.

Pass a ``Store`` or an ``AsyncStore``, or what ``scoped(user_id)`` gives: then only this user's
sessions are there, and new ones belong to the user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from agentstore.aio import AsyncRepositories, AsyncScopedStore
from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.transactions import Repositories
from agentstore.turns import Call as Call
from agentstore.turns import Calls as Calls
from agentstore.turns import run as run
from agentstore.turns import run_async as run_async

if TYPE_CHECKING:
    from agentstore.records import MessageRecord

# What the adapters share. The kind of store that they are given:


AnyStore = Repositories | AsyncRepositories
"""A store, or one in a scope, or a transaction; synchronous or not."""

S = TypeVar("S", bound=AnyStore)
T = TypeVar("T")


def of_kind(store: object, kind: type[S]) -> S:
    """Require a store of this kind.

    Raises:
        InvalidInput: It is another one.
    """
    if isinstance(store, kind):
        return store
    if issubclass(kind, Repositories):
        raise InvalidInput(
            "Pass a Store. An AsyncStore is for asynchronous methods and classes with these."
        )
    raise InvalidInput(
        "Pass an AsyncStore. A Store is for synchronous methods and classes with these."
    )


def require_message(message: object, *kinds: type) -> None:
    """Require a message as the framework makes it.

    Raises:
        InvalidInput: It is something else.
    """
    if not isinstance(message, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidInput(
            f"Each message must be a {names} of the framework, not {type(message).__name__}. Make "
            "such objects of dicts and of JSON first."
        )


def history_of(session_id: str, how: Mapping[str, Any]) -> Calls[Sequence[MessageRecord]]:
    """Read the messages of a session, see ``messages.history``; none if there is no such one."""
    try:
        found = yield lambda store: store.messages.history(session_id, **how)
    except NotFound:
        return ()
    return cast("Sequence[MessageRecord]", found)


# Users of frameworks, writes that end, and ids.


async def make_user(store: AsyncRepositories, user_id: str) -> None:
    """Make a user of a framework's, unless somebody did so before."""
    try:
        await store.users.create(user_id, id=user_id)
    except AlreadyExists:
        return


async def with_user(
    store: AsyncRepositories, user_id: str | None, call: Callable[[], Awaitable[object]]
) -> None:
    """Make a call that may make a session; a user that does not exist is made first.

    A scope makes no users, its own neither.
    """
    try:
        await call()
    except NotFound as missing:
        if user_id is None or missing.kind != "user" or isinstance(store, AsyncScopedStore):
            raise
        await make_user(store, user_id)
        await call()


async def settled(call: Coroutine[Any, Any, T]) -> T:
    """Wait until a write has ended, however often its caller is cancelled; then be cancelled."""
    task = asyncio.ensure_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is warned of it
        raise cancelled
    return task.result()


@contextmanager
def reading_payloads() -> Iterator[None]:
    """Make framework objects of payloads in the block; its own errors quote what was said.

    Raises:
        InvalidInput: A payload is not one of the framework's objects.
    """
    try:
        yield
    except ValueError:
        raise InvalidInput(
            "This session holds a payload that the framework cannot read: another program saved "
            "it, or another version of the framework. Use a session of its own for the agent."
        ) from None


def key_of(*parts: str) -> str:
    """Give one id for several; no two lists of parts have the same.

    Raises:
        InvalidInput: One of them is no str: the id of a user may be None, for example.
    """
    for part in parts:
        if not isinstance(part, str):
            raise InvalidInput(
                f"The ids of users, sessions and agents must be str, not {type(part).__name__}."
            )
    return "/".join(quote(part, safe="", errors="surrogatepass") for part in parts)


# What ADK's events and shared states are in a store; without ADK.


def shared_id(app_name: str, *user_id: str) -> str:
    """Give the id of the session that holds what is shared; no session of ADK's has such a one."""
    return key_of(app_name, *user_id, "", "state")


def shared_title(app_name: str) -> str:
    """Give the title of such a session."""
    return f"ADK: shared state of {app_name}"


def adk_message(written: dict[str, Any]) -> dict[str, Any]:
    """Give an event, as ADK writes it, for ``save_many``."""
    author, content = written["author"], written.get("content") or {}
    parts = content.get("parts") if isinstance(content, dict) else None
    blocks = [
        block for part in (parts if isinstance(parts, list) else ()) for block in _blocks(part)
    ]
    answers = bool(blocks) and all(block["type"] == "tool_result" for block in blocks)
    said: Any = blocks or None
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        said = blocks[0]["text"]
    return {
        "role": "user" if author == "user" or answers else "assistant",
        "content": said,
        "name": author,
        "external_id": written.get("id") or None,
        "payload": written,
    }


def _blocks(part: Any) -> list[dict[str, Any]]:
    """Give what a part says, as content blocks; the payload has the rest."""
    if not isinstance(part, dict):
        return []
    if isinstance(text := part.get("text"), str) and not part.get("thought"):
        return [{"type": "text", "text": text}]
    if isinstance(call := part.get("function_call"), dict) and call:
        used = {"id": call.get("id"), "name": call.get("name"), "input": call.get("args")}
        return [{"type": "tool_use", **used}]
    if isinstance(answer := part.get("function_response"), dict) and answer:
        result = {"tool_use_id": answer.get("id"), "content": str(answer.get("response", ""))}
        return [{"type": "tool_result", **result}]
    return []


# What AgentScope's messages are in a store; without AgentScope.


Marks = str | list[str] | None


def agentscope_message(written: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
    """Give a message, as ``Msg.to_dict`` writes it, for ``save_many``."""
    said = written["content"]
    content = said if isinstance(said, str) else [*said]
    kinds = {block.get("type") for block in content} if isinstance(content, list) else set()
    return {
        "role": "tool" if kinds == {"tool_result"} else written["role"],
        "content": content,
        "name": written["name"],
        "external_id": written["id"],
        "marks": marks,
        "payload": {
            "role": written["role"],
            "metadata": written.get("metadata"),
            "timestamp": written.get("timestamp"),
            "invocation_id": written.get("invocation_id"),
        },
    }
