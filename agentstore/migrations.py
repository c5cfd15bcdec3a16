"""The one source of change to the schema: Alembic's revisions, however they are run.

``alembic upgrade head``, ``agentstore upgrade`` and ``migrations.upgrade()`` all end in
``run_env``, which begins the transaction that only one process can be in, then hands the
connection to Alembic, then commits. So a migration that fails half-way leaves nothing, and any
number of processes may upgrade one empty database at once.

The revisions travel inside the wheel as ``agentstore/_alembic`` and lie beside the package in a
checkout. Alembic is imported only when something is to be migrated: a store that finds its
database at head never pays for it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    NullPool,
    Table,
    Text,
    create_engine,
    event,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from agentstore.database import (
    include_name,
    include_object,
    parse_url,
    render_item,
    show_url,
    tables_in_the_way,
)
from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import cause_of
from agentstore.engines.base.moving import command_line
from agentstore.errors import (
    CopyUnfinished,
    DatabaseError,
    SchemaFromFuture,
    SchemaMissing,
    SchemaOutdated,
    TableNameConflict,
    TransactionConflict,
)
from agentstore.schema import PLAIN, Names, tables
from agentstore.settings import default_names, settings_for

if TYPE_CHECKING:
    from alembic.config import Config

REVISIONS = ("0100", "0101", "0102")
"""Every revision, oldest first. A test holds this equal to the tree."""

BEFORE = (*(f"{number:04}" for number in range(1, 19)), "0020")
"""Revisions from before 0.1.0, which had other tables."""

UPGRADED = (BEFORE[-1], *REVISIONS)
"""The revisions that this version upgrades, and its own."""

KNOWN = (*BEFORE, *REVISIONS)
"""Every revision that there ever was."""

_LAST_BEFORE = "c29188b"
"""The last commit with these."""

_GONE = "branch_segments"
"""A table that they had, and that 0.1.0 has not."""

HEAD = REVISIONS[-1]
"""The revision that this version needs."""

UNFINISHED = "copying"
"""What stands in the place of the revision while a copy into a database is not finished."""

Progress = Callable[[str, str], object]
"""Is told the number of a revision that has run, and the first line of what it says of itself."""

_PLACE = "agentstore_names"
_PROGRESS = "agentstore_progress"
_alembic_is_not_reentrant = threading.Lock()


def script_location() -> Path:
    """Find the folder of ``env.py`` and the revisions: in the wheel, or beside the package."""
    package = Path(__file__).resolve().parent
    installed = package / "_alembic"
    return installed if installed.is_dir() else package.parent / "alembic"


def upgrade(
    url: str | URL | None = None,
    revision: str = "head",
    *,
    names: Names | None = None,
    progress: Progress | None = None,
) -> str:
    """Bring a database to a revision. All revisions on the way are committed together.

    Args:
        url: The database; None means ``AGENTSTORE_URL``, else ``sqlite:///agentstore.db``.
        revision: ``head``, or a revision's number, or ``+1``.
        names: Schema and table prefix; None means those of the environment, else the plain ones.
        progress: Called after each revision on the way, with its number and its subject.

    Returns:
        The revision that the database is at now. Where it is there already nothing is done.

    Raises:
        SchemaFromFuture: The database is at a revision that this version does not know.
        DatabaseError: The database failed; it is as it was before, or else at the new revision with
            rows that are not checked yet, which the next call does.
        TransactionConflict: So it is after ten tries in which the server ended a deadlock with
            those who write meanwhile.
    """
    return _migrate(url, "upgrade", revision, names or default_names(), progress)


def downgrade(url: str | URL | None = None, *, revision: str, names: Names | None = None) -> str:
    """Take a database back to a revision; ``base`` drops everything. See ``upgrade``."""
    return _migrate(url, "downgrade", revision, names or default_names())


def revision_of(url: str | URL | None = None, names: Names | None = None) -> str | None:
    """Read the revision of a database by its URL; None where there is no agentstore schema.

    Nothing is written, not even where the database is a file that may only be read.

    Raises:
        DatabaseError: The database cannot be reached, or there is no such file.
    """
    parsed = parse_url(url)
    dialect = dialect_for(parsed)
    dialect.require_existing(parsed)
    engine = _engine(parsed, read_only=True)
    try:
        with engine.connect() as connection:
            return current(connection, names or default_names())
    except DBAPIError as error:
        raise dialect.diagnose(error).error from cause_of(error)


def current(connection: Connection, names: Names = PLAIN) -> str | None:
    """Read the revision of a database; None where there is no agentstore schema.

    Raises:
        DatabaseReadOnly: The role lacks USAGE on a schema that may hold them.
    """
    version = _version_table(_possible(names, connection.engine.url))
    if not inspect(connection).has_table(version.name, schema=version.schema):
        dialect_for(connection.engine.url).require_reach(connection, names)
        return None
    return connection.execute(select(version.c.version_num)).scalar()


def check(connection: Connection, names: Names = PLAIN) -> None:
    """Refuse a database that is not at head.

    Raises:
        SchemaMissing: It has no agentstore schema.
        TableNameConflict: It has none, and an application's own tables are in the way.
        SchemaOutdated: It is behind.
        SchemaFromFuture: It is ahead.
        CopyUnfinished: A copy into it is not finished.
    """
    found = current(connection, names)
    if found == HEAD:
        return
    if found == UNFINISHED:
        raise CopyUnfinished(found, HEAD)
    _refuse_taken(connection, names, found)
    if found is None:
        raise SchemaMissing(HEAD, _command(connection, names))
    if found in UPGRADED:
        raise SchemaOutdated(found, HEAD, _command(connection, names))
    _refuse_unknown(found)


def _refuse_unknown(found: str) -> NoReturn:
    if found in BEFORE:
        first = (
            f"agentstore upgrade and agentstore export of the commit {_LAST_BEFORE}, and then "
            "agentstore import of this version into a new database"
        )
        raise SchemaOutdated(found, HEAD, first)
    raise SchemaFromFuture(found, HEAD)


def close_for_copy(connection: Connection, names: Names = PLAIN) -> None:
    """Let nobody open the database until ``open_after_copy``; in the connection's transaction."""
    _set_version(connection, names, UNFINISHED)


