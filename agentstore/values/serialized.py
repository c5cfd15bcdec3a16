"""Values that LangGraph's serializer wrote, as data: read as far as their bytes say, nothing made.

The savers store a value as its type, a zero byte and the serializer's bytes, and a list as
``Items`` without the header that counts them. In msgpack the serializer writes objects as
extensions: the module, the name and the arguments of what would make them
(https://github.com/langchain-ai/langgraph, ``checkpoint/serde/jsonplus.py``). Here no name is
looked up: an object is its name and its fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from agentstore.records.work import Items

_DEEPEST = 24
"""Objects within objects."""

_FIELDS = (2, 4, 5)
"""The extensions whose arguments have names: of a constructor, of pydantic 1 and of 2."""

_MESSAGES = "langchain_core.messages"
_ROLES = {"human": "user", "ai": "assistant"}


class Message(NamedTuple):
    """A message of LangChain's: who speaks, and its fields."""

    role: str
    fields: Mapping[str, Any]


def as_data(value: Any) -> Any:
    """Give a value of a checkpoint as data: JSON, bytes and objects' names with their fields.

    An object is a mapping of its name to its fields, of which those are left out that hold nothing.
    What cannot be read, and what is none of the serializer's, is given as it is.

    Args:
        value: The value, or a mapping of such values by their names.
    """
    if isinstance(value, Mapping):
        return {name.lstrip("\x01"): as_data(each) for name, each in value.items()}
    try:
        if isinstance(value, Items):
            header = b"\xdd" + value.count.to_bytes(4, "big")
            return _plain(_unpacked(header + value.data, 0))
        if isinstance(value, bytes):
            kind, zero, data = value.partition(b"\0")
            if zero and kind in _READERS:
                return _READERS[kind](data)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return value
    return value


def messages_of(value: Any) -> list[Message] | None:
    """Give the messages of a list that ``as_data`` gave, if all are messages of LangChain's."""
    if not isinstance(value, list) or not value:
        return None
    found = []
    for each in value:
        fields = next(iter(each.values())) if isinstance(each, dict) and len(each) == 1 else None
        if not isinstance(fields, dict) or not str(next(iter(each))).endswith(("Message", "Chunk")):
            return None
        kind = fields.get("type")
        if not isinstance(kind, str) or "content" not in fields:
            return None
        found.append(Message(_ROLES.get(kind, kind), fields))
    return found


class _Object(NamedTuple):
    """An object on its way: a tuple, for that may be in a key."""

    name: str
    fields: Any


def _unpacked(data: bytes | memoryview, depth: int) -> Any:
    def extension(code: int, inside: memoryview) -> Any:
        if depth >= _DEEPEST:
            return bytes(inside)
        try:
            module, name, *arguments = _unpacked(inside, depth + 1)
        except (ValueError, TypeError, msgspec.MsgspecError):
            return bytes(inside)
        said = arguments[0] if len(arguments) == 1 or code in (*_FIELDS, 3) else arguments
        if isinstance(said, dict) and str(module).startswith(_MESSAGES):
            said = {name: each for name, each in said.items() if each not in (None, "", [], {})}
            said.setdefault("content", "")
        return _Object(str(name), said)

    return msgspec.msgpack.decode(data, ext_hook=extension)


def _plain(value: Any) -> Any:
    """Give what was unpacked as mappings with str keys, lists and scalars."""
    if isinstance(value, _Object):
        return {value.name: _plain(value.fields)}
    if isinstance(value, dict):
        return {
            name if isinstance(name, str) else repr(_plain(name)): _plain(each)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str | bytes | bool | int | float | None):
        return value
    return str(value)  # an instant, which msgpack has of its own


_READERS: dict[bytes, Callable[[bytes], Any]] = {
    b"null": lambda _: None,
    b"bytes": bytes,
    b"json": json.loads,
    b"msgpack": lambda data: _plain(_unpacked(data, 0)),
}
"""What reads the bytes of a type."""
