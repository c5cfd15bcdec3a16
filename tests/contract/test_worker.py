"""Workers: handlers run, leases are renewed, stopping is clean, a kill loses nothing."""

import asyncio
import contextlib
import itertools
import json
import random
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from agentstore import AsyncStore, Store
from agentstore import worker as loop
from agentstore.errors import DatabaseBusy, InvalidInput, JobInterrupted
from agentstore.testing import BlockingStore
from agentstore.values.redaction import Secrets
from agentstore.values.validation import Backoff
from agentstore.worker import AsyncWorker, DoNotRetry, Worker
from tests.conftest import on_a_server
from tests.drivers import FULL
from tests.programs.forking import Forked
from tests.programs.probes import connect, engine_of

SOON = 20.0
"""Seconds in which what is to happen at once has certainly happened."""

AT_ONCE = Backoff(first=0, longest=0)


class Running:
    """A worker of either kind, in the background."""

    def __init__(self, store, handlers, **options):
        self._pool = ThreadPoolExecutor(1)
        if isinstance(store, BlockingStore):
            handlers = {kind: in_a_thread(handler) for kind, handler in handlers.items()}
            self.worker = AsyncWorker(store.store, handlers, **options)
            self._ended = self._pool.submit(lambda: store._loop.run(self.worker.run()))
        else:
            self.worker = Worker(store, handlers, **options)
            self._ended = self._pool.submit(self.worker.run)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        while not self._ended.done():
            self.worker.stop()
            with contextlib.suppress(TimeoutError):
                self._ended.result(0.2)
        self._pool.shutdown()
        self._ended.result()

    def ended(self):
        return self._ended.result(SOON)


def in_a_thread(handler):
    """Make a coroutine function of a handler that may wait."""

    async def run(job):
        return await asyncio.to_thread(handler, job)

    return run


def run_until_idle(store, handlers, **options):
    if isinstance(store, BlockingStore):
        handlers = {kind: in_a_thread(handler) for kind, handler in handlers.items()}
        worker = AsyncWorker(store.store, handlers, **options)
        store._loop.run(worker.run(until_idle=True))
    else:
        Worker(store, handlers, **options).run(until_idle=True)


def until(condition):
    """Wait for something that another thread brings about."""
    ticks = threading.Event()
    for _ in range(int(SOON / 0.01)):
        if found := condition():
            return found
        ticks.wait(0.01)
    raise AssertionError("it has not come about")


def test_a_worker_does_what_there_is_in_order_and_keeps_the_results(store):
    created = [store.tasks.create(None, "double", n, priority=n % 2) for n in range(6)]
    store.tasks.create(None, "unknown")
    seen = []

    def double(job):
        seen.append(job.payload)
        return {"is": job.payload * 2}

    run_until_idle(store, {"double": double})
    assert seen == [1, 3, 5, 0, 2, 4]
    assert [store.tasks.get(t.id).result for t in created] == [{"is": 2 * n} for n in range(6)]
    assert len(store.tasks.list(status="pending")) == 1


def test_a_worker_does_no_more_at_once_than_it_may(store):
    for _ in range(7):
        store.tasks.create(None, "work")
    together = threading.Barrier(3)
    running, most = [], []

    def work(job):
        running.append(job)
        most.append(len(running))
        if len(most) <= 6:
            together.wait(SOON)
        running.remove(job)

    run_until_idle(store, {"work": work}, concurrency=3)
    assert max(most) == 3


def test_a_handler_that_raises_makes_the_attempt_fail_with_what_it_said(store):
    secret = "sk-" + "a" * 30
    again = store.tasks.create(None, "again", max_retries=2)
    never = store.tasks.create(None, "never", max_retries=2)
    odd = store.tasks.create(None, "odd")
    attempts = []

    def fails(job):
        attempts.append(job.task.attempts)
        raise ValueError(f"no {secret}")

    def gives_up(job):
        raise DoNotRetry("bad payload")

    handlers = {"again": fails, "never": gives_up, "odd": lambda job: {1, 2}}
    run_until_idle(store, handlers, backoff=AT_ONCE)
    assert attempts == [1, 2, 3]
    found = [store.tasks.get(task.id) for task in (again, never, odd)]
    assert [(t.status, t.failures) for t in found] == [("dead", 3), ("failed", 1), ("dead", 1)]
    assert found[0].error == "ValueError: no [redacted]"
    assert found[1].error == "DoNotRetry: bad payload"
    assert found[2].error.startswith("InvalidJson: result")


