"""How a line is laid out: which keys it has, in which order, and those without a column.

What is stored of that may have been written by anybody who can write to the database, so it is
believed only in what it can say: an order, and values of keys that have no column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from agentstore.records import MessageRecord, SessionRecord

KEYS = ("id", "title", "user", "model", "metadata", "messages")
"""The keys of a conversation that have a place of their own, in their usual order."""

_IDS = ("id", "user")


def conversation_id(conversation: dict[str, Any]) -> str:
    """Give the id of the session that a conversation is stored as.

    Returns:
        Its ``id``, a whole number in its decimal digits. Without one, ``sha256:`` and the SHA-256,
        in hexadecimal, of the conversation as JSON in ASCII, without ``id``, its keys sorted and no
        spaces between: the user is a part of it, and two lines that say the same have the same.
    """
    given: str | None = as_key(conversation.get("id"))
    if given is not None:
        return given
    named = {key: value for key, value in conversation.items() if key != "id"}
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def as_key(value: Any) -> Any:
    """Give an id as it is stored: of a whole number its decimal digits."""
    return str(value) if type(value) is int else value


def with_user(conversation: dict[str, Any], user_id: str | None) -> dict[str, Any]:
    """Give a conversation that names its user, if it named none."""
    if user_id is None or conversation.get("user") is not None:
        return conversation
    return {**conversation, "user": user_id}


def layout_of(conversation: dict[str, Any]) -> dict[str, Any] | None:
    """Give what has to be kept of a line beside its columns; None where it is a usual one."""
    usual = [key for key in KEYS if key != "metadata" or conversation.get(key)]
    given = {key: conversation[key] for key in _IDS if type(conversation.get(key)) is int}
    if conversation.get("metadata", {}) is None:
        given["metadata"] = None
    if list(conversation) == usual and not given:
        return None
    extra = {key: value for key, value in conversation.items() if key not in KEYS}
    layout = {"keys": list(conversation), "extra": extra}
    return {**layout, "given": given} if given else layout


def to_conversation(
    session: SessionRecord, messages: Iterable[MessageRecord], layout: Any = None
) -> dict[str, Any]:
    """Give a session as a conversation in chat format; it is written as JSON as it is.

    Args:
        session: The session.
        messages: What it is to have as messages.
        layout: What ``layout_of`` gave of the line that it was made of, if it was.
    """
    values: dict[str, Any] = {
        "id": session.id,
        "title": session.title,
        "user": session.user_id,
        "model": session.model,
        "metadata": session.metadata,
        "messages": [message.to_chat() for message in messages],
    }
    found = _valid(layout)
    if found is None:
        return {key: value for key, value in values.items() if key != "metadata" or value}
    keys, extra = found
    values |= _given(layout, values)
    laid_out = {key: extra[key] if key in extra else values[key] for key in keys}
    # What was set since stands before what the line had.
    since = {
        key: values[key]
        for key in KEYS
        if key not in laid_out and key != "id" and (values[key] or key == "messages")
    }
    line = {**since, **laid_out}
    if "id" in line or conversation_id(line) == session.id:
        return line
    return {"id": session.id, **line}


def _valid(layout: Any) -> tuple[list[str], dict[str, Any]] | None:
    """Give the usable keys and values of a stored layout; None if it is not a layout."""
    if not isinstance(layout, dict):
        return None
    keys, extra = layout.get("keys"), layout.get("extra")
    if not isinstance(keys, list) or not isinstance(extra, dict):
        return None
    others = {key: value for key, value in extra.items() if key not in KEYS}
    known = [key for key in keys if isinstance(key, str) and (key in KEYS or key in others)]
    return known, others


def _given(layout: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Give what a line had in other words than the columns: ids as numbers, null as metadata.

    Only what says the same as the columns do.
    """
    given = layout.get("given")
    if not isinstance(given, dict):
        return {}
    found = {
        key: given[key]
        for key in _IDS
        if type(given.get(key)) is int and as_key(given[key]) == values[key]
    }
    if given.get("metadata", {}) is None and not values["metadata"]:
        found["metadata"] = None
    return found
