"""How a worker on PostgreSQL hears of tasks: LISTEN, on a connection of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from psycopg import OperationalError, pq, sql
from psycopg.conninfo import make_conninfo

from agentstore import errors
from agentstore.engines.base.signals import TaskSignal
from agentstore.values.encoding import encode_text


class ListeningSignal(TaskSignal):
    """A connection of its own that listens.

    It works on libpq itself, which a Store's connections and an AsyncStore's have in common.
    """

    interval: float | None = None

    def __init__(self, parameters: Mapping[str, str], password: str, channel: str) -> None:
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
        complete = make_conninfo("", **self._parameters, password=self._password or None)
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
            "The connection that listens for tasks broke, or could not be made; workers poll "
            "instead. Check that the server is running and takes one more connection."
        )
