"""Finding messages: what a search checks and brings up to date before it looks.

A search brings the index up to date first, as far as it asks for it: in a scope, or for one user,
that is what this user's messages lack. It waits for nobody who does the same, and does not begin in
a transaction, nor on a store that only reads. What still waits then is read itself, a bounded part
for each page: those messages are candidates too, and their text decides as it does about the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import Select

from agentstore.engines.base.dialect import Mode
from agentstore.errors import DatabaseFull, SearchIndexStale
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord, Page, SearchHit
from agentstore.records.words import Role
from agentstore.repositories.base.units import Units
from agentstore.repositories.search import waiting
from agentstore.repositories.search.pages import Request, TextSearch
from agentstore.repositories.search.search import (
    BATCH,
    Ready,
    manner_in,
    segmented,
    state_of_index,
    take_in,
)
from agentstore.values import validation
from agentstore.values.instants import require_utc
from agentstore.values.paging import check_limit
from agentstore.values.states import ROLES
from agentstore.values.text.search_terms import parse


def request(
    text: str,
    *,
    user_id: str | None,
    session_id: str | None,
    role: Role | None,
    since: datetime | None,
    until: datetime | None,
    order: str,
    limit: int,
    cursor: str | None,
) -> Request:
    """Check a search's arguments.

    Raises:
        InvalidInput: One of them cannot be asked for.
    """
    terms = parse(text)
    if role is not None:
        validation.choice("role", role, ROLES)
    validation.choice("order", order, ("relevance", "recent"))
    return Request(
        terms,
        text,
        validation.optional_text("user_id", user_id),
        validation.optional_text("session_id", session_id),
        role,
        None if since is None else require_utc("since", since),
        None if until is None else require_utc("until", until),
        order,
        check_limit(limit),
        cursor,
    )


def in_order(
    units: Units,
    asked: Request,
    columns: Callable[[Unit], Select[Any]],
    record: Callable[[Any], MessageRecord],
) -> Page[SearchHit]:
    """Search: bring the index up to date if it is not, then look.

    Args:
        units: Runs the transactions.
        asked: What for.
        columns: Gives the query for the columns of a record.
        record: Makes a record of its rows.
    """

    def look(unit: Unit, *, last: bool) -> Page[SearchHit] | None:
        """Give the hits; None if the index is to be brought up to date before."""
        theirs = asked.whose(unit)
        state = state_of_index(unit, waiting.MOST_PENDING + 1, theirs, asked.session_id)
        manner = manner_in(unit, state)
        if unit.scope is not None and unit.dialect.hides_rows and state.walked < state.newest:
            raise SearchIndexStale("is being rebuilt", state.pending)
        if state.pending and not (last or unit.settings.read_only or unit.joined):
            return None
        return TextSearch(unit, asked, state, columns(unit), record, manner).page()

    page = units.run(Mode.SNAPSHOT, look, last=False)
    if page is None:
        _catch_up(units, asked)
        page = units.run(Mode.SNAPSHOT, look, last=True)
    assert page is not None
    return page


def _catch_up(units: Units, asked: Request) -> None:
    """Bring the index up to date as far as a search needs it, and has not to wait for others."""

    def prepare(unit: Unit) -> Ready | None:
        ready = segmented(unit, asked.whose(unit))
        may_go_on = ready.goes_on and unit.dialect.search.may_write(unit.connection)
        return ready if may_go_on else None

    changes = text = 0
    while changes <= waiting.MOST_PENDING and text <= waiting.MOST_TEXT:
        ready = units.run(Mode.SNAPSHOT, prepare)
        if ready is None:
            return
        try:
            taken = units.run(Mode.WRITE, take_in, ready=ready, wait=False)
        except DatabaseFull:
            return  # there is no room for the index, but what waits can be read
        if taken is None or ready.batch.whole:
            return
        changes += max(len(ready.batch.changes), BATCH)
        text += ready.size
