"""Costs, counted where they happen: at the driver, on the wire, in the write-ahead log.

A count is the same on every machine and under every load, so a test can hold a path to it. None of
the counters listens to SQLAlchemy's executions, for whoever does changes the path that is counted.

SQLite is in the process and has no round trips. Its statements are the calls of the driver's
cursor, BEGIN and COMMIT included; its commits are the frames of the WAL that end a transaction,
each of which ``synchronous=FULL`` syncs.

PostgreSQL's protocol is written down by libpq itself. A statement is what the server has completed;
each exchange ends with the server's ReadyForQuery, whatever library asked and however, so their
number is the number of round trips. A commit is the end of a transaction, explicit or of a single
statement in autocommit, in which something was written.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, Pool, event


@dataclass(frozen=True, slots=True)
class Cost:
    """What an operation cost.

    Attributes:
        round_trips: None on an engine without a wire.
        sent: The statements, to be shown.
    """

    statements: int
    round_trips: int | None
    commits: int
    sent: tuple[str, ...] = field(default=(), compare=False, repr=False)


class Meter:
    """Counts what the connections do that were opened while it was there; see ``metered``."""

    def __init__(self) -> None:
        """Know of no connection yet."""
        self._sent: list[str] = []
        self._logs: dict[str, WriteAheadLog] = {}
        self._wires: list[Wire] = []

    def cost(self, operation: Callable[[], object]) -> Cost:
        """Run an operation and count what it did. Nobody else may use the connections meanwhile."""
        for wire in self._wires:
            wire.cost()
        for log in self._logs.values():
            log.commits()
        self._sent.clear()
        operation()
        if not self._wires:
            commits = sum(log.commits() for log in self._logs.values())
            return Cost(len(self._sent), None, commits, tuple(self._sent))
        costs = [wire.cost() for wire in self._wires]
        return Cost(
            sum(cost.statements for cost in costs),
            sum(cost.round_trips or 0 for cost in costs),
            sum(cost.commits for cost in costs),
            tuple(sql for cost in costs for sql in cost.sent),
        )

    def on_sqlite(self, path: str, parameters: dict[str, Any]) -> None:
        """Count what a connection to a file is told, from its first word."""
        self._logs.setdefault(path, WriteAheadLog(Path(path)))
        parameters["factory"] = _connection_noting(self._sent)

    @contextmanager
    def on_postgresql(self, connection: Any) -> Iterator[None]:
        """Have libpq write down what a connection says and hears, until the block ends."""
        with tempfile.TemporaryFile() as log:
            wire = Wire(connection, log.fileno())
            self._wires.append(wire)
            yield
            wire.flush()


@contextmanager
def metered() -> Iterator[Meter]:
    """Count on every connection that any engine opens inside the block.

    Raises:
        psycopg.NotSupportedError: By connecting to PostgreSQL where libpq writes no trace; it does
            on Linux only.
    """
    meter = Meter()

    def connecting(dialect: Any, _record: Any, arguments: Any, parameters: Any) -> None:
        if dialect.name == "sqlite":
            meter.on_sqlite(arguments[0], parameters)

    def connected(_dbapi_connection: Any, record: Any) -> None:
        if hasattr(record.driver_connection, "pgconn"):
            traces.enter_context(meter.on_postgresql(record.driver_connection))

    with ExitStack() as traces:
        event.listen(Engine, "do_connect", connecting)
        event.listen(Pool, "connect", connected)
        try:
            yield meter
        finally:
            event.remove(Engine, "do_connect", connecting)
            event.remove(Pool, "connect", connected)


# --- SQLite ----------------------------------------------------------------------------------


def _connection_noting(sent: list[str]) -> type[sqlite3.Connection]:
    """Make a connection that notes what it is told.

    Not SQLite's own trace: it reports a statement again for every trigger that it fires.
    """

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            sent.append(sql)
            return super().execute(sql, parameters)

        def executemany(self, sql: str, parameters: Any, /) -> Any:
            sent.append(sql)
            return super().executemany(sql, parameters)

        def executescript(self, script: str, /) -> Any:
            sent.append(script)
            return super().executescript(script)

    class Connection(sqlite3.Connection):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            # If the log started over during a call, the commits before that would not be counted.
            sqlite3.Cursor(self).execute("PRAGMA wal_autocheckpoint=0")

        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def commit(self) -> None:
            if self.in_transaction:
                sent.append("COMMIT")
            super().commit()

        def rollback(self) -> None:
            if self.in_transaction:
                sent.append("ROLLBACK")
            super().rollback()

    return Connection


class WriteAheadLog:
    """The WAL of a SQLite file, read as bytes: https://sqlite.org/fileformat2.html#walformat."""

    _HEADER, _FRAME = 32, 24

    def __init__(self, database: Path) -> None:
        """Look at nothing yet."""
        self._path = database.with_name(database.name + "-wal")
        self._salt, self._frames = b"", 0

    def commits(self) -> int:
        """Give the transactions that were written since the last look, whoever wrote them."""
        return self._look()[1]

    def pages(self) -> int:
        """Give the pages that were written since the last look; some may be the same page."""
        return self._look()[0]

    def _look(self) -> tuple[int, int]:
        pages = commits = 0
        if not self._path.exists():
            return pages, commits
        with self._path.open("rb") as log:
            header = log.read(self._HEADER)
            if header[16:24] != self._salt:
                # It was checkpointed, and is written from its beginning again.
                self._salt, self._frames = header[16:24], 0
            size = self._FRAME + int.from_bytes(header[8:12], "big")
            while True:
                log.seek(self._HEADER + self._frames * size)
                frame = log.read(self._FRAME)
                if len(frame) < self._FRAME or frame[8:16] != self._salt:
                    return pages, commits
                self._frames += 1
                pages += 1
                commits += frame[4:8] != bytes(4)  # the pages of the database, if it is the last


