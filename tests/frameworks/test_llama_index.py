"""LlamaIndex's chat store: it does what SimpleChatStore does, and lasts."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy.ext.asyncio import create_async_engine

from agentstore import Store
from agentstore.errors import AgentStoreError, InvalidInput
from agentstore.integrations.llama_index import AgentStoreChatStore, AgentStoreMemoryStore

TRAPS = "NUL \x00, a lone surrogate \ud800, 😀"
MESSAGES = [
    ChatMessage("Be brief.", role="system"),
    ChatMessage(TRAPS, role="user", additional_kwargs={"big": 2**70, "none": None}),
    ChatMessage(role="assistant",
        blocks=[TextBlock(text="Let me look."),
            ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"b": 1, "a": "北京"})]),
    ChatMessage("sunny", role="tool", additional_kwargs={"tool_call_id": "c1"}),
    ChatMessage(role="user", blocks=[ImageBlock(image=b"\x89PNG\xff", image_mimetype="image/png")]),
    ChatMessage("seen", role=MessageRole.CHATBOT),
]  # fmt: skip


async def script(store):
    """Do what a store can do, in many ways; give all that it answered."""
    answers = []

    async def told(answer):  # a SimpleChatStore gives the list itself, which changes
        given = await answer
        answers.append([*given] if isinstance(given, list) else given)

    await told(store.aget_messages("a"))
    await told(store.aget_keys())
    await store.aset_messages("a", MESSAGES[:3])
    await store.async_add_message("a", MESSAGES[3])
    await store.async_add_message("b", MESSAGES[4])
    await told(store.aget_messages("a"))
    await told(store.aget_keys())
    for idx in (1, 7, -1, 0):
        await told(store.adelete_message("a", idx))
        await told(store.aget_messages("a"))
    await told(store.adelete_message("none", 0))
    await told(store.adelete_last_message("none"))
    await told(store.adelete_last_message("a"))
    await store.aset_messages("a", MESSAGES[:])
    await told(store.aget_messages("a"))
    await told(store.adelete_messages("a"))
    await told(store.adelete_messages("none"))
    await told(store.aget_keys())
    return answers


def test_it_answers_as_simple_chat_store_does(opening):
    async def run():
        expected = await script(SimpleChatStore())
        async with opening() as store:
            assert await script(AgentStoreChatStore(store)) == expected

    asyncio.run(run())


class InThisThread:
    """The synchronous methods, under the names of the asynchronous ones."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        method = getattr(self.store, name.removeprefix("async_" if "async" in name else "a"))

        async def call(*args):
            return method(*args)

        return call


def test_the_synchronous_methods_do_the_same(engine_url):
    with Store(engine_url) as store:
        ours = asyncio.run(script(InThisThread(AgentStoreChatStore(store))))
    assert ours == asyncio.run(script(InThisThread(SimpleChatStore())))


def test_messages_outlive_the_store_and_others_see_chat_messages(opening):
    async def run():
        async with opening() as store:
            chats = AgentStoreChatStore(store)
            await chats.aset_messages("a", MESSAGES)
        with pytest.raises(AgentStoreError):
            await chats.aget_messages("a")
        async with opening() as store:
            assert await AgentStoreChatStore(store).aget_messages("a") == MESSAGES

    asyncio.run(run())


def test_others_see_chat_messages_and_what_they_save_is_read(engine_url):
    with Store(engine_url) as store:
        chats = AgentStoreChatStore(store)
        chats.set_messages("a", MESSAGES)
        roles = [message["role"] for message in store.messages.chat("a")]
        assert roles == ["system", "user", "assistant", "tool", "user", "assistant"]
        assert len(store.messages.find_by_tool("a", "look").items) == 1
        store.messages.save("a", "user", "from elsewhere")
        store.messages.save("a", "assistant", [{"type": "text", "text": "blocks"}])
        told = chats.get_messages("a")[-2:]
        assert [(m.role.value, m.content) for m in told] == [
            ("user", "from elsewhere"),
            ("assistant", "blocks"),
        ]
        alice = store.users.create("Alice")
        assert AgentStoreChatStore(store.scoped(alice.id)).get_keys() == []
        with pytest.raises(InvalidInput, match="Pass an AsyncStore"):
            asyncio.run(AgentStoreChatStore(None).aget_keys())


def test_a_memory_of_llama_index_goes_on_after_a_restart(engine_url):
    for n in range(2):
        with Store(engine_url) as store:
            memory = ChatMemoryBuffer.from_defaults(
                chat_store=AgentStoreChatStore(store),
                chat_store_key="a",
                tokenizer_fn=str.split,
            )
            assert len(memory.get()) == n
            memory.put(ChatMessage(f"message {n}", role="user"))


