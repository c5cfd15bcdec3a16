"""Questions that a store of any version answers, and their answers as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

RECORD = "a record"
"""The key under which the fields of a record stand; other objects are an application's."""

WORDS = ("北京", "weather", "invoice", "searched", "nowhere")


def ask(store: Any) -> dict[str, Any]:
    """Ask for all that a store holds, by its public methods."""
    sessions = store.sessions.walk().items
    return plain(
        {
            "users": [store.users.get(user.id) for user in store.users.list()],
            "sessions": sessions,
            "of a session": {each.id: of_session(store, each.id) for each in sessions},
            "messages": list(pages(store.messages.follow)),
            "search": {word: found(store, word) for word in WORDS},
            "threads": {
                thread.id: of_thread(store, thread.id) for thread in store.checkpoints.threads()
            },
            "tasks": store.tasks.list().items,
            "tool logs": store.tool_logs.list().items,
            "memories": store.memories.list().items,
            "usage": [store.usage.sum_by(what) for what in ("model", "session")],
        }
    )


def of_session(store: Any, session_id: str) -> dict[str, Any]:
    branches = store.branches.list(session_id).items
    return {
        "active": store.branches.active(session_id),
        "branches": branches,
        "histories": {
            each.name: store.messages.history(
                session_id, None, branch=each.name, prepend_summary=True
            )
            for each in branches
        },
        "turns": {
            each.name: store.branches.turns(session_id, branch=each.name).items for each in branches
        },
        "tool usage": store.branches.tool_usage(session_id),
        "marked": store.messages.history(session_id, None, mark="pinned"),
        "searched": store.messages.find_by_tool(session_id, "search").items,
        "attachments": [
            (each, store.attachments.read(each.id))
            for each in store.attachments.list_of_session(session_id)
        ],
        "usage": store.usage.sum_by("turn", session_id=session_id),
        "counters": store.sessions.verify(session_id),
    }


def of_thread(store: Any, thread_id: str) -> list[Any]:
    return [
        (
            store.checkpoints.get(each.id, thread_id),
            store.checkpoints.path(each.id, thread_id),
            store.checkpoints.writes(thread_id, each.id),
        )
        for each in store.checkpoints.list(thread_id)
    ]


def found(store: Any, word: str) -> list[str]:
    return sorted(hit.message.id for hit in store.messages.search(word, order="recent"))


def pages(method: Callable[..., Any]) -> Any:
    """Go over all pages of a method that goes on where it was."""
    cursor = None
    while (page := method(cursor)).items:
        yield from page.items
        cursor = page.next_cursor


def plain(value: Any) -> Any:
    """Write a value as JSON has it, each in one way."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {RECORD: {name: plain(getattr(value, name)) for name in names}}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return f"bytes {value.hex()}" if isinstance(value, bytes) else value


def differences(then: Any, now: Any, at: str = "") -> list[str]:
    """Say where answers differ. A record may have got fields since, but has lost none."""
    if isinstance(then, dict) and isinstance(now, dict):
        missing = [f"{at}/{key} is gone" for key in then.keys() - now.keys()]
        more = now.keys() - then.keys()
        if not at.endswith(RECORD):
            missing += [f"{at}/{key} is new" for key in more]
        both = sorted(then.keys() & now.keys())
        return missing + [
            each for key in both for each in differences(then[key], now[key], f"{at}/{key}")
        ]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [each for n, pair in pairs for each in differences(*pair, f"{at}/{n}")]
    return [] if then == now else [f"{at}: {then!r} was, {now!r} is"]
