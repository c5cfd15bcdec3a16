"""Usage per turn and branch, and every way of summing it."""

import itertools
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore.errors import InvalidInput, LimitOutOfRange, NaiveDatetime, NotFound
from agentstore.values.prices import Price, Prices
from tests.contract.clocks import NOON

TABLE = Prices({"small": Price(Decimal("0.15"), Decimal("0.60"), Decimal("0.075"))})


def test_recording_again_for_a_turn_adds_up(store, session):
    store.messages.save(session.id, "user", "hello")
    store.usage.record(session.id, input_tokens=10, output_tokens=5, cost="0.001")
    store.usage.record(session.id, input_tokens=1, output_tokens=2, requests=3, cost="0.0005")
    (turn,) = store.usage.sum_by("turn", session_id=session.id)
    assert (turn.key, turn.requests, turn.input_tokens, turn.output_tokens) == (1, 4, 11, 7)
    assert turn.total_tokens == 18
    assert turn.cost == Decimal("0.0015")
    assert turn.unpriced_requests == 0


def test_replacing_a_turn_forgets_what_was_recorded_for_it_alone(store, session):
    for turn in (1, 2):
        store.usage.record(session.id, turn=turn, input_tokens=100)
    store.usage.replace(session.id, turn=1, branch=0, input_tokens=7)
    by_turn = store.usage.sum_by("turn", session_id=session.id)
    assert [(found.key, found.input_tokens) for found in by_turn] == [(1, 7), (2, 100)]


def test_replacing_with_bad_input_leaves_what_was_there(store, session):
    store.usage.record(session.id, turn=1, input_tokens=100)
    with pytest.raises(InvalidInput):
        store.usage.replace(session.id, turn=1, branch=0, input_tokens=-1)
    with pytest.raises(InvalidInput):
        store.usage.replace(session.id, turn=1, branch=-1, input_tokens=1)
    (total,) = store.usage.sum_by("total")
    assert total.input_tokens == 100


