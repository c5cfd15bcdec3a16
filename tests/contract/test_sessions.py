import decimal
import itertools
import random
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import create_engine, event

from agentstore import AgentStoreError, Store
from agentstore.errors import (
    AlreadyExists,
    IllegalTransition,
    InvalidCursor,
    InvalidInput,
    NotFound,
    SecretRefused,
    StaleSession,
    TakenByAnother,
    WrongSession,
)
from agentstore.records import SessionSummary
from agentstore.repositories import session_pages
from agentstore.retention import RetentionPolicy
from agentstore.schema import tables
from agentstore.values.redaction import Secrets
from agentstore.values.validation import LISTED_WITHIN, SESSION_STATUSES, SESSION_TRANSITIONS
from tests.conftest import on
from tests.contract.clocks import NOON, Clock, at_once, paged
from tests.drivers import FULL
from tests.programs.probes import engine_of
from tests.raw_sql import execute, raw

KEY = "sk-abcdefghijklmnopqrstuv"

WAYS = {
    "paused": [("pause", ())],
    "active": [("resume", ()), ("answer", ("the second",))],
    "waiting_user": [("wait_for_user", ("which one?",))],
    "completed": [("complete", ())],
    "cancelled": [("cancel", ())],
    "failed": [("fail", ())],
}
"""For each status, the calls that lead there."""

ONLY_FROM = {"resume": "paused", "answer": "waiting_user"}


def session_in(store, status):
    session = store.sessions.create(title=status)
    if status != "active":
        method, arguments = WAYS[status][0]
        session = getattr(store.sessions, method)(session.id, *arguments)
    assert session.status == status
    return session


def test_an_id_of_the_applications_own_is_kept_and_matched_exactly(store):
    ids = ["s", "S", "s ", "%", "_", "天气", "a\x00b", "\udfff", "'; DROP TABLE sessions;--"]
    for id in ids:
        assert store.sessions.create(title=f"title of {id}", id=id).id == id
        store.messages.save(id, "user", f"in {id}")
    for id in ids:
        assert store.sessions.get(id).title == f"title of {id}"
        assert [m.content for m in store.messages.history(id)] == [f"in {id}"]


def test_an_id_that_is_taken_is_refused_whoever_asks_and_however_many_at_once(store):
    first = store.sessions.create(title="first", id="s")
    with pytest.raises(AlreadyExists, match="Choose another id") as caught:
        store.sessions.create(title="second", id="s")
    assert (caught.value.kind, caught.value.key) == ("session", "s")
    assert store.sessions.get("s") == first
    for attempt in range(4):
        results = at_once(6, lambda n, id=f"race {attempt}": store.sessions.create(id=id))
        errors = [type(result) for result in results if isinstance(result, AgentStoreError)]
        assert errors == [AlreadyExists] * 5


def test_every_arrow_of_a_sessions_life_can_be_gone_and_no_other(store):
    gone = set()
    for status in SESSION_STATUSES:
        for wanted, calls in WAYS.items():
            for method, arguments in calls:
                before = session_in(store, status)
                call = getattr(store.sessions, method)
                legal = wanted in SESSION_TRANSITIONS[status]
                if legal and ONLY_FROM.get(method, status) == status:
                    call(before.id, *arguments)
                    assert store.sessions.get(before.id).status == wanted
                    gone.add((status, wanted))
                    continue
                if status == wanted == "failed":
                    assert call(before.id, *arguments) == before
                    continue
                with pytest.raises(IllegalTransition) as caught:
                    call(before.id, *arguments)
                error = caught.value
                assert (error.kind, error.key) == ("session", before.id)
                assert (error.current, error.wanted) == (status, wanted)
                assert f"from {status} to {wanted}" in str(error)
                assert set(error.allowed) == SESSION_TRANSITIONS[status]
                if legal:
                    right = next(m for m in ONLY_FROM if ONLY_FROM[m] == status)
                    assert f"Call sessions.{right}()" in str(error)
                assert store.sessions.get(before.id) == before
                assert store.messages.history(before.id) == []
    assert gone == {(a, b) for a, onward in SESSION_TRANSITIONS.items() for b in onward}


def test_a_finished_session_is_not_revived_by_resume(store):
    for finish in ("complete", "cancel", "fail"):
        session = store.sessions.create()
        finished = getattr(store.sessions, finish)(session.id)
        with pytest.raises(IllegalTransition, match="final: create a new session"):
            store.sessions.resume(session.id)
        assert store.sessions.get(session.id) == finished


def test_a_session_fails_for_a_reason_that_holds_no_secret_and_a_retry_changes_nothing(store):
    session = store.sessions.create()
    assert (session.has_failures, session.failure) == (False, None)
    failed = store.sessions.fail(session.id, reason=f"401 with {KEY}, \x00 again")
    assert (failed.status, failed.has_failures) == ("failed", True)
    assert failed.failure.startswith("401 with ")
    assert failed.failure.endswith(", \x00 again")
    assert KEY not in failed.failure
    assert store.sessions.fail(session.id, reason="another") == failed
    assert store.sessions.get(session.id) == failed
    [listed] = store.sessions.list(failed=True).items
    assert (listed.id, listed.failure) == (session.id, failed.failure)
    with pytest.raises(InvalidInput, match="reason"):
        store.sessions.fail(session.id, reason=5)