def open_after_copy(connection: Connection, names: Names = PLAIN) -> None:
    """Undo ``close_for_copy``; in the connection's transaction."""
    _set_version(connection, names, HEAD)


def create(connection: Connection, names: Names = PLAIN) -> None:
    """Bring the empty database of an open connection to head, and commit.

    The connection must not be in a transaction. What another process has made meanwhile is
    upgraded. The statements of the first time are kept, and sent again for further databases: a
    twentieth of the time.
    """
    dialect = dialect_for(connection.engine.url)
    if sent := _sent.get((names, HEAD)):
        try:
            dialect.lock_for_migration(connection, names)
            if dialect.brings_itself_to_head(connection):
                for statement, parameters in sent:
                    connection.exec_driver_sql(statement, parameters)
                connection.commit()
                return
        finally:
            connection.rollback()
            dialect.unlock_after_migration(connection)
    noted: list[tuple[str, Any]] = []

    def note(_c: Any, _k: Any, statement: str, parameters: Any, _x: Any, _m: bool) -> None:
        if statement.lstrip().startswith(("CREATE", "DROP", "INSERT", "UPDATE")):
            noted.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        _run_alembic("upgrade", "head", names, connection)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    if noted:
        _sent[names, HEAD] = noted


_sent: dict[tuple[Names, str], list[tuple[str, Any]]] = {}
"""What made a database of these names, at this head, statement by statement."""


def run_env() -> None:
    """Do the work of ``alembic/env.py``, however Alembic was started."""
    from alembic import context

    config, arguments = context.config, context.get_x_argument(True)
    usual = default_names()
    names = config.attributes.get(_PLACE) or Names(
        arguments.get("schema") or usual.schema, arguments.get("table_prefix", usual.prefix)
    )
    if context.is_offline_mode():
        url = parse_url(arguments.get("url"))
        names = _possible(names, url)
        context.configure(dialect_name=url.get_backend_name(), literal_binds=True, **_opts(names))
        with context.begin_transaction():
            if names.schema is not None:
                context.execute(CreateSchema(names.schema, if_not_exists=True))
            context.run_migrations()
        return
    connection = config.attributes.get("connection")
    if connection is not None:
        _run(connection, names)
        return
    with _engine(parse_url(arguments.get("url"))).connect() as own:
        _run(own, names)


def _run(connection: Connection, names: Names) -> None:
    from alembic import context

    dialect = dialect_for(connection.engine.url)
    names = _possible(names, connection.engine.url)
    dialect.lock_for_migration(connection, names)
    _refuse_taken(connection, names, current(connection, names))
    progress: Progress | None = context.config.attributes.get(_PROGRESS)

    def applied(ctx: Any, step: Any, heads: Any, run_args: Any) -> None:
        if progress is not None:
            progress(step.up_revision_id, step.up_revision.doc)

    context.configure(connection=connection, on_version_apply=applied, **_opts(names))
    with context.begin_transaction():
        context.run_migrations()
    dialect.check_after_migration(connection)
    connection.commit()
    dialect.finish_migration(connection, tables(names))


