"""Adapters beside the frameworks' own stores on SQLite, call by call in turn, each durable.

    .venv-frameworks/bin/python -m benchmarks.adapters

Prints how many times faster an adapter is at the median of the calls; below 1 it is slower. The
frameworks' stores keep SQLite's default journal and its full synchronisation, as they come.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentstore import AsyncStore

Call = Callable[[int], Awaitable[Any]]
CALLS = 40
TEXT = "A sentence about the weather, as long as sentences are. "


async def beside(title: str, ours: Call, theirs: Call, calls: int = CALLS) -> None:
    """Time the same call of both, in turn; print the ratio of the medians."""
    taken: tuple[list[float], list[float]] = ([], [])
    for n in range(calls):
        for call, times in zip((ours, theirs), taken, strict=True):
            began = time.perf_counter()
            await call(n)
            times.append(time.perf_counter() - began)
    mine, other = map(statistics.median, taken)
    print(f"{title:32} {other / mine:6.2f}   {mine * 1e3:8.2f} ms {other * 1e3:8.2f} ms")


async def adk(store: AsyncStore, home: Path) -> None:
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions
    from google.adk.sessions import DatabaseSessionService
    from google.genai import types

    from agentstore.integrations.adk import AgentStoreSessionService

    services = (
        AgentStoreSessionService(store),
        DatabaseSessionService(f"sqlite+aiosqlite:///{home / 'adk.db'}"),
    )
    who = {"app_name": "app", "user_id": "user"}
    sessions = [await service.create_session(**who, session_id="s") for service in services]

    def event(delta: dict[str, Any]) -> Event:
        content = types.Content(role="user", parts=[types.Part(text=TEXT)])
        actions = EventActions(state_delta=delta)
        return Event(author="user", content=content, actions=actions)

    def each(call: Callable[[int, int], Awaitable[Any]]) -> tuple[Call, Call]:
        return (lambda n: call(0, n)), (lambda n: call(1, n))

    async def append(which: int, n: int) -> None:
        await services[which].append_event(sessions[which], event({}))

    async def change(which: int, n: int) -> None:
        await services[which].append_event(sessions[which], event({"n": n, "user:n": n}))

    async def create(which: int, n: int) -> None:
        await services[which].create_session(**who, state={"a": 1})

    async def get(which: int, n: int) -> None:
        await services[which].get_session(**who, session_id="s")

    async def listed(which: int, n: int) -> None:
        await services[which].list_sessions(**who)

    for call in (append, change, create, get, listed):
        await beside(f"ADK {call.__name__}", *each(call))
    await services[1].close()


async def agentscope(store: AsyncStore, home: Path) -> None:
    from agentscope.memory import AsyncSQLAlchemyMemory
    from agentscope.message import Msg
    from sqlalchemy.ext.asyncio import create_async_engine

    from agentstore.integrations.agentscope import AgentStoreMemory

    engine = create_async_engine(f"sqlite+aiosqlite:///{home / 'agentscope.db'}")
    ours = AgentStoreMemory(store, session_id="s", user_id="u")
    theirs = AsyncSQLAlchemyMemory(engine, session_id="s", user_id="u")
    ids: list[str] = []

    def adding(memory: Any) -> Call:
        async def add(n: int) -> None:
            message = Msg("user", TEXT, "user")
            message.id = f"m{n}"
            await memory.add(message, marks="a")

        return add

    ids += [f"m{n}" for n in range(CALLS)]
    await beside("AgentScope add", adding(ours), adding(theirs))
    await beside("AgentScope get", lambda _: ours.get_memory(), lambda _: theirs.get_memory())
    await beside(
        "AgentScope mark",
        lambda n: ours.update_messages_mark(f"x{n}", msg_ids=ids[:3]),
        lambda n: theirs.update_messages_mark(f"x{n}", msg_ids=ids[:3]),
    )
    await beside(
        "AgentScope delete", lambda n: ours.delete([ids[n]]), lambda n: theirs.delete([ids[n]])
    )
    await theirs.close()
    await engine.dispose()


async def agentos(store: AsyncStore, home: Path) -> None:
    from agentos.checkpoint.base import Checkpoint, CheckpointMetadata
    from agentos.checkpoint.sqlite import SQLiteCheckpointer

    from agentstore.integrations.agentos import AgentStoreCheckpointer

    ours, theirs = AgentStoreCheckpointer(store), SQLiteCheckpointer(str(home / "agentos.db"))

    def putting(backend: Any) -> Call:
        async def put(n: int) -> None:
            messages = [{"role": "user", "content": f"{m} {TEXT * 4}"} for m in range(2 * n)]
            meta = CheckpointMetadata("t", f"c{n}", n, f"c{n - 1}" if n else None)
            await backend.put(Checkpoint(meta, messages, {"n": n}, {}))

        return put

    await beside("AgentOS put", putting(ours), putting(theirs))
    for title, ask in (
        ("AgentOS get", lambda backend: backend.get("c20")),
        ("AgentOS get_latest", lambda backend: backend.get_latest("t")),
        ("AgentOS list_checkpoints", lambda backend: backend.list_checkpoints("t")),
    ):
        await beside(title, lambda _, ask=ask: ask(ours), lambda _, ask=ask: ask(theirs))


async def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"{'':32} faster       ours       theirs")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for part in (adk, agentscope, agentos):
            async with AsyncStore(f"sqlite:///{home / part.__name__}_ours.db") as store:
                await part(store, home)


if __name__ == "__main__":
    asyncio.run(main())
