"""Pages of the explorer, a function each; ``explorer.application`` has the table of all."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, Final, Literal, cast
from urllib.parse import quote
from weakref import WeakKeyDictionary

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from agentstore.doctor import examine
from agentstore.engines import dialect_for
from agentstore.errors import InvalidInput, NotFound
from agentstore.explorer import rendering
from agentstore.explorer.cards import (
    MOST_BRANCHES,
    Beside,
    BranchPlace,
    draw,
    said_as_html,
    turns_of,
)
from agentstore.explorer.contents import SHOWN, bytes_of, held_by, shown_kind
from agentstore.explorer.conversation import is_over, of_message
from agentstore.explorer.differences import (
    SideBySide,
    changes,
    difference_tree,
    left_out,
    shared_by,
    side_by_side,
    state_tree,
)
from agentstore.explorer.rendering import Allowance, Visit, link, visible
from agentstore.explorer.sharing import FORMATS, Format, conversation_of, shared
from agentstore.moving.runs import said_in
from agentstore.records import (
    CountedBranch,
    MessageRecord,
    Page,
    SearchHit,
    SessionSummary,
    TaskRecord,
)
from agentstore.records.base import Role, SessionStatus, TaskStatus
from agentstore.records.upkeep import Finding
from agentstore.records.work import CheckpointInfo, CheckpointRecord, WriteRecord
from agentstore.repositories.new_sessions import is_beginning
from agentstore.repositories.search import SearchOrder
from agentstore.repositories.session_pages import Order
from agentstore.values.serialized import found_in, readable, state_of, step_of
from agentstore.values.snippets import LAST_REQUESTS, parse, words_in_errors
from agentstore.values.validation import SESSION_STATUSES

# Sessions: those with the newest or the oldest activity first, and which, by the address.


_ON_A_PAGE = 50
_LOOKED_AT = 200
"""Sessions of which a page shows those that were interrupted."""

_FIELDS = {
    "user": "User: id, name or address",
    "model": "Model",
    "title": "In the title",
    "since": "Active since",
    "until": "Active until",
    "path": "Metadata path",
    "value": "Its value, as JSON or text",
}


async def sessions_page(visit: Visit) -> Response:
    """List sessions."""
    path = visit.given("path")
    if path is None and visit.given("value"):
        raise InvalidInput("value= is what stands at a path= in the metadata, which is missing.")
    order = visit.given("order") or "newest"
    failed = visit.given("failed") is not None
    user, names = await visit.whose()
    found: Page[SessionSummary]
    interrupted = visit.given("interrupted") is not None
    if interrupted:
        turns = await visit.ask(
            visit.store.sessions.interrupted,
            user_id=user,
            limit=_LOOKED_AT,
            cursor=visit.given("cursor"),
        )
        found = Page(tuple(turn.session for turn in turns), turns.next_cursor)
    else:
        found = await visit.ask(
            visit.store.sessions.list,
            user_id=user,
            status=cast("SessionStatus | None", visit.given("status")),
            title=visit.given("title"),
            model=visit.given("model"),
            since=_day(visit, "since"),
            until=_day(visit, "until", after=1),
            metadata=None if path is None else {path: _value(visit.query.get("value", ""))},
            failed=failed,
            order=cast("Order", order),
            limit=_ON_A_PAGE,
            cursor=visit.given("cursor"),
            preview=True,
        )
    ids = [each.id for each in found]
    used = await visit.ask(visit.store.usage.of_sessions, ids, most=LAST_REQUESTS)
    filters = (*_FIELDS, "status", "failed", "interrupted")
    return await visit.page(
        "sessions.html",
        found=found,
        used=used,
        statuses=SESSION_STATUSES,
        fields=_FIELDS,
        user=user,
        names=names | await visit.names(each.user_id for each in found),
        everything=not any(visit.given(name) for name in filters),
        order=order,
        failed=failed,
        interrupted=interrupted,
    )


def _day(visit: Visit, name: str, *, after: int = 0) -> datetime | None:
    """Read a day in UTC: its beginning, or that of a day after."""
    given = visit.given(name)
    if given is None:
        return None
    try:
        day = datetime.strptime(given, "%Y-%m-%d").replace(tzinfo=UTC)
        return day + timedelta(days=after)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{name}= must be a day, such as 2026-01-31.") from None


def _value(given: str) -> Any:
    """Read a value of metadata: JSON, or else a text."""
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return given


# Branches of a session: their tree, and two of them side by side.


_MESSAGES, _CHARACTERS = 40, 30_000
"""Messages of each of two branches on a page, and characters of all."""


async def branches_page(visit: Visit) -> Response:
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


# Checkpoints: threads, the steps of one, a state, and what two states differ in.


async def checkpoints_page(visit: Visit) -> Response:
    """List the threads, the most recently written first."""
    found = await visit.ask(
        visit.store.checkpoints.threads,
        user_id=visit.given("user"),
        session_id=visit.given("session"),
        limit=_ON_A_PAGE,
        cursor=visit.given("cursor"),
    )
    return await visit.page(
        "checkpoints.html",
        titles=await visit.titles(thread.session_id for thread in found),
        found=found,
        names=await visit.names([visit.given("user"), *(each.user_id for each in found)]),
        session=await visit.narrowed_to(),
    )


async def thread(visit: Visit) -> Response:
    """List the steps of a thread, the latest first: of its first namespace if none is asked for."""
    id, checkpoints = visit.needed("id"), visit.store.checkpoints
    namespaces = await visit.ask(checkpoints.namespaces, id)
    shown = None if visit.given("all") else visit.query.get("ns", (namespaces or ("",))[0])
    found = await visit.ask(
        checkpoints.list, id, namespace=shown, limit=_ON_A_PAGE, cursor=visit.given("cursor")
    )
    of = await visit.ask(checkpoints.threads, id)
    if not of.items:
        raise NotFound("thread", id)
    forks = Counter((each.namespace, each.parent_id) for each in found)
    tree = None
    if shown is not None and max(forks.values(), default=0) > 1:
        tree = await visit.make(_drawn_steps, found.items)
    known = {(each.namespace, cast("str | None", each.id)): each for each in found}
    took, after = _nodes(found.items, known)
    writes: Sequence[WriteRecord] = ()
    if shown is not None and found.items and visit.given("cursor") is None:
        writes = await visit.ask(checkpoints.writes, id, found.items[0].id, namespace=shown)
    return await visit.page(
        "thread.html",
        **await visit.make(_shown_writes, writes),
        took=took,
        after=after,
        found=found,
        of=of.items[0],
        forks=forks,
        tree=tree,
        known=known,
        namespaces=namespaces,
        shown=shown,
    )


def _nodes(
    found: Sequence[CheckpointInfo], known: Mapping[tuple[str, str | None], CheckpointInfo]
) -> tuple[dict[str, list[float]], dict[str, Counter[str]]]:
    """Give the milliseconds that each node of a page's steps took, and what was next after it."""
    took: dict[str, list[float]] = {}
    after: dict[str, Counter[str]] = {}
    for each in reversed(found):
        parent = known.get((each.namespace, each.parent_id))
        if parent is not None and (node := parent.next_node):
            lasted = (each.created_at - parent.created_at) / timedelta(milliseconds=1)
            took.setdefault(node, []).append(max(lasted, 0))
            after.setdefault(node, Counter())[each.next_node or "the end"] += 1
    return took, after


