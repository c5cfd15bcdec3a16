"""Usage: tokens and cost by day, model and user, calls and times by tool; also as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Literal, cast

from starlette.responses import Response

from agentstore.errors import InvalidInput
from agentstore.explorer.web.plots import Column, columns
from agentstore.explorer.web.rendering import money
from agentstore.explorer.web.visible import visible
from agentstore.explorer.web.visits import Visit
from agentstore.explorer.web.words import brief
from agentstore.records import UsageSum

By = Literal["day", "model", "user"]

_DAYS = (1, 7, 14, 30, 90, 366)
_DEFAULT, _MOST = 14, 366
_SHOWN = 20
"""Models, users and tools; CSV has more of them."""

_MOST_LINES = 1_000
"""Of CSV."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A cell that begins so may be run by a spreadsheet: an apostrophe makes it text."""


async def page(visit: Visit) -> Response:
    """Draw what was used in a window of days, and list it."""
    days = visit.whole("days", _DEFAULT, least=1, most=_MOST)
    by_day = _every_day(await _sums(visit, "day", days), days)
    narrowed = visit.given("user") or visit.given("model")
    stats = visit.store.tool_logs.stats
    tools = None if narrowed else await visit.ask(stats, since=_begin(days))
    return await visit.page(
        "usage.html",
        days=days,
        choices=sorted({*_DAYS, days}),
        total=_total(by_day),
        by_day=by_day,
        plots=(
            columns("Tokens by day", [*map(_tokens, by_day)], brief),
            columns("Cost by day", [*map(_cost, by_day)], brief),
        ),
        by_model=await _sums(visit, "model", days, top=_SHOWN + 1),
        by_user=await _sums(visit, "user", days, top=_SHOWN + 1),
        tools=tools,
        shown=_SHOWN,
    )


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
    else:
        raise InvalidInput("by must be day, model, user or tool.")
    written = io.StringIO()
    to = csv.writer(written)
    to.writerow(head)
    to.writerows([cell(value) for value in line] for line in list(lines)[:_MOST_LINES])
    named = {"Content-Disposition": f'attachment; filename="usage-by-{by}.csv"'}
    return Response(written.getvalue(), headers=named, media_type="text/csv; charset=utf-8")


def cell(value: object) -> str:
    """Write a cell of CSV, such that no spreadsheet takes a text for a formula."""
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return f"{value:f}"
    text = visible(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


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
    return [found.get(day) or _nothing(day) for day in wanted]


def _nothing(day: date) -> UsageSum:
    return UsageSum(day, 0, 0, 0, 0, Decimal(0), 0)


def _total(sums: Iterable[UsageSum]) -> UsageSum:
    found = [*sums]
    return UsageSum(
        None,
        sum(each.requests for each in found),
        sum(each.input_tokens for each in found),
        sum(each.output_tokens for each in found),
        sum(each.total_tokens for each in found),
        sum((each.cost for each in found), Decimal(0)),
        sum(each.unpriced_requests for each in found),
    )


def _tokens(day: UsageSum) -> Column:
    rest = max(day.total_tokens - day.input_tokens - day.output_tokens, 0)
    said = f"{day.key}: {day.total_tokens:,} tokens"
    parts = (day.input_tokens, day.output_tokens, rest)
    return Column(f"{day.key:%d %b}", tuple(map(float, parts)), said)


def _cost(day: UsageSum) -> Column:
    return Column(f"{day.key:%d %b}", (float(day.cost),), f"{day.key}: {money(day.cost)}")
