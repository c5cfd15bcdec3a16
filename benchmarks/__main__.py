"""Run the benchmarks: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import report
from benchmarks.cases import QUICK, Sizes, contents, groups
from benchmarks.databases import Databases
from benchmarks.places import ENGINES, RESULTS, cores, opened, storage, versions
from benchmarks.trial import run_trial

_progress = Console(stderr=True)


def main() -> None:
    """Measure, print, write the JSON."""
    arguments = _arguments()
    sizes = QUICK if arguments.quick else Sizes()
    engines = [arguments.engine] if arguments.engine else list(ENGINES)
    document: dict[str, Any] = {
        "versions": versions(engines),
        "cores": cores(),
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "storage": {},
        "durability": {},
        "lines": [],
        "ratios": [],
        "growth": [],
    }
    for engine in engines:
        with opened(engine) as databases:
            document["storage"][engine] = storage(engine)
            _measure(databases, sizes, arguments.rounds, document)
    report.show(document)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument(
        "--rounds", type=int, default=9, help="how many; five at least, for figures"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "latest.json", metavar="PATH")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return arguments


def _measure(databases: Databases, sizes: Sizes, rounds: int, document: dict[str, Any]) -> None:
    engine = databases.name
    for name, held in contents(sizes).items():
        with _progress.status(f"{engine}: filling a database of {held.sessions:,} sessions"):
            databases.create(name, held)
    with closing(databases.raw(databases.url("few"))) as raw:
        document["durability"][engine] = raw.durability()
    outcomes = []
    for group in groups(sizes, rounds):
        with _progress.status(f"{engine}: {', '.join(case.title for case in group)}"):
            outcomes += run_trial(databases, group, rounds)
    document["lines"] += report.aimed_lines(engine, outcomes)
    document["ratios"] += report.ratio_lines(engine, outcomes)
    document["growth"] += report.growth_lines(engine, outcomes)


if __name__ == "__main__":
    main()
