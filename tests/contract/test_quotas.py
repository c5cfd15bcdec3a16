"""Quotas: reserved first, settled when the cost is known."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from agentstore import Store
from agentstore.engines.postgresql.dialect import PostgreSQL
from agentstore.errors import InvalidInput, NotFound, QuotaExceeded
from agentstore.retention import RetentionPolicy
from tests.conftest import on_a_server
from tests.contract.clocks import Clock

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_what_was_really_spent_is_counted_also_beyond_the_quota(store):
    user = store.users.create("Ann", quota_total=100).id
    reservation = store.users.reserve_quota(user, 90)
    assert store.users.settle_quota(reservation.id, 130) == 0
    assert store.users.get(user).quota_used == 130


@pytest.mark.parametrize("method", ["settle", "release"])
def test_a_reservation_is_settled_or_released_only_once(store, method):
    user = store.users.create("Ann", quota_total=100).id
    reservation = store.users.reserve_quota(user, 10)
    store.users.settle_quota(reservation.id, 10)
    with pytest.raises(NotFound, match="settled"):
        if method == "settle":
            store.users.settle_quota(reservation.id, 10)
        else:
            store.users.release_quota(reservation.id)
    assert store.users.get(user).quota_used == 10


def test_an_expired_reservation_is_free_again_and_its_cost_still_counts_when_it_comes(place):
    clock = Clock(START)
    with place.open(clock=clock) as store:
        user = store.users.create("Ann", quota_total=100).id
        late = store.users.reserve_quota(user, 80, ttl=timedelta(minutes=5))
        clock.now += timedelta(minutes=5)
        assert store.users.check_quota(user, 100)
        assert store.users.consume_quota(user, 50) == 50
        assert store.users.settle_quota(late.id, 30) == 20
        found = store.users.get(user)
        assert (found.quota_used, found.quota_reserved) == (80, 0)


def test_what_is_left_when_a_call_ends_counts_expired_reservations_as_free(place):
    clock = Clock(START)
    with place.open(clock=clock) as store:
        user = store.users.create("Ann", quota_total=100).id
        store.users.reserve_quota(user, 30, ttl=timedelta(minutes=5))
        two = [store.users.reserve_quota(user, 10, ttl=timedelta(hours=1)).id for _ in range(2)]
        clock.now += timedelta(minutes=5)
        assert store.users.release_quota(two[0]) == 90
        assert store.users.settle_quota(two[1], 1) == 99


def test_a_user_without_limit_may_reserve_and_settle(store):
    user = store.users.create("Ann").id
    reservation = store.users.reserve_quota(user, 10**9)
    assert store.users.settle_quota(reservation.id, 5) is None


def test_concurrent_reservations_never_overshoot(place):
    with place.open() as store:
        user = store.users.create("Ann", quota_total=100).id
        refused = []

        def reserve():
            try:
                store.users.reserve_quota(user, 7)
            except QuotaExceeded:
                refused.append(1)

        threads = [threading.Thread(target=reserve) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 24 - 100 // 7
        assert store.users.get(user).quota_reserved == 98


ENDS = {
    "deleted": lambda store, id: store.sessions.delete(id),
    "expired": lambda store, id: store.sessions.delete_expired(),
    "pruned": lambda store, id: store.prune(RetentionPolicy(sessions_idle=timedelta(hours=1))),
    "pruned in pieces": lambda store, id: store.prune(
        RetentionPolicy(sessions_idle=timedelta(hours=1))
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_what_is_reserved_for_a_deleted_session_stays_reserved_until_it_is_settled(place, how):
    clock = Clock(START)
    with place.open(clock=clock) as store:
        user = store.users.create("Ann", quota_total=100).id
        session = store.sessions.create(user, ttl=timedelta(hours=1)).id
        if how == "pruned in pieces":
            store.messages.save_many(session, [{"role": "user", "content": "x"}] * 600)
        held, other = (
            store.users.reserve_for_session(session, tokens, ttl=timedelta(hours=3))
            for tokens in (40, 5)
        )
        clock.now += timedelta(hours=2)
        ENDS[how](store, session)
        assert store.sessions.find(session) is None
        assert store.users.get(user).quota_reserved == 45
        assert store.users.settle_quota(held.id, 30) == 65
        assert store.users.release_quota(other.id) == 70
        assert store.users.get(user).quota_reserved == 0


@on_a_server
@pytest.mark.parametrize("method", ["consume_quota", "reserve_quota"])
def test_who_finds_too_few_left_and_then_enough_tries_again(place, method, monkeypatch):
    with place.open() as store, Store(place.url) as rival:
        user = store.users.create("Ann", quota_total=100).id
        held = store.users.reserve_quota(user, 90)

        lapse = PostgreSQL.lapse_reservations

        def release_first(*arguments):
            rival.users.release_quota(held.id)
            return lapse(*arguments)

        with monkeypatch.context() as during:
            during.setattr(PostgreSQL, "lapse_reservations", release_first)
            getattr(store.users, method)(user, 50)
        found = store.users.get(user)
        assert found.quota_used + found.quota_reserved == 50


def test_reservations_go_with_their_user(store):
    user = store.users.create("Ann", quota_total=100).id
    store.users.reserve_quota(user, 1)
    assert store.users.delete(user).rows["quota_reservations"] == 1


def test_what_is_reserved_is_listed_until_it_is_released_or_expires_and_errors_say_so(place):
    clock = Clock(START)
    with place.open(clock=clock) as store:
        user, other = (store.users.create(name, quota_total=100).id for name in ("Ann", "Bob"))
        long = store.users.reserve_quota(user, 30, ttl=timedelta(hours=1))
        short = store.users.reserve_quota(user, 40, ttl=timedelta(minutes=5))
        store.users.reserve_quota(other, 1)
        first = store.users.reservations(user, limit=1)
        second = store.users.reservations(user, limit=1, cursor=first.next_cursor)
        assert (first.items, second.items, second.next_cursor) == ((short,), (long,), None)
        assert list(store.users.iter_reservations(user)) == [short, long]
        with pytest.raises(
            QuotaExceeded, match="70 more are reserved until 2026-01-01T01"
        ) as caught:
            store.users.consume_quota(user, 31)
        assert (caught.value.reserved, caught.value.until) == (70, long.expires_at)
        clock.now += timedelta(minutes=5)
        with pytest.raises(QuotaExceeded) as caught:
            store.users.reserve_quota(user, 71)
        assert (caught.value.reserved, caught.value.remaining) == (30, 70)
        assert store.users.reservations(user).items == (long,)
        assert store.users.release_quota(long.id) == 100
        assert store.users.reservations(user).items == ()
        with pytest.raises(QuotaExceeded) as caught:
            store.users.consume_quota(user, 101)
        assert (caught.value.reserved, caught.value.until) == (0, None)
        assert "reserved" not in str(caught.value)


BAD = {
    "an unknown user": (NotFound, lambda users, user: users.reserve_quota("nobody", 1)),
    "nothing": (InvalidInput, lambda users, user: users.reserve_quota(user, 0)),
    "a negative amount": (InvalidInput, lambda users, user: users.reserve_quota(user, -1)),
    "a float": (InvalidInput, lambda users, user: users.reserve_quota(user, 1.0)),
    "no time": (InvalidInput, lambda users, user: users.reserve_quota(user, 1, ttl=timedelta(0))),
    "seconds": (InvalidInput, lambda users, user: users.reserve_quota(user, 1, ttl=60)),
    "an unknown reservation": (NotFound, lambda users, user: users.settle_quota("none", 1)),
    "a negative cost": (InvalidInput, lambda users, user: users.settle_quota("none", -1)),
    "nothing to release": (NotFound, lambda users, user: users.release_quota("none")),
}


@pytest.mark.parametrize(("error", "call"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_and_changes_nothing(store, error, call):
    user = store.users.create("Ann", quota_total=100)
    before = store.usage.totals().rows
    with pytest.raises(error):
        call(store.users, user.id)
    assert store.users.get(user.id) == user
    assert store.usage.totals().rows == before


class QuotaMachine(RuleBasedStateMachine):
    """Spending, reserving, settling, releasing and time, beside plain Python."""

    store = None
    clock = None

    def __init__(self):
        super().__init__()
        self.user = self.store.users.create("Ann", quota_total=100).id
        self.used = 0
        self.reserved = {}

    def live(self):
        return sum(n for n, expires in self.reserved.values() if expires > self.clock.now)

    @rule(tokens=st.integers(0, 60))
    def consume(self, tokens):
        if tokens and self.used + self.live() + tokens > 100:
            with pytest.raises(QuotaExceeded):
                self.store.users.consume_quota(self.user, tokens)
        else:
            self.store.users.consume_quota(self.user, tokens)
            self.used += tokens

    @rule(tokens=st.integers(1, 60), minutes=st.integers(1, 3))
    def reserve(self, tokens, minutes):
        ttl = timedelta(minutes=minutes)
        if self.used + self.live() + tokens > 100:
            with pytest.raises(QuotaExceeded):
                self.store.users.reserve_quota(self.user, tokens, ttl=ttl)
        else:
            made = self.store.users.reserve_quota(self.user, tokens, ttl=ttl)
            self.reserved[made.id] = (tokens, made.expires_at)

    @rule(tokens=st.integers(0, 80), data=st.data())
    def settle(self, tokens, data):
        if self.reserved:
            chosen = data.draw(st.sampled_from(sorted(self.reserved)))
            self.store.users.settle_quota(chosen, tokens)
            del self.reserved[chosen]
            self.used += tokens

    @rule(data=st.data())
    def release(self, data):
        if self.reserved:
            chosen = data.draw(st.sampled_from(sorted(self.reserved)))
            self.store.users.release_quota(chosen)
            del self.reserved[chosen]

    @rule(minutes=st.integers(1, 3))
    def wait(self, minutes):
        self.clock.now += timedelta(minutes=minutes)

    @invariant()
    def what_is_left_is_what_plain_python_says(self):
        left = max(0, 100 - self.used - self.live())
        assert self.store.users.check_quota(self.user, left)
        assert not self.store.users.check_quota(self.user, left + 1)
        assert self.store.users.get(self.user).quota_used == self.used


def test_any_sequence_of_calls_keeps_the_accounts_of_plain_python(place):
    clock = Clock(START)
    with place.open(clock=clock) as opened:
        machine = type("Machine", (QuotaMachine,), {"store": opened, "clock": clock})
        run_state_machine_as_test(
            machine, settings=settings(max_examples=6, stateful_step_count=15, deadline=None)
        )
