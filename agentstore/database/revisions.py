"""What revisions may build with: names and column types that never change their meaning.

A revision describes the schema of its own day, so it must not import the models, which move on.
It may import this module, which only ever grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations
from sqlalchemy.types import TypeEngine

from agentstore.engines.postgresql import row_security as row_security
from agentstore.engines.postgresql import search as postgresql_search  # noqa: F401
from agentstore.engines.sqlite import moving as sqlite_activity  # noqa: F401
from agentstore.engines.sqlite import search as sqlite_search  # noqa: F401

ROW_NUMBER: TypeEngine[Any] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT: TypeEngine[Any] = sa.Text()
JSON: TypeEngine[Any] = sa.Text().with_variant(sa.JSON(), "postgresql")
INSTANT: TypeEngine[Any] = sa.BigInteger().with_variant(sa.DateTime(timezone=True), "postgresql")
"""On SQLite microseconds since 1970."""
OWN_ID: TypeEngine[Any] = sa.LargeBinary().with_variant(sa.Uuid(), "postgresql")
"""An id that agentstore makes: 16 bytes."""
WHOLE: TypeEngine[Any] = sa.BigInteger()
NANOS: TypeEngine[Any] = sa.BigInteger()
REAL: TypeEngine[Any] = sa.Float(53)
FLAG: TypeEngine[Any] = sa.Boolean(create_constraint=False)
BYTES: TypeEngine[Any] = sa.LargeBinary()
STORED = {OWN_ID: "blob", INSTANT: "integer"}
"""What SQLite calls what is stored of these."""


_IS_UNFINISHED = sa.text(
    "SELECT NOT (indisvalid AND indisready) FROM pg_index JOIN pg_class ON oid = indexrelid"
    " WHERE relname = :index"
    " AND relnamespace = to_regnamespace(quote_ident(coalesce(:schema, current_schema())))"
)


class Place:
    """Where the running revision works: the settings ``schema`` and ``table_prefix``."""

    def __init__(self) -> None:
        """Read the settings from the migration context."""
        context = op.get_context()
        names = context.opts["agentstore_names"]
        self.names = names
        self.schema: str | None = names.schema
        self.prefix: str = names.prefix
        self.on_postgresql: bool = context.dialect.name == "postgresql"

    def table(self, name: str) -> str:
        """Give the table's name in this database, without its schema."""
        return f"{self.prefix}{name}"

    def qualified(self, name: str) -> str:
        """Give the table's name with its schema, for SQL text and references."""
        return f"{self.schema}.{self.prefix}{name}" if self.schema else f"{self.prefix}{name}"

    def create(self, name: str, *parts: Callable[[Place, str], Any], **options: Any) -> None:
        """Create a table from columns and constraints that learn the table's name here.

        SQLite lets anything into a column: a CHECK refuses ids and times that are stored otherwise.
        """
        table = self.table(name)
        made = [part(self, table) for part in parts]
        if not self.on_postgresql:
            held = [
                f"typeof({each.name}) IN ('{STORED[each.type]}', 'null')"
                for each in made
                if isinstance(each, sa.Column) and each.type in STORED
            ]
            if held:
                made.append(check("stored", " AND ".join(held))(self, table))
        op.create_table(table, *made, schema=self.schema, **options)

    def index(
        self,
        label: str,
        name: str,
        *columns: str,
        unique: bool = False,
        where: str | None = None,
        if_missing: bool = False,
    ) -> None:
        """Create an index; the label is its name without ``ix_`` and the table.

        ``if_missing`` leaves one in place that somebody made before, while others wrote; not one
        that a server could not finish.
        """
        table = self.table(name)
        index = f"{'uq' if label.startswith('!') else 'ix'}_{table}_{label.lstrip('!')}"
        condition = None if where is None else sa.text(where)
        looks = if_missing and self.on_postgresql and not op.get_context().as_sql
        if looks and op.get_bind().scalar(_IS_UNFINISHED, {"index": index, "schema": self.schema}):
            op.drop_index(index, table, schema=self.schema)
        op.create_index(
            index,
            table,
            [c if c.isidentifier() else sa.text(c) for c in columns],
            unique=unique,
            schema=self.schema,
            sqlite_where=condition,
            postgresql_where=condition,
            if_not_exists=if_missing,
        )

    def add(self, name: str, part: Callable[[Place, str], sa.Column[Any]]) -> None:
        """Add a column that may be NULL or has a default, and no constraint."""
        table = self.table(name)
        op.add_column(table, part(self, table), schema=self.schema)

    def drop_column(self, name: str, gone: str) -> None:
        """Drop a column that no index and no constraint names."""
        op.drop_column(self.table(name), gone, schema=self.schema)

    def drop_index(self, label: str, name: str) -> None:
        """Drop an index; the label is that of ``index``."""
        table = self.table(name)
        kind = "uq" if label.startswith("!") else "ix"
        op.drop_index(f"{kind}_{table}_{label.lstrip('!')}", table, schema=self.schema)

    @contextmanager
    def alter(self, name: str) -> Iterator[BatchOperations]:
        """Change a table's columns and constraints, on SQLite by a copy where it has no other way.

        A copy would forget AUTOINCREMENT, triggers, and indexes that have a direction, a function
        or an operator in them; these are made again, as they were. Drop those first that refer to
        a column that goes.
        """
        table = self.table(name)
        if self.on_postgresql:
            with op.batch_alter_table(table, schema=self.schema) as batch:
                yield batch
            return
        before = _parts(table)
        counts = any(part.type == "table" and "AUTOINCREMENT" in part.sql for part in before)
        ordered = [part for part in before if _has_more_than_columns(part)]
        for index in ordered:  # or the copy gets one that is only a list of columns
            op.drop_index(index.name, table)
        options = {"sqlite_autoincrement": True} if counts else {}
        with op.batch_alter_table(table, table_kwargs=options) as batch:
            yield batch
        there = {part.name for part in _parts(table)}
        for part in [*ordered, *(part for part in before if part.type == "trigger")]:
            if part.name not in there:
                op.get_bind().exec_driver_sql(part.sql)

    def drop(self, name: str) -> None:
        """Drop a table with its indexes."""
        op.drop_table(self.table(name), schema=self.schema)


