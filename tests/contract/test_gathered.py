"""Calls that arrive together are written together, and each of them as if it were alone."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, make_url, select

from agentstore import Store, errors
from agentstore.execution.gathering import MOST_GROUPS
from agentstore.schema import PLAIN, tables
from tests.conftest import on_a_server
from tests.programs.probes import connect, drop, engine_of, gatherer_of, wait_until, waiting

COMPANY = 60
"""Threads: more than calls in any test."""


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(COMPANY) as executor:
        yield executor


Submit = Callable[[Sequence[Callable[[], Any]]], list[Future[Any]]]


@contextmanager
def held_up(place: Any, store: Any, threads: ThreadPoolExecutor) -> Iterator[Submit]:
    """Give what has calls wait, one behind the other, until the block ends."""
    hold = sqlite_held_up if place.driver.engine == "sqlite" else server_held_up
    with hold(place, store, threads) as held_on_server:

        def held() -> int:
            """Count the calls that wait: for others to go with, or for the server."""
            return waiting(store) + held_on_server()

        def submit(calls: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
            futures = []
            for call in calls:
                before = held()
                futures.append(threads.submit(call))
                wait_until(
                    lambda before=before: (
                        gatherer_of(store) is None or held() > before or futures[-1].done()
                    )
                )
            return futures

        yield submit


@contextmanager
def sqlite_held_up(place, store, threads):
    """Have the first of the writers wait for somebody else, who writes to the file."""
    other = sqlite3.connect(str(make_url(place.url).database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    # An answer comes before the lead is handed over.
    wait_until(lambda: gatherer_of(store) is None or gatherer_of(store)._leader is None)
    first = threads.submit(store.users.create, "first")
    wait_until(lambda: gatherer_of(store) is None or gatherer_of(store)._leader is not None)
    wait_until(lambda: not waiting(store))
    yield lambda: 0
    other.execute("ROLLBACK")
    other.close()
    first.result(timeout=60)


@contextmanager
def server_held_up(place, store, threads):
    """Have as many calls of each kind as may be on their way wait for tables that are locked."""
    sessions = [store.sessions.create().id for _ in range(MOST_GROUPS)]
    first = []
    with connect(place.url) as looking, connect(place.url) as other, other.transaction():
        other.execute("LOCK TABLE messages, tool_logs, turn_usage IN ACCESS EXCLUSIVE MODE")
        for id in sessions:
            first.append(threads.submit(store.messages.save, id, "user", "first"))
            first.append(threads.submit(store.tool_logs.log, id, "first"))
            first.append(threads.submit(lambda id=id: store.usage.record(id, model="first")))
        wait_until(lambda: waiting_for_locks(looking) == len(first))
        yield lambda: waiting_for_locks(looking)
    for each in first:
        each.result(timeout=60)


def waiting_for_locks(server: psycopg.Connection[Any]) -> int:
    [[count]] = server.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchall()
    return int(count)


def outcome(future: Future[Any]) -> Any:
    error = future.exception(timeout=60)
    return future.result() if error is None else error


def check_session(store: Any, session_id: str, count: int) -> list[Any]:
    history = store.messages.history(session_id, None)
    assert [message.seq for message in history] == list(range(1, count + 1))
    turns = [message.turn for message in history]
    assert turns == [sum(m.role == "user" for m in history[: n + 1]) for n in range(count)]
    assert store.sessions.verify(session_id).agree
    return history


def test_calls_that_arrive_together_are_written_and_answered_each(place, store, threads):
    sessions = [store.sessions.create().id for _ in range(4)]
    earlier = [{"role": "user", "content": f"{n}", "marks": "kept"} for n in range(10)]
    before = [message for id in sessions for message in store.messages.save_many(id, earlier)]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    with held_up(place, store, threads) as submit:
        futures = submit(
            [
                *(
                    lambda id=id, n=n: store.messages.save(
                        id, "user", f"{id} {n}", token_count=n, cost=f"0.{n}", marks="kept"
                    )
                    for n in range(5)
                    for id in sessions
                ),
                *(
                    lambda id=id: store.messages.save_many(
                        id,
                        [
                            {"role": "assistant", "tool_calls": [call], "metadata": {"of": id}},
                            {"role": "tool", "content": "found", "tool_call_id": "c1"},
                        ],
                    )
                    for id in sessions
                ),
                *(
                    lambda id=id: store.tool_logs.log(id, "look", input={"of": id}, elapsed_ms=1.5)
                    for id in sessions
                ),
                *(
                    lambda id=id: store.usage.record(id, input_tokens=7, model="m", cost="0.5")
                    for id in sessions
                ),
            ]
        )
    saved, many, logs, used = (
        [outcome(each) for each in futures[begin:end]]
        for begin, end in ((0, 20), (20, 24), (24, 28), (28, 32))
    )
    for id in sessions:
        history = check_session(store, id, 17)
        mine = [m for m in before + saved if m.session_id == id]
        mine += [m for pair in many for m in pair if m.session_id == id]
        assert sorted(mine, key=lambda m: m.seq) == history
        session = store.sessions.get(id)
        assert (session.total_tokens, session.total_cost) == (10, 1)
        kept = [message for message in history if message.role == "user"]
        assert store.messages.history(id, None, mark="kept") == kept
        assert store.messages.history(id, 2, mark="kept") == kept[-2:]
        [called] = store.messages.find_by_tool(id, "look")
        assert called.metadata == {"of": id}
    with Store(place.url) as beside, beside._engine.connect() as connection:
        names = tables(PLAIN)
        for table in (names.message_tool_calls, names.message_marks):  # cut into pages by these
            pairs = select(table.c.seq, names.messages.c.seq).join(
                names.messages, names.messages.c.id == table.c.message_id
            )
            assert {one == two for one, two in connection.execute(pairs)} == {True}
    for id, log, record in zip(sessions, logs, used, strict=True):
        assert store.tool_logs.get(log.id) == log
        assert (log.session_id, log.input, log.elapsed_ms) == (id, {"of": id}, 1.5)
        assert (record.session_id, record.input_tokens, record.model) == (id, 7, "m")
        assert record.branch == 0
        assert len(store.tool_logs.list(session_id=id).items) == 1
        assert store.usage.sum_by("total", session_id=id)[0].input_tokens == 7


@on_a_server
def test_what_arrives_together_goes_in_one_statement(place, store, threads):
    sessions = [store.sessions.create().id for _ in range(4)]
    statements: list[str] = []

    def note(_c: Any, _k: Any, sql: str, *_: Any) -> None:
        statements.append(sql)

    with held_up(place, store, threads) as submit:
        event.listen(engine_of(store), "before_cursor_execute", note)
        futures = submit(
            [
                *(
                    lambda n=n: store.messages.save(sessions[n % 4], "user", f"{n}")
                    for n in range(12)
                ),
                *(lambda id=id: store.tool_logs.log(id, "look") for id in sessions),
                *(lambda id=id: store.usage.record(id, model="m") for id in sessions),
            ]
        )
    assert not [r for r in map(outcome, futures) if isinstance(r, BaseException)]
    event.remove(engine_of(store), "before_cursor_execute", note)
    assert len(statements) == 3


def test_who_comes_to_listen_between_two_writes_hears_the_next_until_it_goes(store):
    session, heard = store.sessions.create().id, []

    def note(_c: Any, _k: Any, sql: str, *_: Any) -> None:
        heard.append(sql)

    store.messages.save(session, "user", "1")
    event.listen(engine_of(store), "before_cursor_execute", note)
    store.messages.save(session, "user", "2")
    assert any("INSERT" in sql for sql in heard)
    event.remove(engine_of(store), "before_cursor_execute", note)
    heard.clear()
    store.messages.save(session, "user", "3")
    assert heard == []
    assert [m.content for m in store.messages.history(session)] == ["1", "2", "3"]


def test_what_is_wrong_with_one_call_is_its_own_error(place, store, threads):
    session = store.sessions.create().id
    save = store.messages.save
    others = save(store.sessions.create().id, "user", "elsewhere").id
    save(session, "user", "there", external_id="x")
    with held_up(place, store, threads) as submit:
        futures = submit(
            [
                lambda: save(session, "user", "one"),
                lambda: save("nowhere", "user", "two"),
                lambda: save(session, "nobody", "three"),
                lambda: save(session, "user", "four", external_id="x"),
                lambda: save(session, "user", "five", external_id="x", on_duplicate="refuse"),
                lambda: save(session, "user", "six", idempotency_key="k"),
                lambda: store.messages.save_many(session, []),
                lambda: store.tool_logs.log("nowhere", "look"),
                lambda: store.tool_logs.log(session, "look", message_id=others),
                lambda: store.tool_logs.log(session, "look"),
                lambda: store.usage.record("nowhere", model="m"),
                lambda: store.usage.record(session, input_tokens=-1, model="m"),
                lambda: store.usage.record(session, input_tokens=3),
                lambda: save(session, "user", "seven"),
            ]
        )
        if gatherer_of(store) is not None:
            refused = [n for n, future in enumerate(futures) if future.done()]
            assert {*refused} - {6} == {2, 11}, "what is wrong in itself has not to wait"
    found = [outcome(each) for each in futures]
    assert [type(each).__name__ for each in found] == [
        "MessageRecord", "NotFound", "InvalidInput", "MessageRecord", "AlreadyExists",
        "MessageRecord", "list", "NotFound", "WrongSession", "ToolLogRecord", "NotFound",
        "InvalidInput", "UsageRecord", "MessageRecord",
    ]  # fmt: skip
    texts = {message.content for message in check_session(store, session, 4)}
    assert texts == {"there", "one", "six", "seven"}
    assert len(store.tool_logs.list(session_id=session).items) == 1


def test_an_append_that_is_too_large_for_a_group_goes_beside_it(place, store, threads):
    large, small = store.sessions.create().id, [store.sessions.create().id for _ in range(3)]
    many = [{"role": "user", "content": f"{n}"} for n in range(1_200)]
    with held_up(place, store, threads) as submit:
        futures = submit(
            [
                lambda: store.messages.save(small[0], "user", "x"),
                lambda: store.messages.save_many(large, many),
                *(lambda id=id: store.messages.save(id, "user", "x") for id in small[1:]),
            ]
        )
    results = [outcome(each) for each in futures]
    assert [message.content for message in results[1]] == [each["content"] for each in many]
    assert check_session(store, large, 1_200) == results[1]
    for id in small:
        check_session(store, id, 1)


REFUSE = {
    "sqlite": "CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN new.content = 'bad' "
    "BEGIN SELECT RAISE(ABORT, 'refused'); END",
    "postgresql": "ALTER TABLE messages ADD CONSTRAINT refuse CHECK (content <> 'bad')",
}


def test_a_row_that_the_database_refuses_is_refused_to_its_caller_alone(place, store, threads):
    sessions = [store.sessions.create().id for _ in range(6)]
    with raw_connection(place) as execute:
        execute(REFUSE[place.driver.engine])
    with held_up(place, store, threads) as submit:
        futures = submit(
            [
                lambda id=id, n=n: store.messages.save(id, "user", "bad" if n == 2 else "good")
                for n, id in enumerate(sessions)
            ]
        )
    found = [outcome(each) for each in futures]
    assert isinstance(found.pop(2), errors.DatabaseError)
    assert [message.content for message in found] == ["good"] * 5
    for n, id in enumerate(sessions):
        check_session(store, id, n != 2)


@contextmanager
def raw_connection(place: Any) -> Iterator[Callable[[str], Any]]:
    """Execute SQL beside the store."""
    if place.driver.engine == "sqlite":
        other = sqlite3.connect(str(make_url(place.url).database))
        yield other.execute
        other.commit()
        other.close()
        return
    with connect(place.url) as server:
        yield server.execute


@on_a_server
def test_who_waits_for_a_locked_session_keeps_nobody_else_waiting(place, store, threads):
    locked, free = store.sessions.create().id, store.sessions.create().id
    with connect(place.url) as other:
        with other.transaction():
            other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [locked])
            with held_up(place, store, threads) as submit:
                waits = submit(
                    [
                        lambda: store.messages.save(locked, "user", "later"),
                        lambda: store.tool_logs.log(locked, "later"),
                        lambda: store.usage.record(locked, model="later"),
                    ]
                )
                goes = submit(
                    [
                        lambda: store.messages.save(free, "user", "now"),
                        lambda: store.tool_logs.log(free, "now"),
                        lambda: store.usage.record(free, model="now"),
                    ]
                )
            for each in goes:
                each.result(timeout=60)
            assert not any(each.done() for each in waits)
        for each in waits:
            each.result(timeout=60)
    check_session(store, locked, 1)
    check_session(store, free, 1)


@on_a_server
def test_calls_that_wait_for_locked_sessions_do_not_fill_the_ways(place, store, threads):
    free = store.sessions.create().id
    locked = [store.sessions.create().id for _ in range(MOST_GROUPS + 1)]
    with connect(place.url) as looking, connect(place.url) as other:
        with other.transaction():
            other.execute("SELECT 1 FROM sessions WHERE id = ANY(%s) FOR UPDATE", [locked])
            waits = [threads.submit(store.messages.save, id, "user", "later") for id in locked]
            wait_until(lambda: waiting_for_locks(looking) == len(locked))
            assert threads.submit(store.messages.save, free, "user", "now").result(timeout=60)
            assert store.messages.save(free, "user", "now").seq == 2
            assert not any(each.done() for each in waits)
        assert [each.result(timeout=60).seq for each in waits] == [1] * len(locked)


@on_a_server
def test_if_the_connection_breaks_the_outcome_is_in_doubt_for_each(place, store, threads):
    sessions = [store.sessions.create().id for _ in range(6)]
    broken: list[Any] = []

    def break_it(connection: Any, _k: Any, sql: str, *_: Any) -> None:
        if not broken:
            broken.append(sql)
            drop(place.url, connection)

    with held_up(place, store, threads) as submit:
        event.listen(engine_of(store), "before_cursor_execute", break_it)
        futures = submit([partial(store.messages.save, each, "user", "x") for each in sessions])
    found = [outcome(each) for each in futures]
    event.remove(engine_of(store), "before_cursor_execute", break_it)
    assert [type(each) for each in found] == [errors.ConnectionLost] * 6
    assert all(each.in_doubt for each in found)
    assert len({id(each) for each in found}) == 6
    for id_ in sessions:
        check_session(store, id_, 0)
    store.messages.save(sessions[0], "user", "again")
    check_session(store, sessions[0], 1)
