"""Running units inside a transaction of the application's own.

The application begins, commits and rolls back; a unit here is a savepoint at most. Whether its
connection can carry one is looked at for each call, as the application may have done anything to it
meanwhile: it has to be of the store's engine, whose connections are set up as units need them, and
in a transaction that is whole.

With an ORM session a call goes where the session is: into its transaction and savepoint, after a
flush if the session flushes by itself.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, UnboundExecutionError

from agentstore.engines.base.causes import cause_of
from agentstore.engines.base.dialect import Mode
from agentstore.errors import InvalidInput, TransactionMisuse, shown
from agentstore.execution.recovery import HANDLED, performed, trouble
from agentstore.execution.runners import READING, JoinRunner, UnitRunner
from agentstore.execution.unit import Unit
from agentstore.values.internals import is_in_autocommit

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

T = TypeVar("T")


class CallersRunner:
    """Runs bodies inside whatever transaction the application has open."""

    def __init__(self, runner: UnitRunner, into: object) -> None:
        """Prepare to join.

        Args:
            runner: The store's.
            into: A connection, or an ORM session.

        Raises:
            InvalidInput: It is something else.
        """
        self._runner = runner
        self._into = _connection_or_session(into)
        self._busy = threading.RLock()

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body; see ``Runner``.

        Raises:
            TransactionMisuse: The application has no transaction in which it could run.
        """
        runner = self._runner

        def body(unit: Unit) -> T:
            if mode not in READING:
                unit.dialect.join_to_write(unit.connection, unit.tables)
            return performed(unit, work)

        with self._busy:  # threads that share it go one by one
            connection = self.begin()
            if not isinstance(self._into, Connection) and self._into.autoflush:
                self._into.flush()
            unit = runner.unit(connection, Mode.WRITE)
            joined = JoinRunner(unit)
            try:
                return joined.run(mode, body, repeatable=repeatable)
            finally:
                if joined.lost is not None:
                    _let_fail(runner, connection)
                if unit.deleted_sessions:
                    event.listen(connection, "commit", lambda _: runner.committed(unit), once=True)

    def begin(self) -> Connection:
        """Give the connection, in a transaction, which is begun if there is none.

        Raises:
            TransactionMisuse: No unit can run in it.
            DatabaseError: It could not begin.
        """
        runner = self._runner
        try:
            connection = self._connection()
            _require_fitting(runner, connection)
            if not connection.in_transaction():
                connection.begin()
            transaction = connection.get_nested_transaction() or connection.get_transaction()
            if transaction is None or not transaction.is_active:
                raise _ended()
        except PendingRollbackError as error:
            raise TransactionMisuse(
                "The application's transaction has failed. Roll it back, and begin again."
            ) from error
        except InvalidRequestError as error:
            raise _ended() from error
        except HANDLED as error:
            found = trouble(runner.dialect, Mode.WRITE, error, committing=False)
            raise found.error from cause_of(error)
        runner.dialect.require_joinable(connection)
        return connection

    def _connection(self) -> Connection:
        if isinstance(self._into, Connection):
            return self._into
        try:
            return self._into.connection()
        except UnboundExecutionError:  # each of its models has an engine of its own
            return self._into.connection(bind_arguments={"bind": self._runner.engine})


def _connection_or_session(into: object) -> Connection | Session:
    orm = sys.modules.get("sqlalchemy.orm")  # without which nobody has a session
    if orm is not None and isinstance(into, orm.scoped_session):
        into = into()
    if isinstance(into, Connection) or (orm is not None and isinstance(into, orm.Session)):
        return into
    raise InvalidInput(
        "connection must be a Connection or an ORM Session, for an AsyncStore an AsyncConnection "
        f"or an AsyncSession, not {shown(into)}."
    )


def _require_fitting(runner: UnitRunner, connection: Connection) -> None:
    """Refuse a connection on which a unit could not do what it promises; see the module."""
    if connection.closed:
        raise TransactionMisuse("This connection is closed. Pass an open one.")
    if connection.engine.pool is not runner.engine.pool:
        raise other_engine()
    if connection.invalidated and connection.in_transaction():
        raise TransactionMisuse(
            "The connection broke, or an error undid its transaction. Roll back, and begin again."
        )
    if is_in_autocommit(connection):
        raise TransactionMisuse(
            "This connection is in AUTOCOMMIT, so nothing on it can be rolled back. Pass one that "
            "has transactions, or call the store itself."
        )
    translated = connection.get_execution_options().get("schema_translate_map") or {}
    if runner.tables.names.schema in translated:
        raise TransactionMisuse(
            "The connection's schema_translate_map would move some of the store's statements to "
            "another schema, and others not. Open the store with schema=, and leave it out."
        )


def other_engine() -> TransactionMisuse:
    """Say that a connection is of an engine that the store does not know."""
    return TransactionMisuse(
        "This connection is not of the store's engine. Open the store with the engine of the "
        "application: Store(engine=engine), or AsyncStore(engine=async_engine)."
    )


def _ended() -> TransactionMisuse:
    return TransactionMisuse(
        "The application's transaction has ended, or takes no statements now. Begin another one, "
        "or call the store before it ends."
    )


def _let_fail(runner: UnitRunner, connection: Connection) -> None:
    """See to it that an application cannot commit a transaction that the database has undone."""
    transaction = connection.get_transaction()
    if runner.dialect.many_connections(runner.engine.url):
        connection.invalidate()
    elif transaction is not None:  # the database is gone with its only connection
        transaction.rollback()
