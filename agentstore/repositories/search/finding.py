"""Finding messages: from a question to a page of hits.

The engine's index gives candidates, the newest first; their text decides. What is a hit, its
score and its snippet come from this code alone, so they are equal on both engines.

Order ``recent`` is that of the row numbers, the last created first. Order ``relevance`` takes
the hits in blocks of the most recent 500, the best of a block first: so its cost is bounded
where a word is in a tenth of all messages, and its pages hold each hit once while others write.

A search brings the index up to date first, as far as it asks for it: in a scope, or for one user,
that is what this user's messages lack. It waits for nobody who does the same, and does not begin in
a transaction, nor on a store that only reads. What still waits then is read itself: those messages
are candidates too, and their text decides as it does about the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, select

from agentstore.engines.base.dialect import Mode
from agentstore.engines.base.search import Phrase, Question
from agentstore.errors import DatabaseFull, SearchIndexStale
from agentstore.execution.unit import Unit, in_transaction
from agentstore.records import MessageRecord, Page, SearchHit
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.base.units import Units
from agentstore.repositories.search.search import (
    BATCH,
    Ready,
    searched_text,
    segmented,
    take_in,
    trouble_with,
)
from agentstore.values import validation
from agentstore.values.paging import Cursors, check_limit
from agentstore.values.states import ROLES
from agentstore.values.text.search_terms import SearchTerms, parse
from agentstore.values.text.segmentation import characters_of, tokens
from agentstore.values.text.snippets import snippet
from agentstore.values.types import MAX_INTEGER, require_utc

Order = Literal["relevance", "recent"]

BLOCK = 500
"""Hits that are compared with each other: 13 ms for messages of 500 characters."""

MOST_PENDING = 10_000
"""Changes that a search takes into the index before it answers: a second or two. With more it
says so, rather than let its caller wait for minutes."""

MOST_TEXT = 8_000_000
"""Characters of text that a search takes into the index before it answers, and that it reads
itself afterwards: a second or two. What it took in is in, so that the next one gets further."""

_MOST_SESSIONS = 100
"""Sessions of a user that are named to the index; those of a user with more are filtered out of
what it finds."""

_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """A search, checked. ``text`` and the filters are as the caller gave them."""

    terms: SearchTerms
    text: str
    user_id: str | None
    session_id: str | None
    role: str | None
    since: datetime | None
    until: datetime | None
    order: str
    limit: int
    cursor: str | None

    def whose(self, unit: Unit) -> str | None:
        """Give the user whose messages alone are asked for; None for all users'."""
        return self.user_id if unit.only is None else unit.only


