"""Sessions of the OpenAI Agents SDK that were imported go on where they were."""

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession, EncryptedSession

from agentstore import Store
from agentstore.errors import AlreadyExists
from agentstore.integrations.openai import AgentStoreAdvancedSession, AgentStoreSession
from agentstore.moving.frameworks import ImportReport
from tests.imports.make_fixtures import AWKWARD
from tests.imports.test_import_adk import ZONES, on_server

PLAIN = ("plain", "popped until it was empty", "no row in agent_sessions")
BRANCHES = {
    "branches": ("main", "instead", "deeper", "from nothing"),
    "cleared": ("main", "with the prompt"),
}
ASIDE = (
    ("agent_messages", "id=36", "not JSON: Unterminated string starting at (character 29)"),
    ("agent_messages", "id=38", "not a JSON object"),
    ("agent_messages", "id=39", "the item.content[0]: nan is not a JSON number"),
    ("agent_messages", "id=41", "no branch has it"),
    ("message_structure", "id=49", "its message is not there"),
    ("message_structure", "id=50", "its session is not there"),
    ("turn_usage", "id=6", "its branch is not there, or has no name that can be kept"),
)
"""All that is broken in the fixture."""

NOT_STORED = ([["no object"]], [{"role": "user", "content": [float("nan")]}])
"""What the SDK reads of it."""


def sound(items: list[Any]) -> list[Any]:
    return [item for item in items if repr([item]) not in map(repr, NOT_STORED)]


async def everything(session: Any, branches: tuple[str, ...]) -> dict[str, Any]:
    """Give all that a session with branches says of itself."""
    said: dict[str, Any] = {"usage": await session.get_session_usage()}
    listed = await session.list_branches()
    said["branches"] = {each.pop("branch_id"): each for each in listed}
    for name in branches:
        turns = await session.get_conversation_turns(name)
        said[name] = {
            "items": [json.dumps(item) for item in await session.get_items(branch_id=name)],
            "last": await session.get_items(3, branch_id=name),
            "turns": turns,
            "by turns": await session.get_conversation_by_turns(name),
            "tools": await session.get_tool_usage(name),
            "usage": await session.get_turn_usage(branch_id=name),
            "found": await session.find_turns_by_content("OTHER", name),
        }
    return said


def test_a_session_without_branches_goes_on(source, take, engine_url):
    old = source("openai")
    report: ImportReport = take("openai-sqlite", old)
    assert sorted(report.invalid) == sorted(ASIDE)

    async def compare() -> None:
        with Store(engine_url) as store:
            for id in PLAIN:
                theirs, ours = SQLiteSession(id, old), AgentStoreSession(id, store)
                there = sound(await theirs.get_items())
                assert json.dumps(await ours.get_items()) == json.dumps(there)
                for session in (theirs, ours):
                    await session.add_items([{"role": "user", "content": AWKWARD}])
                    assert (await session.get_items(1)) == [{"role": "user", "content": AWKWARD}]
                    assert (await session.pop_item()) == {"role": "user", "content": AWKWARD}
                assert json.dumps(await ours.get_items()) == json.dumps(there)
                theirs.close()
            assert store.sessions.get("plain").metadata == {}
            assert store.sessions.verify("plain").agree

    asyncio.run(compare())


@pytest.mark.parametrize("id", BRANCHES)
def test_a_session_with_branches_goes_on(id, source, take, engine_url):
    old = source("openai")
    take("openai-sqlite", old)
    with closing(sqlite3.connect(old)) as repaired, repaired:
        repaired.execute("DELETE FROM message_structure WHERE message_id = 4711")
        repaired.execute("DELETE FROM turn_usage WHERE branch_id = 'gone'")

    async def compare() -> None:
        with Store(engine_url) as store:
            theirs = AdvancedSQLiteSession(session_id=id, db_path=old)
            ours = AgentStoreAdvancedSession(session_id=id, store=store)
            expected = await everything(theirs, BRANCHES[id])
            assert await everything(ours, BRANCHES[id]) == expected
            stored = store.usage.totals().rows["messages"]
            for session in (theirs, ours):
                with pytest.raises(ValueError, match="already been used"):
                    await session.create_branch_from_turn(1, BRANCHES[id][-1])
                await session.switch_to_branch(BRANCHES[id][-1])
                await session.add_items([{"role": "user", "content": "on we go"}])
                await session.create_branch_from_turn(1, "new")
                await session.add_items([{"role": "user", "content": "and on"}])
            names = (*BRANCHES[id], "new")
            after, since = await everything(ours, names), await everything(theirs, names)
            for each in names:  # when things were said since is not compared
                assert after[each]["items"] == since[each]["items"]
            assert store.usage.totals().rows["messages"] == stored + 2
            assert store.sessions.verify(id).agree
            theirs.close()

    asyncio.run(compare())


def test_names_that_were_used_stay_reserved(source, take, engine_url):
    take("openai-sqlite", source("openai"))
    with Store(engine_url) as store:
        for name in ("deeper", "deleted", "from nothing", "instead"):
            with pytest.raises(AlreadyExists):
                store.branches.create("branches", name=name)
        assert "deleted" not in {branch.name for branch in store.branches.list("branches")}
        assert store.branches.get("cleared", "with the prompt").reserved
        assert store.branches.active("branches").name == "main"