def test_keys_at_once_and_ten_thousand_messages(opening_async):
    async def run():
        async with opening_async() as first, opening_async() as second:
            stores = [AgentStoreChatStore(first), AgentStoreChatStore(second)]
            await asyncio.gather(
                *(
                    store.async_add_message(f"key {n % 3}", ChatMessage(str(n)))
                    for n in range(30)
                    for store in stores
                )
            )
            counts = [len(await stores[0].aget_messages(f"key {n}")) for n in range(3)]
            assert counts == [20, 20, 20]
            many = [ChatMessage(str(n)) for n in range(10_100)]
            await stores[0].aset_messages("many", many)
            assert await stores[1].aget_messages("many") == many

    asyncio.run(run())


def test_a_memory_works_on_an_asynchronous_store(opening):
    async def run():
        async with opening() as store:
            chats = AgentStoreChatStore(store)
            memory = ChatMemoryBuffer.from_defaults(
                chat_store=chats, chat_store_key="m", tokenizer_fn=str.split
            )
            engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=memory)
            await engine.achat("hello")
            said = [message.content for message in await memory.aget_all()]
            assert said[0] == "hello"
            assert len(said) == 2
            for call in (memory.get, memory.get_all):
                assert [each.content for each in await asyncio.to_thread(call)] == said
            await asyncio.to_thread(memory.put, MESSAGES[0])
            await memory.areset()
            assert await memory.aget_all() == []

    asyncio.run(run())


def test_every_synchronous_method_works_in_a_thread_beside_the_loop(opening_async):
    def work(chats):
        chats.set_messages("a", MESSAGES)
        chats.add_message("a", MESSAGES[0])
        assert chats.get_keys() == ["a"]
        assert len(chats.get_messages("a")) == len(MESSAGES) + 1
        assert chats.delete_message("a", 0) == MESSAGES[0]
        assert chats.delete_last_message("a") == MESSAGES[0]
        assert len(chats.delete_messages("a")) == len(MESSAGES) - 1
        assert chats.delete_message("a", 0) is None
        assert chats.get_messages("a") == []

    async def run():
        async with opening_async() as store:
            chats = AgentStoreChatStore(store)
            await asyncio.to_thread(work, chats)
            with pytest.raises(InvalidInput, match="asynchronous method"):
                chats.get_messages("a")  # in the loop itself it would wait for itself
        return chats

    closed = asyncio.run(run())
    with pytest.raises(InvalidInput, match="asynchronous method"):
        closed.get_messages("a")


ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED


async def queue_script(store):
    """Do what a store of ``Memory`` can do; give all that it answered."""
    answers = []

    async def tell(call):
        answers.append(await call)
        for status in (ACTIVE, ARCHIVED, None):
            answers.append(await store.get_messages("a", status))
            answers.append(await store.count_messages("a", status))

    await tell(store.get_keys())
    for emptied in (store.delete_messages("a"), store.archive_oldest_messages("a", 1)):
        await tell(emptied)
    await tell(store.add_messages("a", MESSAGES[:4]))
    await tell(store.add_message("b", MESSAGES[4]))
    await tell(store.archive_oldest_messages("a", 2))
    await tell(store.add_message("a", MESSAGES[4], status=ARCHIVED))
    await tell(store.add_message("a", MESSAGES[5]))
    for limit, offset in ((1, None), (2, 1), (0, 0), (9, 2), (1, 9)):
        await tell(store.get_messages("a", limit=limit, offset=offset))
    await tell(store.archive_oldest_messages("a", 1))
    await tell(store.delete_oldest_messages("a", 1))
    await tell(store.delete_messages("a", ARCHIVED))
    await tell(store.delete_oldest_messages("a", 9))
    await tell(store.set_messages("a", MESSAGES, ARCHIVED))
    await tell(store.set_messages("a", MESSAGES[2:]))
    await tell(store.delete_messages("a", ACTIVE))
    answers.append(sorted(await store.get_keys()))
    await tell(store.delete_messages("b"))
    answers.append(await store.get_keys())
    return answers


def test_the_store_of_memory_answers_as_llama_index_s_own_does(opening, tmp_path):
    async def run():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'theirs.db'}")
        expected = await queue_script(SQLAlchemyChatStore("messages", async_engine=engine))
        await engine.dispose()
        async with opening() as store:
            assert await queue_script(AgentStoreMemoryStore(store)) == expected

    asyncio.run(run())


