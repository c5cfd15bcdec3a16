"""The power fails under SQLite: replayed from a record of what went to the disk.

strace records every write, truncation, name and sync of a program, and what it had acknowledged. At
a moment drawn by lot all that was synced is kept; the rest is lost, or arrives in part, in another
order, or torn at sectors (``disks.py``). Then the file is opened. With ``synchronous="FULL"``
everything acknowledged must be there; with NORMAL a beginning of it, without a gap. What was cut
short in the middle of a migration, a copy, a backup or a deletion is begun again and must come to
its end.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.chaos.arena import SQLITE, Arena, Unavailable
from tests.chaos.disks import MODES, Disk
from tests.chaos.ledger import Note
from tests.chaos.recorded import SCENARIOS, Scenario
from tests.chaos.recording import Operation, available, record

TITLE = "power cuts"
ENGINES = (SQLITE,)

CUTS = 10
"""For each recording."""
RECORDING = 300.0


def run(arena: Arena) -> None:
    if not available():
        raise Unavailable("strace is not installed, or may not trace here")
    while arena.more():
        # In another order each time: where time is short only some of them are done.
        for name, scenario in arena.random.sample([*SCENARIOS.items()], len(SCENARIOS)):
            if arena.more():
                _record_and_cut(arena, name, scenario)


def _record_and_cut(arena: Arena, name: str, scenario: Scenario) -> None:
    folder = arena.folder / f"recorded-{arena.number()}"
    folder.mkdir()
    prepared = scenario.prepare(folder, arena.house.template())
    held = {str(path): path.read_bytes() for path in folder.iterdir() if path.is_file()}
    operations = record(folder, arena.folder / "trace", name, str(folder), seconds=RECORDING)
    shutil.rmtree(folder)
    for _ in range(min(CUTS, arena.left)):
        if not arena.more():
            break
        cut(arena, name, scenario, prepared, folder, held, operations)


def cut(
    arena: Arena,
    name: str,
    scenario: Scenario,
    prepared: Any,
    folder: Path,
    held: dict[str, bytes],
    operations: list[Operation],
) -> None:
    """Cut the power at a moment drawn by lot, and look what is left."""
    draw = arena.random
    told = [place + 1 for place, each in enumerate(operations) if each.kind == "note"]
    # Right after an acknowledgement is when most is at stake.
    moment = draw.choice(told) if told and draw.random() < 0.5 else draw.randint(0, len(operations))
    mode = draw.choice(MODES)
    disk = Disk.holding(held)
    for number, operation in enumerate(operations[:moment]):
        disk.do(number, operation)
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in disk.cut(mode, draw).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
    notes: list[Note] = [json.loads(line) for line in b"".join(disk.notes).splitlines()]
    arena.tally.tries += 1
    arena.tally.count(notes)
    lost, wrong = arena.tally.lost, arena.tally.wrong
    try:
        scenario.judge(folder, notes, arena.tally, prepared)
    except Exception as error:  # noqa: BLE001 - whatever it is, the file is not as it should be
        arena.tally.blame(f"{name}: {type(error).__name__}: {error}")
    if (lost, wrong) != (arena.tally.lost, arena.tally.wrong):
        where = f"operation {moment} of {len(operations)}, {mode} of the rest kept"
        arena.tally.problems[f"  that was {name}: cut at {where}"] += 1
    shutil.rmtree(folder, ignore_errors=True)
