"""Amounts: what a call may say, what counters have room for, and sums that nothing overflows."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Thread
from uuid import UUID

import pytest
from sqlalchemy import create_engine, insert, select, text, update
from typer.testing import CliRunner

from agentstore import doctor
from agentstore.cli import app
from agentstore.errors import CounterOverflow, InvalidInput, QuotaExceeded
from agentstore.moving.copying import copy
from agentstore.schema import tables
from agentstore.values.prices import Price, Prices
from agentstore.values.types import from_nanos
from tests.conftest import in_the_process
from tests.raw_sql import execute

MOST_TOKENS, MOST_COST = 10**9, Decimal(1000)
MOST_NANOS = 10**12
MILLION = 10**6
LARGEST = 2**63 - 1
FULL = 2**62
DAY = timedelta(days=1)
T = tables()


def used(session_id, number, tokens, nanos, model="m"):
    return insert(T.turn_usage).values(
        id=str(UUID(int=number)),
        session_id=session_id,
        branch=0,
        turn=0,
        model=model,
        requests=tokens,
        input_tokens=tokens,
        output_tokens=tokens,
        total_tokens=tokens,
        cost=from_nanos(nanos),
        created_at=datetime.now(UTC),
    )


def logged(session_id, number, elapsed):
    return insert(T.tool_logs).values(
        id=str(UUID(int=number)),
        session_id=session_id,
        tool="t",
        success=True,
        elapsed_ms=elapsed,
        created_at=datetime.now(UTC),
    )


def set_counters(place, session_id, tokens, nanos):
    here = update(T.sessions).where(T.sessions.c.id == session_id)
    execute(place.url, here.values(total_tokens=tokens, total_cost=from_nanos(nanos)))


def test_a_counter_has_room_for_a_million_of_the_largest_calls_and_more(place, store):
    user = store.users.create("Ann").id
    session = store.sessions.create(user).id
    set_counters(place, session, MILLION * MOST_TOKENS, MILLION * MOST_NANOS)
    execute(place.url, update(T.users).values(quota_used=MILLION * MOST_TOKENS))
    store.messages.save(session, "user", token_count=MOST_TOKENS, cost=MOST_COST)
    found = store.sessions.get(session)
    assert found.total_tokens == (MILLION + 1) * MOST_TOKENS
    assert found.total_cost == (MILLION + 1) * MOST_COST
    assert store.usage.totals().tokens == found.total_tokens
    assert store.usage.totals().cost == found.total_cost
    store.users.consume_quota(user, MOST_TOKENS)
    reserved = store.users.reserve_quota(user, MOST_TOKENS)
    store.users.settle_quota(reserved.id, MOST_TOKENS)
    assert store.users.get(user).quota_used == (MILLION + 2) * MOST_TOKENS


def test_sums_hold_a_thousand_million_of_the_largest_calls(place, store):
    user = store.users.create("Ann").id
    session = store.sessions.create(user).id
    # As many rows would add up to this.
    parts = 9, LARGEST - 1
    rows = [used(session, n, parts[1], parts[1]) for n in range(parts[0])]
    execute(place.url, *rows)
    store.usage.record(session, input_tokens=MOST_TOKENS, model="m", cost=MOST_COST)
    for dimension in ("total", "user", "model", "day", "session", "turn", "branch"):
        of = {"session_id": session} if dimension in ("turn", "branch") else {}
        (found,) = store.usage.sum_by(dimension, **of)
        assert found.input_tokens == found.total_tokens == 9 * (LARGEST - 1) + MOST_TOKENS
        assert found.requests == 9 * (LARGEST - 1) + 1
        assert found.cost == from_nanos(9 * (LARGEST - 1)) + MOST_COST
        assert type(found.input_tokens) is int
        assert type(found.cost) is Decimal
        assert store.usage.sum_by(dimension, **of, top=1) == (found,)
    whole = store.usage.of_sessions([session])[session]
    assert (whole.cost, whole.total_tokens) == (found.cost, found.total_tokens)
    assert store.usage.of_sessions([session], most=10)[session] == replace(whole, partial=True)
    for exact in (True, False):
        figures = store.statistics(exact=exact)
        assert figures.models[0].cost == from_nanos(9 * (LARGEST - 1)) + MOST_COST
        assert figures.users[0].used_tokens == 9 * (LARGEST - 1) + MOST_TOKENS
        assert figures.growth[-1].used_cost == from_nanos(9 * (LARGEST - 1)) + MOST_COST


def test_the_dearest_are_found_also_where_a_sum_has_no_room(place, store):
    dear, dearest, cheap = (store.sessions.create().id for _ in range(3))
    execute(place.url, *(used(dear, n, LARGEST, LARGEST) for n in range(3)))
    execute(place.url, *(used(dearest, n, 1, LARGEST) for n in range(10, 14)))
    store.usage.record(cheap, input_tokens=MOST_TOKENS, cost=1)
    assert [found.key for found in store.usage.sum_by("session", top=2)] == [dearest, dear]


def test_a_sum_that_has_no_room_ends_no_transaction(place, store):
    session = store.sessions.create().id
    execute(place.url, *(used(session, n, LARGEST, LARGEST) for n in range(3)))

    def work(tx):
        tx.messages.save(session, "user")
        (found,) = tx.usage.sum_by("session")
        tx.messages.save(session, "assistant")
        return found

    found = store.run(work)
    assert (found.key, found.requests) == (session, 3 * LARGEST)
    assert found.cost == from_nanos(3 * LARGEST)
    assert len(store.messages.history(session)) == 2


def test_what_used_most_comes_first_also_beyond_64_bits(place, store):
    spent = {"a": 3 * LARGEST, "b": 3 * LARGEST + 1, "c": 2 * LARGEST, "d": 5}
    rows, number = [], 0
    for user, total in spent.items():
        session = store.sessions.create(store.users.create(user, id=user).id).id
        while total:
            part = min(total, LARGEST)
            number += 1
            total -= part
            rows.append(used(session, number, part, part, model=f"model {user}"))
    execute(place.url, *rows)
    for order in ("cost", "tokens"):
        figures = store.statistics(order=order)
        assert [each.user_id for each in figures.users] == ["b", "a", "c", "d"]
        assert [each.key for each in figures.models] == [f"model {u}" for u in "bacd"]
        assert {each.user_id: each.used_tokens for each in figures.users} == spent


@pytest.mark.parametrize("what", ["token_count", "cost"])
def test_a_session_whose_counter_has_no_room_says_so_and_nothing_is_written(place, store, what):
    session = store.sessions.create().id
    other = store.sessions.create().id
    most = {"token_count": MOST_TOKENS, "cost": MOST_COST}[what]
    nearly = {"token_count": (FULL - 1, 0), "cost": (0, FULL - 1)}[what]
    set_counters(place, session, *nearly)
    store.messages.save(session, "user", "the last", external_id="y", **{what: most})
    before = store.sessions.get(session)
    for refused in (
        lambda: store.messages.save(session, "user", "hello"),
        lambda: store.messages.save_many(session, [{"role": "user"}, {"role": "user"}]),
        lambda: store.messages.save(
            session, "user", "hello", external_id="x", on_duplicate="replace", **{what: 1}
        ),
        lambda: store.branches.compact(session, "short", from_turn=1, to_turn=1, token_count=1),
    ):
        with pytest.raises(CounterOverflow) as caught:
            refused()
        assert (caught.value.kind, caught.value.key) == ("session", session)
    assert [each.content for each in store.messages.history(session)] == ["the last"]
    assert store.sessions.get(session) == before
    store.messages.save(other, "user", "hello", **{what: most})
    store.messages.save(
        session, "user", "less", external_id="y", on_duplicate="replace", **{what: 0}
    )
    store.messages.save(session, "user", "now there is room", **{what: 1})


def test_callers_beside_one_whose_counter_is_full_are_served(place, store):
    full = store.sessions.create().id
    sessions = [store.sessions.create().id for _ in range(8)]
    set_counters(place, full, FULL, 0)
    heard = []

    def save(session):
        try:
            heard.append(store.messages.save(session, "user", token_count=1).session_id)
        except CounterOverflow as error:
            heard.append(f"full {error.key}")

    threads = [Thread(target=save, args=(each,)) for each in (*sessions, full)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(heard) == sorted([*sessions, f"full {full}"])


def test_a_session_that_is_not_there_is_not_taken_for_a_full_one(store):
    with pytest.raises(LookupError):
        store.messages.save("nobody", "user", token_count=MOST_TOKENS)


def test_what_a_user_consumed_is_counted_as_far_as_it_can_be(place, store):
    user = store.users.create("Ann").id
    session = store.sessions.create(user).id
    reserved = store.users.reserve_quota(user, 10)
    pays = {"reservation_id": reserved.id}
    execute(place.url, update(T.users).values(quota_used=LARGEST - 15))
    for refused in (
        lambda: store.users.consume_quota(user, 6),
        lambda: store.users.reserve_quota(user, 6),
        lambda: store.users.settle_quota(reserved.id, 16),
        lambda: store.usage.record(session, input_tokens=15, **pays),  # one stays reserved
    ):
        with pytest.raises(CounterOverflow) as caught:
            refused()
        assert (caught.value.kind, caught.value.key) == ("user", user)
    found = store.users.get(user)
    assert (found.quota_used, found.quota_reserved) == (LARGEST - 15, 10)
    store.usage.record(session, input_tokens=14, **pays)
    assert store.users.settle_quota(reserved.id, 1) is None
    assert store.users.get(user).quota_used == LARGEST
    store.users.update(user, quota_total=LARGEST)
    with pytest.raises(QuotaExceeded):
        store.users.consume_quota(user, 1)


def test_a_cost_that_is_computed_is_bounded_like_one_that_is_said(place):
    prices = Prices({"dear": Price(Decimal(10**6), Decimal(10**9))})
    with place.open(prices=prices) as store:
        session = store.sessions.create(model="dear").id
        for model in ("dear", None):  # passed, or the session's
            with pytest.raises(InvalidInput, match=r"prices must be at most 1000 .* 1000000000"):
                store.usage.record(session, input_tokens=MOST_TOKENS, model=model)
            with pytest.raises(InvalidInput, match="prices"):
                store.usage.replace(
                    session, turn=0, branch=0, output_tokens=MOST_TOKENS, model=model
                )
            store.usage.record(session, input_tokens=1000, model=model)
        (found,) = store.usage.sum_by("total")
    assert (found.input_tokens, found.cost) == (2000, MOST_COST * 2)


def test_times_that_no_call_may_say_are_not_measured(place, store):
    user = store.users.create("Ann").id
    session = store.sessions.create(user).id
    execute(place.url, *(logged(session, n, 1.7e308) for n in range(4)), logged(session, 9, 12.0))
    store.tool_logs.log(session, "t", elapsed_ms=10**12)
    for found in (*store.tool_logs.stats(), *store.usage.stats(user).tools):
        assert found.calls == 6
        assert found.mean_ms == (10**12 + 12) / 2
        assert (found.p50_ms, found.p95_ms) == (12.0, 10.0**12)
    assert store.statistics().tools[0].mean_ms == (10**12 + 12) / 2


def test_no_infinity_is_ever_printed(place, store):
    session = store.sessions.create().id
    endless = float("inf")
    execute(place.url, logged(session, 1, endless), logged(session, 2, 5.0))
    (found,) = store.tool_logs.stats()
    assert (found.calls, found.mean_ms, found.p95_ms) == (2, 5.0, 5.0)
    assert store.statistics().tools[0].mean_ms == 5.0
    printed = CliRunner().invoke(app, ["stats", "--json", "--url", place.url])
    assert printed.exit_code == 0, printed.output
    json.loads(printed.stdout, parse_constant=pytest.fail)


def overflowing(place, store):
    """Give a user's session whose messages add up to more than any counter holds."""
    user = store.users.create("Ann").id
    session = store.sessions.create(user).id
    for n in range(3):
        store.messages.save(session, "user", f"message {n}")
    execute(place.url, update(T.messages).values(token_count=LARGEST, cost=from_nanos(LARGEST)))
    return user, session


