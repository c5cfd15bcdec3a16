"""A process that is forked: its parent's stores refuse, its own work, nobody disturbs anybody."""

import asyncio
import gc
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import IO, Any

import pytest
from sqlalchemy import create_engine, event, make_url

from agentstore import AsyncStore, Store
from agentstore.engines.sqlite import dialect
from agentstore.errors import TransactionMisuse
from agentstore.execution import async_runners
from agentstore.retention import RetentionPolicy
from agentstore.testing import BlockingStore
from tests.conftest import in_the_process, on
from tests.programs.probes import engine_of, wait_until

synchronously = on(lambda driver: not driver.asynchronous)


def in_child(work: Callable[[], object], *, leave: Callable[[], object] = lambda: None) -> str:
    """Run something in a child that is forked here; give what it said, or how it failed.

    It is ended after a minute, so that a child that hangs is one that fails.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            said = str(work())
        except BaseException:  # noqa: BLE001
            said = traceback.format_exc()
        os.write(writing, said.encode()[-4000:])
        try:
            leave()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}: {said}"
    return said


@contextmanager
def killed_child(work: Callable[[Callable[[str], object]], object]) -> Iterator[IO[str]]:
    """Run something in a child that is forked here, and kill it outright when the block ends.

    Args:
        work: Given what says a line to the parent, who reads it from what the block is given.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            work(lambda line: os.write(writing, f"{line}\n".encode()))
        except BaseException:  # noqa: BLE001
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            yield pipe
            os.kill(child, signal.SIGKILL)
    finally:
        os.waitpid(child, 0)


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except TransactionMisuse as error:
        return f"refused: {error}"
    return "not refused"


def inherited(store: Any) -> Any:
    """Give a store as a child has it: a thread that drives one is not there."""
    return store.store if isinstance(store, BlockingStore) else store


def ways_to_call(store: Any, session_id: str) -> dict[str, Callable[[], object]]:
    """Give calls of all kinds, that run in a child."""
    own = inherited(store)
    if isinstance(own, Store):

        def in_transaction() -> None:
            with own.transaction() as tx:
                tx.sessions.get(session_id)

        return {
            "read": lambda: own.sessions.get(session_id),
            "write": lambda: own.messages.save(session_id, "user", "child"),
            "several": lambda: own.sessions.rename(session_id, "child"),
            "transaction": in_transaction,
            "run": lambda: own.run(lambda tx: tx.sessions.get(session_id)),
            "scoped": lambda: own.scoped("somebody").sessions.list(),
            "prune": lambda: own.prune(RetentionPolicy(expired_sessions=True)),
            "statistics": own.statistics,
            "search": lambda: own.messages.search("child"),
        }

    async def in_own_transaction() -> None:
        async with own.transaction() as tx:
            await tx.sessions.get(session_id)

    async def opening() -> None:
        await own.open()

    calls: dict[str, Callable[[], Any]] = {
        "read": lambda: own.sessions.get(session_id),
        "write": lambda: own.messages.save(session_id, "user", "child"),
        "several": lambda: own.sessions.rename(session_id, "child"),
        "transaction": in_own_transaction,
        "run": lambda: own.run(lambda tx: tx.sessions.get(session_id)),
        "scoped": lambda: own.scoped("somebody").sessions.list(),
        "statistics": own.statistics,
        "search": lambda: own.messages.search("child"),
        "open": opening,
    }

    def run(call: Callable[[], Any]) -> Callable[[], object]:
        async def do() -> Any:
            return await call()

        return lambda: asyncio.run(do())

    return {name: run(call) for name, call in calls.items()}


def close(store: Any) -> None:
    own = inherited(store)
    if isinstance(own, Store):
        own.close()
    else:
        asyncio.run(own.close())


def contents(store: Any, session_id: str) -> list[Any]:
    assert store.sessions.verify(session_id).agree
    return [message.content for message in store.messages.history(session_id, None)]


def test_a_store_of_the_parent_refuses_every_call_and_says_what_to_do(store, session):
    store.messages.save(session.id, "user", "parent")
    calls = ways_to_call(store, session.id)

    def try_all() -> dict[str, str]:
        return {name: refused(call) for name, call in calls.items()}

    said = in_child(try_all)
    assert said.count("Open one store in each process") == len(calls), said
    assert contents(store, session.id) == ["parent"]
    assert store.sessions.get(session.id).title == session.title


