"""What ADK's events and shared states are in a store; without ADK."""

from __future__ import annotations

from typing import Any

from agentstore.integrations.sessions import key_of


def shared_id(app_name: str, *user_id: str) -> str:
    """Give the id of the session that holds what is shared; no session of ADK's has such a one."""
    return key_of(app_name, *user_id, "", "state")


def shared_title(app_name: str) -> str:
    """Give the title of such a session."""
    return f"ADK: shared state of {app_name}"


def new_message(written: dict[str, Any]) -> dict[str, Any]:
    """Give an event, as ADK writes it, for ``save_many``."""
    author, content = written["author"], written.get("content") or {}
    parts = content.get("parts") if isinstance(content, dict) else None
    blocks = [
        block for part in (parts if isinstance(parts, list) else ()) for block in _blocks(part)
    ]
    answers = bool(blocks) and all(block["type"] == "tool_result" for block in blocks)
    said: Any = blocks or None
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        said = blocks[0]["text"]
    return {
        "role": "user" if author == "user" or answers else "assistant",
        "content": said,
        "name": author,
        "external_id": written.get("id") or None,
        "payload": written,
    }


def _blocks(part: Any) -> list[dict[str, Any]]:
    """Give what a part says, as content blocks; the payload has the rest."""
    if not isinstance(part, dict):
        return []
    if isinstance(text := part.get("text"), str) and not part.get("thought"):
        return [{"type": "text", "text": text}]
    if isinstance(call := part.get("function_call"), dict) and call:
        used = {"id": call.get("id"), "name": call.get("name"), "input": call.get("args")}
        return [{"type": "tool_use", **used}]
    if isinstance(answer := part.get("function_response"), dict) and answer:
        result = {"tool_use_id": answer.get("id"), "content": str(answer.get("response", ""))}
        return [{"type": "tool_result", **result}]
    return []