def test_branches_share_what_they_have_in_common(source, take, engine_url):
    take("openai-sqlite", source("openai"))
    with Store(engine_url) as store:
        shown = sum(branch.messages for branch in store.branches.list("branches"))
        assert store.sessions.get("branches").message_count < shown - 9


def test_what_is_there_is_left_as_it_is_and_told(source, take, engine_url):
    old = source("openai")
    with Store(engine_url) as store:
        store.sessions.create(id="plain", title="another one")
        store.messages.save("plain", "user", "something else")
    report: ImportReport = take("openai-sqlite", old)
    name = ("agent_sessions", "plain")
    assert [found[2] for found in report.invalid if found[:2] == name] == [
        "the target has another one of this name, or has changed it; it was left as it is"
    ]
    assert report.written == 4
    again: ImportReport = take("openai-sqlite", old)
    assert (again.written, again.there, again.tables) == (0, 4, report.tables)
    with Store(engine_url) as store:
        assert store.sessions.get("plain").title == "another one"
        assert [m.content for m in store.messages.history("plain")] == ["something else"]


def test_what_was_said_since_an_import_is_no_difference(source, take, engine_url):
    old = source("openai")
    first: ImportReport = take("openai-sqlite", old)
    with Store(engine_url) as store:
        store.messages.save("plain", "user", "since")
    again: ImportReport = take("openai-sqlite", old)
    assert (again.written, again.there, again.set_aside) == (0, 5, first.set_aside)
    shutil.rmtree(old.parent / "aside")


def test_times_are_those_of_the_source_and_texts_are_found(source, take, engine_url):
    take("openai-sqlite", source("openai"))
    with Store(engine_url) as store:
        for message in store.messages.history("branches", None):
            assert message.created_at.microsecond == 0
        assert store.sessions.get("plain").created_at.microsecond == 0
        found = store.messages.search("question").items
        assert {hit.message.session_id for hit in found} == {"branches"}


def test_branches_whose_names_cannot_be_stored_are_set_aside_alone(source, take, engine_url):
    old = source("openai")
    with closing(sqlite3.connect(old)) as odd, odd:
        for name in ("", b"\xff", "n" * 300):
            odd.execute(
                "INSERT INTO message_structure (session_id, message_id, branch_id, message_type, "
                "sequence_number, user_turn_number) SELECT session_id, message_id, ?, "
                "message_type, sequence_number, user_turn_number FROM message_structure "
                "WHERE session_id = 'branches' AND branch_id = 'main' LIMIT 1",
                (name,),
            )
    report: ImportReport = take("openai-sqlite", old)
    more = [row for row in report.invalid if row not in ASIDE]
    assert {row[0] for row in more} == {"message_structure"}
    assert {row[2] for row in more} == {"its branch is not there, or has no name that can be kept"}
    assert (len(more), report.written) == (3, 5)
    with Store(engine_url) as store:
        names = {branch.name for branch in store.branches.list("branches")}
        assert names == set(BRANCHES["branches"])


@pytest.mark.parametrize("zone", ZONES)
def test_times_that_a_server_set_are_those_of_its_zone(empty_server, take, engine_url, zone):
    """SQLAlchemySession leaves them to the server, in columns without a zone."""
    time = "created_at timestamp DEFAULT CURRENT_TIMESTAMP"
    url = on_server(
        empty_server,
        zone,
        f"CREATE TABLE agent_sessions (session_id text PRIMARY KEY, {time})",
        f"CREATE TABLE agent_messages (id serial, session_id text, message_data text, {time})",
        "INSERT INTO agent_sessions VALUES ('s')",
        "INSERT INTO agent_messages (session_id, message_data) "
        'VALUES (\'s\', \'{"role": "user", "content": "hi"}\')',
    )
    before = datetime.now(UTC)
    take("openai-sqlite", url)
    with Store(engine_url) as store:
        (session,) = store.sessions.iter()
        (message,) = store.messages.history(session.id)
        for at in (session.created_at, message.created_at):
            assert before - timedelta(minutes=15) < at <= before


def test_an_encrypted_file_moves_whole(tmp_path, take, engine_url):
    path, said = tmp_path / "encrypted.db", [{"role": "user", "content": "hello"}, {"id": "msg_1"}]

    async def write() -> None:
        with_branches = AdvancedSQLiteSession(
            session_id="branches", db_path=path, create_tables=True
        )
        for name, old in (("branches", with_branches), ("plain", SQLiteSession("plain", path))):
            await EncryptedSession(name, old, encryption_key="a key").add_items(said)
            await old.add_items([{}, {"role": "user", "content": 5}, {"role": "critic"}])
            old.close()

    asyncio.run(write())
    report: ImportReport = take("openai-sqlite", path)
    assert not report.invalid
    with Store(engine_url) as store:

        async def read(name: str, kind: Any) -> None:
            new = kind(session_id=name, store=store)
            assert await EncryptedSession(name, new, encryption_key="a key").get_items() == said
            assert len(await new.get_items()) == 5

        asyncio.run(read("plain", AgentStoreSession))
        asyncio.run(read("branches", AgentStoreAdvancedSession))