def test_what_a_child_does_to_its_parent_s_store_never_reaches_the_parent(place, store, session):
    """Closing, collecting and ending, while the parent goes on with the same connections."""
    store.messages.save(session.id, "user", "first")

    def end() -> None:
        close(store)
        gc.collect()
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
        sys.exit()

    for number in range(2):
        assert in_child(lambda: close(store) or "closed") == "closed"
        in_child(lambda: "", leave=end)
        store.messages.save(session.id, "user", f"{number}")
        assert store.sessions.get(session.id).id == session.id
    assert contents(store, session.id) == ["first", *"01"]
    with place.open() as other:
        assert contents(other, session.id) == ["first", *"01"]


def test_a_child_opens_its_own_store_and_both_go_on(place, store, session):
    store.messages.save(session.id, "user", "parent")

    def own() -> list[Any]:
        with place.open() as mine:
            mine.messages.save(session.id, "user", "child")
            return contents(mine, session.id)

    assert in_child(own) == "['parent', 'child']"
    store.messages.save(session.id, "user", "parent again")
    assert contents(store, session.id) == ["parent", "child", "parent again"]


@in_the_process
def test_a_child_loses_nothing_when_its_parent_closes_the_file(place):
    """The parent is the last that has the file open, as far as the system knows."""
    store = place.open()
    session = store.sessions.create()
    store.messages.save(session.id, "user", "parent")
    told, tell = os.pipe()
    opened, say = os.pipe()

    def own() -> list[Any]:
        with place.open() as mine:
            mine.messages.save(session.id, "user", "early")
            os.write(say, b"x")
            os.read(told, 1)
            for number in range(20):
                mine.messages.save(session.id, "user", f"{number}")
            look = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
            look += "print(c.execute('SELECT count(*) FROM messages').fetchone()[0])"
            path = str(make_url(place.url).database)
            seen = subprocess.run(
                [sys.executable, "-c", look, path], capture_output=True, text=True
            )
            return [seen.stdout.strip() + seen.stderr, len(contents(mine, session.id))]

    with ThreadPoolExecutor(1) as thread:
        child = thread.submit(in_child, own)
        assert select.select([opened], [], [], 60)[0], child.result()
        store.close()
        os.write(tell, b"x")
        assert child.result() == "['22', 22]"
    for end in (told, tell, opened, say):
        os.close(end)
    with place.open() as again:
        assert len(contents(again, session.id)) == 22


@synchronously
def test_a_block_that_is_open_at_the_fork_is_the_parent_s_alone(place, store, session):
    with store.transaction() as tx:
        tx.messages.save(session.id, "user", "one")

        def go_on() -> str:
            return refused(lambda: tx.messages.save(session.id, "user", "child"))

        assert "Open one store" in in_child(go_on)
        tx.messages.save(session.id, "user", "two")
    assert contents(store, session.id) == ["one", "two"]

    for error in (None, LookupError("mine")):
        said = None
        try:
            with store.transaction() as tx:
                tx.messages.save(session.id, "user", "three")
                child = os.fork()
                if child == 0:
                    signal.alarm(60)
                    if error is not None:
                        raise error
        except (TransactionMisuse, LookupError) as raised:
            said = raised
        except BaseException:  # noqa: BLE001
            os._exit(3)
        if child == 0:
            os._exit(0 if said is not None else 2)
        assert os.waitpid(child, 0)[1] == 0
    assert contents(store, session.id) == ["one", "two", "three", "three"]
    with place.open() as other:
        assert contents(other, session.id) == ["one", "two", "three", "three"]


@contextmanager
def busy_threads(store: Any, session_ids: list[str]) -> Iterator[list[int]]:
    """Have threads write and read until the block ends."""
    stop = threading.Event()
    counts = [0] * len(session_ids)

    def work(place: int) -> None:
        while not stop.is_set():
            store.messages.save(session_ids[place], "user", f"{place}")
            for message in store.messages.history(session_ids[place], 5):
                assert message.content == f"{place}"
            counts[place] += 1

    with ThreadPoolExecutor(len(session_ids)) as threads:
        running = [threads.submit(work, place) for place in range(len(session_ids))]
        try:
            yield counts
        finally:
            stop.set()
            for done in running:
                done.result()


