"""Messages are saved all or none, in order, counted, found and taken back."""

import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from agentstore import Store, errors
from agentstore.engines.sqlite.append import FileWrites
from agentstore.retention import RetentionPolicy
from tests.contract.clocks import at_once

ROLES = ("system", "developer", "user", "assistant", "tool")
THREADS = 8


def user(content, **more):
    return {"role": "user", "content": content, **more}


def call(tool, call_id=None):
    return {"id": call_id or f"call-{tool}", "type": "function", "function": {"name": tool}}


def contents(messages):
    return [message.content for message in messages]


def history(store, session):
    return store.messages.history(session.id, None, unanswered="keep")


def assert_empty(store, session):
    found = store.sessions.get(session.id)
    assert (found.message_count, found.last_seq) == (0, 0)
    assert history(store, session) == []


@pytest.fixture(autouse=True)
def counters_agree_at_the_end(request):
    """Hold for each test here that the counters of every session are what its rows add up to."""
    store = request.getfixturevalue("store") if "store" in request.fixturenames else None
    yield
    if store is not None:
        for session in store.sessions.list(limit=1000):
            counters = store.sessions.verify(session.id)
            assert counters.agree, counters


# --- Saving --------------------------------------------------------------------------------------


def test_an_unknown_role_is_refused(store, session, subtests):
    for role in ("User", "function", "", "user ", None, 5, ["user"]):
        with subtests.test(role=role):
            with pytest.raises(errors.InvalidInput, match="assistant"):
                store.messages.save(session.id, role, "hello")
            with pytest.raises(errors.InvalidInput, match=r"messages\[0\].*assistant"):
                store.messages.save_many(session.id, [{"role": role, "content": "hello"}])
    assert_empty(store, session)


def test_a_batch_of_more_than_a_thousand_is_one_write(store, session):
    batch = [
        {
            "role": "assistant",
            "content": f"message {n}",
            "token_count": 1,
            "external_id": f"x{n}",
            "tool_calls": [call("even" if n % 2 == 0 else "odd", f"c{n}")],
        }
        for n in range(1200)
    ]
    saved = store.messages.save_many(session.id, batch)
    assert store.messages.save_many(session.id, batch) == saved
    assert history(store, session) == saved
    assert store.messages.find_by_tool(session.id, "odd").items[0] == saved[-1]
    assert store.messages.delete([message.id for message in saved] * 2) == 1200


BAD = [
    {"content": "no role"},
    {"role": "robot"},
    {"role": "user", "content": 5},
    {"role": "user", "content": {"type": "text"}},
    {"role": "user", "content": [{"when": datetime(2025, 1, 1, tzinfo=UTC)}]},
    {"role": "user", "metadata": [1]},
    {"role": "user", "metadata": {"n": float("nan")}},
    {"role": "user", "payload": {1: 2}},
    {"role": "assistant", "tool_calls": {"name": "search"}},
    {"role": "assistant", "tool_calls": ["search"]},
    {"role": "tool", "tool_call_id": 5},
    {"role": "user", "name": b"ada"},
    {"role": "user", "token_count": -1},
    {"role": "user", "token_count": 1.0},
    {"role": "user", "token_count": True},
    {"role": "user", "token_count": 10**40},
    {"role": "user", "cost": -1},
    {"role": "user", "cost": 0.1},
    {"role": "user", "cost": "0.0000000001"},
    {"role": "user", "cost": "much"},
    {"role": "user", "external_id": ""},
    {"role": "user", "external_id": "x" * 256},
    {"role": "user", "tokens": 5},
    {"role": "user", "seq": 1},
    "user",
    None,
]


def test_one_bad_message_in_the_middle_leaves_none_of_the_batch(store, session, subtests):
    for bad in BAD:
        with subtests.test(bad=bad), pytest.raises(errors.InvalidInput, match=r"messages\[1\]"):
            store.messages.save_many(session.id, [user("before"), bad, user("after")])
    assert_empty(store, session)


def test_a_batch_is_a_list_and_nothing_that_can_be_read_only_once(store, session, subtests):
    once = ({"role": "user"} for _ in range(2))
    for messages in ("hello", {"role": "user"}, None, 5, iter([]), once):
        with subtests.test(messages=messages), pytest.raises(errors.InvalidInput, match="list"):
            store.messages.save_many(session.id, messages)
    assert store.messages.save_many(session.id, ()) == []
    assert store.messages.save_many(session.id, [], idempotency_key="k") == []
    assert_empty(store, session)
    assert len(store.messages.save_many(session.id, {"a": user("a")}.values())) == 1


