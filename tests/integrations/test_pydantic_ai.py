"""Pydantic AI's message history: a run's new messages go in together and come back equal."""

import asyncio
import runpy
import traceback
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import PydanticAIDeprecationWarning, UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel

from agentstore import AsyncStore, Store
from agentstore.errors import AgentStoreError, InvalidInput
from agentstore.integrations.pydantic_ai import AgentStoreMessages

TestModel.__test__ = False
EXAMPLE = Path(__file__).parents[2] / "examples" / "pydantic_ai_history.py"
TRAPS = "NUL \x00, a lone surrogate \ud800, 😀"


def weather_agent():
    agent = Agent(TestModel(), instructions="Be brief.")

    @agent.tool_plain
    def look(city: str) -> str:
        return f"sunny in {city}"

    return agent


def history_of(store, **options):
    return AgentStoreMessages("chat-1", store, **options)


def call(name, n):
    return ModelResponse(parts=[ToolCallPart(name, {"n": n}, f"c{n}")])


def result(name, n, *more):
    return ModelRequest(parts=[ToolReturnPart(name, {"n": [n]}, f"c{n}"), *more])


def test_an_agent_goes_on_after_a_restart_with_what_was_said_before(engine_url):
    async def run():
        agent = weather_agent()
        async with AsyncStore(engine_url) as store:
            history = history_of(store)
            assert await history.aload() == []
            await history.aappend([])
            first = await agent.run("How is it?", message_history=await history.aload())
            await history.aappend(first.new_messages())
        with pytest.raises(AgentStoreError):
            await history.aload()
        async with AsyncStore(engine_url) as store:
            history = history_of(store)
            loaded = await history.aload()
            assert loaded == first.all_messages()
            second = await agent.run("And now?", message_history=loaded)
            await history.aappend(second.new_messages())
            assert await history.aload() == second.all_messages()
            assert len(second.all_messages()) == 6

    asyncio.run(run())


def test_every_part_comes_back_and_text_and_calls_are_found(engine_url):
    messages = [
        ModelRequest(parts=[SystemPromptPart("Be brief.")]),
        ModelRequest(parts=[UserPromptPart([TRAPS, BinaryContent(b"\x00\xff", media_type="a/b")])]),
        ModelResponse(parts=[ThinkingPart("hm"), ToolCallPart("look", {"big": 2**70}, "c1")]),
        result("look", 1, UserPromptPart("quickly")),
        ModelResponse(parts=[TextPart("sunny"), TextPart("and warm")]),
    ]
    with Store(engine_url) as store:
        history = history_of(store)
        history.append(messages, idempotency_key="run-1")
        history.append(messages, idempotency_key="run-1")

        def written(told):
            return ModelMessagesTypeAdapter.dump_python(told, mode="json")

        assert written(history.load()) == written(messages)
        assert len(store.messages.find_by_tool("chat-1", "look").items) == 1
        assert [hit.message.seq for hit in store.messages.search("quickly warm OR sunny").items]
        roles = [m.role for m in store.messages.history("chat-1", None, unanswered="keep")]
        assert roles == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("given", [list, tuple, iter, lambda messages: (m for m in messages)])
def test_messages_are_saved_in_whatever_they_come(given, engine_url):
    with Store(engine_url) as store:
        messages = [ModelRequest(parts=[UserPromptPart("?")]), call("look", 1), result("look", 1)]
        history_of(store).append(given(messages))
        assert history_of(store).load() == messages


def test_a_cut_keeps_a_call_with_its_result(engine_url):
    with Store(engine_url) as store:
        messages = [ModelRequest(parts=[UserPromptPart("?")]), call("look", 1), result("look", 1)]
        messages.append(ModelResponse(parts=[TextPart("!")]))
        history_of(store).append(messages)
        assert history_of(store, limit=1).load() == messages[-1:]
        assert call("look", 1).parts == history_of(store, limit=2).load()[-3].parts


def test_a_retry_of_a_call_is_its_result(engine_url):
    with Store(engine_url) as store:
        prompt = ModelRequest(parts=[UserPromptPart("?")])
        with pytest.warns(PydanticAIDeprecationWarning):
            retry = RetryPromptPart("wrong", tool_name="look", tool_call_id="c1")
        done = ModelResponse(parts=[TextPart("!")])
        history_of(store).append([prompt, call("look", 1), ModelRequest(parts=[retry]), done])
        shown = history_of(store, limit=2).load()
        assert call("look", 1).parts == shown[-3].parts
        assert [message.turn for message in store.messages.history("chat-1", None)] == [1, 1, 1, 1]


def test_a_lost_result_is_kept_open_or_has_a_placeholder(engine_url):
    with Store(engine_url) as store:
        first = ModelRequest(parts=[UserPromptPart("?")])
        two = ModelResponse(parts=[*call("look", 1).parts, *call("look", 2).parts])
        history_of(store).append([first, two, result("look", 1)])
        assert history_of(store).load()[1:] == [two, history_of(store).load()[2]]
        *_, placeholder, answered = history_of(store, unanswered="placeholder").load()
        assert [part.tool_call_id for part in placeholder.parts] == ["c2"]
        assert [part.tool_call_id for part in answered.parts] == ["c1"]
        history_of(store).append([call("look", 3)])
        agent = Agent(TestModel(call_tools=[]))
        with pytest.raises(UserError):
            asyncio.run(agent.run("again?", message_history=history_of(store).load()))
        repaired = history_of(store, unanswered="placeholder").load()
        assert asyncio.run(agent.run("again?", message_history=repaired)).output


def test_what_others_have_saved_is_read_if_it_is_text_and_refused_if_it_is_not(engine_url):
    with Store(engine_url) as store:
        store.sessions.create(id="chat-1")
        for role, text in (("system", "s"), ("user", "u"), ("assistant", "a")):
            store.messages.save("chat-1", role, text, payload={"kind": "request"})
        parts = [part for message in history_of(store).load() for part in message.parts]
        assert [type(part) for part in parts] == [SystemPromptPart, UserPromptPart, TextPart]
        store.messages.save("chat-1", "tool", "x", tool_call_id="c1")
        with pytest.raises(InvalidInput, match="session of its own"):
            history_of(store).load()
        with pytest.raises(InvalidInput, match="Pass an AsyncStore"):
            asyncio.run(history_of(store).aload())


@pytest.mark.parametrize("wrong", ["hi", b'[{"kind": "request"}]', [{"kind": "request"}], [None]])
def test_what_is_no_message_of_the_framework_is_refused(wrong, engine_url):
    with Store(engine_url) as store:
        with pytest.raises(InvalidInput, match="ModelRequest or ModelResponse of the framework"):
            history_of(store).append(wrong)
        assert history_of(store).load() == []


def test_a_mistyped_word_for_calls_without_results_is_refused():
    with pytest.raises(InvalidInput, match="unanswered must be keep or placeholder"):
        history_of(None, unanswered="placeholders")


def test_a_payload_that_is_no_message_is_refused_without_quoting_it(engine_url):
    with Store(engine_url) as store:
        store.sessions.create(id="chat-1")
        part = {"part_kind": "text", "content": ["the secret"]}
        store.messages.save("chat-1", "user", payload={"kind": "response", "parts": [part]})
        with pytest.raises(InvalidInput, match="payload that the framework cannot") as caught:
            history_of(store).load()
    assert "the secret" not in "".join(traceback.format_exception(caught.value))


def test_the_example_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(EXAMPLE)])
    for _ in range(2):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        '4 messages: {"weather":"sunny in a"}',
        '6 messages: {"weather":"sunny in a"}',
    ]
