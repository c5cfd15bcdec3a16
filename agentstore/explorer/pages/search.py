"""Search over all messages, with the hit marked."""

from __future__ import annotations

import re
from typing import cast

from markupsafe import Markup
from starlette.responses import Response

from agentstore.explorer.pages.conversation import of_message
from agentstore.explorer.web.visits import Visit
from agentstore.records import Page, SearchHit
from agentstore.records.words import Role
from agentstore.repositories.search.pages import Order

_ON_A_PAGE = 20
_ORDERS = {"relevance": "best first", "recent": "newest first"}
_MARKED = re.compile("⟦([^⟦⟧]*)⟧")


async def page(visit: Visit) -> Response:
    """Search."""
    text = visit.query.get("q", "").strip() or None
    found: Page[SearchHit] = Page((), None)
    order = visit.given("order") or "relevance"
    if text is not None:
        found = await visit.ask(
            visit.store.messages.search,
            text,
            user_id=visit.given("user"),
            session_id=visit.given("session"),
            role=cast("Role | None", visit.given("role")),
            order=cast("Order", order),
            limit=_ON_A_PAGE,
            cursor=visit.given("cursor"),
        )
    titles: dict[str, str] = {}
    for hit in found:
        id = hit.message.session_id
        if id not in titles:
            session = await visit.ask(visit.store.sessions.find, id)
            titles[id] = (session and session.title) or id
    return await visit.page(
        "search.html",
        text=text,
        order=order,
        orders=[
            (name, words, visit.here(order=name, cursor=None)) for name, words in _ORDERS.items()
        ],
        roles=[
            (role or "everybody", visit.here(role=role, cursor=None), visit.given("role") == role)
            for role in (None, "user", "assistant", "tool", "system", "developer")
        ],
        hits=[
            (said, titles[said.session_id], marked(hit.snippet), of_message(said))
            for hit in found
            for said in [hit.message]
        ],
        more=visit.here(cursor=found.next_cursor) if found.next_cursor else None,
    )


def marked(snippet: str) -> Markup:
    """Give a snippet as HTML, its hits marked."""
    pieces = _MARKED.split(snippet)
    html = (
        Markup("<mark>{}</mark>").format(piece) if n % 2 else Markup("{}").format(piece)
        for n, piece in enumerate(pieces)
    )
    return Markup().join(html)
