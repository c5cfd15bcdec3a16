"""Connections to PostgreSQL break: what is safe is repeated silently, all else is said."""

import asyncio
import gc
import socket
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import Any
from weakref import ref

import pytest
from psycopg import sql
from sqlalchemy import (
    Integer,
    Select,
    String,
    bindparam,
    create_engine,
    event,
    literal_column,
    make_url,
    select,
)

from agentstore import AsyncStore, Store, migrations
from agentstore.engines.base.dialect import Mode
from agentstore.errors import (
    ConnectionLost,
    DatabaseBusy,
    DatabaseError,
    DatabaseUnreachable,
    NotFound,
    TransactionConflict,
)
from agentstore.execution.unit import LoneRead
from agentstore.schema import Tables
from tests.conftest import DRIVERS, VERSIONS, Place, Servers
from tests.drivers import FULL
from tests.programs.probes import (
    checked_out,
    connect,
    drop,
    drop_connections,
    engine_of,
    once_at,
    wait_until,
)
from tests.servers import Server, installations
from tests.strategies import TRAPS

PREPARED = 8
"""Calls after which psycopg has prepared their statement."""

NEVER = 3600.0
"""A ``ping_after`` so long that a dead connection is only found by using it."""

PASSWORD = "open-sesame"  # noqa: S105 - nobody's


POSTGRESQL_DRIVERS = [pytest.param(d, id=d.name) for d in DRIVERS if d.engine == "postgresql"]


@pytest.fixture(scope="module", params=POSTGRESQL_DRIVERS)
def place(request: pytest.FixtureRequest, servers: Servers) -> Place:
    """A PostgreSQL database at head, by each of its drivers; the tests share it."""
    return Place(request.param, servers.new_database(VERSIONS[0]))


@pytest.fixture(params=POSTGRESQL_DRIVERS)
def own_place(request: pytest.FixtureRequest, servers: Servers) -> Place:
    """The same for a test that changes the database's settings."""
    return Place(request.param, servers.new_database(VERSIONS[0]))


@pytest.fixture
def store(place: Place) -> Iterator[Any]:
    """A store that does not test idle connections."""
    with place.open(ping_after=NEVER) as opened:
        yield opened


def fill_pool(store: Any, connections: int) -> None:
    """Have the store open so many connections, by using them at the same time."""
    together = threading.Barrier(connections)
    session_id = store.sessions.create().id

    def hold() -> None:
        with store.transaction() as tx:
            tx.messages.history(session_id)
            together.wait(30)

    with ThreadPoolExecutor(connections) as threads:
        for done in [threads.submit(hold) for _ in range(connections)]:
            done.result()


def contents(store: Any, session_id: str) -> list[Any]:
    assert store.sessions.verify(session_id).agree
    return [message.content for message in store.messages.history(session_id, None)]


def test_idle_connections_that_died_are_replaced_before_they_are_used(place):
    with place.open(ping_after=0) as store:
        session = store.sessions.create()
        fill_pool(store, 3)
        assert drop_connections(place.url) >= 3
        store.messages.save(session.id, "user", "one")
        assert drop_connections(place.url) >= 1
        with store.transaction() as tx:
            tx.messages.save(session.id, "user", "two")
        assert drop_connections(place.url) >= 1
        assert contents(store, session.id) == ["one", "two"]
        assert checked_out(store) == 0


def test_a_read_on_a_dead_connection_is_repeated_silently(place, store, session):
    fill_pool(store, 4)
    assert drop_connections(place.url) >= 4
    assert store.sessions.get(session.id) == session
    assert drop_connections(place.url) >= 1
    assert store.sessions.verify(session.id).agree
    assert checked_out(store) == 0


