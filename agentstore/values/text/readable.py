"""What of a message is text that a person could read, and so could search for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_KEYS = ("text", "content", "output")
"""Where the chat APIs, and the frameworks' own items, keep text. Other values, such as ids, urls
and pictures in base64, are none."""


def readable_text(content: str | None, blocks: Any, payload: Any) -> str:
    """Give the text of a message, a line for each piece.

    Args:
        content: Its text, where that is no list.
        blocks: Its content blocks.
        payload: A framework's own item. Read only where content and blocks give nothing.
    """
    return content or "\n".join(_texts(blocks)) or "\n".join(_texts(payload))


def _texts(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        if document:
            yield document
    elif isinstance(document, list):
        for item in document:
            yield from _texts(item)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key in _KEYS or isinstance(value, dict | list):
                yield from _texts(value)
