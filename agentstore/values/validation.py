"""What repositories require of their arguments, and the errors that say so.

Checked before anything is sent, so that bad input leaves nothing half-written and fails alike
on both engines, whose own limits differ.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from agentstore.errors import InvalidCursor, InvalidInput, LimitOutOfRange, shown
from agentstore.records.base import COMPLETE as COMPLETE
from agentstore.records.base import INCOMPLETE as INCOMPLETE
from agentstore.records.base import ROLES as ROLES
from agentstore.records.base import SESSION_STATUSES as SESSION_STATUSES
from agentstore.records.base import STREAMING as STREAMING
from agentstore.records.base import TASK_STATUSES as TASK_STATUSES
from agentstore.records.base import SessionStatus, TaskStatus
from agentstore.values import validation
from agentstore.values.encoding import canonical_json, dump_json, encode_text
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


def file_path(name: str, value: str | Path) -> Path:
    """Require what the system takes for the name of a file, which need not be there.

    Raises:
        InvalidInput: It is empty, the root, or holds a NUL or a lone surrogate.
    """
    path = Path(value)
    with suppress(UnicodeEncodeError):
        if path.name and b"\0" not in os.fsencode(path):
            return path
    raise InvalidInput(f"{name} must be the path of a file, without NUL and lone surrogates.")


def choice(name: str, value: object, choices: Sequence[C]) -> C:
    """Require one of these words.

    Raises:
        InvalidInput: It is something else; the error lists them.
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, not {shown(value)}.")
    word: Any = value if type(value) is str else str.__str__(value)
    chosen: C = word
    return chosen


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
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
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
            f"{subject} must be keys with dots between, such as 'ui.theme', or a list of keys."
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


# The lives of a session and of a task, and the roles of a message.
#
# The one place that says which status may follow which. The models make CHECK constraints of the
# names, the repositories make conditional updates of the arrows.


PROMPTS = ("system", "developer")
"""The roles of what a conversation may begin with, before the first user message."""

S = TypeVar("S", bound=str)

SESSION_TRANSITIONS: Mapping[SessionStatus, frozenset[SessionStatus]] = {
    "active": frozenset({"paused", "waiting_user", "completed", "cancelled", "failed"}),
    "paused": frozenset({"active", "completed", "cancelled", "failed"}),
    "waiting_user": frozenset({"active", "completed", "cancelled", "failed"}),
    "completed": frozenset(),
    "cancelled": frozenset(),
    "failed": frozenset(),
}
"""From each status of a session, the statuses that may follow."""

TASK_TRANSITIONS: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    "pending": frozenset({"running", "paused", "cancelled"}),
    "running": frozenset({"pending", "paused", "completed", "failed", "cancelled", "dead"}),
    "paused": frozenset({"pending", "cancelled"}),
    "failed": frozenset({"pending", "dead"}),
    "dead": frozenset({"pending"}),
    "completed": frozenset(),
    "cancelled": frozenset(),
}
"""From each status of a task, the statuses that may follow; pending again is a retry."""

MAIN = "main"
"""The name of the branch that every session has; its number is 0."""

MESSAGE_STATUSES = (COMPLETE, STREAMING, INCOMPLETE)

NO_BRANCH = -1
"""The active branch of a session that has expired and is being deleted in pieces: it has none,
so nothing can be appended to it or changed in it any more."""


def sources(transitions: Mapping[S, frozenset[S]], wanted: S) -> tuple[S, ...]:
    """List the statuses from which ``wanted`` can be reached in one step, sorted."""
    return tuple(sorted(status for status, onward in transitions.items() if wanted in onward))


# How long to wait before a failed task is tried again.
#
# The pause after failure ``n`` (from 1) is ``first * factor ** (n - 1)``, at most ``longest``;
# then a random part of it, up to the share ``jitter``, is taken away, so that tasks that failed
# together do not come back together.