def test_a_write_without_a_key_on_a_dead_connection_is_done_or_in_doubt(place, store, session):
    assert drop_connections(place.url) >= 1
    lost: ConnectionLost | None = None
    try:
        store.messages.save(session.id, "user", "hello")
    except ConnectionLost as error:
        lost = error
    assert lost is None or (lost.in_doubt and "idempotency_key" in str(lost))
    assert contents(store, session.id) == (["hello"] if lost is None else [])
    store.messages.save(session.id, "user", "again")
    assert contents(store, session.id)[-1] == "again"


def test_a_prepared_write_on_a_dead_connection_is_in_doubt_and_the_next_one_is_done(
    place: Place, store: Any, session: Any
) -> None:
    for _ in range(PREPARED):
        store.messages.save(session.id, "user", "hello")
    assert drop_connections(place.url) >= 1
    with pytest.raises(ConnectionLost) as caught:
        store.messages.save(session.id, "user", "lost")
    assert caught.value.in_doubt
    store.messages.save(session.id, "user", "again")
    assert contents(store, session.id) == [*["hello"] * PREPARED, "again"]
    assert checked_out(store) == 0


def test_what_is_prepared_takes_every_text_and_number(store: Any, session: Any) -> None:
    saved = []
    for n, word in enumerate([*TRAPS, "x" * 100_000] * 2):  # the first few are not prepared yet
        tokens, more = n * 10_000_000, {"word": word}
        new = store.messages.save(session.id, "user", word, token_count=tokens, metadata=more)
        saved.append(new)
    assert store.messages.history(session.id, None) == saved
    with pytest.raises(NotFound):
        store.messages.save("no such \x00 session", "user", "hello")


def test_what_was_prepared_and_forgotten_is_prepared_again(store: Any, session: Any) -> None:
    for n in range(3 * PREPARED):
        store.messages.save(session.id, "user", str(n))
        if n == 2 * PREPARED:  # the driver drops what it has prepared when it rolls back
            with pytest.raises(LookupError), store.transaction() as tx:
                tx.messages.save(session.id, "user", "undone")
                raise LookupError
    assert contents(store, session.id) == [*map(str, range(3 * PREPARED))]


def test_what_is_prepared_outlives_a_change_of_its_columns_types(own_place: Place) -> None:
    engine = create_engine(make_url(own_place.url).set(drivername="postgresql+psycopg"))
    with own_place.open(pool_size=1, max_overflow=0) as store, Store(engine=engine) as other:
        session = store.sessions.create(title="Weather")

        def titles() -> list[Any]:
            called = [each.sessions.get(session.id).title for each in (store, other)]
            found = store.read(lambda tx: tx.sessions.get(session.id).title)
            return [*called, found, store.run(lambda tx: tx.sessions.get(session.id).title)]

        for kind in ("varchar(500)", "text", "varchar(400)"):
            for _ in range(PREPARED):
                assert titles() == ["Weather"] * 4
            with connect(own_place.url) as beside:
                beside.execute(f"ALTER TABLE sessions ALTER COLUMN title TYPE {kind}".encode())
        with pytest.raises(TransactionConflict), store.transaction() as tx:
            tx.sessions.get(session.id)
        assert titles() == ["Weather"] * 4
    engine.dispose()


def test_a_connection_that_lost_what_was_prepared_prepares_it_anew(place: Place) -> None:
    with place.open(pool_size=1, max_overflow=0) as store:
        session = store.sessions.create()
        for number in range(2 * PREPARED):
            store.messages.save(session.id, "user", str(number))
            store.messages.history(session.id)
            if number == PREPARED:  # past psycopg, as a pooler does
                with engine_of(store).connect() as connection:
                    own: Any = connection.connection.driver_connection
                    own.pgconn.exec_(b"DISCARD ALL")
                with pytest.raises(DatabaseError, match="Nothing was written"):
                    store.messages.save(session.id, "user", "lost")
        assert contents(store, session.id) == [*map(str, range(2 * PREPARED))]


