"""What somebody else has locked is passed over, and judged by what they did with it."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, and_, create_engine, text

from agentstore.repositories import listing
from agentstore.repositories.upkeep import pruning
from agentstore.retention import RetentionPolicy
from tests.conftest import on_a_server
from tests.contract.clocks import HOUR
from tests.contract.test_expiry import grown

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions so small that what is locked fills some of them, however slow the machine."""
    monkeypatch.setattr(listing, "LONG", 1000.0)
    monkeypatch.setattr(pruning, "ROWS", 2)
    monkeypatch.setattr(pruning, "_STREAMS", 2)


@contextmanager
def held(place: Any, query: str, **parameters: Any) -> Iterator[Connection]:
    """Hold what a query locks in a transaction that stays open."""
    engine = create_engine(place.url)
    with engine.connect() as connection:
        assert connection.execute(text(query), parameters).all()
        yield connection
    engine.dispose()


def pruned_meanwhile(place: Any, query: str, store: Any, policy: Any, **parameters: Any) -> Any:
    """Prune while somebody holds what a query locks; whoever waits for that fails."""
    with ThreadPoolExecutor(1) as pool, held(place, query, **parameters):
        return pool.submit(store.prune, policy, reclaim=False).result(timeout=30)


@on_a_server
@pytest.mark.parametrize(("table", "rule"), [("tasks", "finished_tasks"), ("tool_logs",) * 2])
def test_a_row_that_somebody_has_locked_is_left_to_the_next_time(place, timed, clock, table, rule):
    session = timed.sessions.create().id
    if table == "tasks":
        ids = [timed.tasks.cancel(timed.tasks.create(None, "mail").id).id for _ in range(7)]
    else:
        ids = [timed.tool_logs.log(session, "search").id for _ in range(7)]
    clock.now += 2 * DAY
    policy = RetentionPolicy(**{rule: DAY})
    query = f"SELECT 1 FROM {table} WHERE id::text = ANY(:ids) FOR UPDATE"  # noqa: S608
    report = pruned_meanwhile(place, query, timed, policy, ids=ids[:3])
    assert report.rules == {table: 4}
    assert sorted(each.id for each in getattr(timed, table).list()) == sorted(ids[:3])
    assert timed.prune(policy).rules == {table: 3}


@on_a_server
def test_reservations_of_a_user_who_is_locked_are_left_to_the_next_time(place, timed, clock):
    users = [timed.users.create(name, quota_total=100).id for name in ("Alice", "Bob")]
    for user in users:
        for _ in range(5):
            timed.users.reserve_quota(user, 10, ttl=HOUR)
    clock.now += 2 * DAY
    policy = RetentionPolicy(reservations=DAY)
    query = "SELECT 1 FROM users WHERE id = :id FOR UPDATE"
    report = pruned_meanwhile(place, query, timed, policy, id=users[0])
    assert report.rules == {"reservations": 5}
    assert [timed.users.get(user).quota_reserved for user in users] == [50, 0]
    assert timed.prune(policy).rules == {"reservations": 5}
    assert timed.users.get(users[0]).quota_reserved == 0


@on_a_server
@pytest.mark.parametrize("table", ["sessions", "messages"])
def test_streams_that_somebody_has_locked_are_left_to_the_next_time(place, timed, clock, table):
    sessions = [timed.sessions.create().id for _ in range(5)]
    messages = [timed.messages.begin(session).id for session in sessions]
    for message in messages:
        timed.messages.append(message, "half")
    clock.now += 2 * DAY
    policy = RetentionPolicy(streams=DAY)
    query, ids = {
        "sessions": ("SELECT 1 FROM sessions WHERE id = ANY(:ids) FOR UPDATE", sessions[:3]),
        "messages": ("SELECT 1 FROM messages WHERE id::text = ANY(:ids) FOR UPDATE", messages[:3]),
    }[table]
    report = pruned_meanwhile(place, query, timed, policy, ids=ids)
    assert report.rules == {"streams": 2}
    assert report.rows == {"message_chunks": 2}
    assert timed.prune(policy).rules == {"streams": 3}
    for message in messages:
        found = timed.messages.get(message)
        assert (found.status, found.content) == ("incomplete", "half")


@on_a_server
def test_a_session_is_kept_for_a_mark_that_comes_meanwhile(place, timed, clock, monkeypatch):
    """The mark is there before the session is locked, and not yet when the look begins."""
    session = grown(timed, timed.sessions.create().id, 3)
    clock.now += 2 * DAY
    conditions = pruning.is_idle
    looks: list[Any] = []

    def slow(tables: Any, terms: Any) -> Any:
        looks.append(terms)
        condition = conditions(tables, terms)
        if len(looks) < 2:  # the first look finds it, the second one decides
            return condition
        return and_(condition, text("pg_advisory_xact_lock_shared(1) IS NOT NULL"))

    monkeypatch.setattr(pruning, "is_idle", slow)
    policy = RetentionPolicy(sessions_idle=DAY, keep_marked=("keep",))
    with (
        ThreadPoolExecutor(1) as pool,
        place.open(clock=clock) as other,
        held(place, "SELECT pg_advisory_lock(1) IS NULL") as gate,
    ):
        with other.transaction() as tx:
            assert tx.marks.update(session, "keep") == 3
            pruning_it = pool.submit(timed.prune, policy, reclaim=False)
            until_it_waits_or_is_done(place, pruning_it)
        gate.execute(text("SELECT pg_advisory_unlock(1)"))
        assert pruning_it.result(timeout=30).rows == {}
    assert len(looks) == 2
    assert len(timed.messages.history(session, mark="keep")) == 3


def until_it_waits_or_is_done(place: Any, work: Future[Any]) -> None:
    """Wait until somebody waits at the gate, or the work is done without coming to it."""
    engine = create_engine(place.url)
    waiting = text(
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = pg_locks.database "
        "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
    )
    with engine.connect() as connection:
        while not work.done() and not connection.execute(waiting).scalar():
            time.sleep(0.01)
    engine.dispose()
