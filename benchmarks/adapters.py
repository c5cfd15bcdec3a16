"""Adapters beside the frameworks' own stores, call by call in turn, each durable.

    .venv-frameworks/bin/python -m benchmarks.adapters adk agentscope agentos
    .venv-peers/bin/python -m benchmarks.adapters openai

Prints how many times faster an adapter is at the median of the calls; below 1 it is slower. All is
on SQLite; of the OpenAI Agents SDK, ``SQLAlchemySession`` is on PostgreSQL too. ADK's, AgentScope's
and AgentOS's stores keep SQLite's default journal and its full synchronisation, as they come; the
SDK's have a write-ahead log with full synchronisation by themselves, as ours.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentstore import AsyncStore
from benchmarks.databases import Databases
from benchmarks.places import opened

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


async def openai(store: AsyncStore, home: Path) -> None:
    from agents import SQLiteSession
    from agents.extensions.memory import AdvancedSQLiteSession

    from agentstore.integrations.openai import AgentStoreAdvancedSession, AgentStoreSession

    ours = AgentStoreSession("s", store)
    theirs = SQLiteSession("s", home / "openai.db")
    await _conversation("SQLiteSession", ours, theirs)
    theirs.close()
    mine = AgentStoreAdvancedSession(session_id="a", store=store)
    advanced = AdvancedSQLiteSession(
        session_id="a", db_path=home / "advanced.db", create_tables=True
    )
    await _conversation("AdvancedSQLiteSession", mine, advanced)
    await _branches_and_usage(mine, advanced)
    advanced.close()
    await _sqlalchemy(store, f"sqlite+aiosqlite:///{home / 'sqlalchemy.db'}", "SQLite")


async def openai_on_a_server(places: Databases) -> None:
    there = places.make("theirs").set(drivername="postgresql+psycopg")
    async with AsyncStore(places.make("ours")) as store:
        await _sqlalchemy(store, there.render_as_string(hide_password=False), "PostgreSQL")


async def _sqlalchemy(store: AsyncStore, url: str, engine: str) -> None:
    from agents.extensions.memory import SQLAlchemySession

    from agentstore.integrations.openai import AgentStoreSession

    theirs = SQLAlchemySession.from_url("q", url=url, create_tables=True)
    await _conversation(f"SQLAlchemySession, {engine}", AgentStoreSession("q", store), theirs)
    await theirs.engine.dispose()


def _items(n: int) -> list[dict[str, Any]]:
    """Give what a run with one tool adds, in three parts."""
    call = {"type": "function_call", "call_id": f"c{n}", "name": "weather", "arguments": "{}"}
    return [
        {"role": "user", "content": f"{n} {TEXT}"},
        call,
        {"type": "function_call_output", "call_id": f"c{n}", "output": TEXT},
        {"role": "assistant", "content": TEXT * 4},
    ]


async def _conversation(title: str, ours: Any, theirs: Any) -> None:
    def each(call: Callable[[Any, int], Awaitable[Any]]) -> tuple[Call, Call]:
        return (lambda n: call(ours, n)), (lambda n: call(theirs, n))

    async def run(session: Any, n: int) -> None:
        question, called, told, answer = _items(n)
        await session.get_items()
        await session.add_items([question])
        await session.add_items([called, told])
        await session.add_items([answer])

    async def pop(session: Any, n: int) -> None:
        await session.pop_item()

    print(title)
    await beside("  a run with a tool", *each(run))
    await beside("  add_items", *each(lambda session, n: session.add_items(_items(n))))
    await beside("  get_items(50)", *each(lambda session, n: session.get_items(50)), 200)
    await beside("  pop_item", *each(pop))
    assert await ours.get_items() == await theirs.get_items()


async def _branches_and_usage(ours: Any, theirs: Any) -> None:
    from agents.usage import Usage

    usage = Usage(requests=1, input_tokens=9, output_tokens=1, total_tokens=10)
    ran = SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage))

    def each(call: Callable[[Any, int], Awaitable[Any]]) -> tuple[Call, Call]:
        return (lambda n: call(ours, n)), (lambda n: call(theirs, n))

    async def branch(session: Any, n: int) -> None:
        await session.create_branch_from_turn(20, f"branch-{n}")
        await session.switch_to_branch("main")

    async def switch(session: Any, n: int) -> None:
        await session.switch_to_branch("main" if n % 2 else "branch-0")

    async def delete(session: Any, n: int) -> None:
        await session.delete_branch(f"branch-{n + 1}")

    for title, call, calls in (
        ("store_run_usage", lambda session, n: session.store_run_usage(ran), CALLS),
        ("get_session_usage", lambda session, n: session.get_session_usage(), CALLS),
        ("get_turn_usage", lambda session, n: session.get_turn_usage(), CALLS),
        ("get_tool_usage", lambda session, n: session.get_tool_usage(), CALLS),
        ("get_conversation_turns", lambda session, n: session.get_conversation_turns(), CALLS),
        ("create a branch, and back to main", branch, CALLS),
        ("switch_to_branch", switch, CALLS),
        ("list_branches", lambda session, n: session.list_branches(), CALLS),
        ("delete_branch", delete, CALLS - 2),
    ):
        await beside(f"  {title}", *each(call), calls)


PARTS = {each.__name__: each for each in (adk, agentscope, agentos, openai)}


async def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("part", nargs="+", choices=PARTS, help="a framework that is installed")
    parts = asked.parse_args().part
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    print(f"{'':32} faster       ours       theirs")
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            async with AsyncStore(f"sqlite:///{home / 'ours.db'}") as store:
                await PARTS[part](store, home)
    if "openai" in parts:
        with opened("postgresql") as places:
            await openai_on_a_server(places)


if __name__ == "__main__":
    asyncio.run(main())