def test_a_session_shows_a_failure_as_long_as_there_is_one(place):
    clock = Clock(NOON)
    keep = RetentionPolicy(tool_logs=timedelta(hours=1), finished_tasks=timedelta(hours=1))
    with place.open(clock=clock) as store:
        of_log, both, of_itself, *of_tasks = (store.sessions.create().id for _ in range(7))

        def shown() -> set[str]:
            return {each.id for each in store.sessions.iter(failed=True)}

        def killed(session_id: str, end: str) -> Any:
            task = store.tasks.create(session_id, "work")
            if end == "start":
                store.tasks.start(task.id)
                return store.tasks.fail(task.id, "no")
            [held] = store.tasks.claim("a worker", lease=60)
            if end == "fail":
                return store.tasks.fail(held.id, "no", fence=held.fence)
            if end == "fail_many":
                return store.tasks.fail_many([(held, "no")]).settled[0]
            clock.now += timedelta(minutes=2)
            return store.tasks.rescue()[0]

        ends = ("start", "fail", "fail_many", "rescue")
        tasks = [killed(id, end) for id, end in zip(of_tasks, ends, strict=True)]
        assert [task.status for task in tasks] == ["failed", "dead", "dead", "dead"]
        assert shown() == {*of_tasks}
        for n in range(3):
            store.tool_logs.log(of_log, "search", success=n > 0)
        killed(of_tasks[0], "fail")
        tried_again = killed(both, "fail")
        store.tool_logs.log(both, "search", error="no")
        store.sessions.fail(of_itself)
        store.tool_logs.log(of_itself, "search", error="no")
        left = {of_log, both, of_itself, *of_tasks}
        assert shown() == left
        store.tasks.retry(tasks[0].id)  # of two that failed in its session
        assert (store.tasks.requeue(limit=2), shown()) == (2, left - {*of_tasks[1:3]})
        assert (store.tasks.requeue(limit=2), shown()) == (2, left - {*of_tasks})
        clock.now += timedelta(hours=2)
        store.tool_logs.log(of_log, "search", error="again")
        store.prune(keep)
        assert store.tasks.find(tried_again.id) is None
        assert shown() == {of_log, of_itself}
        clock.now += timedelta(hours=2)
        store.prune(keep)
        assert shown() == {of_itself}


def test_sessions_with_failures_are_listed_page_by_page_in_the_order_of_their_activity(store):
    alice = store.users.create("Alice")
    all_of_them = [store.sessions.create(alice.id if n % 2 else None).id for n in range(9)]
    for n, id in enumerate(all_of_them):
        message = store.messages.save(id, "user", "x")
        store.tool_logs.log(id, "search", success=n % 3 > 0, message_id=message.id)
    store.tool_logs.log(all_of_them[0], "search", error="timed out")
    store.sessions.fail(all_of_them[8])
    expected = [all_of_them[n] for n in (8, 6, 3, 0)]
    assert [s.id for s in store.sessions.iter(failed=True, limit=2)] == expected
    assert [s.id for s in store.sessions.iter(failed=True, order="oldest")] == expected[::-1]
    assert [s.id for s in store.sessions.list(failed=True, user_id=alice.id).items] == [expected[2]]
    assert [s.id for s in store.sessions.list(failed=True, status="failed").items] == expected[:1]
    assert [s.id for s in store.sessions.iter(failed=True, since=NOON, limit=3)] == expected
    with pytest.raises(WrongSession):
        store.tool_logs.log(all_of_them[1], "search", error="no", message_id=message.id)
    assert not store.sessions.get(all_of_them[1]).has_failures
    page = store.sessions.list(failed=True, limit=1)
    with pytest.raises(InvalidInput):
        store.sessions.list(cursor=page.next_cursor)
    with pytest.raises(InvalidInput, match="failed"):
        store.sessions.list(failed=1)


def test_of_many_who_change_the_status_at_once_each_hears_what_happened(store):
    sessions = store.sessions
    for attempt in range(3):
        session = sessions.create(title=str(attempt))
        ends = [sessions.complete, sessions.cancel, *[sessions.fail] * (attempt == 0)]
        results = at_once(9, lambda n, ends=ends, id=session.id: ends[n % len(ends)](id))
        if (winner := sessions.get(session.id)).status == "failed":
            assert [result for result in results if result == winner] == [winner] * 3
            continue
        errors = [result for result in results if isinstance(result, AgentStoreError)]
        assert [type(error) for error in errors] == [IllegalTransition] * 8
        [winner] = [result for result in results if result not in errors]
        assert sessions.get(session.id) == winner
        assert {error.current for error in errors} == {winner.status}


