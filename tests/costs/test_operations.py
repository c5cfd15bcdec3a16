"""A hot path does not gain a statement, a round trip or a commit, nor lose one unnoticed."""

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.counting import Cost, Meter, metered
from tests.conftest import DRIVERS
from tests.costs import expected, page
from tests.costs.expected import EXPECTED, Expected
from tests.costs.homes import Home, home_of
from tests.costs.operations import OPERATIONS

WARMING, MEASURED = 8, 2
"""Calls before the counted ones: psycopg prepares a statement on the server at its sixth."""


@dataclass(frozen=True)
class Counted:
    """A store whose connections are counted on, for all operations."""

    home: Home
    store: Any
    meter: Meter


@pytest.fixture(scope="module", params=DRIVERS, ids=lambda driver: driver.name)
def counted(request, servers, sqlite_template, tmp_path_factory):
    driver = request.param
    if driver.engine == "postgresql" and sys.platform != "linux":
        pytest.skip("libpq writes down what goes over the wire on Linux only")
    folder = tmp_path_factory.mktemp("costs")
    making = home_of(driver, servers, sqlite_template, folder)
    with making as home, metered() as meter, home.open() as store:
        yield Counted(home, store, meter)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_warm_call_costs_what_is_written_down(name: str, counted: Counted) -> None:
    operation = OPERATIONS[name]
    inputs = operation.inputs(counted.home.preparing, WARMING + MEASURED)
    calls = [partial(operation.call, counted.store, each) for each in inputs]
    costs = [counted.meter.cost(call) for call in calls][-MEASURED:]
    assert len(set(costs)) == 1, f"{name} has no steady cost: {costs}"
    found, due = costs[0], EXPECTED[name].on(counted.home.driver.engine)
    assert found == due, complaint(name, due, found)


def complaint(name: str, due: Cost, found: Cost) -> str:
    """Say what differs, what was sent, and which line to change if it is meant."""
    names = ("statements", "round_trips", "commits")
    pairs = [(each, getattr(due, each), getattr(found, each)) for each in names]
    changes = [f"{each} {old} -> {new}" for each, old, new in pairs if old != new]
    rises = any(new > old for _, old, new in pairs if old is not None)
    advice = "If it has to be so" if rises else "It got cheaper; so that it stays so"
    sent = "\n  ".join(" ".join(sql.split())[:120] for sql in found.sent)
    new_line = line(name, EXPECTED[name].but(found))
    return (
        f"{name}: {', '.join(changes)}. It sent:\n  {sent}\n{advice}, write in "
        f"tests/costs/expected.py, line {number_of_line(name)}:\n{new_line}\n"
        "and run: python -m tests.costs.page"
    )


def line(name: str, costs: Expected) -> str:
    return f'    "{name}": Expected({costs.sqlite}, {costs.postgresql}),'


def number_of_line(name: str) -> int:
    source = Path(expected.__file__).read_text(encoding="utf-8").splitlines()
    return source.index(line(name, EXPECTED[name])) + 1


def test_a_complaint_says_what_rose_and_which_line_to_change() -> None:
    due = EXPECTED["messages.save"].on("postgresql")
    words = complaint("messages.save", due, replace(due, round_trips=9, sent=("SELECT\n 1",)))
    assert f"messages.save: round_trips {due.round_trips} -> 9. It sent:\n  SELECT 1\n" in words
    assert f"line {number_of_line('messages.save')}:\n" in words
    assert f'"messages.save": Expected({EXPECTED["messages.save"].sqlite}, (' in words
    assert "If it has to be so" in words
    assert "It got cheaper" in complaint("messages.save", due, replace(due, statements=0))


def test_every_operation_has_its_line_and_every_line_its_operation() -> None:
    assert list(EXPECTED) == list(OPERATIONS)
    assert all(number_of_line(name) for name in EXPECTED)


def test_the_documents_show_what_is_expected() -> None:
    written = page.PAGE.read_text(encoding="utf-8")
    assert written == page.with_table(written), "run: python -m tests.costs.page"
