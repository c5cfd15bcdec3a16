"""One user's calls are made twice: in a world with others, and in one without; answers must agree.

The comparison is the suite's own (tests/contract/test_two_worlds.py), which runs a few rounds there
and as many as there is time for here.
"""

from __future__ import annotations

import importlib
from typing import Any

from tests.chaos.arena import Arena, Unavailable

TITLE = "two worlds"
ENGINES = ("both",)

MODULE = "tests.contract.test_two_worlds"
AT_ONCE = 50


def run(arena: Arena) -> None:
    try:
        worlds: Any = importlib.import_module(MODULE)
    except ModuleNotFoundError:
        raise Unavailable(f"{MODULE} is not there") from None
    while arena.more():
        rounds = min(AT_ONCE, arena.left)
        tries, wrong = worlds.run(rounds=rounds, seed=arena.random.randrange(2**32))
        arena.tally.tries += tries
        for _ in range(wrong):
            arena.tally.blame("an answer depends on another user's data")
        if not tries:
            raise Unavailable(f"{MODULE} tried nothing")
