"""Connections that a store keeps for reading, on SQLite: whose they are, and when they go."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from agentstore import AsyncStore, NotFound, Store
from agentstore.engines.base.dialect import Mode
from agentstore.engines.sqlite.files import WATCHED
from agentstore.errors import DatabaseReplaced, TransactionMisuse
from agentstore.execution.unit import LoneRead
from tests.contract.test_forks import in_child

FILES = Path("/proc/self/fd")


def open_on(path: Path) -> int:
    """Count the connections of this process to a file."""
    links = (os.path.realpath(each) for each in FILES.iterdir())
    return sum(link == str(path.resolve()) for link in links)


def kept(store: Store) -> list[Any]:
    """Give what a store keeps and nobody reads from."""
    assert store._runner.kept is not None
    return store._runner.kept._idle


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.db"


def test_a_read_takes_the_connection_of_the_one_before_and_none_of_the_pool(path):
    with Store(path.as_posix(), pool_size=1, max_overflow=0, pool_timeout=0.1) as store:
        session = store.sessions.create().id
        assert store.sessions.get(session).id == session
        taken: list[Any] = []
        event.listen(store._engine, "checkout", lambda *_: taken.append(1))
        with ThreadPoolExecutor(1) as thread, store.transaction() as tx:
            tx.sessions.rename(session, "renamed")
            seen = thread.submit(store.sessions.get, session).result()
        assert seen.title is None
        assert store.sessions.get(session).title == "renamed"
        assert taken == [1]


def test_a_reader_has_no_transaction_open_afterwards_even_where_a_tracer_listens(path):
    with Store(path.as_posix()) as store:
        session = store.sessions.create().id
        heard: list[str] = []
        for _ in range(2):
            store.sessions.get(session)
            with pytest.raises(NotFound):
                store.sessions.get("nobody's")
            [reader] = kept(store)
            assert not reader.connection.in_transaction()
            event.listen(
                store._engine, "before_cursor_execute", lambda *given: heard.append(given[2])
            )
        assert any("SELECT" in statement for statement in heard)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_no_more_are_kept_than_the_pool_would_and_none_once_the_store_is_closed(path):
    store = Store(path.as_posix(), pool_size=2)
    session = store.sessions.create().id
    with ThreadPoolExecutor(8) as threads:
        assert len([*threads.map(store.sessions.get, [session] * 200)]) == 200
    assert len(kept(store)) <= 2
    store.close()
    assert open_on(path) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_an_asynchronous_store_closes_them_too(path):
    async def main() -> None:
        async with AsyncStore(path.as_posix()) as store:
            session = (await store.sessions.create()).id
            assert (await store.sessions.get(session)).id == session
            assert open_on(path) > 1

    asyncio.run(main())
    assert open_on(path) == 0


def test_a_reader_whose_file_was_deleted_is_closed(path):
    with Store(path.as_posix()) as store:
        store.sessions.list()
        [reader] = kept(store)
        path.unlink()
        reader.connection.info[WATCHED].watch.next_look = 0.0  # as if a second had passed
        with pytest.raises(DatabaseReplaced):
            store.sessions.list()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            reader.driver_connection.cursor()


def test_a_reader_that_was_interrupted_is_not_used_again(path):
    with Store(path.as_posix()) as store:
        session = store.sessions.create().id
        store.sessions.get(session)
        [reader] = kept(store)

        def interrupted(_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store._runner.once(Mode.READ, LoneRead(interrupted, lambda unit: unit, (), {}))
        assert kept(store) == []
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            reader.driver_connection.cursor()
        assert store.sessions.get(session).id == session


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_child_closes_what_its_parent_kept_before_it_opens_the_file(path):
    def work() -> object:
        with Store(path.as_posix()) as own:
            own.sessions.get(session)
        return open_on(path)

    with Store(path.as_posix()) as store:
        session = store.sessions.create().id
        store.sessions.get(session)
        assert in_child(work) == "0"
        assert store.sessions.get(session).id == session


def test_a_child_opens_no_file_that_its_parent_was_reading(path):
    def work() -> object:
        with pytest.raises(TransactionMisuse, match="in another thread"):
            Store(path.as_posix())
        return "refused"

    with Store(path.as_posix()) as store, ThreadPoolExecutor(1) as thread:
        store.sessions.list()  # so that a connection is kept
        reading, forked = threading.Event(), threading.Event()

        def read(_: Any) -> None:
            reading.set()
            forked.wait(60)

        body = LoneRead(read, lambda unit: unit, (), {})
        waiting = thread.submit(store._runner.once, Mode.READ, body)
        reading.wait(60)
        try:
            assert in_child(work) == "refused"
        finally:
            forked.set()
        waiting.result()