def test_counters_that_disagree_with_the_rows_are_told(place):
    with place.open() as store:
        session = store.sessions.create()
        store.messages.save(session.id, "user", token_count=5, cost="0.5")
        engine = create_engine(place.url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE sessions SET total_tokens = 6, total_cost = 0"))
        engine.dispose()
        counters = store.sessions.verify(session.id)
        assert counters.stored == (1, 6, Decimal(0))
        assert counters.counted == (1, 5, Decimal("0.5"))
        assert not counters.agree


operations = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.sampled_from(ROLES), st.integers(0, 9)),
        st.tuples(st.just("save_many"), st.lists(st.sampled_from(ROLES), max_size=4)),
        st.tuples(st.just("pop")),
        st.tuples(st.just("delete"), st.sets(st.integers(0, 9), max_size=3)),
        st.tuples(st.just("clear")),
    ),
    max_size=12,
)


@settings(max_examples=12)
@given(operations)
def test_messages_are_what_a_list_would_hold_and_counters_what_it_adds_up_to(store, operations):
    session = store.sessions.create()
    messages = store.messages
    expected = []
    for operation, *arguments in operations:
        if operation == "save":
            role, tokens = arguments
            expected.append(messages.save(session.id, role, token_count=tokens, cost=f"0.{tokens}"))
        elif operation == "save_many":
            batch = [{"role": role, "token_count": 1} for role in arguments[0]]
            expected += messages.save_many(session.id, batch)
        elif operation == "pop":
            assert messages.pop(session.id) == (expected.pop() if expected else None)
        elif operation == "delete":
            gone = [m for n, m in enumerate(expected) if n in arguments[0]]
            assert messages.delete([m.id for m in gone], session_id=session.id) == len(gone)
            expected = [m for m in expected if m not in gone]
        else:
            assert messages.clear(session.id) == len(expected)
            expected = []
        counters = store.sessions.verify(session.id)
        assert counters.stored == counters.counted
        assert counters.counted == (
            len(expected),
            sum(m.token_count for m in expected),
            sum((m.cost for m in expected), Decimal(0)),
        )
    assert messages.history(session.id, None) == expected
    assert [m.seq for m in expected] == sorted({m.seq for m in expected})


@settings(max_examples=12)
@given(st.lists(st.lists(st.sampled_from(ROLES), min_size=1, max_size=4), max_size=6))
def test_a_user_message_begins_a_turn_and_what_precedes_the_first_is_turn_0(store, batches):
    session = store.sessions.create()
    for batch in batches:
        if len(batch) == 1:
            store.messages.save(session.id, batch[0])
        else:
            store.messages.save_many(session.id, [{"role": role} for role in batch])
    turn, expected = 0, []
    for role in (role for batch in batches for role in batch):
        turn += role == "user"
        expected.append((role, turn))
    found = store.messages.history(session.id, None)
    assert [(message.role, message.turn) for message in found] == expected


def test_a_turn_that_was_taken_back_is_counted_again(store, session):
    messages = store.messages
    messages.save_many(session.id, [user("one"), {"role": "assistant"}, user("two")])
    messages.pop(session.id)
    assert messages.save(session.id, "assistant").turn == 1
    assert messages.save(session.id, "user").turn == 2
    messages.clear(session.id)
    assert messages.save(session.id, "system").turn == 0
    assert messages.save(session.id, "user").turn == 1


def test_delete_takes_a_list_of_ids(store, session, subtests):
    store.messages.save(session.id, "user", "stays")
    for ids in ("an id", None, 5, [5], [None], [b"id"]):
        with subtests.test(ids=ids), pytest.raises(errors.InvalidInput, match="ids"):
            store.messages.delete(ids)
    assert contents(history(store, session)) == ["stays"]


