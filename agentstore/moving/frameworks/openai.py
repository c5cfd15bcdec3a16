"""``SQLiteSession``, ``SQLAlchemySession`` and ``AdvancedSQLiteSession`` of the OpenAI Agents SDK.

An item is a row of JSON. A session that has rows in ``message_structure`` is one with branches:
there a branch is a list of items, of which other branches may have some too. Ours shares what comes
before a turn; what a branch has beyond that is written to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, and_, exists, func, or_, select, tuple_

from agentstore.engines.base.moving import Flaw
from agentstore.errors import InvalidInput, NotASource, NotFound
from agentstore.moving.frameworks.sources import (
    BrokenRow,
    Chunk,
    ImportPiece,
    Line,
    Mapped,
    Note,
    OpenSource,
    SessionPiece,
    SetClock,
    State,
    flaw,
    in_chunks,
    line_of,
    reason_in,
    table_of,
    time_of,
    unless_broken,
)
from agentstore.records import SessionRecord
from agentstore.repositories.messages.append import chat_drafts
from agentstore.store import Store
from agentstore.transactions import Transaction
from agentstore.values import validation
from agentstore.values.encoding import dump_json
from agentstore.values.types import EPOCH

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
        super().__init__(session_id, {"session_id": session_id}, clock, source)
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
                    self.session_id, branch=branch.name, turn=turn, details=details, **numbers
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


# What the tables of the OpenAI Agents SDK's sessions say: items, branches, usage.


SESSIONS = table_of("agent_sessions", "session_id", "created_at")
MESSAGES = table_of("agent_messages", "id", "session_id", "message_data", "created_at")
_SHOWN = ("id", "session_id", "message_id", "branch_id", "sequence_number", "user_turn_number")
STRUCTURE = table_of("message_structure", *_SHOWN, "created_at")
NUMBERS = ("requests", "input_tokens", "output_tokens", "total_tokens")
_USED = ("id", "session_id", "branch_id", "user_turn_number", "created_at")
USAGE = table_of("turn_usage", *_USED, *NUMBERS, "input_tokens_details", "output_tokens_details")
RESERVED = table_of("branch_reservations", "session_id", "branch_id")

MAIN = "main"
_NO_BRANCH = "its branch is not there, or has no name that can be kept"


class StoredItem(NamedTuple):
    """A row of a branch: where it is in its order, and what it says, if that is sound."""

    place: list[Any]
    message: Any
    size: int
    time: Any
    item: dict[str, Any] | None


class StoredBranch(NamedTuple):
    """A branch, and what of another one it begins with.

    Attributes:
        name: Its name.
        parent: The branch that it is made from; None for main.
        turn: The last turn that it shares; None if it shares all that the parent has.
        place: Where what it shares ends.
        shared: How many items it shares.
        time: When its first row was written.
    """

    name: str
    parent: str | None
    turn: int | None
    place: list[Any]
    shared: int
    time: Any


@dataclass(frozen=True)
class StoredSession:
    """A session of the SDK, as it is stored; and which of the tables are there."""

    _source: OpenSource
    session_id: str
    _has: frozenset[str]

    def created_at(self) -> Any:
        """Say when it was made, as far as that is known."""
        if SESSIONS.name not in self._has:
            return None
        time = self._source.set_by_database(SESSIONS.c.created_at)
        return self._first(select(time).where(SESSIONS.c.session_id == self.session_id))

    def _first(self, query: Select[Any]) -> Any:
        return self._source.connection.execute(query.limit(1)).scalar()

    def rows(
        self,
        branch: str | None,
        note: Note | None,
        *,
        after: list[Any] | None = None,
        newest_first: bool = False,
    ) -> Iterator[StoredItem]:
        """Read the rows of a branch, or of a session that has none, in their order."""
        messages, shown = MESSAGES.c, STRUCTURE.c
        time = self._source.set_by_database(messages.created_at)
        columns = (messages.id, messages.message_data, time)
        if branch is None:
            order: tuple[ColumnElement[Any], ...] = (messages.id,)
            query = select(*columns).where(messages.session_id == self.session_id)
        else:
            order = (shown.sequence_number, shown.id)
            own = and_(messages.id == shown.message_id, messages.session_id == self.session_id)
            query = (
                select(*columns, *(each.label(f"place_{n}") for n, each in enumerate(order)))
                .add_columns(shown.message_id)
                .select_from(STRUCTURE.outerjoin(MESSAGES, own))
                .where(shown.session_id == self.session_id, shown.branch_id == branch)
            )
        if after is not None:
            query = query.where(tuple_(*order) > tuple_(*after))
        query = query.order_by(*(each.desc() if newest_first else each for each in order))
        for row in self._source.rows(query):
            place = [row.id] if branch is None else [row.place_0, row.place_1]
            yield self._item(row, place, note)

    def _item(self, row: Row[Any], place: list[Any], note: Note | None) -> StoredItem:
        data, item = row.message_data, None
        message = row.id
        if message is None:
            message, shown = row.message_id, {"id": place[1], "message_id": row.message_id}
            if note is not None:
                note(flaw(STRUCTURE.name, place[1], "its message is not there", shown))
        else:
            shown = {"id": row.id, "session_id": self.session_id, "message_data": data}
            item = unless_broken(partial(_parsed, data), MESSAGES.name, row.id, shown, note)
        size = len(data) if isinstance(data, str | bytes) else 0
        return StoredItem(place, message, size, row.created_at, item)

    def has_branches(self) -> bool:
        """Say whether it is one of ``AdvancedSQLiteSession``."""
        if STRUCTURE.name not in self._has:
            return False
        rows = select(STRUCTURE.c.id).where(STRUCTURE.c.session_id == self.session_id)
        return self._first(rows) is not None

    def branches(self) -> tuple[StoredBranch, ...]:
        """Say in which order the branches are made, and from which.

        One whose name cannot be stored is left out.
        """
        shown = STRUCTURE.c
        query = (
            select(shown.branch_id, func.min(shown.created_at))
            .where(shown.session_id == self.session_id)
            .group_by(shown.branch_id)
            .order_by(func.min(shown.id))
        )
        found = self._source.connection.execute(query).all()
        plan = [StoredBranch(MAIN, None, None, [], 0, None)]
        for name, time in found:
            if name != MAIN and _is_name(name):
                ways = [self._growing(name, each.name, time) for each in plan]
                plan.append(max(ways, key=lambda way: way.shared))  # the first of those
        return tuple(plan)

    def _growing(self, name: str, parent: str, time: Any) -> StoredBranch:
        """Say what a branch shares with another one: whole turns, or all that there is."""
        turn = items = 0
        place: list[Any] = []
        at_turn = StoredBranch(name, parent, 0, [], 0, time)
        equal = True
        rows = self.rows(name, None)
        for theirs in self.rows(parent, None):
            if theirs.item is not None and theirs.item.get("role") == "user":
                at_turn = StoredBranch(name, parent, turn, place, items, time)
                turn += 1
            if equal:
                own = next(rows, None)
                equal = own is not None and own.message == theirs.message
            if equal and own is not None:
                place, items = own.place, items + (theirs.item is not None)
            elif theirs.item is not None:
                return at_turn
        return StoredBranch(name, parent, None, place, items, time)

    def usage(
        self, branch: str, note: Note | None
    ) -> Iterator[tuple[int, Row[Any], dict[str, Any]]]:
        """Give what was recorded of turns, by our numbers, which count sound items alone."""
        if USAGE.name not in self._has:
            return
        used = USAGE.c
        query = (
            select(USAGE)
            .where(used.session_id == self.session_id, used.branch_id == branch)
            .order_by(used.user_turn_number)
        )
        turns: dict[Any, int] | None = None
        taken: set[int] = set()
        for row in self._source.rows(query):
            turns = self._turns(branch) if turns is None else turns
            turn = turns.get(row.user_turn_number)
            try:
                if turn is None or turn in taken:
                    raise BrokenRow("its turn has no items")
                details = {
                    "input": _details(row.input_tokens_details),
                    "output": _details(row.output_tokens_details),
                }
                if not all(_is_amount(getattr(row, each)) for each in NUMBERS):
                    raise BrokenRow("it has what is no amount")
            except BrokenRow as broken:
                if note is not None:
                    note(flaw(USAGE.name, row.id, str(broken), row._mapping))
                continue
            taken.add(turn)
            yield turn, row, details

    def _turns(self, branch: str) -> dict[Any, int]:
        """Give our number of each turn of a branch that has items."""
        numbers: dict[Any, Any] = {}
        query = select(STRUCTURE.c.id, STRUCTURE.c.user_turn_number).where(
            STRUCTURE.c.session_id == self.session_id, STRUCTURE.c.branch_id == branch
        )
        theirs = {row.id: row.user_turn_number for row in self._source.rows(query)}
        turn = 0
        for row in self.rows(branch, None):
            if row.item is not None:
                turn += row.item.get("role") == "user"
                numbers[theirs[row.place[1]]] = turn
        return numbers

    def reserved(self) -> set[str]:
        """Give the names of branches that were ever used, as far as they are known."""
        if RESERVED.name not in self._has:
            return set()
        query = select(RESERVED.c.branch_id).where(RESERVED.c.session_id == self.session_id)
        return {name for (name,) in self._source.rows(query) if isinstance(name, str)}

    def note_strays(self, branches: list[str], note: Note) -> None:
        """Note what is of none of these branches: items, their places, and what was used."""
        messages, shown = MESSAGES.c, STRUCTURE.c
        there = exists().where(
            shown.message_id == messages.id,
            shown.session_id == self.session_id,
            shown.branch_id.in_(branches),
        )
        query = select(MESSAGES).where(messages.session_id == self.session_id, ~there)
        for row in self._source.rows(query.order_by(messages.id)):
            note(flaw(MESSAGES.name, row.id, "no branch has it", row._mapping))
        for each in (STRUCTURE, USAGE):
            if each.name in self._has:
                lost = select(each).where(
                    each.c.session_id == self.session_id,
                    or_(each.c.branch_id.is_(None), each.c.branch_id.not_in(branches)),
                )
                for row in self._source.rows(lost.order_by(each.c.id)):
                    note(flaw(each.name, row.id, _NO_BRANCH, row._mapping))


def _parsed(data: object) -> dict[str, Any]:
    """Read an item as the SDK does, if it can be stored.

    Raises:
        BrokenRow: It cannot.
    """
    if not isinstance(data, str):
        raise BrokenRow("not text in UTF-8")
    try:
        item = json.loads(data)
    except json.JSONDecodeError as error:
        raise BrokenRow(f"not JSON: {error.msg} (character {error.pos + 1})") from None
    except RecursionError:
        raise BrokenRow("not JSON: nested too deeply") from None
    except ValueError:
        raise BrokenRow("a number has more than 4,300 digits") from None
    if not isinstance(item, dict):
        raise BrokenRow("not a JSON object")
    try:
        (new,) = chat_drafts([item], unknown="keep")
    except InvalidInput as error:
        raise BrokenRow(reason_in(error).replace("messages[0]", "the item")) from None
    new.row.update(seq=1, turn=0, branch=0, created_at=EPOCH)
    if json.dumps(new.record("").to_chat()) != json.dumps(item):
        raise BrokenRow("the adapter would not give it back as it is")
    return item


def _details(stored: object) -> dict[str, Any] | None:
    if stored is None or stored == "":
        return None
    try:
        found = json.loads(stored) if isinstance(stored, str) else None
        if isinstance(found, dict):
            dump_json(found, "its details")
            return found
    except (ValueError, RecursionError, InvalidInput):
        pass
    raise BrokenRow("its details are no JSON object that can be stored")


def _is_name(name: object) -> bool:
    try:
        return validation.optional_key("name", name) is not None
    except InvalidInput:
        return False


def _is_amount(number: object) -> bool:
    return number is None or (type(number) is int and 0 <= number < 2**63)
