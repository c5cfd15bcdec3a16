"""The pages of users: who they are, what they may spend and have spent; and of memories."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from starlette.responses import RedirectResponse, Response

from agentstore.errors import InvalidInput, NotFound
from agentstore.explorer.differences import state_tree
from agentstore.explorer.rendering import Visit, link
from agentstore.records import MemoryRecord

_ON_A_PAGE = 50
_OF_A_USER = 20
_MONTHS = 12
_MEMORIES, _OF_ONE = 20, 40
"""Memories on a page; values of one, and of preferences."""

_NAMESPACES = 200


async def users_page(visit: Visit) -> Response:
    """List users, or those who have a text in their name, address or id."""
    text = visit.query.get("q", "").strip() or None
    cursor = visit.given("cursor")
    if text is not None and cursor is None and await visit.names([text]):
        return RedirectResponse(link("user", id=text))
    listed = visit.store.users.list
    found = await visit.ask(listed, text=text, limit=_ON_A_PAGE, cursor=cursor)
    return await visit.page("users.html", found=found, text=text)


async def user_page(visit: Visit) -> Response:
    """Show a user: the quota, what of it is used and set aside, keys, cost by month."""
    id, store = visit.needed("id"), visit.store
    user = await visit.ask(store.users.get, id)
    since = datetime.now(UTC) - timedelta(days=31 * _MONTHS)
    months = await visit.ask(store.usage.sum_by, "month", user_id=id, since=since)
    return await visit.page(
        "user.html",
        user=user,
        reserved=await visit.ask(store.users.reservations, id, limit=_OF_A_USER),
        keys=await visit.ask(store.users.api_keys, id, limit=_OF_A_USER),
        sessions=await visit.ask(store.sessions.list, user_id=id, limit=5, preview=True),
        months=months,
        preferences=await visit.make(state_tree, user.preferences, _OF_ONE),
    )


async def memories_page(visit: Visit) -> Response:
    """Show the memories of a user, or those of nobody: namespaces, values, until when."""
    user, text, memories = visit.given("user"), visit.given("q"), visit.store.memories
    try:
        space = json.loads(visit.query.get("ns", "[]"))
    except (ValueError, RecursionError):
        space = None
    if not (isinstance(space, list) and all(isinstance(name, str) for name in space)):
        raise InvalidInput('ns= must be a list of names as JSON, such as ["notes"].')
    names = await visit.names([user])
    if user is not None and not names:
        raise NotFound("user", user)
    spaces = await visit.ask(memories.namespaces, space, user_id=user, limit=_NAMESPACES)
    found: Sequence[MemoryRecord] = ()
    more = None
    if text is not None:
        hits = await visit.ask(memories.search, text, space, user_id=user, limit=_MEMORIES)
        found = [hit.memory for hit in hits]
    else:
        listed, cursor = memories.list, visit.given("cursor")
        page = await visit.ask(listed, space, user_id=user, limit=_MEMORIES, cursor=cursor)
        found, more = page.items, page.next_cursor

    def at(namespace: Sequence[str]) -> str:
        given = json.dumps([*namespace]) if namespace else None
        return link("memories", user=user, ns=given)

    return await visit.page(
        "memories.html",
        user=user,
        name=names.get(user or ""),
        space=space,
        at=at,
        spaces=_tree_of(spaces.items, len(space)),
        more_spaces=spaces.next_cursor is not None,
        found=[(each, await visit.make(state_tree, each.value, _OF_ONE)) for each in found],
        text=text,
        more=visit.here(cursor=more) if more else None,
    )


def _tree_of(
    spaces: Iterable[tuple[str, ...]], above: int
) -> list[tuple[int, tuple[str, ...], bool]]:
    """Give each namespace, and each one above it, with its depth and whether it has memories."""
    rows: dict[tuple[str, ...], bool] = {}
    for space in spaces:
        for depth in range(above + 1, len(space) + 1):
            rows.setdefault(space[:depth], False)
        rows[space] = True
    return [(len(each) - above, each, there) for each, there in rows.items() if len(each) > above][
        : 2 * _NAMESPACES
    ]
