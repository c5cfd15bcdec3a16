"""Coroutines are cancelled while they write: one by one, all at once, or by the end of their loop.

Four storms by turns, each in a process of its own with 1 to 64 callers: ``asyncio.run`` whose main
function returns with calls on their way; the same, interrupted by SIGINT; all tasks of a loop that
lives on cancelled, the store's own included, after which 64 calls must return; and single callers
cancelled, and others begun, at random. Each process must end in time, and what was acknowledged is
there. A caller that was cancelled may have written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading

from agentstore import AsyncStore, Store
from tests.chaos import ledger
from tests.chaos.arena import Arena
from tests.chaos.deeds import Caller, Home, messages, papers
from tests.chaos.ledger import BAD, OK, Note, Notebook
from tests.chaos.writers import Order, do_async

TITLE = "cancellation storms"
ENGINES = ("sqlite", "postgresql")

ERA = 40
IN_TIME = 20.0
"""Seconds within which a storm, of less than one, must be over; what is not over then hangs."""
STORMS = ("return", "interrupt", "cancel all", "cancel some")


def run(arena: Arena) -> None:
    while arena.more():
        url = arena.database()
        known = ledger.alarms(url, deep=False)
        for _ in range(ERA):
            if not arena.more():
                break
            _storm(arena, url, STORMS[arena.tally.tries % len(STORMS)])
            arena.tally.tries += 1
        arena.examine(url, known, deep=False)
        arena.drop(url)


def _storm(arena: Arena, url: str, kind: str) -> None:
    name = f"c{arena.number()}"
    with Store(url) as store:
        home = Home.make(store, name, f"{name}.shared")
    crowd = (*(messages,) * arena.random.randint(1, 56), *(papers,) * arena.random.randint(0, 8))
    book = arena.folder / name
    order = Order(url, book, home, seed=arena.random.randrange(2**32), callers=crowd)
    seconds = arena.random.uniform(0, 0.3)
    child = arena.start(storm, order, kind, seconds, book=book)
    if not child.ends_within(IN_TIME):
        arena.tally.blame(f"a process did not end ({kind}, {len(crowd)} callers)")
    notes = ledger.read(book)
    arena.tally.count(notes)
    arena.compare(url, notes)


def storm(order: Order, kind: str, seconds: float) -> None:
    """Run one; in a process of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    book = Notebook(order.notebook)

    async def main() -> None:
        store = await AsyncStore(order.url).__aenter__()
        crowd = [asyncio.ensure_future(_write(store, *each, book)) for each in order.crowd(())]
        if kind == "interrupt":
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
            await asyncio.sleep(2 * IN_TIME)
        if kind == "cancel some":
            await _cancel_some(store, order, crowd, book, seconds)
        else:
            await asyncio.sleep(seconds)
        if kind.startswith("cancel"):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait(crowd)
            await _write_after(store, order, book)
            await store.close()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())


async def _write(store: AsyncStore, name: str, caller: Caller, book: Notebook) -> None:
    deed = next(caller)
    while True:
        deed = caller.send(await do_async(store, name, deed, book))


async def _cancel_some(
    store: AsyncStore,
    order: Order,
    crowd: list[asyncio.Task[None]],
    book: Notebook,
    seconds: float,
) -> None:
    draw = random.Random(order.seed)  # noqa: S311
    end = asyncio.get_running_loop().time() + seconds
    number = len(crowd)
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(draw.uniform(0, 0.01))
        place = draw.randrange(len(crowd))
        crowd[place].cancel()
        name = f"{order.home.name}.{number}"
        caller = messages(name, order.home, draw)
        # The other one may still be settling what it had begun.
        crowd.append(asyncio.ensure_future(_write(store, name, caller, book)))
        number += 1


async def _write_after(store: AsyncStore, order: Order, book: Notebook) -> None:
    """Make 64 calls, each of which must return: nothing that was cancelled may stand in the way."""

    async def one(number: int) -> None:
        name = f"{order.home.name}.after{number}"
        deed = next(messages(name, order.home, random.Random(0)))  # noqa: S311
        note: Note = {"caller": name, "n": 0, "what": "after the storm", "end": OK}
        if await do_async(store, name, deed, book) is None:
            book.add({**note, "end": BAD, "error": "a call after the storm failed"})

    await asyncio.gather(*map(one, range(64)))
