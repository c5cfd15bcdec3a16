"""A conversation: a branch of a session, turn by turn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from starlette.responses import HTMLResponse, Response

from agentstore.explorer import rendering
from agentstore.explorer.cards import (
    MOST_BRANCHES,
    Beside,
    TurnCards,
    TurnUse,
    last_through,
    turns_of,
    use_by_turns,
)
from agentstore.explorer.differences import forks_of
from agentstore.explorer.rendering import Allowance, Asker, Visit, link, render
from agentstore.records import (
    AttachmentRecord,
    BranchRecord,
    CountedBranch,
    MessageRecord,
    SessionRecord,
    ToolLogRecord,
)
from agentstore.values.validation import MAX_LIMIT, SESSION_TRANSITIONS

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
    if not last:  # the session's last number may be of another branch, or of a message that is gone
        end = await visit.ask(visit.store.messages.page, session.id, limit=1, branch=branch.name)
        last = not messages or messages[-1].seq >= max((each.seq for each in end), default=0)
    turns = await _turns(visit, session, messages, last=last, before=before)
    going = last and not is_over(session)
    live = turns[-1:] if going else []
    of_live = [each for each in messages if live and each.turn == live[0].number] or messages
    used = await visit.ask(visit.store.usage.of_sessions, [session.id], most=_MOST_REQUESTS)
    begun = before is None and visit.query.get("after") in (None, "0")
    return await visit.page(
        "conversation.html",
        session=session,
        names=await visit.names([session.user_id]),
        branch=branch,
        turns=turns,
        settled=turns[: len(turns) - len(live)],
        live=live,
        poll=_poll(session, branch, live, of_live, joined=len(turns) > 1) if going else None,
        left_out=None,
        grown=False,
        **await _summary(visit, branch, turns, None if last else messages[-1].seq),
        forks=await _forks(visit, branch, turns, messages, begun=begun),
        used=used.get(session.id),
        documents=await visit.make(_documents, session),
        older=None if begun else visit.here(through=messages[0].seq - 1, after=None),
        newer=None if last else visit.here(after=messages[-1].seq, through=None),
        first=None if begun else visit.here(after=0, through=None),
        newest=None if last else visit.here(after=None, through=None),
    )


async def tail(visit: Visit) -> Response:
    """Give what stands at the end of a branch now; 204 if it is as it was, 286 if that is all.

    A page asks for this every two seconds: streaming messages grow, and new ones come. What takes
    the place of its end has all messages that were there. If there is no room for them and the new
    ones, they stay, and the new ones are the end from then on; what was missed gets a link.
    """
    session = await visit.ask(visit.store.sessions.get, visit.needed("id"))
    branch = await _branch(visit, session.id)
    after, to = (visit.whole(name, 0, least=0, most=2**53) for name in ("after", "to"))
    page = partial(visit.store.messages.page, session.id, branch=branch.name)
    found = (await visit.ask(page, limit=ON_A_PAGE + 1)).items
    fresh = [each for each in found if each.seq > after]
    settled: list[TurnCards] = []
    left_out, joined = None, visit.given("joined") is not None
    if len(fresh) > ON_A_PAGE:
        shown = (await visit.ask(page, limit=ON_A_PAGE + 1, through=to)).items
        stay = [each for each in shown if each.seq > after][-ON_A_PAGE:]
        before = _before(shown, stay, joined=joined)
        settled = await _turns(visit, session, stay, last=False, before=before)
        fresh, joined = [each for each in found[1:] if each.seq > to], False
        if found[-len(fresh) - 1].seq > to:
            left_out = link("session", id=session.id, branch=branch.name, after=to)
    before = _before(found, fresh, joined=joined)
    live = await _turns(visit, session, fresh, last=True, before=before)
    over = is_over(session)
    if visit.given("seen") == _seen(session, live) and not over:
        return Response(status_code=204)
    values = {
        "visit": visit,
        "session": session,
        "branch": branch,
        "settled": settled,
        "live": live,
        "poll": None if over else _poll(session, branch, live, fresh, joined=joined),
        "left_out": left_out,
        "grown": True,
    }
    values |= await _summary(visit, branch, [*settled, *live])
    begun = len(fresh) == len(found)
    values["forks"] = await _forks(visit, branch, [*settled, *live], fresh, begun=begun)
    return HTMLResponse(await visit.make(render, "tail.html", values), 286 if over else 200)


def _before(
    found: Sequence[MessageRecord], shown: Sequence[MessageRecord], *, joined: bool
) -> MessageRecord | None:
    """Give the message before those that are shown; None if calls between are shown with it."""
    return found[-len(shown) - 1] if len(found) > len(shown) and not joined else None


async def _turns(
    visit: Visit,
    session: SessionRecord,
    messages: Sequence[MessageRecord],
    *,
    last: bool,
    before: MessageRecord | None,
) -> list[TurnCards]:
    beside = await beside_of(visit, session, messages, last=last, before=before)
    return await visit.make(turns_of, messages, beside, Allowance())


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
        "summarised": found
        and await visit.make(rendering.markdown, found.content[:_MOST_OF_A_DOCUMENT]),
        "summary_after": last_through(turns, found.through_seq) if found and here else None,
    }


async def _forks(
    visit: Visit,
    branch: BranchRecord,
    turns: Sequence[TurnCards],
    messages: Sequence[MessageRecord],
    *,
    begun: bool,
) -> dict[int, list[CountedBranch]]:
    """Give the branches that part from this one, by the number of the card behind which they do.

    The number is negative if they do so before the first card, with which the branch begins.
    """
    id, marked = branch.session_id, dict[int, list[CountedBranch]]()
    found = await visit.ask(visit.store.branches.list, id, limit=MOST_BRANCHES)
    for seq, others in forks_of(found.items, branch.name).items():
        at = None
        if seq == 0 and begun and turns:
            at = -turns[0].cards[0].message.seq
        elif messages and messages[0].seq <= seq <= messages[-1].seq:
            at = last_through(turns, seq)
        if at is not None:
            marked.setdefault(at, []).extend(others)
    return marked


async def _branch(visit: Visit, session_id: str) -> BranchRecord:
    name = visit.given("branch")
    if name is None:
        return await visit.ask(visit.store.branches.active, session_id)
    return await visit.ask(visit.store.branches.get, session_id, name)


async def _messages(
    visit: Visit, session: SessionRecord, branch: str
) -> tuple[Sequence[MessageRecord], MessageRecord | None]:
    """Give the messages that the address asks for, or the last ones, and the one before them."""
    if "after" in visit.query:
        after = visit.whole("after", 0, least=0, most=session.last_seq)
        later = await _after(visit, session, branch, after)
        if later[0]:
            return later
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


def _poll(
    session: SessionRecord,
    branch: BranchRecord,
    turns: Sequence[TurnCards],
    messages: Sequence[MessageRecord],
    *,
    joined: bool,
) -> str:
    """Give the address that says what of the end is new.

    Args:
        session: The session.
        branch: The branch.
        turns: The end, as it is shown.
        messages: What is in it.
        joined: Whether what was called just before it is shown with the turn before it.
    """
    return link(
        "tail",
        id=session.id,
        branch=branch.name,
        after=messages[0].seq - 1 if messages else 0,
        to=messages[-1].seq if messages else 0,
        seen=_seen(session, turns),
        joined=1 if joined else None,
    )


def _seen(session: SessionRecord, turns: Sequence[TurnCards]) -> str:
    """Give a digest of what is shown."""
    shown = repr(
        [
            (card.message.id, card.message.status, card.left, card.parts, card.marks)
            for turn in turns
            for card in turn.cards
        ]
        + [(call.name, call.state, call.result) for turn in turns for call in turn.calls]
        + [turn.used for turn in turns]
        + [session.status, session.question, session.failure, session.has_failures]
    )
    return hashlib.sha256(shown.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _documents(session: SessionRecord) -> list[tuple[str, Any]]:
    """Give a session's documents that hold something, cut where they are long."""
    named = {"Metadata": session.metadata, "Config": session.config, "State": session.state}
    most = _MOST_OF_A_DOCUMENT
    held = {name: rendering.written(each, most) for name, each in named.items() if each}
    return [(name, rendering.pretty(text[:_MOST_OF_A_DOCUMENT])) for name, text in held.items()]


