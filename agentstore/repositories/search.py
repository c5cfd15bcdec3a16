"""The search index as a whole: bringing it up to date, asking after it, making it anew.

Triggers note every change of a message, whoever makes it. What they note is drained here: the
text is cut into tokens and handed to the engine's index, in batches that are a transaction each.
A crash between a change and its draining loses nothing, because both are in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agentstore import validation
from agentstore.dialects.base import Mode
from agentstore.dialects.search import Entry, IndexState, Source
from agentstore.errors import InvalidInput, SearchIndexStale, shown
from agentstore.readable import readable_text
from agentstore.records import SearchStatus
from agentstore.repositories.base import Repository, reads_snapshot
from agentstore.repositories.steps import Step, Steps, in_steps
from agentstore.segmentation import VERSION, tokens
from agentstore.unit import Unit

Progress = Callable[[int, int], object]
"""Told how many messages are done, and of how many."""

BATCH = 200
"""Messages in one transaction: some 20 ms for which SQLite's other writers wait."""

_COUNTLESS = 2**31


class Search(Repository):
    """The index behind ``messages.search``."""

    __slots__ = ()

    @reads_snapshot
    def status(self) -> SearchStatus:
        """Say whether the index is whole, of this version, and how many changes it lacks."""
        state = self.unit.dialect.search.state(
            self.connection, self.tables, _COUNTLESS, thorough=True
        )
        return SearchStatus(state.segmentation, VERSION, state.pending, trouble_with(state))

    @in_steps
    def refresh(self, limit: int | None = None) -> Steps[int]:
        """Bring the index up to date now, as a search would.

        In batches of 200 messages, each in a transaction of its own, so that other writers get
        their turn. May run beside anything, itself included.

        Args:
            limit: Stop when so many changes are done; None means all that wait.

        Returns:
            How many changes were taken into the index.

        Raises:
            SearchIndexStale: The index is damaged, or of another version.
        """
        if limit is not None:
            validation.amount("limit", limit)
        done = 0
        while limit is None or done < limit:
            taken = yield Step(Mode.WRITE, drain)
            done += taken
            if taken < BATCH:
                break
        return done

    @in_steps
    def reindex(self, progress: Progress | None = None) -> Steps[int]:
        """Make the index anew, and mend what is missing of it.

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
        total = yield Step(Mode.WRITE, _reset)
        done = 0
        while True:
            taken, indexed = yield Step(Mode.WRITE, _drain)
            if not taken:
                break
            done += indexed
            if progress is not None:
                progress(done, max(done, total))
        yield Step(Mode.WRITE, _tidy)
        return done


def trouble_with(state: IndexState) -> str | None:
    """Say why an index must not be asked; None if it may, once it is up to date."""
    if state.missing:
        return f"is damaged: {', '.join(state.missing)} is missing"
    if state.segmentation is None:
        return "is damaged: its state is lost"
    if state.segmentation != VERSION:
        return f"was made by version {state.segmentation} of the segmentation, not {VERSION}"
    return None


def drain(unit: Unit) -> int:
    """Take one batch of changes into the index; give their number.

    Raises:
        SearchIndexStale: The index is damaged, or of another version; nothing was taken.
    """
    # Where only some messages are seen, the rest of a walk would be lost to everybody.
    taken, _ = _drain(unit, new=unit.scope is None or not unit.dialect.hides_rows)
    return taken


def forget_deleted(unit: Unit) -> None:
    """Take deleted messages out of the index in the transaction that deletes them.

    Without it they would not be found either; but their text would stay in the queue until
    somebody searches.
    """
    index = unit.dialect.search
    if not index.holds_deleted_text:
        return
    state = index.state(unit.connection, unit.tables, 1)
    if state.pending and trouble_with(state) is None:
        while _drain(unit, new=False)[0] == BATCH:
            pass


def _drain(unit: Unit, *, new: bool = True) -> tuple[int, int]:
    """Take one batch; give the number of changes, and of messages that are in the index now."""
    index = unit.dialect.search
    state = index.state(unit.connection, unit.tables, 1)
    if (problem := trouble_with(state)) is not None:
        raise SearchIndexStale(problem, state.pending)
    changes = index.take(unit.connection, unit.tables, VERSION, BATCH, new=new)
    removed = _entries((change.message_pk, change.before) for change in changes)
    added = _entries((change.message_pk, change.after) for change in changes)
    index.write(unit.connection, unit.tables, removed, added)
    return len(changes), len(added)


def _entries(sources: Iterable[tuple[int, Source | None]]) -> list[Entry]:
    return [
        Entry(
            pk,
            source.session_id,
            tokens(readable_text(source.content, source.blocks, source.payload)),
        )
        for pk, source in sources
        if source is not None
    ]


def _reset(unit: Unit) -> int:
    index = unit.dialect.search
    index.reset(unit.connection, unit.tables, VERSION)
    return index.state(unit.connection, unit.tables, _COUNTLESS).pending


def _tidy(unit: Unit) -> None:
    unit.dialect.search.tidy(unit.connection, unit.tables)
