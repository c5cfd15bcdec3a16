"""What a case works in: a folder, databases, processes, time, and a random sequence."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from agentstore import Store, migrations
from tests.chaos import ledger
from tests.chaos.ledger import Note, Tally
from tests.chaos.writers import Child
from tests.servers import Server, installations

SQLITE, POSTGRESQL = "sqlite", "postgresql"


class Unavailable(Exception):
    """A case cannot be tried here; its row says why."""


@dataclass
class House:
    """What the cases of a run share: one folder, and one server for those that leave it be."""

    folder: Path
    sabotage: Callable[[str], object] | None = None
    """For the tests of the harness: damages a database before it is compared."""
    _server: Server | None = None
    _templates: dict[str, str] = field(default_factory=dict)

    def server(self) -> Server:
        if self._server is None:
            self._server = started(Server(newest(), durable=True))
        return self._server

    def template(self) -> Path:
        """Give a SQLite file at head, to make copies of."""
        path = self.folder / "template.db"
        if not path.exists():
            migrations.upgrade(f"sqlite:///{path}")
        return path

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def newest() -> Any:
    found = installations()
    if not found:
        raise Unavailable("no PostgreSQL on this machine")
    return found[0]


def started(server: Server) -> Server:
    server.start()
    return server


class Arena:
    """The place of one row of the table. As a context manager it ends what it started."""

    def __init__(
        self, house: House, engine: str, *, seed: int, rounds: int | None, seconds: float
    ) -> None:
        self.house = house
        self.engine = engine
        self.random = random.Random(f"{seed} {engine}")  # noqa: S311 - moments and places
        self.rounds = rounds
        self.tally = Tally()
        self._end = time.monotonic() + seconds
        self._children: list[Child] = []
        self._numbers = 0
        self._stack = contextlib.ExitStack()
        self.folder = house.folder / f"{engine}-{time.monotonic_ns()}"
        self.folder.mkdir()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_children()
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def enter(self, manager: Any) -> Any:
        """Enter a context manager, such as a server, that is left with the arena."""
        return self._stack.enter_context(manager)

    @property
    def left(self) -> int:
        """How many tries are left to do, at least one; many where time decides."""
        return 10**9 if self.rounds is None else max(1, self.rounds - self.tally.tries)

    def more(self) -> bool:
        """Say whether there is to be another try; the first always is."""
        if self.tally.tries == 0:
            return True
        if self.rounds is not None:
            return self.tally.tries < self.rounds
        return time.monotonic() < self._end

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def database(self, server: Server | None = None) -> str:
        """Make a database at head, empty, and give its URL."""
        if self.engine == SQLITE:
            path = self.folder / f"{self.number()}.db"
            shutil.copy(self.house.template(), path)
            return f"sqlite:///{path}"
        name = f"chaos_{time.monotonic_ns()}"
        url = (server or self.house.server()).create_database(name)
        migrations.upgrade(url)
        return url

    def drop(self, url: str, server: Server | None = None) -> None:
        """Give a database's room back, so that hours of tries do not fill the disk."""
        name = str(make_url(url).database)
        if self.engine == POSTGRESQL:
            (server or self.house.server()).drop_database(name)
        else:
            for path in Path(name).parent.glob(f"{Path(name).name}*"):
                path.unlink()

    def start(
        self, work: Callable[..., object], *arguments: Any, book: Path | None = None
    ) -> Child:
        """Start a process that ends with the arena at the latest."""
        child = Child(work, *arguments, book=book)
        self._children.append(child)
        return child

    def end_children(self) -> None:
        for child in self._children:
            child.kill()
        self._children.clear()

    def compare(self, url: str, notes: list[Note], *, prefix: bool = False) -> None:
        """Compare a database with the notes of its writers; what differs goes into the tally."""
        if self.house.sabotage is not None:
            self.house.sabotage(url)
        try:
            with Store(url) as store:
                ledger.compare(store, notes, self.tally, prefix=prefix)
        except Exception as error:  # noqa: BLE001 - a database that does not open is what we seek
            self.tally.blame(f"opening: {type(error).__name__}: {error}")

    def examine(self, url: str, known: set[tuple[str, str]], *, deep: bool) -> None:
        """Have the doctor look, and count what it did not find in the beginning."""
        for alarm in sorted(ledger.alarms(url, deep=deep) - known):
            self.tally.blame(f"the doctor found {alarm}")


def wait_for(true: Callable[[], object], seconds: float = 30.0) -> bool:
    """Look until something is so; say whether it came to that."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def notebooks(folder: Path) -> Iterator[Path]:
    """Give names for notebooks in a folder, each once."""
    number = 0
    while True:
        yield folder / f"book-{time.monotonic_ns()}-{number}"
        number += 1