def test_a_record_is_of_the_active_branchs_last_turn_and_the_sessions_model(place):
    with place.open(prices=TABLE) as store:
        session = store.sessions.create(model="small")
        store.messages.save_many(
            session.id, [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
        )
        record = store.usage.record(session.id, input_tokens=1_000_000, details={"k": [1]})
        assert (record.turn, record.branch, record.model) == (2, 0, "small")
        assert record.cost == Decimal("0.15")
        assert record.details == {"k": [1]}


def test_a_model_without_a_price_has_no_cost_and_sums_say_so(place):
    with place.open(prices=TABLE) as store:
        session = store.sessions.create()
        unknown = store.usage.record(session.id, model="mystery", input_tokens=5, requests=2)
        assert unknown.cost is None
        store.usage.record(session.id, model="small", output_tokens=1_000_000)
        (total,) = store.usage.sum_by("total", session_id=session.id)
        assert (total.cost, total.unpriced_requests) == (Decimal("0.60"), 2)


def test_sums_of_sessions_say_which_models_were_used_the_most_used_first(store):
    ids = [store.sessions.create().id for _ in range(3)]
    for model, requests in (("small", 1), ("large", 2), (None, 5), ("small", 2), ("other", 1)):
        store.usage.record(ids[0], model=model, input_tokens=1, cost="0.1", requests=requests)
    store.usage.record(ids[1], input_tokens=1)
    found = store.usage.of_sessions(ids)
    assert {id: sums.models for id, sums in found.items()} == {
        ids[0]: ("small", "large", "other"),
        ids[1]: (),
    }
    assert (found[ids[0]].requests, found[ids[0]].cost) == (11, Decimal("0.5"))
    (last,) = store.usage.of_sessions(ids[:1], most=2).values()
    assert (last.models, last.partial) == (("small", "other"), True)
    (total,) = store.usage.sum_by("total", session_id=ids[0])
    assert replace(found[ids[0]], key=None, models=()) == total


def test_what_several_sessions_used_is_added_up_at_once_and_by_session(store):
    ada = store.users.create("Ada").id
    ids = [store.sessions.create(ada).id for _ in range(3)]
    other = store.sessions.create().id
    for n, id in enumerate([ids[0], ids[2], ids[2], other]):
        store.usage.record(id, input_tokens=10**n, output_tokens=1, cost="0.25")
    asked = [ids[2], other, ids[1], "nobody", ids[0]]
    found = store.usage.of_sessions(asked)
    assert [*found] == [ids[2], other, ids[0]]
    for id, sums in found.items():
        assert (sums,) == store.usage.sum_by("session", session_id=id)
    assert found[ids[2]].input_tokens == 110
    assert [*store.scoped(ada).usage.of_sessions(asked)] == [ids[2], ids[0]]
    assert store.usage.of_sessions([]) == {}
    for most, tokens, partial in ((1, 100, True), (2, 110, True), (3, 110, False)):
        (sums,) = store.usage.of_sessions([ids[2]], most=most).values()
        assert (sums.input_tokens, sums.partial) == (tokens, partial)
    assert [*store.usage.of_sessions(asked, most=1)] == [ids[2], other, ids[0]]
    assert [*store.scoped(ada).usage.of_sessions(asked, most=1)] == [ids[2], ids[0]]
    with pytest.raises(InvalidInput):
        store.usage.of_sessions(ids, most=0)
    with pytest.raises(InvalidInput):
        store.usage.of_sessions("id")
    with pytest.raises(InvalidInput):
        store.usage.of_sessions(["x"] * 1_001)


def test_what_the_caller_says_about_cost_and_total_stands(place):
    with place.open(prices=TABLE) as store:
        session = store.sessions.create(model="small")
        record = store.usage.record(session.id, input_tokens=10, total_tokens=99, cost=2)
        assert (record.total_tokens, record.cost) == (99, Decimal(2))


def test_cached_tokens_have_a_price_of_their_own(place):
    with place.open(prices=TABLE) as store:
        session = store.sessions.create(model="small")
        record = store.usage.record(
            session.id, input_tokens=1_000_000, cached_input_tokens=400_000, output_tokens=10
        )
        assert record.cost == Decimal("0.09") + Decimal("0.03") + Decimal("0.000006")


def test_sums_by_session_user_model_and_day_count_what_they_should(place):
    clock = itertools.cycle([datetime(2026, 3, 1, 23, 59, 59, 999_999, UTC)])
    with place.open(clock=lambda: next(clock), prices=TABLE) as store:
        ann, bob = store.users.create("ann").id, store.users.create("bob").id
        owners = {"s1": ann, "s2": bob, "s3": None}
        for identity, owner in owners.items():
            store.sessions.create(owner, id=identity)
            store.usage.record(identity, model="small", input_tokens=1)
        clock = itertools.cycle([datetime(2026, 3, 2, tzinfo=UTC)])
        store.usage.record("s1", model="other", input_tokens=10)

        def sums(dimension, **filters):
            return {x.key: x.input_tokens for x in store.usage.sum_by(dimension, **filters)}

        assert sums("session") == {"s1": 11, "s2": 1, "s3": 1}
        assert sums("user") == {None: 1, ann: 11, bob: 1}
        assert sums("user", user_id=ann) == {ann: 11}
        assert sums("model") == {"small": 3, "other": 10}
        assert sums("model", user_id=bob) == {"small": 1}
        assert sums("day") == {date(2026, 3, 1): 3, date(2026, 3, 2): 10}
        assert sums("branch", session_id="s1") == {0: 11}
        assert sums("branch_turn", session_id="s1") == {(0, 0): 11}
        assert sums("total") == {None: 13}
        assert sums("total", session_id="s2", model="other") == {}
        midnight = datetime(2026, 3, 2, tzinfo=UTC)
        assert sums("total", since=midnight) == {None: 10}
        assert sums("total", until=midnight) == {None: 3}
        assert sums("total", since=midnight, until=midnight + timedelta(microseconds=1)) == {
            None: 10
        }


def test_a_client_s_usage_is_recorded_with_its_parts_and_the_model_that_answered(place):
    usage = {
        "prompt_tokens": 1_000_000,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 400_000},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    parts = {"cached_input_tokens": 400_000, "reasoning_tokens": 4}
    with place.open(prices=TABLE) as store:
        session = store.sessions.create(model="small")
        record = store.usage.record(session.id, usage=usage, details={"region": "eu"})
        assert (record.input_tokens, record.output_tokens, record.total_tokens) == (
            1_000_000,
            10,
            1_000_010,
        )
        assert record.details == {**parts, "region": "eu"}
        assert record.cost == Decimal("0.09") + Decimal("0.03") + Decimal("0.000006")
        answer = {"model": "mystery-2026-01-01", "usage": usage}
        record = store.usage.replace(session.id, turn=0, branch=0, usage=answer)
        assert (record.model, record.cost, record.details) == ("mystery-2026-01-01", None, parts)


records = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["small", "other", None]),
        st.integers(0, 10**9),
        st.integers(0, 10**6),
    ),
    max_size=8,
)


@given(records)
@settings(max_examples=10)
def test_sums_equal_what_plain_python_adds_up(store, used):
    session = store.sessions.create()
    turns, models = Counter(), Counter()
    for turn, model, tokens, nanos in used:
        cost = Decimal(nanos).scaleb(-9)
        store.usage.record(session.id, turn=turn, model=model, input_tokens=tokens, cost=cost)
        turns[turn] += tokens
        models[model] += nanos
    by_turn = store.usage.sum_by("turn", session_id=session.id)
    assert [(x.key, x.input_tokens) for x in by_turn] == sorted(turns.items())
    by_model = store.usage.sum_by("model", session_id=session.id)
    assert {x.key: int(x.cost.scaleb(9)) for x in by_model} == dict(models)


