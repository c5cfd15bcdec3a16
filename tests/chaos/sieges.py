"""Writers that go on while what they talk to is killed under them, time and again.

An era is some blows at one database. Its writers meet errors, which must be typed, and must write
again after each blow. Then they end by themselves, and everything that they were told is looked
for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentstore import Store
from tests.chaos import ledger
from tests.chaos.arena import Arena, wait_for
from tests.chaos.deeds import Home
from tests.chaos.ledger import Note
from tests.chaos.writers import PROGRAMS, Child, Order

RECOVERY = 60.0
"""Seconds after a blow within which writers must write again."""
END = 60.0
"""Seconds within which a writer that was told to end must have ended."""


def besiege(
    arena: Arena,
    url: str,
    strike: Callable[[], object],
    *,
    blows: int,
    pause: float = 0.6,
    look_at: Callable[[], str] | None = None,
    options: dict[str, Any] | None = None,
    network: str | None = None,
) -> list[Note]:
    """Have writers write, strike so often, and compare; give what the writers noted.

    Args:
        arena: Where.
        url: By which the writers write.
        strike: Does the damage and puts things right again.
        blows: How many of them, if the arena's time allows.
        pause: The most seconds before each.
        look_at: Gives the URL by which to compare; None means the writers' own.
        options: The writers' settings.
        network: The file of the network that the writers are in; None means the machine's.
    """
    look_at = look_at or (lambda: url)
    over = arena.folder / f"over-{arena.number()}"
    writers: list[tuple[Child, Path]] = []
    name = f"e{arena.number()}"
    known = ledger.alarms(look_at(), deep=False)
    with Store(look_at()) as store:
        homes = [Home.make(store, f"{name}.{n}", name) for n in range(len(PROGRAMS))]
    for home, program in zip(homes, PROGRAMS, strict=True):
        book = arena.folder / home.name
        order = Order(url, book, home, arena.random.randrange(2**32), over, options=options or {})
        order = replace(order, network=network)
        writers.append((arena.start(program, order, book=book), book))
    # A store that is being opened says that nobody answers, and its program ends.
    if not wait_for(lambda: _all_above([0] * len(writers), writers), RECOVERY):
        arena.tally.blame(f"{name}: a writer wrote nothing in its first {RECOVERY:g} s")
    for _ in range(blows):
        time.sleep(arena.random.uniform(0.1, pause))
        strike()
        arena.tally.tries += 1
        before = [_acknowledged(book) for _, book in writers]
        if not wait_for(lambda before=before: _all_above(before, writers), RECOVERY):
            arena.tally.blame(f"{name}: a writer wrote nothing for {RECOVERY:g} s after a blow")
            break
        if not arena.more():
            break
    over.touch()
    for child, book in writers:
        if not child.ends_within(END):
            arena.tally.blame(f"writer {book.name} did not end within {END:g} s")
    notes = [note for _, book in writers for note in ledger.read(book)]
    arena.tally.count(notes)
    arena.compare(look_at(), notes)
    arena.examine(look_at(), known, deep=False)
    return notes


def _acknowledged(book: Path) -> int:
    return book.read_bytes().count(b'"end": "ok"') if book.exists() else 0


def _all_above(before: list[int], writers: list[tuple[Child, Path]]) -> bool:
    return all(_acknowledged(book) > n for n, (_, book) in zip(before, writers, strict=True))
