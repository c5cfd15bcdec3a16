"""Health: whether the store can work, how much it holds, and what is wrong with it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from starlette.responses import Response

from agentstore.doctor import examine
from agentstore.engines.registry import dialect_for
from agentstore.errors import InvalidInput
from agentstore.explorer.web.visits import Visit
from agentstore.records.findings import Finding

_PATIENCE = 3.0
"""Seconds to wait for the database."""

_EXAMINED_WITHIN = 20.0
_KEPT_FOR = 60.0
_DAYS, _TOP = 14, 5

_examinations: WeakKeyDictionary[Any, asyncio.Task[list[Finding]]] = WeakKeyDictionary()
"""Those that run, or have just ended, by the store: who asks meanwhile shares one."""


async def page(visit: Visit) -> Response:
    """Say how the store is; on demand how much it holds, and what a quick examination finds."""
    health = await visit.ask(visit.store.health, _PATIENCE)
    statistics = findings = None
    trouble = ""
    if visit.given("sizes") and health.ok:
        ask = visit.store.statistics
        statistics = await visit.ask(ask, _DAYS, top=_TOP, exact=False)
    if visit.given("examine"):
        try:
            findings = await _examined(visit.store)
        except TimeoutError:
            trouble = "It takes long, and goes on: come back in a while."
        except InvalidInput as error:
            trouble = str(error)
    return await visit.page(
        "health.html", health=health, statistics=statistics, findings=findings, trouble=trouble
    )


async def _examined(store: Any) -> list[Finding]:
    """Examine a database, and wait up to ``_EXAMINED_WITHIN``.

    Raises:
        TimeoutError: It takes longer; it goes on all the same.
        InvalidInput: It is a database in memory.
    """
    running = _examinations.get(store)
    if running is None or running.get_loop() is not asyncio.get_running_loop():
        running = asyncio.create_task(asyncio.to_thread(_examine, store))
        _examinations[store] = running
        running.add_done_callback(partial(_ended, store))
    await asyncio.wait([running], timeout=_EXAMINED_WITHIN)
    if not running.done():
        raise TimeoutError
    _examinations.pop(store, None)
    return running.result()


def _ended(store: Any, examination: asyncio.Task[list[Finding]]) -> None:
    """Keep what was found for who asks again soon, and not longer: it would be of the past."""
    if not examination.cancelled():
        examination.exception()  # looked at, so that nobody is warned of it

    def forget() -> None:
        if _examinations.get(store) is examination:
            del _examinations[store]

    examination.get_loop().call_later(_KEPT_FOR, forget)


def _examine(store: Any) -> list[Finding]:
    """Examine what costs little, by a connection of its own that only reads.

    Raises:
        InvalidInput: It is a database in memory.
    """
    url, names = store._probe.engine.url, store._probe.settings.names
    if not dialect_for(url).many_connections(url):
        raise InvalidInput("A database in memory cannot be examined: no other connection sees it.")
    return examine(url.set(drivername=url.get_backend_name()), names=names)
