import decimal
import itertools
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstore.errors import InvalidInput, NotFound
from tests.contract.clocks import NOON

DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)


@pytest.fixture
def store(timed):
    return timed


def test_a_window_holds_its_beginning_and_not_its_end(store, clock):
    clock.now = NOON - 9 * DAY
    user = store.users.create("Alice")
    session = store.sessions.create(user.id)
    edges = [NOON - DAY - TICK, NOON - DAY, NOON - TICK, NOON]
    for n, instant in enumerate(edges):
        clock.now = instant
        store.messages.save(session.id, "user", token_count=10**n, cost=f"0.{n}")
        store.tool_logs.log(session.id, f"tool {n}")
        store.sessions.create(user.id)
    stats = store.usage.stats(user.id, 1, until=NOON)
    assert (stats.user_id, stats.since, stats.until) == (user.id, NOON - DAY, NOON)
    assert (stats.messages, stats.tokens, stats.cost) == (2, 110, Decimal("0.3"))
    assert stats.sessions == 3  # the one written to, and two that were created
    assert [tool.tool for tool in stats.tools] == ["tool 1", "tool 2"]
    # The same instants, said otherwise.
    tokyo = NOON.astimezone(timezone(timedelta(hours=9)))
    assert store.usage.stats(user.id, 1.0, until=tokyo) == stats
    half = store.usage.stats(user.id, 0.5, until=NOON)
    assert (half.since, half.tokens) == (NOON - DAY / 2, 100)


def test_until_now_includes_this_very_instant(store, clock):
    user = store.users.create("Alice")
    session = store.sessions.create(user.id)
    store.messages.save(session.id, "user", token_count=1)
    store.tool_logs.log(session.id, "search")
    stats = store.usage.stats(user.id)
    assert (stats.sessions, stats.messages, stats.tokens) == (1, 1, 1)
    assert len(stats.tools) == 1
    clock.now += 7 * DAY - TICK
    assert store.usage.stats(user.id).messages == 1
    clock.now += TICK
    assert store.usage.stats(user.id).messages == 0


def test_only_what_happened_in_the_window_counts_and_not_the_sessions_whole_life(store, clock):
    user = store.users.create("Alice")
    old = store.sessions.create(user.id)
    store.messages.save(old.id, "user", token_count=1_000_000, cost=1000)
    store.tool_logs.log(old.id, "search")
    clock.now += 30 * DAY
    store.messages.save(old.id, "user", token_count=5, cost="0.000000001")
    store.tool_logs.log(old.id, "search", success=False)
    stats = store.usage.stats(user.id, 7)
    assert (stats.sessions, stats.messages, stats.tokens) == (1, 1, 5)
    assert stats.cost == Decimal("0.000000001")
    assert [(tool.calls, tool.failures) for tool in stats.tools] == [(1, 1)]


def test_what_others_did_is_not_counted(store):
    alice, bob = (store.users.create(name) for name in ("Alice", "Bob"))
    for owner in (alice.id, bob.id, None):
        session = store.sessions.create(owner)
        for _ in range(3 if owner == bob.id else 2):
            store.messages.save(session.id, "user", token_count=1, cost=1)
            store.tool_logs.log(session.id, f"of {owner}")
    for user, count in ((alice, 2), (bob, 3)):
        stats = store.usage.stats(user.id)
        assert (stats.sessions, stats.messages, stats.tokens, stats.cost) == (1, *[count] * 3)
        assert [(tool.tool, tool.calls) for tool in stats.tools] == [(f"of {user.id}", count)]
    quiet = store.usage.stats(store.users.create("Carol").id)
    assert (quiet.sessions, quiet.messages, quiet.tokens, quiet.cost) == (0, 0, 0, 0)
    assert quiet.tools == ()


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["session", "message", "tool"]),
        st.integers(0, 3),  # which session
        st.integers(0, 20),  # at which hour
        st.integers(0, 10**6),  # tokens, or milliseconds
    ),
    max_size=25,
)


@settings(max_examples=12)
@given(events=EVENTS, since=st.integers(-1, 20), hours=st.integers(1, 22))
def test_the_statistics_of_a_window_are_those_of_plain_python(store, clock, events, since, hours):

    def at(hour):
        return NOON + timedelta(hours=hour)

    users = [store.users.create("Alice").id, store.users.create("Bob").id]
    clock.now = at(-50)
    sessions = [store.sessions.create(users[n % 2]).id for n in range(4)]
    touched, messages, calls, created = set(), [], [], 0
    with store.transaction() as tx:
        for kind, n, hour, amount in events:
            clock.now = at(hour)
            mine = n % 2 == 0 and since <= hour < since + hours
            if kind == "session":
                tx.sessions.create(users[n % 2])
                created += mine
            elif kind == "message":
                tx.messages.save(
                    sessions[n], "user", token_count=amount, cost=Decimal(amount).scaleb(-9)
                )
                messages += [amount] if mine else []
                touched |= {n} if mine else set()
            else:
                tx.tool_logs.log(sessions[n], "t", elapsed_ms=amount, success=amount % 2 == 0)
                calls += [amount] if mine else []
    stats = store.usage.stats(users[0], hours / 24, until=at(since + hours))
    assert stats.since == at(since)
    assert stats.sessions == created + len(touched)
    assert (stats.messages, stats.tokens) == (len(messages), sum(messages))
    assert stats.cost == sum((Decimal(m).scaleb(-9) for m in messages), Decimal(0))
    assert [(t.tool, t.calls, t.failures, t.p95_ms) for t in stats.tools] == (
        [
            (
                "t",
                len(calls),
                sum(c % 2 for c in calls),
                sorted(calls)[math.ceil(len(calls) * 95 / 100) - 1],
            )
        ]
        if calls
        else []
    )
    assert [t.mean_ms for t in stats.tools] == (
        [pytest.approx(sum(calls) / len(calls))] if calls else []
    )