def of_message(message: MessageRecord) -> str:
    """Give the address of a message in its conversation, where it is unfolded."""
    id, branch, seq = message.session_id, message.branch, message.seq
    return f"{link('session', id=id, branch=branch, through=seq + 10, hit=seq)}#m{seq}"


# What stands beside a page of messages: marks, attachments, tool logs, what was used.


_MOST = 200
"""Tool logs, and attachments."""

_LATE = timedelta(hours=1)
"""After the last message of a page, until when what it caused is looked for."""

_SOON = timedelta(seconds=1)
"""The same, where very much was logged."""


def is_over(session: SessionRecord) -> bool:
    """Say whether nothing more will be said in a session."""
    return not SESSION_TRANSITIONS[session.status]


async def beside_of(
    asker: Asker,
    session: SessionRecord,
    messages: Sequence[MessageRecord],
    *,
    last: bool,
    before: MessageRecord | None = None,
) -> Beside:
    """Read it, by so many queries as do not depend on how many messages there are.

    Args:
        asker: Asks the store.
        session: The session.
        messages: A page of a branch.
        last: Whether the branch ends there.
        before: The message before the page, if it is known.
    """
    if not messages:
        return Beside({}, (), (), {}, last=last)
    store = asker.store
    since = (before or messages[0]).created_at
    if messages[0].seq == 1:
        since = min(since, session.created_at)
    end = None if last else messages[-1].created_at
    return Beside(
        await asker.ask(store.marks.of, [each.id for each in messages]),
        await _files(asker, session.id, messages),
        await _logs(asker, session.id, since, end),
        await _used(asker, session.id, messages),
        before=before,
        newest=session.last_seq,
        last=last,
        over=is_over(session),
    )


