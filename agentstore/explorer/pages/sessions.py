"""Sessions: those with the newest activity first."""

from __future__ import annotations

from starlette.responses import Response

from agentstore.explorer.web.visits import Visit

_ON_A_PAGE = 50


async def page(visit: Visit) -> Response:
    """List sessions."""
    found = await visit.ask(
        visit.store.sessions.list, limit=_ON_A_PAGE, cursor=visit.given("cursor"), preview=True
    )
    return visit.page("sessions.html", found=found)
