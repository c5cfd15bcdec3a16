"""What branches cost: ``python -m benchmarks.branches``.

Creating a branch in the middle of a conversation of 20,000 turns alternates with creating one in
the middle of 20 turns: nothing is copied, so they should take the same time. What a branch takes
is what the database grew by, all tables and indexes, over the number of branches that were made.
And the history of a branch ten forks deep, each with four messages of its own, alternates with
that of a conversation that never branched; both are as long, and both are the active branch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns

from rich.console import Console
from rich.table import Table
from sqlalchemy import URL, create_engine, text

from agentstore import Store
from benchmarks.measuring import Turn, compare, in_turn
from benchmarks.places import ENGINES, RESULTS, opened

SHORT, LONG, FORKS, OWN, READ = 20, 20_000, 10, 4, 50
CREATE_AIM, HISTORY_AIM, BYTES_AIM = 1.3, 1.5, 1_000
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of one engine.

    Attributes:
        value: A ratio of times, or bytes.
        lowest: The lowest of the rounds' own ratios; of bytes, the value.
        highest: The highest of them.
        milliseconds: What one operation of the side in question took; None for bytes.
    """

    engine: str
    figure: str
    value: float
    lowest: float
    highest: float
    aim: float
    milliseconds: float | None

    @property
    def met(self) -> bool:
        """Say whether the aim is reached."""
        return self.value <= self.aim


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.branches", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--rounds", type=int, default=9, help="how many; five at least")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "branches.json", metavar="PATH")
    arguments = parser.parse_args()
    lines: list[Line] = []
    for engine in (arguments.engine,) if arguments.engine else ENGINES:
        with opened(engine) as databases:
            turns = 10 * SHORT if arguments.quick else LONG
            lines += _measure(engine, databases.make("branches"), turns, arguments.rounds)
    _show(lines)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    written = [asdict(line) | {"met": line.met} for line in lines]
    arguments.json.write_text(json.dumps({"branches": written}, indent=2) + "\n", encoding="utf-8")


def _measure(engine: str, url: URL, turns: int, rounds: int) -> Iterator[Line]:
    with Store(url) as store:
        for name, length in (("short", SHORT), ("long", turns), ("whole", turns)):
            store.sessions.create(id=name)
            _talk(store, name, length)
        store.sessions.create(id="forked")
        _talk(store, "forked", turns)
        for _ in range(FORKS):
            store.branches.create("forked")
            _talk(store, "forked", OWN // 2)
        _analyze(url)
        before = _size(url)
        short, long = in_turn(
            [_creating(store, "short", SHORT), _creating(store, "long", turns)],
            rounds=rounds,
            per_round=20,
            per_turn=2,
        )
        made = 2 * (rounds + 1) * 20
        grown = (_size(url) - before) / made
        found = compare(long, short)
        yield Line(
            engine,
            f"create at {turns:,} turns / at {SHORT}",
            found.ratio,
            found.lowest,
            found.highest,
            CREATE_AIM,
            long.median / 1e6,
        )
        yield Line(engine, "bytes for a branch", grown, grown, grown, BYTES_AIM, None)
        whole, forked = in_turn(
            [_reading(store, "whole"), _reading(store, "forked")],
            rounds=rounds,
            per_round=60,
            per_turn=5,
        )
        found = compare(forked, whole)
        yield Line(
            engine,
            f"history({READ}), {FORKS} forks deep / of main",
            found.ratio,
            found.lowest,
            found.highest,
            HISTORY_AIM,
            forked.median / 1e6,
        )


def _talk(store: Store, session_id: str, turns: int) -> None:
    for start in range(0, turns, _BATCH):
        store.messages.save_many(
            session_id,
            [
                {"role": role, "content": f"{role} {number}: " + "some words of theirs " * 10}
                for number in range(start, min(start + _BATCH, turns))
                for role in ("user", "assistant")
            ],
        )


def _creating(store: Store, session_id: str, turns: int) -> Turn:
    def create() -> object:
        return store.branches.create(session_id, from_turn=turns // 2, branch="main")

    return _timed(create)


def _reading(store: Store, session_id: str) -> Turn:
    def read() -> object:
        return store.messages.history(session_id, READ)

    return _timed(read)


def _timed(work: Callable[[], object]) -> Turn:
    def run(numbers: range) -> list[int]:
        taken = []
        for _ in numbers:
            began = perf_counter_ns()
            work()
            taken.append(perf_counter_ns() - began)
        return taken

    return run


def _size(url: URL) -> int:
    """Give the bytes of the tables and indexes that branches are written to."""
    on_a_server = url.get_backend_name() == "postgresql"
    query = (
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname = 'branches'"
        if on_a_server
        else "SELECT (page_count - freelist_count) * page_size "
        "FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
    )
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        found = connection.execute(text(query)).scalar()
    engine.dispose()
    return int(found or 0)


def _analyze(url: URL) -> None:
    """Let the engine know its tables, as it will after a while by itself."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("ANALYZE"))
    engine.dispose()


def _show(lines: list[Line]) -> None:
    table = Table(title="Branches")
    for heading in ("engine", "", "figure", "rounds", "aim", "met", "ms"):
        table.add_column(heading, justify="left" if heading in ("engine", "") else "right")
    for line in lines:
        is_ratio = line.milliseconds is not None
        table.add_row(
            line.engine,
            line.figure,
            f"{line.value:.2f}" if is_ratio else f"{line.value:,.0f}",
            f"{line.lowest:.2f}-{line.highest:.2f}" if is_ratio else "",
            f"≤ {line.aim:g}",
            "[green]yes[/]" if line.met else "[red]no[/]",
            f"{line.milliseconds:.2f}" if line.milliseconds is not None else "",
        )
    console = Console()
    console.print(table)


if __name__ == "__main__":
    main()
