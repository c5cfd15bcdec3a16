"""Stores for adapters: synchronous and asynchronous ones, on each engine."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from agentstore import AsyncStore, Store

Opening = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture(params=[Store, AsyncStore], ids=["sync", "async"])
def opening(request: pytest.FixtureRequest, engine_url: str) -> Opening:
    """Give what opens a store, of each kind; each time it is called, on the same database."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        if request.param is Store:
            with Store(engine_url) as store:
                yield store
        else:
            async with AsyncStore(engine_url) as store:
                yield store

    return opened


@pytest.fixture
def opening_async(engine_url: str) -> Opening:
    """Give what opens an asynchronous store."""
    return lambda: AsyncStore(engine_url)
