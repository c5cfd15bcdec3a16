"""What a message holds, in whichever format it was saved: calls, results, texts and pictures.

Chat completions, Anthropic's blocks and items of the Responses API are told by what they look
like, as in ``values.chat``. What is not known is shown as JSON. Callers choose all of this, so
nothing is relied upon: not that a name is a text, nor that a list holds dicts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentstore.records import MessageRecord

SHOWN: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Pictures that may be shown in a page. Not SVG, which can hold a script."""

_TEXTS = ("text", "input_text", "output_text", "summary_text", "refusal")
_THOUGHTS = ("thinking", "reasoning", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call of a tool.

    Attributes:
        key: What a result names it by; None where nothing can answer it.
        arguments: What it is called with: a text, which mostly is JSON, or JSON.
    """

    key: str | None
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class HeldResult:
    """The result of a call.

    Attributes:
        key: The call's.
        value: A text, or JSON.
        failed: Whether it says that it is an error.
        pictures: The numbers of its pictures, among those of the message; ``value`` lacks them.
    """

    key: str
    value: Any
    failed: bool = False
    pictures: Sequence[int] = ()


@dataclass(slots=True)
class MessageParts:
    """What one message holds, each kind in its order.

    Attributes:
        texts: What was said.
        thoughts: What was thought before.
        pictures: Addresses of pictures and files; a ``data:`` address holds them itself.
        rest: Whatever else there is, as JSON.
    """

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    calls: list[HeldCall] = field(default_factory=list)
    results: list[HeldResult] = field(default_factory=list)
    rest: list[Any] = field(default_factory=list)


def held_by(message: MessageRecord) -> MessageParts:
    """Say what a message holds."""
    held = MessageParts()
    content, payload = message.content, message.payload
    if message.role == "tool" and message.tool_call_id is not None:
        _take_result(held, message.tool_call_id, content, message.status == "interrupted")
    elif isinstance(content, str):
        held.texts.append(content)
    else:
        for block in content or ():
            _take_held(held, block)
    for call in message.tool_calls or ():
        _take_call(held, call)
    if held == MessageParts() and payload is not None:
        inner = payload.get("content") if isinstance(payload, dict) else None
        if isinstance(payload, dict) and isinstance(payload.get("type"), str):
            _take_held(held, payload)
        elif isinstance(inner, list | str):
            for block in [inner] if isinstance(inner, str) else inner:
                _take_held(held, block)
        else:
            held.rest.append(payload)
    known = {bytes_of(address) for address in held.pictures}
    held.pictures += (each for each in pictures_in(payload) if bytes_of(each) not in known)
    return held


_BASE64 = re.compile(r"(iVBORw0KGgo|/9j/|_9j_|R0lGOD|UklGR)[A-Za-z0-9+/_-]{24}")
"""How pictures begin in base64."""

_BEGINNINGS = {"iVBO": "png", "/9j/": "jpeg", "_9j_": "jpeg", "R0lG": "gif", "UklG": "webp"}
_MOST_LOOKED_AT = 10_000


def pictures_in(value: Any) -> list[str]:
    """Give the pictures in JSON that may be shown, as ``data:`` addresses.

    Every framework has its own names for them. So they are told by how they begin.
    """
    found: dict[str, str] = {}
    left = [value]
    for _ in range(_MOST_LOOKED_AT):
        if not left:
            break
        each = left.pop()
        if isinstance(each, dict | list):
            left += reversed([*each.values()] if isinstance(each, dict) else each)
        elif isinstance(each, str) and _BASE64.match(each):
            address = f"data:image/{_BEGINNINGS[each[:4]]};base64,{each}"
            found.setdefault(bytes_of(address), address)
        elif isinstance(each, str) and shown_kind(each) is not None:
            found.setdefault(bytes_of(each), each)
    return [*found.values()]


def bytes_of(address: str) -> str:
    """Give what tells a picture from others: its base64, in one alphabet."""
    return address.partition(",")[2].translate(_ALPHABET) or address


_ALPHABET = str.maketrans("-_", "+/")


def _take_result(held: MessageParts, key: str, value: Any, failed: bool = False) -> None:
    """Add the result of a call, and its pictures to those of the message."""
    first, pictures = len(held.pictures), pictures_in(value)
    if pictures:
        held.pictures += pictures
        blocks = value if isinstance(value, list) else [value]
        value = [each for each in blocks if not pictures_in(each)] or None
    numbers = range(first, first + len(pictures))
    held.results.append(HeldResult(key, value, failed, numbers))


def _take_held(held: MessageParts, block: Any) -> None:
    """Sort one block, or item, in."""
    if isinstance(block, str):
        held.texts.append(block)
        return
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        pictures = pictures_in(block)
        held.pictures += pictures
        held.rest += [] if pictures else [block]
    elif kind in _TEXTS and isinstance(text := block.get("text", block.get(kind)), str):
        held.texts.append(text)
    elif kind in _THOUGHTS:
        found = block.get("thinking") or "\n".join(_texts_in(block.get("summary")))
        held.thoughts.append(found) if isinstance(found, str) and found else held.rest.append(block)
    elif kind == "tool_result" and isinstance(block.get("tool_use_id"), str):
        _take_result(
            held, block["tool_use_id"], block.get("content"), block.get("is_error") is True
        )
    elif kind.endswith("_call_output") and isinstance(block.get("call_id"), str):
        _take_result(held, block["call_id"], block.get("output"))
    elif kind.endswith(("tool_use", "_call")):
        _take_call(held, block)
    elif kind == "message" and isinstance(block.get("content"), list):
        for inner in block["content"]:
            _take_held(held, inner)
    elif (address := _picture(block)) is not None:
        held.pictures.append(address)
    elif pictures := pictures_in(block):
        held.pictures += pictures
    else:
        held.rest.append(block)


def _take_call(held: MessageParts, call: Any) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    described = function if isinstance(function, dict) else call
    if not isinstance(described, dict):
        held.rest.append(call)
        return
    kind = str(call.get("type", "")).removesuffix("_call")
    name = described.get("name")
    keys = [call.get(each) for each in ("call_id", "id")]
    key = next((each for each in keys if isinstance(each, str)), None)
    held.pictures += pictures_in(call)
    known = [described[each] for each in ("arguments", "input", "args") if each in described]
    arguments = (
        known[0]
        if known
        else {k: v for k, v in call.items() if k not in ("id", "type") and not pictures_in(v)}
    )
    held.calls.append(HeldCall(key, name if isinstance(name, str) else kind or "?", arguments))


def _texts_in(blocks: Any) -> Iterator[str]:
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            yield block["text"]


def _picture(block: dict[str, Any]) -> str | None:
    """Give the address of what a block shows."""
    for name in ("image_url", "file_url", "source", "url", "input_audio"):
        found = block.get(name)
        if isinstance(found, str):
            return found
        if isinstance(found, dict):
            data, address = found.get("data"), found.get("url")
            if isinstance(address, str):
                return address
            if isinstance(data, str):
                kind = found.get("media_type", found.get("format", "unknown"))
                return f"data:{kind};base64,{data}"
    return None


def shown_kind(address: str) -> str | None:
    """Give what the picture in a ``data:`` address is; None if it is none that may be shown."""
    head = address[:64].partition(",")[0].lower()
    kind = head.removeprefix("data:").partition(";")[0]
    return kind if head.startswith("data:") and head.endswith(";base64") and kind in SHOWN else None
