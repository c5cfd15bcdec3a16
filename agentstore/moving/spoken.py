"""Who says what in a message, by the words that programs use for it.

A message is chat format, and stays as it is, or it is an object that names a speaker and has
something that was said: a text, or parts, as Gemini, the AI SDK, Bedrock, OpenTelemetry, Pydantic
AI or A2A write them. Of parts, calls of tools become ``tool_calls``, results messages of their own,
and what is neither stays a block. What a message has besides goes into its metadata.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from agentstore.moving.frameworks.sources import time_of
from agentstore.moving.json_records import Branch, Node, Said, in_lines
from agentstore.moving.texts import SPEAKERS
from agentstore.records.base import ROLES

Json = dict[str, Any]

_WHO = ("role", "sender", "author", "speaker", "source", "owner")
_IS_USER = ("is_user", "isCreatedByUser", "isUser")
_TEXT = ("text", "message", "mes", "value")
_WHAT = ("content", "contentParts", "parts", "fragments", "blocks", "steps", *_TEXT)
_INNER = ("message", "response", "content")
_AT = ("timestamp", "created_at", "createdAt", "create_time", "createTime", "created_date",
    "created")  # fmt: skip
_ID = ("id", "messageId", "message_id", "uuid", "_id")
_PARENT = ("parentMessageId", "parent_id", "parentId", "parent")
_BELOW = ("replies", "children")
_USED = ("usage", "models_usage", "usageMetadata", "usage_metadata")
_MODEL = ("model", "model_name", "modelId", "modelVersion")
_CHAT = ("tool_calls", "tool_call_id", "name")
_CALLS = {"functioncall", "toolcall", "tooluse", "toolrequest", "toolinvocation", "dynamictool"}
_RESULTS = {"functionresponse", "toolresult", "toolcallresponse", "toolreturn", "toolresponse"}
_OWN_BLOCKS = {"tool_use", "tool_result", "server_tool_use"}
"""Blocks of Anthropic's, which stay blocks."""
_KINDS = ("type", "part_kind", "kind", "pt")
_NO_LETTER = re.compile("[^a-z]")
_THOUGHT = {"thinking", "reasoning", "thought"}
_NAMES, _ARGUMENTS = ("name", "toolName", "tool_name"), ("arguments", "args", "input")
_CALL_IDS = ("toolCallId", "tool_call_id", "toolUseId", "call_id", "id")
_GIVEN = ("response", "result", "output", "content", "toolResult")


