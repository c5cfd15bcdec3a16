"""What a program must offer to be measured: some of these operations, under these names.

An operation that a program does not have is not in its class, and its lines are left out. All are
coroutines, so that one body measures both kinds: those of a synchronous program never wait for
anything, and are run without an event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import warnings
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from sqlalchemy import URL, event
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.raw import durability

T = TypeVar("T")
ENGINES = ("sqlite", "postgresql")
_OURS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")
"""What a commit waits for in agentstore, for a connection of SQLite."""


class Program:
    """One program on one database.

    Beside what stands here a program has some of these:

    * ``append(session_id, turn)``, ``last(session_id, limit)`` giving the texts of the newest
      messages, oldest first, and ``fill(session_ids, turns)``, which is never measured;
    * ``chat(session_id, limit)`` giving the newest messages as dicts, and for a session that
      ``fill_items(session_id, turns)`` made ``items(session_id, limit)`` giving its items;
    * ``list_all()`` and ``list_newest(limit)``, giving ids of sessions;
    * ``branch(session_id, turn, name)``, ``leave_branch(session_id)``,
      ``record_usage(session_id, tokens)``, ``sum_usage(session_id)`` giving all tokens;
    * ``put(thread, step, messages)``, ``latest(thread)`` giving the messages, and
      ``list_states(thread, limit)`` giving those of each state, the newest first;
    * ``put_graph(thread, step, messages)``, ``latest_graph(thread)``, the same by a saver of
      LangGraph's interface with its messages.

    Attributes:
        title: What it is called in the table.
        packages: The distributions that it is in; none for what Python and the drivers have.
        engines: Where it runs.
        synchronous: Whether it blocks its thread.
        notes: What it does more or less than agentstore, by the key of a line.
    """

    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    engines: ClassVar[tuple[str, ...]] = ENGINES
    synchronous: ClassVar[bool] = False
    notes: ClassVar[dict[str, str]] = {}

    def __init__(self, url: URL, *, ours: bool = False) -> None:
        """Say where the database is, and whether its commits wait for what agentstore's do."""
        self.url = url
        self.ours = ours

    async def open(self) -> None:
        """Connect, and make the tables."""
        raise NotImplementedError

    async def durability(self) -> str:
        """Say, as the engine says it to this program's connection, what a commit waits for."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close every connection."""
        raise NotImplementedError


def has(program: type[Program], *operations: str) -> bool:
    """Say whether a program has these operations."""
    return all(hasattr(program, operation) for operation in operations)


def module(name: str) -> Any:
    """Import a module of a peer's, without the warnings that it has for its own users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        result: T = stopped.value
        return result
    raise RuntimeError("A synchronous program waits for something")


async def settled(result: Any) -> Any:
    """Give what a call of either kind gives."""
    return await result if asyncio.iscoroutine(result) else result


def with_driver(url: URL, driver: str) -> str:
    """Write a URL with a driver, or for the driver alone if that is empty."""
    name = url.get_backend_name() + (f"+{driver}" if driver else "")
    return url.set(drivername=name).render_as_string(hide_password=False)


def async_url(url: URL) -> str:
    """Write a URL for SQLAlchemy's asynchronous engines."""
    return with_driver(url, "aiosqlite" if url.get_backend_name() == "sqlite" else "psycopg")


def make_durable(connection: sqlite3.Connection) -> None:
    """Have a connection's commits wait for what agentstore's do."""
    for pragma in _OURS:
        connection.execute(pragma).fetchall()


def make_engine_durable(engine: AsyncEngine) -> None:
    """Have the commits of an engine for SQLite wait for what agentstore's do."""

    @event.listens_for(engine.sync_engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in _OURS:
            cursor.execute(pragma)
        cursor.close()


async def durability_of(engine: AsyncEngine) -> str:
    """Ask a connection of an engine what its commits wait for."""
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        return await durability_of_driver(raw.driver_connection)


async def durability_of_driver(connection: Any) -> str:
    """Ask a driver's connection what its commits wait for; aiosqlite's answers in its thread."""
    if hasattr(connection, "_conn"):
        return str(await connection._execute(durability, connection._conn))
    return durability(connection)
