"""Which URLs and engines a store opens, how it sets connections up, and what it leaves alone."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from psycopg.types import TypeInfo
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

from agentstore import AsyncStore, Store
from agentstore.errors import InvalidInput, SchemaMissing, TransactionMisuse, UnsupportedUrl
from agentstore.testing import BlockingStore, LoopThread
from tests.conftest import DRIVERS, VERSIONS, Servers, on
from tests.programs.probes import checked_out, connect, drop_connections, engine_of

PASSWORD = "open-sesame"  # noqa: S105 - nobody's


def blocking(url: str | None, **options: Any) -> BlockingStore:
    return BlockingStore(lambda: AsyncStore(url, **options))


STORES = [pytest.param(Store, id="Store"), pytest.param(blocking, id="AsyncStore")]


@pytest.fixture(scope="module")
def postgresql(servers: Servers) -> str:
    """The URL of a PostgreSQL database at head, which the tests share."""
    return servers.new_database(VERSIONS[0])


def works(store: Any) -> None:
    """Write and read a little, in each of the ways in which a store may be used."""
    session = store.sessions.create()
    store.messages.save(session.id, "user", "one")
    with store.transaction() as tx:
        tx.messages.save(session.id, "user", "two")
    store.run(lambda tx: tx.messages.save(session.id, "user", "three"))
    with pytest.raises(LookupError, match="mine"), store.transaction() as tx:
        tx.messages.save(session.id, "user", "gone")
        raise LookupError("mine")
    contents = [message.content for message in store.messages.history(session.id)]
    assert contents == ["one", "two", "three"]
    assert store.sessions.verify(session.id).agree
    assert checked_out(store) == 0


# --- URLs -----------------------------------------------------------------------------------------


@pytest.mark.long(but=["*-sqlite-*", "*-sqlite+aiosqlite-AsyncStore", ":///{}/test.db-*"])
@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"])
@pytest.mark.parametrize(
    "rest",
    [
        ":///{}/test.db",
        ":///file:{}/test.db?uri=true",
        "://",
        ":///:memory:",
        ":///file::memory:?uri=true",
        ":///file:shared?mode=memory&cache=shared&uri=true",
    ],
)
def test_every_spelling_of_a_sqlite_url_opens_in_both_stores(make, driver, rest, tmp_path):
    with make(driver + rest.format(tmp_path)) as store:
        works(store)
    assert (tmp_path / "test.db").exists() == ("test.db" in rest)


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg", "postgresql+psycopg_async"])
def test_every_spelling_of_a_postgresql_url_opens_in_both_stores(make, driver, postgresql):
    url = make_url(postgresql).set(drivername=driver)
    with make(url) as store:
        works(store)
    with make(url.render_as_string(hide_password=False)) as store:
        works(store)


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize(
    "url",
    [
        f"mysql://me:{PASSWORD}@here/db",
        f"postgresql+asyncpg://me:{PASSWORD}@here/db",
        f"postgresql+psycopg2://me:{PASSWORD}@here/db",
        "sqlite+pysqlcipher:///x.db",
        f"{PASSWORD} is no URL",
        "",
    ],
)
def test_other_urls_are_refused_without_being_quoted(make, url, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedUrl) as caught:
        make(url)
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", STORES)
def test_without_a_url_the_environment_names_the_database(make, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTSTORE_URL", f"sqlite:///{tmp_path / 'named.db'}")
    with make(None) as store:
        works(store)
    assert (tmp_path / "named.db").exists()
    assert not (tmp_path / "agentstore.db").exists()


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("value", [None, ""])
def test_without_any_url_the_database_is_a_file_in_this_folder(make, value, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTSTORE_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("AGENTSTORE_URL", value)
    with make(None) as store:
        works(store)
    assert (tmp_path / "agentstore.db").exists()


def test_a_store_names_its_database_but_not_its_password(postgresql):
    secret = make_url(postgresql).set(username="postgres", password=PASSWORD)
    with Store(secret) as store:
        assert make_url(postgresql).database in repr(store)
        assert PASSWORD not in repr(store) + str(store) + repr(vars(store))
    store = AsyncStore(secret)
    assert make_url(postgresql).database in repr(store)
    assert PASSWORD not in repr(store) + str(store) + repr(vars(store))


def on_connections(store: Any, count: int, ask: Callable[[Any], Any]) -> list[Any]:
    """Ask so many connections of a store's pool something, all open at the same time."""
    together = threading.Barrier(count)
    session_id = store.sessions.create().id

    def hold(_: int) -> None:
        together.wait(30)
        store.messages.history(session_id)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(hold, range(count)))
    engine = engine_of(store)
    answers = []

    def ask_all() -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(engine.connect()) for _ in range(count)]
            answers.extend(ask(connection) for connection in connections)

    if isinstance(store, BlockingStore) and engine.dialect.is_async:
        store._loop.run(greenlet_spawn(ask_all))
    else:
        ask_all()
    return answers


