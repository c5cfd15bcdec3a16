"""agentstore itself, by its public API: a ``Store`` beside what blocks, else an ``AsyncStore``."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from agentstore import AsyncStore, Store, migrations
from benchmarks.counting import opened_connections
from benchmarks.peers.program import Program, module, settled
from benchmarks.peers.sample import Item, Turn
from benchmarks.peers.savers import GraphCalls
from benchmarks.raw import durability

_BATCH = 250
_PAGE = 1_000


class OursAsync(Program):
    """An ``AsyncStore``."""

    title = "AsyncStore"
    kind: ClassVar[Any] = AsyncStore

    async def open(self) -> None:
        """Migrate and connect."""
        migrations.upgrade(self.url)
        with opened_connections() as connections:
            self._store = self.kind(self.url)
            if not self.synchronous:
                await self._store.open()
            await settled(self._store.sessions.count())
        self._durability = durability(connections[0])

    async def durability(self) -> str:
        """Say what the connection answered that opening left."""
        return self._durability

    async def close(self) -> None:
        """Close the store."""
        await settled(self._store.close())

    async def fill(self, session_ids: list[str], turns: list[Turn]) -> None:
        """Make sessions with turns."""
        for session_id in session_ids:
            await settled(self._store.sessions.create(id=session_id))
            for start in range(0, len(turns), _BATCH):
                items = [item for turn in turns[start : start + _BATCH] for item in turn]
                await settled(self._store.messages.save_many(session_id, items))

    async def index(self) -> None:
        """Take all messages into the search index, as the first search would."""
        await settled(self._store.search.refresh())

    async def append(self, session_id: str, turn: Turn) -> None:
        """Save both messages in one transaction."""
        await settled(self._store.messages.save_many(session_id, turn))

    async def last(self, session_id: str, limit: int) -> list[str]:
        """Give the newest texts."""
        found = await settled(self._store.messages.history(session_id, limit))
        return [message.content for message in found]

    async def chat(self, session_id: str, limit: int) -> list[Item]:
        """Give the newest messages as dicts of the chat APIs."""
        return list(await settled(self._store.messages.chat(session_id, limit)))

    async def fill_items(self, session_id: str, turns: list[Turn]) -> None:
        """Make a session of messages that hold items of a framework's."""
        await settled(self._store.sessions.create(id=session_id))
        items = [{"role": item["role"], "payload": item} for turn in turns for item in turn]
        await settled(self._store.messages.save_many(session_id, items))

    async def items(self, session_id: str, limit: int) -> list[Item]:
        """Give the newest items."""
        return list(await settled(self._store.messages.payloads(session_id, limit)))

    async def list_all(self) -> list[str]:
        """Page through all sessions."""
        found: list[str] = []
        cursor = None
        while True:
            page = await settled(self._store.sessions.list(limit=_PAGE, cursor=cursor))
            found += [session.id for session in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def list_newest(self, limit: int) -> list[str]:
        """Give the first page."""
        page = await settled(self._store.sessions.list(limit=limit))
        return [session.id for session in page.items]

    async def branch(self, session_id: str, turn: int, name: str) -> None:
        """Branch from before a turn of the first branch."""
        create = self._store.branches.create
        await settled(create(session_id, from_turn=turn, name=name, branch="main"))

    async def leave_branch(self, session_id: str) -> None:
        """Go on with the first branch."""
        await settled(self._store.branches.switch(session_id, "main"))

    async def record_usage(self, session_id: str, tokens: int) -> None:
        """Add to what the last turn used."""
        record = self._store.usage.record
        await settled(record(session_id, input_tokens=tokens, output_tokens=1))

    async def sum_usage(self, session_id: str) -> int:
        """Add up what the session used."""
        sums = await settled(self._store.usage.sum_by("total", session_id=session_id))
        return int(sums[0].total_tokens)

    async def put(self, thread: str, step: int, messages: list[Item]) -> None:
        """Put a state."""
        await settled(self._store.checkpoints.put(thread, {"messages": messages}, step=step))

    async def latest(self, thread: str) -> list[Item]:
        """Give the latest state's messages."""
        found = await settled(self._store.checkpoints.latest(thread))
        return list(found.values["messages"])

    async def put_graph(self, thread: str, step: int, messages: list[Any]) -> None:
        """Put a state of a graph's messages, by our own saver."""
        await self._graph.put(thread, step, messages)

    async def latest_graph(self, thread: str) -> list[Any]:
        """Give the latest of these states."""
        return list(await self._graph.latest(thread))

    @cached_property
    def _graph(self) -> GraphCalls:
        savers = module("agentstore.integrations.langgraph")
        kind = savers.AgentStoreSaver if self.synchronous else savers.AsyncAgentStoreSaver
        return GraphCalls(kind(self._store), synchronous=self.synchronous)

    async def list_states(self, thread: str, limit: int) -> list[list[Item]]:
        """List checkpoints with their states."""
        page = await settled(self._store.checkpoints.list(thread, limit=limit, values=True))
        return [each.values["messages"] for each in page.items]


class Ours(OursAsync):
    """A ``Store``."""

    title = "Store"
    kind = Store
    synchronous = True
