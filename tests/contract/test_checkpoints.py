"""Checkpoints: what was put reads back, whatever was put, forked, rewound and pruned beside it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import OperationalError
from sqlalchemy import Engine, create_engine, event, func, select, text
from sqlalchemy.exc import DBAPIError

from agentstore import Store, doctor
from agentstore.errors import (
    AgentStoreError,
    AlreadyExists,
    DatabaseUnreachable,
    InvalidCursor,
    InvalidInput,
    InvalidJson,
    LimitOutOfRange,
    NaiveDatetime,
    NotFound,
    WrongOwner,
    WrongThread,
)
from agentstore.execution.unit import Recent
from agentstore.records.work import Items
from agentstore.repositories.checkpoints import threads
from agentstore.retention import RetentionPolicy
from agentstore.schema import tables
from tests.conftest import FULL, on
from tests.contract.clocks import NOON, at_once, paged
from tests.programs.probes import sent
from tests.strategies import exact, json_values, keys, texts


def message(number: int, text: str = "m") -> dict[str, Any]:
    return {"role": "user", "content": f"{text}{number}"}


def history(length: int) -> dict[str, Any]:
    return {"messages": [message(number) for number in range(length)]}


def listed(store: Any, thread: str, namespace: str = "") -> list[Any]:
    return paged(store.checkpoints.list, thread, namespace=namespace, limit=3)


def rows(place: Any, name: str) -> list[Any]:
    """Read a table behind the store's back."""
    engine = create_engine(place.url)
    with engine.connect() as connection:
        found = connection.execute(select(tables()[name])).all()
    engine.dispose()
    return list(found)


def stored_bytes(place: Any) -> int:
    return sum(len(row.data) for row in rows(place, "checkpoint_values"))


def require_no_garbage(place: Any) -> None:
    """All bytes that are stored are of a version that a checkpoint holds, but for first pieces."""
    pieces = rows(place, "checkpoint_values")
    needed: dict[tuple[str, int], int] = {}
    for point in rows(place, "checkpoints"):
        for line, length in (point.lines or {}).items():
            at = (point.thread_id, int(line))
            needed[at] = max(needed.get(at, 0), length)
    for piece in pieces:
        end = piece.start + len(piece.data) if piece.start else 0
        assert end <= needed[piece.thread_id, piece.line], piece


# --- Putting and reading ----------------------------------------------------------------------


def test_a_checkpoint_comes_back_as_it_was_put(store):
    user = store.users.create("Alice")
    session = store.sessions.create(user.id)
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    values = {
        "messages": [message(1), message(2)], "state": {"b": 1, "a": [1e22, -0.0]},
        "tools_result": None, "image": b"\x00\xff", "empty": [], "nothing": b"",
    }  # fmt: skip
    put = store.checkpoints.put(
        "thread",
        values,
        checkpoint_id="mine",
        step=7,
        tags=["milestone", "milestone", "b"],
        summary="so far",
        next_node="tools",
        metadata={"source": "loop", "n": 1.0},
        run_id="run-1",
        created_at=at,
        session_id=session.id,
        user_id=user.id,
    )
    got = store.checkpoints.get("mine")
    assert {name: got.values[name] for name in values} == values
    assert exact(got.values["state"]) == exact(values["state"])
    assert (got.id, got.thread_id, got.namespace) == ("mine", "thread", "")
    assert (got.parent_id, got.step, got.run_id) == (None, 7, "run-1")
    assert (got.tags, got.summary, got.next_node) == (("milestone", "b"), "so far", "tools")
    assert exact(got.metadata) == '{"source": "loop", "n": 1.0}'
    assert got.created_at == put.created_at == at
    assert got.created_at.tzinfo is UTC
    assert [getattr(put, name) for name in ("id", "tags", "step", "metadata")] == [
        getattr(got, name) for name in ("id", "tags", "step", "metadata")
    ]
    assert store.checkpoints.find("mine", "thread") == got
    assert store.checkpoints.latest("thread") == got
    [thread] = store.checkpoints.threads(user_id=user.id, session_id=session.id)
    assert (thread.id, thread.user_id, thread.session_id) == ("thread", user.id, session.id)
    assert thread.latest == put == listed(store, "thread")[0]


def test_what_is_not_there_is_none_or_refused(store):
    store.checkpoints.put("thread", {}, "one")
    assert store.checkpoints.get("one").values == {}
    for find in (
        lambda: store.checkpoints.find("two"),
        lambda: store.checkpoints.find("one", "elsewhere"),
        lambda: store.checkpoints.find("one", "thread", "inner"),
        lambda: store.checkpoints.latest("elsewhere"),
        lambda: store.checkpoints.latest("thread", "inner"),
    ):
        assert find() is None
    assert store.checkpoints.list("elsewhere").items == ()
    assert store.checkpoints.tree("elsewhere").roots == ()
    assert store.checkpoints.writes("elsewhere", "one") == ()
    with pytest.raises(NotFound):
        store.checkpoints.get("one", "elsewhere")


@settings(max_examples=25 if FULL else 12)
@given(
    values=st.dictionaries(
        keys(), json_values() | st.lists(json_values(3)) | st.binary(), max_size=4
    ),
    summary=texts(),
    metadata=st.dictionaries(texts(2), json_values(3), max_size=2),
)
def test_any_values_come_back_exactly(store, values, summary, metadata):
    thread = str(uuid.uuid4())
    store.checkpoints.put(thread, values, summary=summary, metadata=metadata)
    store.checkpoints.put(thread, {**values, "messages": [1]})
    first, second = listed(store, thread)[::-1]
    for checkpoint, expected in ((first, values), (second, {**values, "messages": [1]})):
        got = store.checkpoints.get(checkpoint.id).values
        assert got == expected
        for name, value in expected.items():
            assert type(got[name]) is type(value)
            if not isinstance(value, bytes):
                assert exact(got[name]) == exact(value)
    assert (first.summary, exact(first.metadata)) == (summary, exact(metadata))


def test_without_a_parent_it_is_the_latest_and_without_a_step_one_more(store):
    put = store.checkpoints.put
    first = put("thread", {})
    second = put("thread", {})
    far = put("thread", {}, step=40)
    side = put("thread", {}, parent_id=first.id)
    back = put("thread", {}, step=2)
    after = put("thread", {})
    root = put("thread", {}, parent_id="")
    assert [c.step for c in (first, second, far, side, back, after, root)] == [
        0, 1, 40, 1, 2, 41, 0,
    ]  # fmt: skip
    assert [c.parent_id for c in (first, second, far, side, back, after, root)] == [
        None, first.id, second.id, first.id, far.id, far.id, None,
    ]  # fmt: skip


def test_a_restart_goes_on_counting(place):
    with place.open() as store:
        ids = [store.checkpoints.put("thread", history(n)).id for n in range(3)]
        store.checkpoints.prune("thread", keep_last=1)
    with place.open() as store:
        fresh = store.checkpoints.put("thread", history(4))
        assert (fresh.step, fresh.parent_id) == (3, ids[2])
        assert store.checkpoints.get(fresh.id).values == history(4)
        assert store.checkpoints.get(ids[2]).values == history(2)


def test_lists_go_down_in_steps_and_threads_by_the_last_put_whatever_the_clock_says(place):
    clock = iter(NOON - timedelta(days=n) for n in range(99))
    with place.open(clock=lambda: next(clock)) as store:
        for thread in ("a", "b", "c"):
            for step in (3, 1, 2):
                store.checkpoints.put(thread, {}, f"{thread}{step}", step=step)
        store.checkpoints.put("a", {}, "a0", step=0, created_at=NOON - timedelta(days=900))
        for thread in ("b", "c"):
            assert [c.step for c in listed(store, thread)] == [3, 2, 1]
        seen = [(t.id, t.latest.id) for t in paged(store.checkpoints.threads, limit=2)]
        assert seen == [("a", "a3"), ("c", "c3"), ("b", "b3")]


def test_of_several_with_the_highest_step_the_latest_is_the_last_one_put(store):
    store.checkpoints.put("thread", {}, "one", step=5)
    store.checkpoints.put("thread", {}, "two", step=5)
    store.checkpoints.put("thread", {}, "low", step=1)
    assert store.checkpoints.latest("thread").id == "two"
    assert store.checkpoints.threads().items[0].latest.id == "two"


def test_what_came_from_a_checkpoint_is_listed_and_nothing_else(store):
    put, listed = store.checkpoints.put, store.checkpoints.list
    for space in ("", "inner"):
        put("a", {}, "root", namespace=space)
        for n in range(3):
            put("a", {"n": n}, f"{n}", parent_id="root", namespace=space)
        put("a", {}, "grandchild", parent_id="0", namespace=space)
    page = listed("a", namespace="inner", parent_id="root", limit=2, values=True)
    assert [(c.id, c.namespace, c.values["n"]) for c in page] == [
        ("2", "inner", 2),
        ("1", "inner", 1),
    ]
    rest = listed("a", namespace="inner", parent_id="root", limit=2, cursor=page.next_cursor)
    assert [c.id for c in rest] == ["0"]
    assert listed("a", parent_id="nobody").items == ()
    with pytest.raises(InvalidCursor):
        listed("a", namespace="inner", parent_id="0", cursor=page.next_cursor)
    for wrong in ({"thread_id": None}, {"namespace": None}):
        with pytest.raises(InvalidInput, match="Pass both"):
            listed(**{"thread_id": "a", "parent_id": "root"} | wrong)


def test_threads_are_those_of_the_user_or_session_that_is_asked_for(store):
    alice, bob = store.users.create("Alice"), store.users.create("Bob")
    session = store.sessions.create(alice.id)
    store.checkpoints.put("hers", {}, user_id=alice.id)
    store.checkpoints.put("session's", {}, session_id=session.id)
    store.checkpoints.put("his", {}, user_id=bob.id)
    store.checkpoints.put("nobody's", {})
    assert [t.id for t in store.checkpoints.threads(user_id=alice.id)] == ["hers"]
    assert [t.id for t in store.checkpoints.threads(session_id=session.id)] == ["session's"]
    assert len(store.checkpoints.threads()) == 4
    assert [t.id for t in store.checkpoints.threads("hers")] == ["hers"]
    assert store.checkpoints.threads("nobody").items == ()
    assert store.checkpoints.threads("hers", user_id=bob.id).items == ()
    page = store.checkpoints.threads(limit=1)
    with pytest.raises(InvalidCursor):
        store.checkpoints.threads(user_id=bob.id, cursor=page.next_cursor)


