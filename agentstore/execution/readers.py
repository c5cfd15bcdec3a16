"""Connections that are kept for reading, where the engine is in this process.

A lone SELECT needs no transaction. To check a connection out of the pool, begin, commit and check
it in again took as long as a small read itself: so those that have been read from are kept, out of
the pool, and the next read takes one as it is. What needs a transaction has the pool's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from agentstore.engines.base.causes import cause_of
from agentstore.engines.base.dialect import Mode
from agentstore.engines.base.prepared import NO_TRANSACTION
from agentstore.engines.registry import EngineDialect
from agentstore.execution.forking import of_this_process
from agentstore.execution.recovery import HANDLED, performed, trouble
from agentstore.execution.unit import Unit

T = TypeVar("T")


class LoneRead:
    """A method that is one SELECT, and its arguments, on their way to a unit."""

    __slots__ = ("_args", "_body", "_kwargs", "_repository")

    def __init__(
        self, body: Callable[..., Any], repository: Callable[[Unit], Any], args: Any, kwargs: Any
    ) -> None:
        """Keep what to call; no argument may be used up by it."""
        self._body = body
        self._repository = repository
        self._args = args
        self._kwargs = kwargs

    def __call__(self, unit: Unit) -> Any:
        """Read."""
        return self._body(self._repository(unit), *self._args, **self._kwargs)


class Readers:
    """Runs lone reads, each on a connection that no other thread has at that moment."""

    def __init__(
        self,
        engine: Engine,
        dialect: EngineDialect,
        make_unit: Callable[[Connection], Unit],
        *,
        most: int,
    ) -> None:
        """Open nothing yet.

        Args:
            engine: For ``Mode.READ``; its connections are the store's own.
            dialect: The engine's.
            make_unit: Makes the unit of an open connection.
            most: How many connections are kept; what is read beside them has the pool's.
        """
        self._engine = engine
        self._dialect = dialect
        self._make_unit = make_unit
        self._most = most
        self._idle: list[_Kept] = []
        self._kept: set[_Kept] = set()
        self._closed = False
        of_this_process(self)

    def run(self, work: Callable[[Unit], T]) -> T:
        """Run a body that is one SELECT.

        Raises:
            Trouble: The database failed.
        """
        reader: _Kept | None = None
        try:
            try:
                reader = self._idle.pop()
                self._dialect.require_file(reader.connection, each_time=False)
            except IndexError:
                reader = _Kept(self._engine.connect(), self._make_unit)
            result = performed(reader.unit, work)
        except HANDLED as error:
            self._drop(reader)
            raise trouble(self._dialect, Mode.READ, error, committing=False) from cause_of(error)
        except Exception:  # the body's own, such as NotFound: nothing is wrong with the connection
            if reader is not None:
                self._give_back(reader)
            raise
        except BaseException:
            self._drop(reader)
            raise
        self._give_back(reader)
        return result

    def close(self) -> None:
        """Close idle connections, and the others once they come back."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._drop(self._idle.pop())

    def left_behind(self) -> None:
        """Leave the connections to the parent; in a child that was forked."""
        self._closed = True
        idle, self._idle = self._idle, []
        for reader in self._kept:
            self._dialect.leave_behind(reader.connection, busy=reader not in idle)

    def _give_back(self, reader: _Kept) -> None:
        try:
            if reader.connection.in_transaction():  # a tracer listens, and so SQLAlchemy began one
                reader.connection.rollback()
            if reader not in self._kept:
                self._kept.add(reader)  # first, so that no two take the last place
                if len(self._kept) > self._most:
                    self._kept.discard(reader)
                    reader.connection.close()
                    return
                reader.keep()
        except BaseException:
            self._drop(reader)
            raise
        self._idle.append(reader)
        if self._closed:
            self.close()

    def _drop(self, reader: _Kept | None) -> None:
        if reader is None:
            return
        self._kept.discard(reader)
        with suppress(*HANDLED):
            reader.connection.close()
        if reader.driver_connection is not None:
            # After an interrupt SQLAlchemy lets go of it unclosed, and with it of a lock.
            with suppress(Exception):
                self._engine.dialect.do_close(reader.driver_connection)


class _Kept:
    """A connection with the unit of those who read from it.

    Attributes:
        driver_connection: The driver's, once it is out of the pool.
    """

    __slots__ = ("__weakref__", "connection", "driver_connection", "unit")

    def __init__(self, connection: Connection, make_unit: Callable[[Connection], Unit]) -> None:
        self.connection = connection.execution_options(**{NO_TRANSACTION: True})
        self.unit = make_unit(connection)
        self.driver_connection: Any = None

    def keep(self) -> None:
        """Take it out of the pool, which is for those who come and go."""
        self.connection.detach()
        self.driver_connection = self.connection.connection.dbapi_connection
