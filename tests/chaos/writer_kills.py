"""Writers are killed outright, at random moments, also while they open the store.

Several write into one database at a time: a thread, eight threads, and sixteen coroutines, with
every kind of call. All are killed, one after the other, while the others go on. Then everything
that they were told is looked for. After ``ERA`` rounds all is looked at once more, by the doctor
too, and the next rounds have a new database, so that looking costs the same after hours.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.chaos import ledger
from tests.chaos.arena import Arena, wait_for
from tests.chaos.deeds import Home
from tests.chaos.ledger import Note
from tests.chaos.writers import PROGRAMS, Child, Order

TITLE = "kills of writers"
ENGINES = ("sqlite", "postgresql")

PROCESSES = 5
ERA = 20
LONGEST = 0.25
"""Seconds for which a writer writes at most before it is killed."""


def run(arena: Arena) -> None:
    while arena.more():
        _era(arena)


def _era(arena: Arena) -> None:
    url = arena.database()
    known = ledger.alarms(url, deep=True)
    notes: list[Note] = []
    for number in range(ERA):
        if not arena.more():
            break
        told = _round(arena, url, f"r{number}")
        arena.tally.count(told)
        arena.compare(url, told)
        arena.examine(url, known, deep=False)
        notes += told
    arena.compare(url, notes)
    arena.examine(url, known, deep=True)
    arena.drop(url)


def _round(arena: Arena, url: str, name: str) -> list[Note]:
    from agentstore import Store

    writers: list[tuple[Child, Path]] = []
    with Store(url) as store:
        homes = [Home.make(store, f"{name}.{n}", name) for n in range(min(PROCESSES, arena.left))]
    for number, home in enumerate(homes):
        book = arena.folder / f"book-{time.monotonic_ns()}"
        order = Order(url, book, home, seed=arena.random.randrange(2**32))
        program = PROGRAMS[number % len(PROGRAMS)]
        writers.append((arena.start(program, order, book=book), book))
    for child, book in writers:
        if arena.random.random() < 0.85:
            # The others are killed while they open the store.
            wait_for(lambda book=book: book.exists() and book.stat().st_size)
        time.sleep(arena.random.uniform(0, LONGEST))
        child.kill()
        arena.tally.tries += 1
    return [note for _, book in writers for note in ledger.read(book)]
