"""A2A's stores: they do what its stores in memory do, last, and keep users apart."""

from __future__ import annotations

import asyncio
import random

import pytest
from a2a.auth.user import User
from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types.a2a_pb2 import (
    Artifact,
    AuthenticationInfo,
    ListTasksRequest,
    Message,
    Part,
    Role,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import InvalidParamsError
from cryptography.fernet import Fernet
from google.protobuf.json_format import ParseDict
from google.protobuf.timestamp_pb2 import Timestamp

from agentstore import AsyncStore, Store
from agentstore.errors import InvalidInput
from agentstore.integrations.a2a import (
    AgentStorePushNotificationConfigStore,
    AgentStoreTaskStore,
    AgentStoreVersionedTaskStore,
)

PRIVATE = "s3cret"
FIRST = "dA=="  # as SDKs before 1.3 named the task t
TRAPS = "NUL \x00, 😀, 北京"


class Named(User):
    def __init__(self, name):
        self.user_name = name

    is_authenticated = True
    user_name = ""


ANN, BOB, NOBODY = *(ServerCallContext(user=Named(n)) for n in ("ann", "bob")), ServerCallContext()
WHO = (ANN, BOB, NOBODY)


def say(text, role=Role.ROLE_AGENT, id="m"):
    return Message(message_id=id, role=role, parts=[Part(text=text)])


def a_task(id="t", texts=("hello",), said=None, context="c", state=TaskState.TASK_STATE_WORKING):
    status = TaskStatus(state=state, timestamp=Timestamp(seconds=1, nanos=1))
    if said is not None:
        status.message.CopyFrom(say(said))
    roles = (Role.ROLE_USER, Role.ROLE_AGENT)
    history = [say(text, roles[n % 2]) for n, text in enumerate(texts)]
    return Task(id=id, context_id=context, status=status, history=history)


WHOLE = Task(
    id=f"of {TRAPS}/any length" * 40,
    context_id=TRAPS,
    status=TaskStatus(
        state=TaskState.TASK_STATE_COMPLETED,
        message=say(TRAPS),
        timestamp=Timestamp(seconds=-1, nanos=123_456_789),
    ),
    history=[
        say(TRAPS, Role.ROLE_USER),
        Message(message_id="m", role=Role.ROLE_AGENT,
            parts=[Part(raw=b"\x00\xff"), Part(text="x")]),
        Message(),
        say("of nobody's role", Role.ROLE_UNSPECIFIED),
    ],
    artifacts=[
        Artifact(artifact_id="a", name=TRAPS,
            parts=[Part(text="one"), Part(text=""), Part(url="file:///x", filename=TRAPS)]),
        Artifact(),
    ],
    metadata={"key": {"deep": [1.5, None, True, "z"]}, "": 2**53},
)  # fmt: skip


def run(coroutine):
    return asyncio.run(coroutine)


def test_a_task_comes_back_equal_in_another_process(engine_url):
    data = Part()
    ParseDict({"data": {"a": [1, {"b": None}]}}, data)
    whole = Task()
    whole.CopyFrom(WHOLE)
    whole.history[1].parts.append(data)
    tasks = [whole, Task(id="empty"), Task(id="bare", status=TaskStatus(), metadata={})]

    async def save():
        async with AsyncStore(engine_url) as store:
            for task in tasks:
                await AgentStoreTaskStore(store).save(task, ANN)

    async def read():
        async with AsyncStore(engine_url) as store:
            return [await AgentStoreTaskStore(store).get(task.id, ANN) for task in tasks]

    run(save())
    assert run(read()) == tasks


async def script(tasks, configs, seed):
    """Save, change, list and delete at random, for three users; give all that was answered."""
    dice, answers = random.Random(seed), []  # noqa: S311
    states = [*TaskState.values()]
    for _ in range(60):
        who, id = dice.choice(WHO), f"t{dice.randrange(6)}"
        action = dice.choice(("save", "save", "save", "get", "list", "list", "delete"))
        if action == "save":
            task = await tasks.get(id, who) or Task(id=id, context_id=dice.choice("cd"))
            task.status.CopyFrom(TaskStatus(state=dice.choice(states)))
            if dice.random() < 0.7:
                task.status.timestamp.FromNanoseconds(dice.randrange(-2, 3))
            if dice.random() < 0.5:
                task.status.message.CopyFrom(say(str(dice.random())))
            if task.history and dice.random() < 0.3:
                del task.history[dice.randrange(len(task.history)) :]
            if task.artifacts and dice.random() < 0.5:
                task.artifacts[0].parts.append(Part(text=str(dice.random())))
            task.history.append(say(str(dice.random()), dice.choice((1, 2))))
            if dice.random() < 0.4:
                task.artifacts.append(Artifact(artifact_id="a", parts=[Part(text="of it")]))
            answers.append(await tasks.save(task, who))
        elif action == "list":
            asked = ListTasksRequest(
                context_id=dice.choice(("", "c", "d")),
                status=dice.choice((0, 0, *states)),
                page_size=dice.choice((0, 1, 2)),
            )
            if dice.random() < 0.3:
                asked.status_timestamp_after.FromNanoseconds(dice.randrange(-2, 3))
            while True:
                answers.append(await tasks.list(asked, who))
                if not (following := answers[-1].next_page_token):
                    break
                asked.page_token = following
                if dice.random() < 0.3:
                    answers.append(await tasks.delete(answers[-1].tasks[-1].id, who))
        else:
            answers.append(await getattr(tasks, action)(id, who))
    for _ in range(40):
        who, id = dice.choice(WHO), f"t{dice.randrange(9, 11)}"
        config = TaskPushNotificationConfig(id=dice.choice(("", "1", "2")), url=str(dice.random()))
        action = dice.randrange(4)
        if action < 2:
            answers.append(await configs.set_info(id, config, who))
        elif action == 2:
            answers.append(await configs.delete_info(id, who, dice.choice((None, "1", "3"))))
        for found in (await configs.get_info(id, who), await configs.get_info_for_dispatch(id)):
            answers.append(sorted(found, key=lambda config: (config.id, config.url)))
    return answers


@pytest.mark.parametrize("seed", range(4))
def test_they_answer_as_a2a_s_stores_in_memory_do(opening_async, seed):
    async def compare():
        expected = await script(InMemoryTaskStore(), InMemoryPushNotificationConfigStore(), seed)
        async with opening_async() as store:
            ours = AgentStoreTaskStore(store), AgentStorePushNotificationConfigStore(store)
            assert await script(*ours, seed) == expected

    run(compare())


def test_a_page_token_must_be_of_the_list(opening_async):
    async def ask():
        async with opening_async() as store:
            tasks = AgentStoreTaskStore(store)
            await tasks.save(a_task("t"), ANN)
            assert (await tasks.list(ListTasksRequest(page_token=FIRST), ANN)).total_size == 1
            for token in ("dGg=", "?", "invalid"):
                with pytest.raises(InvalidParamsError):
                    await tasks.list(ListTasksRequest(page_token=token), ANN)
            with pytest.raises(InvalidParamsError):  # another user's is no task in this list
                await tasks.list(ListTasksRequest(page_token=FIRST), BOB)

    run(ask())


def test_another_user_s_task_is_as_if_it_did_not_exist(opening_async):
    async def try_all():
        async with opening_async() as store:
            tasks, configs = (
                AgentStoreTaskStore(store),
                AgentStorePushNotificationConfigStore(store),
            )
            await tasks.save(a_task(texts=["of Ann"]), ANN)
            await configs.set_info("t", TaskPushNotificationConfig(url="ann"), ANN)
            for other in (BOB, NOBODY):
                assert await tasks.get("t", other) is None
                assert (await tasks.list(ListTasksRequest(), other)).total_size == 0
                await tasks.delete("t", other)
                await configs.delete_info("t", other)
                assert await configs.get_info("t", other) == []
                await tasks.save(a_task(texts=["of another"]), other)
            assert await tasks.get("t", ANN) == a_task(texts=["of Ann"])
            assert [found.url for found in await configs.get_info("t", ANN)] == ["ann"]
            assert await tasks.get("t", BOB) == a_task(texts=["of another"])
            found = await store.scoped("bob").sessions.list()
            assert [session.id for session in found.items] == [tasks.session_id("t", BOB)]

    run(try_all())


def test_the_owner_resolver_says_whose_a_task_is(opening_async):
    async def by_tenant():
        async with opening_async() as store:
            tasks = AgentStoreTaskStore(store, lambda context: f"of {context.tenant}")
            await tasks.save(a_task(), ServerCallContext(tenant="one"))
            assert await tasks.get("t", ServerCallContext(tenant="two")) is None
            assert (await store.sessions.list(user_id="of one")).items

    run(by_tenant())


def test_of_two_writers_one_task_is_there_whole(engine_url):
    async def write(store, texts):
        tasks = AgentStoreTaskStore(store)
        for n in range(8):
            await tasks.save(a_task(texts=[f"{text} {n}" for text in texts], said=texts[0]), ANN)

    async def race():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as other:
            short, long = ("short", "er"), ("long", "er", "than", "the", "other")
            await asyncio.gather(write(one, short), write(other, long))
            return await AgentStoreTaskStore(one).get("t", ANN), short, long

    found, *written = run(race())
    assert found in [
        a_task(texts=[f"{text} 7" for text in texts], said=texts[0]) for texts in written
    ]


def test_with_versions_nobody_s_change_is_lost(engine_url):
    async def add(tasks, name):
        """Add to the history, reading it again whenever somebody else was faster."""
        for n in range(4):
            while True:
                stored = await tasks.get("t", ANN)
                task = a_task(texts=()) if stored is None else stored.task
                task.history.append(say(f"{name} {n}"))
                version = TaskVersion.MISSING if stored is None else stored.version
                try:
                    new = await tasks.save(
                        task, event=None, prev=None, prev_version=version, context=ANN
                    )
                except ConcurrentTaskModificationError:
                    continue
                assert new.is_after(version)
                break

    async def race():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as other:
            stores = [AgentStoreVersionedTaskStore(store) for store in (one, other)]
            await asyncio.gather(*(add(stores[n % 2], str(n)) for n in range(4)))
            return await stores[0].get("t", ANN)

    said = [message.parts[0].text for message in run(race()).task.history]
    assert sorted(said) == [f"{name} {n}" for name in range(4) for n in range(4)]


def test_a_task_that_is_cancelled_needs_no_version_and_stays_so(opening_async):
    async def cancel():
        async with opening_async() as store:
            tasks, plain = AgentStoreVersionedTaskStore(store), AgentStoreTaskStore(store)
            done = a_task(state=TaskState.TASK_STATE_CANCELED)

            async def save(task, version=TaskVersion.MISSING):
                return await tasks.save(
                    task, event=None, prev=None, prev_version=version, context=ANN
                )

            async def refused(*args):
                with pytest.raises(ConcurrentTaskModificationError):
                    await save(*args)

            await refused(done)
            assert await tasks.get("t", ANN) is None
            configs = AgentStorePushNotificationConfigStore(store)
            await configs.set_info("t", TaskPushNotificationConfig(), ANN)
            first = await save(a_task())
            await configs.set_info("t", TaskPushNotificationConfig(id="1"), ANN)
            second = await save(a_task(said="on"), first)
            await refused(a_task(), first)
            await refused(a_task())
            await plain.save(a_task(said="by another"), ANN)
            await refused(a_task(), second)
            await save(done, first)
            await refused(done)
            assert (await tasks.get("t", ANN)).task == done
            assert (await tasks.list(ListTasksRequest(), ANN)).tasks == [done]

    run(cancel())


def test_two_processes_may_set_configurations_at_once(engine_url):
    async def race():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as other:
            stores = [AgentStorePushNotificationConfigStore(store) for store in (one, other)]
            setting = (
                stores[n % 2].set_info("t", TaskPushNotificationConfig(id=str(n)), ANN)
                for n in range(8)
            )
            await asyncio.gather(*setting, AgentStoreTaskStore(one).save(a_task(), ANN))
            deleting = (stores[n % 2].delete_info("t", ANN, str(n)) for n in range(6))
            await asyncio.gather(*deleting)
            return await stores[0].get_info("t", ANN), await AgentStoreTaskStore(one).get("t", ANN)

    found, task = run(race())
    assert ({config.id for config in found}, task) == ({"6", "7"}, a_task())


def test_a_cancelled_save_leaves_the_task_as_it_was_or_as_it_was_to_be(opening_async):
    async def cancel():
        async with opening_async() as store:
            tasks = AgentStoreTaskStore(store)
            before = a_task(texts=["one"])
            await tasks.save(before, ANN)
            for steps in range(12):
                after = a_task(texts=[*"ab", str(steps)], said="done")
                saving = asyncio.create_task(tasks.save(after, ANN))
                for _ in range(steps):
                    await asyncio.sleep(0)
                saving.cancel()
                await asyncio.wait([saving])
                found = await tasks.get("t", ANN)
                assert found in (before, after)
                before = found

    run(cancel())


def test_a_task_is_a_conversation_to_read_and_to_search(engine_url):
    async def save():
        async with AsyncStore(engine_url) as store:
            tasks = AgentStoreTaskStore(store)
            task = a_task(texts=["How is the aubergine?"], said="Which one?")
            await tasks.save(task, ANN)
            task.history.append(task.status.message)
            task.history.append(say("The blue one.", Role.ROLE_USER))
            task.artifacts.append(Artifact(artifact_id="a", parts=[Part(text="Fine.")]))
            task.status.message.CopyFrom(say("That is all."))
            await tasks.save(task, ANN)
            return tasks.session_id("t", ANN)

    id = run(save())
    with Store(engine_url) as store:
        shown = [(message.role, message.content) for message in store.messages.history(id)]
        assert shown == [
            ("user", "How is the aubergine?"),
            ("assistant", "Which one?"),
            ("user", "The blue one."),
            ("assistant", "Fine."),
            ("assistant", "That is all."),
        ]
        assert [hit.message.session_id for hit in store.messages.search("aubergine")] == [id]
        assert store.sessions.find_ids([id[:8]]) == [id]


def test_a_save_writes_only_what_has_changed(opening_async):
    async def save():
        async with opening_async() as store:
            tasks = AgentStoreTaskStore(store)
            task = a_task(texts=["one", "two"])
            await tasks.save(task, ANN)
            first, _ = await store.messages.history(tasks.session_id("t", ANN))
            await store.messages.update(first.id, content="corrected")
            task.history.append(say("three"))
            await tasks.save(task, ANN)
            then = await store.messages.history(tasks.session_id("t", ANN))
            assert [message.content for message in then] == ["corrected", "two", "three"]
            task.history[0].role = Role.ROLE_AGENT
            await tasks.save(task, ANN)
            assert await tasks.get("t", ANN) == task

    run(save())


def test_what_others_save_in_a_task_s_session_stays_there(opening_async):
    async def save():
        async with opening_async() as store:
            tasks = AgentStoreTaskStore(store)
            await tasks.save(a_task(), ANN)
            id = tasks.session_id("t", ANN)
            await store.messages.save(id, "system", "Be brief.", external_id="own")
            await store.sessions.patch(id, state={"mine": 1}, metadata={"mine": 2})
            await tasks.save(a_task(texts=["other"]), ANN)
            assert await tasks.get("t", ANN) == a_task(texts=["other"])
            assert await store.messages.find_by_external_id(id, "own") is not None
            found = await store.sessions.get(id)
            assert (found.state["mine"], found.metadata["mine"]) == (1, 2)

    run(save())


def test_with_a_user_go_tasks_and_configurations(opening_async):
    async def delete():
        async with opening_async() as store:
            tasks, configs = (
                AgentStoreTaskStore(store),
                AgentStorePushNotificationConfigStore(store),
            )
            for who in (ANN, BOB):
                await tasks.save(a_task(), who)
                await configs.set_info("t", TaskPushNotificationConfig(url="x"), who)
            await store.users.delete("ann")
            assert await tasks.get("t", ANN) is None
            assert len(await configs.get_info_for_dispatch("t")) == 1
            await tasks.delete("t", BOB)
            assert await configs.get_info_for_dispatch("t") == []
            assert (await store.sessions.list()).items == ()

    run(delete())


def test_configurations_are_of_a_task_that_may_come_later_and_of_no_other_session(opening_async):
    async def ask():
        async with opening_async() as store:
            configs = AgentStorePushNotificationConfigStore(store)
            await configs.set_info("t", TaskPushNotificationConfig(url="x"), ANN)
            assert await AgentStoreTaskStore(store).get("t", ANN) is None
            id = configs.session_id("t", ANN)
            alike = id[:-1] + ("0" if id[-1] != "0" else "1")
            await store.sessions.create(id=alike, state={"push:1": {"id": "1", "url": "y"}})
            assert [found.url for found in await configs.get_info_for_dispatch("t")] == ["x"]

    run(ask())


def test_an_encrypted_configuration_needs_its_key(opening_async):
    key = Fernet.generate_key()
    config = TaskPushNotificationConfig(
        id="1", task_id="t", token=PRIVATE, authentication=AuthenticationInfo(credentials=PRIVATE)
    )

    async def seal():
        async with opening_async() as store:
            configs = AgentStorePushNotificationConfigStore(store, encryption_key=key)
            open_ones = AgentStorePushNotificationConfigStore(store)
            await open_ones.set_info("t", TaskPushNotificationConfig(id="0"), ANN)
            assert await configs.set_info("t", config, ANN) == config
            found = await store.sessions.get(configs.session_id("t", ANN))
            assert PRIVATE not in str(found)
            assert config in await configs.get_info("t", ANN)
            assert len(await configs.get_info_for_dispatch("t")) == 2
            wrong = AgentStorePushNotificationConfigStore(
                store, encryption_key=Fernet.generate_key()
            )
            for without in (open_ones, wrong):
                with pytest.raises(InvalidInput, match="encryption_key"):
                    await without.get_info("t", ANN)
                await without.delete_info("t", BOB)

    run(seal())


def test_only_an_asynchronous_store_will_do(engine_url):
    with Store(engine_url) as store, pytest.raises(InvalidInput, match="AsyncStore"):
        AgentStoreTaskStore(store)
