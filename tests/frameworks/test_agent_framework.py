"""Agent Framework's histories and checkpoints: they are what the framework's own keep, and last."""

from __future__ import annotations

import asyncio
import enum
import json
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    Content,
    Executor,
    FileCheckpointStorage,
    FileHistoryProvider,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    handler,
    tool,
)

from agentstore import AsyncStore, Store
from agentstore.errors import InvalidInput, NotFound, WrongThread
from agentstore.integrations.agent_framework import (
    AgentStoreCheckpointStorage,
    AgentStoreHistoryProvider,
)
from agentstore.repositories.usage import Usage

TRAPS = "NUL \x00, 😀, 北京"
SAID = [
    Message("system", ["Be brief."]),
    Message("user", [TRAPS, Content.from_data(b"\x89\xff", "image/png")], author_name="Ann"),
    Message("assistant",
        [Content.from_text_reasoning(text="Hm.", protected_data="sealed"),
            Content.from_text("Let me look.", annotations=[{"type": "citation", "url": "u"}]),
            Content.from_function_call("c1", "look", arguments={"b": 2**70, "a": "北京"}),
            Content.from_function_call("c2", "look", arguments='{"a": ')], message_id="m1",
        additional_properties={"k": [1, None]}),
    Message("tool",
        [Content.from_function_result("c1", result="sun"),
            Content.from_function_result("c2", result="no JSON", exception="ValueError")]),
    Message("assistant", ["Sunny."], message_id="m1", additional_properties={"_excluded": True}),
    Message("critic", []),
    Message("user", ["nan"], additional_properties={"x": math.nan, "y": -math.inf, "z": -0.0}),
]  # fmt: skip


def written(messages):
    return json.dumps([message.to_dict() for message in messages])


async def history_script(provider):
    """Save and load in many ways; give all that was answered."""
    told = [written(await provider.get_messages("s1"))]
    for each in (SAID[:2], [], SAID[2:4], SAID[4:], SAID[:1]):
        await provider.save_messages("s1", each, state={})
        told.append(written(await provider.get_messages("s1", state={})))
    for id in (None, "", "a/b", "a%2Fb", "../x", "北京"):
        await provider.save_messages(id, [Message("user", [str(id)])])
        told.append(written(await provider.get_messages(id)))
    return told


@pytest.mark.filterwarnings("ignore:.FILE_HISTORY.")
@pytest.mark.parametrize("skips", [False, True])
def test_it_answers_as_the_framework_s_own_history_does(opening_async, tmp_path, skips):
    async def run():
        theirs = FileHistoryProvider(tmp_path, skip_excluded=skips)
        async with opening_async() as store:
            ours = AgentStoreHistoryProvider(store, skip_excluded=skips)
            assert await history_script(ours) == await history_script(theirs)

    asyncio.run(run())


def test_roles_texts_and_calls_are_where_every_message_has_them(opening_async):
    async def run():
        async with opening_async() as store:
            await AgentStoreHistoryProvider(store).save_messages("s1", SAID)
            shown = await store.messages.history("s1", None, unanswered="keep")
            roles = ["system", "user", "assistant", "tool", "assistant", "assistant", "user"]
            assert [each.role for each in shown] == roles
            assert (shown[0].content, shown[1].name) == ("Be brief.", "Ann")
            assert [block["type"] for block in shown[2].content] == ["text"] + ["tool_use"] * 2
            assert shown[2].content[1]["input"] == {"b": 2**70, "a": "北京"}
            assert [b["content"] for b in shown[3].content] == ["sun", "no JSON"]
            assert [hit.message.seq for hit in await store.messages.search("sunny")] == [5]
            assert [m.seq for m in await store.messages.find_by_tool("s1", "look")] == [3]
            assert len(await store.branches.turns("s1")) == 2

    asyncio.run(run())


