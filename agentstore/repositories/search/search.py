"""The search index as a whole: bringing it up to date, its state, rebuilding it.

Triggers note every change of a message, by any program. What they note is taken in here, in
rounds: changes are read, and their text is cut into tokens, while nothing is locked; then a short
transaction hands the tokens to the engine's index, of those changes that are still as they were
read. A crash anywhere loses nothing, because a change waits until its tokens are in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentstore.engines.base.dialect import Mode
from agentstore.engines.base.search import Batch, Entry, IndexState, Source
from agentstore.errors import InvalidInput, SearchIndexStale, shown
from agentstore.execution.unit import Unit
from agentstore.records import SearchStatus
from agentstore.repositories.base.operations import Repository, chunks, reads_snapshot
from agentstore.repositories.base.units import Units, several_units
from agentstore.settings import Settings
from agentstore.values import validation
from agentstore.values.text.manners import Manner, manner_of
from agentstore.values.text.segmentation import VERSION
from agentstore.values.text.stems import check_language

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
        state = state_of_index(self.unit, _COUNTLESS, thorough=True)
        settings = self.unit.settings
        trouble = trouble_with(state, settings.search_stems)
        needed = str(_made_anew(settings, state.segmentation))
        return SearchStatus(state.segmentation, needed, state.pending, trouble)

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
    index, wanted = unit.dialect.search, unit.settings.search_stems
    state = index.state(
        unit.connection, unit.tables, count_to, user_id, session_id, thorough=thorough
    )
    made = manner_of(state.segmentation)
    if trouble_with(state, wanted) is None or made.version != VERSION:
        return state
    if state.missing or state.segmentation is None or state.guarded:
        return state
    if not index.is_empty(unit.connection, unit.tables):
        return state
    manner = _made_anew(unit.settings, state.segmentation)
    return replace(state, segmentation=str(manner), former=state.segmentation)


def trouble_with(state: IndexState, stems: str | None = None) -> str | None:
    """Say why an index must not be asked; None if it may, once it is up to date.

    Args:
        state: What it is.
        stems: The language that the settings ask for; None if they leave it to the index.
    """
    if state.missing:
        return f"is damaged: {', '.join(state.missing)} is missing"
    if state.segmentation is None:
        return "is damaged: its state is lost"
    return manner_of(state.segmentation).trouble(stems)


def manner_in(unit: Unit, state: IndexState) -> Manner:
    """Give the manner in which an index is made that may be asked.

    Raises:
        SearchIndexStale: It must not be asked.
    """
    if (problem := trouble_with(state, unit.settings.search_stems)) is not None:
        raise SearchIndexStale(problem, state.pending)
    return manner_of(state.segmentation)


def _made_anew(settings: Settings, made: str | None) -> Manner:
    return manner_of(made).made_anew(settings.search_characters, settings.search_stems)


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch with its tokens.

    Attributes:
        segmentation: The name of the manner in which they were made.
        former: That of the index, if it is empty and to be made in this manner from now on.
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
    index = unit.dialect.search
    state = state_of_index(unit, 1, user_id)
    manner = manner_in(unit, state)
    # Where only some messages are seen, the rest of a walk would be lost to everybody.
    new = unit.scope is None or not unit.dialect.hides_rows
    batch = Batch([], whole=True)
    if state.pending:
        batch = index.read(unit.connection, unit.tables, BATCH, BATCH_BYTES, user_id, new=new)
    removed: dict[int, Entry] = {}
    added: dict[int, Entry] = {}
    for change in batch.changes:
        for entries, source in ((removed, change.before), (added, change.after)):
            if source is not None:
                entries[change.message_pk] = _entry(change.message_pk, source, manner)
    return Ready(batch, str(manner), state.former, removed, added)


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
    if ready.former is not None:
        index.adopt(unit.connection, unit.tables, ready.former, ready.segmentation)
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
        if trouble_with(state) is not None:
            return
        manner = manner_of(state.segmentation)
        removed = [
            _entry(change.message_pk, change.before, manner)
            for change in changes
            if change.before is not None
        ]
        index.write(unit.connection, unit.tables, removed, [])
        index.forget(unit.connection, unit.tables, changes)


def _entry(message_pk: int, source: Source, manner: Manner) -> Entry:
    return Entry(message_pk, source.session, manner.tokens_of(source))


def _reset(unit: Unit) -> int:
    index = unit.dialect.search
    made = index.state(unit.connection, unit.tables, 1, thorough=True).segmentation
    manner = _made_anew(unit.settings, made)
    check_language(manner.language)
    index.reset(unit.connection, unit.tables, str(manner))
    return index.state(unit.connection, unit.tables, _COUNTLESS).pending


def _tidy(unit: Unit) -> None:
    unit.dialect.search.tidy(unit.connection, unit.tables)
