"""One store serves any number of threads; whoever has to wait goes on afterwards, or is told."""

import contextvars
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import NullPool, create_engine

from agentstore import AsyncStore, Store, errors
from agentstore.testing import BlockingStore
from tests.conftest import DRIVERS, VERSIONS, Place, Servers
from tests.contract.clocks import at_once
from tests.programs.probes import checked_out, connect, engine_of
from tests.programs.workers import Worker

THREADS = 12

SQLITE_DRIVERS = [pytest.param(d, id=d.name) for d in DRIVERS if d.engine == "sqlite"]

MEMORY_URLS = (
    "sqlite://",
    "sqlite:///:memory:",
    "sqlite+aiosqlite://",
    "sqlite:///file::memory:?uri=true",
)
MEMORY_STORES: list[Any] = [
    pytest.param(make, url, id=f"{kind}-{url}")
    for kind, make in (
        ("Store", Store),
        ("AsyncStore", lambda url, **options: BlockingStore(lambda: AsyncStore(url, **options))),
    )
    for url in MEMORY_URLS
]


@pytest.fixture(params=[d for d in DRIVERS if d.engine == "postgresql"], ids=lambda d: d.name)
def postgresql(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Place]:
    """A database whose deadlocks are looked for soon, where one may say so."""
    url = servers.new_database(VERSIONS[0])
    with connect(url) as admin, suppress(InsufficientPrivilege):
        admin.execute(f"ALTER DATABASE \"{admin.info.dbname}\" SET deadlock_timeout = '50ms'")  # type: ignore[arg-type]
    yield Place(request.param, url)
    servers.drop(VERSIONS[0], url)


@pytest.fixture
def file(tmp_path: Path, sqlite_template: Path) -> Path:
    """A SQLite file at head."""
    return Path(shutil.copy(sqlite_template, tmp_path / "test.db"))


@pytest.fixture(params=SQLITE_DRIVERS)
def sqlite(request: pytest.FixtureRequest, file: Path) -> Place:
    return Place(request.param, f"sqlite:///{file}")


def write_from_many_threads(store: Any) -> None:
    shared = store.sessions.create().id
    messages = 10

    def write(number: int) -> str:
        own = store.sessions.create().id
        for place in range(messages):
            way = (number + place) % 3
            if way == 0:
                store.messages.save(shared, "user", "hello", token_count=1)
                store.messages.save(own, "user", "hello", token_count=1)
            elif way == 1:
                with store.transaction() as tx:
                    tx.messages.save(shared, "user", "hello", token_count=1)
                    tx.messages.save(own, "user", "hello", token_count=1)
            else:
                store.run(lambda tx: tx.messages.save(shared, "user", "hello", token_count=1))
                store.run(lambda tx: tx.messages.save(own, "user", "hello", token_count=1))
            assert len(store.messages.history(own, None)) == place + 1
        return str(own)

    for session_id in at_once(THREADS, write, ()):
        assert [m.seq for m in store.messages.history(session_id, None)] == [*range(1, 11)]
        assert store.sessions.verify(session_id).agree
    history = store.messages.history(shared, None)
    assert [m.seq for m in history] == list(range(1, THREADS * messages + 1))
    counters = store.sessions.verify(shared)
    assert counters.agree
    assert counters.stored[:2] == (THREADS * messages, THREADS * messages)
    assert checked_out(store) == 0


def test_many_threads_write_through_one_store(store):
    write_from_many_threads(store)


@pytest.mark.long(but=["Store-sqlite://", "AsyncStore-*uri=true"])
@pytest.mark.parametrize(("make", "url"), MEMORY_STORES)
def test_a_database_in_memory_is_shared_by_all_threads_of_its_store(make, url):
    with make(url) as store:
        write_from_many_threads(store)