def test_a_question_waits_for_its_answer_also_across_a_restart(place):
    clock = itertools.count()

    def tick():
        return NOON + timedelta(seconds=next(clock))

    with place.open(clock=tick) as store:
        session = store.sessions.create()
        store.messages.save(session.id, "assistant", "hm")
        asked = store.sessions.wait_for_user(session.id, "Which\x00 one? 🤔")
        assert (asked.status, asked.question) == ("waiting_user", "Which\x00 one? 🤔")
        assert asked.version > session.version
        assert asked.asked_at > session.created_at
    with place.open(clock=tick) as store:
        assert store.sessions.get(session.id) == asked
        answer = store.sessions.answer(session.id, "That one.")
        assert (answer.role, answer.content, answer.seq) == ("user", "That one.", 2)
        assert store.messages.history(session.id)[-1] == answer
        answered = store.sessions.get(session.id)
        assert (answered.status, answered.question, answered.asked_at) == ("active", None, None)
        assert (answered.message_count, answered.last_active_at) == (2, answer.created_at)
        with pytest.raises(IllegalTransition, match="from active to active"):
            store.sessions.answer(session.id, "That one!")
        assert store.sessions.get(session.id) == answered


def test_a_question_that_will_not_be_answered_is_gone(store):
    for leave in ("complete", "cancel", "fail"):
        session = store.sessions.create()
        store.sessions.wait_for_user(session.id, "which?")
        left = getattr(store.sessions, leave)(session.id)
        assert (left.question, left.asked_at) == (None, None)
        assert store.sessions.get(session.id) == left


def test_of_many_answers_at_once_one_is_taken(store, session):
    store.sessions.wait_for_user(session.id, "which?")
    results = at_once(8, lambda n: store.sessions.answer(session.id, str(n)))
    [taken] = [result for result in results if not isinstance(result, IllegalTransition)]
    assert store.messages.history(session.id) == [taken]


def test_a_question_counts_as_a_change_that_others_must_have_read(store, session):
    store.sessions.wait_for_user(session.id, "which?")
    with pytest.raises(StaleSession):
        store.sessions.update(session.id, state=1, expected_version=session.version)


def test_many_who_read_change_and_write_at_once_lose_nothing(place, store, session):
    many = 30 if FULL else 12
    with place.open() as another:
        stores = [store, another]

        def work(n):
            sessions = stores[n % 2].sessions
            while True:
                read = sessions.get(session.id)
                change = {"metadata": {**read.metadata, str(n): n}, "state": (read.state or 0) + 1}
                try:
                    return sessions.update(
                        session.id, **change, expected_version=read.version
                    ).version
                except StaleSession:
                    continue

        versions = at_once(many, work)
    changed = store.sessions.get(session.id)
    assert changed.metadata == {str(n): n for n in range(many)}
    assert (changed.state, changed.version) == (many, many + 1)
    assert sorted(versions) == list(range(2, many + 2))


def test_secrets_in_a_config_are_refused_before_anything_is_written(store, session):
    for config, path in [
        ({"api_key": "x"}, "config.api_key"),
        ({"API-Key": "x"}, "config.API-Key"),
        ({"openai_api_key": "x"}, "config.openai_api_key"),
        ({"clientSecret": "x"}, "config.clientSecret"),
        ({"providers": [{}, {"db": {"password": "x"}}]}, "config.providers[1].db.password"),
        ({"headers": {"Authorization": "Basic x"}}, "config.headers.Authorization"),
        ({"note": f"use {KEY} here"}, "config.note"),
        ({"header": "Bearer abcdefghijklmnop"}, "config.header"),
        ({"url": "https://me:hunter2@example.org/"}, "config.url"),
        ({"token": 12345}, "config.token"),
    ]:
        for call in (
            lambda config=config: store.sessions.create(config=config),
            lambda config=config: store.sessions.update(session.id, config=config, title="x"),
        ):
            with pytest.raises(SecretRefused, match="environment") as caught:
                call()
            assert caught.value.path == path
            assert KEY not in str(caught.value)
    assert store.sessions.list(documents=True).items == (session,)


def test_what_is_no_secret_is_kept_in_a_config(store):
    config = {
        "max_tokens": 5, "tokenizer": "x", "api_key": "", "token": None, "top_k": 1,
        "url": "https://example.org/a:b@c",
    }  # fmt: skip
    assert store.sessions.create(config=config).config == config
    # Metadata and state are the application's own business.
    session = store.sessions.create(metadata={"token": "x"}, state={"token": "x"})
    assert (session.metadata, session.state) == ({"token": "x"}, {"token": "x"})


def test_secrets_in_a_config_are_redacted_or_kept_where_the_application_says_so(place):
    config = {"api_key": "x", "n": [1, {"note": f"a {KEY} b"}], "own": "y"}
    with place.open(secrets=Secrets(on_config="redact", keys=frozenset({"own"}))) as store:
        created = store.sessions.create(config=config)
        assert created.config == {
            "api_key": "[redacted]",
            "n": [1, {"note": "a [redacted] b"}],
            "own": "[redacted]",
        }
        assert config["api_key"] == "x"
        assert store.sessions.update(created.id, config=config).config == created.config
    with place.open(secrets=Secrets(on_config="keep")) as store:
        assert store.sessions.create(config=config).config == config


