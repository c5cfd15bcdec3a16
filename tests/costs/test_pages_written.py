"""What a save writes: pages of SQLite's log, bytes of PostgreSQL's, and entries of indexes.

The numbers are counted, and nearly the same on every machine; random ids move them a little.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from agentstore import Store
from benchmarks.counting import WriteAheadLog
from tests.drivers import VERSIONS

TEXT = "z" * 400
SESSIONS = 300
SAVES = 40


def filled(store: Store) -> list[str]:
    """Make sessions with some messages, so that no index is a single page."""
    with store.transaction() as all_or_nothing:
        ids = [all_or_nothing.sessions.create().id for _ in range(SESSIONS)]
        for session in ids:
            messages = [{"role": role, "content": TEXT} for role in ("user", "assistant") * 5]
            all_or_nothing.messages.save_many(session, messages)
    return ids


def save(store: Store, session: str, number: int) -> None:
    store.messages.save(session, ("user", "assistant")[number % 2], TEXT)


@pytest.fixture
def path(sqlite_template: Path, tmp_path: Path) -> Path:
    path = tmp_path / "test.db"
    path.write_bytes(sqlite_template.read_bytes())
    return path


def test_a_lone_save_writes_five_pages(path):
    log = WriteAheadLog(path)
    with Store(f"sqlite:///{path}") as store:
        session = filled(store)[7]
        save(store, session, 0)
        log.pages()
        for number in range(SAVES):
            save(store, session, number)
        assert log.pages() / SAVES <= 5.3


def test_a_save_into_a_session_that_others_were_ahead_of_writes_seven_pages(path):
    """Each save moves its session in the list's index; with a user there are two such indexes."""
    log = WriteAheadLog(path)
    pages = 0
    with Store(f"sqlite:///{path}") as store:
        ids = filled(store)
        log.pages()
        for number in range(200):
            save(store, ids[number * 7919 % SESSIONS], number)
            pages += log.pages()
    assert pages / 200 <= 7


def test_saves_in_one_transaction_write_each_page_once(path):
    log = WriteAheadLog(path)
    with Store(f"sqlite:///{path}") as store:
        ids = filled(store)
        log.pages()
        with store.transaction() as all_or_nothing:
            for number in range(64):
                all_or_nothing.messages.save(ids[number * 4], "user", TEXT)
        assert log.pages() <= 55


def test_a_step_of_an_agent_writes_twelve_pages_with_a_small_state_and_a_pending_write(path):
    """Most are of three indexes, in whose middle the thread is: each may move what is beside."""
    log = WriteAheadLog(path)
    with Store(f"sqlite:///{path}") as store:
        threads = [*(f"thread {n}" for n in range(30)), "mine"]
        for thread in threads:
            for number in range(30):
                step(store, thread, number)
        log.pages()
        for number in range(30, 30 + SAVES):
            step(store, "mine", number)
        assert log.pages() / SAVES <= 12


def test_a_put_of_a_history_that_grows_writes_eleven_pages(path):
    """A row and three indexes of it, a piece and its index, and what merging pieces takes."""
    log = WriteAheadLog(path)
    said = [{"role": "user", "content": f"{n} {TEXT}"} for n in range(30 + SAVES)]
    with Store(f"sqlite:///{path}") as store:
        for thread in (*(f"thread {n}" for n in range(30)), "mine"):
            for number in range(30):
                store.checkpoints.put(thread, {"messages": said[:number]}, namespace="graph")
        log.pages()
        for number in range(30, 30 + SAVES):
            store.checkpoints.put("mine", {"messages": said[:number]}, namespace="graph")
        assert log.pages() / SAVES <= 11


def step(store: Store, thread: str, number: int) -> None:
    state = {"count": number, "last": {"note": TEXT[:80]}, "settings": TEXT[:300]}
    put = store.checkpoints.put(thread, state, namespace="graph")
    writes = [("count", number)]
    store.checkpoints.put_writes(thread, put.id, f"task {number}", writes, namespace="graph")


def test_saves_on_a_server_change_no_index_of_the_session(servers):
    url = servers.new_database(VERSIONS[0])
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        with Store(url) as store:
            session = filled(store)[7]
            before = connection.execute(END_OF_LOG).fetchone()
            for number in range(SAVES):
                save(store, session, number)
            after = connection.execute(END_OF_LOG).fetchone()
        # A connection counts for all to see when it has ended, if not before.
        updates, in_place = wait_until(
            lambda: connection.execute(UPDATES).fetchone() or (0, 0),
            lambda counted: counted[0] >= SESSIONS + SAVES,
        )
    servers.drop(VERSIONS[0], url)
    assert before
    assert after
    assert in_place >= SAVES - 2, f"{in_place} of {updates} updates were heap-only"
    assert (after[0] - before[0]) / SAVES <= 1_750


def wait_until(look: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
    """Look until it is enough, for a minute at most; give what was seen last."""
    for _ in range(600):
        if enough(seen := look()):
            return seen
        time.sleep(0.1)
    return seen


END_OF_LOG = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'sessions'"
