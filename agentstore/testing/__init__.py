"""For your tests: a blocking store around an asynchronous one, and the contract of every store.

``BlockingStore`` drives an ``AsyncStore`` from synchronous code, so that one test body serves both
kinds. ``agentstore.testing.contract.StoreContract`` is what every store promises, as a test class
that another engine or an adapter inherits; it alone needs pytest.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Self, TypeVar, cast

from agentstore.aio import AsyncRepositories, AsyncScopedStore, AsyncStore
from agentstore.health import DEFAULT_TIMEOUT
from agentstore.records import PruneReport
from agentstore.records.upkeep import HealthRecord, Statistics
from agentstore.retention import RetentionPolicy
from agentstore.transactions import Repositories

__all__ = ["BlockingStore", "LoopThread"]


# For tests: an asynchronous store that is driven from synchronous code.
#
# One contract suite then holds for every kind of store, from one body: what a test says to a
# ``Store`` it says to a ``BlockingStore`` in the same words, and the coroutines run in an event
# loop of its own, in a thread of its own.


T = TypeVar("T")

REPOSITORIES = tuple(
    name for name, each in vars(Repositories).items() if isinstance(each, cached_property)
)


class LoopThread:
    """An event loop in a thread.

    Attributes:
        loop: The event loop.
    """

    def __init__(self) -> None:
        """Start it."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class _Blocking:
    """An asynchronous repository whose methods wait."""

    def __init__(self, repository: Any, loop: LoopThread) -> None:
        self._repository = repository
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._repository, name)
        if inspect.isasyncgenfunction(method):
            return lambda *args, **kwargs: self._items(method(*args, **kwargs))
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *args, **kwargs: self._loop.run(method(*args, **kwargs))

    def _items(self, source: AsyncGenerator[Any, None]) -> Generator[Any, None, None]:
        end = object()

        async def following() -> Any:
            return await anext(source, end)

        try:
            while (item := self._loop.run(following())) is not end:
                yield item
        finally:
            self._loop.run(source.aclose())


class _BlockingStream(_Blocking):
    """An asynchronous stream of texts that one waits for; who stops to read does not close it."""

    def __iter__(self) -> Self:
        """Go over the texts."""
        return self

    def __next__(self) -> str:
        """Wait for the next one."""

        async def following() -> str | None:
            return await anext(self._repository, None)

        if (text := self._loop.run(following())) is None:
            raise StopIteration
        return text

    def close(self) -> None:
        """Stop reading."""
        self._loop.run(self._repository.aclose())


class _BlockingTurn(_Blocking):
    """An asynchronous turn whose methods wait."""

    def stream(self, chunks: Iterable[object]) -> Any:
        """Save an answer while it comes."""

        async def given() -> AsyncGenerator[object, None]:
            for chunk in chunks:
                yield chunk

        return _BlockingStream(self._repository.stream(given()), self._loop)

    def __enter__(self) -> Self:
        """Begin it."""
        self._loop.run(self._repository.__aenter__())
        return self

    def __exit__(self, *raised: Any) -> None:
        """End it."""
        self._loop.run(self._repository.__aexit__(*raised))


class BlockingRepositories:
    """Asynchronous repositories whose methods wait."""

    def __init__(self, repositories: AsyncRepositories, loop: LoopThread) -> None:
        """Wrap each of them."""
        self._repositories = repositories
        self._loop = loop
        for name in REPOSITORIES:
            setattr(self, name, _Blocking(getattr(repositories, name), loop))

    def __getattr__(self, name: str) -> Any:
        """Satisfy type checkers: the repositories are set in ``__init__``."""
        raise AttributeError(name)

    def turn(self, session_id: str, **options: Any) -> Any:
        """Begin a turn."""
        return _BlockingTurn(self._repositories.turn(session_id, **options), self._loop)


class _Interrupted(Exception):
    """Stands for an interrupt of the thread that holds a transaction."""