def test_a_thread_stays_with_its_owner_and_one_without_gets_the_first_that_is_said(store):
    alice, bob = store.users.create("Alice"), store.users.create("Bob")
    session = store.sessions.create(alice.id)
    store.checkpoints.put("thread", {}, "first")
    store.checkpoints.put("thread", {}, user_id=alice.id)
    store.checkpoints.put("thread", {}, user_id=alice.id)
    store.checkpoints.put("thread", {})
    with pytest.raises(WrongOwner) as caught:
        store.checkpoints.put("thread", {}, user_id=bob.id)
    assert (caught.value.thread_id, caught.value.owner) == ("thread", "user_id")
    with pytest.raises(WrongOwner):
        store.checkpoints.put_writes("thread", "first", "t", [("c", 1)], user_id=bob.id)
    assert len(listed(store, "thread")) == 4
    store.checkpoints.put("thread", {}, session_id=session.id)
    assert store.checkpoints.threads().items[0].session_id == session.id


def test_a_thread_is_never_one_users_in_a_session_of_another(store):
    alice, bob = store.users.create("Alice").id, store.users.create("Bob").id
    session = store.sessions.create(alice).id
    store.checkpoints.put("in a session", {}, "one", session_id=session)
    store.checkpoints.put("of a user", {}, "two", user_id=bob)
    put, put_writes = store.checkpoints.put, store.checkpoints.put_writes
    for call, owner in (
        (partial(put, "in a session", {}, user_id=bob), "user_id"),
        (partial(put, "of a user", {}, session_id=session), "session_id"),
        (partial(put, "new", {}, user_id=bob, session_id=session), "session_id"),
        (partial(put_writes, "in a session", "one", "t", [("c", 1)], user_id=bob), "user_id"),
        (partial(put_writes, "n", "o", "t", [("c", 1)], user_id=bob, session_id=session), None),
    ):
        with pytest.raises(WrongOwner) as caught:
            call()
        assert owner in (None, caught.value.owner)
    assert store.scoped(bob).checkpoints.latest("in a session") is None
    assert store.scoped(alice).checkpoints.latest("in a session").id == "one"
    store.users.delete(alice)
    assert store.checkpoints.latest("of a user").id == "two"
    assert [thread.id for thread in store.checkpoints.threads()] == ["of a user"]


def test_deleting_a_user_or_a_session_takes_the_threads_along_and_counts_them(place, store):
    alice, bob = store.users.create("Alice"), store.users.create("Bob")
    session = store.sessions.create(alice.id)
    store.checkpoints.put("bob's", history(3), user_id=bob.id)
    for thread, owner in (("user's", {"user_id": alice.id}), ("s", {"session_id": session.id})):
        store.checkpoints.put(thread, history(3), f"first of {thread}", **owner)
        store.checkpoints.put(thread, {"messages": [*history(3)["messages"][:2], "changed"]})
        store.checkpoints.put_writes(thread, f"first of {thread}", "t", [("c", 1)])
    one = {
        "checkpoint_threads": 1,
        "checkpoint_values": 2,
        "checkpoint_writes": 1,
        "checkpoints": 2,
    }
    receipt = store.sessions.delete(session.id).rows
    assert {table: n for table, n in receipt.items() if table.startswith("checkpoint")} == one
    receipt = store.users.delete(alice.id).rows
    assert {table: n for table, n in receipt.items() if table.startswith("checkpoint")} == one
    assert [thread.id for thread in store.checkpoints.threads()] == ["bob's"]
    assert store.checkpoints.latest("bob's").values == history(3)
    assert len(rows(place, "checkpoint_values")) == 1


def test_small_values_are_in_the_row_of_their_checkpoint_and_others_on_lines(place, store):
    small = {"n": 1, "text": "x" * 500, "bytes": b"x" * 512, "object": {"a": None}}
    others = {"long": "x" * 511, "list": [], "items": Items(b"1", 1)}
    store.checkpoints.put("thread", small | others, "one")
    assert store.checkpoints.get("one").values == small | others
    assert [*store.checkpoints.get("one").values] == sorted(small | others)
    assert [len(row.lines) for row in rows(place, "checkpoints")] == [len(others)]
    store.checkpoints.put("thread", {"n": 2}, "two", inherit=["text", "long"])
    both = {"n": 2, "text": "x" * 500, "long": "x" * 511}
    assert store.checkpoints.get("two").values == both
    assert [each.values for each in store.checkpoints.list("thread", values=True)] == [
        both,
        small | others,
    ]
    fork = store.checkpoints.fork("two", to_thread="other")
    assert store.checkpoints.get(fork.id).values == both
    store.checkpoints.put("thread", {"n": 3, "text": "y" * 600, "long": 0}, "two")
    assert store.checkpoints.get("two").values == {"n": 3, "text": "y" * 600, "long": 0}
    assert store.checkpoints.get(fork.id).values == both
    require_no_garbage(place)


def test_a_checkpoint_holds_no_more_than_a_page_of_small_values_however_many_are_inherited(
    place, store
):
    expected: dict[str, str] = {}
    for step in range(4):
        new = {f"{step} {n}": f"{n}" * 400 for n in range(4)}
        store.checkpoints.put("thread", new, inherit=[*expected])
        expected |= new
    assert store.checkpoints.latest("thread").values == expected
    held = [row.entries for row in rows(place, "checkpoints")]
    on_lines = [len(row.lines or ()) for row in rows(place, "checkpoints")]
    assert [len(each) <= 4_300 + 60 * n for each, n in zip(held, on_lines, strict=True)] == [
        True
    ] * 4
    assert len(held[-1]) > 3_600


def test_a_thread_that_was_put_into_is_listed_first_also_if_it_was_so_before(store):
    for thread in ("one", "two", "two", "one", "one", "two"):
        store.checkpoints.put(thread, {"n": 1})
        assert store.checkpoints.threads().items[0].id == thread
    store.checkpoints.put_writes("one", "to come", "task", [("channel", 1)])
    assert [each.id for each in store.checkpoints.threads()] == ["one", "two"]


GONE = ("the parent goes", "all go", "the parent again, with nothing")
MEANWHILE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda c: None,
    "another child": lambda c: c.put("thread", {"list": [1, 2, 3], "n": 7}, parent_id="one"),
    "a child without values": lambda c: c.put("thread", {}, parent_id="one"),
    "the parent again": lambda c: c.put(
        "thread", {name: [1] for name in c.get("one").values}, "one"
    ),
    "the parent again, with one other value": lambda c: c.put(
        "thread", {**c.get("one").values, "settings": 2}, "one"
    ),
    "the parent again, with nothing": lambda c: c.put("thread", {}, "one"),
    "its own id": lambda c: c.put("thread", {"n": 9}, "two", parent_id="one"),
    "its id in another thread": lambda c: c.put("other", {"n": 9}, "two"),
    "the parent goes": lambda c: [c.put("thread", {}, "new"), c.delete_before("thread", 2)],
    "all go": lambda c: c.delete_thread("thread"),
    "all go and come again": lambda c: [
        c.delete_thread("thread"),
        c.put("thread", {"n": 5, "list": [5] * 9, "settings": 5, "long": [5] * 600}, "one"),
    ],
    "another thread": lambda c: c.put("another", {"n": 1}),
    "writes": lambda c: c.put_writes("thread", "one", "task", [("channel", 1)]),
}


