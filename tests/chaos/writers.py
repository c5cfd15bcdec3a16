"""Processes that write until they are told to stop, or killed.

They are forked from a server that has imported everything and opened nothing, so that one takes
milliseconds to start. Each notes how its calls ended (``ledger.Notebook``).
"""

import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from agentstore import AsyncStore, Store
from agentstore.errors import AgentStoreError, ConnectionLost
from tests.chaos.deeds import CROWD, KINDS, Caller, Deed, Home, readers
from tests.chaos.ledger import BAD, DOUBT, OK, REFUSED, Note, Notebook

PAUSE = 0.02
"""Seconds after a call that failed, so that a server that is down is not asked in a tight loop."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "agentstore.aio", "agentstore.engines.postgresql.dialect",
        "agentstore.engines.sqlite.dialect", "agentstore.doctor", "agentstore.migrations",
        "agentstore.moving.copying", "psycopg", "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite", "sqlalchemy.ext.asyncio", "tests.chaos.writers",
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Order:
    """What a writer is to do."""

    url: str
    notebook: Path
    home: Home
    seed: int
    until: Path | None = None
    """A file: when it is there, the writer ends."""
    deeds: int | None = None
    """After how many deeds of each caller the writer ends."""
    options: dict[str, Any] = field(default_factory=dict)
    callers: tuple[Callable[..., Caller], ...] | None = None
    """The kinds of its callers; None means the program's own choice."""
    network: str | None = None
    """A file of ``/proc``: the network that the writer is in; None means the machine's."""

    def over(self, done: int) -> bool:
        enough = self.deeds is not None and done >= self.deeds
        return enough or (self.until is not None and self.until.exists())

    def crowd(self, kinds: Iterable[Callable[..., Caller]]) -> list[tuple[str, Caller]]:
        made = []
        for number, kind in enumerate(self.callers or kinds):
            name = f"{self.home.name}.{number}"
            draw = random.Random(f"{self.seed} {name}")  # noqa: S311
            made.append((name, kind(name, self.home, draw)))
        return made


# --- Programs --------------------------------------------------------------------------------


def one_thread(order: Order) -> None:
    """Every kind of caller by turns, on one ``Store``."""
    book = Notebook(order.notebook)
    with Store(order.url, **order.options) as store:
        crowd = [(name, caller, next(caller)) for name, caller in order.crowd(KINDS)]
        done = 0
        while not order.over(done):
            crowd = [
                (name, caller, caller.send(do(store, name, deed, book)))
                for name, caller, deed in crowd
            ]
            done += 1


def threads(order: Order, meanwhile: Callable[[Store], object] = lambda _: None) -> None:
    """A thread for each caller, on one ``Store``, and something else in the first thread."""
    book = Notebook(order.notebook)
    with Store(order.url, **order.options) as store:

        def work(name: str, caller: Caller) -> None:
            deed, done = next(caller), 0
            while not order.over(done):
                deed, done = caller.send(do(store, name, deed, book)), done + 1

        crowd = [
            threading.Thread(target=work, args=each)
            for each in order.crowd((*CROWD[3:9], readers, readers))
        ]
        for thread in crowd:
            thread.start()
        meanwhile(store)
        for thread in crowd:
            thread.join()


def coroutines(order: Order, meanwhile: Callable[[AsyncStore], object] | None = None) -> None:
    """Sixteen tasks on one ``AsyncStore``, and something else in the midst of them."""
    book = Notebook(order.notebook)

    async def work(store: AsyncStore, name: str, caller: Caller) -> None:
        deed, done = next(caller), 0
        while not order.over(done):
            deed, done = caller.send(await do_async(store, name, deed, book)), done + 1

    async def main() -> None:
        async with AsyncStore(order.url, **order.options) as store:
            crowd = [asyncio.create_task(work(store, *each)) for each in order.crowd(CROWD)]
            if meanwhile is not None:
                await asyncio.sleep(PAUSE)
                meanwhile(store)
            await asyncio.gather(*crowd)

    asyncio.run(main())


PROGRAMS = (one_thread, coroutines, threads)