def _drawn_steps(found: Sequence[CheckpointInfo]) -> Markup:
    """Draw the steps of a page, the latest first, as branches are: a line goes on up to a fork."""
    lines: dict[str, list[CheckpointInfo]] = {}  # by the ids of their first steps
    at: dict[str, str] = {}
    branches: list[CountedBranch] = []
    for each in reversed(found):
        line = at.get(each.parent_id or "")
        if line is not None and lines[line][-1].id == each.parent_id:
            lines[line].append(each)
            at[each.id] = line
            continue
        lines[each.id], at[each.id] = [each], each.id
        before = next((step_of(e) for e in lines.get(line or "", ()) if e.id == each.parent_id), 0)
        about: Any = {"fork_turn": before, "fork_seq": before, "messages": 0, "turns": 0}
        about |= {"number": len(branches), "created_at": each.created_at, "current": False}
        branches.append(CountedBranch(session_id="", name=each.id, parent=line, **about))

    def label(place: BranchPlace) -> tuple[str, str]:
        steps = [step_of(each) for each in lines[place.branch.name]]
        first = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        end = lines[place.branch.name][-1].next_node
        facts = [] if place.from_row is None else [f"· from step {place.branch.fork_turn}"]
        return first, " ".join([*facts, *([f"· next {end[:_NEXT]}"] if end else [])])

    def address(name: str) -> str:
        end = lines[name][-1]
        return link("checkpoint", thread=end.thread_id, ns=end.namespace or None, id=end.id)

    return draw(branches, address, at[found[0].id], label)


