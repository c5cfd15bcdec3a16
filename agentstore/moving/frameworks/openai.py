"""``SQLiteSession``, ``SQLAlchemySession`` and ``AdvancedSQLiteSession`` of the OpenAI Agents SDK.

An item is a row of JSON. A session that has rows in ``message_structure`` is one with branches:
there a branch is a list of items, of which other branches may have some too. Ours shares what comes
before a turn; what a branch has beyond that is written to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import exists, func, select

from agentstore.engines.base.moving import Flaw
from agentstore.errors import InvalidInput, NotASource, NotFound
from agentstore.moving.frameworks.openai_tables import (
    MAIN,
    MESSAGES,
    NUMBERS,
    RESERVED,
    SESSIONS,
    STRUCTURE,
    USAGE,
    StoredBranch,
    StoredSession,
)
from agentstore.moving.frameworks.pieces import (
    Chunk,
    ImportPiece,
    Line,
    Mapped,
    Note,
    SessionPiece,
    SetClock,
    State,
    flaw,
    in_chunks,
    line_of,
    time_of,
)
from agentstore.moving.frameworks.sources import OpenSource
from agentstore.records import SessionRecord
from agentstore.stores.store import Store, Transaction

_Rows = list[tuple[Any, dict[str, Any]]]


def read(source: OpenSource, clock: SetClock, note: Note) -> Iterator[ImportPiece]:
    """Give the sessions of a source: those without items, then that with the oldest last item."""
    if not {"id", "session_id", "message_data"} <= source.columns(MESSAGES.name):
        raise NotASource(source.name, "the OpenAI Agents SDK", "it has no table agent_messages")
    optional = (SESSIONS, STRUCTURE, USAGE, RESERVED)
    has = frozenset(each.name for each in optional if source.columns(each.name))
    sessions, messages = SESSIONS.c.session_id, MESSAGES.c.session_id
    said = select(messages).group_by(messages).order_by(func.max(MESSAGES.c.id))
    queries = [said]
    if SESSIONS.name in has:
        silent = ~exists().where(messages == sessions)
        queries.insert(0, select(sessions).where(silent).order_by(sessions))
    for query in queries:
        for (session_id,) in source.rows(query):
            if isinstance(session_id, str):
                yield _SdkSession(source, session_id, clock, has)
            else:
                values = {"session_id": session_id}
                note(flaw(SESSIONS.name, "session_id", "its id is no text in UTF-8", values))
    for each in (STRUCTURE, USAGE):
        if each.name in has:
            lost = ~exists().where(messages == each.c.session_id)
            if SESSIONS.name in has:
                lost &= ~exists().where(sessions == each.c.session_id)
            for row in source.rows(select(each).where(lost).order_by(each.c.id)):
                note(flaw(each.name, row.id, "its session is not there", row._mapping))


class _SdkSession(SessionPiece):
    """A session of the SDK."""

    table = "agent_sessions"

    def __init__(
        self, source: OpenSource, session_id: str, clock: SetClock, has: frozenset[str]
    ) -> None:
        super().__init__(session_id, {"session_id": session_id}, clock, source.fingerprint)
        self._stored = StoredSession(source, session_id, has)
        self._counts: dict[str, int] = {}

    @cached_property
    def _plan(self) -> tuple[StoredBranch, ...]:
        return self._stored.branches() if self._stored.has_branches() else ()

    # --- Writing -----------------------------------------------------------------------------

    def begin(self, tx: Transaction) -> SessionRecord:
        """Make the session, as the adapter does."""
        self.clock.set(time_of(self._stored.created_at()))
        return tx.sessions.create(id=self.session_id)

    def chunks(self, after: Any) -> Iterator[Chunk]:
        """Give the items, branch by branch."""
        if not self._plan:
            yield from in_chunks(self._to_write(None, after), self._saving(None))
            return
        at = 0 if after is None else after[0]
        for number, branch in enumerate(self._plan[at:], at):
            begun = after is not None and number == at
            if branch.parent is not None and not begun:
                place = [number, *branch.place]
                yield Chunk(place, 0, lambda tx, made=branch: self._make(tx, made))  # type: ignore[misc]
            behind = after[1:] if begun else branch.place
            rows = (
                ([number, *place], size, item)
                for place, size, item in self._to_write(branch.name, behind)
            )
            yield from in_chunks(rows, self._saving(branch.name))

    def finish(self, tx: Transaction) -> Mapped:
        """Record what was used, and which names of branches are taken."""
        if not self._plan:
            return {}
        for branch in self._plan:
            for turn, row, details in self._stored.usage(branch.name, None):
                self.clock.set(time_of(row.created_at))
                numbers: dict[str, Any] = {name: getattr(row, name) or 0 for name in NUMBERS}
                tx.usage.replace(
                    self.session_id,
                    branch=branch.name,
                    turn=turn,
                    details=details,
                    **numbers,
                )
        if len(self._plan) > 1:
            tx.branches.switch(self.session_id, MAIN)
        for name in sorted(self._stored.reserved() - {branch.name for branch in self._plan}):
            with suppress(InvalidInput):  # no branch could have such a name here
                tx.branches.create(self.session_id, name=name, reserve=True)
                tx.branches.delete(self.session_id, name, then=MAIN)
        return {}

    def _to_write(
        self, branch: str | None, after: list[Any] | None
    ) -> Iterator[tuple[list[Any], int, tuple[Any, dict[str, Any]] | None]]:
        for row in self._stored.rows(branch, None, after=after or None):
            yield row.place, row.size, None if row.item is None else (row.time, row.item)

    def _saving(self, branch: str | None) -> Callable[[Transaction, _Rows], None]:
        """Give what saves items, all of one time at once."""

        def save(tx: Transaction, rows: _Rows) -> None:
            for time, some in groupby(rows, key=itemgetter(0)):
                self.clock.set(time_of(time))
                items = [item for _, item in some]
                tx.messages.save_chat(self.session_id, items, unknown="keep", branch=branch)

        return save

    def _make(self, tx: Transaction, branch: StoredBranch) -> None:
        """Make a branch that begins with what it shares, and nothing else."""
        self.clock.set(time_of(branch.time))
        tx.branches.create(
            self.session_id,
            after_turn=branch.turn,
            name=branch.name,
            branch=branch.parent,
            reserve=True,
        )
        # What precedes the first turn is shared by all that are made so.
        while tx.messages.size(self.session_id, branch=branch.name) > branch.shared:
            tx.messages.pop(self.session_id, branch=branch.name)

    # --- Comparing ---------------------------------------------------------------------------

    def source_lines(self, note: Note) -> Iterator[Line]:
        """Give items, the newest first, and what was used, branch by branch."""
        noted: set[Any] = set()

        def once(found: Flaw) -> None:
            if (found.table, found.key) not in noted:
                noted.add((found.table, found.key))
                note(found)

        yield line_of("sessions", self.session_id)
        for name in self._names():
            count = 0
            for row in self._stored.rows(name, once, newest_first=True):
                if row.item is not None:
                    count += 1
                    yield line_of("items", row.item, sort_keys=False)
            self._counts[name or ""] = count
            if name is not None:
                yield line_of("branches", name)
                for turn, used, details in self._stored.usage(name, once):
                    numbers = [getattr(used, each) or 0 for each in NUMBERS]
                    yield line_of("usage", [turn, numbers, details], sort_keys=False)
        if self._plan:
            self._stored.note_strays([branch.name for branch in self._plan], once)

    def target_lines(self, store: Store, state: State) -> Iterator[Line]:
        """Give the same of the session that was made."""
        yield line_of("sessions", self.session_id)
        for name in self._names():
            try:
                messages = self.imported_messages(store, self._counts[name or ""], name)
            except NotFound:
                continue
            for message in messages:
                yield line_of("items", message.to_chat(), sort_keys=False)
            if name is not None:
                yield line_of("branches", name)
                for used in self._recorded(store, name):
                    yield line_of("usage", used, sort_keys=False)

    def _recorded(self, store: Store, branch: str) -> Iterator[list[Any]]:
        for used in store.usage.iter(self.session_id, branch=branch, limit=200):
            yield [used.turn, [getattr(used, each) for each in NUMBERS], used.details]

    def _names(self) -> list[str | None]:
        return [branch.name for branch in self._plan] or [None]
