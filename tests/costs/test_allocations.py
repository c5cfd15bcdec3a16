"""A hot path allocates no more, beside plain code that does the same, than is written down.

Both sides run in one process, so the version of Python matters little. Where it does, the figures
of each are written down.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, cast

import pytest
from sqlalchemy import create_engine

from agentstore import AsyncStore, Store
from agentstore.records import MessageRecord
from agentstore.records.base import twin
from agentstore.records.conversations import MESSAGE_FIELDS
from tests.conftest import DRIVERS
from tests.costs.allocations import Allocated, allocated, times_called
from tests.costs.homes import Home, home_of
from tests.costs.operations import BATCH, MESSAGE, one_long_session, one_session
from tests.costs.plain import Plain

LOOKED_INTO = [driver for driver in DRIVERS if driver.name != "sqlite3-async"]
"""Not the one that works in threads of its own: how much there is at one time depends on which of
them is how far. It runs the same bodies."""

MORE, LESS = 1.12, 0.75
"""How far from what is expected is still the same."""

EXPECTED: dict[str, dict[str, tuple[float, float | None]]] = {
    "save": {"sqlite3": (2.1, 2.85), "aiosqlite": (13.6, None), "psycopg": (0.75, 0.65),
        "psycopg-async": (2.1, 1.5)},
    "save_many": {"sqlite3": (2.25, 1.7), "aiosqlite": (2.9, None), "psycopg": (2.3, 1.2),
        "psycopg-async": (2.65, 1.3)},
    "history": {"sqlite3": (1.05, 0.64), "aiosqlite": (1.2, None), "psycopg": (1.0, 0.59),
        "psycopg-async": (1.1, 0.78)},
}  # fmt: skip
"""What a call of a store allocates, as multiples of the plain code: at its height, and in all. The
driver's thread of aiosqlite is not looked into, so there is no sum of it."""

if sys.version_info >= (3, 12):
    # There the plain code allocates less for one row in a file, and coroutines have more at a time.
    # With many rows the ratios are the same.
    EXPECTED["save"] |= {
        "sqlite3": (4.1, 5.0),
        "aiosqlite": (21.7, None),
        "psycopg-async": (4.3, 3.0),
    }

_TWIN = twin(MessageRecord, MESSAGE_FIELDS, "blocks")
MAKERS = cast("list[FunctionType]", [_TWIN.__init__, MessageRecord.__init__])
"""What makes a record of a message; each is to be made once."""


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


@pytest.fixture(scope="module", params=LOOKED_INTO, ids=lambda driver: driver.name)
def sides(request, servers, sqlite_template, tmp_path_factory):
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
        # Not by the runner: its handler of interrupts allocates too, unless they are ignored.
        yield Sides(home, async_store, loop.get_loop().run_until_complete, plain)


def test_a_save_allocates_no_more_than_is_written_down(sides: Sides) -> None:
    (session,) = one_session(sides.home.preparing, 1)

    def by_store() -> list[MessageRecord]:
        return [sides.run(sides.store.messages.save(session, **MESSAGE))]

    plainly = partial(sides.plain.save, session, [MESSAGE])
    assert by_store() + plainly() == sides.home.preparing.messages.history(session)
    assert times_called(MAKERS, by_store) == 1
    compare("save", sides, allocated(by_store), allocated(plainly))


def test_a_batch_allocates_no_more_than_is_written_down(sides: Sides) -> None:
    (session,) = one_session(sides.home.preparing, 1)
    batch = [MESSAGE] * BATCH

    def by_store() -> list[MessageRecord]:
        saved: list[MessageRecord] = sides.run(sides.store.messages.save_many(session, batch))
        return saved

    plainly = partial(sides.plain.save, session, batch)
    assert by_store() + plainly() == sides.home.preparing.messages.history(session, None)
    assert times_called(MAKERS, by_store) == BATCH
    compare("save_many", sides, allocated(by_store), allocated(plainly))


def test_a_history_allocates_no_more_than_is_written_down(sides: Sides) -> None:
    (session,) = one_long_session(sides.home.preparing, 1)

    def by_store() -> list[MessageRecord]:
        read: list[MessageRecord] = sides.run(sides.store.messages.history(session, BATCH))
        return read

    plainly = partial(sides.plain.history, session, BATCH)
    assert by_store() == plainly()
    assert times_called(MAKERS, by_store) == BATCH
    compare("history", sides, allocated(by_store), allocated(plainly))


def compare(name: str, sides: Sides, found: Allocated, plain: Allocated) -> None:
    driver = sides.home.driver.name
    ratios = (found.peak / plain.peak, found.total / plain.total)
    for what, ratio, due in zip(("peak", "total"), ratios, EXPECTED[name][driver], strict=True):
        if due is not None:
            assert ratio < due * MORE, f"{what} of {name}: {ratio:.2f} times the plain, not {due}"
            assert ratio > due * LESS, f"{what} of {name} fell to {ratio:.2f}: write it down"
