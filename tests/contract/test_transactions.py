import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.pool import Pool

from agentstore import AsyncStore, Store
from agentstore.errors import (
    AlreadyExists,
    IllegalTransition,
    InvalidInput,
    NotFound,
    StaleSession,
    TransactionMisuse,
)
from tests.contract.clocks import NOON


class Clock:
    """A clock that stops working when it is told to."""

    def __init__(self):
        self.now = NOON
        self.works_for = None

    def __call__(self):
        if self.works_for is not None:
            if self.works_for == 0:
                raise OSError("the clock broke")
            self.works_for -= 1
        self.now += timedelta(seconds=1)
        return self.now


def asynchronously(engine_url, main):
    """Run a coroutine function with a store, for each way to open the database asynchronously."""

    async def run(url):
        async with AsyncStore(url, busy_timeout=20) as store:
            await main(store)

    asyncio.run(run(engine_url))
    if engine_url.startswith("sqlite:"):
        asyncio.run(run(engine_url.replace("sqlite:", "sqlite+aiosqlite:")))


def contents(store, session):
    return [message.content for message in store.messages.history(session.id, None)]


def test_several_calls_are_made_one_and_read_what_they_wrote(store):
    with store.transaction() as tx:
        user = tx.users.create("Alice", quota_total=10)
        session = tx.sessions.create(user.id)
        message = tx.messages.save(session.id, "user", "hello", token_count=3)
        task = tx.tasks.create(session.id, "answer", {"message": message.id})
        log = tx.tool_logs.log(session.id, "search", message_id=message.id)
        assert tx.users.consume_quota(user.id, 3) == 7
        assert tx.messages.history(session.id) == [message]
        assert tx.sessions.get(session.id).total_tokens == 3
        assert tx.usage.stats(user.id).messages == 1
    assert store.users.get(user.id).quota_used == 3
    assert store.messages.history(session.id) == [message]
    assert store.tasks.get(task.id) == task
    assert store.tool_logs.get(log.id) == log


def test_nobody_sees_anything_before_the_end(place, store, session):
    with place.open() as another:
        with store.transaction() as tx:
            tx.messages.save(session.id, "user", "hello")
            tx.users.create("Alice")
            assert contents(another, session) == []
            assert another.sessions.get(session.id).message_count == 0
            assert another.users.list().items == ()
        assert contents(another, session) == ["hello"]
        assert len(another.users.list()) == 1


@pytest.mark.parametrize("kind", [RuntimeError, NotFound, KeyboardInterrupt])
def test_whatever_is_raised_undoes_everything_and_arrives_as_it_is(store, session, kind):
    raised = kind("session", "x")
    before = store.usage.totals()
    with pytest.raises(kind) as caught, store.transaction() as tx:
        user = tx.users.create("Alice", preferences={"a": 1})
        tx.sessions.create(user.id)
        tx.messages.save(session.id, "user", "hello", token_count=3)
        tx.sessions.complete(session.id)
        raise raised
    assert caught.value is raised
    assert store.usage.totals() == before
    assert store.sessions.get(session.id) == session
    assert store.messages.save(session.id, "user", "again").seq == 1


def test_a_call_that_fails_half_way_and_is_caught_leaves_nothing_of_itself(place):
    clock = Clock()
    with place.open(clock=clock) as store:
        user = store.users.create("Alice", quota_total=5)
        session = store.sessions.create(user.id)
        with store.transaction() as tx:
            tx.messages.save(session.id, "user", "before")
            # The status is changed, then the clock is read for the question.
            clock.works_for = 0
            with pytest.raises(OSError, match="clock"):
                tx.sessions.wait_for_user(session.id, "which?")
            clock.works_for = None
            assert tx.sessions.get(session.id).status == "active"
            tx.sessions.wait_for_user(session.id, "which one?")
            asked = tx.sessions.get(session.id)
            # The session is active again, the question is gone, then the message is stamped.
            clock.works_for = 1
            with pytest.raises(OSError, match="clock"):
                tx.sessions.answer(session.id, "that one")
            clock.works_for = None
            assert tx.sessions.get(session.id) == asked
            tx.messages.save(session.id, "assistant", "after")
        assert store.sessions.get(session.id).status == "waiting_user"
        assert store.sessions.get(session.id).question == "which one?"
        assert contents(store, session) == ["before", "after"]
        assert store.sessions.verify(session.id).agree