def test_an_error_of_what_is_prepared_is_the_servers(place: Place) -> None:
    with Store(place.url) as store:
        run = partial(store._runner.run, Mode.READ, repeatable=False)
        for _ in range(PREPARED):
            assert run(LoneRead(lambda unit: unit.first(_quotient, by=2)[0], *_NOBODYS)) == 50
        with pytest.raises(DatabaseError, match="division by zero"):
            run(LoneRead(lambda unit: unit.first(_quotient, by=0), *_NOBODYS))


def test_a_text_that_libpq_would_cut_off_is_refused_when_it_is_prepared_too(place: Place) -> None:
    with Store(place.url) as store:
        run = partial(store._runner.run, Mode.READ, repeatable=False)
        for _ in range(PREPARED):
            (word,) = run(LoneRead(lambda unit: unit.first(_word, said="a"), *_NOBODYS))
            assert word == "a"
        with pytest.raises(DatabaseError):
            run(LoneRead(lambda unit: unit.first(_word, said="a\x00b"), *_NOBODYS))


_NOBODYS: Any = (lambda unit: unit, (), {})


def _word(_: Tables) -> Select[Any]:
    return select(bindparam("said", type_=String))


def _quotient(_: Tables) -> Select[Any]:
    return select(literal_column("100") / bindparam("by", type_=Integer))


@pytest.mark.parametrize("in_transaction", [False, True], ids=["call", "transaction"])
def test_when_one_connection_is_lost_none_that_was_kept_is_tried_after_it(
    place: Place, in_transaction: bool
) -> None:
    with place.open(ping_after=NEVER, max_retries=0) as store, ThreadPoolExecutor(8) as threads:
        session, pool = store.sessions.create(), engine_of(store).pool
        while pool.checkedout() < 4:  # as many as are kept
            deque(threads.map(store.sessions.get, [session.id] * 40))
        assert drop_connections(place.url) >= 4
        with pytest.raises(ConnectionLost):
            if in_transaction:
                with store.transaction() as tx:
                    tx.sessions.get(session.id)
            else:
                store.messages.save(session.id, "user", "lost")
        for number in range(4):
            store.messages.save(session.id, "user", str(number))
        assert contents(store, session.id) == ["0", "1", "2", "3"]


def test_what_a_store_keeps_leaves_room_for_a_transaction(place: Place) -> None:
    with place.open(pool_size=1, max_overflow=0, pool_timeout=5) as store:
        for _ in range(3):
            session = store.sessions.create()
            store.messages.save(session.id, "user", "one")
            with store.transaction() as tx:
                tx.messages.save(session.id, "user", "two")
            assert contents(store, session.id) == ["one", "two"]
        assert store.health().pool.in_use == 0


def test_no_more_connections_stay_open_than_pool_size(place: Place) -> None:
    with place.open(pool_size=1, max_overflow=2) as store, ThreadPoolExecutor(1) as thread:
        with store.transaction() as tx:
            tx.sessions.list()
            for _ in range(3):
                thread.submit(store.sessions.list).result()
        store.sessions.list()
        assert drop_connections(place.url) == 1


