"""The search index, and finding messages by it.

```text
messages --(trigger)--> changes --(take in: cut into tokens)--> index
                                                                  |
search: question -> candidates from the index, and from changes still waiting
                 -> their text decides -> hits, scores, snippets
```

A trigger notes every *change* of a message. Changes are *taken in* later, in rounds: their text is
cut into *tokens* while nothing is locked, and a short transaction gives the tokens to the engine's
index. A search takes in what it needs first, and reads the messages that are still waiting itself.

The invariants: no change is lost in a crash, because it waits until its tokens are in the index;
and what is a hit, its score and its snippet come from this code, not from the engine, so both
engines give the same answer.

``Search`` is the repository of the index (status, refresh, reindex); ``TextSearch`` looks for a
page of the hits of ``messages.search``. What differs between the engines is in ``engines``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, select

from agentstore.engines.base.dialect import Mode
from agentstore.engines.base.search import (
    Batch,
    Candidates,
    Entry,
    IndexState,
    Phrase,
    Question,
    SearchIndex,
    Source,
)
from agentstore.errors import DatabaseBusy, DatabaseFull, InvalidInput, SearchIndexStale, shown
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord, Page, SearchHit, SearchStatus
from agentstore.records.base import Role
from agentstore.repositories import scopes
from agentstore.repositories.operations import (
    Repository,
    Units,
    chunks,
    reads_snapshot,
    several_units,
)
from agentstore.settings import Settings
from agentstore.values import validation
from agentstore.values.snippets import SearchTerms, parse, snippet
from agentstore.values.tokens import VERSION, Tokenizer, check_language, tokenizer_of, tokens
from agentstore.values.types import MAX_INTEGER, require_utc
from agentstore.values.validation import ROLES, Cursors, check_limit

# The search index as a whole: bringing it up to date, its state, rebuilding it.
#
# Triggers note every change of a message, by any program. What they note is taken in here, in
# rounds: changes are read, and their text is cut into tokens, while nothing is locked; then a
# short transaction hands the tokens to the engine's index, of those changes that are still as
# they were read. A crash anywhere loses nothing, because a change waits until its tokens are in.


Progress = Callable[[int, int], object]
"""Told how many messages are done, and of how many."""

BATCH = 200
"""Messages in one transaction: some 20 ms for which SQLite's other writers wait."""

BATCH_BYTES = 256_000
"""Bytes of messages in one transaction, unless a single one has more: no longer than that."""

_COUNTLESS = 2**31
_MISSES = 10
"""Rounds in a row of which others took everything first, until ``refresh`` leaves it to them."""


class Search(Repository):
    """The index behind ``messages.search``."""

    __slots__ = ()

    @scopes.INDEX
    @reads_snapshot
    def status(self) -> SearchStatus:
        """Say whether the index is whole, of this version, and how many changes it lacks."""
        state = state_of_index(self.unit, _COUNTLESS, thorough=True)
        settings = self.unit.settings
        problem = index_problem(state, settings.search_stems)
        needed = str(_made_anew(settings, state.segmentation))
        return SearchStatus(state.segmentation, needed, state.pending, problem)

    @scopes.INDEX
    @several_units
    def refresh(self, limit: int | None = None) -> int:
        """Bring the index up to date now, as a search would.

        In batches of 200 messages or 256 kB, each in a transaction of its own, so that other
        writers get their turn. May run beside anything, itself included.

        Args:
            limit: Stop when so many changes are done; None means all that wait.

        Returns:
            How many changes were taken into the index.

        Raises:
            SearchIndexStale: The index is damaged, or of another version.
        """
        if limit is not None:
            validation.amount("limit", limit)
        return _all_rounds(self._units(), limit)

    @scopes.INDEX
    @several_units
    def reindex(self, progress: Progress | None = None) -> int:
        """Rebuild the index, and create what is missing of its tables and triggers.

        Needed after an upgrade of agentstore that cuts text differently, after a damage, and
        for a large database that had no index yet. Messages can be read and written meanwhile,
        searches raise SearchIndexStale while much is missing. If it is interrupted, calling it
        again, or ``refresh``, finishes it.

        Args:
            progress: Called after each batch with the number of messages done and their total.

        Returns:
            How many messages were indexed.
        """
        if progress is not None and not callable(progress):
            raise InvalidInput(f"progress must be a function, not {shown(progress)}.")
        units = self._units()
        total = units.run(Mode.WRITE, _reset)
        done = 0

        def tell(indexed: int) -> None:
            nonlocal done
            done += indexed
            if progress is not None and indexed:
                progress(done, max(done, total))

        _all_rounds(units, None, tell, bulk=True)
        units.run(Mode.WRITE, lambda unit: index_in(unit).tidy())
        return done


