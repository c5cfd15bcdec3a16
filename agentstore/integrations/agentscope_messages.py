"""What AgentScope's messages are in a store; without AgentScope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Marks = str | list[str] | None


def new_message(written: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
    """Give a message, as ``Msg.to_dict`` writes it, for ``save_many``."""
    said = written["content"]
    content = said if isinstance(said, str) else [*said]
    kinds = {block.get("type") for block in content} if isinstance(content, list) else set()
    return {
        "role": "tool" if kinds == {"tool_result"} else written["role"],
        "content": content,
        "name": written["name"],
        "external_id": written["id"],
        "marks": marks,
        "payload": {
            "role": written["role"],
            "metadata": written.get("metadata"),
            "timestamp": written.get("timestamp"),
            "invocation_id": written.get("invocation_id"),
        },
    }
