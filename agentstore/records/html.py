"""Records as HTML, for notebooks: sessions, and histories with what was said.

A repr says nothing of what was said, since it gets into logs and errors. A notebook asks for HTML
only of what somebody displays, and who displays a conversation wants to read it: so what was said
is shown here. All of it is escaped, and long texts are cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

MOST_CHARACTERS = 2_000
"""Of a text."""

MOST_ROWS = 200
"""Of a table; the last ones."""

_SESSION = ("id", "user_id", "status", "title", "model", "message_count", "total_tokens")
_MESSAGE = ("seq", "role", "name")


def sessions_as_html(sessions: Sequence[Any]) -> str:
    """Show sessions as a table."""
    names = (*_SESSION, "last_active_at", *(["preview"] if _any(sessions, "preview") else []))
    rows = ([_text(getattr(each, name)) for name in names] for each in sessions[-MOST_ROWS:])
    return _table(names, rows, len(sessions))


def messages_as_html(messages: Sequence[Any]) -> str:
    """Show a conversation as a table, with what was said."""
    rows = (
        [*(_text(getattr(each, name)) for name in _MESSAGE), _said(each)]
        for each in messages[-MOST_ROWS:]
    )
    return _table((*_MESSAGE, "content"), rows, len(messages))


def _any(records: Iterable[Any], name: str) -> bool:
    return any(getattr(each, name) is not None for each in records)


def _said(message: Any) -> str:
    item = message.payload if message.content is None else None
    parts = (message.content, message.tool_calls, item)
    return "".join(f"<pre>{_text(part)}</pre>" for part in parts if part is not None)


def _text(value: Any) -> str:
    """Write a value so that HTML can hold it, whatever is in it."""
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, indent=1)
    text = "" if value is None else str(value)
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}… ({len(text) - MOST_CHARACTERS} more characters)"
    text = text.replace("\x00", "\ufffd").encode("utf-8", "backslashreplace").decode("utf-8")
    return escape(text)


def _table(names: Iterable[str], rows: Iterable[Sequence[str]], count: int) -> str:
    """Put cells, which are HTML, into a table."""
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    left = f"<caption>the last {MOST_ROWS} of {count}</caption>" if count > MOST_ROWS else ""
    return f"<table>{left}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
