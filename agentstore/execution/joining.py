"""Running units inside a transaction that is open: the store's, or one of the application's own.

Who began it commits and rolls back; a unit here is a savepoint at most. Whether a connection of the
application's can carry one is looked at for each call, as the application may have done anything to
it meanwhile: it has to be of the store's engine, whose connections are set up as units need them,
and in a transaction that is whole.

With an ORM session a call goes where the session is: into its transaction and savepoint, after a
flush if the session flushes by itself.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, UnboundExecutionError

from agentstore.engines.base.causes import cause_of
from agentstore.engines.base.dialect import MODE, Mode
from agentstore.errors import AgentStoreError, InvalidInput, TransactionMisuse, shown
from agentstore.execution.forking import of_this_process, store_of_parent
from agentstore.execution.recovery import HANDLED, Trouble, performed, trouble
from agentstore.execution.runners import READING, UnitRunner
from agentstore.execution.unit import Unit
from agentstore.values.internals import is_in_autocommit

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

T = TypeVar("T")


class JoinRunner:
    """Runs bodies inside a transaction that is open.

    Each write is a savepoint: if it fails and the caller goes on, nothing of it stays, and on
    PostgreSQL the transaction can go on at all.
    """

    def __init__(self, unit: Unit) -> None:
        """Join this unit."""
        self._unit = replace(unit, joined=True)
        self._only_reads = unit.connection.get_execution_options().get(MODE) in READING
        self._closed = False
        self._busy = threading.Lock()
        self.trouble: Trouble | None = None
        """What the last call that failed met with."""
        self.lost: Trouble | None = None
        """Why the transaction is gone as a whole, if a savepoint could not be gone back to: what
        came after that would be in no transaction at all."""
        of_this_process(self)

    def left_behind(self) -> None:
        """Refuse all further calls; in a child that was forked inside the transaction."""
        self._busy = threading.Lock()
        self.lost = Trouble(store_of_parent(), repeatable=False, in_doubt=False)
        self._unit.dialect.abandon(self._unit.connection)

    def refuse(self) -> None:
        """Refuse all further calls."""
        self._closed = True

    def close(self) -> None:
        """Refuse all further calls, and wait until one that another thread is in has ended."""
        self.refuse()
        with self._busy:
            pass

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body; see ``Runner``."""
        with self._busy:  # a transaction shared by threads takes their calls one by one
            if self._closed:
                raise TransactionMisuse(
                    "This transaction has ended. Begin another with store.transaction()."
                )
            if self.lost is not None:
                raise self.lost.error from self.lost.__cause__
            if self._only_reads and mode not in READING:
                raise TransactionMisuse(
                    "The function of read() called something that writes; nothing was written. "
                    "Use run() or transaction()."
                )
            failed: BaseException | None = None
            try:
                if mode in READING:
                    return performed(self._unit, work)
                with self._unit.connection.begin_nested():
                    try:
                        return performed(self._unit, work)
                    except BaseException as error:
                        failed = error
                        raise
            except HANDLED as error:
                shown = failed if isinstance(failed, HANDLED) else error
                found = trouble(self._unit.dialect, Mode.WRITE, shown, committing=False)
                found.__cause__ = cause_of(shown)
                self.trouble = found
                if mode not in READING and error is not failed:
                    self.lost = found
                raise found.error from found.__cause__
            finally:
                failed = None  # with its frames, of which this is one


@contextmanager
def joined(unit: Unit) -> Iterator[JoinRunner]:
    """Give a block of the application's what it needs to join the unit.

    Raises:
        Trouble: The block raised what the database did to one of its calls, or went on after it
            although the transaction was gone; or it raised an error of SQLAlchemy's, which is of
            some other database then, and is passed on as it is.
    """
    runner = JoinRunner(unit)
    try:
        yield runner
        if runner.lost is not None:
            raise runner.lost
    except HANDLED as error:
        raise Trouble(error, repeatable=False, in_doubt=False) from error.__cause__
    except AgentStoreError as error:
        if runner.trouble is not None and runner.trouble.error is error:
            raise runner.trouble from error.__cause__
        raise
    finally:
        runner.close()


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
            calls = JoinRunner(unit)
            try:
                return calls.run(mode, body, repeatable=repeatable)
            finally:
                if calls.lost is not None:
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
