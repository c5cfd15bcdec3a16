"""What a growing database costs: ``python -m benchmarks.growth``.

Databases of ten thousand to ten million messages stand side by side, and one ``Store`` for each
of them does the same in turn: the history of a hundred ordinary conversations that lie all over
the table, a save into a conversation of its own, the first page of sessions. In the largest, the
history of a conversation of a million messages is read in turn with that of one of a thousand.
Then a process of its own walks the long conversation page by page, and says what memory it took.
Last, it gets branches, and so does the short one in the smallest database: both are listed in turn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sqlalchemy import URL

from agentstore import Store
from benchmarks.data import messages
from benchmarks.databases import Databases
from benchmarks.filling import LONG, SAVED_INTO, SHORT, Grown, fill
from benchmarks.measuring import Timings, Turn, compare, in_turn
from benchmarks.memory import is_flat, walk
from benchmarks.places import ENGINES, RESULTS, opened
from benchmarks.targets import TARGETS, Line, show, wide

PAGE, BRANCHES = 20, 20
_SPREAD = 100
"""Conversations that are read, one after the other."""

_progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many messages there are: in each database, and in the sessions of the largest."""

    databases: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    short: int = 1_000
    long: int = 1_000_000
    reads: int = 100
    saves: int = 40

    def grown(self) -> list[Grown]:
        """Say what each database holds; only the largest has the long session."""
        *others, largest = self.databases
        made = [Grown.of(total, short=self.short) for total in others]
        return [*made, Grown.of(largest, short=self.short, long=self.long)]


QUICK = Sizes((4_000, 30_000), short=100, long=20_000, reads=5, saves=4)
"""Enough to see that everything runs; its figures say nothing."""


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "growth.json", metavar="PATH")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else Sizes()
    document: dict[str, Any] = {"lines": [], "growth": [], "fills": [], "walks": []}
    for engine in [arguments.engine] if arguments.engine else ENGINES:
        with opened(engine) as databases:
            _measure(databases, sizes, arguments.rounds, document)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _print(document)


def _measure(databases: Databases, sizes: Sizes, rounds: int, document: dict[str, Any]) -> None:
    engine = databases.name
    held = sizes.grown()
    urls: list[URL] = []
    for number, grown in enumerate(held):
        began = perf_counter()
        with _progress.status(f"{engine}: filling a database of {grown.messages:,} messages"):
            urls.append(fill(databases, f"grown_{number}", grown))
        seconds = round(perf_counter() - began, 1)
        document["fills"].append({"engine": engine, "messages": grown.messages, "seconds": seconds})

    def compared(key: str, title: str, sides: Sequence[Turn], per_round: int) -> list[Timings]:
        with _progress.status(f"{engine}: {title}"):
            timings = in_turn(sides, rounds=rounds, per_round=per_round, per_turn=5)
        if key in TARGETS:
            small, large = timings[0], timings[-1]
            document["lines"].append(_line(key, engine, large, small))
        return timings

    with ExitStack() as stack:
        stores = [stack.enter_context(Store(url)) for url in urls]
        largest = stores[-1]
        sides = [_reading(*each) for each in zip(stores, held, strict=True)]
        timings = compared("history_by_table", "histories", sides, sizes.reads)
        document["growth"] += _points(engine, "history(50)", held, timings)
        sides = [_saving(store, (rounds + 1) * sizes.saves) for store in stores]
        timings = compared("save", "saves", sides, sizes.saves)
        document["growth"] += _points(engine, "save", held, timings)
        sides = [_timed([name], largest.messages.history) for name in (SHORT, LONG)]
        compared("history_by_session", "a long session", sides, sizes.reads)
        sides = [_listing(store) for store in (stores[0], largest)]
        compared("sessions_page", "pages of sessions", sides, sizes.reads)
    with _progress.status(f"{engine}: walking {sizes.long:,} messages"):
        walked = walk(urls[-1], LONG, sizes.long)
    document["walks"].append({"engine": engine, **walked})
    document["lines"].append(_walk_line(engine, walked))
    with ExitStack() as stack:
        ends = ((urls[0], SHORT, sizes.short), (urls[-1], LONG, sizes.long))
        sides = [
            _branching(stack.enter_context(Store(url)), session_id, size)
            for url, session_id, size in ends
        ]
        compared("branches_list", "branches", sides, sizes.reads)


def _line(key: str, engine: str, large: Timings, small: Timings) -> Line:
    found = compare(large, small)
    return TARGETS[key].line(
        key,
        engine,
        found.ratio,
        found.lowest,
        found.highest,
        median_ms=large.typical / 1e6,
        p99_ms=large.p99 / 1e6,
    )


def _walk_line(engine: str, walked: dict[str, Any]) -> Line:
    taken = walked["whole"]
    line = TARGETS["page_walk"].line("page_walk", engine, taken, taken, taken)
    return line | {"met": line["met"] and is_flat(walked)}


def _points(
    engine: str, what: str, held: list[Grown], timings: list[Timings]
) -> list[dict[str, Any]]:
    """Give the points of a curve: what one operation took in a database of each size."""
    return [
        {
            "engine": engine,
            "what": what,
            "messages": grown.messages,
            "median_ms": round(timing.typical / 1e6, 4),
            "p99_ms": round(timing.p99 / 1e6, 4),
        }
        for grown, timing in zip(held, timings, strict=True)
    ]


def _reading(store: Store, grown: Grown) -> Turn:
    spread = [grown.name(n * grown.ordinary // _SPREAD) for n in range(_SPREAD)]
    return _timed(list(dict.fromkeys(spread)), store.messages.history)


def _saving(store: Store, count: int) -> Turn:
    return _timed(list(messages(count)), lambda each: store.messages.save(SAVED_INTO, **each))


def _listing(store: Store) -> Turn:
    return _timed([PAGE], lambda limit: store.sessions.list(limit=limit))


def _branching(store: Store, session_id: str, size: int) -> Turn:
    turns = size // 2
    for number in range(1, BRANCHES):
        after = number * turns // BRANCHES
        store.branches.create(session_id, name=f"branch-{number}", branch="main", after_turn=after)
    return _timed([session_id], store.branches.list)


def _timed(inputs: Sequence[Any], work: Callable[[Any], object]) -> Turn:
    def run(numbers: range) -> list[int]:
        taken = []
        for number in numbers:
            each = inputs[number % len(inputs)]
            began = perf_counter_ns()
            work(each)
            taken.append(perf_counter_ns() - began)
        return taken

    return run


def _print(document: dict[str, Any]) -> None:
    table = Table(title="Milliseconds by the number of messages", box=SIMPLE_HEAD)
    for heading in ("engine", "", "messages", "median", "p99"):
        table.add_column(heading, justify="left" if heading in ("engine", "") else "right")
    for point in document["growth"]:
        table.add_row(
            point["engine"],
            point["what"],
            f"{point['messages']:,}",
            f"{point['median_ms']:.2f}",
            f"{point['p99_ms']:.2f}",
        )
    console = wide()
    console.print(table)
    show(document["lines"], console)


if __name__ == "__main__":
    main()
