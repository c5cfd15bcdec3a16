"""One user's calls are made twice: in a world with others, and in one without; answers must agree.

The comparison is the suite's own (tests/contract/two_worlds.py), which runs a few rounds there and
as many as there is time for here, by turns on ``Store`` and on ``AsyncStore``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentstore import AsyncStore, Store
from agentstore.testing import BlockingStore
from tests.chaos.arena import POSTGRESQL, SQLITE, Arena, Unavailable

TITLE = "two worlds"
ENGINES = (SQLITE, POSTGRESQL)

MODULE = "tests.contract.two_worlds"


def run(arena: Arena) -> None:
    try:
        worlds: Any = importlib.import_module(MODULE)
    except ModuleNotFoundError:
        raise Unavailable(f"{MODULE} is not there") from None

    @contextmanager
    def world(clock: Any) -> Iterator[Any]:
        url = arena.database()
        if arena.tally.tries % 2:
            store: Any = BlockingStore(lambda: AsyncStore(url, clock=clock))
        else:
            store = Store(url, clock=clock)
        with worlds.world_of(store) as made:
            yield made
        arena.drop(url)

    arena.tally.note = "acknowledged are answers that were compared"
    while arena.more():
        report = worlds.run(world, rounds=1, seed=arena.random.randrange(2**32))
        arena.tally.tries += 1
        arena.tally.acknowledged += report.calls
        for difference in report.differences:
            arena.tally.blame(difference)