def test_a_number_that_json_lacks_does_not_hide_what_was_said(opening_async):
    async def run():
        call = Content.from_function_call("c1", "look", arguments={"x": math.nan})
        async with opening_async() as store:
            provider = AgentStoreHistoryProvider(store)
            await provider.save_messages("s1", [Message("assistant", ["Let me look.", call])])
            [message] = await store.messages.history("s1", unanswered="keep")
            assert message.content[1]["input"] == {"x": "NaN"}
            [again] = await provider.get_messages("s1")
            assert math.isnan(again.contents[1].arguments["x"])

    asyncio.run(run())


class Model(FunctionInvocationLayer, BaseChatClient):
    """Calls a tool, then says what it was told."""

    def _inner_get_response(self, *, messages, stream, options, **kwargs):
        async def answer():
            last = messages[-1]
            if last.role == "user":
                call = Content.from_function_call(f"c{len(messages)}", "look", arguments="{}")
                return ChatResponse(messages=Message("assistant", [call]))
            said = f"{len(messages)}: {last.contents[0].result}"
            return ChatResponse(messages=Message("assistant", [said]))

        return answer()


@tool(approval_mode="never_require")
def look() -> str:
    """Look out of the window."""
    return "sun"


def agent(*providers):
    return Agent(Model(), tools=[look], context_providers=providers)


def test_an_agent_goes_on_where_another_process_ended(opening_async):
    async def run():
        theirs = InMemoryHistoryProvider()
        other = agent(theirs).create_session(session_id="chat-1")
        for turn in range(3):
            async with opening_async() as store:
                provider = AgentStoreHistoryProvider(store)
                ours = agent(provider).create_session(session_id="chat-1")
                answers = [
                    (await agent(each).run(f"turn {turn}", session=session)).text
                    for each, session in ((provider, ours), (theirs, other))
                ]
                assert answers == [f"{4 * turn + 3}: sun"] * 2
        async with opening_async() as store:
            kept = await AgentStoreHistoryProvider(store).get_messages("chat-1")
            expected = await theirs.get_messages("chat-1", state=other.state[theirs.source_id])
            assert [m.text for m in kept] == [m.text for m in expected]
            assert [m.role for m in kept] == ["user", "assistant", "tool", "assistant"] * 3

    asyncio.run(run())


class Costly(Model):
    """Says what it used."""

    counts: ClassVar[dict] = {}

    def _inner_get_response(self, **kwargs):
        async def answer():
            text = Message("assistant", ["hi"])
            return ChatResponse(messages=text, usage_details=self.counts, model="gpt-4o-mini")

        return answer()


def test_what_a_run_used_is_recorded_once_with_what_it_said(opening_async):
    async def run():
        async with opening_async() as store:
            memory = AgentStoreHistoryProvider(store, user_id="ann")
            audit = AgentStoreHistoryProvider(store, source_id="audit", load_messages=False)
            client = Costly()
            session = AgentSession(session_id="s1")
            for counts in (
                {},
                {"input_token_count": "many"},
                {"input_token_count": 50, "output_token_count": 7, "total_token_count": 57,
                    "cache_read_input_token_count": 20},
            ):  # fmt: skip
                client.counts = counts
                await Agent(client, context_providers=[memory, audit]).run("q", session=session)
            assert len(await memory.get_messages("s1")) == 6
            [used] = await store.usage.list("ann/s1")
            assert (used.turn, used.model, used.input_tokens, used.output_tokens) == (
                3,
                "gpt-4o-mini",
                50,
                7,
            )
            assert (await store.usage.list("s1#audit")).items == ()
            await memory.save_messages("s1", SAID[:1])
            assert len(await store.usage.list("ann/s1")) == 1

    asyncio.run(run())


def test_messages_and_usage_are_saved_together_or_not_at_all(opening_async, monkeypatch):
    async def run():
        async with opening_async() as store:
            memory = AgentStoreHistoryProvider(store)
            client = Costly()
            client.counts = {"input_token_count": 5, "output_token_count": 7}

            def broken(*_args, **_kwargs):
                raise RuntimeError("power cut")

            monkeypatch.setattr(Usage, "record", broken)
            with pytest.raises(RuntimeError, match="power cut"):
                await Agent(client, context_providers=[memory]).run(
                    "q", session=AgentSession(session_id="s1")
                )
            assert await memory.get_messages("s1") == []

    asyncio.run(run())


