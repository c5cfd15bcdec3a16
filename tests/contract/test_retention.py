"""What a policy says has had its time goes, nothing else does, and a dry run knows it before."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, event, make_url, text

from agentstore import AsyncStore, Store, migrations
from agentstore.engines.sqlite.search import SQLiteSearch
from agentstore.errors import InvalidInput, NotFound, TransactionMisuse
from agentstore.repositories import listing
from agentstore.repositories.upkeep import deletion, pruning
from agentstore.retention import RetentionPolicy
from agentstore.schema import Names
from tests.conftest import FULL, in_the_process, on, on_a_server
from tests.contract.clocks import HOUR, NOON, Clock, at_once, done_to
from tests.contract.test_expiry import (
    Interrupted,
    at_most,
    everything_of,
    grown,
    rows_of,
    transactions,
)
from tests.contract.test_forks import killed_child
from tests.programs.probes import engine_of, once_at, sent
from tests.raw_sql import Own, execute, raw

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is there to be given a turn, and a slow machine is to change nothing."""
    monkeypatch.setattr(listing, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(listing, "LONG", 1000.0)


def prune(store: Any, **rules: Any) -> Any:
    """Prune, and see that a dry run before it counted the same and changed nothing."""
    policy = RetentionPolicy(**rules)
    before = rows_of(store)
    foreseen = store.prune(policy, dry_run=True)
    assert foreseen.dry_run
    assert rows_of(store) == before
    report = store.prune(policy)
    after = rows_of(store)
    lost = {name: count - after.get(name, 0) for name, count in before.items()}
    assert report.rows == {name: count for name, count in lost.items() if count}
    assert (foreseen.rows, foreseen.rules) == (report.rows, report.rules)
    assert report.total == sum(report.rows.values())
    again = store.prune(policy)
    assert (again.rows, again.rules) == ({}, {})
    return report


@contextmanager
def after_the_look(store: Any, words: str, do: Callable[[], object]) -> Iterator[None]:
    """Do something in another transaction, after the statement that finds what has expired."""
    with once_at(engine_of(store), "after_cursor_execute", lambda _: do(), words) as happened:
        yield
    assert happened


# --- Sessions --------------------------------------------------------------------------------


def test_idle_sessions_go_with_all_that_is_theirs_and_active_ones_stay(timed, clock):
    idle = [everything_of(timed) for _ in range(3)]
    clock.now += 10 * DAY
    active = everything_of(timed)
    report = prune(timed, sessions_idle=9 * DAY)
    assert report.rules == {"sessions": 3}
    assert {"messages", "tool_logs", "tasks", "checkpoints", "turn_usage"} <= report.rows.keys()
    for session in idle:
        with pytest.raises(NotFound):
            timed.sessions.get(session)
    assert len(timed.messages.history(active)) == 2
    assert timed.sessions.verify(active).agree


def test_a_session_is_idle_after_that_time_and_not_a_moment_before(timed, clock):
    session = timed.sessions.create()
    clock.now += DAY
    assert prune(timed, sessions_idle=DAY).rows == {}
    clock.now += timedelta(microseconds=1)
    assert prune(timed, sessions_idle=DAY).rules == {"sessions": 1}
    assert timed.sessions.find(session.id) is None


def test_idle_sessions_can_be_chosen_by_status_and_kept_for_a_mark(timed, clock):
    done, failed, active, marked = (timed.sessions.create().id for _ in range(4))
    timed.sessions.complete(done)
    timed.sessions.fail(failed)
    timed.messages.save(marked, "user", "precious", marks=["keep"])
    timed.sessions.complete(marked)
    clock.now += 2 * DAY
    prune(
        timed,
        sessions_idle=DAY,
        session_statuses=("completed", "failed"),
        keep_marked=("keep", "other"),
    )
    assert {s.id for s in timed.sessions.list()} == {active, marked}


def test_expired_sessions_go_when_the_policy_says_so(timed, clock):
    expired, young, lasting = (timed.sessions.create(ttl=t).id for t in (HOUR, 3 * HOUR, None))
    kept = timed.sessions.create(ttl=HOUR).id
    clock.now += 50 * timedelta(minutes=1)
    timed.messages.save(kept, "user", "still here")
    clock.now += 20 * timedelta(minutes=1)
    assert prune(timed, tool_logs=HOUR).rows == {}
    assert prune(timed, expired_sessions=True).rules == {"sessions": 1}
    assert {s.id for s in timed.sessions.list()} == {young, lasting, kept}
    assert timed.sessions.find(expired) is None


def test_a_clock_that_jumped_hides_no_idle_session_and_deletes_no_active_one(timed, clock):
    """Row numbers and activity say nothing about times."""
    early = timed.sessions.create().id
    clock.now = NOON + 1000 * DAY
    ahead = timed.sessions.create().id
    clock.now = NOON
    late = timed.sessions.create().id
    clock.now = NOON + 2 * DAY
    assert prune(timed, sessions_idle=DAY).rules == {"sessions": 2}
    assert [s.id for s in timed.sessions.list()] == [ahead]
    assert timed.sessions.find(early) is None
    assert timed.sessions.find(late) is None


def test_a_clock_that_is_set_back_while_pruning_saves_what_is_left(place):
    clock = Clock()
    with place.open(clock=clock) as store:
        session = store.sessions.create().id
        store.tool_logs.log(session, "search")
        task = store.tasks.create(None, "mail").id
        store.tasks.cancel(task)
        clock.now += 2 * DAY
        times = iter([clock.now])
        with place.open(clock=lambda: next(times, NOON)) as pruner:
            policy = RetentionPolicy(sessions_idle=DAY, tool_logs=DAY, finished_tasks=DAY)
            assert pruner.prune(policy).rows == {}
        assert store.tasks.find(task)


def test_a_session_that_becomes_active_after_it_was_found_stays(place, timed, clock):
    session = grown(timed, timed.sessions.create().id, 3)
    clock.now += 2 * DAY
    with place.open(clock=clock) as other:
        save = partial(other.messages.save, session, "user", "just in time")
        with after_the_look(timed, "last_active_at <", save):
            report = timed.prune(RetentionPolicy(sessions_idle=DAY))
    assert report.rows == {}
    assert len(timed.messages.history(session)) == 4


def test_of_a_session_that_others_write_to_all_or_nothing_is_there(place, timed, clock):
    ids = [grown(timed, timed.sessions.create().id, 3) for _ in range(12)]
    clock.now += 2 * DAY
    policy = RetentionPolicy(sessions_idle=DAY)
    with place.open(clock=clock) as another:

        def work(n: int) -> list[str]:
            if n % 3 == 0:
                another.prune(policy, reclaim=False)
                return []
            order = ids[::-1] if n % 2 else ids
            return done_to(order, lambda id: timed.messages.save(id, "user", str(n)))

        results = at_once(6, work)
    saved = {id for found in results for id in found}
    assert {s.id for s in timed.sessions.list()} == saved
    for id in saved:
        assert len(timed.messages.history(id, None)) == 3 + sum(id in found for found in results)
        assert timed.sessions.verify(id).agree


# --- Threads ---------------------------------------------------------------------------------


def threads_of(store: Any) -> set[str]:
    return {each.id for each in store.checkpoints.threads()}


def test_idle_threads_go_with_all_that_is_theirs_and_used_ones_stay(timed, clock):
    put, session = timed.checkpoints.put, timed.sessions.create().id
    first = {}
    for name in ("idle", "of a session", "touched", "inner", "earlier"):
        owner = session if name == "of a session" else None
        first[name] = put(name, {"list": ["x" * 300]}, session_id=owner).id
        put(name, {"list": ["x" * 300, "y"]})
        timed.checkpoints.put_writes(name, first[name], "task", [("channel", name)])
    clock.now += DAY
    assert prune(timed, threads_idle=DAY).rows == {}
    timed.checkpoints.touch("touched")
    put("inner", {}, namespace="inner")
    put("earlier", {}, parent_id=first["earlier"], step=0)
    timed.checkpoints.copy_thread("idle", "copied")
    clock.now += timedelta(microseconds=1)
    report = prune(timed, threads_idle=DAY)
    assert report.rules == {"threads": 2}
    assert sorted(report.rows) == sorted(
        f"checkpoint{name}" for name in ("s", "_threads", "_values", "_writes")
    )
    assert threads_of(timed) == {"touched", "inner", "earlier", "copied"}
    assert timed.sessions.find(session)
    clock.now += DAY
    assert prune(timed, threads_idle=DAY).rules == {"threads": 4}


def test_idle_threads_can_be_chosen_by_their_namespaces(timed, clock):
    for name, namespace in (("a", "langgraph"), ("b", ""), ("c", "other")):
        timed.checkpoints.put(name, {}, namespace=namespace)
    clock.now += 2 * DAY
    both = ("langgraph", "other")
    assert prune(timed, threads_idle=DAY, thread_namespaces=both).rules == {"threads": 2}
    assert threads_of(timed) == {"b"}


def test_a_thread_is_touched_as_often_as_is_asked_for(timed, clock):
    timed.checkpoints.put("thread", {"a": 1})
    touch = timed.checkpoints.touch
    assert touch("thread", every=DAY)
    clock.now += DAY
    assert not touch("thread", every=DAY)
    clock.now += timedelta(microseconds=1)
    assert touch("thread", every=DAY)
    assert touch("thread")
    assert timed.checkpoints.namespaces("thread") == ("",)
    assert rows_of(timed)["checkpoint_writes"] == 1
    for every in (timedelta(0), DAY):
        with pytest.raises(NotFound):
            touch("other", every=every)
    for wrong in (-DAY, 5, None):
        with pytest.raises(InvalidInput):
            touch("thread", every=wrong)
    assert threads_of(timed) == {"thread"}


def test_to_touch_a_thread_leaves_the_order_of_threads_and_what_callers_put(timed):
    put, touch = timed.checkpoints.put, timed.checkpoints.touch
    for name in ("first", "last"):
        put(name, {"a": 1})
    assert touch("first")
    assert touch("first")
    assert [each.id for each in timed.checkpoints.threads()] == ["last", "first"]
    place = {"namespace": "\x01touched"}
    with pytest.raises(InvalidInput, match="namespace"):
        put("first", {}, **place)
    with pytest.raises(InvalidInput, match="namespace"):
        timed.checkpoints.put_writes("first", *["\x01touched"] * 2, [("channel", 1)], **place)
    assert timed.checkpoints.namespaces("first") == ("",)


@pytest.mark.parametrize("use", ["put", "touch", "touch again"])
def test_a_thread_that_is_used_after_it_was_found_idle_stays(place, timed, clock, use):
    timed.checkpoints.put("thread", {"a": 1})
    if use == "touch again":
        timed.checkpoints.touch("thread")
    clock.now += 2 * DAY
    with place.open(clock=clock) as other:
        uses = {
            "put": partial(other.checkpoints.put, "thread", {"a": 2}),
            "touch": partial(other.checkpoints.touch, "thread"),
        }
        with after_the_look(timed, "checkpoint_writes", uses[use.removesuffix(" again")]):
            report = timed.prune(RetentionPolicy(threads_idle=DAY))
    assert report.rows == {}
    assert threads_of(timed) == {"thread"}


@pytest.mark.parametrize("returns", [False, True], ids=["nobody", "somebody"])
def test_a_large_thread_goes_in_pieces_and_is_whole_for_whoever_comes_back(
    place, timed, clock, monkeypatch, returns
):
    monkeypatch.setattr(deletion, "ROWS", 16)
    for namespace, steps in (("", 30), ("inner", 3)):
        for id in put(timed, "thread", steps, namespace=namespace):
            timed.checkpoints.put_writes(
                "thread", id, "task", [("channel", id)], namespace=namespace
            )
    put(timed, "small", 1)
    clock.now += 2 * DAY
    policy, left = RetentionPolicy(threads_idle=DAY), list[int]()

    def look(_rule: str, _rows: int) -> None:
        # The loop of an asynchronous store is busy with this call.
        url = make_url(place.url).set(drivername=place.driver.engine)
        with Store(url, clock=clock) as other:
            if "thread" not in threads_of(other) or (returns and len(left) == 3):
                return
            left.append(len(other.checkpoints.list("thread", namespace="")))
            for namespace, step in (("", 29), ("inner", 2)):
                values = other.checkpoints.latest("thread", namespace).values
                assert values == {"messages": [{"n": n} for n in range(step)], "step": step}
            if returns and len(left) == 3:
                other.checkpoints.put("thread", values | {"step": 30})

    foreseen = timed.prune(policy, dry_run=True)
    with transactions(timed) as deleted:
        report = timed.prune(policy, progress=look, reclaim=False)
    assert max(deleted) <= at_most(timed, 16)
    assert left == sorted(left, reverse=True)
    assert left[0] > left[2] > 1
    if returns:
        assert report.rules == {"threads": 1}
        assert timed.checkpoints.latest("thread").step == 30
        clock.now += 2 * DAY
        assert prune(timed, threads_idle=DAY).rules == {"threads": 1}
    else:
        assert (report.rows, report.rules) == (foreseen.rows, {"threads": 2})
    no_orphans(place)


def test_of_threads_that_others_put_into_while_two_prune_all_or_nothing_is_there(
    place, timed, clock
):
    ids = [f"thread-{number}" for number in range(12)]
    for id in ids:
        for number in range(3):
            timed.checkpoints.put(id, {"list": [*range(number)]})
    clock.now += 2 * DAY
    policy = RetentionPolicy(threads_idle=DAY)
    with place.open(clock=clock) as another:

        def work(n: int) -> list[str]:
            if n < 2:
                [another, timed][n].prune(policy, reclaim=False)
                return []
            put = partial(timed.checkpoints.put, values={"list": [0] * n}, thread_missing="refuse")
            return done_to(ids[::-1] if n % 2 else ids, put)

        results = at_once(6, work)
    put = {id for found in results for id in found}
    assert threads_of(timed) == put
    for id in put:
        listed = timed.checkpoints.list(id, values=True).items
        assert len(listed) == 3 + sum(id in found for found in results)
    no_orphans(place)


# --- Rows of their own ------------------------------------------------------------------------


def test_old_tool_logs_go_and_their_sessions_stay(timed, clock):
    session = timed.sessions.create().id
    for _ in range(5):
        timed.tool_logs.log(session, "search")
    clock.now += 2 * DAY
    kept = timed.tool_logs.log(session, "search").id
    assert prune(timed, tool_logs=DAY).rules == {"tool_logs": 5}
    assert [log.id for log in timed.tool_logs.list()] == [kept]


def test_a_dry_run_comes_to_the_end_of_logs_that_were_written_at_one_moment(
    timed, clock, monkeypatch
):
    monkeypatch.setattr(pruning, "PAGE", 2)
    session = timed.sessions.create().id
    for _ in range(5):
        timed.tool_logs.log(session, "search")
    clock.now += 2 * DAY
    assert prune(timed, tool_logs=DAY).rules == {"tool_logs": 5}


def test_only_tasks_that_came_to_their_end_go(timed, clock):
    def task() -> str:
        return str(timed.tasks.create(None, "mail").id)

    pending, paused, cancelled = task(), task(), task()
    timed.tasks.pause(paused)
    timed.tasks.cancel(cancelled)
    running, completed, failed, dead = (task() for _ in range(4))
    for id in (running, completed, failed, dead):
        timed.tasks.start(id)
    timed.tasks.complete(completed)
    timed.tasks.fail(failed, "oh", retry=False)
    states = {id: timed.tasks.get(id).status for id in (running, completed, failed, dead)}
    clock.now += 2 * DAY
    late = task()
    timed.tasks.cancel(late)
    ended = [id for id, status in states.items() if status in ("completed", "dead")]
    assert prune(timed, finished_tasks=DAY, task_statuses=("cancelled",)).rules == {"tasks": 1}
    prune(timed, finished_tasks=DAY)
    left = {t.id for t in timed.tasks.list()}
    assert left == {pending, paused, running, failed, dead, late} - set(ended)
    assert timed.tasks.find(cancelled) is None


def test_a_task_that_is_revived_after_it_was_found_stays(place, timed, clock):
    task = timed.tasks.create(None, "mail").id
    dead(place, task)
    clock.now += 2 * DAY
    with (
        place.open(clock=clock) as other,
        after_the_look(timed, "dead_at <", other.tasks.requeue),
    ):
        report = timed.prune(RetentionPolicy(finished_tasks=DAY))
    assert report.rows == {}
    assert timed.tasks.get(task).status == "pending"


def dead(place: Any, task_id: str) -> None:
    """Let a task be dead since noon, behind the store's back."""
    dying = "UPDATE tasks SET status = 'dead', dead_at = created_at WHERE id = :id"
    execute(place.url, raw(dying, id=Own(task_id)))


def test_reservations_that_expired_long_ago_go_and_no_longer_count(timed, clock):
    user = timed.users.create("Alice", quota_total=100).id
    timed.users.reserve_quota(user, 30, ttl=HOUR)
    timed.users.reserve_quota(user, 20, ttl=HOUR)
    kept = timed.users.reserve_quota(user, 10, ttl=40 * HOUR)
    clock.now += 2 * HOUR
    assert prune(timed, reservations=DAY).rows == {}
    clock.now += DAY
    assert prune(timed, reservations=DAY).rules == {"reservations": 2}
    found = timed.users.get(user)
    assert (found.quota_used, found.quota_reserved) == (0, 10)
    assert timed.users.settle_quota(kept.id, 5) == 95


def test_reservations_that_have_lapsed_already_are_not_taken_off_twice(timed, clock):
    user = timed.users.create("Alice", quota_total=100).id
    timed.users.reserve_quota(user, 90, ttl=HOUR)
    clock.now += 2 * HOUR
    kept = timed.users.reserve_quota(user, 50, ttl=2 * DAY)
    clock.now += DAY
    assert prune(timed, reservations=DAY).rules == {"reservations": 1}
    assert timed.users.get(user).quota_reserved == 50
    timed.users.release_quota(kept.id)
    assert timed.users.get(user).quota_reserved == 0


def test_streams_that_nobody_finishes_are_aborted_and_others_go_on(timed, clock):
    session = timed.sessions.create().id
    abandoned = timed.messages.begin(session).id
    for piece in ("half ", "a word"):
        timed.messages.append(abandoned, piece)
    clock.now += 2 * HOUR
    lively = timed.messages.begin(session).id
    timed.messages.append(lively, "still")
    report = prune(timed, streams=HOUR)
    assert (report.rules, report.rows) == ({"streams": 1}, {"message_chunks": 2})
    found = timed.messages.get(abandoned)
    assert (found.status, found.content) == ("incomplete", "half a word")
    timed.messages.append(lively, " here")
    assert timed.messages.finish(lively).content == "still here"


# --- Checkpoints -----------------------------------------------------------------------------


def put(store: Any, thread: str, steps: int, **options: Any) -> list[str]:
    ids = []
    for step in range(steps):
        values = {"messages": [{"n": n} for n in range(step)], "step": step}
        ids.append(store.checkpoints.put(thread, values, **options).id)
    return ids


def test_the_latest_checkpoints_of_each_thread_stay_and_are_whole(timed, clock):
    for thread in ("one", "two", "three"):
        put(timed, thread, 9)
    put(timed, "one", 4, namespace="inner")
    report = prune(timed, checkpoints_keep_last=3)
    assert report.rules == {"checkpoints": 3 * 6 + 1}
    for thread in ("one", "two", "three"):
        kept = timed.checkpoints.list(thread).items
        assert [c.step for c in kept] == [8, 7, 6]
        for found in kept:
            values = timed.checkpoints.get(found.id, thread).values
            assert values["messages"] == [{"n": n} for n in range(found.step)]
        line = timed.checkpoints.path(kept[0].id, thread)
        assert [c.step for c in line] == [8, 7, 6]


def test_young_and_tagged_checkpoints_stay_besides(timed, clock):
    ids = put(timed, "thread", 3)
    milestone = timed.checkpoints.put("thread", {"x": 1}, tags=["milestone", "x"]).id
    put(timed, "thread", 3)
    clock.now += 2 * DAY
    young = put(timed, "thread", 2)
    prune(timed, checkpoints_max_age=DAY, checkpoints_keep_tags=("milestone",))
    left = {c.id for c in timed.checkpoints.list("thread").items}
    assert left == {milestone, *young}
    assert not left & set(ids)


def test_the_latest_checkpoint_always_stays(timed, clock):
    put(timed, "thread", 5)
    clock.now += 2 * DAY
    prune(timed, checkpoints_keep_last=0, checkpoints_max_age=DAY)
    assert [c.step for c in timed.checkpoints.list("thread").items] == [4]
    assert timed.checkpoints.put("thread", {"x": 1}).step == 5


def test_a_checkpoint_that_is_among_the_latest_again_stays(place, timed):
    """Because others were deleted after it was found."""
    put(timed, "thread", 6)
    with place.open() as other:
        rewind = partial(other.checkpoints.rewind, "thread", 2)
        with after_the_look(timed, "AS weight", rewind):
            timed.prune(RetentionPolicy(checkpoints_keep_last=2))
    assert [c.step for c in timed.checkpoints.list("thread").items] == [2, 1]


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "put", "put", "fork", "tag", "writes", "wait", "inner", "rewrite", "attach"]
        ),
        st.integers(0, 2),
        st.integers(0, 9),
    ),
    max_size=40,
)
POLICIES = st.builds(
    dict,
    checkpoints_keep_last=st.none() | st.integers(0, 4),
    checkpoints_max_age=st.none() | st.integers(0, 5).map(lambda n: n * HOUR),
    checkpoints_keep_tags=st.sampled_from([(), ("a",), ("a", "b")]),
    sessions_idle=st.none() | st.integers(0, 5).map(lambda n: n * HOUR),
    threads_idle=st.none() | st.integers(0, 5).map(lambda n: n * HOUR),
    tool_logs=st.none() | st.integers(0, 5).map(lambda n: n * HOUR),
    finished_tasks=st.none() | st.integers(0, 5).map(lambda n: n * HOUR),
    expired_sessions=st.booleans(),
).filter(
    lambda rules: (
        rules["checkpoints_keep_last"] is not None or rules["checkpoints_max_age"] is not None
    )
)


