"""The sessions of the OpenAI Agents SDK: an object for each conversation."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace
from typing import Any, ClassVar

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.peers.program import (
    Program,
    async_url,
    durability_of,
    make_durable,
    make_engine_durable,
    module,
)
from benchmarks.peers.sample import Item, Turn
from benchmarks.raw import durability

_NO_RECORDS = "items are JSON: no ids, counters, search; a session begins by itself"


class OpenAISQLite(Program):
    """``SQLiteSession``."""

    title = "OpenAI SQLiteSession"
    packages = ("openai-agents",)
    engines: ClassVar[tuple[str, ...]] = ("sqlite",)
    notes = {  # noqa: RUF012 - as declared
        "append": _NO_RECORDS,
        "burst": _NO_RECORDS,
        "last": "gives dicts, not records",
        "beside": "gives dicts, not records",
        "bytes": "no ids that are unique everywhere, no turns",
        "bytes_indexed": "has no search",
    }

    async def open(self) -> None:
        """Make the tables."""
        self._sessions: dict[str, Any] = {}
        self._session("first")

    def _session(self, session_id: str) -> Any:
        if session_id not in self._sessions:
            self._sessions[session_id] = self._new(session_id)
        return self._sessions[session_id]

    def _new(self, session_id: str) -> Any:
        kind = self._kind(module("agents").SQLiteSession)
        return kind(session_id, db_path=str(self.url.database))

    def _kind(self, kind: Any) -> Any:
        """Give the class, or one whose connections are set up as agentstore's are."""
        if not self.ours:
            return kind

        def configure(connection: sqlite3.Connection) -> None:
            kind._configure_connection(connection)
            make_durable(connection)

        return type(kind.__name__, (kind,), {"_configure_connection": staticmethod(configure)})

    async def durability(self) -> str:
        """Ask a connection of the kind that its threads use."""
        session = self._session("first")
        return await asyncio.to_thread(lambda: durability(session._get_connection()))

    async def close(self) -> None:
        """Close the connections of all sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    async def fill(self, session_ids: list[str], turns: list[Turn]) -> None:
        """Make sessions with turns, a call for each session."""
        for session_id in session_ids:
            await self._session(session_id).add_items([item for turn in turns for item in turn])
        await self.close()  # or there would be a connection for each session and thread

    async def append(self, session_id: str, turn: Turn) -> None:
        """Add both items in one transaction."""
        await self._session(session_id).add_items(list(turn))

    async def last(self, session_id: str, limit: int) -> list[str]:
        """Give the newest texts."""
        return [item["content"] for item in await self._session(session_id).get_items(limit)]

    async def chat(self, session_id: str, limit: int) -> list[Item]:
        """Give the newest items, which are dicts of a chat API here."""
        return list(await self._session(session_id).get_items(limit))

    async def fill_items(self, session_id: str, turns: list[Turn]) -> None:
        """Make a session: it always holds items."""
        await self.fill([session_id], turns)

    items = chat


class OpenAIAdvanced(OpenAISQLite):
    """``AdvancedSQLiteSession``."""

    title = "OpenAI AdvancedSQLiteSession"
    notes = {  # noqa: RUF012 - as declared
        **OpenAISQLite.notes,
        "append": "counts turns and tools, as agentstore does; no ids, search",
        "burst": "counts turns and tools, as agentstore does; no ids, search",
        "bytes": "a second row for each item; no ids that are unique everywhere",
        "branch": "copies a row for each item",
        "branch_bytes": "copies a row for each item",
        "record_usage": "replaces what the turn had; agentstore adds to it",
        "sum_usage": "without prices",
    }

    def _new(self, session_id: str) -> Any:
        kind = self._kind(module("agents.extensions.memory").AdvancedSQLiteSession)
        return kind(session_id=session_id, db_path=str(self.url.database), create_tables=True)

    async def branch(self, session_id: str, turn: int, name: str) -> None:
        """Branch from before a turn."""
        await self._session(session_id).create_branch_from_turn(turn, name)

    async def leave_branch(self, session_id: str) -> None:
        """Go on with the first branch."""
        await self._session(session_id).switch_to_branch("main")

    async def record_usage(self, session_id: str, tokens: int) -> None:
        """Store what the last turn used, as after a run."""
        usage = module("agents.usage").Usage(
            requests=1, input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1
        )
        run = SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage))
        await self._session(session_id).store_run_usage(run)

    async def sum_usage(self, session_id: str) -> int:
        """Add up what the session used."""
        return int((await self._session(session_id).get_session_usage())["total_tokens"])


class OpenAISQLAlchemy(OpenAISQLite):
    """``SQLAlchemySession``, on aiosqlite and on psycopg."""

    title = "OpenAI SQLAlchemySession"
    engines = ("sqlite", "postgresql")
    _engine: AsyncEngine

    async def open(self) -> None:
        """Make the tables."""
        self._sessions = {}
        self._engine = create_async_engine(async_url(self.url))
        session = self._session("first")
        if self.ours:
            make_engine_durable(self._engine)  # after what a session sets up
        await session.get_items(1)

    def _new(self, session_id: str) -> Any:
        kind = module("agents.extensions.memory").SQLAlchemySession
        return kind(session_id, engine=self._engine, create_tables=True)

    async def durability(self) -> str:
        """Ask a connection of the engine."""
        return await durability_of(self._engine)

    async def fill(self, session_ids: list[str], turns: list[Turn]) -> None:
        """Make sessions with turns, a call for each session."""
        for session_id in session_ids:
            await self._session(session_id).add_items([item for turn in turns for item in turn])

    async def close(self) -> None:
        """Close the engine's connections."""
        await self._engine.dispose()
