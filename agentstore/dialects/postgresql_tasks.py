"""How PostgreSQL's workers learn of tasks: NOTIFY in the changing transaction, LISTEN in theirs.

A notification names a queue, or is empty where any queue may be meant. It is sent when its
transaction commits, and never if that is rolled back; equal ones of a transaction are one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from psycopg import OperationalError, pq, sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Executable,
    Function,
    case,
    func,
    literal_column,
    select,
)
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from agentstore import errors
from agentstore.dialects.signals import TaskSignal
from agentstore.encoding import encode_text
from agentstore.schema import Tables

_PENDING: ColumnElement[str] = literal_column("'pending'")
_ANY_QUEUE: ColumnElement[str] = literal_column("''")


class NotifyingTasks:
    """What ``EngineDialect`` says of tasks."""

    def server_clock(self) -> ColumnElement[datetime]:
        """Read the server's clock, anew for each statement even inside a transaction."""
        return func.statement_timestamp(type_=DateTime(timezone=True))

    def announcing(
        self, statement: ReturningInsert[Any] | ReturningUpdate[Any], tables: Tables
    ) -> Executable:
        """Notify in the same statement: it is sent if, and when, the change is committed."""
        changed = statement.cte("changed").c
        queue = case((changed.status == _PENDING, changed.queue), else_=_ANY_QUEUE)
        told = (
            select(_notify(tables, queue))
            .where((changed.status == _PENDING) | changed.alone_in_session)
            .scalar_subquery()
        )
        return select(*changed, told.label("told"))

    def announce(self, connection: Connection, tables: Tables, queues: Iterable[str]) -> None:
        """Notify each queue once; the empty name means any."""
        for queue in sorted(set(queues)):
            connection.execute(select(_notify(tables, encode_text(queue))))

    def only_checked(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Leave it: the planner counts what sorting would cost."""
        return column

    def task_signal(self, connection: Connection, tables: Tables) -> TaskSignal:
        """Listen on a connection of its own, made as this one was."""
        driver: Any = connection.connection.driver_connection
        parameters = make_conninfo("", **driver.info.get_parameters())
        return ListeningSignal(parameters, driver.info.password, _channel(tables))


def _channel(tables: Tables) -> str:
    """Name the channel: one for the tables of each schema and prefix of a database."""
    names = tables.names
    if names.schema is None and not names.prefix:
        return "agentstore_tasks"
    place = f"{names.schema or ''}.{names.prefix}".encode()
    return f"agentstore_tasks_{hashlib.blake2b(place, digest_size=8).hexdigest()}"


def _notify(tables: Tables, queue: Any) -> Function[Any]:
    return func.pg_notify(_channel(tables), queue)


class ListeningSignal:
    """A connection of its own that listens.

    It works on libpq itself, which a Store's connections and an AsyncStore's have in common.
    """

    interval: float | None = None

    def __init__(self, parameters: str, password: str, channel: str) -> None:
        """Listen on this channel of the server of these connection parameters."""
        self._parameters = parameters
        self._password = password
        self._channel = channel
        self._connection: pq.abc.PGconn | None = None

    def __repr__(self) -> str:
        """Name the channel only."""
        return f"ListeningSignal({self._channel!r})"

    def open(self) -> None:
        """Connect and listen."""
        complete = make_conninfo(self._parameters, password=self._password or None)
        connection = pq.PGconn.connect(complete.encode("utf-8"))
        self._connection = connection
        if connection.status != pq.ConnStatus.OK:
            raise self._broken()
        listen = sql.SQL("LISTEN {}").format(sql.Identifier(self._channel))
        if connection.exec_(listen.as_bytes()).status != pq.ExecStatus.COMMAND_OK:
            raise self._broken()

    def fileno(self) -> int | None:
        """Give the socket."""
        return None if self._connection is None else self._connection.socket

    def happened(self, queues: Collection[str]) -> bool:
        """Read what has arrived."""
        if self._connection is None:
            raise self._broken()
        meant = {encode_text(queue).encode("utf-8") for queue in queues} | {b""}
        found = False
        try:
            self._connection.consume_input()
            while (notification := self._connection.notifies()) is not None:
                found = found or notification.extra in meant
        except OperationalError as error:
            raise self._broken() from error
        return found

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.finish()
            self._connection = None

    def _broken(self) -> errors.DatabaseError:
        self.close()
        return errors.DatabaseUnreachable(
            "The connection that listens for tasks broke, or could not be made; workers look "
            "without it. Check that the server runs and takes one more connection."
        )
