"""One message, whole: everything that it holds, and how it is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from agentstore.errors import NotFound
from agentstore.explorer.pages.conversation import of_message
from agentstore.explorer.web import texts
from agentstore.explorer.web.cards import said_as_html
from agentstore.explorer.web.held import held_by
from agentstore.explorer.web.visible import visible
from agentstore.explorer.web.visits import Visit
from agentstore.records import MessageRecord

_ON_A_PAGE = 50_000
"""Characters."""

_RAW_MESSAGES = 40
_RAW_OF_ONE = 4_000
"""Characters of each, where several are given as they are."""

_SHOWN = ("content", "tool_calls", "payload", "metadata")


async def page(visit: Visit) -> Response:
    """Show a message, by pages if it is very long."""
    message = await visit.ask(visit.store.messages.get, visit.needed("id"))
    session = await visit.ask(visit.store.sessions.find, message.session_id)
    if session is None:
        raise NotFound("session", message.session_id)
    marks = await visit.ask(visit.store.marks.of, [message.id])
    files = await visit.ask(visit.store.attachments.list, message.id)
    at = visit.whole("at", 0, least=0, most=10**9)
    said, stored, longest, until = await visit.make(_pieces, message, at)
    return await visit.page(
        "message.html",
        message=message,
        session=session,
        marks=marks.get(message.id, ()),
        files=files,
        said=said,
        stored=stored,
        back=of_message(message),
        longest=longest,
        until=until,
        begin=at,
        further=visit.here(at=until) if until < longest else None,
    )


def _pieces(message: MessageRecord, at: int) -> tuple[Markup | None, Markup | None, int, int]:
    """Give what a message says and holds, from one character up to another, as HTML.

    Returns:
        What it says; how it is stored; how long the longer one is; where what is given ends.
    """
    held = held_by(message)
    said = "\n\n".join([*held.thoughts, *held.texts])
    documents: dict[str, Any] = {
        each.name: getattr(message, each.name) for each in fields(message) if each.name in _SHOWN
    }
    if isinstance(message.content, str):
        documents["content"] = None  # it stands above
        said = message.content
    stored = texts.written({name: each for name, each in documents.items() if each is not None})
    whole = [said, stored if stored != "{}" else ""]
    longest = max(len(each) for each in whole)
    end = at + _ON_A_PAGE
    while end - at > 100 and any(
        len(texts.plain(visible(each[at:end]))) > 3 * _ON_A_PAGE for each in whole
    ):
        end -= (end - at) // 2
    parts = [each[at:end] for each in whole]
    shown = said_as_html if longest <= end - at else texts.plain  # a page may begin in a word
    return (
        shown(parts[0]) if parts[0] else None,
        texts.pretty(parts[1]) if parts[1] else None,
        longest,
        max(min(end, longest), at),
    )


async def raw(visit: Visit) -> Response:
    """Give what a message says as it is; or what the last messages of a session say."""
    if (session := visit.given("session")) is None:
        told = [await visit.ask(visit.store.messages.get, visit.needed("id"))]
    else:
        branch = visit.given("branch")
        found = await visit.ask(
            visit.store.messages.page, session, limit=_RAW_MESSAGES, branch=branch
        )
        told = [*found.items]
    text = await visit.make(_raw, told)
    policy = "default-src 'none'; sandbox; frame-ancestors 'none'"
    return Response(
        text.encode("utf-8", "replace"),
        media_type="text/plain",
        headers={"Content-Security-Policy": policy},
    )


def _raw(told: Sequence[MessageRecord]) -> str:
    """Write messages as text: one of them whole, of several the beginning of each."""
    found = []
    for each in told:
        text = each.content
        if not isinstance(text, str):
            parts = {"content": text, "tool_calls": each.tool_calls, "payload": each.payload}
            held = {name: part for name, part in parts.items() if part is not None}
            text = json.dumps(held, ensure_ascii=False) if held else ""
        found.append(text if len(told) == 1 else f"#{each.seq} {each.role}\n{text[:_RAW_OF_ONE]}")
    return "\n\n".join(found)
