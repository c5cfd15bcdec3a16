"""What LangGraph's savers store, read as data: nothing that it names is imported, made or run.

It may come from anybody. So reading is bounded in depth and in how many values are read; where it
ends, ``Left`` says so. A class is its name and its fields.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from struct import error as StructError
from struct import unpack_from
from typing import Any, Final

from agentstore.records.work import CheckpointInfo, CheckpointRecord, Items
from agentstore.values.snippets import SearchTerms, snippet
from agentstore.values.tokens import tokens

SPACE: Final = "langgraph"
"""The namespace of LangGraph's root graph; those of its subgraphs begin with ``BELOW``."""

BELOW: Final = "langgraph|"

REST: Final = "\x01checkpoint"
"""The name of what a checkpoint has beside its channels, and its id."""

MOST_VALUES = 200_000
"""Values that are read of one state: less than half a second."""

_DEEPEST = 100
_MOST_NAME = 200
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS: Final = {0xCA: ">f", 0xCB: ">d"} | dict(
    zip(range(0xCC, 0xD4), (">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), strict=True)
)
_SIZES: Final = {1: ">B", 2: ">H", 4: ">I"}
_SIZED: Final = {
    **{0xC4 + n: ("bytes", 1 << n) for n in range(3)},
    **{0xC7 + n: ("ext", 1 << n) for n in range(3)},
    **{0xD9 + n: ("text", 1 << n) for n in range(3)},
    **{0xDC + n: ("list", 2 << n) for n in range(2)},
    **{0xDE + n: ("map", 2 << n) for n in range(2)},
}
_NUMPY, _SNAPSHOT = 6, 7
_JOINED: Final = {"date": "-", "timedelta": ", ", "PosixPath": "/"}
_PLAIN_CLASSES = ("builtins", "collections", "datetime", "decimal", "ipaddress", "pathlib", "uuid")


def is_langgraph(namespace: str) -> bool:
    """Say whether a namespace is one of LangGraph's."""
    return namespace == SPACE or namespace.startswith(BELOW)


class Made(dict[str, Any]):
    """An object as it was stored: its fields by name.

    Attributes:
        name: The module and the name of its class.
    """

    __slots__ = ("name",)

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        """Take what was stored."""
        super().__init__(fields)
        self.name = name

    def __eq__(self, other: object) -> bool:
        """Compare also the names."""
        return isinstance(other, Made) and self.name == other.name and dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Say that it is another one."""
        return not self == other

    __hash__ = None

    @property
    def text(self) -> str | None:
        """What it is, if that is one short value: a date, an id, a member of an enumeration."""
        value = self.get("value")
        return str(value)[:_MOST_NAME] if len(self) == 1 and _is_short(value) else None


@dataclass(frozen=True, slots=True)
class Left:
    """What is not read: so many values of a list or an object."""

    count: int


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int | float)


class _Budget:
    __slots__ = ("left",)

    def __init__(self, left: int = MOST_VALUES) -> None:
        self.left = left


def state_of(record: CheckpointRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the values of a checkpoint as data, and what its framework keeps beside them."""
    if not is_langgraph(record.namespace):
        return record.values, {}
    budget = _Budget()
    values = {name: readable(value, budget) for name, value in sorted(record.values.items())}
    rest, others = values.pop(REST, {}), None
    if isinstance(rest, list) and len(rest) == 2:
        rest, others = rest
    beside = {"checkpoint": rest, "metadata": others}
    return values, {name: each for name, each in beside.items() if each}


def step_of(info: CheckpointInfo) -> int:
    """Give the step as the framework counts it; LangGraph says it in the metadata."""
    step = info.metadata.get("step") if is_langgraph(info.namespace) else None
    return step if isinstance(step, int) else info.step


def readable(value: Any, budget: _Budget | None = None) -> Any:
    """Read what a saver stored; what cannot be read stays as it is."""
    budget = budget or _Budget()
    try:
        if isinstance(value, Items):
            return _Reader(value.data, budget).whole(value.count)
        if not isinstance(value, bytes):
            return value
        kind, zero, data = value.partition(b"\0")
        if kind == b"msgpack":
            return _Reader(data, budget).whole()
        if kind == b"json":
            return _bounded(json.loads(data), budget)
    except (ValueError, StructError, RecursionError):
        return value
    if not zero:
        return value
    return None if kind == b"null" else data if kind in (b"bytes", b"bytearray") else value


def as_json(value: Any) -> Any:
    """Give what was read as JSON: an object with its class's name, bytes in base 64.

    Numbers that JSON has not are texts.
    """
    if isinstance(value, Made):
        return {"class": value.name, **{k: as_json(each) for k, each in value.items()}}
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, Items):
        return {"items": value.count, "base64": b64encode(value.data).decode()}
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return {"left_out": value.count} if isinstance(value, Left) else value


def texts_in(value: Any) -> Iterator[tuple[str, str]]:
    """Give the texts in what was read, the last of each list first, and where each is."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        place, each = left.pop()
        if isinstance(each, str):
            yield place, each
        elif isinstance(each, Mapping):
            inside = [(f"{place}.{name}" if place else str(name), e) for name, e in each.items()]
            left += reversed(inside)
        elif isinstance(each, list | tuple):
            left += ((f"{place}[{n}]", e) for n, e in enumerate(each))


_LONGEST_SEARCHED = 1_000_000


def found_in(value: Any, terms: SearchTerms) -> tuple[str, str] | None:
    """Give where in what was read the first text with these words is, and a snippet of it."""
    for place, said in texts_in(value):
        if len(said) <= _LONGEST_SEARCHED and terms.score(tokens(said)) is not None:
            return place, snippet(said, terms)
    return None


def _bounded(value: Any, budget: _Budget) -> Any:
    """Require of JSON what is required of msgpack; raises ValueError."""
    level = [value]
    for _ in range(_DEEPEST):
        budget.left -= len(level)
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if budget.left < 0 or not level:
            break
    if level:
        raise ValueError("too much of it, or too deep")
    return value


class _Reader:
    """Reads msgpack, from the beginning to the end."""

    __slots__ = ("_at", "_budget", "_data")

    def __init__(self, data: bytes | memoryview, budget: _Budget) -> None:
        self._data, self._at, self._budget = memoryview(data), 0, budget

    def whole(self, count: int | None = None, depth: int = 0) -> Any:
        """Read one value, or a list of so many whose header is left out.

        Raises:
            ValueError: It is no msgpack, or more.
        """
        value = self._value(depth) if count is None else self._list(count, depth)
        if self._budget.left > 0 and self._at != len(self._data):
            raise ValueError("more than one value")
        return value

    def _take(self, size: int) -> memoryview:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("it ends too early")
        return self._data[self._at - size : self._at]

    def _number(self, form: str, size: int) -> Any:
        return unpack_from(form, self._take(size))[0]

    def _value(self, depth: int) -> Any:
        self._budget.left -= 1
        code = self._take(1)[0]
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 0x100
        if code < 0xC0:
            kind, size = ("map", code & 15) if code < 0x90 else ("list", code & 15)
            kind, size = (kind, size) if code < 0xA0 else ("text", code & 31)
        elif code in _CONSTANTS:
            return _CONSTANTS[code]
        elif form := _NUMBERS.get(code):
            return self._number(
                form, {"B": 1, "H": 2, "I": 4, "Q": 8, "F": 4, "D": 8}[form[1].upper()]
            )
        elif 0xD4 <= code <= 0xD8:
            kind, size = "ext", 1 << code - 0xD4
        elif code in _SIZED:
            kind, width = _SIZED[code]
            size = self._number(_SIZES[width], width)
        else:
            raise ValueError("a code that msgpack has not")
        if kind == "text":
            return str(self._take(size), "utf-8", "replace")
        if kind == "bytes":
            return bytes(self._take(size))
        if kind == "ext":
            return self._made(self._number(">b", 1), self._take(size), depth + 1)
        return (self._list if kind == "list" else self._map)(size, depth + 1)

    def _goes_on(self, depth: int) -> bool:
        if depth > _DEEPEST:  # where what follows begins is not known
            self._budget.left = 0
        return self._budget.left > 0

    def _list(self, size: int, depth: int) -> list[Any]:
        items: list[Any] = []
        for done in range(size):
            if not self._goes_on(depth):
                return [*items, Left(size - done)]
            items.append(self._value(depth))
        return items

    def _map(self, size: int, depth: int) -> dict[Any, Any]:
        fields: dict[Any, Any] = {}
        for done in range(size):
            if not self._goes_on(depth):
                return fields | {"…": Left(size - done)}
            key = self._value(depth)
            if not isinstance(key, str):
                key = key if type(key) is int else repr(key)[:_MOST_NAME]
            fields[key] = self._value(depth) if self._budget.left > 0 else Left(1)
        return fields

    def _made(self, code: int, data: memoryview, depth: int) -> Any:
        """Read an object: the name of its class, and its fields."""
        if not self._goes_on(depth):
            return Left(1)
        if not 0 <= code <= _SNAPSHOT:
            return Made(f"msgpack {code}", {"value": bytes(data)})
        held = _Reader(data, self._budget).whole(depth=depth)
        if code == _SNAPSHOT:
            return held
        if not isinstance(held, list) or len(held) < 3:
            return Made(f"msgpack {code}", {"value": held})
        if code == _NUMPY:
            return Made(
                "numpy.ndarray", dict(zip(("dtype", "shape", "order", "data"), held, strict=False))
            )
        module, name, fields = held[:3]
        plain = module in _PLAIN_CLASSES and isinstance(name, str)
        named = str(name if plain else f"{module}.{name}")[:_MOST_NAME]
        if isinstance(fields, dict) and code in (2, 4, 5):
            return Made(named, fields)
        if plain and isinstance(fields, list) and name in _JOINED:
            parts = [str(each) for each in fields if _is_short(each)]
            fields = _JOINED[name].join(part.zfill(2 * (name == "date")) for part in parts)
        return Made(named, {"value": fields})
