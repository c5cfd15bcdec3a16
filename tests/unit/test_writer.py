"""The one writer: who waits together shares a commit, and what happens to one is its own."""

import asyncio
import concurrent.futures
import gc
import itertools
import re
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import IntegrityError, OperationalError

from agentstore import AsyncStore, MessageRecord, Store, errors
from agentstore.engines.base.dialect import Mode
from agentstore.engines.sqlite import append as sqlite_append
from agentstore.execution import async_runners
from agentstore.execution import writer as writing
from agentstore.execution.runners import UnitRunner
from agentstore.execution.unit import Unit, UnitFailure
from agentstore.execution.writer import MOST_TOGETHER, QueuedWrite, Writer
from agentstore.repositories.messages import append
from agentstore.transactions import in_transaction
from tests.programs.probes import checked_out, engine_of, spin

LONG_ENOUGH = 60
"""Seconds after which something hangs."""


@pytest.fixture
def path(tmp_path: Path, sqlite_template: Path) -> Path:
    copy = tmp_path / "test.db"
    copy.write_bytes(sqlite_template.read_bytes())
    return copy


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{path}") as opened:
        opened.sessions.create(id="s")
        yield opened


def writer_of(store: Any) -> Writer:
    runner = store._runner if isinstance(store, Store) else store._unit_runner._runner
    assert isinstance(runner, UnitRunner)
    assert runner.writer is not None
    return runner.writer


def traced(store: Any) -> list[str]:
    """Give what the writer's connection executes from now on."""
    statements: list[str] = []
    connection = writer_of(store)._connection
    assert connection is not None, "it has written before, and keeps its connection"
    connection.connection.dbapi_connection.set_trace_callback(statements.append)  # type: ignore[union-attr]
    return statements


def count(statements: Sequence[str], beginning: str) -> int:
    return sum(statement.startswith(beginning) for statement in statements)


def wait_until(true: Callable[[], object]) -> None:
    while not true():
        threading.Event().wait(0.001)


def in_a_row(writer, executor, calls):
    """Begin calls in threads, each when the one before is in the queue."""
    futures = []
    for call in calls:
        queued = len(writer._queue)
        futures.append(executor.submit(call))
        wait_until(lambda n=queued: len(writer._queue) > n)
    return futures