@on(lambda driver: driver.name.startswith("psycopg"))
@pytest.mark.long(
    but=["*-on lines-*", "nothing-small-*", "another child-small-*", "all go-small-*"]
)
@pytest.mark.parametrize("on_lines", [False, True], ids=["small", "on lines"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_put_goes_on_from_what_the_thread_holds_when_it_is_written(
    place, meanwhile, on_lines, monkeypatch
):
    reading = threads.read_parent
    more = {"list": [1, 2], "long": "x" * 600} if on_lines else {}
    new = {"n": 1, "list": [1, 2, 3, 4]} if on_lines else {"n": 1}
    inherited = ["settings", "long"] if on_lines else ["settings"]

    def read_parent(*given: Any) -> Any:
        found = reading(*given)
        monkeypatch.undo()
        with Store(place.url) as others, others.transaction() as tx:
            MEANWHILE[meanwhile](tx.checkpoints)
        return found

    def put() -> Any:
        return store.checkpoints.put("thread", new, "two", parent_id="one", inherit=inherited)

    with place.open() as store:
        first = {"n": 0, "settings": "as they are", **more}
        store.checkpoints.put("thread", first, "one", parent_id="")
        monkeypatch.setattr(threads, "read_parent", read_parent)
        if meanwhile in (*GONE, "its id in another thread"):
            with pytest.raises(NotFound if meanwhile in GONE else WrongThread):
                put()
            return
        put()
        parent = store.checkpoints.get("one").values
        expected = {**new, **{name: parent[name] for name in inherited}}
        assert store.checkpoints.get("two").values == expected
    require_no_garbage(place)
    found = {each.check for each in doctor.examine(place.url, deep=True)}
    assert found.isdisjoint({"bytes", "orphans", "rows"})


def go_on(checkpoints: Any, item: Any) -> None:
    """Put a child that goes on along the line of its parent's list."""
    grown = [*checkpoints.get("one").values.get("list", []), item]
    checkpoints.put("thread", {"list": grown}, "side", parent_id="one", inherit=["long"])


SINCE = {
    **MEANWHILE,
    "the parent goes": lambda c: c.delete("thread", ["one"]),
    "a child that goes on": lambda c: go_on(c, 5),
    # It merges the last pieces of the line, which stay one piece.
    "a large child that goes on, and goes": lambda c: [
        go_on(c, "z" * 9000),
        c.delete("thread", ["side"]),
    ],
    "all go and come again as they were": lambda c: [
        c.copy_thread("thread", "copy"),
        c.delete_thread("thread"),
        c.copy_thread("copy", "thread"),
    ],
}


@pytest.mark.long(but=["sqlite3-*-on lines", "psycopg-*-on lines"])
@pytest.mark.parametrize("on_lines", [False, True], ids=["small", "on lines"])
@pytest.mark.parametrize("since", SINCE)
def test_a_put_goes_on_from_what_the_thread_holds_and_not_from_what_it_held_at_the_last_put(
    place, since, on_lines
):
    space = "langgraph" if since.endswith("as they were") else ""
    more = {"list": [1, "x" * 200, "x" * 200], "long": "x" * 600} if on_lines else {"long": 1}

    def do(others: Any) -> None:
        with others.transaction() as tx:
            SINCE[since](tx.checkpoints)

    def put(id: str, values: dict[str, Any], parent: str, **how: Any) -> Any:
        return store.checkpoints.put("thread", values, id, parent, namespace=space, **how)

    with place.open() as store, Store(place.url) as others:
        values = {"n": 0, "settings": "as they are", **more}
        put("zero", values, "")
        before = "zero"
        for n, item in enumerate(["x" * 100, "x" * 100] if on_lines else []):
            values = {**values, "list": [*values["list"], item]}
            before = put(f"before {n}", values, before).id
        if on_lines:
            values = {**values, "list": [*values["list"], 2]}
        put("one", {**values, "n": 1}, before)
        do(others)
        new = {"n": 2, "list": [*values.get("list", []), "y" * 40, 3]}
        inherited = ["settings", "long"]
        if since in (*GONE, "its id in another thread"):
            with pytest.raises(NotFound if since in GONE else WrongThread):
                put("two", new, "one", inherit=inherited)
            return
        put("two", new, "one", inherit=inherited)
        parent = store.checkpoints.get("one", "thread", space).values
        expected = {**new, **{name: parent[name] for name in inherited}}
        for reader in (store, others):
            assert reader.checkpoints.get("two", "thread", space).values == expected
            assert reader.checkpoints.threads().items[0].id == "thread"
        put("three", expected | {"n": 3}, "two")
        put("beside", expected | {"list": [*new["list"], 4]}, "two")
        for id, changed in (("three", {"n": 3}), ("beside", {"list": [*new["list"], 4]})):
            assert store.checkpoints.get(id, "thread", space).values == expected | changed
    require_no_garbage(place)
    found = {each.check for each in doctor.examine(place.url, deep=True)}
    assert found.isdisjoint({"bytes", "orphans", "rows"})


def test_what_was_rolled_back_is_no_parent(store):
    store.checkpoints.put("thread", {"n": 0, "list": [1]}, "zero", "")
    store.checkpoints.put("thread", {"n": 1, "list": [1, 2]}, "one", "zero")
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        tx.checkpoints.put("thread", {"n": 2, "list": [1, 2, 3]}, "two", "one")
        raise ZeroDivisionError
    with pytest.raises(NotFound):
        store.checkpoints.put("thread", {"n": 3}, "three", "two", inherit=["list"])
    store.checkpoints.put("thread", {"list": [1, 2, 4]}, "two", "one", inherit=["n"])
    assert store.checkpoints.get("two").values == {"n": 1, "list": [1, 2, 4]}


@on(lambda driver: driver.name == "psycopg")
def test_a_put_that_another_thread_overtakes_has_the_parent_that_it_names(place, monkeypatch):
    with place.open() as store:
        store.checkpoints.put("thread", {"n": 0, "list": [0]}, "zero", "")
        store.checkpoints.put("thread", {"n": 1, "list": [0, 1]}, "one", "zero")
        beside = [partial(store.checkpoints.put, "thread", {"n": 2, "list": [0, 1, 2]}, "other")]

        def pop(taken: Any, *given: Any) -> Any:
            if beside:
                beside.pop()(parent_id="one")
            return dict.pop(taken, *given)

        monkeypatch.setattr(Recent, "pop", pop)
        store.checkpoints.put("thread", {"n": 3}, "two", "one", inherit=["list"])
        put = store.checkpoints.get("two")
        assert (put.parent_id, put.values) == ("one", {"n": 3, "list": [0, 1]})


@on(lambda driver: driver.name.startswith("psycopg"))
def test_a_put_whose_connection_breaks_while_it_reads_is_made_on_another(place, monkeypatch):
    reading = threads.read_parent

    def read_parent(unit: Any, *given: Any) -> Any:
        monkeypatch.undo()
        end = text("SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(DBAPIError):
            unit.connection.execute(end)
        return reading(unit, *given)

    with place.open() as store:
        store.checkpoints.put("thread", {"n": 0}, "one")
        monkeypatch.setattr(threads, "read_parent", read_parent)
        store.checkpoints.put("thread", {"n": 1}, "two")
        assert [each.id for each in store.checkpoints.list("thread")] == ["two", "one"]


@on(lambda driver: driver.name == "psycopg")
def test_a_put_that_finds_its_server_gone_says_so(place):
    def refuse(*_: Any) -> None:
        raise OperationalError("connection failed")

    others = create_engine(place.url.replace("postgresql:", "postgresql+psycopg:"))
    ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with place.open() as store:
        store.checkpoints.put("thread", {"n": 0}, "one")
        with others.connect() as connection:
            connection.execute(text(f"{ending} AND datname = current_database()"))
        others.dispose()
        event.listen(Engine, "do_connect", refuse)
        try:
            with pytest.raises(DatabaseUnreachable):
                store.checkpoints.put("thread", {"n": 1}, "two", "one")
        finally:
            event.remove(Engine, "do_connect", refuse)


@on(lambda driver: driver.name.startswith("psycopg"))
def test_a_checkpoint_that_is_pruned_meanwhile_is_no_parent(place, monkeypatch):
    reading = threads.read_parent

    def read_parent(*given: Any) -> Any:
        found = reading(*given)
        monkeypatch.undo()
        with Store(place.url) as others:
            others.prune(RetentionPolicy(checkpoints_keep_last=1))
        return found

    with place.open() as store:
        for step in range(3):
            store.checkpoints.put("thread", {"n": step, "long": "x" * 600}, f"{step}")
        monkeypatch.setattr(threads, "read_parent", read_parent)
        with pytest.raises(NotFound, match="parent"):
            store.checkpoints.put("thread", {"n": 9}, "child", parent_id="1", inherit=["long"])
        assert [each.id for each in store.checkpoints.list("thread")] == ["2"]


# --- Ids --------------------------------------------------------------------------------------


def test_putting_an_id_again_replaces_what_it_holds_and_keeps_its_place(place, store):
    put = store.checkpoints.put
    put("thread", history(3), "one", created_at=NOON, tags=["x"])
    put("thread", history(4), "two", tags=["y"], run_id="r", metadata={"a": 1}, summary="s")
    put("thread", history(5), "three")
    again = put("thread", {"messages": ["other"], "new": 1}, "two", tags="z")
    assert (again.parent_id, again.step, again.tags) == ("one", 1, ("z",))
    assert (again.run_id, again.metadata, again.summary) == (None, {}, "")
    got = store.checkpoints.get("two")
    assert got.values == {"messages": ["other"], "new": 1}
    assert store.checkpoints.get("one").values == history(3)
    assert store.checkpoints.get("three").values == history(5)
    assert [c.id for c in listed(store, "thread")] == ["three", "two", "one"]
    first = put("thread", history(3), "one")
    assert (first.created_at, first.step, first.parent_id) == (NOON, 0, None)
    require_no_garbage(place)
    put("thread", history(3), "side", parent_id="one")
    moved = put("thread", history(3), "three", parent_id="side")
    assert (moved.parent_id, moved.step) == ("side", 2)
    assert [c.id for c in store.checkpoints.path("three")] == ["three", "side", "one"]
    assert put("thread", history(3), "three", parent_id="", step=9).parent_id is None
    assert store.checkpoints.tree("thread").roots == ("one", "three")


def test_what_is_put_under_its_own_id_and_parent_comes_back_however_large_it_is(place, store):
    put, get = store.checkpoints.put, store.checkpoints.get
    for size in (10, 200_000):
        values = {"raw": b"\x00\xff" * size, "messages": [message(0, "x" * size)]}
        put("thread", values, f"root {size}", "")
        put("thread", values, f"same {size}", f"root {size}")
        grown = {**values, "messages": [*values["messages"], message(1)]}
        put("thread", grown, f"grown {size}", f"same {size}")
        for _ in range(2):  # again, and it replaces what there was
            put("thread", {"raw": b"short"}, f"same {size}", f"root {size}", inherit=["messages"])
        assert get(f"root {size}").values == values
        assert get(f"same {size}").values == {**values, "raw": b"short"}
        assert (get(f"grown {size}").values, get(f"grown {size}").step) == (grown, 2)
        with pytest.raises(WrongThread):
            put("other", values, f"root {size}", "")
        with pytest.raises(WrongThread):
            put("other", values, f"root {size}", "no such parent")
    require_no_garbage(place)


def test_a_checkpoint_cannot_come_from_itself_or_from_what_came_from_it(store):
    for id in ("one", "two", "three"):
        store.checkpoints.put("thread", history(2), id)
    before = listed(store, "thread")
    for parent in ("one", "two", "three"):
        with pytest.raises(InvalidInput, match="parent_id"):
            store.checkpoints.put("thread", {}, "one", parent_id=parent)
    assert listed(store, "thread") == before
    assert store.checkpoints.get("one").values == history(2)


def test_an_id_never_moves_to_another_thread(place, store):
    store.checkpoints.put("mine", history(2), "id", tags=["x"])
    mine = store.checkpoints.get("id")
    before = {name: len(rows(place, name)) for name in ("checkpoint_threads", "checkpoints")}
    threads = store.checkpoints.threads().items
    with pytest.raises(WrongThread) as caught:
        store.checkpoints.put("yours", history(9), "id")
    assert (caught.value.thread_id, caught.value.checkpoint_id) == ("yours", "id")
    with pytest.raises(WrongThread), store.transaction() as tx:
        tx.checkpoints.put("other", {}, "another")
        tx.checkpoints.put("yours", {}, "id")
    with pytest.raises(WrongThread):
        store.checkpoints.fork("id", to_thread="yours", new_checkpoint_id="id")
    assert store.checkpoints.get("id") == mine
    assert store.checkpoints.threads().items == threads
    assert {name: len(rows(place, name)) for name in before} == before


def test_a_put_that_is_refused_makes_no_thread_the_most_recent(store):
    for thread, id in (("old", "a"), ("new", "b")):
        store.checkpoints.put(thread, {"large": "x" * 600}, id)
        store.checkpoints.put(thread, {"large": "y" * 600}, id, namespace="inner")
    before = store.checkpoints.threads().items
    assert [thread.id for thread in before] == ["new", "old"]
    with pytest.raises(WrongThread):
        store.checkpoints.put("old", {"large": "z" * 600}, "b")
    assert store.checkpoints.threads().items == before
    again = store.checkpoints.put("old", {"large": "z" * 600}, "a", namespace="inner")
    assert again.id == "a"
    assert store.checkpoints.get("a", "old", "inner").values == {"large": "z" * 600}


def test_pending_writes_that_fail_leave_no_thread(store, monkeypatch):
    made = threads.make_thread

    def failing(*arguments: Any, **_: Any) -> None:
        made(*arguments)
        raise RuntimeError("between the thread and its writes")

    with monkeypatch.context() as once, pytest.raises(RuntimeError):
        once.setattr(threads, "make_thread", failing)
        store.checkpoints.put_writes("thread", "checkpoint", "task", [("channel", 1)])
    assert store.checkpoints.threads().items == ()
    assert store.checkpoints.put_writes("thread", "checkpoint", "task", [("channel", 1)]) == 1


def test_in_other_namespaces_each_thread_has_its_own_ids(store):
    put, get = store.checkpoints.put, store.checkpoints.get
    put("a", {"x": 1}, "id")
    put("a", {"x": 2}, "id", namespace="inner")
    put("b", {"x": 3}, "id", namespace="inner")
    put("b", {"x": 4}, namespace="inner|deeper")
    assert get("id").values == get("id", "a").values == {"x": 1}
    assert get("id", "a", "inner").values == {"x": 2}
    assert get("id", "b", "inner").values == {"x": 3}
    assert store.checkpoints.find("id", "b") is None
    assert [c.step for c in listed(store, "b", "inner")] == [0]
    assert store.checkpoints.latest("b") is None
    put("b", {"x": 5}, "next", namespace="inner")
    assert {t.id: (t.latest.namespace, t.latest.id) for t in store.checkpoints.threads()} == {
        "a": ("", "id"),
        "b": ("inner", "next"),
    }
    with pytest.raises(InvalidInput, match="thread_id"):
        get("id", namespace="inner")


# --- Sharing ----------------------------------------------------------------------------------


def test_a_growing_history_costs_what_was_added(place, store):
    chance = random.Random(0)  # noqa: S311 - not a secret
    whole = [{"role": "user", "content": chance.randbytes(190).hex()} for _ in range(150)]
    state = {"plan": chance.randbytes(900).hex()}
    image = chance.randbytes(3000)
    for length in range(50, 151, 2):
        store.checkpoints.put(
            "thread", {"messages": whole[:length], "state": state, "image": image}
        )
    distinct = len(exact(whole)) + len(exact(state)) + len(image)
    assert stored_bytes(place) <= distinct
    pieces = [row.line for row in rows(place, "checkpoint_values")]
    assert len(set(pieces)) == 3
    assert len(pieces) <= 2 + 1 + 3 * 4  # of 50 appends, up to three pieces for each power of four
    steps = {c.step: c.id for c in store.checkpoints.list("thread", limit=100)}
    for step in (0, 25, 50):
        got = store.checkpoints.get(steps[step]).values
        assert got == {"messages": whole[: 50 + 2 * step], "state": state, "image": image}


def statements(store: Any, work: Any) -> int:
    with sent(store) as found:
        work()
    return len(found)


@on(lambda driver: not driver.asynchronous)
def test_putting_and_reading_take_as_many_statements_late_as_early(place):
    # On an engine under the store, whichever kind it is: the synchronous one is enough.
    with place.open() as store:
        values = history(5) | {"state": {"a": 1}, "more": [1], "image": b"x"}
        store.checkpoints.put("thread", values)
        puts, gets = set(), set()
        for number in range(6, 70):
            state = values | history(number)
            puts.add(statements(store, lambda s=state: store.checkpoints.put("thread", s)))
            gets.add(statements(store, lambda: store.checkpoints.latest("thread")))
        # On a server one statement reads and one writes, elsewhere two write: three, where pieces
        # are merged.
        assert puts == ({2} if place.driver.engine == "postgresql" else {3, 4})
        assert gets == {1}
        assert store.checkpoints.latest("thread").values == state
        fork = store.checkpoints.list("thread").items[40]
        branched = {**history(30), "other": [{"x": 1}]}
        changed = statements(
            store, lambda: store.checkpoints.put("thread", branched, parent_id=fork.id)
        )
        assert changed <= 5


@on(lambda driver: not driver.asynchronous)
def test_puts_after_those_of_the_same_store_read_nothing_also_into_threads_in_turn(place):
    with place.open() as store:
        last: dict[str, Any] = {}
        puts: dict[bool, set[int]] = {True: set(), False: set()}
        for number in range(12):
            for thread in ("one", "other")[: 1 + (number > 5)]:
                values = {"messages": [f"{thread} {n}" for n in range(number)], "n": number}

                def put(thread=thread, values=values) -> None:
                    parent = last.get(thread, "")
                    last[thread] = store.checkpoints.put(thread, values, parent_id=parent).id

                sent = statements(store, put)
                if number not in (0, 1, 6, 7):  # which begin a thread, or the list's line
                    puts[number > 5].add(sent)
                assert store.checkpoints.threads().items[0].id == thread
                assert store.checkpoints.latest(thread).values == values
        if place.driver.engine == "postgresql":
            assert puts == {True: {1}, False: {1}}
        else:  # the row, its piece; pieces that it is merged with; the thread, if it is another one
            assert puts == {True: {3, 4}, False: {2, 3}}


@on(lambda driver: not driver.asynchronous)
def test_a_threads_first_put_takes_few_statements_and_one_on_a_server_if_it_is_a_root(place):
    on_server = place.driver.engine == "postgresql"
    with place.open() as store:
        store.checkpoints.put("warm", {"a": 1})
        for root, most in ((False, 2), (True, 1)):
            parent = "" if root else None
            put = partial(store.checkpoints.put, str(root), history(5), parent_id=parent)
            assert statements(store, put) == (most if on_server else 4)
        found = store.checkpoints.threads().items
        assert [thread.id for thread in found] == ["True", "False", "warm"]


@pytest.mark.parametrize("parent", [None, ""])
def test_puts_at_once_that_each_begin_a_thread_make_one_thread(store, parent):
    def put(number: int) -> None:
        store.checkpoints.put("thread", {"n": [number]}, f"{number}", parent, namespace="graph")

    assert at_once(4, put) == [None] * 4
    found = store.checkpoints.list("thread", namespace="graph", values=True).items
    assert {each.values["n"][0]: each.id for each in found} == {n: str(n) for n in range(4)}
    steps = sorted(each.step for each in found)
    assert steps == ([0, 1, 2, 3] if parent is None else [0] * 4)
    assert len(store.checkpoints.threads()) == 1


def test_two_forks_that_write_the_same_version_never_read_each_other(store):
    first = store.checkpoints.put("thread", history(4))
    ends = {}
    for name in ("left", "right", "third"):
        fork = first
        for number in range(3):
            items = [*history(4)["messages"], *([name] * (number + 1))]
            fork = store.checkpoints.put("thread", {"messages": items}, parent_id=fork.id)
        ends[name] = fork
    for name, end in ends.items():
        for back, checkpoint in enumerate(store.checkpoints.path(end.id)[:-1]):
            got = store.checkpoints.get(checkpoint.id).values["messages"]
            assert got == [*history(4)["messages"], *([name] * (3 - back))]
    assert store.checkpoints.get(first.id).values == history(4)


def test_two_names_with_one_value_go_apart(store):
    store.checkpoints.put("thread", {"a": [1], "b": [1]})
    store.checkpoints.put("thread", {"a": [1, 2], "b": [1, 3]})
    store.checkpoints.put("thread", {"b": [1, 3, 4], "a": [1, 2, 5]})
    assert store.checkpoints.latest("thread").values == {"a": [1, 2, 5], "b": [1, 3, 4]}


def test_items_come_back_as_they_are_and_only_new_ones_are_stored(place, store):
    chance = random.Random(1)  # noqa: S311 - not a secret
    data = chance.randbytes(60 * 300)
    items = {n: Items(data[: n * 300], n) for n in range(0, 61, 4)}
    for length, value in items.items():
        store.checkpoints.put("thread", {"messages": value}, f"c{length}")
    assert stored_bytes(place) <= len(data)
    for length, value in items.items():
        assert store.checkpoints.get(f"c{length}").values["messages"] == value
    elsewhere = store.checkpoints.fork("c40", to_thread="other")
    assert store.checkpoints.get(elsewhere.id).values == {"messages": items[40]}
    assert "Items(count=40)" in repr(items[40])
    with pytest.raises(InvalidInput):
        store.checkpoints.put("thread", {"messages": Items("text", 1)})  # type: ignore[arg-type]
    with pytest.raises(InvalidJson):
        store.checkpoints.put("thread", {"messages": {"in": items[4]}})


def test_what_is_inherited_is_as_in_the_parent(place, store):
    put, get = store.checkpoints.put, store.checkpoints.get
    put("thread", history(3) | {"state": 1, "image": b"x"}, "one")
    put("thread", {"state": 2}, "two", inherit=["messages", "image"])
    assert get("two").values == history(3) | {"state": 2, "image": b"x"}
    put("thread", {}, "three", inherit=["messages"])
    assert get("three").values == history(3)
    put("thread", history(5), "side", parent_id="one", inherit={"state"})
    assert get("side").values == history(5) | {"state": 1}
    put("thread", {"new": 1}, "three", inherit=["image"])  # again: the parent is still the second
    assert get("three").values == {"new": 1, "image": b"x"}
    put("thread", {}, "three", parent_id="side", inherit=["messages"])
    assert get("three").values == history(5)
    before = rows(place, "checkpoints")
    for bad, error in (
        ({"inherit": ["nowhere"]}, NotFound),
        ({"inherit": ["messages"], "parent_id": ""}, NotFound),
        ({"inherit": ["state"]}, InvalidInput),
        ({"inherit": "messages"}, InvalidInput),
        ({"inherit": [1]}, InvalidInput),
        ({"inherit": [""]}, NotFound),
        ({"inherit": ["n" * 2401]}, InvalidInput),
    ):
        with pytest.raises(error):
            put("thread", {"state": 3}, **bad)
    assert rows(place, "checkpoints") == before


def test_a_list_with_values_gives_each_checkpoint_its_own_by_one_statement(store):
    expected = {}
    for n in range(12):
        values = history(n) | {"state": {"n": n, "long": "x" * 400}, "none": None}
        found = store.checkpoints.put("thread", values, parent_id="" if n == 5 else None)
        expected[found.id] = values
    side = store.checkpoints.fork(found.id)
    expected[side.id] = values
    branched = store.checkpoints.put("thread", history(20), parent_id=side.id)
    expected[branched.id] = history(20)
    found = paged(store.checkpoints.list, "thread", limit=4, values=True)
    assert {each.id: each.values for each in found} == expected
    assert [each.id for each in found] == [each.id for each in listed(store, "thread")]
    one, other = store.checkpoints.list("thread", limit=2, values=True)
    other.values["none"] = one.values["messages"][0]["role"] = "changed"
    assert store.checkpoints.list("thread", limit=1, values=True).items[0].values == history(20)
    assert store.checkpoints.list("elsewhere", values=True).items == ()
    # Lines are numbered in each thread.
    for n in range(3):
        found = store.checkpoints.put("elsewhere", {"messages": [f"other {n}"]})
        expected[found.id] = {"messages": [f"other {n}"]}
    every = store.checkpoints.list(values=True)
    assert {each.id: each.values for each in every} == expected


@on(lambda driver: not driver.asynchronous)
def test_however_many_checkpoints_are_listed_it_takes_one_statement(place):
    with place.open() as store:
        for n in range(30):
            store.checkpoints.put("thread", history(n) | {"state": {"n": n, "long": "x" * 400}})
        for limit in (1, 10, 30):
            taken = statements(
                store, lambda n=limit: store.checkpoints.list("thread", limit=n, values=True)
            )
            assert taken == 1


def test_what_is_read_while_others_put_and_prune_is_whole(place, store):
    first = store.checkpoints.put("thread", history(1), "first", tags=["keep"]).id
    with place.open() as another:

        def work(n: int) -> Any:
            if n == 0:
                for length in range(2, 70):
                    another.checkpoints.put("thread", history(length))
                    if length % 9 == 0:
                        another.checkpoints.prune("thread", keep_last=2, keep_tags="keep")
                return None
            for _ in range(40):
                latest = store.checkpoints.latest("thread").values["messages"]
                assert latest == history(len(latest))["messages"]
                assert store.checkpoints.get(first).values == history(1)
                for each in store.checkpoints.list("thread", values=True, limit=5):
                    messages = each.values["messages"]
                    assert messages == history(len(messages))["messages"]
            return None

        assert at_once(3, work) == [None] * 3


# --- Lines: path, tree, fork, rewind ------------------------------------------------------------


def test_path_and_tree_follow_the_parents(store):
    put = store.checkpoints.put
    for id, parent in (("a", ""), ("b", "a"), ("c", "b"), ("d", "b"), ("e", "d"), ("z", "")):
        put("thread", history(1), id, parent)
    put("elsewhere", {}, "other")
    assert [c.id for c in store.checkpoints.path("e")] == ["e", "d", "b", "a"]
    assert [c.id for c in store.checkpoints.path("a", "thread")] == ["a"]
    tree = store.checkpoints.tree("thread")
    assert tree.roots == ("a", "z")
    assert tree.children == {
        "a": ("b",), "b": ("c", "d"), "c": (), "d": ("e",), "e": (), "z": (),
    }  # fmt: skip
    assert set(tree.leaves) == {"c", "e", "z"}
    assert tree.checkpoints["e"] == store.checkpoints.path("e")[0]
    with pytest.raises(NotFound):
        store.checkpoints.path("e", "elsewhere")


def test_a_fork_in_the_thread_is_a_new_line_and_the_old_one_stays(place, store):
    for n in range(4):
        store.checkpoints.put("thread", history(n + 1), f"c{n}", tags=["t"], run_id="r")
    nodes = len(rows(place, "checkpoint_values"))
    fork = store.checkpoints.fork("c1")
    assert (fork.thread_id, fork.parent_id, fork.step) == ("thread", "c1", 2)
    assert (fork.tags, fork.run_id) == ((), None)
    assert store.checkpoints.get(fork.id).values == history(2)
    assert len(rows(place, "checkpoint_values")) == nodes
    on = store.checkpoints.put("thread", {"messages": ["else"]}, parent_id=fork.id)
    assert [c.id for c in store.checkpoints.path(on.id)] == [on.id, fork.id, "c1", "c0"]
    assert store.checkpoints.get("c3").values == history(4)
    with pytest.raises(AlreadyExists):
        store.checkpoints.fork("c1", new_checkpoint_id="c3")
    assert store.checkpoints.get("c3").values == history(4)


def test_a_fork_to_a_new_thread_shares_nothing_and_has_the_same_owner(store):
    user = store.users.create("Alice")
    for n in range(3):
        store.checkpoints.put(
            "thread", history(n + 1), f"c{n}", user_id=user.id, metadata={"n": n}, next_node="go"
        )
    fork = store.checkpoints.fork("c1", to_thread="new", new_checkpoint_id="root")
    assert (fork.id, fork.thread_id, fork.parent_id, fork.step) == ("root", "new", None, 1)
    assert (fork.metadata, fork.next_node) == ({"n": 1}, "go")
    with pytest.raises(AlreadyExists):
        store.checkpoints.fork("c1", to_thread="new")
    store.checkpoints.delete_thread("thread")
    assert store.checkpoints.get("root").values == history(2)
    assert store.checkpoints.put("new", history(3)).step == 2
    assert store.users.delete(user.id).rows["checkpoints"] == 2


def test_a_rewind_keeps_the_step_that_it_goes_to(place, store):
    for n in range(6):
        store.checkpoints.put("thread", history(n + 1), f"c{n}")
    store.checkpoints.put_writes("thread", "c5", "task", [("channel", 1)])
    store.checkpoints.put_writes("thread", "c3", "task", [("channel", 2)])
    side = store.checkpoints.put("thread", {"messages": ["side"]}, "side", parent_id="c0")
    target = store.checkpoints.rewind("thread", 3)
    assert (target.id, target.values) == ("c3", history(4))
    assert store.checkpoints.latest("thread") == target
    assert [c.id for c in listed(store, "thread")] == ["c3", "c2", side.id, "c1", "c0"]
    assert store.checkpoints.writes("thread", "c5") == ()
    assert len(store.checkpoints.writes("thread", "c3")) == 1
    require_no_garbage(place)
    again = store.checkpoints.put("thread", {"messages": [*history(4)["messages"], "new"]})
    assert (again.step, again.parent_id) == (4, "c3")
    assert store.checkpoints.get(again.id).values["messages"][-1] == "new"
    for wrong in (9, 5):
        with pytest.raises(NotFound, match="step"):
            store.checkpoints.rewind("thread", wrong)
    assert len(listed(store, "thread")) == 6


def test_after_a_rewind_the_target_is_the_latest_even_beside_another_line(store):
    for n in range(4):
        store.checkpoints.put("thread", history(n + 1), f"c{n}")
    store.checkpoints.put("thread", {}, "side", parent_id="c1")  # step 2, later than c2
    assert store.checkpoints.rewind("thread", 2).id == "c2"
    assert store.checkpoints.latest("thread").id == "c2"
    assert store.checkpoints.put("thread", {}).parent_id == "c2"


# --- Deleting and pruning -----------------------------------------------------------------------


def numbered(n: int) -> str:
    """Give a text that is too long to be a small value, and shares nothing with others."""
    return f"{n}" * 600


def test_what_is_before_a_step_is_deleted_and_the_step_itself_stays(place, store):
    for n in range(6):
        store.checkpoints.put("thread", history(n + 1) | {"n": numbered(n)}, f"c{n}")
    store.checkpoints.put("thread", history(1), namespace="inner")
    store.checkpoints.put_writes("thread", "c1", "task", [("channel", 1)])
    receipt = store.checkpoints.delete_before("thread", 3)
    # Of the histories nothing goes: what stays is made of them. Each n goes with its checkpoint.
    assert receipt.rows == {
        "checkpoint_values": 3,
        "checkpoint_writes": 1,
        "checkpoints": 3,
    }
    assert [c.id for c in listed(store, "thread")] == ["c5", "c4", "c3"]
    assert [c.id for c in store.checkpoints.path("c5")] == ["c5", "c4", "c3"]
    for n in (3, 4, 5):
        assert store.checkpoints.get(f"c{n}").values == history(n + 1) | {"n": numbered(n)}
    assert len(listed(store, "thread", "inner")) == 1
    require_no_garbage(place)
    assert store.checkpoints.delete_before("thread", 3).total == 0
    assert store.checkpoints.delete_before("thread", 99).rows["checkpoints"] == 3
    assert store.checkpoints.latest("thread") is None


def test_a_thread_is_deleted_with_all_that_is_in_it_and_nothing_else(place, store):
    for thread in ("one", "two"):
        store.checkpoints.put(thread, history(2), f"first of {thread}")
        store.checkpoints.put(thread, history(3), namespace="inner")
        store.checkpoints.put_writes(thread, "to come", "task", [("channel", 1)])
    assert store.checkpoints.delete_thread("one").rows == {
        "checkpoint_threads": 1,
        "checkpoint_values": 2,
        "checkpoint_writes": 1,
        "checkpoints": 2,
    }
    assert store.checkpoints.find("first of one") is None
    assert store.checkpoints.get("first of two").values == history(2)
    for name in ("checkpoints", "checkpoint_values", "checkpoint_writes"):
        assert {row.thread_id for row in rows(place, name)} == {"two"}
    with pytest.raises(NotFound, match="thread"):
        store.checkpoints.delete_thread("one")
    assert store.checkpoints.put("one", {}, "first of one").step == 0


def test_pruning_keeps_what_any_policy_keeps_and_leads_past_the_rest(place):
    now = NOON + timedelta(days=10)
    with place.open(clock=lambda: now) as store:
        for n in range(10):
            store.checkpoints.put(
                "thread",
                history(n + 1) | {"n": n},
                f"c{n}",
                tags=["milestone"] if n in (2, 5) else [f"t{n}"],
                created_at=NOON + timedelta(days=n),
            )
        side = history(4) | {"side": True}
        store.checkpoints.put("thread", side, "side", parent_id="c3", created_at=NOON)
        assert store.checkpoints.prune("thread", keep_last=2, dry_run=True).rows == {
            "checkpoints": 9
        }
        assert len(listed(store, "thread")) == 11
        receipt = store.checkpoints.prune(
            "thread", keep_last=2, max_age=timedelta(days=3), keep_tags="milestone"
        )
        assert receipt.rows["checkpoints"] == 6
        kept = ["c9", "c8", "c7", "c5", "c2"]
        assert [c.id for c in listed(store, "thread")] == kept
        assert [c.id for c in store.checkpoints.path("c9")] == kept
        for id in kept:
            n = int(id[1:])
            assert store.checkpoints.get(id).values == history(n + 1) | {"n": n}
        require_no_garbage(place)
        assert store.checkpoints.prune("thread", keep_tags=["no such"]).rows["checkpoints"] == 4
        assert store.checkpoints.put("thread", {}).step == 10


def test_pruning_is_for_each_namespace_on_its_own(store):
    for n in range(3):
        store.checkpoints.put("thread", history(n))
        store.checkpoints.put("thread", history(n), namespace="inner")
    assert (
        store.checkpoints.prune("thread", keep_last=2, namespace="inner").rows["checkpoints"] == 1
    )
    assert [len(listed(store, "thread", n)) for n in ("", "inner")] == [3, 2]
    assert store.checkpoints.prune("thread", keep_last=1).rows["checkpoints"] == 3
    assert [len(listed(store, "thread", n)) for n in ("", "inner")] == [1, 1]


def test_lines_stay_whole_when_what_they_grew_from_is_pruned(place, store):
    store.checkpoints.put("thread", history(3), "root")
    for line in ("left", "right"):
        parent = "root"
        for n in range(3):
            items = [*history(3)["messages"], *[line] * (n + 1)]
            parent = store.checkpoints.put("thread", {"messages": items}, parent_id=parent).id
        store.checkpoints.put("thread", {"messages": [*items, "end"]}, line, parent, tags="keep")
    store.checkpoints.prune("thread", keep_tags=["keep"])
    assert {c.id for c in listed(store, "thread")} == {"left", "right"}
    for line in ("left", "right"):
        got = store.checkpoints.get(line)
        assert got.parent_id is None
        assert got.values["messages"] == [*history(3)["messages"], *[line] * 3, "end"]
    require_no_garbage(place)


def test_a_run_is_deleted_wherever_it_went(place, store):
    for thread in ("one", "two"):
        for n in range(4):
            store.checkpoints.put(thread, history(n), run_id="odd" if n % 2 else "even")
    store.checkpoints.put("one", history(9), namespace="inner", run_id="odd")
    assert store.checkpoints.delete_run("odd", thread_id="two").rows["checkpoints"] == 2
    assert store.checkpoints.delete_run("odd").rows["checkpoints"] == 3
    assert store.checkpoints.delete_run("odd").total == 0
    for thread in ("one", "two"):
        found = listed(store, thread)
        assert [c.run_id for c in found] == ["even", "even"]
        assert found[0].parent_id == found[1].id
        assert store.checkpoints.get(found[0].id).values == history(2)
    require_no_garbage(place)


# --- Copies and pending writes ------------------------------------------------------------------


def test_a_copy_of_a_thread_has_all_of_it_and_lives_on_its_own(place, store):
    user = store.users.create("Alice")
    put = store.checkpoints.put
    put("thread", history(2), "a", user_id=user.id)
    put("thread", history(3), "b", tags=["t"], metadata={"x": 1}, run_id="r")
    put("thread", {"messages": ["other"], "image": b"\x00"}, "c", parent_id="a")
    put("thread", history(5), "inner id", namespace="inner")
    store.checkpoints.put_writes("thread", "b", "task", [("channel", {"x": 1}), ("raw", b"\xff")])
    store.checkpoints.put_writes("thread", "to come", "task", [("channel", 2)])
    assert store.checkpoints.copy_thread("thread", "copy") == 4
    old, new = listed(store, "thread"), listed(store, "copy")
    assert [(c.step, c.tags, c.metadata, c.created_at, c.run_id) for c in old] == [
        (c.step, c.tags, c.metadata, c.created_at, c.run_id) for c in new
    ]
    ids = {c.id: d.id for c, d in zip(old, new, strict=True)}
    assert [ids.get(c.parent_id) for c in old] == [c.parent_id for c in new]
    assert not set(ids) & set(ids.values())
    assert store.checkpoints.get("inner id", "copy", "inner").values == history(5)
    assert store.checkpoints.writes("copy", ids["b"]) == store.checkpoints.writes("thread", "b")
    assert len(store.checkpoints.writes("copy", "to come")) == 1
    values = {id: store.checkpoints.get(id).values for id in ids}
    store.checkpoints.delete_thread("thread")
    for id, copied in ids.items():
        assert store.checkpoints.get(copied).values == values[id]
    more = put("copy", history(4), parent_id=ids["b"])
    assert store.checkpoints.get(more.id).values == history(4)
    assert store.checkpoints.get(ids["b"]).values == history(3)
    require_no_garbage(place)
    for source, target, error in (
        ("copy", "copy", AlreadyExists),
        ("nowhere", "new", NotFound),
    ):
        with pytest.raises(error):
            store.checkpoints.copy_thread(source, target)
    assert store.users.delete(user.id).rows["checkpoint_threads"] == 1


def test_writes_may_come_before_their_checkpoint_and_a_repeated_task_changes_nothing(store):
    write = store.checkpoints.put_writes
    assert write("thread", "soon", "task 2", [("a", {"x": [1, -0.0]}), ("b", b"\x00")]) == 2
    assert write("thread", "soon", "task 1", [("a", None)], task_path="~x") == 1
    assert write("thread", "soon", "task 2", [("a", "again"), ("b", "again"), ("c", 3)]) == 1
    assert write("thread", "soon", "task 2", [("error", "e")], positions=[-1]) == 1
    assert write("thread", "soon", "task 2", [("error", "f")], positions=[-1], replace=True) == 1
    found = store.checkpoints.writes("thread", "soon")
    assert [(w.task_id, w.position, w.channel, w.value) for w in found] == [
        ("task 2", -1, "error", "f"),
        ("task 2", 0, "a", {"x": [1, -0.0]}),
        ("task 2", 1, "b", b"\x00"),
        ("task 2", 2, "c", 3),
        ("task 1", 0, "a", None),
    ]
    assert exact(found[1].value) == '{"x": [1, -0.0]}'
    odd = [('"quoted", \\\\ {}, NULL\x00', b'"\\\\x00,{}NULL'), ("NULL", bytes(range(256)) * 9)]
    assert write("other", "soon", "NULL", odd, task_path='"') == 2
    assert write("other", "soon", "none", []) == 0
    assert [(w.channel, w.value) for w in store.checkpoints.writes("other", "soon")] == odd
    store.checkpoints.delete_thread("other")
    assert store.checkpoints.threads().items[0].latest is None
    store.checkpoints.put("thread", {}, "soon")
    assert store.checkpoints.writes("thread", "soon") == found
    assert store.checkpoints.writes("thread", "soon", namespace="inner") == ()


def test_what_a_put_gives_is_what_is_read_afterwards(store):
    user = store.users.create("u")
    odd = {
        "tags": ["x", "\ud800", "x"],
        "summary": "\x00 \ufdd0",
        "next_node": "né",
        "metadata": {"pair": (1, -0.0), "\x00": None, "big": 10**16 + 0.5},
        "run_id": "r\x00",
        "created_at": datetime(2020, 1, 1, 1, 2, 3, 456789, tzinfo=timezone(timedelta(hours=5))),
    }
    for number, owner in enumerate((None, user.id)):
        thread = f"thread {number}"
        for values in ({"a": 1}, {"a": 1, "long": "b" * 5_000}):
            put = store.checkpoints.put(thread, values, user_id=owner, **odd)
            read = store.checkpoints.list(thread).items[0]
            assert put == read
            assert exact(put.metadata) == exact(read.metadata)
            assert put.created_at.tzinfo is read.created_at.tzinfo
        forked = store.checkpoints.fork(put.id)
        assert forked == store.checkpoints.list(thread).items[0]
        assert exact(forked.metadata) == exact(put.metadata)


def test_writes_are_counted_in_a_thread_with_an_owner_also_where_somebody_listens(store):
    def listens(*_: Any) -> None: ...

    user = store.users.create("u")
    write = partial(store.checkpoints.put_writes, "thread", "soon", "task", user_id=user.id)
    event.listen(Engine, "before_cursor_execute", listens)
    try:
        assert write([("a", 1), ("b", 2)]) == 2
        assert write([("a", 3), ("b", 4), ("c", 5), ("d", 6)]) == 2
    finally:
        event.remove(Engine, "before_cursor_execute", listens)
    assert write([("a", 3), ("b", 4), ("c", 5), ("d", 6), ("e", 7)]) == 1
    assert write([("a", 8), ("b", 9)], replace=True) == 2
    found = store.checkpoints.writes("thread", "soon")
    assert [w.value for w in found] == [8, 9, 5, 6, 7]


def test_each_write_says_whether_it_replaces_what_is_there(store):
    user = store.users.create("u").id
    for owner in (None, user):
        write = partial(store.checkpoints.put_writes, f"of {owner}", "soon", "task", user_id=owner)
        assert write([("a", 1), ("b", 2), ("c", 3)]) == 3
        mixed = [("a", 4), ("b", 5), ("d", 6)]
        assert write(mixed, positions=[0, 1, -4], replace=[True, False, True]) == 2
        assert write(mixed, positions=[-4, 1, 0], replace=[False, True, False]) == 1
        found = store.checkpoints.writes(f"of {owner}", "soon")
        assert [(w.position, w.value) for w in found] == [(-4, 6), (0, 4), (1, 5), (2, 3)]
        for wrong in ([True], [1, 2, 3], [None] * 3, "yes", None):
            with pytest.raises(InvalidInput, match="replace"):
                write(mixed, replace=wrong)
        assert write([], replace=[]) == 0


def test_a_thread_that_is_not_there_may_be_refused(store):
    put, write = store.checkpoints.put, store.checkpoints.put_writes
    for n in range(2):
        with pytest.raises(NotFound, match="checkpoint thread"):
            put("gone", {"a": n}, thread_missing="refuse")
        with pytest.raises(NotFound, match="checkpoint thread"):
            put("gone", {"a": n}, parent_id="", namespace="n", thread_missing="refuse")
        with pytest.raises(NotFound, match="checkpoint thread"):
            write("gone", "c", "task", [("a", n)], thread_missing="refuse")
        assert store.checkpoints.threads().items == ()
    put("there", {"a": 1}, "c")
    put("there", {"a": 2}, "d", thread_missing="refuse")
    assert write("there", "d", "task", [("a", 1)], thread_missing="refuse") == 1
    for call in (partial(put, "t", {}), partial(write, "t", "c", "task", [])):
        with pytest.raises(InvalidInput, match="thread_missing"):
            call(thread_missing="ignore")


def test_the_writes_after_a_checkpoint_come_with_it(store):
    put, write = store.checkpoints.put, store.checkpoints.put_writes
    for n in range(3):
        put("thread", history(n) | {"long": "x" * 300 + str(n)}, f"c{n}")
        write("thread", f"c{n}", "task", [("", n), ("c" * 2_000, b"\x00" * 999)], task_path=f"p{n}")
    put("thread", history(9) | {"long": "y" + "x" * 300}, "side", parent_id="c1")  # has a base
    write("thread", "side", "other", [("a", 1)], namespace="inner")  # not this one's
    put("thread", {}, "bare")
    write("thread", "bare", "task", [("a", None)], positions=[-3])
    for id in ("c0", "c1", "c2", "side", "bare"):
        plain, writes = store.checkpoints.get(id), store.checkpoints.writes("thread", id)
        for found in (
            store.checkpoints.get(id, writes=True),
            store.checkpoints.find(id, "thread", writes=True),
        ):
            assert (found.values, found.writes) == (plain.values, writes)
            assert plain.writes is None
    assert [w.value for w in store.checkpoints.get("c2", writes=True).writes] == [2, b"\x00" * 999]
    assert store.checkpoints.latest("thread", writes=True).writes[0].position == -3
    assert store.checkpoints.find("nowhere", writes=True) is None
    listed = store.checkpoints.list("thread", limit=4, writes=True)
    assert [(c.values, c.writes) for c in listed] == [
        (store.checkpoints.get(c.id).values, store.checkpoints.writes("thread", c.id))
        for c in listed
    ]


def test_lists_may_go_by_id_over_namespaces_and_threads_and_by_what_metadata_say(store):
    ids = ["a", "B", "_", "a-b", "ab", "é", "\x00", "Z"]
    for n, id in enumerate(ids):
        for thread in ("one", "two"):
            place = {"namespace": f"in {n % 2}", "metadata": {"even": not n % 2, "by": {"id": id}}}
            store.checkpoints.put(thread, {"n": n}, id, **place, parent_id="")
    store.checkpoints.put("one", {}, "at the root", metadata={"even": True})

    def found(*args: Any, size: int = 3, **options: Any) -> list[Any]:
        return [c.id for c in store.checkpoints.iter(*args, limit=size, **options)]

    def largest_first(*ids: str) -> list[str]:
        return sorted(ids, reverse=True)

    by_id = found("one", namespace=None, order="id")
    assert [id for id in by_id if id != "\x00"] == largest_first(
        *(set(ids) - {"\x00"}), "at the root"
    )
    assert found("two", namespace="in 1", order="id") == [i for i in by_id if i in ids[1::2]]
    assert found("two", namespace="in 1", order="id", before="a") == [
        i for i in by_id if i in ids[1::2] and i < "a"
    ]
    for order in ("id", "step"):  # read in another way, with values
        there = {"namespace": "in 0", "order": order, "size": 2}
        assert found("two", **there, writes=True) == found("two", **there)
    assert found("two", namespace="in 0", order="id", before="a", writes=True, size=1) == found(
        "two", namespace="in 0", order="id", before="a"
    )
    everywhere = found(namespace=None, order="id")
    assert sorted(everywhere) == sorted([*ids, *ids, "at the root"])
    assert [id for n, id in enumerate(everywhere) if id not in everywhere[:n]] == by_id
    assert found() == ["at the root"]
    even = [c.id for c in store.checkpoints.list("one", namespace=None, where={"even": True})]
    assert sorted(even) == sorted([*ids[::2], "at the root"])
    assert found("one", namespace=None, where={("by", "id"): "é", "even": False}) == ["é"]
    assert found("one", namespace=None, where={"even": 1}) == []
    pages = store.checkpoints.list(namespace=None, where={"even": True}, values=True, limit=1000)
    assert {(c.thread_id, c.id): c.values for c in pages} == {
        (thread, id): {"n": n} for thread in ("one", "two") for n, id in enumerate(ids) if not n % 2
    } | {("one", "at the root"): {}}
    assert store.checkpoints.latest("one", "in 1").id == "Z"
    assert store.checkpoints.latest("one", "in 1", order="id").id == "é"
    assert store.checkpoints.namespaces("one") == ("", "in 0", "in 1")
    assert store.checkpoints.namespaces("nowhere") == ()
    first = store.checkpoints.list("one", namespace=None, order="id", limit=1)
    with pytest.raises(InvalidCursor):
        store.checkpoints.list("one", namespace=None, limit=1, cursor=first.next_cursor)


def test_where_the_parent_is_missing_a_checkpoint_may_be_a_root(store):
    put = store.checkpoints.put
    put("thread", {"a": 1}, "first")
    assert put("thread", {}, "child", "first", parent_missing="root").parent_id == "first"
    assert put("thread", {}, "lost", "nowhere", parent_missing="root").parent_id is None
    assert put("thread", {}, "lost", "nowhere", parent_missing="root").step == 0
    with pytest.raises(NotFound):
        put("thread", {}, "other", "nowhere", inherit=["a"], parent_missing="root")


def test_checkpoints_go_and_stay_by_their_ids(place, store):
    for n in range(6):
        store.checkpoints.put("thread", history(n), f"c{n}")
    kept = {"keep_ids": ["c1", "c3", "nowhere"]}
    assert store.checkpoints.prune("thread", **kept, dry_run=True).rows == {"checkpoints": 3}
    assert store.checkpoints.prune("thread", **kept).rows["checkpoints"] == 3
    assert [c.id for c in store.checkpoints.list("thread")] == ["c5", "c3", "c1"]
    assert store.checkpoints.delete("thread", ["c3", "c4"]).rows["checkpoints"] == 1
    assert store.checkpoints.get("c5").parent_id == "c1"
    assert store.checkpoints.get("c5").values == history(5)
    require_no_garbage(place)


def test_a_copy_may_replace_the_thread_that_is_there(place, store):
    store.checkpoints.put("one", history(3), "kept", namespace="in")
    store.checkpoints.put("two", history(9), "gone", namespace="in")
    assert store.checkpoints.copy_thread("one", "two", on_existing="replace") == 1
    assert store.checkpoints.copy_thread("one", "three", on_existing="replace") == 1
    for thread in ("one", "two", "three"):
        [found] = store.checkpoints.list(thread, namespace="in", values=True)
        assert (found.id, found.values) == ("kept", history(3))
    require_no_garbage(place)


def test_names_may_be_long_or_empty(store):
    deep = "|".join(f"subgraph:{uuid.UUID(int=n)}" for n in range(12))
    values = {"": 1, "é" * 1_200: 2, "n" * 2_400: 3}
    store.checkpoints.put("thread", values, "id", namespace=deep)
    store.checkpoints.put("thread", {}, "next", namespace=deep, inherit=[*values])
    assert store.checkpoints.get("next", "thread", deep).values == values
    assert store.checkpoints.namespaces("thread") == (deep,)


def test_puts_at_once_into_one_thread_make_one_line(place, store):
    with place.open() as another:
        stores = [store, another]

        def put(n: int) -> None:
            for _ in range(5):
                with stores[n % 2].transaction() as tx:
                    latest = tx.checkpoints.latest("thread")
                    tx.checkpoints.put("other", {"n": n})
                    assert latest is None or latest.step >= 0
                stores[n % 2].checkpoints.put("thread", {"messages": [n, "x"]})

        assert at_once(4, put) == [None] * 4
    for thread in ("thread", "other"):
        found = list(store.checkpoints.list(thread, limit=100))
        assert [c.step for c in found] == list(range(19, -1, -1))
        assert [c.parent_id for c in found] == [*(c.id for c in found[1:]), None]


def test_of_threads_that_put_one_id_at_once_one_has_it_and_the_others_are_told(store):
    for attempt in range(3):
        results = at_once(
            4, lambda n, a=attempt: store.checkpoints.put(f"thread {a} {n}", {"n": n}, f"id {a}")
        )
        losers = [result for result in results if isinstance(result, AgentStoreError)]
        assert [type(loser) for loser in losers] == [WrongThread] * 3
        [winner] = [result for result in results if result not in losers]
        assert store.checkpoints.get(f"id {attempt}").thread_id == winner.thread_id
    assert len(store.checkpoints.threads()) == 3


def test_a_user_is_deleted_while_others_put_for_the_user(store):
    user = store.users.create("Alice")
    for n in range(3):
        store.checkpoints.put(f"thread {n}", history(3), user_id=user.id)

    def work(n: int) -> Any:
        if n == 3:
            return store.users.delete(user.id)
        for m in range(6):
            store.checkpoints.put(f"thread {n}", history(4 + m), user_id=user.id)
        return None

    results = at_once(4, work)
    assert results[3].rows["users"] == 1
    assert all(r is None or isinstance(r, NotFound) for r in results[:3])
    assert store.checkpoints.threads().items == ()


BAD_PUTS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"thread_id": ""}, InvalidInput),
    ({"thread_id": 7}, InvalidInput),
    ({"thread_id": "x" * 1_025}, InvalidInput),
    ({"values": [1]}, InvalidInput),
    ({"values": None}, InvalidInput),
    ({"values": {1: "a"}}, InvalidInput),
    ({"values": {"n" * 2401: "a"}}, InvalidInput),
    ({"parent_missing": "ignore"}, InvalidInput),
    ({"values": {"messages": [1, float("nan")]}}, InvalidJson),
    ({"values": {"state": {"a": float("inf")}}}, InvalidJson),
    ({"values": {"state": {1: 2}}}, InvalidJson),
    ({"values": {"fine": 1, "messages": [NOON]}}, InvalidJson),
    ({"values": {"messages": [b"bytes"]}}, InvalidJson),
    ({"checkpoint_id": ""}, InvalidInput),
    ({"checkpoint_id": 1}, InvalidInput),
    ({"parent_id": "nowhere"}, NotFound),
    ({"parent_id": "of another thread"}, NotFound),
    ({"parent_id": 1}, InvalidInput),
    ({"step": -1}, InvalidInput),
    ({"step": 1.0}, InvalidInput),
    ({"step": True}, InvalidInput),
    ({"step": 2**63}, InvalidInput),
    ({"tags": [1]}, InvalidInput),
    ({"tags": 5}, InvalidInput),
    ({"summary": None}, InvalidInput),
    ({"next_node": 1}, InvalidInput),
    ({"metadata": [1]}, InvalidInput),
    ({"metadata": {"a": NOON}}, InvalidJson),
    ({"namespace": None}, InvalidInput),
    ({"namespace": "😀" * 255, "thread_id": "😀" * 255, "checkpoint_id": "😀" * 255},
     InvalidInput),
    ({"run_id": ""}, InvalidInput),
    ({"created_at": NOON.replace(tzinfo=None)}, NaiveDatetime),
    ({"created_at": "today"}, InvalidInput),
    ({"session_id": "nowhere", "thread_id": "new"}, NotFound),
    ({"user_id": "nobody", "thread_id": "new"}, NotFound),
    ({"user_id": "nobody"}, NotFound),
]  # fmt: skip


