"""Checkpoints: threads, the steps of one, a state, and what two states differ in."""

from __future__ import annotations

from collections import Counter

from starlette.responses import Response

from agentstore.errors import NotFound
from agentstore.explorer.web.differences import changes, difference_tree, left_out, state_tree
from agentstore.explorer.web.visits import Visit
from agentstore.records.checkpoints import CheckpointRecord

_ON_A_PAGE = 50


async def page(visit: Visit) -> Response:
    """List the threads, the one that was put into last first."""
    found = await visit.ask(
        visit.store.checkpoints.threads,
        user_id=visit.given("user"),
        session_id=visit.given("session"),
        limit=_ON_A_PAGE,
        cursor=visit.given("cursor"),
    )
    return await visit.page("checkpoints.html", found=found, session=await visit.narrowed_to())


async def thread(visit: Visit) -> Response:
    """List the steps of a thread, the latest first."""
    id, listed = visit.needed("id"), visit.store.checkpoints.list
    found = await visit.ask(
        listed,
        id,
        namespace=None if visit.given("all") else visit.query.get("ns", ""),
        limit=_ON_A_PAGE,
        cursor=visit.given("cursor"),
    )
    if not found.items and not (await visit.ask(listed, id, namespace=None, limit=1)).items:
        raise NotFound("thread", id)
    forks = Counter((each.namespace, each.parent_id) for each in found)
    steps = {(each.namespace, each.id): each.step for each in found}
    return await visit.page("thread.html", found=found, forks=forks, steps=steps)


async def state(visit: Visit) -> Response:
    """Show a state, and what differs in it from its parent's or another one's."""
    id, place = visit.needed("id"), (visit.needed("thread"), visit.query.get("ns", ""))
    checkpoints = visit.store.checkpoints
    found = await visit.ask(checkpoints.get, id, *place, writes=True)
    against = visit.given("against") or found.parent_id
    before: CheckpointRecord | None = None
    if against is not None:
        before = await visit.ask(checkpoints.find, against, *place)
    difference = None
    if before is not None:
        difference = await visit.make(difference_tree, before.values, found.values, _CHANGES)
    writes = found.writes or ()
    return await visit.page(
        "checkpoint.html",
        found=found,
        before=before,
        changes=[*changes(difference)],
        more_changes=left_out(difference),
        state=await visit.make(state_tree, found.values),
        metadata=await visit.make(state_tree, found.metadata, _METADATA),
        writes=[(write, state_tree(write.value, _A_WRITE)) for write in writes[:_WRITES]],
        more_writes=len(writes[_WRITES:]),
    )


_CHANGES, _METADATA, _A_WRITE = 100, 40, 8
"""Nodes of their trees."""

_WRITES = 10
"""Pending writes that are shown."""
