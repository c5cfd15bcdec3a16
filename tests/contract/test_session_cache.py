"""With a cache, sessions are read as they are in the database, and their documents seldom."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from sqlalchemy import event

from agentstore.errors import InvalidInput, NotFound, StaleSession
from agentstore.execution.unit import SessionCache
from tests.contract.test_sessions import at_once
from tests.programs.probes import engine_of
from tests.strategies import exact, json_values

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.fixture
def cached(place: Any) -> Iterator[Any]:
    """A store with a cache, by each driver."""
    with place.open(session_cache=100) as store:
        yield store


@contextmanager
def selects(store: Any) -> Iterator[list[bool]]:
    """Collect the SELECTs of sessions, each as whether it reads the documents."""
    engine = engine_of(store)
    seen: list[bool] = []

    def keep(_c: Any, _k: Any, sql: str, *_: Any) -> None:
        if sql.startswith("SELECT") and "session_data" in sql:
            seen.append("session_data.state" in sql)

    event.listen(engine, "before_cursor_execute", keep)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", keep)


def test_documents_are_read_once_for_each_version(cached):
    session = cached.sessions.create(state={"n": 0}, metadata={"a": 1}, config={"b": 2})
    with selects(cached) as seen:
        assert cached.sessions.get(session.id) == session
        assert seen == [True]
        for _ in range(3):
            assert cached.sessions.get(session.id) == session
            assert cached.sessions.find(session.id) == session
        assert seen == [True, *[False] * 6]
    changed = cached.sessions.update(session.id, state={"n": 1})
    with selects(cached) as seen:
        assert cached.sessions.get(session.id) == changed
        assert cached.sessions.get(session.id) == changed
        assert seen == [False, True, False]


def test_without_the_setting_nothing_is_kept(store, session):
    with selects(store) as seen:
        for _ in range(3):
            store.sessions.get(session.id)
        assert seen == [True] * 3


def test_what_a_message_changes_is_new_though_the_documents_are_not_read(cached):
    session = cached.sessions.create(state={"n": 0}, title="t")
    cached.sessions.get(session.id)
    cached.messages.save(session.id, "user", "hello", token_count=5, cost="0.5")
    renamed = cached.sessions.rename(session.id, "u")
    cached.sessions.update(session.id, ttl=timedelta(hours=1))
    with selects(cached) as seen:
        read = cached.sessions.get(session.id)
        assert seen == [False]
    assert (read.message_count, read.total_tokens, read.title) == (1, 5, renamed.title)
    assert read.ttl == timedelta(hours=1)
    asked = cached.sessions.wait_for_user(session.id, "which?")
    assert cached.sessions.get(session.id) == asked
    assert asked.question == "which?"


def test_what_another_store_writes_is_read_at_once(place, cached):
    session = cached.sessions.create(state=0)
    with place.open(session_cache=100) as other:
        for n in range(1, 6):
            written = other.sessions.update(session.id, state=n, metadata={"n": n})
            assert cached.sessions.get(session.id) == written
            assert other.sessions.find(session.id) == written
        other.sessions.delete(session.id)
        assert cached.sessions.find(session.id) is None
        with pytest.raises(NotFound):
            cached.sessions.get(session.id)


def test_the_version_decides_also_where_no_clock_moves(place):
    with (
        place.open(clock=lambda: NOON, session_cache=10) as reader,
        place.open(clock=lambda: NOON) as writer,
    ):
        session = writer.sessions.create(state=0).id
        for n in range(1, 6):
            reader.sessions.get(session)
            written = writer.sessions.update(session, state=n)
            assert reader.sessions.get(session) == written
        asked = writer.sessions.wait_for_user(session, "which?")
        assert reader.sessions.get(session) == asked


def test_what_is_rolled_back_is_never_read_though_its_version_comes_again(place, cached):
    session = cached.sessions.create(state="first")
    cached.sessions.get(session.id)
    with place.open() as other:
        for reader in (cached, other):
            with pytest.raises(ZeroDivisionError), cached.transaction() as tx:
                tx.sessions.update(session.id, state="never")
                assert tx.sessions.get(session.id).state == "never"
                assert tx.sessions.find(session.id).version == 2
                raise ZeroDivisionError
            assert reader.sessions.get(session.id) == session
            with pytest.raises(ZeroDivisionError):
                cached.run(lambda tx: [tx.sessions.update(session.id, state="no"), 1 / 0])
            assert reader.sessions.get(session.id) == session
    second = cached.sessions.update(session.id, state="second")
    assert (second.version, second.state) == (2, "second")
    assert cached.sessions.get(session.id) == second


def test_a_transaction_reads_what_it_has_written_itself(cached):
    session = cached.sessions.create(state="first")
    cached.sessions.get(session.id)
    with cached.transaction() as tx:
        assert tx.sessions.get(session.id) == session
        changed = tx.sessions.update(session.id, state="second")
        assert tx.sessions.get(session.id) == changed
    with selects(cached) as seen:
        assert cached.sessions.get(session.id) == changed
        assert seen == [False, True], "a transaction must not fill the cache"


def test_who_changes_what_was_read_changes_nothing_for_others(cached):
    state = {"list": [1, {"a": [2]}], "text": "x"}
    session = cached.sessions.create(state=state, metadata={"m": [1]}, config={"c": [1]})
    for _ in range(3):
        read = cached.sessions.get(session.id)
        assert read.state == state
        assert (read.metadata, read.config) == ({"m": [1]}, {"c": [1]})
        read.state["list"][1]["a"].append("mine")
        read.state.clear()
        read.metadata["m"].append("mine")
        read.config["c"].append("mine")


def test_a_session_that_is_made_anew_under_the_same_id_is_another(place, cached):
    for state in ("first", "second"):
        assert cached.sessions.create(id="s", state=state)
        assert cached.sessions.get("s").state == cached.sessions.get("s").state == state
        cached.sessions.delete("s")
        assert cached.sessions.find("s") is None
    with place.open() as other:
        for state in ("third", "fourth"):
            other.sessions.create(id="s", state=state)
            assert cached.sessions.get("s").state == cached.sessions.get("s").state == state
            other.sessions.delete("s")
    user = cached.users.create("Alice")
    for state in ("fifth", "sixth"):
        cached.sessions.create(cached.users.create("Bob", id=state).id, id="s", state=state)
        assert cached.sessions.get("s").state == state
        cached.users.delete(state)
    assert cached.users.get(user.id) == user


def test_what_this_store_deletes_is_forgotten_though_no_clock_moves(place):
    """Row number, version and times are all the same again: only forgetting tells them apart."""
    deletions = [
        lambda s: s.sessions.delete("s"),
        lambda s: s.users.delete("u"),
        lambda s: s.sessions.delete_expired(),
        lambda s: s.run(lambda tx: tx.sessions.delete("s")),
    ]
    now = NOON
    with place.open(clock=lambda: now, session_cache=10) as store:
        for n, deletion in enumerate(deletions):
            now = NOON
            owner = store.users.create("Alice", id="u").id if n == 1 else None
            store.sessions.create(owner, id="s", state=n, ttl=timedelta(seconds=1))
            assert store.sessions.get("s").state == store.sessions.get("s").state == n
            now = NOON + timedelta(seconds=1)
            deletion(store)
        with store.transaction() as tx:
            now = NOON
            tx.sessions.create(id="s", state="last")
        assert store.sessions.get("s").state == "last"
        with store.transaction() as tx:
            tx.sessions.delete("s")
        store.sessions.create(id="s", state="very last")
        assert store.sessions.get("s").state == "very last"


def test_ids_that_are_none_are_refused_with_a_cache_as_without(cached):
    for id in (5, None, ["s"], b"s"):
        with pytest.raises(InvalidInput, match="must be a str"):
            cached.sessions.get(id)
    with pytest.raises(NotFound):
        cached.sessions.get("nobody")
    assert cached.sessions.find("nobody") is None


def test_many_who_read_and_write_at_once_read_nothing_that_never_was(place, cached):
    session = cached.sessions.create(state=1, metadata={"version": 1}).id
    with place.open() as other:

        def write(store: Any) -> int:
            for _ in range(15):
                try:
                    read = store.sessions.get(session)
                    new = read.version + 1
                    store.sessions.update(
                        session,
                        state=new,
                        metadata={"version": new},
                        expected_version=read.version,
                    )
                except StaleSession:
                    continue
            return 0

        def read(store: Any) -> int:
            last = 0
            for _ in range(40):
                record = store.sessions.get(session)
                assert (record.state, record.metadata) == (
                    record.version,
                    {"version": record.version},
                )
                assert record.version >= last, "a version that was there is gone again"
                last = record.version
            return last

        work = [write, read, read, write, read, read]
        at_once(6, lambda n: work[n](other if n == 3 else cached))
    assert cached.sessions.get(session).state == cached.sessions.get(session).version


# --- The cache itself --------------------------------------------------------------------------


def test_it_keeps_those_that_were_read_last():
    cache = SessionCache(2)
    for name in ("a", "b"):
        cache.remember(name, 1, ({}, {}, name))
    assert cache.find("a", 1) == ({}, {}, "a")
    cache.remember("c", 1, ({}, {}, "c"))
    assert len(cache) == 2
    assert not cache.knows("b")
    assert cache.find("b", 1) is None
    assert cache.find("a", 1)
    assert cache.find("c", 1)


def test_it_gives_just_the_version_that_is_asked_for():
    cache = SessionCache(2)
    cache.remember("a", (1, 1), ({}, {}, "old"))
    assert cache.find("a", (1, 2)) is None
    cache.remember("a", (1, 2), ({}, {}, "new"))
    assert cache.find("a", (1, 1)) is None
    assert cache.find("a", (1, 2)) == ({}, {}, "new")
    cache.forget(["a", "nothing"])
    assert len(cache) == 0


@given(json_values(), json_values())
def test_documents_come_back_equal_and_of_the_same_types(state, inner):
    cache = SessionCache(1)
    documents = ({"x": state}, {"y": inner}, state)
    kept = copy.deepcopy(documents)
    cache.remember("a", 1, documents)
    found = cache.find("a", 1)
    assert exact(found) == exact(kept)


def test_threads_may_use_it_together():
    cache = SessionCache(8)
    failures: list[object] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - which session is next
        barrier.wait()
        for _ in range(2_000):
            name, version = f"s{rng.randrange(16)}", rng.randrange(3)
            match rng.randrange(3):
                case 0:
                    cache.remember(name, version, ({}, {}, [name, version]))
                case 1:
                    cache.forget([name])
                case _:
                    found = cache.find(name, version)
                    if found is not None and found[2] != [name, version]:
                        failures.append(found)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert failures == []
    assert len(cache) <= 8
