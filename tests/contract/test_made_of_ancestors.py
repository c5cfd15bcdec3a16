"""A checkpoint whose values are made of its ancestors, as LangGraph's delta channels are, keeps
them, whatever else goes.
"""

import os
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url

from agentstore import Store
from agentstore.errors import InvalidInput
from agentstore.repositories import listing
from agentstore.repositories.checkpoints import removal
from agentstore.repositories.operations import chunks
from agentstore.repositories.upkeep import deletion, pruning
from agentstore.retention import RetentionPolicy
from tests.conftest import FULL
from tests.contract.clocks import HOUR, Clock
from tests.contract.test_retention import no_pauses as no_pauses
from tests.contract.test_retention import prune

NAMES = ("log", "notes", "never")
"""The values that are made of ancestors; nobody writes the last one."""

SPACE = "graph"


class Thread:
    """A thread that is put into as LangGraph does: some checkpoints hold a value, others do not."""

    def __init__(self, store: Any, name: str = "thread") -> None:
        self.store, self.name = store, name
        self.ids: list[str] = []
        self.made: dict[str, tuple[str | None, set[str], set[str]]] = {}
        """Of each checkpoint the parent, which values it holds, and which were written after."""

    def put(self, *holds: str, parent: str | None = None, **options: Any) -> str:
        id = f"{len(self.ids):04}"
        if parent is None and self.ids:
            parent = self.ids[-1]
        counters = {name: [0, 0] if name in holds else [1, 1] for name in NAMES}
        self.store.checkpoints.put(
            self.name,
            {"n": id} | {name: [f"{name} up to {id}"] for name in holds},
            id,
            parent_id=parent or "",
            metadata={"counters_since_delta_snapshot": counters},
            namespace=SPACE,
            **options,
        )
        self.ids.append(id)
        self.made[id] = (parent, {*holds}, set())
        return id

    def write(self, *names: str, after: str | None = None) -> None:
        id = after or self.ids[-1]
        writes = [(name, f"{name} after {id}") for name in names]
        self.store.checkpoints.put_writes(self.name, id, "task", writes, namespace=SPACE)
        self.made[id][2].update(names)

    def left(self, name: str | None = None) -> set[str]:
        return {c.id for c in self.store.checkpoints.iter(name or self.name, namespace=SPACE)}

    def state(self, id: str) -> dict[str, Any]:
        """Put together what a checkpoint is made of, as LangGraph's savers do."""
        get = self.store.checkpoints.get
        found = get(id, self.name, SPACE)
        state: dict[str, Any] = {name: [] for name in NAMES} | found.values
        lacking = {*NAMES} - found.values.keys()
        while lacking and found.parent_id is not None:
            found = get(found.parent_id, self.name, SPACE, writes=True)
            for name in lacking:
                state[name].append([w.value for w in found.writes if w.channel == name])
                state[name].append(found.values.get(name))
            lacking -= found.values.keys()
        # A step without any of it may be missing.
        return {
            name: [part for part in value if part] if name in NAMES else value
            for name, value in state.items()
        }

    def needed(self, kept: set[str]) -> set[str]:
        """Say which checkpoints have to be there for those that are kept."""
        needed = {*kept}
        for id in kept:
            parent, holds, _ = self.made[id]
            lacking = {*NAMES} - holds
            while lacking and parent is not None:
                above, holds, written = self.made[parent]
                if lacking & (holds | written):
                    needed.add(parent)
                lacking -= holds
                parent = above
        return needed


def a_thread(store: Any, name: str = "thread") -> Thread:
    """Make one whose latest checkpoint, 0009, is made of 0008, 0006 and 0001."""
    thread = Thread(store, name)
    for n in range(10):
        options = {"run_id": "early" if n < 5 else "late"}
        thread.put(*({"log", "notes"} if n == 1 else {"log"} if n in (4, 8) else ()), **options)
        if n in (0, 3, 8):
            thread.write("log")
        if n in (0, 6):
            thread.write("notes", "other")
    return thread


NEEDED = {"0009", "0008", "0006", "0001"}

REMOVALS: dict[str, Callable[[Any], Any]] = {
    "keep_last": lambda c: c.prune("thread", keep_last=1),
    "max_age": lambda c: c.prune("thread", max_age=timedelta(0), namespace=SPACE),
    "keep_ids": lambda c: c.prune("thread", keep_ids=["0009"]),
    "delete": lambda c: c.delete("thread", [f"{n:04}" for n in range(9)], namespace=SPACE),
    "delete_before": lambda c: c.delete_before("thread", 9, namespace=SPACE),
    "delete_run": lambda c: [c.delete_run("early"), c.delete("thread", ["0005"], namespace=SPACE)],
}


