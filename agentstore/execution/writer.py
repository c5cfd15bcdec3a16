"""The one writer of a database that takes one writer at a time, and group commit.

Units that write queue up. Who finds nobody writing leads: it takes what waits, in the order of
arrival and up to a limit, runs each unit in a savepoint of one transaction, commits once, and only
then tells all of them. Units in a row whose writes can go together are a group (see ``unit``),
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
from contextvars import Context, copy_context
from enum import Enum
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Engine

from agentstore.engines.base.dialect import EngineDialect, Mode, cause_of
from agentstore.engines.base.statements import run_sql
from agentstore.errors import ConnectionLost, DatabaseBusy, DatabaseReplaced
from agentstore.execution.unit import (
    DEFERRED,
    HANDLED,
    GatheredCall,
    Unit,
    UnitFailure,
    Write,
    performed,
    register_for_fork,
    unit_failure,
    write_group,
)

MOST_TOGETHER = 100
"""Calls in a group at most: a commit's cost is well shared by then, and others wait for its end."""


# What waits in the writer's queue: a unit of work, its outcome, and how its caller is told.
#
# A thread waits for an event, a task for a future: each kind of caller has its class. The writer
# decides what becomes of a write, and when.


class State(Enum):
    """Where a write is."""

    WAITING = "in the queue"
    LEADING = "first in the queue, and to lead"
    RUNNING = "taken out of the queue"
    COMMITTING = "its commit is under way"
    DONE = "its outcome is known"
    TAKEN_BACK = "its caller does not want it any more"


