"""Work that settles although who asked for it is cancelled: the cancellation goes on after it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; when cancelled, let the cancellation go on only then."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await until_done(task)
        raise


async def until_done(waiting: asyncio.Future[Any]) -> None:
    """Wait until this is done, however often one is cancelled meanwhile."""
    while not waiting.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # it is the cancellation that the caller asked for