def test_a_refused_call_that_is_caught_does_not_spoil_the_transaction(store, session):
    store.users.create("Alice", id="alice", quota_total=5)
    with store.transaction() as tx:
        tx.messages.save(session.id, "user", "before", external_id="e")
        for refused, call in [
            (AlreadyExists, lambda: tx.users.create("Mallory", id="alice")),
            (AlreadyExists, lambda: tx.sessions.create(id=session.id)),
            (NotFound, lambda: tx.sessions.create("nobody")),
            (NotFound, lambda: tx.messages.save("nowhere", "user", "x")),
            (NotFound, lambda: tx.tool_logs.log("nowhere", "search")),
            (NotFound, lambda: tx.tasks.start("nothing")),
            (StaleSession, lambda: tx.sessions.update(session.id, title="x", expected_version=9)),
            (IllegalTransition, lambda: tx.sessions.resume(session.id)),
            (
                AlreadyExists,
                lambda: tx.messages.save(
                    session.id, "user", "x", external_id="e", on_duplicate="refuse"
                ),
            ),
        ]:
            with pytest.raises(refused):
                call()
        tx.messages.save(session.id, "user", "after")
    assert contents(store, session) == ["before", "after"]
    assert store.sessions.get(session.id).title == "Test"
    assert store.users.get("alice").name == "Alice"


def test_a_call_outside_a_transaction_that_fails_half_way_leaves_nothing(place):
    clock = Clock()
    with place.open(clock=clock) as store:
        session = store.sessions.create()
        clock.works_for = 0
        with pytest.raises(OSError, match="clock"):
            store.sessions.wait_for_user(session.id, "which?")
        clock.works_for = None
        assert store.sessions.get(session.id) == session
        asked = store.sessions.wait_for_user(session.id, "which one?")
        clock.works_for = 1
        with pytest.raises(OSError, match="clock"):
            store.sessions.answer(session.id, "that one")
        clock.works_for = None
        assert store.sessions.get(session.id) == asked
        assert contents(store, session) == []


def test_a_coroutine_function_is_refused_before_any_of_its_calls_is_lost(store, session):
    async def work(tx):
        await tx.messages.save(session.id, "user", "never")

    for run in (store.run, store.read, lambda work: store.run(lambda tx: work(tx))):
        with pytest.raises(InvalidInput, match="plain function"):
            run(work)
    assert store.messages.history(session.id) == []


def test_a_function_is_run_in_a_transaction_and_its_result_given_back(store, session):
    def work(tx):
        return [tx.messages.save(session.id, "user", str(n)) for n in range(3)]

    assert store.run(work) == store.messages.history(session.id)
    assert contents(store, session) == ["0", "1", "2"]


def test_a_function_that_raises_leaves_nothing(store, session):
    def work(tx):
        tx.messages.save(session.id, "user", "hello")
        tx.users.create("Alice")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        store.run(work)
    assert contents(store, session) == []
    assert store.users.list().items == ()


def test_a_function_that_reads_sees_one_moment_and_holds_up_nobody(place, store, session):
    store.messages.save(session.id, "user", "before the rain")

    def work(tx):
        found = contents(tx, session)
        with place.open() as other:
            other.messages.save(session.id, "user", "rain")
        return found, contents(tx, session), len(tx.messages.search("rain").items)

    once = ["before the rain"]
    assert store.read(work) == (once, once, 1)
    assert contents(store, session) == [*once, "rain"]


def test_a_function_that_reads_cannot_write(store):
    owner = store.users.create("Alice")
    for of in (store, store.scoped(owner.id)):
        session = of.sessions.create()

        def work(tx, session=session):
            with pytest.raises(TransactionMisuse, match=r"run\(\) or transaction\(\)"):
                tx.messages.save(session.id, "user", "hello")
            return tx.sessions.get(session.id)

        assert of.read(work) == session
        assert contents(of, session) == []


def test_a_scope_reads_one_s_own_alone(store):
    users = [store.users.create(name).id for name in ("Alice", "Bob")]
    for user in users:
        store.sessions.create(user, title=user)
    for user in users:
        assert store.scoped(user).read(lambda tx: [s.title for s in tx.sessions.list()]) == [user]


def test_the_store_is_not_to_be_called_inside_its_own_transaction(engine_url):
    with Store(engine_url) as store:
        session = store.sessions.create()
        calls = (
            lambda: store.messages.save(session.id, "user", "x"),
            lambda: store.messages.history(session.id),
            lambda: store.run(lambda _: None),
            lambda: store.transaction().__enter__(),
        )

        def check(tx):
            tx.messages.save(session.id, "user", "before")
            for call in calls:
                with pytest.raises(TransactionMisuse, match=r"with store\.transaction\(\) as tx"):
                    call()
            tx.messages.save(session.id, "user", "after")

        with store.transaction() as tx:
            check(tx)
        store.run(check)
        assert contents(store, session) == ["before", "after"] * 2

        def check_reading(_):
            for call in calls:
                with pytest.raises(TransactionMisuse, match=r"with store\.transaction\(\) as tx"):
                    call()

        store.read(check_reading)


def test_a_coroutine_is_not_to_call_the_store_inside_its_own_transaction(engine_url):
    async def main(store):
        session = await store.sessions.create()
        async with store.transaction() as tx:
            await tx.messages.save(session.id, "user", "before")
            for call in (
                store.messages.save(session.id, "user", "x"),
                store.messages.history(session.id),
                store.run(lambda _: None),
                asyncio.create_task(store.users.list()),
                store.transaction().__aenter__(),
            ):
                with pytest.raises(TransactionMisuse, match=r"with store\.transaction\(\) as tx"):
                    await call
            await tx.messages.save(session.id, "user", "after")
        history = await store.messages.history(session.id)
        assert [message.content for message in history] == ["before", "after"]

    asynchronously(engine_url, main)


