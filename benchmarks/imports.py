"""How long importing agentstore takes beside SQLAlchemy: ``python -m benchmarks.imports``.

``import agentstore`` alone loads next to nothing, so what is timed is ``from agentstore import
Store``, which everybody needs. Each import is the first in a process of its own and timed there,
so the interpreter's own start is no part of it. The processes come in turn, and neither package
comes first in every pair. Their bytecode is compiled already, as that of an installed package is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.measuring import Turn, compare, in_turn
from benchmarks.places import RESULTS
from benchmarks.targets import BOTH, TARGETS, show, wide

_PROGRAM = """
from time import perf_counter_ns
began = perf_counter_ns()
{statement}
print(perf_counter_ns() - began)
"""


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "imports.json", metavar="PATH")
    arguments = parser.parse_args()
    ours, theirs = in_turn(
        [_importing("from agentstore import Store"), _importing("import sqlalchemy")],
        rounds=arguments.rounds,
        per_round=1 if arguments.quick else 6,
        per_turn=1,
    )
    found = compare(ours, theirs)
    line = TARGETS["import"].line(
        "import",
        BOTH,
        found.ratio,
        found.lowest,
        found.highest,
        median_ms=ours.typical / 1e6,
        p99_ms=ours.p99 / 1e6,
    )
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"lines": [line]}, indent=2) + "\n", encoding="utf-8")
    show([line], wide())


def _importing(statement: str) -> Turn:
    program = [sys.executable, "-c", _PROGRAM.format(statement=statement)]

    def run(numbers: range) -> list[int]:
        return [
            int(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout)  # noqa: S603
            for _ in numbers
        ]

    return run


if __name__ == "__main__":
    main()
