"""How transactions begin on SQLite, and the application's own on an engine that it handed in.

A unit that writes begins with BEGIN IMMEDIATE. An application's transaction begins with BEGIN, as
readers do, unless its connection or engine has the execution option ``agentstore_writes``. It takes
the write lock when it first writes, and cannot do so once another connection has written since it
first read.

A thread or task that waits for the lock that its own transaction holds would wait in vain. So each
transaction of an application is noted where it began, with what tells whether it has written.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Engine, false, update

from agentstore.engines.base.dialect import MODE, Mode
from agentstore.engines.base.prepared import run_sql
from agentstore.errors import TransactionMisuse
from agentstore.models.tables import Tables
from agentstore.values.internals import innermost, is_in_autocommit

CONFIGURED = "agentstore_configured"
"""What says, in the ``info`` of a connection, that its pragmas are set."""

WRITES = "agentstore_writes"
"""The execution option with which an application's transaction begins as a writer."""

_IMMEDIATE = "BEGIN IMMEDIATE"
_BEGIN = {Mode.READ: None, Mode.SNAPSHOT: "BEGIN"}
"""What begins a unit. A single SELECT is its own; all that write are immediate."""

_BEGUN = "agentstore_begun"


class _Begun:
    """A transaction that an application began."""

    __slots__ = ("_changes", "_connection", "_immediate", "_whose")

    def __init__(self, connection: Connection, *, immediate: bool) -> None:
        self._connection = ref(connection)
        self._whose = _who()
        self._immediate = immediate
        self._changes = _driver(connection).total_changes

    @property
    def connection(self) -> Connection | None:
        """Its connection, while it is open."""
        connection = self._connection()
        if connection is None or connection.closed or connection.invalidated:
            return None
        latest = connection.info.get(_BEGUN) is self and connection.in_transaction()
        return connection if latest else None

    def makes_wait(self, engine: Engine) -> bool:
        """Say whether it holds the lock of an engine's file, and its owner is who asks."""
        connection = self.connection
        if connection is None or connection.engine.pool is not engine.pool:
            return False
        driver = _driver(connection)
        writes = self._immediate or driver.total_changes != self._changes
        return self._whose == _who() and driver.in_transaction and writes


_begun_here: ContextVar[tuple[_Begun, ...]] = ContextVar("agentstore_begun", default=())


def _who() -> tuple[int, int | None]:
    """Name the thread, and the task if there is one: a context is copied to others."""
    task = None
    with suppress(RuntimeError):  # no event loop
        task = asyncio.current_task()
    return threading.get_ident(), None if task is None else id(task)


def _driver(connection: Connection) -> Any:
    return innermost(connection.connection.dbapi_connection)


def begin(connection: Connection) -> None:
    """Begin a transaction of an engine of the store's own; a listener."""
    statement = _first_statement(connection)
    if statement is not None:
        run_sql(connection, statement, begin=False)


def _first_statement(connection: Connection) -> str | None:
    options = connection.get_execution_options()
    if MODE not in options:
        return _IMMEDIATE if options.get(WRITES) else "BEGIN"
    return _BEGIN.get(options[MODE], _IMMEDIATE)


def begin_on_adopted(connection: Connection) -> None:
    """Begin on an engine whose application may have told it, before us, to begin by itself."""
    begun = bool(_driver(connection).in_transaction)
    statement = _first_statement(connection)
    own = MODE in connection.get_execution_options()
    if own and begun:
        _refuse_to_share(connection)
    if begun and statement == _IMMEDIATE:
        connection.exec_driver_sql("ROLLBACK")  # it may have begun as a reader
        begun = False
    if not begun and statement is not None and (own or not is_in_autocommit(connection)):
        run_sql(connection, statement, begin=False)
    if not own:
        _note(connection, immediate=statement == _IMMEDIATE)


def _note(connection: Connection, *, immediate: bool) -> None:
    begun = connection.info[_BEGUN] = _Begun(connection, immediate=immediate)
    still = (each for each in _begun_here.get() if each.connection is not None)
    _begun_here.set((*still, begun))


def _refuse_to_share(connection: Connection) -> None:
    """Refuse a unit on a connection of the driver that an application has a transaction on.

    Pools of databases in memory give all of a thread the same one.
    """
    begun = connection.info.get(_BEGUN)
    if begun is not None and begun.connection not in (None, connection):
        raise TransactionMisuse(
            "The store was called while the application has a transaction open on the only "
            "connection to a database in memory. Call store.joined(connection) to work inside "
            "that transaction, or end it first."
        )


def refuse_to_wait_for_caller(engine: Engine, mode: Mode) -> None:
    """Refuse to write where the caller itself holds the lock; see ``EngineDialect``."""
    if mode not in _BEGIN and any(begun.makes_wait(engine) for begun in _begun_here.get()):
        raise TransactionMisuse(
            "The store would wait for its own caller, whose transaction on the same engine holds "
            "SQLite's write lock. Call store.joined(connection) to work inside that transaction, "
            "or end it first."
        )


def require_joinable(connection: Connection) -> None:
    """Refuse what cannot be joined; see ``EngineDialect``."""
    if CONFIGURED not in connection.info:
        raise TransactionMisuse(
            "This connection was opened before the store, so foreign keys are not enforced on it. "
            "Open the store first, then connect."
        )
    if not _driver(connection).in_transaction:
        raise TransactionMisuse(
            "SQLite has no transaction open on this connection: an error rolled it back, or it "
            "was ended past SQLAlchemy. Roll back, and begin again."
        )


def join_to_write(connection: Connection, tables: Tables) -> None:
    """Take the write lock before anything is read; see ``EngineDialect``."""
    users = tables.users
    connection.execute(update(users).values(pk=users.c.pk).where(false()))