@pytest.mark.long(but=["sqlite3"])
@settings(max_examples=int(os.environ.get("AGENTSTORE_TEST_EXAMPLES", "25" if FULL else "6")))
@given(acts=ACTS, rules=POLICIES, small=st.booleans())
def test_whatever_the_policy_what_stays_is_whole_and_a_dry_run_knew_it(place, acts, rules, small):
    with pytest.MonkeyPatch.context() as patch:
        if small:  # many transactions, many pages
            patch.setattr(deletion, "ROWS", 7)
            patch.setattr(pruning, "ROWS", 2)
            patch.setattr(pruning, "MOST", 2)
            patch.setattr(pruning, "PAGE", 3)
        clock = Clock()
        with place.open(clock=clock) as store:
            for thread in store.checkpoints.threads(limit=1000).items:
                store.checkpoints.delete_thread(thread.id)
            for session in store.sessions.list(limit=1000).items:
                store.sessions.delete(session.id)
            kept = act(store, clock, acts)
            prune(store, **rules)
            for thread in store.checkpoints.threads(limit=1000).items:
                check_thread(store, thread.id, kept)
        no_orphans(place)


Place = tuple[str, str, str]
"""A thread, a namespace, and the id of a checkpoint in it."""


def act(store: Any, clock: Clock, acts: Any) -> dict[Place, tuple[Any, str | None]]:
    """Do what was drawn; give the values and the parent of each checkpoint that was put."""
    sessions = [store.sessions.create(ttl=2 * HOUR if n else None).id for n in range(2)]
    owners = [None, *sessions]
    done: dict[Place, tuple[Any, str | None]] = {}
    latest: dict[tuple[str, str], list[Any]] = {}
    for what, which, number in acts:
        thread, owner = f"thread-{which}", owners[which]
        namespace = "inner" if what == "inner" else ""
        items = latest.setdefault((thread, namespace), [])
        store.tool_logs.log(sessions[number % 2], "search")
        task = store.tasks.create(sessions[which % 2] if number % 2 else None, "mail").id
        if number % 3:
            store.tasks.cancel(task)
        if what == "wait":
            clock.now += HOUR
            continue
        if what == "attach":
            message = store.messages.save(sessions[which % 2], "user", "look").id
            store.attachments.add(message, bytes([number % 2]), "text/plain")
            continue
        ids = [id for owned, space, id in done if (owned, space) == (thread, namespace)]
        if what == "writes":
            id = ids[number % len(ids)] if ids else f"later-{number}"
            store.checkpoints.put_writes(thread, id, "task", [("a", 1)], session_id=owner)
            continue
        options: dict[str, Any] = {}
        if what == "fork" and ids:
            options["parent_id"] = ids[number % len(ids)]
            forked, _ = done[thread, namespace, options["parent_id"]]
            items = latest[thread, namespace] = list(forked["items"])
        if what == "rewrite":
            items.clear()
        items.append({"n": number, "text": "x" * 30})
        if what == "tag":
            options["tags"] = ["ab"[number % 2]]
        values = {"items": list(items), "n": number}
        new = store.checkpoints.put(
            thread, values, namespace=namespace, session_id=owner, **options
        )
        done[thread, namespace, new.id] = (values, new.parent_id)
    return done


