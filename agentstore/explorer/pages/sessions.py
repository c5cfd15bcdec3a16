"""Sessions: those with the newest or the oldest activity first, and which, by the address."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from starlette.responses import Response

from agentstore.errors import InvalidInput
from agentstore.explorer.web.visits import Visit
from agentstore.records.words import SessionStatus
from agentstore.repositories.sessions.filters import Order
from agentstore.values.states import SESSION_STATUSES

_ON_A_PAGE = 50
_ADDED_UP = 200
"""Requests of each session: of one that made more, the last ones are added up."""

_FIELDS = {
    "user": "User id",
    "model": "Model",
    "title": "In the title",
    "since": "Active since",
    "until": "Active until",
    "path": "Metadata path",
    "value": "Its value, as JSON or text",
}


async def page(visit: Visit) -> Response:
    """List sessions."""
    path = visit.given("path")
    if path is None and visit.given("value"):
        raise InvalidInput("value= is what stands at a path= in the metadata, which is missing.")
    order = visit.given("order") or "newest"
    found = await visit.ask(
        visit.store.sessions.list,
        user_id=visit.given("user"),
        status=cast("SessionStatus | None", visit.given("status")),
        title=visit.given("title"),
        model=visit.given("model"),
        since=_day(visit, "since"),
        until=_day(visit, "until", after=1),
        metadata=None if path is None else {path: _value(visit.query.get("value", ""))},
        order=cast("Order", order),
        limit=_ON_A_PAGE,
        cursor=visit.given("cursor"),
        preview=True,
    )
    ids = [each.id for each in found]
    used = await visit.ask(visit.store.usage.of_sessions, ids, most=_ADDED_UP)
    status = visit.given("status")
    statuses = [("all", visit.here(status=None, cursor=None), status is None)]
    for each in SESSION_STATUSES:
        statuses.append((each, visit.here(status=each, cursor=None), status == each))
    narrowed = [name for name in _FIELDS if visit.given(name)]
    return await visit.page(
        "sessions.html",
        found=found,
        used=used,
        statuses=statuses,
        fields=[(name, words, visit.given(name) or "") for name, words in _FIELDS.items()],
        narrowed=[
            (_FIELDS[name], visit.given(name), visit.here(**{name: None, "cursor": None}))
            for name in narrowed
        ],
        everything=not (narrowed or status),
        order=order,
        turned=visit.here(order=None if order == "oldest" else "oldest", cursor=None),
        more=visit.here(cursor=found.next_cursor) if found.next_cursor else None,
        first=visit.here(cursor=None) if visit.given("cursor") else None,
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