def _parts(table: str) -> Sequence[sa.Row[Any]]:
    """Give a table of SQLite's, its indexes and its triggers, each with its SQL."""
    parts = "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = :table AND sql NOT NULL"
    return op.get_bind().execute(sa.text(parts), {"table": table}).all()


def _has_more_than_columns(part: sa.Row[Any]) -> bool:
    """Say whether an index is more than a list of columns, which is all that a copy keeps."""
    if part.type != "index":
        return False
    inside = "SELECT cid, desc FROM pragma_index_xinfo(:name) WHERE key"
    columns = op.get_bind().execute(sa.text(inside), {"name": part.name})
    return any(number == -2 or descending for number, descending in columns)


def column(
    name: str, kind: TypeEngine[Any], *, default: str | None = None, null: bool = False
) -> Callable[[Place, str], sa.Column[Any]]:
    """Describe a column; the default is SQL text."""
    return lambda place, table: sa.Column(
        name,
        kind,
        nullable=null,
        autoincrement=False,
        server_default=None if default is None else sa.text(default),
    )


def row_number() -> Callable[[Place, str], sa.Column[Any]]:
    """Describe ``pk``; its primary key is to be added with ``primary_key('pk')``."""
    return lambda place, table: sa.Column("pk", ROW_NUMBER, autoincrement=True, nullable=False)


def primary_key(*columns: str) -> Callable[[Place, str], sa.Constraint]:
    """Describe the primary key."""
    return lambda place, table: sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def unique(*columns: str) -> Callable[[Place, str], sa.Constraint]:
    """Describe a UNIQUE constraint."""
    return lambda place, table: sa.UniqueConstraint(
        *columns, name=f"uq_{table}_{'_'.join(columns)}"
    )


def check(label: str, condition: str) -> Callable[[Place, str], sa.Constraint]:
    """Describe a CHECK constraint; the label is its name without ``ck_`` and the table."""
    # The name is complete; without f() the models' convention would put it into another one.
    return lambda place, table: sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{label}"))


def references(
    columns: str, table: str, targets: str, *, ondelete: str | None = None, label: str = ""
) -> Callable[[Place, str], sa.Constraint]:
    """Describe a foreign key; several columns are written with spaces between."""
    own = columns.split()
    return lambda place, name: sa.ForeignKeyConstraint(
        own,
        [f"{place.qualified(table)}.{target}" for target in targets.split()],
        ondelete=ondelete,
        name=f"fk_{name}_{label or '_'.join(own)}",
    )
