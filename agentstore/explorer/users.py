"""The pages of users, of their memories, and of what was used: by day, model, user and tool."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, cast

from starlette.responses import RedirectResponse, Response

from agentstore.errors import InvalidInput, NotFound
from agentstore.explorer.conversation import of_message
from agentstore.explorer.differences import state_tree
from agentstore.explorer.rendering import Column, Visit, brief, columns, link, visible
from agentstore.records import MemoryRecord, UsageSum
from agentstore.records.work import total_of
from agentstore.values.snippets import money

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
        by = cast("Literal['words', 'meaning', 'both']", visit.given("by") or "words")
        hits = await visit.ask(memories.search, text, space, by=by, user_id=user, limit=_MEMORIES)
        found = [hit.memory for hit in hits]
    else:
        listed, cursor = memories.list, visit.given("cursor")
        asked: dict[str, Any] = {"user_id": user, "vectors": visit.given("vectors")}
        page = await visit.ask(listed, space, limit=_MEMORIES, cursor=cursor, **asked)
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
        meant=visit.settings.embeddings is not None,
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


# Usage: tokens and cost by day, model and user, calls and times by tool; also as CSV.


By = Literal["day", "model", "user"]

_DAYS_OF_USAGE = (1, 7, 14, 30, 90, 366)
_DEFAULT, _MOST = 14, 366
_SHOWN = 20
"""Models, users and tools; CSV has more of them."""

_MOST_LINES = 1_000
"""Of CSV."""

_FORMULA = re.compile(r"""\A(?=[\t\r\n])|(?:\A|(?<=[;|\t\r\n]))(?=[ "']*[=+\-@＝＋－＠])""")
"""Where a spreadsheet may find a formula to run, and an apostrophe makes it text: also after what a
spreadsheet in another language separates cells by, for which quotes in the middle are none."""


async def usage_page(visit: Visit) -> Response:
    """Draw what was used in a window of days, and list it."""
    days = visit.whole("days", _DEFAULT, least=1, most=_MOST)
    by_day = _every_day(await _sums(visit, "day", days), days)
    narrowed = visit.given("user") or visit.given("model")
    by_user = await _sums(visit, "user", days, top=_SHOWN + 1)
    stats = visit.store.tool_logs.stats
    tools = None if narrowed else await visit.ask(stats, since=_begin(days))
    return await visit.page(
        "usage.html",
        days=days,
        choices=sorted({*_DAYS_OF_USAGE, days}),
        total=total_of(by_day),
        by_day=by_day,
        plots=(
            columns("Tokens by day", [*map(_tokens, by_day)], brief),
            columns("Cost by day", [*map(_cost, by_day)], brief),
        ),
        by_model=await _sums(visit, "model", days, top=_SHOWN + 1),
        by_user=by_user,
        names=await visit.names([visit.given("user"), *(each.key for each in by_user)]),
        tools=tools,
        shown=_SHOWN,
    )


async def failures(visit: Visit) -> Response:
    """List calls of tools, those that failed or all, the newest first."""
    days = visit.whole("days", _MOST, least=1, most=_MOST)
    found = await visit.ask(
        visit.store.tool_logs.list,
        success=None if visit.given("all") else False,
        tool=visit.given("tool"),
        text=visit.given("q"),
        session_id=visit.given("session"),
        since=_begin(days) if visit.given("days") else None,
        limit=_ON_A_PAGE,
        cursor=visit.given("cursor"),
    )
    titles = await visit.titles(log.session_id for log in found)
    of = await visit.narrowed_to()
    return await visit.page("failures.html", found=found, titles=titles, days=days, session=of)


async def call(visit: Visit) -> Response:
    """Lead to a logged call's place in its conversation, or to the conversation."""
    log = await visit.ask(visit.store.tool_logs.get, visit.needed("id"))
    if log.message_id is not None:
        message = await visit.ask(visit.store.messages.find, log.message_id)
        if message is not None:
            return RedirectResponse(of_message(message))
    return RedirectResponse(link("session", id=log.session_id))


async def table(visit: Visit) -> Response:
    """Give one of the tables as CSV.

    Raises:
        InvalidInput: There is no such table.
    """
    by = visit.needed("by")
    days = visit.whole("days", _DEFAULT, least=1, most=_MOST)
    head: Sequence[str]
    lines: Iterable[Sequence[object]]
    if by == "tool":
        head = ("tool", "calls", "failures", "mean_ms", "p50_ms", "p95_ms", "p99_ms")
        tools = await visit.ask(visit.store.tool_logs.stats, since=_begin(days))
        lines = [[getattr(each, name) for name in head] for each in tools]
    elif by in ("day", "model", "user"):
        names = ("requests", "input_tokens", "output_tokens", "total_tokens", "cost")
        top = None if by == "day" else _MOST_LINES
        found = await _sums(visit, cast("By", by), days, top=top)
        sums = _every_day(found, days) if by == "day" else found
        head = (by, *names, "unpriced_requests")
        lines = [[each.key, *(getattr(each, name) for name in head[1:])] for each in sums]
        if by == "user":
            named = await visit.names(each.key for each in sums)
            head = (*head, "name")
            lines = [[*line, named.get(str(line[0]))] for line in lines]
    else:
        raise InvalidInput("by must be day, model, user or tool.")
    written = io.StringIO()
    to = csv.writer(written)
    to.writerow(head)
    to.writerows([cell(value) for value in line] for line in list(lines)[:_MOST_LINES])
    headers = {"Content-Disposition": f'attachment; filename="usage-by-{by}.csv"'}
    return Response(written.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


def cell(value: object) -> str:
    """Write a cell of CSV, such that no spreadsheet takes a text for a formula."""
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return f"{value:f}"
    text = visible(str(value))
    return _FORMULA.sub("'", text) if isinstance(value, str) else text


async def _sums(visit: Visit, by: By, days: int, top: int | None = None) -> tuple[UsageSum, ...]:
    return await visit.ask(
        visit.store.usage.sum_by,
        by,
        user_id=visit.given("user"),
        model=visit.given("model"),
        since=_begin(days),
        top=top,
    )


def _begin(days: int) -> datetime:
    """Give midnight, in UTC, of the first of so many days, of which today is the last."""
    today = datetime.now(UTC).date()
    return datetime.combine(today - timedelta(days=days - 1), time(), UTC)


def _every_day(sums: Iterable[UsageSum], days: int) -> list[UsageSum]:
    """Put in the days on which nothing was used."""
    found = {each.key: each for each in sums}
    first = _begin(days).date()
    wanted = [first + timedelta(days=number) for number in range(days)]
    return [found.get(day) or UsageSum(day, 0, 0, 0, 0, Decimal(0), 0) for day in wanted]


def _tokens(day: UsageSum) -> Column:
    rest = max(day.total_tokens - day.input_tokens - day.output_tokens, 0)
    said = f"{day.key}: {day.total_tokens:,} tokens"
    parts = (day.input_tokens, day.output_tokens, rest)
    return Column(f"{day.key:%d %b}", tuple(map(float, parts)), said)


def _cost(day: UsageSum) -> Column:
    return Column(f"{day.key:%d %b}", (float(day.cost),), f"{day.key}: {money(day.cost)}")