class QueuedWrite:
    """A unit in the queue, and its outcome. The caller is a thread, which waits.

    Whichever thread runs the body, it runs in the caller's context.

    Attributes:
        work: The body; None asks only for the lead, for a transaction of the caller's own.
        returned: What the body returned, once that is committed; or, where it went with a group,
            what its second half needs.
        error: What the caller is to see instead.
        context: The caller's, where the body runs in another thread.
        finish: The second half, where it went with a group.
        place: Where the caller waits, if callers in one place are told together.
    """

    __slots__ = (
        "_heard",
        "context",
        "error",
        "finish",
        "place",
        "returned",
        "state",
        "work",
    )

    def __init__(self, work: Callable[[Unit], Any] | None) -> None:
        """Make a write that is not queued yet."""
        self.work = work
        self.state = State.WAITING
        self.place: Any = None
        self.returned: Any = None
        self.error: BaseException | None = None
        self.finish: Callable[[Any], Any] | None = None
        self._heard: threading.Event | None = None
        self.context: Context | None = None

    def will_wait(self) -> None:
        """Prepare to wait, because another write leads; one that leads at once never waits."""
        self.context = copy_context()
        self._heard = threading.Event()

    def run(self, unit: Unit) -> None:
        """Run the body, and keep what it returns."""
        assert self.work is not None, "a caller that asked for the lead runs its own work"
        self.finish = None
        if self.context is None:
            self.returned = performed(unit, self.work)
        else:
            self.returned = self.context.run(performed, unit, self.work)

    def outcome(self) -> Any:
        """Give the result, or raise the error; for the caller, once it has heard."""
        if self.error is not None:
            raise self.error
        return self.returned if self.finish is None else self.finish(self.returned)

    @property
    def kind(self) -> type[Write] | None:
        """What it can be written together with, if with anything."""
        return self.work.kind if isinstance(self.work, GatheredCall) else None

    def lead(self) -> None:
        """Wake the caller: this write is first in the queue, and is to lead."""
        if self._heard is not None:
            self._heard.set()

    @staticmethod
    def tell(writes: Sequence[QueuedWrite]) -> None:
        """Wake the callers of writes of this kind: their outcome is known."""
        for write in writes:
            if write._heard is not None:
                write._heard.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the lead or the outcome; say whether it came in time."""
        assert self._heard is not None, "a leader does not wait"
        return self._heard.wait(timeout)


class GroupFailed(Exception):
    """Writes of a group failed together; each is to be run by itself."""


def turn_never_came() -> DatabaseBusy:
    """Say that other writers of this store were in front for too long."""
    return DatabaseBusy(
        "Timed out waiting to write: other transactions of this store took longer than "
        "busy_timeout. Keep transactions short, and do not wait for a model inside one."
    )


def interrupted(*, in_doubt: bool) -> UnitFailure:
    """Say that the thread was interrupted in whose hands a unit was.

    Args:
        in_doubt: Whether that was in the commit; if not, nothing was written.
    """
    said = "Another thread, which was writing for this call as well as for itself, was interrupted"
    if in_doubt:
        advice = (
            f"{said} during its commit. The write may or may not have been committed: check, or "
            "repeat it with the same idempotency_key."
        )
    else:
        advice = f"{said} before its commit. Nothing was written; repeat the call."
    lost = ConnectionLost(advice, in_doubt=in_doubt)
    return UnitFailure(lost, repeatable=not in_doubt, in_doubt=in_doubt)


def of_the_body(error: BaseException) -> bool:
    """Say whether an error is the body's own, to be raised where its caller is.

    If it is not, the thread was interrupted that happened to run the body; only the main one is.
    """
    return isinstance(error, Exception) or (
        threading.current_thread() is not threading.main_thread()
    )


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
        self._unit: Unit | None = None
        self._driver_connection: Any = None
        self._lock = threading.Lock()
        self._queue: deque[QueuedWrite] = deque()
        # Who leads: a write that is or was first in the queue, or a lone call. If nobody does, the
        # queue is empty.
        self._leader: object = None
        self._closing = self._busy = False
        register_for_fork(self)

    # --- The queue ---------------------------------------------------------------------------

    def run(self, work: Callable[[Unit], Any]) -> Any:
        """Run a body in a unit, and return what it returned when that is committed.

        Raises:
            UnitFailure: The database failed.
            DatabaseBusy: The turn did not come within the timeout.
        """
        alone = object()
        try:
            try:
                with self._lock:
                    if self._leader is None:
                        self._leader = alone
                if self._leader is alone:
                    self._busy = True
                    return self._run_alone(work)
            finally:
                if self._leader is alone:
                    self._busy = False
                    self.hand_over(alone)
        except BaseException:
            self.hand_over(alone)  # an interrupt may have come between
            raise
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
            try:
                self._wait_for_turn(write)
                self.begin_exclusive(write)
                yield
            finally:
                self.leave(write)
        except BaseException:
            self.leave(write)
            raise

    def enqueue(self, write: QueuedWrite) -> bool:
        """Put a write into the queue; say whether it is to lead at once."""
        with self._lock:
            self._queue.append(write)
            if self._leader is not None:
                write.will_wait()
                return False
            self._leader, write.state = write, State.LEADING
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

        A unit that runs goes on. It can be repeated, where it was interrupted itself.
        """
        with self._lock:
            if write.state in (State.WAITING, State.LEADING):
                with suppress(ValueError):  # interrupted on its way into the queue
                    self._queue.remove(write)
            elif write.work is not None and write.state is not State.TAKEN_BACK:
                return
            write.state = State.TAKEN_BACK
        self.hand_over(write)

    def begin_exclusive(self, write: QueuedWrite) -> None:
        """Take a write without a body, which has the lead, out of the queue; it keeps the lead."""
        with self._lock:
            first = self._queue.popleft()
            assert first is write, "the lead is with the first"
            write.state = State.RUNNING

    def lead(self) -> None:
        """Run one batch, beginning with the first in the queue, and hand the lead over."""
        batch: list[QueuedWrite] = []
        leader: QueuedWrite | None = None
        try:
            try:
                with self._lock:
                    if self._queue and self._queue[0].state is State.LEADING:  # not woken twice
                        leader = self._queue[0]
                        while self._queue and self._queue[0].work and len(batch) < MOST_TOGETHER:
                            batch.append(self._queue.popleft())
                            batch[-1].state = State.RUNNING
                self._busy = True
                self._run_batch(batch)
            finally:
                self._busy = False
                self.hand_over(leader)  # first: who is told may lead the next batch at once
                self._answer(batch)
        except BaseException:
            self.hand_over(leader)
            self._answer(batch)
            raise

    def hand_over(self, leader: object) -> None:
        """Give the lead to the first in the queue, if it is still the leader's.

        It can be repeated, where it was interrupted.
        """
        with self._lock:
            if self._leader is leader:
                if not self._queue:
                    if self._closing:
                        self._drop_connection()
                    self._leader = None
                    return
                self._leader = self._queue[0]
                self._queue[0].state = State.LEADING
            following = self._queue[0] if self._queue else None
        if following is not None and following.state is State.LEADING:
            following.lead()

    def close(self, *, wait: bool) -> None:
        """Close the connection once nobody leads any more.

        Args:
            wait: Whether to wait for that, up to the timeout.
        """
        with self._lock:
            self._closing = True
            if self._leader is None:
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
        """Run writes in one transaction; one alone, or where that fails, each in its own."""
        if len(batch) > 1:
            groups = [list(writes) for _, writes in groupby(batch, key=lambda write: write.kind)]
            try:
                done = self._run_together(batch, groups)
            except GroupFailed:
                done = self._run_together(batch, [[write] for write in batch])
            if done:
                return
        for write in batch:
            assert write.work is not None, "a caller that asked for the lead runs its own work"
            write.state = State.RUNNING
            write.error = write.returned = None
            try:
                write.finish = None
                write.returned = self._run_alone(write.work, write)
            except BaseException as error:
                if not (isinstance(error, UnitFailure) or of_the_body(error)):
                    raise
                write.error = error
            write.state = State.DONE

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
            self._dialect.commit(connection)
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
        calls = [write.work for write in writes if isinstance(write.work, GatheredCall)]
        try:
            outcomes = write_group(self._unit_of(connection), calls)
        except BaseException as error:
            if not of_the_body(error):
                raise
            raise GroupFailed from error
        left: list[QueuedWrite] = []
        for write, call, outcome in zip(writes, calls, outcomes, strict=True):
            if outcome is DEFERRED:
                left.append(write)
            else:
                write.returned, write.finish = outcome, call.finish
        return left

    def _run_in_savepoint(self, connection: Connection, write: QueuedWrite) -> None:
        """Run a write; if it fails, undo only that.

        Raises:
            One of HANDLED: The transaction as a whole is lost.
        """
        write.error = None
        run_sql(connection, "SAVEPOINT unit")
        try:
            write.run(self._unit_of(connection))
        except HANDLED as error:
            write.error = self._failed(error, committing=False)
        except BaseException as error:
            if not of_the_body(error):
                raise
            write.error = error
        if write.error is not None:
            run_sql(connection, "ROLLBACK TO unit")
        run_sql(connection, "RELEASE unit")

    def _run_alone(self, work: Callable[[Unit], Any], write: QueuedWrite | None = None) -> Any:
        """Run a body in a transaction of its own, and return what it returned.

        Args:
            work: The body.
            write: Who is told when its commit begins, if it is somebody else's.

        Raises:
            UnitFailure: The database failed.
        """
        committing = False
        try:
            connection = self._connection or self._open()
            self._dialect.begin_to_write(connection, self._timeout)
            unit = self._unit or self._make_unit(connection)
            if write is None or write.context is None:
                result = performed(unit, work)
            else:
                result = write.context.run(performed, unit, work)
            self._dialect.require_file(connection)
            committing = True
            if write is not None:
                write.state = State.COMMITTING
            self._dialect.commit(connection)
        except HANDLED as error:
            self._roll_back(drop=True)
            raise self._failed(error, committing=committing) from cause_of(error)
        except BaseException as error:
            self._roll_back(drop=not isinstance(error, Exception))
            raise
        if not self._keeps_connection:
            self._done_with(connection)
        return result

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
                self._unit = self._make_unit(self._connection)
        return self._connection

    def _unit_of(self, connection: Connection) -> Unit:
        return self._unit or self._make_unit(connection)

    def _done_with(self, connection: Connection) -> None:
        if not self._keeps_connection:
            self._connection = None
            connection.close()

    def _roll_back(self, *, drop: bool) -> None:
        """Roll back; and, if the connection is not to be trusted, or kept, give it back."""
        try:
            if self._connection is not None:
                self._dialect.roll_back(self._connection)
        except HANDLED:
            drop = True  # its transaction is still open, with the lock
        finally:
            if drop or not self._keeps_connection:
                self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection, self._unit = self._connection, None, None
        if connection is not None:
            with suppress(*HANDLED):
                connection.close()
        detached, self._driver_connection = self._driver_connection, None
        if detached is not None:
            # After an interrupt SQLAlchemy lets go of it unclosed, and with it of a lock.
            with suppress(Exception):
                self._engine.dialect.do_close(detached)
