"""A store is taken through ``fork``, while it is used.

In the child every call must raise ``TransactionMisuse``, and none may answer or wait: the child
shares connections and locks with its parent. The parent writes meanwhile, reads back what it wrote,
and must meet no error at all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from agentstore import AsyncStore, Store
from agentstore.errors import TransactionMisuse
from tests.chaos import ledger
from tests.chaos.arena import Arena
from tests.chaos.deeds import Home, call, messages
from tests.chaos.ledger import BAD, OK, Note, Notebook
from tests.chaos.writers import Child, Order, coroutines, end_with_parent, named, threads

TITLE = "stores taken through fork"
ENGINES = ("sqlite", "postgresql")

ERA = 20
PATIENCE = 5.0
"""Seconds after which a call in the child counts as one that waits for ever."""
END = 60.0

CALLS = (
    call("sessions.list"),
    call("messages.history", "{session}"),
    call("messages.save", "{session}", "user", "from the child"),
    call("tool_logs.log", "{session}", "tool"),
    call("tasks.claim", "child"),
    call("checkpoints.latest", "thread"),
    call("messages.search", "child"),
    call("users.create", "child"),
)


def run(arena: Arena) -> None:
    while arena.more():
        url = arena.database()
        known = ledger.alarms(url, deep=False)
        for number in range(ERA):
            if not arena.more():
                break
            _fork(arena, url, (forking_threads, forking_coroutines)[number % 2])
            arena.tally.tries += 1
        arena.examine(url, known, deep=False)
        arena.drop(url)


def _fork(arena: Arena, url: str, program: Callable[[Order], None]) -> None:
    name = f"f{arena.number()}"
    with Store(url) as store:
        home = Home.make(store, name, f"{name}.shared")
    book = arena.folder / name
    over = arena.folder / f"{name}.over"
    order = Order(url, book, home, 0, until=over, callers=(messages,) * 4)
    child: Child = arena.start(program, order, book=book)
    # The parent ends itself when its children have.
    if not child.ends_within(END):
        arena.tally.blame(f"a process that forked did not end ({program.__name__})")
    notes = ledger.read(book)
    arena.tally.count(harmed(notes))
    arena.compare(url, [note for note in notes if note["caller"] != "child"])


def harmed(notes: list[Note]) -> list[Note]:
    """Count each error that the parent met as one that it must not."""
    return [note if note["end"] == OK else {**note, "end": BAD} for note in notes]


def forking_threads(order: Order) -> None:
    """Write with threads on one ``Store``, and fork meanwhile."""
    threads(order, meanwhile=lambda store: _have_children(order, lambda one: _call(store, one)))


def forking_coroutines(order: Order) -> None:
    """Write with tasks on one ``AsyncStore``, and fork meanwhile, in the loop's own thread."""

    def fork(store: AsyncStore) -> None:
        _have_children(order, lambda one: asyncio.run(_await(store, one)))

    coroutines(order, meanwhile=fork)


def _call(store: Any, one: Any) -> Any:
    return one.on(store)


async def _await(store: AsyncStore, one: Any) -> Any:
    return await one.on(store)


def _have_children(order: Order, make: Callable[[Any], Any]) -> None:
    """Fork a child for each call, wait for them, and end those that wait themselves."""
    book = Notebook(order.notebook)
    children: dict[int, Note] = {}
    for number, template in enumerate(CALLS):
        arguments = [order.home.name if it == "{session}" else it for it in template.arguments]
        one = template._replace(arguments=tuple(arguments))
        note: Note = {"caller": "child", "n": number, "what": f"{one.repository}.{one.method}"}
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            try:
                try_call(order, note, lambda one=one: make(one))
            finally:
                os._exit(0)
        children[pid] = note
    end = time.monotonic() + PATIENCE
    while children:
        for pid in [*children]:
            if os.waitpid(pid, os.WNOHANG)[0]:
                del children[pid]
        if children and time.monotonic() > end:
            for pid, note in children.items():
                os.kill(pid, signal.SIGKILL)
                book.add({**note, "end": BAD, "error": f"no end within {PATIENCE} s"})
            end += PATIENCE
        time.sleep(0.005)
    assert order.until is not None
    order.until.touch()


def try_call(order: Order, note: Note, make: Callable[[], Any]) -> None:
    """Make one call, and note if it does not raise what it is to raise; in a child."""
    try:
        make()
    except TransactionMisuse:
        return
    except BaseException as error:  # noqa: BLE001 - it is to be counted, whatever it is
        Notebook(order.notebook).add({**note, "end": BAD, "error": named(error)})
    else:
        Notebook(order.notebook).add({**note, "end": BAD, "error": "answered"})