@pytest.mark.long(but=["Store-sqlite:///:memory:", "AsyncStore-sqlite://"])
@pytest.mark.parametrize(("make", "url"), MEMORY_STORES)
def test_a_database_in_memory_stays_until_its_store_is_closed_and_is_nobody_elses(make, url):
    with make(url) as store, make(url) as other:
        session = store.sessions.create(title="here")
        with pytest.raises(RuntimeError, match="mine"), store.transaction() as tx:
            tx.sessions.rename(session.id, "there")
            raise RuntimeError("mine")
        with pytest.raises(errors.NotFound):
            store.messages.save("nowhere", "user", "hello")
        at_once(THREADS, lambda _: store.messages.save(session.id, "user", "hello"), ())
        assert store.sessions.get(session.id).title == "here"
        assert store.sessions.get(session.id).message_count == THREADS
        assert other.sessions.find(session.id) is None
    with make(url) as again:
        assert again.sessions.count() == 0


@pytest.mark.parametrize("moment", ["do_execute", "do_rollback", "do_commit"])
def test_an_interrupt_does_not_take_a_database_in_memory_away(monkeypatch, moment):
    with Store("sqlite://") as store:
        session = store.sessions.create(title="here")
        dialect = engine_of(store).dialect
        done = getattr(dialect, moment)

        def interrupted(*arguments: Any) -> None:
            monkeypatch.setattr(dialect, moment, done)
            raise KeyboardInterrupt

        monkeypatch.setattr(dialect, moment, interrupted)
        with pytest.raises(KeyboardInterrupt), store.transaction() as tx:
            tx.sessions.rename(session.id, "there")
            if moment == "do_rollback":
                raise RuntimeError
        assert store.sessions.get(session.id).title == "here"
        store.messages.save(session.id, "user", "hello")
        assert checked_out(store) == 0


def test_a_writer_waits_for_the_transaction_of_another_thread_and_then_goes_on(store, session):
    about_to_save = threading.Event()

    def save() -> Any:
        about_to_save.set()
        return store.messages.save(session.id, "user", "second")

    with ThreadPoolExecutor(1) as thread:
        with store.transaction() as tx:
            first = tx.messages.save(session.id, "user", "first")
            saving = thread.submit(save)
            assert about_to_save.wait(30)
            also_first = tx.messages.save(session.id, "user", "first too")
        second = saving.result()
    assert [first.seq, also_first.seq, second.seq] == [1, 2, 3]
    assert [m.seq for m in store.messages.history(session.id)] == [1, 2, 3]


def test_a_reader_does_not_see_what_another_thread_has_not_committed(store, session):
    with ThreadPoolExecutor(1) as thread, store.transaction() as tx:
        tx.messages.save(session.id, "user", "not yet")
        assert len(tx.messages.history(session.id)) == 1
        assert thread.submit(store.messages.history, session.id).result() == []


def test_one_transaction_takes_the_calls_of_several_threads_one_by_one(store, session):
    with store.transaction() as tx:
        at_once(THREADS, lambda _: tx.messages.save(session.id, "user", "hello", token_count=1), ())
    assert [m.seq for m in store.messages.history(session.id, None)] == [*range(1, THREADS + 1)]
    assert store.sessions.verify(session.id).agree


def test_a_transaction_may_end_in_another_context_than_it_began(file):
    with Store(f"sqlite:///{file}") as store:
        session = store.sessions.create()
        transaction = store.transaction()
        tx = contextvars.copy_context().run(transaction.__enter__)
        tx.messages.save(session.id, "user", "hello")
        contextvars.copy_context().run(transaction.__exit__, None, None, None)
        store.messages.save(session.id, "user", "hello")
        assert store.sessions.get(session.id).message_count == 2


def test_of_several_threads_that_save_with_one_key_all_get_one_message(store, session):
    def save(number: int) -> Any:
        if number % 2:
            return store.messages.save(session.id, "user", f"{number}", idempotency_key="k")
        return store.run(
            lambda tx: tx.messages.save(session.id, "user", f"{number}", idempotency_key="k")
        )

    assert {record.id for record in at_once(THREADS, save, ())} == {
        record.id for record in store.messages.history(session.id)
    }
    assert store.sessions.verify(session.id).stored[0] == 1