def test_sums_over_messages_of_any_size_are_exact(place, store):
    user, session = overflowing(place, store)
    assert store.sessions.verify(session).counted == (3, 3 * LARGEST, from_nanos(3 * LARGEST))
    found = store.usage.stats(user)
    assert (found.tokens, found.cost) == (3 * LARGEST, from_nanos(3 * LARGEST))
    figures = store.statistics(exact=True)
    assert figures.users[0].tokens == 3 * LARGEST
    assert figures.growth[-1].cost == from_nanos(3 * LARGEST)
    for command in ("stats", "usage", "ls"):
        printed = CliRunner().invoke(app, [command, "--json", "--url", place.url])
        assert printed.exit_code == 0, printed.output
        json.loads(printed.stdout)


def test_the_doctor_names_sessions_that_no_counter_can_count(place, store):
    _, session = overflowing(place, store)
    for deep in (False, True):
        found = [each for each in doctor.examine(place.url, deep=deep) if each.check == "counters"]
        assert ["more than a counter holds" in each.what for each in found] == [True]
        assert session in found[0].where
    doctor.repair(place.url, deep=True)  # it ends, and leaves them
    store.messages.delete([store.messages.history(session)[0].id])
    last = store.messages.history(session)[-1].id
    store.messages.delete([last])
    doctor.repair(place.url, deep=True)
    found = store.sessions.get(session)
    assert (found.message_count, found.total_tokens) == (1, LARGEST)
    assert found.total_cost == from_nanos(LARGEST)
    assert store.sessions.verify(session).agree


