"""Any number of processes may use one database, begin together, and die."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url

from agentstore import Store, migrations
from tests.conftest import VERSIONS, Servers
from tests.drivers import FULL
from tests.programs.workers import Worker, run_together

PROCESSES = 8
KILLED = 10 if FULL else 2
KILLS = 100 if FULL else 2
"""How often each of the two kinds of crowd is killed."""


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    started = [Worker() for _ in range(PROCESSES)]
    yield started
    for worker in started:
        worker.kill()


def write_together(workers: list[Worker], url: str, count: int) -> None:
    """Have all workers write so many messages each, and look whether all of them are there."""
    drivers = ["sqlite:", "sqlite+aiosqlite:"]
    commands = [
        {
            "do": "write_async" if n % 2 else "write",
            "url": url.replace("sqlite:", drivers[n // 2 % 2]),
            "own": f"own-{n}",
            "shared": "shared",
            "count": count,
        }
        for n in range(len(workers))
    ]
    acknowledged = {id for ids in run_together(workers, commands) for id in ids}
    assert len(acknowledged) == len(workers) * count
    with Store(url) as store:
        sizes = {f"own-{n}": count // 2 for n in range(len(workers))}
        sizes["shared"] = len(workers) * count // 2
        found = set()
        for session_id, size in sizes.items():
            history = store.messages.history(session_id, None)
            assert [m.seq for m in history] == list(range(1, size + 1))
            counters = store.sessions.verify(session_id)
            assert counters.agree
            assert counters.stored[:2] == (size, size)
            found |= {m.id for m in history}
        assert found == acknowledged
        assert store.usage.totals().rows["messages"] == len(acknowledged)


@pytest.mark.crash
def test_eight_processes_that_make_one_sqlite_file_together_lose_no_message(workers, tmp_path):
    write_together(workers, f"sqlite:///{tmp_path / 'new.db'}", 40)


@pytest.mark.long
@pytest.mark.crash
def test_eight_processes_make_one_sqlite_file_together_time_and_again(workers, tmp_path):
    for number in range(6):
        write_together(workers, f"sqlite:///{tmp_path / f'{number}.db'}", 6)


@pytest.mark.crash
def test_eight_processes_that_write_to_one_database_lose_no_message(workers, engine_url):
    write_together(workers, engine_url, 40)


@pytest.mark.crash
def test_eight_processes_that_migrate_one_empty_database_together_all_succeed(workers, empty_url):
    commands = [{"do": "upgrade", "url": empty_url}] * PROCESSES
    assert run_together(workers, commands) == [migrations.HEAD] * PROCESSES
    write_together(workers[:2], empty_url, 2)


@pytest.fixture(params=["sqlite", "postgresql"])
def killable_url(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> str:
    """An empty SQLite file, or a PostgreSQL database at head."""
    if request.param == "postgresql":
        return servers.new_database(VERSIONS[0])
    return f"sqlite:///{tmp_path / 'killed.db'}"


@pytest.mark.crash
def test_a_killed_process_loses_nothing_that_was_acknowledged(killable_url):
    rng = random.Random(0)  # noqa: S311 - the points at which to kill
    with Store(killable_url) as store:
        session_id = store.sessions.create().id
    acknowledged: list[str] = []
    with ExitStack() as stack:
        for worker in [stack.enter_context(Worker()) for _ in range(KILLED)]:
            worker.prepare("append", url=killable_url, session_id=session_id)
            worker.go()
            for _ in range(rng.randint(1, 60)):
                acknowledged += worker.answer()["acknowledged"]
            acknowledged += [id for said in worker.kill_and_read() for id in said["acknowledged"]]
    with Store(killable_url) as store:
        history = store.messages.history(session_id, None)
        assert [m.seq for m in history] == list(range(1, len(history) + 1))
        assert set(acknowledged) <= {m.id for m in history}
        counters = store.sessions.verify(session_id)
        assert counters.agree
        assert counters.stored[:2] == (len(history), len(history))
        # Of a unit that was not acknowledged any more either all is there, or nothing.
        written: dict[str, set[str]] = {}
        for message in history:
            unit, _, place = str(message.content).partition(" ")
            written.setdefault(unit, set()).add(place)
        for places in written.values():
            size = int(next(iter(places)).split()[-1])
            assert places == {f"{place} of {size}" for place in range(1, size + 1)}
        # Each process died with at most one unit, of up to two messages, on its way.
        assert len(history) - len(acknowledged) <= KILLED * 2
    if killable_url.startswith("sqlite"):
        connection = sqlite3.connect(str(make_url(killable_url).database))
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()


@pytest.mark.crash
@pytest.mark.timeout(3_600 if FULL else 180)
@pytest.mark.parametrize("crowd", ["crowd", "crowd_async"])
def test_a_killed_crowd_of_64_writers_loses_nothing_that_was_acknowledged(tmp_path, crowd):
    rng = random.Random(0)  # noqa: S311 - the points at which to kill
    path = tmp_path / "killed.db"
    url = f"sqlite:///{path}"
    with Store(url) as store:
        session_ids = [store.sessions.create().id for _ in range(8)]
    acknowledged: set[str] = set()
    for kill in range(1, KILLS + 1):
        with Worker() as worker:
            worker.prepare(crowd, url=url, session_ids=session_ids, writers=64)
            worker.go()
            for _ in range(rng.randint(1, 600)):
                acknowledged.add(worker.answer()["acknowledged"])
            acknowledged |= {said["acknowledged"] for said in worker.kill_and_read()}
        with Store(url) as store:
            written: set[str] = set()
            for session_id in session_ids:
                history = store.messages.history(session_id, None)
                assert [m.seq for m in history] == list(range(1, len(history) + 1))
                counters = store.sessions.verify(session_id)
                assert counters.agree
                assert counters.stored[:2] == (len(history), len(history))
                written |= {m.id for m in history}
        assert acknowledged <= written
        # Each writer had at most one message on its way when its process died.
        assert len(written) - len(acknowledged) <= 64 * kill
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
