"""LangChain's chat message history: what is added comes back, and models accept it."""

import asyncio
import json
import runpy
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from agentstore import AsyncStore, Store
from agentstore.errors import AgentStoreError, InvalidInput, InvalidJson
from agentstore.integrations.langchain import AgentStoreChatMessageHistory

EXAMPLE = Path(__file__).parents[2] / "examples" / "langchain_history.py"
CALL = {"name": "look", "args": {"city": "北京", "b": 1, "a": [2]}, "id": "c1", "type": "tool_call"}
TRAPS = "NUL \x00, a lone surrogate \ud800, 😀"
MESSAGES = [
    SystemMessage("Be brief."),
    HumanMessage(TRAPS, id="h1", name="Ada", additional_kwargs={"big": 2**70, "x": None}),
    AIMessage(
        "Let me look.",
        tool_calls=[CALL],
        usage_metadata={"input_tokens": 9, "output_tokens": 2, "total_tokens": 11},
        response_metadata={"model_name": "fake"},
    ),
    ToolMessage([{"type": "text", "text": "sunny"}], tool_call_id="c1", artifact={"raw": [1]}),
    AIMessage([{"type": "text", "text": "It is sunny."}]),
    FunctionMessage("an old one", name="look"),
    ChatMessage("what others say", role="critic"),
]


def history_of(store, **options):
    return AgentStoreChatMessageHistory("chat-1", store, **options)


def test_what_is_added_comes_back_equal_also_after_a_restart(opening):
    async def run():
        async with opening() as store:
            history = history_of(store)
            assert await history.aget_messages() == []
            await history.aclear()
            await history.aadd_messages([])
            await history.aadd_messages(MESSAGES[:2])
            await history.aadd_messages(MESSAGES[2:])
            assert await history.aget_messages() == MESSAGES
        with pytest.raises(AgentStoreError):  # its store is closed
            await history.aget_messages()
        async with opening() as store:
            again = history_of(store)
            assert await again.aget_messages() == MESSAGES
            await again.aclear()
            assert await again.aget_messages() == []

    asyncio.run(run())


def test_the_synchronous_methods_do_the_same_and_others_see_chat_messages(engine_url):
    with Store(engine_url) as store:
        history = history_of(store)
        assert history.messages == []
        history.clear()
        history.add_messages(MESSAGES[:4])
        assert history.messages == MESSAGES[:4]
        assert [message["role"] for message in store.messages.chat("chat-1")] == [
            *("system", "user", "assistant", "tool")
        ]
        assert len(store.messages.find_by_tool("chat-1", "look").items) == 1
        assert store.messages.search("surrogate").items
        store.messages.save("chat-1", "user", "from elsewhere", payload={"data": {}})
        assert history.messages[-1] == HumanMessage("from elsewhere")
        assert str(history).endswith("Human: from elsewhere")
        history.add_user_message("hello")
        history.add_ai_message("hi")
        assert [message.text for message in history.messages[-2:]] == ["hello", "hi"]
        history.clear()
        assert history.messages == []
        assert store.sessions.get("chat-1").message_count == 0


def called(arguments: object, **more: object) -> dict[str, object]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}} | more


CALLED = {"name": "f", "id": "c", "args": {"a": 1}, "type": "tool_call"}
INVALID = {"name": "f", "id": "c", "args": None, "error": None, "type": "invalid_tool_call"}
OF_OTHERS = {
    "a call": (called('{"a": 1}'), CALLED),
    "an object": (called({"a": 1}), CALLED),
    "another form": ({"id": "c", "name": "f", "args": {"a": 1}}, CALLED),
    "no JSON": (called("{cut"), INVALID | {"args": "{cut"}),
    "no object": (called("[1]"), INVALID | {"args": "[1]"}),
    "too deep": (called("[" * 100_000), INVALID | {"args": "[" * 100_000}),
    "no arguments": ({"id": "c", "function": {"name": "f"}}, INVALID),
    "no name": ({"id": 5, "function": {}}, INVALID | {"id": None, "name": None}),
}


@pytest.mark.parametrize("what", OF_OTHERS)
def test_calls_of_others_are_read_and_those_that_cannot_be_are_invalid_ones(engine_url, what):
    call, made = OF_OTHERS[what]
    with Store(engine_url) as store:
        history_of(store).add_user_message("hello")
        store.messages.save("chat-1", "assistant", "Let me look.", tool_calls=[call])
        said = history_of(store, unanswered="keep").messages[-1]
        assert (said.content, [*said.tool_calls, *said.invalid_tool_calls]) == (
            "Let me look.",
            [made],
        )


