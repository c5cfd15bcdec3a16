"""``python -m tests.chaos``: run cases, print the table, fail where anything is lost or wrong.

It fails, too, where a case could not be tried; its row says what it lacks.
"""

import argparse
import contextlib
import logging
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.arena import Arena, House, Unavailable
from tests.chaos.cases import CASES, Row, module_of, table

MINUTES = 5.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the cases, and end")
    parser.add_argument("--cases", default="", help="some of them, by commas; all by default")
    parser.add_argument("--engines", default="", help="sqlite or postgresql; both by default")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="for all cases together (%(default)g)"
    )
    parser.add_argument("--rounds", type=int, help="exactly so many tries of each, however long")
    parser.add_argument("--seed", type=int, help="repeats the random choices of an earlier run")
    parser.add_argument("--markdown", action="store_true", help="print the table for a page")
    given = parser.parse_args()
    given.cases = [name for name in given.cases.replace(" ", ",").split(",") if name] or [*CASES]
    given.engines = [name for name in given.engines.split(",") if name]
    if unknown := {*given.cases} - {*CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; see --list")
    if given.rounds is not None and given.rounds < 1:
        parser.error("--rounds starts at 1")
    return given


def main() -> int:
    given = arguments()
    if given.list:
        for case in CASES:
            module: Any = module_of(case)
            print(f"{case:16} {module.TITLE} ({', '.join(module.ENGINES)})")
        return 0
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    _say(f"seed {seed}")
    rows: list[Row] = []
    # What breaks is meant to; the table says what came of it.
    logging.disable()
    # To be stopped is no reason to leave servers and folders behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    house = House(Path(tempfile.mkdtemp(prefix="agentstore-chaos-")))
    stopped = False
    try:
        run(given, seed, house, rows)
    except KeyboardInterrupt:
        stopped = True
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            house.close()
    print(table(rows, markdown=given.markdown))
    if stopped:
        _say("stopped; the table has what was done until then")
        return 130
    return exit_code(rows)


def exit_code(rows: list[Row]) -> int:
    """Give 1 where anything was lost or wrong, or a case could not be tried at all."""
    return int(any(row.tally.lost or row.tally.wrong or not row.tally.tries for row in rows))


def run(given: argparse.Namespace, seed: int, house: House, rows: list[Row]) -> None:
    """Run what was asked for, one after the other, and add a row for each as it begins."""
    due = [
        (case, engine)
        for case in given.cases
        for engine in module_of(case).ENGINES  # type: ignore[attr-defined]
        if not given.engines or engine in given.engines
    ]
    end = time.monotonic() + given.minutes * 60
    for done, (case, engine) in enumerate(due):
        module: Any = module_of(case)
        # What a case left of its time is the others'.
        seconds = max(0.0, end - time.monotonic()) / (len(due) - done)
        arena = Arena(house, engine, seed=seed, rounds=given.rounds, seconds=seconds)
        rows.append(Row(module.TITLE, engine, arena.tally))
        _say(f"{module.TITLE}, {engine} ...")
        began = time.monotonic()
        with arena:
            try:
                module.run(arena)
            except Unavailable as reason:
                arena.tally.note = str(reason)
        for problem, times in arena.tally.problems.items():
            _say(f"  {problem}" + (f" ({times} times)" if times > 1 else ""))
        if arena.tally.errors:
            met = ", ".join(f"{name} {n:,}" for name, n in arena.tally.errors.most_common())
            _say(f"  errors that callers met: {met}")
        _say(f"  {', '.join(rows[-1].cells[2:6])} in {time.monotonic() - began:.0f} s")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