_NEXT = 40
"""Characters of the nodes that are next."""


async def state(visit: Visit) -> Response:
    """Show a state, and what differs in it from its parent's or another one's."""
    id, place = visit.needed("id"), (visit.needed("thread"), visit.query.get("ns", ""))
    checkpoints = visit.store.checkpoints
    found = await visit.ask(checkpoints.get, id, *place, writes=True)
    against = visit.given("against") or found.parent_id
    before: CheckpointRecord | None = None
    if against is not None:
        before = await visit.ask(checkpoints.find, against, *place)
    children = await visit.ask(
        checkpoints.list, place[0], namespace=place[1], parent_id=id, limit=_CHILDREN
    )
    shown = await visit.make(_shown_state, found, before)
    return await visit.page(
        "checkpoint.html", found=found, before=before, children=children, **shown
    )


def _shown_state(found: CheckpointRecord, before: CheckpointRecord | None) -> dict[str, Any]:
    values, beside = state_of(found)
    difference = None
    if before is not None:
        difference = difference_tree(state_of(before)[0], values, _CHANGES)
    room = Allowance()
    said = [
        (name, turns_of(messages[-_SAID:], replace(_NOTHING, over=True), room), len(messages))
        for name, messages in said_in(values, found.created_at).items()
    ]
    return {
        "changes": [*changes(difference)],
        "more_changes": left_out(difference),
        "said": said,
        "state": state_tree(values),
        "metadata": state_tree({**found.metadata, **beside}, _METADATA),
        **_shown_writes(found.writes or ()),
    }


def _shown_writes(writes: Sequence[WriteRecord]) -> dict[str, Any]:
    return {
        "writes": [(w, state_tree(readable(w.value), _A_WRITE)) for w in writes[:_WRITES]],
        "more_writes": len(writes[_WRITES:]),
    }


_SAID, _CHILDREN = 100, 20
"""Messages of each conversation in a state, and checkpoints that came from one."""

_CHANGES, _METADATA, _A_WRITE = 100, 40, 8
"""Nodes of their trees."""

_WRITES = 10
"""Pending writes that are shown."""


# Search over all messages, with the hit marked.


_HITS_ON_A_PAGE = 20
_THREADS_ON_A_PAGE, _READ_WITHIN = 200, 3.0
"""Threads whose latest checkpoint a page reads, and seconds after which it reads no more."""


async def search_page(visit: Visit) -> Response:
    """Search; what is an id, or the beginning of a session's, leads to what has it."""
    text = visit.query.get("q", "").strip() or None
    said = words_in_errors(text or "")
    if said is not None:
        if any(visit.given(name) for name in ("user", "role", "since", "until")):
            raise InvalidInput("in:errors goes with a session alone: take out user, role and days.")
        return RedirectResponse(link("failures", q=said or None, session=visit.given("session")))
    place = "checkpoints" if visit.given("in") == "checkpoints" else "messages"
    named = await _named(visit, text) if text and " " not in text else []
    if named and _MADE.fullmatch(str(text).lower()) and not visit.given("role"):
        return RedirectResponse(named[0][1])
    user, names = await visit.whose()
    order, embeddings = visit.given("order") or "relevance", visit.settings.embeddings
    by = visit.given("by") or "words"
    hits: Sequence[FoundText] = ()
    read, more = 0, None
    if text is not None and place == "checkpoints":
        hits, read, more = await _in_checkpoints(visit, text, user)
    elif text is not None:
        found = await visit.ask(
            visit.store.messages.search,
            text,
            by=cast("Literal['words', 'meaning', 'both']", by),
            user_id=user,
            session_id=visit.given("session"),
            role=cast("Role | None", visit.given("role")),
            since=_day(visit, "since"),
            until=_day(visit, "until", after=1),
            order=cast("SearchOrder", order),
            limit=_HITS_ON_A_PAGE,
            cursor=visit.given("cursor"),
        )
        hits, more = await _in_messages(visit, found), found.next_cursor
    session = await visit.narrowed_to()
    of = {"user": names.get(user or "", user), "session": session and session.title}
    return await visit.page(
        "search.html",
        named=named,
        text=text,
        place=place,
        of=of,
        order=order,
        by=by,
        roles=() if embeddings is None else embeddings.roles,
        hits=hits,
        read=read,
        more=visit.here(cursor=more) if more else None,
    )


