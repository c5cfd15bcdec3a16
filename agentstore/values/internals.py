"""The names of other packages that they do not promise to keep, all in one place.

Each has a reason to be used, and a test in tests/unit/test_internals.py that fails, and says
which release it was, when a release changes it. No other module may use one.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.sql.compiler import SQLCompiler


def raise_as_sqlalchemy(
    connection: Connection, error: BaseException, sql: str, cursor: Any
) -> NoReturn:
    """Do what SQLAlchemy does with an error of the driver: ``Connection._handle_dbapi_exception``.

    It knows which errors mean that the connection is lost, tells listeners, and raises its own kind
    of error. Nothing public does that for a statement that SQLAlchemy did not run.
    """
    connection._handle_dbapi_exception(error, sql, None, cursor, None)


def has_listeners(connection: Connection) -> bool:
    """Say whether there are listeners to what is executed: on the engine, or on all engines.

    An engine with options has listeners of its own and those of the engine that it was made from,
    its ``_proxied``; ``dispatch`` is where the listeners are. ``event.contains`` finds only a
    listener that one knows.
    """
    engine: Any = connection.engine
    while (behind := getattr(engine, "_proxied", None)) is not None:
        engine = behind
    heard = engine.dispatch
    return bool(heard.before_cursor_execute or heard.after_cursor_execute)


def is_in_autocommit(connection: Connection) -> bool:
    """Say whether the application chose autocommit: ``Connection._is_autocommit_isolation``.

    It knows the connection's option and the engine's; ``get_isolation_level`` asks the database.
    """
    return connection._is_autocommit_isolation()


def places_to_write(compiled: SQLCompiler) -> dict[str, str]:
    """Give what stands in a compiled text for each ``literal_execute`` parameter, by its name.

    ``__[POSTCOMPILE_name]`` is how SQLAlchemy marks what it writes in only when it executes.
    """
    names = [compiled.bind_names[bind] for bind in compiled.literal_execute_params]
    return {name: f"__[POSTCOMPILE_{name}]" for name in names}


def number_statements_from(own: Any, first: int) -> None:
    """Let a connection of psycopg number its prepared statements from here on.

    Their names come from ``_prepared._prepared_idx``, and psycopg has no setting for them. A
    release without it numbers from 0 as always.
    """
    names = getattr(own, "_prepared", None)
    if names is not None:
        names._prepared_idx = first


def innermost(dbapi_connection: Any) -> Any:
    """Give the connection of ``sqlite3`` under what SQLAlchemy and aiosqlite put around it.

    ``driver_connection`` is SQLAlchemy's and public; aiosqlite calls its own ``_connection``.
    """
    for name in ("driver_connection", "_connection"):
        dbapi_connection = getattr(dbapi_connection, name, dbapi_connection)
    return dbapi_connection


def unlist(task: asyncio.Task[Any]) -> None:
    """Take a task off the list of ``asyncio.all_tasks``: ``asyncio._unregister_task``.

    Python documents it, underscore and all, for those who implement tasks of their own ("Extending
    asyncio" in the documentation of the library).
    """
    asyncio._unregister_task(task)


def add_table(metadata: MetaData, table: Table) -> None:
    """Put a table into another metadata, beside its own: ``MetaData._add_table``.

    What is public makes a copy, which no mapped class has and no query knows.
    """
    metadata._add_table(table.name, table.schema, table)