def test_what_cannot_be_put_is_refused_and_leaves_nothing(place, store, subtests):
    store.checkpoints.put("thread", history(3), "first")
    store.checkpoints.put("other", {}, "of another thread")
    before = {name: rows(place, f"checkpoint{name}") for name in ("s", "_values", "_threads")}
    for bad, error in BAD_PUTS:
        with subtests.test(bad=bad):
            arguments = {"thread_id": "thread", "values": history(4), **bad}
            with pytest.raises(error):
                store.checkpoints.put(**arguments)
            with store.transaction() as tx, pytest.raises(error):
                tx.checkpoints.put(**arguments)
    after = {name: rows(place, f"checkpoint{name}") for name in before}
    assert after == before


def test_a_step_beyond_the_last_number_is_refused(store):
    store.checkpoints.put("thread", {}, step=2**63 - 1)
    with pytest.raises(InvalidInput, match="step"):
        store.checkpoints.put("thread", {})


BAD_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception]]] = [
    ("get", ("nowhere",), {}, NotFound),
    ("get", (1,), {}, InvalidInput),
    ("get", ("first", "other"), {}, NotFound),
    ("get", ("first",), {"namespace": "inner"}, InvalidInput),
    ("latest", (1,), {}, InvalidInput),
    ("list", ("thread",), {"limit": 0}, LimitOutOfRange),
    ("list", ("thread",), {"cursor": "nonsense"}, InvalidCursor),
    ("list", ("thread",), {"order": "time"}, InvalidInput),
    ("list", ("thread",), {"before": "first"}, InvalidInput),
    ("list", ("thread",), {"where": ["a"]}, InvalidInput),
    ("list", ("thread",), {"writes": 1}, InvalidInput),
    ("latest", ("thread",), {"order": "time"}, InvalidInput),
    ("find", ("first",), {"writes": "yes"}, InvalidInput),
    ("delete", ("nowhere", []), {}, NotFound),
    ("delete", ("thread", "first"), {}, InvalidInput),
    ("prune", ("thread",), {"keep_ids": "first"}, InvalidInput),
    ("copy_thread", ("thread", "thread"), {"on_existing": "replace"}, InvalidInput),
    ("copy_thread", ("nowhere", "other"), {"on_existing": "replace"}, NotFound),
    ("threads", (), {"user_id": 1}, InvalidInput),
    ("path", ("nowhere",), {}, NotFound),
    ("fork", ("nowhere",), {}, NotFound),
    ("fork", ("first",), {"thread_id": "other"}, NotFound),
    ("fork", ("first",), {"to_thread": "other"}, AlreadyExists),
    ("fork", ("first",), {"to_thread": ""}, InvalidInput),
    ("rewind", ("nowhere", 0), {}, NotFound),
    ("rewind", ("thread", 7), {}, NotFound),
    ("rewind", ("thread", -1), {}, InvalidInput),
    ("copy_thread", ("nowhere", "new"), {}, NotFound),
    ("copy_thread", ("thread", "other"), {}, AlreadyExists),
    ("delete_thread", ("nowhere",), {}, NotFound),
    ("delete_before", ("nowhere", 1), {}, NotFound),
    ("delete_before", ("thread", -1), {}, InvalidInput),
    ("delete_before", ("thread", "1"), {}, InvalidInput),
    ("delete_run", ("",), {}, InvalidInput),
    ("prune", ("thread",), {}, InvalidInput),
    ("prune", ("thread",), {"keep_last": -1}, InvalidInput),
    ("prune", ("thread",), {"max_age": 5}, InvalidInput),
    ("prune", ("thread",), {"max_age": timedelta(days=-1)}, InvalidInput),
    ("prune", ("thread",), {"max_age": timedelta.max}, InvalidInput),
    ("prune", ("thread",), {"keep_tags": [1]}, InvalidInput),
    ("prune", ("thread",), {"keep_last": 1, "dry_run": "no"}, InvalidInput),
    ("prune", ("nowhere",), {"keep_last": 1}, NotFound),
    ("put_writes", ("thread", "first", "", []), {}, InvalidInput),
    ("put_writes", ("thread", "", "t", []), {}, InvalidInput),
    ("put_writes", ("thread", "first", "t", "ab"), {}, InvalidInput),
    ("put_writes", ("thread", "first", "t", [("c",)]), {}, InvalidInput),
    ("put_writes", ("thread", "first", "t", [(1, 2)]), {}, InvalidInput),
    ("put_writes", ("thread", "first", "t", [("c", float("nan"))]), {}, InvalidJson),
    ("put_writes", ("thread", "first", "t", [("c", 1)]), {"positions": [0, 1]}, InvalidInput),
    ("put_writes", ("thread", "first", "t", [("c", 1)]), {"positions": ["0"]}, InvalidInput),
    ("put_writes", ("thread", "first", "t", [("c", 1)]), {"session_id": "nowhere"}, NotFound),
]


