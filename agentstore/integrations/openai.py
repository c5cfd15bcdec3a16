"""Sessions of the OpenAI Agents SDK in an agentstore database: ``Runner.run(..., session=)``.

``AgentStoreSession`` replaces the SDK's ``SQLiteSession`` and ``SQLAlchemySession``. An item
is one message: ``messages.save_chat`` takes it apart, ``messages.chat`` gives it back, equal and in
the order of its keys. ``AgentStoreAdvancedSession`` has the branches, turns and usage of
``AdvancedSQLiteSession``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)

from agentstore.aio import AsyncScopedStore, AsyncStore
from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.integrations import T, of_kind, settled
from agentstore.transactions import Repositories

__all__ = ["AgentStoreAdvancedSession", "AgentStoreSession"]

if TYPE_CHECKING:
    from agents import RunResult, TResponseInputItem

    from agentstore.records import (
        CountedBranch,
        MessageRecord,
        SessionRecord,
        TurnRecord,
        UsageRecord,
        UsageSum,
    )
    from agentstore.store import Store
    from agentstore.transactions import ScopedStore, Transaction

    AnyStore = Store | AsyncStore | ScopedStore | AsyncScopedStore


# The history of a conversation, as the SDK's runner reads and writes it.
#
# The invariant: what the SDK is told was done is done, and a write that was begun ends before a
# cancellation of its caller goes on. A session object holds nothing of the history, so any number
# of them, in any number of processes, may stand for one conversation.


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
        turn_limit: int | None = None,
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
            turn_limit: How many turns to read where neither names a limit: the last ones, each
                whole, from what the user said to the end of the answer.

        Raises:
            InvalidInput: ``turn_limit`` is no whole number from 1.
        """
        if turn_limit is not None and (type(turn_limit) is not int or turn_limit < 1):
            raise InvalidInput("turn_limit must be an int from 1. Leave it out to read all turns.")
        self.turn_limit = turn_limit
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
            limit: How many; None means as many as the settings say, or the last turns, or all;
                below 0 all.
        """
        window = self._window(limit)
        nothing: list[TResponseInputItem] = []
        return await self._found(lambda s: s.messages.chat(self.session_id, **window), nothing)

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
        branch = self._current_branch_id
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

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items by others, in one transaction."""
        branch = self._current_branch_id

        def replace(tx: Transaction) -> bool:
            tx.sessions.ensure(self.session_id, **self._new)
            history = tx.messages.history(self.session_id, None, branch=branch, **AS_STORED)
            if not history:
                tx.messages.save_chat(self.session_id, items, branch=branch, **WHOLE)
                return True
            ids = [message.id for message in history]
            return tx.messages.replace_tail(self.session_id, ids, items, branch=branch, **WHOLE)

        return await settled(self._call(lambda s: s.run(replace)))

    @property
    def _current_branch_id(self) -> str | None:
        """The branch that is read and written; None is the session's active one."""
        return None

    # --- How a call gets to the store --------------------------------------------------------

    async def _call(self, call: Callable[[Any], Any]) -> Any:
        """Make a call on the store; a synchronous one is made in a thread."""
        if isinstance(self.store, AsyncStore | AsyncScopedStore):
            return await call(self.store)
        if not hasattr(self.store, "messages"):
            of_kind(self.store, Repositories)
        return await asyncio.to_thread(call, self.store)

    async def _found(self, call: Callable[[Any], Any], missing: T) -> T:
        """Make a call; give something else where there is no such session or branch."""
        try:
            result: T = await self._call(call)
        except NotFound:
            return missing
        return result

    def _window(self, limit: int | None) -> dict[str, Any]:
        """Say how far back to read; turns are counted as tokens are, one for a user's message."""
        found = resolve_session_limit(limit, self.session_settings)
        if found is None and self.turn_limit is not None:
            turns = {"max_tokens": self.turn_limit, "token_counter": _begins_turn}
            return {**AS_STORED, "limit": None, **turns}
        return {**AS_STORED, "limit": None if isinstance(found, int) and found < 0 else found}


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


def _begins_turn(item: dict[str, Any]) -> int:
    return int(item.get("role") == "user")


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


# What the SDK's statistics say of an item: its kind, and the tool that it names.


CALLS = {
    "tool_call",
    "function_call",
    "computer_call",
    "file_search_call",
    "web_search_call",
    "code_interpreter_call",
    "tool_search_call",
    "custom_tool_call",
    "mcp_call",
    "mcp_approval_request",
    "shell_call",
    "apply_patch_call",
}
"""The kinds that count as the use of a tool."""

