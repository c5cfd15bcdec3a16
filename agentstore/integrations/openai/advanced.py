"""Branches, turns and usage, as the SDK's ``AdvancedSQLiteSession`` has them, on both engines.

The branch that a session object is on is its own: two of them may work on two branches of one
conversation. Whoever switches also makes the branch the stored active one, with which a new object
begins. Calls of one object are carried out in the order in which they are made.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.integrations.openai.items import kind_of, texts_of, tool_of, tools_used
from agentstore.integrations.openai.session import (
    AS_STORED,
    AgentStoreSession,
    CompactionSnapshot,
    settled,
)

if TYPE_CHECKING:
    from agents import RunResult, TResponseInputItem
    from agents.memory import SessionSettings

    from agentstore.integrations.openai.session import AnyStore
    from agentstore.records import CountedBranch, MessageRecord, SessionRecord, UsageRecord
    from agentstore.stores.bound import Transaction

T = TypeVar("T")

MAIN = "main"
_OURS = "openai_agents"
"""Where in a session's metadata it is noted which names were used, and how often it was cleared."""


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
        )
        self._place: tuple[str, int | None] = (MAIN, None)
        """The branch, and how often the session had been cleared when that was chosen."""
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
        count = self._limit(limit)
        if count == 0:
            return []
        found: list[TResponseInputItem] = await self._read(
            branch_id,
            lambda s, branch: s.messages.chat(self.session_id, count, branch=branch, **AS_STORED),
            [],
        )
        return found

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items to this object's branch; see ``AgentStoreSession``."""
        if not items:
            return
        place = self._place

        async def add() -> None:
            def save(store: Any, branch: str) -> Any:
                return store.messages.save_chat(self.session_id, items, branch=branch)

            try:
                await self._on(place, save)
            except NotFound as missing:
                if missing.kind != "session":
                    raise
                await self._call(lambda s: s.sessions.ensure(self.session_id, **self._new))
                await self._on(place, save)

        try:
            await self._in_order(add)
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
            session = tx.sessions.ensure(self.session_id, **self._new)
            cleared = _cleared(session) + 1
            tx.sessions.reset(self.session_id)
            self._note(tx, session, cleared=cleared)
            return cleared

        async def go() -> int:
            cleared: int = await self._call(lambda s: s.run(clear))
            self._place = (MAIN, cleared)
            return cleared

        await settled(go())

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
            session = tx.sessions.find(self.session_id)
            used = {MAIN, *_ours(session).get("used", ())}
            name = branch_name or _free_name(used, turn_number)
            there = session is not None and self._turn_is_there(tx, source, turn_number)
            if session is None or not there:
                raise ValueError(
                    f"Turn {turn_number} does not contain a user message in branch '{source}'"
                )
            try:
                if name in used:
                    raise AlreadyExists("branch", name)
                tx.branches.create(self.session_id, from_turn=turn_number, name=name, branch=source)
            except AlreadyExists:
                raise ValueError(
                    f"Branch ID '{name}' has already been used. Choose a new branch ID."
                ) from None
            self._note(tx, session, used=[*sorted(used - {MAIN}), name])
            return name, source, _cleared(session)

        async def go() -> tuple[str, str, int]:
            made = await self._change(self._place, create)
            self._place = (made[0], made[2])
            return made

        name, source, _ = await settled(go())
        self._logger.debug("Created branch '%s' from turn %s in '%s'", name, turn_number, source)
        return name

    def _turn_is_there(self, tx: Transaction, branch: str, turn: int) -> bool:
        if isinstance(turn, bool) or not isinstance(turn, int) or turn < 1:
            return False
        try:
            turns = tx.branches.iter_turns(self.session_id, branch=branch, limit=1_000)
            return any(each.number == turn for each in turns)
        except NotFound:
            return False

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
            return _cleared(tx.sessions.find(self.session_id))

        async def go() -> str:
            cleared: int = await self._call(lambda s: s.run(switch))
            before, self._place = self._current_branch_id, (branch_id, cleared)
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
                if tx.branches.active(self.session_id).name == branch_id:
                    tx.branches.switch(self.session_id, MAIN)
                tx.usage.delete(self.session_id, branch=branch_id)
                return tx.branches.delete(self.session_id, branch_id)
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
                "created_at": _when(branch),
            }
            for branch in found
        ]

    async def _all_branches(self) -> list[CountedBranch]:
        def read(tx: Transaction) -> list[CountedBranch]:
            return list(tx.branches.iter(self.session_id, limit=1_000))

        nothing: list[CountedBranch] = []
        return await self._found(lambda s: s.run(read), nothing)

    # --- Turns -------------------------------------------------------------------------------

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Give the turns of a branch, each with the first 100 characters of its user message."""
        return [_turn(message, 100) for message in await self._users(branch_id)]

    async def find_turns_by_content(
        self, search_term: str, branch_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Give the turns whose user message contains a text, in any case, of any script."""
        wanted = search_term.casefold()
        return [
            _turn(message, None)
            for message in await self._users(branch_id)
            if any(wanted in text.casefold() for text in texts_of(message.to_chat()))
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

    async def _users(self, branch: str | None) -> list[MessageRecord]:
        return [message for message in await self._history(branch) if message.role == "user"]

    async def _history(self, branch: str | None) -> list[MessageRecord]:
        found: list[MessageRecord] = await self._read(
            branch,
            lambda s, b: s.messages.history(self.session_id, None, branch=b, **AS_STORED),
            [],
        )
        return found

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
            counts: dict[str, Any] = {
                name: getattr(used, name) or 0
                for name in ("requests", "input_tokens", "output_tokens", "total_tokens")
            }
            details = {side: _details(used, side) for side in ("input", "output")}

            def record(tx: Transaction, branch: str) -> None:
                session = tx.sessions.find(self.session_id)
                if session is None or place[1] not in (None, _cleared(session)):
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
        found = await self._used(branch_id or None, None)
        if not found:
            return None
        names = ("requests", "input_tokens", "output_tokens", "total_tokens")
        sums = {name: sum(getattr(each, name) for each in found) for name in names}
        return {**sums, "total_turns": len({(each.branch, each.turn) for each in found})}

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """Give what was recorded for a turn, or a list of all turns of a branch."""

        def read(store: Any, branch: str) -> Any:
            return store.run(
                lambda tx: list(
                    tx.usage.iter(
                        self.session_id, branch=branch, turn=user_turn_number, limit=1_000
                    )
                )
            )

        found: list[UsageRecord] = await self._read(branch_id, read, [])
        rows = [_usage(each) for each in found]
        if user_turn_number is None:
            return rows
        return {k: v for k, v in rows[-1].items() if k != "user_turn_number"} if rows else {}

    async def _used(self, branch: str | None, turn: int | None) -> list[UsageRecord]:
        def read(tx: Transaction) -> list[UsageRecord]:
            return list(tx.usage.iter(self.session_id, branch=branch, turn=turn, limit=1_000))

        nothing: list[UsageRecord] = []
        return await self._found(lambda s: s.run(read), nothing)

    # --- Compaction --------------------------------------------------------------------------

    async def _get_compaction_snapshot(
        self,
        limit: int,
        *,
        prune_prefix: Callable[[TResponseInputItem], bool] | None = None,
    ) -> CompactionSnapshot:
        return await self._snapshot(limit, prune_prefix, self._current_branch_id)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        return await self._replace_all(items, self._current_branch_id)

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

    async def _read(self, branch: str | None, call: Callable[[Any, str], Any], missing: Any) -> Any:
        """Read a branch, this object's if None; give something else where it is not there."""
        try:
            if branch is None:
                return await self._on(self._place, call)
            return await self._call(lambda s: call(s, branch))
        except (NotFound, InvalidInput):
            return missing

    async def _change(
        self, place: tuple[str, int | None], work: Callable[[Transaction, str], T]
    ) -> T:
        changed: T = await self._on(place, lambda s, branch: s.run(lambda tx: work(tx, branch)))
        return changed

    async def _on(self, place: tuple[str, int | None], call: Callable[[Any, str], Any]) -> Any:
        """Make a call on a branch; on main, if the session was cleared since that was chosen."""
        try:
            return await self._call(lambda s: call(s, place[0]))
        except NotFound as missing:
            if missing.kind != "branch":
                raise
            session = await self._call(lambda s: s.sessions.find(self.session_id))
            if _cleared(session) == place[1]:
                raise
        if self._place == place:
            self._place = (MAIN, _cleared(session))
        return await self._call(lambda s: call(s, MAIN))

    def _note(self, tx: Transaction, session: SessionRecord, **changes: Any) -> None:
        ours = {**_ours(session), **changes}
        tx.sessions.update(self.session_id, metadata={**session.metadata, _OURS: ours})


def _ours(session: SessionRecord | None) -> dict[str, Any]:
    found = None if session is None else session.metadata.get(_OURS)
    return found if isinstance(found, dict) else {}


def _cleared(session: SessionRecord | None) -> int:
    return int(_ours(session).get("cleared", 0))


def _free_name(used: set[str], turn: int) -> str:
    base = name = f"branch_from_turn_{turn}_{int(time.time())}"
    number = 1
    while name in used:
        number += 1
        name = f"{base}_{number}"
    return name


def _when(made: CountedBranch | MessageRecord) -> str:
    return made.created_at.strftime("%Y-%m-%d %H:%M:%S")


def _turn(message: MessageRecord, most: int | None) -> dict[str, Any]:
    content = message.to_chat().get("content", "")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if most is not None and len(text) > most:
        text = text[:most] + "..."
    return {
        "turn": message.turn,
        "content": text,
        "full_content": content,
        "timestamp": _when(message),
        "can_branch": True,
    }


def _usage(used: UsageRecord) -> dict[str, Any]:
    details = used.details or {}
    return {
        "user_turn_number": used.turn,
        "requests": used.requests,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "total_tokens": used.total_tokens,
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