def test_another_thread_may_call_the_store_while_a_transaction_is_open(store, session):
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as tx:
            tx.messages.save(session.id, "user", "inside")
            other = store.sessions  # on SQLite it waits for its turn, on PostgreSQL it does not
            made = pool.submit(other.create, title="outside")
        assert made.result().title == "outside"
    assert store.sessions.count() == 2


def test_a_transaction_that_has_ended_takes_no_more_calls(store, session):
    with store.transaction() as committed:
        committed.messages.save(session.id, "user", "hello")
    with pytest.raises(RuntimeError), store.transaction() as rolled_back:
        raise RuntimeError
    ended = [committed, rolled_back]
    store.run(ended.append)
    for tx in ended:
        for call in (
            lambda tx=tx: tx.messages.save(session.id, "user", "late"),
            lambda tx=tx: tx.messages.history(session.id),
            lambda tx=tx: tx.usage.totals(),
        ):
            with pytest.raises(TransactionMisuse, match=r"Begin another"):
                call()
    assert contents(store, session) == ["hello"]


def test_threads_with_a_transaction_each_lose_nothing(store):
    sessions = [store.sessions.create() for _ in range(2)]

    def work(n):
        with store.transaction() as tx:
            # In one order for all, as whoever locks two things should.
            for session in sessions:
                tx.messages.save(session.id, "user", str(n), token_count=n)
            if n % 3 == 0:
                tx.users.create(str(n))
                return
            raise LookupError

    def attempt(n):
        try:
            work(n)
        except LookupError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(24))) == 8
    for session in sessions:
        assert sorted(map(int, contents(store, session))) == list(range(0, 24, 3))
        assert store.sessions.verify(session.id).agree
    assert contents(store, sessions[0]) == contents(store, sessions[1])
    assert len(store.users.list()) == 8


def test_a_call_that_comes_as_the_transaction_ends_is_in_it_or_refused(engine_url):
    with Store(engine_url) as store:
        session = store.sessions.create()
        expected = 0

        def hammer(tx):
            done = 0
            while True:
                try:
                    tx.messages.save(session.id, "user", "hammered")
                except TransactionMisuse:
                    return done
                done += 1

        with ThreadPoolExecutor(3) as pool:
            for _ in range(10):
                with store.transaction() as tx:
                    hammering = [pool.submit(hammer, tx) for _ in range(3)]
                    tx.messages.save(session.id, "user", "own")
                expected += 1 + sum(each.result() for each in hammering)
                counters = store.sessions.verify(session.id)
                assert counters.agree
                assert counters.counted[0] == expected


def test_a_transaction_that_is_cancelled_while_it_begins_holds_nothing(engine_url):
    async def main(store):
        session = await store.sessions.create()
        loop, beginning = asyncio.get_running_loop(), asyncio.Event()

        async def work():
            async with store.transaction() as tx:
                await tx.messages.save(session.id, "user", "hello")

        def notice(*_):
            loop.call_soon_threadsafe(beginning.set)

        blocker = create_engine(engine_url).connect()
        if engine_url.startswith("sqlite"):
            blocker.exec_driver_sql("BEGIN IMMEDIATE")  # so that others wait in theirs
        event.listen(Pool, "checkout", notice)
        try:
            task = asyncio.create_task(work())
            await beginning.wait()
            task.cancel()
            await asyncio.sleep(0)
        finally:
            event.remove(Pool, "checkout", notice)
            blocker.exec_driver_sql("ROLLBACK")
            blocker.close()
            blocker.engine.dispose()
        with pytest.raises(asyncio.CancelledError):
            await task
        saved = await asyncio.wait_for(store.messages.save(session.id, "user", "on"), 10)
        assert await store.messages.history(session.id) == [saved]

    asynchronously(engine_url, main)


def test_times_are_kept_so_that_the_database_can_be_read_by_people(place):
    local = NOON.astimezone()
    with place.open(clock=lambda: local) as store:
        store.users.create("Alice", id="alice")
        engine = create_engine(place.url)
        with engine.connect() as connection:
            [stored] = connection.execute(text("SELECT created_at FROM users")).scalars()
            if place.driver.engine == "sqlite":
                written = "strftime('%Y-%m-%d %H:%M', created_at / 1000000.0, 'unixepoch')"
                shown = connection.execute(text(f"SELECT {written} FROM users")).scalar()  # noqa: S608
                assert shown == "2026-03-29 12:00"
        engine.dispose()
        assert store.users.get("alice").created_at == NOON
    if place.driver.engine == "sqlite":
        assert stored == NOON.timestamp() * 10**6
    else:
        assert stored == NOON
        assert stored.tzinfo is not None
