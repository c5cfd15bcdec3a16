"""A trial: the cases of a group, each by a Store, an AsyncStore and the bare driver, in turn; and
where a case has one, by a minimal program too.

A trial checks itself. Sides that wrote must have left equal databases, sides that read must have
read the same rows, and a store's commits must wait for the disk as the driver's do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter_ns
from typing import Any

from sqlalchemy import URL

from agentstore import AsyncStore, Store
from benchmarks.cases import Case
from benchmarks.counting import opened_connections, round_trips
from benchmarks.databases import Databases
from benchmarks.measuring import Timings, Turn, in_turn
from benchmarks.minimal import MINIMAL, Minimal
from benchmarks.raw import Raw, durability
from benchmarks.recording import Recorder, Script, Step

RAW, SYNC, ASYNC = "raw", "Store", "AsyncStore"
SIDES = (RAW, SYNC, ASYNC)
LEAST = "minimal"
"""A side of those cases that have it."""
STORES = (SYNC, ASYNC)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case took.

    Attributes:
        timings: By side.
        statements: Calls of the driver's cursor in one operation, BEGIN and COMMIT included: the
            mean, because a message with tool calls takes one more.
        round_trips: By kind of store; None where there is no wire.
    """

    case: Case
    timings: dict[str, Timings]
    statements: float
    round_trips: dict[str, int | None]


class UnequalSides(Exception):
    """The sides of a case did different things, so their times cannot be compared."""


def run_trial(databases: Databases, group: list[Case], rounds: int) -> list[Outcome]:
    """Measure the cases of a group in turn with each other.

    Raises:
        UnequalSides: A check failed.
    """
    with ExitStack() as stack:
        loop = stack.enter_context(asyncio.Runner())
        contests = [stack.enter_context(_contest(databases, case, loop)) for case in group]
        turns = [contest.turns() for contest in contests]
        timings = iter(
            in_turn(
                [turn for each in turns for turn in each.values()],
                rounds=rounds,
                per_round=group[0].per_round,
                per_turn=group[0].per_turn,
            )
        )
        outcomes = []
        for contest, sides in zip(contests, turns, strict=True):
            contest.check(databases)
            outcomes.append(
                Outcome(
                    contest.case,
                    dict(zip(sides, timings, strict=False)),
                    round(fmean(map(len, contest.scripts)), 2),
                    contest.round_trips(),
                )
            )
        return outcomes


@contextmanager
def _contest(databases: Databases, case: Case, loop: asyncio.Runner) -> Iterator[_Contest]:
    """Open the sides of a case, each on a twin of the database if it writes."""
    urls = dict.fromkeys(SIDES, databases.url(case.database))
    script_url = urls[RAW]
    if case.writes:
        urls = {side: databases.copy(case.database, f"{case.key}_{side}") for side in SIDES}
        script_url = databases.copy(case.database, f"{case.key}_script")
    scripts = _record(script_url, case)
    with ExitStack() as stack:
        raw = stack.enter_context(closing(databases.raw(urls[RAW])))
        # One caller never needs more than the connection that opening a store leaves in its pool.
        with opened_connections() as connections:
            store = stack.enter_context(Store(urls[SYNC]))
            async_store = AsyncStore(urls[ASYNC])
            stack.callback(lambda: loop.run(async_store.close()))
            loop.run(async_store.open())
        least = None
        if case.minimal:
            url = databases.copy(case.database, f"{case.key}_{LEAST}")
            least = stack.enter_context(closing(MINIMAL[databases.name](url)))
        yield _Contest(case, scripts, raw, store, async_store, loop, urls, connections, least)


def _record(url: URL, case: Case) -> list[Script]:
    with closing(Recorder(url)) as recorder:
        return [recorder.record(case.call, each) for each in case.inputs]