def test_a_message_is_found_by_its_external_id_in_its_session_only(store, session):
    other = store.sessions.create()
    mine = store.messages.save(session.id, "user", "mine", external_id="x")
    theirs = store.messages.save(other.id, "user", "theirs", external_id="x")
    assert store.messages.find_by_external_id(session.id, "x") == mine
    assert store.messages.find_by_external_id(other.id, "x") == theirs
    assert store.messages.find_by_external_id(session.id, "X") is None
    store.messages.pop(session.id)
    assert store.messages.find_by_external_id(session.id, "x") is None
    assert store.messages.save(session.id, "user", "new", external_id="x").content == "new"


def test_an_external_id_twice_in_a_batch_is_one_message_or_refused(store, session):
    batch = [user("a", external_id="x"), user("b"), user("c", external_id="x"), user("d")]
    with pytest.raises(errors.AlreadyExists) as caught:
        store.messages.save_many(session.id, batch, on_duplicate="refuse")
    assert caught.value.key == "x"
    assert_empty(store, session)
    given = store.messages.save_many(session.id, batch)
    assert contents(given) == ["a", "b", "a", "d"]
    assert given[0] == given[2]
    assert [message.seq for message in history(store, session)] == [1, 2, 3]


# --- A session that the writer left --------------------------------------------------------------


def visit_another_branch(store, id):
    store.branches.create(id, after_turn=0)
    store.messages.save(id, "user", "theirs")
    store.branches.switch(id, "main")


def make_again(store, id):
    store.sessions.delete(id)
    store.sessions.ensure(id)


CHANGES = {
    "a message": lambda store, id: store.messages.save(id, "assistant", "theirs"),
    "a message of another session": lambda store, id: store.messages.save(
        store.sessions.create().id, "user", "theirs"
    ),
    "a message in a stream": lambda store, id: store.messages.finish(store.messages.begin(id).id),
    "the last message taken back": lambda store, id: store.messages.pop(id),
    "all messages deleted": lambda store, id: store.messages.clear(id),
    "another branch": lambda store, id: store.branches.create(id, after_turn=0),
    "another branch and back": visit_another_branch,
    "another session of its id": make_again,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_save_counts_on_from_what_was_written_after_the_one_before(place, change):
    with place.open() as store, place.open() as other:
        id = store.sessions.create().id
        for role in ("assistant", "user", "assistant", "user"):
            store.messages.save(id, role, "ours")
        for who in (other, store):
            CHANGES[change](who, id)
            before = store.sessions.get(id)
            saved = [store.messages.save(id, role, "after it") for role in ("user", "assistant")]
            assert store.messages.history(id, 2) == saved
            assert [each.seq - before.last_seq for each in saved] == [1, 2]
            assert store.sessions.verify(id).agree
        order = [session.id for session in other.sessions.list()]
        assert order[0] == id, "it is the one that was active last"


def test_a_save_into_a_session_that_others_deleted_says_so(place):
    with place.open() as store, place.open() as other:
        id = store.sessions.create().id
        store.messages.save(id, "user", "ours")
        other.sessions.delete(id)
        with pytest.raises(errors.NotFound):
            store.messages.save(id, "user", "late")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("sessions SET last_seq = last_seq + 5", (8, 3, "main")),
        ("sessions SET turn = turn + 5", (3, 8, "main")),
        ("sessions SET active_branch = 1", (3, 3, "side")),
        ("sessions SET total_tokens = 1 << 62", errors.CounterOverflow),
        ("users SET deleting = 1", errors.NotFound),
    ],
)
def test_a_save_sees_what_was_changed_by_hand_since_the_one_before(tmp_path, change, found):
    with Store(f"sqlite:///{tmp_path}/a.db") as store:
        user_id = store.users.create("ada").id
        id = store.sessions.create(user_id=user_id).id
        store.branches.create(id, name="side")
        store.branches.switch(id, "main")
        for _ in range(2):
            store.messages.save(id, "user", "before")
        with closing(sqlite3.connect(tmp_path / "a.db")) as by_hand, by_hand:
            by_hand.execute(f"UPDATE {change}")
        if isinstance(found, tuple):
            saved = store.messages.save(id, "user", "after")
            assert (saved.seq, saved.turn, saved.branch) == found
        else:
            with pytest.raises(found):
                store.messages.save(id, "user", "after")


