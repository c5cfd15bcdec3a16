"""Keyset paging: a cursor says after which row to go on, not how many rows to skip.

A cursor is opaque: base64url of a JSON array that holds the query's kind, a digest of its
filters and the last row's key. The kind and the digest make a cursor that was meant for another
list an error instead of a wrong page. A cursor is no secret and grants nothing: the query's
scope is applied again for every page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from agentstore.errors import InvalidCursor, LimitOutOfRange
from agentstore.values.encoding import canonical_json
from agentstore.values.types import MAX_INTEGER

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
"""The most records on one page."""

LISTED_WITHIN = 256
"""A session's ``activity`` is less than so much larger than its ``listed_activity``."""

_LEAST = LISTED_WITHIN - MAX_INTEGER
"""The least number in a cursor: lists take up to ``LISTED_WITHIN`` away from it."""

OUT_OF_ORDER = timedelta(minutes=1)
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
