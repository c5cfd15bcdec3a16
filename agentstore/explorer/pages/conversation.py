"""A conversation: a branch of a session, turn by turn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from starlette.responses import HTMLResponse, Response

from agentstore.explorer.web import texts
from agentstore.explorer.web.besides import beside_of
from agentstore.explorer.web.cards import TurnCards, last_through, turns_of
from agentstore.explorer.web.rendering import link, render
from agentstore.explorer.web.texts import Allowance
from agentstore.explorer.web.visits import Visit
from agentstore.records import (
    BranchRecord,
    MessageRecord,
    SessionRecord,
)

ON_A_PAGE = 40
_MOST_PROBES = 40
_MOST_OF_A_DOCUMENT = 3_000
_MOST_REQUESTS = 10_000
"""Of a session that made more, the last ones are added up."""


async def page(visit: Visit) -> Response:
    """Show a page of a branch: its end, or what is before, around or after a message."""
    session = await visit.ask(visit.store.sessions.get, visit.needed("id"))
    branch = await _branch(visit, session.id)
    messages, before = await _messages(visit, session, branch.name)
    last = "through" not in visit.query and "after" not in visit.query
    if not last and (not messages or messages[-1].seq >= session.last_seq):
        last = True
    beside = await beside_of(visit, session, messages, last=last, before=before)
    turns = turns_of(messages, beside, Allowance())
    used = await visit.ask(visit.store.usage.of_sessions, [session.id], most=_MOST_REQUESTS)
    begun = before is None and visit.query.get("after") in (None, "0")
    return visit.page(
        "conversation.html",
        session=session,
        branch=branch,
        turns=turns,
        tail=_tail(turns) if last and session.status == "active" else None,
        **await _summary(visit, branch, turns, None if last else messages[-1].seq),
        used=used.get(session.id),
        documents=_documents(session),
        older=None if begun else visit.here(through=messages[0].seq - 1, after=None),
        newer=None if last else visit.here(after=messages[-1].seq, through=None),
        first=None if begun else visit.here(after=0, through=None),
        newest=None if last else visit.here(after=None, through=None),
    )


async def tail(visit: Visit) -> Response:
    """Give the turns from one on, of the end of a branch; 204 if they are as they were.

    A page asks for this every two seconds: streaming messages grow, and new ones come.
    """
    session = await visit.ask(visit.store.sessions.get, visit.needed("id"))
    branch = await _branch(visit, session.id)
    found = await visit.ask(
        visit.store.messages.page, session.id, limit=ON_A_PAGE, branch=branch.name
    )
    first = visit.whole("turn", 0, least=0, most=10**12)
    messages = [each for each in found if each.turn >= first]
    beside = await beside_of(visit, session, messages, last=True)
    turns = turns_of(messages, beside, Allowance())
    seen = _tail(turns)
    if seen["seen"] == visit.given("seen"):
        return Response(status_code=204)
    values = {"turns": turns, "session": session, "branch": branch, "tail": seen, "visit": visit}
    values |= await _summary(visit, branch, turns)
    return HTMLResponse(render("turns.html", values))


async def _summary(
    visit: Visit, branch: BranchRecord, turns: Sequence[TurnCards], through: int | None = None
) -> dict[str, Any]:
    """Give the summary of a branch, and the card after which it stands.

    Args:
        visit: Asks the store.
        branch: The branch.
        turns: What is on the page.
        through: The number of the page's last message, where the branch goes on behind it.
    """
    found = await visit.ask(visit.store.summaries.find, branch.session_id, branch=branch.name)
    here = found is not None and (through is None or found.through_seq <= through)
    return {
        "summary": found,
        "summarised": found and texts.markdown(found.content[:_MOST_OF_A_DOCUMENT]),
        "summary_after": last_through(turns, found.through_seq) if found and here else None,
    }


async def _branch(visit: Visit, session_id: str) -> BranchRecord:
    name = visit.given("branch")
    if name is None:
        return await visit.ask(visit.store.branches.active, session_id)
    return await visit.ask(visit.store.branches.get, session_id, name)


async def _messages(
    visit: Visit, session: SessionRecord, branch: str
) -> tuple[Sequence[MessageRecord], MessageRecord | None]:
    """Give the messages that the address asks for, and the one before them."""
    if "after" in visit.query:
        after = visit.whole("after", 0, least=0, most=session.last_seq)
        return await _after(visit, session, branch, after)
    through = None
    if "through" in visit.query:
        through = visit.whole("through", 0, least=0, most=2**53)
    found = await visit.ask(
        visit.store.messages.page, session.id, limit=ON_A_PAGE + 1, branch=branch, through=through
    )
    items = found.items
    return items[-ON_A_PAGE:], items[0] if len(items) > ON_A_PAGE else None


async def _after(
    visit: Visit, session: SessionRecord, branch: str, after: int
) -> tuple[Sequence[MessageRecord], MessageRecord | None]:
    """Give the first messages of a branch after a sequence number, and the one before them.

    A store pages backwards. So many numbers further on there are at most so many messages; where
    there are none, since other branches have these numbers, it looks further, and comes back.
    """
    low, step = after, ON_A_PAGE
    for _ in range(_MOST_PROBES):
        found = await visit.ask(
            visit.store.messages.page,
            session.id,
            limit=ON_A_PAGE + 1,
            branch=branch,
            through=min(low + step, session.last_seq),
        )
        fresh = [each for each in found if each.seq > after]
        if fresh and len(fresh) <= ON_A_PAGE:
            earlier = found.items[: -len(fresh)]
            return fresh, earlier[-1] if earlier else None
        if fresh:
            step = ON_A_PAGE if step <= 8 * ON_A_PAGE else step // 8
        else:
            low, step = low + step, step * 8
            if low >= session.last_seq:
                break
    return (), None


def _tail(turns: Sequence[TurnCards]) -> dict[str, Any]:
    """Say which turn goes on, and what of it is shown: a digest."""
    number = turns[-1].number if turns else 0
    last = [turn for turn in turns if turn.number >= number]
    shown = repr(
        [
            (card.message.id, card.message.status, card.left, card.parts, card.marks)
            for turn in last
            for card in turn.cards
        ]
        + [(call.name, call.state, call.result) for turn in last for call in turn.calls]
        + [turn.used for turn in last]
    )
    digest = hashlib.sha256(shown.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return {"turn": number, "seen": digest}


def _documents(session: SessionRecord) -> list[tuple[str, Any]]:
    """Give a session's documents that hold something, cut where they are long."""
    named = {"Metadata": session.metadata, "Config": session.config, "State": session.state}
    held = {name: texts.written(each) for name, each in named.items() if each}
    return [(name, texts.pretty(text[:_MOST_OF_A_DOCUMENT])) for name, text in held.items()]


def of_message(message: MessageRecord) -> str:
    """Give the address of a message in its conversation."""
    return (
        link("session", id=message.session_id, branch=message.branch, through=message.seq + 10)
        + f"#m{message.seq}"
    )
