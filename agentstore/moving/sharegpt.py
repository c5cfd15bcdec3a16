"""Turns of ShareGPT's form as chat messages: who speaks, calls of tools, and their results.

A call is a turn of its own, or stands between tags in what the assistant says, as Hermes writes it.
A result gets the id of the call that it answers, by their order; one that may answer none of them
is refused.
"""

from __future__ import annotations

import ast
import json
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from agentstore.errors import shown
from agentstore.moving.json_records import Broken, Said, load_strictly
from agentstore.moving.spoken import call_of
from agentstore.records.upkeep import counted

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "function_response": "tool",
    "observation": "tool",
}
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
_CALL_IN_WORDS = re.compile(r"<tool_call>|\A\s*\[.+\)\s*\]\s*\Z", re.DOTALL)
"""A call that is not read: broken JSON between tags, or ``[look(city="Rome")]``."""


class _Turn(NamedTuple):
    """A turn, or one of several results in it.

    Attributes:
        place: Where it is.
        speaker: What it is from.
        role: The role in chat format.
        value: What it says.
        rest: Its other keys.
        written: What it says as it was written, where that differs.
    """

    place: str
    speaker: str
    role: str
    value: Any
    rest: dict[str, Any]
    written: str | None = None

    def said(self, chat: dict[str, Any]) -> Said:
        """Give a message of this turn, with what chat format has no place for."""
        written = {} if self.written is None else {"value": self.written}
        return Said({**chat, **self.rest}, {"from": self.speaker, **written})


def from_sharegpt(conversation: dict[str, Any]) -> dict[str, Any]:
    """Give a conversation of ShareGPT's form in chat format; other keys stay as they are.

    Raises:
        Broken: Nobody speaks whom it knows, or a call or a result cannot be told for sure.
    """
    turns = conversation.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Broken("'conversations' must be a list of objects")
    parts = [part for n, turn in enumerate(turns) for part in _parts(f"conversations[{n}]", turn)]
    messages = _messages(parts)
    return {
        "messages" if key == "conversations" else key: messages if key == "conversations" else value
        for key, value in conversation.items()
    }


def _parts(place: str, turn: dict[str, Any]) -> Iterator[_Turn]:
    """Give a turn, or each of the results that it has between tags."""
    speaker = turn.get("from")
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise Broken(f"{place}.from must be one of {', '.join(_ROLES)}, not {shown(speaker)}")
    if "role" in turn or "content" in turn or "value" not in turn:
        raise Broken(f"{place} must have a 'value', and no 'role' or 'content'")
    value, role = turn["value"], _ROLES[speaker]
    rest = {key: each for key, each in turn.items() if key not in ("from", "value")}
    results = _RESULT.findall(value) if role == "tool" and isinstance(value, str) else []
    for result in results:
        yield _Turn(place, speaker, role, result.strip(), rest, value)
    if not results:
        yield _Turn(place, speaker, role, value, rest)


def _messages(turns: list[_Turn]) -> list[dict[str, Any]]:
    """Give turns as messages: each result of a tool with the id of the call that it answers."""
    messages: list[dict[str, Any]] = []
    waiting: deque[str] = deque()
    made = 0
    called_in_words = False
    unplaced = _unplaced_results(turns)
    for n, turn in enumerate(turns):
        called = _called(turn, made)
        if called is not None:
            text, calls = called
            made += len(calls)
            waiting = deque(call["id"] for call in calls)
            turn = turn if text is None else turn._replace(written=turn.value)
            messages.append(
                turn.said({"role": "assistant", "content": text or None, "tool_calls": calls})
            )
        elif unplaced[n] and (waiting or not called_in_words):
            values = [turn.value]
            if not n or not unplaced[n - 1]:  # the first of a run
                values = _results(turn, unplaced[n], len(waiting))
            messages += (
                turn.said({"role": "tool", "content": each, "tool_call_id": waiting.popleft()})
                for each in values
            )
        else:
            messages.append(turn.said({"role": turn.role, "content": turn.value}))
            if turn.role != "tool":
                called_in_words = (
                    turn.role == "assistant"
                    and isinstance(turn.value, str)
                    and not waiting
                    and _CALL_IN_WORDS.search(turn.value) is not None
                )
                waiting.clear()
    return messages


def _unplaced_results(turns: list[_Turn]) -> list[int]:
    """Say of each turn how many results without the id of a call follow each other from it on."""
    counts: list[int] = []
    count = 0
    for turn in reversed(turns):
        placed = turn.rest.get("tool_call_id") is not None
        count = count + 1 if turn.role == "tool" and not placed else 0
        counts.append(count)
    return counts[::-1]


def _called(turn: _Turn, before: int) -> tuple[str | None, list[dict[str, Any]]] | None:
    """Give what a turn says beside its calls, and these; None for a turn without a call.

    Args:
        turn: The turn. Of one that is a call and nothing else, what it says is None.
        before: How many calls there were before.
    """
    if turn.speaker == "function_call":
        if "tool_calls" in turn.rest:
            raise Broken(f"{turn.place} must not have both a call and 'tool_calls'")
        text, given = None, _inner(turn.value, turn.place)
        given = [given] if isinstance(given, dict) else given
        if not isinstance(given, list) or not given or not all(map(_is_call, given)):
            raise Broken(
                f'{turn.place} must be a call as JSON, {{"name": ..., "arguments": {{...}}}} and '
                "nothing else, or a list of calls"
            )
    else:
        may_call = turn.role == "assistant" and "tool_calls" not in turn.rest
        if not may_call or not isinstance(turn.value, str):
            return None
        given = [_tagged(each.strip()) for each in _CALL.findall(turn.value)]
        if not given or not all(map(_is_call, given)):
            return None
        text = _CALL.sub("", turn.value).strip()
    return text, [
        call_of(f"call_{number}", call["name"], call["arguments"])
        for number, call in enumerate(given, before + 1)
    ]


def _tagged(text: str) -> Any:
    """Read a call between tags, which is JSON, or a dict as Python prints it; else give None."""
    with suppress(Broken):
        return load_strictly(text)
    with suppress(Broken, SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return load_strictly(json.dumps(ast.literal_eval(text)))
    return None


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and call.keys() == {"name", "arguments"}
        and isinstance(call["name"], str)
        and isinstance(call["arguments"], dict | str)
    )


def _results(turn: _Turn, results: int, calls: int) -> list[Any]:
    """Give the first of several results, or all of them, where one turn has them in a JSON list.

    Args:
        turn: The turn.
        results: How many results follow each other, this one included.
        calls: How many calls wait for one.
    """
    if not calls:
        raise Broken(
            f"{turn.place} is a result without a call: put a turn from function_call before it, "
            'whose value is {"name": ..., "arguments": {...}}'
        )
    if results == calls:
        return [turn.value]
    given = None
    if results == 1:
        with suppress(Broken):
            given = _inner(turn.value, turn.place)
    if not isinstance(given, list) or len(given) != calls:
        raise Broken(
            f"{turn.place}: {counted(results, 'result')} for {counted(calls, 'call')}. Give one "
            "for each, in the order of the calls, or a single JSON list of them"
        )
    return [e if isinstance(e, str) else json.dumps(e, ensure_ascii=False) for e in given]


def _inner(value: Any, place: str) -> Any:
    """Read JSON within a turn as strictly as the line."""
    if not isinstance(value, str):
        return value
    try:
        return load_strictly(value)
    except Broken as broken:
        raise Broken(f"{place}: {broken}") from None