PRAGMAS = ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")


def pragmas(connection: Any) -> dict[str, Any]:
    return {p: connection.exec_driver_sql(f"PRAGMA {p}").scalar() for p in PRAGMAS}


@pytest.mark.parametrize(
    "driver", [pytest.param(d, id=d.name) for d in DRIVERS if d.engine == "sqlite"]
)
@pytest.mark.parametrize(
    ("options", "synchronous", "busy_timeout"),
    [
        ({}, 2, 30_000),
        ({"synchronous": "FULL", "busy_timeout": 1.5}, 2, 1500),
        ({"synchronous": "NORMAL"}, 1, 30_000),
        ({"synchronous": "OFF"}, 0, 30_000),
        ({"synchronous": "EXTRA"}, 3, 30_000),
    ],
)
def test_every_connection_to_a_sqlite_file_has_its_pragmas(
    driver, options, synchronous, busy_timeout, tmp_path, sqlite_template
):
    expected = {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "synchronous": synchronous,
        "busy_timeout": busy_timeout,
    }
    path = shutil.copy(sqlite_template, tmp_path)
    with driver.open(f"sqlite:///{path}", **options) as store:
        assert on_connections(store, 4, pragmas) == [expected] * 4


@pytest.mark.parametrize(
    "driver", [pytest.param(d, id=d.name) for d in DRIVERS if d.engine == "postgresql"]
)
@pytest.mark.parametrize("threshold", [None, 0, 5, 7])
def test_the_threshold_for_preparing_reaches_every_connection(driver, threshold, postgresql):
    with driver.open(postgresql, prepare_threshold=threshold, pool_size=3) as store:
        found = on_connections(store, 3, lambda c: c.connection.driver_connection.prepare_threshold)
        assert found == [threshold] * 3
        session = store.sessions.create()
        for _ in range(3 * 10):  # enough for each of the three connections
            store.messages.save(session.id, "user", "hello")

        def prepared(connection: Any) -> int:
            query = "SELECT count(*) FROM pg_prepared_statements"
            return int(connection.exec_driver_sql(query).scalar())

        found = on_connections(store, 3, prepared)
        assert (sum(found) > 0) == (threshold is not None)


# --- Engines of the application's own -------------------------------------------------------------


