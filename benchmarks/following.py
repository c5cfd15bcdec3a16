"""How long writers stand still at the end of ``copy --follow``: ``python -m benchmarks.following``.

Files of several sizes are copied while another process saves messages to them. When the copy asks
whether nobody writes any more, that process is stopped, and the answer is yes. The pause is what
lies between the yes and the moment at which the target opens. It must not grow with the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from rich.console import Console
from rich.table import Table
from sqlalchemy import URL

from agentstore import Store, migrations
from agentstore.moving import copying
from benchmarks.data import Contents
from benchmarks.databases import SQLiteDatabases
from benchmarks.moving import EACH, Logged
from benchmarks.places import ENGINES, RESULTS, opened

SIZES, QUICK = (50_000, 500_000), (1_000, 4_000)
AIM = 1.0
"""Seconds."""

_WRITE, _EVERY = "write", 0.01
_LOOKS = 20
"""How often the copy asks before it is told yes: meanwhile it follows the writer."""


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.following", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES, default="postgresql", help="of the target")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "following.json", metavar="PATH")
    parser.add_argument(f"--{_WRITE}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        _save_until_told(arguments.write)
        return
    pauses: dict[int, list[float]] = {}
    with TemporaryDirectory(prefix="agentstore-") as folder, opened(arguments.engine) as targets:
        files = SQLiteDatabases(Path(folder))
        for size in QUICK if arguments.quick else SIZES:
            sessions = {f"s{number:07d}": EACH for number in range(size // EACH)}
            files.create(f"source{size}", Logged(Contents(len(sessions) + 10, sessions)))
            for number in range(arguments.rounds):
                source = files.copy(f"source{size}", f"copied{size}-{number}")
                target = targets.make(f"target{size}_{number}")
                pauses.setdefault(size, []).append(_pause(source, target))
                Console(stderr=True).print(f"{size:,} messages: {pauses[size][-1]:.2f} s")
    _show(pauses)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    written = {"engine": arguments.engine, "aim": AIM, "seconds": pauses}
    arguments.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def _pause(source: URL, target: URL) -> float:
    """Copy a file that is written to; give the seconds from the yes until the target opens."""
    command = [sys.executable, "-m", "benchmarks.following", f"--{_WRITE}", str(source)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - our own interpreter
    asked = 0
    ends: list[float] = []

    def ready() -> bool:
        nonlocal asked
        asked += 1
        if asked < _LOOKS:
            return False
        writer.communicate()
        ends.append(perf_counter())
        watching.start()
        return True

    watching = threading.Thread(target=_watch, args=(target, lambda: ends.append(perf_counter())))
    assert copying.copy(source, target, follow=ready).equal
    watching.join()
    return ends[1] - ends[0]


def _watch(target: URL, tell: Callable[[], object]) -> None:
    while migrations.revision_of(target) != migrations.HEAD:
        time.sleep(_EVERY)
    tell()


def _save_until_told(url: str) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    with Store(url) as store:
        session = store.sessions.create().id
        while not stop.wait(_EVERY):
            store.messages.save(session, "user", "hello")


def _show(pauses: dict[int, list[float]]) -> None:
    table = Table(title=f"The pause of a copy that follows (aim: {AIM:g} s)")
    for column in ("messages", "seconds", "lowest", "highest"):
        table.add_column(column, justify="right")
    for size, seconds in pauses.items():
        shown = (f"{each:.2f}" for each in (median(seconds), min(seconds), max(seconds)))
        table.add_row(f"{size:,}", *shown)
    Console().print(table)


if __name__ == "__main__":
    main()
