"""Where the time of a call goes: ``python -m benchmarks.layers --as after``.

While one caller saves messages, or reads the last 50 of a session, a timer interrupts it a thousand
times a second, and the innermost line of Python that it finds says whose time it was: a call into C
counts for the line that made it. Time spent waiting counts too.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

from agentstore import Store
from benchmarks.pages import put
from benchmarks.places import ENGINES, opened

PAGE = Path(__file__).parents[1] / "docs" / "profile.md"
KEPT = PAGE.parent / "pictures" / "layers.json"
BEGIN = "<!-- layers: written by `python -m benchmarks.layers`, from pictures/layers.json -->"
END = "<!-- layers: end -->"
SECONDS = 10.0
TEXT = "How is the weather in Berlin today? " * 6
_SAMPLE = 0.001

LAYERS = ("driver and engine", "SQLAlchemy", "records", "checks and JSON", "the rest of ours")
_DRIVER_CALLS = {
    "run_sql",
    "do_execute",
    "do_executemany",
    "do_commit",
    "do_rollback",
    "fetchall",
    "fetchone",
    "fetchmany",
}
_RECORDS = ("types.py", "prepared.py", "records.py", "message_rows.py")
_CHECKS = ("validation.py", "encoding.py", "drafts.py", "ids.py")


def layer(frame: FrameType) -> str:
    """Say whose a moment was."""
    path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
    if name in _DRIVER_CALLS or "psycopg" in path.parts:
        return "driver and engine"
    if "sqlalchemy" in path.parts:
        return "SQLAlchemy"
    if path.name in _RECORDS:
        return "records"
    if path.name in _CHECKS or "json" in path.parts:
        return "checks and JSON"
    return "the rest of ours"


def profile(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """Give the microseconds that a call spends in each layer."""
    found: Counter[str] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            found[layer(frame)] += 1

    for _ in range(200):
        call()
    calls = 0
    before = signal.signal(signal.SIGALRM, sample)
    began = perf_counter()
    signal.setitimer(signal.ITIMER_REAL, _SAMPLE, _SAMPLE)
    while perf_counter() - began < seconds:
        for _ in range(20):
            call()
        calls += 20
    signal.setitimer(signal.ITIMER_REAL, 0)
    each = (perf_counter() - began) / calls * 1e6
    signal.signal(signal.SIGALRM, before)
    return {name: round(each * found[name] / found.total(), 1) for name in LAYERS}


def measure(seconds: float) -> dict[str, dict[str, float]]:
    """Profile both calls on both engines."""
    found: dict[str, dict[str, float]] = {}
    for engine in ENGINES:
        with opened(engine) as databases, Store(databases.make("layers")) as store:
            saved, read = store.sessions.create().id, store.sessions.create().id
            store.messages.save_many(read, [{"role": "user", "content": TEXT}] * 1_000)
            calls: dict[str, Callable[[], object]] = {
                "save": lambda store=store, id=saved: store.messages.save(id, "user", TEXT),
                "history(50)": lambda store=store, id=read: store.messages.history(id, 50),
            }
            for name, call in calls.items():
                found[f"{name}, {engine}"] = profile(call, seconds)
    return found


def table(kept: dict[str, dict[str, dict[str, float]]]) -> str:
    """Write the table of the page."""
    sides = [side for side in ("before", "after") if side in kept]
    lines = ["| call | | " + " | ".join(LAYERS) + " | in all |", "|---|---|" + "--:|" * 6]
    for call in kept[sides[-1]]:
        for side in sides:
            each = kept[side][call]
            cells = [f"{each[name]:.0f}" for name in LAYERS] + [f"{sum(each.values()):.0f}"]
            lines.append(f"| {call} | {side} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, keep, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layers", description=__doc__)
    parser.add_argument("--as", dest="side", choices=("before", "after"), default="after")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", type=Path, default=KEPT)
    arguments = parser.parse_args()
    kept: dict[str, Any] = {}
    if arguments.json.exists():
        kept = json.loads(arguments.json.read_text(encoding="utf-8"))
    kept[arguments.side] = measure(arguments.seconds)
    arguments.json.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print(table(kept))
    if arguments.json == KEPT and PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(put(page, BEGIN, END, table(kept)), encoding="utf-8")


if __name__ == "__main__":
    main()