def first_of(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Give the first of several keys that says something; None if none does."""
    return next((record[name] for name in names if record.get(name) not in (None, "", [])), None)


def call_of(id: Any, name: Any, arguments: Any) -> Json:
    """Give a call as chat completions have it."""
    given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": given}}


def is_foreign(message: Json) -> bool:
    """Say whether a message says what it says elsewhere than chat format does."""
    content, calls, parts = (message.get(key) for key in ("content", "tool_calls", "parts"))
    if message.get("role") not in (*ROLES, "function") or "content" not in message:
        return is_spoken(message)
    if isinstance(parts, list) and parts and all(isinstance(each, dict) for each in parts):
        return True
    called = calls if isinstance(calls, list) else []
    return any(map(_is_foreign_block, content if isinstance(content, list) else [])) or any(
        isinstance(each, dict) and isinstance(each.get("function"), str) for each in called
    )


def _is_foreign_block(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") in _OWN_BLOCKS:
        return False
    text = block.get("text")
    written = isinstance(text, str) and "type" not in block
    valued = isinstance(text, dict) and isinstance(text.get("value"), str)
    return written or valued or _kind_of(block) in _CALLS | _RESULTS


def is_spoken(message: Any) -> bool:
    """Say whether an object is a message: somebody is known to say something."""
    if not isinstance(message, dict) or {"from", "value"} <= message.keys():
        return False
    if "source" in message and ("action" in message or "observation" in message):
        return False  # an event of OpenHands
    outer, _ = _unwrapped(message)
    return _role(outer) is not None and _what(outer) is not None


def talk_of(messages: Sequence[Json], current: Any = None) -> tuple[list[Json], list[Branch]]:
    """Give messages as chat messages, and what was said otherwise, if they are a tree.

    Messages that name the one before them, or hold those after them, are a tree; its newest end is
    what was said, or of answers with a rank the best. A list from the newest to the oldest is
    turned round.
    """
    flat = [*_flattened(messages, None)]
    times = [time for each, _ in flat if (time := _at(_unwrapped(each)[0]))]
    if len(times) == len(flat) > 1 and times[0] > times[-1] and times == sorted(times)[::-1]:
        flat.reverse()
    talk = _Talk()
    keys = [_key(each, _ID) for each, _ in flat]
    ids = {*keys} - {None}
    above = {key: parent or _key(each, _PARENT)
        for key, (each, parent) in zip(keys, flat, strict=True)}  # fmt: skip
    if len(ids) < len(flat) or not any(parent in ids for parent in above.values()):
        return [said for each, _ in flat for said in talk.said(each)], []
    if any(type(each.get("rank")) is int for each, _ in flat):  # the best answer last
        flat.sort(key=lambda one: -(one[0].get("rank") or 0))
        current = _last_end([_key(each, _ID) for each, _ in flat], above)
    told = {_key(each, _ID): talk.said(each) for each, _ in flat}
    nodes: dict[str, Node] = {}
    for each, _ in flat:
        key = _key(each, _ID)
        parent = above[key]
        at = f"{parent}/{len(told[parent])}" if parent in told else None
        for number, said in enumerate(told[key], 1):
            nodes[f"{key}/{number}"] = Node(at, said)
            at = f"{key}/{number}"
    return in_lines(nodes, f"{current}/{len(told.get(str(current), ()))}")


def _last_end(keys: Sequence[Any], above: Mapping[Any, Any]) -> Any:
    """Go from the root down, always to the last of those that follow."""
    last = {above[key] if above[key] in above else None: key for key in keys}
    at = None
    while at in last:
        at = last[at]
    return at


def _flattened(messages: Sequence[Json], parent: Any) -> Iterator[tuple[Json, Any]]:
    """Give messages with those that they hold, each with the id of the one that holds it."""
    for each in messages:
        yield {key: value for key, value in each.items() if key not in _BELOW}, parent
        for name in _BELOW:
            below = each.get(name)
            if isinstance(below, list) and all(isinstance(one, dict) for one in below):
                yield from _flattened(below, _key(each, _ID))


def _key(message: Json, names: Sequence[str]) -> str | None:
    """Give an id as a text."""
    found = _plain(first_of(message, names))
    return str(found) if isinstance(found, str | int) else None


def _plain(value: Any) -> Any:
    """Give a value that may be in an object, as MongoDB writes ids and times."""
    while isinstance(value, dict) and value:
        value = next(iter(value.values()))
    return value


def _role(message: Json) -> str | None:
    for name in _IS_USER:
        if isinstance(message.get(name), bool):
            return "user" if message[name] else "assistant"
    for name in _WHO:
        who = message.get(name)
        who = who.get("role") if isinstance(who, dict) else who
        if isinstance(who, str) and (role := SPEAKERS.get(who.lower())):
            return role
        if name == "source" and isinstance(who, str) and "models_usage" in message:
            return "assistant"  # an agent of AutoGen's, by its name
    kinds = {"request": "user", "response": "assistant"} if _is_parts(message) else {}
    return kinds.get(str(message.get("kind")))


def _is_parts(message: Json) -> bool:
    return isinstance(message.get("parts"), list)


def _what(message: Json) -> Any:
    """Give what is said: parts before the text that repeats them."""
    if _is_parts(message) and message["parts"]:
        return message["parts"]
    for name in _WHAT:
        value = message.get(name)
        if name == "blocks" and not all(isinstance(each, dict) for each in value or [0]):
            continue
        if isinstance(value, str | list) and (value or name == "content"):
            return value
    return None


def _unwrapped(message: Json) -> tuple[Json, Json]:
    """Give the message that an object holds, and what the object has besides."""
    shown = message.get("currentlySelected")
    if isinstance(message.get("versions"), list) and type(shown) is int and message["versions"]:
        chosen = message["versions"][min(shown, len(message["versions"]) - 1)]
        others = [each for each in message["versions"] if each is not chosen]
        return chosen, {"versions": others}
    for name in _INNER:
        inner = message.get(name)
        if isinstance(inner, dict) and _role(inner) is not None and _what(inner) is not None:
            return inner, {key: value for key, value in message.items() if key != name}
    return message, {}


def _at(message: Json) -> datetime | None:
    at = _plain(first_of(message, _AT))
    at = int(at) if isinstance(at, str) and at.isdecimal() and len(at) < 20 else at
    if isinstance(at, int | float) and at > 1e11:  # milliseconds
        at = at / 1000
    return time_of(at)


def usage_of(used: Any) -> Any:
    """Give a usage in the words of the providers' clients: some write camel case, or shorter."""
    if not isinstance(used, dict):
        return used
    snake = {re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).lower(): each for key, each in used.items()}
    for short in ("input", "output"):
        if type(snake.get(short)) is int:
            snake.setdefault(f"{short}_tokens", snake[short])
    return snake


