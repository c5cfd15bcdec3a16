"""Any sequence of calls leaves every branch showing what a list for each branch would show.

The model is a list of messages for each branch. What happens on one branch changes that one list;
deleting messages takes them out of all of them. A message is stored if and only if some list
has it.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from agentstore import Store
from agentstore.errors import AlreadyExists, BranchInUse, InvalidInput, NotFound
from agentstore.repositories.upkeep.consistency import wrong_counters, wrong_sessions
from agentstore.schema import PLAIN, tables
from tests.conftest import FULL
from tests.contract.test_history import model as cut

RAW = {"unanswered": "keep", "keep_system": False}
TEXTS = ("Straße", "STRASSE 100%", "weather in 北京", "a_b\\c", "")
CALLS = ("c0", "c1", "c2")
MOST_BRANCHES = 7

positions = st.integers(0, 30)
turns = st.integers(0, 6)
texts = st.sampled_from(TEXTS)
messages = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, texts),
    st.builds(lambda text: {"role": "user", "content": text}, texts),
    st.builds(lambda text: {"role": "assistant", "content": text}, texts),
    st.builds(lambda text: {"role": "system", "content": text, "token_count": 3}, texts),
    st.builds(
        lambda call, tool: {
            "role": "assistant",
            "tool_calls": [{"id": call, "function": {"name": tool}}],
            "cost": 1,
        },
        st.sampled_from(CALLS),
        st.sampled_from(("search", "shell")),
    ),
    st.builds(lambda call: {"role": "tool", "tool_call_id": call}, st.sampled_from(CALLS)),
)


@dataclass
class Line:
    """A branch as the model has it."""

    number: int
    name: str
    parent: int | None
    shown: list[Any] = field(default_factory=list)
    reserved: bool = False

    @property
    def turn(self) -> int:
        return int(self.shown[-1].turn) if self.shown else 0

    def user_message(self, turn: int) -> int | None:
        """Give the position of the message that begins a turn."""
        found = [n for n, m in enumerate(self.shown) if m.role == "user" and m.turn == turn]
        assert len(found) <= 1, "two turns of one line have the same number"
        return found[0] if found else None


class Branching(RuleBasedStateMachine):
    """Calls on one session, and on another one that must stay as it is."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.lines: dict[int, Line] = {0: Line(0, "main", None)}
        self.active = 0
        self.last_seq = 0
        self.deleted: list[str] = []
        self.kept: set[str] = set()
        self.epoch = 0

    @initialize()
    def begin(self) -> None:
        self.id = self.store.sessions.create().id
        self.other = self.store.sessions.create().id
        self.store.messages.save_many(self.other, [{"role": "user"}] * 3)
        self.store.branches.create(self.other, from_turn=2, name="branch-1")
        self.others = self.store.messages.page(self.other)

    # --- The model ---------------------------------------------------------------------------

    @property
    def here(self) -> Line:
        return self.lines[self.active]

    def pick(self, position: int) -> Line:
        found = sorted(self.lines)
        return self.lines[found[position % len(found)]]

    def stored(self) -> dict[str, Any]:
        return {m.id: m for line in self.lines.values() for m in line.shown}

    def numbered(self, name: str) -> Line | None:
        return next((line for line in self.lines.values() if line.name == name), None)

    def is_taken(self, name: str | None) -> bool:
        return name is not None and (name in self.kept or self.numbered(name) is not None)

    def expect(self, records, given, line=None):
        """Check what was saved, and show it on a line, the active one if none is named."""
        line = line or self.here
        for record, message in zip(records, given, strict=True):
            self.last_seq += 1
            turn = line.turn + (message["role"] == "user")
            assert (record.seq, record.turn, record.branch, record.role) == (
                self.last_seq,
                turn,
                line.name,
                message["role"],
            )
            line.shown.append(record)

    def call_home(self, name: str, new: str | None) -> None:
        """Have the messages that were written on a branch say its name as it is now."""
        for line in self.lines.values():
            line.shown = [replace(m, branch=new) if m.branch == name else m for m in line.shown]

    # --- Messages ----------------------------------------------------------------------------

    @rule(message=messages, which=st.none() | positions)
    def save(self, message: dict[str, Any], which: int | None) -> None:
        line = None if which is None else self.pick(which)
        branch = line and line.name
        self.expect([self.store.messages.save(self.id, **message, branch=branch)], [message], line)

    @rule(many=st.lists(messages, min_size=1, max_size=8), which=st.none() | positions)
    def save_many(self, many: list[dict[str, Any]], which: int | None) -> None:
        line = None if which is None else self.pick(which)
        branch = line and line.name
        self.expect(self.store.messages.save_many(self.id, many, branch=branch), many, line)

    @rule(which=st.none() | positions)
    def pop(self, which: int | None) -> None:
        line = self.here if which is None else self.pick(which)
        expected = line.shown.pop() if line.shown else None
        name = None if which is None else line.name
        assert self.store.messages.pop(self.id, branch=name) == expected

    @rule(which=positions, count=st.integers(1, 4), many=st.integers(0, 2), late=st.booleans())
    def replace_tail(self, which: int, count: int, many: int, late: bool) -> None:
        line = self.pick(which)
        ids = [m.id for m in line.shown[-count:]]
        replaced = [*ids[1:], ids[0]] if late and len(ids) > 1 else ids
        if not ids:
            return
        given = [{"role": role, "content": "x"} for role in ("user", "assistant")[:many]]
        done = self.store.messages.replace_tail(self.id, replaced, given, branch=line.name)
        assert done is (replaced == ids)
        if done:
            del line.shown[-count:]
            exact = {"keep_tool_calls": False, "unanswered": "keep", "keep_system": False}
            told = self.store.messages.history(self.id, many, branch=line.name, **exact)
            self.expect(told, given, line)

    @rule(many=st.sets(positions, max_size=3))
    def delete(self, many: set[int]) -> None:
        stored = sorted(self.stored())
        ids = {stored[n] for n in many if n < len(stored)}
        for line in self.lines.values():
            line.shown = [m for m in line.shown if m.id not in ids]
        assert self.store.messages.delete([*ids, *self.deleted[-2:]]) == len(ids)
        self.deleted += ids

    @rule(role=st.sampled_from(("user", "assistant")), every=st.integers(1, 3))
    def delete_marked(self, role: str, every: int) -> None:
        said = sorted((m for m in self.stored().values() if m.role == role), key=lambda m: m.id)
        ids = [m.id for m in said[::every]][-4:]
        self.store.marks.update(self.id, "last words", ids=ids)
        for line in self.lines.values():
            line.shown = [m for m in line.shown if m.id not in ids]
        assert self.store.messages.delete_by_mark(self.id, "last words") == len(ids)
        self.deleted += ids

    @precondition(lambda self: len(self.stored()) > 12)
    @rule()
    def clear(self) -> None:
        count = len(self.stored())
        for line in self.lines.values():
            line.shown = []
        assert self.store.messages.clear(self.id) == count

    # --- Branches ----------------------------------------------------------------------------

    def grow(self, source, shown, name, *, reserve=False, **place):
        """Make a branch, which must then show this; None if there is no such place."""
        create = partial(self.store.branches.create, reserve=reserve)
        if shown is None:
            with pytest.raises(NotFound):
                create(self.id, branch=source.name, name=name, **place)
            return
        if self.is_taken(name):
            with pytest.raises(AlreadyExists):
                create(self.id, branch=source.name, name=name, **place)
            return
        branch = None if source is self.here else source.name
        made = create(self.id, branch=branch, name=name, **place)
        assert made.number not in self.lines
        assert (made.parent, made.current) == (source.name, True)
        assert name is None or made.name == name
        assert made.fork_seq == (shown[-1].seq if shown else 0)
        assert made.fork_turn == (shown[-1].turn if shown else 0)
        self.lines[made.number] = Line(made.number, made.name, source.number, list(shown), reserve)
        self.active = made.number

    @precondition(lambda self: len(self.lines) < MOST_BRANCHES)
    @rule(source=positions, turn=turns, name=st.sampled_from((None, "a", "b", "main")))
    def create_from_turn(self, source: int, turn: int, name: str | None) -> None:
        line = self.pick(source)
        position = line.user_message(turn) if turn else 0
        shown = None if position is None else line.shown[:position]
        self.grow(line, shown, name, from_turn=turn)

    @precondition(lambda self: len(self.lines) < MOST_BRANCHES)
    @rule(source=positions, turn=turns, name=st.sampled_from((None, "a", "b")))
    def create_after_turn(self, source: int, turn: int, name: str | None) -> None:
        line = self.pick(source)
        there = turn == 0 or any(m.turn == turn for m in line.shown)
        shown = [m for m in line.shown if m.turn <= turn] if there else None
        self.grow(line, shown, name, after_turn=turn)

    @precondition(lambda self: len(self.lines) < MOST_BRANCHES)
    @rule(source=positions, text=st.sampled_from(("strasse", "%", "_", "北", "\\", "nowhere")))
    def create_containing(self, source: int, text: str) -> None:
        line = self.pick(source)
        found = [n for n, m in enumerate(line.shown) if says(m, text)]
        self.grow(line, line.shown[: found[0]] if found else None, None, containing=text)

    @precondition(lambda self: len(self.lines) < MOST_BRANCHES)
    @rule(source=positions, name=st.sampled_from((None, "a", "b")), reserve=st.booleans())
    def create(self, source: int, name: str | None, reserve: bool) -> None:
        line = self.pick(source)
        self.grow(line, line.shown, name, reserve=reserve)

    @rule(to=positions)
    def switch(self, to: int) -> None:
        line = self.pick(to)
        assert self.store.branches.switch(self.id, line.name).current
        self.active = line.number

    @rule(which=positions, name=st.sampled_from(("a", "b", "c")))
    def rename(self, which: int, name: str) -> None:
        line = self.pick(which)
        stays = line.number == 0 or line.reserved
        if stays or (self.is_taken(name) and name != line.name):
            with pytest.raises(InvalidInput if stays else AlreadyExists):
                self.store.branches.rename(self.id, line.name, name)
            return
        assert self.store.branches.rename(self.id, line.name, name).name == name
        self.call_home(line.name, name)
        line.name = name

    @rule(which=positions, force=st.booleans(), then=st.none() | positions)
    def delete_branch(self, which: int, force: bool, then: int | None) -> None:
        line, following = self.pick(which), None if then is None else self.pick(then)
        options = {"force": force, "then": following and following.name}
        wrong = line.number == 0 or following is line
        if wrong or (line is self.here and not force and following is None):
            with pytest.raises(InvalidInput if wrong else BranchInUse):
                self.store.branches.delete(self.id, line.name, **options)
            return
        if line.reserved:
            self.kept.add(line.name)
        before = self.stored()
        del self.lines[line.number]
        self.call_home(line.name, None)
        if line.number == self.active:
            parent = line.parent if line.parent in self.lines else 0
            self.active = parent if following is None else following.number
        count = len(before) - len(self.stored())
        assert self.store.branches.delete(self.id, line.name, **options) == count

    @rule()
    def reset(self) -> None:
        count = len(self.stored())
        self.kept |= {line.name for line in self.lines.values() if line.reserved}
        self.lines, self.active = {0: Line(0, "main", None)}, 0
        self.epoch += 1
        assert self.store.sessions.reset(self.id) == count

    @rule(
        which=positions,
        first=turns,
        more=st.integers(0, 3),
        role=st.sampled_from(("system", "assistant")),
        keep_as=st.sampled_from((None, None, "kept", "a")),
    )
    def compact(self, which: int, first: int, more: int, role: str, keep_as: str | None) -> None:
        line = self.pick(which)
        if keep_as is not None and len(self.lines) >= MOST_BRANCHES:
            keep_as = None
        replaced = [m for m in line.shown if first <= m.turn <= first + more]
        options = {"from_turn": first, "to_turn": first + more, "role": role, "keep_as": keep_as}
        branch = None if line is self.here else line.name
        taken = self.is_taken(keep_as)
        if not replaced or taken:
            with pytest.raises(AlreadyExists if replaced else NotFound):
                self.store.branches.compact(self.id, "in short", branch=branch, **options)
            return
        told = self.store.branches.compact(
            self.id, "in short", branch=branch, token_count=2, **options
        )
        last = replaced[-1]
        place = (told.seq, told.turn, told.role, told.branch)
        assert place == (last.seq, last.turn, role, None)
        assert told.metadata["summary_of"] == {
            "from_turn": replaced[0].turn,
            "to_turn": last.turn,
            "messages": len(replaced),
        }
        if keep_as is not None:
            made = self.store.branches.get(self.id, keep_as)
            self.lines[made.number] = Line(made.number, keep_as, line.number, list(line.shown))
        before = line.shown.index(replaced[0])
        line.shown[before : before + len(replaced)] = [told]

    # --- What must hold ----------------------------------------------------------------------

    @rule(which=positions)
    def read_everything(self, which: int) -> None:
        self.check(self.pick(which))

    def check(self, line: Line) -> None:
        """Read a branch in every way."""
        shown, store = line.shown, self.store
        name = {"branch": line.name}
        raw = {**RAW, **name}
        for limit in (0, 1, 2, 3, 5, 9):
            exact = store.messages.history(self.id, limit, keep_tool_calls=False, **raw)
            assert exact == (shown[-limit:] if limit else [])
            assert store.messages.history(self.id, limit, **raw) == cut(shown, limit)
        pages = walk(lambda c: store.messages.page(self.id, before=c, limit=3, **name))
        assert [m for page in reversed(pages) for m in page] == shown
        said = [m for m in shown if m.role == "user"]
        listed = walk(lambda c: store.branches.turns(self.id, cursor=c, limit=2, **name))
        assert [(t.number, t.seq, t.message_id) for page in listed for t in page] == [
            (m.turn, m.seq, m.id) for m in said
        ]
        found = walk(
            lambda c: store.branches.find_turns(self.id, "STRASSE", cursor=c, limit=1, **name)
        )
        assert [t.message_id for page in found for t in page] == [
            m.id for m in said if says(m, "strasse")
        ]
        grouped = walk(lambda c: store.branches.by_turn(self.id, cursor=c, limit=2, **name))
        assert [(t.number, list(t.messages)) for page in grouped for t in page] == [
            (number, list(of_turn)) for number, of_turn in groupby(shown, key=lambda m: m.turn)
        ]
        used = Counter(
            (m.turn, call["function"]["name"]) for m in shown for call in m.tool_calls or ()
        )
        assert [(u.turn, u.tool, u.calls) for u in store.branches.tool_usage(self.id, **name)] == [
            (*key, used[key]) for key in sorted(used)
        ]

    @invariant()
    def every_branch_shows_its_list(self) -> None:
        for line in self.lines.values():
            assert self.store.messages.history(self.id, None, branch=line.name, **RAW) == line.shown
            assert sorted(m.seq for m in line.shown) == [m.seq for m in line.shown]
            assert len({m.seq for m in line.shown}) == len(line.shown)
            assert sorted(m.turn for m in line.shown) == [m.turn for m in line.shown]
        assert self.store.messages.history(self.id, None, **RAW) == self.here.shown

    @invariant()
    def what_is_listed_and_counted_is_what_there_is(self) -> None:
        assert [
            (b.number, b.name, b.parent, b.current, b.reserved, b.messages, b.turns)
            for b in self.store.branches.list(self.id)
        ] == [
            (
                line.number,
                line.name,
                self.lines[line.parent].name if line.parent in self.lines else None,
                line.number == self.active,
                line.reserved,
                len(line.shown),
                sum(m.role == "user" for m in line.shown),
            )
            for _, line in sorted(self.lines.items())
        ]
        assert self.store.branches.active(self.id).number == self.active
        for line in self.lines.values():
            assert self.store.messages.size(self.id, branch=line.name) == len(line.shown)
        with self.store._engine.connect() as connection:
            assert not wrong_sessions(connection, tables(PLAIN), deep=True)
            dialect = self.store._runner.dialect
            assert not wrong_counters(connection, tables(PLAIN), dialect, deep=True)
        counters = self.store.sessions.verify(self.id)
        assert counters.agree
        assert counters.stored[0] == len(self.stored())
        assert self.store.sessions.get(self.id).epoch == self.epoch

    @invariant()
    def the_tables_hold_nothing_that_nobody_needs(self) -> None:
        t = tables(PLAIN)
        with self.store._engine.connect() as connection:

            def rows(table: Any) -> list[Any]:
                key = table.c.id if table is t.sessions else table.c.session_id
                return list(connection.execute(select(table).where(key == self.id)))

            branches = {row.number: row for row in rows(t.branches)}
            found = rows(t.messages)
            (session,) = rows(t.sessions)
        assert {row.id for row in found} == set(self.stored())
        assert {n for n, row in branches.items() if not row.gone} == set(self.lines)
        needed = {row.branch for row in found} | {row.parent for row in branches.values()}
        kept = {n: row.name for n, row in branches.items() if row.gone and row.reserved}
        assert set(kept.values()) == self.kept
        assert len(kept) == len(self.kept)
        assert {n for n, row in branches.items() if row.gone} - kept.keys() <= needed
        assert (session.active_branch, session.last_seq) == (self.active, self.last_seq)
        assert session.turn == self.here.turn
        for number, row in branches.items():
            if row.gone:
                assert row.line == []
                continue
            if number != self.active:
                assert row.turn == self.lines[number].turn
            *shared, (own, begins, end) = row.line
            assert (own, end) == (number, None)
            numbers = [n for _, first, last in shared for n in (first, last)]
            assert numbers == sorted(numbers)
            assert all(first <= last for _, first, last in shared)
            assert begins > (numbers[-1] if numbers else 0)

    def teardown(self) -> None:
        if not hasattr(self, "id"):
            return
        for line in self.lines.values():
            self.check(line)
        assert self.store.messages.page(self.other) == self.others
        assert [b.name for b in self.store.branches.list(self.other)] == ["main", "branch-1"]
        self.store.sessions.delete(self.id)


def says(message: Any, text: str) -> bool:
    content = message.content
    return message.role == "user" and text in (content or "").casefold()


def walk(page: Any) -> list[Any]:
    """Read pages to their end."""
    pages, cursor = [page(None)], None
    while (cursor := pages[-1].next_cursor) is not None:
        pages.append(page(cursor))
    return pages


@pytest.mark.long(but=["sqlite"])
@pytest.mark.timeout(0)
def test_any_calls_leave_every_branch_as_a_list_for_each_would_be(one_store: Store) -> None:
    examples = max(1, settings.get_profile("suite").max_examples // (4 if FULL else 6))
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: Branching(one_store),
        settings=settings(max_examples=examples, stateful_step_count=30),
    )