def test_messages_that_overflowed_can_be_deleted(place, store):
    _, session = overflowing(place, store)
    of_two = [message.id for message in store.messages.history(session)[1:]]
    for delete, count, left in (
        (lambda: store.messages.delete(of_two), 2, LARGEST),
        (lambda: store.messages.clear(session), 1, 0),
    ):
        assert delete() == count
        found = store.sessions.get(session)
        assert (found.message_count, found.total_tokens) == (left > 0, left)
        assert found.total_cost == from_nanos(left)
        assert store.sessions.verify(session).agree


@pytest.mark.long(but=["sqlite3-postgresql", "psycopg-async-sqlite"])
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_rows_that_overflowed_move_to_another_database(place, store, new, engine):
    _, session = overflowing(place, store)
    execute(
        place.url,
        *(used(session, n, LARGEST, LARGEST) for n in range(3)),
        logged(session, 1, 1.7e308),
        logged(session, 2, 12.0),
    )
    total = store.usage.sum_by("total")
    target = new(engine)
    copy(place.url, target)
    with place.driver.__class__("t", engine, asynchronous=False).open(target) as moved:
        assert moved.usage.sum_by("total") == total
        assert moved.sessions.verify(session).counted[1] == 3 * LARGEST
        assert moved.tool_logs.stats()[0].mean_ms == 12.0


@in_the_process
def test_a_counter_that_an_overflow_made_a_float_is_told_and_mended(place, store):
    session = store.sessions.create().id
    store.messages.save(session, "user", token_count=7, cost=1)
    execute(place.url, text("UPDATE sessions SET total_cost = 9.3e18, total_tokens = 9.4e18"))
    with pytest.raises(CounterOverflow):
        store.messages.save(session, "user", token_count=1)
    assert any(each.check == "counters" for each in doctor.examine(place.url))
    doctor.repair(place.url)
    engine = create_engine(place.url)
    with engine.connect() as connection:
        kinds = connection.execute(
            select(text("typeof(total_cost), typeof(total_tokens) FROM sessions"))
        ).one()
    engine.dispose()
    assert tuple(kinds) == ("integer", "integer")
    store.messages.save(session, "user", token_count=1)
    assert store.sessions.get(session).total_tokens == 8