def test_the_list_begins_with_the_newest_activity_whatever_the_clock_says(place):
    still = itertools.repeat(NOON)
    back = (NOON - timedelta(minutes=n) for n in itertools.count())
    for times in (still, back):
        with place.open(clock=lambda times=times: next(times)) as store:
            a, b, c, d = (store.sessions.create(title=x).id for x in "abcd")
            store.messages.save(b, "user", "hello")
            store.messages.save_many(a, [{"role": "user"}, {"role": "user"}])
            store.sessions.wait_for_user(c, "which?")
            store.sessions.answer(c, "this")
            store.sessions.rename(d, "no activity")
            newest = [session.id for session in store.sessions.list(limit=4)]
            assert newest == [c, a, b, d]


def listed_under(place, activities):
    """Write sessions with these activities by what they are listed under; give their ids."""
    row = {"created_at": NOON, "last_active_at": NOON, "newest_at": NOON}
    rows = [
        {**row, "id": str(activity), "activity": activity, "listed_activity": listed}
        for listed, activity in activities.items()
    ]
    documents = {"metadata": {}, "config": {}, "updated_at": NOON}
    engine = create_engine(place.url)
    with engine.begin() as connection:
        connection.execute(tables().sessions.insert(), rows)
        data = [{"session_id": row["id"], **documents} for row in rows]
        connection.execute(tables().session_data.insert(), data)
    engine.dispose()
    return [str(activity) for activity in sorted(activities.values(), reverse=True)]


def test_the_last_of_the_lists_index_may_be_the_first_of_the_list(place):
    within = {1_000: 1_000 + LISTED_WITHIN - 1}
    newest = listed_under(place, within | {n: n for n in range(1_001, 1_000 + LISTED_WITHIN - 1)})
    with place.open() as store:
        assert [session.id for session in store.sessions.list(limit=1)] == newest[:1]


def test_the_last_of_the_lists_index_may_be_the_oldest_of_the_list(place):
    behind = {n: n + LISTED_WITHIN - 1 for n in range(1_000, 1_000 + LISTED_WITHIN - 2)}
    newest = listed_under(place, behind | {1_000 + LISTED_WITHIN - 2: 1_000 + LISTED_WITHIN - 2})
    with place.open() as store:
        (found,) = store.sessions.list(limit=1, order="oldest")
        assert found.id == newest[-1] == str(1_000 + LISTED_WITHIN - 2)


def test_the_order_of_a_list_is_exact_however_far_behind_its_index_may_be(place):
    chance = random.Random(1)  # noqa: S311 - nothing is secret here
    activities = {}
    for activity in sorted(chance.sample(range(1_000, 1_900), 400)):
        behind = chance.choice((0, chance.randrange(LISTED_WITHIN), LISTED_WITHIN - 1))
        free = (n for n in range(activity - behind, activity + 1) if n not in activities)
        activities[next(free)] = activity
    newest = listed_under(place, activities)
    with place.open() as store:
        for limit in (7, 150):
            assert [session.id for session in paged(store.sessions.list, limit=limit)] == newest
            oldest = paged(store.sessions.list, limit=limit, order="oldest")
            assert [session.id for session in oldest] == newest[::-1]


@on(lambda driver: driver.name == "sqlite3")
def test_a_page_of_conversations_some_messages_apart_is_not_read_with_256_more(place):
    """Counted are the steps of SQLite's virtual machine: with 256 more they are four times as many.

    Conversations that go on side by side take no more than those of one message each, of which
    the page needs all 256.
    """
    counts, sent = [], []
    for activities in (
        {n: n for n in range(1_000, 1_400)},
        {n: n for n in range(40_000, 52_000, 30)},
        {n: n + LISTED_WITHIN - 1 for n in range(80_000, 80_300)},
    ):
        newest = listed_under(place, activities)
        with place.open() as store:
            engine = engine_of(store)
            event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2:4]))
            assert [session.id for session in store.sessions.list(limit=20)] == newest[:20]
            with engine.connect() as connection:
                driver_s = connection.connection.driver_connection
                steps = itertools.count()
                driver_s.set_progress_handler(lambda steps=steps: next(steps) * 0, 10)
                driver_s.execute(*sent[-1]).fetchall()
                driver_s.set_progress_handler(None, 0)
            counts.append(next(steps))
    assert min(counts) > 100
    dense, apart, side_by_side = counts
    assert 2 * apart < dense
    assert side_by_side < 1.1 * dense