def _all_rounds(
    units: Units,
    limit: int | None,
    tell: Callable[[int], None] = lambda indexed: None,
    *,
    bulk: bool = False,
) -> int:
    """Take in what waits, waiting for others who do; give the number of changes.

    Args:
        units: Runs the transactions.
        limit: Stop when so many are taken.
        tell: Told after each round how many messages it put into the index.
        bulk: Whether the index is filled from the beginning.
    """
    done = misses = 0
    if units.run(Mode.SNAPSHOT, _sleeps):
        units.run(Mode.WRITE, wake)
    while (limit is None or done < limit) and misses < _MISSES:
        ready = units.run(Mode.SNAPSHOT, segmented)
        taken, indexed = units.run(Mode.WRITE, take_in, ready, wait=True, bulk=bulk) or (0, 0)
        done += taken
        misses = 0 if taken or not ready.batch.changes else misses + 1
        tell(indexed)
        if ready.batch.whole:
            break
    return done


def index_in(unit: Unit) -> SearchIndex:
    """Give the engine's index, in the unit's transaction."""
    return unit.dialect.search(unit.connection, unit.tables)


def _sleeps(unit: Unit) -> bool:
    return index_in(unit).state(1).asleep


def wake(unit: Unit) -> None:
    """Have changes noted from now on, those of all users."""
    dialect, connection = unit.dialect, unit.connection
    scope = dialect.scope_of(connection)
    dialect.enter_scope(connection, "")
    index_in(unit).wake()
    dialect.enter_scope(connection, scope)


def state_of_index(
    unit: Unit,
    count_to: int,
    user_id: str | None = None,
    session_id: str | None = None,
    *,
    thorough: bool = False,
) -> IndexState:
    """Say what the index is; one that holds nothing yet is as the settings want it to be.

    The arguments are those of ``SearchIndex.state``.
    """
    index, wanted = index_in(unit), unit.settings.search_stems
    state = index.state(count_to, user_id, session_id, thorough=thorough)
    made = tokenizer_of(state.segmentation)
    if index_problem(state, wanted) is None or made.version != VERSION:
        return state
    if state.missing or state.segmentation is None or state.guarded:
        return state
    if not index.is_empty():
        return state
    tokenizer = _made_anew(unit.settings, state.segmentation)
    return replace(state, segmentation=str(tokenizer), former=state.segmentation)


def index_problem(state: IndexState, stems: str | None = None) -> str | None:
    """Say why an index must not be asked; None if it may, once it is up to date.

    Args:
        state: What it is.
        stems: The language that the settings ask for; None if they leave it to the index.
    """
    if state.missing:
        return f"is damaged: {', '.join(state.missing)} is missing"
    if state.segmentation is None:
        return "is damaged: its state is lost"
    return tokenizer_of(state.segmentation).problem(stems)


def tokenizer_in(unit: Unit, state: IndexState) -> Tokenizer:
    """Give the tokenizer of an index that may be asked.

    Raises:
        SearchIndexStale: It must not be asked.
    """
    if (problem := index_problem(state, unit.settings.search_stems)) is not None:
        raise SearchIndexStale(problem, state.pending)
    return tokenizer_of(state.segmentation)


