"""What is done with a program: contents that are made, operations that are measured, checks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from benchmarks.checkpoints import ADDED, FIRST, PUTS
from benchmarks.checkpoints import messages as history
from benchmarks.peers.program import Program, finished
from benchmarks.peers.sample import Item, Turn
from benchmarks.peers.savers import graph_messages

CALLERS = 16
READ = 50
ONE, LONG, SMALL, TALK = "one", "long", "small", "talk"
MANY = [f"caller-{number}" for number in range(CALLERS)]
TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is, and how often an operation runs in a round."""

    items: int = 1_000
    others: int = 100
    listed: int = 2_000
    turns: int = 1_000
    kept: int = 20
    puts: int = PUTS
    appends: int = 50
    each: int = 4
    reads: int = 40
    lists: int = 4
    branches: int = 4
    graph: int = 21


QUICK = Sizes(40, 3, 30, 20, 2, 6, 4, 2, 2, 1, 2, 2)
"""Enough to see that everything runs; its figures say nothing."""


@dataclass(slots=True)
class Side:
    """A program in a line, and what befell it.

    Attributes:
        errors: What was raised to callers, and how often.
        done: Turns that a caller was told are stored, by session.
    """

    program: Program
    turns: list[Turn]
    sizes: Sizes
    histories: list[list[Item]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)

    async def append(self, session_id: str, number: int) -> None:
        """Append a turn, and count it, or the error."""
        program: Any = self.program
        try:
            await program.append(session_id, self.turns[number % len(self.turns)])
        except Exception as error:  # noqa: BLE001 - counted and shown
            self.errors[reason(error)] += 1
        else:
            self.done[session_id] += 1


Measure = Callable[[Side, int], Awaitable[int]]
"""Runs the operation of a number and gives its nanoseconds."""


def reason(error: Exception) -> str:
    """Say in a few words what was raised; no statement, and no place."""
    first = str(error).partition("\n")[0].partition('"')[0].strip()
    return f"{type(error).__name__}: {first}"[:90]


def timed(call: Callable[[Any, Side, int], Awaitable[Any]]) -> Measure:
    """Make a measure of a call."""

    async def measure(side: Side, number: int) -> int:
        began = perf_counter_ns()
        await call(side.program, side, number)
        return perf_counter_ns() - began

    return measure


# --- Appending -------------------------------------------------------------------------------


async def empty(side: Side) -> None:
    program: Any = side.program
    await program.fill([ONE, *MANY], [])


async def append(side: Side, number: int) -> int:
    began = perf_counter_ns()
    await side.append(ONE, number)
    return perf_counter_ns() - began


async def burst(side: Side, number: int) -> int:
    """Give the time for each turn that callers were told is stored."""
    each = side.sizes.each

    async def caller(position: int) -> None:
        for turn in range(each):
            await side.append(MANY[position], (number * CALLERS + position) * each + turn)

    before = side.done.total()
    began = perf_counter_ns()
    if side.program.synchronous:
        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(lambda position: finished(caller(position)), range(CALLERS)))
    else:
        await asyncio.gather(*map(caller, range(CALLERS)))
    return (perf_counter_ns() - began) // max(1, side.done.total() - before)


async def nothing_lost(side: Side) -> Any:
    """See that all is there that a caller was told is stored."""
    program: Any = side.program
    lost = 0
    for session_id, turns in side.done.items():
        lost += 2 * turns - len(await program.last(session_id, 2 * turns))
    if lost > 0:
        side.errors["items lost"] = lost
    return None


# --- Reading and listing ---------------------------------------------------------------------


