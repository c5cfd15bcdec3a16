"""What claiming and completing tasks costs: ``python -m benchmarks.tasks``.

One operation is a claim and the completion of what it gave, singly or in batches of 50. A
``Store`` and the bare driver do it in turn, each on a twin of one database full of tasks that
wait: the driver replays the very statements and parameters that a store sent on a third twin. In
the end both must have completed every task that they were to.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from rich.table import Table

from agentstore import Store
from benchmarks.data import Contents
from benchmarks.databases import Databases
from benchmarks.measuring import compare, in_turn
from benchmarks.places import ENGINES, RESULTS, opened
from benchmarks.raw import Raw, durability
from benchmarks.recording import Recorder, Script, Step
from benchmarks.targets import TARGETS, Line, show, wide

LEASE = 3600.0


@dataclass(frozen=True, slots=True)
class Case:
    """How tasks are taken: so many at once, so often in a round and in a turn of it."""

    name: str
    batch: int
    per_round: int
    per_turn: int


CASES = (Case("one by one", 1, 200, 10), Case("batches of 50", 50, 20, 2))
_AIMED_AT = "batches of 50"


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "tasks.json", metavar="PATH")
    arguments = parser.parse_args()
    cases = [Case(c.name, c.batch, 4, 2) for c in CASES] if arguments.quick else CASES
    points: list[dict[str, Any]] = []
    for engine in [arguments.engine] if arguments.engine else ENGINES:
        with opened(engine) as databases:
            points += [_measure(databases, case, arguments.rounds) for case in cases]
    lines = [_line(point) for point in points if point["case"] == _AIMED_AT]
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    written = json.dumps({"lines": lines, "tasks": points}, indent=2)
    arguments.json.write_text(written + "\n", encoding="utf-8")
    _print(points)
    show(lines, wide())


def _line(point: dict[str, Any]) -> Line:
    found = (point["rate_to_raw"], point["lowest"], point["highest"])
    return TARGETS["tasks"].line(
        "tasks",
        point["engine"],
        *found,
        median_ms=point["median_ms"],
        p99_ms=point["p99_ms"],
    )


def _measure(databases: Databases, case: Case, rounds: int) -> dict[str, Any]:
    operations = (rounds + 1) * case.per_round
    name = f"tasks_{case.batch}"
    url = databases.create(name, Contents(1, {}))
    with Store(url) as store, store.transaction() as tx:
        for number in range(operations * case.batch):
            tx.tasks.create(None, "work", {"number": number}, priority=number % 3)
    twins = {side: databases.copy(name, f"{name}_{side}") for side in ("raw", "store", "script")}
    with closing(Recorder(twins["script"])) as recorder:
        scripts = [recorder.record(_operate, case.batch) for _ in range(operations)]
    with closing(databases.raw(twins["raw"])) as raw, Store(twins["store"]) as store:
        raw_timing, store_timing = in_turn(
            [_raw_turn(raw, scripts), _store_turn(store, case.batch)],
            rounds=rounds,
            per_round=case.per_round,
            per_turn=case.per_turn,
        )
        waits_for = raw.durability()
        with store._engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert durability(driver) == waits_for, "the sides do not wait for the same"
    left = [_completed(databases, twins[side]) for side in ("raw", "store")]
    assert left == [operations * case.batch] * 2, f"the sides did different things: {left}"
    ratio = compare(store_timing, raw_timing).inverted()
    return {
        "engine": databases.name,
        "case": case.name,
        "durability": waits_for,
        "statements": round(sum(map(len, scripts)) / operations, 1),
        "tasks_per_second": round(store_timing.per_second * case.batch),
        "raw_tasks_per_second": round(raw_timing.per_second * case.batch),
        "rate_to_raw": round(ratio.ratio, 3),
        "lowest": round(ratio.lowest, 3),
        "highest": round(ratio.highest, 3),
        "median_ms": round(store_timing.typical / 1e6, 2),
        "p99_ms": round(store_timing.p99 / 1e6, 2),
    }


def _operate(store: Any, batch: int) -> None:
    claimed = store.tasks.claim("bench", limit=batch, lease=LEASE)
    assert len(claimed) == batch
    if batch == 1:
        store.tasks.complete(claimed[0].id, {"ok": True}, fence=claimed[0].fence)
    else:
        assert not store.tasks.complete_many([(task, {"ok": True}) for task in claimed]).lost


def _raw_turn(raw: Raw, scripts: list[Script]) -> Any:
    def run(numbers: range) -> list[int]:
        taken = []
        for number in numbers:
            began = perf_counter_ns()
            raw.write(scripts[number])
            taken.append(perf_counter_ns() - began)
        return taken

    return run


def _store_turn(store: Store, batch: int) -> Any:
    def run(numbers: range) -> list[int]:
        taken = []
        for _ in numbers:
            began = perf_counter_ns()
            _operate(store, batch)
            taken.append(perf_counter_ns() - began)
        return taken

    return run


def _completed(databases: Databases, url: Any) -> int:
    count = Step("SELECT count(*) AS n FROM tasks WHERE status = 'completed'", ())
    with closing(databases.raw(url)) as raw:
        return int(raw.read((count,))[0]["n"])


def _print(lines: list[dict[str, Any]]) -> None:
    table = Table(title="Claim and complete, tasks per second")
    for heading in ("engine", "", "statements", "Store", "driver", "Store / driver"):
        table.add_column(heading, justify="left" if heading in ("engine", "") else "right")
    for line in lines:
        table.add_row(
            line["engine"],
            line["case"],
            str(line["statements"]),
            f"{line['tasks_per_second']:,}",
            f"{line['raw_tasks_per_second']:,}",
            f"{line['rate_to_raw']:.2f} ({line['lowest']:.2f} to {line['highest']:.2f})",
        )
    wide().print(table)


if __name__ == "__main__":
    main()
