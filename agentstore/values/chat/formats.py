"""What one message says: the calls that it makes, and the results that it gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from agentstore.records.messages import OLD_TOOL_ROLE

Key = str | tuple[str, str]
"""What a result names its call by: an id, or, in the older chat format, ``function`` and a name."""

Form = Literal["chat", "function", "blocks", "items"]


class Call(NamedTuple):
    """A call that a result has to answer.

    Attributes:
        form: In which format it is made.
        kind: The type of a Responses item; else empty.
        required: Whether the API refuses a history without its result.
    """

    key: Key
    form: Form
    kind: str = ""
    required: bool = True


class Said(NamedTuple):
    """What matters of a message for those around it.

    Attributes:
        calls: What it calls, each key once.
        results: What it answers, each key once.
        twice: Whether it answers something twice.
        mixed: Whether it says something else beside its results.
        item: Whether it is an item that a model put out on its own, as the Responses API has it.
        reasoning: Whether it is the reasoning that leads to the next of these items.
    """

    calls: tuple[Call, ...] = ()
    results: tuple[Key, ...] = ()
    twice: bool = False
    mixed: bool = False
    item: bool = False
    reasoning: bool = False


def said_by(
    role: str,
    content: Any,
    tool_calls: Any,
    tool_call_id: str | None,
    name: str | None,
    payload: Any,
) -> Said | None:
    """Say what a message says, by its fields; None if it neither calls nor answers.

    The fields come first; ``payload`` matters where they say nothing.
    """
    if tool_calls and (made := _made_in_chat(tool_calls)):
        return Said(made)
    if role == "tool" and tool_call_id and isinstance(tool_call_id, str):
        return Said(results=(tool_call_id,))
    if type(content) is list and (said := _said_in_blocks(content)) is not None:
        return said
    if type(payload) is dict:
        if role == "tool" and name and payload.get("role") == OLD_TOOL_ROLE:
            return Said(results=((OLD_TOOL_ROLE, name),))
        return said_in(payload)
    return None


def said_in(message: dict[str, Any]) -> Said | None:
    """Say what a message or an item of any format says; None if it neither calls nor answers."""
    older, role = message.get("function_call"), message.get("role")
    if isinstance(older, dict) and isinstance(older.get("name"), str):
        return Said((Call((OLD_TOOL_ROLE, older["name"]), "function"),))
    if "role" not in message:
        return _said_by_item(message)
    name = message.get("name")
    if role == OLD_TOOL_ROLE and isinstance(name, str):
        return Said(results=((OLD_TOOL_ROLE, name),))
    content, made, answered = map(message.get, ("content", "tool_calls", "tool_call_id"))
    said = said_by(str(role), content, made, answered, None, None)
    if said is None and role == "assistant" and message.get("type") == "message":
        return Said(item=True)
    return said


def _made_in_chat(tool_calls: Any) -> tuple[Call, ...]:
    if not isinstance(tool_calls, list):
        return ()
    found = (call.get("id") for call in tool_calls if isinstance(call, dict))
    ids = dict.fromkeys(each for each in found if isinstance(each, str))
    return tuple(Call(each, "chat") for each in ids)


def _said_in_blocks(blocks: list[Any]) -> Said | None:
    made: dict[str, None] = {}
    results: list[str] = []
    for block in blocks:
        if isinstance(block, dict):
            kind = block.get("type")
            if kind == "tool_use" and isinstance(block.get("id"), str):
                made[block["id"]] = None
            elif (answered := result_of(block)) is not None:
                results.append(answered)
    if made:
        return Said(tuple(Call(each, "blocks") for each in made))
    if not results:
        return None
    once = tuple(dict.fromkeys(results))
    return Said((), once, twice=len(once) < len(results), mixed=len(results) < len(blocks))


def result_of(block: Any) -> str | None:
    """Give the id of the call that a content block answers; None if it answers none."""
    if isinstance(block, dict) and block.get("type") == "tool_result":
        answered = block.get("tool_use_id")
        return answered if isinstance(answered, str) else None
    return None


def _said_by_item(item: dict[str, Any]) -> Said | None:
    kind = item.get("type")
    if not isinstance(kind, str):
        return None
    if (answered := _answered_by(kind, item)) is not None:
        return Said(results=(answered,))
    if kind == "reasoning":
        return Said(item=True, reasoning=True)
    if kind == "mcp_approval_request" and isinstance(item.get("id"), str):
        return Said((Call(item["id"], "items", kind, required=False),), item=True)
    if kind.endswith("_call"):
        called = item.get("call_id")
        made = (Call(called, "items", kind),) if isinstance(called, str) else ()
        return Said(made, item=True)
    return None


_ANSWERS = {"tool_search_output": "call_id", "mcp_approval_response": "approval_request_id"}
"""Items that answer though their type does not end in ``_call_output``, and what names the call."""


def _answered_by(kind: str, item: dict[str, Any]) -> str | None:
    answered = item.get(_ANSWERS.get(kind, "call_id"))
    if kind == "local_shell_call_output" and not isinstance(answered, str):
        answered = item.get("id")  # as the API's reference has it
    if kind in _ANSWERS or kind.endswith("_call_output"):
        return answered if isinstance(answered, str) else None
    return None


ITEM_TYPES = frozenset(
    [
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "function_call",
        "function_call_output",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "reasoning",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    ]
)
"""The types of the Responses API's input items that need no role."""


def is_known_item(item: dict[str, Any]) -> bool:
    """Say whether an object without a role is an item of the Responses API.

    One that calls a function has to name it and the call, one that gives a result its call.
    """
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in ITEM_TYPES:
        return False
    if kind in ("function_call", "custom_tool_call"):
        return all(isinstance(item.get(key), str) for key in ("call_id", "name"))
    answers = kind in _ANSWERS or kind.endswith("_call_output")
    return not answers or _answered_by(kind, item) is not None


def item_role(item: dict[str, Any]) -> str:
    """Give the role under which an item without a role is stored."""
    return "tool" if _answered_by(str(item.get("type")), item) is not None else "assistant"


def only_answers(content: Any, payload: Any) -> bool:
    """Say whether a message holds results of tools and nothing else: it begins no turn then."""
    if type(content) is list:
        said = _said_in_blocks(content)
        return said is not None and bool(said.results) and not said.mixed
    if content or type(payload) is not dict or "role" in payload:
        return False
    said = _said_by_item(payload)
    return said is not None and bool(said.results)


def tools_called(content: Any, payload: Any) -> Iterator[tuple[str, str | None]]:
    """Give the tools that blocks, or an item, call: the name of each, and the id of the call.

    Also those that the provider runs. Those in ``tool_calls`` are not among them.
    """
    if type(content) is list:
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            if isinstance(kind, str) and kind.endswith("tool_use"):
                yield _name(block, kind), _id(block, "id")
        return
    if type(payload) is not dict:
        return
    older, kind = payload.get("function_call"), payload.get("type")
    if isinstance(older, dict):
        yield _name(older, ""), None
    elif "role" in payload:
        calls = payload.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                function = call.get("function")
                yield _name(function if isinstance(function, dict) else call, ""), _id(call, "id")
        if type(payload.get("content")) is list:
            yield from tools_called(payload["content"], None)
    elif isinstance(kind, str) and kind.endswith("_call"):
        yield _name(payload, kind.removesuffix("_call")), _id(payload, "call_id")


def _name(call: dict[str, Any], otherwise: str) -> str:
    name = call.get("name")
    return name if isinstance(name, str) else otherwise


def _id(call: dict[str, Any], key: str) -> str | None:
    found = call.get(key)
    return found if isinstance(found, str) else None
