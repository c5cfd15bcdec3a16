"""Sessions of the OpenAI Agents SDK: what its runner saves comes back, and nothing else goes."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from agents import Agent, ModelResponse, RunConfig, Runner, Usage, function_tool
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession, Session, SessionSettings
from agents.models.interface import Model
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from openai.types.responses.response_input_param import ResponseInputItemParam

from agentstore import AsyncStore, Store
from agentstore.errors import AlreadyExists, InvalidInput, NotFound, TransactionMisuse
from agentstore.integrations.openai import AgentStoreAdvancedSession, AgentStoreSession

AWKWARD = [
    {"content": "keys in another order \x00 \ud800", "role": "user"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "北京"}]},
    {"id": "rs_1", "summary": [], "type": "reasoning", "encrypted_content": "x"},
    {"arguments": '{"in": "Oslo"}', "call_id": "a", "name": "weather", "type": "function_call"},
    {"call_id": "a", "output": "snow", "type": "function_call_output"},
    {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}, "status": "completed"},
    {"id": "msg_1",
        "content": [{"annotations": [], "text": "Snow.", "type": "output_text", "logprobs": []}],
        "role": "assistant", "status": "completed", "type": "message"},
    {"role": "developer", "content": "be brief", "name": None},
    {"type": "item_reference", "id": "x", "big": 2**70, "none": None, "zero": -0.0},
]  # fmt: skip


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


@pytest.mark.long(but=["AsyncStore-sqlite"])
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


@pytest.mark.parametrize("kind", [AgentStoreSession, AgentStoreAdvancedSession])
def test_a_limit_of_turns_reads_whole_turns_unless_items_are_limited(run, kind):
    async def body(store):
        def session(**options):
            return kind(session_id="s", store=store, **options)

        turns = [
            [{"role": "developer", "content": "be brief"}],
            *([user(str(n)), AWKWARD[3], AWKWARD[4], AWKWARD[6]] for n in range(60)),
            [user("and"), user("so"), AWKWARD[2]],
        ]
        items = [item for turn in turns for item in turn]
        await session().add_items(items)
        for count, read in ((1, 2), (2, 3), (3, 7), (40, 155)):
            assert await session(turn_limit=count).get_items() == items[-read:]
        assert await session(turn_limit=99).get_items() == items
        assert await session(turn_limit=1).get_items(4) == items[-4:]
        assert await session(turn_limit=1).get_items(-1) == items
        assert await session(turn_limit=1, session_settings={"limit": 3}).get_items() == items[-3:]
        assert await kind(session_id="none", store=store, turn_limit=1).get_items() == []
        for wrong in (0, -1, 1.0, True, "2"):
            with pytest.raises(InvalidInput, match="turn_limit"):
                session(turn_limit=wrong)

    run(body)


def test_a_run_reads_the_last_turns_and_saves_all(run):
    async def body(store):
        session = AgentStoreSession("s", store, turn_limit=1)
        model = Scripted(*([says(f"answer {n}")] for n in range(3)))
        for n in range(3):
            await Runner.run(Agent("helper", model=model), f"turn {n}", session=session)
        read = [item["content"] for item in model.inputs[2] if item["role"] == "user"]
        assert read == ["turn 1", "turn 2"]
        assert len(await session.get_items(-1)) == 6

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
            "user", "function_call", "function_call", "function_call_output",
            "function_call_output", "message",
        ]  # fmt: skip

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


def test_items_that_replace_an_empty_branch_are_on_it_though_another_is_active(run):
    async def body(store):
        session = AgentStoreAdvancedSession(session_id="s", store=store)
        await session.add_items([user("a")])
        await session.create_branch_from_turn(1, "side")
        other = AgentStoreAdvancedSession(session_id="s", store=store)
        await other.switch_to_branch("main")
        assert await session.get_items() == []
        assert await session._atomic_replace_items([user("in short")])
        assert await session.get_items() == [user("in short")]
        assert await other.get_items() == [user("a")]

    run(body)


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


@pytest.mark.parametrize("kind", [AgentStoreSession, AgentStoreAdvancedSession])
def test_a_wrong_limit_or_store_says_what_is_wanted(kind, run):
    async def body(store):
        await kind(session_id="s", store=store).add_items([user("a")])
        with pytest.raises(InvalidInput, match="limit must be"):
            await kind(session_id="s", store=store).get_items("5")
        with pytest.raises(InvalidInput, match="Pass a Store"):
            await kind(session_id="s", store="s").get_items()

    run(body)


def test_what_cannot_be_stored_is_refused_whole_and_not_shown(run):
    async def body(store):
        session = AgentStoreSession("s", store)
        for wrong in ({"type": "x", "n": float("nan")}, {"a": {"secret"}}, ["secret"]):
            with pytest.raises(InvalidInput) as refused:
                await session.add_items([user("a"), wrong])
            assert "secret" not in str(refused.value)
        assert await session.get_items() == []

    run(body)


ANY_OBJECT = [
    {},
    {"id": "msg_1"},
    {"id": "msg_1", "type": None},
    {"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": "gAAAAA"},
    {"type": "of tomorrow", "role": "critic", "content": "what a critic says"},
    {"role": "tool", "content": {"a": 1}, "tool_call_id": 7},
    {"role": "function", "name": None, "content": 1.5},
    {"role": "function", "name": 3, "content": "x"},
    {"role": None, "content": "no role"},
    {"role": ["a"], "type": ["b"], "name": {}},
    {"role": "assistant", "content": 5},
    {"content": True, "role": "user"},
    {"role": "assistant", "content": None, "tool_calls": "none"},
    {"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "n" * 300}}]},
    {"type": "function_call", "call_id": ["x"], "name": "", "arguments": {}},
    {"type": "message", "role": "assistant", "stop_reason": None, "usage": {"output_tokens": 2}},
    {"role": "user", "name": 1, "payload": {"role": "system"}, "metadata": [], "marks": 2},
]


def test_any_json_object_is_an_item_and_comes_back_equal(run):
    async def body(store):
        session = AgentStoreSession("s", store)
        placed = AgentStoreAdvancedSession(session_id="placed", store=store)
        for one in (session, placed):
            await one.add_items(ANY_OBJECT)
            found = await one.get_items()
            assert [json.dumps(item) for item in found] == [json.dumps(i) for i in ANY_OBJECT]
            snapshot = await one._get_compaction_snapshot(2)
            assert await snapshot.replace_suffix(0, ANY_OBJECT[:3])
            assert await one.get_items() == [*ANY_OBJECT[:-2], *ANY_OBJECT[:3]]
            assert await one._atomic_replace_items(ANY_OBJECT)
            assert [await one.pop_item() for _ in ANY_OBJECT] == ANY_OBJECT[::-1]
            await one.add_items(ANY_OBJECT)
        assert len(await placed.get_conversation_turns()) == 2
        assert await placed.find_turns_by_content("critic") == []
        assert await placed.get_conversation_by_turns()
        assert await placed.get_tool_usage()

    run(body)


def every_type_of_item():
    """Give an item of each type that the SDK knows, with all its keys, and one without values."""
    for kind in get_args(ResponseInputItemParam):
        words = {
            key: get_args(hint)[0] if get_origin(hint) is Literal else [{"a": None}, "b"]
            for key, hint in get_type_hints(kind).items()
        }
        yield words
        yield dict.fromkeys(words)
        yield {key: words[key] for key in sorted(kind.__required_keys__)}


def test_an_item_of_every_type_of_the_sdk_comes_back_equal(engine_url):
    with Store(engine_url) as store:
        session = AgentStoreSession("s", store)
        items = [*every_type_of_item()]
        assert len({str(item.get("type")) for item in items}) > 20
        asyncio.run(session.add_items(items))
        found = asyncio.run(session.get_items())
        assert [json.dumps(item) for item in found] == [json.dumps(item) for item in items]
        assert store.messages.chat("s", None)  # for a model, calls are answered
        assert store.sessions.verify("s").agree


def test_what_an_unknown_object_says_is_read_only_where_it_is_understood(engine_url):
    with Store(engine_url) as store:
        asyncio.run(AgentStoreSession("s", store).add_items(ANY_OBJECT))
        roles = [message.role for message in store.messages.history("s", None, unanswered="keep")]
        assert roles[3:9] == ["assistant", "assistant", "tool", "tool", "tool", "assistant"]
        assert [hit.message.role for hit in store.messages.search("critic").items] == ["assistant"]
        assert not store.messages.search("gAAAAA").items
        assert store.messages.chat("s", 5)  # a history for a model can be made of it
        with pytest.raises(InvalidInput, match="must have a role"):
            store.messages.save_chat("s", [{"id": "msg_1"}])
        with pytest.raises(InvalidInput, match="unknown must be one of refuse, keep"):
            store.messages.save_chat("s", [{"id": "msg_1"}], unknown="perhaps")


@pytest.mark.parametrize("kind", [AgentStoreSession, AgentStoreAdvancedSession])
def test_the_sdk_encrypts_its_items(kind, run):
    async def body(store):
        inner = kind(session_id="s", store=store)
        compacting = OpenAIResponsesCompactionSession("s", inner)
        for base in (inner, compacting):
            session = EncryptedSession("s", base, encryption_key="a key", ttl=600)
            await session.add_items(AWKWARD[1:7])
            assert await session.get_items() == AWKWARD[1:7]
            assert await session.get_items(2) == AWKWARD[5:7]
            stored = await inner.get_items()
            assert {item["__enc__"] for item in stored} == {1}
            assert await session.pop_item() == AWKWARD[6]
            snapshot = await session._get_compaction_snapshot(2)
            assert await snapshot.replace_suffix(1, [user("in short")])
            assert await session.get_items(2) == [AWKWARD[4], user("in short")]
            await session.clear_session()
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


@pytest.mark.long(but=["sqlite"])
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
        "Snow in Oslo.", "user", "function_call", "function_call_output", "assistant",
        "2 calls of the tool, in Weather in Oslo",
    ]  # fmt: skip


def turns(*texts):
    return [m for text in texts for m in (user(text), {"role": "assistant", "content": text * 2})]


def used(**numbers):
    usage = Usage(requests=1, **numbers)
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage))


def test_branches_are_those_of_each_object_and_their_names_are_never_used_again(run):
    async def body(store):
        session = AgentStoreAdvancedSession(session_id="s", store=store, title="Trip")
        assert await session.list_branches() == []
        await session.add_items(turns("a", "b"))
        assert await session.create_branch_from_turn(2, "side") == "side"
        await session.add_items(turns("c"))
        other = AgentStoreAdvancedSession(session_id="s", store=store)
        await other.add_items([user("on main")])
        assert (await session.get_items())[-2:] == turns("c")
        assert (await other.get_items())[-1] == user("on main")
        assert await other.get_items(branch_id="side") == await session.get_items()
        listed = await session.list_branches()
        assert [(b["branch_id"], b["message_count"], b["is_current"]) for b in listed] == [
            ("main", 5, False),
            ("side", 4, True),
        ]
        assert await other.pop_item() == user("on main")
        for wrong in (0, 9, -1, True):
            with pytest.raises(ValueError, match="does not contain a user message"):
                await session.create_branch_from_turn(wrong)
        for taken in ("side", "main"):
            with pytest.raises(ValueError, match="already been used"):
                await session.create_branch_from_turn(1, taken)
        with pytest.raises(ValueError, match="Use force=True"):
            await session.delete_branch("side")
        await session.delete_branch("side", force=True)
        assert session._current_branch_id == "main"
        with pytest.raises(ValueError, match="already been used"):
            await session.create_branch_from_turn(1, "side")
        with pytest.raises(ValueError, match="does not exist"):
            await session.switch_to_branch("side")
        assert await session.create_branch_from_content("B") != "side"

    run(body)


def test_an_empty_branch_is_listed_switched_to_and_deleted(run):
    async def body(store):
        session = AgentStoreAdvancedSession(session_id="s", store=store)
        await session.add_items(turns("a"))
        await session.create_branch_from_turn(1, "empty")
        assert await session.get_items() == []
        await session.switch_to_branch("main")
        await session.switch_to_branch("empty")
        assert [b["branch_id"] for b in await session.list_branches()] == ["main", "empty"]
        await session.delete_branch("empty", force=True)
        assert [b["branch_id"] for b in await session.list_branches()] == ["main"]

    run(body)


def test_an_object_whose_branch_was_cleared_is_on_main_and_one_deleted_is_told(run):
    async def body(store):
        first = AgentStoreAdvancedSession(session_id="s", store=store, title="Trip")
        await first.add_items(turns("a", "b"))
        await first.create_branch_from_turn(2, "side")
        second = AgentStoreAdvancedSession(session_id="s", store=store)
        await second.clear_session()
        assert await first.get_items() == []
        await first.add_items([user("new")])
        assert (await second.get_items(), first._current_branch_id) == ([user("new")], "main")
        with pytest.raises(ValueError, match="already been used"):
            await second.create_branch_from_turn(1, "side")
        await first.create_branch_from_turn(1, "other")
        await second.delete_branch("other")
        assert (await first.get_items(), await first.pop_item()) == ([], None)
        with pytest.raises(NotFound):
            await first.add_items([user("lost?")])
        assert await second.get_items() == [user("new")]

    run(body)


def test_clearing_the_session_of_a_user_who_was_deleted_clears_nothing(run, engine_url):
    async def body(store):
        with Store(engine_url) as other:
            other.users.create("Ada", id="ada")
        for kind in (AgentStoreSession, AgentStoreAdvancedSession):
            session = kind(store=store, session_id="s", user_id="ada")
            await session.add_items([user("hello")])
        with Store(engine_url) as other:
            other.users.delete("ada")
        for kind in (AgentStoreSession, AgentStoreAdvancedSession):
            session = kind(store=store, session_id="s", user_id="ada")
            await session.clear_session()
            assert await session.get_items() == []

    run(body)


def test_turns_tools_and_usage_are_told_by_branch(run):
    async def body(store):
        session = AgentStoreAdvancedSession(session_id="s", store=store)
        assert (await session.get_turn_usage(), await session.get_turn_usage(1)) == ([], {})
        assert await session.get_session_usage() is None
        await session.store_run_usage(used(input_tokens=1))
        await session.add_items(AWKWARD)
        await session.store_run_usage(used(input_tokens=4, output_tokens=2, total_tokens=6))
        await session.store_run_usage(used(input_tokens=5, output_tokens=2, total_tokens=7))
        assert await session.get_tool_usage() == [("weather", 1, 2), ("shell_call", 1, 2)]
        by_turn = await session.get_conversation_by_turns()
        assert [len(items) for items in by_turn.values()] == [1, 8]
        assert by_turn[2][2] == {"type": "function_call", "tool_name": "weather"}
        told = await session.get_conversation_turns()
        assert [(turn["turn"], turn["can_branch"]) for turn in told] == [(1, True), (2, True)]
        assert [t["turn"] for t in await session.find_turns_by_content("北京")] == [2]
        assert await session.find_turns_by_content("%") == []
        (turn,) = await session.get_turn_usage()
        assert (turn["user_turn_number"], turn["input_tokens"]) == (2, 5)
        assert turn["input_tokens_details"]["cached_tokens"] == 0
        await session.create_branch_from_turn(2, "side")
        await session.add_items(turns("x"))
        await session.store_run_usage(used(input_tokens=10, total_tokens=10))
        assert (await session.get_turn_usage(2))["input_tokens"] == 10
        assert (await session.get_turn_usage(2, branch_id="main"))["input_tokens"] == 5
        sums = await session.get_session_usage()
        assert (sums["requests"], sums["total_tokens"], sums["total_turns"]) == (2, 17, 2)
        await session.pop_item()
        assert len(await session.get_turn_usage()) == 1
        await session.pop_item()
        assert await session.get_turn_usage() == []
        await session.delete_branch("side", force=True)
        await session.clear_session()
        assert await session.get_session_usage() is None

    run(body)


def test_usage_is_kept_of_an_object_that_goes_on_after_another_one_cleared_the_session(run):
    async def body(store):
        first, second = (AgentStoreAdvancedSession(session_id="s", store=store) for _ in range(2))
        await first.clear_session()
        await second.clear_session()
        await first.store_run_usage(used(input_tokens=1))
        await first.add_items(turns("a"))
        await first.store_run_usage(used(input_tokens=4))
        assert (await second.get_session_usage())["input_tokens"] == 4

    run(body)


def test_calls_of_one_object_are_carried_out_in_the_order_in_which_they_were_made(run):
    async def body(store):
        session = AgentStoreAdvancedSession(session_id="s", store=store)
        await asyncio.gather(*(session.add_items([user(str(n))]) for n in range(20)))
        assert await session.get_items() == [user(str(n)) for n in range(20)]
        late = [session.add_items([user("last")]), session.pop_item(), session.pop_item()]
        assert await asyncio.gather(*late) == [None, user("last"), user("19")]
        snapshot = await session._get_compaction_snapshot(5)
        assert await snapshot.replace_suffix(0, [user("in short")])
        assert len(await session.get_items()) == 15

    run(body)