def test_a_thread_that_wants_to_leave_the_program_fails_its_task_only(engine_url):
    def leaves(job):
        raise SystemExit(3)

    with Store(engine_url) as store:
        task = store.tasks.create(None, "work")
        run_until_idle(store, {"work": leaves})
        found = store.tasks.get(task.id)
        assert (found.status, found.error) == ("dead", "SystemExit: 3")


def test_an_error_that_may_not_be_kept_leaves_its_type(place):
    with place.open(secrets=Secrets(on_tool_logs="refuse")) as store:
        task = store.tasks.create(None, "work")

        def fails(job):
            raise ValueError("sk-" + "a" * 30)

        run_until_idle(store, {"work": fails})
        assert store.tasks.get(task.id).error == "ValueError"


def test_a_worker_that_waits_is_called_and_does_not_poll(store):
    done = threading.Event()
    with Running(store, {"work": lambda job: done.set()}, poll=3600.0):
        for n in range(10):
            done.clear()
            with store.transaction() as tx:
                tx.tasks.create(None, "work", n)
            assert done.wait(SOON), "nobody called"


def test_a_worker_that_waits_takes_a_task_when_it_becomes_due(store):
    done = threading.Event()
    with Running(store, {"work": lambda job: done.set()}, poll=3600.0):
        now = store.tasks.create(None, "other").created_at
        store.tasks.create(None, "work", run_at=now + timedelta(seconds=0.3))
        assert done.wait(SOON), "it slept over the task"


def test_a_lease_is_renewed_as_long_as_the_handler_runs(store):
    task = store.tasks.create(None, "work")
    go_on = threading.Event()
    with Running(store, {"work": lambda job: go_on.wait(SOON)}, lease=0.3, poll=0.1):
        first = until(lambda: store.tasks.get(task.id).lease_expires_at)
        until(lambda: (store.tasks.get(task.id).lease_expires_at - first).total_seconds() > 0.6)
        found = store.tasks.get(task.id)
        assert (found.status, found.attempts) == ("running", 1)
        go_on.set()
        until(lambda: store.tasks.get(task.id).status == "completed")


@pytest.mark.parametrize(
    ("interrupt", "reason", "status"),
    [
        (lambda store, task: store.tasks.cancel(task.id), "cancelled", "cancelled"),
        (lambda store, task: store.tasks.pause(task.id), "lost", "paused"),
    ],
    ids=["cancel", "pause"],
)
def test_a_handler_hears_that_it_is_to_stop(store, interrupt, reason, status):
    task = store.tasks.create(None, "work")
    reasons = []

    def work(job):
        try:
            until(lambda: job.check())
        except JobInterrupted as error:
            reasons.append(error.reason)
            raise

    with Running(store, {"work": work}, lease=0.3):
        until(lambda: store.tasks.get(task.id).status == "running")
        interrupt(store, task)
        until(lambda: store.tasks.get(task.id).status == status)
        until(lambda: reasons == [reason])
    assert store.tasks.get(task.id).status == status


def test_a_coroutine_that_is_to_stop_is_cancelled(place):
    if not place.driver.asynchronous:
        place.driver = type(place.driver)(
            place.driver.name, place.driver.engine, asynchronous=True, url=place.driver.url
        )
    with place.open() as store:
        task = store.tasks.create(None, "work")
        began, stopped = threading.Event(), []

        async def work(job):
            began.set()
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                stopped.append(job.interruption)
                raise

        worker = AsyncWorker(store.store, {"work": work}, lease=0.3, grace=0.1)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(lambda: store._loop.run(worker.run()))
            assert began.wait(SOON)
            store.tasks.cancel(task.id)
            until(lambda: store.tasks.get(task.id).status == "cancelled")
            began.clear()
            other = store.tasks.create(None, "work")
            assert began.wait(SOON)
            worker.stop()
            ended.result(SOON)
        found = store.tasks.get(other.id)
        assert (found.status, found.failures) == ("pending", 0)
        assert stopped == ["cancelled", "stopping"]