def test_what_langchain_has_no_message_for_is_refused_in_words(engine_url):
    with Store(engine_url) as store:
        history_of(store).add_user_message("hello")
        store.messages.save("chat-1", "tool", "a result without a call")
        assert history_of(store, unanswered="keep").messages[-1].tool_call_id == ""
        item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        store.messages.save_chat("chat-1", item)
        with pytest.raises(InvalidInput, match="cannot read"):
            history_of(store, unanswered="keep").messages  # noqa: B018 - it reads


def test_a_cut_keeps_calls_and_prompts_and_a_lost_result_has_a_placeholder(engine_url):
    with Store(engine_url) as store:
        history_of(store).add_messages(MESSAGES[:4])
        assert history_of(store, limit=1).messages == [MESSAGES[0], *MESSAGES[2:4]]
        counted = history_of(store, max_tokens=4, token_counter=lambda message: 1)
        assert counted.messages == MESSAGES[:4]
        lost = AIMessage("", tool_calls=[{**CALL, "id": "c2"}])
        history_of(store).add_messages([HumanMessage("again?"), lost])
        *_, placeholder = history_of(store).messages
        assert isinstance(placeholder, ToolMessage)
        assert placeholder.tool_call_id == "c2"
        assert history_of(store, unanswered="keep").messages[-1] == lost
        assert history_of(store, unanswered="drop").messages[-1] == HumanMessage("again?")


class Frame:
    """What a tool may give beside its text: nothing that JSON knows."""

    def __repr__(self):
        return "a secret"


LOOP = []
LOOP.append(LOOP)
DEEP = []
for _ in range(900):
    DEEP = [DEEP]


def test_all_or_none_is_added_and_what_a_model_reads_is_refused_if_it_is_no_json(engine_url):
    with Store(engine_url) as store:
        for bad in (
            HumanMessage([{"type": "text", "text": "bad", "x": Frame()}]),
            AIMessage("", tool_calls=[{"name": "f", "args": {"x": Frame()}, "id": "c"}]),
        ):
            with pytest.raises(InvalidJson) as refused:
                history_of(store).add_messages([HumanMessage("good"), bad])
            assert "secret" not in str(refused.value)
        assert history_of(store).messages == []


ODD = [
    b"\x00\xff",
    bytearray(b"x"),
    datetime(2024, 1, 1, 12, 30, 5, 7, tzinfo=UTC),
    date(2024, 1, 1),
    time(1, 2),
    timedelta(days=-1, microseconds=3),
    Decimal("1.10"),
    UUID(int=5),
    float("-inf"),
    1 + 2j,
    10**5000,
    {1: "a", None: b"x", (2,): "a tuple"},
    {"__agentstore__": "bytes", "value": "a dict of the user's"},
    {"a", 1},
    frozenset({b"x"}),
    [{"deep": [b"x", {"er": date(2024, 1, 1)}]}],
]


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_what_is_no_json_comes_back_equal_wherever_it_is(value, opening):
    messages = [
        HumanMessage("x", additional_kwargs={"odd": value}),
        AIMessage("", tool_calls=[{"name": "f", "args": {"odd": value}, "id": "c"}]),
        ToolMessage([{"type": "text", "odd": value}], tool_call_id="c", artifact=value),
        AIMessage("done", response_metadata={"odd": [value]}),
    ]

    async def run():
        async with opening() as store:
            await history_of(store).aadd_messages(messages)
        async with opening() as store:
            found = await history_of(store).aget_messages()
            assert found == messages
            assert type(found[2].artifact) is type(value)

    asyncio.run(run())


@pytest.mark.parametrize("value", [Frame(), object(), Frame, LOOP, DEEP, {"a": [Frame()]}])
def test_what_cannot_be_written_is_marked_where_no_model_reads_it(value, engine_url):
    with Store(engine_url) as store:
        answer = ToolMessage("the text", tool_call_id="c", artifact=value)
        told = AIMessage("done", response_metadata={"raw": Frame(), "n": float("inf")})
        history_of(store).add_messages([AIMessage("", tool_calls=[CALL | {"id": "c"}]), answer])
        history_of(store).add_messages([told])
        _, found, last = history_of(store).messages
        assert (found.content, found.tool_call_id) == ("the text", "c")
        assert "not stored" in json.dumps(found.artifact)
        assert last.response_metadata["n"] == float("inf")
        assert last.response_metadata["raw"]["type"].endswith("Frame")
        assert "secret" not in str(store.messages.history("chat-1"))


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
def test_a_turn_of_a_runnable_with_history_is_not_lost(engine_url):
    given = [
        AIMessage("", tool_calls=[CALL]),
        ToolMessage("x", tool_call_id="c1", artifact=Frame()),
        AIMessage("done", response_metadata={"logprob": float("nan")}),
    ]
    with Store(engine_url) as store:
        chain = RunnableWithMessageHistory(
            RunnableLambda(lambda _: {"output": given}),
            lambda session_id: AgentStoreChatMessageHistory(session_id, store),
            input_messages_key="input",
            output_messages_key="output",
            history_messages_key="history",
        )
        chain.invoke({"input": "?"}, {"configurable": {"session_id": "chat-1"}})
        assert [message.type for message in history_of(store).messages] == [
            *("human", "ai", "tool", "ai")
        ]


