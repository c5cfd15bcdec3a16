"""Turns, tools and usage of a session of the SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentstore.errors import NotFound
from agentstore.integrations.openai.items import kind_of, texts_of, tool_of, tools_used
from agentstore.integrations.openai.placed import PlacedSession, epoch_of, when
from agentstore.integrations.openai.session import AS_STORED

if TYPE_CHECKING:
    from agents import RunResult

    from agentstore.records import MessageRecord, TurnRecord, UsageRecord, UsageSum
    from agentstore.stores.bound import Transaction


_NUMBERS = ("requests", "input_tokens", "output_tokens", "total_tokens")


class CountedSession(PlacedSession):
    """A session that says what its turns are, and what they have used."""

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

        turns: list[TurnRecord] = await self._read(branch, read, [])
        return [turn.message for turn in turns if turn.message is not None]

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

        found: list[UsageRecord] = await self._read(branch_id, read, [])
        rows = [_usage(each) for each in found]
        if user_turn_number is None:
            return rows
        return {k: v for k, v in rows[-1].items() if k != "user_turn_number"} if rows else {}


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
