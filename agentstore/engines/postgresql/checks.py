"""How PostgreSQL says how it is, and how large.

Sizes come from the file system, and rows from what vacuum and the statistics collector last
counted: both are cheap, and only the rows are estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Text,
    bindparam,
    column,
    func,
    select,
    table,
    text,
)
from sqlalchemy.exc import DBAPIError

from agentstore.engines.base.checks import Checks, DatabaseStatus, Footprint, Hidden, TableSize
from agentstore.engines.base.search_objects import INDEX, QUEUE, STATE
from agentstore.engines.postgresql.row_security import policy_name
from agentstore.engines.postgresql.visibility import hidden_rows
from agentstore.models.tables import Names, Tables

_DISK_FULL = "53100"
_TRIAL = """DO $$ BEGIN
SET LOCAL work_mem = '64kB';
PERFORM count(*) FROM generate_series(1, 5000);
END $$"""
"""What does not fit into so little memory is set down in a file for a moment."""

_SIZES = text("""
SELECT c.relname, pg_total_relation_size(c.oid),
    CASE WHEN c.reltuples > 0 THEN c.reltuples ELSE coalesce(s.n_live_tup, 0) END
FROM unnest(:wanted) AS wanted (name)
JOIN pg_class AS c ON c.oid = to_regclass(wanted.name)
LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
""").bindparams(bindparam("wanted", type_=ARRAY(Text)))


class PostgreSQLChecks(Checks):
    """The checks of PostgreSQL; see ``Checks`` for what each method promises."""

    system = "postgresql"

    def status(self, connection: Connection, tables: Tables) -> DatabaseStatus:
        """Ask the server everything in one statement."""
        version = _version_table(tables.names)
        revision = select(version.c.version_num).scalar_subquery()
        found = connection.execute(
            select(
                func.current_setting("server_version"),
                revision,
                func.pg_is_in_recovery(),
                func.current_setting("transaction_read_only"),
            )
        ).one()
        writable = not found[2] and found[3] == "off" and _has_room(connection)
        return DatabaseStatus(found[0].split()[0], found[1], writable)

    def octets(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """Ask for them."""
        return func.octet_length(column)

    def hidden(self, connection: Connection, tables: Tables) -> Hidden | None:
        """Ask what the policies ask."""
        return hidden_rows(connection, every_table(tables), policy_name(tables.names))

    def footprint(self, connection: Connection, tables: Tables) -> Footprint:
        """Add up our own tables: others may share the database."""
        sizes = self.table_sizes(connection, tables, exact=False)
        return Footprint(sum(size.bytes for size in sizes.values()), None, None)

    def table_sizes(
        self, connection: Connection, tables: Tables, *, exact: bool
    ) -> Mapping[str, TableSize]:
        """Ask the catalogue."""
        names = tables.names
        wanted = [table.name for table in tables.metadata.sorted_tables]
        search = [f"{names.prefix}{name}" for name in (INDEX, QUEUE, STATE)]
        sizes = {name: TableSize(0, 0, True) for name in (*wanted, search[0])}
        rows = connection.execute(_SIZES, {"wanted": qualified(names, [*wanted, *search])})
        for name, size, count in rows:
            key = search[0] if name in search else name
            total = sizes[key].bytes + int(size)
            sizes[key] = TableSize(0 if key == search[0] else int(count), total, True)
        return {name.removeprefix(names.prefix): size for name, size in sizes.items()}


def _has_room(connection: Connection) -> bool:
    """Have the server write a file that is gone at once, on the disk of the database."""
    try:
        connection.exec_driver_sql(_TRIAL)
    except DBAPIError as error:
        if connection.invalidated:
            raise
        return getattr(error.orig, "sqlstate", None) != _DISK_FULL
    return True


def every_table(tables: Tables) -> list[str]:
    """Give the names of all our tables, those of the search index too, for ``to_regclass``."""
    search = [f"{tables.names.prefix}{name}" for name in (INDEX, QUEUE, STATE)]
    plain = [table.name for table in tables.metadata.sorted_tables]
    return qualified(tables.names, [*plain, *search])


def qualified(names: Names, tables: list[str]) -> list[str]:
    """Give the names of tables as ``to_regclass`` reads them."""
    schema = f'"{names.schema}".' if names.schema else ""
    return [f'{schema}"{name}"' for name in tables]


def _version_table(names: Names) -> Any:
    name = f"{names.prefix}alembic_version"
    return table(name, column("version_num", Text), schema=names.schema)
