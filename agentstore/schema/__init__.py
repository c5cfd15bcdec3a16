"""The tables, as SQLAlchemy Core defines them.

This is what the repositories build their statements of: SQLAlchemy's ORM is not loaded for it. The
public models (``agentstore.models``) map the same tables and say what each is for; a test holds
that they have the same columns. The tables describe the newest revision of the schema; they never
create it, which only the revisions do (``agentstore.migrations``).

A user who is *being deleted* has a mark, and all queries leave out what is theirs, by the
conditions that are here too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, cast
from weakref import WeakValueDictionary

from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKeyConstraint,
    FromClause,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    Table,
    UniqueConstraint,
    and_,
    case,
    event,
    exists,
    literal_column,
    not_,
    or_,
    select,
)
from sqlalchemy.sql.elements import KeyedColumnElement
from sqlalchemy.sql.visitors import replacement_traverse

from agentstore.errors import InvalidInput
from agentstore.schema import conversations, work
from agentstore.schema.base import METADATA, PartialIndex
from agentstore.schema.conversations import SessionId, key_for
from agentstore.values.types import SafeText, add_table
from agentstore.values.validation import NO_BRANCH

__all__ = ["METADATA", "attach", "conversations", "work"]


# The tables under the names that a database gives them: a schema and a prefix of one's own.
#
# ``agentstore.schema`` has the plain names. Where a store is opened with ``schema=`` or
# ``table_prefix=``, its repositories work on copies of the tables that carry the other names,
# constraints and indexes included; the plain ones are used as they are otherwise. Copies are made
# once for each pair of settings, so that statements built from them stay in SQLAlchemy's cache.
#
# An application's own tables may refer to these. ``attach`` puts them into its metadata, the very
# same objects: so a query may join both, and relationships may lead from its models to
# agentstore's.


_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
MAX_PREFIX = 15
"""PostgreSQL cuts names at 63 bytes; the longest name of an index here has 47."""

LONGEST_ENTRY = 2_600
"""Bytes of text in an entry of an index: PostgreSQL takes 2,704 with what else is in it."""

_MAX_SCHEMA = 63
_RESERVED = ("pg_", "sqlite_")
"""What the engines keep for themselves; refused on both, so that a name means the same on both."""


@dataclass(frozen=True)
class Names:
    """Where the tables are.

    Attributes:
        schema: The PostgreSQL schema; None means the connection's own, usually public.
        prefix: What every table, index and constraint name carries in front of the table.
    """

    schema: str | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        """Refuse names that would need quoting, or that PostgreSQL would cut."""
        for setting, value in (("schema", self.schema), ("table_prefix", self.prefix or None)):
            if value is not None and not _NAME.match(value):
                raise InvalidInput(
                    f"{setting} must be lower-case letters, digits and underscores, and must not "
                    f"start with a digit, unlike {value!r}."
                )
            if value is not None and value.startswith(_RESERVED):
                raise InvalidInput(
                    f"{setting} must not start with {' or '.join(_RESERVED)}, unlike {value!r}: "
                    "the engines reserve such names."
                )
        if len(self.schema or "") > _MAX_SCHEMA:
            raise InvalidInput(
                f"schema must have up to 63 characters, not {len(self.schema or '')}."
            )
        if len(self.prefix) > MAX_PREFIX:
            raise InvalidInput(
                f"table_prefix must have up to 15 characters, not {len(self.prefix)}."
            )


PLAIN = Names()
"""No schema and no prefix."""


class Tables:
    """The tables of one database, each as an attribute under its plain name; see the module."""

    users: Table
    user_preferences: Table
    quota_reservations: Table
    api_keys: Table
    sessions: Table
    session_data: Table
    branches: Table
    summaries: Table
    messages: Table
    message_tool_calls: Table
    message_marks: Table
    message_chunks: Table
    message_vectors: Table
    blobs: Table
    attachments: Table
    tool_logs: Table
    turn_usage: Table
    tasks: Table
    checkpoint_threads: Table
    checkpoints: Table
    checkpoint_values: Table
    checkpoint_writes: Table
    memories: Table
    memory_vectors: Table
    vector_models: Table

    def __init__(self, names: Names) -> None:
        """Take the plain tables, or make copies under other names."""
        self.names = names
        plain = names == PLAIN
        self.metadata = METADATA if plain else _renamed(names)
        for name in METADATA.tables:
            setattr(self, name, self[name])

    def __getitem__(self, name: str) -> Table:
        """Find a table by its plain name."""
        key = f"{self.names.prefix}{name}"
        return self.metadata.tables[f"{self.names.schema}.{key}" if self.names.schema else key]


@lru_cache(maxsize=1024)
def indexed_texts(table: Table) -> tuple[tuple[str, ...], ...]:
    """Give the names of text columns that stand side by side in an entry of an index of a table.

    What stands in a longer entry too is left out.
    """
    keys = (c for c in table.constraints if isinstance(c, UniqueConstraint | PrimaryKeyConstraint))
    entries = {
        tuple(column.name for column in each.columns if isinstance(column.type, SafeText))
        for each in (*table.indexes, *keys)
    }
    return tuple(
        sorted(one for one in entries if one and not any(set(one) < set(more) for more in entries))
    )


def tables(names: Names = Names()) -> Tables:
    """Give the tables of a pair of settings; the same object for the same pair, while it is used.

    What is kept for each of them, in caches all over the package, has room for some two hundred
    pairs in a process.
    """
    with _making:
        found = _made.get(names)
        if found is None:
            found = _made[names] = Tables(names)
            if names == Names():
                _kept.append(found)
    return found


_made: WeakValueDictionary[Names, Tables] = WeakValueDictionary()
_kept: list[Tables] = []
_making = Lock()


def attach(metadata: MetaData, *, schema: str | None = None, table_prefix: str = "") -> Tables:
    """Put agentstore's tables into an application's metadata, so that its own may refer to them.

    ``ForeignKey("agents_users.id")`` then resolves, with the type of the column. Do it before the
    application's tables are defined. ``create_all`` and ``drop_all`` of the metadata refuse to
    make or drop agentstore's tables, which only its revisions do.

    Args:
        metadata: The application's, such as ``Base.metadata``. If it has a schema of its own, text
            without a schema means that one: then refer to the column,
            ``ForeignKey(attached.users.c.id)``.
        schema: As for the store; on SQLite, which has no schemas, leave it out.
        table_prefix: As for the store.

    Returns:
        The tables, each as an attribute under its plain name.

    Raises:
        InvalidInput: The metadata has other tables of the same names; or the names cannot be used.
    """
    attached = tables(Names(schema, table_prefix))
    ours = attached.metadata.tables
    taken = sorted(key for key in ours if metadata.tables.get(key, ours[key]) is not ours[key])
    if taken:
        raise InvalidInput(
            f"The metadata has tables of its own by the names {', '.join(taken)}. Give the store "
            "and attach() a table_prefix, such as agents_."
        )
    if metadata.tables.keys() >= ours.keys():
        return attached
    for table in ours.values():
        add_table(metadata, table)

    def refuse(target: MetaData, _connection: object, tables: list[Table], **_: object) -> None:
        if target is metadata and any(ours.get(table.key) is table for table in tables):
            raise InvalidInput(
                "Only agentstore's revisions make and drop its tables. Before create_all(), run "
                "agentstore upgrade or open Store(engine=engine): it then leaves them alone. To "
                "drop_all() pass the tables of your own: tables=[...]."
            )

    event.listen(metadata, "before_create", refuse)
    event.listen(metadata, "before_drop", refuse)
    return attached


def _renamed(names: Names) -> MetaData:
    source = METADATA
    target = MetaData(schema=names.schema)
    for table in source.sorted_tables:
        _copy(table, target, names)
    return target


def _copy(table: Table, target: MetaData, names: Names) -> Table:
    new_name = f"{names.prefix}{table.name}"
    qualified = f"{names.schema}.{names.prefix}" if names.schema else names.prefix
    sessions = target.tables.get(f"{qualified}sessions")
    copy = Table(new_name, target, *(_column(c, sessions) for c in table.columns))

    def named(constraint: object) -> str:
        name = cast(str, getattr(constraint, "name", None))
        return name.replace(table.name, new_name, 1)

    for constraint in sorted(table.constraints, key=lambda c: str(c.name)):
        columns = [c.key for c in getattr(constraint, "columns", ())]
        if isinstance(constraint, PrimaryKeyConstraint):
            copy.append_constraint(PrimaryKeyConstraint(*columns, name=named(constraint)))
        elif isinstance(constraint, UniqueConstraint):
            copy.append_constraint(UniqueConstraint(*columns, name=named(constraint)))
        elif isinstance(constraint, CheckConstraint):
            copy.append_constraint(CheckConstraint(constraint.sqltext, name=named(constraint)))
        elif isinstance(constraint, ForeignKeyConstraint):
            referred = f"{qualified}{constraint.referred_table.name}"
            copy.append_constraint(
                ForeignKeyConstraint(
                    columns,
                    [f"{referred}.{element.column.key}" for element in constraint.elements],
                    name=named(constraint),
                    ondelete=constraint.ondelete,
                )
            )

    def own_column(element: object, **_: object) -> Column[Any] | None:
        return copy.c[element.key] if isinstance(element, KeyedColumnElement) else None

    for index in sorted(table.indexes, key=lambda i: str(i.name)):
        expressions = [
            replacement_traverse(cast("ColumnElement[Any]", expression), {}, own_column)
            for expression in index.expressions
        ]
        options: dict[str, Any] = {"unique": index.unique}
        if isinstance(index, PartialIndex):
            PartialIndex(named(index), *expressions, where=index.where, **options)
        else:
            Index(named(index), *expressions, **options)
    return copy


def _column(column: Column[Any], sessions: Table | None) -> Column[Any]:
    kind = column.type
    if isinstance(kind, SessionId):
        assert sessions is not None
        kind = SessionId(sessions).of(kind.table, kind.column)
    return Column(
        column.name,
        kind,
        key=column.key,
        nullable=column.nullable,
        primary_key=column.primary_key,
        autoincrement=column.autoincrement,
        server_default=column.server_default,
    )


# Users who are being deleted: nothing of theirs is there any more, as conditions of queries.
#
# Deleting a user takes many transactions. The first marks the user's row, and nothing else: from
# then on every call leaves out what belongs to a user with this mark, as if it had gone
# already. So the moment at which everything is closed does not depend on how much there is.
#
# While nobody is being deleted, which is nearly always, a condition costs one look into an index
# that is empty, once for a statement and not once for a row. Otherwise it is a look-up of a
# session's or thread's row for each row that is read.


@lru_cache(maxsize=256)
def being_deleted(tables: Tables) -> Select[Any]:
    """Select the ids of the users who are being deleted."""
    users = tables.users.alias("being_deleted")
    return select(users.c.id).where(users.c.deleting.is_not(None))


@lru_cache(maxsize=1024)
def owner_not_being_deleted(tables: Tables, user_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Require that a column is NULL, or names a user who is not being deleted."""
    return or_(user_id.is_(None), user_id.not_in(being_deleted(tables)))