def test_the_statistics_of_somebody_unknown_are_refused(store):
    with pytest.raises(NotFound, match="no user 'nobody'"):
        store.usage.stats("nobody")


def test_a_window_has_a_length_that_makes_sense(store):
    user = store.users.create("Alice")
    for days in (0, -1, 36501, math.nan, math.inf, True, "7", None, 10**5000):
        with pytest.raises(InvalidInput, match="days"):
            store.usage.stats(user.id, days)
    with pytest.raises(InvalidInput, match="days must not reach back"):
        store.usage.stats(user.id, 7, until=datetime(1, 1, 2, tzinfo=UTC))
    assert store.usage.stats(user.id, 36500).sessions == 0


def test_totals_count_every_table_and_add_the_messages_up(store):
    empty = store.usage.totals()
    assert set(empty.rows.values()) == {0}
    assert (empty.tokens, empty.cost, empty.sessions_by_status) == (0, 0, {})
    user = store.users.create("Alice", preferences={"a": {"b": 1}})
    sessions = [store.sessions.create(user.id) for _ in range(3)]
    for session, call in zip(sessions, ("pause", "complete", "complete"), strict=True):
        store.messages.save(session.id, "user", token_count=2, cost="0.1")
        store.tool_logs.log(session.id, "search")
        getattr(store.sessions, call)(session.id)
    store.tasks.create(None, "mail")
    totals = store.usage.totals()
    assert {name: count for name, count in totals.rows.items() if count} == {
        "users": 1, "user_preferences": 2, "sessions": 3, "session_data": 3, "branches": 3,
        "messages": 3, "tool_logs": 3, "tasks": 1,
    }  # fmt: skip
    assert (totals.tokens, totals.cost) == (6, Decimal("0.3"))
    assert totals.sessions_by_status == {"completed": 2, "paused": 1}


def test_sums_of_money_are_exact(store):
    user = store.users.create("Alice")
    session = store.sessions.create(user.id)
    costs = ["0.1", "0.2", "999.999999999", "0.000000001", "1e-9", 7]
    with store.transaction() as tx:
        for cost in itertools.chain(costs, ["0.1"] * 10):
            tx.messages.save(session.id, "user", cost=cost)
    exact = sum(map(Decimal, costs), Decimal(1))
    with decimal.localcontext(prec=6):
        stats, totals = store.usage.stats(user.id), store.usage.totals()
    assert stats.cost == totals.cost == exact
    assert isinstance(stats.cost, Decimal)
    assert isinstance(totals.cost, Decimal)


def test_what_was_recorded_is_listed_replaced_and_deleted_by_the_name_of_a_branch(store, session):
    save, usage = store.messages.save, store.usage
    for role in ("user", "assistant", "user"):
        save(session.id, role, "x")
    usage.record(session.id, input_tokens=1, details={"k": [1]}, turn=1)
    usage.record(session.id, input_tokens=2)
    store.branches.create(session.id, from_turn=2, name="side")
    save(session.id, "user", "y")
    usage.record(session.id, input_tokens=3)
    usage.record(session.id, input_tokens=4)

    def listed(**which):
        found = usage.list(session.id, **which)
        return [(each.branch, each.turn, each.input_tokens) for each in found]

    assert listed() == [(0, 1, 1), (0, 2, 2), (1, 2, 3), (1, 2, 4)]
    assert listed(branch="side") == listed(branch=1) == [(1, 2, 3), (1, 2, 4)]
    assert listed(branch="main", turn=1) == [(0, 1, 1)]
    assert listed(branch="main", from_turn=2) == [(0, 2, 2)]
    assert listed(from_turn=1, to_turn=1) == listed(to_turn=1) == [(0, 1, 1)]
    assert listed(from_turn=2, to_turn=9) == [(0, 2, 2), (1, 2, 3), (1, 2, 4)]
    with pytest.raises(InvalidInput, match="not both"):
        listed(turn=1, to_turn=2)
    assert usage.list(session.id).items[0].details == {"k": [1]}
    first = usage.list(session.id, limit=3)
    assert [u.input_tokens for u in usage.list(session.id, cursor=first.next_cursor)] == [4]
    assert [u.input_tokens for u in usage.iter(session.id, limit=1)] == [1, 2, 3, 4]

    assert usage.replace(session.id, input_tokens=5).branch == 1
    assert usage.replace(session.id, branch="main", input_tokens=6).turn == 2
    assert usage.replace(session.id, branch="main", turn=1, input_tokens=7).turn == 1
    assert listed() == [(0, 1, 7), (0, 2, 6), (1, 2, 5)]
    assert usage.delete(session.id, branch="main", turn=2) == 1
    assert usage.delete(session.id, branch=1) == 1
    assert usage.delete(session.id, branch="side") == 0
    assert listed() == [(0, 1, 7)]
    assert (usage.delete(session.id), usage.delete(session.id), listed()) == (1, 0, [])
    for call in (usage.list, usage.delete, usage.replace):
        with pytest.raises(NotFound):
            call("nowhere")
        with pytest.raises(NotFound):
            call(session.id, branch="nowhere")