def test_a_worker_that_is_stopped_before_it_runs_stops_at_once_and_can_run_again(store):
    task = store.tasks.create(None, "work")
    if isinstance(store, BlockingStore):
        worker = AsyncWorker(store.store, {"work": in_a_thread(lambda job: "done")})
    else:
        worker = Worker(store, {"work": lambda job: "done"})

    def run(**options):
        running = worker.run(**options)
        return store._loop.run(running) if isinstance(store, BlockingStore) else running

    worker.stop()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(SOON)
    assert store.tasks.get(task.id).status == "pending"
    run(until_idle=True)
    assert store.tasks.get(task.id).status == "completed"


def test_what_runs_when_a_worker_stops_may_finish(store):
    task = store.tasks.create(None, "work")
    waiting = store.tasks.create(None, "work")
    began, go_on = threading.Event(), threading.Event()

    def work(job):
        began.set()
        assert go_on.wait(SOON)

    running = Running(store, {"work": work}, grace=SOON)
    assert began.wait(SOON)
    running.worker.stop()
    go_on.set()
    running.ended()
    running.stop()
    assert store.tasks.get(task.id).status == "completed"
    assert store.tasks.get(waiting.id).status == "pending"


def test_what_does_not_finish_in_time_is_given_back(store):
    task = store.tasks.create(None, "work")
    began, go_on = threading.Event(), threading.Event()

    def work(job):
        began.set()
        assert go_on.wait(SOON)

    running = Running(store, {"work": work}, grace=0.05)
    assert began.wait(SOON)
    running.worker.stop()
    running.ended()
    found = store.tasks.get(task.id)
    assert (found.status, found.failures, found.worker) == ("pending", 0, None)
    go_on.set()
    running.stop()


@pytest.mark.parametrize("grace", [0, SOON])
@pytest.mark.parametrize("end", ["stop", "cancel"])
def test_a_worker_that_ends_at_any_step_leaves_no_task_running(engine_url, end, grace):
    async def work(job):
        await asyncio.sleep(0.002)

    async def ended_after(store, steps):
        for _ in range(3):
            await store.tasks.create(None, "work", queue=f"{steps}")
        worker = AsyncWorker(store, {"work": work}, queues=f"{steps}", concurrency=2, grace=grace)
        running = asyncio.create_task(worker.run())
        for _ in range(steps):
            await asyncio.sleep(0)
        getattr(*{"stop": (worker, "stop"), "cancel": (running, "cancel")}[end])()
        await asyncio.wait([running], timeout=SOON)
        assert running.done()
        assert running.cancelled() == (end == "cancel")
        return [task async for task in store.tasks.iter(queue=f"{steps}")]

    async def go():
        async with AsyncStore(engine_url) as store:
            return [task for steps in range(25) for task in await ended_after(store, steps)]

    found = asyncio.run(go())
    assert {task.status for task in found} <= {"pending", "completed"}
    assert {task.failures for task in found} == {0}


def test_a_loop_that_ends_gives_back_what_its_worker_has_not_done(engine_url):
    async def ended_after(store, steps):
        task = await store.tasks.create(None, "work", queue=f"{steps}")
        began = asyncio.Event()

        async def work(job):
            began.set()
            if steps == 0:
                await asyncio.sleep(SOON)

        worker = AsyncWorker(store, {"work": work}, queues=f"{steps}")
        before = asyncio.all_tasks()
        running = asyncio.create_task(worker.run())
        await began.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        for each in left:  # as asyncio.run() does when its coroutine has returned
            each.cancel()
        await asyncio.wait({running, *left}, timeout=SOON)
        return await store.tasks.get(task.id)

    async def go():
        async with AsyncStore(engine_url) as store:
            return [await ended_after(store, steps) for steps in range(20)]

    first, *others = asyncio.run(go())
    assert (first.status, first.failures) == ("pending", 0)
    assert {(task.status, task.failures) for task in others} <= {("pending", 0), ("completed", 0)}