_YEAR = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between the attempts of a task.

    Attributes:
        first: Seconds after the first failure.
        factor: How much longer each pause is than the one before.
        longest: Seconds that no pause exceeds.
        jitter: The share of a pause, from 0 to 1, that chance may take away.
    """

    first: float = 1.0
    factor: float = 2.0
    longest: float = 3600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what gives no pauses."""
        for name in ("first", "factor", "longest", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidInput(f"{name} must be a number, not {type(value).__name__}.")
        if not 0 <= self.first <= self.longest <= _YEAR:
            raise InvalidInput(
                "first must be from 0 to longest, and longest at most a year, in seconds."
            )
        if not 1 <= self.factor < math.inf or not 0 <= self.jitter <= 1:
            raise InvalidInput("factor must be 1 or more, and jitter from 0 to 1.")

    def pause(self, failures: int) -> timedelta:
        """Give the pause after so many failures."""
        try:
            seconds = min(self.longest, self.first * self.factor ** (failures - 1))
        except OverflowError:
            seconds = self.longest
        kept = 1 - self.jitter * random.random()  # noqa: S311 - jitter, not a secret
        return timedelta(seconds=seconds * kept)


DEFAULT_BACKOFF = Backoff()
"""Half a second to one second at first, then twice as long each time, up to an hour."""


def require_backoff(value: object) -> Backoff:
    """Require a ``Backoff``.

    Raises:
        InvalidInput: It is something else.
    """
    if not isinstance(value, Backoff):
        raise InvalidInput(f"backoff must be a Backoff, not {type(value).__name__}.")
    return value


# Keyset paging: a cursor says after which row to go on, not how many rows to skip.
#
# A cursor is opaque: base64url of a JSON array that holds the query's kind, a digest of its
# filters and the last row's key. The kind and the digest make a cursor that was meant for another
# list an error instead of a wrong page. A cursor is no secret and grants nothing: the query's
# scope is applied again for every page.


DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
"""The most records on one page."""

LISTED_WITHIN = 256
"""A session's ``activity`` is less than so much larger than its ``listed_activity``."""

_LEAST = LISTED_WITHIN - MAX_INTEGER
"""The least number in a cursor: lists take up to ``LISTED_WITHIN`` away from it."""

MAX_SKEW = timedelta(minutes=1)
"""How much earlier than one before it a message may be created where ``in_order`` is true."""


def check_limit(limit: int) -> int:
    """Give the limit back if a page may have it.

    Raises:
        LimitOutOfRange: It is not a whole number from 1 to ``MAX_LIMIT``.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise LimitOutOfRange(limit, MAX_LIMIT)
    return limit


class Cursors:
    """Makes and reads the cursors of one query: its kind and its filters."""

    __slots__ = ("_kind", "_scope")

    def __init__(self, kind: str, *filters: object) -> None:
        """Name the query; filters are JSON values."""
        self._kind = kind
        scope = canonical_json(filters).encode("utf-8")
        self._scope = hashlib.blake2b(scope, digest_size=6).hexdigest()

    def make(self, key: Sequence[int | str]) -> str:
        """Write the cursor that goes on after the row with this key."""
        document = json.dumps([self._kind, self._scope, *key], separators=(",", ":"))
        return base64.urlsafe_b64encode(document.encode("ascii")).decode("ascii").rstrip("=")

    def read(self, cursor: str, length: int, *, texts: int = 0) -> list[Any]:
        """Read a cursor of this query: a key of so many texts first, and whole numbers.

        Raises:
            InvalidCursor: It was not made by this query.
        """
        if not isinstance(cursor, str):
            raise InvalidCursor(f"must be a str, not {type(cursor).__name__}")
        try:
            padded = cursor + "=" * (-len(cursor) % 4)
            document: Any = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
            kind, scope, *key = document
        except (ValueError, TypeError, RecursionError):
            raise InvalidCursor("cannot be read") from None
        if kind != self._kind or scope != self._scope:
            raise InvalidCursor("belongs to another query")
        first, numbers = key[:texts], key[texts:]
        if (
            len(key) != length
            or not all(type(k) is int and _LEAST <= k <= MAX_INTEGER for k in numbers)
            or not all(type(k) is str for k in first)
        ):
            raise InvalidCursor("cannot be read")
        return [*key]


# JSON documents looked through by paths: what must be where, compared as JSON.


Wanted = Mapping[Any, Any]
"""Values, by their paths: str, or tuples of str. A mapping's keys are invariant."""

At = tuple[tuple[tuple[str, ...], str], ...]
"""Paths, each with the canonical JSON that must be there."""


def wanted_at(name: str, wanted: Wanted | None) -> At:
    """Read what documents must have; None wants nothing.

    Args:
        name: The argument's.
        wanted: Values by paths.

    Raises:
        InvalidInput: It is not a dict, or a path is empty or holds something else than str.
        InvalidJson: JSON cannot say a value.
    """
    if wanted is None:
        return ()
    if not isinstance(wanted, Mapping):
        raise InvalidInput(f"{name} must be a dict of paths, not {type(wanted).__name__}.")
    return tuple(
        sorted(
            (validation.path(f"A path in {name}", path), canonical_json(value, name))
            for path, value in wanted.items()
        )
    )


def has_all(document: Any, wanted: At) -> bool:
    """Say whether a document has all that is wanted."""
    return all(_has(document, path, value) for path, value in wanted)


def _has(document: Any, path: Sequence[str], wanted: str) -> bool:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return canonical_json(document) == wanted
