"""Free space in PostgreSQL's tables.

VACUUM makes the room of deleted rows free for new ones of the same table, and gives pages back to
the system only where they are at the table's end. Nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.ddl import ExecutableDDLElement

from agentstore.engines.base.space import Space


class Vacuum(ExecutableDDLElement):
    """VACUUM of one table."""

    inherit_cache = False

    def __init__(self, table: Table) -> None:
        """Keep the table."""
        self.table = table


@compiles(Vacuum)
def _vacuum(element: Vacuum, compiler: Any, **_: Any) -> str:
    return f"VACUUM {compiler.preparer.format_table(element.table)}"


class ServerSpace(Space):
    """See ``Space``."""

    def size(self, connection: Connection) -> int:
        """Ask the server, for the whole database."""
        query = select(func.pg_database_size(func.current_database()))
        return int(connection.execute(query).scalar_one())

    def tidy(self, connection: Connection, tables: Sequence[Table]) -> None:
        """VACUUM the tables, one by one. Autovacuum would come to it too, some time later."""
        for table in tables:
            connection.execute(Vacuum(table))
