"""What robustness tests need of a store's inside: its engine, and ways to break a connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine, NullPool, create_engine, event, insert, literal, make_url, select

from agentstore import AsyncStore, Embeddings, Store
from agentstore.execution.async_runners import GreenletRunner, ThreadRunner
from agentstore.execution.runners import UnitRunner
from agentstore.execution.unit import in_use
from agentstore.execution.writer import Writer
from agentstore.testing import BlockingStore
from agentstore.values.embeddings import Embedded

MODEL = Embeddings(
    lambda texts: [[1.0, len(text)] for text in texts], model="m", dims=2, roles=["user"]
)
"""Embeddings by which nothing means much."""


def engine_of(store: Any) -> Engine:
    """Give the synchronous engine below any kind of store, all idle connections in its pool."""
    runner = _runner_of(store)
    if runner.kept is not None:
        runner.kept.put_back()
    return runner.engine


@contextmanager
def sent(store: Any = None) -> Iterator[list[str]]:
    """Collect what a store, or any, sends meanwhile, but for what begins and ends transactions."""
    engine = Engine if store is None else engine_of(store)
    statements: list[str] = []

    def keep(_c: Any, _k: Any, sql: str, *_: Any) -> None:
        if sql.lstrip().upper().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
            statements.append(sql)

    event.listen(engine, "before_cursor_execute", keep)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", keep)


def _runner_of(store: Any) -> UnitRunner:
    if isinstance(store, BlockingStore):
        store = store.store
    if isinstance(store, Store):
        return store._runner
    assert isinstance(store, AsyncStore)
    runner = store._unit_runner
    assert isinstance(runner, ThreadRunner | GreenletRunner)
    return runner._runner


def with_a_vector() -> Embedded:
    """Give what ``memories.put`` takes as ``embed``, on any store."""
    return Embedded(MODEL, None, MODEL.packed([3, 4]))


def give_vectors(store: Any, session_id: str) -> None:
    """Keep a vector of each message of a session, of the model that was the first."""
    of = _runner_of(store).tables
    row = select(
        of.messages.c.pk, literal(1), of.messages.c.session_id, literal(MODEL.packed([3, 4]))
    )
    row = row.where(of.messages.c.session_id == session_id)
    columns = ["message_pk", "model", "session_id", "vectors"]
    url = engine_of(store).url
    if not url.database:  # in memory there is one connection alone
        with engine_of(store).begin() as connection:
            connection.execute(insert(of.message_vectors).from_select(columns, row))
        return
    drivers = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
    beside = create_engine(url.set(drivername=drivers[url.get_backend_name()]), poolclass=NullPool)
    with beside.begin() as connection:
        connection.execute(insert(of.message_vectors).from_select(columns, row))


def checked_out(store: Any) -> int:
    """Count the connections that are in use, where the pool counts them."""
    pool: Any = _runner_of(store).engine.pool
    return in_use(pool) if hasattr(pool, "checkedout") else 0


def connect(url: str) -> psycopg.Connection[Any]:
    """Connect to a PostgreSQL database beside all stores."""
    plain = make_url(url).set(drivername="postgresql")
    return psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True)


def drop_connections(url: str) -> int:
    """End all other connections to a database, wait until they are gone, and count them.

    One that ends by itself meanwhile is not counted.
    """
    with connect(url) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        ).fetchall()
    return sum(gone for (gone,) in ended)


def drop(url: str, connection: Any) -> None:
    """End the server's side of one of SQLAlchemy's connections, and wait until it is gone."""
    pid = connection.connection.driver_connection.info.backend_pid
    with connect(url) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))


@contextmanager
def once_at(
    engine: Engine, moment: str, do: Callable[[Any], object], words: str = ""
) -> Iterator[list[Any]]:
    """Do something with the connection the first time that an event of its comes.

    Of events of a cursor, only those of a statement with these words count. Gives a list that is
    not empty any more once that has happened.
    """
    happened: list[Any] = []

    def listen(connection: Any, _: Any = None, statement: str = "", *__: Any) -> None:
        if words in statement and not happened:
            happened.append(connection)
            do(connection)

    event.listen(engine, moment, listen)
    try:
        yield happened
    finally:
        event.remove(engine, moment, listen)


async def spin(turns: int = 20) -> None:
    """Let the other tasks of the loop run, so often."""
    for _ in range(turns):
        await asyncio.sleep(0)


def gatherer_of(store: Any) -> Any:
    """Give what gathers a store's calls: a gatherer, the one writer, or None."""
    if isinstance(store, BlockingStore):
        store = store.store
    if isinstance(store, Store):
        return store._runner.writer or store._runner._gatherer
    runner = store._unit_runner
    return runner.writer if isinstance(runner, ThreadRunner) else runner._gatherer


def waiting(store: Any) -> int:
    """Count the calls that wait to be written together with others."""
    gatherer = gatherer_of(store)
    if gatherer is None:
        return 0
    if isinstance(gatherer, Writer):
        return len(gatherer._queue)
    return sum(len(queue.waiting) for queue in list(gatherer._queues.values()))


def wait_until(true: Callable[[], object]) -> None:
    """Look until something is so, for a minute."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)