def test_an_error_of_another_database_passes_through_a_transaction_as_it_is(store, session):
    other = create_engine("sqlite://", poolclass=NullPool)
    raised: list[Exception] = []

    def fail(tx: Any) -> None:
        tx.messages.save(session.id, "user", "hello")
        try:
            with other.connect() as connection:
                connection.exec_driver_sql("SELECT * FROM elsewhere")
        except Exception as error:
            raised.append(error)
            raise

    with pytest.raises(Exception, match="no such table: elsewhere") as caught:
        store.run(fail)
    assert caught.value is raised[-1]
    with (
        pytest.raises(Exception, match="no such table: elsewhere") as caught,
        store.transaction() as tx,
    ):
        fail(tx)
    assert caught.value is raised[-1]
    other.dispose()
    assert len(raised) == 2
    assert store.messages.history(session.id) == []


# --- SQLite: one writer -----------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite://"])
@pytest.mark.parametrize("driver", SQLITE_DRIVERS)
def test_a_commit_that_fails_leaves_nothing_and_no_transaction_open(driver, url, file, monkeypatch):
    settings = {} if url == "sqlite://" else {"pool_size": 1, "max_overflow": 0}
    with driver.open(url.format(file), **settings) as store:
        session = store.sessions.create(title="here")
        dialect = engine_of(store).dialect
        commit = dialect.do_commit

        def fail(connection: Any) -> None:
            monkeypatch.setattr(dialect, "do_commit", commit)
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY  # type: ignore[attr-defined]
            raise error

        monkeypatch.setattr(dialect, "do_commit", fail)
        with pytest.raises(errors.DatabaseBusy):
            store.sessions.rename(session.id, "there")
        assert store.sessions.get(session.id).title == "here"
        monkeypatch.setattr(dialect, "do_commit", fail)
        with pytest.raises(errors.DatabaseBusy), store.transaction() as tx:
            tx.sessions.rename(session.id, "there")
        assert store.sessions.get(session.id).title == "here"
        store.sessions.rename(session.id, "there")
        assert store.sessions.get(session.id).title == "there"
        assert checked_out(store) == 0


@contextmanager
def another_writer(path: Path) -> Iterator[Worker]:
    """Hold the write lock of a SQLite file in another process."""
    with Worker() as worker:
        worker.prepare("hold", url=str(path), seconds_to_wait=30)
        worker.go()
        assert worker.answer() == {"acknowledged": []}
        yield worker


@pytest.mark.crash
def test_a_writer_waits_for_another_process_for_as_long_as_busy_timeout_says(sqlite, file):
    with sqlite.open(busy_timeout=0.1) as impatient, sqlite.open() as patient:
        session = patient.sessions.create()
        with another_writer(file) as other:
            for call in (
                lambda: impatient.messages.save(session.id, "user", "hello"),
                lambda: impatient.sessions.rename(session.id, "new"),
                lambda: impatient.run(lambda tx: tx.messages.clear(session.id)),
            ):
                with pytest.raises(errors.DatabaseBusy, match="busy_timeout"):
                    call()
            with pytest.raises(errors.DatabaseBusy), impatient.transaction():
                pytest.fail("the transaction began")
            assert impatient.messages.history(session.id) == []  # a reader does not wait
            with ThreadPoolExecutor(1) as thread:
                saving = thread.submit(patient.messages.save, session.id, "user", "patience")
                other.go()
                assert saving.result().seq == 1
        assert [m.content for m in impatient.messages.history(session.id)] == ["patience"]
        impatient.messages.save(session.id, "user", "hello")
        assert checked_out(impatient) == checked_out(patient) == 0


