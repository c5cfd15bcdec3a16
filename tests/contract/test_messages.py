"""Messages are saved all or none, in order, counted, found and taken back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from agentstore.errors import AlreadyExists, DatabaseBusy, InvalidInput, InvalidJson, NotFound

ROLES = ("system", "developer", "user", "assistant", "tool")
THREADS = 8


def user(content, **more):
    return {"role": "user", "content": content, **more}


def call(tool, call_id=None):
    return {"id": call_id or f"call-{tool}", "type": "function", "function": {"name": tool}}


def contents(messages):
    return [message.content for message in messages]


def history(store, session):
    return store.messages.history(session.id, None)


def at_once(work, count=THREADS):
    """Run ``work(n)`` in so many threads that begin together, and give the results in order."""
    barrier = threading.Barrier(count)

    def begin(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


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


def test_each_role_can_speak(store, session):
    saved = [store.messages.save(session.id, role, f"as {role}") for role in ROLES]
    many = store.messages.save_many(session.id, [{"role": role} for role in ROLES])
    assert [message.role for message in saved + many] == [*ROLES, *ROLES]
    assert history(store, session) == saved + many


def test_an_unknown_role_is_refused(store, session, subtests):
    for role in ("User", "function", "", "user ", None, 5, ["user"]):
        with subtests.test(role=role):
            with pytest.raises(InvalidInput, match="assistant"):
                store.messages.save(session.id, role, "hello")
            with pytest.raises(InvalidInput, match=r"messages\[0\].*assistant"):
                store.messages.save_many(session.id, [{"role": role, "content": "hello"}])
    assert_empty(store, session)


def test_what_is_written_to_a_session_that_is_not_there_is_refused(store, session):
    messages = store.messages
    for write in (
        lambda: messages.save("nowhere", "user", "hello"),
        lambda: messages.save("nowhere", "user", "hello", idempotency_key="k", external_id="x"),
        lambda: messages.save_many("nowhere", [user("hello")]),
        lambda: messages.save_many("nowhere", []),
        lambda: messages.pop("nowhere"),
        lambda: messages.clear("nowhere"),
    ):
        with pytest.raises(NotFound) as caught:
            write()
        assert (caught.value.kind, caught.value.key) == ("session", "nowhere")
    assert_empty(store, session)


def test_a_batch_is_saved_in_its_order_with_numbers_that_follow_each_other(store, session):
    store.messages.save(session.id, "system", "first")
    batch = store.messages.save_many(session.id, [user(f"message {n}") for n in range(20)])
    store.messages.save(session.id, "assistant", "last")
    assert [message.seq for message in batch] == list(range(2, 22))
    assert contents(history(store, session)) == [
        "first",
        *(f"message {n}" for n in range(20)),
        "last",
    ]


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
    {"role": "assistant", "tool_calls": [{"name": ""}]},
    {"role": "assistant", "tool_calls": [{"name": "x" * 256}]},
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
        with subtests.test(bad=bad), pytest.raises(InvalidInput, match=r"messages\[1\]"):
            store.messages.save_many(session.id, [user("before"), bad, user("after")])
    assert_empty(store, session)


def test_a_batch_is_a_list_and_nothing_that_can_be_read_only_once(store, session, subtests):
    once = ({"role": "user"} for _ in range(2))
    for messages in ("hello", {"role": "user"}, None, 5, iter([]), once):
        with subtests.test(messages=messages), pytest.raises(InvalidInput, match="list"):
            store.messages.save_many(session.id, messages)
    assert store.messages.save_many(session.id, ()) == []
    assert store.messages.save_many(session.id, [], idempotency_key="k") == []
    assert_empty(store, session)
    assert len(store.messages.save_many(session.id, {"a": user("a")}.values())) == 1


def test_a_message_is_found_by_its_id(store, session):
    saved = store.messages.save(session.id, "user", "hello")
    assert store.messages.get(saved.id) == store.messages.find(saved.id) == saved
    assert store.messages.find("nobody") is None
    with pytest.raises(NotFound, match="nobody"):
        store.messages.get("nobody")


# --- Counters ------------------------------------------------------------------------------------


def test_tokens_and_money_are_counted_exactly(store, session):
    store.messages.save(session.id, "user", token_count=5, cost="0.1")
    last = store.messages.save_many(
        session.id,
        [user("a", token_count=10**9, cost=Decimal("0.2")), user("b", cost=3), user("c")],
    )[1]
    found = store.sessions.get(session.id)
    assert (found.message_count, found.total_tokens) == (4, 10**9 + 5)
    assert found.total_cost == Decimal("3.3")
    store.messages.delete([last.id])
    store.messages.pop(session.id)
    assert store.sessions.get(session.id).total_cost == Decimal("0.3")
    counted = store.sessions.verify(session.id).counted
    assert counted == (2, 10**9 + 5, Decimal("0.3"))


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


# --- Turns ---------------------------------------------------------------------------------------


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


# --- Taking back ---------------------------------------------------------------------------------


def test_pop_takes_the_last_message_back_until_none_is_left(store, session):
    saved = store.messages.save_many(session.id, [user(f"{n}") for n in range(3)])
    assert [store.messages.pop(session.id) for _ in range(4)] == [*reversed(saved), None]
    assert history(store, session) == []
    assert store.messages.save(session.id, "user", "no number is given twice").seq == 4
    store.messages.clear(session.id)
    assert store.messages.save(session.id, "user", "nor after a clear").seq == 5


def test_delete_counts_what_it_really_deleted(store, session):
    saved = store.messages.save_many(session.id, [user(f"{n}") for n in range(4)])
    ids = [saved[0].id, saved[2].id, saved[2].id, "unknown", saved[0].id]
    assert store.messages.delete(ids) == 2
    assert store.messages.delete(ids) == 0
    assert store.messages.delete([]) == 0
    assert history(store, session) == [saved[1], saved[3]]


def test_delete_within_a_session_leaves_the_messages_of_others(store, session):
    other = store.sessions.create()
    mine = store.messages.save(session.id, "user", "mine", token_count=1)
    theirs = store.messages.save(other.id, "user", "theirs", token_count=2)
    both = [theirs.id, mine.id]
    assert store.messages.delete([theirs.id], session_id=session.id) == 0
    assert store.messages.delete(both, session_id=session.id) == 1
    assert history(store, session) == []
    assert history(store, other) == [theirs]
    mine = store.messages.save(session.id, "user", "mine again", token_count=1)
    assert store.messages.delete([theirs.id, mine.id]) == 2


def test_delete_takes_a_list_of_ids(store, session, subtests):
    store.messages.save(session.id, "user", "stays")
    for ids in ("an id", None, 5, [5], [None], [b"id"]):
        with subtests.test(ids=ids), pytest.raises(InvalidInput, match="ids"):
            store.messages.delete(ids)
    assert contents(history(store, session)) == ["stays"]


def test_clear_empties_one_session_and_says_of_how_much(store, session):
    other = store.sessions.create()
    theirs = store.messages.save(other.id, "user", "theirs")
    store.messages.save_many(
        session.id, [user("a"), {"role": "assistant", "tool_calls": [call("search")]}]
    )
    assert store.messages.clear(session.id) == 2
    assert store.messages.clear(session.id) == 0
    assert history(store, session) == []
    assert history(store, other) == [theirs]
    assert store.messages.find_by_tool(session.id, "search").items == ()
    assert store.sessions.get(session.id).status == "active"


# --- External ids --------------------------------------------------------------------------------


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


def test_an_external_id_that_is_there_is_skipped_and_gives_what_is_there(store, session):
    first = store.messages.save(session.id, "user", "first", external_id="x", token_count=1)
    assert store.messages.save(session.id, "user", "second", external_id="x") == first
    before = store.sessions.get(session.id)
    given = store.messages.save_many(
        session.id, [user("new"), user("third", external_id="x", token_count=5), user("newer")]
    )
    assert given[1] == first
    assert contents(given) == ["new", "first", "newer"]
    assert contents(history(store, session)) == ["first", "new", "newer"]
    assert store.sessions.get(session.id).total_tokens == before.total_tokens


def test_an_external_id_that_is_there_is_refused_when_asked_for(store, session):
    store.messages.save(session.id, "user", "first", external_id="x")
    for write in (
        lambda: store.messages.save(
            session.id, "user", "again", external_id="x", on_duplicate="refuse"
        ),
        lambda: store.messages.save_many(
            session.id, [user("new"), user("again", external_id="x")], on_duplicate="refuse"
        ),
    ):
        with pytest.raises(AlreadyExists) as caught:
            write()
        assert (caught.value.kind, caught.value.key) == ("message", "x")
    for answer in ("replaced", "", None, True):
        with pytest.raises(InvalidInput, match="skip"):
            store.messages.save(session.id, "user", "again", on_duplicate=answer)
    assert contents(history(store, session)) == ["first"]


def test_an_external_id_twice_in_a_batch_is_one_message_or_refused(store, session):
    batch = [user("a", external_id="x"), user("b"), user("c", external_id="x"), user("d")]
    with pytest.raises(AlreadyExists) as caught:
        store.messages.save_many(session.id, batch, on_duplicate="refuse")
    assert caught.value.key == "x"
    assert_empty(store, session)
    given = store.messages.save_many(session.id, batch)
    assert contents(given) == ["a", "b", "a", "d"]
    assert given[0] == given[2]
    assert [message.seq for message in history(store, session)] == [1, 2, 3]


# --- Idempotency keys ----------------------------------------------------------------------------


def test_a_repeated_save_gives_the_first_ones_result_and_writes_nothing(store, session):
    first = store.messages.save(session.id, "user", "hi", token_count=3, idempotency_key="k")
    store.messages.save(session.id, "assistant", "hello")
    again = store.messages.save(session.id, "user", "hi", token_count=3, idempotency_key="k")
    assert again == first
    assert contents(history(store, session)) == ["hi", "hello"]
    other = store.sessions.create()
    assert store.messages.save(other.id, "user", "hi", idempotency_key="k").id != first.id
    assert store.messages.save(session.id, "user", "hi", idempotency_key="K").id != first.id


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
        with pytest.raises(InvalidInput, match="idempotency_key"):
            store.messages.save(session.id, "user", "a", idempotency_key=key)
    with pytest.raises(InvalidJson):
        store.messages.save(session.id, "user", payload={1, 2}, idempotency_key="k")
    assert store.messages.save(session.id, "user", payload=[1, 2], idempotency_key="k").seq == 1


def test_callers_at_once_with_one_key_write_once_and_all_get_the_result(store, session):
    batch = [user("a"), {"role": "assistant", "content": "b"}]

    def save(number):
        one = store.messages.save(session.id, "user", "alone", idempotency_key="one")
        many = store.messages.save_many(session.id, batch, idempotency_key="many")
        return one, many, store.messages.save(session.id, "user", f"{number}", external_id="x")

    results = at_once(save)
    assert results == [results[0]] * THREADS
    assert contents(history(store, session))[:3] == ["alone", "a", "b"]
    assert len(history(store, session)) == 4


def test_a_rival_that_takes_the_same_key_in_between_is_found_or_comes_too_late(place):
    """The rival writes after the store has looked for the key and before it writes itself.

    The store's clock is where it can: it is asked in between. Where the engine has one writer,
    the rival gives up.
    """
    writes = iter(())

    def clock():
        with suppress(DatabaseBusy):
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


# --- Finding by tool -----------------------------------------------------------------------------


def test_messages_are_found_by_the_tool_they_call_the_newest_first(store, session):
    other = store.sessions.create()
    save = store.messages.save
    nested = save(session.id, "assistant", tool_calls=[call("search")])
    save(session.id, "assistant", tool_calls=[call("Search"), call("search_web"), call("s%arch")])
    save(session.id, "assistant", 'I would call {"name": "search"}', payload={"name": "search"})
    save(session.id, "tool", "found", name="search", tool_call_id="call-search")
    save(other.id, "assistant", tool_calls=[call("search")])
    plain = save(session.id, "assistant", tool_calls=[{"name": "look"}, {"name": "search"}])
    assert store.messages.find_by_tool(session.id, "search").items == (plain, nested)
    assert len(store.messages.find_by_tool(session.id, "s%arch")) == 1
    assert len(store.messages.find_by_tool(session.id, "%")) == 0
    for no_name in ("", None, 5, "x" * 256):
        with pytest.raises(InvalidInput, match="tool"):
            store.messages.find_by_tool(session.id, no_name)
    store.messages.pop(session.id)
    assert store.messages.find_by_tool(session.id, "search").items == (nested,)


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


# --- Many at once --------------------------------------------------------------------------------


def test_threads_that_save_into_one_session_get_numbers_without_gap_or_tie(store, session):
    rounds = 6

    def save(number):
        saved = []
        for n in range(rounds):
            if n % 2:
                saved += store.messages.save_many(
                    session.id, [user(f"{number}"), {"role": "assistant", "content": f"{number}"}]
                )
            else:
                saved.append(store.messages.save(session.id, "user", f"{number}", token_count=1))
        return saved

    results = at_once(save)
    found = history(store, session)
    assert [message.seq for message in found] == list(range(1, len(found) + 1))
    assert sorted((m for saved in results for m in saved), key=lambda m: m.seq) == found
    for saved in results:
        assert [m.seq for m in saved] == sorted(m.seq for m in saved)
    turns = [message.turn for message in found if message.role == "user"]
    assert turns == list(range(1, len(turns) + 1))
    for message, answer in pairwise(found):
        if answer.role == "assistant":
            assert (answer.content, answer.turn) == (message.content, message.turn)


def test_threads_that_pop_take_each_message_once(store, session):
    saved = store.messages.save_many(session.id, [user(f"{n}") for n in range(THREADS + 2)])
    popped = at_once(lambda _: store.messages.pop(session.id))
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

    assert sum(at_once(work)) == 6
    assert store.sessions.get(session.id).message_count == 9 - 6 + 2 * 1 + 2 * 2


# --- Transactions --------------------------------------------------------------------------------


def test_a_transaction_that_raises_leaves_no_message_and_counts_none(store, session):
    kept = store.messages.save(session.id, "user", "kept")
    with pytest.raises(RuntimeError, match="no"), store.transaction() as tx:
        tx.messages.save(session.id, "user", "hello")
        tx.messages.save_many(session.id, [user("a"), user("b")], idempotency_key="k")
        tx.messages.delete([kept.id])
        raise RuntimeError("no")
    assert history(store, session) == [kept]
    assert len(store.messages.save_many(session.id, [user("a")], idempotency_key="k")) == 1


def test_a_transaction_commits_what_it_saved_and_sees_it_before(store, session):
    with store.transaction() as tx:
        first = tx.messages.save(session.id, "user", "hello")
        with pytest.raises(InvalidInput):
            tx.messages.save_many(session.id, [user("lost"), user("bad", cost=0.5)])
        second = tx.messages.save(session.id, "user", "there", external_id="x")
        assert tx.messages.save(session.id, "user", "again", external_id="x") == second
        assert tx.messages.history(session.id) == [first, second]
        assert tx.messages.pop(session.id) == second
    assert history(store, session) == [first]