@given(records, st.integers(1, 4))
@settings(max_examples=10)
def test_the_top_are_those_that_cost_most_and_of_equals_those_of_more_tokens(store, used, top):
    session = store.sessions.create()
    for turn, model, tokens, nanos in used:
        cost = None if nanos % 3 == 0 else Decimal(nanos % 2)
        store.usage.record(session.id, turn=turn, model=model, input_tokens=tokens, cost=cost)
    every = store.usage.sum_by("model", session_id=session.id)
    ranked = sorted(((x.cost, x.total_tokens) for x in every), reverse=True)
    found = store.usage.sum_by("model", session_id=session.id, top=top)
    assert [(x.cost, x.total_tokens) for x in found] == ranked[:top]
    assert {*found} <= {*every}


def test_usage_stays_when_the_messages_of_its_turn_go(store, session):
    store.messages.save(session.id, "user", "hello")
    store.usage.record(session.id, input_tokens=10)
    store.messages.clear(session.id)
    (total,) = store.usage.sum_by("total", session_id=session.id)
    assert total.input_tokens == 10


def test_usage_of_one_user_goes_with_the_user_and_not_with_another(store):
    ann, bob = store.users.create("ann").id, store.users.create("bob").id
    for owner in (ann, bob):
        store.usage.record(store.sessions.create(owner).id, input_tokens=1)
    assert store.users.delete(ann).rows["turn_usage"] == 1
    assert [x.key for x in store.usage.sum_by("user")] == [bob]


BAD = {
    "an unknown session": (NotFound, {"session_id": "nobody"}),
    "a negative amount": (InvalidInput, {"input_tokens": -1}),
    "a float amount": (InvalidInput, {"output_tokens": 1.5}),
    "a float cost": (InvalidInput, {"cost": 0.1}),
    "more cached tokens than tokens": (InvalidInput, {"cached_input_tokens": 1}),
    "a negative turn": (InvalidInput, {"turn": -1}),
    "a usage that is none": (InvalidInput, {"usage": None}),
    "usage and numbers": (InvalidInput, {"usage": {"prompt_tokens": 1}, "input_tokens": 1}),
    "details of a usage that are no object": (
        InvalidInput,
        {"usage": {"prompt_tokens": 1}, "details": [1]},
    ),
    "details that are no object": (InvalidInput, {"details": [1]}),
    "details that JSON cannot say": (InvalidInput, {"details": {"a": {1, 2}}}),
}


def test_usage_of_a_branch_s_number_is_of_its_own_last_turn(store, session):
    store.messages.save(session.id, "user", "a")
    number = store.branches.create(session.id, name="side").number
    store.branches.switch(session.id, "main")
    for text in "bcd":
        store.messages.save(session.id, "user", text)
    for record in (store.usage.record, store.usage.replace):
        for branch in (number, "side"):
            made = record(session.id, branch=branch, input_tokens=1)
            assert (made.branch, made.turn) == (number, 1)
        assert record(session.id, branch=0, input_tokens=1).turn == 4
        with pytest.raises(NotFound, match="branch"):
            record(session.id, branch=99, input_tokens=1)
        with pytest.raises(NotFound, match="session"):
            record("nobody", branch=number, input_tokens=1)
    store.branches.switch(session.id, "side")
    store.branches.create(session.id, name="on")
    store.branches.delete(session.id, "side")
    with pytest.raises(NotFound, match="branch"):
        store.usage.record(session.id, branch=number, input_tokens=1)
    assert store.usage.record(session.id, branch=number, turn=1, input_tokens=1).branch == number