async def long(side: Side) -> None:
    program: Any = side.program
    await program.fill([LONG], side.turns[: side.sizes.items // 2])


async def items(side: Side) -> None:
    program: Any = side.program
    await program.fill_items(LONG, side.turns[: side.sizes.items // 2])


async def beside(side: Side) -> None:
    program: Any = side.program
    others = [f"other-{number}" for number in range(side.sizes.others)]
    await program.fill(others, side.turns[: side.sizes.items // 2])
    await program.fill([SMALL], side.turns[:30])


async def listed(side: Side) -> None:
    program: Any = side.program
    await program.fill([f"session-{number}" for number in range(side.sizes.listed)], [])


async def kept(side: Side) -> None:
    program: Any = side.program
    kept = [f"kept-{number}" for number in range(side.sizes.kept)]
    await program.fill(kept, side.turns[: side.sizes.items // 2])


async def indexed(side: Side) -> None:
    program: Any = side.program
    await program.index()


def last(session_id: str) -> tuple[Measure, Callable[[Side], Coroutine[Any, Any, Any]]]:
    async def texts(side: Side) -> Any:
        program: Any = side.program
        return await program.last(session_id, READ)

    return timed(lambda program, _side, _number: program.last(session_id, READ)), texts


def dicts(operation: str) -> tuple[Measure, Callable[[Side], Coroutine[Any, Any, Any]]]:
    async def given(side: Side) -> Any:
        return await getattr(side.program, operation)(LONG, READ)

    return timed(lambda _program, side, _number: given(side)), given


async def all_listed(side: Side) -> Any:
    program: Any = side.program
    return set(await program.list_all())


async def some_listed(side: Side) -> Any:
    program: Any = side.program
    return len(await program.list_newest(20))


# --- Branches and usage ----------------------------------------------------------------------


async def talk(side: Side) -> None:
    """A conversation of one turn more than there will be before a branch, with its usage."""
    program: Any = side.program
    await program.fill([TALK], [])
    for number in range(side.sizes.turns):
        await side.append(TALK, number)
        await program.record_usage(TALK, TOKENS + number)


async def branch(side: Side, number: int) -> int:
    program: Any = side.program
    await program.leave_branch(TALK)
    began = perf_counter_ns()
    await program.branch(TALK, side.sizes.turns, f"branch-{number}")
    return perf_counter_ns() - began


async def branch_texts(side: Side) -> Any:
    program: Any = side.program
    return await program.last(TALK, READ)


async def tokens(side: Side) -> Any:
    program: Any = side.program
    return await program.sum_usage(TALK)


async def nothing(_side: Side) -> Any:
    return None


# --- Checkpoints -----------------------------------------------------------------------------


def _state(side: Side, number: int) -> tuple[str, int, list[Item]]:
    thread, step = divmod(number, side.sizes.puts)
    while len(side.histories) <= thread:
        side.histories.append(history("text", len(side.histories)))
    return f"thread-{thread}", step, side.histories[thread][: FIRST + ADDED * step]


async def put(side: Side, number: int) -> int:
    program: Any = side.program
    thread, step, messages = _state(side, number)
    began = perf_counter_ns()
    await program.put(thread, step, messages)
    return perf_counter_ns() - began


async def states(side: Side) -> Any:
    program: Any = side.program
    return await program.latest("thread-0"), await program.list_states("thread-0", 20)


STATES = (5, 20, 60, 200, 500)
"""Messages of a graph's states, on average."""


async def graph(side: Side) -> None:
    """Make the messages, which is no work of the program's."""
    side.said = graph_messages(side.turns, max(STATES) + side.sizes.graph)


def graph_put(mean: int) -> Measure:
    """Measure puts of states that grow by a message at each put, to a bit more than their mean."""

    async def put(side: Side, number: int) -> int:
        program: Any = side.program
        most = min(side.sizes.graph, 2 * mean - 1)
        thread, step = divmod(number, most)
        messages = side.said[: mean - most // 2 + step]
        began = perf_counter_ns()
        await program.put_graph(f"{mean}-{thread}", step, messages)
        return perf_counter_ns() - began

    return put


def graph_latest(mean: int) -> tuple[Measure, Callable[[Side], Coroutine[Any, Any, Any]]]:
    async def given(side: Side) -> Any:
        program: Any = side.program
        return await program.latest_graph(f"{mean}-0")

    return timed(lambda _program, side, _number: given(side)), given
