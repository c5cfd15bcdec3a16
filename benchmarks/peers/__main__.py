"""Measure agentstore beside its peers: ``python -m benchmarks.peers``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.peers import table
from benchmarks.peers.contest import Plan, contests
from benchmarks.peers.lines import STAGES
from benchmarks.peers.places import places
from benchmarks.peers.program import ENGINES
from benchmarks.peers.registry import PEERS
from benchmarks.peers.sample import sample
from benchmarks.peers.work import QUICK, Sizes

RESULTS = Path(__file__).parents[1] / "results"
_progress = Console(stderr=True)


def main() -> None:
    """Measure, print, write the JSON and the document's table."""
    arguments = _arguments()
    sizes = QUICK if arguments.quick else Sizes()
    began = perf_counter()
    packages = dict.fromkeys(package for peer in PEERS for package in peer.packages)
    document: dict[str, Any] = {
        "versions": {
            "Python": platform.python_version(),
            "SQLite": sqlite3.sqlite_version,
            **{name: _version(name) for name in ("SQLAlchemy", "psycopg", "aiosqlite", *packages)},
        },
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "data": "",
        "durability": {},
        "peers": [],
    }
    found = sample()
    document["data"] = found.origin
    plan = Plan(found, sizes, arguments.rounds, arguments.stage)
    engines = (arguments.engine,) if arguments.engine else ENGINES
    with places(engines, RESULTS) as (opened, versions):
        document["versions"] |= versions
        for place in opened:
            document["durability"][place.engine] = place.durability
            for peer in PEERS:
                wanted = arguments.peer is None or arguments.peer in peer.title.lower()
                if place.engine in peer.engines and wanted:
                    _progress.print(
                        f"{perf_counter() - began:5.0f} s: {place.engine}, {peer.title}"
                    )
                    document["peers"] += contests(place, peer, plan)
    document["seconds"] = round(perf_counter() - began, 1)
    table.show(document)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    written = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    arguments.json.write_text(written, encoding="utf-8")
    if arguments.docs is not None:
        table.write_into(arguments.docs, document)
    if any(row["failed"] or row["our_errors"] for row in document["peers"]):
        sys.exit("Some lines failed; the table says which.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--peer", metavar="WORD", help="only peers with this in their names")
    parser.add_argument("--stage", choices=[stage.name for stage in STAGES], help="only this one")
    parser.add_argument("--rounds", type=int, default=5, help="how many; five at least")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "peers.json", metavar="PATH")
    parser.add_argument("--docs", type=Path, metavar="PATH", help="a page to put the table into")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return arguments


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        sys.exit(f"{package} is not installed: use make bench-peers")


if __name__ == "__main__":
    main()