class _BlockingRoot(BlockingRepositories):
    """What has transactions: a store, or a scope of one.

    Attributes:
        store: The asynchronous one.
    """

    def __init__(self, store: AsyncStore | AsyncScopedStore, loop: LoopThread) -> None:
        """Wrap its repositories."""
        self.store = store
        super().__init__(store, loop)

    def __repr__(self) -> str:
        """Show the store's own."""
        return repr(self.store)

    @property
    def _probe(self) -> Any:
        store: Any = self.store
        return getattr(store, "_store", store)._probe

    @contextmanager
    def transaction(self) -> Iterator[BlockingRepositories]:
        """Make several calls one.

        The block lives in one task of the loop, so that it is one context there too.
        """
        entered: asyncio.Future[Any] = self._loop.run(self._future())
        ending: asyncio.Future[Any] = self._loop.run(self._future())

        async def live() -> None:
            try:
                async with self.store.transaction() as transaction:
                    entered.set_result(transaction)
                    error = await ending
                    if error is not None:
                        raise error
            except BaseException as error:
                if not entered.done():
                    entered.set_exception(error)
                    return
                raise

        task = asyncio.run_coroutine_threadsafe(live(), self._loop.loop)

        async def wait() -> Any:
            return await entered

        transaction = self._loop.run(wait())
        try:
            yield BlockingRepositories(transaction, self._loop)
        except BaseException as error:
            # An interrupt is this thread's; raised in the loop it would end the loop.
            passed_on = error if isinstance(error, Exception) else _Interrupted()
            self._loop.loop.call_soon_threadsafe(ending.set_result, passed_on)
            with suppress(_Interrupted):
                task.result()
            raise
        self._loop.loop.call_soon_threadsafe(ending.set_result, None)
        task.result()

    def run(self, work: Callable[[Any], T]) -> T:
        """Run a function in a transaction."""
        return self._loop.run(self.store.run(work))

    def read(self, work: Callable[[Any], T]) -> T:
        """Run a function that sees one moment."""
        return self._loop.run(self.store.read(work))

    async def _future(self) -> asyncio.Future[Any]:
        return self._loop.loop.create_future()


class BlockingScope(_BlockingRoot):
    """An ``AsyncScopedStore`` whose methods wait."""

    @property
    def user_id(self) -> str:
        """The user."""
        return cast("AsyncScopedStore", self.store).user_id


class BlockingStore(_BlockingRoot):
    """An ``AsyncStore`` whose methods wait; usable from any number of threads.

    Attributes:
        opened: The ``AsyncStore``.
    """

    def __init__(self, make: Callable[[], AsyncStore]) -> None:
        """Make the store in a loop of its own, and open it."""
        loop = LoopThread()

        async def open_store() -> AsyncStore:
            store = make()
            try:
                await store.open()
            except BaseException:
                await store.close()
                raise
            return store

        try:
            self.opened = loop.run(open_store())
        except BaseException:
            loop.close()
            raise
        super().__init__(self.opened, loop)

    def __enter__(self) -> Self:
        """Give the store, which is open already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    def close(self) -> None:
        """Close the store and end the loop."""
        self._loop.run(self.opened.close())
        self._loop.close()

    def prune(self, policy: RetentionPolicy, **options: Any) -> PruneReport:
        """Delete what a retention policy does not keep."""
        return self._loop.run(self.opened.prune(policy, **options))

    def health(self, timeout: float = DEFAULT_TIMEOUT) -> HealthRecord:
        """Say whether the store can do its work now."""
        return self._loop.run(self.opened.health(timeout))

    def statistics(self, *arguments: Any, **options: Any) -> Statistics:
        """Say how much the database holds."""
        return self._loop.run(self.opened.statistics(*arguments, **options))

    def scoped(self, user_id: str) -> BlockingScope:
        """Give the same repositories for one user's data."""
        return BlockingScope(self.opened.scoped(user_id), self._loop)
