"""A call goes through no more functions and files than are written down: a way that one can follow.

Counted are the functions of agentstore that a warm call enters on whatever thread, each once, and
the files that they are in; a comprehension is a part of its function. ``AIMS`` are where the ways
are to get, ``WAYS`` is where they are: a change that shortens one lowers its line. A failure prints
the way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from operator import le
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import agentstore
from tests.conftest import DRIVERS, Servers
from tests.costs.homes import home_of

PACKAGE = Path(agentstore.__file__).parent
WARMING, MEASURED = 8, 4
"""Calls before the counted one: psycopg prepares a statement on the server at its sixth."""

ENGINES = ("sqlite3", "sqlite3-async", "psycopg", "psycopg-async")
Numbers = tuple[int, int]
"""Functions, and files."""

AIMS: dict[str, Numbers] = {
    "save": (45, 10), "history": (45, 9), "put": (60, 10), "history of a fork": (45, 9),
    "put a memory": (55, 10), "get a memory": (45, 9), "list sessions": (40, 9),
}  # fmt: skip

WAYS: dict[str, tuple[Numbers, ...]] = {
    "save": ((43, 10), (54, 11), (43, 10), (47, 11)),
    "history": ((41, 11), (49, 14), (41, 10), (46, 11)),
    "put": ((53, 13), (65, 14), (55, 11), (59, 12)),
    "history of a fork": ((43, 11), (51, 14), (43, 10), (48, 11)),
    "put a memory": ((57, 13), (67, 14), (60, 13), (63, 14)),
    "get a memory": ((45, 10), (54, 13), (44, 9), (49, 10)),
    "list sessions": ((36, 10), (44, 13), (38, 9), (43, 10)),
}
"""On each of ``ENGINES``; the thread of an asynchronous SQLite store adds one from time to time."""


def save(store: Any) -> Callable[[], Any]:
    session = store.sessions.create()
    return lambda: store.messages.save(session.id, "user", "hello")


def history(store: Any) -> Callable[[], Any]:
    session = store.sessions.create()
    store.messages.save_many(session.id, [{"role": "user", "content": "hello"}] * 60)
    return lambda: store.messages.history(session.id, 50)


def put(store: Any) -> Callable[[], Any]:
    thread = str(uuid4())
    said: list[str] = []
    last: list[str | None] = [None]

    def call() -> Any:
        said.append("a sentence about the weather")
        state = {"messages": [*said], "step": len(said)}
        last.append(store.checkpoints.put(thread, state, parent_id=last[-1]).id)

    return call


def put_a_memory(store: Any) -> Callable[[], Any]:
    return lambda: store.memories.put(["notes"], "weather", {"said": "hello"})


def get_a_memory(store: Any) -> Callable[[], Any]:
    store.memories.put(["notes"], "climate", {"said": "hello"})
    return lambda: store.memories.get(["notes"], "climate")


def list_sessions(store: Any) -> Callable[[], Any]:
    store.sessions.create()
    return lambda: store.sessions.list(limit=20)


def history_of_a_fork(store: Any) -> Callable[[], Any]:
    session = store.sessions.create()
    store.messages.save_many(session.id, [{"role": "user", "content": "hello"}] * 60)
    store.branches.create(session.id, after_turn=40, name="side")
    store.messages.save(session.id, "user", "hello")
    return lambda: store.messages.history(session.id, 50)


CALLS = {
    "save": save, "history": history, "put": put, "history of a fork": history_of_a_fork,
    "put a memory": put_a_memory, "get a memory": get_a_memory, "list sessions": list_sessions,
}  # fmt: skip


class Watch:
    """Notes the functions of agentstore that are entered while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seen: dict[tuple[str, str], None] = {}

    def note(self, frame: Any, event: str, _: object) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        path = Path(code.co_filename)
        if code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<module>"):
            return
        if path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "testing"):
            self.seen[str(path.relative_to(PACKAGE)), code.co_qualname] = None

    def way(self, call: Callable[[], Any]) -> list[tuple[str, str]]:
        """Give the file and the name of each function that a call enters, in their order.

        In a context of its own: a transaction that another test began in this one is asked about.
        """
        self.seen.clear()
        self.on = True
        try:
            Context().run(call)
        finally:
            self.on = False
        return [*self.seen]


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch this thread, and those that start meanwhile."""
    watch = Watch()
    before, of_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(watch.note)
    sys.setprofile(watch.note)
    try:
        yield watch
    finally:
        sys.setprofile(before)
        threading.setprofile(of_threads)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=ENGINES)
def place(
    request: pytest.FixtureRequest,
    servers: Servers,
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[int, Any, Watch]]:
    (driver,) = [each for each in DRIVERS if each.name == request.param]
    folder = tmp_path_factory.mktemp("ways")
    with (
        home_of(driver, servers, sqlite_template, folder) as home,
        watched() as watch,
        home.open() as store,
    ):
        yield ENGINES.index(driver.name), store, watch


@pytest.mark.parametrize("name", CALLS)
def test_a_call_goes_no_longer_way_than_is_written_down(name, place):
    number, store, watch = place
    call = CALLS[name](store)
    for _ in range(WARMING):
        call()
    way = min((watch.way(call) for _ in range(MEASURED)), key=len)  # threads may meet otherwise
    found = len(way), len({file for file, _ in way})
    told = "\n".join(f"  {file}: {function}" for file, function in way)
    most = WAYS[name][number]
    assert all(map(le, found, most)), (
        f"{name} on {ENGINES[number]}: functions and files {most} -> {found}, the aim is "
        f"{AIMS[name]}. It went through:\n{told}\nIf it has to be so, write in WAYS."
    )


def test_no_way_is_written_down_without_its_aim():
    assert list(WAYS) == list(AIMS) == list(CALLS)
    assert {len(ways) for ways in WAYS.values()} == {len(ENGINES)}
