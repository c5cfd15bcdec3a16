"""Whether a store says how it is, and says so of a database that is ill too."""

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, text

from agentstore import AsyncStore, Store, health, migrations
from agentstore.errors import InvalidInput
from agentstore.testing import BlockingStore


def on_the_side(place, *statements):
    """Run statements past the store."""
    engine = create_engine(place.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_a_healthy_store_says_what_it_is_and_how_long_that_took(store, place):
    found = store.health()
    assert (found.ok, found.reason) == (True, None)
    assert found.engine == place.driver.engine
    assert found.engine_version[0].isdigit()
    assert (found.revision, found.head) == (migrations.HEAD, migrations.HEAD)
    assert found.writable is True
    assert found.latency_ms > 0
    assert (found.pool.size, found.pool.in_use) == (10, 0)
    assert (found.search_pending, found.search_problem) == (0, None)


def test_pending_changes_of_the_index_are_counted_up_to_a_bound(store, session, monkeypatch):
    store.messages.save_many(session.id, [{"role": "user", "content": "x"}] * 3)
    assert store.health().search_pending == 3
    monkeypatch.setattr(health, "_COUNT_TO", 2)
    assert store.health().search_pending == 2
    store.search.refresh()
    assert store.health().search_pending == 0


def test_a_broken_search_index_is_told_and_does_not_make_the_store_unfit(store, place):
    on_the_side(place, "UPDATE search_state SET segmentation = 'other'")
    found = store.health()
    assert found.ok
    assert "tokenizer" in found.search_problem


def test_another_revision_is_unhealthy_and_the_reason_names_the_command(store, place):
    on_the_side(place, "UPDATE alembic_version SET version_num = '9999'")
    found = store.health()
    assert not found.ok
    assert found.revision == "9999"
    assert "agentstore upgrade" in found.reason


def test_a_schema_that_is_gone_is_an_answer_and_not_an_error(store, place):
    on_the_side(place, "DROP TABLE alembic_version")
    found = store.health()
    assert not found.ok
    assert found.reason
    assert found.revision is None
    assert found.latency_ms > 0


def test_a_closed_store_says_so(place):
    store = place.open()
    if isinstance(store, BlockingStore):
        store._loop.run(store.store.close())
    else:
        store.close()
    found = store.health()
    assert not found.ok
    assert "closed" in found.reason
    if isinstance(store, BlockingStore):
        store._loop.close()


def test_a_pool_that_is_exhausted_is_told_after_the_timeout(place):
    with place.open(pool_size=1, max_overflow=0, pool_timeout=1) as store:
        with store.transaction() as tx:
            tx.sessions.create()
            found = store.health(0.05)
        assert not found.ok
        assert "0.05 s" in found.reason
        assert found.pool.in_use == 1


def test_a_call_inside_a_transaction_of_the_store_answers_by_itself(store):
    with store.transaction() as tx:
        tx.sessions.create()
        assert store.health().ok


def test_a_question_that_hangs_is_not_asked_again_until_it_has_ended(place, monkeypatch):
    asked = []
    go_on = threading.Event()
    look = health.look

    def slow_look(unit):
        asked.append(1)
        go_on.wait(30)
        return look(unit)

    if place.driver.asynchronous and place.driver.name != "sqlite3-async":
        return  # a coroutine that hangs is cancelled, and takes its question along
    monkeypatch.setattr(health, "look", slow_look)
    with place.open() as store:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: store.health(0.05), range(4)))
        assert not any(each.ok for each in found)
        assert len(asked) == 1
        go_on.set()
        assert store.health().ok


@pytest.mark.parametrize("timeout", [0, -1, True, "5", None, float("nan"), 3601])
def test_a_timeout_that_is_none_is_refused(store, timeout):
    with pytest.raises(InvalidInput):
        store.health(timeout)


def test_a_file_that_became_garbage_is_an_answer(tmp_path):
    path = tmp_path / "test.db"
    with Store(f"sqlite:///{path}") as store:
        store.sessions.create()
    with Store(f"sqlite:///{path}", pool_size=1) as store:
        sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
        path.write_bytes(b"\x00garbage" * 4000)
        found = store.health()
    assert not found.ok
    assert found.reason


def test_a_server_that_is_not_there_is_an_answer_without_the_password():
    store = AsyncStore("postgresql://root:hunter2@127.0.0.1:1/x")

    async def ask():
        found = await store.health()
        await store.close()
        return found

    found = asyncio.run(ask())
    assert not found.ok
    assert "Check the host" in found.reason
    assert "hunter2" not in repr(found)
    assert found.engine == "postgresql"


def test_a_store_that_may_only_read_its_database_says_that_it_cannot_write(place):
    if place.driver.engine == "sqlite":
        name = place.url.removeprefix("sqlite:///")
        with Store(place.url, create=False) as store:
            store.sessions.create()
            with place.driver.open(f"sqlite:///file:{name}?mode=ro&uri=true") as reader:
                found = reader.health()
    else:
        with place.open() as store:
            on_the_side(
                place,
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "
                "default_transaction_read_only = on', current_database()); END $$",
            )
        with place.open() as reader:
            found = reader.health()
    assert found.writable is False
    assert not found.ok
    assert "takes no writes" in found.reason


def test_a_store_that_only_reads_is_healthy_where_it_may_read(place):
    place.open().close()
    with place.open(read_only=True) as reader:
        found = reader.health()
        assert reader.statistics(1).rows == 0
    assert (found.ok, found.writable) == (True, False)
