"""What many callers save together: ``python -m benchmarks.swarm``.

The bare driver saves messages one after the other, each with its commit, as one caller; in turn
with it, 64 tasks of one ``AsyncStore`` or 64 threads of one ``Store`` save the same messages, each
into a session of its own and each waiting for its own commit. Then 8 processes of 8 tasks each do
it on one database. Rates are messages per second; the ratio is to the bare driver's one caller, and
beside it stands the time that 99 % of the calls did not exceed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import URL

from agentstore import AsyncStore, Store
from benchmarks.data import Contents, Message, messages
from benchmarks.databases import Databases, PostgreSQLDatabases, SQLiteDatabases
from benchmarks.recording import Recorder
from tests.servers import Server, installations

RESULTS = Path(__file__).parent / "results"
CALLERS, PROCESSES, TASKS = 64, 8, 8
AIMS = {
    "sqlite": {"64 tasks": 3.0, "8 processes of 8 tasks": 1.5},
    "postgresql": {"64 tasks": 4.0, "8 processes of 8 tasks": 3.0},
}
POOL = 8
"""Connections of a store: more do not help a machine with few cores."""


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swarm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"))
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "swarm.json", metavar="PATH")
    parser.add_argument("--process", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=20, help="of each caller in a round")
    arguments = parser.parse_args()
    if arguments.process:
        asyncio.run(_process(arguments.process, arguments.calls))
        return
    rounds, calls = (1, 2) if arguments.quick else (arguments.rounds, arguments.calls)
    engines = {"sqlite": _sqlite, "postgresql": _postgresql}
    lines = []
    for name in [arguments.engine] if arguments.engine else engines:
        with engines[name]() as databases:
            lines += _measure(databases, rounds, calls)
    arguments.json.parent.mkdir(exist_ok=True)
    arguments.json.write_text(json.dumps({"swarm": lines}, indent=2) + "\n", encoding="utf-8")
    _print(lines)


@contextmanager
def _sqlite() -> Iterator[Databases]:
    RESULTS.mkdir(exist_ok=True)
    # Beside the results, so on a disk: in memory a commit waits for nothing.
    with tempfile.TemporaryDirectory(prefix="databases-", dir=RESULTS) as folder:
        yield SQLiteDatabases(Path(folder))


@contextmanager
def _postgresql() -> Iterator[Databases]:
    with Server(installations()[0], durable=True) as server:
        yield PostgreSQLDatabases(server)


def _session(number: int) -> str:
    return f"swarm-{number}"


def _measure(databases: Databases, rounds: int, calls: int) -> list[dict[str, Any]]:
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
    sides: dict[str, Callable[[], tuple[float, list[int]]]] = {
        "1 thread": lambda: _threads(urls["store"], 1, calls * 8, stream),
        "64 threads": lambda: _threads(urls["store"], CALLERS, calls, stream),
        "64 tasks": lambda: asyncio.run(_tasks(urls["store"], CALLERS, calls, stream)),
        "8 processes of 8 tasks": lambda: _processes(urls["store"], calls),
    }
    rates: dict[str, list[float]] = {side: [] for side in sides}
    ratios: dict[str, list[float]] = {side: [] for side in sides}
    taken: dict[str, list[int]] = {side: [] for side in sides}
    raw_rates: list[float] = []
    with closing(databases.raw(urls["raw"])) as raw:
        remaining = iter(scripts)
        for number in range(rounds + 1):
            for side, run in sides.items():
                began = perf_counter()
                some = list(islice(remaining, per_round // len(sides)))
                for script in some:
                    raw.write(script)
                raw_rate = len(some) / (perf_counter() - began)
                rate, times = run()
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
            "per_second": round(statistics.median(rates[side])),
            "raw_per_second": round(statistics.median(raw_rates)),
            "ratio": round(statistics.median(ratios[side]), 2),
            "lowest": round(min(ratios[side]), 2),
            "highest": round(max(ratios[side]), 2),
            "p99_ms": round(sorted(times)[-(len(times) // 100) - 1] / 1e6, 1) if times else None,
            "aim": AIMS[databases.name].get(side),
        }
        for side, times in taken.items()
    ]


def _threads(url: URL, callers: int, calls: int, stream: list[Message]) -> tuple[float, list[int]]:
    taken: list[int] = []
    with Store(url, pool_size=POOL, max_overflow=0) as store:

        def caller(number: int) -> None:
            for message in islice(cycle(stream), number, number + calls):
                began = perf_counter_ns()
                store.messages.save(_session(number), **message)
                taken.append(perf_counter_ns() - began)

        store.sessions.get(_session(0))
        threads = [threading.Thread(target=caller, args=(n,)) for n in range(callers)]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return callers * calls / (perf_counter() - began), taken


async def _tasks(
    url: URL, callers: int, calls: int, stream: list[Message], first: int = 0
) -> tuple[float, list[int]]:
    taken: list[int] = []
    async with AsyncStore(url, pool_size=POOL, max_overflow=0) as store:

        async def caller(number: int) -> None:
            for message in islice(cycle(stream), number, number + calls):
                began = perf_counter_ns()
                await store.messages.save(_session(number), **message)
                taken.append(perf_counter_ns() - began)

        await store.sessions.get(_session(0))
        if first:
            print("ready", flush=True)
            sys.stdin.readline()
        began = perf_counter()
        await asyncio.gather(*(caller(n + max(0, first - 1)) for n in range(callers)))
        return callers * calls / (perf_counter() - began), taken


async def _process(url: str, calls: int) -> None:
    """Be one of many processes: begin at a word, and say when it is done."""
    target, first = url.rsplit("#", 1)
    stream = list(messages(CALLERS * 4))
    from sqlalchemy import make_url

    _, taken = await _tasks(make_url(target), TASKS, calls, stream, int(first) + 1)
    print(json.dumps(taken), flush=True)


def _processes(url: URL, calls: int) -> tuple[float, list[int]]:
    target = url.render_as_string(hide_password=False)
    program = [sys.executable, "-m", "benchmarks.swarm", "--calls", str(calls), "--process"]
    started = [
        subprocess.Popen(  # noqa: S603 - this very program
            [*program, f"{target}#{n * TASKS}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(PROCESSES)
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
    rate = PROCESSES * TASKS * calls / (perf_counter() - began)
    for process in started:
        process.wait()
    return rate, taken


def _print(lines: list[dict[str, Any]]) -> None:
    table = Table(title="Messages saved per second by many callers, each waiting for its commit")
    for heading in ("engine", "callers", "Store", "driver, one caller", "ratio", "aim", "p99 ms"):
        table.add_column(heading, justify="left" if heading in ("engine", "callers") else "right")
    for line in lines:
        table.add_row(
            line["engine"],
            line["callers"],
            f"{line['per_second']:,}",
            f"{line['raw_per_second']:,}",
            f"{line['ratio']:.2f} ({line['lowest']:.2f} to {line['highest']:.2f})",
            "" if line["aim"] is None else f">= {line['aim']:.1f}",
            "" if line["p99_ms"] is None else f"{line['p99_ms']:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
