"""Messages on their way in: checked and written out once, before anything is sent.

Every argument of a message is checked here and nowhere else; a ``Draft`` holds only what can be
stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Required, TypedDict, get_args

from agentstore.errors import InvalidInput, shown
from agentstore.records import MessageRecord
from agentstore.records.messages import make_message_record, told_role, users
from agentstore.records.words import Role
from agentstore.values import validation
from agentstore.values.chat.formats import only_answers, tools_called
from agentstore.values.chat.layouts import (
    ChatMessage,
    FromChat,
    as_payload,
    from_client,
    plain,
)
from agentstore.values.encoding import dump_json, is_plain_key, load_json
from agentstore.values.ids import new_id
from agentstore.values.states import COMPLETE, ROLES
from agentstore.values.types import Document

Marks = str | Enum | Collection[str | Enum] | None
"""A mark or several; an ``Enum`` of str counts as its value."""


Unknown = Literal["refuse", "keep"]
"""What becomes of a JSON object that is no message and no item that agentstore knows."""


class NewMessage(TypedDict, total=False):
    """A message for ``save_many``: the arguments of ``save``."""

    role: Required[Role]
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


_KEYS = frozenset(NewMessage.__annotations__)


@dataclass(slots=True)
class Draft:
    """A message that can be written.

    Attributes:
        row: Its row in ``messages``; who appends it adds session, branch, seq and turn.
        calls: Its rows in ``message_tool_calls``.
        marks: Its rows in ``message_marks``; None if none were named.
        layout: How it was laid out as a chat message; see ``values.chat.layouts``.
    """

    row: dict[str, Any]
    calls: list[dict[str, Any]]
    marks: list[dict[str, Any]] | None
    layout: list[Any] | None

    def record(self, session_id: str) -> MessageRecord:
        """Give what a reader would see of a message of a session, once the row is complete."""
        row = self.row

        def read(column: str) -> Any:
            stored = row[column]
            return None if stored is None else load_json(stored)

        return make_message_record(
            row["id"],
            session_id,
            row["seq"],
            row["branch"],
            row["turn"],
            told_role(row["role"], self.layout),
            row["content"] if row["blocks"] is None else read("blocks"),
            read("tool_calls"),
            row["tool_call_id"],
            row["name"],
            row["token_count"],
            row["cost"],
            read("metadata"),
            read("payload"),
            row["external_id"],
            row["status"],
            row["created_at"],
            self.layout,
        )


def draft(message: Mapping[str, Any], prefix: str = "") -> Draft:
    """Check a message and write out its documents.

    Args:
        message: Its keys are those of ``NewMessage``.
        prefix: What the names of arguments begin with in errors, such as ``messages[3].``.

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
            f"{which} is not an argument of a message. Use "
            f"{', '.join(sorted(_KEYS))}, and put the rest into metadata or payload."
        )
    get = message.get
    identity = new_id()
    row: dict[str, Any] = {
        **_ABSENT,
        "id": identity,
        "role": validation.choice(f"{prefix}role", get("role"), ROLES),
        "token_count": validation.tokens(f"{prefix}token_count", get("token_count", 0)),
    }
    for name, check in _OPTIONAL.items():
        if (value := get(name)) is not None:
            row[name] = check(f"{prefix}{name}", value)
    content, payload = get("content"), get("payload")
    if isinstance(content, list):
        row["content"], row["blocks"] = None, row["content"]
    layout = message.layout if isinstance(message, FromChat) else None
    if row["role"] == "user" and only_answers(content, payload):
        row["role"], layout = "tool", users(layout)
    if layout is not None:
        row["chat_keys"] = Document(dump_json(layout, f"{prefix}keys"))
    marks: list[dict[str, Any]] | None = None
    if (given := get("marks")) is not None:
        found = validation.marks(f"{prefix}marks", given)
        marks = [{"message_id": identity, "mark": mark} for mark in found]
    calls: list[dict[str, Any]] = []
    if row["tool_calls"] is not None:
        calls = tool_call_rows(identity, message["tool_calls"])
    elif payload is not None or row["blocks"] is not None:
        calls = _other_call_rows(identity, content, payload)
    return Draft(row, calls, marks, layout)