def test_a_loop_that_ends_lets_a_completion_be_tried_again(engine_url):
    class Busy:
        def __init__(self, tasks):
            self.tasks, self.refused = tasks, asyncio.Event()

        def __getattr__(self, name):
            return getattr(self.tasks, name)

        async def complete(self, *args, **more):
            if not self.refused.is_set():
                self.refused.set()
                raise DatabaseBusy("Somebody else writes.")
            return await self.tasks.complete(*args, **more)

    async def work(job):
        return "done"

    async def go():
        async with AsyncStore(engine_url) as store:
            task = await store.tasks.create(None, "work")
            before = asyncio.all_tasks()
            busy = Busy(store.tasks)
            running = asyncio.create_task(
                AsyncWorker(SimpleNamespace(tasks=busy), {"work": work}).run()
            )
            await busy.refused.wait()
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - before
            for each in left:
                each.cancel()
            await asyncio.wait({running, *left}, timeout=SOON)
            return await store.tasks.get(task.id)

    found = asyncio.run(go())
    assert (found.status, found.result) == ("completed", "done")


def test_a_handler_that_somebody_else_cancels_has_failed(engine_url):
    async def work(job):
        asyncio.current_task().cancel()
        await asyncio.sleep(SOON)

    async def go():
        async with AsyncStore(engine_url) as store:
            task = await store.tasks.create(None, "work", max_retries=1)
            worker = AsyncWorker(store, {"work": work}, backoff=AT_ONCE)
            await asyncio.wait_for(worker.run(until_idle=True), SOON)
            return await store.tasks.get(task.id)

    found = asyncio.run(go())
    assert (found.status, found.attempts, found.failures) == ("dead", 2, 2)


def test_a_worker_that_runs_is_not_stopped_by_the_end_of_a_second_run(engine_url):
    async def go():
        done = asyncio.Event()

        async def work(job):
            done.set()

        async with AsyncStore(engine_url) as store:
            worker = AsyncWorker(store, {"work": work}, poll=0.05)
            first = asyncio.create_task(worker.run())
            await asyncio.sleep(0)
            second = asyncio.create_task(worker.run())
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(InvalidInput, match="running already"):
                await second
            await store.tasks.create(None, "work")
            await asyncio.wait_for(done.wait(), SOON)
            worker.stop()
            await first

    asyncio.run(go())


def test_a_worker_rescues_what_another_one_abandoned(store):
    task = store.tasks.create(None, "work", max_retries=1)
    store.tasks.claim("dead", lease=0.05)
    with Running(store, {"work": lambda job: job.task.fence}, lease=0.2, backoff=AT_ONCE):
        done = until(lambda: store.tasks.find(task.id).status == "completed")
    assert done
    found = store.tasks.get(task.id)
    assert (found.result, found.attempts, found.failures) == (2, 2, 1)


def test_a_worker_survives_a_database_that_fails_for_a_while(store, monkeypatch):
    done = threading.Event()
    running = Running(store, {"work": lambda job: done.set()}, poll=0.05)
    real, failures = running.worker._call, []
    monkeypatch.setattr(loop, "_LONGEST_PAUSE", 0.01)

    def failing(method, *args, **kwargs):
        if len(failures) < 3:
            failures.append(method)
            raise DatabaseBusy("Somebody else writes.")
        return real(method, *args, **kwargs)

    with running:
        monkeypatch.setattr(running.worker, "_call", failing)
        task = store.tasks.create(None, "work")
        assert done.wait(SOON)
        until(lambda: store.tasks.get(task.id).status == "completed")
    assert len(failures) == 3


