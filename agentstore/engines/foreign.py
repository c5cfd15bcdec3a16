"""A database of another program's, opened to be read and for nothing else.

Of a SQLite file not a byte is changed, and nothing is made beside it. A file whose last writer was
killed needs its log to be read, or its journal to be undone; where that cannot be done without
writing, a copy is read.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    URL,
    ColumnClause,
    ColumnElement,
    Connection,
    DateTime,
    Engine,
    NullPool,
    cast,
    create_engine,
    event,
    func,
    text,
)
from sqlalchemy.exc import DBAPIError

from agentstore.engines.sqlite.dialect import SQLiteFiles
from agentstore.errors import DatabaseUnreachable, SourceChanged

_WAL, _INDEX, _JOURNAL = "-wal", "-shm", "-journal"
_WRITE_AHEAD = b"\2\2"
"""What a file has as its bytes 18 and 19, where its changes go into a log first."""


@contextmanager
def foreign(url: URL) -> Iterator[Engine]:
    """Open a database. A text of a file that is no UTF-8 comes as bytes.

    Raises:
        DatabaseUnreachable: There is no such file.
        SourceChanged: Somebody wrote to a file that nobody seemed to have open.
    """
    if url.get_backend_name() == "sqlite":
        with _file(SQLiteFiles().path(url)) as engine:
            yield engine
    else:  # the names of other drivers in a URL mean the same database
        engine = create_engine(url.set(drivername="postgresql+psycopg"), poolclass=NullPool)
        yield engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def in_utc(connection: Connection, time: ColumnClause[Any]) -> ColumnElement[Any]:
    """Give a column of times that the database set by itself, in UTC.

    SQLite's own clock is in UTC. A server writes the time of its own zone, or of the role or the
    database, where the column has none.
    """
    if connection.dialect.name == "sqlite":
        return time
    return func.timezone("UTC", cast(time, DateTime(timezone=True))).label(time.name)


def is_computed(connection: Connection, table: str) -> bool:
    """Say whether it is a view, or a virtual table: rows of these are made while they are read,
    perhaps without an end.
    """
    if connection.dialect.name == "sqlite":
        query = (
            "SELECT type = 'view' OR rootpage = 0 FROM sqlite_master"
            " WHERE type IN ('table', 'view') AND lower(name) = lower(:name)"
        )
    else:
        query = "SELECT relkind = 'v' FROM pg_class WHERE oid = to_regclass(quote_ident(:name))"
    return bool(connection.execute(text(query), {"name": table}).scalar())


@contextmanager
def _file(path: Path) -> Iterator[Engine]:
    if not path.is_file():
        raise DatabaseUnreachable(f"{path}: there is no such file. Check the path.")
    with path.open("rb") as file:
        logged = file.read(20)[18:] == _WRITE_AHEAD
    # While anybody has such a file open, its log has an index.
    alone = logged and not _beside(path, _INDEX).exists() and not _has_bytes(_beside(path, _WAL))
    before = path.stat()
    with ExitStack() as stack:
        left_over = logged and not alone and not _beside(path, _INDEX).exists()
        if left_over or not _can_be_read(path, alone):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield _engine(_copied(path, folder), "rw")
            return
        yield _engine(path, "ro&immutable=1" if alone else "ro")
        after = path.stat()
        changed = (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size)
        if alone and (changed or _has_bytes(_beside(path, _WAL))):
            raise SourceChanged(str(path))


def _engine(path: Path, mode: str) -> Engine:
    def connect() -> sqlite3.Connection:
        address = f"file:{quote(str(path.absolute()))}?mode={mode}"
        connection = sqlite3.connect(
            address, uri=True, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _text
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _text(raw: bytes) -> str | bytes:
    """Give a text; what is no UTF-8 stays bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _can_be_read(path: Path, alone: bool) -> bool:
    """Say whether a file can be read as it is: not, if a killed writer's journal is to be undone.

    Raises:
        DBAPIError: It cannot be read at all.
    """
    engine = _engine(path, "ro&immutable=1" if alone else "ro")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
    except DBAPIError:
        if not _has_bytes(_beside(path, _JOURNAL)):
            raise
        return False
    finally:
        engine.dispose()
    return True


def _copied(path: Path, folder: Path) -> Path:
    copy = folder / "source.db"
    for end in ("", _WAL, _JOURNAL):
        if _beside(path, end).exists():
            shutil.copyfile(_beside(path, end), _beside(copy, end))
    return copy


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
