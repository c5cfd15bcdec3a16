"""Calls that arrive together go together; whatever becomes of one, nobody is left waiting."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Self

import pytest

from agentstore.errors import ConnectionLost, DatabaseBusy, DatabaseError, DatabaseFull
from agentstore.execution.gathering import MOST_GROUPS, AsyncGatherer, Gatherer
from agentstore.execution.unit import DEFERRED, Body, GatheredCall, UnitFailure
from agentstore.execution.writer import MOST_TOGETHER, QueuedWrite
from tests.programs.probes import wait_until


class Note:
    """A write of a name; what goes together is kept as one group."""

    groups: ClassVar[list[list[str]]]

    solo = needs_transaction = False

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def write(cls, unit: Any, writes: Sequence[Self], *, solo: bool) -> list[Any]:
        if solo and writes[0].name == "bad":
            raise ValueError("bad")
        if not solo and any(write.name == "bad for all" for write in writes):
            raise ValueError("bad for all")
        done = [write for write in writes if write.name != "bad"]
        cls.groups.append([write.name for write in done])
        return [DEFERRED if write.name == "bad" else write.name for write in writes]


class Notes:
    def __init__(self, unit: Any) -> None:
        self.unit = unit

    def write(self, name: str) -> Body[str]:
        written: str = yield Note(name)
        return written.upper()


def call(name: str) -> GatheredCall:
    made = GatheredCall(Notes.write, Notes, (name,), {})
    unit: Any = None
    made.prepare(unit)
    return made


@pytest.fixture(autouse=True)
def _no_groups() -> None:
    Note.groups = []


class Gate:
    """What a gatherer runs: each unit waits until it is let through."""

    def __init__(self) -> None:
        self.runs = 0
        self.running = 0
        self.most = 0
        self.open = threading.Event()
        self.lock = threading.Lock()
        self.problem: BaseException | None = None

    def run(self, work: Callable[[Any], Any]) -> Any:
        with self.lock:
            self.runs += 1
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            assert self.open.wait(60)
            if self.problem is not None and not isinstance(work, GatheredCall):
                raise self.problem
            return work(None)
        finally:
            with self.lock:
                self.running -= 1


def busy(gatherer: Any) -> int:
    return sum(queue.busy for queue in gatherer._queues.values())


def queued(gatherer: Any) -> int:
    return sum(len(queue.waiting) for queue in gatherer._queues.values())


class Threads:
    """Calls by threads, through a gate that is closed until all of them are there."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.gatherer = Gatherer(self.gate.run)

    def together(self, names: Sequence[str]) -> list[Any]:
        with ThreadPoolExecutor(len(names)) as executor:
            futures = []
            for count, name in enumerate(names, start=1):
                futures.append(executor.submit(self.gatherer.run, call(name)))
                wait_until(lambda count=count: busy(self.gatherer) + queued(self.gatherer) == count)
            self.gate.open.set()
            return [future.exception() or future.result() for future in futures]


def test_no_group_is_larger_than_the_limit():
    threads = Threads()
    names = [f"{n}" for n in range(MOST_GROUPS + MOST_TOGETHER + 30)]
    assert threads.together(names) == names
    assert sorted(map(len, Note.groups))[-2:] == [30, MOST_TOGETHER]


REFUSED = UnitFailure(DatabaseError("refused"), repeatable=False, in_doubt=False)


def of_a_driver(problem: UnitFailure) -> UnitFailure:
    problem.__cause__ = ConnectionError("the driver's")
    return problem


def test_a_group_that_fails_for_any_error_is_run_one_by_one():
    threads = Threads()
    threads.gate.problem = ValueError("odd")
    assert threads.together(list("abcde")) == list("ABCDE")
    assert sorted(Note.groups) == [[name] for name in "abcde"]


@pytest.mark.parametrize(
    "problem",
    [
        REFUSED,
        of_a_driver(UnitFailure(DatabaseBusy("a lock"), repeatable=False, in_doubt=False)),
    ],
    ids=["refused", "no lock in time"],
)
def test_a_group_with_which_the_database_has_trouble_is_run_one_by_one(problem):
    threads = Threads()
    threads.gate.problem = problem
    lone, names = ["a", "b"], ["c", "d", "e"]
    assert len(lone) == MOST_GROUPS
    found = threads.together(lone + names)
    assert [getattr(each, "error", each) for each in found[2:]] == ["C", "D", "E"]
    assert sorted(Note.groups) == [[name] for name in names]
    assert threads.gate.runs == len(lone) + 1 + len(names)


def test_what_the_database_does_to_a_lone_call_is_its_own_and_it_is_not_run_again():
    threads = Threads()
    threads.gate.open.set()
    threads.gate.problem = REFUSED
    with pytest.raises(UnitFailure, match="refused"):
        threads.gatherer.run(call("a"))
    assert threads.gate.runs == 1
    assert busy(threads.gatherer) == 0