def well_known_recipe(engine: Engine, statement: str) -> None:
    """Install what SQLAlchemy's documentation advises for transactions on SQLite."""

    @event.listens_for(engine, "connect")
    def do_connect(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def do_begin(connection: Any) -> None:
        connection.exec_driver_sql(statement)


RECIPES = ["none", "BEGIN", "BEGIN IMMEDIATE"]


@pytest.fixture(params=["file", "memory"])
def sqlite_rest(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f":///{tmp_path / 'test.db'}" if request.param == "file" else "://"


@pytest.fixture(params=["pysqlite", "psycopg"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An application's engine, which has had connections and a table of its own."""
    if request.param == "psycopg":
        url = request.getfixturevalue("postgresql")
    else:
        url = f"sqlite:///{tmp_path / 'test.db'}"
        Store(url).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS own"))
        connection.execute(text("CREATE TABLE own (value INTEGER)"))
    yield engine
    engine.dispose()


def values(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT value FROM own ORDER BY value")).scalars())


def own_transactions_work(engine: Engine, *, autocommits: bool = True) -> None:
    """Look whether the application's own transactions commit and roll back."""
    insert = text("INSERT INTO own VALUES (:value)")
    before = values(engine)
    new = len(before)
    with engine.begin() as connection:
        connection.execute(insert, {"value": new})
    with engine.connect() as connection:
        connection.execute(insert, {"value": 1000})
        connection.rollback()
        connection.execute(insert, {"value": new + 1})
        connection.commit()
        connection.execute(insert, {"value": 1000})
    with pytest.raises(LookupError), engine.begin() as connection:
        connection.execute(insert, {"value": 1000})
        connection.execute(text("CREATE TABLE gone (value INTEGER)"))
        raise LookupError
    with engine.connect() as connection, connection.begin():
        connection.execute(insert, {"value": new + 2})
        with pytest.raises(LookupError), connection.begin_nested():
            connection.execute(insert, {"value": 1000})
            raise LookupError
    assert values(engine) == [*before, new, new + 1, new + 2]
    if not autocommits:
        return
    with engine.connect() as connection:
        autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
        autocommit.execute(insert, {"value": new + 3})
        autocommit.execute(text("VACUUM"))
    assert values(engine) == [*before, new, new + 1, new + 2, new + 3]


def test_a_store_on_an_engine_handed_in_works_and_leaves_the_engine_open(engine):
    with Store(engine=engine) as store:
        works(store)
        own_transactions_work(engine)
        works(store)
    pool: Any = engine.pool
    assert pool.checkedin() > 0
    own_transactions_work(engine)
    with pytest.raises(TransactionMisuse, match="closed"):
        store.sessions.create()


def test_an_engine_may_be_handed_to_one_store_after_the_other(engine):
    for _ in range(3):
        with Store(engine=engine) as store:
            works(store)
            own_transactions_work(engine)
    begin: Any = engine.dispatch.begin
    connect: Any = engine.pool.dispatch.connect
    installed = len(list(begin)), len(list(connect))
    with Store(engine=engine) as store:
        works(store)
    assert (len(list(begin)), len(list(connect))) == installed


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_sqlite_engine_that_begins_by_itself_works_all_the_same(recipe, sqlite_rest):
    engine = create_engine(f"sqlite{sqlite_rest}")
    if recipe != "none":
        well_known_recipe(engine, recipe)
    began: list[str] = []
    with Store(engine=engine) as store:
        works(store)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE own (value INTEGER)"))
        own_transactions_work(engine, autocommits=recipe == "none")
        event.listen(
            engine, "before_cursor_execute", lambda c, cur, sql, *_: began.append(str(sql))
        )
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        first = {"none": "BEGIN"}.get(recipe, recipe)
        assert began == [first, "SELECT 1"]
        began.clear()
        session = store.sessions.create()
        begins = [sql for sql in began if sql.startswith(("BEGIN", "ROLLBACK"))]
        assert begins[-1] == "BEGIN IMMEDIATE"
        store.sessions.delete(session.id)
        works(store)
    own_transactions_work(engine, autocommits=recipe == "none")
    engine.dispose()


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_aiosqlite_engine_that_begins_by_itself_works_all_the_same(recipe, tmp_path):
    path = tmp_path / "migrated.db"
    Store(f"sqlite:///{path}").close()
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    if recipe != "none":
        well_known_recipe(engine.sync_engine, recipe)
    asyncio.run(use(engine))


async def use(engine: AsyncEngine) -> None:
    """Use an engine by a store and by itself, by turns, and dispose of it."""
    try:
        for _ in range(2):
            async with AsyncStore(engine=engine) as store:
                session = await store.sessions.create()
                await asyncio.gather(
                    *(store.messages.save(session.id, "user", "hello") for _ in range(8))
                )
                async with store.transaction() as tx:
                    await tx.messages.save(session.id, "user", "hello")
                with pytest.raises(LookupError, match="mine"):
                    async with store.transaction() as tx:
                        await tx.messages.save(session.id, "user", "gone")
                        raise LookupError("mine")
                assert (await store.sessions.verify(session.id)).stored[0] == 9
                assert (await store.sessions.verify(session.id)).agree
                async with engine.connect() as connection:
                    await connection.run_sync(lambda c: c.execute(text(CREATE_OWN)))
                    await connection.commit()
                    await connection.execute(text("INSERT INTO own_too VALUES (1)"))
                    await connection.rollback()
                    await connection.execute(text("INSERT INTO own_too VALUES (2)"))
                    await connection.commit()
                    found = await connection.execute(text("SELECT DISTINCT value FROM own_too"))
                    assert list(found.scalars()) == [2]
            assert checked_out(store) == 0
            assert store._unit_runner is not None
            pool: Any = engine.pool
            assert pool.checkedin() > 0
            with pytest.raises(TransactionMisuse, match="closed"):
                await store.sessions.create()
    finally:
        await engine.dispose()


CREATE_OWN = "CREATE TABLE IF NOT EXISTS own_too (value INTEGER)"


def test_an_async_psycopg_engine_handed_in_works_and_is_left_open(postgresql):
    asyncio.run(use(create_async_engine(postgresql)))


def test_connections_that_a_handed_in_engine_has_open_get_their_pragmas(tmp_path):
    url = f"sqlite:///{tmp_path / 'test.db'}"
    Store(url).close()
    engine = create_engine(url)
    with ExitStack() as stack:  # several connections, of which one is in use meanwhile
        for _ in range(3):
            stack.enter_context(engine.connect())
    in_use = engine.connect()
    assert in_use.exec_driver_sql("PRAGMA foreign_keys").scalar() == 0
    in_use.rollback()
    store = Store(engine=engine)
    session = store.sessions.create()
    in_use.close()
    with ExitStack() as stack:
        connections = [stack.enter_context(engine.connect()) for _ in range(4)]
        assert [pragmas(c)["foreign_keys"] for c in connections] == [1] * 4
        assert [pragmas(c)["synchronous"] for c in connections] == [2] * 4
    store.messages.save(session.id, "user", "hello")
    assert store.sessions.delete(session.id).rows["messages"] == 1
    store.close()
    engine.dispose()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "level"),
    [
        ({"synchronous": "OFF"}, {}, 2),
        ({"synchronous": "NORMAL"}, {"synchronous": "EXTRA"}, 3),
        ({}, {"synchronous": "OFF"}, 2),
        ({"synchronous": "NORMAL", "read_only": True}, {"synchronous": "NORMAL"}, 1),
    ],
)
def test_no_store_on_an_engine_lowers_the_durability_of_another(
    tmp_path, first, second, level, asynchronous
):
    path = tmp_path / "test.db"
    Store(f"sqlite:///{path}").close()
    own = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    engine = own.sync_engine if asynchronous else create_engine(f"sqlite:///{path}")

    def opened(options: Any) -> Any:
        if asynchronous:
            return BlockingStore(lambda: AsyncStore(engine=own, **options))
        return Store(engine=engine, **options)

    levels = []

    @event.listens_for(engine, "commit")
    def look(connection: Any) -> None:
        cursor = connection.connection.dbapi_connection.cursor()
        cursor.execute("PRAGMA synchronous")
        levels.append(cursor.fetchone()[0])
        cursor.close()

    with opened(first) as store:
        assert store.sessions.count() == 0
    with opened(second) as store:
        levels.clear()
        store.sessions.create()
    assert levels == [level]
    engine.dispose()


def test_an_engine_in_autocommit_stays_so_for_its_application(tmp_path):
    url = f"sqlite:///{tmp_path / 'test.db'}"
    Store(url).close()
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with Store(engine=engine) as store:
        works(store)
        with engine.connect() as connection:
            connection.execute(text("CREATE TABLE own (value INTEGER)"))
            connection.execute(text("INSERT INTO own VALUES (1)"))
        assert values(engine) == [1]
        works(store)
    engine.dispose()


def test_a_handed_in_psycopg_engine_whose_connections_died_is_told_apart(postgresql):
    engine = create_engine(postgresql)
    with Store(engine=engine) as store:
        session = store.sessions.create()
        assert drop_connections(postgresql) > 0
        assert store.sessions.get(session.id) == session
        works(store)
    engine.dispose()


def test_an_async_engine_is_not_for_store_nor_a_sync_one_for_async_store(tmp_path):
    url = f":///{tmp_path / 'test.db'}"
    asynchronous = create_async_engine(f"sqlite+aiosqlite{url}")
    for engine in (asynchronous, asynchronous.sync_engine):
        with pytest.raises(InvalidInput, match="AsyncStore"):
            Store(engine=engine)  # type: ignore[arg-type]
    synchronous = create_engine(f"sqlite{url}")
    with pytest.raises(InvalidInput, match="create_async_engine"):
        AsyncStore(engine=synchronous)  # type: ignore[arg-type]
    synchronous.dispose()


def test_an_engine_of_another_database_is_refused():
    class Elsewhere:
        url = make_url("mysql://me@here/db")
        dialect = create_engine("sqlite://").dialect

    with pytest.raises(UnsupportedUrl):
        Store(engine=Elsewhere())  # type: ignore[arg-type]


@pytest.mark.parametrize("driver", [pytest.param(d, id=d.name) for d in DRIVERS])
def test_a_closed_store_says_so_and_keeps_no_connection(driver, postgresql, tmp_path):
    url = postgresql if driver.engine == "postgresql" else f"sqlite:///{tmp_path / 'test.db'}"
    loop = LoopThread()
    if driver.asynchronous:
        store: Any = AsyncStore(driver.url(url))
        run: Any = loop.run
        run(store.open())
    else:
        store, run = Store(driver.url(url)), lambda result: result
    session = run(store.sessions.create())
    for _ in range(2):
        run(store.close())
    for call in (
        lambda: run(store.sessions.get(session.id)),
        lambda: run(store.messages.save(session.id, "user", "hello")),
        lambda: run(store.run(lambda tx: tx.sessions.list())),
        lambda: run(enter(store.transaction())),
    ):
        with pytest.raises(TransactionMisuse, match="closed"):
            call()
    assert checked_out(store) == 0
    pool: Any = engine_of(store).pool
    assert pool.checkedin() == 0
    if driver.engine == "postgresql":
        with connect(url) as other:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            while other.execute(query).fetchone() != (1,):
                pass  # the server takes a moment to notice; with one left this would never end
    loop.close()


def enter(transaction: Any) -> Any:
    if hasattr(transaction, "__aenter__"):
        return transaction.__aenter__()
    return transaction.__enter__()


def test_a_database_that_cannot_be_opened_leaves_no_connection(tmp_path):
    path = tmp_path / "test.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE of_somebody_else (value INTEGER)")
    connection.close()
    engine = create_engine(f"sqlite:///{path}")
    for make in (Store, blocking):
        with pytest.raises(SchemaMissing):
            make(f"sqlite:///{path}")
    with pytest.raises(SchemaMissing):
        Store(engine=engine)
    pool: Any = engine.pool
    assert pool.checkedout() == 0
    engine.dispose()


@on(lambda driver: driver.name == "psycopg")
def test_opening_asks_nothing_of_a_type_that_no_column_has(place, monkeypatch):
    asked = []
    monkeypatch.setattr(TypeInfo, "fetch", lambda _, name: asked.append(name))
    with place.open() as store:
        store.sessions.create()
    assert asked == []