def test_what_makes_no_sense_is_refused_and_changes_nothing(store, subtests):
    store.checkpoints.put("thread", history(3), "first")
    store.checkpoints.put("other", {}, "of another thread")
    before = store.checkpoints.threads(), store.usage.totals().rows
    for name, arguments, options, error in BAD_CALLS:
        described = {"call": name, "arguments": arguments, "options": options}
        with subtests.test(**described), pytest.raises(error):
            getattr(store.checkpoints, name)(*arguments, **options)
    assert (store.checkpoints.threads(), store.usage.totals().rows) == before


@dataclass
class Model:
    """A thread as a plain program would keep it: every checkpoint with a copy of everything."""

    checkpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    puts: int = 0

    def add(self, id: str, parent: str | None, step: int, values: Any, tags: Any = ()) -> None:
        self.puts += 1
        order = self.checkpoints[id]["order"] if id in self.checkpoints else self.puts
        self.checkpoints[id] = {
            "parent": parent,
            "step": step,
            "order": order,
            "values": values,
            "tags": tuple(tags),
        }

    def listed(self) -> list[str]:
        found = self.checkpoints
        return sorted(found, key=lambda id: (-found[id]["step"], -found[id]["order"]))

    def path(self, id: str | None) -> list[str]:
        path = []
        while id is not None:
            path.append(id)
            id = self.checkpoints[id]["parent"]
        return path

    def remove(self, doomed: set[str]) -> int:
        for found in self.checkpoints.values():
            while found["parent"] in doomed:
                found["parent"] = self.checkpoints[found["parent"]]["parent"]
        for id in doomed:
            del self.checkpoints[id]
        return len(doomed)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["grow"] * 4
            + ["change", "shrink", "replace", "same", "state", "again", "side", "side"]
            + ["fork", "rewind", "before", "prune", "milestones", "copy"]
        ),
        st.integers(0, 20),
        st.integers(0, 20),
    ),
    min_size=4,
    max_size=30,
)


