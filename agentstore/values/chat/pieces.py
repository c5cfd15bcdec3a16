"""What a message holds, piece by piece, for people to read: texts, calls of tools, other blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from agentstore.records import MessageRecord
from agentstore.values.text.readable import readable_text

_ARGUMENTS = ("arguments", "input")
"""What the APIs call the arguments of a call."""


@dataclass(frozen=True, slots=True)
class MessagePiece:
    """A part of a message.

    Attributes:
        kind: ``text``; ``call`` of a tool; or ``data``, a block without text, such as a picture.
        text: The text; the arguments of a call, as they are if they are text, else as JSON; the
            JSON of what is neither.
        name: Of a call, the tool's name; else empty.
        call_id: Of a call, its id, if it has one; else empty.
    """

    kind: Literal["text", "call", "data"]
    text: str
    name: str = ""
    call_id: str = ""


def pieces_of(message: MessageRecord) -> Iterator[MessagePiece]:
    """Give the pieces of a message: its content, then its calls.

    One that has neither is a framework's own item, and that is read instead.
    """
    calls = message.tool_calls or ()
    held = message.content or (None if calls else message.payload)
    for each in held if isinstance(held, list) else [held]:
        if each is None or each == "":
            continue
        text = each if isinstance(each, str) else readable_text(None, each, None)
        if _is_call(each):
            yield _call(each)
        else:
            yield MessagePiece("text", text) if text else MessagePiece("data", _json(each))
    for call in calls:
        yield _call(call)


def _is_call(piece: Any) -> bool:
    """Say whether a block, or a framework's own item, calls a tool."""
    return isinstance(piece, dict) and "name" in piece and not piece.keys().isdisjoint(_ARGUMENTS)


def _call(call: Any) -> MessagePiece:
    function = call.get("function") if isinstance(call, dict) else None
    described = function if isinstance(function, dict) else call
    if not isinstance(described, dict):
        return MessagePiece("call", _json(call), "?")
    arguments = next((described[name] for name in _ARGUMENTS if name in described), None)
    if arguments is not None and not isinstance(arguments, str):
        arguments = _json(arguments)
    call_id = call.get("call_id", call.get("id"))
    return MessagePiece(
        "call",
        arguments or "",
        str(described.get("name", "?")),
        call_id if isinstance(call_id, str) else "",
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