@on(lambda driver: driver.name == "psycopg")
def test_a_server_plans_a_list_once_also_where_all_sessions_are_alike(place):
    """Planning takes longer than reading; it is done anew where it might depend on parameters."""
    with Store(place.url, pool_size=1, max_overflow=0) as store:
        store.sessions.create()
        with engine_of(store).connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            named = {"pk", "id", "activity", "listed_activity"}
            same = ", ".join(c.name for c in tables().sessions.c if c.name not in named)
            connection.exec_driver_sql(
                f"INSERT INTO sessions (id, activity, listed_activity, {same})"  # noqa: S608
                f" SELECT 's' || n, n, n, {same} FROM sessions, generate_series(10, 4000) AS n"
            )
            connection.exec_driver_sql("VACUUM ANALYZE")
        for _ in range(20):
            store.sessions.list(limit=20)
        with engine_of(store).connect() as connection:
            kept = connection.exec_driver_sql(
                "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
                " WHERE generic_plans + custom_plans >= 10"
            ).all()
    assert [row.generic_plans > row.custom_plans for row in kept] == [True]


def test_a_save_leaves_the_index_of_the_lists_alone_until_it_is_far_behind(store):
    a, b = (store.sessions.create(title=title).id for title in "ab")
    for _ in range(300):
        store.messages.save(a, "user", "x")
        assert store.sessions.list(limit=1).items[0].id == a
    store.messages.save(b, "user", "x")
    assert [session.id for session in store.sessions.list()] == [b, a]


def test_a_page_goes_on_after_the_last_one_although_sessions_come_and_go(store):
    ids = [store.sessions.create(title=str(n)).id for n in range(6)]
    first = store.sessions.list(limit=2)
    store.sessions.create(title="new")
    store.sessions.delete(ids[5])
    store.sessions.delete(ids[4])
    second = store.sessions.list(limit=2, cursor=first.next_cursor)
    assert [session.id for session in (*first, *second)] == [ids[5], ids[4], ids[3], ids[2]]


def test_who_writes_to_a_session_that_is_being_deleted_hears_that_it_is_gone(store):
    for attempt in range(4):
        id = store.sessions.create(title=str(attempt)).id
        works = [
            lambda id: store.messages.save(id, "user", "x"),
            lambda id: store.tool_logs.log(id, "search"),
            lambda id: store.tasks.create(id, "mail"),
            lambda id: store.sessions.update(id, state=1),
            lambda id: store.sessions.delete(id),
        ]

        def work(n, id=id, works=works):
            for _ in range(4):
                works[n](id)

        results = at_once(5, work)
        assert {type(result) for result in results} <= {NotFound, type(None)}
        assert isinstance(results[4], NotFound)  # the second deletion
        assert store.sessions.find(id) is None
    rows = store.usage.totals().rows
    assert {name: count for name, count in rows.items() if count} == {}


def test_a_session_expires_so_long_after_its_last_activity(place):
    clock = itertools.count()
    with place.open(clock=lambda: NOON + timedelta(minutes=next(clock))) as store:
        session = store.sessions.create(ttl=timedelta(hours=1, seconds=1))
        assert session.ttl == timedelta(hours=1, seconds=1)
        assert session.expires_at == session.created_at + session.ttl
        message = store.messages.save(session.id, "user", "hello")
        session = store.sessions.get(session.id)
        assert session.last_active_at == message.created_at > session.created_at
        assert session.expires_at == message.created_at + session.ttl
        assert store.sessions.create().expires_at is None


def test_the_counters_are_what_the_messages_add_up_to(store, session):
    def check():
        counters = store.sessions.verify(session.id)
        assert counters.agree
        now = store.sessions.get(session.id)
        assert counters.stored == (now.message_count, now.total_tokens, now.total_cost)
        history = store.messages.history(session.id, None)
        assert counters.counted == (
            len(history),
            sum(message.token_count for message in history),
            sum((message.cost for message in history), Decimal(0)),
        )
        return counters.counted

    assert check() == (0, 0, 0)
    ids = [
        store.messages.save(session.id, "user", str(n), token_count=n, cost=f"0.{n}").id
        for n in range(1, 6)
    ]
    assert check() == (5, 15, Decimal("1.5"))
    store.messages.save_many(
        session.id, [{"role": "user", "token_count": 5, "cost": "0.000000001"}]
    )
    assert check() == (6, 20, Decimal("1.500000001"))
    store.messages.pop(session.id)
    store.messages.delete([*ids[:2], "nothing"])
    assert check() == (3, 12, Decimal("1.2"))
    store.messages.clear(session.id)
    assert check() == (0, 0, 0)


def test_counters_that_are_wrong_are_found(place, store, session):
    store.messages.save(session.id, "user", "hello", token_count=2, cost="0.5")
    for column, value in (("message_count", 7), ("total_tokens", 3), ("total_cost", 1)):
        execute(place.url, raw(f"UPDATE sessions SET {column} = {column} + :n", n=value))  # noqa: S608
        counters = store.sessions.verify(session.id)
        assert not counters.agree
        assert counters.counted == (1, 2, Decimal("0.5"))
        execute(place.url, raw(f"UPDATE sessions SET {column} = {column} - :n", n=value))  # noqa: S608
    assert store.sessions.verify(session.id).agree


