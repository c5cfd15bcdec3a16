"""An engine that the application made keeps the isolation level that the application chose."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg import IsolationLevel
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agentstore import AsyncStore, Store
from agentstore.engines.base.dialect import Mode
from agentstore.testing import BlockingStore
from tests.conftest import VERSIONS, Servers
from tests.contract.test_engines import works
from tests.programs.probes import engine_of

SHOW = "SHOW transaction_isolation"


@pytest.fixture(scope="module")
def url(servers: Servers) -> str:
    """A database at head, which the tests share."""
    return servers.new_database(VERSIONS[0]).replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture(params=[False, True], ids=["psycopg", "psycopg-async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


AnEngine = Any  # synchronous or not


def by_create_engine(level: str) -> Callable[[Any, str], AnEngine]:
    return lambda create, url: create(url, isolation_level=level)


def by_options(level: str) -> Callable[[Any, str], AnEngine]:
    return lambda create, url: create(url).execution_options(isolation_level=level)


def by_the_driver(create: Any, url: str) -> AnEngine:
    engine = create(url)

    @event.listens_for(getattr(engine, "sync_engine", engine), "connect")
    def choose(driver_s: Any, _record: Any) -> None:
        driver_s.set_isolation_level(IsolationLevel.SERIALIZABLE)

    return engine


CHOSEN = [
    pytest.param(lambda create, url: create(url), "read committed", id="none"),
    pytest.param(by_create_engine("SERIALIZABLE"), "serializable", id="serializable"),
    pytest.param(by_create_engine("REPEATABLE_READ"), "repeatable read", id="repeatable"),
    pytest.param(by_create_engine("READ UNCOMMITTED"), "read uncommitted", id="uncommitted"),
    pytest.param(by_options("SERIALIZABLE"), "serializable", id="options-serializable"),
    pytest.param(by_options("REPEATABLE READ"), "repeatable read", id="options-repeatable"),
    pytest.param(by_the_driver, "serializable", id="driver-serializable"),
]


@contextmanager
def on_its_engine(make, url, *, asynchronous):
    """Open a store on an engine of the application's, and dispose of it."""
    if asynchronous:
        engine = make(create_async_engine, url)
        with BlockingStore(lambda: AsyncStore(engine=engine, max_retries=100)) as store:
            try:
                yield store
            finally:
                store._loop.run(engine.dispose())
        return
    engine = make(create_engine, url)
    try:
        with Store(engine=engine, max_retries=100) as store:
            yield store
    finally:
        engine.dispose()