def request(
    text: str,
    *,
    user_id: str | None,
    session_id: str | None,
    role: str | None,
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
        index, theirs = unit.dialect.search, asked.whose(unit)
        state = index.state(unit.connection, unit.tables, MOST_PENDING + 1, theirs)
        if (problem := trouble_with(state)) is not None:
            raise SearchIndexStale(problem, state.pending)
        assert state.segmentation is not None
        if unit.scope is not None and unit.dialect.hides_rows and state.walked < state.newest:
            raise SearchIndexStale("is being rebuilt", state.pending)
        if state.pending > MOST_PENDING:
            raise _far_behind(state.pending)
        characters = characters_of(state.segmentation)
        waiting: list[int] = []
        if state.pending:
            if not (last or unit.settings.read_only or in_transaction(unit)):
                return None
            most = MOST_PENDING + 1
            waiting = index.waiting(unit.connection, unit.tables, most, theirs)
            if len(waiting) > MOST_PENDING or _too_much(unit, waiting, characters):
                raise _far_behind(len(waiting))
        return _TextSearch(
            unit, asked, state.newest, columns(unit), record, characters, waiting
        ).page()

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
    while changes <= MOST_PENDING and text <= MOST_TEXT:
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


def _too_much(unit: Unit, waiting: Sequence[int], characters: int | None) -> bool:
    """Say whether messages have more text than a search reads without an index."""
    if len(waiting) * (characters or MAX_INTEGER) <= MOST_TEXT:
        return False
    text = 0
    for chunk in chunks(waiting):
        for size in unit.dialect.search.sizes(unit.connection, unit.tables, chunk):
            text += size if characters is None else min(size, characters)
            if text > MOST_TEXT:
                return True
    return False


def _far_behind(pending: int) -> SearchIndexStale:
    return SearchIndexStale("is too far behind", pending)


@dataclass(frozen=True, slots=True)
class _Match:
    message_pk: int
    micros: int
    """Its score in millionths: a whole number, for cursors."""
    text: str
    row: Any


class _TextSearch:
    """One look at one state of the database."""

    def __init__(
        self,
        unit: Unit,
        asked: Request,
        newest: int,
        columns: Select[Any],
        record: Callable[[Any], MessageRecord],
        characters: int | None,
        waiting: Sequence[int],
    ) -> None:
        self._unit = unit
        self._characters = characters
        self._waiting = waiting
        self._asked = asked
        self._newest = newest
        self._columns = columns
        self._record = record
        moments = [None if m is None else m.isoformat() for m in (asked.since, asked.until)]
        filters = [asked.text, asked.user_id, asked.session_id, asked.role, *moments]
        self._cursors = Cursors(f"search by {asked.order}", *filters)

    def page(self) -> Page[SearchHit]:
        by_relevance = self._asked.order == "relevance"
        key = None
        if self._asked.cursor is not None:
            key = self._cursors.read(self._asked.cursor, 4 if by_relevance else 1)
        question = self._question() if self._asked.terms else None
        if question is None:
            return Page((), None)
        found, following = (self._best if by_relevance else self._recent)(question, key)
        return Page(tuple(map(self._hit, found)), following)

    def _question(self) -> Question | None:
        """Say what to ask the index; None where the filters let nothing through."""
        asked, tables = self._asked, self._unit.tables
        messages, sessions = tables.messages.c, tables.sessions.c
        conditions: list[ColumnElement[bool]] = []
        wanted = None if asked.session_id is None else (asked.session_id,)
        if asked.session_id is not None:
            conditions.append(messages.session_id == asked.session_id)
        only = self._unit.only
        if only is not None and asked.user_id not in (None, only):
            return None
        if (owner := asked.user_id if only is None else only) is not None:
            conditions.append(sessions.user_id == owner)
            if wanted is None:
                query = select(sessions.id).where(sessions.user_id == owner)
                theirs = self._unit.connection.execute(query.limit(_MOST_SESSIONS + 1))
                ids = tuple(theirs.scalars())
                if not ids:
                    return None
                wanted = ids if len(ids) <= _MOST_SESSIONS else None
        if asked.role is not None:
            conditions.append(messages.role == asked.role)
        if asked.since is not None:
            conditions.append(messages.created_at >= asked.since)
        if asked.until is not None:
            conditions.append(messages.created_at < asked.until)
        phrases = tuple(Phrase(term.tokens, term.prefix) for term in asked.terms.indexed())
        return Question(phrases, wanted, tuple(conditions))

    def _recent(self, question: Question, key: list[int] | None) -> tuple[list[_Match], str | None]:
        limit = self._asked.limit
        before = self._newest + 1 if key is None else key[0]
        found, _ = self._matches(question, before, limit + 1)
        if len(found) <= limit:
            return found, None
        return found[:limit], self._cursors.make([found[limit - 1].message_pk])

    def _best(self, question: Question, key: list[int] | None) -> tuple[list[_Match], str | None]:
        # A block is bounded below, too, by what it was on the page before: a hit that is deleted
        # must not pull one of the next block in, past the place where this page begins.
        limit = self._asked.limit
        top, bottom, micros, last = key or (self._newest + 1, -1, MAX_INTEGER, 0)
        found: list[_Match] = []
        place: list[int] = []
        while True:
            block, rest = self._matches(question, top, BLOCK)
            if bottom < 0:
                bottom = rest
            for match in sorted(block, key=lambda m: (-m.micros, -m.message_pk)):
                if match.message_pk >= bottom and (match.micros, match.message_pk) < (micros, last):
                    if len(found) == limit:
                        return found, self._cursors.make(place)
                    found.append(match)
                    place = [top, bottom, match.micros, match.message_pk]
            if not bottom:
                return found, None
            top, bottom, micros, last = bottom, -1, MAX_INTEGER, 0

    def _matches(self, question: Question, before: int, count: int) -> tuple[list[_Match], int]:
        """Give so many of the newest hits under a row number, and where to go on, 0 if nowhere."""
        unit = self._unit
        found: list[_Match] = []
        waiting = self._waiting_for(question)
        while len(found) < count:
            # Of those that wait most are no hits, so they are looked at in larger pieces.
            wanted = max(count - len(found), BLOCK if waiting else 0)
            candidates = unit.dialect.search.candidates(
                unit.connection, unit.tables, question, before=before, count=wanted
            )
            if waiting:
                others = {pk for pk in waiting if pk < before}
                candidates = sorted(others.union(candidates), reverse=True)[:wanted]
            found += self._verified(candidates)
            if len(found) > count:
                return found[:count], found[count - 1].row.pk
            if len(candidates) < wanted:
                return found, 0
            before = candidates[-1]
        return found, before

    def _waiting_for(self, question: Question) -> list[int]:
        """Give those of the messages that wait to which the question's conditions apply."""
        if not question.conditions:
            return list(self._waiting)
        messages, sessions = self._unit.tables.messages, self._unit.tables.sessions
        query = select(messages.c.pk).join(sessions, sessions.c.id == messages.c.session_id)
        found: list[int] = []
        for chunk in chunks(self._waiting):
            these = query.where(messages.c.pk.in_(chunk), *question.conditions)
            found += self._unit.connection.execute(these).scalars()
        return found

    def _verified(self, candidates: list[int]) -> list[_Match]:
        """Look at the candidates' text; give those that are hits, in the same order."""
        if not candidates:
            return []
        messages = self._unit.tables.messages.c
        query = self._columns.add_columns(messages.pk).where(messages.pk.in_(candidates))
        rows = self._unit.connection.execute(query).all()
        found = []
        for row in sorted(rows, key=lambda row: -row.pk):
            text = searched_text(row, self._characters)
            score = self._asked.terms.score(tokens(text))
            if score is not None:
                found.append(_Match(row.pk, round(score * _MICRO), text, row))
        return found

    def _hit(self, match: _Match) -> SearchHit:
        return SearchHit(
            self._record(match.row), snippet(match.text, self._asked.terms), match.micros / _MICRO
        )
