"""What a call allocates, in bytes: at its height, and in all.

Python tells how much it has allocated, not how much was given back meanwhile. So the call is run
under a profiler, which looks at every call and return, of Python and of C: what memory rose by
between two looks was allocated, whatever fell before. Records that are built twice and dropped at
once show in that sum, and such that are kept twice show in the height too.

Bytes differ between versions of Python, so they are only ever compared with those of a plain
implementation, in the same process.
"""

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Collection
from dataclasses import dataclass
from statistics import median
from types import FunctionType
from typing import Any

_WARMING, _CALLS = 8, 7
_MOMENT = 0.005
"""Seconds in which another thread lets go of what it gave."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """Bytes.

    Attributes:
        peak: By how much memory was higher at one time than before.
        total: What was allocated by this thread, given back or not.
    """

    peak: float
    total: float


def allocated(call: Callable[[], object]) -> Allocated:
    """Run a call several times, and give what it allocates.

    Both are the median of several calls, for now and then a cache or a free list grows. A thread
    may hold for a moment what a call before has returned, so each call waits for a moment first.
    """
    for _ in range(_WARMING):
        call()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        call()  # replaces what was made unseen
        heights = [_height(call) for _ in range(_CALLS)]
        noise = _noise()
        totals = [_total(call, noise) for _ in range(_CALLS)]
    finally:
        tracemalloc.stop()
        gc.enable()
    return Allocated(median(heights), median(totals))


def _height(call: Callable[[], object]) -> int:
    time.sleep(_MOMENT)
    ground, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    call()
    _, peak = tracemalloc.get_traced_memory()
    return peak - ground


def times_called(functions: Collection[FunctionType], call: Callable[[], object]) -> int:
    """Run a call, and count how often any of these Python functions is called by it."""
    codes = {function.__code__ for function in functions}
    count = 0

    def at_every_step(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code in codes

    sys.setprofile(at_every_step)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def _total(call: Callable[[], object], noise: int = 0) -> int:
    """Sum up by how much memory rose between any two steps, but for what a look takes itself."""
    look, forget = tracemalloc.get_traced_memory, tracemalloc.reset_peak
    total = last = 0

    def at_every_step(frame: Any, event: str, argument: Any) -> None:
        nonlocal total, last
        current, peak = look()
        if (rise := peak - last - noise) > 0:
            total += rise
        forget()
        last = current

    forget()
    last, _ = look()
    sys.setprofile(at_every_step)
    try:
        call()
    finally:
        sys.setprofile(None)
    return total


def _noise() -> int:
    """Give what a look takes: a few integers, on most versions of Python."""

    def steps() -> None:
        for _ in range(1_000):
            _nothing()

    return round(min(_total(steps) for _ in range(_CALLS)) / 2_000)


def _nothing() -> None:
    pass