def _kind_of(part: Json) -> str:
    """Give what a part is, in small letters only; some name it, some by the key that holds it."""
    named = (*map(part.get, _KINDS), *part)
    flat = [_NO_LETTER.sub("", each.lower()) for each in named if isinstance(each, str)]
    flat = [each.removeprefix("builtin") for each in flat]
    known = next((each for each in flat if each in _CALLS | _RESULTS), "")
    if not known and flat and flat[0].startswith("tool") and "toolCallId" in part:
        return "toolcall"  # of the AI SDK, with the tool's name in the type
    if not known and "type" not in part and first_of(part, _CALL_IDS[1:4]):
        return "toolcall" if "arguments" in part else "toolresult" if "content" in part else ""
    if not known and "type" not in part and {"id", "name", "arguments"} <= part.keys():
        return "toolcall"
    return known or (flat[0] if flat else "")


def _holder(part: Json, *names: Sequence[str]) -> Json | None:
    """Give the object in a part, or in what it holds, that has one key of each kind."""
    level = [part]
    for _ in range(3):
        for each in level:
            if all(any(name in each for name in some) for some in names):
                return each
        level = [value for each in level for value in each.values() if isinstance(value, dict)]
    return None


class _Talk:
    """Messages one after another: results without the id of a call answer them in their order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Any]] = deque()
        self._made = 0

    def said(self, message: Json) -> list[Said]:
        """Give what a message says: a message, or several, where it has results of tools."""
        inner, more = _unwrapped(message)
        known = (*_WHO, *_IS_USER, *_WHAT, *_AT, *_ID, *_PARENT, *_USED, *_MODEL, *_CHAT)
        more |= {key: value for key, value in inner.items() if key not in known}
        model = first_of(inner, _MODEL)
        used = usage_of(first_of(inner, _USED) or first_of(message, _USED))
        more |= {} if model is None or (used and isinstance(model, str)) else {"model": model}
        who = first_of(inner, _WHO)
        if isinstance(who, str) and who.lower() not in SPEAKERS:
            more["speaker"] = who
        made = self._messages(inner, _role(inner) or "user", more)
        more = {key: value for key, value in more.items() if value not in (None, "", [], {})}
        id, at = _key(message, _ID) or _key(inner, _ID), _at(inner) or _at(message)
        for number, said in enumerate(made):
            said.at = at
            if not number:
                said.external_id = id
            if number == len(made) - 1 and more:
                known_already = (said.metadata or {}).get("messages", {})
                said.metadata = {"messages": {**known_already, **more}}
        spoke = next((said for said in reversed(made) if said["role"] == "assistant"), None)
        if spoke is not None:
            spoke.used(used, model)
        return made

    def _messages(self, message: Json, role: str, more: Json) -> list[Said]:
        chat = {key: message[key] for key in _CHAT if message.get(key) not in (None, [])}
        what = _what(message)
        if isinstance(calls := chat.get("tool_calls"), list):
            chat["tool_calls"] = [self._call(each) if isinstance(each, dict) else each
                                  for each in calls]  # fmt: skip
        text = message.get("content")
        if isinstance(text, str) and isinstance(what, list) and text != _texts(what):
            more["content"] = text  # which its parts do not repeat
        if isinstance(what, str) and message.get("isThought") is True:
            what = [{"text": what, "thought": True}]
        if not isinstance(what, list):
            return [Said({"role": role, "content": what, **chat})]
        parts: list[Any] = []
        for each in what:
            held = each.get("part", each) if isinstance(each, dict) else each
            if held is not each:
                around = {key: value for key, value in each.items() if key != "part"}
                more["fragments"] = [*more.get("fragments", ()), around]
            of_steps = isinstance(held, dict) and held.get("type") == "contentBlock"
            nested = held.get("content") if of_steps else None
            parts += nested if isinstance(nested, list) else [held]
        made: list[Said] = []
        blocks: list[Json] = []
        called: list[Json] = []

        def flush() -> None:
            nonlocal blocks, called
            if blocks or called:
                only = blocks[0]["text"] if len(blocks) == 1 and _is_text(blocks[0]) else None
                one = {"role": role, "content": blocks or None if only is None else only, **chat}
                made.append(Said(one | ({"tool_calls": called} if called else {})))
            blocks, called = [], []

        for part in parts:
            kind = _kind_of(part) if isinstance(part, dict) else "text"
            spoken_by = {"systemprompt": "system", "userprompt": "user"}.get(kind, role)
            if isinstance(part, dict) and part.get("type") in _OWN_BLOCKS:
                blocks.append(part)
            elif kind in _CALLS:
                role = "assistant"
                called.append(self._call(part))
                if rest := _rest(part, *_ARGUMENTS):
                    more["calls"] = [*more.get("calls", ()), rest]
                if _holder(part, ("output", "result")) and "functionCall" not in part:
                    flush()
                    made.append(self._result(part))
            elif kind in _RESULTS:
                flush()
                made.append(self._result(part))
            elif block := _block(part, kind):
                if spoken_by != role:
                    flush()
                    role = spoken_by
                blocks.append(block)
        flush()
        return made or [Said({"role": role, "content": what or "", **chat})]

    def _call(self, part: Json) -> Json:
        if isinstance(part.get("function"), dict):
            return part
        held = _holder(part, _NAMES, _ARGUMENTS) or part
        kind = str(part.get("type") or "")
        name = first_of(held, _NAMES) or part.get("function") or kind.removeprefix("tool-")
        given = first_of(held, _ARGUMENTS)
        id = first_of(held, _CALL_IDS) or first_of(part, _CALL_IDS)
        if id is None:
            self._made += 1
            id = f"call_{self._made}"
        self._waiting.append((str(id), name))
        return call_of(str(id), name, given or {})

    def _result(self, part: Json) -> Said:
        held = _holder(part, _GIVEN[:4]) or part
        given = first_of(held, _GIVEN)
        name = first_of(held, _NAMES) or first_of(part, _NAMES)
        id = first_of(held, _CALL_IDS) or first_of(part, _CALL_IDS)
        if id is None:
            id = next((id for id, called in self._waiting if name in (None, called)), None)
        self._waiting = deque(each for each in self._waiting if each[0] != str(id))
        text = given if isinstance(given, str) else _texts(given)
        metadata = {"result": given} if text is not None and text != given else {}
        metadata |= _rest(held)
        if text is None:
            text = json.dumps(given, ensure_ascii=False)
        chat: Json = {"role": "tool", "content": text}
        chat |= {} if id is None else {"tool_call_id": str(id)}
        chat |= {"name": name} if isinstance(name, str) else {}
        return Said(chat, {"messages": metadata} if metadata else None)


def _rest(part: Json, *more: str) -> Json:
    """Give what a call or a result has besides, such as whether it failed."""
    known = (*_NAMES, *_CALL_IDS, *_GIVEN, *more, "type", "kind", "part_kind", "function", "state")
    rest = {key: value for key, value in part.items() if key not in known}
    return {k: v for k, v in rest.items() if not isinstance(v, dict | list) and v is not None}


def _is_text(block: Json) -> bool:
    return block.keys() == {"type", "text"} and block["type"] == "text"


def _texts(parts: Any) -> str | None:
    """Give the one text that a value or a list of parts is; None if there is more to it."""
    if isinstance(parts, dict):
        for name in ("output", "result", "value", "text", "content"):
            if name in parts and parts.keys() <= {name, "type", "status"}:
                return parts[name] if isinstance(parts[name], str) else _texts(parts[name])
        return None
    blocks = [_block(part, "text") for part in parts] if isinstance(parts, list) else [{}]
    if not all(block and _is_text(block) for block in blocks):
        return None
    return "".join(block["text"] for block in blocks if block)


def _block(part: Any, kind: str) -> Json | None:
    """Give a part that is no call and no result as a block; None for one that says nothing."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return {"type": "part", "part": part}
    text = part.get("text", part.get("content", part.get("thinking")))
    text = text.get("value", text) if isinstance(text, dict) else text
    known = (*_KINDS, "text", "content", "thinking", "thought", "isThought")
    said = {key: value for key, value in part.items() if value not in (None, "", [], {}, "done")}
    rest = {key: value for key, value in said.items() if key not in known}
    if isinstance(text, str):
        thought = kind in _THOUGHT or part.get("thought") is True or part.get("isThought") is True
        name = "thinking" if thought else "text"
        return {"type": name, name: text, **rest}
    return {"type": part.get("type") or next(iter(part), "part"), **part} if rest else None