def test_forks_while_threads_read_and_write_refuse_and_disturb_nobody(place, store):
    session_ids = [store.sessions.create().id for _ in range(4)]
    with busy_threads(store, session_ids) as counts:
        calls = ways_to_call(store, session_ids[0])
        for _ in range(4):
            before = sum(counts)
            said = in_child(
                lambda: [refused(calls[name]) for name in ("read", "write", "transaction")]
            )
            assert said.count("Open one store") == 3, said
            wait_until(lambda before=before: sum(counts) > before)
    for at, session_id in enumerate(session_ids):
        assert contents(store, session_id) == [f"{at}"] * counts[at]
    if place.driver.engine == "sqlite":
        with closing(sqlite3.connect(str(make_url(place.url).database))) as file, file:
            assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@in_the_process
@pytest.mark.parametrize("use", ["write", "read"])
def test_a_file_that_was_in_use_at_the_fork_is_refused_and_not_risked(place, store, session, use):
    entered, leave = threading.Event(), threading.Event()

    def stay(*_: Any) -> None:
        entered.set()
        leave.wait(60)

    def hold() -> None:
        if use == "read":
            event.listen(engine_of(store), "before_cursor_execute", stay)
            store.users.list()
            return
        with store.transaction() as tx:
            tx.messages.save(session.id, "user", "parent")
            stay()

    with ThreadPoolExecutor(1) as thread:
        holding = thread.submit(hold)
        entered.wait(60)

        def own() -> str:
            return refused(lambda: Store(make_url(place.url).set(drivername="sqlite")))

        assert "cannot open any" in in_child(own)
        leave.set()
        holding.result()
    assert contents(store, session.id) == ["parent"] * (use == "write")


@in_the_process
@pytest.mark.parametrize("opened", [0, 1])
def test_a_file_that_was_being_opened_at_the_fork_is_refused_too(place, monkeypatch, opened):
    said: list[str] = []

    def own() -> str:
        return refused(lambda: Store(make_url(place.url).set(drivername="sqlite")))

    def fork_and_configure(*args: Any, **options: Any) -> None:
        said.append("")
        if len(said) == opened + 1:
            said[opened] = in_child(own)
        configure(*args, **options)

    configure = dialect.configure_new
    monkeypatch.setattr(dialect, "configure_new", fork_and_configure)
    with place.open() as store:
        for _ in range(2):  # what is taken out of the pool leaves its place to another
            store.users.list()
            store.sessions.create()
            with store.transaction(), ThreadPoolExecutor(1) as other:  # who needs a second one
                other.submit(store.users.list).result()
    assert "cannot open any" in said[opened]


def test_a_store_of_an_engine_of_the_application_s_own_refuses_too(engine_url):
    engine = create_engine(engine_url)
    with Store(engine=engine) as store:
        session = store.sessions.create()
        calls = ways_to_call(store, session.id)
        said = in_child(lambda: [refused(call) for call in calls.values()])
        assert said.count("Open one store") == len(calls), said
        with store.transaction() as tx:
            tx.messages.save(session.id, "user", "one")
            assert "Open one" in in_child(lambda: refused(lambda: tx.sessions.list()))
        assert contents(store, session.id) == ["one"]
    engine.dispose()


@pytest.mark.long(but=["sqlite3", "psycopg"])
def test_programs_that_are_started_anew_are_not_concerned(place, store):
    program = "import sys; from agentstore import Store; s = Store(sys.argv[1]); "
    program += "print(len(s.sessions.list().items)); s.close()"
    store.sessions.create()
    done = subprocess.run(
        [sys.executable, "-c", program, place.url], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_a_child_ends_although_a_thread_was_being_started_at_the_fork(tmp_path):
    store = AsyncStore(f"sqlite:///{tmp_path / 'test.db'}")
    asyncio.run(store.open())
    runner: Any = store._unit_runner
    with runner._readers.lock:
        assert in_child(async_runners._end_threads) == "None"
    assert asyncio.run(store.sessions.count()) == 0
    asyncio.run(store.close())