def together(store: Store, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make calls that wait in the queue, in this order, and give what each returned or raised."""
    writer = writer_of(store)
    with ThreadPoolExecutor(len(calls)) as executor:
        with writer.exclusive():
            futures = in_a_row(writer, executor, calls)
        return [outcome(future) for future in futures]


def outcome(future: Future[Any]) -> Any:
    try:
        return future.result(LONG_ENOUGH)
    except TimeoutError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is what the test looks at
        return error


def saves(store: Store, texts: Sequence[str]) -> list[Callable[[], Any]]:
    def save(text: str) -> Callable[[], Any]:
        return lambda: store.messages.save("s", "user", text, token_count=1)

    return [save(text) for text in texts]


def contents(store: Store, session_id: str = "s") -> list[Any]:
    """Give the texts of a session, having looked whether numbers and counters are right."""
    history = store.messages.history(session_id, None)
    assert [message.seq for message in history] == list(range(1, len(history) + 1))
    counters = store.sessions.verify(session_id)
    assert counters.agree
    assert counters.stored[0] == len(history)
    return [message.content for message in history]


def still_works(store: Store) -> None:
    before = contents(store)
    store.messages.save("s", "user", "still", token_count=1)
    with store.transaction() as tx:
        tx.messages.save("s", "user", "works", token_count=1)
    together(store, saves(store, ["a", "b"]))
    assert contents(store)[len(before) :] == ["still", "works", "a", "b"]
    assert checked_out(store) == 0
    writer = writer_of(store)
    assert writer._leader is None
    assert not writer._queue


@contextmanager
def failing_commits(store, monkeypatch, times, error):
    """Have the next commits fail."""
    dialect = engine_of(store).dialect
    commit = dialect.do_commit
    left = [times]

    def fail(connection: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise error
        commit(connection)

    with monkeypatch.context() as patch:
        patch.setattr(dialect, "do_commit", fail)
        yield


# --- Sharing a commit -----------------------------------------------------------------------------


def test_writes_that_wait_together_share_one_commit(store):
    statements = traced(store)
    texts = [f"{n}" for n in range(64)]
    results = together(store, saves(store, texts))
    assert [message.content for message in results] == texts
    assert count(statements, "BEGIN IMMEDIATE") == count(statements, "COMMIT") == 1
    assert contents(store) == texts


def test_messages_that_wait_together_are_counted_in_their_session_at_once(store):
    statements = traced(store)
    together(store, saves(store, ["x"] * 64))
    assert count(statements, "UPDATE sessions") == 1
    assert count(statements, "SAVEPOINT") == 0  # it would copy each page that they change


def test_units_that_are_no_appends_have_a_savepoint_each(store):
    statements = traced(store)
    together(store, [lambda n=n: store.users.create(f"user {n}") for n in range(8)])
    assert count(statements, "BEGIN IMMEDIATE") == count(statements, "COMMIT") == 1
    assert count(statements, "SAVEPOINT") == count(statements, "RELEASE") == 8


def test_a_lone_write_has_one_commit_and_no_savepoint(store):
    statements = traced(store)
    for save in saves(store, ["a", "b", "c"]):
        save()
    assert count(statements, "BEGIN IMMEDIATE") == count(statements, "COMMIT") == 3
    assert count(statements, "SAVEPOINT") == 0


def test_tasks_that_wait_together_share_one_commit(path):
    async def main() -> None:
        async with AsyncStore(f"sqlite:///{path}") as store:
            await store.sessions.create(id="s")
            statements = traced(store)
            with writer_of(store).exclusive():
                tasks = [
                    asyncio.create_task(store.messages.save("s", "user", f"{n}")) for n in range(64)
                ]
                while len(writer_of(store)._queue) < 64:
                    await spin()
            saved = await asyncio.gather(*tasks)
            assert [message.seq for message in saved] == list(range(1, 65))
            assert count(statements, "COMMIT") == 1

    asyncio.run(main())


def test_tasks_that_are_told_together_go_together_again(path, monkeypatch):
    async def main() -> None:
        async with AsyncStore(f"sqlite:///{path}") as store:
            await store.sessions.create(id="s")
            writer, batches = writer_of(store), []
            run_batch = writer._run_batch

            def noted(batch: Sequence[QueuedWrite]) -> None:
                batches.append(len(batch))
                run_batch(batch)

            async def twice() -> None:
                await store.messages.save("s", "user", "first")
                await store.messages.save("s", "user", "second")

            with writer.exclusive():
                tasks = [asyncio.create_task(twice()) for _ in range(8)]
                while len(writer._queue) < 8:
                    await spin()
                monkeypatch.setattr(writer, "_run_batch", noted)
            while not batches:
                await spin()
            # From here on a batch begins the moment that it may.
            executor = store._unit_runner.thread
            monkeypatch.setattr(executor, "submit", lambda lead: lead())
            await asyncio.gather(*tasks)
            assert batches == [8, 8]

    asyncio.run(main())


def test_no_transaction_has_more_units_than_the_limit(store):
    statements = traced(store)
    together(store, saves(store, ["x"] * (2 * MOST_TOGETHER + 50)))
    assert count(statements, "COMMIT") == 3
    counted = re.findall(r"last_seq=\(\w+\.last_seq \+ (\d+)", "\n".join(statements))
    assert counted == [str(MOST_TOGETHER), str(MOST_TOGETHER), "50"]


@pytest.mark.parametrize("callers", [1, 8])
def test_nobody_is_told_of_a_success_before_the_commit(store, monkeypatch, callers):
    dialect = engine_of(store).dialect
    commit = dialect.do_commit
    reached, go_on = threading.Event(), threading.Event()

    def wait_and_commit(connection: Any) -> None:
        if not reached.is_set():
            reached.set()
            go_on.wait(LONG_ENOUGH)
        commit(connection)

    monkeypatch.setattr(dialect, "do_commit", wait_and_commit)
    writer = writer_of(store)
    with ThreadPoolExecutor(callers) as executor:
        with writer.exclusive():
            futures = in_a_row(writer, executor, saves(store, ["x"] * callers))
        assert reached.wait(LONG_ENOUGH)
        told, _ = concurrent.futures.wait(futures, timeout=0.2)
        seen = contents(store)
        go_on.set()
        assert told == set()
        assert seen == []
        assert len([future.result(LONG_ENOUGH) for future in futures]) == callers
    assert len(contents(store)) == callers


def test_no_task_is_told_of_a_success_before_the_commit(path, monkeypatch):
    async def main() -> None:
        async with AsyncStore(f"sqlite:///{path}") as store:
            await store.sessions.create(id="s")
            dialect = engine_of(store).dialect
            commit = dialect.do_commit
            reached, go_on = threading.Event(), threading.Event()

            def wait_and_commit(connection: Any) -> None:
                if not reached.is_set():
                    reached.set()
                    go_on.wait(LONG_ENOUGH)
                commit(connection)

            monkeypatch.setattr(dialect, "do_commit", wait_and_commit)
            tasks = [asyncio.create_task(store.messages.save("s", "user", "x")) for _ in range(8)]
            await asyncio.to_thread(reached.wait, LONG_ENOUGH)
            told, _ = await asyncio.wait(tasks, timeout=0.2)
            go_on.set()
            assert told == set()
            await asyncio.gather(*tasks)

    asyncio.run(main())


def _raise(error: BaseException) -> None:
    raise error


def _violate(unit: Unit) -> None:
    unit.connection.exec_driver_sql("UPDATE sessions SET last_seq = NULL")


FAILURES: dict[type[BaseException], Callable[[Unit], object]] = {
    RuntimeError: lambda _: _raise(RuntimeError("mine")),
    errors.NotFound: in_transaction(lambda tx: tx.messages.save("nowhere", "user", "x")),
    errors.AlreadyExists: in_transaction(lambda tx: tx.sessions.create(id="s")),
    errors.ConstraintViolation: _violate,
    SystemExit: lambda _: _raise(SystemExit(3)),
    asyncio.CancelledError: lambda _: _raise(asyncio.CancelledError()),
}


@pytest.mark.parametrize("kind", FAILURES, ids=lambda kind: kind.__name__)
def test_a_unit_that_fails_fails_alone_and_leaves_nothing(store, kind):
    write = in_transaction(lambda tx: tx.messages.save("s", "user", "gone", token_count=1))

    def fail(unit: Unit) -> None:
        write(unit)
        FAILURES[kind](unit)

    runner = store._runner
    statements = traced(store)

    def failing() -> Any:
        return runner.run(Mode.WRITE, fail, repeatable=False)

    around = saves(store, ["1", "2", "3", "4"])
    results = together(store, [*around[:2], failing, *around[2:]])
    assert [r.content for r in results if not isinstance(r, BaseException)] == ["1", "2", "3", "4"]
    assert type(results[2]) is kind
    assert contents(store) == ["1", "2", "3", "4"]
    assert count(statements, "COMMIT") == 1
    still_works(store)


def test_whatever_a_function_raises_in_an_asynchronous_store_arrives_as_it_is(path):
    class Stop(BaseException):
        pass

    async def main() -> None:
        async with AsyncStore(f"sqlite:///{path}") as store:
            await store.sessions.create(id="s")

            def fail(tx: Any) -> None:
                tx.messages.save("s", "user", "gone")
                raise Stop

            for others in (0, 5):
                saving = [store.messages.save("s", "user", "x") for _ in range(others)]
                calls = [*saving, store.run(fail)]
                results = await asyncio.gather(*calls, return_exceptions=True)
                assert type(results[-1]) is Stop
                assert not [r for r in results[:-1] if isinstance(r, BaseException)]
            history = await store.messages.history("s")
            assert [message.content for message in history] == ["x"] * 5

    asyncio.run(main())


@pytest.mark.parametrize("error", [RuntimeError("mine"), sqlite3.IntegrityError("taken")])
def test_where_writes_that_go_together_fail_as_one_each_is_run_by_itself(store, monkeypatch, error):
    write = append.Append.write

    def spoilt(unit: Unit, writes: Sequence[Any], *, solo: bool) -> list[Any]:
        outcomes = write(unit, writes, solo=solo)
        if solo:
            return outcomes
        if isinstance(error, sqlite3.Error):
            raise IntegrityError("INSERT", None, error)
        raise error

    monkeypatch.setattr(append.Append, "write", staticmethod(spoilt))
    commits: list[Any] = []
    event.listen(engine_of(store), "commit", commits.append)
    texts = [f"{n}" for n in range(6)]
    results = together(store, saves(store, texts))
    assert len(commits) == 1
    assert [message.content for message in results] == texts
    assert [message.seq for message in results] == list(range(1, 7))
    assert contents(store) == texts
    monkeypatch.undo()
    still_works(store)


# --- A transaction that is lost -------------------------------------------------------------------


def test_a_commit_that_fails_has_every_unit_run_again_alone(store, monkeypatch):
    texts = [f"{n}" for n in range(10)]
    with failing_commits(store, monkeypatch, 1, sqlite3.OperationalError("disk I/O error")):
        results = together(store, saves(store, texts))
    assert [message.content for message in results] == texts
    assert [message.seq for message in results] == list(range(1, 11))
    assert contents(store) == texts
    still_works(store)


def test_where_commits_go_on_failing_each_is_told_and_nothing_is_written(store, monkeypatch):
    error = sqlite3.OperationalError("disk I/O error")
    with failing_commits(store, monkeypatch, 4, error):  # all five together, and three alone
        results = together(store, saves(store, ["0", "1", "2", "3", "4"]))
    assert [type(result) for result in results[:3]] == [errors.DatabaseError] * 3
    assert [message.content for message in results[3:]] == ["3", "4"]
    assert contents(store) == ["3", "4"]
    still_works(store)


def test_no_answer_rests_on_what_was_never_committed(store, monkeypatch):
    def create() -> Any:
        return store.sessions.create(id="new")

    error = sqlite3.OperationalError("disk I/O error")
    with failing_commits(store, monkeypatch, 2, error):  # both together, and the first alone
        first, second = together(store, [create, create])
    assert type(first) is errors.DatabaseError
    assert second.id == "new"
    assert store.sessions.get("new") == second


@pytest.mark.parametrize("times", [1, 2])
def test_a_transaction_that_the_engine_gives_up_is_run_again_unit_by_unit(store, times):
    write = in_transaction(lambda tx: tx.messages.save("s", "user", "lost", token_count=1))
    runs: list[int] = []

    def lose(unit: Unit) -> None:
        write(unit)
        runs.append(1)
        if len(runs) <= times:  # as a disk that is full or fails may have it
            unit.connection.exec_driver_sql("ROLLBACK")
            unit.connection.exec_driver_sql("RELEASE what_is_gone")

    texts = [f"{n}" for n in range(6)]
    calls = saves(store, texts)
    results = together(store, [*calls[:3], lambda: writer_of(store).run(lose), *calls[3:]])
    lost = results.pop(3)
    assert [message.content for message in results] == texts
    assert [message.seq for message in results] == [
        1,
        2,
        3,
        *([5, 6, 7] if times == 1 else [4, 5, 6]),
    ]
    if times == 1:
        assert lost is None
        assert contents(store) == [*texts[:3], "lost", *texts[3:]]
    else:
        assert type(lost) is UnitFailure
        assert contents(store) == texts
    assert len(runs) == 2
    still_works(store)


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("way", ["run", "transaction"])
def test_who_goes_on_in_a_transaction_that_is_gone_writes_nothing_and_is_told(path, others, way):
    def lose(unit: Unit) -> None:
        unit.connection.exec_driver_sql("ROLLBACK")
        unit.connection.exec_driver_sql("RELEASE what_is_gone")

    def go_on(tx: Any) -> None:
        tx.messages.save("s", "user", "first", token_count=1)
        for call in (
            lambda: tx.messages._runner.run(Mode.WRITE, lose, repeatable=False),
            lambda: tx.messages.save("s", "user", "second", token_count=1),
            lambda: tx.messages.history("s"),
        ):
            with pytest.raises(errors.DatabaseError, match="what_is_gone"):
                call()

    async def main() -> list[Any]:
        async with AsyncStore(f"sqlite:///{path}") as store:
            await store.sessions.create(id="s")
            saving = [store.messages.save("s", "user", "x", token_count=1) for _ in range(others)]
            return await asyncio.gather(*saving, store.run(go_on), return_exceptions=True)

    if way == "run":
        results = asyncio.run(main())
        assert type(results[-1]) is errors.DatabaseError
    with Store(f"sqlite:///{path}") as store:
        if way == "transaction":
            store.sessions.create(id="s")
            together(store, saves(store, ["x"] * others)) if others else None
            with (
                pytest.raises(errors.DatabaseError, match="what_is_gone"),
                store.transaction() as tx,
            ):
                go_on(tx)
        assert contents(store) == ["x"] * others
        still_works(store)


def test_a_unit_for_which_the_disk_is_too_small_takes_no_neighbour_with_it(store, path):
    with sqlite3.connect(path) as other:
        [(pages,)] = other.execute("PRAGMA page_count")
    other.close()

    def limit(connection: Any, _: Any = None) -> None:
        connection.execute(f"PRAGMA max_page_count={pages + 20}")

    writer = writer_of(store)
    assert writer._connection is not None
    limit(writer._connection.connection.dbapi_connection)
    event.listen(engine_of(store), "connect", limit)
    texts = [f"{n}" for n in range(10)]
    calls = saves(store, [*texts[:5], "large " * 100_000, *texts[5:]])
    results = together(store, calls)
    full = results.pop(5)
    assert type(full) is errors.DatabaseFull
    assert [message.content for message in results] == texts
    assert contents(store) == texts
    still_works(store)


@pytest.mark.parametrize("kind", ["file", "adopted"])
def test_a_lock_that_is_not_got_is_told_to_all_who_wait_for_it_at_once(path, monkeypatch, kind):
    url, patience = f"sqlite:///{path}", 0.05
    engine = create_engine(url, hide_parameters=True)
    options: dict[str, Any] = {"busy_timeout": patience}
    with (
        Store(url, **options) if kind == "file" else Store(engine=engine, **options) as store,
        monkeypatch.context() as patch,
    ):
        store.sessions.create(id="s")
        writer = writer_of(store)
        wait = QueuedWrite.wait  # for the turn as long as it takes, and not so for the lock
        patch.setattr(QueuedWrite, "wait", lambda job, _: wait(job, LONG_ENOUGH))
        tries: list[int] = []
        make = writer._open
        patch.setattr(writer, "_open", lambda: (tries.append(1), make())[1])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        results = together(store, saves(store, ["x"] * 64))
        assert len(tries) == 1
        other.close()
        assert [type(result) for result in results] == [errors.DatabaseBusy] * 64
        assert len(set(map(id, results))) == 64  # each has an error of its own
        assert checked_out(store) == 0
        assert contents(store) == []
        still_works(store)
    engine.dispose()


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY])
def test_who_finds_the_file_locked_begins_again(store, monkeypatch, code, heard):
    commits: list[Any] = []
    if heard:  # then SQLAlchemy has begun too
        event.listen(engine_of(store), "commit", commits.append)
    run_sql, tries = sqlite_append.run_sql, []

    def busy_once(connection: Any, sql: str, **options: Any) -> Any:
        tries.append(sql)
        if len(tries) == 1:
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = code
            raise OperationalError(sql, None, busy)
        return run_sql(connection, sql, **options)

    monkeypatch.setattr(sqlite_append, "run_sql", busy_once)
    store.messages.save("s", "user", "hello")
    assert (len(tries), len(commits)) == (2, heard)
    assert contents(store) == ["hello"]


def test_units_and_transactions_have_their_turns_in_the_order_of_arrival(store):
    order: list[str] = []

    def unit(name: str) -> Callable[[], None]:
        return lambda: writer_of(store).run(lambda _: order.append(name))

    def transaction() -> None:
        with store.transaction():
            order.append("transaction")

    before = [f"before {n}" for n in range(MOST_TOGETHER + 20)]
    behind = [f"behind {n}" for n in range(MOST_TOGETHER + 20)]
    together(store, [*map(unit, before), transaction, *map(unit, behind)])
    assert order == [*before, "transaction", *behind]


def test_a_transaction_gets_its_turn_although_units_keep_coming(store):
    done, begun = threading.Event(), threading.Event()

    def keep_writing() -> None:
        while not done.is_set():
            store.messages.save("s", "user", "x", token_count=1)
            begun.set()

    with ThreadPoolExecutor(6) as executor:
        futures = [executor.submit(keep_writing) for _ in range(6)]
        assert begun.wait(LONG_ENOUGH)
        for _ in range(20):
            with store.transaction() as tx:
                before = tx.sessions.get("s").message_count
                tx.messages.save("s", "user", "mine", token_count=1)
                assert tx.sessions.get("s").message_count == before + 1
        done.set()
        for future in futures:
            future.result(LONG_ENOUGH)
    assert contents(store).count("mine") == 20


def test_whose_turn_does_not_come_in_time_is_told_and_never_written(path):
    with Store(f"sqlite:///{path}", busy_timeout=0.1) as store:
        store.sessions.create(id="s")
        writer = writer_of(store)
        with ThreadPoolExecutor(8) as executor, writer.exclusive():
            futures = [executor.submit(save) for save in saves(store, ["late"] * 8)]
            results = [outcome(future) for future in futures]
            assert not writer._queue
        assert [type(result) for result in results] == [errors.DatabaseBusy] * 8
        assert contents(store) == []
        still_works(store)


# --- Interrupts -----------------------------------------------------------------------------------


@contextmanager
def others_behind_the_main_thread(store: Store, number: int) -> Iterator[list[Future[Any]]]:
    """Hold the writer until the main thread waits, and so many others behind it."""
    assert threading.current_thread() is threading.main_thread()
    writer = writer_of(store)
    held = threading.Event()
    futures: list[Future[Any]] = []

    def hold(executor: ThreadPoolExecutor) -> None:
        with writer.exclusive():
            held.set()
            wait_until(lambda: len(writer._queue) == 1)
            futures.extend(in_a_row(writer, executor, saves(store, ["x"] * number)))

    with ThreadPoolExecutor(number + 1) as executor:
        holding = executor.submit(hold, executor)
        assert held.wait(LONG_ENOUGH)
        yield futures
        holding.result(LONG_ENOUGH)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("max_retries", [0, 5])
def test_an_interrupt_of_the_leading_thread_leaves_others_to_be_repeated(path, kind, max_retries):
    with Store(f"sqlite:///{path}", max_retries=max_retries) as store:
        store.sessions.create(id="s")

        def interrupted(tx: Any) -> None:
            tx.messages.save("s", "user", "gone", token_count=1)
            raise kind

        with others_behind_the_main_thread(store, 5) as futures:
            with pytest.raises(kind):
                writer_of(store).run(in_transaction(interrupted))
            wait_until(lambda: len(futures) == 5)
            results = [outcome(future) for future in futures]
        if max_retries:
            assert contents(store) == ["x"] * 5 == [message.content for message in results]
        else:
            assert [type(result) for result in results] == [errors.ConnectionLost] * 5
            assert not any(result.in_doubt for result in results)
            assert contents(store) == []
        still_works(store)


def test_an_interrupt_in_the_commit_leaves_the_others_in_doubt(store, monkeypatch):
    with (
        failing_commits(store, monkeypatch, 1, KeyboardInterrupt()),
        others_behind_the_main_thread(store, 5) as futures,
    ):
        with pytest.raises(KeyboardInterrupt):
            store.messages.save("s", "user", "gone")
        wait_until(lambda: len(futures) == 5)
        results = [outcome(future) for future in futures]
    assert [type(result) for result in results] == [errors.ConnectionLost] * 5
    assert all(result.in_doubt for result in results)
    assert contents(store) == []
    still_works(store)


def interrupting(number: int) -> tuple[Callable[..., Any], list[str]]:
    """Make a trace that interrupts at the line of the writer with this number, and tells which."""
    lines = itertools.count(1)
    at: list[str] = []

    def lined(frame: FrameType, event: str, _: object) -> Any:
        # The lock is taken and given back by one instruction, where no interrupt comes.
        where = f"{frame.f_code.co_name}: {getline(writing.__file__, frame.f_lineno).strip()}"
        if event == "line" and "with self._lock" not in where and next(lines) == number:
            at.append(where)
            raise KeyboardInterrupt
        return lined

    def called(frame: FrameType, _event: str, _: object) -> Any:
        return lined if frame.f_code.co_filename == writing.__file__ else None

    return called, at


@pytest.mark.parametrize("others", [0, 2])
def test_wherever_the_thread_that_writes_is_interrupted_others_write_on(path, others):
    def hold(executor: ThreadPoolExecutor) -> list[Future[Any]]:
        with writer.exclusive():
            held.set()
            wait_until(lambda: bool(writer._queue) or ended.is_set())
            return in_a_row(writer, executor, saves(store, ["x"] * others))

    url = f"sqlite:///{path}"
    with (
        ThreadPoolExecutor(others + 1) as executor,
        Store(url, synchronous="OFF", busy_timeout=5, max_retries=0) as store,
    ):
        writer = writer_of(store)
        store.sessions.create(id="s")
        known: list[str] = []
        at = ["not yet"]
        for number in itertools.count(1):
            if not at:
                break
            held, ended = threading.Event(), threading.Event()
            holding = executor.submit(hold, executor) if others else None
            assert holding is None or held.wait(LONG_ENOUGH)
            trace, at = interrupting(number)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                store.messages.save("s", "user", "mine")
            except KeyboardInterrupt:
                assert at
            finally:
                sys.settrace(before)
                ended.set()
            for result in map(outcome, holding.result(LONG_ENOUGH) if holding else ()):
                assert isinstance(result, MessageRecord | errors.ConnectionLost), (at, result)
                known += [result.id] if isinstance(result, MessageRecord) else []
            known.append(store.messages.save("s", "user", "after").id)
        assert number > 20
        assert set(known) <= {each.id for each in store.messages.history("s", 1_000)}


class Interrupted(sqlite3.Cursor):
    """Is interrupted while the first UPDATE has a row to give."""

    seen: list[str] = []  # noqa: RUF012 - emptied by the test

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        super().execute(sql, parameters)
        if sql.startswith("SELECT sessions.pk") and not self.seen:
            self.seen.append(sql)
            raise KeyboardInterrupt
        return self


class InterruptedConnection(sqlite3.Connection):
    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(Interrupted)


@pytest.mark.parametrize("way", ["unit", "transaction"])
def test_an_interrupt_while_a_statement_gives_its_rows_leaves_no_lock(path, monkeypatch, way):
    Interrupted.seen.clear()
    with Store(f"sqlite:///{path}") as store:
        store.sessions.create(id="s")
        dialect = store._engine.dialect
        connect = partial(dialect.connect, factory=InterruptedConnection)
        monkeypatch.setattr(dialect, "connect", connect)
        writer_of(store)._drop_connection()
        store._engine.dispose()
        gc.disable()  # which would close what is left open, some time
        try:
            with pytest.raises(KeyboardInterrupt):
                if way == "unit":
                    store.messages.save("s", "user", "gone")
                else:
                    with store.transaction() as tx:
                        tx.messages.save("s", "user", "gone")
            with Store(f"sqlite:///{path}", busy_timeout=0.1) as other:
                other.messages.save("s", "user", "x")
        finally:
            gc.enable()
        assert len(Interrupted.seen) == 1
        assert contents(store) == ["x"]


def test_a_rollback_that_fails_leaves_no_transaction_to_the_next_call(store, monkeypatch):
    def fails(tx: Any) -> None:
        tx.messages.save("s", "user", "gone")
        raise ValueError("the body's own")

    def no_rollback(connection: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="own"):
        patch.setattr(store._engine.dialect, "do_rollback", no_rollback)
        writer_of(store).run(in_transaction(fails))
    still_works(store)
    assert "gone" not in contents(store)


@pytest.mark.parametrize("moment", ["waiting", "leading"])
@pytest.mark.parametrize("way", ["unit", "transaction"])
def test_a_caller_interrupted_while_it_waits_holds_nobody_up(store, monkeypatch, moment, way):
    wait = QueuedWrite.wait
    interrupted = threading.Event()

    def interrupt(job: QueuedWrite, timeout: float | None) -> bool:
        if interrupted.is_set():
            return wait(job, timeout)
        interrupted.set()
        if moment == "leading":
            wait(job, LONG_ENOUGH)
        raise KeyboardInterrupt

    monkeypatch.setattr(QueuedWrite, "wait", interrupt)

    def transact() -> None:
        with store.transaction() as tx:
            tx.messages.save("s", "user", "gone")

    first = transact if way == "transaction" else saves(store, ["gone"])[0]
    writer = writer_of(store)
    with ThreadPoolExecutor(3) as executor:
        with writer.exclusive():
            futures = [executor.submit(first)]
            assert interrupted.wait(LONG_ENOUGH)
            if moment == "waiting":
                wait_until(lambda: not writer._queue)
            futures += in_a_row(writer, executor, saves(store, ["1", "2"]))
        results = [outcome(future) for future in futures]
    assert type(results[0]) is KeyboardInterrupt
    assert contents(store) == ["1", "2"]
    still_works(store)


# --- Whose thread, whose context ------------------------------------------------------------------

now: ContextVar[datetime] = ContextVar("now", default=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_unit_is_run_in_the_context_of_its_caller(path):
    with Store(f"sqlite:///{path}", clock=now.get) as store:
        store.sessions.create(id="s")

        def save(day: int) -> datetime:
            now.set(now.get() + timedelta(days=day))
            return store.messages.save("s", "user", "x").created_at

        stamped = together(store, [lambda day=day: save(day) for day in range(8)])
    assert [each.day for each in stamped] == list(range(1, 9))


def test_the_unit_of_a_task_is_run_in_the_context_of_the_task(path):
    async def main() -> None:
        async with AsyncStore(f"sqlite:///{path}", clock=now.get) as store:
            await store.sessions.create(id="s")

            async def save(day: int) -> datetime:
                now.set(now.get() + timedelta(days=day))
                return (await store.messages.save("s", "user", "x")).created_at

            stamped = await asyncio.gather(*map(save, range(8)))
        assert [each.day for each in stamped] == list(range(1, 9))

    asyncio.run(main())


def test_a_function_is_run_by_the_thread_that_brought_it(store):
    def bring() -> bool:
        here, lock = threading.get_ident(), threading.RLock()

        def work(tx: Any) -> bool:
            with lock:
                tx.messages.save("s", "user", "x", token_count=1)
                return threading.get_ident() == here

        with lock:
            return store.run(work)

    assert together(store, [bring] * 8) == [True] * 8
    assert contents(store) == ["x"] * 8


def test_a_store_called_in_a_function_of_its_own_refuses_instead_of_waiting(store):
    def call_the_store(tx: Any) -> None:
        store.messages.save("s", "user", "gone")

    results = together(store, [lambda: store.run(call_the_store), *saves(store, ["1", "2"])])
    assert type(results[0]) is errors.TransactionMisuse
    assert contents(store) == ["1", "2"]


@pytest.mark.parametrize("way", ["save", "transaction"])
def test_a_task_whose_time_is_up_and_is_cancelled_takes_nobody_s_place(path, monkeypatch, way):
    async def main() -> None:
        async with AsyncStore(f"sqlite:///{path}") as store:
            await store.sessions.create(id="s")
            jobs: list[Any] = []
            make = async_runners._LoopWrite

            def keep(*args: Any) -> Any:
                jobs.append(make(*args))
                return jobs[-1]

            async def transact() -> None:
                async with store.transaction() as tx:
                    await tx.messages.save("s", "user", "gone")

            with writer_of(store).exclusive():
                monkeypatch.setattr(async_runners, "_LoopWrite", keep)
                call = transact() if way == "transaction" else store.messages.save("s", "user", "x")
                late = asyncio.create_task(call)
                while not jobs:
                    await spin()
                monkeypatch.undo()
                behind = asyncio.create_task(store.messages.save("s", "user", "behind"))
                await spin()
                jobs[0].expire()
                late.cancel()
                with suppress(asyncio.CancelledError, errors.DatabaseBusy):
                    await late
            async with asyncio.timeout(LONG_ENOUGH):
                await behind
                await store.messages.save("s", "user", "again")
            history = await store.messages.history("s")
            assert [message.content for message in history] == ["behind", "again"]

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_task_cancelled_when_its_transaction_has_just_got_the_lead_hands_it_on(path, turns):
    async def main() -> None:
        async with AsyncStore(f"sqlite:///{path}") as store:
            await store.sessions.create(id="s")
            writer = writer_of(store)

            async def transact() -> None:
                async with store.transaction() as tx:
                    await tx.messages.save("s", "user", "gone")

            with writer.exclusive():
                late = asyncio.create_task(transact())
                behind = asyncio.create_task(store.messages.save("s", "user", "behind"))
                while len(writer._queue) < 2:
                    await spin()
            await spin(turns)
            late.cancel()
            await asyncio.wait([late])
            async with asyncio.timeout(LONG_ENOUGH):
                await behind
                await store.messages.save("s", "user", "again")
            history = await store.messages.history("s")
            texts = [message.content for message in history]
            assert [text for text in texts if text != "gone"] == ["behind", "again"]
            assert late.cancelled()
            assert not writer._queue

    asyncio.run(main())


def test_more_tasks_than_may_wait_all_write_and_the_queue_stays_short(path, monkeypatch):
    longest = 0
    enqueue = Writer.enqueue

    def measured(writer: Writer, job: QueuedWrite) -> bool:
        nonlocal longest
        leads = enqueue(writer, job)
        longest = max(longest, len(writer._queue))
        return leads

    monkeypatch.setattr(Writer, "enqueue", measured)

    async def main() -> None:
        async with AsyncStore(f"sqlite:///{path}") as store:
            await store.sessions.create(id="s")
            many = range(3 * async_runners._MOST_WAITING)
            saved = await asyncio.gather(*(store.messages.save("s", "user", "x") for _ in many))
            assert sorted(message.seq for message in saved) == [n + 1 for n in many]
            assert (await store.sessions.verify("s")).agree

    asyncio.run(main())
    assert 100 < longest <= async_runners._MOST_WAITING


def open_files(path: Path) -> list[str]:
    """Give which files of the database this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(link.readlink()))
    return [name for name in found if name.startswith(str(path))]


