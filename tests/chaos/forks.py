"""A store is taken through ``fork``, while it is used.

In the child every call must raise ``TransactionMisuse``, and none may answer or wait: the child
shares connections and locks with its parent. The parent writes meanwhile, reads back what it wrote,
and must meet no error at all.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from tests.chaos.writers import Child, Order, coroutines, named, threads

TITLE = "stores taken through fork"
ENGINES = ("sqlite", "postgresql")

ERA = 20
CHILDREN = 3
PATIENCE = 3
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
    children = []
    for _ in range(CHILDREN):
        time.sleep(0.02)
        pid = os.fork()
        if pid == 0:
            try:
                try_all(order, make)
            finally:
                os._exit(0)
        children.append(pid)
    assert order.until is not None
    for pid in children:
        os.waitpid(pid, 0)  # each ends itself, by an alarm at the latest
    order.until.touch()


def try_all(order: Order, make: Callable[[Any], Any]) -> None:
    """Make each of the calls; in the child."""
    book = Notebook(order.notebook)

    def waits(*_: object) -> None:
        raise TimeoutError("waited in vain")

    signal.signal(signal.SIGALRM, waits)
    for number, template in enumerate(CALLS):
        arguments = tuple(
            order.home.name if given == "{session}" else given for given in template.arguments
        )
        one = template._replace(arguments=arguments)
        note: Note = {"caller": "child", "n": number, "what": f"{one.repository}.{one.method}"}
        signal.alarm(PATIENCE)
        try:
            make(one)
        except TransactionMisuse:
            continue
        except BaseException as error:  # noqa: BLE001 - it is to be counted, whatever it is
            book.add({**note, "end": BAD, "error": named(error)})
        else:
            book.add({**note, "end": BAD, "error": "answered"})
        finally:
            signal.alarm(0)
    # What waits for ever in the interpreter's own locks is ended by the kernel.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE)
