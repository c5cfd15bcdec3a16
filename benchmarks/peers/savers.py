"""LangGraph's savers, called as a graph with one channel, its messages, calls them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from benchmarks.peers.program import (
    Program,
    durability_of_driver,
    make_durable,
    module,
    settled,
    with_driver,
)
from benchmarks.peers.sample import Item, Turn

_CHANNEL = "messages"


class AsyncSaver(Program):
    """``AsyncSqliteSaver`` and ``AsyncPostgresSaver``."""

    title = "LangGraph async saver"
    packages = ("langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")
    notes = {  # noqa: RUF012 - as declared
        "put": "stores the whole history each time",
        "put_bytes": "stores the whole history each time",
        "latest": "keeps each state in one piece",
        "list_states": "one query, as agentstore's",
    }

    async def open(self) -> None:
        """Connect as ``from_conn_string`` does, and make the tables."""
        self._stack = AsyncExitStack()
        package = module(self._module())
        place = str(self.url.database)
        if self.url.get_backend_name() == "postgresql":
            place = with_driver(self.url, "")
        kind = getattr(package, self._class()).from_conn_string(place)
        if self.synchronous:
            self._saver = self._stack.enter_context(kind)
        else:
            self._saver = await self._stack.enter_async_context(kind)
        await settled(self._saver.setup())
        if self.ours:
            await self._make_durable()
        self._calls = GraphCalls(self._saver, synchronous=self.synchronous)

    def _module(self) -> str:
        engine = {"sqlite": "sqlite", "postgresql": "postgres"}[self.url.get_backend_name()]
        return f"langgraph.checkpoint.{engine}" + ("" if self.synchronous else ".aio")

    def _class(self) -> str:
        engine = {"sqlite": "Sqlite", "postgresql": "Postgres"}[self.url.get_backend_name()]
        return ("" if self.synchronous else "Async") + f"{engine}Saver"

    async def _make_durable(self) -> None:
        connection = self._saver.conn
        if self.synchronous:
            make_durable(connection)
        else:
            await connection._execute(make_durable, connection._conn)

    async def durability(self) -> str:
        """Ask the saver's connection."""
        return await durability_of_driver(self._saver.conn)

    async def close(self) -> None:
        """Close the connection."""
        await self._stack.aclose()

    def _call(self, name: str) -> Any:
        return getattr(self._saver, name if self.synchronous else f"a{name}")

    async def put(self, thread: str, step: int, messages: list[Item]) -> None:
        """Put a state, after the one that was put last."""
        await self._calls.put(thread, step, messages)

    async def latest(self, thread: str) -> list[Item]:
        """Give the latest state's messages."""
        return list(await self._calls.latest(thread))

    async def put_graph(self, thread: str, step: int, messages: list[Any]) -> None:
        """Put a state of a graph's messages."""
        await self._calls.put(thread, step, messages)

    async def latest_graph(self, thread: str) -> list[Any]:
        """Give the latest of these states."""
        return list(await self._calls.latest(thread))

    async def list_states(self, thread: str, limit: int) -> list[list[Item]]:
        """List checkpoints; each comes with its state."""
        listed = self._call("list")(_config(thread), limit=limit)
        found = list(listed) if self.synchronous else [each async for each in listed]
        return [each.checkpoint["channel_values"][_CHANNEL] for each in found]


class Saver(AsyncSaver):
    """``SqliteSaver`` and ``PostgresSaver``."""

    title = "LangGraph saver"
    synchronous = True


def _config(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


class GraphCalls:
    """What a graph with one channel, its messages, calls of any saver."""

    def __init__(self, saver: Any, *, synchronous: bool) -> None:
        """Begin with no state."""
        self._saver = saver
        self._prefix = "" if synchronous else "a"
        self._at: dict[str, tuple[dict[str, Any], Any]] = {}

    async def put(self, thread: str, step: int, messages: list[Any]) -> None:
        """Put a state, after the one that was put last."""
        config, version = self._at.get(thread, (_config(thread), None))
        version = self._saver.get_next_version(version, None)
        checkpoint = module("langgraph.checkpoint.base").empty_checkpoint()
        checkpoint["channel_values"] = {_CHANNEL: messages}
        checkpoint["channel_versions"] = {_CHANNEL: version}
        metadata = {"source": "loop", "step": step, "parents": {}}
        put = getattr(self._saver, f"{self._prefix}put")
        done = await settled(put(config, checkpoint, metadata, {_CHANNEL: version}))
        self._at[thread] = (done, version)

    async def latest(self, thread: str) -> Any:
        """Give the latest state's messages."""
        get = getattr(self._saver, f"{self._prefix}get_tuple")
        found = await settled(get(_config(thread)))
        return found.checkpoint["channel_values"][_CHANNEL]


def graph_messages(turns: list[Turn], count: int) -> list[Any]:
    """Make a graph's messages of turns: a question, a call of a tool, its result, an answer."""
    kinds = module("langchain_core.messages")
    made: list[Any] = []
    for number in range(-(-count // 4)):
        question, answer = (item["content"] for item in turns[number % len(turns)])
        call = {"name": "search", "args": {"query": question[:60]}, "id": f"call-{number}"}
        made += [
            kinds.HumanMessage(question, id=f"question-{number}"),
            kinds.AIMessage("", id=f"asks-{number}", tool_calls=[call]),
            kinds.ToolMessage(answer, id=f"result-{number}", tool_call_id=f"call-{number}"),
            kinds.AIMessage(answer, id=f"answer-{number}"),
        ]
    return made[:count]
