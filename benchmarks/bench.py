"""Everything that has an aim, in one document: ``python -m benchmarks.bench``.

Each part is a program of its own, so none meets the memory, the caches or the servers of another.
Their figures go into one JSON, which names no place and no machine; the pictures and the table in
the documents are made from it and from nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.places import ENGINES, cores, storage, versions
from benchmarks.targets import TARGETS, Line, show, wide

BENCH = Path(__file__).parents[1] / "docs" / "pictures" / "bench.json"
PARTS = {
    "benchmarks": ("lines", "durability"),
    "benchmarks.swarm": ("lines", "swarm"),
    "benchmarks.tasks": ("lines", "tasks"),
    "benchmarks.growth": ("lines", "growth", "fills", "walks"),
    "benchmarks.imports": ("lines",),
    "benchmarks.sizes": ("sizes",),
}
"""The programs, and what of their JSON goes into the document."""
WITHOUT_ROUNDS = ("benchmarks.sizes",)

_progress = Console(stderr=True)


def main() -> None:
    """Run all, print the aims, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many; five at least")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=Path, default=BENCH, metavar="PATH")
    arguments = parser.parse_args()
    document: dict[str, Any] = {
        "versions": versions(ENGINES),
        "cores": cores(),
        "storage": {engine: storage(engine) for engine in ENGINES},
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "minutes": {},
        "lines": [],
    }
    for program, wanted in PARTS.items():
        began = perf_counter()
        found = _run(program, arguments.rounds, quick=arguments.quick)
        document["minutes"][program] = round((perf_counter() - began) / 60, 1)
        merge(document, {key: found[key] for key in wanted})
    document["lines"] = in_order(document["lines"])
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False)
    arguments.json.write_text(text + "\n", encoding="utf-8")
    show(document["lines"], wide())


def merge(document: dict[str, Any], found: dict[str, Any]) -> None:
    """Add a part to the document: what both have as a list is one list."""
    for key, value in found.items():
        document[key] = document[key] + value if key in document else value


def in_order(lines: list[Line]) -> list[Line]:
    """Sort figures as the targets are.

    Raises:
        LookupError: An aim has no figure on one of its engines: that would pass unnoticed.
    """
    by_place = {(line["key"], line["engine"]): line for line in lines}
    places = [(key, engine) for key, target in TARGETS.items() for engine in target.bounds]
    if missing := [place for place in places if place not in by_place]:
        raise LookupError(f"there is no figure for {missing}")
    return [by_place[place] for place in places]


def _run(program: str, rounds: int, *, quick: bool) -> dict[str, Any]:
    _progress.print(f"python -m {program}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", program, "--json", str(path)]
        command += [] if program in WITHOUT_ROUNDS else ["--rounds", str(rounds)]
        command += ["--quick"] if quick else []
        subprocess.run(command, check=True)  # noqa: S603 - one of our own programs
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
