"""What moving a SQLite file to PostgreSQL costs: ``python -m benchmarks.moving``.

A file with conversations (messages with tool calls, marks, tool logs) goes to PostgreSQL in turn
by ``agentstore.moving.copying.copy``, by ``sqlite3 -csv`` piped into ``psql \\copy``, and by
pgloader where it is installed. All three load into tables without keys and indexes and make these
afterwards; that is what the rates compare. What ``copy`` does beside it, reading the source for
rows that are not sound and both sides for their digests, is timed apart, and is in its total. The
peaks of memory are those of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import psycopg
from rich.console import Console
from rich.table import Table
from sqlalchemy import URL, create_engine, func, select

from agentstore.engines import dialect_for
from agentstore.moving import copying
from agentstore.schema import tables
from agentstore.values.types import new_id
from benchmarks.data import Contents, Row
from benchmarks.databases import Databases, SQLiteDatabases
from benchmarks.memory import peak
from benchmarks.places import RESULTS, opened

MESSAGES, QUICK, EACH = 500_000, 4_000, 1_000
CSV_AIM, PGLOADER_AIM, MEMORY_AIM = 0.6, 3.0, 150
_CHILD = "child"


@dataclass(frozen=True, slots=True)
class Logged:
    """Conversations, and a tool log for each message that calls tools."""

    inner: Contents

    @property
    def sessions(self) -> int:
        """How many there are."""
        return self.inner.sessions

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """Give the tables by their plain names, parents first, with their rows."""
        for name, rows in self.inner.tables():
            if name != "messages":
                yield name, rows
                continue
            messages = list(rows)
            yield name, iter(messages)
            ids = list(self.inner.long)
            called = (row for row in messages if row["tool_calls"])
            yield "tool_logs", (_log(row, ids[row["session"] - 1]) for row in called)


def _log(message: Row, session_id: str) -> Row:
    return {
        "id": new_id(),
        "session_id": session_id,
        "message_id": message["id"],
        "tool": "search",
        "success": True,
        "elapsed_ms": 12.25 + message["seq"],
        "created_at": message["created_at"],
        "error": None,
        "input": '{"query":"a hotel in Basel","stars":4}',
        "output": message["tool_calls"],
    }


@dataclass(frozen=True, slots=True)
class Run:
    """One way, once.

    Attributes:
        rows: How many arrived.
        loading: Seconds until they were there, with keys and indexes.
        total: Seconds of all that it did.
        memory: The peak of its process in MB; None where it was several.
    """

    way: str
    rows: int
    loading: float
    total: float
    memory: float | None


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moving", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "moving.json", metavar="PATH")
    parser.add_argument(_CHILD, nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _copy_here(*arguments.child)
        return
    count = QUICK if arguments.quick else MESSAGES
    runs: list[Run] = []
    with TemporaryDirectory(prefix="agentstore-") as folder, opened("postgresql") as servers:
        files = SQLiteDatabases(Path(folder))
        sessions = {f"s{number:07d}": EACH for number in range(count // EACH)}
        source = files.create("source", Logged(Contents(len(sessions) + 10, sessions)))
        for number in range(arguments.rounds):
            for way, move in WAYS.items():
                if way == "pgloader" and shutil.which("pgloader") is None:
                    continue
                runs.append(move(source, servers, f"{way}{number}"))
                Console(stderr=True).print(runs[-1])
    _show(runs)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    written = {"messages": count, "runs": [asdict(run) for run in runs]}
    arguments.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


# --- The ways ----------------------------------------------------------------------------------


def _by_copy(source: URL, servers: Databases, name: str) -> Run:
    target = servers.make(name)
    urls = [url.render_as_string(hide_password=False) for url in (source, target)]
    command = [sys.executable, "-m", "benchmarks.moving", *urls]
    started = perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    total = perf_counter() - started
    said = json.loads(done.stdout)
    loading = said["seconds"]["loading"] + said["seconds"]["indexing"]
    return Run("copy", said["rows"], loading, total, said["memory"])


def _copy_here(source: str, target: str) -> None:
    """Be the process of its own."""
    report = copying.copy(source, target)
    said = {"rows": report.rows, "seconds": dict(report.seconds), "memory": peak()}
    sys.stdout.write(json.dumps(said))


def _by_csv(source: URL, servers: Databases, name: str) -> Run:
    target = servers.make(name)
    moving = dialect_for(target).moving
    ours = tables()
    engine = create_engine(target.set(drivername="postgresql+psycopg"))
    with engine.connect() as connection, connection.begin():
        stripped = moving.strip(connection, ours)
    psql = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", _plain(target), "-c"]
    started = perf_counter()
    for table in ours.metadata.sorted_tables:
        columns = ", ".join(f'"{column.name}"' for column in table.columns)
        copied = _piped(
            ["sqlite3", "-csv", str(source.database), f"SELECT {columns} FROM {table.name}"],
            [*psql, f"\\copy {table.name} ({columns}) FROM STDIN CSV"],
        )
        assert copied == 0, table.name
    with psycopg.connect(_plain(target), autocommit=True) as connection:
        connection.execute("SET maintenance_work_mem = '256MB'")
        for statement in [*stripped.indexes.values(), *stripped.last.values()]:
            connection.execute(statement.encode())
        connection.execute("ANALYZE")
    seconds = perf_counter() - started
    engine.dispose()
    return Run("sqlite3 -csv | psql", _rows(target), seconds, seconds, None)


def _piped(first: list[str], second: list[str]) -> int:
    with subprocess.Popen(first, stdout=subprocess.PIPE) as reading:
        return subprocess.run(second, stdin=reading.stdout, check=False).returncode


def _by_pgloader(source: URL, servers: Databases, name: str) -> Run:
    target = servers.make(name)
    with TemporaryDirectory(prefix="agentstore-") as folder:
        program = Path(folder) / "program.load"
        names = ", ".join(f"'{table.name}'" for table in tables().metadata.sorted_tables)
        program.write_text(
            f"LOAD DATABASE FROM sqlite://{source.database} INTO {_for_pgloader(target)}\n"
            "WITH data only, drop indexes, reset no sequences, prefetch rows = 10000\n"
            f"INCLUDING ONLY TABLE NAMES LIKE {names};\n"
        )
        started = perf_counter()
        command = ["pgloader", "--root-dir", folder, str(program)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        seconds = perf_counter() - started
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    rows = _rows(target)
    if not rows:
        raise SystemExit(f"pgloader: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Run("pgloader", rows, seconds, seconds, most)


def _rows(url: URL) -> int:
    """Count what has arrived."""
    engine = create_engine(url.set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        counts = [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables().metadata.sorted_tables
        ]
    engine.dispose()
    return sum(counts)


def _plain(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _for_pgloader(url: URL) -> str:
    """Write a URL with a socket as pgloader reads it."""
    folder = url.query["host"]
    assert isinstance(folder, str)
    user = f"{url.username}@" if url.username else ""
    return f"postgresql://{user}unix:{folder}:{url.port or 5432}/{url.database}"


WAYS: dict[str, Callable[[URL, Databases, str], Run]] = {
    "copy": _by_copy,
    "csv": _by_csv,
    "pgloader": _by_pgloader,
}


# --- The table ---------------------------------------------------------------------------------


def _show(runs: list[Run]) -> None:
    table = Table(title="Moving a SQLite file to PostgreSQL")
    for column in ("way", "rows", "rows/s, with keys and indexes", "seconds in all", "peak MB"):
        table.add_column(column, justify="left" if column == "way" else "right")
    rates: dict[str, list[float]] = {}
    for way in dict.fromkeys(run.way for run in runs):
        own = [run for run in runs if run.way == way]
        rates[way] = [run.rows / run.loading for run in own]
        memory = [run.memory for run in own if run.memory is not None]
        table.add_row(
            way,
            f"{own[0].rows:,}",
            f"{median(rates[way]):,.0f} ({min(rates[way]):,.0f}-{max(rates[way]):,.0f})",
            f"{median(run.total for run in own):.1f}",
            f"{max(memory):.0f}" if memory else "",
        )
    console = Console()
    console.print(table)
    for way, aim in (("sqlite3 -csv | psql", CSV_AIM), ("pgloader", PGLOADER_AIM)):
        if way in rates:
            each = [own / theirs for own, theirs in zip(rates["copy"], rates[way], strict=True)]
            console.print(
                f"copy / {way}: {median(each):.2f} ({min(each):.2f}-{max(each):.2f}), aim {aim}"
            )


if __name__ == "__main__":
    main()