def check_thread(store: Any, thread: str, done: dict[Place, tuple[Any, str | None]]) -> None:
    """What stays has its values, and comes from what it came from, as far as that stays."""
    put = {key: found for key, found in done.items() if key[0] == thread}
    there = {key for key in put if store.checkpoints.find(key[2], thread, key[1]) is not None}
    listed = [
        (thread, namespace, found.id)
        for namespace in ("", "inner")
        for found in store.checkpoints.list(thread, namespace=namespace, limit=1000).items
    ]
    assert sorted(listed) == sorted(there)
    for _, namespace, id in there:
        found = store.checkpoints.get(id, thread, namespace)
        assert found.values == put[thread, namespace, id][0]
        line: list[str] = []
        climbing: str | None = id
        while climbing is not None:
            if (thread, namespace, climbing) in there:
                line.append(climbing)
            climbing = put[thread, namespace, climbing][1]
        assert [info.id for info in store.checkpoints.path(id, thread, namespace)] == line


def no_orphans(place: Any) -> None:
    """No value that nothing holds, nothing without its session."""
    sqlite = place.driver.engine == "sqlite"
    each = f"json_each{'(c.lines)' if sqlite else '_text(c.lines::json)'}"
    queries = (
        "SELECT count(*) FROM checkpoint_values v WHERE NOT EXISTS (SELECT 1 FROM "
        "checkpoints c, (each) AS held WHERE c.thread_id = v.thread_id AND "
        "CAST(held.key AS BIGINT) = v.line AND (v.start = 0 OR "
        "CAST(held.value AS BIGINT) >= v.start + length(v.data)))",
        "SELECT count(*) FROM messages m WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE "
        "s.pk = m.session)",
        "SELECT count(*) FROM tool_logs t WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE "
        "s.id = t.session_id)",
        "SELECT count(*) FROM blobs b WHERE NOT EXISTS (SELECT 1 FROM attachments a WHERE "
        "a.digest = b.digest)",
    )
    engine = create_engine(place.url)
    with engine.connect() as connection:
        assert [
            connection.execute(text(query.replace("(each)", each))).scalar_one()
            for query in queries
        ] == [0] * 4
    engine.dispose()


