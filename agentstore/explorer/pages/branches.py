"""Branches of a session: their tree, and two of them side by side."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from agentstore.explorer.web.besides import is_over
from agentstore.explorer.web.branch_tree import MOST_BRANCHES, draw
from agentstore.explorer.web.cards import Beside, turns_of
from agentstore.explorer.web.rendering import link
from agentstore.explorer.web.side_by_side import SideBySide, shared_by, side_by_side
from agentstore.explorer.web.texts import Allowance
from agentstore.explorer.web.visits import Visit
from agentstore.records import MessageRecord, Page

_MESSAGES, _CHARACTERS = 40, 30_000
"""Messages of each of two branches on a page, and characters of all."""


async def page(visit: Visit) -> Response:
    """Draw the tree of a session's branches, and list them."""
    id, store = visit.needed("id"), visit.store
    session = await visit.ask(store.sessions.get, id)
    cursor = visit.given("cursor")
    found = await visit.ask(store.branches.list, id, limit=MOST_BRANCHES, cursor=cursor)
    tree = await visit.make(draw, found.items, lambda name: link("session", id=id, branch=name))
    active = next((branch.name for branch in found if branch.current), None)
    return await visit.page("branches.html", session=session, found=found, tree=tree, active=active)


async def compare(visit: Visit) -> Response:
    """Show two branches side by side; what they have in common is folded."""
    id, store = visit.needed("id"), visit.store
    names = visit.needed("left"), visit.needed("right")
    session = await visit.ask(store.sessions.get, id)
    known = await visit.ask(store.branches.list, id, limit=MOST_BRANCHES)
    left, right = [
        await visit.ask(
            store.messages.page, id, branch=name, before=visit.given(before), limit=_MESSAGES
        )
        for name, before in zip(names, ("left_before", "right_before"), strict=True)
    ]
    shown = side_by_side(left, right, shared_by(known.items, *names))
    room = Allowance(_CHARACTERS)
    beside = replace(_NOTHING, over=is_over(session))
    cards = [
        await visit.make(turns_of, part, beside, room)
        for part in (shown.common, shown.left, shown.right)
    ]
    return await visit.page(
        "compare.html",
        session=session,
        shown=shown,
        common=cards[0],
        sides=(
            ("left", names[0], cards[1], _earlier(left, shown)),
            ("right", names[1], cards[2], _earlier(right, shown)),
        ),
    )


_NOTHING = Beside({}, (), (), {}, last=True)
"""Marks, files, logs and use are on the branches' own pages."""


def _earlier(page: Page[MessageRecord], shown: SideBySide) -> str | None:
    """Give where a branch's own messages go on; before what both show there are none."""
    return None if page.items and page.items[0] in shown.common else page.next_cursor