def test_two_providers_of_one_agent_have_histories_of_their_own(opening_async):
    async def run():
        async with opening_async() as store:
            memory = AgentStoreHistoryProvider(store)
            audit = AgentStoreHistoryProvider(store, source_id="audit", load_messages=False)
            session = agent().create_session(session_id="s1")
            for _ in range(2):
                await agent(memory, audit).run("hi", session=session)
            assert len(await memory.get_messages("s1")) == 8
            assert len(await audit.get_messages("s1")) == 8
            assert audit.session_key("s1", "ann") == "ann/s1#audit"
            assert {each.id async for each in store.sessions.iter()} == {"s1", "s1#audit"}

    asyncio.run(run())


def test_each_call_is_its_users(opening_async):
    async def run():
        async with opening_async() as store:
            provider = AgentStoreHistoryProvider(store, user_id="ann")
            one, two = (agent().create_session(session_id="s1") for _ in range(2))
            two.state[provider.source_id] = {"user_id": "bob"}
            await agent(provider).run("Ann's", session=one)
            await agent(provider).run("Bob's", session=two)
            of = {each.id: each.user_id async for each in store.sessions.iter()}
            assert of == {"ann/s1": "ann", "bob/s1": "bob"}
            [first, *_] = await provider.get_messages("s1", state={"user_id": "bob"})
            assert first.text == "Bob's"
            scoped = AgentStoreHistoryProvider(store.scoped("bob"))
            assert (await scoped.get_messages("s1"))[0].text == "Bob's"
            with pytest.raises(InvalidInput, match="another user"):
                await scoped.get_messages("s1", state={"user_id": "ann"})
            with pytest.raises(NotFound, match="user"):
                await AgentStoreHistoryProvider(store.scoped("eve")).save_messages("s1", SAID[:1])
            await store.messages.save("bob/s2", "user", "nobody's", create_session=True)
            assert await provider.get_messages("s2", state={"user_id": "bob"}) == []
            await scoped.clear("s1")
            await scoped.clear("none")
            assert await scoped.get_messages("s1") == []
            assert len(await provider.get_messages("s1")) == 4

    asyncio.run(run())


def test_a_limit_never_separates_a_result_from_its_call(opening_async):
    async def run():
        async with opening_async() as store:
            await AgentStoreHistoryProvider(store).save_messages("s1", SAID[:5])
            found = await AgentStoreHistoryProvider(store, limit=2).get_messages("s1")
            assert "tool" not in [found[0].role, *(m.role for m in found[:1])]
            assert written(found[-1:]) == written(SAID[4:5])

    asyncio.run(run())


def test_a_retried_save_changes_nothing(opening_async):
    async def run():
        async with opening_async() as store:
            provider = AgentStoreHistoryProvider(store)
            for key in ("run-1", "run-1", "run-2"):
                await provider.save_messages("s1", SAID[:2], idempotency_key=key)
            assert written(await provider.get_messages("s1")) == written(SAID[:2] * 2)

    asyncio.run(run())


def test_two_processes_append_whole_saves(engine_url):
    async def run():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as two:
            providers = [AgentStoreHistoryProvider(store, user_id="ann") for store in (one, two)]
            pairs = [[Message("user", [f"{n}"]), Message("assistant", [f"{n}"])] for n in range(20)]
            await asyncio.gather(
                *(providers[n % 2].save_messages("s1", pair) for n, pair in enumerate(pairs))
            )
            texts = [m.text for m in await providers[0].get_messages("s1")]
            assert texts[::2] == texts[1::2]
            assert sorted(map(int, texts[::2])) == [*range(20)]

    asyncio.run(run())


def test_a_cancelled_write_is_done_when_the_cancellation_goes_on(opening_async):
    async def run():
        async with opening_async() as store:
            provider = AgentStoreHistoryProvider(store, user_id="ann")
            storage = AgentStoreCheckpointStorage(store, user_id="ann")
            for n in range(20):
                saved = checkpoint(n)
                for write in (
                    provider.save_messages(f"s{n}", SAID),
                    storage.save(saved),
                ):
                    task = asyncio.ensure_future(write)
                    for _ in range(n % 5 + 1):
                        await asyncio.sleep(0)
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                assert len(await provider.get_messages(f"s{n}")) == len(SAID)
                assert await storage.load(saved.checkpoint_id) == saved

    asyncio.run(run())