def test_closing_waits_for_what_is_queued_and_leaves_nothing_open(path):
    store = Store(f"sqlite:///{path}")
    store.sessions.create(id="s")
    writer = writer_of(store)
    assert open_files(path)
    with ThreadPoolExecutor(9) as executor:
        with writer.exclusive():
            futures = in_a_row(writer, executor, [*saves(store, ["x"] * 8), store.close])
        results = [outcome(future) for future in futures]
    assert [message.content for message in results[:8]] == ["x"] * 8
    assert results[8] is None
    with pytest.raises(errors.TransactionMisuse):
        store.messages.save("s", "user", "late")
    assert open_files(path) == []
    with Store(f"sqlite:///{path}") as again:
        assert contents(again) == ["x"] * 8


def test_closing_inside_a_transaction_of_one_s_own_does_not_wait_for_it(path):
    for way in ("transaction", "run"):
        store = Store(f"sqlite:///{path}")
        store.sessions.create()
        if way == "run":
            store.run(lambda tx, store=store: (tx.users.create("Alice"), store.close()))
        else:
            with store.transaction() as tx:
                tx.users.create("Alice")
                store.close()
        assert writer_of(store)._leader is None
        assert writer_of(store)._connection is None
    with Store(f"sqlite:///{path}") as again:
        assert len(again.users.list()) == 2