@pytest.mark.long(but=["sqlite3"])
@settings(max_examples=15 if FULL else 8)
@given(operations=OPERATIONS)
def test_a_thread_is_what_a_plain_model_says_whatever_is_done_to_it(place, store, operations):
    thread, model = str(uuid.uuid4()), Model()
    for number, (what, one, two) in enumerate(operations):
        step_through(store, thread, model, what, one, two, fresh=number * 100)
        check(store, thread, model, everything=number % 5 == 0)
        if what == "copy" and model.checkpoints:
            copy = str(uuid.uuid4())
            assert store.checkpoints.copy_thread(thread, copy) == len(model.checkpoints)
            for mine, copied in zip(listed(store, thread), listed(store, copy), strict=True):
                copied_values = store.checkpoints.get(copied.id).values
                assert copied_values == model.checkpoints[mine.id]["values"]
            store.checkpoints.delete_thread(copy)
    check(store, thread, model, everything=True)
    require_no_garbage(place)
    if store.checkpoints.threads().items:
        store.checkpoints.delete_thread(thread)
    assert rows(place, "checkpoint_values") == []


def step_through(
    store: Any, thread: str, model: Model, what: str, one: int, two: int, fresh: int
) -> None:
    order = model.listed()
    latest = order[0] if order else None
    chosen = order[one % len(order)] if order else None
    parent = chosen if what == "side" else latest
    base = model.checkpoints[parent]["values"] if parent else {"messages": [], "state": 0}
    items = list(base["messages"])
    if what == "again" and chosen:
        values = {"messages": [*model.checkpoints[chosen]["values"]["messages"], fresh]}
        values["state"] = fresh
        store.checkpoints.put(thread, values, chosen)
        kept = model.checkpoints[chosen]
        model.add(chosen, kept["parent"], kept["step"], values)
    elif what == "fork" and chosen:
        found = store.checkpoints.fork(chosen)
        kept = model.checkpoints[chosen]
        model.add(found.id, chosen, kept["step"] + 1, kept["values"])
    elif what == "rewind" and order:
        path = model.path(latest)
        target = path[one % len(path)]
        found = store.checkpoints.rewind(thread, model.checkpoints[target]["step"])
        assert found.id == target
        model.remove(set(order[: order.index(target)]))
    elif what == "before" and order:
        step = two % 4
        doomed = {id for id in order if model.checkpoints[id]["step"] < step}
        gone = store.checkpoints.delete_before(thread, step).rows.get("checkpoints", 0)
        assert gone == model.remove(doomed)
    elif what in ("prune", "milestones") and order:
        kept_ids = set(order[: max(1, one % 5)])
        policy: dict[str, Any] = {"keep_last": one % 5}
        if what == "milestones":
            policy["keep_tags"] = "m"
            kept_ids |= {id for id in order if "m" in model.checkpoints[id]["tags"]}
        gone = store.checkpoints.prune(thread, **policy).rows.get("checkpoints", 0)
        assert gone == model.remove(set(order) - kept_ids)
    elif what != "copy":
        if what in ("grow", "side"):
            items += [{"n": fresh + n} for n in range(two % 4)]
        elif what == "change" and items:
            items[two % len(items)] = {"changed": fresh}
        elif what == "shrink":
            items = items[: two % (len(items) + 1)]
        elif what == "replace":
            items = [{"other": fresh + n} for n in range(two % 6)]
        values = {"messages": items, "state": fresh if what == "state" else base["state"]}
        tags = ["m"] if two % 3 == 0 else []
        found = store.checkpoints.put(
            thread, values, parent_id=parent if what == "side" else None, tags=tags
        )
        step = model.checkpoints[parent]["step"] + 1 if parent else 0
        model.add(found.id, parent, step, values, tags)