@dataclass(frozen=True, slots=True)
class FoundText:
    """A text in which the words are.

    Attributes:
        facts: What is said of it below.
    """

    address: str
    title: str
    snippet: Markup
    facts: Sequence[object]


async def _in_messages(visit: Visit, found: Iterable[SearchHit]) -> list[FoundText]:
    found = [*found]
    titles = await visit.titles(hit.message.session_id for hit in found)
    hits = []
    for hit in found:
        said = hit.message
        marked = rendering.marked(hit.snippet, as_it_is=said.role == "tool")
        facts = [said.role, f"#{said.seq}", said.branch, rendering.ago(said.created_at)]
        hits.append(FoundText(of_message(said), titles[said.session_id], marked, facts))
    return hits


async def _in_checkpoints(
    visit: Visit, text: str, user: str | None
) -> tuple[list[FoundText], int, str | None]:
    """Look through the latest checkpoints of threads, the newest first: they have no index.

    Returns:
        What was found, how many threads were read, and where to go on.
    """
    terms, hits, read = parse(text), list[FoundText](), 0
    cursor, checkpoints = visit.given("cursor"), visit.store.checkpoints
    end = monotonic() + _READ_WITHIN
    while True:
        page = await visit.ask(
            checkpoints.threads,
            user_id=user,
            session_id=visit.given("session"),
            limit=_HITS_ON_A_PAGE,
            cursor=cursor,
        )
        for latest in (each.latest for each in page if each.latest is not None):
            of = (latest.id, latest.thread_id, latest.namespace)
            state = await visit.ask(checkpoints.find, *of)
            values = {} if state is None else (await visit.make(state_of, state))[0]
            found = await visit.make(found_in, values, terms)
            if found is not None:
                address = link("checkpoint", thread=of[1], ns=of[2] or None, id=of[0])
                facts = [found[0][:_NEXT], f"step {step_of(latest)}"]
                facts.append(rendering.ago(latest.created_at))
                hits.append(FoundText(address, of[1], rendering.marked(found[1]), facts))
        read, cursor = read + len(page.items), page.next_cursor
        full = len(hits) >= _HITS_ON_A_PAGE or read >= _THREADS_ON_A_PAGE
        if cursor is None or full or monotonic() > end:
            return hits, read, cursor


_MADE = re.compile("[0-9a-f]{8}-?[0-9a-f-]{0,27}")
"""An id that agentstore made, or the first 8 characters of one: nobody searches for that."""


async def _named(visit: Visit, text: str) -> list[tuple[str, str]]:
    """Give what has this id: what it is, and its address."""
    store, found = visit.store, []
    if len(text) > _LONGEST_ID:
        return []
    id, beginning = text, text.lower()
    if await visit.ask(store.sessions.find, id) is None and is_beginning(beginning):
        ids = await visit.ask(store.sessions.find_ids, [beginning], limit=2)
        id = ids[0] if len(ids) == 1 else text
    if await visit.ask(store.sessions.find, id) is not None:
        found.append(("session", link("session", id=id)))
    message = await visit.ask(store.messages.find, text)
    if message is not None:
        found.append(("message", of_message(message)))
    if (await visit.ask(store.checkpoints.threads, text)).items:
        found.append(("thread", link("thread", id=text)))
    if await visit.ask(store.tasks.find, text) is not None:
        found.append(("task", link("task", id=text)))
    if visit.has("user") and await visit.ask(store.users.find, text) is not None:
        found.append(("user", link("user", id=text)))
    if (await visit.ask(store.tool_logs.list, tool=text, limit=1)).items:
        found.append(("tool", link("failures", tool=text, all=1)))
    return found


_LONGEST_ID = 200