def test_closing_an_asynchronous_store_waits_for_what_is_queued_and_leaves_nothing_open(path):
    threads = set(threading.enumerate())

    async def main() -> None:
        store = AsyncStore(f"sqlite:///{path}")
        await store.open()
        await store.sessions.create(id="s")
        tasks = [asyncio.create_task(store.messages.save("s", "user", "x")) for _ in range(300)]
        runner: Any = store._unit_runner
        while runner._turns.inside < 300:
            await spin(1)
        await store.close()
        saved = await asyncio.gather(*tasks)
        assert sorted(message.seq for message in saved) == list(range(1, 301))
        with pytest.raises(errors.TransactionMisuse):
            await store.messages.save("s", "user", "late")
        assert open_files(path) == []
        assert not [t for t in threading.enumerate() if t.name.startswith("agentstore")]

    asyncio.run(main())
    assert set(threading.enumerate()) <= threads


# --- Other databases, other stores ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "adopted"])
def test_the_writer_keeps_no_connection_that_others_need(path, kind):
    engine = None
    if kind == "adopted":
        engine = create_engine(f"sqlite:///{path}", hide_parameters=True)
    with Store("sqlite://") if engine is None else Store(engine=engine) as store:
        store.sessions.create(id="s")
        assert checked_out(store) == 0
        results = together(store, [*saves(store, ["x"] * 20)])
        assert [message.seq for message in results] == list(range(1, 21))
        assert checked_out(store) == 0
        assert writer_of(store)._connection is None
        with pytest.raises(errors.NotFound):
            store.messages.save("nowhere", "user", "x")
        assert checked_out(store) == 0
        still_works(store)
    if engine is not None:
        engine.dispose()