@dataclass(frozen=True, slots=True)
class _Contest:
    """The sides of one case, ready to start.

    Attributes:
        scripts: What the raw side replays, for each of the case's inputs.
        connections: The driver connections of both stores.
        least: What does the least, if there is such a side.
    """

    case: Case
    scripts: list[Script]
    raw_side: Raw
    store: Store
    async_store: AsyncStore
    loop: asyncio.Runner
    urls: dict[str, URL]
    connections: list[Any]
    least: Minimal | None = None

    def turns(self) -> dict[str, Turn]:
        """Give the sides, in the order in which they take turns."""
        sides: dict[str, Turn] = {RAW: self.raw, SYNC: self.sync, ASYNC: self.asynchronous}
        return sides if self.least is None else sides | {LEAST: self.minimal}

    def minimal(self, numbers: range) -> list[int]:
        """Take a turn with the minimal program."""
        assert self.least is not None
        save, inputs = self.least.save, self.case.inputs
        taken = []
        for number in numbers:
            each = inputs[number % len(inputs)]
            start = perf_counter_ns()
            save(each)
            taken.append(perf_counter_ns() - start)
        return taken

    def raw(self, numbers: range) -> list[int]:
        """Take a turn with the bare driver."""
        replay = self.raw_side.write if self.case.writes else self.raw_side.read
        scripts = self.scripts
        taken = []
        for number in numbers:
            script = scripts[number % len(scripts)]
            start = perf_counter_ns()
            replay(script)
            taken.append(perf_counter_ns() - start)
        return taken

    def sync(self, numbers: range) -> list[int]:
        """Take a turn with the Store."""
        call, store, inputs = self.case.call, self.store, self.case.inputs
        taken = []
        for number in numbers:
            each = inputs[number % len(inputs)]
            start = perf_counter_ns()
            call(store, each)
            taken.append(perf_counter_ns() - start)
        return taken

    def asynchronous(self, numbers: range) -> list[int]:
        """Take a turn with the AsyncStore, one caller in one event loop."""

        async def turn() -> list[int]:
            call, store, inputs = self.case.call, self.async_store, self.case.inputs
            taken = []
            for number in numbers:
                each = inputs[number % len(inputs)]
                start = perf_counter_ns()
                await call(store, each)
                taken.append(perf_counter_ns() - start)
            return taken

        return self.loop.run(turn())

    def check(self, databases: Databases) -> None:
        """See that all sides did the same.

        Raises:
            UnequalSides: They did not.
        """
        if self.case.writes:
            states = {side: _state(databases, url) for side, url in self.urls.items()}
            if any(state != states[RAW] for state in states.values()):
                raise UnequalSides(f"{self.case.key} left different databases: {states}")
            # The last input is for counting round trips, later.
            if self.least is not None and self.least.count() != len(self.case.inputs) - 1:
                raise UnequalSides(f"the minimal program saved {self.least.count()} times")
        else:
            kind = self.raw_side.ids
            rows = {kind(row["id"]) for row in self.raw_side.read(self.scripts[0])}
            for once in (self._once_sync, self._once_async):
                records = {record.id for record in once(0)}
                if not records or not records <= rows:
                    raise UnequalSides(f"{self.case.key} read different rows")
        for connection in self.connections:
            if (found := durability(connection)) != self.raw_side.durability():
                raise UnequalSides(f"{self.case.key} ran with {found}")

    def round_trips(self) -> dict[str, int | None]:
        """Count the round trips of one more operation."""
        return {
            SYNC: round_trips(self.connections, lambda: self._once_sync(-1)),
            ASYNC: round_trips(self.connections, lambda: self._once_async(-1)),
        }

    def _once_sync(self, position: int) -> Any:
        return self.case.call(self.store, self.case.inputs[position])

    def _once_async(self, position: int) -> Any:
        async def once() -> Any:
            return await self.case.call(self.async_store, self.case.inputs[position])

        return self.loop.run(once())


_STATE = Step(
    "SELECT count(*) AS sessions, sum(last_seq) AS last_seq, sum(turn) AS turn, "
    "sum(message_count) AS messages, sum(total_tokens) AS tokens, sum(total_cost) AS cost, "
    "(SELECT sum(length(content)) FROM messages) AS characters, "
    "(SELECT count(*) FROM message_tool_calls) AS calls FROM sessions",
    (),
)


def _state(databases: Databases, url: URL) -> dict[str, Any]:
    with closing(databases.raw(url)) as connection:
        return connection.read((_STATE,))[0]
