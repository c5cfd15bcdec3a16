"""A database that agentstore shares with an application: its tables, and its own Alembic tree.

Alembic compares the application's metadata with the database. What is agentstore's is passed over
on both sides: in the database, where it would be dropped, and in the metadata, where ``attach`` may
have put it, and it would be created. Columns that refer to agentstore's have types of
agentstore's, which a revision writes as SQLAlchemy's own, so that it needs nothing of agentstore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from sqlalchemy import Connection, inspect

from agentstore.engines.base.search_objects import INDEX, QUEUE, STATE
from agentstore.schema import METADATA
from agentstore.schema.session_ids import SessionId
from agentstore.schema.tables import Names
from agentstore.values import own_ids, types

_BESIDE = {"alembic_version", "activity", INDEX, QUEUE, STATE}
"""What is no model's; the tables that SQLite makes for an index have its name and more."""

_OURS = "checkpoint_threads"
"""A table that every revision has, and no application has by chance."""

_ON_POSTGRESQL = "{sa}%s.with_variant({sa}%s, 'postgresql')"
_RENDERED: dict[type[Any], str] = {
    own_ids.OwnId: _ON_POSTGRESQL % ("LargeBinary()", "Uuid(as_uuid=False)"),
    types.UtcDateTime: _ON_POSTGRESQL % ("BigInteger()", "DateTime(timezone=True)"),
    types.Json: _ON_POSTGRESQL % ("Text()", "JSON()"),
    types.SafeText: "{sa}Text()",
    types.Nanos: "{sa}BigInteger()",
    types.Whole: "{sa}BigInteger()",
    SessionId: "{sa}BigInteger()",
    types.Real: "{sa}Float(precision=53)",
    types.Bytes: "{sa}LargeBinary()",
    types.Flag: "{sa}Boolean()",
}


def include_name(
    *, schema: str | None = None, table_prefix: str = ""
) -> Callable[[str | None, str, Any], bool]:
    """Give Alembic's ``include_name`` that passes over agentstore's tables in the database.

    Args:
        schema: As for the store; on SQLite, which has no schemas, leave it out.
        table_prefix: As for the store.
    """
    is_ours = _ours(Names(schema, table_prefix))

    def include(name: str | None, kind: str, parents: Any) -> bool:
        return kind != "table" or not is_ours(parents.get("schema_name"), name)

    return include


def include_object(
    *, schema: str | None = None, table_prefix: str = ""
) -> Callable[[Any, str | None, str, bool, Any], bool]:
    """Give Alembic's ``include_object`` that passes over agentstore's tables, in the application's
    metadata too; see ``include_name``.
    """
    is_ours = _ours(Names(schema, table_prefix))

    def include(thing: Any, name: str | None, kind: str, reflected: bool, other: Any) -> bool:
        return kind != "table" or not is_ours(thing.schema, name)

    return include


def render_item(kind: str, thing: Any, context: Any) -> str | Literal[False]:
    """Write a column type of agentstore's as SQLAlchemy's own; Alembic's ``render_item``.

    Returns:
        Python code; False for what Alembic writes itself.
    """
    if kind == "type":
        for each in type(thing).__mro__:
            if each in _RENDERED:
                return _RENDERED[each].format(sa=context.opts["sqlalchemy_module_prefix"] or "")
    return False


def tables_in_the_way(
    connection: Connection, names: Names, version: tuple[str, ...]
) -> tuple[str, ...]:
    """Give the names of an application's tables that agentstore's would have.

    Args:
        connection: Where to look.
        names: Of agentstore's tables, as the engine knows them.
        version: The table of a revision, where there is one, which may be the application's.
    """
    inspector = inspect(connection)

    def is_there(name: str) -> bool:
        return inspector.has_table(f"{names.prefix}{name}", schema=names.schema)

    if is_there(_OURS):
        return ()
    taken = (f"{names.prefix}{name}" for name in sorted(METADATA.tables) if is_there(name))
    return (*taken, *version)


def _ours(names: Names) -> Callable[[str | None, str | None], bool]:
    ours = {f"{names.prefix}{name}" for name in {*METADATA.tables, *_BESIDE}}
    parts = f"{names.prefix}{INDEX}_"

    def is_ours(schema: str | None, name: str | None) -> bool:
        return schema == names.schema and (name in ours or (name or "").startswith(parts))

    return is_ours
