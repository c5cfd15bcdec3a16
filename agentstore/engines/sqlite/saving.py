"""Saving SQLite databases: page by page, while others write, and what is checked afterwards.

The backup is read through a connection that is in a read transaction, from its first page to its
last. SQLite starts a backup over whenever another connection has written between two steps: beside
a process that committed a hundred times a second, a file of 164 MB in steps of 500 pages started
over 549 times in 20 seconds and was not done then. In the transaction there is but one state, and
it took half a second. With a WAL, writers do not notice; what they write stays in the WAL until
the transaction ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, table
from sqlalchemy.exc import DBAPIError

from agentstore.engines.base.saving import OnSteps, count_rows
from agentstore.engines.sqlite.dialect import SQLite
from agentstore.engines.sqlite.files import in_memory
from agentstore.engines.sqlite.sound import driver_of
from agentstore.errors import DatabaseCorrupt, InvalidInput

_PAGES = 2_000
"""Pages in a step, after which the progress is shown: 8 MB."""


_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name"
"""Without virtual ones, which are made of others."""


class SQLiteFiles:
    """See ``Files`` for what each method promises."""

    def url(self, file: Path) -> URL:
        """Name it by its whole path."""
        return URL.create("sqlite", database=str(file.absolute()))

    def path(self, url: URL) -> Path:
        """Take the name of the file, or the path of a URI."""
        if in_memory(url):
            raise InvalidInput(
                "A database in memory can be neither saved nor restored. Use a database file."
            )
        database = str(url.database)
        plain = database.removeprefix("file:")
        return Path(plain if plain == database else plain.partition("?")[0])

    def beside(self, file: Path) -> tuple[Path, ...]:
        """Name the WAL, its index and the rollback journal.

        A WAL is brought into whatever database it lies beside, even where that is another one.
        """
        return tuple(file.with_name(file.name + suffix) for suffix in ("-wal", "-journal", "-shm"))

    def copy(self, connection: Connection, file: Path, progress: OnSteps) -> None:
        """Use the backup API; see the module."""
        with _translating(), closing(_open(file)) as target:
            # Nobody ever goes on with what is in the file after a failure.
            target.execute("PRAGMA journal_mode=OFF")
            target.execute("PRAGMA synchronous=OFF")
            driver_of(connection).backup(
                target,
                pages=_PAGES,
                progress=lambda _status, left, total: progress(total - left, total),
            )

    def finish(self, file: Path) -> None:
        """Bring the WAL into the file, and leave that mode."""
        with _translating(), closing(_open(file)) as database:
            database.execute("PRAGMA journal_mode=DELETE").fetchall()

    def check(self, file: Path) -> int:
        """Run ``integrity_check`` and ``foreign_key_check``, without writing."""
        with _translating(), closing(_open(file, "mode=ro")) as database:
            found = database.execute("PRAGMA integrity_check(3)").fetchall()
            if found != [("ok",)]:
                words = "; ".join(" ".join(str(row[0]).split()) for row in found)
                raise DatabaseCorrupt(
                    f"The file, or what it was copied from, is damaged ({words}). Nothing was "
                    "kept. Check the source with PRAGMA integrity_check; restore an older backup, "
                    "or save what can be read with sqlite3 .recover."
                )
            return sum(1 for _ in database.execute("PRAGMA foreign_key_check"))

    def counts(self, connection: Connection) -> dict[str, int]:
        """Count what is a table of its own, the insides of the search index included."""
        names = connection.exec_driver_sql(_TABLES).scalars().all()
        return count_rows(connection, map(table, names), set(names))


def _open(file: Path, options: str = "mode=rwc") -> Any:
    return sqlite3.connect(f"{file.absolute().as_uri()}?{options}", isolation_level=None, uri=True)


@contextmanager
def _translating() -> Iterator[None]:
    """Make the driver's errors ours."""
    try:
        yield
    except sqlite3.Error as error:
        wrapped = DBAPIError.instance(None, None, error, sqlite3.Error, hide_parameters=True)
        assert isinstance(wrapped, DBAPIError)
        raise SQLite().diagnose(wrapped).error from error
