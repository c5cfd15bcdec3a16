"""Both engines answer alike, and so whatever they are passed: values, order, errors, their words.

The calls are those of ``tenants``, at random; in every third one an argument is replaced by an odd
one: at the edge of what can be stored or beyond it, or of another type.
"""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest

from agentstore import Store
from tests.conftest import FULL
from tests.contract.clocks import NOON
from tests.contract.tenants import ACTORS, Chosen, Step, methods, program
from tests.contract.two_worlds import STEPS, Labels, Life, world_of

SEEDS, LENGTH = (range(40), STEPS) if FULL else (range(1), 200)
pytestmark = pytest.mark.timeout(1800 if FULL else 300)

EARLY, LATE = timezone(timedelta(hours=14)), timezone(timedelta(hours=-14))
ODD: dict[type, list[Any]] = {
    int: [0, 1, -1, True, 1.0, 2**31, 2**62, 2**63 - 2, 2**63 - 1, 2**63, -(2**63), 10**30],
    str: ["", " ", "a\x00b", "\ud800", "😀", "%", "_", "'", "a" * 3000, "ß", "İ", "1️⃣", "\u202e"],
    datetime: [datetime.min.replace(tzinfo=EARLY), datetime.max.replace(tzinfo=LATE),
        datetime(1969, 1, 1, tzinfo=UTC), NOON.replace(tzinfo=None)],
    timedelta: [timedelta(days, 0, n) for days in (0, -1, 3_650_000) for n in (0, 1)],
    dict: [{}, {"": 1}, {"a\x00": "\ud800"}, {1: 2}, {"a": math.nan}, {"a": -0.0}, {"a": 2**64}],
    list: [[], [None], ["", 1], [[]], [{"role": "user"}], [{"role": "user", "seq": 1}], ()],
    bytes: [b"", b"\x00"],
}  # fmt: skip
"""By the type of what is replaced."""

EVERY = [None, *(value for values in ODD.values() for value in values)]


def disturbed(steps: list[Step], random: Random) -> list[Step]:
    """Replace an argument of every third call; a page is asked for as before."""
    return [_disturbed(s, random) if random.random() < 1 / 3 else s for s in steps]


def _disturbed(step: Step, random: Random) -> Step:
    names = [p.name for p in methods().get(step.method, ()) if p.name != "cursor"]
    if step.by_worker or not names:
        return step
    name = random.choice(names)
    before = step.arguments.get(name)
    kind = str if isinstance(before, Chosen) else type(before)
    value = random.choice(ODD.get(kind, EVERY) if random.random() < 0.8 else EVERY)
    kept = {key: given for key, given in step.arguments.items() if key != "cursor"}
    return replace(step, arguments={**kept, name: value})


@pytest.mark.parametrize("seed", SEEDS)
def test_both_engines_answer_alike_whatever_they_are_passed(new, seed):
    steps = disturbed(program(seed, LENGTH), Random(seed))  # noqa: S311
    lives = []
    for engine in ("sqlite", "postgresql"):
        url = new(engine, head=True)
        life = Life(lambda clock, url=url: world_of(Store(url, clock=clock)), {}, others_act=True)
        labels = Labels()
        told = life.live(steps, ACTORS)
        lives.append([(labels.write(told[n].said), told[n].arguments) for n in range(len(steps))])
    for step, (one, arguments), (other, _) in zip(steps, *lives, strict=True):
        assert one == other, f"{step.actor} calls {step.method}({arguments})"
