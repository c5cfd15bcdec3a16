"""Tasks may be cancelled at any moment: what they did is done or undone as a whole, then."""

import asyncio
import functools
import gc
import itertools
import json
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agentstore import AsyncStore, Store
from agentstore.errors import AgentStoreError, DatabaseBusy, NotFound, TransactionMisuse
from agentstore.execution.async_runners import ThreadRunner, _Threads
from tests.conftest import FULL, VERSIONS, Servers
from tests.programs.probes import checked_out, connect, engine_of, spin

FILE, AIOSQLITE_FILE = "sqlite:///{}/test.db", "sqlite+aiosqlite:///{}/test.db"
MEMORY, AIOSQLITE_MEMORY = "sqlite://", "sqlite+aiosqlite://"
POSTGRESQL = "postgresql"


@pytest.fixture(scope="module")
def postgresql(servers: Servers) -> str:
    return servers.new_database(VERSIONS[0])


@pytest.fixture(params=[FILE, MEMORY, AIOSQLITE_FILE, AIOSQLITE_MEMORY, POSTGRESQL])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database by each way in which an asynchronous store can run."""
    if request.param == POSTGRESQL:
        return str(request.getfixturevalue("postgresql"))
    return str(request.param.format(tmp_path))


@pytest.fixture(params=[FILE, AIOSQLITE_FILE])
def file_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param.format(tmp_path))


@pytest.fixture(params=[FILE, AIOSQLITE_FILE, POSTGRESQL])
def kept_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that other stores can open as well."""
    if request.param == POSTGRESQL:
        return str(request.getfixturevalue("postgresql"))
    return str(request.param.format(tmp_path))


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own, in which no task may fail unheard."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        unheard: list[dict[str, Any]] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: unheard.append(context))
            await test(**fixtures)
            gc.collect(1)
            await asyncio.sleep(0)

        asyncio.run(main())
        assert unheard == []

    return run


async def contents(store: AsyncStore, session_id: str) -> list[Any]:
    """Give the texts of a session, having looked whether numbers and counters are right."""
    history = await store.messages.history(session_id, None)
    counters = await store.sessions.verify(session_id)
    assert counters.agree
    assert counters.stored[0] == len(history)
    seqs = [message.seq for message in history]
    assert seqs == list(range(1, len(history) + 1))
    return [message.content for message in history]


async def still_works(store: AsyncStore, session_id: str) -> None:
    """Look whether a write, a read and a transaction still get a connection, and give it back."""
    async with asyncio.timeout(20):
        before = len(await contents(store, session_id))
        await store.messages.save(session_id, "user", "still")
        async with store.transaction() as tx:
            await tx.messages.save(session_id, "user", "works")
        assert (await contents(store, session_id))[before:] == ["still", "works"]
    assert checked_out(store) == 0


async def end_of(*tasks: asyncio.Task[Any]) -> list[Any]:
    """Wait for tasks and give what each returned or raised."""
    return list(await asyncio.gather(*tasks, return_exceptions=True))


async def transact(store: AsyncStore, session_id: str) -> None:
    async with store.transaction() as tx:
        await tx.messages.save(session_id, "user", "1 of 2")
        await tx.messages.save(session_id, "user", "2 of 2")


WAYS: dict[str, Callable[[AsyncStore, str], Coroutine[Any, Any, Any]]] = {
    "save": lambda store, id: store.messages.save(id, "user", "1 of 1"),
    "save_many": lambda store, id: store.messages.save_many(
        id, [{"role": "user", "content": "1 of 2"}, {"role": "user", "content": "2 of 2"}]
    ),
    "transaction": transact,
    "run": lambda store, id: store.run(
        lambda tx: [tx.messages.save(id, "user", f"{n} of 2") for n in (1, 2)]
    ),
    "history": lambda store, id: store.messages.history(id),
}


def whole(texts: list[Any]) -> bool:
    """Say whether of no unit only a part is there."""
    return texts.count("1 of 2") == texts.count("2 of 2")


@asynccontextmanager
async def holding(store: AsyncStore, session_id: str) -> AsyncIterator[None]:
    """Have another task hold a transaction that has written to the session."""
    begun, end = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with store.transaction() as tx:
            await tx.messages.save(session_id, "user", "held")
            begun.set()
            await end.wait()

    task = asyncio.create_task(hold())
    await begun.wait()
    yield
    end.set()
    await task