def asked(store: Any, mode: Mode, sessions: Any = None) -> tuple[str, list[str]]:
    """Give the level of a unit, and all that was sent for it, by the store or a transaction."""
    sent: list[str] = []
    engine = engine_of(store)
    engine = getattr(engine, "_proxied", engine)  # an engine with options is made of another

    def note(_c: Any, _k: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    runner = (sessions or store.sessions)._runner
    asking = runner.run(
        mode, lambda unit: unit.connection.exec_driver_sql(SHOW).scalar(), repeatable=True
    )
    level = store._loop.run(asking) if isinstance(store, BlockingStore) else asking
    event.remove(engine, "before_cursor_execute", note)
    return level, sent


def in_its_own(store: Any, work: Callable[[Connection], Any]) -> Any:
    """Do something in a transaction that the application begins by itself."""
    if not isinstance(store, BlockingStore):
        engine: Engine = store._engine
        with engine.begin() as connection:
            return work(connection)
    async_engine: AsyncEngine = store.store._unit_runner._engine

    async def do() -> Any:
        async with async_engine.begin() as connection:
            return await connection.run_sync(work)

    return store._loop.run(do())


def own_level(store: Any) -> Any:
    return in_its_own(store, lambda connection: connection.execute(text(SHOW)).scalar())


@pytest.mark.parametrize(("make", "chosen"), CHOSEN)
def test_transactions_begin_at_the_level_of_the_application_like_its_own(
    url, make, chosen, asynchronous
):
    with on_its_engine(make, url, asynchronous=asynchronous) as store:
        for _ in range(2):  # the second time, the connection has been taken over before
            with store.transaction() as tx:
                assert asked(store, Mode.READ, tx.sessions)[0] == chosen
            assert own_level(store) == chosen
            level, sent = asked(store, Mode.WRITE)
            assert (level, len(sent)) == (chosen, 2)
            assert own_level(store) == chosen
            with pytest.raises(LookupError, match="mine"), store.transaction() as tx:
                tx.sessions.create()
                raise LookupError("mine")
            assert own_level(store) == chosen


@pytest.mark.parametrize(("make", "chosen"), CHOSEN)
def test_a_snapshot_is_one_at_every_level(url, make, chosen, asynchronous):
    with on_its_engine(make, url, asynchronous=asynchronous) as store:
        level, sent = asked(store, Mode.SNAPSHOT)
        assert level == ("serializable" if chosen == "serializable" else "repeatable read")
        assert len(sent) == 2
        assert own_level(store) == chosen


@pytest.mark.parametrize(("make", "chosen"), CHOSEN)
@pytest.mark.parametrize("mode", [Mode.READ, Mode.STATEMENT])
def test_what_is_one_statement_stays_one_round_trip(url, make, chosen, mode, asynchronous):
    with on_its_engine(make, url, asynchronous=asynchronous) as store:
        assert asked(store, mode) == ("read committed", [SHOW])
        assert own_level(store) == chosen


@pytest.mark.parametrize(
    "make",
    [
        by_create_engine("AUTOCOMMIT"),
        by_options("AUTOCOMMIT"),
        lambda create, url: create(url, connect_args={"autocommit": True}),
    ],
    ids=["create_engine", "options", "driver"],
)
def test_an_application_in_autocommit_stays_there(url, make, asynchronous):
    def is_in_autocommit(connection: Connection) -> bool:
        driver_s: Any = connection.connection.driver_connection
        return bool(driver_s.autocommit)

    with on_its_engine(make, url, asynchronous=asynchronous) as store:
        for _ in range(2):
            assert asked(store, Mode.WRITE)[1] == ["BEGIN", SHOW]
            assert in_its_own(store, is_in_autocommit)


def test_an_engine_of_the_store_s_own_begins_as_the_server_does(url, asynchronous):
    opened = BlockingStore(lambda: AsyncStore(url)) if asynchronous else Store(url)
    with opened as store:
        assert asked(store, Mode.WRITE) == ("read committed", ["BEGIN", SHOW])


def test_a_connection_comes_back_without_a_transaction_if_nothing_rolls_back(url, asynchronous):
    def make(create: Any, url: str) -> AnEngine:
        return create(url, pool_size=1, max_overflow=0, skip_autocommit_rollback=True)

    with on_its_engine(make, url, asynchronous=asynchronous) as store:
        session = store.sessions.create()
        with pytest.raises(LookupError, match="mine"), store.transaction() as tx:
            tx.messages.save(session.id, "user", "gone")
            raise LookupError("mine")
        assert own_level(store) == "read committed"
        assert store.messages.history(session.id) == []
        works(store)


@pytest.mark.long(but=["psycopg-SERIALIZABLE", "psycopg-async-REPEATABLE READ"])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_many_who_write_to_one_session_lose_nothing_at_a_strict_level(url, level, asynchronous):
    with on_its_engine(by_create_engine(level), url, asynchronous=asynchronous) as store:
        works(store)
        session = store.sessions.create().id

        def write(name: str) -> None:
            for number in range(5):
                store.messages.save(session, "user", f"{name} {number}")
                saved = store.messages.save(
                    session, "user", "x", idempotency_key=f"{name} {number}"
                )
                store.messages.delete([saved.id])
                store.run(lambda tx: tx.messages.save(session, "user", "together"))

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(write, name) for name in "abcd"]:
                done.result()
        texts = [message.content for message in store.messages.history(session, None)]
        assert sorted(set(texts)) == sorted(
            {"together"} | {f"{name} {n}" for name in "abcd" for n in range(5)}
        )
        assert len(texts) == 40
        assert store.sessions.verify(session).agree


def test_an_engine_that_looks_disposed_of_keeps_its_level(url, asynchronous, monkeypatch):
    # event.contains goes by id(), and the pool of a new engine may lie where an old one lay.
    monkeypatch.setattr(event, "contains", lambda *_: True)
    with on_its_engine(by_create_engine("SERIALIZABLE"), url, asynchronous=asynchronous) as store:
        asked(store, Mode.READ)
        assert own_level(store) == "serializable"
