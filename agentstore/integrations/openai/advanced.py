"""Branches, turns and usage, as the SDK's ``AdvancedSQLiteSession`` has them, on both engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from agentstore.errors import AlreadyExists, InvalidInput, NotFound
from agentstore.integrations.openai.counted import CountedSession
from agentstore.integrations.openai.placed import MAIN, when
from agentstore.integrations.openai.session import settled

if TYPE_CHECKING:
    from agentstore.records import CountedBranch
    from agentstore.stores.bound import Transaction


class AgentStoreAdvancedSession(CountedSession):
    """A session of the SDK with branches, turns and usage; see ``AdvancedSQLiteSession`` there."""

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


def _names(turn: int) -> Iterator[str]:
    """Give names for a branch, to be tried one after the other."""
    base = f"branch_from_turn_{turn}_{int(time.time())}"
    yield base
    yield from (f"{base}_{number}" for number in count(2))