_NAMED_BY_KIND = {
    "computer_call": "computer_call",
    "file_search_call": "file_search_call",
    "web_search_call": "web_search_call",
    "code_interpreter_call": "code_interpreter_call",
    "shell_call": "shell_call",
    "apply_patch_call": "apply_patch_call",
    "tool_search_call": "tool_search",
    "tool_search_output": "tool_search",
}


def kind_of(item: dict[str, Any]) -> str:
    """Give ``user``, ``assistant``, or the type of an item."""
    role = item.get("role")
    if role in ("user", "assistant"):
        return str(role)
    kind = item.get("type")
    return kind if kind and isinstance(kind, str) else "other"


def tool_of(item: dict[str, Any]) -> str | None:
    """Give the name of the tool that an item calls, with its namespace; None if it names none."""
    kind, name = kind_of(item), item.get("name")
    if kind in ("mcp_call", "mcp_approval_request") and "server_label" in item:
        parts = [str(part) for part in (item.get("server_label"), name) if part]
        return ".".join(parts) or None
    if kind in _NAMED_BY_KIND:
        return _NAMED_BY_KIND[kind]
    if name is None:
        return None
    space = item.get("namespace")
    # The SDK gives a tool that is loaded late its own name as a namespace.
    return str(name) if space in (None, "", name) else f"{space}.{name}"


def tools_used(items: list[tuple[int, dict[str, Any]]]) -> list[tuple[str | None, int, int]]:
    """Count the calls of each tool in each turn.

    Args:
        items: Turns and items, in their order.

    Returns:
        Name, calls and turn, in the order of the turns and, in each, of the first calls. The output
        of a search for tools counts where the call is not there.
    """
    counts: dict[tuple[int, str | None], int] = {}
    searched = {turn for turn, item in items if item.get("type") == "tool_search_call"}
    for turn, item in items:
        kind = kind_of(item)
        if kind in CALLS or (kind == "tool_search_output" and turn not in searched):
            key = turn, tool_of(item)
            counts[key] = counts.get(key, 0) + 1
    return [(tool, count, turn) for (turn, tool), count in counts.items()]


def texts_of(item: dict[str, Any]) -> list[str]:
    """Give the texts of a user's message."""
    content = item.get("content", "")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    found = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in found if isinstance(text, str)]


# Branches, turns and usage, as the SDK's ``AdvancedSQLiteSession`` has them, on both engines.
#
# The branch that a session object is on is its own: two of them may work on two branches of one
# conversation. Names of branches are never used again, so an object whose branch is gone knows
# that it was deleted, or that the session was cleared; then it is on ``main``.


MAIN = "main"

Place = tuple[str, int | None]
"""A branch, and the session's epoch when that was chosen, if it is known."""


_NUMBERS = ("requests", "input_tokens", "output_tokens", "total_tokens")


