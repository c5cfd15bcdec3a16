"""Chat messages as the arguments with which they are saved, and how they were laid out.

What comes out again is equal, key by key and in the order of the keys: what has no column goes into
the payload, and an unusual order is kept as a list of the keys (see ``records.messages``). An item
of the Responses API, which has no role, is the payload as a whole; its list of keys is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentstore.errors import InvalidInput
from agentstore.records.messages import CHAT_KEYS, OLD_TOOL_ROLE
from agentstore.values.chat.formats import item_role
from agentstore.values.states import ROLES

_COUNTS = ("output_tokens", "completion_tokens")


class Dumps(Protocol):
    """A message as a client gives it: an object of pydantic's."""

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Give the object as a dict."""


ChatMessage = Mapping[str, Any] | Dumps
"""A message as the clients of the models' APIs give it and take it."""


class FromChat(dict[str, Any]):
    """The arguments of ``save`` for a chat message.

    Attributes:
        layout: Its keys in their order, where these are unusual; empty for an item without a role.
    """

    __slots__ = ("layout",)

    layout: list[Any] | None


def from_chat(chat: Mapping[str, Any]) -> FromChat:
    """Give a chat message, or an item of the Responses API, as the arguments that save it.

    What is wrong with it shows when these are checked.
    """
    message = FromChat()
    message.layout = None
    if "role" not in chat and isinstance(chat.get("type"), str):
        item = dict(chat)
        message.update(role=item_role(item), payload=item)
        message.layout = []
        return message
    message.update((key, chat[key]) for key in CHAT_KEYS if key in chat)
    extra = {key: value for key, value in chat.items() if key not in CHAT_KEYS}
    usual = ["role", "content"]
    usual += [key for key in CHAT_KEYS[2:] if chat.get(key) is not None]
    if message.get("role") == OLD_TOOL_ROLE:
        message["role"] = "tool"
        extra["role"] = OLD_TOOL_ROLE
    if list(chat) != usual or extra:
        message.layout = list(chat)
        if extra:
            message["payload"] = extra
    return message


def as_payload(item: dict[str, Any]) -> FromChat:
    """Give any JSON object as the arguments that save it as the payload, whole.

    Its role counts where it has one that agentstore knows.
    """
    message, role = FromChat(payload=item), item.get("role")
    if role in ROLES:
        message["role"] = role
    else:
        message["role"] = "tool" if role == OLD_TOOL_ROLE else item_role(item)
    message.layout = []
    return message


def from_client(
    given: object,
    place: str,
    token_counter: Callable[[dict[str, Any]], int] | None = None,
    *,
    keep: bool = False,
) -> FromChat:
    """Give what a client gave, or takes, as the arguments with which it is saved.

    Of a whole answer of Anthropic's only the role and the content are laid out: the API refuses the
    other keys of its answers when they are sent back. They are kept in the payload.

    Args:
        given: A mapping, or an object with ``model_dump``.
        place: How errors call it.
        token_counter: Counts the tokens of a message that says nothing of its usage.
        keep: Take any JSON object, and keep all its keys.

    Raises:
        InvalidInput: It is neither, or, without ``keep``, has neither a role nor a type.
    """
    chat = plain(given)
    if not isinstance(chat, dict):
        raise InvalidInput(
            f"{place} must be a mapping or have model_dump(), not {type(given).__name__}."
        )
    known = "role" in chat or isinstance(chat.get("type"), str)
    if not known and not keep:
        raise InvalidInput(
            f"{place} must have a role, or the type of a Responses item. Of a whole response pass "
            "choices[0].message (chat completions) or output (Responses)."
        )
    message = from_chat(chat) if known else as_payload(chat)
    usage = chat.get("usage")
    used = usage if chat.get("role") == "assistant" and isinstance(usage, dict) else {}
    counts = [used[name] for name in _COUNTS if type(used.get(name)) is int]
    if counts:
        message["token_count"] = counts[0]
    elif token_counter is not None:
        message["token_count"] = token_counter(chat)
    if used and chat.get("type") == "message" and "stop_reason" in chat and not keep:
        message.layout = [key for key in chat if key in CHAT_KEYS]
    return message


def plain(value: Any, depth: int = 8) -> Any:
    """Give a value without clients' objects in it, each as the clients themselves send it.

    What lies deeper than clients nest their objects is left as it is.
    """
    if isinstance(value, str | int | float | None) or not depth:
        return value
    if isinstance(value, list):
        return [plain(each, depth - 1) for each in value]
    if isinstance(value, Mapping):
        return {key: plain(each, depth - 1) for key, each in value.items()}
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json", exclude_unset=True)
    return value