# --- PostgreSQL ------------------------------------------------------------------------------

_MESSAGE = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\t([FB])\t\d+\t(\w+)", re.MULTILINE)
"""Where a message begins in libpq's trace; SQL is written as it is, line breaks included."""
_TEXT = re.compile(rb'"(.*)"', re.DOTALL)
_NAME_AND_TEXT = re.compile(rb'"([^"]*)" "(.*)"', re.DOTALL)
_PORTAL_AND_NAME = re.compile(rb'"[^"]*" "([^"]*)"')
_WRITES = re.compile(rb"\b(INSERT|UPDATE|DELETE|MERGE|NOTIFY|pg_notify)\b", re.IGNORECASE)


class Wire:
    """What libpq writes down of one connection, from its first statement on."""

    def __init__(self, connection: Any, log: int) -> None:
        """Have libpq write into a file."""
        self._connection = connection
        self._log = log
        self._place = 0
        self._prepared: dict[bytes, bytes] = {}
        connection.pgconn.trace(log)

    def flush(self) -> None:
        """Have all written; libpq keeps what it has heard until it speaks again, or ends."""
        if not self._connection.closed:
            self._connection.pgconn.untrace()

    def cost(self) -> Cost:
        """Give what was said since the last look; no transaction may be open."""
        trips = commits = 0
        asked: list[bytes] = []
        sent: list[str] = []
        wrote = undone = False
        self.flush()
        for side, kind, rest in self._messages():
            if side == b"F":
                asked += self._asked(kind, rest)
            elif kind in (b"CommandComplete", b"ErrorResponse"):
                sql = asked.pop(0) if len(asked) > 1 else asked[0]
                sent.append(sql.decode())
                undone = kind == b"ErrorResponse" or b'"ROLLBACK"' in rest
                wrote = wrote or _WRITES.search(sql) is not None
            elif kind == b"ReadyForQuery":
                trips += 1
                asked.clear()
                if rest.strip() == b"I":  # for idle: no transaction is open any more
                    commits += wrote and not undone
                    wrote = False
        if not self._connection.closed:
            self._connection.pgconn.trace(self._log)
        return Cost(len(sent), trips, commits, tuple(sent))

    def _messages(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        length = os.fstat(self._log).st_size - self._place
        text = os.pread(self._log, length, self._place)  # libpq writes where this file stands
        self._place += length
        _, *parts = _MESSAGE.split(text)
        return zip(parts[::3], parts[1::3], parts[2::3], strict=True)

    def _asked(self, kind: bytes, rest: bytes) -> list[bytes]:
        """Give the SQL that a message has run."""
        if kind == b"Query":
            return _TEXT.findall(rest)
        if kind == b"Parse":
            self._prepared.update(_NAME_AND_TEXT.findall(rest))
        if kind == b"Bind":
            return [self._prepared[name] for name in _PORTAL_AND_NAME.findall(rest)[:1]]
        return []


# --- Round trips of connections that are open -------------------------------------------------


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