@pytest.mark.parametrize(
    "error", [DatabaseBusy("no connection"), DatabaseFull("full")], ids=["pool", "disk"]
)
def test_what_each_of_a_group_would_meet_again_is_met_once(error):
    threads = Threads()
    threads.gate.problem = UnitFailure(error, repeatable=False, in_doubt=False)
    found = threads.together([f"{n}" for n in range(MOST_GROUPS + 5)])
    assert [type(each.error) for each in found] == [type(error)] * len(found)
    assert threads.gate.runs == MOST_GROUPS + 1
    assert Note.groups == []


def test_if_the_thread_that_runs_a_group_is_interrupted_the_others_are_in_doubt():
    threads = Threads()
    threads.gate.problem = KeyboardInterrupt()
    found = threads.together([f"{n}" for n in range(MOST_GROUPS + 4)])
    interrupted, others = found[: MOST_GROUPS + 1], found[MOST_GROUPS + 1 :]
    assert [type(each) for each in interrupted] == [KeyboardInterrupt] * len(interrupted)
    assert [type(each.error) for each in others] == [ConnectionLost] * 3
    assert all(each.in_doubt for each in others)
    assert busy(threads.gatherer) == queued(threads.gatherer) == 0


@pytest.mark.parametrize("victim", range(4))
def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_others_alone(monkeypatch, victim):
    threads = Threads()
    wait = QueuedWrite.wait

    def interrupted(job: QueuedWrite, timeout: float | None) -> bool:
        answer = wait(job, timeout)
        if job.work.args == (f"{MOST_GROUPS + victim}",):  # type: ignore[union-attr]
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(QueuedWrite, "wait", interrupted)
    names = [f"{n}" for n in range(MOST_GROUPS + 4)]
    found = threads.together(names)
    assert isinstance(found.pop(MOST_GROUPS + victim), KeyboardInterrupt)
    names.pop(MOST_GROUPS + victim)
    assert found == names
    assert busy(threads.gatherer) == queued(threads.gatherer) == 0


# --- Tasks ---------------------------------------------------------------------------------------


class Tasks:
    """Calls by tasks; so many units are let through as are told."""

    def __init__(self) -> None:
        self.runs = 0
        self.problem: Exception | None = None
        self.places = asyncio.Semaphore(0)
        self.gatherer = AsyncGatherer(self.run)

    def let_through(self, count: int = 1_000) -> None:
        for _ in range(count):
            self.places.release()

    async def run(self, work: Callable[[Any], Any]) -> Any:
        await self.places.acquire()
        self.runs += 1
        if self.problem is not None and not isinstance(work, GatheredCall):
            raise self.problem
        return work(None)

    async def start(self, names: Sequence[str]) -> list[asyncio.Task[Any]]:
        tasks = [asyncio.create_task(self.gatherer.run(call(name))) for name in names]
        await asyncio.sleep(0)
        return tasks


def test_tasks_that_come_back_together_set_out_together_again():
    async def main() -> None:
        runs: list[int] = []

        async def run(work: Callable[[Any], Any]) -> Any:
            runs.append(1)
            await asyncio.sleep(0.001)
            return work(None)

        gatherer = AsyncGatherer(run)
        callers, calls = 8, 20

        async def caller(number: int) -> None:
            for turn in range(calls):
                await gatherer.run(call(f"{number}.{turn}"))

        await asyncio.gather(*map(caller, range(callers)))
        assert sorted(n for group in Note.groups for n in group) == sorted(
            f"{number}.{turn}" for number in range(callers) for turn in range(calls)
        )
        # The first to come set out alone; from then on nobody does who has company.
        assert len(runs) <= MOST_GROUPS * (calls + 1)
        assert busy(gatherer) == queued(gatherer) == 0

    asyncio.run(main())


def test_a_task_without_company_sets_out_at_once_again_when_the_others_are_gone():
    async def main() -> None:
        tasks = Tasks()
        tasks.let_through()
        await asyncio.gather(*(tasks.gatherer.run(call(f"{n}")) for n in range(20)))
        assert await tasks.gatherer.run(call("a")) == "A"
        with pytest.raises(StopIteration, match="B"):  # it came to its end without any wait
            tasks.gatherer.run(call("b")).send(None)
        assert Note.groups[-2:] == [["a"], ["b"]]

    asyncio.run(main())


