"""One line that narrows a list: ``user:alice status:failed since:7d words of the title``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from string import digits
from typing import Any

from agentstore.errors import InvalidInput
from agentstore.values.states import ROLES, SESSION_STATUSES

Instant = Callable[[str], datetime]
"""Reads a time, such as 2026-03-01, or an age, such as 7d."""

SESSION_WORDS = "user: status: model: since: until: KEY=VALUE  words of the title"
SEARCH_WORDS = "words  user: session: role: since: until: order:recent"

_NO_FILTER = ("/", ":", *digits)
"""How what is behind a colon begins in an address or a time: https://, std::list, localhost:80."""

_WORD = re.compile(r'([a-z]+):("[^"]*"|\S+)|([^\s"=:]+)=("[^"]*"|\S+)|("[^"]*"|\S+)')


def session_filters(line: str, instant: Instant) -> dict[str, Any]:
    """Read the filters of a list of sessions.

    Raises:
        InvalidInput: There is no such filter, or a status or a time cannot be read.
    """
    choices: dict[str, Sequence[str]] = {"status": SESSION_STATUSES}
    names = {"user": "user_id", "status": "status", "model": "model"}
    found, metadata, rest = _read(line, names, instant, choices)
    if metadata:
        found["metadata"] = metadata
    if title := " ".join(word.strip('"') for word in rest):
        found["title"] = title
    return found


def search_filters(line: str, instant: Instant) -> tuple[str, dict[str, Any]]:
    """Read what to search for, and where.

    Raises:
        InvalidInput: There is no such filter, or a role, an order or a time cannot be read.
    """
    names = {"user": "user_id", "session": "session_id", "role": "role", "order": "order"}
    choices: dict[str, Sequence[str]] = {"role": ROLES, "order": ("relevance", "recent")}
    found, _, rest = _read(line, names, instant, choices, pairs=False)
    return " ".join(rest), found


def _read(
    line: str,
    names: dict[str, str],
    instant: Instant,
    choices: dict[str, Sequence[str]],
    *,
    pairs: bool = True,
) -> tuple[dict[str, Any], dict[tuple[str, ...], Any], list[str]]:
    found: dict[str, Any] = {}
    metadata: dict[tuple[str, ...], Any] = {}
    rest: list[str] = []
    for word in _WORD.finditer(line):
        name, value, path, wanted, _ = word.groups()
        value = (value or "").strip('"')
        if name in ("since", "until"):
            found[name] = instant(value)
        elif name in names:
            if value not in choices.get(name, (value,)):
                raise InvalidInput(f"{name} must be one of {', '.join(choices[name])}.")
            found[names[name]] = value
        elif path and pairs:
            metadata[tuple(path.split("."))] = _json(wanted)
        elif name and not value.startswith(_NO_FILTER):
            known = ", ".join(f"{each}:" for each in (*names, "since", "until"))
            raise InvalidInput(
                f"There is no filter {name}:, only {known}. Put words with a colon in quotes."
            )
        else:
            rest.append(word.group())
    return found, metadata, rest


def _json(text: str) -> Any:
    """Read JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
