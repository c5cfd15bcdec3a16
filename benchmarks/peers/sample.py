"""The conversations that all programs are given: turns of a question and its answer.

They come from the files of real conversations beside this project, if those are there, shuffled
the same way every time; else from ``benchmarks.data``. A run says which.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path

from benchmarks.data import SEED, messages

Item = dict[str, str]
"""A message: ``role`` and ``content``."""

Turn = tuple[Item, Item]
"""A question of the user's and an answer of the assistant's."""

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
_FILES = ("airline.jsonl", "crosswoz.jsonl")
_GENERATED = 2_000


@dataclass(frozen=True, slots=True)
class Sample:
    """Turns, and where they come from."""

    turns: list[Turn]
    origin: str

    def some(self, count: int) -> list[Turn]:
        """Give so many turns, beginning again at the end."""
        return list(islice(cycle(self.turns), count))


def sample(folder: Path = SHARED) -> Sample:
    """Read the conversations of a folder, or make some if it has none."""
    paths = [path for name in _FILES if (path := folder / name).exists()]
    if not paths:
        return Sample(_generated(), "generated conversations; the real ones are not there")
    turns = [turn for path in paths for turn in _turns(path)]
    random.Random(SEED).shuffle(turns)
    return Sample(turns, f"real conversations: {', '.join(path.name for path in paths)}")


def _turns(path: Path) -> Iterator[Turn]:
    for line in path.read_text(encoding="utf-8").splitlines():
        for one, other in pairwise(json.loads(line)["messages"]):
            roles = (one["role"], other["role"])
            if roles == ("user", "assistant") and one["content"] and other["content"]:
                yield _turn(one["content"], other["content"])


def _turn(question: str, answer: str) -> Turn:
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}


def _generated() -> list[Turn]:
    made = [message["content"] for message in messages(4 * _GENERATED)]
    return [_turn(made[n], made[n + 3]) for n in range(0, len(made), 4)]