@pytest.mark.parametrize("company", [0, 1, 5])
@pytest.mark.parametrize(
    ("problem", "alone"),
    [
        (REFUSED, True),
        (UnitFailure(DatabaseBusy("no connection"), repeatable=False, in_doubt=False), False),
        (of_a_driver(UnitFailure(DatabaseBusy("lock"), repeatable=False, in_doubt=False)), True),
    ],
    ids=["refused", "pool", "lock"],
)
def test_tasks_run_again_what_another_s_write_may_have_spoilt_alone(problem, alone, company):
    async def main() -> None:
        tasks = Tasks()
        tasks.problem = problem
        running = await tasks.start([f"{n}" for n in range(MOST_GROUPS + company)])
        tasks.let_through()
        found = await asyncio.gather(*running, return_exceptions=True)
        again = [f"{n}" for n in range(MOST_GROUPS, len(found))] if company > 1 else []
        again = again if alone else []
        assert [each for each in found if isinstance(each, str)] == again
        failed = found[: len(found) - len(again)]
        assert [type(each.error) for each in failed] == [type(problem.error)] * len(failed)
        assert tasks.runs == MOST_GROUPS + (company > 0) + len(again)
        assert busy(tasks.gatherer) == 0

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_waits_writes_nothing():
    async def main() -> None:
        tasks = Tasks()
        running = await tasks.start([f"{n}" for n in range(MOST_GROUPS + 3)])
        running[MOST_GROUPS].cancel()
        await asyncio.sleep(0)
        tasks.let_through()
        await asyncio.gather(*running, return_exceptions=True)
        written = {name for group in Note.groups for name in group}
        assert written == {f"{n}" for n in range(MOST_GROUPS + 3)} - {f"{MOST_GROUPS}"}
        assert running[MOST_GROUPS].cancelled()
        assert busy(tasks.gatherer) == 0

    asyncio.run(main())


def test_a_task_whose_group_has_set_out_settles_before_it_is_cancelled():
    async def main() -> None:
        tasks = Tasks()
        running = await tasks.start([f"{n}" for n in range(MOST_GROUPS + 3)])
        tasks.let_through(1)
        await running[0]
        assert queued(tasks.gatherer) == 0
        for _ in range(5):
            running[-1].cancel()
            await asyncio.sleep(0)
        assert not running[-1].done()
        tasks.let_through()
        results = await asyncio.gather(*running, return_exceptions=True)
        assert isinstance(results[-1], asyncio.CancelledError)
        assert results[-2] == f"{MOST_GROUPS + 1}"
        assert f"{MOST_GROUPS + 2}" in Note.groups[-1]
        assert busy(tasks.gatherer) == 0

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(4))
def test_a_group_that_somebody_waits_for_arrives_although_all_tasks_are_cancelled(turns):
    async def main() -> None:
        tasks = Tasks()
        running = await tasks.start([f"{n}" for n in range(MOST_GROUPS + 3)])
        tasks.let_through(MOST_GROUPS)
        await asyncio.gather(*running[:MOST_GROUPS])
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting, others = running[-1], asyncio.all_tasks() - {running[-1], asyncio.current_task()}
        for task in others:
            task.cancel()
        tasks.let_through()
        assert await waiting == f"{MOST_GROUPS + 2}"
        assert busy(tasks.gatherer) == queued(tasks.gatherer) == 0

    asyncio.run(main())


def test_a_group_that_nobody_waits_for_any_more_is_cancelled():
    async def main() -> None:
        tasks = Tasks()
        running = await tasks.start([f"{n}" for n in range(MOST_GROUPS + 3)])
        tasks.let_through(MOST_GROUPS)
        await asyncio.gather(*running[:MOST_GROUPS])
        await asyncio.sleep(0)
        assert queued(tasks.gatherer) == 0  # the group is on its way, and never let through
        for task in running:
            task.cancel()
        async with asyncio.timeout(20):
            results = await asyncio.gather(*running[MOST_GROUPS:], return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 3
        assert len(Note.groups) == MOST_GROUPS
        assert busy(tasks.gatherer) == 0

    asyncio.run(main())


def test_tasks_that_come_go_and_fail_at_random_leave_nobody_behind():
    async def main() -> None:
        rng = random.Random(7)  # noqa: S311 - which tasks to cancel, and when
        tasks = Tasks()
        tasks.let_through()
        running: list[asyncio.Task[Any]] = []
        for n in range(500):
            name = rng.choice(["bad", "bad for all", f"{n}", f"{n}", f"{n}"])
            running.append(asyncio.create_task(tasks.gatherer.run(call(name))))
            for _ in range(rng.randint(0, 2)):
                await asyncio.sleep(0)
            if rng.random() < 0.2:
                rng.choice(running).cancel()
        results = await asyncio.gather(*running, return_exceptions=True)
        written = [name for group in Note.groups for name in group]
        assert len(written) == len(set(written) - {"bad for all"}) + written.count("bad for all")
        assert {r for r in results if isinstance(r, str) and r.isdigit()} <= set(written)
        assert busy(tasks.gatherer) == queued(tasks.gatherer) == 0

    asyncio.run(main())
