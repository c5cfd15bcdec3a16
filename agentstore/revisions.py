"""What revisions may build with: names and column types that never change their meaning.

A revision describes the schema of its own day, so it must not import the models, which move on.
It may import this module, which only ever grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine, UserDefinedType


class _PlainJson(UserDefinedType[Any]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


ROW_NUMBER: TypeEngine[Any] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT: TypeEngine[Any] = sa.Text()
JSON: TypeEngine[Any] = sa.Text().with_variant(_PlainJson(), "postgresql")
INSTANT: TypeEngine[Any] = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")
WHOLE: TypeEngine[Any] = sa.BigInteger()
NANOS: TypeEngine[Any] = sa.BigInteger()
REAL: TypeEngine[Any] = sa.Float(53)
FLAG: TypeEngine[Any] = sa.Boolean(create_constraint=False)
BYTES: TypeEngine[Any] = sa.LargeBinary()


class Place:
    """Where the running revision works: the settings ``schema`` and ``table_prefix``."""

    def __init__(self) -> None:
        """Read the settings from the migration context."""
        context = op.get_context()
        names = context.opts["agentstore_names"]
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
        """Create a table from columns and constraints that learn the table's name here."""
        table = self.table(name)
        op.create_table(
            table, *(part(self, table) for part in parts), schema=self.schema, **options
        )

    def index(
        self, label: str, name: str, *columns: str, unique: bool = False, where: str | None = None
    ) -> None:
        """Create an index; the label is its name without ``ix_`` and the table."""
        table = self.table(name)
        condition = None if where is None else sa.text(where)
        op.create_index(
            f"{'uq' if label.startswith('!') else 'ix'}_{table}_{label.lstrip('!')}",
            table,
            [c if c.isidentifier() else sa.text(c) for c in columns],
            unique=unique,
            schema=self.schema,
            sqlite_where=condition,
            postgresql_where=condition,
        )

    def drop(self, name: str) -> None:
        """Drop a table with its indexes."""
        op.drop_table(self.table(name), schema=self.schema)


def column(
    name: str, kind: TypeEngine[Any], *, default: str | None = None, null: bool = False
) -> Callable[[Place, str], sa.Column[Any]]:
    """Describe a column; the default is SQL text."""
    return lambda place, table: sa.Column(
        name, kind, nullable=null, server_default=None if default is None else sa.text(default)
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
    return lambda place, table: sa.CheckConstraint(condition, name=f"ck_{table}_{label}")


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
