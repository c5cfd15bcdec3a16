"""Messages on their way in: everything checked and written out before anything is sent."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Required, TypedDict

from agentstore.errors import InvalidInput, shown
from agentstore.records import MessageRecord
from agentstore.records.messages import CHAT_KEYS
from agentstore.values import validation
from agentstore.values.encoding import is_plain_key, load_json
from agentstore.values.ids import new_id
from agentstore.values.states import ROLES

Marks = str | Enum | Collection[str | Enum] | None
"""A mark or several; an ``Enum`` of str counts as its value."""


class NewMessage(TypedDict, total=False):
    """A message for ``save_many``: the arguments of ``save``."""

    role: Required[str]
    content: str | list[Any] | None
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    name: str | None
    token_count: int
    cost: Decimal | int | str | None
    metadata: Mapping[str, Any] | None
    payload: Any
    external_id: str | None
    marks: Marks
    chat_keys: list[str] | None


_KEYS = frozenset(NewMessage.__annotations__)


@dataclass(slots=True)
class Draft:
    """A message that can be written.

    Attributes:
        row: Its row in ``messages``; who appends it adds session, branch, seq and turn.
        calls: Its rows in ``message_tool_calls``.
        marks: Its rows in ``message_marks``; None if none were named.
    """

    row: dict[str, Any]
    calls: list[dict[str, Any]]
    marks: list[dict[str, Any]] | None

    def record(self) -> MessageRecord:
        """Give what a reader would see, once the row is complete."""
        row = self.row

        def read(column: str) -> Any:
            stored = row[column]
            return None if stored is None else load_json(stored)

        return MessageRecord(
            id=row["id"],
            session_id=row["session_id"],
            seq=row["seq"],
            branch=row["branch"],
            turn=row["turn"],
            role=row["role"],
            content=row["content"] if row["blocks"] is None else read("blocks"),
            tool_calls=read("tool_calls"),
            tool_call_id=row["tool_call_id"],
            name=row["name"],
            token_count=row["token_count"],
            cost=row["cost"],
            metadata=read("metadata"),
            payload=read("payload"),
            external_id=row["external_id"],
            status=row["status"],
            created_at=row["created_at"],
            chat_keys=read("chat_keys"),
        )


def draft(message: Mapping[str, Any], prefix: str = "") -> Draft:
    """Check a message and write out its documents.

    Args:
        message: Its keys are those of ``NewMessage``.
        prefix: What the names of arguments begin with in errors.

    Raises:
        InvalidInput: It cannot be stored.
    """
    if not isinstance(message, Mapping):
        raise InvalidInput(f"{prefix.rstrip('.') or 'message'} must be a mapping with a role.")
    if unknown := message.keys() - _KEYS:
        key = min(unknown, key=str)
        plain = is_plain_key(key) if isinstance(key, str) else isinstance(key, int)
        which = f"{prefix}{key if isinstance(key, str) else shown(key)}" if plain else "A key"
        raise InvalidInput(
            f"{which} is no argument of a message. Use "
            f"{', '.join(sorted(_KEYS))}, and put the rest into metadata or payload."
        )
    get = message.get
    role = get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidInput(f"{prefix}role is {shown(role)}; use one of {', '.join(ROLES)}.")
    content = get("content")
    if content is not None and not isinstance(content, str | list):
        raise InvalidInput(
            f"{prefix}content must be a str, a list of blocks or None, "
            f"not {type(content).__name__}."
        )
    is_text = isinstance(content, str)
    metadata = get("metadata")
    identity = new_id()
    row = {
        "id": identity,
        "role": validation.text("role", role),
        "status": "complete",
        "content": validation.text("content", content) if is_text else None,
        "blocks": None if is_text else validation.document(f"{prefix}content", content),
        "tool_call_id": validation.optional_text(f"{prefix}tool_call_id", get("tool_call_id")),
        "name": validation.optional_text(f"{prefix}name", get("name")),
        "token_count": validation.tokens(f"{prefix}token_count", get("token_count", 0)),
        "cost": validation.cost(f"{prefix}cost", get("cost")),
        "metadata": None
        if metadata is None
        else validation.json_object(f"{prefix}metadata", metadata),
        "payload": validation.document(f"{prefix}payload", get("payload")),
        "external_id": validation.optional_key(f"{prefix}external_id", get("external_id")),
        "idempotency_key": None,
        "chat_keys": validation.document(f"{prefix}chat_keys", get("chat_keys")),
        "tool_calls": None,
    }
    _require_chat_keys(get("chat_keys"), get("payload"), prefix)
    marks = validation.marks(f"{prefix}marks", get("marks"))
    marked = [{"message_id": identity, "mark": mark} for mark in marks]
    tool_calls = get("tool_calls")
    if tool_calls is None:
        return Draft(row, [], None if get("marks") is None else marked)
    if not isinstance(tool_calls, list) or not all(isinstance(c, dict) for c in tool_calls):
        raise InvalidInput(f"{prefix}tool_calls must be a list of dicts.")
    row["tool_calls"] = validation.document(f"{prefix}tool_calls", tool_calls)
    calls = tool_call_rows(identity, tool_calls, f"{prefix}tool_calls")
    return Draft(row, calls, None if get("marks") is None else marked)


def tool_call_rows(message_id: str, tool_calls: list[Any], place: str) -> list[dict[str, Any]]:
    """Give the rows of ``message_tool_calls`` for the calls of a message."""
    calls = [
        _call(message_id, position, call, f"{place}[{position}]")
        for position, call in enumerate(tool_calls)
    ]
    return [call for call in calls if call["name"] or call["call_id"] is not None]


def _require_chat_keys(keys: Any, payload: Any, prefix: str) -> None:
    """Require of an imported message a role, and that ``to_chat`` will find every key's value."""
    if keys is None:
        return
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise InvalidInput(f"{prefix}chat_keys must be a list of str.")
    if "role" not in keys:
        raise InvalidInput(f"{prefix}chat_keys must name role.")
    extra = payload if isinstance(payload, dict) else {}
    if any(key not in CHAT_KEYS and key not in extra for key in keys):
        raise InvalidInput(
            f"{prefix}chat_keys names a key that has no value. Use {', '.join(CHAT_KEYS)}, and "
            "put the values of others into payload."
        )


def indexed_call_id(call_id: str) -> str:
    """Give a call's id as it is indexed: some providers' are too long for an index."""
    if validation.is_short(call_id):
        return call_id
    return f"sha256:{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _call(message_id: str, position: int, call: dict[str, Any], place: str) -> dict[str, Any]:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else call.get("name")
    call_id = call.get("id")
    return {
        "message_id": message_id,
        "position": position,
        "name": validation.key(f"{place}.name", name) if isinstance(name, str) else "",
        "call_id": indexed_call_id(call_id) if isinstance(call_id, str) else None,
    }
