"""From a URL to a connection pool, and what revisions and administrators build on.

- ``open_engine`` reads a URL (or ``AGENTSTORE_URL``) and makes SQLAlchemy's engine for it with our
  options; ``adopt_engine`` takes one that the application made: the connection events are added.
- ``grant_statements`` gives the GRANT statements for a role that works only in scopes.
- ``revisions`` is what a revision of the schema may import: ``Place``, which knows schema and table
  prefix, and column types that never change their meaning. The models move on; this only grows.

The invariant: a password is never shown. An error about a URL does not quote it, ``show_url`` names
only parameters that are known to be no secret, and the parameters of statements are hidden from
SQLAlchemy's errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import quote_plus

from sqlalchemy import URL, Connection, Engine, create_engine, inspect, make_url
from sqlalchemy.exc import ArgumentError

from agentstore.engines import dialect_for, unabbreviated
from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.search import INDEX, QUEUE, STATE
from agentstore.engines.base.statements import share_statements
from agentstore.errors import InvalidInput, UnsupportedUrl
from agentstore.schema import PLAIN, Names
from agentstore.schema.base import METADATA
from agentstore.schema.conversations import SessionId
from agentstore.settings import Settings, default_url
from agentstore.values import types

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


# From a URL to an engine.
#
# Both kinds of store come here. What an engine needs beyond its URL (pool, connection events,
# isolation) is its dialect's business; here it is only put together. No secret leaves: an error
# about a URL never quotes it, and statements' parameters are hidden from SQLAlchemy's own errors.


E = TypeVar("E", bound="Engine | AsyncEngine")

_SHOWN = frozenset(
    (
        "host",
        "hostaddr",
        "port",
        "dbname",
        "sslmode",
        "target_session_attrs",
        "load_balance_hosts",
        "application_name",
        "connect_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "mode",
        "cache",
        "immutable",
        "uri",
        "timeout",
    )
)
"""Parameters of a URL that are no secret; of all others only the names are shown."""

_AFTER_PASSWORD = re.compile(r"[^:/]*:[^@]*@(?P<rest>.*)", re.DOTALL)


def parse_url(url: str | URL | None) -> URL:
    """Read a URL; None means ``AGENTSTORE_URL``, else ``sqlite:///agentstore.db``.

    The path of a file, such as ``agent.db`` or ``data/agent.db``, means that SQLite file, and
    ``postgres://`` means ``postgresql://``.

    Raises:
        UnsupportedUrl: It is not a database URL; the error does not quote it.
    """
    given = default_url() if url is None else url
    try:
        parsed = make_url(unabbreviated(given) if isinstance(given, str) else given)
    except (ArgumentError, ValueError):
        raise UnsupportedUrl("The URL cannot be read as a database URL") from None
    if isinstance(given, str):
        secret = _AFTER_PASSWORD.match(given.partition("://")[2])
        if secret is not None and "@" in secret["rest"]:
            raise _unclear()
    _require_plain(parsed)
    return parsed


def _require_plain(url: URL) -> None:
    """Refuse a URL whose host would be the rest of a password, and what no system takes in a name.

    Raises:
        UnsupportedUrl: It is one.
    """
    if "@" in (url.host or ""):
        raise _unclear()
    parts = [url.username, url.password, url.host, url.database]
    whole = "".join(map(str, chain(parts, *url.normalized_query.values())))
    try:
        plain = b"\0" not in os.fsencode(whole)
    except UnicodeEncodeError:
        plain = False
    if not plain:
        raise UnsupportedUrl("The URL holds a NUL or a lone surrogate, which no name can have")


def _unclear() -> UnsupportedUrl:
    return UnsupportedUrl(
        "The URL has another @ after the one that ends its password. In a password, a name or a "
        "parameter write @ as %40, / as %2F, # as %23, ? as %3F, : as %3A, % as %25"
    )


def show_url(url: URL) -> str:
    """Write a URL for people: without its password, and what may be one, wherever that stands."""
    # The name of a file may have bytes that are no text, which no URL can quote.
    database = url.database and url.database.encode(errors="backslashreplace").decode()
    plain = url.set(query={}, database=database).render_as_string(hide_password=True)
    shown = [
        f"{quote_plus(name)}={quote_plus(value, safe='/,:') if name in _SHOWN else '***'}"
        for name, values in url.query.items()
        for value in ((values,) if isinstance(values, str) else values)
    ]
    return f"{plain}?{'&'.join(shown)}" if shown else plain


def open_engine(url: URL, settings: Settings) -> Engine:
    """Make a synchronous engine, connection events installed.

    Raises:
        UnsupportedUrl: The URL's engine does not understand it.
    """
    return _made(url, settings, create_engine, asynchronous=False)


def open_async_engine(url: URL, settings: Settings) -> AsyncEngine:
    """Make an asynchronous engine, connection events installed; see ``open_engine``."""
    from sqlalchemy.ext.asyncio import create_async_engine  # which a synchronous store never loads

    return _made(url, settings, create_async_engine, asynchronous=True)


def _made(url: URL, settings: Settings, make: Callable[..., E], *, asynchronous: bool) -> E:
    dialect = dialect_for(url)
    driver_url = dialect.url(url, asynchronous=asynchronous)
    options = dialect.engine_options(driver_url, settings)
    if settings.read_only or not settings.create:
        dialect.require_existing(url)
    try:
        engine = make(driver_url, hide_parameters=True, **options)
    except (ArgumentError, ValueError):
        raise UnsupportedUrl("The URL has parts that its engine does not understand") from None
    sync_engine = _sync(engine)
    dialect.install(sync_engine, settings, adopted=False)
    share_statements(sync_engine)
    return engine


def _sync(engine: Engine | AsyncEngine) -> Engine:
    return cast("Engine", getattr(engine, "sync_engine", engine))


def adopt_engine(
    engine: Engine | AsyncEngine, settings: Settings, *, asynchronous: bool
) -> EngineDialect:
    """Prepare an engine of the application's own.

    The connection events are added to it, so that on SQLite its transactions, the
    application's included, begin with an explicit BEGIN and foreign keys are enforced.

    Raises:
        UnsupportedUrl: It is of an engine, or has a driver, that is not supported.
        InvalidInput: It is for the other kind of store.
    """
    sync_engine = _sync(engine)
    if {sync_engine is not engine, engine.dialect.is_async} != {asynchronous}:
        maker, store = (
            ("create_async_engine", "Store") if asynchronous else ("create_engine", "AsyncStore")
        )
        raise InvalidInput(
            f"This store needs an engine made by {maker}(). Pass this engine to {store}."
        )
    _require_plain(sync_engine.url)
    dialect = dialect_for(sync_engine.url)
    dialect.url(sync_engine.url, asynchronous=asynchronous)
    dialect.install(sync_engine, settings, adopted=True)
    return dialect


# Roles that work in scopes alone: what to grant them.


def grant_statements(url: str | URL | None, role: str, *, names: Names = PLAIN) -> tuple[str, ...]:
    """Give the SQL that lets a role read and write one user's data at a time.

    Run it as the owner of the tables. The role is there already, and is no superuser, owns none of
    the tables and has no BYPASSRLS; it needs CONNECT and, where the tables are in a schema of the
    server's, its USAGE, which ``public`` gives to all. Granting it TRUNCATE, or ALL, lifts the
    restriction. What a later revision adds has to be granted too: run it again after an upgrade.

    Args:
        url: The database; it is not connected to.
        role: The role's name, as it is in ``pg_roles``.
        names: Schema and table prefix, where they are not the plain ones.

    Returns:
        Statements, without semicolons; none where the engine has no roles.
    """
    return tuple(dialect_for(parse_url(url)).grants(names, role))


# A database that agentstore shares with an application: its tables, and its own Alembic tree.
#
# Alembic compares the application's metadata with the database. What is agentstore's is passed
# over on both sides: in the database, where it would be dropped, and in the metadata, where
# ``attach`` may have put it, and it would be created. Columns that refer to agentstore's have
# types of agentstore's, which a revision writes as SQLAlchemy's own, so that it needs nothing of
# agentstore.


_VERSION = "alembic_version"
_BESIDE = {"activity", INDEX, QUEUE, STATE}
"""What is no model's; the tables that SQLite makes for an index have its name and more."""