def test_a_store_that_nobody_closed_goes_without_a_word_of_its_pool(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> Any:
        store = AsyncStore(place.url, pool_size=1, max_overflow=1)
        async with store.transaction():  # whose connection fills the pool
            await Context().run(asyncio.ensure_future, store.sessions.list())
        return ref(store)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of psycopg, as for any connection
        gone = asyncio.run(use())
        gc.collect()
        gc.collect()  # what a finalizer held until then
    assert gone() is None
    assert not caplog.records


def test_who_waits_for_the_pool_gets_what_comes_back(place: Place) -> None:
    with Store(place.url, pool_size=1, max_overflow=0, pool_timeout=20) as store:
        session, kept = store.sessions.create(), store._runner.kept
        assert kept is not None
        reading, go = threading.Event(), threading.Event()

        def read(_: Any) -> None:
            reading.set()
            assert go.wait(60)

        def write() -> None:
            with store.transaction() as tx:
                tx.messages.save(session.id, "user", "hello")

        with ThreadPoolExecutor(2) as threads:
            busy = threads.submit(store._runner.once, Mode.READ, LoneRead(read, *_NOBODYS))
            assert reading.wait(60)
            waits = threads.submit(write)
            wait_until(lambda: kept.going)
            go.set()
            busy.result()
            waits.result(10)
        assert contents(store, session.id) == ["hello"]


def test_a_write_whose_connection_breaks_before_its_statement_is_never_done_twice(
    place, store, session
):
    dying = once_at(
        engine_of(store), "before_cursor_execute", lambda connection: drop(place.url, connection)
    )
    with dying as happened, pytest.raises(ConnectionLost) as caught:
        store.messages.save(session.id, "user", "hello")
    assert happened
    assert caught.value.in_doubt
    assert contents(store, session.id) == []


def lose_the_answer(url: str, connection: Any) -> None:
    """Break the connection after the server has done what it was told, before we hear of it."""
    drop(url, connection)
    connection.connection.dbapi_connection.cursor().execute("SELECT 1")


def test_a_write_whose_answer_is_lost_is_in_doubt(place, store, session):
    losing = once_at(
        engine_of(store), "after_cursor_execute", lambda c: lose_the_answer(place.url, c)
    )
    with losing, pytest.raises(ConnectionLost) as caught:
        store.messages.save(session.id, "user", "hello")
    assert caught.value.in_doubt
    assert contents(store, session.id) == ["hello"]


@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute"])
@pytest.mark.parametrize("statement", [1, 2])
def test_a_write_with_a_key_is_done_exactly_once_whenever_the_connection_breaks(
    place, store, session, moment, statement
):
    countdown = [statement]
    break_now = lose_the_answer if moment == "after_cursor_execute" else drop

    def break_it(connection: Any, *_: Any) -> None:
        countdown[0] -= 1
        if countdown[0] == 0:
            break_now(place.url, connection)

    event.listen(engine_of(store), moment, break_it)
    saved = store.messages.save(session.id, "user", "hello", idempotency_key="k")
    event.remove(engine_of(store), moment, break_it)
    assert countdown[0] < 0
    assert store.messages.history(session.id) == [saved]
    assert contents(store, session.id) == ["hello"]


@pytest.mark.parametrize("statement", range(1, 4))
def test_a_write_of_several_statements_is_repeated_if_the_connection_breaks_before_its_commit(
    place, store, session, statement
):
    countdown = [statement]

    def break_it(connection: Any, *_: Any) -> None:
        countdown[0] -= 1
        if countdown[0] == 0:
            lose_the_answer(place.url, connection)

    event.listen(engine_of(store), "after_cursor_execute", break_it)
    asked = store.sessions.wait_for_user(session.id, "Which city?")
    event.remove(engine_of(store), "after_cursor_execute", break_it)
    assert countdown[0] < 0
    assert asked.question == "Which city?"
    assert asked.version == session.version + 1


def test_a_write_whose_commit_is_lost_is_in_doubt_and_not_repeated(place, store, session):
    committing = once_at(engine_of(store), "commit", lambda c: drop(place.url, c))
    with committing as happened, pytest.raises(ConnectionLost) as caught:
        store.sessions.rename(session.id, "new")
    assert happened
    assert caught.value.in_doubt
    assert store.sessions.get(session.id).title == session.title


def test_a_transaction_whose_connection_breaks_says_that_nothing_was_written(place, store, session):
    with pytest.raises(ConnectionLost) as caught, store.transaction() as tx:
        tx.messages.save(session.id, "user", "lost")
        assert drop_connections(place.url) >= 1
        tx.messages.save(session.id, "user", "lost too")
    assert not caught.value.in_doubt
    assert contents(store, session.id) == []
    assert checked_out(store) == 0


def test_a_transaction_that_goes_on_after_its_connection_broke_does_not_succeed(
    place, store, session
):
    with pytest.raises(ConnectionLost) as caught, store.transaction() as tx:
        tx.messages.save(session.id, "user", "lost")
        assert drop_connections(place.url) >= 1
        for _ in range(2):  # the second call finds the connection gone already
            with pytest.raises(ConnectionLost) as inside:
                tx.messages.save(session.id, "user", "lost too")
            assert not inside.value.in_doubt
    assert not caught.value.in_doubt
    assert contents(store, session.id) == []


def test_a_transaction_whose_commit_is_lost_is_in_doubt(place, store, session):
    committing = once_at(engine_of(store), "commit", lambda c: drop(place.url, c))
    with committing, pytest.raises(ConnectionLost) as caught, store.transaction() as tx:
        tx.messages.save(session.id, "user", "hello")
    assert caught.value.in_doubt
    assert contents(store, session.id) == []


def test_what_a_transaction_raises_gets_out_though_its_connection_broke_meanwhile(
    place, store, session
):
    with pytest.raises(LookupError, match="mine"), store.transaction() as tx:
        tx.messages.save(session.id, "user", "lost")
        assert drop_connections(place.url) >= 1
        raise LookupError("mine")
    assert contents(store, session.id) == []
    assert checked_out(store) == 0


def test_a_transaction_that_begins_on_a_dead_connection_says_so(place, store, session):
    assert drop_connections(place.url) >= 1
    with pytest.raises(ConnectionLost) as caught, store.transaction() as tx:
        tx.messages.save(session.id, "user", "lost")
    assert not caught.value.in_doubt
    with store.transaction() as tx:
        tx.messages.save(session.id, "user", "there")
    assert contents(store, session.id) == ["there"]


def test_run_repeats_a_function_whose_connection_broke(place, store, session):
    calls = []

    def work(tx: Any) -> str:
        calls.append(tx)
        tx.messages.save(session.id, "user", f"try {len(calls)}")
        if len(calls) < 3:
            assert drop_connections(place.url) >= 1
        tx.sessions.rename(session.id, "renamed")
        return f"done in {len(calls)}"

    assert store.run(work) == "done in 3"
    assert contents(store, session.id) == ["try 3"]
    assert store.sessions.get(session.id).title == "renamed"


def test_run_does_not_repeat_a_function_whose_commit_is_in_doubt(place, store, session):
    calls = []

    def work(tx: Any) -> None:
        calls.append(tx)
        tx.messages.save(session.id, "user", "hello")

    committing = once_at(engine_of(store), "commit", lambda c: drop(place.url, c))
    with committing, pytest.raises(ConnectionLost) as caught:
        store.run(work)
    assert caught.value.in_doubt
    assert len(calls) == 1


def test_without_retries_a_broken_connection_is_an_error(place):
    with place.open(ping_after=NEVER, max_retries=0) as store:
        session = store.sessions.create()
        assert drop_connections(place.url) >= 1
        with pytest.raises(ConnectionLost) as caught:
            store.sessions.get(session.id)
        assert not caught.value.in_doubt


def test_a_connection_that_was_interrupted_as_it_began_comes_back_without_a_transaction(
    place, store, session
):
    def interrupt(_: Any) -> None:
        raise RuntimeError("interrupted")

    engine = engine_of(store)
    event.listen(engine, "begin", interrupt)
    with pytest.raises(RuntimeError, match="interrupted"), store.transaction():
        pass
    event.remove(engine, "begin", interrupt)
    with connect(place.url) as other:
        query = "SELECT state FROM pg_stat_activity WHERE datname = current_database()"
        states = [state for (state,) in other.execute(query).fetchall()]
    assert "idle" in states
    assert "idle in transaction" not in states
    store.messages.save(session.id, "user", "hello")
    assert contents(store, session.id) == ["hello"]


@pytest.mark.parametrize("moment", ["begin", "commit", "rollback"])
def test_nothing_is_begun_or_ended_around_what_is_one_statement(store, session, moment):
    heard: list[Any] = []
    event.listen(engine_of(store), moment, heard.append)
    store.messages.save(session.id, "user", "hello")
    store.messages.history(session.id)
    assert heard == []


KILLS = 12 if FULL else 5


@contextmanager
def connections_ending(url: str, rhythm: threading.Semaphore) -> Iterator[threading.Event]:
    """End all connections so many times, each time after a few beats; then set the event."""
    over = threading.Event()

    def end_connections() -> int:
        try:
            ended = 0
            for _ in range(KILLS):
                for _ in range(5):
                    assert rhythm.acquire(timeout=60)
                ended += drop_connections(url)
            return ended
        finally:
            over.set()

    with ThreadPoolExecutor(1) as thread:
        ending = thread.submit(end_connections)
        yield over
        assert ending.result() >= KILLS


def test_writers_with_keys_get_through_while_connections_are_ended(place):
    rhythm = threading.Semaphore(0)
    with place.open(ping_after=0.01, max_retries=50) as store:
        sessions = [store.sessions.create().id for _ in range(4)]

        def write(session_id: str, over: threading.Event) -> list[str]:
            written: list[str] = []
            while not over.is_set():
                text = f"{len(written)}"
                store.messages.save(session_id, "user", text, idempotency_key=text)
                written.append(text)
                rhythm.release()
            return written

        with ThreadPoolExecutor(4) as threads, connections_ending(place.url, rhythm) as over:
            writing = [threads.submit(write, session_id, over) for session_id in sessions]
            written = [each.result() for each in writing]
        assert [contents(store, session_id) for session_id in sessions] == written
        assert checked_out(store) == 0


def test_what_breaks_while_connections_are_ended_is_a_typed_error(place):
    rhythm = threading.Semaphore(0)
    with place.open(ping_after=NEVER, max_retries=0) as store:
        session_id = store.sessions.create().id

        def write(over: threading.Event) -> tuple[int, int]:
            certain = doubtful = number = 0
            while not over.is_set():
                number += 1
                try:
                    if number % 2:
                        store.messages.save(session_id, "user", "hello")
                    else:
                        with store.transaction() as tx:
                            tx.messages.save(session_id, "user", "hello")
                    certain += 1
                except ConnectionLost as lost:
                    doubtful += lost.in_doubt
                except DatabaseUnreachable:
                    pass  # ended while it was being made
                rhythm.release()
            return certain, doubtful

        with ThreadPoolExecutor(3) as threads, connections_ending(place.url, rhythm) as over:
            writing = [threads.submit(write, over) for _ in range(3)]
            counts = [each.result() for each in writing]
        certain, doubtful = (sum(numbers) for numbers in zip(*counts, strict=True))
        with place.open() as other:
            written = len(contents(other, session_id))
        assert certain <= written <= certain + doubtful
        assert checked_out(store) == 0


def test_a_pool_in_which_everything_is_in_use_says_which_setting_to_raise(place):
    with place.open(pool_size=1, max_overflow=0, pool_timeout=0.1) as store:
        session = store.sessions.create()
        with ThreadPoolExecutor(1) as threads, store.transaction() as tx:
            tx.messages.save(session.id, "user", "hello")
            with pytest.raises(DatabaseBusy, match="pool_size"):
                threads.submit(store.sessions.get, session.id).result()
        assert contents(store, session.id) == ["hello"]
        assert checked_out(store) == 0


# --- The server itself --------------------------------------------------------------------------


@pytest.fixture(scope="module", params=installations()[:1], ids=lambda found: found.version)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that tests may stop."""
    with Server(request.param) as server:
        yield server


@pytest.fixture(params=POSTGRESQL_DRIVERS)
def stoppable(request: pytest.FixtureRequest, own_server: Server) -> Place:
    name = f"stoppable_{request.param.name.replace('-', '_')}"
    own_server.create_database(name)
    url = own_server._url(name).replace("postgres@", f"postgres:{PASSWORD}@")
    migrations.upgrade(url)
    return Place(request.param, url)


@pytest.mark.crash
def test_a_store_outlives_its_server_and_never_shows_the_password(stoppable, own_server):
    with (
        stoppable.open(ping_after=0) as testing,
        stoppable.open(ping_after=NEVER) as trusting,
        stoppable.open(ping_after=NEVER) as in_transaction,
    ):
        session = testing.sessions.create()
        for store in (testing, trusting, in_transaction):
            fill_pool(store, 2)

        # A restart between two calls is not noticed, but by a write that may have been done.
        own_server.restart()
        testing.messages.save(session.id, "user", "one")
        assert trusting.sessions.get(session.id).message_count == 1
        in_transaction.messages.save(session.id, "user", "two", idempotency_key="two")

        with pytest.raises(ConnectionLost) as lost, in_transaction.transaction() as tx:
            tx.messages.save(session.id, "user", "lost")
            own_server.stop_hard()
            tx.messages.save(session.id, "user", "lost too")
        assert not lost.value.in_doubt
        seen = ["".join(traceback.format_exception(lost.value))]
        for store in (testing, trusting, in_transaction):
            for call in (
                lambda store=store: store.messages.history(session.id),
                lambda store=store: store.sessions.rename(session.id, "new"),
                lambda store=store: store.messages.save(
                    session.id, "user", "lost", idempotency_key="lost"
                ),
                lambda store=store: store.run(lambda tx: tx.sessions.list()),
            ):
                with pytest.raises((DatabaseUnreachable, ConnectionLost)) as down:
                    call()
                seen += [repr(down.value), "".join(traceback.format_exception(down.value))]
            seen.append(repr(store))
        with pytest.raises(DatabaseUnreachable) as down:
            stoppable.open()
        seen += [repr(down.value), "".join(traceback.format_exception(down.value))]
        assert not [words for words in seen if PASSWORD in words]

        own_server.restart()
        for store in (testing, trusting, in_transaction):
            assert contents(store, session.id) == ["one", "two"]
            store.sessions.rename(session.id, "back")
            assert checked_out(store) == 0


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg"])
def test_a_server_that_is_not_there_is_unreachable(driver):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(DatabaseUnreachable) as caught:
            Store(f"{driver}://someone:{PASSWORD}@127.0.0.1:{port}/nothing")
    words = "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in words + repr(caught.value)
    assert "Check the host" in words


@pytest.mark.timeout(60)
def test_a_server_that_does_not_answer_is_given_up_after_the_timeout():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host, port = silent.getsockname()
        with pytest.raises(DatabaseUnreachable):
            Store(f"postgresql://someone:{PASSWORD}@{host}:{port}/nothing", connect_timeout=1)


def test_a_database_that_takes_no_more_connections_is_unreachable(own_place):
    with connect(own_place.url) as admin:
        name = sql.Identifier(admin.info.dbname)
        admin.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT 0").format(name))
        if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = 'plain'").fetchone():
            admin.execute("CREATE ROLE plain LOGIN")
    with pytest.raises(DatabaseUnreachable, match="too many connections"):
        own_place.driver.open(own_place.url.replace("postgres@", "plain@"))


def test_a_transaction_that_the_server_ends_for_its_length_is_lost(own_place):
    with connect(own_place.url) as admin:
        name = sql.Identifier(admin.info.dbname)
        setting = "ALTER DATABASE {} SET idle_in_transaction_session_timeout = '50ms'"
        admin.execute(sql.SQL(setting).format(name))
    with own_place.open() as store:
        session = store.sessions.create()
        with pytest.raises(ConnectionLost) as caught, store.transaction() as tx:
            tx.messages.save(session.id, "user", "lost")
            with connect(own_place.url) as admin:
                while admin.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
                    "AND state = 'idle in transaction'"
                ).fetchone():
                    pass
            tx.messages.save(session.id, "user", "lost too")
        assert not caught.value.in_doubt
        assert contents(store, session.id) == []
