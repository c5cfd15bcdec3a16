"""How SQLite says how it is, and how large.

What a table takes is known exactly only to ``dbstat``, which reads every page and which not every
library has. Without it, the file's pages are shared out by what the newest rows of each table
hold times the number of its rows: good to about a factor of two.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    Table,
    cast,
    column,
    func,
    literal_column,
    select,
    table,
)
from sqlalchemy.exc import OperationalError

from agentstore.engines.base.checks import Checks, DatabaseStatus, Footprint, TableSize
from agentstore.engines.base.search_objects import INDEX
from agentstore.engines.sqlite.files import WATCHED
from agentstore.models.tables import Names, Tables

_SAMPLE = 100
"""Rows that an estimate of a table's size looks at."""

_TRIAL = 64 * 1024
"""Bytes: about what a save adds to the log."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)

_SIZES = """
SELECT m.tbl_name, sum(s.pgsize) FROM dbstat AS s JOIN sqlite_master AS m ON m.name = s.name
WHERE s.aggregate = 1 GROUP BY m.tbl_name"""


class SQLiteChecks(Checks):
    """The checks of SQLite; see ``Checks`` for what each method promises."""

    system = "sqlite"

    def status(self, connection: Connection, tables: Tables) -> DatabaseStatus:
        """Read the revision, and look at the file."""
        watched = connection.info.get(WATCHED)
        if watched is not None:
            watched.require(at_once=True)
        version = _version_table(tables.names)
        revision = connection.execute(select(version.c.version_num)).scalar()
        return DatabaseStatus(sqlite3.sqlite_version, revision, _writable(connection))

    def octets(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """Count them; not every library has a function for it."""
        return func.length(cast(column, LargeBinary))

    def footprint(self, connection: Connection, tables: Tables) -> Footprint:
        """Ask for the number of pages; the log is a file beside."""
        page = pragma(connection, "PRAGMA page_size")
        pages = pragma(connection, "PRAGMA page_count")
        free = pragma(connection, "PRAGMA freelist_count")
        file = database_file(connection)
        log = None if file is None else file.with_name(f"{file.name}-wal")
        size = log.stat().st_size if log is not None and log.exists() else 0
        return Footprint(page * pages, page * free, size)

    def table_sizes(
        self, connection: Connection, tables: Tables, *, exact: bool
    ) -> Mapping[str, TableSize]:
        """Ask ``dbstat``, or estimate."""
        measured = _measured(connection) if exact else None
        every = {each.name: each for each in tables.metadata.sorted_tables}
        rows = {name: _rows(connection, each) for name, each in every.items()}
        prefix = tables.names.prefix
        index = f"{prefix}{INDEX}"
        if measured is not None:
            sizes = {name: measured.get(name, 0) for name in every}
            sizes[index] = sum(size for name, size in measured.items() if name.startswith(index))
        else:
            sizes = self._shared_out(connection, tables, every, rows, index)
        return {
            name.removeprefix(prefix): TableSize(rows.get(name, 0), size, measured is not None)
            for name, size in sizes.items()
        }

    def _shared_out(
        self,
        connection: Connection,
        tables: Tables,
        every: Mapping[str, Table],
        rows: Mapping[str, int],
        index: str,
    ) -> dict[str, int]:
        footprint = self.footprint(connection, tables)
        used = footprint.bytes - (footprint.free or 0)
        weights = {name: rows[name] * _row_bytes(connection, each) for name, each in every.items()}
        blocks = table(f"{index}_data", column("block"), column("id"))
        newest = select(blocks.c.block).order_by(blocks.c.id.desc()).limit(_SAMPLE).subquery()
        mean = connection.execute(select(func.avg(func.length(newest.c.block)))).scalar() or 0
        # Blocks of the index have ids that skip; what it holds is in proportion to the messages.
        weights[index] = float(mean) and weights[tables.messages.name] / 2
        total = sum(weights.values()) or 1
        return {name: round(used * weight / total) for name, weight in weights.items()}


def database_file(connection: Connection) -> Path | None:
    """Give the file of the database; None where it is in memory."""
    for _, name, file in connection.exec_driver_sql("PRAGMA database_list"):
        if name == "main" and file:
            return Path(file)
    return None


def pragma(connection: Connection, statement: str) -> int:
    """Read a pragma that is a number."""
    return int(connection.exec_driver_sql(statement).scalar_one())


def _version_table(names: Names) -> Any:
    return table(f"{names.prefix}alembic_version", column("version_num"))


def _writable(connection: Connection) -> bool:
    """Ask the connection and the file system; writing a row would wait for other writers."""
    url = connection.engine.url
    if pragma(connection, "PRAGMA query_only") or url.query.get("mode") == "ro":
        return False
    file = database_file(connection)
    if file is None:
        return True
    return os.access(file, os.W_OK) and os.access(file.parent, os.W_OK) and _has_room(file.parent)


def _has_room(folder: Path) -> bool:
    """Write a file without a name where the log would have to grow."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as trial:
            return trial.write(b"\xa5" * _TRIAL) == _TRIAL
    except OSError as error:
        return error.errno not in _NO_ROOM


def _measured(connection: Connection) -> dict[str, int] | None:
    try:
        return {name: int(size) for name, size in connection.exec_driver_sql(_SIZES)}
    except OperationalError:  # a library without dbstat
        return None


def _rows(connection: Connection, source: Table) -> int:
    """Give the span of row numbers, which deletions make too large: two look-ups."""
    rowid: ColumnElement[int] = literal_column("rowid")
    last = select(func.max(rowid)).select_from(source).scalar_subquery()
    first = select(func.min(rowid)).select_from(source).scalar_subquery()
    return int(connection.execute(select(last - first + 1)).scalar() or 0)


def _row_bytes(connection: Connection, source: Table) -> float:
    newest = select(source).order_by(literal_column("rowid").desc()).limit(_SAMPLE).subquery()
    lengths = [func.coalesce(func.length(cast(c, LargeBinary)), 0) for c in newest.c]
    total = sum(lengths[1:], lengths[0])
    return float(connection.execute(select(func.avg(total))).scalar() or 0)