def remembering(store, **options):
    return Memory.from_defaults(
        session_id="a",
        token_limit=40,
        token_flush_size=10,
        tokenizer_fn=str.split,
        chat_store=store,
        **options,
    )


def test_memory_archives_what_is_too_long_and_goes_on_after_a_restart(opening, tmp_path):
    async def run():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'theirs.db'}")
        theirs = remembering(SQLAlchemyChatStore("messages", async_engine=engine))
        for n in range(8):
            async with opening() as store:
                for memory in (theirs, remembering(AgentStoreMemoryStore(store))):
                    await memory.aput(ChatMessage(f"question {n} " + "word " * 4, role="user"))
                    await memory.aput(ChatMessage(f"answer {n}", role="assistant"))
        async with opening() as store:
            ours = remembering(AgentStoreMemoryStore(store))
            assert await ours.aget() == await theirs.aget()
            archived = await ours.aget_all(ARCHIVED)
            assert archived == await theirs.aget_all(ARCHIVED) != []
            assert await AgentStoreChatStore(store).aget_messages("a") == await theirs.aget_all()
        await engine.dispose()

    asyncio.run(run())


def test_a_cancelled_write_of_memory_is_done_when_the_cancellation_goes_on(opening):
    async def run():
        async with opening() as store:
            memory = AgentStoreMemoryStore(store)
            for n in range(10):
                task = asyncio.ensure_future(memory.add_messages(f"{n}", MESSAGES))
                for _ in range(n % 5 + 1):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                assert await memory.count_messages(f"{n}") == len(MESSAGES)

    asyncio.run(run())


def test_a_cancelled_write_in_a_thread_is_done_when_the_cancellation_goes_on(engine_url):
    async def run(chats):
        for n in range(10):
            adding = asyncio.create_task(chats.async_add_message("a", MESSAGES[0]))
            for _ in range(n % 3 + 1):
                await asyncio.sleep(0)
            adding.cancel()
            await asyncio.wait([adding])
            assert adding.cancelled()
            assert len(chats.get_messages("a")) == n + 1

    with Store(engine_url) as store:
        asyncio.run(run(AgentStoreChatStore(store)))


def test_the_synchronous_methods_of_memory_need_a_synchronous_store(engine_url):
    with Store(engine_url) as store:
        memory = remembering(AgentStoreMemoryStore(store), chat_history=MESSAGES[:2])
        memory.put(MESSAGES[5])
        assert memory.get_all() == [*MESSAGES[:2], MESSAGES[5]]
        memory.reset()
        assert memory.get() == []


@pytest.mark.parametrize("wrong", ["hi", {"role": "user", "content": "hi"}, None])
def test_what_is_no_message_of_the_framework_is_refused(wrong, engine_url):
    with Store(engine_url) as store:
        chats, memory = AgentStoreChatStore(store), AgentStoreMemoryStore(store)
        for add in (chats.add_message, lambda *a: asyncio.run(memory.add_message(*a))):
            with pytest.raises(InvalidInput, match="must be a ChatMessage of the framework"):
                add("a", wrong)
        assert chats.get_keys() == []


def test_a_message_of_memory_is_deleted_by_its_number(opening):
    async def run():
        async with opening() as store:
            memory = AgentStoreMemoryStore(store)
            assert await memory.delete_message("a", 1) is None
            await memory.set_messages("a", MESSAGES)
            assert await memory.delete_message("a", 2) == MESSAGES[1]
            assert await memory.delete_message("a", 2) is None
            assert await memory.get_messages("a") == [MESSAGES[0], *MESSAGES[2:]]
            many = [ChatMessage(str(n)) for n in range(5_100)]
            await memory.set_messages("a", many)
            assert await memory.archive_oldest_messages("a", 5_050) == many[:5_050]
            await memory.delete_messages("a", ARCHIVED)
            assert await memory.get_messages("a", None) == many[5_050:]

    asyncio.run(run())


@pytest.mark.parametrize("name", ["", "n" * 300, "名" * 300, "look"])
def test_a_tool_of_any_name_is_stored(name, engine_url):
    with Store(engine_url) as store:
        block = ToolCallBlock(tool_call_id="c", tool_name=name, tool_kwargs={})
        asked = ChatMessage(role="assistant", blocks=[block])
        AgentStoreChatStore(store).add_message("t", asked)
        assert AgentStoreChatStore(store).get_messages("t") == [asked]
        assert store.messages.chat("t", None, unanswered="keep")[0]["tool_calls"][0]["id"] == "c"
        found = store.messages.find_by_tool("t", "look").items
        assert len(found) == (name == "look")