def test_the_writer_of_a_file_keeps_one_connection_outside_of_the_pool(store):
    kept = writer_of(store)._connection
    assert kept is not None
    together(store, saves(store, ["x"] * 20))
    assert writer_of(store)._connection is kept
    assert checked_out(store) == 0


def test_two_stores_that_write_to_one_file_at_once_lose_nothing(path):
    with Store(f"sqlite:///{path}") as one, Store(f"sqlite:///{path}") as other:
        one.sessions.create(id="s")

        def write(number: int) -> list[str]:
            store = (one, other)[number % 2]
            saved = [store.messages.save("s", "user", "x", token_count=1) for _ in range(25)]
            return [message.id for message in saved]

        with ThreadPoolExecutor(16) as executor:
            told = [id for ids in executor.map(write, range(16)) for id in ids]
        assert {message.id for message in one.messages.history("s", None)} == set(told)
        assert len(contents(other)) == 16 * 25


def test_a_store_writes_although_somebody_listens_to_its_statements(tmp_path):
    heard = []
    with Store(f"sqlite:///{tmp_path / 'heard.db'}") as store:
        event.listen(
            store._engine, "before_cursor_execute", lambda *heard_of: heard.append(heard_of[2])
        )
        session = store.sessions.create()
        store.messages.save(session.id, "user", "hello")
        assert [m.content for m in store.messages.history(session.id)] == ["hello"]
    assert any(statement.startswith("INSERT INTO messages") for statement in heard)
    assert heard.count("BEGIN IMMEDIATE") == 2


def test_who_begins_to_listen_between_two_writes_hears_the_second(tmp_path):
    heard = []

    def note(*heard_of: Any) -> None:
        heard.append(" ".join(re.findall(r"[A-Z]+|\w+", heard_of[2])[:2]))

    with Store(f"sqlite:///{tmp_path / 'heard.db'}") as store:
        session = store.sessions.create()
        store.messages.save(session.id, "user", "before")
        store.messages.save(session.id, "user", "again, as nobody else wrote")
        event.listen(store._engine, "before_cursor_execute", note)
        store.messages.save(session.id, "user", "meanwhile")
        event.remove(store._engine, "before_cursor_execute", note)
        store.messages.save(session.id, "user", "afterwards")
    assert heard == ["BEGIN IMMEDIATE", "UPDATE sessions", "INSERT INTO"]