def test_turns_of_two_branches_are_added_up_each_for_itself_and_a_branch_has_a_name(store, session):
    for text in "ab":
        store.messages.save(session.id, "user", text)
        store.usage.record(session.id, input_tokens=1, cost="0.5")
    store.branches.create(session.id, from_turn=2, name="side")
    store.messages.save(session.id, "user", "b, otherwise")
    for _ in range(2):
        store.usage.record(session.id, input_tokens=10)

    def sums(dimension, **filters):
        found = store.usage.sum_by(dimension, session_id=session.id, **filters)
        return {each.key: each.input_tokens for each in found}

    assert sums("turn") == {1: 1, 2: 21}
    assert sums("branch_turn") == {(0, 1): 1, (0, 2): 1, (1, 2): 20}
    assert sums("branch_turn", branch="side") == sums("branch_turn", branch=1) == {(1, 2): 20}
    assert sums("total", branch="main") == {None: 2}
    top = store.usage.sum_by("branch_turn", session_id=session.id, branch="main", top=1)
    assert [(each.key, each.cost) for each in top] == [((0, 1), Decimal("0.5"))]
    store.branches.create(session.id, name="empty")
    assert sums("branch_turn", branch="empty") == {}
    named = store.usage.record(session.id, branch="main", requests=0)
    assert (named.branch, named.turn) == (0, 2)
    named = store.usage.record(session.id, branch="side", turn=1, model="m", cost=0, requests=0)
    assert (named.branch, named.turn) == (1, 1)
    assert store.usage.delete(session.id, branch="side", turn=1) == 1
    with pytest.raises(NotFound, match="branch"):
        store.usage.record(session.id, branch="nowhere", model="m", cost=0)
    with pytest.raises(NotFound, match="branch"):
        sums("total", branch="nowhere")
    store.branches.delete(session.id, "side")
    with pytest.raises(NotFound, match="branch"):
        sums("total", branch="side")
    assert sums("total", branch=1) == {None: 20}


def test_usage_is_added_up_by_week_by_month_and_by_two_dimensions(place):
    days = [date(2025, 12, 28), date(2025, 12, 29), date(2026, 1, 4), date(2026, 1, 5)]
    now = [NOON]
    with place.open(clock=lambda: now[0]) as store:
        ann = store.users.create("Ann").id
        of_ann, nobodys = store.sessions.create(ann).id, store.sessions.create().id
        for n, each in enumerate(days):
            for last in (time(0, 0), time(23, 59, 59, 999_999)):
                now[0] = datetime.combine(each, last, UTC)
                store.usage.record(of_ann, model="big", input_tokens=10**n)
        store.usage.record(nobodys, input_tokens=7)

        def sums(dimension, **filters):
            return {x.key: x.input_tokens for x in store.usage.sum_by(dimension, **filters)}

        by_week = {date(2025, 12, 22): 2, date(2025, 12, 29): 220, date(2026, 1, 5): 2_007}
        assert sums("week") == by_week
        assert sums("month") == {date(2025, 12, 1): 22, date(2026, 1, 1): 2_207}
        by_month_and_user = sums(("month", "user"))
        assert [*by_month_and_user.items()] == [
            ((date(2025, 12, 1), ann), 22),
            ((date(2026, 1, 1), None), 7),
            ((date(2026, 1, 1), ann), 2_200),
        ]
        assert sums(("user", "month"), user_id=ann) == {
            (ann, date(2025, 12, 1)): 22,
            (ann, date(2026, 1, 1)): 2_200,
        }
        assert sums(["model", "session"]) == {(None, nobodys): 7, ("big", of_ann): 2_222}
        assert sums(("model", "turn"), session_id=of_ann) == {("big", 0): 2_222}
        top = store.usage.sum_by(("week", "model"), top=1)
        assert [each.key for each in top] == [(date(2026, 1, 5), "big")]
        alone = store.scoped(ann).usage.sum_by(("week", "user"))
        assert [each.key for each in alone] == [(each, ann) for each in by_week]


def test_a_total_of_zero_beside_tokens_was_not_counted_and_is_their_sum(store, session):
    for record in (store.usage.record, store.usage.replace):
        made = record(session.id, input_tokens=960, output_tokens=192, total_tokens=0)
        assert made.total_tokens == 1_152
    assert store.usage.sum_by("total")[0].total_tokens == 1_152


def test_bad_input_is_refused_and_nothing_is_recorded(store, session, subtests):
    for what, (error, arguments) in BAD.items():
        with subtests.test(what):
            with pytest.raises(error):
                store.usage.record(**{"session_id": session.id, **arguments})
            assert store.usage.sum_by("total") == ()


def test_sums_refuse_what_they_cannot_mean(store):
    with pytest.raises(InvalidInput, match="turn, branch"):
        store.usage.sum_by("year")
    for two in (("day", "day"), ("day",), ("day", "total"), ("day", "model", "user"), (), 5):
        with pytest.raises(InvalidInput, match="dimension must be"):
            store.usage.sum_by(two)
    with pytest.raises(InvalidInput, match="session_id"):
        store.usage.sum_by(("day", "turn"))
    with pytest.raises(InvalidInput, match="session_id"):
        store.usage.sum_by("turn")
    with pytest.raises(InvalidInput, match="session_id"):
        store.usage.sum_by("branch_turn")
    with pytest.raises(InvalidInput, match="session_id"):
        store.usage.sum_by("total", branch="main")
    for top in (0, 1_001):
        with pytest.raises(LimitOutOfRange):
            store.usage.sum_by("user", top=top)
    with pytest.raises(NaiveDatetime):
        store.usage.sum_by("total", since=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