@on_a_server
def test_a_worker_whose_listening_connection_broke_listens_again(place):
    done = threading.Event()
    with (
        place.open() as store,
        Running(store, {"work": lambda job: done.set()}, poll=0.2),
        connect(place.url) as admin,
    ):
        query = (
            "SELECT pid, pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        )
        (first,) = until(lambda: admin.execute(query).fetchall())
        (again,) = until(lambda: admin.execute(query).fetchall())
        assert first != again
        store.tasks.create(None, "work")
        assert done.wait(SOON)


def test_two_workers_never_run_two_tasks_of_a_session_that_ask_to_be_alone(store):
    session = store.sessions.create()
    running = []

    def work(job):
        running.append(job)
        assert len(running) == 1
        running.remove(job)

    created = [store.tasks.create(session.id, "work", alone_in_session=True).id for _ in range(20)]
    with (
        Running(store, {"work": work}, concurrency=3),
        Running(store, {"work": work}, concurrency=3),
    ):
        until(lambda: len(store.tasks.list(status="completed")) == len(created))


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0}, {"concurrency": 1001}, {"concurrency": True}, {"lease": 0},
        {"lease": 1e9}, {"grace": -1}, {"poll": 0}, {"backoff": 5}, {"concurrency": 1.5},
        {"concurrency": "2"}, {"lease": "60s"}, {"lease": timedelta(seconds=60)}, {"grace": None},
        {"lease": True}, {"poll": True},
        {"queues": []}, {"queues": ""}, {"queues": 5}, {"name": 5}, {"handlers": 5},
        {"handlers": [print]}, {"handlers": {5: print}}, {"handlers": {"": print}},
    ],
)  # fmt: skip
def test_a_worker_that_cannot_work_is_refused(options):
    (name,) = options
    with Store("sqlite://") as store, pytest.raises(InvalidInput, match=f"{name}|kind"):
        Worker(store, **{"handlers": {"work": print}} | options)


@pytest.mark.parametrize("queues", ["a", ["a"], ("a",), {"a"}, {"a": 1}.keys(), iter(["a"])])
def test_a_worker_takes_its_queues_in_whatever_they_come(queues):
    with Store("sqlite://") as store:
        done = []
        store.tasks.create(None, "work", queue="a")
        Worker(store, {"work": done.append}, queues=queues, name="").run(until_idle=True)
        assert len(done) == 1


def test_a_worker_takes_what_has_the_methods_of_a_store(engine_url):
    with BlockingStore(lambda: AsyncStore(engine_url)) as store:
        done = []
        store.tasks.create(None, "work")
        Worker(store, {"work": done.append}).run(until_idle=True)
        assert len(done) == 1


def test_a_worker_with_a_store_of_another_kind_is_refused():
    async def handler(job): ...

    with Store("sqlite://") as store:
        for other in (None, store.scoped("ann"), AsyncStore("sqlite://")):
            with pytest.raises(InvalidInput, match="a Worker needs a Store"):
                Worker(other, {"work": print})
        with pytest.raises(InvalidInput, match="an AsyncWorker an AsyncStore"):
            AsyncWorker(store, {"work": handler})


def test_a_worker_without_handlers_or_with_wrong_ones_is_refused():
    with Store("sqlite://") as store:
        with pytest.raises(InvalidInput, match="must have a handler"):
            Worker(store).run()
        with pytest.raises(InvalidInput, match="takes a Job"):
            Worker(store, {"work": "print"})
        with pytest.raises(InvalidInput, match="coroutine function"):
            AsyncWorker(store, {"work": print})
        with pytest.raises(InvalidInput, match="use an AsyncWorker"):
            Worker(store, {"work": asyncio.sleep})


def test_a_worker_works_on_a_database_in_memory():
    done = threading.Event()
    with Store("sqlite://") as store, Running(store, {"work": lambda job: done.set()}):
        task = store.tasks.create(None, "work")
        assert done.wait(SOON)
        until(lambda: store.tasks.get(task.id).status == "completed")


class Process:
    """A process that runs ``tests.programs.worker_tasks``."""

    def __init__(self, mode, url, **arguments):
        self._process = Forked("worker_tasks", mode, url, arguments)

    def line(self):
        """Wait for what it says next; None at its end."""
        said = self._process.line()
        return json.loads(said) if said else None

    def send(self, number):
        self._process.send(number)

    def go_on(self):
        self._process.say("")

    def kill(self):
        """Kill it outright, and give what it had still said."""
        return [json.loads(line) for line in self._process.kill()]

    def stop(self):
        """Let its input end, and so the workers in it."""
        self._process.stdin.close()

    def wait(self):
        return self._process.ended_with()


