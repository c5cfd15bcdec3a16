"""Round trips, counted where they happen: on the wire.

libpq can write down every protocol message of a connection. Each exchange ends with the server's
ReadyForQuery, whatever library asked and however, so their number is the number of round trips.
SQLite is in the process and has none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Pool, event


@contextmanager
def opened_connections() -> Iterator[list[Any]]:
    """Collect the driver connections that any engine opens inside the block."""
    opened: list[Any] = []

    def remember(_dbapi_connection: Any, record: Any) -> None:
        opened.append(record.driver_connection)

    event.listen(Pool, "connect", remember)
    try:
        yield opened
    finally:
        event.remove(Pool, "connect", remember)


def round_trips(connections: Sequence[Any], operation: Callable[[], object]) -> int | None:
    """Run an operation and count its round trips on these connections; None where none can be.

    libpq writes such traces on Linux only.
    """
    wires = [c.pgconn for c in connections if hasattr(c, "pgconn") and not c.closed]
    with tempfile.TemporaryFile() as log:
        try:
            for wire in wires:
                wire.trace(log.fileno())
        except psycopg.NotSupportedError:
            wires = []
        if not wires:
            return None
        operation()
        for wire in wires:
            wire.untrace()
        log.seek(0)
        return sum(b"\tReadyForQuery\t" in line for line in log)