# --- How much at once, and what is left when it ends early -------------------------------------

EVERYTHING = RetentionPolicy(
    sessions_idle=DAY,
    tool_logs=DAY,
    checkpoints_keep_last=1,
    finished_tasks=DAY,
    reservations=DAY,
    streams=DAY,
)


def much(store: Any, clock: Clock) -> None:
    """Make something for each rule, most of it in a session that stays."""
    everything_of(store)
    grown(store, store.sessions.create().id, 40)
    user = store.users.create("Alice", quota_total=1000).id
    for _ in range(30):
        store.users.reserve_quota(user, 1, ttl=HOUR)
        store.tasks.cancel(store.tasks.create(None, "mail").id)
    lasting = store.sessions.create(id="lasting").id
    for _ in range(30):
        store.tool_logs.log(lasting, "search")
    put(store, "thread", 20)
    store.messages.append(store.messages.begin(lasting).id, "half")
    clock.now += 3 * DAY
    store.messages.save(lasting, "user", "hello")


def test_no_transaction_deletes_more_rows_than_it_may(timed, clock, monkeypatch):
    monkeypatch.setattr(deletion, "ROWS", 10)
    monkeypatch.setattr(pruning, "ROWS", 8)
    monkeypatch.setattr(pruning, "MOST", 3)
    much(timed, clock)
    with transactions(timed) as deleted:
        report = timed.prune(EVERYTHING)
    assert report.rules.keys() == {
        "sessions",
        "tool_logs",
        "checkpoints",
        "tasks",
        "reservations",
        "streams",
    }
    # Where rows come back from a DELETE, some drivers do not count them.
    assert 120 < sum(deleted) <= report.total
    assert max(deleted) <= at_most(timed, 10)
    assert len([count for count in deleted if count]) > 20


