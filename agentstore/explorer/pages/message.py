"""One message, whole: everything that it holds, and how it is stored."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from starlette.responses import Response

from agentstore.errors import NotFound
from agentstore.explorer.pages.conversation import of_message
from agentstore.explorer.web import texts
from agentstore.explorer.web.cards import said_as_html
from agentstore.explorer.web.held import held_by
from agentstore.explorer.web.visits import Visit

_ON_A_PAGE = 50_000
"""Characters."""

_SHOWN = ("content", "tool_calls", "payload", "metadata")


async def page(visit: Visit) -> Response:
    """Show a message, by pages if it is very long."""
    message = await visit.ask(visit.store.messages.get, visit.needed("id"))
    session = await visit.ask(visit.store.sessions.find, message.session_id)
    if session is None:
        raise NotFound("session", message.session_id)
    marks = await visit.ask(visit.store.marks.of, [message.id])
    files = await visit.ask(visit.store.attachments.list, message.id)
    held = held_by(message)
    said = "\n\n".join([*held.thoughts, *held.texts])
    documents: dict[str, Any] = {
        each.name: getattr(message, each.name) for each in fields(message) if each.name in _SHOWN
    }
    if isinstance(message.content, str):
        documents["content"] = None  # it stands above
        said = message.content
    stored = texts.written({name: each for name, each in documents.items() if each is not None})
    at = visit.whole("at", 0, least=0, most=10**9)
    whole = [said, stored if stored != "{}" else ""]
    longest = max(len(each) for each in whole)
    parts = [each[at : at + _ON_A_PAGE] for each in whole]
    shown = said_as_html if longest <= _ON_A_PAGE else texts.plain  # a page may begin in a word
    return visit.page(
        "message.html",
        message=message,
        session=session,
        marks=marks.get(message.id, ()),
        files=files,
        said=shown(parts[0]) if parts[0] else None,
        stored=texts.pretty(parts[1]) if parts[1] else None,
        back=of_message(message),
        longest=longest,
        until=min(at + _ON_A_PAGE, longest),
        begin=at,
        further=visit.here(at=at + _ON_A_PAGE) if at + _ON_A_PAGE < longest else None,
    )
