"""Ids that agentstore makes are UUIDs of version 7, and no two are equal."""

import uuid
from concurrent.futures import ThreadPoolExecutor

from agentstore.values import types
from agentstore.values.types import new_id


def milliseconds(identity):
    return uuid.UUID(identity).int >> 80


def test_an_id_of_a_later_millisecond_sorts_later(monkeypatch):
    made = []
    for millisecond in (0, 1, 2**32, 1_700_000_000_000, 1_700_000_000_001, 2**48 - 1):
        monkeypatch.setattr(types.time, "time_ns", lambda now=millisecond: now * 1_000_000)
        made.append(new_id())
    assert made == sorted(made)


def test_no_two_ids_are_equal_while_the_clock_stands_still(monkeypatch):
    monkeypatch.setattr(types.time, "time_ns", lambda: 1_700_000_000_000_000_000)
    made = [new_id() for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert {milliseconds(identity) for identity in made} == {1_700_000_000_000}


def test_all_bits_but_the_clock_and_the_version_are_random(monkeypatch):
    monkeypatch.setattr(types.time, "time_ns", lambda: 0)
    made = [uuid.UUID(new_id()).int for _ in range(2000)]
    ever, always = 0, (1 << 128) - 1
    for number in made:
        ever |= number
        always &= number
    varying = ever & ~always
    assert varying == (0xFFF << 64) | ((1 << 62) - 1)


def test_threads_never_make_the_same_id():
    with ThreadPoolExecutor(8) as threads:
        made = [
            identity
            for batch in threads.map(lambda _: [new_id() for _ in range(1000)], range(16))
            for identity in batch
        ]
    assert len(set(made)) == len(made)