@pytest.mark.parametrize("removal_", REMOVALS)
def test_what_a_checkpoint_is_made_of_stays_whatever_removes_the_rest(timed, clock, removal_):
    thread = a_thread(timed)
    before = thread.state("0009")
    assert before["log"] == [["log after 0008"], ["log up to 0008"]]
    assert before["notes"] == [["notes after 0006"], ["notes up to 0001"]]
    clock.now += HOUR
    REMOVALS[removal_](timed.checkpoints)
    assert thread.state("0009") == before
    late = {"0004", "0007"} if removal_ == "delete_run" else set()  # 0007 is made of 0004
    assert thread.left() == NEEDED | late
    path = timed.checkpoints.path("0009", "thread", SPACE)
    assert {c.id for c in path} == NEEDED | late


def test_it_goes_with_the_last_that_is_made_of_it(store):
    thread = a_thread(store)
    store.checkpoints.prune("thread", keep_last=1)
    thread.put(*NAMES)
    assert store.checkpoints.prune("thread", keep_last=1, dry_run=True).rows == {"checkpoints": 4}
    assert store.checkpoints.prune("thread", keep_last=1).rows["checkpoints"] == 4
    assert thread.left() == {"0010"}


def test_a_retention_policy_keeps_it_and_a_dry_run_knew_it(timed, clock):
    thread, other = a_thread(timed), a_thread(timed, "other")
    other.put(*NAMES)
    before = thread.state("0009")
    report = prune(timed, checkpoints_keep_last=1)
    assert report.rules == {"checkpoints": 6 + 10}
    assert (thread.left(), thread.state("0009")) == (NEEDED, before)
    assert other.left() == {"0010"}


def test_what_is_forked_from_a_checkpoint_then_keeps_what_it_is_made_of(place, timed, monkeypatch):
    """Between the look that finds what is old and the transaction that deletes it."""
    thread = a_thread(timed)
    forked: list[str] = []
    find = pruning._CheckpointRule.find
    with place.open() as other:

        def finding(*args: Any) -> Any:
            found = find(*args)
            if not forked:
                thread.store = other
                forked.append(thread.put(parent="0003", step=99))
                thread.store = timed
            return found

        monkeypatch.setattr(pruning._CheckpointRule, "find", finding)
        timed.prune(RetentionPolicy(checkpoints_keep_last=2))
    assert thread.left() == NEEDED | {"0003", *forked}
    assert thread.state(forked[0])["log"] == [["log after 0003"], ["log up to 0001"]]


def looking(place, thread, before, left):
    """Give what looks, after each transaction, that all that is left has its state."""

    def look(_rule: str, _done: int) -> None:
        # The loop of an asynchronous store is busy with this call.
        with Store(make_url(place.url).set(drivername=place.driver.engine)) as store:
            beside = copy(thread)
            beside.store = store
            left.append(beside.left())
            for id in left[-1] - {"0008", "0006", "0001"}:  # there for 0009 alone, in the end
                assert beside.state(id) == before[id]

    return look


def test_after_each_transaction_all_that_is_left_has_its_state(timed, place, monkeypatch):
    monkeypatch.setattr(pruning, "MOST", 2)
    thread = a_thread(timed)
    before = {id: thread.state(id) for id in thread.ids}

    left: list[set[str]] = []
    look = looking(place, thread, before, left)
    timed.prune(RetentionPolicy(checkpoints_keep_last=1), progress=look)
    assert left[-1] == NEEDED
    assert len(left) > 3


def test_a_large_idle_thread_goes_in_pieces_that_leave_what_others_are_made_of(
    timed, clock, place, monkeypatch
):
    monkeypatch.setattr(deletion, "ROWS", 6)
    monkeypatch.setattr(listing, "ALONE", 1)
    thread = a_thread(timed)
    before = {id: thread.state(id) for id in thread.ids}
    left: list[set[str]] = []
    look = looking(place, thread, before, left)
    clock.now += 24 * HOUR
    timed.prune(RetentionPolicy(threads_idle=HOUR), progress=look)
    assert left[-2:] == [NEEDED, set()]
    assert len(left) > 3


def test_pruning_looks_no_further_than_to_the_next_that_holds_the_values(timed, monkeypatch):
    thread = Thread(timed)
    for n in range(60):
        thread.put(*(["log"] if n % 6 == 0 else ["notes"] if n % 6 == 3 else []), "never")
        thread.write("log", "notes")
    read: list[int] = []
    below = removal._below

    def reading(*args: Any) -> Any:
        found = below(*args)
        read.append(len(found))
        return found

    monkeypatch.setattr(removal, "_below", reading)
    monkeypatch.setattr(removal, "_STEPS", 3)
    monkeypatch.setattr(pruning, "MOST", 5)
    before = thread.state("0059")
    timed.prune(RetentionPolicy(checkpoints_keep_last=1))
    assert (thread.left(), thread.state("0059")) == (thread.needed({"0059"}), before)
    assert max(read) <= 4
    assert sum(read) <= 60 / 5 * 3 * 4


