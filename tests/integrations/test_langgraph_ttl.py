"""Threads that LangGraph's savers keep for a time after their last use, as its ``ttl`` says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph

from agentstore import AsyncStore, Store
from agentstore.errors import DatabaseBusy, InvalidInput, NotAllowedInScope, NotFound
from agentstore.integrations.langgraph import (
    AgentStoreBaseStore,
    AgentStoreSaver,
    AsyncAgentStoreBaseStore,
    AsyncAgentStoreSaver,
)
from tests.contract.clocks import Clock
from tests.integrations.test_langgraph import Saver

MINUTE = timedelta(minutes=1)
TTL = {"default_ttl": 60}

Opening = Callable[..., AbstractAsyncContextManager[Saver]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sync", "async"])
def opened(engine_url: str, clock: Clock, request: pytest.FixtureRequest) -> Opening:
    """Give what opens a saver, of each kind; each time it is called it is another process's."""

    @asynccontextmanager
    async def opening(ttl: Any = TTL, user: str | None = None) -> AsyncIterator[Saver]:
        if request.param == "sync":
            with Store(engine_url, clock=clock) as store:
                scope: Any = store if user is None else store.scoped(user)
                yield Saver(AgentStoreSaver(scope, ttl=ttl), asynchronous=False)
        else:
            async with AsyncStore(engine_url, clock=clock) as store:
                scope = store if user is None else store.scoped(user)
                yield Saver(AsyncAgentStoreSaver(scope, ttl=ttl), asynchronous=True)

    return opening


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name, "checkpoint_ns": ""}}


async def done(result: Any) -> Any:
    return await result if isinstance(result, Awaitable) else result


async def swept(saver: Saver) -> int:
    found: int = await done(saver.saver.sweep_ttl())
    return found


async def threads(saver: Saver) -> set[str]:
    page = await done(saver.saver._store.checkpoints.threads())
    return {each.id for each in page}


def test_a_thread_goes_whole_when_it_was_not_used_for_that_long(
    opened: Opening, clock: Clock
) -> None:
    async def test() -> None:
        async with opened() as saver:
            checkpoints = saver.saver._store.checkpoints
            at = {}
            for name in ("idle", "put into", "written to", "read"):
                at[name] = await saver.put({"n": [1, 2, 3]}, "0001", thread(name))
                await saver("put_writes", at[name], [("n", 1)], "task")
            await done(checkpoints.put("not of LangGraph", {}))
            clock.now += 40 * MINUTE
            assert await swept(saver) == 0
            async with opened() as other:
                await other.put({"n": [4]}, "0002", at["put into"])
                await other("put_writes", at["written to"], [("n", 2)], "task 2")
                assert await other("get_tuple", thread("read")) is not None
            clock.now += 40 * MINUTE
            assert await swept(saver) == 1
            kept = {"put into", "written to", "read"}
            assert await threads(saver) == kept | {"not of LangGraph"}
            assert await saver("get_tuple", thread("idle")) is None
            clock.now += 40 * MINUTE
            assert await swept(saver) == 3
            with pytest.raises(NotFound):  # by a run that was in it
                await saver("put_writes", at["read"], [("n", 2)], "task")

    asyncio.run(test())


def test_reading_is_no_use_where_that_is_said(opened: Opening, clock: Clock) -> None:
    async def test() -> None:
        async with opened({**TTL, "refresh_on_read": False}) as saver:
            await saver.put({"n": 1}, "0001")
            clock.now += 67 * MINUTE
            assert await saver("get_tuple", thread("thread")) is not None
            assert await swept(saver) == 1

    asyncio.run(test())