def do(store: Any, caller: str, deed: Deed, book: Notebook) -> list[Any] | None:
    try:
        if len(deed.calls) == 1:
            answers = [deed.calls[0].on(store)]
        else:
            with store.transaction() as tx:
                answers = [each.on(tx) for each in deed.calls]
    except Exception as error:  # noqa: BLE001 - how it ended is what is to be noted
        note_failure(caller, deed, book, error)
        time.sleep(PAUSE)
        return None
    return note_success(caller, deed, book, answers)


async def do_async(store: Any, caller: str, deed: Deed, book: Notebook) -> list[Any] | None:
    try:
        if len(deed.calls) == 1:
            answers = [await deed.calls[0].on(store)]
        else:
            async with store.transaction() as tx:
                answers = [await each.on(tx) for each in deed.calls]
    except asyncio.CancelledError as error:
        note_failure(caller, deed, book, error)
        raise
    except Exception as error:  # noqa: BLE001 - how it ended is what is to be noted
        note_failure(caller, deed, book, error)
        await asyncio.sleep(PAUSE)
        return None
    return note_success(caller, deed, book, answers)


def note_success(caller: str, deed: Deed, book: Notebook, answers: list[Any]) -> list[Any] | None:
    """Note that calls returned, and what; a read is only noted where it read what it must not."""
    note: Note = {"caller": caller, "n": deed.n, "what": deed.what}
    try:
        if deed.wrong(answers):
            book.add({**note, "end": BAD, "error": "another answer than what was written"})
        elif deed.what != "read":
            book.add({**note, "end": OK, **deed.facts, **deed.found(answers)})
    except Exception as error:  # noqa: BLE001 - what returned is nothing that can be read
        book.add({**note, "end": BAD, "error": f"answered {answers!r:.200}: {error!r}"})
        return None
    return answers


def note_failure(caller: str, deed: Deed, book: Notebook, error: BaseException) -> None:
    note: Note = {"caller": caller, "n": deed.n, "what": deed.what, **deed.facts}
    book.add({**note, "end": end_of(error), "error": named(error)})


def end_of(error: BaseException) -> str:
    """Say what an error promises of the write that it ended."""
    if isinstance(error, asyncio.CancelledError):
        return DOUBT
    if isinstance(error, ConnectionLost) and error.in_doubt:
        return DOUBT
    return REFUSED if isinstance(error, AgentStoreError) else BAD


def named(error: BaseException) -> str:
    """Name a typed error, and tell of any other what there is to tell."""
    known = isinstance(error, AgentStoreError | asyncio.CancelledError)
    return type(error).__name__ if known else f"{type(error).__name__}: {error}"[:300]


# --- Processes -------------------------------------------------------------------------------


class Child:
    """A process of ours that runs a function; it does not outlive us."""

    def __init__(self, work: Callable[..., object], *arguments: Any, book: Path | None) -> None:
        _be_deaf()
        self.process = CONTEXT.Process(target=_run, args=(work, arguments, book), daemon=True)
        self.process.start()

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Signal it, if it still runs; it is only waited for when killed outright."""
        pid = self.process.pid
        if pid is not None and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        if how == signal.SIGKILL:
            self.process.join()

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end; what does not end is killed."""
        self.process.join(seconds)
        if not self.process.is_alive():
            return True
        self.kill()
        return False


def _be_deaf() -> None:
    """Start the server that forks us, if need be: it and we are deaf to Ctrl-C.

    That is for whoever started us, who then ends us.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


def _run(work: Callable[..., object], arguments: tuple[Any, ...], book: Path | None) -> None:
    # What breaks is meant to; the notes say how calls ended.
    logging.disable()
    end_with_parent()
    if network := getattr(arguments[0], "network", None):
        with open(network) as file:  # noqa: PTH123
            if ctypes.CDLL(None).setns(file.fileno(), 0):
                raise RuntimeError("this network cannot be entered")
    try:
        work(*arguments)
    except Exception as error:
        if book is None:
            raise
        # Whatever it was, it was outside of any call: a writer does not end by itself.
        note = {"caller": "program", "n": 0, "what": work.__name__}
        with contextlib.suppress(FileNotFoundError):  # the run was stopped, and its folder is gone
            Notebook(book).add({**note, "end": BAD, "error": named(error)})


def end_with_parent() -> None:
    """Have the kernel kill us when the server that forked us is gone (where it can)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
