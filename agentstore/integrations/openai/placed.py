"""A session of the SDK that is on a branch: where its calls go, and in which order.

The branch that a session object is on is its own: two of them may work on two branches of one
conversation. Names of branches are never used again, so an object whose branch is gone knows that
it was deleted, or that the session was cleared; then it is on ``main``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from agentstore.errors import InvalidInput, NotFound
from agentstore.integrations.openai.session import (
    AS_STORED,
    WHOLE,
    AgentStoreSession,
    CompactionSnapshot,
    settled,
)

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from agents.memory import SessionSettings

    from agentstore.integrations.openai.session import AnyStore
    from agentstore.records import CountedBranch, MessageRecord, SessionRecord
    from agentstore.stores.bound import Transaction

T = TypeVar("T")

MAIN = "main"

Place = tuple[str, int | None]
"""A branch, and the session's epoch when that was chosen, if it is known."""


class PlacedSession(AgentStoreSession):
    """A session whose items are those of one branch."""

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
            self._place = (MAIN, await self._call(lambda s: s.run(clear)))

        await settled(go())

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
