"""How long others wait for a writer while a SQLite file is pruned.

    python -m benchmarks.pruning [--sessions N] [--large]

Fills a file, then prunes it while another process saves messages to it, one after the other, and
says: for how long the pruner held the write lock at most, and how long a message took at most and
at the 99th percentile; beside that, how long a message took with nobody else there. What the disk
and the machine add is in the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentstore import Store
from agentstore.retention import RetentionPolicy

WRITER = """
import json, sys, time
from agentstore import Store
took = []
with Store(sys.argv[1]) as store:
    session = store.sessions.create().id
    print("ready", flush=True)
    until = time.monotonic() + float(sys.argv[2]) if len(sys.argv) > 2 else None
    stop = []
    if until is None:
        import threading
        threading.Thread(target=lambda: stop.append(sys.stdin.read()), daemon=True).start()
    while not stop and (until is None or time.monotonic() < until):
        began = time.perf_counter()
        store.messages.save(session, "user", "hello")
        took.append(time.perf_counter() - began)
print(json.dumps(took))
"""
SECONDS_ALONE = 3.0


def main() -> None:
    """Fill, prune, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=300)
    parser.add_argument("--large", action="store_true", help="rows of 20 kB instead of 200 bytes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pruned.db"
        url = f"sqlite:///{path}"
        fill(url, given.sessions, "word " * (4_000 if given.large else 40))
        size = path.stat().st_size
        alone = json.loads(_start(url, str(SECONDS_ALONE)).communicate()[0].splitlines()[-1])
        show("a message, nobody else there", alone)
        writer = _start(url)
        assert writer.stdout is not None
        writer.stdout.readline()
        held, report, seconds = prune(url)
        beside = json.loads(writer.communicate("")[0].splitlines()[-1])
        show("a message, beside the pruner", beside)
        show("the lock, held by the pruner", held)
        print(f"{report.total:,} rows in {seconds:.1f} s, {len(held)} transactions")
        print(f"file: {size:,} bytes before, {path.stat().st_size:,} after")


def _start(url: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", WRITER, url, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def fill(url: str, sessions: int, content: str) -> None:
    """Make sessions of a hundred messages, tool logs, checkpoints and tasks, all of them old."""
    old = datetime.now(UTC) - timedelta(days=100)
    with Store(url, clock=lambda: old, synchronous="OFF") as store:
        lasting = store.sessions.create(id="lasting").id
        for number in range(sessions):
            session = store.sessions.create().id
            messages = [{"role": "user", "content": content}] * 100
            store.messages.save_many(session, messages)
            with store.transaction() as tx:
                for _ in range(20):
                    tx.tool_logs.log(lasting, "search", output=content)
                    tx.tasks.cancel(tx.tasks.create(None, "mail").id)
                for step in range(20):
                    tx.checkpoints.put(f"thread-{number}", {"step": step, "text": content})
        store.search.refresh()
    with Store(url) as store:
        store.messages.save(lasting, "user", "not idle")


def prune(url: str) -> tuple[list[float], Any, float]:
    """Prune all that is old; give how long each transaction held the lock."""
    policy = RetentionPolicy(
        sessions_idle=timedelta(days=30),
        tool_logs=timedelta(days=30),
        finished_tasks=timedelta(days=30),
        checkpoints_keep_last=3,
    )
    held: list[float] = []
    with Store(url) as store:
        begun: list[float] = []

        writer: Any = store._runner.writer
        begin_to_write = writer._dialect.begin_to_write
        run_in_own = writer._run_in_own_transaction

        def timed_begin(connection: Any, patience: float) -> None:
            begin_to_write(connection, patience)
            begun[:] = [time.perf_counter()]

        def timed_run(job: Any) -> None:
            run_in_own(job)
            if begun:
                held.append(time.perf_counter() - begun.pop())

        writer._dialect = _Instead(writer._dialect, begin_to_write=timed_begin)
        writer._run_in_own_transaction = timed_run
        started = time.perf_counter()
        report = store.prune(policy)
        return held, report, time.perf_counter() - started


class _Instead:
    """Another object, but for some of its attributes."""

    def __init__(self, other: Any, **attributes: Any) -> None:
        self._other = other
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


def show(what: str, seconds: list[float]) -> None:
    """Print the middle, the 99th percentile and the longest."""
    ordered = sorted(seconds)
    late = ordered[int(len(ordered) * 0.99)]
    print(
        f"{what}: median {statistics.median(ordered) * 1000:.1f} ms, "
        f"99 % {late * 1000:.1f} ms, longest {ordered[-1] * 1000:.1f} ms ({len(ordered):,})"
    )


if __name__ == "__main__":
    main()
