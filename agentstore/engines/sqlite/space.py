"""Free space in a SQLite file.

Deleted rows leave free pages, which later rows fill. A file that was made with
``auto_vacuum=INCREMENTAL`` can also give them back, some at a time: pages from its end move into
the gaps, and it is cut off. Any other file only ever grows, until ``VACUUM`` rewrites it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table

from agentstore.engines.base.space import Space

_INCREMENTAL = 2


class FileSpace(Space):
    """See ``Space``."""

    def size(self, connection: Connection) -> int:
        """Multiply pages by their size. The WAL beside the file is not counted."""
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())

    def free_pages(self, connection: Connection) -> int:
        """Read the length of the free list; 0 where the file cannot give anything back."""
        if connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() != _INCREMENTAL:
            return 0
        return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())

    def give_back(self, connection: Connection, pages: int) -> int:
        """Move pages one by one: the driver stops at the first row of a pragma that has none to
        show, so that ``incremental_vacuum(100)`` would move one page too.
        """
        free = min(pages, self.free_pages(connection))
        cursor = connection.connection.cursor()
        try:
            for _ in range(free):
                cursor.execute("PRAGMA incremental_vacuum(1)")
                cursor.fetchall()
        finally:
            cursor.close()
        return free

    def tidy(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Copy the WAL into the file, and cut it off if nobody is in its way.

        First as far as that goes beside others; then the rest, for which writers do wait, but it
        is little, and if a reader is in the way it is left to the next time.
        """
        driver: Any = connection.connection.dbapi_connection
        cursor = driver.cursor()
        try:
            cursor.execute("PRAGMA busy_timeout")
            (patience,) = cursor.fetchone()
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
            cursor.fetchall()
            cursor.execute("PRAGMA busy_timeout=0")
            try:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                cursor.fetchall()
            except sqlite3.OperationalError:
                pass  # somebody else is at it
            finally:
                cursor.execute(f"PRAGMA busy_timeout={int(patience)}")
        finally:
            cursor.close()