# Tasks and workers: what is dead, failed, running or waiting, and who holds what.


_STATES: tuple[TaskStatus, ...] = (
    "dead",
    "failed",
    "running",
    "pending",
    "paused",
    "completed",
    "cancelled",
)
"""What has to be looked at first."""

_OF_A_STATE = 10
_MOST_RUNNING = 100


async def tasks_page(visit: Visit) -> Response:
    """List the newest tasks of each state, or all of one state."""
    status = cast("TaskStatus | None", visit.given("status"))
    groups: list[tuple[TaskStatus, Page[TaskRecord]]] = []
    for each in _STATES if status is None else (status,):
        most = _MOST_RUNNING if each == "running" else _OF_A_STATE
        found = await visit.ask(
            visit.store.tasks.list,
            session_id=visit.given("session"),
            status=each,
            queue=visit.given("queue"),
            limit=most if status is None else _ON_A_PAGE,
            cursor=None if status is None else visit.given("cursor"),
        )
        groups.append((each, found))
    workers: dict[str, list[TaskRecord]] = {}
    for running in dict(groups).get("running", ()) if status is None else ():
        if running.worker is not None:
            workers.setdefault(running.worker, []).append(running)
    return await visit.page(
        "tasks.html",
        states=_STATES,
        groups=groups,
        workers=None if status is not None else sorted(workers.items()),
        titles=await visit.titles(each.session_id for _, found in groups for each in found),
        session=await visit.narrowed_to(),
    )


async def counts(visit: Visit) -> Response:
    """Count the tasks of each queue and state; that reads an index of all of them."""
    counted = await visit.ask(visit.store.tasks.count, session_id=visit.given("session"))
    return await visit.page("task_counts.html", states=_STATES, counted=counted)


async def task(visit: Visit) -> Response:
    """Show a task: what it was given, what came of it, when what was done."""
    found = await visit.ask(visit.store.tasks.get, visit.needed("id"))
    return await visit.page(
        "task.html", task=found, payload=state_tree(found.payload), result=state_tree(found.result)
    )


# Health: whether the store can work, how much it holds, and what is wrong with it.


_PATIENCE = 3.0
"""Seconds to wait for the database."""

_EXAMINED_WITHIN = 20.0
_KEPT_FOR = 60.0
_DAYS, _TOP = 14, 5

_examinations: WeakKeyDictionary[Any, asyncio.Task[list[Finding]]] = WeakKeyDictionary()
"""Those that run, or have just ended, by the store: who asks meanwhile shares one."""


async def health_page(visit: Visit) -> Response:
    """Say how the store is; on demand how much it holds, and what a quick examination finds."""
    health = await visit.ask(visit.store.health, _PATIENCE)
    statistics = findings = None
    trouble = ""
    if visit.given("sizes") and health.ok:
        ask = visit.store.statistics
        statistics = await visit.ask(ask, _DAYS, top=_TOP, exact=False)
    if visit.given("examine"):
        try:
            findings = await _examined(visit.store)
        except TimeoutError:
            trouble = "It takes long, and goes on: come back in a while."
        except InvalidInput as error:
            trouble = str(error)
    return await visit.page(
        "health.html", health=health, statistics=statistics, findings=findings, trouble=trouble
    )


async def _examined(store: Any) -> list[Finding]:
    """Examine a database, and wait up to ``_EXAMINED_WITHIN``.

    Raises:
        TimeoutError: It takes longer; it goes on all the same.
        InvalidInput: It is a database in memory.
    """
    running = _examinations.get(store)
    if running is None or running.get_loop() is not asyncio.get_running_loop():
        running = asyncio.create_task(asyncio.to_thread(_examine, store))
        _examinations[store] = running
        running.add_done_callback(partial(_ended, store))
    await asyncio.wait([running], timeout=_EXAMINED_WITHIN)
    if not running.done():
        raise TimeoutError
    _examinations.pop(store, None)
    return running.result()


def _ended(store: Any, examination: asyncio.Task[list[Finding]]) -> None:
    """Keep what was found for who asks again soon, and not longer: it would be of the past."""
    if not examination.cancelled():
        examination.exception()  # looked at, so that nobody is warned of it

    def forget() -> None:
        if _examinations.get(store) is examination:
            del _examinations[store]

    examination.get_loop().call_later(_KEPT_FOR, forget)


