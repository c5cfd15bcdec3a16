"""JSON documents looked through by paths: what must be where, compared as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentstore.errors import InvalidInput
from agentstore.values import validation
from agentstore.values.encoding import canonical_json

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
