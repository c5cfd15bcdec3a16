"""How PostgreSQL's workers learn of tasks: NOTIFY in the changing transaction, LISTEN in theirs.

A notification names a queue, or is empty where any queue may be meant. It is sent when its
transaction commits, and never if that is rolled back; equal ones of a transaction are one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Executable,
    Function,
    Text,
    case,
    func,
    literal_column,
    select,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from agentstore.engines.base.signals import TaskSignal
from agentstore.models.tables import Tables
from agentstore.values.encoding import encode_text

_PENDING: ColumnElement[str] = literal_column("'pending'")
_ANY_QUEUE: ColumnElement[str] = literal_column("''")


class NotifyingTasks:
    """What ``EngineDialect`` says of tasks."""

    def server_clock(self) -> ColumnElement[datetime]:
        """Read the server's clock, again for each statement even inside a transaction."""
        return func.statement_timestamp(type_=DateTime(timezone=True))

    def announcing(
        self, statement: ReturningInsert[Any] | ReturningUpdate[Any], tables: Tables
    ) -> Executable:
        """Notify in the same statement: it is sent if, and when, the change is committed."""
        changed = statement.cte("changed").c
        queue = case((changed.status == _PENDING, changed.queue), else_=_ANY_QUEUE)
        told = (
            select(func.count(sql_cast(_notify(tables, queue), Text)))  # of however many rows
            .where((changed.status == _PENDING) | changed.alone_in_session)
            .scalar_subquery()
        )
        return select(*changed, told.label("told"))

    def announce(self, connection: Connection, tables: Tables, queues: Iterable[str]) -> None:
        """Notify each queue once; the empty name means any."""
        for queue in sorted(set(queues)):
            connection.execute(select(_notify(tables, encode_text(queue))))

    def task_signal(self, connection: Connection, tables: Tables) -> TaskSignal:
        """Listen on a connection of its own, made as this one was."""
        # Imported here, with the driver that it needs: programs on SQLite do without both.
        from agentstore.engines.postgresql.signal import ListeningSignal

        info = cast("Any", connection.connection.driver_connection).info
        return ListeningSignal(info.get_parameters(), info.password, _channel(tables))


def _channel(tables: Tables) -> str:
    """Name the channel: one for the tables of each schema and prefix of a database."""
    names = tables.names
    if names.schema is None and not names.prefix:
        return "agentstore_tasks"
    place = f"{names.schema or ''}.{names.prefix}".encode()
    return f"agentstore_tasks_{hashlib.blake2b(place, digest_size=8).hexdigest()}"


def _notify(tables: Tables, queue: Any) -> Function[Any]:
    return func.pg_notify(_channel(tables), queue)
