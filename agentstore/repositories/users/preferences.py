"""Finding users by what they prefer, on any engine, by look-up.

Every value that can be reached in the preferences through object keys, objects and lists whole
as well as single values, is indexed as one digest: SHA-256 of the canonical JSON of
``[key, key, ..., value]``. Finding a preference is then an equality on an index, whatever its
path, and nothing of the path or the value ever becomes SQL. ``1`` equals ``1.0``, and the order
of keys does not matter, as in JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from agentstore.values import validation
from agentstore.values.encoding import canonical_json


def path_of(path: str | Sequence[str]) -> tuple[str, ...]:
    """Read a path: keys with dots between, or a sequence of keys where a key holds a dot.

    Raises:
        InvalidInput: The path is empty or holds something else than str.
    """
    return validation.path("The path of a preference", path)


def digest(path: Sequence[str], value: Any) -> str:
    """Give the digest under which a preference is indexed."""
    document = canonical_json([*path, value], "preference")
    return hashlib.sha256(document.encode("utf-8")).hexdigest()


def digests(preferences: dict[str, Any]) -> set[str]:
    """Give the digests of everything in the preferences."""
    return {digest(path, value) for path, value in _reachable((), preferences)}


def _reachable(path: tuple[str, ...], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for key, item in value.items():
        place = (*path, key)
        yield place, item
        if isinstance(item, dict):
            yield from _reachable(place, item)
