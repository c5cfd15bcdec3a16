"""Sessions whose time to live has run out are cleaned up, and no other."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from sqlalchemy import event

from agentstore import migrations
from agentstore.errors import AlreadyExists, NotFound
from agentstore.repositories import listing
from agentstore.repositories.upkeep import deletion
from agentstore.schema import Names
from tests.conftest import on_a_server
from tests.contract.clocks import HOUR, NOON, Clock, at_once, done_to
from tests.programs.probes import engine_of
from tests.raw_sql import Own, execute, raw


def everything_of(store: Any, user_id: str | None = None) -> str:
    """Make a session that has rows in every table that a session can have rows in now."""
    session = store.sessions.create(user_id, ttl=HOUR, state={"n": 1}).id
    calls = [{"id": "c", "function": {"name": "search"}}]
    message = store.messages.save(session, "assistant", "I look", tool_calls=calls)
    store.messages.save(session, "tool", "found", tool_call_id="c")
    store.tool_logs.log(session, "search", message_id=message.id)
    store.tasks.create(session, "mail")
    store.usage.record(session, model="small", input_tokens=5)
    for step in range(3):
        values = {"messages": [{"n": n} for n in range(step)]}
        store.checkpoints.put(f"thread of {session}", values, session_id=session)
    store.checkpoints.put_writes(f"thread of {session}", "later", "task", [("a", 1)])
    return str(session)


def attach(place: Any, session_id: str, message_id: str, digest: str) -> None:
    """Attach bytes to a message, behind the store's back."""
    execute(
        place.url,
        raw(
            "INSERT INTO blobs (digest, size, data, created_at) VALUES (:d, 1, :b, :t) "
            "ON CONFLICT DO NOTHING",
            d=digest,
            b=b"x",
            t=NOON,
        ),
    )
    execute(
        place.url,
        raw(
            "INSERT INTO attachments (id, message_id, session, digest, media_type, created_at) "
            "VALUES (:m, :m, (SELECT pk FROM sessions WHERE id = :s), :d, 'text/plain', :t)",
            m=Own(message_id),
            s=session_id,
            d=digest,
            t=NOON,
        ),
    )


def grown(store: Any, session_id: str, count: int) -> str:
    """Add so many messages to a session."""
    messages = [{"role": "user", "content": f"word {n}"} for n in range(count)]
    store.messages.save_many(session_id, messages)
    return session_id


def rows_of(store: Any) -> dict[str, int]:
    return {name: count for name, count in store.usage.totals().rows.items() if count}


def at_most(store: Any, rows: int) -> int:
    """Say how many rows a transaction may delete, if it is so many where all wait for it."""
    return rows if engine_of(store).dialect.name == "sqlite" else listing.ALONE * rows


