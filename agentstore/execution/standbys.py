"""Reads from standbys of a PostgreSQL server, which show what this store wrote before.

No statement is added to any call. One thread asks the primary again and again how far it has
written, one asks each standby how far it has replayed. A write that returned is covered by the
first answer of the primary to a question that was asked later; once a standby has replayed so far,
it shows that write, and all that were committed before. A read goes to a standby of which that is
known, waits for one for a bounded time, or goes to the primary. Nobody asks while nobody reads.

A store keeps to one standby as long as it will do, so that pages and followers stay on one server;
other processes begin with other ones. A standby that fails, lags behind, or cancels a query for its
recovery is passed over: the next one is read, then the primary.

After a failover a standby may have replayed what the new primary never had, and then it does not
follow it. So after each new connection to the primary, a standby is read only once it was seen
behind the primary. One that was seen ahead of it is not read before it has been reconnected, too.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast, get_args

from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from agentstore.database import open_async_engine, open_engine, parse_url
from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import EngineDialect, Mode
from agentstore.errors import InvalidInput, TransactionConflict, shown
from agentstore.execution.async_runners import AsyncUnitRunner, GreenletRunner
from agentstore.execution.observation import served_by
from agentstore.execution.runners import READING, UnitRunner
from agentstore.execution.unit import AsyncRunner, PrimaryRead, Unit, UnitFailure
from agentstore.records import ReadNodeRecord
from agentstore.settings import Consistency, Settings
from agentstore.values import validation

T = TypeVar("T")

_SAMPLE, _HURRY, _QUIET, _REST = 0.02, 0.002, 1.0, 1.0
"""Seconds: between two questions; the same while a read waits; after the last read until nobody
asks any more; and how long a standby that failed is left alone."""


class _Wanted(NamedTuple):
    consistency: Consistency
    after: int


_wanted: ContextVar[Mapping[int, _Wanted]] = ContextVar(
    "agentstore_reading", default=MappingProxyType({})
)
"""What blocks of ``reading`` ask for, by the standbys."""


def position_of(lsn: object) -> int:
    """Read a position in the log as PostgreSQL writes it, such as ``0/16B3748``.

    Raises:
        InvalidInput: It is not a position.
    """
    high, slash, low = validation.text("after", lsn).partition("/")
    try:
        if not slash:
            raise ValueError
        return int(high, 16) << 32 | int(low, 16)
    except ValueError:
        raise InvalidInput(
            f"after must be what store.position() gave, such as 0/16B3748, not {shown(lsn)}."
        ) from None


def reading(
    standbys: Standbys | None, consistency: Consistency, after: str | None
) -> AbstractContextManager[None]:
    """See ``Store.reading``."""
    chosen = validation.choice("consistency", consistency, get_args(Consistency))
    wanted = _Wanted(chosen, 0 if after is None else position_of(after))
    return _reading({**_wanted.get(), id(standbys): wanted})


@contextmanager
def _reading(wanted: Mapping[int, _Wanted]) -> Iterator[None]:
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        with suppress(ValueError):  # ended in another context than it began
            _wanted.reset(token)


def written(unit: Unit) -> str:
    """Give how far the server has written its log: a body for the primary."""
    require_server(unit.dialect, "position()")
    return str(unit.dialect.log_position(unit.connection))


def require_server(dialect: EngineDialect, what: str) -> None:
    """Refuse what a file has not; raises InvalidInput."""
    if dialect.file_based:
        raise InvalidInput(
            f"{what} is for standbys of a PostgreSQL server; a SQLite file has none. Leave it out."
        )


class Node:
    """A standby.

    Attributes:
        name: Host and port.
        runner: Reads from it.
        replayed: How far it has replayed the primary's log; -1 where that is not known.
        caught_up: When everything that was committed by then had been replayed.
        seen: When it had said so, and what, for other threads: both are of one answer.
        follows: Whether what it has replayed is the primary's; None if that is not known yet.
        answers: Whether it answered the last question.
        rests_until: When it may be read again.
    """

    def __init__(self, name: str, runner: Any, engine: Engine) -> None:
        self.name = name
        self.runner = runner
        self.engine = engine
        self.replayed = -1
        self.caught_up = 0.0
        self.seen = (0.0, -1)
        self.follows: bool | None = None
        self.answers = True
        self.rests_until = 0.0
        self.reads = self.failures = 0

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a read in the block. One that fails is counted and ends the block quietly.

        The standby is then left alone for a while, unless it only cancelled that read.
        """
        try:
            yield
        except UnitFailure as problem:
            self.failures += 1
            if not isinstance(problem.error, TransactionConflict):
                self.rests_until = time.monotonic() + _REST
        else:
            self.reads += 1
            served_by(self.name)