def test_where_nothing_is_made_of_ancestors_pruning_reads_no_more(timed, monkeypatch):
    for n in range(20):
        timed.checkpoints.put("thread", {"n": n}, metadata={"step": n})
    monkeypatch.delattr(removal, "_below")
    monkeypatch.delattr(removal, "unpacked")
    assert timed.prune(RetentionPolicy(checkpoints_keep_last=5)).rules == {"checkpoints": 15}
    monkeypatch.undo()
    assert timed.checkpoints.prune("thread", keep_last=1).rows["checkpoints"] == 4


def test_metadata_of_an_application_that_only_look_alike_keep_nothing(store):
    for counters in ([1], "log", {"log": [1, 1]}, {}, None):
        metadata = {"counters_since_delta_snapshot": counters}
        store.checkpoints.put("thread", {}, metadata=metadata)
    assert store.checkpoints.prune("thread", keep_last=1).rows["checkpoints"] == 4


def test_a_checkpoint_is_not_forked_without_what_it_is_made_of(store):
    thread = a_thread(store)
    for target in ({}, {"to_thread": "other"}):
        with pytest.raises(InvalidInput, match="copy_thread"):
            store.checkpoints.fork("0009", thread_id="thread", namespace=SPACE, **target)
    assert len(thread.left()) == 10
    whole = thread.put(*NAMES)
    store.checkpoints.fork(whole, thread_id="thread", namespace=SPACE, to_thread="other")
    assert store.checkpoints.latest("other", SPACE).values == thread.state(whole)
    assert store.checkpoints.copy_thread("thread", "third") == 11
    assert Thread(store, "third").state("0009") == thread.state("0009")


STEPS = st.lists(
    st.tuples(
        st.booleans() | st.just(False),  # whether it is forked from any other
        st.integers(0, 30),
        st.sets(st.sampled_from(NAMES[:2])),
        st.sets(st.sampled_from(NAMES[:2])),
        st.sampled_from(["", "", "tag", "wait"]),
        st.none() | st.none() | st.integers(0, 30),  # a step of the application's own
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=int(os.environ.get("AGENTSTORE_TEST_EXAMPLES", "60" if FULL else "12")))
@given(
    steps=STEPS,
    keep_last=st.none() | st.integers(0, 4),
    hours=st.integers(0, 4),
    by_age=st.booleans(),
    small=st.booleans(),
)
def test_whatever_the_tree_and_the_policy_what_stays_has_its_state_and_no_more_stays(
    place, steps, keep_last, hours, by_age, small
):
    rules: dict[str, Any] = {"keep_tags": ("tag",)}
    if by_age or keep_last is None:
        rules["max_age"] = hours * HOUR
    if keep_last is not None:
        rules["keep_last"] = keep_last
    with pytest.MonkeyPatch.context() as patch:
        if small:  # many transactions, many pages
            for module, name, size in (
                (deletion, "ROWS", 7),
                (pruning, "MOST", 2),
                (pruning, "PAGE", 3),
                (removal, "_STEPS", 2),
                (removal, "chunks", partial(chunks, size=3)),
            ):
                patch.setattr(module, name, size)
        clock = Clock()
        with place.open(clock=clock) as store:
            for old in store.checkpoints.threads(limit=1000).items:
                store.checkpoints.delete_thread(old.id)
            thread = Thread(store)
            at = {}
            for forks, number, holds, written, what, step in steps:
                clock.now += HOUR * (what == "wait")
                parent = thread.ids[number % len(thread.ids)] if forks and thread.ids else None
                id = thread.put(*holds, parent=parent, tags=["tag"] * (what == "tag"), step=step)
                at[id] = clock.now
                thread.write(*written)
            listed = list(store.checkpoints.iter("thread", namespace=SPACE))
            kept = {
                info.id
                for number, info in enumerate(listed)
                if number < max(keep_last or 0, 1)
                or "tag" in info.tags
                or ("max_age" in rules and at[info.id] >= clock.now - rules["max_age"])
            }
            states = {id: thread.state(id) for id in kept}
            store.checkpoints.copy_thread("thread", "copy")
            store.checkpoints.prune("copy", **rules)
            prune(store, **{f"checkpoints_{name}": rule for name, rule in rules.items()})
            assert thread.left() == thread.left("copy") == thread.needed(kept)
            assert {id: thread.state(id) for id in kept} == states
