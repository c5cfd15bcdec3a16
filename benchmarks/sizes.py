"""What conversations take on the disk: ``python -m benchmarks.sizes``.

Conversations of ten to ten thousand messages are saved through a ``Store``, each length into a
database of its own, and what the database grew by is divided by their number: all tables and all
indexes, first without the search index, which is only made when somebody searches, and then with
it. Beside that stands the payload itself: the same messages as JSON, one line each. Bytes do not
depend on the weather, so they are measured once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from sqlalchemy import URL, create_engine, text

from agentstore import Store
from benchmarks.data import Message, messages
from benchmarks.databases import Databases
from benchmarks.places import ENGINES, RESULTS, opened
from benchmarks.targets import wide

LENGTHS = (10, 100, 1_000, 10_000)
TOTAL = 20_000
"""Messages of each length's conversations together."""
_BATCH = 500


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "sizes.json", metavar="PATH")
    arguments = parser.parse_args()
    lengths, total = (LENGTHS[:2], 200) if arguments.quick else (LENGTHS, TOTAL)
    points: list[dict[str, Any]] = []
    for engine in [arguments.engine] if arguments.engine else ENGINES:
        with opened(engine) as databases:
            points += [_measure(databases, length, total // length) for length in lengths]
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"sizes": points}, indent=2) + "\n", encoding="utf-8")
    _print(points)


def _measure(databases: Databases, length: int, conversations: int) -> dict[str, Any]:
    url = databases.make(f"sizes_{length}")
    empty = _size(url)
    payload = 0
    with Store(url) as store:
        for number in range(conversations):
            session = store.sessions.create().id
            for batch in _batches(length, seed=number):
                payload += sum(len(_as_json(message)) for message in batch)
                store.messages.save_many(session, batch)
        bare = _size(url)
        store.search.refresh()
    whole = _size(url)
    return {
        "engine": databases.name,
        "messages": length,
        "payload_bytes": payload // conversations,
        "bytes": (bare - empty) // conversations,
        "bytes_with_search": (whole - empty) // conversations,
    }


def _batches(length: int, seed: int) -> Iterator[list[Message]]:
    made = list(messages(length, seed))
    for start in range(0, length, _BATCH):
        yield made[start : start + _BATCH]


def _as_json(message: Message) -> bytes:
    """Write a message as a program would into a file of its own."""
    written = {k: v for k, v in message.items() if v is not None}
    return json.dumps(written, ensure_ascii=False, separators=(",", ":"), default=str).encode()


def _size(url: URL) -> int:
    """Give the bytes of all tables and indexes that are in use."""
    on_a_server = url.get_backend_name() == "postgresql"
    query = (
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        if on_a_server
        else "SELECT (page_count - freelist_count) * page_size "
        "FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
    )
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if on_a_server:
            connection.execute(text("VACUUM"))
        found = connection.execute(text(query)).scalar()
    engine.dispose()
    return int(found or 0)


def _print(points: list[dict[str, Any]]) -> None:
    table = Table(title="Bytes of a conversation", box=SIMPLE_HEAD)
    for heading in ("engine", "messages", "payload", "stored", "with the search index"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for point in points:
        table.add_row(
            point["engine"],
            f"{point['messages']:,}",
            f"{point['payload_bytes']:,}",
            f"{point['bytes']:,}",
            f"{point['bytes_with_search']:,}",
        )
    wide().print(table)


if __name__ == "__main__":
    main()