@contextmanager
def locked(url: str) -> Iterator[Callable[[], None]]:
    """Hold the write lock of a SQLite file by a connection of one's own, until told to let go."""
    connection = sqlite3.connect(str(make_url(url).database), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection.rollback
    finally:
        connection.close()


# --- Many at once ---------------------------------------------------------------------------------


@in_loop
async def test_64_saves_at_once_get_64_numbers(url):
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        saved = await asyncio.gather(
            *(store.messages.save(session.id, "user", f"{n}") for n in range(64))
        )
        assert sorted(message.seq for message in saved) == list(range(1, 65))
        assert sorted(await contents(store, session.id)) == sorted(f"{n}" for n in range(64))
        assert checked_out(store) == 0


@in_loop
async def test_first_calls_made_at_once_open_the_database_once(url):
    store = AsyncStore(url)
    sessions = await asyncio.gather(*(store.sessions.create() for _ in range(16)))
    assert len({session.id for session in sessions}) == 16
    await store.close()


@in_loop
async def test_calls_gathered_in_one_transaction_run_one_after_the_other(url):
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        async with store.transaction() as tx:
            saved = await asyncio.gather(
                *(tx.messages.save(session.id, "user", f"{n}") for n in range(10)),
                *(tx.messages.history(session.id) for _ in range(5)),
            )
        assert [message.seq for message in saved[:10]] == list(range(1, 11))
        assert await contents(store, session.id) == [f"{n}" for n in range(10)]
        await still_works(store, session.id)


@in_loop
async def test_a_transaction_that_ends_while_others_still_call_in_it_ends_cleanly(url):
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        for turns in range(0, 12, 1 if FULL else 3):
            with pytest.raises(NotFound):
                async with store.transaction() as tx:
                    calls = [
                        tx.messages.save(session.id, "user", "gone"),
                        tx.messages.save("nowhere", "user", "hello"),
                        *(tx.messages.save(session.id, "user", "gone") for _ in range(4)),
                    ]
                    await asyncio.gather(*calls)
            assert await contents(store, session.id) == []

            before = len(await contents(store, session.id))
            async with store.transaction() as tx:
                late = [
                    asyncio.create_task(tx.messages.save(session.id, "user", "late"))
                    for _ in range(4)
                ]
                await spin(turns)
            results = await end_of(*late)
            done = [r for r in results if not isinstance(r, TransactionMisuse)]
            assert [r.content for r in done] == ["late"] * len(done)
            assert len(await contents(store, session.id)) == before + len(done)
            await store.messages.clear(session.id)
            session = await store.sessions.create()
            assert checked_out(store) == 0
        await still_works(store, session.id)
        if url.startswith("postgresql"):
            with connect(url) as other:
                idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in trans%'"
                assert other.execute(idle).fetchone() == (0,)


# --- Cancelled while waiting ----------------------------------------------------------------------


async def all_wait(url: str, tasks: int) -> None:
    """Wait until so many tasks wait: for the store's turn, or for a lock in the server."""
    await spin()
    if url.startswith("postgresql"):
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with connect(url) as other:
            while other.execute(query).fetchone() != (tasks,):
                await spin()


@pytest.mark.parametrize("turns", [0, 1, None])
@in_loop
async def test_a_task_cancelled_while_it_waits_for_its_turn_leaves_nothing(url, turns):
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        async with holding(store, session.id):
            writes = [way for name, way in WAYS.items() if name != "history"]
            waiting = [asyncio.create_task(way(store, session.id)) for way in writes]
            await (all_wait(url, len(waiting)) if turns is None else spin(turns))
            for task in waiting:
                task.cancel()
            results = await end_of(*waiting)
            assert [type(r) for r in results] == [asyncio.CancelledError] * len(writes)
        assert await contents(store, session.id) == ["held"]
        await still_works(store, session.id)


@in_loop
async def test_a_timeout_while_a_call_waits_for_its_turn_leaves_nothing(url):
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        async with holding(store, session.id):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await store.messages.save(session.id, "user", "too late")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(transact(store, session.id), 0.05)
        assert await contents(store, session.id) == ["held"]
        await still_works(store, session.id)


@pytest.mark.parametrize("way", [name for name in WAYS if name != "history"])
@in_loop
async def test_a_turn_that_does_not_come_in_time_is_an_error(file_url, way):
    async with AsyncStore(file_url, busy_timeout=0.05) as store:
        session = await store.sessions.create()
        async with holding(store, session.id):
            with pytest.raises(DatabaseBusy, match="busy_timeout"):
                await WAYS[way](store, session.id)
        assert await contents(store, session.id) == ["held"]
        await still_works(store, session.id)


@in_loop
async def test_each_of_several_turns_that_do_not_come_in_time_is_an_error(file_url):
    async with AsyncStore(file_url, busy_timeout=0.05) as store:
        session = await store.sessions.create()
        async with holding(store, session.id), asyncio.timeout(20):
            late = []
            for _ in range(3):
                late.append(asyncio.create_task(WAYS["save"](store, session.id)))
                await asyncio.sleep(0.02)
            assert [type(result) for result in await end_of(*late)] == [DatabaseBusy] * 3
        assert await contents(store, session.id) == ["held"]
        await still_works(store, session.id)


# --- Cancelled while running ----------------------------------------------------------------------


@in_loop
async def test_a_task_cancelled_while_it_runs_settles_first(file_url):
    async with AsyncStore(file_url) as store:
        session = await store.sessions.create()
        for way in ("save", "save_many", "run"):
            with locked(file_url) as let_go:
                running = asyncio.create_task(WAYS[way](store, session.id))
                await asyncio.sleep(0.05)  # it may be further or not; it cannot be done
                for _ in range(3):
                    running.cancel()
                    await spin()
                assert not running.done()
                let_go()
                [result] = await end_of(running)
            assert isinstance(result, asyncio.CancelledError)
            assert checked_out(store) == 0
        pair = ["1 of 2", "2 of 2"]
        assert await contents(store, session.id) == ["1 of 1", *pair, *pair]
        await still_works(store, session.id)


@in_loop
async def test_a_task_cancelled_while_its_transaction_begins_gives_the_turn_back(file_url):
    async with AsyncStore(file_url, busy_timeout=10) as store:
        session = await store.sessions.create()
        with locked(file_url) as let_go:
            running = asyncio.create_task(transact(store, session.id))
            await asyncio.sleep(0.05)
            running.cancel()
            await spin()
            let_go()
            # The error is kept, and with it the frames in which a transaction could be forgotten.
            [result] = await end_of(running)
        assert isinstance(result, asyncio.CancelledError)
        assert checked_out(store) == 0
        assert await contents(store, session.id) == []
        await still_works(store, session.id)


@in_loop
async def test_a_task_cancelled_inside_its_transaction_rolls_it_back(url):
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        written = asyncio.Event()

        async def write_and_wait() -> None:
            async with store.transaction() as tx:
                await tx.messages.save(session.id, "user", "gone")
                written.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(write_and_wait())
        await written.wait()
        task.cancel()
        [result] = await end_of(task)
        assert isinstance(result, asyncio.CancelledError)
        assert checked_out(store) == 0
        assert await contents(store, session.id) == []
        await still_works(store, session.id)


MOMENTS = ["begin", "before_cursor_execute", "after_cursor_execute", "commit", "rollback"]


@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_a_task_cancelled_at_any_moment_leaves_all_or_nothing(url, way):
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        loop = asyncio.get_running_loop()
        results: list[Any] = []
        for moment, occurrence in itertools.product(MOMENTS, range(1, 5)):
            task = asyncio.create_task(WAYS[way](store, session.id))
            countdown = [occurrence]

            def cancel(*_: Any, task: Any = task, countdown: list[int] = countdown) -> None:
                countdown[0] -= 1
                if countdown[0] <= 0:  # and again, whenever the moment comes again
                    loop.call_soon_threadsafe(task.cancel)

            event.listen(engine_of(store), moment, cancel)
            results += await end_of(task)
            event.remove(engine_of(store), moment, cancel)
            texts = await contents(store, session.id)
            assert whole(texts)
            done = [r for r in results if not isinstance(r, asyncio.CancelledError)]
            assert not [r for r in done if isinstance(r, BaseException)]
            if way == "history":
                assert texts == []
            else:
                assert len(done) <= texts.count("1 of 1") + texts.count("1 of 2") <= len(results)
            assert checked_out(store) == 0
        assert any(isinstance(r, asyncio.CancelledError) for r in results)
        await still_works(store, session.id)


@asynccontextmanager
async def on_an_engine_of_the_application(url: str) -> AsyncIterator[AsyncStore]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    async with AsyncStore(engine=engine) as store:
        yield store
    await engine.dispose()


async def cancel_at_random(store: AsyncStore, seed: int) -> None:
    """Have many tasks write and read, cancel some; look whether each did all or nothing."""
    rng = random.Random(seed)  # noqa: S311 - which tasks to cancel, and when
    sessions = [(await store.sessions.create()).id for _ in range(3)]
    running: list[tuple[str, str, asyncio.Task[Any]]] = []
    for _ in range(250):
        way, session_id = rng.choice(list(WAYS)), rng.choice(sessions)
        running.append((way, session_id, asyncio.create_task(WAYS[way](store, session_id))))
        await spin(rng.randint(0, 8))
        for _, _, task in rng.sample(running, min(len(running), rng.randint(0, 2))):
            task.cancel()
    results = await end_of(*(task for _, _, task in running))
    failed = [r for r in results if isinstance(r, BaseException)]
    assert {type(error) for error in failed} == {asyncio.CancelledError}
    assert len(failed) < len(results)
    assert checked_out(store) == 0
    for session_id in sessions:
        texts = await contents(store, session_id)
        assert whole(texts)
        units = texts.count("1 of 1") + texts.count("1 of 2")
        mine = [
            isinstance(result, BaseException)
            for (way, where, _), result in zip(running, results, strict=True)
            if where == session_id and way != "history"
        ]
        assert mine.count(False) <= units <= len(mine)
        await still_works(store, session_id)


@pytest.mark.parametrize("seed", range(1, 5 if FULL else 2))
@in_loop
async def test_cancellations_at_random_under_load_leave_all_or_nothing(url, seed):
    async with AsyncStore(url) as store:
        await cancel_at_random(store, seed)


@pytest.mark.parametrize("seed", range(1, 5 if FULL else 2))
@in_loop
async def test_cancellations_leave_an_engine_of_the_application_whole(postgresql, seed):
    async with on_an_engine_of_the_application(postgresql) as store:
        await cancel_at_random(store, seed)


@pytest.mark.parametrize("seed", range(1, 5 if FULL else 2))
@in_loop
async def test_a_loop_whose_tasks_are_all_cancelled_goes_on_saving(url, seed):
    rng = random.Random(seed)  # noqa: S311 - when to cancel
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        for _ in range(10 if FULL else 4):
            names = [name for name in WAYS if name != "history"]
            calls = [WAYS[rng.choice(names)](store, session.id) for _ in range(40)]
            calling = [asyncio.create_task(call) for call in calls]
            await (spin(rng.randint(0, 40)) if rng.random() < 0.7 else asyncio.sleep(0.005))
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            async with asyncio.timeout(30):
                results = await end_of(*calling)
                assert {type(r) for r in results if isinstance(r, BaseException)} <= {
                    asyncio.CancelledError
                }
                assert checked_out(store) == 0
                await asyncio.gather(*(WAYS["save"](store, session.id) for _ in range(64)))
        assert whole(await contents(store, session.id))
        await still_works(store, session.id)


@pytest.mark.long(but=["sqlite*-interrupt", "postgresql-return"])
@pytest.mark.crash
@pytest.mark.parametrize("how", ["return", "interrupt"])
def test_a_loop_that_ends_while_saves_are_in_flight_does_end(kept_url, how):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.programs.endings", kept_url, how, "200" if FULL else "7"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    assert json.loads(ended.stdout)["lost"] == 0
    assert "never retrieved" not in ended.stderr


@in_loop
async def test_opening_a_new_file_can_be_cancelled_at_any_moment(file_url):
    for turns in (0, 1, 2, 4, 8, 20, 50) if FULL else (0, 1, 4, 20):
        url = file_url.replace("test.db", f"{turns}.db")
        store = AsyncStore(url)
        opening = asyncio.create_task(store.open())
        await spin(turns)
        opening.cancel()
        await end_of(opening)
        session = await store.sessions.create()
        await still_works(store, session.id)
        await store.close()


# --- Ends and closings ----------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
@in_loop
async def test_the_end_of_a_transaction_is_not_taken_back_when_cancelled(tmp_path, fails):
    async with AsyncStore(FILE.format(tmp_path), busy_timeout=10) as store:
        session = await store.sessions.create()
        runner = store._unit_runner
        assert isinstance(runner, ThreadRunner)
        go_on, leaving = threading.Event(), asyncio.Event()

        async def write() -> None:
            async with store.transaction() as tx:
                await tx.messages.save(session.id, "user", "hello")
                begun = threading.Event()
                runner.thread.submit(lambda: begun.set() or go_on.wait())
                await asyncio.to_thread(begun.wait)
                leaving.set()  # the end queues up behind what waits there
                if fails:
                    raise LookupError

        task = asyncio.create_task(write())
        await leaving.wait()
        for _ in range(2):
            task.cancel()
            await spin()
        ended = task.done()
        go_on.set()  # before anything can fail, or the thread would wait for ever
        assert not ended
        [result] = await end_of(task)
        assert isinstance(result, asyncio.CancelledError)
        assert checked_out(store) == 0
        assert await contents(store, session.id) == ([] if fails else ["hello"])
        await still_works(store, session.id)


@in_loop
async def test_closing_waits_for_what_runs_and_refuses_the_rest(url):
    if url in (MEMORY, AIOSQLITE_MEMORY):
        url = url + "/file:kept?mode=memory&cache=shared&uri=true"
        keeper = sqlite3.connect("file:kept?mode=memory&cache=shared", uri=True)
    else:
        keeper = None
    for turns in range(0, 60, 12):
        store = AsyncStore(url)
        session = await store.sessions.create()
        saving = [
            asyncio.create_task(store.messages.save(session.id, "user", "hello")) for _ in range(12)
        ]
        await spin(turns)
        await store.close()
        results = await end_of(*saving)
        refused = [r for r in results if isinstance(r, BaseException)]
        assert {type(error) for error in refused} <= {TransactionMisuse}
        assert checked_out(store) == 0
        with pytest.raises(TransactionMisuse, match="closed"):
            await store.messages.save(session.id, "user", "hello")
        with pytest.raises(TransactionMisuse, match="closed"):
            await transact(store, session.id)
        async with AsyncStore(url) as again:
            assert len(await contents(again, session.id)) == len(results) - len(refused)
    if keeper is not None:
        keeper.close()


@in_loop
async def test_closing_waits_for_the_transaction_of_another_task(url):
    store = AsyncStore(url)
    session = await store.sessions.create()
    async with holding(store, session.id):
        closing = asyncio.create_task(store.close())
        await spin()
        assert not closing.done()
        with pytest.raises(TransactionMisuse, match="closed"):
            await store.sessions.count()
    await closing
    assert checked_out(store) == 0
    if url not in (MEMORY, AIOSQLITE_MEMORY):
        async with AsyncStore(url) as again:
            assert await contents(again, session.id) == ["held"]


@in_loop
async def test_a_transaction_that_closing_does_not_wait_for_ends_as_it_would(file_url):
    store = AsyncStore(file_url, busy_timeout=0.05)
    session = await store.sessions.create()
    async with holding(store, session.id):
        await store.close()
    assert checked_out(store) == 0
    async with AsyncStore(file_url) as again:
        assert await contents(again, session.id) == ["held"]


@in_loop
async def test_a_store_is_not_closed_inside_its_own_transaction(url):
    async with AsyncStore(url) as store:
        session = await store.sessions.create()
        with pytest.raises(TransactionMisuse, match="own transaction"):
            async with store.transaction():
                await store.close()
        await still_works(store, session.id)


@in_loop
async def test_a_store_that_cannot_be_opened_keeps_nothing(tmp_path):
    (tmp_path / "test.db").write_bytes(b"this is not a database" * 100)
    for url in (FILE, AIOSQLITE_FILE):
        store = AsyncStore(url.format(tmp_path))
        with pytest.raises(AgentStoreError):
            async with store:
                pytest.fail("it was opened")
        assert checked_out(store) == 0
        with pytest.raises(TransactionMisuse, match="closed"):
            await store.open()


# --- Threads --------------------------------------------------------------------------------------


def threads_named(beginning: str) -> int:
    return sum(thread.name.startswith(beginning) for thread in threading.enumerate())


def assert_ended(beginning: str) -> None:
    for thread in threading.enumerate():
        if thread.name.startswith(beginning):
            thread.join(20)
    assert not threads_named(beginning)


@in_loop
async def test_reads_go_beside_each_other_and_a_lone_reader_needs_one_thread(tmp_path):
    async with AsyncStore(FILE.format(tmp_path), pool_size=3) as store:
        for _ in range(20):
            await store.sessions.count()
        assert threads_named("agentstore-read") == 1
        for _ in range(2):
            meeting = threading.Barrier(3)
            met = (store.read(lambda _, meeting=meeting: meeting.wait(20)) for _ in range(3))
            assert sorted(await asyncio.gather(*met)) == [0, 1, 2]
        assert threads_named("agentstore-read") == 3


@in_loop
async def test_a_read_that_is_cancelled_while_no_thread_is_free_is_not_made(tmp_path):
    async with AsyncStore(FILE.format(tmp_path), pool_size=1) as store:
        await store.sessions.count()
        go_on, made = threading.Event(), []
        slow = asyncio.create_task(store.read(lambda _: go_on.wait(20)))
        await spin()
        late = asyncio.create_task(store.read(made.append))
        await spin()
        late.cancel()
        [result] = await end_of(late)
        assert isinstance(result, asyncio.CancelledError)
        assert not slow.done()
        go_on.set()
        assert await slow
        await store.sessions.count()
        assert made == []


def test_an_interrupt_where_one_task_goes_on_keeps_no_answer_from_the_others(tmp_path):
    async def save(number: int) -> int:
        saved = await store.messages.save("s", "user", f"{number}")
        if number == 1:
            raise KeyboardInterrupt
        return saved.seq

    async def begin() -> list[asyncio.Task[int]]:
        await store.sessions.create(id="s")
        async with holding(store, "s"):
            tasks = [asyncio.create_task(save(number)) for number in range(4)]
            await spin()
        return tasks

    async def others_of(tasks: list[asyncio.Task[int]]) -> list[int]:
        async with asyncio.timeout(20):
            return [await task for task in tasks if task is not tasks[1]]

    store = AsyncStore(FILE.format(tmp_path))
    with asyncio.Runner() as runner:
        tasks = runner.run(begin())
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(asyncio.wait(tasks))
        assert runner.run(others_of(tasks)) == [2, 4, 5]
        runner.run(store.close())


def test_the_threads_of_a_store_that_is_forgotten_end(tmp_path):
    async def use() -> None:
        store = AsyncStore(FILE.format(tmp_path))
        session = await store.sessions.create()
        await store.sessions.get(session.id)
        assert threads_named("agentstore")

    asyncio.run(use())
    gc.collect()
    assert_ended("agentstore")


@pytest.mark.crash
def test_a_program_that_ends_waits_for_what_its_threads_do(tmp_path):
    url = FILE.format(tmp_path)
    program = """
import asyncio, sys, threading
from agentstore import AsyncStore, Store

async def begin():
    store = AsyncStore(sys.argv[1])
    await store.sessions.create(id="s")
    begun = threading.Event()

    def work(tx):
        begun.set()
        threading.Event().wait(0.5)
        tx.messages.save("s", "user", "last")

    asyncio.ensure_future(store.run(work))
    await asyncio.to_thread(begun.wait)

asyncio.new_event_loop().run_until_complete(begin())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, url],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]

    with Store(url) as store:
        assert [message.content for message in store.messages.history("s")] == ["last"]


@in_loop
async def test_a_write_for_which_there_is_no_thread_is_made_all_the_same(tmp_path, monkeypatch):
    with Store(FILE.format(tmp_path)) as store:
        session = store.sessions.create()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with AsyncStore(FILE.format(tmp_path), busy_timeout=5) as store:
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refuse)
            with pytest.raises(DatabaseBusy, match="no more threads"):
                _Threads(1, "agentstore-test").submit(int)
            assert not threads_named("agentstore-write")
            await store.messages.save(session.id, "user", "without a thread")
        await store.messages.save(session.id, "user", "with one")
        assert [m.seq for m in await store.messages.history(session.id)] == [1, 2]


@pytest.mark.parametrize("forked", [False, True], ids=["", "in a child"])
def test_all_threads_end_also_one_whose_start_was_interrupted(monkeypatch, forked):
    threads, wait = _Threads(2, "agentstore-test"), threading.Event.wait
    if forked:
        threads.after_fork()

    def interrupt(event: threading.Event, *timeout: float) -> None:
        monkeypatch.undo()
        wait(event, *timeout)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Event, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        threads.submit(int)
    threads.submit(int)
    if forked:  # and forgotten
        del threads
        gc.collect()
    else:
        threads.shutdown()
    assert_ended("agentstore-test")


@in_loop
async def test_a_call_that_was_taken_back_gives_nothing_although_its_task_goes_on(tmp_path):
    async with AsyncStore(FILE.format(tmp_path), pool_size=1) as store:
        await store.sessions.count()
        go_on = threading.Event()
        slow = asyncio.create_task(store.read(lambda _: go_on.wait(20)))
        await spin()
        late = asyncio.create_task(store.read(lambda _: 1))
        await spin()
        late.cancel()
        late.uncancel()
        [result] = await end_of(late)
        assert isinstance(result, asyncio.CancelledError)
        go_on.set()
        assert await slow