def test_the_counters_hold_while_many_write_and_delete_at_once(store, session):
    def work(n):
        left = 0
        for k in range(5):
            saved = store.messages.save(session.id, "user", token_count=n, cost=f"0.00{n}")
            left += 1
            if k % 2:
                left -= store.messages.delete([saved.id])
            if k == 3:
                left -= store.messages.pop(session.id) is not None
        return left

    left = sum(at_once(8, work))
    counters = store.sessions.verify(session.id)
    assert counters.agree
    assert counters.counted[0] == left == len(store.messages.history(session.id))


def test_money_is_exact_whatever_the_callers_decimal_context_is(store, session):
    costs = ["0.1", Decimal("234.567891234"), 3, "0.000000001", Decimal("1000"), "1E-9"]
    exact = sum(map(Decimal, costs), Decimal(0))
    for prec in (4, 28, 60):
        with decimal.localcontext(prec=prec):
            one_by_one = store.sessions.create().id
            saved = [store.messages.save(one_by_one, "user", cost=cost).cost for cost in costs]
            many = store.sessions.create().id
            messages = [{"role": "user", "cost": cost} for cost in costs]
            saved_many = [m.cost for m in store.messages.save_many(many, messages)]
            records = [store.sessions.get(one_by_one), store.sessions.get(many)]
            history = [message.cost for message in store.messages.history(one_by_one)]
        assert saved == saved_many == history == [Decimal(cost) for cost in costs]
        for record in records:
            assert record.total_cost == exact
            assert isinstance(record.total_cost, Decimal)
            assert store.sessions.verify(record.id).agree


def test_the_times_of_a_session_are_utc_whatever_zone_the_clock_is_in(place):
    zones = itertools.cycle([timezone(timedelta(hours=h)) for h in (-11, 5.75, 14)])
    times = (NOON + timedelta(minutes=n) for n in itertools.count())
    with place.open(clock=lambda: next(times).astimezone(next(zones))) as store:
        created = store.sessions.create(ttl=timedelta(days=1))
        store.messages.save(created.id, "user", "hello")
        asked = store.sessions.wait_for_user(created.id, "which?")
    assert (created.created_at, asked.last_active_at) == (NOON, NOON + timedelta(minutes=1))
    assert asked.asked_at == NOON + timedelta(minutes=2)
    for name in ("created_at", "last_active_at", "updated_at", "asked_at", "expires_at"):
        assert getattr(asked, name).utcoffset() == timedelta(0)


def test_a_list_gives_documents_only_if_it_is_asked_for_them(store, subtests):
    made = [
        store.sessions.create(metadata={"n": n}, config={"c": n}, state=[n], ttl=timedelta(hours=1))
        for n in range(2)
    ]
    made.append(store.sessions.wait_for_user(store.sessions.create(title="t").id, "Well?"))
    made.reverse()
    summaries = store.sessions.list().items
    assert {type(each) for each in summaries} == {SessionSummary}
    assert store.sessions.list(documents=True).items == tuple(made)
    for summary, whole in zip(summaries, made, strict=True):
        for each in fields(SessionSummary):
            with subtests.test(field=each.name):
                assert getattr(summary, each.name) == getattr(whole, each.name)
        assert summary.expires_at == whole.expires_at
    for gone in ("metadata", "config", "state", "updated_at"):
        assert not hasattr(summaries[0], gone)
    with pytest.raises(InvalidInput, match="documents must be a bool"):
        store.sessions.list(documents="yes")


def test_a_session_and_a_list_tell_the_last_turn_of_the_active_branch(store):
    session = store.sessions.create().id

    def told():
        (listed,) = store.sessions.list()
        (walked,) = store.sessions.walk()
        (whole,) = store.sessions.list(documents=True)
        got = store.sessions.get(session)
        assert listed.last_turn == walked.last_turn == whole.last_turn == got.last_turn
        return got.last_turn

    assert told() == 0
    for n in range(4):
        store.messages.save(session, "user", f"{n}")
        store.messages.save(session, "assistant", "yes")
    assert told() == 4
    store.branches.create(session, name="side", after_turn=2)
    assert told() == 2
    store.messages.save(session, "user", "on the side")
    assert told() == 3
    store.branches.switch(session, "main")
    assert told() == 4
    store.messages.pop(session)
    store.messages.pop(session)
    assert told() == 3


