"""LangGraph's savers: graphs run on them as on LangGraph's own, on both engines."""

import asyncio
import json
import operator
import random
import runpy
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict
from uuid import UUID

import ormsgpack
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from sqlalchemy import create_engine, select

from agentstore import AsyncStore, Store, errors
from agentstore.integrations.langgraph import (
    AgentStoreSaver,
    AllowedSerializer,
    AsyncAgentStoreSaver,
    serializer,
)
from agentstore.integrations.langgraph.savers import REST
from agentstore.repositories.checkpoints.values import unpacked
from agentstore.retention import RetentionPolicy
from agentstore.schema import tables
from agentstore.values.serialized import state_of, step_of
from tests.contract.test_branches import of, statements

THREAD = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}


class Saver:
    """A saver of either kind, or LangGraph's own, called in one way."""

    def __init__(self, saver: Any, *, asynchronous: bool) -> None:
        self.saver = saver
        self.asynchronous = asynchronous

    async def do(self, on: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method, or the asynchronous one of the same name."""
        if self.asynchronous:
            return await getattr(on, f"a{name}")(*args, **kwargs)
        return getattr(on, name)(*args, **kwargs)

    async def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await self.do(self.saver, name, *args, **kwargs)

    async def every(self, on: Any, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        if self.asynchronous:
            return [each async for each in getattr(on, f"a{name}")(*args, **kwargs)]
        return [*getattr(on, name)(*args, **kwargs)]

    async def listed(self, *args: Any, **kwargs: Any) -> list[CheckpointTuple]:
        return await self.every(self.saver, "list", *args, **kwargs)

    async def put(self, values: dict[str, Any], id: str, config: Any = THREAD, **more: Any) -> Any:
        """Put a checkpoint whose channels are all new."""
        versions = dict.fromkeys(values, 1)
        checkpoint = empty_checkpoint() | {
            "id": id,
            "channel_values": values,
            "channel_versions": versions,
        }
        return await self("put", config, checkpoint, {"step": 0, **more}, versions)


@dataclass
class Home:
    """A database, and what opens savers on it."""

    url: str
    asynchronous: bool

    @asynccontextmanager
    async def open(self, *, user: str | None = None, **options: Any) -> AsyncIterator[Saver]:
        if "serde" not in options:
            options = {"allowed": [Plan]} | options
        if self.asynchronous:
            async with AsyncStore(self.url) as store:
                scope: Any = store if user is None else store.scoped(user)
                yield Saver(AsyncAgentStoreSaver(scope, **options), asynchronous=True)
        else:
            with Store(self.url) as store:
                here: Any = store if user is None else store.scoped(user)
                yield Saver(AgentStoreSaver(here, **options), asynchronous=False)

    def run(self, test: Callable[[Saver], Awaitable[Any]], **options: Any) -> Any:
        async def within() -> Any:
            async with self.open(**options) as saver:
                return await test(saver)

        return asyncio.run(within())

    def rows(self, table: str) -> list[Any]:
        engine = create_engine(self.url)
        with engine.connect() as connection:
            found = connection.execute(select(tables()[table])).all()
        engine.dispose()
        return [*found]


@pytest.fixture(params=["sync", "async"])
def home(engine_url: str, request: pytest.FixtureRequest) -> Iterator[Home]:
    return Home(engine_url, request.param == "async")


@dataclass
class Plan:
    """Something of an application's own in the state."""

    steps: list[str]


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    found: Annotated[list[str], operator.add]
    topics: list[str]
    plan: Plan


class Inner(TypedDict):
    found: Annotated[list[str], operator.add]


def _more(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(each for write in writes for each in write)]


def an_agent(saver: BaseCheckpointSaver[Any]) -> Any:
    """Fan out over topics, ask the user in the graph and in a subgraph, and answer."""

    def confirm(state: Inner) -> dict[str, Any]:
        return {"found": [f"checked: {interrupt('check?')}"]}

    inner = StateGraph(Inner)
    inner.add_node("before", lambda state: {"found": ["inner"]})
    inner.add_node("confirm", confirm)
    inner.add_edge(START, "before")
    inner.add_edge("before", "confirm")

    def ask(state: State) -> dict[str, Any]:
        said = interrupt({"question": f"{len(state['found'])} found; go on?"})
        return {"messages": [HumanMessage(said, id=f"h{len(state['messages'])}")]}

    def answer(state: State) -> dict[str, Any]:
        text = f"{state['messages'][-1].content}: {sorted(state['found'])}"
        return {"messages": [AIMessage(text, id=f"a{len(state['messages'])}")]}

    graph = StateGraph(State)
    graph.add_node("think", lambda state: {"plan": Plan([*state["topics"]])})
    graph.add_node("search", lambda state: {"found": [f"of {state['topic']}"]})
    graph.add_node("inner", inner.compile())
    graph.add_node("ask", ask)
    graph.add_node("answer", answer)
    graph.add_edge(START, "think")
    graph.add_conditional_edges(
        "think", lambda state: [Send("search", {"topic": topic}) for topic in state["topics"]]
    )
    graph.add_edge("search", "inner")
    graph.add_edge("inner", "ask")
    graph.add_edge("ask", "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


async def a_story(open_saver: Callable[[], Any]) -> list[Any]:
    """Run the agent, each step with a saver that was opened anew; tell what is seen of it."""
    seen: list[Any] = []

    async def step(work: Callable[[Saver, Any], Awaitable[Any]]) -> Any:
        async with open_saver() as saver:
            graph = an_agent(saver.saver)
            result = await work(saver, graph)
            history = await saver.every(graph, "get_state_history", THREAD)
            numbers = {each.config["configurable"]["checkpoint_id"]: n
                       for n, each in enumerate(reversed(history))}  # fmt: skip
            for each in history:
                parent = (each.parent_config or THREAD)["configurable"].get("checkpoint_id")
                told = {k: each.metadata.get(k) for k in ("source", "step")}
                tasks = sorted(
                    (t.name, repr(t.error), [i.value for i in t.interrupts], repr(t.result))
                    for t in each.tasks
                )
                seen.append((each.values, each.next, told, tasks, numbers.get(parent)))
            return result

    def invoke(given: Any, config: Any = THREAD) -> Callable[[Saver, Any], Awaitable[Any]]:
        async def work(saver: Saver, graph: Any) -> Any:
            result = await saver.do(graph, "invoke", given, config)
            seen.append({k: v for k, v in result.items() if k != "__interrupt__"})
            seen.append([each.value for each in result.get("__interrupt__", ())])

        return work

    async def back(saver: Saver, graph: Any) -> Any:
        """Give the configuration of the moment before the question."""
        states = await saver.every(graph, "get_state_history", THREAD)
        return next(each.config for each in states if each.next == ("ask",))

    first = {"messages": [HumanMessage("天气?", id="h0")], "topics": ["sun", "rain"], "found": []}
    await step(invoke(first))  # up to the question of the subgraph
    await step(invoke(Command(resume="yes")))  # up to that of the graph
    await step(invoke(Command(resume="please")))
    before = await step(back)

    async def change(saver: Saver, graph: Any) -> Any:
        return await saver.do(graph, "update_state", before, {"found": ["changed"]})

    elsewhere = await step(change)
    await step(invoke(None, elsewhere))  # asks again, on a line of its own
    await step(invoke(Command(resume="once more")))
    await step(invoke({"topics": ["snow"], "messages": [HumanMessage("and?", id="h9")]}))
    return seen


def test_a_graph_runs_as_on_langgraphs_own_saver(home):
    own = Saver(InMemorySaver(), asynchronous=home.asynchronous)

    @asynccontextmanager
    async def the_same() -> AsyncIterator[Saver]:
        yield own

    expected = asyncio.run(a_story(the_same))
    assert asyncio.run(a_story(home.open)) == expected
    assert len(expected) > 40


def test_a_checkpoint_names_the_nodes_that_langgraph_goes_on_with(home):
    def send(state: State) -> list[Send]:
        return [Send("look", {"topics": [topic]}) for topic in state["topics"]]

    async def steps(saver: Saver) -> None:
        graph = StateGraph(State)
        for name in ("begin", "look", "left", "right"):
            graph.add_node(name, lambda state: {"found": ["x"]})
        graph.add_edge(START, "begin")
        graph.add_conditional_edges("begin", send, ["look"])
        graph.add_edge("look", "left")
        graph.add_edge("look", "right")
        made = graph.compile(checkpointer=saver.saver)
        await saver.do(made, "invoke", {"messages": [], "found": [], "topics": ["a", "b"]}, THREAD)
        states = await saver.every(made, "get_state_history", THREAD)
        rows = sorted(home.rows("checkpoints"), key=lambda row: -row.step)
        found = [row.next_node for row in rows]
        assert found == [", ".join(sorted(set(each.next))) for each in states]
        assert found == ["", "left, right", "look", "begin", "__start__"]

    home.run(steps)
    with Store(home.url) as store:
        thread = store.checkpoints.threads().items[0]
        latest = thread.latest
        assert latest is not None
        values, beside = state_of(store.checkpoints.get(latest.id, thread.id, latest.namespace))
    assert values["found"] == ["x"] * 5
    assert "channel_versions" in beside["checkpoint"]
    assert REST not in values
    assert step_of(latest) == 3


def test_a_run_that_is_cancelled_goes_on_where_it_was(home):
    """Each step is durable before the next one begins, whatever becomes of the caller."""
    reached = asyncio.Event()

    async def slow(state: State) -> dict[str, Any]:
        reached.set()
        if not state["found"]:
            await asyncio.sleep(600)
        return {"found": ["slow"]}

    def graph_on(saver: Saver) -> Any:
        graph = StateGraph(State)
        graph.add_node("quick", lambda state: {"topics": ["quick"]})
        graph.add_node("slow", slow)
        graph.add_edge(START, "quick")
        graph.add_edge("quick", "slow")
        return graph.compile(checkpointer=saver.saver)

    async def cancelled(saver: Saver) -> None:
        given = {"messages": [], "found": [], "topics": []}
        run = asyncio.create_task(graph_on(saver).ainvoke(given, THREAD, durability="sync"))
        await reached.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    async def resumed(saver: Saver) -> None:
        graph = graph_on(saver)
        state = await graph.aget_state(THREAD)
        assert (state.next, state.values["topics"]) == (("slow",), ["quick"])
        await graph.aupdate_state(THREAD, {"found": ["by hand"]}, as_node="quick")
        assert (await graph.ainvoke(None, THREAD))["found"] == ["by hand", "slow"]

    if home.asynchronous:  # a node that waits can only be run so
        home.run(cancelled)
        home.run(resumed)


# --- What is stored --------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "": 1,
    "text": "NUL \x00, 天气, 😀",
    "list": [1, "two", b"\x00\xff", HumanMessage("hi", id="1"), None, [1, (2, 3)]],
    "tuple": (1, {2, 3}),
    "id": UUID(int=7),
    "none": None,
    "empty": [],
    "n" * 300: {"big": 2**63, "float": -0.0, "keys": {1: "one"}},
}


def test_whatever_a_channel_or_the_metadata_hold_comes_back(home):
    metadata = {
        "source": "input",
        "nested": {"a": [1, "\x00"]},
        "nan": float("inf"),
        "object": UUID(int=8),
        "surrogate": "\ud83d",
    }

    async def put(saver: Saver) -> Any:
        config = {"configurable": THREAD["configurable"] | {"own": "x", "limit": 7}}
        return await saver.put(VALUES, "0001", config, **metadata)

    async def get(saver: Saver) -> CheckpointTuple:
        return await saver("get_tuple", THREAD)

    config, found = home.run(put), home.run(get)
    assert found.config == config
    own = JsonPlusSerializer()  # which has lists where tuples were
    expected = {name: own.loads_typed(own.dumps_typed(value)) for name, value in VALUES.items()}
    assert found.checkpoint["channel_values"] == expected
    assert repr([*expected.values()][-1]) == repr(found.checkpoint["channel_values"]["n" * 300])
    assert found.checkpoint["channel_versions"] == dict.fromkeys(VALUES, 1)
    assert found.metadata == {"step": 0, **metadata, "own": "x", "limit": 7}
    assert (found.parent_config, found.pending_writes) == (None, [])


def test_a_channel_with_a_name_that_is_kept_is_refused(home):
    async def test(saver: Saver) -> None:
        with pytest.raises(ValueError, match="Rename"):
            await saver.put({"\x01checkpoint": 1}, "0001")

    home.run(test)


@pytest.mark.long(but=["*sqlite"])
def test_of_a_history_that_grows_the_new_messages_are_stored(home):
    messages = [HumanMessage(f"{n} " * 100, id=f"{n}") for n in range(10_100)]
    lengths = (10_000, 10_001, 10_100)

    async def test(saver: Saver) -> None:
        config = THREAD
        for length in lengths:
            config = await saver.put({"messages": messages[:length]}, f"{length}", config)
        found = await saver("get_tuple", config)
        assert found.checkpoint["channel_values"]["messages"] == messages
        first = {"configurable": THREAD["configurable"] | {"checkpoint_id": "10000"}}
        found = await saver("get_tuple", first)
        assert found.checkpoint["channel_values"]["messages"] == messages[:10_000]

    home.run(test)
    stored = sum(len(row.data) for row in home.rows("checkpoint_values"))
    once = sum(len(JsonPlusSerializer().dumps_typed(message)[1]) for message in messages)
    assert stored < 1.1 * once


class Reversing:
    """No cipher at all, but whoever reads it does not see the text."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


def test_a_channel_that_did_not_change_is_not_serialized_again(home):
    class Counting(JsonPlusSerializer):
        plans = 0

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            Counting.plans += isinstance(obj, Plan)
            return super().dumps_typed(obj)

    Counting.plans = 0

    def a_state(id: str, versions: dict[str, str], **values: Any) -> Any:
        return empty_checkpoint() | {
            "id": id,
            "channel_values": values,
            "channel_versions": versions,
        }

    async def first(saver: Saver) -> Any:
        root = a_state("1", {"plan": "1.a", "n": "1.a"}, plan=Plan(["a"]), n=1)
        at = await saver("put", THREAD, root, {}, root["channel_versions"])
        child = a_state("2", {"plan": "1.a", "n": "2.b"}, plan=Plan(["a"]), n=2)
        at = await saver("put", at, child, {}, {"n": "2.b"})
        assert Counting.plans == 1
        # What LangGraph forgets to call new is stored: its version is not the parent's.
        other = a_state("3", {"plan": "2.c", "n": "2.b"}, plan=Plan(["b"]), n=2)
        at = await saver("put", at, other, {}, {})
        assert Counting.plans == 2
        return at

    async def second(saver: Saver) -> Any:
        at = (await saver("get_tuple", THREAD)).config
        same = a_state("4", {"plan": "2.c", "n": "3.d"}, plan=Plan(["b"]), n=3)
        at = await saver("put", at, same, {}, {"n": "3.d"})
        assert Counting.plans == 2  # a saver that has read the parent knows it as well
        async with home.open() as elsewhere:
            await elsewhere("delete_thread", "thread")
        last = a_state("5", {"plan": "2.c", "n": "4.e"}, plan=Plan(["b"]), n=4)
        await saver("put", at, last, {}, {"n": "4.e"})
        found = await saver.listed(THREAD)
        assert [each.checkpoint["channel_values"] for each in found] == [
            {"n": 4, "plan": Plan(["b"])}
        ]

    home.run(first, serde=Counting())
    states = home.run(lambda saver: saver.listed(THREAD))
    plans = [each.checkpoint["channel_values"]["plan"] for each in states]
    assert plans == [Plan(["b"]), Plan(["a"]), Plan(["a"])]
    home.run(second, serde=Counting(), revive=True)


def test_what_a_serializer_encrypts_is_nowhere_in_the_clear(home):
    serde = EncryptedSerializer(Reversing(), JsonPlusSerializer())
    secrets = ["launch codes" * 60, "more codes", "written codes"]

    async def put(saver: Saver) -> None:
        config = await saver.put({"messages": secrets[:2], "text": secrets[0]}, "0001")
        await saver("put_writes", config, [("text", secrets[2])], "task")

    async def get(saver: Saver) -> None:
        found = await saver("get_tuple", THREAD)
        assert found.checkpoint["channel_values"] == {"messages": secrets[:2], "text": secrets[0]}
        assert found.pending_writes == [("task", "text", secrets[2])]

    home.run(put, serde=serde)
    home.run(get, serde=serde)
    names = ("checkpoints", "checkpoint_values", "checkpoint_writes")
    everything = repr([home.rows(name) for name in names])
    assert "codes" not in everything
    assert everything.count("sedoc") >= 3  # or nothing was looked at
    held = [unpacked(row.entries, row.pk) for row in home.rows("checkpoints")]
    assert {entry.kind for entries in held for entry in entries.values()} == {"bytes"}


def test_the_latest_is_that_of_the_largest_id_and_lists_go_down_from_there(home):
    times = ("1f0a0000-0000", "1f0a0000-0001", "1f0b0000-0000", "1f0a0000-0002")
    ids = [f"{time}-6000-8000-00000000000{9 - n}" for n, time in enumerate(times)]

    async def test(saver: Saver) -> None:
        for n, id in enumerate(ids):
            for thread in ("thread", "other"):
                config = {"configurable": {"thread_id": thread, "checkpoint_ns": "a|b" * (n % 2)}}
                kept = await saver.put({"n": n}, id, config, step=9 - n, **{"a.b": n % 2})
                if n == 2 and thread == "thread":
                    await saver("put_writes", kept, [("c", "pending")], "task")

        async def found(config: Any, **options: Any) -> list[str]:
            return [t.checkpoint["id"] for t in await saver.listed(config, **options)]

        assert (await saver("get_tuple", THREAD)).checkpoint["id"] == ids[2]
        largest = sorted(ids, reverse=True)
        whole = {"configurable": {"thread_id": "thread"}}
        assert await found(whole) == largest
        assert await found(THREAD) == [ids[2], ids[0]]
        assert await found(whole, limit=2) == largest[:2]
        assert await found(whole, limit=0) == []
        before = {"configurable": {"checkpoint_id": ids[3]}}
        assert await found(whole, before=before) == [ids[1], ids[0]]
        assert await found(whole, filter={"a.b": 1}, limit=1) == [ids[3]]
        assert await found(whole, filter={"a' OR '1'='1": 1}) == []
        assert await found(whole, filter={"step": 9, "a.b": 0}) == [ids[0]]
        assert len(await found(None)) == 2 * len(ids)
        one = {"configurable": THREAD["configurable"] | {"checkpoint_id": ids[0]}}
        assert await found(one) == [ids[0]]
        assert [t.pending_writes for t in await saver.listed(THREAD)] == [
            [("task", "c", "pending")],
            [],
        ]

    home.run(test)


def test_one_goes_through_a_long_thread_page_by_page(home):
    async def test(saver: Saver) -> None:
        config = THREAD
        for n in range(120):
            config = await saver.put({"n": n}, f"{n:04}", config)
        found = await saver.listed(THREAD)
        assert [t.checkpoint["channel_values"]["n"] for t in found] == [*range(120)][::-1]
        assert len(await saver.listed(THREAD, limit=75)) == 75
        one = {"configurable": THREAD["configurable"] | {"checkpoint_id": "0003"}}
        with statements() as sent:
            assert [t.config for t in await saver.listed(one, limit=1)] == [one]
        assert len(of(sent, "SELECT", "WITH")) == 1
        before = {"configurable": {"checkpoint_id": "0003"}}
        assert await saver.listed(one, before=before) == []
        gone = {"configurable": THREAD["configurable"] | {"checkpoint_id": "0003x"}}
        assert await saver.listed(gone) == []

    home.run(test)


def test_what_is_not_there_is_none_or_nothing(home):
    async def test(saver: Saver) -> None:
        assert await saver("get_tuple", THREAD) is None
        assert await saver.listed(THREAD) == []
        await saver("delete_thread", "thread")
        await saver("copy_thread", "thread", "other")
        await saver("prune", ["thread"])
        await saver("delete_for_runs", ["run"])
        found = await saver("get_delta_channel_history", config=THREAD, channels=["c"])
        assert found == {"c": {"writes": []}}

    home.run(test)


def test_the_first_write_stays_but_of_what_is_special_the_last(home):
    async def test(saver: Saver) -> None:
        soon = {"configurable": THREAD["configurable"] | {"checkpoint_id": "0001"}}
        await saver("put_writes", soon, [("a", 1), ("b", 2)], "task", "~2")
        await saver("put_writes", soon, [("a", 3), ("b", 4), ("c", 5)], "task", "~2")
        await saver("put_writes", soon, [("a", 6)], "earlier", "~1")
        await saver("put_writes", soon, [("__interrupt__", 1), ("__interrupt__", 2)], "task")
        await saver("put_writes", soon, [("__error__", "first")], "task")
        await saver("put_writes", soon, [("__error__", "last")], "task")
        await saver("put_writes", soon, [("__resume__", 1), ("a", 7)], "mixed")
        await saver("put_writes", soon, [("__resume__", 2), ("a", 8)], "mixed")
        await saver.put({}, "0001")
        assert (await saver("get_tuple", THREAD)).pending_writes == [
            ("mixed", "__resume__", 2), ("mixed", "a", 7), ("task", "__interrupt__", 2),
            ("task", "__error__", "last"), ("earlier", "a", 6), ("task", "a", 1), ("task", "b", 2),
            ("task", "c", 5),
        ]  # fmt: skip

    home.run(test)


class Asked(TypedDict):
    log: Annotated[list[str], operator.add]


def mortal(saver: Any, bomb: dict[str, Any]) -> Any:
    """Have a saver store nothing any more once its process was killed."""

    def stores(name: str) -> Any:
        method = getattr(type(saver), name).__get__(saver)

        def sync(*args: Any) -> Any:
            return args[0] if bomb["killed"] else method(*args)

        async def asynchronous(*args: Any) -> Any:
            return args[0] if bomb["killed"] else await method(*args)

        return asynchronous if name.startswith("a") else sync

    for name in ("put", "aput", "put_writes", "aput_writes"):
        setattr(saver, name, stores(name))
    return saver


def a_questionnaire(saver: Any, bomb: dict[str, Any]) -> Any:
    """Ask two questions in one node, with a kill that may come after them, then two at once."""

    def twice(_: Asked) -> dict[str, Any]:
        first, second = interrupt("delete the draft?"), interrupt("delete the account?")
        if bomb["set"]:
            bomb["killed"] = bomb["set"] == "kill"
            bomb["set"] = None
            raise RuntimeError("killed")
        return {"log": [f"draft {first}, account {second}"]}

    builder = StateGraph(Asked)
    builder.add_node("twice", twice)
    for side in ("left", "right"):
        builder.add_node(side, lambda _, side=side: {"log": [f"{side} {interrupt(side)}"]})
        builder.add_edge("twice", side)
    builder.add_node("end", lambda _: {"log": ["end"]})
    builder.add_edge(START, "twice")
    builder.add_edge(["left", "right"], "end")
    bomb["killed"] = False
    return builder.compile(checkpointer=mortal(saver, bomb))


async def told(saver: Saver, bomb: dict[str, Any], seed: int, step: int) -> Any:
    """Take a random step of a graph, which the seed says, and tell all that is to be seen."""
    chance = random.Random(f"{seed} {step}")  # noqa: S311 - no secret
    graph = a_questionnaire(saver.saver, bomb)
    state = await saver.do(graph, "get_state", THREAD)
    history = await saver.every(graph, "get_state_history", THREAD)
    then = history[chance.randrange(len(history))].config if history else THREAD
    pending = sorted(state.interrupts, key=lambda each: each.value)
    answer, to_whom = f"answer {step}", chance.random()
    named = {
        each.id: f"{answer} {each.value}" for each in pending if chance.random() < 0.6 or not step
    }
    new = {"log": [f"new {step}"]}
    steps: list[Any] = [
        ("invoke", new, THREAD),
        ("invoke", None, THREAD),
        ("invoke", None, then),
        ("update_state", THREAD, new),
        ("update_state", then, new, "twice"),
        *[("invoke", Command(resume=answer), THREAD)] * 3,
        *[("invoke", Command(resume=answer, update=new), THREAD)] * 3,
        *[("invoke", Command(resume=answer, goto="end"), THREAD)],
        *[("invoke", Command(resume=named, update=new if to_whom < 0.5 else None), THREAD)] * 3,
    ]
    name, *arguments = steps[0] if not step else chance.choice(steps)
    bomb["set"] = chance.choice([None, None, "kill", "kill", "fail"])
    options = {"durability": "sync"} if name == "invoke" else {}
    try:
        result = await saver.do(graph, name, *arguments, **options)
        came = sorted(result.get("log", ())) if name == "invoke" else None
    except Exception as error:  # noqa: BLE001 - it is to be the same one
        came = type(error).__name__
    bomb["set"], bomb["killed"] = None, False
    seen: list[Any] = [name, came]
    for each in await saver.every(graph, "get_state_history", THREAD):
        asked = sorted(str(question.value) for question in each.interrupts)
        failed = sorted(str(task.error) for task in each.tasks)
        seen.append((each.values.get("log"), sorted(each.next), asked, failed))
    return seen


@pytest.mark.parametrize("seed", range(12))
def test_random_steps_of_a_graph_lead_where_langgraphs_saver_in_memory_leads(home, seed):
    own = Saver(InMemorySaver(), asynchronous=home.asynchronous)

    async def test() -> None:
        ours: dict[str, Any] = {}
        theirs: dict[str, Any] = {}
        for start in range(0, 14, 2):
            async with home.open() as saver:  # like a process that begins, and knows nothing
                for step in (start, start + 1):
                    expected = await told(own, theirs, seed, step)
                    assert await told(saver, ours, seed, step) == expected, (seed, step)

    asyncio.run(test())


def test_the_answer_to_one_question_is_never_used_for_another(home):
    bomb: dict[str, Any] = {"set": None}

    async def step(given: Any) -> Any:
        async with home.open() as saver:
            graph = a_questionnaire(saver.saver, bomb)
            return await saver.do(graph, "invoke", given, THREAD, durability="sync")

    async def test() -> None:
        await step({"log": []})
        await step(Command(resume="YES", update={"log": ["a"]}))
        bomb["set"] = "kill"
        with pytest.raises(RuntimeError, match="killed"):
            await step(Command(resume="NO", update={"log": ["b"]}))
        assert "draft YES, account NO" in (await step(None))["log"]

    asyncio.run(test())


# --- What is stored never runs ---------------------------------------------------------------


def naming(code: int, *named: Any) -> Any:
    return ormsgpack.Ext(code, ormsgpack.packb(named))


@pytest.mark.parametrize("nested", range(4))
@pytest.mark.parametrize("code", range(6))
def test_a_stored_value_that_names_a_function_does_not_run_it(code, nested, tmp_path):
    ran = tmp_path / "ran"
    given: Any = {0: f"touch {ran}", 1: [f"touch {ran}"]}.get(code, {"command": f"touch {ran}"})
    bad = naming(code, "os", "system", given if code != 3 else f"touch {ran}", "system")
    value: Any = [
        bad,
        {"a": [1, bad]},
        naming(0, "builtins", "set", [bad]),
        naming(2, "langgraph.types", "Interrupt", {"value": naming(0, "builtins", "list", [bad])}),
    ][nested]
    with pytest.raises(errors.TypeNotAllowed, match=r"allowed=") as refused:
        AllowedSerializer().loads_typed(("msgpack", ormsgpack.packb(value)))
    assert "touch" not in str(refused.value)
    assert not ran.exists()


class OwnMessage(HumanMessage):
    """A message of an application's."""


def messages_of_all_kinds() -> list[Any]:
    call = {"name": "search", "args": {"b": 1.0, "a": [True, None, -0.0]}, "id": "1"}
    deep: Any = "deep"
    for _ in range(20):
        deep = [deep]
    moved = HumanMessage("moved")
    moved.__dict__ |= {"name": moved.__dict__.pop("name"), "cached": 1}
    unsound = HumanMessage("unsound")
    unsound.content = 7  # type: ignore[assignment]
    return [
        HumanMessage("北京天气怎么样？", id="1", name="Zoë"),
        SystemMessage([{"type": "text", "text": "a"}, "b"], additional_kwargs={"deep": deep}),
        AIMessage("", tool_calls=[call], invalid_tool_calls=[{**call, "args": "{", "error": "?"}]),
        AIMessage("", tool_calls=[{**call, "extras": {"a": 1}, "type": "tool_call"}]),
        AIMessage("a", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
        AIMessage("a", additional_kwargs={"tool_calls": [{"id": "1", "function": {"name": "f"}}]}),
        AIMessage(content_blocks=[{"type": "text", "text": "a"}], another="field", tuple=(1, 2)),
        ToolMessage("done", tool_call_id="1", artifact={"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        ToolMessage("done", tool_call_id="1", artifact=[AIMessage("inside"), Plan(["a"])]),
        ToolMessage([1, UUID(int=1)], tool_call_id=UUID(int=2), artifact={1: {2}}, status="error"),
        ToolMessage("\ud800", tool_call_id="1", artifact=b"\0", id="2"),
        HumanMessage.model_construct(content="a", content_blocks=[{"type": "text", "text": "b"}]),
        HumanMessage.model_construct(content="a", another={"field": 1}),
        OwnMessage("a"),
        AIMessageChunk("a", id="1"),
        RemoveMessage(id="1"),
        moved,
        unsound,
    ]


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
@pytest.mark.parametrize("number", range(18))
def test_messages_are_written_and_made_as_by_langgraphs_own_serializer(number):
    message = messages_of_all_kinds()[number]
    ours, theirs = AllowedSerializer([OwnMessage, Plan]), JsonPlusSerializer()
    for value in ([message, {"a": [message]}], message):
        written = ours.dumps_typed(value)
        assert written == theirs.dumps_typed(value)
        made, expected = ours.loads_typed(written), theirs.loads_typed(written)
        assert repr(made) == repr(expected)
        assert made == expected
    if isinstance(expected, BaseMessage):
        assert type(made) is type(expected)
        assert [*made.__dict__] == [*expected.__dict__]
        assert made.model_fields_set == expected.model_fields_set
        assert made.model_extra == expected.model_extra


CALL = {"name": "search", "args": {"a": 1}, "id": "1", "type": "tool_call"}
USED = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
FIELDS_AS_NO_MESSAGE_HAS_THEM: list[Any] = [
    *(None, 7, True, "text", "error", b"\0", ("a",), [], ["a", {}], [[]], {}, {1: 2}, {"a": None}),
    {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    *([{**CALL, **more}] for more in ({}, {"id": None}, {"id": b"1"}, {"name": b"1"})),
    *([{**CALL, **more}] for more in ({"args": {b"1": 2}}, {"type": "a"}, {"extras": 1})),
    [{**CALL, "more": 1}],
    [dict(reversed(CALL.items()))],
    [CALL, {"name": "search"}],
    *({**USED, **more} for more in ({}, {"input_tokens": "1"}, {"more": 1}, {"total_tokens": 1.5})),
    {**USED, "input_token_details": {"cache_read": "1", "more": 1}},
]


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
@pytest.mark.parametrize("kind", [AIMessage, HumanMessage, SystemMessage, ToolMessage])
def test_what_validation_changes_or_refuses_is_made_as_by_langgraphs_own_serializer(kind: Any):
    ours, theirs = AllowedSerializer(), JsonPlusSerializer()
    needed = {"tool_call_id": "1"} if kind is ToolMessage else {}
    for field in kind.model_fields:
        for value in FIELDS_AS_NO_MESSAGE_HAS_THEM:
            message = kind("a", id="1", **needed)
            message.__dict__[field] = value
            written = ours.dumps_typed(message)
            made, expected = (
                {**each.__getstate__(), "": repr(each.__dict__)} if isinstance(each, kind) else each
                for each in (ours.loads_typed(written), theirs.loads_typed(written))
            )
            assert made == expected, (field, value)


def test_messages_are_left_to_a_langgraph_that_writes_others(monkeypatch: Any) -> None:
    """The version of LangGraph that is installed has all that is asked for; another may not."""
    assert (serializer.written_here(), len(serializer.SAFE_TYPES) > 30) == (True, True), version(
        "langgraph-checkpoint"
    )
    write = JsonPlusSerializer.dumps_typed

    def written(self: Any, value: Any) -> tuple[str, bytes]:
        kind, data = write(self, value)
        return kind, data.replace(b"model_validate_json", b"model_validate_JSON")

    monkeypatch.setattr(JsonPlusSerializer, "dumps_typed", written)
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.serde._msgpack", None)
    other = runpy.run_path(str(serializer.__file__))
    assert not other["written_here"]()
    said = [HumanMessage("hi", id="1"), ToolMessage("yes", id="2", tool_call_id="3")]
    serde = other["AllowedSerializer"]()
    stored = serde.dumps_typed(said)
    assert stored == written(JsonPlusSerializer(), said)
    assert serde.loads_typed(stored) == said
    with pytest.raises(errors.TypeNotAllowed, match="HumanMessage"):  # as is not known to be safe
        serde.check(*stored)


def test_a_message_that_was_changed_where_it_is_is_written_as_it_is_now():
    message, serde = AIMessage("a", additional_kwargs={"a": [1]}), AllowedSerializer()
    serde.dumps_typed([message])
    message.additional_kwargs["a"].append(True)
    message.content = "b"
    assert serde.loads_typed(serde.dumps_typed([message])) == [message]


def test_a_json_value_that_names_a_class_is_refused(tmp_path):
    value = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["true"]}
    with pytest.raises(errors.TypeNotAllowed, match=r"os\.system"):
        AllowedSerializer().loads_typed(("json", json.dumps({"a": [value]}).encode()))


def test_classes_that_the_application_names_are_made(home):
    async def put(saver: Saver) -> None:
        await saver.put({"plan": Plan(["a"]), "said": [HumanMessage("hi", id="1")]}, "0001")

    async def get(saver: Saver) -> Any:
        return (await saver("get_tuple", THREAD)).checkpoint["channel_values"]

    home.run(put)
    with pytest.raises(errors.TypeNotAllowed, match="Plan"):
        home.run(get, allowed=())
    held = {"plan": Plan(["a"]), "said": [HumanMessage("hi", id="1")]}
    assert home.run(get, allowed=[Plan]) == held
    assert home.run(get, allowed=[(Plan.__module__, "Plan")]) == held
    by_graph = AllowedSerializer().with_msgpack_allowlist([Plan])  # LangGraph asks so, if strict
    assert by_graph.loads_typed(by_graph.dumps_typed(held)) == held
    for wrong in ("my.Plan", [7], [("one",)]):
        with pytest.raises(errors.InvalidInput, match="allowed"):
            AllowedSerializer(wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput, match="serde"):
        home.run(get, serde=JsonPlusSerializer(), allowed=[Plan])


# --- Deleted threads -------------------------------------------------------------------------


@pytest.mark.parametrize("begun_anew", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_put_late_does_not_bring_a_deleted_thread_back(home, elsewhere, begun_anew):
    async def test(saver: Saver) -> None:
        at = await saver.put({"a": 1}, "0001")
        inner = {
            "thread_id": "thread",
            "checkpoint_ns": "inner:1",
            "checkpoint_map": {"": at["configurable"]["checkpoint_id"]},
        }
        async with home.open() as other:
            await (other if elsewhere else saver)("delete_thread", "thread")
            if begun_anew:
                await other.put({"a": "new"}, "0003")
        late = [saver.put({"a": 2}, "0004", at), saver.put({"a": 3}, "0005", THREAD | at)]
        if not begun_anew:
            late.append(saver.put({"a": 4}, "0006", {"configurable": inner}))
            late.append(saver("put_writes", at, [("a", 5)], "task"))
            late.append(saver("put_writes", at, [("__resume__", 5), ("a", 5)], "task"))
        for each in late:
            with pytest.raises(errors.NotFound):
                await each
        found = [each.checkpoint["channel_values"] for each in await saver.listed(THREAD)]
        assert found == ([{"a": "new"}] if begun_anew else [])
        assert len(home.rows("checkpoint_threads")) == begun_anew
        await saver.put({"a": 6}, "0007")  # a thread that is begun anew may have the same id
        assert (await saver("get_tuple", THREAD)).checkpoint["id"] == "0007"

    home.run(test)


def test_a_saver_may_let_late_runs_go_on(home):
    async def test(saver: Saver) -> None:
        at = await saver.put({"a": 1}, "0001")
        await saver("delete_thread", "thread")
        await saver("put_writes", at, [("a", 2)], "task")
        await saver.put({"a": 2}, "0002", at)
        assert (await saver("get_tuple", THREAD)).checkpoint["id"] == "0002"

    home.run(test, revive=True)


def test_versions_grow_and_differ_in_each_fork(home):
    async def test(saver: Saver) -> None:
        first = saver.saver.get_next_version(None, None)
        others = {saver.saver.get_next_version(first, None) for _ in range(100)}
        assert len(others) == 100
        assert min(others) > first
        assert saver.saver.get_next_version(9, None) > max(others)  # as an older saver counted
        state = random.getstate()
        random.seed(0)
        once = saver.saver.get_next_version(first, None)
        random.seed(0)  # as a program does that is run twice
        assert saver.saver.get_next_version(first, None) != once
        random.setstate(state)

    home.run(test)


def test_deleting_a_run_leads_past_it(home):
    async def test(saver: Saver) -> None:
        config = THREAD
        for n in range(4):
            config = await saver.put({"n": n}, f"{n:04}", config, run_id=f"run {n % 2}")
        await saver("delete_for_runs", ["run 0"])
        left = await saver.listed(THREAD)
        assert [t.checkpoint["id"] for t in left] == ["0003", "0001"]
        assert left[0].parent_config == left[1].config
        assert left[1].parent_config is None

    home.run(test)


def test_pruning_keeps_the_latest_and_what_its_delta_channels_are_made_of(home):
    async def test(saver: Saver) -> None:
        inner = {"configurable": {"thread_id": "thread", "checkpoint_ns": "inner"}}
        config = THREAD
        for n in range(5):
            await saver.put({"n": n}, f"{n:04}", inner)
            counters = {"counters_since_delta_snapshot": {"d": (n, n)}}
            values = {"n": n} | ({"d": ["whole"]} if n == 2 else {})
            config = await saver.put(values, f"{n:04}", config, **counters)
            await saver("put_writes", config, [("d", n), ("x", n)], "task")
        history = {"config": THREAD, "channels": ["d"]}
        before = await saver("get_delta_channel_history", **history)
        assert before["d"]["seed"] == ["whole"]
        assert [value for *_, value in before["d"]["writes"]] == [2, 3]
        await saver("prune", ["thread"])
        assert [t.checkpoint["id"] for t in await saver.listed(THREAD)] == ["0004", "0003", "0002"]
        assert [t.checkpoint["id"] for t in await saver.listed(inner)] == ["0004"]
        assert await saver("get_delta_channel_history", **history) == before
        with pytest.raises(ValueError, match="strategy"):
            await saver("prune", ["thread"], strategy="keep none")
        with pytest.raises(TypeError):
            await saver("prune", "thread")
        await saver("prune", ["thread"], strategy="delete")
        assert await saver.listed(None) == []

    home.run(test)


class Long(TypedDict):
    said: Annotated[list[str], DeltaChannel(_more, snapshot_frequency=4)]
    notes: Annotated[list[str], DeltaChannel(_more)]
    count: int


REMOVALS: dict[str, Callable[[Saver, Any], Any]] = {
    "saver.prune": lambda saver, store: saver("prune", ["thread"]),
    "policy": lambda saver, store: store.prune(RetentionPolicy(checkpoints_keep_last=1)),
    "age": lambda saver, store: store.prune(RetentionPolicy(checkpoints_max_age=timedelta(0))),
    "keep_last": lambda saver, store: store.checkpoints.prune("thread", keep_last=2),
    "runs": lambda saver, store: saver("delete_for_runs", [f"run {n}" for n in range(5)]),
}


@pytest.mark.parametrize("removal", REMOVALS)
def test_a_graph_with_delta_channels_goes_on_after_the_rest_was_removed(home, removal):
    builder = StateGraph(Long)

    def work(state: Long) -> dict[str, Any]:
        n = state["count"]
        return {"said": [f"{n}"], "count": n + 1} | ({"notes": ["once"]} if n == 1 else {})

    builder.add_node("work", work)
    builder.add_edge(START, "work")

    async def test(saver: Saver) -> None:
        graph = builder.compile(checkpointer=saver.saver)
        thread = {"configurable": {"thread_id": "thread"}}
        for n in range(6):
            config = thread | {"metadata": {"run_id": f"run {n}"}}
            await saver.do(graph, "invoke", {"said": [f"ask {n}"], "count": n}, config)
        before = (await saver.do(graph, "get_state", thread)).values
        assert (len(before["said"]), before["notes"]) == (12, ["once"])
        held = len(await saver.listed(THREAD))
        with Store(home.url) as store:
            done = REMOVALS[removal](saver, store)
            if isinstance(done, Awaitable):
                await done
        assert len(await saver.listed(THREAD)) < held
        assert (await saver.do(graph, "get_state", thread)).values == before
        after = await saver.do(graph, "invoke", {"said": ["more"], "count": 6}, thread)
        assert after["said"] == [*before["said"], "more", "6"]
        assert after["notes"] == ["once"]

    home.run(test)


def test_a_copy_has_the_same_ids_and_replaces_nothing(home):
    async def test(saver: Saver) -> None:
        config = await saver.put({"n": 1}, "0001")
        await saver("put_writes", config, [("a", 1)], "task")
        await saver("copy_thread", "thread", "other")
        there = {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}
        found, copied = await saver("get_tuple", THREAD), await saver("get_tuple", there)
        assert copied[1:] == found[1:]
        with pytest.raises(errors.AlreadyExists):
            await saver("copy_thread", "thread", "other")

    home.run(test)


# --- Beside others -----------------------------------------------------------------------------


def test_threads_of_a_scoped_store_are_its_users(home):
    with Store(home.url) as store:
        alice, bob = (store.users.create(name).id for name in ("Alice", "Bob"))
        store.checkpoints.put("thread of nobody", {"native": 1}, namespace="langgraph of mine")

    async def put(saver: Saver) -> None:
        await saver.put({"n": 1}, "0001")

    async def nothing(saver: Saver) -> None:
        assert await saver("get_tuple", THREAD) is None
        assert await saver.listed(None) == []

    async def one(saver: Saver) -> None:
        assert len(await saver.listed(None)) == 1

    home.run(put, user=alice)
    home.run(nothing, user=bob)
    home.run(one, user=alice)
    home.run(one)  # what is no graph's is left out
    with Store(home.url) as store:
        assert store.checkpoints.threads(user_id=alice).items[0].id == "thread"


def test_two_savers_may_save_into_one_thread_at_once(home):
    async def test(saver: Saver) -> None:
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(home.open())

            async def save(by: Saver, name: str) -> None:
                config = THREAD
                for n in range(10):
                    config = await by.put({"n": [name] * n}, f"{n:04}{name}", config)
                    await by("put_writes", config, [("a", name)], "task")

            await asyncio.gather(save(saver, "a"), save(other, "b"))
        found = await saver.listed(THREAD)
        assert len(found) == 20
        for each in found:
            name = each.checkpoint["id"][-1]
            assert each.pending_writes == [("task", "a", name)]
            assert set(each.checkpoint["channel_values"]["n"]) <= {name}

    home.run(test)


def test_a_saver_on_a_store_takes_awaited_calls_too_and_one_on_an_asynchronous_one_no_others(home):
    async def test(saver: Saver) -> None:
        other = Saver(saver.saver, asynchronous=not saver.asynchronous)
        if saver.asynchronous:
            with pytest.raises(NotImplementedError):
                await other("get_tuple", THREAD)
            return
        graph = StateGraph(Inner).add_node("once", lambda state: {"found": ["it"]})
        runs = graph.add_edge(START, "once").compile(checkpointer=saver.saver)
        assert await runs.ainvoke({"found": []}, THREAD) == {"found": ["it"]}
        assert runs.invoke({"found": []}, THREAD) == {"found": ["it", "it"]}
        assert await other.listed(THREAD) == await saver.listed(THREAD)

    home.run(test)


def test_an_awaited_call_that_is_cancelled_has_ended_when_that_goes_on(home, monkeypatch):
    async def test(saver: Saver) -> None:
        begun, may_end = threading.Event(), threading.Event()
        put = saver.saver._checkpoints.put

        def slow(*args: Any, **kwargs: Any) -> Any:
            begun.set()
            may_end.wait(10)
            return put(*args, **kwargs)

        monkeypatch.setattr(saver.saver, "_checkpoints", SimpleNamespace(put=slow))
        other = Saver(saver.saver, asynchronous=True)
        call = asyncio.create_task(other.put({"n": 1}, "0001"))
        await asyncio.to_thread(begun.wait, 10)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0)
        assert not call.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        monkeypatch.undo()
        assert len(await saver.listed(THREAD)) == 1

    if not home.asynchronous:
        home.run(test)


def test_a_saver_is_for_an_open_store(home):
    kept: list[Saver] = []

    async def test(saver: Saver) -> None:
        kept.append(saver)
        await saver.put({"n": 1}, "0001")

    home.run(test)

    async def afterwards() -> None:
        with pytest.raises(errors.AgentStoreError, match="closed"):
            await kept[0]("get_tuple", THREAD)

    asyncio.run(afterwards())


@pytest.mark.long(but=["sqlite"])
def test_the_example_asks_in_one_process_and_goes_on_in_the_next(engine_url):
    example = Path(__file__).parents[2] / "examples" / "langgraph_graph.py"
    command = [sys.executable, "-W", "error", str(example), engine_url]
    said = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    assert said == ["I would water the plants. Do it?\n", "You said yes. Done.\n"]
    with Store(engine_url) as store:
        answer = store.memories.get(["answers", "alice"], "plants")
        assert answer.value == {"text": "She said yes."}
