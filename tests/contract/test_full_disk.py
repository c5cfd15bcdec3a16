"""A disk without room: said by health(), typed on opening, and no hindrance to reading."""

import resource
import time
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, text

from agentstore.engines.postgresql import checks
from agentstore.engines.sqlite import dialect
from agentstore.errors import AgentStoreError, DatabaseFull
from agentstore.repositories import search
from agentstore.retention import RetentionPolicy
from tests.conftest import in_the_process, on_a_server
from tests.contract.test_forks import in_child
from tests.programs.copies import driver_url


def limit(size):
    """Let no file of this process, which should be a child, grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@in_the_process
def test_health_says_that_nothing_can_be_written_where_no_file_can_grow(place):
    def look():
        with place.open() as store:
            session = store.sessions.create()
            store.messages.save(session.id, "user", "hello")
            assert store.health().writable
            limit(48 * 1024)
            found = store.health()
            assert (found.ok, found.writable) == (False, False), found
            assert "room" in found.reason
            assert store.messages.history(session.id)[0].content == "hello"
            limit(resource.RLIM_INFINITY)
            assert store.health().ok
        return "done"

    assert in_child(look) == "done"


@in_the_process
def test_opening_a_file_whose_log_has_no_room_says_that_the_disk_is_full(place):
    def use():
        limit(16 * 1024)
        with pytest.raises(DatabaseFull, match="full"), place.open() as store:
            store.sessions.list()
        return "done"

    assert in_child(use) == "done"


@in_the_process
def test_pruning_where_no_file_can_grow_leaves_the_log_or_says_to_free_space(place):
    def use():
        with place.open() as store:
            session = store.sessions.create()
            said = store.messages.save(session.id, "user", "hello " * 100_000)
            policy = RetentionPolicy(tool_logs=timedelta(days=1))
            limit(200 * 1024)
            assert store.prune(policy).rows == {}
            limit(resource.RLIM_INFINITY)
            store.prune(policy)  # puts the log into the file
            store.messages.delete([said.id])
            limit(100 * 1024)
            with pytest.raises(AgentStoreError, match="free space"):
                store.prune(policy)
            limit(resource.RLIM_INFINITY)
            assert store.prune(policy).freed_bytes > 0
        return "done"

    assert in_child(use) == "done"


@in_the_process
def test_a_probe_of_the_disk_leaves_no_file_and_waits_for_no_writer(place, tmp_path):
    engine = create_engine(place.url, poolclass=NullPool)
    with place.open() as store, engine.connect() as writer:
        before = sorted(tmp_path.iterdir())
        writer.exec_driver_sql("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert store.health().writable
        assert time.monotonic() - began < 5  # busy_timeout is 30
        writer.exec_driver_sql("ROLLBACK")
        assert sorted(tmp_path.iterdir()) == before


@in_the_process
def test_a_search_reads_where_the_file_has_no_room_for_the_index(place, monkeypatch):
    with place.open() as store:
        session = store.sessions.create().id
        words = " ".join(f"word{n}" for n in range(500))
        for n in range(20):
            store.messages.save(session, "user", f"hello number{n} {words}")
    engine = create_engine(place.url)
    with engine.connect() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
    engine.dispose()
    configure = dialect.configure_new

    def limited(connection, *args, **kwargs):
        configure(connection, *args, **kwargs)
        connection.cursor().execute(f"PRAGMA max_page_count={pages}")

    with monkeypatch.context() as patched:
        patched.setattr(dialect, "configure_new", limited)
        with place.open() as store:
            with pytest.raises(DatabaseFull):
                store.search.refresh()
            assert len(store.messages.search("hello").items) == 20
            (hit,) = store.messages.search("number7").items
            assert hit.message.content.startswith("hello number7")
    with place.open() as store:
        assert len(store.messages.search("hello").items) == 20
        assert store.search.status().pending == 0


def test_a_search_reads_wherever_there_is_no_room_for_the_index(store, session, monkeypatch):
    store.messages.save(session.id, "user", "hello world")

    def no_room(_unit, **_):
        raise DatabaseFull("There is no room.")

    with monkeypatch.context() as patched:
        patched.setattr(search, "take_in", no_room)
        assert len(store.messages.search("hello").items) == 1
        assert store.messages.search("absent").items == ()
    assert store.search.status().pending == 1
    assert len(store.messages.search("hello").items) == 1
    assert store.search.status().pending == 0


@on_a_server
def test_health_has_a_server_write_to_its_disk(place):
    def written():
        with psycopg.connect(driver_url(place.url)) as connection:
            query = "SELECT temp_bytes FROM pg_stat_database WHERE datname = current_database()"
            return connection.execute(query).fetchone()[0]

    assert written() == 0
    with place.open() as store:
        assert store.health().writable
    deadline = time.monotonic() + 30  # the server counts when the connection ends
    while not written() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert written() > 0


@on_a_server
@pytest.mark.parametrize(("code", "writable"), [("53100", False), ("53400", True), ("55P03", True)])
def test_only_a_full_disk_makes_a_server_take_no_writes(store, monkeypatch, code, writable):
    failing = f"DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '{code}'; END $$"
    monkeypatch.setattr(checks, "_TRIAL", failing)
    found = store.health()
    assert (found.ok, found.writable) == (writable, writable)
    monkeypatch.undo()
    assert store.health().ok
