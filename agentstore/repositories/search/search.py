"""The search index as a whole: bringing it up to date, its state, rebuilding it.

Triggers note every change of a message, by any program. What they note is taken in here, in
rounds: changes are read, and their text is cut into tokens, while nothing is locked; then a short
transaction hands the tokens to the engine's index, of those changes that are still as they were
read. A crash anywhere loses nothing, because a change waits until its tokens are in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentstore.engines.base.dialect import Mode
from agentstore.engines.base.search import Batch, Entry, IndexState, Source
from agentstore.errors import InvalidInput, SearchIndexStale, shown
from agentstore.execution.unit import Unit
from agentstore.records import SearchStatus
from agentstore.repositories.base.operations import Repository, chunks, reads_snapshot
from agentstore.repositories.base.units import Units, several_units
from agentstore.settings import Settings
from agentstore.values import validation
from agentstore.values.text.readable import readable_text
from agentstore.values.text.segmentation import (
    MOST_CHARACTERS,
    VERSION,
    characters_of,
    manner,
    tokens,
    version_of,
)

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

    @reads_snapshot
    def status(self) -> SearchStatus:
        """Say whether the index is whole, of this version, and how many changes it lacks."""
        state = self.unit.dialect.search.state(
            self.connection, self.tables, _COUNTLESS, thorough=True
        )
        needed = segmentation_of_a_rebuild(self.unit.settings, state.segmentation)
        return SearchStatus(state.segmentation, needed, state.pending, trouble_with(state))

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
        units.run(Mode.WRITE, _tidy)
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
    while (limit is None or done < limit) and misses < _MISSES:
        ready = units.run(Mode.SNAPSHOT, segmented)
        taken, indexed = units.run(Mode.WRITE, take_in, ready, wait=True, bulk=bulk) or (0, 0)
        done += taken
        misses = 0 if taken or not ready.batch.changes else misses + 1
        tell(indexed)
        if ready.batch.whole:
            break
    return done


def trouble_with(state: IndexState) -> str | None:
    """Say why an index must not be asked; None if it may, once it is up to date."""
    if state.missing:
        return f"is damaged: {', '.join(state.missing)} is missing"
    if state.segmentation is None:
        return "is damaged: its state is lost"
    if (version := version_of(state.segmentation)) != VERSION:
        return f"was made by version {version} of the segmentation, not {VERSION}"
    return None


def segmentation_of_a_rebuild(settings: Settings, made: str | None) -> str:
    """Name the segmentation that a rebuilt index would have.

    Args:
        settings: May say how many characters of a message count.
        made: In which it is made, whose number is kept otherwise.
    """
    kept = characters_of(made) if made and version_of(made) == VERSION else None
    return manner(settings.search_characters or kept or MOST_CHARACTERS)


def searched_text(source: Any, characters: int | None) -> str:
    """Give what of a message, or of its row, is indexed and looked at: its beginning."""
    return readable_text(source.content, source.blocks, source.payload)[:characters]


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch with its tokens.

    Attributes:
        segmentation: In what manner they were made.
        removed: What the index is to be told to forget, by the messages' row numbers.
        added: What it is to take in.
    """

    batch: Batch
    segmentation: str
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
    index = unit.dialect.search
    state = index.state(unit.connection, unit.tables, 1, user_id)
    if (problem := trouble_with(state)) is not None:
        raise SearchIndexStale(problem, state.pending)
    assert state.segmentation is not None
    # Where only some messages are seen, the rest of a walk would be lost to everybody.
    new = unit.scope is None or not unit.dialect.hides_rows
    batch = Batch([], whole=True)
    if state.pending:
        batch = index.read(unit.connection, unit.tables, BATCH, BATCH_BYTES, user_id, new=new)
    characters = characters_of(state.segmentation)
    removed: dict[int, Entry] = {}
    added: dict[int, Entry] = {}
    for change in batch.changes:
        for entries, source in ((removed, change.before), (added, change.after)):
            if source is not None:
                entries[change.message_pk] = _entry(change.message_pk, source, characters)
    return Ready(batch, state.segmentation, removed, added)


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
    index = unit.dialect.search
    taken = index.take(unit.connection, unit.tables, ready.segmentation, ready.batch, wait=wait)
    if taken is None:
        return None
    removed = [entry for pk, entry in ready.removed.items() if pk in taken]
    added = [entry for pk, entry in ready.added.items() if taken.get(pk)]
    index.write(unit.connection, unit.tables, removed, added, bulk=bulk)
    return len(taken), len(added)


def forget_sessions(unit: Unit, session_ids: Sequence[str]) -> None:
    """Let go of what waits for the index of sessions that the transaction deletes next."""
    for chunk in chunks(session_ids):
        unit.dialect.search.forget_sessions(unit.connection, unit.tables, chunk)


def forget_deleted(unit: Unit) -> None:
    """Take deleted messages out of the index in the transaction that deletes them.

    Without it they would not be found either; but their text would stay in the queue until
    somebody searches. What a message says now is left for later.
    """
    index = unit.dialect.search
    if not index.holds_deleted_text:
        return
    while changes := index.held(unit.connection, unit.tables, BATCH):
        state = index.state(unit.connection, unit.tables, 1)
        if trouble_with(state) is not None or state.segmentation is None:
            return
        characters = characters_of(state.segmentation)
        removed = [
            _entry(change.message_pk, change.before, characters)
            for change in changes
            if change.before is not None
        ]
        index.write(unit.connection, unit.tables, removed, [])
        index.forget(unit.connection, unit.tables, changes)


def _entry(message_pk: int, source: Source, characters: int | None) -> Entry:
    return Entry(message_pk, source.session, tokens(searched_text(source, characters)))


def _reset(unit: Unit) -> int:
    index = unit.dialect.search
    made = index.state(unit.connection, unit.tables, 1, thorough=True).segmentation
    index.reset(unit.connection, unit.tables, segmentation_of_a_rebuild(unit.settings, made))
    return index.state(unit.connection, unit.tables, _COUNTLESS).pending


def _tidy(unit: Unit) -> None:
    unit.dialect.search.tidy(unit.connection, unit.tables)