def test_however_often_a_thread_is_read_that_is_written_down_once_in_a_tenth_of_its_time(
    opened: Opening, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("agentstore.integrations.langgraph.savers.monotonic", lambda: now[0])
    written: list[bool] = []

    async def read(saver: Saver, times: int) -> int:
        """Give how often it asked for a write, and forget it."""
        checkpoints = saver.saver._checkpoints
        touch = checkpoints.touch

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(checkpoints, name)

            def touch(self, *args: Any, **kwargs: Any) -> Any:
                written.append(True)
                return touch(*args, **kwargs)

        written.clear()
        saver.saver._checkpoints = Watched()
        for _ in range(times):
            assert await saver("get_tuple", thread("thread")) is not None
        saver.saver._checkpoints = checkpoints
        return len(written)

    async def touched(saver: Saver) -> Any:
        found = await done(
            saver.saver._checkpoints.writes("thread", "\x01touched", namespace="\x01touched")
        )
        return [each.value for each in found]

    async def test() -> None:
        async with opened() as saver:
            await saver.put({"n": 1}, "0001")
            assert await read(saver, 20) == 0  # to put it was a use
        async with opened() as saver:
            assert await read(saver, 20) == 1
            first = await touched(saver)
            clock.now += 5 * MINUTE
            now[0] += 5 * 60
            assert await read(saver, 20) == 0
            async with opened() as other:
                assert await read(other, 20) == 1
                assert await touched(other) == first  # it found that this was done
            clock.now += 5 * MINUTE
            now[0] += 5 * 60
            assert await read(saver, 20) == 1
            assert await touched(saver) > first
        async with opened(None) as saver:
            assert await read(saver, 20) == 0
            assert await swept(saver) == 0

    asyncio.run(test())


def test_a_read_succeeds_where_its_use_cannot_be_written_down(
    opened: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with opened() as saver:
            await saver.put({"n": "a secret"}, "0001")
        async with opened() as saver:

            def busy(*_: Any, **__: Any) -> Any:
                raise DatabaseBusy("Others write.")

            kind = type(saver.saver._checkpoints)
            monkeypatch.setattr(kind, "touch", busy)
            found = await saver("get_tuple", thread("thread"))
            assert found.checkpoint["channel_values"] == {"n": "a secret"}
            monkeypatch.undo()

    asyncio.run(test())
    [warning] = caplog.messages
    assert "secret" not in warning


def _more(said: list[str], more: list[list[str]]) -> list[str]:
    return [*said, *(each for some in more for each in some)]


class Log(TypedDict):
    said: Annotated[list[str], DeltaChannel(_more)]


def test_what_a_fork_or_a_delta_channel_needs_is_there_as_long_as_its_thread(
    opened: Opening, clock: Clock
) -> None:
    builder = StateGraph(Log)
    builder.add_node("answer", lambda state: {"said": [f"{len(state['said'])}"]})
    builder.add_edge(START, "answer")

    async def test() -> None:
        async with opened() as saver:
            graph = builder.compile(checkpointer=saver.saver)

            async def say(name: str) -> int:
                said = {"said": ["hello"]}
                return len((await saver.do(graph, "invoke", said, thread(name)))["said"])

            for number in range(1, 4):
                assert await say("source") == 2 * number
            clock.now += 50 * MINUTE
            await saver("copy_thread", "source", "copy")
            clock.now += 20 * MINUTE
            assert await swept(saver) == 1
            assert await threads(saver) == {"copy"}
            assert await say("copy") == 8
            clock.now += 50 * MINUTE
            assert await swept(saver) == 0
            assert await say("copy") == 10

    asyncio.run(test())


def test_two_may_sweep_at_once(opened: Opening, clock: Clock) -> None:
    async def test() -> None:
        async with opened() as one, opened() as other:
            for number in range(20):
                await one.put({"n": number}, "0001", thread(f"thread-{number}"))
            clock.now += 70 * MINUTE
            if one.asynchronous:
                counts = await asyncio.gather(swept(one), swept(other))
            else:
                sweeps = (asyncio.to_thread(each.saver.sweep_ttl) for each in (one, other))
                counts = await asyncio.gather(*sweeps)
            assert sum(counts) + await swept(one) == 20
            assert await threads(one) == set()

    asyncio.run(test())


def test_a_users_threads_are_used_in_the_users_scope_and_swept_outside(
    opened: Opening, clock: Clock
) -> None:
    async def test() -> None:
        async with opened() as saver:
            await done(saver.saver._store.users.create("Alice", id="alice"))
            async with opened(user="alice") as hers:
                await hers.put({"n": 1}, "0001", thread("hers"))
                clock.now += 50 * MINUTE
                async with opened(user="alice") as later:
                    assert await later("get_tuple", thread("hers")) is not None
                with pytest.raises(NotAllowedInScope):
                    await swept(hers)
            clock.now += 50 * MINUTE
            assert await swept(saver) == 0
            clock.now += 50 * MINUTE
            assert await swept(saver) == 1

    asyncio.run(test())


@pytest.mark.parametrize(
    "ttl",
    [
        60,
        {"default_ttl": 0},
        {"default_ttl": -1},
        {"default_ttl": float("nan")},
        {"default_ttl": True},
        {"default_ttl": "60"},
        {"default_ttl": 1e12},
        {"default_ttl": 60, "refresh_on_read": "yes"},
        {"default_ttl": 60, "sweep_interval_minutes": 0},
        {"default_ttl": 60, "strategy": "keep_latest"},
        {"default_tll": 60},
    ],
)
def test_what_is_no_time_to_live_is_refused(ttl: Any) -> None:
    with Store("sqlite://") as store, pytest.raises(InvalidInput):
        AgentStoreSaver(store, ttl=ttl)


def test_a_sweeper_sweeps_until_it_is_stopped_or_the_store_is_closed(clock: Clock) -> None:
    swept = threading.Event()

    class Swept(AgentStoreSaver):
        def sweep_ttl(self) -> int:
            found = super().sweep_ttl()
            swept.set()
            return found

    config: Any = {**TTL, "strategy": "delete", "sweep_interval_minutes": 1e-4}
    with Store("sqlite://", clock=clock) as store:
        saver = Swept(store, ttl=config)
        assert saver.stop_ttl_sweeper()
        store.checkpoints.put("thread", {}, namespace="langgraph")
        clock.now += 70 * MINUTE
        running = saver.start_ttl_sweeper()
        assert saver.start_ttl_sweeper(5) is running
        assert swept.wait(30)
        assert saver.stop_ttl_sweeper(30)
        assert running.done()
        assert store.checkpoints.threads().items == ()
        swept.clear()
        again = saver.start_ttl_sweeper()
        assert swept.wait(30)
        again.cancel()
        assert saver.stop_ttl_sweeper(30)
        for wrong in (-1, float("nan"), "5"):
            with pytest.raises(InvalidInput):
                saver.start_ttl_sweeper(wrong)  # type: ignore[arg-type]
        without = AgentStoreSaver(store)
        assert without.start_ttl_sweeper().done()
        remembering = AgentStoreBaseStore(store, ttl=config)
        remembering.start_ttl_sweeper()
        assert remembering.stop_ttl_sweeper(30)
        left = saver.start_ttl_sweeper()
    left.result(30)


def test_a_task_sweeps_until_it_is_stopped_or_the_store_is_closed(clock: Clock) -> None:
    async def test() -> None:
        swept = asyncio.Event()

        class Swept(AsyncAgentStoreSaver):
            async def sweep_ttl(self) -> int:
                found = await super().sweep_ttl()
                swept.set()
                return found

        config: Any = {**TTL, "sweep_interval_minutes": 1e-4}
        async with AsyncStore("sqlite://", clock=clock) as store:
            saver = Swept(store, ttl=config)
            assert await saver.stop_ttl_sweeper()
            await store.checkpoints.put("thread", {}, namespace="langgraph")
            clock.now += 70 * MINUTE
            running = await saver.start_ttl_sweeper()
            assert await saver.start_ttl_sweeper(5) is running
            await swept.wait()
            assert await saver.stop_ttl_sweeper(30)
            assert (await store.checkpoints.threads()).items == ()
            await (await AsyncAgentStoreSaver(store).start_ttl_sweeper())
            remembering = AsyncAgentStoreBaseStore(store, ttl=config)
            await remembering.start_ttl_sweeper()
            assert await remembering.stop_ttl_sweeper(30)
            left = await saver.start_ttl_sweeper()
        await left

    asyncio.run(test())