def test_what_a_save_that_was_rolled_back_would_have_left_is_not_believed(tmp_path, monkeypatch):
    with Store(f"sqlite:///{tmp_path}/a.db") as store:
        id = store.sessions.create().id
        store.messages.save(id, "user", "first")
        with monkeypatch.context() as failing:
            late = Mock(side_effect=errors.DatabaseBusy("after the append"))
            failing.setattr(FileWrites, "require_file", late)
            with pytest.raises(errors.DatabaseBusy):
                store.messages.save(id, "user", "rolled back")
        assert [store.messages.save(id, "user", "then").seq for _ in range(2)] == [2, 3]


# --- Idempotency keys ----------------------------------------------------------------------------


def test_a_repeated_batch_gives_the_first_ones_result_and_writes_nothing(store, session):
    batch = [user("a"), user("b", external_id="x"), {"role": "assistant", "content": "c"}]
    store.messages.save(session.id, "system", "before")
    first = store.messages.save_many(session.id, batch, idempotency_key="k")
    store.messages.save(session.id, "user", "after")
    assert store.messages.save_many(session.id, batch, idempotency_key="k") == first
    assert (
        store.messages.save_many(session.id, batch, idempotency_key="k", on_duplicate="refuse")
        == first
    )
    assert contents(history(store, session)) == ["before", "a", "b", "c", "after"]


def test_another_call_with_a_key_that_is_used_gets_what_the_first_one_wrote(store, session):
    save, begin = store.messages.save, store.messages.begin
    first = save(session.id, "user", "a", external_id="x", idempotency_key="k")
    assert save(session.id, "user", "b", idempotency_key="k") == first
    assert save(session.id, "user", "b", external_id="y", idempotency_key="k") == first
    assert begin(session.id, external_id="y", idempotency_key="k") == first
    assert contents(history(store, session)) == ["a"]


@settings(max_examples=12)
@given(
    there=st.lists(st.sampled_from("xyz"), unique=True),
    batch=st.lists(st.sampled_from(["x", "y", "z", None]), min_size=1, max_size=6),
)
def test_a_repeated_batch_gives_the_same_though_some_of_it_was_skipped(store, there, batch):
    session = store.sessions.create()
    store.messages.save_many(session.id, [user("there", external_id=x) for x in there])
    messages = [user(f"{n}", external_id=x) for n, x in enumerate(batch)]
    first = store.messages.save_many(session.id, messages, idempotency_key="k")
    store.messages.save_many(session.id, [user("after"), user("later")])
    before = history(store, session)
    assert store.messages.save_many(session.id, messages, idempotency_key="k") == first
    assert history(store, session) == before


def test_a_call_that_failed_has_not_used_its_key_up(store, session):
    for key in ("", "x" * 256, 5, b"key"):
        with pytest.raises(errors.InvalidInput, match="idempotency_key"):
            store.messages.save(session.id, "user", "a", idempotency_key=key)
    with pytest.raises(errors.InvalidJson):
        store.messages.save(session.id, "user", payload={1, 2}, idempotency_key="k")
    assert store.messages.save(session.id, "user", payload=[1, 2], idempotency_key="k").seq == 1


def test_a_rival_that_takes_the_same_key_in_between_is_found_or_comes_too_late(place):
    """The rival writes after the store has looked for the key and before it writes itself.

    The store's clock is where it can: it is asked in between. Where the engine has one writer,
    the rival gives up.
    """
    writes = iter(())

    def clock():
        with suppress(errors.DatabaseBusy):
            next(writes, lambda: None)()
        return datetime.now(UTC)

    with (
        place.open(busy_timeout=0.05, max_retries=0) as rival,
        place.open(clock=clock) as store,
    ):
        session, other = rival.sessions.create(), rival.sessions.create()
        taking = {"external_id": "k"}
        writes = iter([lambda: rival.messages.save(session.id, "user", "rival", **taking)])
        batch = [user("a"), user("b", **taking), user("c")]
        given = store.messages.save_many(session.id, batch)
        there = history(store, session)
        assert {message.id for message in given} == {message.id for message in there}
        assert (contents(given), contents(there)) in (
            (["a", "b", "c"], ["a", "b", "c"]),
            (["a", "rival", "c"], ["rival", "a", "c"]),
        )
        taking = {"idempotency_key": "k"}
        writes = iter([lambda: rival.messages.save(other.id, "user", "rival", **taking)])
        given = store.messages.save(other.id, "user", "a", **taking)
        assert given.content in ("a", "rival")
        assert history(store, other) == [given]
        assert next(writes, None) is None