class Standbys:
    """The standbys of one store, and what each of them has."""

    def __init__(self, url: URL, settings: Settings, make: Callable[[URL, Settings], Any]) -> None:
        """Ask nothing yet.

        Args:
            url: The primary's.
            settings: The store's.
            make: Makes what reads from a standby.

        Raises:
            InvalidInput: The engine has no standbys.
        """
        require_server(dialect_for(url), "read_url")
        reading = replace(settings, read_url=None)
        asking = replace(reading, pool_size=1, max_overflow=0, read_only=False, create=False)
        self._primary = open_engine(url, asking)
        self.nodes = [
            Node(name, make(each, reading), open_engine(each, asking))
            for name, each in _each(settings.read_url)
        ]
        self._settings = settings
        self._current = random.randrange(len(self.nodes))  # noqa: S311 - that they are spread
        self._marks: deque[tuple[float, int]] = deque(maxlen=2_000)
        self.wrote = 0.0
        self._lock = threading.Lock()
        self._asked = time.monotonic()
        self._waiting = 0
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def has_written(self) -> None:
        """Note the time of a write that has ended or failed; the time noted never goes back."""
        with self._lock:
            self.wrote = time.monotonic()

    def start(self) -> None:
        """Begin to ask; where a function says the lag, no server for its position."""
        asks = [self._asking(node) for node in self.nodes]
        if self._settings.read_lag is None:
            asks.append(self._ask_primary)
        for ask in asks:
            thread = threading.Thread(target=ask, name="agentstore-standbys", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the threads; one that waits for a server that hangs is left to itself."""
        self._stopped.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(_REST)
        for engine in (self._primary, *(node.engine for node in self.nodes)):
            engine.dispose()

    # --- Choosing ----------------------------------------------------------------------------

    def choices(self, work: Callable[[Unit], Any]) -> Iterator[Node | None]:
        """Go over the standbys to try, each once; None means to look again a little later."""
        if not self._threads or isinstance(work, PrimaryRead):
            return
        wanted = _wanted.get().get(id(self), _Wanted("own", 0))
        if wanted.consistency == "primary":
            return
        since = self.wrote if wanted.consistency == "own" else 0.0
        self._asked = now = time.monotonic()
        self._wake.set()
        until = now + self._settings.read_wait
        tried: set[str] = set()
        while True:
            for step in range(len(self.nodes)):
                at = (self._current + step) % len(self.nodes)
                node = self.nodes[at]
                if node.name not in tried and self._will_do(node, since, wanted.after):
                    self._current = at
                    tried.add(node.name)
                    yield node
            if tried or time.monotonic() > until or not any(node.answers for node in self.nodes):
                return
            self._waiting += 1
            try:
                yield None
            finally:
                self._waiting -= 1

    def _will_do(self, node: Node, since: float, after: int) -> bool:
        now = time.monotonic()
        fresh = node.caught_up > since and now - node.caught_up <= self._settings.max_staleness
        return fresh and node.replayed >= after and now > node.rests_until

    def records(self) -> tuple[ReadNodeRecord, ...]:
        """Say of each how far it is behind, and what it was asked."""
        now = time.monotonic()
        return tuple(
            ReadNodeRecord(
                node.name,
                answers=node.answers,
                behind_seconds=now - node.caught_up if node.caught_up else None,
                reads=node.reads,
                failures=node.failures,
            )
            for node in self.nodes
        )

    def lags(self) -> list[tuple[str, float]]:
        """Say by how many seconds each is behind; nothing while nobody reads, so nobody asks."""
        known = () if self._quiet() else self.records()
        behind = ((each.name, each.behind_seconds) for each in known)
        return [(name, seconds) for name, seconds in behind if seconds is not None]

    # --- Asking ------------------------------------------------------------------------------

    def _ask_primary(self) -> None:
        def answered(began: float, written: str | None) -> None:
            position = -1 if written is None else position_of(written)
            if self._marks and position < self._marks[-1][1]:  # another server leads now
                away()
            if position < 0:
                return
            for node in self.nodes:
                at, replayed = node.seen
                if node.follows is None and 0.0 < at < began:
                    node.follows = replayed <= position
            self._marks.append((began, position))

        def away() -> None:
            self._marks.clear()
            for node in self.nodes:
                node.follows = node.follows and None

        self._ask(self._primary, answered, away)

    def _asking(self, node: Node) -> Callable[[], None]:
        lag = self._settings.read_lag

        def answered(began: float, replayed: str | None) -> None:
            node.answers = True
            if lag is not None:
                seconds = lag(node.name)
                node.replayed = 0
                node.caught_up = 0.0 if seconds is None else began - seconds
                return
            node.replayed = -1 if replayed is None else position_of(replayed)
            node.seen = (time.monotonic(), node.replayed)
            if node.follows:
                reached = (at for at, mark in reversed([*self._marks]) if mark <= node.replayed)
                node.caught_up = max(node.caught_up, next(reached, 0.0))

        def away() -> None:
            node.answers, node.follows, node.replayed = False, None, -1
            node.seen, node.caught_up = (0.0, -1), 0.0

        return lambda: self._ask(node.engine, answered, away, replayed=True)

    def _quiet(self) -> bool:
        return time.monotonic() - self._asked > _QUIET

    def _ask(
        self,
        engine: Engine,
        answered: Callable[[float, str | None], None],
        away: Callable[[], None],
        *,
        replayed: bool = False,
    ) -> None:
        """Ask one server again and again, until the end."""
        dialect = dialect_for(engine.url)
        while not self._stopped.is_set():
            try:
                with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as asking:
                    while not self._stopped.is_set():
                        began = time.monotonic()
                        position = None
                        if self._settings.read_lag is None:
                            position = dialect.log_position(asking, replayed=replayed)
                        else:
                            dialect.require_answer(asking)
                        answered(began, position)
                        if self._quiet():
                            self._wake.clear()
                            if not self._stopped.is_set() and self._quiet():  # still
                                self._wake.wait()
                        else:
                            self._stopped.wait(_HURRY if self._waiting else _SAMPLE)
            except Exception:  # noqa: BLE001 - whatever it is: it is asked again
                away()
                self._stopped.wait(_REST / 5)


def _each(read_url: str | URL | Sequence[str] | None) -> Iterator[tuple[str, URL]]:
    """Give the standbys of the setting, by name, each as a URL of its own."""
    given = [read_url] if isinstance(read_url, str | URL) else [*(read_url or ())]
    for url in map(parse_url, given):
        require_server(dialect_for(url), "read_url")
        asked = url.query.get("host")
        if asked is not None:
            for host in asked if isinstance(asked, tuple) else asked.split(","):
                yield host, url.update_query_dict({"host": host})
            continue
        for host in (url.host or "localhost").split(","):
            yield f"{host}:{url.port or 5432}", url.set(host=host)


class StandbyRunner(UnitRunner):
    """Reads on a standby where one will do, and does all else on the primary."""

    def __init__(
        self, engine: Engine, dialect: EngineDialect, settings: Settings, *, owns_engine: bool
    ) -> None:
        super().__init__(engine, dialect, settings, owns_engine=owns_engine)
        self.standbys: Standbys = Standbys(engine.url, settings, _reader)

    def open(self) -> None:
        """Open the primary's database; then begin to ask."""
        super().open()
        self.standbys.start()

    def once(self, mode: Mode, work: Callable[[Unit], T], *, here: bool = False) -> T:
        """Run a body one time, where that may be; see ``UnitRunner``."""
        if mode not in READING:
            try:
                return super().once(mode, work, here=here)
            finally:
                self.standbys.has_written()
        for node in self.standbys.choices(work):
            if node is None:
                time.sleep(_HURRY)
                continue
            with node.answering():
                return cast("T", node.runner.once(mode, work, here=here))
        return super().once(mode, work, here=here)

    @contextmanager
    def transaction(self, mode: Mode = Mode.WRITE) -> Iterator[Unit]:
        """Open a unit on the primary; see ``UnitRunner``."""
        try:
            with super().transaction(mode) as unit:
                yield unit
        finally:
            if mode not in READING:
                self.standbys.has_written()

    def close(self, *, wait: bool) -> None:
        """Close what reads, too."""
        super().close(wait=wait)
        self.standbys.stop()
        for node in self.standbys.nodes:
            node.runner.close(wait=False)
            node.runner.engine.dispose()


def _reader(url: URL, settings: Settings) -> UnitRunner:
    engine = open_engine(url, replace(settings, read_only=False, create=False))
    return UnitRunner(engine, dialect_for(url), settings, owns_engine=True)


class AsyncStandbyRunner(GreenletRunner):
    """The same for coroutines."""

    def __init__(
        self, engine: AsyncEngine, dialect: EngineDialect, settings: Settings, *, owns_engine: bool
    ) -> None:
        super().__init__(engine, dialect, settings, owns_engine=owns_engine)
        url = engine.sync_engine.url
        self.standbys: Standbys = Standbys(url, settings, _async_reader)

    async def once(self, mode: Mode, work: Callable[[Unit], T]) -> T:
        """Run a body one time, where that may be; see ``GreenletRunner``."""
        if mode not in READING:
            try:
                return await super().once(mode, work)
            finally:
                self.standbys.has_written()
        for node in self.standbys.choices(work):
            if node is None:
                await asyncio.sleep(_HURRY)
                continue
            with node.answering():
                return cast("T", await node.runner.once(mode, work))
        return await super().once(mode, work)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncRunner]:
        """Open a transaction on the primary; see ``GreenletRunner``."""
        try:
            async with super().transaction() as runner:
                yield runner
        finally:
            self.standbys.has_written()

    async def close(self) -> None:
        """Close what reads, too."""
        await super().close()
        await asyncio.to_thread(self.standbys.stop)
        for node in self.standbys.nodes:
            await node.runner.close()


def _async_reader(url: URL, settings: Settings) -> AsyncUnitRunner:
    engine = open_async_engine(url, replace(settings, read_only=False, create=False))
    return GreenletRunner(engine, dialect_for(url), settings, owns_engine=True)