@lru_cache(maxsize=256)
def session_is_open(tables: Tables) -> ColumnElement[bool]:
    """Say that a row of ``sessions`` can be written to."""
    sessions = tables.sessions.c
    # Nothing is bound: each save has this condition.
    open_ = sessions.active_branch > literal_column(str(NO_BRANCH))
    return and_(open_, owner_not_being_deleted(tables, sessions.user_id))


@lru_cache(maxsize=1024)
def session_not_being_deleted(
    tables: Tables, session_id: ColumnElement[Any]
) -> ColumnElement[bool]:
    """Require that the user of the session in a column, if any, is not being deleted."""
    return _unless_deleting(tables, _of_deleting(tables, session_id))


@lru_cache(maxsize=1024)
def thread_not_being_deleted(tables: Tables, thread_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Require that the user of the thread in a column, if any, is not being deleted."""
    threads = tables.checkpoint_threads.alias("thread_of_deleting")
    theirs = select(threads.c.pk).where(
        threads.c.id == thread_id,
        or_(
            threads.c.user_id.in_(being_deleted(tables)), _of_deleting(tables, threads.c.session_id)
        ),
    )
    return _unless_deleting(tables, exists(theirs.correlate_except(threads)))


def _of_deleting(tables: Tables, session_id: ColumnElement[Any]) -> ColumnElement[bool]:
    sessions = tables.sessions.alias("of_deleting")
    theirs = select(sessions.c.pk).where(
        key_for(sessions.c, session_id) == session_id, sessions.c.user_id.in_(being_deleted(tables))
    )
    return exists(theirs.correlate_except(sessions))


def _unless_deleting(tables: Tables, theirs: ColumnElement[bool]) -> ColumnElement[bool]:
    # As it stands, neither half is made a join of: a query keeps the plan that it has without.
    return not_(and_(exists(being_deleted(tables)), theirs))


# Branches have numbers, by which rows refer to them, and names, by which callers do.


def name_of_branch(
    branches: FromClause, session_id: ColumnElement[Any], number: ColumnElement[Any]
) -> ColumnElement[Any]:
    """Give the name of a branch, or NULL if it is gone; main's, without a look at its row.

    Args:
        branches: The table.
        session_id: Its session's.
        number: Its number.
    """
    home = branches.alias("home")
    named = (
        select(home.c.name)
        .where(home.c.session_id == session_id, home.c.number == number, home.c.gone.is_(False))
        .correlate_except(home)
        .scalar_subquery()
    )
    main = literal_column("'main'", home.c.name.type)
    return case((number == literal_column("0"), main), else_=named)
