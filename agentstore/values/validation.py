"""What repositories require of their arguments, and the errors that say so.

Checked before anything is sent, so that bad input leaves nothing half-written and fails alike
on both engines, whose own limits differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar, cast

from agentstore.errors import InvalidInput, shown
from agentstore.values.encoding import dump_json, encode_text
from agentstore.values.types import MAX_INTEGER, Document, from_nanos, to_nanos

C = TypeVar("C", bound=str)
F = TypeVar("F")

MAX_KEY_CHARACTERS = 255
MAX_KEY_BYTES = 1024
"""PostgreSQL indexes at most 2,704 bytes in one entry, and an entry may hold two keys."""

MAX_MARKS = 100
"""In one call: on one message, or in one filter."""

MAX_TOKENS = 10**9
MAX_COST_NANOS = 10**12
"""Of one call. A session's counters have room for four thousand million calls with as many tokens,
and for four million that cost as much. Sums have room for anything."""

MAX_MILLISECONDS = 10.0**12
"""Of one call: thirty years."""


def text(name: str, value: object) -> str:
    """Require a str; an ``Enum`` of str counts as its value.

    Raises:
        InvalidInput: It is something else.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a str, not {type(value).__name__}.")
    return value if type(value) is str else str.__str__(value)


def optional_text(name: str, value: object) -> str | None:
    """Require a str or None."""
    return None if value is None else text(name, value)


def choice(name: str, value: object, choices: Sequence[C]) -> C:
    """Require one of these words.

    Raises:
        InvalidInput: It is something else; the error lists them.
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, not {shown(value)}.")
    return cast("C", value if type(value) is str else str.__str__(value))


def key(name: str, value: object) -> str:
    """Require what can be looked up: a str of 1 to 255 characters, up to 1,024 bytes.

    Raises:
        InvalidInput: It is something else, empty or too long.
    """
    found = text(name, value)
    if not found or not is_short(found):
        raise InvalidInput(
            f"{name} must be a non-empty string of up to {MAX_KEY_CHARACTERS} characters and "
            f"{MAX_KEY_BYTES} bytes in UTF-8; this one has {len(found)} characters."
        )
    return found


def is_short(found: str) -> bool:
    """Say whether a text is short enough for an index, as it is stored."""
    if len(found) > MAX_KEY_CHARACTERS:
        return False
    stored = encode_text(found)
    return stored.isascii() or len(stored.encode("utf-8")) <= MAX_KEY_BYTES


def optional_key(name: str, value: object) -> str | None:
    """Require a key or None."""
    return None if value is None else key(name, value)


def optional_label(name: str, value: object) -> str | None:
    """Require a key, an empty str or None."""
    return optional_text(name, value) if value == "" else optional_key(name, value)


def tokens(name: str, value: object) -> int:
    """Require a number of tokens: a whole number from 0 to 10**9."""
    return amount(name, value, most=MAX_TOKENS)


def cost(name: str, value: Decimal | int | str | None) -> Decimal:
    """Require an amount of money, up to 1,000; None is nothing.

    Raises:
        InvalidInput: It is a float, negative, finer than a billionth, or too large.
    """
    nanos = 0 if value is None else to_nanos(name, value)
    if nanos > MAX_COST_NANOS:
        raise InvalidInput(f"{name} must be at most 1000 for one call, not {from_nanos(nanos)}.")
    return from_nanos(nanos)


def amount(name: str, value: object, *, least: int = 0, most: int = MAX_INTEGER) -> int:
    """Require a whole number that fits into 64 bits.

    Raises:
        InvalidInput: It is no int, or smaller or larger than that.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} must be an int, not {type(value).__name__}.")
    if not least <= value <= most:
        raise InvalidInput(f"{name} must be from {least} to {most}, not {shown(value)}.")
    return int(value)


def optional_amount(name: str, value: object) -> int | None:
    """Require a whole number, zero or more, or None."""
    return None if value is None else amount(name, value)


def optional_function(name: str, value: F) -> F:
    """Require something that can be called, or None."""
    if value is not None and not callable(value):
        raise InvalidInput(f"{name} must be a function, not {type(value).__name__}.")
    return value


def flag(name: str, value: object) -> bool:
    """Require a bool."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be a bool, not {type(value).__name__}.")
    return value


def marks(name: str, value: object) -> tuple[str, ...]:
    """Require a mark or a collection of marks, and drop duplicates; None means no marks.

    A mark is a str of 1 to 255 characters; an ``Enum`` whose value is a str counts as that.

    Raises:
        InvalidInput: It is something else, or there are more than 100.
    """
    if value is None:
        return ()
    several = value if isinstance(value, list | tuple | set | frozenset) else [value]
    if len(several) > MAX_MARKS:
        raise InvalidInput(f"{name} must hold up to {MAX_MARKS} marks, not {len(several)}.")
    return tuple(dict.fromkeys(mark(name, each) for each in several))


def mark(name: str, value: object) -> str:
    """Require one mark; see ``marks``."""
    return key(name, value.value if isinstance(value, Enum) else value)


def path(subject: str, value: object) -> tuple[str, ...]:
    """Read a path in JSON: keys with dots between, or a sequence of keys where a key holds a dot.

    Args:
        subject: What it is, for the error.
        value: The path.

    Raises:
        InvalidInput: The path is empty or holds something else than str.
    """
    keys: tuple[Any, ...] = ()
    if isinstance(value, str):
        keys = tuple(value.split("."))
    elif isinstance(value, list | tuple):
        keys = tuple(value)
    if not keys or not all(isinstance(key, str) for key in keys) or keys == ("",):
        raise InvalidInput(
            f"{subject} is keys with dots between, such as 'ui.theme', or a list of keys."
        )
    return keys


def document(name: str, value: Any) -> Document | None:
    """Write a JSON value once, here, so that what JSON cannot say is refused here."""
    return None if value is None else Document(dump_json(value, name))


def json_object(name: str, value: Mapping[str, Any] | None) -> Document:
    """Write a JSON object; None is an empty one.

    Raises:
        InvalidInput: It is not a dict.
        InvalidJson: It holds what JSON cannot say.
    """
    if value is None:
        return Document("{}")
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} must be a dict, not {type(value).__name__}.")
    return Document(dump_json(value, name))
