"""A look at a history that says, for most of them, that nothing has to be repaired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Glanced(Protocol):
    """What ``is_settled`` looks at."""

    @property
    def role(self) -> str:
        """See ``MessageRecord``."""

    @property
    def tool_calls(self) -> Any:
        """See ``MessageRecord``."""

    @property
    def tool_call_id(self) -> str | None:
        """See ``MessageRecord``."""

    @property
    def payload(self) -> Any:
        """See ``MessageRecord``."""


def is_settled(messages: Sequence[Glanced], contents: Sequence[Any]) -> bool:
    """Say at a glance that a history has nothing to repair: most have none.

    It may say no though there is nothing to repair: of calls in blocks and items always.

    Args:
        messages: The history.
        contents: What each says; only lists matter.
    """
    waiting: set[Any] = set()
    for message, content in zip(messages, contents, strict=True):
        calls = message.tool_calls
        if calls is None and message.role == "tool":
            answered = message.tool_call_id
            if answered not in waiting:
                return False
            waiting.remove(answered)
            continue
        if waiting:
            return False
        if calls is not None:
            ids = [call.get("id") for call in calls if isinstance(call, dict)]
            waiting.update(ids)
            if len(waiting) < len(calls) or not all(isinstance(each, str) for each in ids):
                return False
        elif type(content) is list and any(_is_of_tools(block) for block in content):
            return False
        if message.payload is not None and type(message.payload) is dict:
            return False
    return not waiting


def _is_of_tools(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result")