class AgentStoreAdvancedSession(AgentStoreSession):
    """A session of the SDK with branches, turns and usage; see ``AdvancedSQLiteSession`` there."""

    def __init__(
        self,
        *,
        session_id: str,
        store: AnyStore,
        user_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        turn_limit: int | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        """Stand for a session, on its branch ``main``; see ``AgentStoreSession``.

        Args:
            session_id: See ``AgentStoreSession``, as for the others.
            store: See there.
            user_id: See there.
            title: See there.
            metadata: See there.
            session_settings: See there.
            turn_limit: See there.
            logger: Where branches that were made, switched to and deleted are told. What was said
                never is.
        """
        super().__init__(
            session_id,
            store,
            user_id=user_id,
            title=title,
            metadata=metadata,
            session_settings=session_settings,
            turn_limit=turn_limit,
        )
        self._place: Place = (MAIN, None)
        self._last: asyncio.Future[None] | None = None
        self._logger = logger or logging.getLogger(__name__)

    @property
    def _current_branch_id(self) -> str:
        return self._place[0]

    # --- Items -------------------------------------------------------------------------------

    async def get_items(
        self, limit: int | None = None, branch_id: str | None = None
    ) -> list[TResponseInputItem]:
        """Give the last items of a branch; see ``AgentStoreSession``.

        Args:
            limit: See there.
            branch_id: The branch; None means this object's.
        """
        window = self._window(limit)
        return await self._read(
            branch_id,
            lambda s, branch: s.messages.chat(self.session_id, branch=branch, **window),
        )

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items to this object's branch; see ``AgentStoreSession``."""
        if not items:
            return
        place = self._place

        def save(store: Any, branch: str) -> Any:
            return store.messages.save_chat(
                self.session_id,
                items,
                branch=branch,
                create_session=self._new,
                **WHOLE,
            )

        async def go() -> None:
            await self._on(place, save)
            if place[0] == MAIN and self._place == place:
                # Another object may have cleared the session since; the items came after that.
                self._place = (MAIN, None)

        try:
            await self._in_order(go)
        except Exception as error:
            self._logger.error("Failed to add session items: %s", type(error).__name__)
            raise

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the last item of this object's branch back; None if there is none.

        If nothing of its turn is left, what was recorded for the turn goes too.
        """
        place = self._place

        def pop(tx: Transaction, branch: str) -> MessageRecord | None:
            popped = tx.messages.pop(self.session_id, branch=branch)
            if popped is None:
                return None
            if popped.begins_turn or not tx.messages.size(self.session_id, branch=branch):
                tx.usage.delete(self.session_id, branch=branch, turn=popped.turn)
            return popped

        async def go() -> MessageRecord | None:
            try:
                return await self._change(place, pop)
            except NotFound:
                return None

        popped = await self._in_order(go)
        return None if popped is None else popped.to_chat()  # type: ignore[return-value]

    async def clear_session(self) -> None:
        """Delete items, branches and recorded usage; names of branches stay reserved.

        Other objects on a branch that is gone are on ``main`` then.
        """

        def clear(tx: Transaction) -> int:
            tx.sessions.ensure(self.session_id, **self._new)
            tx.sessions.reset(self.session_id)
            return tx.sessions.get(self.session_id).epoch

        async def go() -> None:
            self._place = (MAIN, await self._found(lambda s: s.run(clear), 0))

        await settled(go())

    # --- Turns -------------------------------------------------------------------------------

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Give the turns of a branch, each with the first 100 characters of its user message."""
        return [_turn(message, 100) for message in await self._asked(branch_id)]

    async def find_turns_by_content(
        self, search_term: str, branch_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Give the turns whose user message contains a text; the case of A to Z does not matter.

        ``branches.find_turns`` of a store ignores the case of any script.
        """
        wanted = re.compile(re.escape(search_term), re.IGNORECASE | re.ASCII)
        return [
            _turn(message, None)
            for message in await self._asked(branch_id)
            if any(wanted.search(text) for text in texts_of(message.to_chat()))
        ]

    async def get_conversation_by_turns(
        self, branch_id: str | None = None
    ) -> dict[int, list[dict[str, str | None]]]:
        """Give the kinds of the items of each turn, and the tools that they name."""
        turns: dict[int, list[dict[str, str | None]]] = {}
        for message in await self._history(branch_id):
            item = message.to_chat()
            told = {"type": kind_of(item), "tool_name": tool_of(item)}
            turns.setdefault(message.turn, []).append(told)
        return turns

    async def get_tool_usage(
        self, branch_id: str | None = None
    ) -> list[tuple[str | None, int, int]]:
        """Give tools, how often each was called, and in which turn."""
        history = await self._history(branch_id)
        return tools_used([(message.turn, message.to_chat()) for message in history])

    async def _asked(self, branch: str | None) -> list[MessageRecord]:
        """Give the user messages that begin the turns of a branch."""

        def read(store: Any, branch: str) -> Any:
            return store.read(lambda tx: list(_turns(tx, self.session_id, branch)))

        turns: list[TurnRecord] = await self._read(branch, read)
        return [turn.message for turn in turns if turn.message is not None]

    async def _history(self, branch: str | None) -> list[MessageRecord]:
        return await self._read(
            branch, lambda s, b: s.messages.history(self.session_id, None, branch=b, **AS_STORED)
        )

    # --- Usage -------------------------------------------------------------------------------

    async def store_run_usage(self, result: RunResult) -> None:
        """Record what a run has used for the last turn, in the place of what was recorded for it.

        To be called after ``Runner.run()``. What goes wrong is logged, and not raised.
        """
        try:
            used: Any = result.context_wrapper.usage
            if used is None:
                return
            place = self._place
            counts: dict[str, Any] = {name: getattr(used, name) or 0 for name in _NUMBERS}
            details = {side: _details(used, side) for side in ("input", "output")}

            def record(tx: Transaction, branch: str) -> None:
                session = tx.sessions.find(self.session_id)
                if session is None or place[1] not in (None, epoch_of(session)):
                    return
                last = tx.messages.page(self.session_id, limit=1, branch=branch).items
                if last:
                    tx.usage.replace(
                        self.session_id,
                        branch=branch,
                        turn=last[0].turn,
                        details=details,
                        **counts,
                    )

            await self._in_order(lambda: self._change(place, record))
        except NotFound:
            return
        except Exception as error:  # noqa: BLE001 - a run that succeeded must not fail for this
            self._logger.error("Failed to store session usage: %s", type(error).__name__)

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """Add up what was recorded, for a branch or for all; None if nothing was."""
        nothing: tuple[UsageSum, ...] = ()
        turns = await self._found(
            lambda s: s.usage.sum_by(
                "branch_turn", session_id=self.session_id, branch=branch_id or None
            ),
            nothing,
        )
        if not turns:
            return None
        sums = {name: sum(getattr(turn, name) for turn in turns) for name in _NUMBERS}
        return {**sums, "total_turns": len(turns)}

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """Give what was recorded for a turn, or a list of all turns of a branch."""

        def read(store: Any, branch: str) -> Any:
            return store.read(
                lambda tx: list(
                    tx.usage.iter(
                        self.session_id, branch=branch, turn=user_turn_number, limit=1_000
                    )
                )
            )

        found: list[UsageRecord] = await self._read(branch_id, read)
        rows = [_usage(each) for each in found]
        if user_turn_number is None:
            return rows
        return {k: v for k, v in rows[-1].items() if k != "user_turn_number"} if rows else {}

    # --- Branches ----------------------------------------------------------------------------

    async def create_branch_from_turn(
        self, turn_number: int, branch_name: str | None = None
    ) -> str:
        """Make a branch that begins before a turn of this object's branch, and switch to it.

        Args:
            turn_number: The turn, from 1.
            branch_name: Its name, never used in this session; None for one with the time in it.

        Returns:
            The name.

        Raises:
            ValueError: There is no such turn; or the name is blank, or was used.
        """
        if branch_name is not None and not branch_name.strip():
            raise ValueError("Branch name cannot be empty")

        def create(tx: Transaction, source: str) -> tuple[str, str, int]:
            no_turn = ValueError(
                f"Turn {turn_number} does not contain a user message in branch '{source}'"
            )
            if type(turn_number) is not int or turn_number < 1:
                raise no_turn
            for name in [branch_name] if branch_name else _names(turn_number):
                try:
                    tx.branches.create(
                        self.session_id,
                        from_turn=turn_number,
                        name=name,
                        branch=source,
                        reserve=True,
                    )
                except NotFound:
                    raise no_turn from None
                except AlreadyExists:
                    continue
                return name, source, tx.sessions.get(self.session_id).epoch
            raise ValueError(
                f"Branch ID '{branch_name}' has already been used. Choose a new branch ID."
            )

        async def go() -> tuple[str, str, int]:
            made = await self._change(self._place, create)
            self._place = (made[0], made[2])
            return made

        name, source, _ = await settled(go())
        self._logger.debug("Created branch '%s' from turn %s in '%s'", name, turn_number, source)
        return name

    async def create_branch_from_content(
        self, search_term: str, branch_name: str | None = None
    ) -> str:
        """Make a branch that begins before the first turn whose user message contains a text.

        Raises:
            ValueError: There is no such turn; or the name is blank, or was used.
        """
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise ValueError(f"No user turns found containing '{search_term}'")
        return await self.create_branch_from_turn(found[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Put this object on a branch, which becomes the session's active one.

        Raises:
            ValueError: There is no such branch.
        """

        def switch(tx: Transaction) -> int:
            try:
                tx.branches.switch(self.session_id, branch_id)
            except (NotFound, InvalidInput):
                raise ValueError(f"Branch '{branch_id}' does not exist") from None
            return tx.sessions.get(self.session_id).epoch

        async def go() -> str:
            epoch: int = await self._call(lambda s: s.run(switch))
            before, self._place = self._current_branch_id, (branch_id, epoch)
            return before

        before = await settled(go())
        self._logger.info("Switched from branch '%s' to '%s'", before, branch_id)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Delete a branch, with what was recorded for it; its name stays reserved.

        Args:
            branch_id: The branch.
            force: Delete it also if this object is on it, which is on ``main`` then.

        Raises:
            ValueError: There is no such branch; or it is ``main``, or this object's, without force.
        """
        if not branch_id or not branch_id.strip():
            raise ValueError("Branch ID cannot be empty")
        if branch_id == MAIN:
            raise ValueError("Cannot delete the 'main' branch")
        if branch_id == self._current_branch_id and not force:
            raise ValueError(
                f"Cannot delete current branch '{branch_id}'. Use force=True or switch branches "
                "first"
            )

        def delete(tx: Transaction) -> int:
            try:
                tx.usage.delete(self.session_id, branch=branch_id)
                return tx.branches.delete(self.session_id, branch_id, then=MAIN)
            except NotFound:
                raise ValueError(f"Branch '{branch_id}' does not exist") from None

        async def go() -> int:
            deleted: int = await self._call(lambda s: s.run(delete))
            if self._current_branch_id == branch_id:
                self._place = (MAIN, self._place[1])
            return deleted

        deleted = await self._in_order(go)
        self._logger.info("Deleted branch '%s': %s messages", branch_id, deleted)

    async def list_branches(self) -> list[dict[str, Any]]:
        """List the branches, in the order of their making."""
        found = await self._all_branches()
        return [
            {
                "branch_id": branch.name,
                "message_count": branch.messages,
                "user_turns": branch.turns,
                "is_current": branch.name == self._current_branch_id,
                "created_at": when(branch),
            }
            for branch in found
        ]

    async def _all_branches(self) -> list[CountedBranch]:
        place = self._place

        def read(tx: Transaction) -> tuple[list[CountedBranch], int]:
            branches = list(tx.branches.iter(self.session_id, limit=1_000))
            return branches, tx.sessions.get(self.session_id).epoch

        nothing: list[CountedBranch] = []
        branches, epoch = await self._found(lambda s: s.read(read), (nothing, 0))
        if place[1] not in (None, epoch) and self._place == place:
            self._place = (MAIN, epoch)
        return branches

    # --- Where calls go ----------------------------------------------------------------------

    async def _in_order(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call when those before it have ended; it ends before a cancellation goes on."""
        before, mine = self._last, asyncio.get_running_loop().create_future()
        self._last = mine

        async def go() -> T:
            try:
                if before is not None and before.get_loop() is mine.get_loop():
                    await asyncio.wait({before})
                return await call()
            finally:
                mine.set_result(None)

        return await settled(go())

    async def _read(self, branch: str | None, call: Callable[[Any, str], Any]) -> list[Any]:
        """Read a branch, this object's if None; give nothing where it is not there."""
        found: list[Any] = []
        with suppress(NotFound):
            if branch is None:
                found = await self._on(self._place, call)
            else:
                found = await self._call(lambda s: call(s, branch))
        return found

    async def _change(self, place: Place, work: Callable[[Transaction, str], T]) -> T:
        changed: T = await self._on(place, lambda s, branch: s.run(lambda tx: work(tx, branch)))
        return changed

    async def _on(self, place: Place, call: Callable[[Any, str], Any]) -> Any:
        """Make a call on a branch; on main, if the session was cleared since that was chosen."""
        try:
            return await self._call(lambda s: call(s, place[0]))
        except NotFound as missing:
            if missing.kind != "branch":
                raise
            session = await self._call(lambda s: s.sessions.find(self.session_id))
            if epoch_of(session) == place[1]:
                raise
        if self._place == place:
            self._place = (MAIN, epoch_of(session))
        return await self._call(lambda s: call(s, MAIN))


def epoch_of(session: SessionRecord | None) -> int:
    """Say how often a session was cleared."""
    return 0 if session is None else session.epoch


def when(made: CountedBranch | MessageRecord) -> str:
    """Say when something was made, as the SDK's sessions do."""
    return made.created_at.strftime("%Y-%m-%d %H:%M:%S")


def _turns(tx: Transaction, session_id: str, branch: str) -> Iterator[TurnRecord]:
    return tx.branches.iter_turns(session_id, branch=branch, limit=1_000, messages=True)


def _turn(message: MessageRecord, most: int | None) -> dict[str, Any]:
    content = message.to_chat().get("content", "")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if most is not None and len(text) > most:
        text = text[:most] + "..."
    return {
        "turn": message.turn,
        "content": text,
        "full_content": content,
        "timestamp": when(message),
        "can_branch": True,
    }


def _usage(used: UsageRecord) -> dict[str, Any]:
    details = used.details or {}
    return {
        "user_turn_number": used.turn,
        **{name: getattr(used, name) for name in _NUMBERS},
        "input_tokens_details": details.get("input"),
        "output_tokens_details": details.get("output"),
    }


def _details(used: Any, side: str) -> dict[str, Any] | None:
    """Give the details of a side as JSON; None for what JSON cannot say."""
    given = getattr(used, f"{side}_tokens_details", None)
    if not given:
        return None
    try:
        details: dict[str, Any] = json.loads(json.dumps(given.__dict__))
    except (TypeError, ValueError):
        return None
    return details


def _names(turn: int) -> Iterator[str]:
    """Give names for a branch, to be tried one after the other."""
    base = f"branch_from_turn_{turn}_{int(time.time())}"
    yield base
    yield from (f"{base}_{number}" for number in count(2))
