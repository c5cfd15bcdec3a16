"""What was imported of ADK's and of AgentScope's goes on where it was, through our adapters."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from agentscope.message import Msg
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import DatabaseSessionService

from agentstore import AsyncStore
from agentstore.integrations.adk import AgentStoreSessionService
from agentstore.integrations.agentscope import AgentStoreMemory
from agentstore.moving.frameworks import import_database
from tests.imports.make_fixtures import content, loaded, said_by_adk, said_by_agentscope

NO_NUL = "whole 😀, Grüezi"
"""What a server can keep as text, too."""


def take(framework: str, name: str, url: str, folder: Path) -> None:
    path = loaded(name, folder / f"{name}.db")
    import_database(framework, str(path), url, quarantine=folder / "aside.jsonl")


@pytest.mark.parametrize("written_by", ["adk", "adk_sqlite"])
def test_sessions_of_adk_go_on(written_by, engine_url, tmp_path):
    take("adk", written_by, engine_url, tmp_path)
    sessions_go_on(engine_url, json.loads(content(f"{written_by}.json")))


def test_sessions_of_adk_on_a_server_go_on(empty_server, engine_url, tmp_path):
    said = said_by_adk(DatabaseSessionService(empty_server), NO_NUL)
    aside = tmp_path / "aside.jsonl"
    report = import_database("adk", empty_server, engine_url, quarantine=aside)
    assert (report.set_aside, report.kinds) == (0, {"session": 3, "shared state": 4})
    sessions_go_on(engine_url, said)


def sessions_go_on(engine_url: str, expected: list[Any]) -> None:
    async def go_on() -> None:
        async with AsyncStore(engine_url) as store:
            service = AgentStoreSessionService(store)
            for theirs in expected:
                user = theirs.get("userId") or theirs["user_id"]
                app = theirs.get("appName") or theirs["app_name"]
                who = {"app_name": app, "user_id": user, "session_id": theirs["id"]}
                session = await service.get_session(**who)
                assert session is not None
                ours = session.model_dump(mode="json", exclude_none=True)
                if not theirs["events"]:  # their clock has fractions that a text does not keep
                    times = ours.pop("last_update_time"), theirs.pop("last_update_time")
                    assert times[0] == pytest.approx(times[1], abs=1.0)
                assert ours == theirs
                delta = {"count": 8, "app:theme": "light"}
                new = Event(author="user", actions=EventActions(state_delta=delta))
                await service.append_event(session, new)
                again = await service.get_session(**who)
                assert again is not None
                assert len(again.events) == len(theirs["events"]) + 1
                assert (again.state["count"], again.state["app:theme"]) == (8, "light")
                for other in expected:  # which the next session of the app shares
                    if (other.get("appName") or other.get("app_name")) == app:
                        other["state"]["app:theme"] = "light"
            listed = await service.list_sessions(app_name="weather")
            assert {session.id for session in listed.sessions} == {"s1", "empty"}

    asyncio.run(go_on())


def test_memories_of_agentscope_go_on(engine_url, tmp_path):
    take("agentscope", "agentscope", engine_url, tmp_path)
    memories_go_on(engine_url, json.loads(content("agentscope.json")))


def test_memories_of_agentscope_on_a_server_go_on(empty_server, engine_url, tmp_path):
    said = said_by_agentscope(empty_server, NO_NUL)
    aside = tmp_path / "aside.jsonl"
    report = import_database("agentscope", empty_server, engine_url, quarantine=aside)
    assert (report.set_aside, report.kinds) == (0, {"session": 3})
    memories_go_on(engine_url, said)


def memories_go_on(engine_url: str, expected: list[Any]) -> None:
    async def go_on() -> None:
        async with AsyncStore(engine_url) as store:
            for theirs in expected:
                memory = AgentStoreMemory(
                    store, user_id=theirs["user_id"], session_id=theirs["session_id"]
                )
                assert [m.to_dict() for m in await memory.get_memory()] == theirs["messages"]
                for mark, ids in theirs["marked"].items():
                    assert [m.id for m in await memory.get_memory(mark=mark)] == ids
                await memory.add(Msg("alice", "and on", "user"), marks="asked")
                assert await memory.update_messages_mark("old", "asked") == 2
                assert await memory.delete([theirs["messages"][0]["id"]]) == 1
                assert await memory.size() == len(theirs["messages"])

    asyncio.run(go_on())
