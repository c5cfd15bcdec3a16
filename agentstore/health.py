"""Whether a store can do its work now, asked cheaply and with a limit on the time.

For a readiness probe: an unhealthy database is an answer here, not an error. The question is one
look at the revision, one at the search index and one at the server's replication, and reads no rows
of the application's. A driver may hang for as long as its socket does, so the question is asked in
a thread or a task of its own, and the caller waits no longer than it said. Only one question is
asked at a time: callers that ask meanwhile share it, so that probes of a database that hangs do not
pile up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import Engine, QueuePool

from agentstore import records
from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import Mode
from agentstore.errors import AgentStoreError, InvalidInput, shown
from agentstore.execution.unit import Unit, UnitFailure, in_use
from agentstore.migrations import HEAD
from agentstore.settings import Settings

if TYPE_CHECKING:
    from agentstore.engines.base.moving import DatabaseStatus
    from agentstore.records import HealthRecord, PoolUse, ReplicationRecord


DEFAULT_TIMEOUT = 5.0
"""Seconds. Probes of orchestrators give up after one to ten, by default."""

_COUNT_TO = 1_000
_LONGEST = 3600.0


@dataclass(frozen=True, slots=True)
class Look:
    """What a unit found."""

    status: DatabaseStatus
    pending: int
    search_problem: str | None
    replication: ReplicationRecord | None = None


def look(unit: Unit) -> Look:
    """Look at the database: a body for ``Mode.READ``."""
    # Which opening a store spares.
    from agentstore.repositories.search import index_problem, state_of_index

    status = unit.dialect.checks.status(unit.connection, unit.tables)
    if status.revision != HEAD:
        return Look(status, 0, None)
    state = state_of_index(unit, _COUNT_TO)
    problem = index_problem(state, unit.settings.search_stems)
    replication = unit.dialect.checks.replication(unit.connection, unit.settings.synchronous_commit)
    return Look(status, state.pending, problem, replication)


class Probe:
    """Asks one synchronous store how it is."""

    def __init__(
        self,
        engine: Engine,
        once: Callable[[Mode, Callable[[Unit], Look]], Look],
        settings: Settings,
        is_closed: Callable[[], bool],
    ) -> None:
        """Ask nothing yet.

        Args:
            engine: The store's.
            once: Runs a body one time.
            settings: The store's.
            is_closed: Whether the store is closed.
        """
        self.engine = engine
        self._once = once
        self.settings = settings
        self._is_closed = is_closed
        self._lock = threading.Lock()
        self._asked: Future[HealthRecord] | None = None

    def health(self, timeout: float) -> HealthRecord:
        """Ask, and wait up to so many seconds."""
        check_timeout(timeout)
        system, began = dialect_for(self.engine.url).checks.system, time.perf_counter()
        if self._is_closed():
            return without_answer(system, "This store is closed.", began)
        pool = pool_use(self.engine)
        with self._lock:
            asked = self._asked
            if asked is None or asked.done():
                asked = self._asked = Future()
                ask = threading.Thread(target=self._ask, args=(asked, pool), daemon=True)
                ask.start()
        try:
            return asked.result(timeout)
        except TimeoutError:
            return unanswered(system, timeout, began, pool)

    def _ask(self, asked: Future[HealthRecord], pool: PoolUse | None) -> None:
        began = time.perf_counter()
        try:
            found = self._once(Mode.READ, look)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            asked.set_result(unhealthy(self.engine, error, began, pool))
        else:
            asked.set_result(judged(self.engine, self.settings, found, began, pool))


class AsyncProbe:
    """Asks one asynchronous store how it is."""

    def __init__(
        self,
        engine: Engine,
        once: Callable[[Mode, Callable[[Unit], Look]], Awaitable[Look]],
        settings: Settings,
        open_store: Callable[[], Awaitable[None]],
        is_closed: Callable[[], bool],
    ) -> None:
        """Ask nothing yet; see ``Probe``. ``open_store`` opens the store where it is not."""
        self.engine = engine
        self._once = once
        self.settings = settings
        self._open = open_store
        self._is_closed = is_closed
        self._asked: asyncio.Task[HealthRecord] | None = None

    async def health(self, timeout: float) -> HealthRecord:  # noqa: ASYNC109 - it is an answer
        """Ask, and wait up to so many seconds."""
        check_timeout(timeout)
        system, began = dialect_for(self.engine.url).checks.system, time.perf_counter()
        if self._is_closed():
            return without_answer(system, "This store is closed.", began)
        pool = pool_use(self.engine)
        while (left := timeout - (time.perf_counter() - began)) > 0:
            asked = self._asked
            if asked is None or asked.done():
                asked = self._asked = asyncio.create_task(self._ask(pool))
            await asyncio.wait([asked], timeout=left)
            if not asked.done():
                asked.cancel()  # on a server it ends there too; a thread comes to its end by itself
            elif not asked.cancelled():
                return asked.result()
        return unanswered(system, timeout, began, pool)

    async def _ask(self, pool: PoolUse | None) -> HealthRecord:
        began = time.perf_counter()
        try:
            await self._open()
            found = await self._once(Mode.READ, look)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return unhealthy(self.engine, error, began, pool)
        return judged(self.engine, self.settings, found, began, pool)


def check_timeout(timeout: float) -> None:
    """Check a time to wait.

    Raises:
        InvalidInput: It is not a number of seconds above 0, up to an hour.
    """
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not (number and 0 < timeout <= _LONGEST):
        raise InvalidInput(
            f"timeout must be more than 0 and up to 3600 seconds, not {shown(timeout)}."
        )


def judged(
    engine: Engine, settings: Settings, found: Look, began: float, pool: PoolUse | None
) -> HealthRecord:
    """Say what an answer means."""
    status = found.status
    reason = None
    if status.revision != HEAD:
        reason = (
            f"The schema is at revision {status.revision}, this version needs {HEAD}. "
            "Run agentstore upgrade, or the version of agentstore that fits."
        )
    elif not status.writable and not settings.read_only:
        reason = (
            "The database takes no writes. Check that its disk has room, check its permissions, or "
            "connect to the primary."
        )
    elif found.replication is not None and not settings.read_only:
        reason = found.replication.problem
    system = dialect_for(engine.url).checks.system
    return replace(
        without_answer(system, reason, began, pool),
        ok=reason is None,
        engine_version=status.version,
        revision=status.revision,
        writable=status.writable,
        search_pending=found.pending,
        search_problem=found.search_problem,
        replication=found.replication,
    )


def unhealthy(engine: Engine, error: Exception, began: float, pool: PoolUse | None) -> HealthRecord:
    """Say that there was an error instead of an answer."""
    shown_error = error.error if isinstance(error, UnitFailure) else error
    # Only our own errors are known to show no secret.
    ours = isinstance(shown_error, AgentStoreError)
    reason = str(shown_error) if ours else type(error).__name__
    return without_answer(dialect_for(engine.url).checks.system, reason, began, pool)


def unanswered(system: str, timeout: float, began: float, pool: PoolUse | None) -> HealthRecord:
    """Say that there was no answer in time."""
    reason = (
        f"The database did not answer within {timeout:g} s. Check that it runs, that it can be "
        "reached, and that the pool is not exhausted."
    )
    return without_answer(system, reason, began, pool)


def without_answer(
    engine: str, reason: str | None, began: float, pool: PoolUse | None = None
) -> HealthRecord:
    """Say why there is no answer."""
    return records.HealthRecord(
        ok=False,
        reason=reason,
        engine=engine,
        engine_version=None,
        revision=None,
        head=HEAD,
        writable=None,
        latency_ms=(time.perf_counter() - began) * 1000,
        pool=pool,
        search_pending=None,
        search_problem=None,
    )


def pool_use(engine: Engine) -> PoolUse | None:
    """Count the pool's connections, where it is one that counts."""
    pool = engine.pool
    return records.PoolUse(pool.size(), in_use(pool)) if isinstance(pool, QueuePool) else None