def test_a_message_that_calls_a_tool_twice_is_listed_once_on_any_page(store, session):
    saved = store.messages.save_many(
        session.id,
        [
            {
                "role": "assistant",
                "tool_calls": [call("other"), *[call("search", f"{n}-{k}") for k in range(n)]],
            }
            for n in range(1, 6)
        ],
    )
    for limit in (1, 2, 3, 5, 6):
        found, cursor = [], None
        while True:
            page = store.messages.find_by_tool(session.id, "search", limit=limit, cursor=cursor)
            found += page
            if (cursor := page.next_cursor) is None:
                break
            assert len(page) == limit
        assert found == saved[::-1]


def test_calls_without_a_name_or_an_id_are_kept_as_they_are(store, session):
    calls = [{}, {"id": None, "name": None}, {"id": "c"}, {"function": "search"}, {"name": ["x"]}]
    saved = store.messages.save(session.id, "assistant", tool_calls=calls)
    assert store.messages.get(saved.id).tool_calls == calls
    assert store.messages.find_by_tool(session.id, "search").items == ()


def test_threads_that_pop_take_each_message_once(store, session):
    saved = store.messages.save_many(session.id, [user(f"{n}") for n in range(THREADS + 2)])
    popped = at_once(THREADS, lambda _: store.messages.pop(session.id), ())
    assert sorted(popped, key=lambda m: m.seq) == saved[2:]
    assert history(store, session) == saved[:2]


def test_threads_that_save_and_take_back_leave_counters_that_agree(store, session):
    saved = store.messages.save_many(session.id, [user(f"{n}", token_count=1) for n in range(9)])

    def work(number):
        if number % 4 == 0:
            return store.messages.delete([message.id for message in saved[:6]])
        if number % 4 == 1:
            store.messages.save(session.id, "user", token_count=2)
        elif number % 4 == 2:
            store.messages.save_many(session.id, [user("a", cost="0.1"), user("b")])
        return 0

    assert sum(at_once(THREADS, work, ())) == 6
    assert store.sessions.get(session.id).message_count == 9 - 6 + 2 * 1 + 2 * 2


# --- Transactions --------------------------------------------------------------------------------


# --- Changing a message ----------------------------------------------------------------------


def test_an_update_changes_what_is_given_and_nothing_else(store, session):
    made = call("search")
    given_once = {
        "tool_calls": [made], "name": "bot", "token_count": 7, "cost": "0.5", "metadata": {"a": 1},
        "payload": {"p": 1}, "external_id": "e", "marks": ["x"],
    }  # fmt: skip
    old = store.messages.save(session.id, "assistant", "old words", **given_once)
    attached = store.attachments.add(old.id, b"x", "text/plain")
    assert store.messages.update(old.id) == old
    new = store.messages.update(old.id, content="new words")
    assert new == replace(old, content="new words") == store.messages.get(old.id)
    assert store.messages.history(session.id, unanswered="keep") == [new]
    assert store.messages.find_by_external_id(session.id, "e") == new
    assert store.messages.find_by_tool(session.id, "search").items == (new,)
    assert store.marks.of([old.id]) == {old.id: ("x",)}
    assert store.attachments.list(old.id).items == (attached,)
    new = store.messages.update(old.id, metadata={"b": 2}, payload=None, content=[{"text": "t"}])
    assert new == replace(old, metadata={"b": 2}, payload=None, content=[{"text": "t"}])
    new = store.messages.update(old.id, metadata=None, content=None)
    assert (new.metadata, new.content, new.tool_calls) == (None, None, [made])
    assert store.messages.find_by_tool(session.id, "search").items == (new,)


def test_marks_follow_an_update(store, session):
    message = store.messages.save(session.id, "user", "hello", marks=["a", "b"])
    store.messages.update(message.id, marks=["b", "c"])
    assert store.marks.count(session.id) == {"b": 1, "c": 1}
    assert store.messages.history(session.id, mark="a") == []
    assert store.messages.history(session.id, mark="c") == [message]
    store.messages.update(message.id, marks=None)
    assert store.marks.count(session.id) == {}


