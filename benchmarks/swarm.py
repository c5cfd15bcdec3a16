"""What many callers save together: ``python -m benchmarks.swarm``.

The bare driver saves messages one after the other, each with its commit, as one caller; in turn
with it, up to 64 tasks of one ``AsyncStore`` or threads of one ``Store`` save the same messages,
each into a session of its own and each waiting for its own commit. Then up to 8 processes of 8
tasks each do it on one database. Rates are messages per second; the ratio is to the bare driver's
one caller, and beside it stand the times that half and 99 % of the calls did not exceed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

from rich.table import Table
from sqlalchemy import URL, make_url

from agentstore import AsyncStore, Store
from benchmarks.data import Contents, Message, messages
from benchmarks.databases import Databases
from benchmarks.places import ENGINES, RESULTS, opened
from benchmarks.raw import Raw
from benchmarks.recording import Recorder, Script
from benchmarks.targets import TARGETS, Line, show, wide

CALLERS, TASKS = 64, 8
"""The most tasks or threads in a process; those of each of several processes."""
_AIMED_AT = {"64 tasks": "save_tasks", "8 processes of 8 tasks": "save_processes"}
WARM_UP = 3
"""Calls of each caller before the clock starts: the raw side's connection is warm as well."""
POOL = 8
"""Connections of a store: more do not help a machine with few cores."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How often, how many calls of each caller, by how many tasks and by how many processes."""

    rounds: int
    calls: int
    tasks: tuple[int, ...] = (1, 4, 16, CALLERS)
    processes: tuple[int, ...] = (1, 2, 4, 8)


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swarm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "swarm.json", metavar="PATH")
    parser.add_argument("--process", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=40, help="of each caller in a round")
    arguments = parser.parse_args()
    if arguments.process:
        asyncio.run(_process(arguments.process, arguments.calls))
        return
    sizes = Sizes(arguments.rounds, arguments.calls)
    if arguments.quick:
        sizes = Sizes(1, 2, (1, CALLERS), (1, 8))
    points: list[dict[str, Any]] = []
    for name in [arguments.engine] if arguments.engine else ENGINES:
        with opened(name) as databases:
            points += _measure(databases, sizes)
    lines = [_line(p) for p in points if p["callers"] in _AIMED_AT]
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    written = json.dumps({"lines": lines, "swarm": points}, indent=2)
    arguments.json.write_text(written + "\n", encoding="utf-8")
    _print(points)
    show(lines, wide())


def _line(point: dict[str, Any]) -> Line:
    key = _AIMED_AT[point["callers"]]
    return TARGETS[key].line(
        key,
        point["engine"],
        point["ratio"],
        point["lowest"],
        point["highest"],
        median_ms=point["median_ms"],
        p99_ms=point["p99_ms"],
    )


def _session(number: int) -> str:
    return f"swarm-{number}"


