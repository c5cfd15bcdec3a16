"""Sessions of the OpenAI Agents SDK: what its runner saves comes back, and nothing else goes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agents import Agent, ModelResponse, RunConfig, Runner, Usage, function_tool
from agents.memory import OpenAIResponsesCompactionSession, Session, SessionSettings
from agents.models.interface import Model
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from agentstore import AsyncStore, Store
from agentstore.errors import AlreadyExists, InvalidInput, NotFound, TransactionMisuse
from agentstore.integrations.openai import AgentStoreSession

AWKWARD = [
    {"content": "keys in another order \x00 \ud800", "role": "user"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "北京"}]},
    {"id": "rs_1", "summary": [], "type": "reasoning", "encrypted_content": "x"},
    {"arguments": '{"in": "Oslo"}', "call_id": "a", "name": "weather", "type": "function_call"},
    {"call_id": "a", "output": "snow", "type": "function_call_output"},
    {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}, "status": "completed"},
    {
        "id": "msg_1",
        "content": [{"annotations": [], "text": "Snow.", "type": "output_text", "logprobs": []}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    },
    {"role": "developer", "content": "be brief", "name": None},
    {"type": "item_reference", "id": "x", "big": 2**70, "none": None, "zero": -0.0},
]


def user(text):
    return {"role": "user", "content": text}


@asynccontextmanager
async def opened(url, kind):
    if kind is Store:
        with Store(url) as store:
            yield store
    else:
        async with AsyncStore(url) as store:
            yield store


@pytest.fixture(params=[AsyncStore, Store])
def run(request, engine_url):
    """Run a coroutine function with a store, of either kind, in an event loop of its own."""

    def run(body):
        async def with_store():
            async with opened(engine_url, request.param) as store:
                return await body(store)

        return asyncio.run(with_store())

    return run


class Scripted(Model):
    """A model that says what it was told to say."""

    def __init__(self, *outputs):
        self.outputs = list(outputs)
        self.inputs = []

    async def get_response(self, system_instructions, input, *_args, **_kwargs):
        self.inputs.append(input)
        return ModelResponse(output=self.outputs.pop(0), usage=Usage(), response_id=None)

    def stream_response(self, *_args, **_kwargs):
        raise NotImplementedError


def says(text):
    content = ResponseOutputText(annotations=[], text=text, type="output_text")
    return ResponseOutputMessage(
        id="m", content=[content], role="assistant", status="completed", type="message"
    )


def calls(city):
    arguments = f'{{"city": "{city}"}}'
    return ResponseFunctionToolCall(
        arguments=arguments, call_id=city, name="weather", type="function_call"
    )


def test_items_come_back_equal_to_the_order_of_their_keys(run):
    async def body(store):
        session = AgentStoreSession("s", store)
        assert isinstance(session, Session)
        assert (await session.get_items(), await session.pop_item()) == ([], None)
        await session.clear_session()
        await session.add_items([])
        assert repr(session) == "AgentStoreSession('s')"
        await session.add_items(AWKWARD)
        found = await session.get_items()
        assert [list(item.items()) for item in found] == [list(item.items()) for item in AWKWARD]
        assert [await session.get_items(n) for n in (0, 2, 50)] == [[], AWKWARD[-2:], AWKWARD]
        assert await session.get_items(-1) == AWKWARD
        assert [await session.pop_item() for _ in AWKWARD] == AWKWARD[::-1]
        assert await session.pop_item() is None
        await session.add_items(AWKWARD[:2])
        await session.clear_session()
        assert await session.get_items() == []

    run(body)


def test_the_limit_of_the_settings_counts_unless_a_call_names_one(run):
    async def body(store):
        session = AgentStoreSession("s", store, session_settings=SessionSettings(limit=2))
        await session.add_items([user(str(n)) for n in range(10_050)])
        assert await session.get_items() == [user("10048"), user("10049")]
        assert await session.get_items(1) == [user("10049")]
        assert len(await session.get_items(-1)) == 10_050
        assert await session._atomic_replace_items([user("told shorter")])
        assert await session.get_items(-1) == [user("told shorter")]

    run(body)


def test_a_session_has_owner_and_title_and_is_on_the_lists(run, engine_url):
    async def body(store):
        with Store(engine_url) as beside:
            alice = beside.users.create("Alice", id="alice").id
            beside.users.create("Bob", id="bob")
        session = AgentStoreSession(
            "s", store, user_id=alice, title="Weather", metadata={"channel": "web"}
        )
        await session.add_items([user("hello")])
        with Store(engine_url) as beside:
            (listed,) = beside.sessions.list(user_id=alice, documents=True)
            assert (listed.id, listed.title, listed.metadata) == (
                "s",
                "Weather",
                {"channel": "web"},
            )
        scoped = AgentStoreSession("s", store.scoped("bob"))
        assert await scoped.get_items() == []
        with pytest.raises(AlreadyExists):
            await scoped.add_items([user("mine")])
        with pytest.raises(NotFound):
            await AgentStoreSession("t", store, user_id="nobody").add_items([user("x")])
        own = AgentStoreSession("s", store.scoped("alice"))
        assert await own.get_items() == [user("hello")]

    run(body)


def test_a_run_with_tools_is_saved_and_gone_on_with_after_a_restart(run):
    @function_tool
    def weather(city: str) -> str:
        return f"snow in {city}"

    async def first(store):
        model = Scripted([calls("Oslo"), calls("Rome")], [says("Snow.")])
        agent = Agent(name="a", model=model, tools=[weather])
        session = AgentStoreSession("s", store)
        result = await Runner.run(agent, "How is the weather?", session=session)
        assert result.final_output == "Snow."
        kinds = [item.get("type", item.get("role")) for item in await session.get_items()]
        assert kinds == [
            "user",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "message",
        ]

    async def second(store):
        model = Scripted([says("Yes.")])
        session = AgentStoreSession("s", store)
        before = await session.get_items()
        settings = RunConfig(session_settings=SessionSettings(limit=100))
        agent = Agent(name="a", model=model)
        await Runner.run(agent, "Really?", session=session, run_config=settings)
        assert model.inputs[0][:6] == before
        assert len(await session.get_items()) == 8

    run(first)
    run(second)


def test_a_write_that_was_begun_ends_before_its_caller_is_cancelled(run):
    async def body(store):
        session = AgentStoreSession("s", store)
        await session.add_items([user("first")])
        told = []
        for n in range(12):
            task = asyncio.ensure_future(session.add_items([user(str(n))]))
            await asyncio.sleep(0.0005 * (n % 4))
            task.cancel()
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                told.append(n)
        assert told
        assert len(await session.get_items()) == 13

    run(body)


def test_compaction_replaces_what_it_read_or_nothing(run):
    async def body(store):
        session, other = AgentStoreSession("s", store), AgentStoreSession("s", store)
        empty = await session._get_compaction_snapshot(5)
        assert (empty.items, empty.complete) == ([], True)
        assert not await empty.replace_suffix(0, [user("x")])
        await session.add_items([user(str(n)) for n in range(6)])
        late = await session._get_compaction_snapshot(3)
        assert ([item["content"] for item in late.items], late.complete) == (
            ["3", "4", "5"],
            False,
        )
        await other.add_items([user("6")])
        assert not await late.replace_suffix(0, [user("lost")])
        read = await session._get_compaction_snapshot(
            4, prune_prefix=lambda item: item["content"] < "2"
        )
        assert await read.replace_suffix(1, [user("in short")])
        found = [item["content"] for item in await session.get_items()]
        assert found == ["2", "3", "in short"]
        whole = await session._get_compaction_snapshot(3)
        assert whole.complete

    run(body)


def test_the_sdk_compacts_it_without_deleting_what_others_show(engine_url):
    async def body():
        async with AsyncStore(engine_url) as store:
            session = AgentStoreSession("s", store)
            await session.add_items([user("a"), {"role": "assistant", "content": "b"}])
            await store.branches.create("s", name="side")
            compacted = OpenAIResponsesCompactionSession("s", session)
            assert await compacted.get_items() == await session.get_items()
            assert await session._atomic_replace_items([user("in short")])
            assert await session.get_items() == [user("in short")]
            assert len(await store.messages.chat("s", branch="main")) == 2

    asyncio.run(body())


def test_a_session_object_outlives_its_loop_and_a_closed_store_says_so(engine_url):
    with Store(engine_url) as store:
        session = AgentStoreSession("s", store)
        for n in range(3):
            asyncio.run(session.add_items([user(str(n))]))
        assert len(asyncio.run(session.get_items())) == 3

    async def closed():
        async with AsyncStore(engine_url) as store:
            session = AgentStoreSession("s", store)
        with pytest.raises(TransactionMisuse):
            await session.get_items()
        with pytest.raises(TransactionMisuse):
            await session.add_items([user("x")])

    asyncio.run(closed())


def test_what_cannot_be_stored_is_refused_whole_and_not_shown(run):
    async def body(store):
        session = AgentStoreSession("s", store)
        for wrong in ({"type": "x", "n": float("nan")}, {"a": "secret"}):
            with pytest.raises(InvalidInput) as refused:
                await session.add_items([user("a"), wrong])
            assert "secret" not in str(refused.value)
        assert await session.get_items() == []

    run(body)


def test_many_sessions_of_one_conversation_write_at_once(run):
    async def body(store):
        sessions = [AgentStoreSession("s", store) for _ in range(8)]
        pairs = [[user(f"{n}"), {"role": "assistant", "content": f"{n}"}] for n in range(24)]
        await asyncio.gather(*(sessions[n % 8].add_items(pair) for n, pair in enumerate(pairs)))
        found = await sessions[0].get_items()
        assert sorted(int(item["content"]) for item in found[::2]) == list(range(24))
        assert [item["content"] for item in found[::2]] == [i["content"] for i in found[1::2]]
        popped = await asyncio.gather(*(each.pop_item() for each in sessions))
        last = found[-len(sessions) :]
        assert sorted(map(str, popped)) == sorted(map(str, last))
        assert await sessions[0].get_items() == found[: -len(sessions)]

    run(body)


def test_the_example_goes_on_where_its_last_run_ended(engine_url):
    example = Path(__file__).parents[2] / "examples" / "openai_agents.py"
    command = [sys.executable, example, "--url", engine_url]
    quiet = {**os.environ, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    told = [
        subprocess.run(
            command, env=quiet, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert [lines[0] for lines in told] == ["0 items from before", "4 items from before"]
    assert told[1][1:] == [
        "Snow in Oslo.",
        "user",
        "function_call",
        "function_call_output",
        "assistant",
        "2 calls of the tool, in Weather in Oslo",
    ]
