"""A unit of work: one transaction, and what the code in it needs.

A repository method is a body that runs inside a unit. Who opens the unit, in which thread, on
which kind of engine, and whether it is repeated after a conflict, is a ``Runner``'s business:
``Store`` has one, ``AsyncStore`` has others, a transaction has one that joins it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from agentstore.engines.base.dialect import MODE, EngineDialect, Mode
from agentstore.execution.session_cache import SessionCache
from agentstore.models.tables import Tables
from agentstore.settings import Settings
from agentstore.values.instants import require_utc

T = TypeVar("T")


class RecentIds:
    """A set of ids, of which it forgets the oldest where they are many; for any thread."""

    __slots__ = ("_ids",)
    most = 10_000

    def __init__(self) -> None:
        """Begin with none."""
        self._ids: dict[str, None] = {}

    def __contains__(self, id: str) -> bool:
        """Say whether the id is remembered."""
        return id in self._ids

    def add(self, id: str) -> None:
        """Remember an id."""
        self._ids[id] = None
        if len(self._ids) > self.most:
            self._ids.pop(next(iter(self._ids.copy()), id), None)

    def discard(self, id: str) -> None:
        """Forget an id."""
        self._ids.pop(id, None)


@dataclass(frozen=True, slots=True)
class Unit:
    """What a body works with.

    Attributes:
        connection: In a transaction, or in autocommit where the mode allows; never to be
            committed or closed by a body.
        cache: The store's, where the unit sees committed states alone: in a unit of the store's
            own that only reads, and nowhere else. A version that is rolled back is given again.
        deleted_sessions: The ids of the sessions that the body deleted; the store's cache forgets
            them when that is committed.
        segmented: The store's: sessions whose active branch was made of segments when it was read
            last. Only a hint which of two statements is likely to be the one that is needed.
        joined: Whether it is a transaction of the application's, so that all that is done in it
            is one, however many units it would be otherwise.
    """

    connection: Connection
    dialect: EngineDialect
    tables: Tables
    settings: Settings
    cache: SessionCache | None = None
    deleted_sessions: list[str] = field(default_factory=list)
    segmented: RecentIds = field(default_factory=RecentIds)
    joined: bool = False

    @property
    def scope(self) -> str | None:
        """The user whose rows alone the engine shows this unit, where it can; None for all."""
        return None

    @property
    def only(self) -> str | None:
        """The user to whose rows the queries are to keep; None for all."""
        return None

    def now(self) -> datetime:
        """Read the store's clock, in UTC."""
        return require_utc("the clock's time", self.settings.clock())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopedUnit(Unit):
    """A unit for which only one user's data are there.

    Attributes:
        user_id: The user.
        filters: Whether the queries keep to that user's rows by themselves. Not, only where a test
            is to see that the engine does.
    """

    user_id: str
    filters: bool = True

    @property
    def scope(self) -> str | None:
        """The user."""
        return self.user_id

    @property
    def only(self) -> str | None:
        """The user."""
        return self.user_id if self.filters else None


def in_autocommit(unit: Unit) -> bool:
    """Say whether each statement of a unit that writes is a transaction of its own."""
    if unit.dialect.single_writer:
        return False
    return unit.connection.get_execution_options().get(MODE) is Mode.STATEMENT


class Runner(Protocol):
    """Opens units and runs bodies in them, synchronously."""

    def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body in a unit.

        Args:
            mode: What the body needs from its transaction.
            work: The body. It may be run more than once, never after it was committed, unless
                repeatable.
            repeatable: Whether a write whose outcome is in doubt may be repeated, because it
                carries an idempotency key.
        """


def rest(seconds: float) -> None:
    """Let others write, between two units; where this runs in a greenlet, the loop goes on."""
    if in_greenlet():
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


class AsyncRunner(Protocol):
    """Opens units and runs bodies in them, for coroutines; see ``Runner``."""

    async def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        """Run a body in a unit without holding up the event loop."""
