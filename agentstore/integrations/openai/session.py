"""The history of a conversation, as the SDK's runner reads and writes it.

The invariant: what the SDK is told was done is done, and a write that was begun ends before a
cancellation of its caller goes on. A session object holds nothing of the history, so any number of
them, in any number of processes, may stand for one conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)

from agentstore.errors import NotFound
from agentstore.stores.aio import AsyncScopedStore, AsyncStore

if TYPE_CHECKING:
    from agents import TResponseInputItem

    from agentstore.records import MessageRecord
    from agentstore.stores.bound import ScopedStore, Transaction
    from agentstore.stores.store import Store

    AnyStore = Store | AsyncStore | ScopedStore | AsyncScopedStore

T = TypeVar("T")

AS_STORED: dict[str, Any] = {"keep_tool_calls": False, "unanswered": "keep", "keep_system": False}
"""The runner compares items with those that it saved, and repairs its input by itself."""

WHOLE: dict[str, Any] = {"unknown": "keep"}
"""Any JSON object is an item: an encrypted one, a reference, a type or a role that is new."""

_AT_ONCE = 5_000
"""Ids that ``messages.delete`` takes."""


class AgentStoreSession:
    """A session of the SDK: give it to ``Runner.run(..., session=)``.

    Attributes:
        session_id: The id of the session, the same in agentstore.
        store: Where it is.
    """

    session_id: str
    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        store: AnyStore,
        *,
        user_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        """Stand for a session; nothing is read or written yet.

        Args:
            session_id: The session, which is created when items are added, if there is none.
            store: An open store, of either kind, or one user's: ``store.scoped(user)``. An
                ``AsyncStore`` belongs to one event loop; with a ``Store`` the session may be used
                in any loop, and calls run in threads.
            user_id: Whose a new session is.
            title: What a new session is called.
            metadata: A JSON object that a new session begins with.
            session_settings: The SDK's; ``limit`` counts where a call names none.
        """
        self.session_id = session_id
        self.store = store
        self._new: dict[str, Any] = {"user_id": user_id, "title": title, "metadata": metadata}
        self.session_settings = (
            SessionSettings()
            if session_settings is None
            else coerce_session_settings(session_settings)
        )

    def __repr__(self) -> str:
        """Show the id, and nothing of the conversation."""
        return f"{type(self).__name__}({self.session_id!r})"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Give the last items, the oldest of them first.

        Args:
            limit: How many; None means as many as the settings say, or all; below 0 all.
        """
        count = self._limit(limit)
        if count == 0:
            return []
        nothing: list[TResponseInputItem] = []
        return await self._found(
            lambda s: s.messages.chat(self.session_id, count, **AS_STORED), nothing
        )

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, all or none; the session is created if there is none.

        Raises:
            InvalidInput: An item cannot be stored; the error says which.
            NotFound: There is no such user.
            AlreadyExists: The session is another user's.
        """
        if items:
            new = self._new
            await settled(
                self._call(
                    lambda s: s.messages.save_chat(
                        self.session_id, items, create_session=new, **WHOLE
                    )
                )
            )

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the last item back; None if there is none."""
        nothing: MessageRecord | None = None
        pop = self._found(lambda s: s.messages.pop(self.session_id), nothing)
        last = await settled(pop)
        return None if last is None else _item(last)

    async def clear_session(self) -> None:
        """Delete all items; the session stays, with its title, its owner and what it has used."""
        await settled(self._found(lambda s: s.messages.clear(self.session_id), 0))

    # --- What the SDK's compaction asks for, by these names ----------------------------------

    async def _get_compaction_snapshot(
        self,
        limit: int,
        *,
        prune_prefix: Callable[[TResponseInputItem], bool] | None = None,
    ) -> CompactionSnapshot:
        """Give the last items, and what replaces the end of them if it is still the end."""
        return await self._snapshot(limit, prune_prefix, None)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items by others, in one transaction."""
        return await self._replace_all(items, None)

    async def _snapshot(
        self,
        limit: int,
        prune_prefix: Callable[[TResponseInputItem], bool] | None,
        branch: str | None,
    ) -> CompactionSnapshot:
        rows: list[MessageRecord] = await self._found(
            lambda s: s.messages.history(self.session_id, limit + 1, branch=branch, **AS_STORED),
            [],
        )
        complete = len(rows) <= limit
        rows = rows[len(rows) - min(limit, len(rows)) :]

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            expected = [row.id for row in rows[start:]]
            if not expected:
                return False

            def replace(tx: Transaction) -> bool:
                if not tx.messages.replace_tail(
                    self.session_id, expected, output, branch=branch, **WHOLE
                ):
                    return False
                # What another branch may show stays.
                if prune_prefix is not None and branch is None and (start or not complete):
                    history = tx.messages.history(self.session_id, None, branch=branch, **AS_STORED)
                    before = history[: len(history) - len(output)]
                    going = _leading(before, prune_prefix)
                    for begin in range(0, len(going), _AT_ONCE):
                        tx.messages.delete(going[begin : begin + _AT_ONCE])
                return True

            return await settled(self._call(lambda s: s.run(replace)))

        return CompactionSnapshot([_item(row) for row in rows], complete, replace_suffix)

    async def _replace_all(self, items: list[TResponseInputItem], branch: str | None) -> bool:
        def replace(tx: Transaction) -> bool:
            tx.sessions.ensure(self.session_id, **self._new)
            history = tx.messages.history(self.session_id, None, branch=branch, **AS_STORED)
            if not history:
                tx.messages.save_chat(self.session_id, items, branch=branch, **WHOLE)
                return True
            ids = [message.id for message in history]
            return tx.messages.replace_tail(self.session_id, ids, items, branch=branch, **WHOLE)

        return await settled(self._call(lambda s: s.run(replace)))

    # --- How a call gets to the store --------------------------------------------------------

    async def _call(self, call: Callable[[Any], Any]) -> Any:
        """Make a call on the store; a synchronous one is made in a thread."""
        if isinstance(self.store, AsyncStore | AsyncScopedStore):
            return await call(self.store)
        return await asyncio.to_thread(call, self.store)

    async def _found(self, call: Callable[[Any], Any], missing: T) -> T:
        """Make a call; give something else where there is no such session or branch."""
        try:
            result: T = await self._call(call)
        except NotFound:
            return missing
        return result

    def _limit(self, limit: int | None) -> int | None:
        found = resolve_session_limit(limit, self.session_settings)
        return None if found is not None and found < 0 else found


@dataclass(frozen=True)
class CompactionSnapshot:
    """What the SDK's compaction works on.

    Attributes:
        items: The last items.
        complete: Whether there are no others.
        replace_suffix: Replaces those from a position on, and says whether it did: not if others
            were added, or some taken back, meanwhile.
    """

    items: list[TResponseInputItem]
    complete: bool
    replace_suffix: Callable[[int, list[TResponseInputItem]], Coroutine[Any, Any, bool]]


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


def _item(message: MessageRecord) -> Any:
    return message.to_chat()


def _leading(history: list[MessageRecord], going: Callable[[Any], bool]) -> list[str]:
    """Give the ids of the first messages, as far as they are to go."""
    ids: list[str] = []
    for message in history:
        if not going(_item(message)):
            break
        ids.append(message.id)
    return ids