async def _logs(
    asker: Asker, session_id: str, since: datetime, end: datetime | None
) -> Sequence[ToolLogRecord]:
    """Give the tool logs of a page, or the last of them if there are very many.

    Args:
        asker: Asks the store.
        session_id: The session.
        since: From when on.
        end: When the last message of the page was written; None if no message follows. What it
            caused is looked for until ``_LATE`` after it, and once more until ``_SOON`` after it
            if others fill that up.
    """
    of_session = partial(asker.store.tool_logs.list, session_id=session_id, limit=_MOST)
    found = await asker.ask(of_session, since=since, until=None if end is None else end + _LATE)
    if found.next_cursor is None or end is None:
        return found.items
    soon = await asker.ask(of_session, since=since, until=end + _SOON)
    return [*{log.id: log for log in (*found, *soon)}.values()]


async def _used(
    asker: Asker, session_id: str, messages: Sequence[MessageRecord]
) -> dict[int, TurnUse]:
    """Give what was used in the turns that begin with these messages: a query for each branch."""
    begun: dict[str, list[int]] = {}
    for each in messages:
        if each.begins_turn and each.branch is not None:
            begun.setdefault(each.branch, []).append(each.turn)
    used: dict[int, TurnUse] = {}
    for name, turns in begun.items():
        found = await asker.ask(
            asker.store.usage.list,
            session_id,
            branch=name,
            from_turn=min(turns),
            to_turn=max(turns),
            limit=MAX_LIMIT,
        )
        by_turns = use_by_turns(found, more=found.next_cursor is not None)
        used |= {turn: by_turns[turn] for turn in turns if turn in by_turns}
    return used


async def _files(
    asker: Asker, session_id: str, messages: Sequence[MessageRecord]
) -> Sequence[AttachmentRecord]:
    """Give what is attached to messages: by one query, unless the session has very many."""
    attachments = asker.store.attachments
    found = await asker.ask(attachments.list_of_session, session_id, limit=_MOST)
    if found.next_cursor is None:
        return found.items
    return [file for each in messages for file in await asker.ask(attachments.list, each.id)]