@contextmanager
def transactions(store: Any) -> Iterator[list[int]]:
    """Collect how many rows each transaction deleted that was committed meanwhile.

    What the search index drops in the same transaction does not belong to a session.
    """
    engine = engine_of(store)
    collected: list[int] = []
    now: list[int] = []

    def keep(_c: Any, cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith("DELETE") and "search" not in sql:
            now.append(cursor.rowcount)

    def committed(_: Any) -> None:
        collected.append(sum(now))
        now.clear()

    event.listen(engine, "after_cursor_execute", keep)
    event.listen(engine, "commit", committed)
    try:
        yield collected
    finally:
        event.remove(engine, "after_cursor_execute", keep)
        event.remove(engine, "commit", committed)


def test_the_time_to_live_can_be_changed_and_taken_away(timed, clock):
    session = timed.sessions.create(title="t", ttl=HOUR)
    clock.now += timedelta(minutes=10)
    timed.messages.save(session.id, "user", "hello")
    clock.now += timedelta(minutes=10)
    changed = timed.sessions.update(session.id, ttl=2 * HOUR)
    assert changed.ttl == 2 * HOUR
    assert changed.expires_at == NOON + timedelta(minutes=10) + 2 * HOUR
    assert (changed.title, changed.version) == ("t", session.version)
    assert timed.sessions.get(session.id) == changed
    assert timed.sessions.update(session.id, title="u").ttl == 2 * HOUR
    clock.now = changed.expires_at - timedelta(seconds=1)
    assert timed.sessions.delete_expired().sessions == ()
    gone = timed.sessions.update(session.id, ttl=None)
    assert (gone.ttl, gone.expires_at, gone.title) == (None, None, "u")
    clock.now += timedelta(days=10_000)
    assert timed.sessions.delete_expired().sessions == ()
    timed.sessions.update(session.id, ttl=HOUR)
    assert timed.sessions.delete_expired().sessions == (session.id,)


def test_a_shorter_time_to_live_may_be_over_at_once(timed, clock):
    session = timed.sessions.create(ttl=10 * HOUR)
    clock.now += 2 * HOUR
    assert timed.sessions.delete_expired().sessions == ()
    assert timed.sessions.update(session.id, ttl=HOUR).expires_at == NOON + HOUR
    assert timed.sessions.delete_expired().sessions == (session.id,)


# --- What is deleted, and what is not ----------------------------------------------------------


def test_expired_sessions_go_with_all_that_is_theirs_and_nothing_else_does(place, timed, clock):
    user = timed.users.create("Alice").id
    kept = everything_of(timed, user)
    timed.sessions.update(kept, ttl=3 * HOUR)
    for message in timed.messages.history(kept)[:1]:
        attach(place, kept, message.id, "shared")
    untouched = rows_of(timed)
    gone = [everything_of(timed, user) for _ in range(3)]
    for number, session in enumerate(gone):
        first, second = timed.messages.history(session)
        attach(place, session, first.id, "shared")
        attach(place, session, second.id, f"its own {number}")
    before = rows_of(timed)
    clock.now += HOUR
    report = timed.sessions.delete_expired()
    assert sorted(report.sessions) == sorted(gone)
    assert report.skipped == 0
    after = rows_of(timed)
    assert after == untouched
    lost = {name: before[name] - after.get(name, 0) for name in before}
    assert report.rows == {name: count for name, count in lost.items() if count}
    assert report.total == sum(lost.values())
    assert report.rows["sessions"] == report.rows["blobs"] == report.rows["tasks"] == 3
    assert timed.users.get(user)
    restored = timed.sessions.restore(kept)
    assert [m.content for m in restored.history] == ["I look", "found"]
    for session in gone:
        with pytest.raises(NotFound):
            timed.sessions.get(session)
    again = timed.sessions.delete_expired()
    assert (again.sessions, again.rows, again.skipped, again.total) == ((), {}, 0, 0)


def test_a_session_expires_in_whatever_status_it_is(timed, clock):
    ways = ["pause", "complete", "cancel", "fail"]
    ids = [timed.sessions.create(ttl=HOUR).id for _ in ways]
    for way, id in zip(ways, ids, strict=True):
        getattr(timed.sessions, way)(id)
    waiting = timed.sessions.create(ttl=HOUR).id
    timed.sessions.wait_for_user(waiting, "which?")
    lasting = timed.sessions.create().id
    clock.now += HOUR
    assert sorted(timed.sessions.delete_expired().sessions) == sorted([*ids, waiting])
    assert timed.sessions.walk().items == (timed.sessions.get(lasting),)


def test_a_session_expires_at_its_time_and_not_a_moment_before(timed, clock):
    session = timed.sessions.create(ttl=HOUR)
    clock.now = session.expires_at - timedelta(microseconds=1)
    assert timed.sessions.delete_expired().sessions == ()
    clock.now = session.expires_at
    assert timed.sessions.delete_expired().sessions == (session.id,)


def test_a_session_that_was_active_since_is_kept_and_looked_at_again_in_time(timed, clock):
    active, idle = (timed.sessions.create(ttl=HOUR).id for _ in range(2))
    clock.now += timedelta(minutes=59)
    timed.messages.save(active, "user", "still here")
    clock.now += timedelta(minutes=1)
    report = timed.sessions.delete_expired(batch_size=1)
    assert (report.sessions, report.skipped) == ((idle,), 1)
    assert timed.sessions.get(active).expires_at == NOON + timedelta(minutes=119)
    again = timed.sessions.delete_expired()
    assert (again.sessions, again.skipped) == ((), 0)
    clock.now = NOON + timedelta(minutes=119)
    assert timed.sessions.delete_expired().sessions == (active,)


def test_a_clock_that_was_set_back_deletes_nothing_early(timed, clock):
    session = timed.sessions.create(ttl=HOUR)
    clock.now = NOON - timedelta(days=1)
    timed.messages.save(session.id, "user", "the clock was wrong")
    for minutes in (0, 59, 61, 24 * 60):
        clock.now = NOON - timedelta(days=1) + timedelta(minutes=minutes)
        record = timed.sessions.get(session.id)
        report = timed.sessions.delete_expired()
        assert not report.sessions or clock.now >= record.expires_at
    clock.now = NOON + HOUR
    timed.sessions.delete_expired()
    assert timed.sessions.find(session.id) is None


def test_a_clock_that_is_set_back_between_two_batches_saves_what_is_left(place):
    times = iter([NOON, NOON, NOON + 2 * HOUR, NOON + 2 * HOUR])
    with place.open(clock=lambda: next(times, NOON + timedelta(minutes=1))) as store:
        first, second = (store.sessions.create(ttl=HOUR).id for _ in range(2))
        assert store.sessions.delete_expired(batch_size=1).sessions == (first,)
        assert store.sessions.find(second)


def test_what_expires_meanwhile_is_left_to_the_next_clean_up(place):
    """Else it might never end where sessions expire as fast as they are deleted."""
    clock = Clock()
    with place.open(clock=clock) as store:
        ids = [store.sessions.create(ttl=n * HOUR).id for n in range(1, 5)]
        clock.now += HOUR
        engine = engine_of(store)

        def go_on(_: Any) -> None:
            clock.now += HOUR

        event.listen(engine, "commit", go_on)
        report = store.sessions.delete_expired(batch_size=1)
        event.remove(engine, "commit", go_on)
        assert report.sessions == (ids[0],)
        clock.now = NOON + 4 * HOUR
        assert store.sessions.delete_expired(batch_size=1).sessions == tuple(ids[1:])


# --- How much at once --------------------------------------------------------------------------


@pytest.fixture
def unhurried(monkeypatch):
    """Let no transaction be cut short because this machine is slow."""
    monkeypatch.setattr(listing, "LONG", float("inf"))


def test_clean_up_works_in_small_transactions_and_reports_their_sum(timed, clock, unhurried):
    ids = [timed.sessions.create(ttl=HOUR).id for _ in range(11)]
    clock.now += HOUR
    with transactions(timed) as deleted:
        report = timed.sessions.delete_expired(batch_size=4)
    assert report.sessions == tuple(ids)
    rows = 3  # the session, its documents, its branch
    assert [count for count in deleted if count] == [4 * rows, 4 * rows, 3 * rows]
    assert report.rows == {"branches": 11, "session_data": 11, "sessions": 11}


def test_clean_up_stops_at_a_limit_and_goes_on_from_there(timed, clock):
    ids = [timed.sessions.create(ttl=HOUR).id for _ in range(7)]
    clock.now += HOUR
    assert timed.sessions.delete_expired(limit=0).sessions == ()
    assert timed.sessions.delete_expired(limit=3, batch_size=2).sessions == tuple(ids[:3])
    assert timed.sessions.delete_expired(limit=3).sessions == tuple(ids[3:6])
    assert timed.sessions.delete_expired(limit=3).sessions == tuple(ids[6:])


def test_a_transaction_deletes_no_more_rows_than_it_may(timed, clock, monkeypatch, unhurried):
    monkeypatch.setattr(listing, "ALONE", 1)
    monkeypatch.setattr(deletion, "ROWS", 10)
    small = [grown(timed, timed.sessions.create(ttl=HOUR).id, n % 5) for n in range(6)]
    clock.now += timedelta(seconds=1)
    large = everything_of(timed)
    grown(timed, large, 40)
    clock.now += timedelta(seconds=1)
    last = timed.sessions.create(ttl=HOUR).id
    kept = grown(timed, timed.sessions.create().id, 30)
    before = rows_of(timed)
    clock.now += HOUR
    with transactions(timed) as deleted:
        report = timed.sessions.delete_expired()
    assert report.sessions == (*small, large, last)
    after = rows_of(timed)
    lost = {name: before[name] - after.get(name, 0) for name in before}
    assert report.rows == {name: count for name, count in lost.items() if count}
    assert len(timed.messages.history(kept, None)) == 30
    assert max(deleted) == 10
    assert sum(deleted) == report.total
    assert [count for count in deleted if count][:4] == [3 + 4, 5, 6, 7 + 3]


def test_who_uses_a_session_deleted_in_pieces_hears_that_it_is_gone(
    place, timed, clock, monkeypatch
):
    monkeypatch.setattr(deletion, "ROWS", 10)
    session = everything_of(timed)
    grown(timed, session, 40)
    message = timed.messages.history(session)[0]
    other = timed.sessions.create().id
    clock.now += HOUR
    with place.open(clock=clock) as cleaner:
        begin_and_die(cleaner)
    left = rows_of(timed)
    assert left["sessions"] == 2
    assert left["messages"] > 0
    sessions, messages = timed.sessions, timed.messages
    assert sessions.find(session) is None
    assert [found.id for found in sessions.list()] == [other]
    assert [found.id for found in sessions.walk()] == [other]
    assert messages.history(session) == []
    for call in (
        lambda: sessions.get(session),
        lambda: sessions.restore(session),
        lambda: sessions.verify(session),
        lambda: sessions.rename(session, "x"),
        lambda: sessions.update(session, title="x", ttl=None, state=1),
        lambda: sessions.update(session, state=1, expected_version=1),
        lambda: sessions.pause(session),
        lambda: sessions.wait_for_user(session, "which?"),
        lambda: messages.save(session, "user", "too late"),
        lambda: messages.save(session, "assistant", tool_calls=[{"name": "x"}]),
        lambda: messages.save_many(session, [{"role": "user"}, {"role": "user"}]),
    ):
        with pytest.raises(NotFound, match="no session"):
            call()
    with pytest.raises(AlreadyExists):
        sessions.create(id=session)
    assert rows_of(timed) == left
    # Whatever the clock says by then.
    clock.now = NOON - timedelta(days=1)
    report = timed.sessions.delete_expired()
    assert report.sessions == (session,)
    assert messages.find(message.id) is None
    assert sessions.create(id=session).message_count == 0
    rest = rows_of(timed)
    assert rest["sessions"] == 2
    assert "messages" not in rest


def test_branches_that_show_each_others_messages_go_in_pieces_too(timed, clock, monkeypatch):
    monkeypatch.setattr(deletion, "ROWS", 7)
    session = grown(timed, timed.sessions.create(ttl=HOUR).id, 20)
    for n in range(4):
        timed.branches.create(session, name=f"idea {n}")
        grown(timed, session, 6)
    for step in range(12):
        values = {"messages": [{"n": n} for n in range(step)]}
        timed.checkpoints.put("thread", values, session_id=session)
    assert timed.sessions.restore(session).branch == "idea 3"
    before = rows_of(timed)
    clock.now += HOUR
    report = timed.sessions.delete_expired()
    assert report.sessions == (session,)
    after = rows_of(timed)
    lost = {name: before[name] - after.get(name, 0) for name in before}
    assert report.rows == {name: count for name, count in lost.items() if count}
    assert {"branches", "checkpoint_values", "messages"} <= report.rows.keys()


def test_a_session_being_deleted_in_pieces_can_be_deleted_whole(place, timed, clock, monkeypatch):
    monkeypatch.setattr(deletion, "ROWS", 10)
    session = grown(timed, timed.sessions.create(ttl=HOUR).id, 40)
    clock.now += HOUR
    with place.open(clock=clock) as cleaner:
        begin_and_die(cleaner)
    timed.sessions.delete(session)
    assert "sessions" not in rows_of(timed)
    assert "messages" not in rows_of(timed)
    assert timed.sessions.delete_expired().sessions == ()


class Interrupted(Exception):
    """Stands for the end of a process between two transactions."""


def begin_and_die(store: Any) -> None:
    """Clean up, but let only one transaction that deletes be committed, and none begin after it."""
    engine = engine_of(store)
    deleting, over = Event(), Event()

    def keep(_c: Any, _k: Any, sql: str, *_: Any) -> None:
        if over.is_set():
            raise Interrupted
        if sql.startswith("DELETE"):
            deleting.set()

    def committed(_: Any) -> None:
        if deleting.is_set():
            over.set()

    event.listen(engine, "before_cursor_execute", keep)
    event.listen(engine, "commit", committed)
    try:
        with pytest.raises(Interrupted):
            store.sessions.delete_expired()
    finally:
        event.remove(engine, "before_cursor_execute", keep)
        event.remove(engine, "commit", committed)


# --- Beside others ---------------------------------------------------------------------------


def test_in_a_transaction_a_clean_up_happens_or_does_not(timed, clock):
    ids = [everything_of(timed) for _ in range(3)]
    before = rows_of(timed)
    clock.now += HOUR
    with pytest.raises(ZeroDivisionError), timed.transaction() as tx:
        assert sorted(tx.sessions.delete_expired(batch_size=1).sessions) == sorted(ids)
        raise ZeroDivisionError
    assert rows_of(timed) == before
    with timed.transaction() as tx:
        tx.sessions.delete_expired(batch_size=1)
    assert "sessions" not in rows_of(timed)


def test_when_nothing_has_expired_no_writer_is_waited_for(place, timed, clock):
    timed.sessions.create(ttl=HOUR)
    with place.open(clock=clock, busy_timeout=0) as other, timed.transaction() as tx:
        tx.sessions.create()
        assert other.sessions.delete_expired().sessions == ()


@on_a_server
def test_a_session_that_somebody_is_writing_to_is_not_waited_for(place, timed, clock):
    busy, idle = (timed.sessions.create(ttl=HOUR).id for _ in range(2))
    clock.now += HOUR
    impatient = f"{place.url}&options=-c%20lock_timeout%3D1s"
    with place.driver.open(impatient, clock=clock) as other, timed.transaction() as tx:
        tx.messages.save(busy, "user", "just in time")
        assert other.sessions.delete_expired().sessions == (idle,)
    report = timed.sessions.delete_expired()
    assert (report.sessions, report.skipped) == ((), 1)
    assert timed.sessions.get(busy).message_count == 1


def test_of_many_who_clean_up_at_once_each_reports_its_own(place, timed, clock, monkeypatch):
    monkeypatch.setattr(deletion, "ROWS", 20)
    ids = [grown(timed, timed.sessions.create(ttl=HOUR).id, 7 * (n % 6)) for n in range(24)]
    before = rows_of(timed)
    clock.now += HOUR
    with place.open(clock=clock) as another:
        stores = [timed, another]
        reports = at_once(6, lambda n: stores[n % 2].sessions.delete_expired(batch_size=3))
        reports.append(timed.sessions.delete_expired())
    assert sorted(id for report in reports for id in report.sessions) == sorted(ids)
    after = rows_of(timed)
    for table in ("sessions", "messages", "session_data", "branches"):
        assert sum(report.rows.get(table, 0) for report in reports) == before[table]
        assert table not in after


def test_a_session_that_is_active_meanwhile_is_never_deleted(place, timed, clock):
    """Whoever is told that a message is saved finds it after a clean-up, and all before it."""
    ids = [grown(timed, timed.sessions.create(ttl=HOUR).id, 3) for _ in range(12)]
    clock.now += HOUR
    with place.open(clock=clock) as another:

        def work(n: int) -> list[str]:
            if n % 3 == 0:
                return [*another.sessions.delete_expired(batch_size=2).sessions]
            order = ids[::-1] if n % 2 else ids
            return done_to(order, lambda id: timed.messages.save(id, "user", str(n)))

        results = at_once(6, work)
    gone = {id for n in (0, 3) for id in results[n]}
    saved = {id for n in (1, 2, 4, 5) for id in results[n]}
    assert not gone & saved
    assert gone | saved == set(ids)
    for id in saved:
        history = timed.messages.history(id, None)
        assert [m.seq for m in history] == list(range(1, len(history) + 1))
        assert len(history) == 3 + sum(id in results[n] for n in (1, 2, 4, 5))
        assert timed.sessions.verify(id).agree


@on_a_server
def test_a_session_expires_in_a_prefixed_schema_too(place, clock):
    migrations.upgrade(place.url, names=Names("table", "my_"))
    with place.open(clock=clock, schema="table", table_prefix="my_") as store:
        session = everything_of(store)
        clock.now += HOUR
        report = store.sessions.delete_expired()
        assert report.sessions == (session,)
        assert report.rows["messages"] == 2