@pytest.mark.long(but=["sqlite-SIGINT", "postgresql-*-SIGTERM"])
@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_lets_the_running_task_finish_and_ends_the_process(engine_url, number):
    with Store(engine_url) as store:
        task, waiting = (store.tasks.create(None, "slow") for _ in range(2))
        process = Process("one", engine_url, grace=60, ends=True)
        assert process.line() == ["began", task.id]
        process.send(number)
        process.go_on()
        assert process.line() == ["ended"]
        assert process.wait() == 0
        assert store.tasks.get(task.id).result == "finished"
        assert store.tasks.get(waiting.id).status == "pending"
        process.kill()


@pytest.mark.crash
def test_a_signal_gives_back_what_does_not_finish_in_time(engine_url):
    with Store(engine_url) as store:
        task = store.tasks.create(None, "slow")
        process = Process("one", engine_url, grace=0.1, ends=False)
        assert process.line() == ["began", task.id]
        process.send(signal.SIGTERM)
        assert process.line() == ["ended"]
        assert process.wait() == 0
        found = store.tasks.get(task.id)
        assert (found.status, found.failures, found.attempts) == ("pending", 0, 1)
        process.kill()


AUDIT = {
    "sqlite": [
        "CREATE TABLE audit (task text, fence integer, result text)",
        "CREATE TRIGGER audited AFTER UPDATE OF status ON tasks WHEN NEW.status = 'completed' "
        "BEGIN INSERT INTO audit VALUES (NEW.id, NEW.fence, NEW.result); END",
    ],
    "postgresql": [
        "CREATE TABLE audit (task text, fence bigint, result text)",
        "CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit "
        "VALUES (NEW.id, NEW.fence, NEW.result); RETURN NEW; END $$",
        "CREATE TRIGGER audited AFTER UPDATE OF status ON tasks FOR EACH ROW "
        "WHEN (NEW.status = 'completed') EXECUTE FUNCTION audited()",
    ],
}
"""The database itself writes down every completion, whoever makes it."""


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_sixteen_workers_that_are_killed_at_random_complete_every_task_once(engine_url):
    count = 20_000 if FULL else 300
    rng = random.Random(0)  # noqa: S311 - the points at which to kill
    with Store(engine_url, synchronous="NORMAL") as store:
        engine = engine_of(store)
        with engine.begin() as connection:
            for statement in AUDIT[engine.dialect.name]:
                connection.execute(text(statement))
        for start in range(0, count, 100):
            with store.transaction() as tx:
                for n in range(start, start + 100):
                    tx.tasks.create(None, "count", n, priority=n % 3, max_retries=1_000)

        def one_place(seed):
            """Keep one of four processes alive, by replacing it whenever it was killed."""
            said = []
            for lines in (*points[seed], None):
                process = Process("swarm", engine_url, lease=1.0, workers=4)
                living.append(process)
                if left.is_set():
                    process.stop()
                said += itertools.islice(iter(process.line, None), lines)
                if left.is_set() or lines is None:
                    said += iter(process.line, None)
                    assert process.wait() == 0
                    break
                said += process.kill()
            return said

        points = [
            [rng.randint(20, count // 12) for _ in range(rng.randint(1, 2))] for _ in range(4)
        ]
        left, living = threading.Event(), []
        with ThreadPoolExecutor(4) as pool:
            places = [pool.submit(one_place, seed) for seed in range(4)]
            ticks = threading.Event()
            while not left.is_set():
                with engine.connect() as connection:
                    done = connection.scalar(text("SELECT count(*) FROM audit"))
                if done >= count or any(p.done() and p.exception() for p in places):
                    left.set()
                    for process in list(living):
                        process.stop()
                ticks.wait(0.05)
            said = [line for place in places for line in place.result()]
        with engine.connect() as connection:
            audit = connection.execute(text("SELECT task, fence, result FROM audit")).all()
            statuses = Counter(connection.execute(text("SELECT status FROM tasks")).scalars())
            attempts = connection.scalar(text("SELECT sum(attempts) FROM tasks"))
    assert statuses == {"completed": count}
    assert len(audit) == count
    assert len({row.task for row in audit}) == count
    # What is stored is what the holder of that very fence wrote.
    assert all(json.loads(row.result)["fence"] == row.fence for row in audit)
    kinds = Counter(line[0] for line in said)
    assert kinds["accepted"] == 0
    assert kinds["refused"] > 0, "no stale completion was tried"
    assert attempts > count, "nobody was killed in the middle of a task"