def check(store: Any, thread: str, model: Model, *, everything: bool) -> None:
    found = store.checkpoints.list(thread, limit=100).items
    assert [c.id for c in found] == model.listed()
    for info in found if everything else found[:1]:
        expected = model.checkpoints[info.id]
        assert (info.parent_id, info.step) == (expected["parent"], expected["step"])
        assert info.tags == expected["tags"]
        assert store.checkpoints.get(info.id, thread).values == expected["values"]
    if everything and found:
        assert [c.id for c in store.checkpoints.path(found[0].id)] == model.path(found[0].id)
        tree = store.checkpoints.tree(thread)
        assert set(tree.checkpoints) == set(model.checkpoints)


def test_the_tables_hold_nothing_of_threads_that_are_gone(place, store):
    for n in range(3):
        store.checkpoints.put("thread", history(n))
    store.checkpoints.delete_thread("thread")
    engine = create_engine(place.url)
    with engine.connect() as connection:
        for name in ("checkpoints", "checkpoint_values"):
            count = select(func.count()).select_from(tables()[name])
            assert connection.execute(count).scalar() == 0
    engine.dispose()


@pytest.mark.parametrize("thread", ["t" * 256, "t" * 1_024, "名" * 341, "\x00" * 100])
def test_the_id_of_a_thread_may_be_longer_than_other_keys(store, thread):
    saved = store.checkpoints.put(thread, {"a": 1})
    assert store.checkpoints.get(thread_id=thread, checkpoint_id=saved.id).values == {"a": 1}
    store.checkpoints.copy_thread(thread, thread[:-1] + "u")
    assert [each.thread_id for each in store.checkpoints.list(thread).items] == [thread]
    store.checkpoints.delete_thread(thread)
    for wrong in ("", thread + "x" * 1_024):
        with pytest.raises(InvalidInput, match=r"thread_id must be|Shorten"):
            store.checkpoints.put(wrong, {"a": 1})
