"""A clock for tests, threads that begin together, what is still there, and all pages of a list."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

from agentstore import AgentStoreError
from agentstore.errors import NotFound

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: datetime = NOON) -> None:
        """Begin at noon, or at another moment."""
        self.now = now

    def __call__(self) -> datetime:
        """Say what it shows."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Go on by so many seconds."""
        self.now += timedelta(seconds=seconds)


def at_once(
    number: int,
    work: Callable[[int], Any],
    caught: type[Exception] | tuple[type[Exception], ...] = AgentStoreError,
) -> list[Any]:
    """Run work(0), work(1), ... in threads that begin together; give what each gave, or raised."""
    together = Barrier(number)

    def run(n: int) -> Any:
        together.wait(30)
        try:
            return work(n)
        except caught as error:
            return error

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))


def done_to(ids: Iterable[str], work: Callable[[str], Any]) -> list[str]:
    """Do something to each that is still there; give which were."""
    done = []
    for id in ids:
        with suppress(NotFound):
            work(id)
            done.append(id)
    return done


def paged(list_page: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """Give all that a list holds, page by page; none may hold more than was asked for."""
    items, cursor = [], None
    while True:
        page = list_page(*arguments, cursor=cursor, **options)
        assert len(page) <= options.get("limit", 50)
        items += page
        cursor = page.next_cursor
        if cursor is None:
            return items