def chat_drafts(
    messages: ChatMessage | Sequence[ChatMessage],
    marks: Marks = None,
    token_counter: Callable[[dict[str, Any]], int] | None = None,
    unknown: Unknown = "refuse",
) -> list[Draft]:
    """Check chat messages and write out their documents; see ``Messages.save_chat``."""
    keep = validation.choice("unknown", unknown, get_args(Unknown)) == "keep"
    counter = validation.optional_function("token_counter", token_counter)
    given = [*messages] if isinstance(messages, list | tuple) else [messages]
    drafts: list[Draft] = []
    for n, each in enumerate(given):
        message = from_client(each, f"messages[{n}]", counter, keep=keep)
        message["marks"] = marks
        try:
            drafts.append(draft(message, f"messages[{n}]."))
        except InvalidInput as refused:
            if not keep or message.layout == []:
                raise
            whole = as_payload(plain(each))
            whole.update(marks=marks, token_count=message.get("token_count", 0))
            try:
                drafts.append(draft(whole, f"messages[{n}]."))
            except InvalidInput:
                raise refused from None  # it names the place as the caller knows it
    return drafts


def _content(name: str, value: Any) -> str | Document:
    if isinstance(value, str):
        return validation.text(name, value)
    if isinstance(value, list):
        return Document(dump_json(value, name))
    raise InvalidInput(
        f"{name} must be a str, a list of blocks or None, not {type(value).__name__}. Pass other "
        "values, such as what a tool returned, as text: json.dumps(value)."
    )


def _tool_calls(name: str, value: Any) -> Document:
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise InvalidInput(f"{name} must be a list of dicts.")
    return Document(dump_json(value, name))


_OPTIONAL: dict[str, Callable[[str, Any], Any]] = {
    "content": _content,
    "tool_call_id": validation.text,
    "name": validation.text,
    "cost": validation.cost,
    "metadata": validation.json_object,
    "payload": validation.document,
    "external_id": validation.key,
    "tool_calls": _tool_calls,
}
"""The arguments that may be None, and what checks each and writes it as it is stored."""

_ABSENT: dict[str, Any] = {
    **dict.fromkeys(_OPTIONAL),
    "blocks": None,
    "chat_keys": None,
    "cost": Decimal(0),
    "idempotency_key": None,
    "status": COMPLETE,
}
"""The columns of a message of which nothing is said."""


def tool_call_rows(message_id: str, tool_calls: list[Any]) -> list[dict[str, Any]]:
    """Give the rows of ``message_tool_calls`` for the calls of a message.

    A name that no index takes is left out of it: the call is stored, and not found by its name.
    """
    calls = [_call(message_id, position, call) for position, call in enumerate(tool_calls)]
    return [call for call in calls if call["name"] or call["call_id"] is not None]


def _other_call_rows(message_id: str, content: Any, payload: Any) -> list[dict[str, Any]]:
    """Give the rows for the calls in blocks, or of an item; what no index takes is left out."""
    rows = [
        {
            "message_id": message_id,
            "position": position,
            "name": name if validation.is_short(name) else "",
            "call_id": None if call_id is None else indexed_call_id(call_id),
        }
        for position, (name, call_id) in enumerate(tools_called(content, payload))
    ]
    return [row for row in rows if row["name"] or row["call_id"] is not None]


def indexed_call_id(call_id: str) -> str:
    """Give a call's id as it is indexed: some providers' are too long for an index."""
    if validation.is_short(call_id):
        return call_id
    return f"sha256:{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _call(message_id: str, position: int, call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else call.get("name")
    call_id = call.get("id")
    return {
        "message_id": message_id,
        "position": position,
        "name": name if isinstance(name, str) and validation.is_short(name) else "",
        "call_id": indexed_call_id(call_id) if isinstance(call_id, str) else None,
    }
