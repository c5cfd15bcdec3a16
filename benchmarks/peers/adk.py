"""Google ADK's ``DatabaseSessionService``: events, appended one by one to a session object."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import text

from benchmarks.peers.program import (
    Program,
    async_url,
    durability_of,
    make_engine_durable,
    module,
)
from benchmarks.peers.sample import Item, Turn

_WHO = {"app_name": "app", "user_id": "user"}
_COPY_SESSION = (
    "INSERT INTO sessions (app_name, user_id, id, state, create_time, update_time) "
    "SELECT app_name, user_id, :new, state, create_time, update_time FROM sessions WHERE id = :old"
)
_COPY_EVENTS = (
    "INSERT INTO events "
    "(id, app_name, user_id, session_id, invocation_id, timestamp, event_data) "
    "SELECT id, app_name, user_id, :new, invocation_id, timestamp, event_data "
    "FROM events WHERE session_id = :old"
)


class GoogleADK(Program):
    """``DatabaseSessionService``, on aiosqlite and on psycopg."""

    title = "Google ADK DatabaseSessionService"
    packages = ("google-adk",)
    notes = {  # noqa: RUF012 - as declared
        "append": "an event at a time: two commits a turn; looks for changes by others",
        "burst": "an event at a time: two commits a turn; looks for changes by others",
        "last": "gives the session and its state too",
        "beside": "gives the session and its state too",
        "list_all": "one page of all, with state",
        "list_newest": "has no limit: reads all",
        "bytes": "whole events as JSON",
        "bytes_indexed": "has no search",
    }

    async def open(self) -> None:
        """Make the tables."""
        logging.getLogger("google_adk").setLevel(logging.ERROR)
        service = module("google.adk.sessions.database_session_service").DatabaseSessionService
        self._service = service(async_url(self.url))
        if self.ours:
            make_engine_durable(self._service.db_engine)
        self._sessions: dict[str, Any] = {}
        await self._service.prepare_tables()

    async def durability(self) -> str:
        """Ask a connection of the engine."""
        return await durability_of(self._service.db_engine)

    async def close(self) -> None:
        """Close the engine's connections."""
        await self._service.close()

    async def fill(self, session_ids: list[str], turns: list[Turn]) -> None:
        """Make one session by the service, its events in one commit; copy it in the database."""
        service, (first, *others) = self._service, session_ids
        session = await service.create_session(**_WHO, session_id=first)
        schema = service._get_schema_classes()
        async with service.database_session_factory() as opened:
            for item in (item for turn in turns for item in turn):
                opened.add(schema.StorageEvent.from_event(session, self._event(item)))
            await opened.commit()
        async with service.db_engine.begin() as connection:
            for new in others:
                for statement in (_COPY_SESSION, _COPY_EVENTS):
                    await connection.execute(text(statement), {"new": new, "old": first})

    def _event(self, item: Item) -> Any:
        types = module("google.genai.types")
        author = {"user": "user", "assistant": "agent"}[item["role"]]
        role = {"user": "user", "assistant": "model"}[item["role"]]
        content = types.Content(role=role, parts=[types.Part(text=item["content"])])
        event = module("google.adk.events.event").Event
        return event(author=author, invocation_id="invocation", content=content)

    async def append(self, session_id: str, turn: Turn) -> None:
        """Append one event after the other."""
        session = self._sessions.get(session_id)
        if session is None:
            session = await self._service.get_session(**_WHO, session_id=session_id)
            self._sessions[session_id] = session
        try:
            for item in turn:
                await self._service.append_event(session, self._event(item))
        except Exception:
            del self._sessions[session_id]  # it must be read again after an error
            raise

    async def last(self, session_id: str, limit: int) -> list[str]:
        """Give the newest texts."""
        config = module("google.adk.sessions.base_session_service").GetSessionConfig(
            num_recent_events=limit
        )
        found = await self._service.get_session(**_WHO, session_id=session_id, config=config)
        return [event.content.parts[0].text for event in found.events]

    async def list_all(self) -> list[str]:
        """Give all sessions, the oldest first."""
        found = await self._service.list_sessions(app_name=_WHO["app_name"])
        return [session.id for session in found.sessions]

    async def list_newest(self, limit: int) -> list[str]:
        """Give the newest of all sessions."""
        return (await self.list_all())[-limit:]