def _measure(databases: Databases, sizes: Sizes) -> list[dict[str, Any]]:
    rounds, calls = sizes.rounds, sizes.calls
    made = Contents(CALLERS, {_session(n): 0 for n in range(CALLERS)})
    databases.create("swarm", made)
    urls = {side: databases.copy("swarm", f"swarm_{side}") for side in ("raw", "script", "store")}
    per_round = CALLERS * calls
    stream = list(messages(CALLERS * 4))
    with closing(Recorder(urls["script"])) as recorder:
        scripts = [
            recorder.record(lambda store, m: store.messages.save(_session(0), **m), message)
            for message in islice(cycle(stream), (rounds + 1) * per_round)
        ]
    url = urls["store"]
    sides: dict[str, Callable[[], tuple[float, list[int]]]] = {
        "1 thread": lambda: _threads(url, 1, calls * 8, stream),
        "64 threads": lambda: _threads(url, CALLERS, calls, stream),
    }
    counts = {"1 thread": (1, 1), "64 threads": (1, CALLERS)}
    for tasks in sizes.tasks:
        name = _plural(tasks, "task")
        # A few callers take more calls each, lest their turn be over before it has begun.
        each = calls * max(1, TASKS // tasks)
        sides[name] = partial(_together, url, tasks, each, stream)
        counts[name] = (1, tasks)
    for processes in sizes.processes:
        name = f"{_plural(processes, 'process')} of {TASKS} tasks"
        sides[name] = partial(_processes, url, processes, calls)
        counts[name] = (processes, TASKS)
    rates: dict[str, list[float]] = {side: [] for side in sides}
    ratios: dict[str, list[float]] = {side: [] for side in sides}
    taken: dict[str, list[int]] = {side: [] for side in sides}
    raw_rates: list[float] = []
    half = per_round // len(sides) // 2
    with closing(databases.raw(urls["raw"])) as raw:
        remaining = iter(scripts)
        for number in range(rounds + 1):
            for side, run in sides.items():
                # One half of the raw side's turn before ours and one after it.
                seconds = _replay(raw, remaining, half)
                rate, times = run()
                seconds += _replay(raw, remaining, half)
                raw_rate = 2 * half / seconds
                if number:  # the first round warms up
                    raw_rates.append(raw_rate)
                    rates[side].append(rate)
                    ratios[side].append(rate / raw_rate)
                    taken[side] += times
        waits_for = raw.durability()
    return [
        {
            "engine": databases.name,
            "durability": waits_for,
            "callers": side,
            "processes": counts[side][0],
            "of_each": counts[side][1],
            "per_second": round(statistics.median(rates[side])),
            "raw_per_second": round(statistics.median(raw_rates)),
            "ratio": round(statistics.median(ratios[side]), 3),
            "lowest": round(min(ratios[side]), 3),
            "highest": round(max(ratios[side]), 3),
            "median_ms": round(statistics.median(times) / 1e6, 2),
            "p99_ms": round(sorted(times)[-(len(times) // 100) - 1] / 1e6, 2),
        }
        for side, times in taken.items()
    ]


def _replay(raw: Raw, scripts: Iterator[Script], count: int) -> float:
    """Save so many messages one after the other; give the seconds."""
    some = list(islice(scripts, count))
    began = perf_counter()
    for script in some:
        raw.write(script)
    return perf_counter() - began


def _plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def _threads(url: URL, callers: int, calls: int, stream: list[Message]) -> tuple[float, list[int]]:
    taken: list[int] = []
    with Store(url, pool_size=POOL, max_overflow=0) as store:

        def caller(number: int, calls: int) -> None:
            for message in islice(cycle(stream), number, number + calls):
                began = perf_counter_ns()
                store.messages.save(_session(number), **message)
                taken.append(perf_counter_ns() - began)

        def together(calls: int) -> None:
            threads = [threading.Thread(target=caller, args=(n, calls)) for n in range(callers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        together(WARM_UP)
        taken.clear()
        began = perf_counter()
        together(calls)
        return callers * calls / (perf_counter() - began), taken


def _together(url: URL, callers: int, calls: int, stream: list[Message]) -> tuple[float, list[int]]:
    return asyncio.run(_tasks(url, callers, calls, stream))


async def _tasks(
    url: URL, callers: int, calls: int, stream: list[Message], first: int = 0
) -> tuple[float, list[int]]:
    taken: list[int] = []
    async with AsyncStore(url, pool_size=POOL, max_overflow=0) as store:

        async def caller(number: int, calls: int) -> None:
            for message in islice(cycle(stream), number, number + calls):
                began = perf_counter_ns()
                await store.messages.save(_session(number), **message)
                taken.append(perf_counter_ns() - began)

        async def together(calls: int) -> None:
            await asyncio.gather(*(caller(n + max(0, first - 1), calls) for n in range(callers)))

        await together(WARM_UP)
        taken.clear()
        if first:
            print("ready", flush=True)
            sys.stdin.readline()
        began = perf_counter()
        await together(calls)
        return callers * calls / (perf_counter() - began), taken


async def _process(url: str, calls: int) -> None:
    """Be one of many processes: begin at a word, and say when it is done."""
    target, first = url.rsplit("#", 1)
    stream = list(messages(CALLERS * 4))
    _, taken = await _tasks(make_url(target), TASKS, calls, stream, int(first) + 1)
    print(json.dumps(taken), flush=True)


def _processes(url: URL, processes: int, calls: int) -> tuple[float, list[int]]:
    target = url.render_as_string(hide_password=False)
    program = [sys.executable, "-m", "benchmarks.swarm", "--calls", str(calls), "--process"]
    started = [
        subprocess.Popen(  # noqa: S603 - this very program
            [*program, f"{target}#{n * TASKS}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    pipes = [(process.stdin, process.stdout) for process in started]
    for _, out in pipes:
        assert out is not None
        assert out.readline() == "ready\n", "a process did not start"
    began = perf_counter()
    for into, _ in pipes:
        assert into is not None
        into.write("go\n")
        into.flush()
    taken: list[int] = []
    for _, out in pipes:
        assert out is not None
        taken += json.loads(out.readline())
    rate = processes * TASKS * calls / (perf_counter() - began)
    for process in started:
        process.wait()
    return rate, taken


def _print(points: list[dict[str, Any]]) -> None:
    table = Table(title="Messages saved per second by many callers, each waiting for its commit")
    headings = ("Store", "driver, one caller", "ratio", "median ms", "p99 ms")
    for heading in ("engine", "callers", *headings):
        table.add_column(heading, justify="left" if heading in ("engine", "callers") else "right")
    for point in points:
        table.add_row(
            point["engine"],
            point["callers"],
            f"{point['per_second']:,}",
            f"{point['raw_per_second']:,}",
            f"{point['ratio']:.2f} ({point['lowest']:.2f} to {point['highest']:.2f})",
            f"{point['median_ms']:.1f}",
            f"{point['p99_ms']:.1f}",
        )
    wide().print(table)


if __name__ == "__main__":
    main()
