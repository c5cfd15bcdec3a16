"""The one writer of a database that takes one writer at a time, and group commit.

Units that write queue up. Who finds nobody writing leads: it takes what waits, in the order of
arrival and up to a limit, runs each unit in a savepoint of one transaction, commits once, and only
then tells all of them. Units in a row whose writes can go together are a group (see ``gathering``),
and share their statements. So a sync of the disk is shared by all who wait for one, a lone caller
pays for no thread switch, and nobody waits for more than one batch beyond its turn: after each
batch the lead goes to the first in the queue then.

One unit's failure is its own: its savepoint is rolled back and its caller gets its error. If units
that went together fail as one, the batch is run again with a savepoint for each. If the engine
gives up the whole transaction (a full disk, a commit that fails), nobody has been told anything
yet, and every unit is run again in a transaction of its own, to succeed or fail by itself.

An application's transaction shares with nobody: its owner has the lead from the moment it is first
in the queue until it ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Engine

from agentstore.engines.base.dialect import EngineDialect, Mode, cause_of
from agentstore.engines.base.statements import run_sql
from agentstore.errors import DatabaseBusy, DatabaseReplaced
from agentstore.execution.gathering import (
    DEFERRED,
    MOST_TOGETHER,
    GatheredCall,
    GroupFailed,
    QueuedWrite,
    State,
    interrupted,
    of_the_body,
    turn_never_came,
    write_group,
)
from agentstore.execution.unit import HANDLED, Unit, UnitFailure, register_for_fork, unit_failure


class Writer:
    """Runs units one batch after the other; see the module."""

    def __init__(
        self,
        engine: Engine,
        dialect: EngineDialect,
        make_unit: Callable[[Connection], Unit],
        *,
        timeout: float,
        keeps_connection: bool,
    ) -> None:
        """Open nothing yet.

        Args:
            engine: Begins a transaction that writes.
            dialect: The engine's.
            make_unit: Makes the unit of an open connection.
            timeout: Seconds that a unit waits for its turn.
            keeps_connection: Whether the connection stays open between batches; not if the
                engine has but one, or is the application's.
        """
        self._engine = engine
        self._dialect = dialect
        self._make_unit = make_unit
        self._timeout = timeout
        self._keeps_connection = keeps_connection
        self._connection: Connection | None = None
        self._driver_connection: Any = None
        self._lock = threading.Lock()
        self._queue: deque[QueuedWrite] = deque()
        self._led = False  # if not, the queue is empty
        self._closing = self._busy = False
        register_for_fork(self)

    # --- The queue ---------------------------------------------------------------------------

    def run(self, work: Callable[[Unit], Any]) -> Any:
        """Run a body in a unit, and return what it returned when that is committed.

        Raises:
            UnitFailure: The database failed.
            DatabaseBusy: The turn did not come within the timeout.
        """
        write = QueuedWrite(work)
        try:
            self._wait_for_turn(write)
            if write.state is State.LEADING:
                self.lead()
        except BaseException:
            self.leave(write)
            raise
        return write.outcome()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all others from writing until the block ends.

        Raises:
            DatabaseBusy: The turn did not come within the timeout.
        """
        write = QueuedWrite(None)
        try:
            self._wait_for_turn(write)
            self.begin_exclusive(write)
            yield
        finally:
            self.leave(write)

    def enqueue(self, write: QueuedWrite) -> bool:
        """Put a write into the queue; say whether it is to lead at once."""
        with self._lock:
            self._queue.append(write)
            if self._led:
                write.will_wait()
                return False
            self._led = True
            write.state = State.LEADING
            return True

    def take_back(self, write: QueuedWrite) -> bool:
        """Take back a write that has neither begun nor got the lead; say whether that was so."""
        with self._lock:
            if write.state is not State.WAITING:
                return False
            self._queue.remove(write)
            write.state = State.TAKEN_BACK
            return True

    def leave(self, write: QueuedWrite) -> None:
        """Let go of the place in the queue, or of the lead, if a write has it: its caller leaves.

        A unit that runs goes on.
        """
        with self._lock:
            state = write.state
            if state in (State.WAITING, State.LEADING):
                with suppress(ValueError):  # interrupted on its way into the queue
                    self._queue.remove(write)
            elif state is not State.RUNNING or write.work is not None:
                return
            write.state = State.TAKEN_BACK
        if state is not State.WAITING:
            self.hand_over()

    def begin_exclusive(self, write: QueuedWrite) -> None:
        """Take a write without a body, which has the lead, out of the queue; it keeps the lead."""
        with self._lock:
            first = self._queue.popleft()
            assert first is write, "the lead is with the first"
            write.state = State.RUNNING

    def lead(self) -> None:
        """Run one batch, beginning with the first in the queue, and hand the lead over."""
        batch: list[QueuedWrite] = []
        try:
            with self._lock:
                while self._queue and self._queue[0].work and len(batch) < MOST_TOGETHER:
                    write = self._queue.popleft()
                    write.state = State.RUNNING
                    batch.append(write)
            self._busy = True
            self._run_batch(batch)
        finally:
            self._busy = False
            self._answer(batch)
            self.hand_over()

    def hand_over(self) -> None:
        """Give the lead to the first in the queue."""
        with self._lock:
            if not self._queue:
                if self._closing:
                    self._drop_connection()
                self._led = False
                return
            following = self._queue[0]
            following.state = State.LEADING
        following.lead()

    def close(self, *, wait: bool) -> None:
        """Close the connection once nobody leads any more.

        Args:
            wait: Whether to wait for that, up to the timeout.
        """
        with self._lock:
            self._closing = True
            if not self._led:
                self._drop_connection()
                return
        if wait:
            with suppress(DatabaseBusy), self.exclusive():
                pass

    def after_fork(self) -> None:
        """Leave connection and queue to the parent; in a child that was forked."""
        self._lock = threading.Lock()
        self._queue.clear()
        connection, self._connection, self._driver_connection = self._connection, None, None
        if connection is not None and self._keeps_connection:
            self._dialect.leave_behind(connection, busy=self._busy)

    def _wait_for_turn(self, write: QueuedWrite) -> None:
        """Wait until a write is done, or has the lead."""
        if self.enqueue(write) or write.wait(self._timeout):
            return
        if self.take_back(write):
            raise turn_never_came()
        write.wait(None)  # it has begun meanwhile, or has the lead

    @staticmethod
    def _answer(batch: Sequence[QueuedWrite]) -> None:
        """Tell the callers. Who has no outcome was in the hands of a thread that is interrupted."""
        places: dict[Any, list[QueuedWrite]] = {}
        for write in batch:
            if write.state is not State.DONE:
                write.error = interrupted(in_doubt=write.state is State.COMMITTING)
                write.state = State.DONE
            places.setdefault(write.place, []).append(write)
        for writes in places.values():
            writes[0].tell(writes)

    # --- Running -----------------------------------------------------------------------------

    def _run_batch(self, batch: Sequence[QueuedWrite]) -> None:
        if len(batch) > 1:
            groups = [list(writes) for _, writes in groupby(batch, key=lambda write: write.kind)]
            try:
                done = self._run_together(batch, groups)
            except GroupFailed:
                done = self._run_together(batch, [[write] for write in batch])
            if done:
                return
        for write in batch:
            self._run_in_own_transaction(write)

    def _run_together(
        self, batch: Sequence[QueuedWrite], groups: Sequence[list[QueuedWrite]]
    ) -> bool:
        """Run writes in one transaction; say whether that was committed. If not, nothing was.

        The groups are the batch, in its order; the units of a group are of one kind.

        Raises:
            GroupFailed: A group failed as a whole; nothing was committed.
        """
        begun = False
        try:
            connection = self._open()
            self._dialect.begin_to_write(connection, self._timeout)
            begun = True
            for group in groups:
                left = group
                if group[0].kind is not None and len(group) > 1:
                    left = self._run_group(connection, group)
                for write in left:
                    self._run_in_savepoint(connection, write)
            self._dialect.require_file(connection)
            for write in batch:
                write.state = State.COMMITTING
            connection.commit()
        except DatabaseReplaced:  # for each of them
            self._roll_back(drop=True)
            return False
        except GroupFailed as failed:
            self._roll_back(drop=isinstance(failed.__cause__, HANDLED))
            raise
        except HANDLED as error:
            self._roll_back(drop=True)
            if begun:
                return False
            for write in batch:  # in its own, each would wait as long for the same
                write.error, write.state = self._failed(error, committing=False), State.DONE
            return True
        except BaseException:
            self._roll_back(drop=True)
            raise
        self._done_with(connection)
        for write in batch:
            write.state = State.DONE
        return True

    def _run_group(
        self, connection: Connection, writes: Sequence[QueuedWrite]
    ) -> list[QueuedWrite]:
        """Run the writes of a group; give those that it leaves out.

        Not in a savepoint: SQLite would copy each page that they change beforehand.

        Raises:
            GroupFailed: They failed as a whole, and may have left something behind.
        """
        unit = self._make_unit(connection)
        calls = [write.work for write in writes if isinstance(write.work, GatheredCall)]
        try:
            outcomes = write_group(unit, calls)
        except BaseException as error:
            if not of_the_body(error):
                raise
            raise GroupFailed from error
        left: list[QueuedWrite] = []
        for write, call, outcome in zip(writes, calls, outcomes, strict=True):
            if outcome is DEFERRED:
                left.append(write)
            else:
                write.error, write.result = None, outcome
                write.finish = call.finish
        return left

    def _run_in_savepoint(self, connection: Connection, write: QueuedWrite) -> None:
        """Run a write; if it fails, undo only that.

        Raises:
            One of HANDLED: The transaction as a whole is lost.
        """
        write.error = None
        run_sql(connection, "SAVEPOINT unit")
        unit = self._make_unit(connection)
        try:
            write.run(unit)
        except HANDLED as error:
            write.error = self._failed(error, committing=False)
        except BaseException as error:
            if not of_the_body(error):
                raise
            write.error = error
        if write.error is not None:
            run_sql(connection, "ROLLBACK TO unit")
        run_sql(connection, "RELEASE unit")

    def _run_in_own_transaction(self, write: QueuedWrite) -> None:
        """Run a write in a transaction of its own."""
        write.state = State.RUNNING
        write.error = write.result = None
        try:
            connection = self._open()
            self._dialect.begin_to_write(connection, self._timeout)
            unit = self._make_unit(connection)
            write.run(unit)
            self._dialect.require_file(connection)
            write.state = State.COMMITTING
            connection.commit()
        except HANDLED as error:
            write.error = self._failed(error, committing=write.state is State.COMMITTING)
            self._roll_back(drop=True)
        except BaseException as error:
            self._roll_back(drop=not isinstance(error, Exception))
            if not of_the_body(error):
                raise
            write.error = error
        else:
            self._done_with(connection)
        write.state = State.DONE

    def _failed(self, error: Exception, *, committing: bool) -> UnitFailure:
        found = unit_failure(self._dialect, Mode.WRITE, error, committing=committing)
        found.__cause__ = cause_of(error)
        return found

    # --- The connection ----------------------------------------------------------------------

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            if self._keeps_connection:
                self._connection.detach()  # the pool is for those who come and go
                self._dialect.prepare_writer(self._connection)
                self._driver_connection = self._connection.connection.dbapi_connection
        return self._connection

    def _done_with(self, connection: Connection) -> None:
        if not self._keeps_connection:
            self._connection = None
            connection.close()

    def _roll_back(self, *, drop: bool) -> None:
        """Roll back; and, if the connection is not to be trusted, or kept, give it back."""
        try:
            if self._connection is not None:
                with suppress(*HANDLED):
                    self._connection.rollback()
        finally:
            if drop or not self._keeps_connection:
                self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*HANDLED):
                connection.close()
        detached, self._driver_connection = self._driver_connection, None
        if detached is not None:
            # After an interrupt SQLAlchemy lets go of it unclosed, and with it of a lock.
            with suppress(Exception):
                self._engine.dialect.do_close(detached)