def test_a_session_in_the_place_of_one_that_was_deleted_has_nothing_of_it(place, store):
    """SQLite gives the number of the newest row again once that is gone."""
    old = store.sessions.create(id="old")
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    saved = store.messages.save("old", "assistant", "apple", tool_calls=[call], marks="seen")
    store.attachments.add(saved.id, b"bytes", "text/plain")
    store.summaries.put("old", "so far")
    assert len(store.messages.search("apple", session_id="old")) == 1
    store.sessions.delete(old.id)
    new = store.sessions.create(id="new")
    assert store.messages.history("new") == []
    assert store.messages.find_by_tool("new", "look").items == ()
    assert store.messages.search("apple", session_id="new").items == ()
    assert store.attachments.list_of_session("new").items == ()
    assert store.marks.count("new") == {}
    assert store.summaries.find("new") is None
    assert [branch.name for branch in store.branches.list("new")] == ["main"]
    assert store.messages.save("new", "user", "apple").session_id == new.id
    assert [hit.message.session_id for hit in store.messages.search("apple")] == ["new"]
    assert store.messages.find(saved.id) is None


def test_ensure_creates_a_session_once_and_leaves_it_as_it_is_from_then_on(store):
    user = store.users.create("Ada")
    begins = {"title": "T", "model": "m", "metadata": {"a": 1}, "config": {"b": 2}, "state": [3]}
    made = store.sessions.ensure("mine", user.id, **begins, ttl=timedelta(hours=1))
    assert {name: getattr(made, name) for name in begins} == begins
    assert (made.id, made.user_id, made.ttl) == ("mine", user.id, timedelta(hours=1))
    assert made == store.sessions.get("mine")
    saved = store.messages.save("mine", "user", "hello")
    again = store.sessions.ensure("mine", title="other", state=4)
    assert again == store.sessions.get("mine")
    assert (again.title, again.state, again.message_count) == ("T", [3], 1)
    assert store.messages.history("mine") == [saved]


def test_ensure_gives_no_session_of_another_user_and_says_no_more_than_that_it_is_taken(store):
    ada, bob = store.users.create("Ada"), store.users.create("Bob")
    store.sessions.ensure("a", ada.id)
    store.sessions.ensure("of nobody")
    for taken in ("a", "of nobody"):
        for ensure in (
            lambda id: store.sessions.ensure(id, bob.id),
            store.scoped(bob.id).sessions.ensure,
        ):
            with pytest.raises(TakenByAnother, match="another user's, or nobody's") as refused:
                ensure(taken)
            assert (refused.value.kind, refused.value.key) == ("session", taken)
            assert ada.id not in str(refused.value)
    assert store.sessions.ensure("a").user_id == ada.id  # who names no user takes anybody's
    scope = store.scoped(bob.id)
    assert scope.sessions.ensure("b").user_id == bob.id
    assert scope.sessions.ensure("b", bob.id) == store.sessions.get("b")
    with pytest.raises(NotFound):
        store.sessions.ensure("c", "no such user")
    assert store.sessions.count() == 3


def test_ensure_refuses_what_create_refuses_whether_or_not_the_session_is_there(store):
    store.sessions.ensure("there")
    for id in ("there", "not there"):
        with pytest.raises(InvalidInput):
            store.sessions.ensure(id, ttl=timedelta(0))
        with pytest.raises(SecretRefused):
            store.sessions.ensure(id, config={"api_key": KEY})
    with pytest.raises(InvalidInput):
        store.sessions.ensure("")
    assert store.sessions.find("not there") is None


def test_ensure_joins_a_transaction(store):
    with pytest.raises(RuntimeError), store.transaction() as tx:
        assert tx.sessions.ensure("mine", title="1") == tx.sessions.ensure("mine", title="2")
        raise RuntimeError
    assert store.sessions.find("mine") is None
    with store.transaction() as tx:
        tx.sessions.ensure("mine", title="3")
    assert store.sessions.get("mine").title == "3"


def test_callers_who_ensure_at_once_all_get_the_same(store):
    got = at_once(8, lambda n: store.sessions.ensure("mine", title=f"{n}"))
    assert {record.title for record in got} == {store.sessions.get("mine").title}
    assert store.sessions.count() == 1


# --- Filters of the list ---------------------------------------------------------------------


@pytest.fixture
def projects(timed, clock):
    """Forty sessions, an hour apart; every fifth one is of a project."""
    ada = timed.users.create("Ada")
    for n in range(40):
        made = timed.sessions.create(
            ada.id if n % 2 else None,
            id=f"{n}",
            title=["Wetter in STRASSBURG", "北京天气", None, "100% a_b"][n % 4],
            model=["gpt-4o", "o1", None][n % 3],
            metadata={"project": {"name": "x", "n": 1.0}, "a.b": [1]} if n % 5 == 0 else {"n": n},
        )
        assert made.id == f"{n}"
        clock.now += timedelta(hours=1)
    return ada


def listed(store, **filters):
    return [int(each.id) for each in store.sessions.list(limit=100, **filters)]


def down(*numbers):
    return sorted(numbers, reverse=True)


