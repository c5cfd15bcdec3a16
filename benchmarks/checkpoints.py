"""Checkpoints of a growing history: what they take, and whether late ones are slower.

Run as ``python -m benchmarks.checkpoints``. Each thread gets 200 puts of a history that grows
from 50 to 448 messages of 400 bytes, whole at each put. Bytes are those of the database itself,
all tables and indexes, compared with the distinct payload: each message once, as JSON. One
payload is English-like text, the other is random letters; nothing is compressed. Late puts of one
thread alternate with early ones of the next, so that what disturbs the machine disturbs both.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from sqlalchemy import create_engine, event, text

from agentstore import Store
from benchmarks.places import ENGINES, RESULTS, opened
from benchmarks.targets import wide

PUTS, FIRST, ADDED, MESSAGE_BYTES = 200, 50, 2, 400
EARLY, LATE = range(10, 40), range(PUTS - 30, PUTS)
BYTES_AIM, LATE_AIM = 2.0, 1.5

_TEXT = """
the agent asked for weather in a city and tool answered with forecast of rain later today please
check hotel near station before booking train ticket user prefers quiet room price
"""
_WORDS = _TEXT.split()


def messages(kind: str, seed: int) -> list[dict[str, str]]:
    """Make the whole history; each message is 400 bytes of JSON."""
    chance = random.Random(seed)
    made = []
    for number in range(FIRST + ADDED * (PUTS - 1)):
        message = {"role": "user" if number % 2 else "assistant", "content": ""}
        room = MESSAGE_BYTES - len(json.dumps(message, separators=(",", ":")))
        if kind == "random":
            content = "".join(chance.choice(_LETTERS) for _ in range(room))
        else:
            content = " ".join(chance.choice(_WORDS) for _ in range(room))[:room]
        made.append({**message, "content": content})
    return made


_LETTERS = "".join(map(chr, range(35, 92))) + "".join(map(chr, range(93, 127)))


@dataclass(frozen=True, slots=True)
class Measured:
    """One kind of payload on one engine."""

    engine: str
    payload: str
    distinct: int
    taken: int
    values: int
    early_ms: float
    late_ms: float
    puts_per_second: float
    early_statements: int
    late_statements: int
    read_early_ms: float
    read_late_ms: float

    @property
    def bytes_ratio(self) -> float:
        """What the database grew by, over the distinct payload."""
        return self.taken / self.distinct

    @property
    def late_ratio(self) -> float:
        """A late put's time over an early one's: medians."""
        return self.late_ms / self.early_ms


def measure(engine: str, url: str, kind: str, threads: int) -> Measured:
    """Put the threads, and read one of them."""
    histories = [messages(kind, seed) for seed in range(threads)]
    distinct = sum(len(json.dumps(h, separators=(",", ":"))) for h in histories)
    with Store(url) as store:
        puts = store.checkpoints.put
        for number in range(20):  # compiles the statements, and opens the tables' first pages
            puts("warm", {"messages": histories[0][: FIRST + number]})
        store.checkpoints.delete_thread("warm")
        before = size_of(url)
        early: list[float] = []
        late: list[float] = []
        statements: dict[int, int] = {}
        begun = time.perf_counter()
        with counted(store) as count:

            def put(thread: int, number: int) -> float:
                state = {"messages": histories[thread][: FIRST + ADDED * number]}
                count.clear()
                took = seconds(lambda: puts(f"thread-{thread:04}", state))
                statements[number] = len(count)
                return took

            # The late puts of each thread alternate with the early ones of the next.
            for thread in range(threads):
                for number in range(EARLY[0]):
                    put(thread, number)
                for one, other in zip(EARLY, LATE, strict=True):
                    early.append(put(thread, one))
                    if thread:
                        late.append(put(thread - 1, other))
                for number in range(EARLY[-1] + 1, LATE[0]):
                    put(thread, number)
            for number in LATE:
                put(threads - 1, number)
        took = time.perf_counter() - begun
        after = size_of(url)
        heads = store.checkpoints.list("thread-0000", limit=PUTS).items
        reads = {head.step: head.id for head in heads}
        get = store.checkpoints.get
        read_early = statistics.median(seconds(lambda: get(reads[EARLY[0]])) for _ in range(30))
        read_late = statistics.median(seconds(lambda: get(reads[LATE[-1]])) for _ in range(30))
        values = stored_values(url)
    return Measured(
        engine=engine,
        payload=kind,
        distinct=distinct,
        taken=after - before,
        values=values,
        early_ms=1e3 * statistics.median(early[len(EARLY) :]),
        late_ms=1e3 * statistics.median(late),
        puts_per_second=PUTS * threads / took,
        early_statements=statements[EARLY[0]],
        late_statements=statements[LATE[-1]],
        read_early_ms=1e3 * read_early,
        read_late_ms=1e3 * read_late,
    )


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@contextmanager
def counted(store: Store) -> Iterator[list[str]]:
    """Collect the statements that a store sends."""
    sent: list[str] = []

    def remember(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(store._engine, "before_cursor_execute", remember)
    yield sent
    event.remove(store._engine, "before_cursor_execute", remember)


def size_of(url: str) -> int:
    """Give the bytes of all tables and indexes that are in use."""
    query = (
        "SELECT (SELECT page_count FROM pragma_page_count()) * "
        "(SELECT page_size FROM pragma_page_size()) - "
        "(SELECT freelist_count FROM pragma_freelist_count()) * "
        "(SELECT page_size FROM pragma_page_size())"
        if url.startswith("sqlite")
        else "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relkind = 'r' AND relname LIKE 'checkpoint%'"
    )
    return int(scalar(url, query, vacuum=not url.startswith("sqlite")))


def stored_values(url: str) -> int:
    """Give the bytes of the values themselves."""
    on_lines = scalar(url, "SELECT coalesce(sum(length(data)), 0) FROM checkpoint_values")
    small = scalar(url, "SELECT coalesce(sum(length(small_values)), 0) FROM checkpoints")
    return int(on_lines) + int(small)


def scalar(url: str, query: str, *, vacuum: bool = False) -> Any:
    """Ask past the store; on a server first let it take back what dead rows held."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if vacuum:
            connection.execute(text("VACUUM"))
        found = connection.execute(text(query)).scalar()
    engine.dispose()
    return found


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--threads", type=int, default=6, help="two at least")
    parser.add_argument("--json", type=Path, default=RESULTS / "checkpoints.json", metavar="PATH")
    arguments = parser.parse_args()
    found: list[Measured] = []
    for engine in (arguments.engine,) if arguments.engine else ENGINES:
        for kind in ("text", "random"):
            with opened(engine) as databases:
                url = databases.make("checkpoints").render_as_string(hide_password=False)
                found.append(measure(engine, url, kind, arguments.threads))
    show(found)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {field: getattr(one, field) for field in one.__slots__}
        | {"bytes_ratio": one.bytes_ratio, "late_ratio": one.late_ratio}
        for one in found
    ]
    arguments.json.write_text(json.dumps(lines, indent=2) + "\n")


def show(found: list[Measured]) -> None:
    """Print the figures beside their aims."""
    table = Table(title=f"{PUTS} puts of {FIRST} to 448 messages", box=SIMPLE_HEAD)
    for heading in ("engine", "payload"):
        table.add_column(heading)
    for heading in (
        f"bytes / distinct (≤ {BYTES_AIM:g})",
        "values / distinct",
        f"late / early put (≤ {LATE_AIM:g})",
        "early ms",
        "late ms",
        "puts/s",
        "statements",
        "read early, late ms",
    ):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(
            one.engine,
            one.payload,
            f"{one.bytes_ratio:.2f}",
            f"{one.values / one.distinct:.2f}",
            f"{one.late_ratio:.2f}",
            f"{one.early_ms:.2f}",
            f"{one.late_ms:.2f}",
            f"{one.puts_per_second:,.0f}",
            f"{one.early_statements}, {one.late_statements}",
            f"{one.read_early_ms:.2f}, {one.read_late_ms:.2f}",
        )
    wide().print(table)


if __name__ == "__main__":
    main()