@pytest.mark.parametrize("name", ["", "n" * 300])
def test_a_call_of_any_name_comes_back_equal(name, engine_url):
    with Store(engine_url) as store:
        asked = AIMessage("x", tool_calls=[{"name": name, "args": {}, "id": "c"}])
        history_of(store).add_messages(
            [HumanMessage("?"), asked, ToolMessage("y", tool_call_id="c")]
        )
        assert history_of(store).messages[1] == asked


@pytest.mark.parametrize("wrong", ["hi", ["hi"], [{"role": "user", "content": "hi"}], [None]])
def test_what_is_no_message_of_the_framework_is_refused(wrong, engine_url):
    with Store(engine_url) as store:
        with pytest.raises(InvalidInput, match="must be a BaseMessage of the framework"):
            history_of(store).add_messages(wrong)
        assert history_of(store).messages == []


def test_a_store_of_the_other_kind_says_what_to_do(engine_url):
    async def run():
        async with AsyncStore(engine_url) as store:
            with pytest.raises(InvalidInput, match="asynchronous method"):
                history_of(store).clear()
        with pytest.raises(InvalidInput, match="Pass an AsyncStore"):
            await history_of(None).aget_messages()

    asyncio.run(run())


def test_in_a_scope_there_are_only_the_user_s_own_histories(engine_url):
    with Store(engine_url) as store:
        alice, bob = store.users.create("Alice"), store.users.create("Bob")
        history_of(store.scoped(alice.id)).add_messages(MESSAGES[:2])
        assert store.sessions.get("chat-1").user_id == alice.id
        assert history_of(store.scoped(bob.id)).messages == []
        with pytest.raises(AgentStoreError):
            history_of(store.scoped(bob.id)).add_messages(MESSAGES[:2])
        assert len(history_of(store).messages) == 2


def test_callers_at_once_make_one_session_and_lose_nothing(opening_async):
    async def run():
        async with opening_async() as first, opening_async() as second:
            await asyncio.gather(
                *(
                    history_of(store).aadd_messages([HumanMessage(str(n)), AIMessage(str(n))])
                    for n in range(20)
                    for store in (first, second)
                )
            )
            told = [message.text for message in await history_of(first).aget_messages()]
            assert len(told) == 80
            assert told[::2] == told[1::2]

    asyncio.run(run())


def test_a_cancelled_addition_is_there_whole_or_not_at_all(opening_async):
    async def run():
        async with opening_async() as store:
            history = history_of(store)
            for n in range(20):
                adding = asyncio.create_task(history.aadd_messages([HumanMessage(str(n))] * 3))
                for _ in range(n):
                    await asyncio.sleep(0)
                adding.cancel()
                await asyncio.wait([adding])
            told = [message.text for message in await history.aget_messages()]
            assert len(told) % 3 == 0
            assert told[::3] == told[1::3] == told[2::3]

    asyncio.run(run())


def test_a_cancelled_addition_in_a_thread_is_done_when_the_cancellation_goes_on(engine_url):
    async def run(history):
        for n in range(10):
            adding = asyncio.create_task(history.aadd_messages([HumanMessage(str(n))]))
            for _ in range(n % 3 + 1):
                await asyncio.sleep(0)
            adding.cancel()
            await asyncio.wait([adding])
            assert adding.cancelled()
            assert len(history.messages) == n + 1

    with Store(engine_url) as store:
        asyncio.run(run(history_of(store)))


@pytest.mark.long(but=["sqlite"])
def test_a_history_of_more_than_ten_thousand_messages_comes_whole(engine_url):
    with Store(engine_url) as store:
        history = history_of(store)
        history.add_messages([HumanMessage(str(n)) for n in range(10_100)])
        assert [message.text for message in history.messages] == [*map(str, range(10_100))]


def test_the_example_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(EXAMPLE)])
    for _ in range(2):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "Human: How is the weather? AI: Sunny.",
        "Human: How is the weather? AI: Sunny. Human: How is the weather? AI: Sunny.",
    ]