@in_the_process  # where deleted text is taken out of the index at once
@pytest.mark.parametrize("name", ["in pieces", "whole"])
def test_no_transaction_takes_more_text_out_of_the_index_than_it_may(
    place, timed, clock, monkeypatch, name
):
    """To cut a long text into words takes longer than to delete it, and is done under the lock."""
    monkeypatch.setattr(deletion, "ROW_CHARACTERS", 100)
    monkeypatch.setattr(deletion, "ROWS", 44)
    each = 20 if name == "in pieces" else 2  # a message of 1,000 characters weighs 11 rows
    for _ in range(40 // each):
        session = timed.sessions.create().id
        timed.messages.save_many(session, [{"role": "user", "content": "words " * 170}] * each)
    timed.search.refresh()
    clock.now += 2 * DAY
    taken: list[int] = []
    forget = SQLiteSearch.write

    def count(self: Any, removed: Any, *rest: Any) -> None:
        taken.append(len(removed))
        forget(self, removed, *rest)

    monkeypatch.setattr(SQLiteSearch, "write", count)
    report = timed.prune(RetentionPolicy(sessions_idle=DAY), reclaim=False)
    assert report.rows["messages"] == sum(taken) == 40
    assert max(taken) <= 4
    assert rows_of(timed) == {}


@in_the_process  # where writers wait for each other
def test_pauses_are_long_only_beside_others_who_write(place, timed, clock, monkeypatch):
    monkeypatch.setattr(listing, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(pruning, "ROWS", 2)
    pauses: list[float] = []
    others = create_engine(place.url)

    def rest(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            with others.begin() as connection:
                connection.execute(text("UPDATE tasks SET priority = priority + 1"))

    monkeypatch.setattr(listing, "rest", rest)
    for _ in range(12):
        timed.tasks.cancel(timed.tasks.create(None, "mail").id)
    clock.now += 2 * DAY
    timed.prune(RetentionPolicy(finished_tasks=DAY), reclaim=False)
    others.dispose()
    assert [seconds > 0 for seconds in pauses] == [True, False, False, False, True, False]


def test_transactions_become_smaller_when_they_take_long(timed, clock, monkeypatch):
    monkeypatch.setattr(listing, "LONG", 0.0)
    monkeypatch.setattr(listing, "LEAST", 1)
    monkeypatch.setattr(listing, "ALONE", 1)
    monkeypatch.setattr(pruning, "ALONE", 1)
    much(timed, clock)
    with transactions(timed) as deleted:
        report = timed.prune(RetentionPolicy(finished_tasks=DAY))
    assert sum(deleted) == report.total == 30
    assert [count for count in deleted if count] == [25, 1, 1, 1, 1, 1]


def test_sessions_that_go_together_are_counted_together(timed, clock):
    for _ in range(30):
        timed.tool_logs.log(timed.sessions.create().id, "search")
    clock.now += 2 * DAY
    with sent(timed) as statements:
        report = timed.prune(RetentionPolicy(sessions_idle=DAY), reclaim=False)
    assert report.rows["tool_logs"] == report.rules["sessions"] == 30
    assert sum("tool_logs" in each and "count(" in each for each in statements) <= 3


@pytest.mark.long(but=["sqlite3"])
def test_who_interrupts_pruning_leaves_nothing_half_deleted_and_the_next_goes_on(
    place, clock, monkeypatch
):
    monkeypatch.setattr(deletion, "ROWS", 10)
    monkeypatch.setattr(pruning, "ROWS", 10)
    with place.open(clock=clock) as store:
        much(store, clock)
        seen = {s.id: len(store.messages.history(s.id, None)) for s in store.sessions.list()}
    left = 0
    for number in range(1000):
        with place.open(clock=clock) as store:
            try:
                interrupted_after(store, 1)
            except Interrupted:
                for session in store.sessions.list():
                    assert len(store.messages.history(session.id, None)) == seen[session.id]
                continue
        left = number
        break
    assert left > 20
    with place.open(clock=clock) as store:
        assert store.prune(EVERYTHING, dry_run=True).rows == {}
        assert [s.id for s in store.sessions.list()] == ["lasting"]
        assert store.users.list().items[0].quota_reserved == 0
    no_orphans(place)


def interrupted_after(store: Any, commits: int) -> None:
    """Prune, but raise in place of whatever comes after so many transactions that deleted."""
    engine = engine_of(store)
    deleting, done = [False], [0]

    def keep(_c: Any, _k: Any, sql: str, *_: Any) -> None:
        if done[0] >= commits:
            raise Interrupted
        if sql.startswith("DELETE") and "search" not in sql:
            deleting[0] = True

    def committed(_: Any) -> None:
        if deleting[0]:
            done[0] += 1
            deleting[0] = False

    event.listen(engine, "before_cursor_execute", keep)
    event.listen(engine, "commit", committed)
    try:
        store.prune(EVERYTHING, reclaim=False)
    finally:
        event.remove(engine, "before_cursor_execute", keep)
        event.remove(engine, "commit", committed)


@pytest.mark.long(but=["sqlite"])
def test_a_process_that_is_killed_while_pruning_leaves_what_the_next_one_finishes(engine_url):
    with Store(engine_url) as store:
        ids = [grown(store, store.sessions.create().id, 30) for _ in range(20)]
        put(store, "thread", 30)

    def work(say: Any) -> None:
        with pytest.MonkeyPatch.context() as patch, Store(engine_url) as store:
            patch.setattr(deletion, "ROWS", 20)
            say("begun")
            policy = RetentionPolicy(sessions_idle=timedelta(0), checkpoints_keep_last=1)
            store.prune(policy, progress=lambda _, rows: say(f"{rows}"))
            say("done")

    for moment in range(6) if FULL else (1, 4):
        with killed_child(work) as says:
            for _ in range(1 + moment):
                says.readline()
        with Store(engine_url) as store:
            for session in store.sessions.list():
                assert len(store.messages.history(session.id, None)) == 30
                assert store.sessions.verify(session.id).agree
            latest = store.checkpoints.latest("thread")
            assert latest.values["messages"] == [{"n": n} for n in range(29)]
    with Store(engine_url) as store:
        policy = RetentionPolicy(sessions_idle=timedelta(0), checkpoints_keep_last=1)
        assert store.sessions.count() < len(ids)
        store.prune(policy)
        assert rows_of(store).keys() <= {
            "checkpoint_threads",
            "checkpoint_values",
            "checkpoints",
        }
        assert rows_of(store)["checkpoints"] == 1


def test_pauses_give_others_their_turn_where_writers_wait_for_each_other(
    place, timed, clock, monkeypatch
):
    monkeypatch.setattr(listing, "SHORTEST_PAUSE", 0.05)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    for module, instead in (time, slept.append), (asyncio, sleep):
        patched = SimpleNamespace(**{**vars(module), "sleep": instead})
        monkeypatch.setattr(f"agentstore.execution.unit.{module.__name__}", patched)
    monkeypatch.setattr(pruning, "ROWS", 8)
    much(timed, clock)
    timed.prune(RetentionPolicy(finished_tasks=DAY), reclaim=False)
    assert len(slept) == (4 if place.driver.engine == "sqlite" else 0)


# --- What else it promises -------------------------------------------------------------------


def test_an_empty_policy_is_refused_before_anything_is_asked(store):
    with pytest.raises(InvalidInput, match="no rule"):
        store.prune(RetentionPolicy())
    with pytest.raises(InvalidInput, match="RetentionPolicy"):
        store.prune({"tool_logs": DAY})


@on(lambda driver: not driver.asynchronous)
def test_inside_its_own_transaction_a_store_does_not_prune(place):
    with (
        place.open() as store,
        store.transaction(),
        pytest.raises(TransactionMisuse),
    ):
        store.prune(RetentionPolicy(tool_logs=DAY))


@on(lambda driver: driver.asynchronous)
def test_inside_its_own_transaction_a_store_of_coroutines_does_not_prune(place):
    async def use() -> None:
        async with AsyncStore(place.driver.url(place.url)) as store, store.transaction():
            with pytest.raises(TransactionMisuse):
                await store.prune(RetentionPolicy(tool_logs=DAY))

    asyncio.run(use())


def test_a_dry_run_waits_for_no_writer_and_reads_a_store_that_only_reads(place, timed, clock):
    much(timed, clock)
    with (
        place.open(clock=clock, busy_timeout=0, read_only=True) as other,
        timed.transaction() as tx,
    ):
        tx.sessions.create()
        foreseen = other.prune(EVERYTHING, dry_run=True)
    assert foreseen.rows == timed.prune(EVERYTHING).rows


def test_progress_is_told_rule_by_rule(timed, clock):
    much(timed, clock)
    told: list[tuple[str, int]] = []
    report = timed.prune(EVERYTHING, progress=lambda rule, rows: told.append((rule, rows)))
    last = dict(told)
    assert sum(last.values()) == report.total
    assert [*last] == [*report.rules]


def test_blobs_go_when_all_who_attached_them_do(timed, clock):
    old = [timed.sessions.create().id for _ in range(3)]
    for session in old:
        message = timed.messages.save(session, "user", "look").id
        for data in (b"shared by the old", b"shared by all", session.encode()):
            timed.attachments.add(message, data, "text/plain")
    clock.now += 2 * DAY
    young = timed.sessions.create().id
    message = timed.messages.save(young, "user", "look").id
    timed.attachments.add(message, b"shared by all", "text/plain")
    report = prune(timed, sessions_idle=DAY)
    assert report.rows["blobs"] == 4
    assert report.rows["attachments"] == 9


def test_large_attachments_go_a_few_at_a_time(timed, clock, monkeypatch):
    monkeypatch.setattr(deletion, "ROWS", 64)
    monkeypatch.setattr(listing, "ALONE", 1)
    session = timed.sessions.create().id
    message = timed.messages.save(session, "user", "look").id
    for number in range(6):
        timed.attachments.add(message, bytes([number]) * 700_000, "image/png")
    clock.now += 2 * DAY
    with transactions(timed) as deleted:
        report = timed.prune(RetentionPolicy(sessions_idle=DAY))
    assert report.rows["blobs"] == 6
    # 64 rows of 16 KB are worth one of them.
    assert len([count for count in deleted if count]) == 6


@in_the_process
def test_free_space_of_a_file_is_given_back(place):
    clock = Clock()
    path = Path(place.url.removeprefix("sqlite:///"))
    with place.open(clock=clock) as store:
        session = store.sessions.create().id
        for _ in range(40):
            store.tool_logs.log(session, "search", output="x" * 50_000)
        kept = store.tool_logs.log(store.sessions.create().id, "search", output="y" * 50_000).id
        store.prune(RetentionPolicy(sessions_idle=DAY))
        before = path.stat().st_size
        clock.now += 2 * DAY
        store.messages.save(store.sessions.create().id, "user", "hello")
        report = store.prune(RetentionPolicy(tool_logs=DAY), reclaim=False)
        assert (report.freed_bytes, report.rows) == (0, {"tool_logs": 41})
        assert path.stat().st_size >= before
        report = store.prune(RetentionPolicy(tool_logs=DAY))
        assert report.freed_bytes > 1_500_000
        assert path.stat().st_size < before - 1_500_000
        assert Path(f"{path}-wal").stat().st_size == 0
        assert store.tool_logs.find(kept) is None
        with engine_of(store).connect() as connection:
            if not place.driver.name.startswith("aio"):
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"


@on_a_server
def test_tables_that_lost_rows_are_vacuumed(place):
    clock = Clock()
    with place.open(clock=clock) as store:
        session = store.sessions.create().id
        for _ in range(20):
            store.tool_logs.log(session, "search", output=os.urandom(4_000).hex())
        clock.now += 2 * DAY
        assert store.prune(RetentionPolicy(tool_logs=DAY)).rows == {"tool_logs": 20}
    engine = create_engine(place.url)
    with engine.connect() as connection:
        size = connection.execute(text("SELECT pg_relation_size('tool_logs')")).scalar_one()
    engine.dispose()
    assert size == 0


@on_a_server
def test_pruning_works_in_a_prefixed_schema_too(place, clock):
    migrations.upgrade(place.url, names=Names("order", "my_"))
    with place.open(clock=clock, schema="order", table_prefix="my_") as store:
        much(store, clock)
        foreseen = store.prune(EVERYTHING, dry_run=True)
        assert store.prune(EVERYTHING).rows == foreseen.rows