def _examine(store: Any) -> list[Finding]:
    """Examine what costs little, by a connection of its own that only reads.

    Raises:
        InvalidInput: It is a database in memory.
    """
    url, names = store._probe.engine.url, store._probe.settings.names
    if not dialect_for(url).many_connections(url):
        raise InvalidInput("A database in memory cannot be examined: no other connection sees it.")
    return examine(url.set(drivername=url.get_backend_name()), names=names)


# A conversation to take away: one file, secrets redacted.


_MOST_EXPORTED = 2_000
"""Messages; `agentstore export` takes all."""


async def export_page(visit: Visit) -> Response:
    """Give the file."""
    kind = visit.given("format") or FORMATS[0]
    if kind not in FORMATS:
        raise InvalidInput(f"format= must be one of {', '.join(FORMATS)}.")
    told = await conversation_of(visit, visit.needed("id"), visit.given("branch"), _MOST_EXPORTED)
    text, about = await run_in_threadpool(shared, told, cast("Format", kind), visit.secrets)
    name = quote(f"{about[:80]}.{kind}", safe="", errors="replace")
    return Response(
        text,
        media_type="text/html" if kind == "html" else "text/markdown",
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
    )


# The bytes of an attachment, or of a picture in a message: a few kinds are shown.
#
# All others are for downloading.
#
# Their sender says what they are, and may lie: the browser is told not to guess, and gets them in
# a sandbox where nothing runs and nothing is loaded.


_POLICY: Final = {"Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'"}


async def attachment_page(visit: Visit) -> Response:
    """Give the bytes."""
    file = await visit.ask(visit.store.attachments.get, visit.needed("id"))
    content = await visit.ask(visit.store.attachments.read, file.id)
    shown = file.media_type in SHOWN
    name = quote((file.name or f"attachment-{file.id}")[-80:], safe="", errors="replace")
    how = "inline" if shown else "attachment"
    return Response(
        content,
        media_type=file.media_type if shown else "application/octet-stream",
        headers={"Content-Disposition": f"{how}; filename*=UTF-8''{name}", **_POLICY},
    )


async def picture(visit: Visit) -> Response:
    """Give a picture that a message holds itself."""
    message = await visit.ask(visit.store.messages.get, visit.needed("id"))
    pictures = held_by(message).pictures
    number = visit.whole("n", 0, least=0, most=2**53)
    kind = shown_kind(pictures[number]) if number < len(pictures) else None
    if kind is None:
        raise NotFound("picture", str(number))
    try:
        content = base64.b64decode(bytes_of(pictures[number]))
    except ValueError:
        raise NotFound("picture", str(number)) from None
    return Response(content, media_type=kind, headers=_POLICY)


# One message, whole: everything that it holds, and how it is stored.


_PIECES_ON_A_PAGE = 50_000
"""Characters."""

_RAW_MESSAGES = 40
_RAW_OF_ONE = 4_000
"""Characters of each, where several are given as they are."""

_SHOWN_OF_MESSAGE = ("content", "tool_calls", "payload", "metadata")


async def message_page(visit: Visit) -> Response:
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
        pictures=[n for n, each in enumerate(held_by(message).pictures) if shown_kind(each)][:100],
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
        each.name: getattr(message, each.name)
        for each in fields(message)
        if each.name in _SHOWN_OF_MESSAGE
    }
    if isinstance(message.content, str):
        documents["content"] = None  # it stands above
        said = message.content
    stored = rendering.written({name: each for name, each in documents.items() if each is not None})
    whole = [said, stored if stored != "{}" else ""]
    longest = max(len(each) for each in whole)
    end = at + _PIECES_ON_A_PAGE
    while end - at > 100 and any(
        len(rendering.plain(visible(each[at:end]))) > 3 * _PIECES_ON_A_PAGE for each in whole
    ):
        end -= (end - at) // 2
    parts = [each[at:end] for each in whole]
    shown = said_as_html if longest <= end - at else rendering.plain  # a page may begin in a word
    return (
        shown(parts[0]) if parts[0] else None,
        rendering.pretty(parts[1]) if parts[1] else None,
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
    return Response(text.encode("utf-8", "replace"), media_type="text/plain", headers=_POLICY)


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