def test_sessions_are_listed_by_title_model_time_and_metadata(timed, projects, clock):
    every = range(40)
    begin = clock.now - timedelta(hours=40)
    assert listed(timed, title="straßburg") == down(*every[::4])
    assert listed(timed, title="天气") == down(*every[1::4])
    assert listed(timed, title="% A_B") == down(*every[3::4])
    assert listed(timed, title="_b%") == listed(timed, title="x") == []
    assert listed(timed, model="o1") == down(*every[1::3])
    assert listed(timed, model="O1") == []
    window = {"since": begin + timedelta(hours=3), "until": begin + timedelta(hours=7)}
    assert listed(timed, **window) == [6, 5, 4, 3]
    assert listed(timed, since=begin + timedelta(hours=38)) == [39, 38]
    assert listed(timed, metadata={"project.name": "x"}) == down(*every[::5])
    assert listed(timed, metadata={("a.b",): [1], "project": {"n": 1, "name": "x"}}) == down(
        *every[::5]
    )
    assert listed(timed, metadata={"project.name": "y"}) == []
    assert listed(timed, metadata={"project.name.x": "x"}) == []
    assert listed(timed, metadata={"n": "1"}) == []
    assert listed(timed, metadata={"n": 7}) == [7]
    timed.messages.save("2", "user", "hello")
    assert listed(timed, until=begin + timedelta(hours=3)) == [1, 0]
    together = {"user_id": projects.id, "status": "active", "title": "北京", "model": "gpt-4o"}
    assert listed(timed, **together) == [n for n in down(*every) if n % 12 == 9]
    assert listed(timed.scoped(projects.id), title="北京", metadata={"n": 9}) == [9]
    (found,) = timed.sessions.list(metadata={"n": 7}, documents=True)
    assert found == timed.sessions.get("7")
    (found,) = timed.sessions.list(metadata={"n": 7})
    assert type(found) is SessionSummary


def test_a_page_reads_so_many_sessions_whatever_the_filters(timed, projects, monkeypatch):
    monkeypatch.setattr(session_pages, "MOST_READ", 12)
    monkeypatch.setattr(session_pages, "_BATCH", 4)
    filters = {"metadata": {"project.name": "x"}, "title": "straßburg"}  # 0 and 20
    page = timed.sessions.list(**filters)
    assert page.items == ()
    assert page.next_cursor is not None
    assert [each.id for each in timed.sessions.iter(**filters)] == ["20", "0"]
    assert [each.id for each in timed.sessions.iter(order="oldest", **filters)] == ["0", "20"]
    every = [each.id for each in timed.sessions.iter(title="straßburg", limit=1)]
    assert every == [f"{n}" for n in down(*range(0, 40, 4))]
    with pytest.raises(InvalidCursor):
        timed.sessions.list(title="other", cursor=page.next_cursor)
    with pytest.raises(InvalidCursor):
        timed.sessions.list(cursor=page.next_cursor)
    with pytest.raises(InvalidCursor):
        timed.sessions.list(order="oldest", cursor=page.next_cursor, **filters)
    with pytest.raises(InvalidInput, match="order"):
        timed.sessions.list(order="any")


def test_a_list_shows_what_the_user_said_first_where_it_is_asked_for(store):
    said = {
        "text": ["hello\n  there"],
        "long": ["x" * 500],
        "blocks": [[{"type": "text", "text": "in a block 北京"}]],
        "nothing": [],
        "no text": [None],
        "escaped": ["a\x00b"],
        "large": [[{"type": "text", "text": "x" * 20_001}]],
    }
    for title, messages in said.items():
        session = store.sessions.create(title=title)
        store.messages.save(session.id, "system", "You are helpful.")
        for content in [*messages, *["and then"] * bool(messages)]:
            store.messages.save(session.id, "user", content)
            store.messages.save(session.id, "assistant", "Sure.")
        store.branches.create(session.id, from_turn=1) if messages else None
    expected = {
        "text": "hello there", "long": "x" * 200, "blocks": "in a block 北京", "nothing": None,
        "no text": None, "escaped": "a\x00b", "large": None,
    }  # fmt: skip
    for documents in (False, True):
        shown = store.sessions.list(preview=True, documents=documents)
        assert {each.title: each.preview for each in shown} == expected
        assert {each.preview for each in store.sessions.list(documents=documents)} == {None}
    (one,) = store.sessions.list(preview=True, title="BLOCK")
    assert one.preview == "in a block 北京"


@pytest.mark.parametrize(
    "bad",
    [
        {"title": ""},
        {"title": 5},
        {"model": 5},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"metadata": "project"},
        {"metadata": {"": 1}},
        {"metadata": {"a": object()}},
        {"preview": 1},
    ],
)
def test_a_filter_that_cannot_be_asked_for_is_refused(store, bad):
    with pytest.raises(InvalidInput):
        store.sessions.list(**bad)


def test_titles_are_given_by_ids_and_what_is_not_there_is_left_out(store):
    for id, title in (("one", "Weather"), ("two", None), ("gone", "x")):
        store.sessions.create(id=id, title=title)
    store.sessions.delete("gone")
    found = store.sessions.titles(["one", "two", "gone", "nowhere", "one"])
    assert found == {"one": "Weather", "two": None}
    assert [*store.sessions.titles(["two", "gone", "one", "two"])] == ["two", "one"]
    assert store.sessions.titles([]) == {}
