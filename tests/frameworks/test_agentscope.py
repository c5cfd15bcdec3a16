"""AgentScope's memory: it lasts, and keeps users, marks and the summary apart."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg

from agentstore import AsyncStore
from agentstore.errors import AgentStoreError, AlreadyExists, InvalidInput
from agentstore.integrations.agentscope import AgentStoreMemory

TRAPS = "NUL \x00, a lone surrogate \ud800, 😀"


def written(messages):
    return [{**message.to_dict(), "invocation_id": message.invocation_id} for message in messages]


def some(count):
    return [Msg("user", str(n), "user") for n in range(count)]


MESSAGES = [
    Msg("Ada", TRAPS, "user", metadata={"big": 2**70, "none": None}, invocation_id="i1"),
    Msg("bot",
        [{"type": "text", "text": "let me look"},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"b": 1, "a": "北京"}}],
        "assistant", timestamp="2026-03-29 02:30:00.000"),
    Msg("system", [{"type": "tool_result", "id": "c1", "name": "look", "output": "sunny"}],
        "system"),
    Msg("bot", "It is sunny.", "assistant"),
]  # fmt: skip


def test_messages_marks_and_the_summary_outlive_the_process(opening_async):
    async def run():
        async with opening_async() as store:
            memory = AgentStoreMemory(store, user_id="ada", session_id="s")
            assert (await memory.get_memory(), await memory.size()) == ([], 0)
            assert await memory.delete(["x"]) == await memory.delete_by_mark("x") == 0
            assert await memory.update_messages_mark("x") == 0
            await memory.clear()
            await memory.add(None)
            await memory.add([])
            await memory.add(MESSAGES[:3], marks=["hint", "hint"])
            await memory.add(MESSAGES[3])
            await memory.update_compressed_summary("in short")
            assert (await store.sessions.get("ada/s")).user_id == "ada"
            assert len((await store.messages.find_by_tool("ada/s", "look")).items) == 1
        with pytest.raises(AgentStoreError):
            await memory.get_memory()
        async with opening_async() as store:
            memory = AgentStoreMemory(store, user_id="ada", session_id="s")
            summary, *told = await memory.get_memory()
            assert (summary.role, summary.content) == ("user", "in short")
            assert written(told) == written(MESSAGES)
            assert memory.state_dict() == {"_compressed_summary": "in short"}
            marked = await memory.get_memory(mark="hint", prepend_summary=False)
            assert written(marked) == written(MESSAGES[:3])
            await memory.clear()
            assert [m.content for m in await memory.get_memory()] == ["in short"]
            await memory.update_compressed_summary("")
            assert await memory.get_memory() == []

    asyncio.run(run())


def test_counts_are_those_of_agentscope_s_own_memory(opening_async):
    async def script(memory):
        messages = some(8)
        ids = [message.id for message in messages]
        await memory.add(messages[:6], marks="a")
        await memory.add(messages[4:], marks=["b", "c"])
        told = [
            await memory.update_messages_mark("x", msg_ids=[*ids[:2], "none"]),
            await memory.update_messages_mark("y", "x"),
            await memory.update_messages_mark(None, "a", ids[1:3]),
            await memory.update_messages_mark("z", "none"),
            await memory.delete([ids[0], "none"]),
            await memory.delete_by_mark(["b", "c"]),
            await memory.size(),
        ]
        for marks in ({"mark": "a"}, {"exclude_mark": "y"}, {}):
            told.append([m.content for m in await memory.get_memory(**marks)])
        return told

    async def run():
        async with opening_async() as store:
            assert await script(AgentStoreMemory(store)) == await script(InMemoryMemory())

    asyncio.run(run())


def test_one_session_id_is_of_each_user_and_marks_and_deletions_stay_there(opening_async):
    async def run():
        async with opening_async() as store:
            messages = some(3)
            names = [("alice", "s"), ("bob", "s"), (None, "s"), (None, "alice/s"), ("a/l", "ice")]
            memories = [
                AgentStoreMemory(store, user_id=user, session_id=session) for user, session in names
            ]
            for memory in memories:
                await memory.add(messages, marks="m")
            assert await memories[0].delete_by_mark("m") == 3
            assert await memories[1].delete([messages[0].id]) == 1
            assert [await memory.size() for memory in memories] == [0, 2, 3, 3, 3]
            alone = AgentStoreMemory(store.scoped("alice"), session_id="own")
            await alone.add(messages)
            assert await alone.size() == 3
            assert await AgentStoreMemory(store.scoped("bob"), session_id="own").size() == 0

    asyncio.run(run())


def test_a_loaded_summary_counts_until_another_one_is_stored(opening_async):
    async def run():
        async with opening_async() as store:
            memory, other = AgentStoreMemory(store), AgentStoreMemory(store)
            await memory.add(some(1))
            await other.update_compressed_summary("of another process")
            assert (await memory.get_memory())[0].content == "of another process"
            memory.load_state_dict({"_compressed_summary": "loaded"})
            assert (await memory.get_memory())[0].content == "loaded"
            assert (await other.get_memory())[0].content == "of another process"
            await memory.update_compressed_summary("stored")
            assert (await other.get_memory())[0].content == "stored"
            with pytest.raises(KeyError):
                memory.load_state_dict({})

    asyncio.run(run())


def test_an_expired_memory_is_empty_and_starts_over(engine_url):
    def an_hour_ago():
        return datetime.now(UTC) - timedelta(hours=1)

    async def run():
        async with AsyncStore(engine_url, clock=an_hour_ago) as store:
            old = AgentStoreMemory(store)
            await old.add(some(3), marks="m")
            await old.update_compressed_summary("old")
        async with AsyncStore(engine_url) as store:
            assert await AgentStoreMemory(store, key_ttl=5_000).size() == 3
            memory = AgentStoreMemory(store, key_ttl=1_000)
            assert await memory.size() == 0
            assert await memory.get_memory() == []
            assert await memory.delete_by_mark("m") == 0
            assert await memory.update_messages_mark("x") == 0
            await memory.add(some(2))
            assert [m.content for m in await memory.get_memory()] == ["0", "1"]
            assert (await store.sessions.get("default")).ttl == timedelta(seconds=1_000)

    asyncio.run(run())


def test_what_is_added_twice_is_skipped_or_refused_and_what_is_no_message_too(opening_async):
    async def run():
        async with opening_async() as store:
            memory = AgentStoreMemory(store)
            messages = some(3)
            await memory.add(messages[:2])
            await memory.add(messages)
            assert await memory.size() == 3
            with pytest.raises(AlreadyExists):
                await memory.add(messages, skip_duplicated=False)
            with pytest.raises(TypeError):
                await memory.add(["text"])
            with pytest.raises(InvalidInput):
                await memory.add([*some(1), Msg("u", "x", "user", metadata={"x": object()})])
            assert await memory.size() == 3
            assert not hasattr(memory, "__len__")
            saved = await store.messages.save("default", "developer", "from elsewhere")
            *_, last = await memory.get_memory()
            assert (last.role, last.content) == ("system", "from elsewhere")
            assert await memory.delete([last.id]) == 1
            assert saved.id == last.id
        with pytest.raises(InvalidInput, match="Pass an AsyncStore"):
            AgentStoreMemory(None)

    asyncio.run(run())


def test_tools_that_run_at_once_and_calls_that_are_cancelled_lose_nothing(engine_url):
    async def run():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as two:
            memories = [AgentStoreMemory(s, user_id="u") for s in (one, two)]
            messages = some(40)
            await asyncio.gather(*(memories[n % 2].add(m) for n, m in enumerate(messages)))
            assert {m.id for m in await memories[0].get_memory()} == {m.id for m in messages}
            for n in range(10):
                adding = asyncio.create_task(memories[0].add(some(2)))
                for _ in range(n):
                    await asyncio.sleep(0)
                adding.cancel()
                await asyncio.wait([adding])
            assert await memories[1].size() % 2 == 0

    asyncio.run(run())
