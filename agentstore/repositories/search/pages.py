"""One page of a search: from a question to hits, in one look at one state of the database.

The engine's index gives candidates, the newest first; the filters and their text decide. What is a
hit, its score and its snippet come from this code alone, so they are equal on both engines.

A page reads ``MOST_READ`` rows of the index and little more, whatever is asked for. Where its
filters let so few through that it is not full by then, it is short, even empty, and has a cursor.

Order ``recent`` is that of the row numbers, the last created first. Order ``relevance`` takes
the hits in blocks of the most recent 500, the best of a block first: so its cost is bounded
where a word is in a tenth of all messages, and its pages hold each hit once while others write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, select

from agentstore.engines.base.search import Candidates, IndexState, Phrase, Question
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord, Page, SearchHit
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.search.waiting import waiting_under
from agentstore.values.paging import Cursors
from agentstore.values.text.manners import Manner
from agentstore.values.text.search_terms import SearchTerms
from agentstore.values.text.segmentation import tokens
from agentstore.values.text.snippets import snippet
from agentstore.values.types import MAX_INTEGER

Order = Literal["relevance", "recent"]

BLOCK = 500
"""Hits that are compared with each other: 13 ms for messages of 500 characters."""

MOST_READ = 10_000
"""Rows of the index that are read for a page, and as many messages whose filters are looked at: a
tenth of a second where they let nothing through. A page that is not full by then says where to go
on."""

_LOOKED_UP = 2_048
"""Messages whose filters are looked at in one statement."""

_LOOK = 100
"""So many rows count for a look that finds nothing: it takes as long as reading them."""

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


@dataclass(frozen=True, slots=True)
class _Match:
    message_pk: int
    micros: int
    """Its score in millionths: a whole number, for cursors."""
    text: str
    row: Any


class TextSearch:
    """One look at one state of the database."""

    def __init__(
        self,
        unit: Unit,
        asked: Request,
        state: IndexState,
        columns: Select[Any],
        record: Callable[[Any], MessageRecord],
        manner: Manner,
    ) -> None:
        self._unit = unit
        self._manner = manner
        self._terms = asked.terms.with_stems(manner.stems)
        self._waiting: list[int] = []
        self._bottom = 0  # Under it there is more that waits, and the page ends.
        self._asked = asked
        self._state = state
        self._left = MOST_READ
        self._conditions: list[ColumnElement[bool]] = []
        self._questions: list[Question] = []
        self._columns = columns
        self._record = record
        moments = [None if m is None else m.isoformat() for m in (asked.since, asked.until)]
        filters = [asked.text, asked.user_id, asked.session_id, asked.role, *moments]
        self._cursors = Cursors(f"search by {asked.order}", *filters)

    def page(self) -> Page[SearchHit]:
        """Give the hits, and where to go on if there may be more."""
        by_relevance = self._asked.order == "relevance"
        key = None
        if self._asked.cursor is not None:
            key = self._cursors.read(self._asked.cursor, 4 if by_relevance else 1)
        if not self._terms or not self._narrow():
            return Page((), None)
        before = self._state.newest + 1 if key is None else key[0]
        if self._state.pending:
            again = key[1] if key is not None and by_relevance and key[1] >= 0 else None
            whose, characters = self._asked.whose(self._unit), self._manner.characters
            self._waiting, self._bottom = waiting_under(
                self._unit, before, again, self._passing, whose, characters
            )
        found, following = self._best(key) if by_relevance else self._recent(before)
        return Page(tuple(map(self._hit, found)), following)

    def _narrow(self) -> bool:
        """Say what to ask the index, and of what to ask it; False if nothing can be a hit."""
        asked, tables = self._asked, self._unit.tables
        messages, sessions = tables.messages.c, tables.sessions.c
        conditions = self._conditions
        wanted: tuple[int, ...] | None = None
        if asked.session_id is not None:
            if self._state.session is None:
                return False
            wanted = (self._state.session,)
            conditions.append(sessions.pk == self._state.session)
        only = self._unit.only
        if only is not None and asked.user_id not in (None, only):
            return False
        if (owner := asked.user_id if only is None else only) is not None:
            conditions.append(sessions.user_id == owner)
            if wanted is None:
                query = select(sessions.pk).where(sessions.user_id == owner)
                theirs = self._unit.connection.execute(query.limit(_MOST_SESSIONS + 1))
                pks = tuple(theirs.scalars())
                if not pks:
                    return False
                wanted = pks if len(pks) <= _MOST_SESSIONS else None
        if asked.role is not None:
            conditions.append(messages.role == asked.role)
        if asked.since is not None:
            conditions.append(messages.created_at >= asked.since)
        if asked.until is not None:
            conditions.append(messages.created_at < asked.until)
        reader = only if self._state.guarded else None
        for each in self._terms.alternatives:
            phrases, beginnings = list[Phrase](), list[str]()
            for term in each.indexed():
                if begins := term.prefix and len(term.tokens[-1]) == 1:
                    beginnings.append(term.tokens[-1])
                if words := term.tokens[:-1] if begins else term.tokens:
                    phrases.append(Phrase(words, term.prefix and not begins))
            question = Question(tuple(phrases), tuple(beginnings), wanted, reader)
            self._questions.append(question)
        return True

    def _recent(self, before: int) -> tuple[list[_Match], str | None]:
        limit = self._asked.limit
        found, rest = self._matches(before, limit + 1)
        if len(found) > limit:
            found, rest = found[:limit], found[limit - 1].row.pk
        return found, self._cursors.make([rest]) if rest else None

    def _best(self, key: list[int] | None) -> tuple[list[_Match], str | None]:
        # A block is bounded below, too, by what it was on the page before: a hit that is deleted
        # must not pull one of the next block in, past the place where this page begins.
        limit = self._asked.limit
        top, bottom, micros, last = key or (self._state.newest + 1, -1, MAX_INTEGER, 0)
        found: list[_Match] = []
        place: list[int] = []
        while True:
            most = BLOCK if bottom < 0 else MAX_INTEGER
            block, rest = self._matches(top, most, floor=max(bottom, 0))
            for match in sorted(block, key=lambda m: (-m.micros, -m.message_pk)):
                if (match.micros, match.message_pk) < (micros, last):
                    if len(found) == limit:
                        return found, self._cursors.make(place)
                    found.append(match)
                    place = [top, rest, match.micros, match.message_pk]
            if not rest:
                return found, None
            top, bottom, micros, last = rest, -1, MAX_INTEGER, 0
            if self._left <= 0 or top <= self._bottom:
                return found, self._cursors.make([top, bottom, micros, last])

    def _matches(self, before: int, count: int, floor: int = 0) -> tuple[list[_Match], int]:
        """Give so many of the newest hits under a row number, unless too much is to be read.

        Args:
            before: Under which row number.
            count: How many.
            floor: From which row number on.

        Returns:
            The hits, the newest first, and the row number under which to go on; that is ``floor``
            if nothing is left above it, or where the rest begins of what waits.
        """
        unit = self._unit
        found: list[_Match] = []
        # A block that was read before is read whole, or its hits would come twice.
        least = -MOST_READ if floor else 0
        floor, top = max(floor, self._bottom), before
        index = unit.dialect.search
        looks = [
            index.looks(unit.connection, unit.tables, question, before=before, count=count)
            for question in self._questions
        ]
        for look in _together(looks, before):
            self._left -= max(look.read, _LOOK)
            reached = max(look.reached, floor)
            also = {pk for pk in self._waiting if reached <= pk < before}
            pks = sorted(also.union(pk for pk in look.pks if pk >= reached), reverse=True)
            size = min(count - len(found), BLOCK)
            found += self._verified(pks[:size], *self._conditions)  # which is enough, mostly
            passing = self._passing(pks[size:]) if len(found) < count else []
            while passing and len(found) < count:
                size = min(max(count - len(found), 10), BLOCK)
                found += self._verified(passing[:size])
                passing = passing[size:]
            if len(found) >= count:
                return found[:count], found[count - 1].row.pk
            before = reached
            if before <= floor or (self._left <= least and before < top):
                break
        return found, before

    def _passing(self, pks: Sequence[int]) -> list[int]:
        """Give those of the messages that the filters let through, the largest first."""
        if not self._conditions or not pks:
            return list(pks)
        unit = self._unit
        messages, sessions = unit.tables.messages.c, unit.tables.sessions
        query = select(messages.pk).join(sessions, sessions.c.pk == messages.session_id)
        found: list[int] = []
        for chunk in chunks(pks, _LOOKED_UP):
            these = unit.dialect.search.among(messages.pk, chunk)
            found += unit.connection.execute(query.where(these, *self._conditions)).scalars()
        return sorted(found, reverse=True)

    def _verified(self, pks: Sequence[int], *conditions: ColumnElement[bool]) -> list[_Match]:
        """Look at the text of messages; give those that are hits, in the same order."""
        if not pks:
            return []
        unit = self._unit
        messages, sessions = unit.tables.messages.c, unit.tables.sessions
        query = self._columns.add_columns(messages.pk)
        if conditions:
            query = query.join(sessions, sessions.c.pk == messages.session_id).where(*conditions)
        rows = unit.connection.execute(
            query.where(unit.dialect.search.among(messages.pk, pks))
        ).all()
        found = []
        for row in sorted(rows, key=lambda row: -row.pk):
            text = self._manner.text_of(row)
            score = self._terms.score(tokens(text))
            if score is not None:
                found.append(_Match(row.pk, round(score * _MICRO), text, row))
        return found

    def _hit(self, match: _Match) -> SearchHit:
        return SearchHit(
            self._record(match.row), snippet(match.text, self._terms), match.micros / _MICRO
        )


def _together(looks: Sequence[Iterator[Candidates]], before: int) -> Iterator[Candidates]:
    """Look for messages that may be a hit of one question or another, the newest first."""
    if len(looks) == 1:
        yield from looks[0]
        return
    reached = [before] * len(looks)
    held: set[int] = set()
    while any(reached):
        last = max(range(len(looks)), key=reached.__getitem__)
        look = next(looks[last])
        reached[last] = look.reached
        held.update(look.pks)
        floor = max(reached)
        yield Candidates([pk for pk in held if pk >= floor], floor, look.read)
        held = {pk for pk in held if pk < floor}
