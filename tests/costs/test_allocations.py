"""A hot path allocates no more, beside plain code that does the same, than is written down.

Both sides run in one process, so that it matters little which version of Python that is.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from agentstore import AsyncStore, Store
from agentstore.records import MessageRecord
from tests.conftest import DRIVERS, Servers
from tests.costs.allocations import Allocated, allocated
from tests.costs.homes import Home, home_of
from tests.costs.operations import BATCH, MESSAGE, one_long_session, one_session
from tests.costs.plain import Plain

MORE, LESS = 1.12, 0.75
"""How far from what is expected is still the same."""

EXPECTED: dict[str, dict[str, tuple[float, float | None]]] = {
    "save": {
        "sqlite3": (3.4, 8.1),
        "sqlite3-async": (7.4, None),
        "aiosqlite": (15.9, None),
        "psycopg": (2.25, 2.5),
        "psycopg-async": (3.64, 5.87),
    },
    "history": {
        "sqlite3": (1.18, 2.24),
        "sqlite3-async": (1.31, None),
        "aiosqlite": (1.34, None),
        "psycopg": (1.21, 2.18),
        "psycopg-async": (1.38, 3.48),
    },
}
"""What a call of a store allocates, as multiples of the plain code: at its height, and in all; None
where threads of the store's own do the work, which are not looked into."""


@dataclass(frozen=True)
class Sides:
    """A store and plain code on the same database.

    Attributes:
        run: Gives the result of a store's method, of whichever kind.
    """

    home: Home
    store: Any
    run: Callable[[Any], Any]
    plain: Plain


@pytest.fixture(scope="module", params=DRIVERS, ids=lambda driver: driver.name)
def sides(
    request: pytest.FixtureRequest,
    servers: Servers,
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    if sys.gettrace() is not None:
        pytest.skip("a debugger, or what measures coverage, allocates too")
    driver, folder = request.param, tmp_path_factory.mktemp("allocations")
    with ExitStack() as stack:
        home = stack.enter_context(home_of(driver, servers, sqlite_template, folder))
        engine = create_engine(home.url)
        stack.callback(engine.dispose)
        plain = Plain(stack.enter_context(closing(engine.raw_connection())).driver_connection)
        if not driver.asynchronous:
            store = stack.enter_context(Store(home.url, **home.options))
            yield Sides(home, store, lambda result: result, plain)
            return
        loop = stack.enter_context(asyncio.Runner())  # in this thread, to be looked into
        async_store = AsyncStore(driver.url(home.url), **home.options)
        stack.callback(lambda: loop.run(async_store.close()))
        loop.run(async_store.open())
        yield Sides(home, async_store, loop.run, plain)


def test_a_save_allocates_no_more_than_is_written_down(sides: Sides) -> None:
    (session,) = one_session(sides.home.preparing, 1)
    role, content, tokens = MESSAGE["role"], MESSAGE["content"], MESSAGE["token_count"]

    def by_store() -> MessageRecord:
        saving = sides.store.messages.save(session, role, content, token_count=tokens)
        saved: MessageRecord = sides.run(saving)
        return saved

    plainly = partial(sides.plain.save, session, role, content, tokens)
    assert [by_store(), plainly()] == sides.home.preparing.messages.history(session)
    compare("save", sides, allocated(by_store), allocated(plainly))


def test_a_history_allocates_no_more_than_is_written_down(sides: Sides) -> None:
    (session,) = one_long_session(sides.home.preparing, 1)

    def by_store() -> list[MessageRecord]:
        read: list[MessageRecord] = sides.run(sides.store.messages.history(session, BATCH))
        return read

    plainly = partial(sides.plain.history, session, BATCH)
    assert by_store() == plainly()
    compare("history", sides, allocated(by_store), allocated(plainly))


def compare(name: str, sides: Sides, found: Allocated, plain: Allocated) -> None:
    driver = sides.home.driver.name
    ratios = (found.peak / plain.peak, found.total / plain.total)
    for what, ratio, due in zip(("peak", "total"), ratios, EXPECTED[name][driver], strict=True):
        if due is not None:
            assert ratio < due * MORE, f"{what} of {name}: {ratio:.2f} times the plain, not {due}"
            assert ratio > due * LESS, f"{what} of {name} fell to {ratio:.2f}: write it down"
