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
from benchmarks.peers.sample import Item

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
        self._at: dict[str, tuple[dict[str, Any], Any]] = {}

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
        config, version = self._at.get(thread, (_config(thread), None))
        version = self._saver.get_next_version(version, None)
        checkpoint = module("langgraph.checkpoint.base").empty_checkpoint()
        checkpoint["channel_values"] = {_CHANNEL: messages}
        checkpoint["channel_versions"] = {_CHANNEL: version}
        metadata = {"source": "loop", "step": step, "parents": {}}
        put = self._call("put")(config, checkpoint, metadata, {_CHANNEL: version})
        self._at[thread] = (await settled(put), version)

    async def latest(self, thread: str) -> list[Item]:
        """Give the latest state's messages."""
        found = await settled(self._call("get_tuple")(_config(thread)))
        return list(found.checkpoint["channel_values"][_CHANNEL])

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