def test_searches_and_counters_follow_an_update(store, session):
    message = store.messages.save(session.id, "user", "zebra", token_count=5, cost="0.25")
    store.messages.save(session.id, "user", "rest", token_count=1)
    assert len(store.messages.search("zebra")) == 1
    new = store.messages.update(message.id, content="giraffe", token_count=2, cost=1)
    assert len(store.messages.search("zebra")) == 0
    assert [hit.message for hit in store.messages.search("giraffe")] == [new]
    now = store.sessions.get(session.id)
    assert (now.message_count, now.total_tokens, now.total_cost) == (2, 3, 1)
    assert store.sessions.verify(session.id).agree
    store.messages.update(message.id, content="Elefant")
    assert store.sessions.get(session.id).total_tokens == 3


def test_every_branch_that_shows_a_message_shows_it_changed(store, session):
    message = store.messages.save(session.id, "user", "shared")
    store.messages.save(session.id, "assistant", "answer")
    store.branches.create(session.id, name="idea")
    changed = store.messages.update(message.id, content="changed")
    for branch in ("main", "idea"):
        assert store.messages.history(session.id, branch=branch)[0] == changed
        (turn,) = store.branches.turns(session.id, branch=branch)
        assert (turn.number, turn.text) == (1, "changed")


def test_an_update_is_refused_where_it_cannot_be_right(store, session):
    message = store.messages.save(session.id, "user", "hello")
    stream = store.messages.begin(session.id)
    with pytest.raises(errors.StreamUnfinished):
        store.messages.update(stream.id, metadata={"a": 1})
    store.messages.append(stream.id, "half")
    store.messages.abort(stream.id)
    assert store.messages.update(stream.id, content="whole").status == "incomplete"
    for bad in ({"content": 5}, {"metadata": [1]}, {"marks": [""]}, {"token_count": -1}):
        with pytest.raises(errors.InvalidInput):
            store.messages.update(message.id, **bad)
    with pytest.raises(errors.NotFound):
        store.messages.update("no such message", content="x")
    other = store.users.create("Eve")
    with pytest.raises(errors.NotFound):
        store.scoped(other.id).messages.update(message.id, content="x")
    with pytest.raises(RuntimeError), store.transaction() as tx:
        tx.messages.update(message.id, content="x")
        raise RuntimeError
    assert store.messages.get(message.id) == message


def test_what_would_end_after_the_calendar_ends_with_it(place):
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    year = timedelta(days=365)
    with place.open(clock=lambda: last) as store:
        end = datetime.max.replace(tzinfo=UTC)
        user = store.users.create("Ada", quota_total=10).id
        assert store.users.reserve_quota(user, 1, ttl=year).expires_at == end
        session = store.sessions.create(user, ttl=year)
        assert session.expires_at == end
        assert store.sessions.update(session.id, ttl=2 * year).expires_at == end
        store.memories.put(("a",), "key", {}, ttl=year, user_id=user)
        store.tasks.create(session.id, "t", max_retries=1)
        (task,) = store.tasks.claim("worker")
        assert task.lease_expires_at == end
        assert last < store.tasks.fail(task.id, fence=task.fence).run_at <= end
        assert store.sessions.delete_expired().rows == {}
        store.prune(RetentionPolicy(expired_sessions=True, expired_memories=True))
        assert store.sessions.find(session.id) is not None


def test_what_would_be_from_before_the_calendar_is_from_its_beginning(place):
    first = datetime(1, 1, 1, 0, 0, 2, tzinfo=UTC)
    with place.open(clock=lambda: first) as store:
        session = store.sessions.create().id
        begun = store.messages.begin(session)
        assert store.messages.abort_stale() == 0
        assert [message.status for message in store.messages.history(session)] == ["streaming"]
        store.messages.finish(begun.id)


def test_messages_may_be_of_the_last_minute_of_the_calendar(place):
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    with place.open(clock=lambda: last) as store:
        session = store.sessions.create().id
        saved = store.messages.save_many(session, [{"role": "user", "content": "x"}] * 2)
        assert [message.created_at for message in saved] == [last, last]
        assert store.messages.history(session) == [*saved]


def test_the_text_of_a_message_is_what_it_says_however_it_was_saved(store):
    session = store.sessions.create()
    blocks = [{"type": "text", "text": "two"}, {"type": "image", "source": {"data": "aGk="}}]
    new = [user("one"), user(blocks), user(None, payload={"output": "three"}), user(None)]
    store.messages.save_many(session.id, new)
    found = store.messages.history(session.id)
    assert [message.text for message in found] == ["one", "two", "three", ""]