def test_what_others_have_saved_is_loaded_as_text(engine_url):
    async def run():
        with Store(engine_url) as store:
            store.messages.save("s1", "user", "hello", create_session=True, name="Ann")
            store.messages.save("s1", "developer", "be brief")
        async with AsyncStore(engine_url) as store:
            provider = AgentStoreHistoryProvider(store)
            found = await provider.get_messages("s1")
            assert [(m.role, m.text) for m in found] == [
                ("user", "hello"),
                ("developer", "be brief"),
            ]
            assert found[0].author_name == "Ann"
            await store.messages.save("s1", "assistant", [{"type": "text", "text": "x"}])
            with pytest.raises(InvalidInput, match="session of its own"):
                await provider.get_messages("s1")

    asyncio.run(run())


@dataclass
class Order:
    """The application's own."""

    items: tuple[str, ...]


class Colour(enum.StrEnum):
    RED = "red"


def checkpoint(n, workflow="orders", previous=None, **more):
    time = datetime(2026, 1, 1, tzinfo=UTC).replace(second=n % 60)
    return WorkflowCheckpoint(
        workflow_name=workflow,
        graph_signature_hash="h",
        checkpoint_id=f"{workflow}-{n}",
        previous_checkpoint_id=previous,
        timestamp=time.isoformat(),
        state={"n": n, "text": TRAPS},
        iteration_count=n % 3,
        **more,
    )


OWN = [f"{__name__}:Order", f"{__name__}:Colour"]
MANY = [
    checkpoint(3, previous="gone"),
    checkpoint(1),
    checkpoint(2, previous="orders-1", metadata={"k": [1, None]}),
    checkpoint(1, "other", previous="orders-2"),
    replace(checkpoint(2), state={"order": Order(("a",)), 3: {1, 2}, "t": (1, b"\xff")}),
    checkpoint(4),
    replace(checkpoint(4), state={"x": [math.inf, -0.0, 2**70], "c": Colour.RED}),
    replace(checkpoint(5), timestamp="2026-01-01T07:00:01.5+08:00"),
]


async def checkpoint_script(storage):
    """Save, load and delete in many ways; give all that was answered."""
    told = []

    async def tell(call):
        try:
            told.append(await call)
        except WorkflowCheckpointException:
            told.append(WorkflowCheckpointException)

    await tell(storage.load("none"))
    await tell(storage.get_latest(workflow_name="orders"))
    for each in MANY:
        await tell(storage.save(each))
        await tell(storage.load(each.checkpoint_id))
        await tell(storage.get_latest(workflow_name="orders"))
    for deleted in ("orders-4", "orders-4", "orders-1", "none"):
        for workflow in ("orders", "other", "none"):
            found = await storage.list_checkpoints(workflow_name=workflow)
            told.append(sorted(found, key=lambda each: each.checkpoint_id))
            told.append(sorted(await storage.list_checkpoint_ids(workflow_name=workflow)))
        await tell(storage.delete(deleted))
    await tell(storage.get_latest(workflow_name="orders"))
    return told


def test_it_answers_as_the_framework_s_own_checkpoints_do(opening_async, tmp_path):
    async def run():
        theirs = FileCheckpointStorage(tmp_path, allowed_checkpoint_types=OWN)
        async with opening_async() as store:
            ours = AgentStoreCheckpointStorage(store, allowed_checkpoint_types=OWN)
            assert await checkpoint_script(ours) == await checkpoint_script(theirs)

    asyncio.run(run())