def _made_anew(settings: Settings, made: str | None) -> Tokenizer:
    return tokenizer_of(made).made_anew(settings.search_characters, settings.search_stems)


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch with its tokens.

    Attributes:
        segmentation: The name of the tokenizer that made them.
        former: That of the index, if it is empty and to be made by this one from now on.
        removed: What the index is to be told to forget, by the messages' row numbers.
        added: What it is to take in.
    """

    batch: Batch
    segmentation: str
    former: str | None
    removed: dict[int, Entry]
    added: dict[int, Entry]

    @property
    def goes_on(self) -> bool:
        """Whether there is something to take, or to walk past."""
        walk = self.batch.walk
        return bool(self.batch.changes) or (walk is not None and walk[0] < walk[1])

    @property
    def size(self) -> int:
        """How many characters of tokens there are."""
        entries = (*self.removed.values(), *self.added.values())
        return sum(sum(map(len, entry.tokens)) for entry in entries)


def segmented(unit: Unit, user_id: str | None = None) -> Ready:
    """Read a batch of changes that wait and cut their text, in a transaction that locks nothing.

    Raises:
        SearchIndexStale: The index is damaged, or of another version.
    """
    index = index_in(unit)
    state = state_of_index(unit, 1, user_id)
    tokenizer = tokenizer_in(unit, state)
    # Where only some messages are seen, the rest of a walk would be lost to everybody.
    new = unit.scope is None or not unit.dialect.hides_rows
    batch = Batch([], whole=True)
    if state.pending:
        batch = index.read(BATCH, BATCH_BYTES, user_id, new=new)
    removed: dict[int, Entry] = {}
    added: dict[int, Entry] = {}
    for change in batch.changes:
        for entries, source in ((removed, change.before), (added, change.after)):
            if source is not None:
                entries[change.message_pk] = _entry(change.message_pk, source, tokenizer)
    return Ready(batch, str(tokenizer), state.former, removed, added)


def take_in(unit: Unit, ready: Ready, *, wait: bool, bulk: bool = False) -> tuple[int, int] | None:
    """Write a batch into the index, as far as it is still as it was read.

    Args:
        unit: In a write transaction.
        ready: The batch.
        wait: Whether to wait for somebody else who is at it, where that is possible.
        bulk: Whether many more follow, and ``tidy`` at last.

    Returns:
        The number of changes that were taken, and of messages that are in the index now; None if
        somebody else is at it.
    """
    index = index_in(unit)
    if ready.former is not None:
        index.adopt(ready.former, ready.segmentation)
    taken = index.take(ready.segmentation, ready.batch, wait=wait)
    if taken is None:
        return None
    removed = [entry for pk, entry in ready.removed.items() if pk in taken]
    added = [entry for pk, entry in ready.added.items() if taken.get(pk)]
    index.write(removed, added, bulk=bulk)
    return len(taken), len(added)


def forget_sessions(unit: Unit, session_ids: Sequence[str]) -> None:
    """Let go of what waits for the index of sessions that the transaction deletes next."""
    for chunk in chunks(session_ids):
        index_in(unit).forget_sessions(chunk)


def forget_deleted(unit: Unit) -> None:
    """Take deleted messages out of the index in the transaction that deletes them.

    Without it they would not be found either; but their text would stay in the queue until
    somebody searches. What a message says now is left for later.
    """
    index = index_in(unit)
    if not index.holds_deleted_text:
        return
    while changes := index.held(BATCH):
        state = index.state(1)
        if index_problem(state) is not None:
            return
        tokenizer = tokenizer_of(state.segmentation)
        removed = [
            _entry(change.message_pk, change.before, tokenizer)
            for change in changes
            if change.before is not None
        ]
        index.write(removed, [])
        index.forget(changes)


def _entry(message_pk: int, source: Source, tokenizer: Tokenizer) -> Entry:
    return Entry(message_pk, source.session, tokenizer.tokens_of(source))


def _reset(unit: Unit) -> int:
    index = index_in(unit)
    made = index.state(1, thorough=True).segmentation
    tokenizer = _made_anew(unit.settings, made)
    check_language(tokenizer.language)
    index.reset(str(tokenizer))
    return index.state(_COUNTLESS).pending


# One page of a search: from a question to hits, in one look at one state of the database.
#
# The engine's index gives candidates, the newest first; the filters and their text decide. What
# is a hit, its score and its snippet come from this code alone, so they are equal on both
# engines.
#
# A page reads ``MOST_READ`` rows of the index and little more, whatever is asked for. Where its
# filters let so few through that it is not full by then, it is short, even empty, and has a
# cursor.
#
# Order ``recent`` is that of the row numbers, the last created first. Order ``relevance`` takes
# the hits in blocks of the most recent 500, the best of a block first: so its cost is bounded
# where a word is in a tenth of all messages, and its pages hold each hit once while others write.


SearchOrder = Literal["relevance", "recent"]

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
        tokenizer: Tokenizer,
    ) -> None:
        self._unit = unit
        self._tokenizer = tokenizer
        self._terms = asked.terms.with_stems(tokenizer.stems)
        self._waiting: list[int] = []
        self._bottom = 0  # Under it there is more that waits, and the page ends.
        self._asked = asked
        self._state = state
        self._left = MOST_READ
        self._conditions: list[ColumnElement[bool]] = []
        self._of_sessions: dict[str, Any] = {}
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
            whose, characters = self._asked.whose(self._unit), self._tokenizer.characters
            self._waiting, self._bottom = waiting_under(
                self._unit, before, again, self._passing, whose, characters
            )
        found, following = self._best(key) if by_relevance else self._recent(before)
        hits = [
            SearchHit(self._record(each.row), snippet(each.text, self._terms), each.micros / _MICRO)
            for each in found
        ]
        return Page(tuple(hits), following)

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
            self._of_sessions["pk"] = self._state.session
        only = self._unit.only
        if only is not None and asked.user_id not in (None, only):
            return False
        if (owner := asked.user_id if only is None else only) is not None:
            self._of_sessions["user_id"] = owner
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
        index = index_in(unit)
        looks = [index.looks(each, before=before, count=count) for each in self._questions]
        for look in _together(looks, before):
            self._left -= max(look.read, _LOOK)
            reached = max(look.reached, floor)
            also = {pk for pk in self._waiting if reached <= pk < before}
            pks = sorted(also.union(pk for pk in look.pks if pk >= reached), reverse=True)
            size = min(count - len(found), BLOCK)
            # Mostly these are enough.
            found += self._verified(self._filtered(self._columns), pks[:size])
            passing = self._passing(pks[size:]) if len(found) < count else []
            while passing and len(found) < count:
                size = min(max(count - len(found), 10), BLOCK)
                found += self._verified(self._columns, passing[:size])
                passing = passing[size:]
            if len(found) >= count:
                return found[:count], found[count - 1].row.pk
            before = reached
            if before <= floor or (self._left <= least and before < top):
                break
        return found, before

    def _passing(self, pks: Sequence[int]) -> list[int]:
        """Give those of the messages that the filters let through, the largest first."""
        if not (self._conditions or self._of_sessions) or not pks:
            return list(pks)
        unit = self._unit
        messages = unit.tables.messages.c
        query = self._filtered(select(messages.pk))
        query = query.where(unit.dialect.search.among(messages.pk))
        found: list[int] = []
        for chunk in chunks(pks, _LOOKED_UP):
            found += unit.connection.execute(query, {"numbers": chunk}).scalars()
        return sorted(found, reverse=True)

    def _filtered(self, query: Select[Any]) -> Select[Any]:
        """Let only those messages through that the filters do; a query of some by their numbers."""
        query = query.where(*self._conditions)
        if self._of_sessions:
            search, tables = self._unit.dialect.search, self._unit.tables
            query = search.in_sessions(query, tables, self._of_sessions)
        return query

    def _verified(self, columns: Select[Any], pks: Sequence[int]) -> list[_Match]:
        """Look at the text of messages; give those that are hits, in the same order."""
        if not pks:
            return []
        unit = self._unit
        messages = unit.tables.messages.c
        query = columns.add_columns(messages.pk).where(unit.dialect.search.among(messages.pk))
        rows = unit.connection.execute(query, {"numbers": pks}).all()
        found = []
        for row in sorted(rows, key=lambda row: -row.pk):
            text = self._tokenizer.text_of(row)
            score = self._terms.score(tokens(text))
            if score is not None:
                found.append(_Match(row.pk, round(score * _MICRO), text, row))
        return found


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


# Finding messages: what a search checks and brings up to date before it looks.
#
# A search brings the index up to date first, as far as it asks for it: in a scope, or for one
# user, that is what this user's messages lack. It waits for nobody who does the same, and does
# not begin in a transaction, nor on a store that only reads. What still waits then is read
# itself, a bounded part for each page: those messages are candidates too, and their text decides
# as it does about the others.


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
    by_words: bool = True,
) -> Request:
    """Check a search's arguments; words in its text that cannot be looked for, if it is by words.

    Raises:
        InvalidInput: One of them cannot be asked for.
    """
    try:
        terms = parse(text)
    except InvalidInput:
        if by_words or not isinstance(text, str):
            raise
        terms = SearchTerms(())
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
        state = state_of_index(unit, MOST_PENDING + 1, theirs, asked.session_id)
        tokenizer = tokenizer_in(unit, state)
        hidden = unit.scope is not None and unit.dialect.hides_rows and not state.asleep
        if hidden and state.walked < state.newest:
            raise SearchIndexStale("is being rebuilt", state.pending)
        if state.pending and not (last or unit.settings.read_only or unit.joined):
            return None
        return TextSearch(unit, asked, state, columns(unit), record, tokenizer).page()

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
        may_go_on = ready.goes_on and index_in(unit).may_write()
        return ready if may_go_on else None

    if units.run(Mode.SNAPSHOT, _sleeps):
        try:
            units.run(Mode.WRITE, wake)
        except DatabaseBusy:
            return  # a writer is under way for long; what waits can be read
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


# Messages that are not in the index yet, and that a search reads itself.
#
# A page reads the newest of them, as far as a bound goes. If that is not all, the page ends where
# the rest begins, and the next one reads on from there.


MOST_PENDING = 10_000
"""Changes that a search takes into the index before it answers, and messages that a page reads
itself: a second or two."""

MOST_TEXT = 8_000_000
"""Characters of text that a search takes into the index before it answers, and that a page reads
itself: a second or two. What it took in is in, so that the next one gets further."""


def waiting_under(
    unit: Unit,
    before: int,
    whole_from: int | None,
    passing: Callable[[Sequence[int]], list[int]],
    user_id: str | None,
    characters: int | None,
) -> tuple[list[int], int]:
    """Give what a page has to read of what waits under a row number, the newest first.

    Args:
        unit: Where to look.
        before: The row number.
        whole_from: Down to this row number everything is to be given, whatever the bound.
        passing: Gives those that the filters let through.
        user_id: Whose; None for all users'.
        characters: How many of a message count; None for all.

    Returns:
        The row numbers, and the one from which on they are all there are; 0 if nothing is left out.
    """

    def newest(floor: int, limit: int | None) -> list[int]:
        return index_in(unit).newest_waiting(user_id, before, floor, limit)

    found = newest(0, MOST_PENDING + 1)
    theirs = passing(found[:MOST_PENDING])
    left_out = _first_too_much(unit, theirs, characters)
    if left_out is None and len(found) > MOST_PENDING:
        left_out = found[-1]
    if left_out is None:
        return theirs, 0
    if whole_from is not None and whole_from <= left_out:
        return passing(newest(whole_from, None)), whole_from
    return [pk for pk in theirs if pk > left_out], left_out + 1


def _first_too_much(unit: Unit, pks: Sequence[int], characters: int | None) -> int | None:
    """Give the first of messages whose text is more than a page reads, but never the first one."""
    if len(pks) * (characters or MAX_INTEGER) <= MOST_TEXT:
        return None
    text = 0
    for chunk in chunks(pks):
        for pk, size in index_in(unit).sizes(chunk):
            text += size if characters is None else min(size, characters)
            if text > MOST_TEXT and pk != pks[0]:
                return pk
    return None
