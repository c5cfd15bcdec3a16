"""The store inside a transaction of the application's own: on a connection, or an ORM session."""

import asyncio
import inspect
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, select, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from agentstore import AsyncStore, Store, errors
from agentstore.aio import AsyncRepositories, AsyncRepository
from agentstore.engines.sqlite.dialect import _names_of
from agentstore.models import User
from agentstore.schema import tables
from agentstore.testing import LoopThread
from tests.conftest import VERSIONS, Place, on
from tests.contract import roles

on_own_engines = on(lambda driver: driver.name != "sqlite3-async")  # which shares no engine
KINDS = pytest.mark.parametrize("kind", ["connection", "session"])


class Awaiting:
    """Repositories for coroutines, as they are called in a greenlet."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if isinstance(found, AsyncRepository):
            return Awaiting(found)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            if inspect.iscoroutine(result):
                return await_only(result)
            return Awaiting(result) if isinstance(result, AsyncRepositories) else result

        return call


class Caller:
    """What the application works with: the synchronous one, and what is handed to the store."""

    def __init__(self, on: Any, given: Any) -> None:
        self.on = on
        self.given = given

    def insert(self, value: int) -> None:
        self.on.execute(text("INSERT INTO own VALUES (:value)"), {"value": value})

    @property
    def connection(self) -> Connection:
        return self.on if isinstance(self.on, Connection) else self.on.connection()


class Application:
    """An application with an engine and a table of its own, and a store on the engine."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.asynchronous = place.driver.asynchronous
        self.loop = LoopThread() if self.asynchronous else None
        url = place.driver.url(place.url)
        make: Any = create_async_engine if self.asynchronous else create_engine
        self.given_engine = make(url, **options)
        self.engine = self.given_engine.sync_engine if self.asynchronous else self.given_engine
        self.store: Any = None
        self.now: datetime | None = None

    def run(self, body: Callable[[], Any]) -> Any:
        """Run a test's body as the application would: in a thread, or in one task of a loop."""
        return self.loop.run(greenlet_spawn(body)) if self.loop else body()

    def open(self, **options: Any) -> None:
        options["clock"] = lambda: self.now or datetime.now(UTC)
        if self.asynchronous:
            self.store = Awaiting(AsyncStore(engine=self.given_engine, **options))
            self.run(lambda: self.store.open())
        else:
            self.store = Store(engine=self.given_engine, **options)

    def close(self) -> None:
        if self.store is not None:
            self.run(lambda: self.store.close())
        self.run(self.engine.dispose)
        if self.loop:
            self.loop.close()

    @contextmanager
    def caller(self, kind: str, engine: Any = None) -> Iterator[Caller]:
        engine = engine or self.engine
        with engine.connect() if kind == "connection" else Session(engine) as on:
            given = on
            if self.asynchronous and kind == "connection":
                given = AsyncConnection(self.given_engine, on)
            elif self.asynchronous:
                given = AsyncSession(self.given_engine)
                given.sync_session = given._proxied = on
            yield Caller(on, given)

    def values(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT value FROM own")).scalars())


@pytest.fixture
def app(place: Place) -> Iterator[Application]:
    running = Application(place)

    def make_table() -> None:
        with running.engine.begin() as connection:
            connection.execute(text("CREATE TABLE own (value INTEGER)"))

    running.run(make_table)
    running.open()
    yield running
    running.close()


# --- One transaction ------------------------------------------------------------------------------


@on_own_engines
@KINDS
def test_what_the_store_wrote_is_committed_and_rolled_back_with_the_application_s(app, kind):
    def body():
        with app.caller(kind) as caller:
            tx = app.store.joined(caller.given)
            caller.insert(1)
            user = tx.users.create("Ada")
            session = tx.sessions.create(user_id=user.id)
            tx.messages.save(session.id, "user", "giraffe")
            tx.tasks.create(session.id, "greet")
            assert [m.content for m in tx.messages.history(session.id)] == ["giraffe"]
            assert app.store.users.find(user.id) is None
            caller.on.rollback()
            assert app.store.users.find(user.id) is None
            assert app.values() == []
            assert len(app.store.messages.search("giraffe").items) == 0
            # The same object goes on in the next transaction.
            caller.insert(2)
            user = tx.users.create("Grace")
            session = tx.sessions.create(user_id=user.id)
            tx.messages.save(session.id, "user", "giraffe")
            task = tx.tasks.create(session.id, "greet")
            caller.on.commit()
            assert app.store.users.get(user.id).name == "Grace"
            assert app.values() == [2]
            assert len(app.store.messages.search("giraffe").items) == 1
            (claimed,) = app.store.tasks.claim("worker")
            assert claimed.id == task.id
            assert app.store.sessions.verify(session.id).agree

    app.run(body)


@on_own_engines
@KINDS
def test_savepoints_of_the_application_and_of_the_store_stand_in_each_other(app, kind):
    def body():
        with app.caller(kind) as caller:
            tx = app.store.joined(caller.given)
            kept = tx.users.create("kept")
            with pytest.raises(LookupError), caller.on.begin_nested():
                gone = tx.users.create("gone")
                caller.insert(1)
                raise LookupError
            with caller.on.begin_nested():
                inner = tx.users.create("inner")
            with pytest.raises(errors.AlreadyExists):  # nothing of this call is left, all else is
                tx.sessions.create(id="one")
                tx.sessions.create(id="one")
            caller.insert(2)
            caller.on.commit()
            found = [app.store.users.find(user.id) is not None for user in (kept, gone, inner)]
            assert found == [True, False, True]
            assert app.store.sessions.find("one") is not None
            assert app.values() == [2]

    app.run(body)


@on_own_engines
def test_a_session_is_flushed_before_a_call_unless_it_does_not_flush_by_itself(app):
    def body():
        with app.caller("session") as caller:
            tx = app.store.joined(caller.given)
            now = app.store.users.create("Ada").created_at
            columns = {"quota_used": 0, "quota_reserved": 0, "preferences": {}}
            caller.on.add(User(id="pending", name="P", created_at=now, updated_at=now, **columns))
            with caller.on.no_autoflush, pytest.raises(errors.NotFound):
                tx.sessions.create(user_id="pending")
            made = tx.sessions.create(user_id="pending")
            caller.on.commit()
            assert app.store.sessions.get(made.id).user_id == "pending"

    app.run(body)


@on_own_engines
def test_a_session_on_a_connection_of_a_test_leaves_nothing(app):
    def body():
        with app.engine.connect() as outer:
            begun = outer.begin()
            session = Session(bind=outer, join_transaction_mode="create_savepoint")
            given: Any = session
            if app.asynchronous:
                given = AsyncSession(app.given_engine)
                given.sync_session = session
            user = app.store.joined(given).users.create("Ada")
            session.commit()
            assert app.store.joined(given).users.find(user.id) is not None
            session.close()
            begun.rollback()
        assert app.store.users.find(user.id) is None

    app.run(body)


@on_own_engines
@KINDS
def test_a_scope_in_the_application_s_transaction_ends_with_each_call(app, kind):
    def body():
        mine, other = app.store.users.create("Ada"), app.store.users.create("Eve")
        theirs = app.store.sessions.create(user_id=other.id)
        with app.caller(kind) as caller:
            scoped = app.store.scoped(mine.id).joined(caller.given)
            made = scoped.sessions.create(title="Mine")
            assert made.user_id == mine.id
            for _ in range(2):
                with pytest.raises(errors.NotFound):
                    scoped.sessions.get(theirs.id)
                with pytest.raises(errors.NotFound):
                    scoped.messages.save(theirs.id, "user", "hello")
                tx = app.store.joined(caller.given)
                assert tx.sessions.get(theirs.id).user_id == other.id
            caller.on.commit()
        assert app.store.sessions.get(made.id).user_id == mine.id

    app.run(body)


# --- Refusals -------------------------------------------------------------------------------------


def refused(app: Application, given: Any, match: str) -> None:
    """Expect that neither a read nor a write runs there."""
    for call in (
        lambda tx: tx.users.list(),
        lambda tx: tx.users.create("Ada"),
        lambda tx: tx.usage.record("s", input_tokens=1),
    ):
        with pytest.raises(errors.TransactionMisuse, match=match):
            call(app.store.joined(given))


@on_own_engines
def test_a_connection_that_cannot_carry_a_call_is_refused(app, place):
    def body():
        with app.caller("connection") as caller:
            caller.on.execution_options(isolation_level="AUTOCOMMIT")
            refused(app, caller.given, "is in AUTOCOMMIT")
        refused(app, caller.given, "is closed")
        with app.caller("connection") as caller:
            caller.on.execution_options(schema_translate_map={None: "elsewhere"})
            refused(app, caller.given, "schema_translate_map")
        with app.caller("connection") as caller:
            begun = caller.on.begin()
            with pytest.raises(InvalidRequestError), begun:
                caller.on.execute(text("SELECT 1"))
                begun.rollback()
                refused(app, caller.given, "has ended, or takes no statements")
                caller.on.execute(text("SELECT 1"))
        with app.caller("connection") as caller:
            caller.insert(1)
            caller.on.invalidate()
            refused(app, caller.given, "Roll back, and begin again")
            caller.on.rollback()
            app.store.joined(caller.given).users.create("Ada")
        with app.caller("session") as caller, caller.on.begin() as begun:
            begun.commit()
            refused(app, caller.given, "has ended, or takes no statements")
        with app.caller("session") as caller:
            caller.on.add(User(id="nameless"))
            with pytest.raises(Exception, match=r"NOT NULL|not-null"):
                caller.on.flush()
            refused(app, caller.given, "has failed. Roll it back")
            caller.on.rollback()
            app.store.joined(caller.given).users.create("Ada")
        other = Application(place)
        try:
            with other.caller("connection", other.engine) as caller:
                refused(app, caller.given, r"not of the store's engine.*engine=engine")
        finally:
            other.engine.dispose()
            if other.loop:
                other.loop.close()
        for wrong in (None, "connection", app.engine, object()):
            with pytest.raises(errors.InvalidInput, match="connection must be"):
                app.store.joined(wrong)

    app.run(body)


@on_own_engines
def test_a_connection_from_before_the_store_is_refused(place):
    app = Application(place)

    def body():
        with app.caller("connection") as caller:
            caller.on.execute(text("SELECT 1"))
            app.run_open()
            refused(app, caller.given, "opened before the store")

    def run_open():
        if app.asynchronous:
            app.store = Awaiting(AsyncStore(engine=app.given_engine))
            app.store.open()
        else:
            app.open()

    app.run_open = run_open
    app.run(body)
    app.close()


@on_own_engines
def test_a_store_that_is_closed_or_only_reads_or_is_in_a_transaction_refuses(app):
    def body():
        with app.caller("connection") as caller:
            tx = app.store.joined(caller.given)
            tx.users.list()
            app.store.close()
            with pytest.raises(errors.TransactionMisuse, match="store is closed"):
                tx.users.list()

    app.run(body)
    app.open(read_only=True)

    def only_read():
        with app.caller("connection") as caller:
            tx = app.store.joined(caller.given)
            assert tx.users.list().items == ()
            with pytest.raises(errors.DatabaseReadOnly):
                tx.users.create("Ada")

    app.run(only_read)


@on(lambda driver: driver.name == "sqlite3")
def test_a_store_whose_engine_is_its_own_says_that_it_needs_the_application_s(place):
    async def look() -> None:
        engine = create_async_engine(place.url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncStore(place.url) as store, engine.connect() as connection:
            with pytest.raises(errors.TransactionMisuse, match="engine=async_engine"):
                store.joined(connection)
            with pytest.raises(errors.InvalidInput, match="AsyncConnection"):
                store.joined("no connection")
        with pytest.raises(errors.TransactionMisuse, match="is not open"):
            AsyncStore(engine=engine).joined(engine.connect())
        await engine.dispose()

    asyncio.run(look())


@on(lambda driver: driver.name == "sqlite3")
def test_a_session_of_a_registry_is_that_of_the_thread(place):
    engine = create_engine(place.url)
    with Store(engine=engine) as store:
        registry = scoped_session(sessionmaker(engine))
        user = store.joined(registry).users.create("Ada")
        assert registry.scalar(select(User.name).where(User.id == user.id)) == "Ada"
        registry.rollback()
        assert store.users.find(user.id) is None
        registry.remove()
        binds = Session(binds={User: engine})
        store.joined(binds).users.create("Grace")
        binds.commit()
        assert len(store.users.list().items) == 1
        binds.close()
    engine.dispose()


@on_own_engines
def test_calls_in_a_transaction_that_are_made_at_once_run_one_after_the_other(app):
    def body():
        with app.caller("session") as caller:
            tx = app.store.joined(caller.given)
            session = tx.sessions.create()
            if app.asynchronous:
                saves = [tx._of.messages.save(session.id, "user", str(n)) for n in range(8)]
                await_only(_gathered(saves))
            else:
                threads = [
                    threading.Thread(target=tx.messages.save, args=(session.id, "user", str(n)))
                    for n in range(8)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            caller.on.commit()
            assert app.store.sessions.verify(session.id).stored[0] == 8

    app.run(body)


async def _gathered(calls: list[Any]) -> None:
    await asyncio.gather(*calls)


# --- SQLite: who holds the lock -------------------------------------------------------------------

in_a_file = on(lambda driver: driver.name in ("sqlite3", "aiosqlite"))


@in_a_file
@KINDS
def test_a_snapshot_that_is_old_cannot_write_and_a_writer_never_has_one(app, kind):
    def body():
        read = text("SELECT value FROM own")
        with app.caller(kind) as caller:
            caller.on.execute(read).all()
            app.store.users.create("Meanwhile")
            tx = app.store.joined(caller.given)
            assert tx.users.list().items == ()  # of the transaction's own state
            with pytest.raises(errors.TransactionConflict, match="agentstore_writes=True"):
                tx.users.create("Ada")
            caller.on.rollback()
            assert tx.users.create("Ada").name == "Ada"
            caller.on.commit()
        with app.caller(kind, app.engine.execution_options(agentstore_writes=True)) as caller:
            caller.on.execute(read).all()
            with pytest.raises(errors.TransactionMisuse, match="wait for its own caller"):
                app.store.users.create("Meanwhile")
            app.store.joined(caller.given).users.create("Grace")
            caller.on.commit()
        assert len(app.store.users.list().items) == 3

    app.run(body)


@on(lambda driver: driver.name == "sqlite3")
def test_a_call_that_writes_has_the_lock_before_it_reads(place):
    others: list[str] = []
    engine = create_engine(place.url)
    database = str(engine.url.database)

    def write_too(_conn: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith("SELECT") and "temp." not in sql:  # which are not in the file
            other = sqlite3.connect(database, timeout=0, isolation_level=None)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            other.close()
            others.append(sql)

    with Store(engine=engine) as store, Session(engine) as db:
        session = store.sessions.create()
        event.listen(engine, "before_cursor_execute", write_too)
        store.joined(db).sessions.pause(session.id)
        db.commit()
        event.remove(engine, "before_cursor_execute", write_too)
    assert others
    engine.dispose()


@in_a_file
@KINDS
def test_a_call_that_would_wait_for_its_own_caller_is_refused_at_once(app, kind):
    def body():
        with app.caller(kind) as caller:
            caller.on.execute(text("SELECT value FROM own")).all()
            app.store.users.create("fine")  # who only reads keeps nobody waiting
            caller.on.rollback()
            caller.insert(1)
            for call in (
                lambda: app.store.users.create("Ada"),
                lambda: app.store.scoped("u").sessions.create(),
                lambda: app.store.run(lambda tx: tx.users.create("Ada")),
            ):
                with pytest.raises(errors.TransactionMisuse, match=r"store\.joined"):
                    call()
            assert len(app.store.users.list().items) == 1  # reading waits for nobody
            caller.on.commit()
            app.store.users.create("Ada")
        with app.caller("connection") as caller:
            caller.on.execution_options(isolation_level="AUTOCOMMIT")
            caller.insert(2)
            app.store.users.create("beside autocommit")

    app.run(body)


@on(lambda driver: driver.name == "aiosqlite")
def test_a_task_may_wait_for_the_transaction_of_the_one_that_began_it(place):
    async def work() -> None:
        engine = create_async_engine(place.driver.url(place.url))
        async with AsyncStore(engine=engine) as store, engine.connect() as connection:
            await store.joined(connection).users.create("Ada")
            with pytest.raises(errors.TransactionMisuse, match="wait for its own caller"):
                await store.users.create("Grace")
            waiting = asyncio.create_task(store.users.create("Grace"))
            await asyncio.sleep(0)
            await connection.commit()
            assert (await waiting).name == "Grace"
        await engine.dispose()

    asyncio.run(work())


@on(lambda driver: driver.name == "sqlite3")
def test_a_thread_may_wait_for_another_one_s_transaction(place):
    engine = create_engine(place.url)
    with Store(engine=engine) as store, Session(engine) as db:
        store.joined(db).users.create("Ada")
        here = copy_context()  # as those copy it that run functions of a task in threads
        waiting = threading.Thread(target=here.run, args=(store.users.create, "Grace"))
        waiting.start()
        db.commit()
        waiting.join()
        assert len(store.users.list().items) == 2
    engine.dispose()


def test_a_database_in_memory_has_the_store_in_the_application_s_transaction_or_not_at_all():
    engine = create_engine("sqlite://")
    with Store(engine=engine) as store, Session(engine) as db:
        user = store.joined(db).users.create("Ada")
        for call in (lambda: store.users.create("Grace"), lambda: store.users.find(user.id)):
            with pytest.raises(errors.TransactionMisuse, match="joined"):
                call()
        db.rollback()
        assert store.users.find(user.id) is None
        store.joined(db).users.create("Ada")
        db.commit()
        assert len(store.users.list().items) == 1
    engine.dispose()


@in_a_file
@KINDS
def test_a_transaction_that_sqlite_undid_cannot_be_committed(app, kind):
    undo = (
        "CREATE TRIGGER undo_{0} BEFORE INSERT ON {0} BEGIN SELECT RAISE(ROLLBACK, 'undone'); END"
    )

    def body():
        with app.engine.begin() as connection:
            for table in ("users", "own"):
                connection.execute(text(undo.format(table)))
        with app.caller(kind) as caller:
            tx = app.store.joined(caller.given)
            tx.sessions.create()
            with pytest.raises(errors.ConstraintViolation, match="A trigger"):
                tx.users.create("Ada")
            refused(app, caller.given, "Roll back, and begin again|Roll it back")
            with pytest.raises(PendingRollbackError):
                caller.on.commit()
            caller.on.rollback()
            tx.sessions.create()
            with pytest.raises(IntegrityError, match="undone"):
                caller.insert(1)
            refused(app, caller.given, "an error rolled it back")
            caller.on.rollback()
            tx.sessions.create(id="good")
            caller.on.commit()
            assert [found.id for found in app.store.sessions.list().items] == ["good"]

    app.run(body)


def test_every_table_of_a_file_is_one_that_a_temporary_one_would_hide(tmp_path):
    file = tmp_path / "a.db"
    Store(f"sqlite:///{file}").close()
    with closing(sqlite3.connect(file)) as connection:
        made = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        there = {name for (name,) in made if not name.startswith("sqlite_")}
    known = {*_names_of(tables())}
    assert known <= there
    assert all(name.startswith("search_index_") for name in there - known)  # of the index's own


@in_a_file
@KINDS
@pytest.mark.parametrize(
    "hiding", ["TABLE Messages (a)", "VIEW search_queue AS SELECT 1", "TABLE activity (taken)"]
)
def test_a_temporary_table_that_would_take_what_is_saved_is_refused(app, kind, hiding):
    def body():
        with app.caller(kind) as caller:
            tx = app.store.joined(caller.given)
            session = tx.sessions.create()
            caller.on.execute(text("CREATE TEMP TABLE others (a)"))
            caller.on.execute(text("CREATE INDEX temp.tasks ON others (a)"))  # hides nothing
            tx.messages.save(session.id, "user", "kept")
            caller.on.execute(text(f"CREATE TEMP {hiding}"))
            refused(app, caller.given, f"hide agentstore's: {hiding.split()[1].lower()}")
            caller.on.execute(text("DROP {} temp.{}".format(*hiding.split()[:2])))
            tx.messages.save(session.id, "user", "kept too")
            caller.on.commit()
            assert app.store.sessions.verify(session.id).agree

    app.run(body)


# --- PostgreSQL -----------------------------------------------------------------------------------

on_a_server = on(lambda driver: driver.engine == "postgresql")


@on_a_server
@KINDS
def test_a_transaction_that_postgresql_has_failed_is_refused_until_it_is_rolled_back(app, kind):
    def body():
        with app.caller(kind) as caller:
            with pytest.raises(Exception, match="division by zero"):
                caller.on.execute(text("SELECT 1 / 0"))
            refused(app, caller.given, r"has failed.*Roll it back")
            caller.on.rollback()
            app.store.joined(caller.given).users.create("Ada")
            caller.on.commit()

    app.run(body)


@on_a_server
def test_the_application_s_isolation_level_holds_and_a_conflict_is_the_application_s(app):
    def body():
        strict = app.engine.execution_options(isolation_level="SERIALIZABLE")
        user = app.store.users.create("Ada", quota_total=100)
        with app.caller("connection", strict) as caller:
            tx = app.store.joined(caller.given)
            assert tx.users.get(user.id).quota_used == 0
            level = text("SHOW transaction_isolation")
            assert caller.on.execute(level).scalar() == "serializable"
            app.store.users.consume_quota(user.id, 1)
            with pytest.raises(errors.TransactionConflict, match="Repeat the transaction"):
                tx.users.consume_quota(user.id, 1)
            caller.on.rollback()
            tx.users.consume_quota(user.id, 1)
            caller.on.commit()
        assert app.store.users.get(user.id).quota_used == 2
        with app.caller("connection") as caller:
            caller.on.execution_options(postgresql_readonly=True)
            with pytest.raises(errors.DatabaseReadOnly, match="transaction is read-only"):
                app.store.joined(caller.given).users.create("Ada")

    app.run(body)


@on_a_server
def test_a_read_begins_the_application_s_transaction_when_it_is_prepared_too(app):
    def body():
        user = app.store.users.create("Ada", quota_total=100)
        one_state = app.engine.execution_options(isolation_level="REPEATABLE READ")
        for used in range(12):
            with app.caller("connection", one_state) as caller:
                tx = app.store.joined(caller.given)
                assert tx.users.get(user.id).quota_used == used
                app.store.users.consume_quota(user.id, 1)
                assert tx.users.get(user.id).quota_used == used
                caller.on.commit()

    app.run(body)


@on_a_server
def test_statements_that_are_prepared_at_once_do_and_a_pipeline_is_refused(place):
    app = Application(place, connect_args={"prepare_threshold": 0})
    app.open(prepare_threshold=0)

    def body():
        with app.caller("connection") as caller:
            tx = app.store.joined(caller.given)
            session = tx.sessions.create()
            for n in range(12):
                with caller.on.begin_nested() as savepoint:
                    tx.messages.save(session.id, "user", "hello")
                    if n % 2:
                        savepoint.rollback()
            assert tx.messages.size(session.id) == 6
            own: Any = caller.on.connection.driver_connection
            own.pgconn.enter_pipeline_mode()
            refused(app, caller.given, "pipeline mode")
            own.pgconn.exit_pipeline_mode()
            caller.on.commit()

    app.run(body)
    app.close()


@pytest.fixture
def server(servers):
    yield from roles.serve(servers, VERSIONS[0])


def test_row_level_security_holds_in_a_scope_and_what_the_application_set_stays(server):
    with Store(server.url) as owner:
        mine, other = owner.users.create("Ada"), owner.users.create("Eve")
        owner.sessions.create(user_id=other.id)
    engine = create_engine(server.url_of(server.guest))
    names = text("SELECT name FROM users")
    with Store(engine=engine) as store, engine.connect() as connection:
        scoped = store.scoped(mine.id).joined(connection)
        assert scoped.sessions.list().items == ()
        assert scoped.users.get(mine.id).name == "Ada"
        assert connection.execute(names).all() == []  # as before: no scope, and no rights
        scope = text("SELECT set_config('agentstore.user_id', :id, true)")
        connection.execute(scope, {"id": other.id})
        with pytest.raises(errors.NotFound):
            scoped.users.get(other.id)
        assert scoped.sessions.create().user_id == mine.id
        assert connection.execute(names).scalars().all() == ["Eve"]
    engine.dispose()