_OURS = "checkpoint_threads"
"""A table that every revision has, and no application has by chance."""

_ON_POSTGRESQL = "{sa}%s.with_variant({sa}%s, 'postgresql')"
_RENDERED: dict[type[Any], str] = {
    types.OwnId: _ON_POSTGRESQL % ("LargeBinary()", "Uuid(as_uuid=False)"),
    types.UtcDateTime: _ON_POSTGRESQL % ("BigInteger()", "DateTime(timezone=True)"),
    types.Json: _ON_POSTGRESQL % ("Text()", "JSON()"),
    types.SafeText: "{sa}Text()",
    types.Nanos: "{sa}BigInteger()",
    types.StrictInteger: "{sa}BigInteger()",
    SessionId: "{sa}BigInteger()",
    types.StrictFloat: "{sa}Float(precision=53)",
    types.Bytes: "{sa}LargeBinary()",
    types.StrictBoolean: "{sa}Boolean()",
}


def include_name(
    *, schema: str | None = None, table_prefix: str = ""
) -> Callable[[str | None, str, Any], bool]:
    """Give Alembic's ``include_name`` that passes over agentstore's tables in the database.

    Args:
        schema: As for the store. Leave it out on SQLite, which has no schemas, and where it comes
            first in the connection's search path, unless it is ``public``.
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
    ours = sorted({*METADATA.tables, *_BESIDE})
    taken = (f"{names.prefix}{name}" for name in ours if is_there(name))
    return (*taken, *version)


def _ours(names: Names) -> Callable[[str | None, str | None], bool]:
    ours = {f"{names.prefix}{name}" for name in {*METADATA.tables, *_BESIDE, _VERSION}}
    parts = f"{names.prefix}{INDEX}_"
    # Alembic names no schema of what it finds in the connection's own.
    schemas = {names.schema, None} if names.schema == "public" else {names.schema}

    def is_ours(schema: str | None, name: str | None) -> bool:
        return schema in schemas and (name in ours or (name or "").startswith(parts))

    return is_ours
