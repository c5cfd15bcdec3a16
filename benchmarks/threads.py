"""What a save costs the threads of a process: ``python -m benchmarks.threads``.

64 tasks of one AsyncStore save, each into a session of its own. Of each thread: the calls of
functions for one save, which are nearly the same on every machine and under every load, and the
processor's microseconds without the profiler. On SQLite there is a thread that writes; on
PostgreSQL the event loop's thread does everything.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Callable
from itertools import cycle, islice

from rich.table import Table
from sqlalchemy import URL

from agentstore import AsyncStore
from agentstore.execution.writer import Writer
from benchmarks.data import Contents, messages
from benchmarks.places import ENGINES, opened
from benchmarks.targets import wide

CALLERS = 64


class Meter:
    """What a thread does while it is watched."""

    def __init__(self, *, counting: bool) -> None:
        """Watch nothing yet; count calls, or else take the processor's time."""
        self.seconds = 0.0
        self._profile = cProfile.Profile() if counting else None
        self._since = 0.0

    def begin(self) -> None:
        """Watch this thread from here on."""
        self._since = time.thread_time()
        if self._profile is not None:
            self._profile.enable()

    def end(self) -> None:
        """Watch it no longer."""
        if self._profile is not None:
            self._profile.disable()
        self.seconds += time.thread_time() - self._since

    def calls(self) -> int:
        """Give the calls of functions."""
        stats = pstats.Stats(self._profile) if self._profile and self.seconds else None
        return 0 if stats is None else int(stats.total_calls)  # type: ignore[attr-defined]


def measure(url: URL, calls: int, *, counting: bool) -> tuple[Meter, Meter]:
    """Save; give what the event loop's thread did, and the writer's."""
    loop, writer = Meter(counting=counting), Meter(counting=counting)
    lead: Callable[[Writer], None] = Writer.lead
    watched = False

    def watched_lead(self: Writer) -> None:
        if not watched:
            return lead(self)
        writer.begin()
        try:
            lead(self)
        finally:
            writer.end()

    async def main() -> None:
        nonlocal watched
        stream = list(messages(4 * CALLERS))
        async with AsyncStore(url) as store:

            async def caller(number: int, calls: int) -> None:
                for message in islice(cycle(stream), number, number + calls):
                    await store.messages.save(f"caller-{number}", **message)

            async def together(calls: int) -> None:
                await asyncio.gather(*(caller(number, calls) for number in range(CALLERS)))

            await together(3)
            watched = True
            loop.begin()
            await together(calls)
            loop.end()
            watched = False

    Writer.lead = watched_lead  # type: ignore[method-assign]
    try:
        asyncio.run(main())
    finally:
        Writer.lead = lead  # type: ignore[method-assign]
    return loop, writer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--calls", type=int, default=60, help="of each of the 64 tasks")
    arguments = parser.parse_args()
    table = Table(title=f"A save, of {CALLERS} tasks, to each thread")
    for heading in ("engine", "thread", "calls of functions", "µs of the processor"):
        table.add_column(heading, justify="left" if heading in ("engine", "thread") else "right")
    saves = CALLERS * arguments.calls
    for engine in [arguments.engine] if arguments.engine else ENGINES:
        with opened(engine) as databases:
            url = databases.create(
                "threads", Contents(CALLERS, {f"caller-{n}": 0 for n in range(CALLERS)})
            )
            counted = measure(url, arguments.calls, counting=True)
            timed = measure(url, arguments.calls, counting=False)
        for name, one, other in zip(("event loop", "writer"), counted, timed, strict=True):
            if one.seconds:
                microseconds = other.seconds / saves * 1e6
                table.add_row(engine, name, f"{one.calls() / saves:.0f}", f"{microseconds:.0f}")
    wide().print(table)


if __name__ == "__main__":
    main()