@pytest.mark.crash
@pytest.mark.parametrize("driver", SQLITE_DRIVERS)
def test_opening_a_new_file_that_another_process_locks_ends_after_the_timeout(driver, tmp_path):
    url = f"sqlite:///{tmp_path / 'test.db'}"
    with another_writer(tmp_path / "test.db"), pytest.raises(errors.DatabaseBusy):
        driver.open(url, busy_timeout=0.1)
    with driver.open(url) as store:
        assert store.sessions.count() == 0


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite://"])
@pytest.mark.parametrize("driver", SQLITE_DRIVERS)
def test_a_writer_waits_for_another_thread_for_as_long_as_busy_timeout_says(driver, url, file):
    with driver.open(url.format(file), busy_timeout=0.1) as store:
        session = store.sessions.create()

        def write_otherwise() -> None:
            with store.transaction() as tx:
                tx.messages.save(session.id, "user", "too late")

        with ThreadPoolExecutor(1) as thread, store.transaction() as tx:
            for call in (
                lambda: store.messages.save(session.id, "user", "too late"),
                lambda: store.run(lambda tx: tx.messages.save(session.id, "user", "too late")),
                write_otherwise,
            ):
                with pytest.raises(errors.DatabaseBusy, match="busy_timeout"):
                    thread.submit(call).result()
            tx.messages.save(session.id, "user", "in time")
        store.messages.save(session.id, "user", "again")
        assert [m.content for m in store.messages.history(session.id)] == ["in time", "again"]
        assert checked_out(store) == 0


@pytest.mark.parametrize("driver", SQLITE_DRIVERS)
def test_a_reader_without_a_free_connection_is_told_which_setting_to_raise(driver, file):
    settings = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1}
    with driver.open(f"sqlite:///{file}", **settings) as store:
        session = store.sessions.create()
        with ThreadPoolExecutor(1) as thread, store.transaction() as tx:
            tx.messages.save(session.id, "user", "hello")
            with pytest.raises(errors.DatabaseBusy, match="pool_size"):
                thread.submit(store.messages.history, session.id).result()
        assert len(store.messages.history(session.id)) == 1
        assert checked_out(store) == 0


def cross(place: Place, **options: Any) -> tuple[list[Any], int]:
    """Have two threads write to two sessions in opposite orders, each in one transaction.

    Each has a store of its own, because the functions of one ``AsyncStore`` share a thread.

    Returns:
        What each thread got, a result or a conflict, and how often functions were run.
    """
    with place.open(**options) as one, place.open(**options) as other:
        sessions = [one.sessions.create().id for _ in range(2)]
        both_hold_one = threading.Barrier(2)
        runs: list[int] = []

        def work(number: int) -> Any:
            mine = 0

            def save_both(tx: Any) -> int:
                nonlocal mine
                mine += 1
                runs.append(number)
                first, second = sessions if number else reversed(sessions)
                tx.messages.save(first, "user", f"{number}", token_count=1)
                if mine == 1:
                    both_hold_one.wait(30)
                tx.messages.save(second, "user", f"{number}", token_count=1)
                return number

            try:
                return (one, other)[number].run(save_both)
            except errors.TransactionConflict as error:
                return error

        results = at_once(2, work, ())
        for session_id in sessions:
            texts = sorted(str(m.content) for m in one.messages.history(session_id))
            assert texts == sorted(f"{r}" for r in results if isinstance(r, int))
            assert one.sessions.verify(session_id).agree
        assert checked_out(one) == checked_out(other) == 0
        return results, len(runs)


def test_run_repeats_the_function_that_a_deadlock_rolled_back(postgresql):
    results, runs = cross(postgresql)
    assert results == [0, 1]
    assert runs >= 3


def test_without_retries_a_deadlock_is_a_conflict_for_one_and_a_success_for_the_other(postgresql):
    results, runs = cross(postgresql, max_retries=0)
    assert sorted(type(result).__name__ for result in results) == ["TransactionConflict", "int"]
    assert runs == 2


def test_calls_that_a_serializable_database_rolls_back_are_repeated(postgresql):
    with connect(postgresql.url) as admin:
        name = admin.info.dbname
        admin.execute(
            f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'"  # type: ignore[arg-type]
        )
    with postgresql.open(max_retries=100) as store:
        session = store.sessions.create()

        def write(number: int) -> None:
            for _ in range(10):
                store.messages.save(session.id, "user", "hello")
                store.run(lambda tx: tx.messages.save(session.id, "user", "hello"))

        at_once(3, write, ())
        assert [m.seq for m in store.messages.history(session.id, None)] == [*range(1, 61)]
        assert store.sessions.verify(session.id).agree