def test_checkpoints_are_listed_by_their_timestamps_whoever_came_first(opening_async):
    async def run():
        async with opening_async() as store:
            storage = AgentStoreCheckpointStorage(store)
            for n in (3, 1, 2):
                await storage.save(checkpoint(n))
            ids = await storage.list_checkpoint_ids(workflow_name="orders")
            assert ids == ["orders-1", "orders-2", "orders-3"]
            listed = await storage.list_checkpoints(workflow_name="orders")
            assert [each.checkpoint_id for each in listed] == ids
            await storage.save(replace(checkpoint(4), timestamp="2026-01-01T00:00:09"))
            assert (await storage.get_latest(workflow_name="orders")).checkpoint_id == "orders-4"
            with pytest.raises(InvalidInput, match="ISO 8601"):
                await storage.save(replace(checkpoint(5), timestamp="soon"))
            with pytest.raises(WrongThread):
                await storage.save(replace(checkpoint(1), workflow_name="other"))

    asyncio.run(run())


def test_classes_that_are_not_allowed_are_not_loaded(opening_async):
    async def run():
        async with opening_async() as store:
            storage = AgentStoreCheckpointStorage(store)
            await storage.save(checkpoint(1))
            await storage.save(replace(checkpoint(2), state={"order": Order(())}))
            for call in (
                storage.load("orders-2"),
                storage.get_latest(workflow_name="orders"),
                storage.list_checkpoints(workflow_name="orders"),
            ):
                with pytest.raises(WorkflowCheckpointException, match="Order"):
                    await call
            assert await storage.delete("orders-2")
            assert await storage.get_latest(workflow_name="orders") == checkpoint(1)

    asyncio.run(run())


def test_a_user_has_checkpoints_of_a_workflow_alone(opening_async):
    async def run():
        async with opening_async() as store:
            ann, bob = (AgentStoreCheckpointStorage(store, user_id=id) for id in ("ann", "bob"))
            await ann.save(checkpoint(1))
            await bob.save(replace(checkpoint(1), checkpoint_id="bob-1"))
            with pytest.raises(WorkflowCheckpointException):
                await bob.load("orders-1")
            assert not await bob.delete("orders-1")
            assert await bob.list_checkpoint_ids(workflow_name="orders") == ["bob-1"]
            again = AgentStoreCheckpointStorage(store.scoped("ann"))
            assert await again.get_latest(workflow_name="orders") == checkpoint(1)
            threads = {each.id: each.user_id async for each in store.checkpoints.iter_threads()}
            assert threads == {"ann/orders": "ann", "bob/orders": "bob"}

    asyncio.run(run())


class Count(Executor):
    """Counts to three, a step at a time, and breaks down once on its way."""

    breaks = False

    @handler
    async def run(self, n: int, context: WorkflowContext[int, int]) -> None:
        if n == 2 and self.breaks:
            raise RuntimeError("power cut")
        await (context.yield_output(n) if n == 3 else context.send_message(n + 1))


def counting(storage, *, breaks=False):
    one, two = Count("one"), Count("two")
    one.breaks = two.breaks = breaks
    builder = WorkflowBuilder(name="count", start_executor=one, checkpoint_storage=storage)
    return builder.add_edge(one, two).add_edge(two, one).build()


def test_a_workflow_goes_on_in_another_process_from_its_latest_checkpoint(opening_async):
    async def run():
        async with opening_async() as store:
            storage = AgentStoreCheckpointStorage(store, user_id="ann")
            with pytest.raises(RuntimeError, match="power cut"):
                await counting(storage, breaks=True).run(1)
        async with opening_async() as store:
            storage = AgentStoreCheckpointStorage(store, user_id="ann")
            latest = await storage.get_latest(workflow_name="count")
            result = await counting(storage).run(checkpoint_id=latest.checkpoint_id)
            assert result.get_outputs() == [3]
            listed = await storage.list_checkpoints(workflow_name="count")
            parents = [each.previous_checkpoint_id for each in listed]
            assert parents == [None, *(each.checkpoint_id for each in listed[:-1])]
            tree = await store.checkpoints.tree("ann/count")
            assert (len(tree.roots), len(tree.leaves)) == (1, 1)

    asyncio.run(run())


def test_only_an_asynchronous_store_will_do(engine_url):
    with Store(engine_url) as store:
        for adapter in (AgentStoreHistoryProvider, AgentStoreCheckpointStorage):
            with pytest.raises(InvalidInput, match="AsyncStore"):
                adapter(store)