def _opts(names: Names) -> dict[str, Any]:
    plain = {table.name for table in tables(names).metadata.tables.values()}

    def include_name(name: str | None, kind: str, parents: Any) -> bool:
        if kind == "schema":
            return name == names.schema
        return kind != "table" or name in plain  # the search index keeps tables of its own

    version = _version_table(names)
    return {
        "target_metadata": tables(names).metadata,
        "version_table": version.name,
        "version_table_schema": version.schema,
        "include_schemas": names.schema is not None,
        "include_name": include_name,
        "render_as_batch": True,
        "compare_type": True,
        "compare_server_default": True,
        _PLACE: names,
    }


def _migrate(
    url: str | URL | None,
    command: str,
    revision: str,
    names: Names,
    progress: Progress | None = None,
) -> str:
    """Run revisions, all or none; again if they and who writes meanwhile waited for each other."""
    for _ in range(_MOST_CONFLICTS):
        with suppress(TransactionConflict):
            return _migrate_once(url, command, revision, names, progress)
        time.sleep(random.random())  # noqa: S311 - jitter, not a secret
    return _migrate_once(url, command, revision, names, progress)


_MOST_CONFLICTS = 9


def _migrate_once(
    url: str | URL | None, command: str, revision: str, names: Names, progress: Progress | None
) -> str:
    engine = _engine(parse_url(url))
    dialect = dialect_for(engine.url)
    try:
        with engine.connect() as connection:
            found = current(connection, names)
            connection.rollback()
            if found == UNFINISHED:
                raise CopyUnfinished(found, HEAD)
            if found is not None:  # else _run looks, under its lock
                _refuse_taken(connection, names, found)
                connection.rollback()
            if found == BEFORE[-1] and command == "upgrade":
                if inspect(connection).has_table(f"{names.prefix}{_GONE}", names.schema):
                    _refuse_unknown(found)
                connection.rollback()
                _set_version(connection, names, REVISIONS[0])
                connection.commit()
                found = REVISIONS[0]
            elif found is not None and found not in REVISIONS:
                _refuse_unknown(found)
            if found != HEAD or revision != "head":
                _run_alembic(command, revision, names, connection, progress)
            else:  # it may have been killed behind its commit
                dialect.finish_migration(connection, tables(_possible(names, engine.url)))
            after = current(connection, names)
            connection.rollback()
            return after or "base"
    except DBAPIError as error:
        raise dialect.diagnose(error).error from cause_of(error)


def _run_alembic(
    command: str,
    revision: str,
    names: Names,
    connection: Connection,
    progress: Progress | None = None,
) -> None:
    from alembic import command as commands
    from alembic.util import CommandError

    config = _config(names)
    config.attributes["connection"] = connection
    config.attributes[_PROGRESS] = progress
    with _alembic_is_not_reentrant:
        try:
            getattr(commands, command)(config, revision)
        except CommandError as error:
            raise DatabaseError(f"{error}. Known revisions: {', '.join(REVISIONS)}.") from error
        finally:
            connection.rollback()
            dialect_for(connection.engine.url).unlock_after_migration(connection)


def _config(names: Names) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.attributes[_PLACE] = names
    return config


def _engine(url: URL, *, read_only: bool = False) -> Engine:
    dialect = dialect_for(url)
    sync_url = dialect.url(url, asynchronous=False)
    settings = settings_for(read_only=read_only)
    connect_args = dialect.engine_options(sync_url, settings)["connect_args"]
    engine = create_engine(
        sync_url, poolclass=NullPool, hide_parameters=True, connect_args=connect_args
    )
    dialect.install(engine, settings, adopted=False)
    return engine


@lru_cache
def _version_table(names: Names) -> Table:
    metadata = MetaData(schema=names.schema)
    return Table(f"{names.prefix}alembic_version", metadata, Column("version_num", Text()))


def _set_version(connection: Connection, names: Names, version: str) -> None:
    table = _version_table(_possible(names, connection.engine.url))
    connection.execute(update(table).values(version_num=version))


def _refuse_taken(connection: Connection, names: Names, found: str | None) -> None:
    """Refuse a database in which an application has tables of the names that ours would have.

    Raises:
        TableNameConflict: It is one.
    """
    if found == HEAD:
        return
    names = _possible(names, connection.engine.url)
    version = () if found is None else (_version_table(names).name,)
    taken = tables_in_the_way(connection, names, version)
    if taken:
        raise TableNameConflict(HEAD, taken, _command(connection, Names(names.schema, "agents_")))


def _possible(names: Names, url: URL) -> Names:
    """Leave the schema out where the engine has none."""
    return names if dialect_for(url).schemas else Names(None, names.prefix)


def _command(connection: Connection, names: Names) -> str:
    return command_line("upgrade", show_url(connection.engine.url), names)


__all__ = [
    "HEAD",
    "REVISIONS",
    "UNFINISHED",
    "check",
    "close_for_copy",
    "create",
    "current",
    "downgrade",
    "include_name",
    "include_object",
    "open_after_copy",
    "render_item",
    "revision_of",
    "run_env",
    "script_location",
    "upgrade",
]
