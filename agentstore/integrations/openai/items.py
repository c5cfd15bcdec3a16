"""What the SDK's statistics say of an item: its kind, and the tool that it names."""

from __future__ import annotations

from typing import Any

CALLS = {
    "tool_call",
    "function_call",
    "computer_call",
    "file_search_call",
    "web_search_call",
    "code_interpreter_call",
    "tool_search_call",
    "custom_tool_call",
    "mcp_call",
    "mcp_approval_request",
    "shell_call",
    "apply_patch_call",
}
"""The kinds that count as the use of a tool."""

_NAMED_BY_KIND = {
    "computer_call": "computer_call",
    "file_search_call": "file_search_call",
    "web_search_call": "web_search_call",
    "code_interpreter_call": "code_interpreter_call",
    "shell_call": "shell_call",
    "apply_patch_call": "apply_patch_call",
    "tool_search_call": "tool_search",
    "tool_search_output": "tool_search",
}


def kind_of(item: dict[str, Any]) -> str:
    """Give ``user``, ``assistant``, or the type of an item."""
    role = item.get("role")
    if role in ("user", "assistant"):
        return str(role)
    kind = item.get("type")
    return kind if kind and isinstance(kind, str) else "other"


def tool_of(item: dict[str, Any]) -> str | None:
    """Give the name of the tool that an item calls, with its namespace; None if it names none."""
    kind, name = kind_of(item), item.get("name")
    if kind in ("mcp_call", "mcp_approval_request") and "server_label" in item:
        parts = [str(part) for part in (item.get("server_label"), name) if part]
        return ".".join(parts) or None
    if kind in _NAMED_BY_KIND:
        return _NAMED_BY_KIND[kind]
    if name is None:
        return None
    space = item.get("namespace")
    # The SDK gives a tool that is loaded late its own name as a namespace.
    return str(name) if space in (None, "", name) else f"{space}.{name}"


def tools_used(items: list[tuple[int, dict[str, Any]]]) -> list[tuple[str | None, int, int]]:
    """Count the calls of each tool in each turn.

    Args:
        items: Turns and items, in their order.

    Returns:
        Name, calls and turn, in the order of the turns and, in each, of the first calls. The output
        of a search for tools counts where the call is not there.
    """
    counts: dict[tuple[int, str | None], int] = {}
    searched = {turn for turn, item in items if item.get("type") == "tool_search_call"}
    for turn, item in items:
        kind = kind_of(item)
        if kind in CALLS or (kind == "tool_search_output" and turn not in searched):
            key = turn, tool_of(item)
            counts[key] = counts.get(key, 0) + 1
    return [(tool, count, turn) for (turn, tool), count in counts.items()]


def texts_of(item: dict[str, Any]) -> list[str]:
    """Give the texts of a user's message."""
    content = item.get("content", "")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    found = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in found if isinstance(text, str)]
