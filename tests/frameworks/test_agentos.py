"""AgentOS's checkpoints: as its own backend gives them, and what that cannot do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from agentos.checkpoint.base import Checkpoint, CheckpointMetadata
from agentos.checkpoint.engine import CheckpointEngine
from agentos.checkpoint.sqlite import SQLiteCheckpointer

from agentstore import AsyncStore
from agentstore.errors import (
    AgentStoreError,
    AlreadyExists,
    InvalidInput,
    InvalidJson,
    NotFound,
    WrongThread,
)
from agentstore.integrations.agentos import AgentStoreCheckpointer

TRAPS = "NUL \x00, 😀, 北京"


def checkpoint(thread, id, step, parent=None, **more):
    meta = CheckpointMetadata(thread, id, step, parent, f"2026-01-0{step + 1}T00:00:00+08:00")
    messages = [{"role": "user", "content": f"{n} {TRAPS}"} for n in range(step)]
    return Checkpoint(replace(meta, **more), messages, {"n": step, "z": 2**70, "a": [None]}, {})


async def script(backend):
    """Put, list and delete in many ways; give all that was answered."""
    told = [await backend.get("none"), await backend.get_latest("none")]
    for each in (
        checkpoint("t1", "a", 1),
        checkpoint("t1", "b", 2, "a", tags=["x", "y"], summary="two"),
        checkpoint("t1", "c", 3, "b"),
        checkpoint("t2", "d", 0, "b"),
        checkpoint("t2", "e", 1, "gone"),
        checkpoint("t1", "b", 2, "a", tags=["z"], summary="again"),
        checkpoint("t1", "f", 4),
    ):
        told.append(await backend.put(replace(each, next_node="go on")))
    told += [await backend.get(id) for id in "abcdef"]
    told += [await backend.get_latest("t1"), await backend.get_latest("t2")]
    for limit, offset in ((100, 0), (2, 0), (2, 1), (2, 3), (0, 0), (5, 9)):
        told.append(await backend.list_checkpoints("t1", limit, offset))
    told.append(sorted(each.checkpoint_id for each in await backend.list_threads()))
    told += [await backend.delete_before("t1", 3), await backend.delete_before("none", 3)]
    told += [await backend.list_checkpoints("t1"), await backend.get("c")]
    told += [await backend.delete_thread("t1"), await backend.delete_thread("t1")]
    told += [await backend.list_checkpoints("t1"), await backend.get_latest("t2")]
    return told


def test_it_answers_as_agentos_s_own_backend_does(opening_async, tmp_path):
    async def run():
        expected = await script(SQLiteCheckpointer(str(tmp_path / "theirs.db")))
        async with opening_async() as store:
            assert await script(AgentStoreCheckpointer(store)) == expected

    asyncio.run(run())


def test_checkpoints_outlive_the_process_and_the_newest_thread_comes_first(opening_async):
    async def run():
        first = checkpoint("t1", "a", 1)
        first.state["lone"] = "\ud800"
        async with opening_async() as store:
            backend = AgentStoreCheckpointer(store)
            await backend.put(first)
            await backend.put(checkpoint("t2", "b", 1))
            await backend.put(checkpoint("t1", "c", 2, "a"))
        with pytest.raises(AgentStoreError):
            await backend.get("a")
        async with opening_async() as store:
            backend = AgentStoreCheckpointer(store)
            assert await backend.get("a") == first
            assert [each.checkpoint_id for each in await backend.list_threads()] == ["c", "b"]
            assert [each.checkpoint_id for each in await backend.list_threads(1, 1)] == ["b"]

    asyncio.run(run())


def test_an_id_stays_in_its_thread_and_what_is_no_json_is_refused(opening_async):
    async def run():
        async with opening_async() as store:
            backend = AgentStoreCheckpointer(store)
            await backend.put(checkpoint("t1", "a", 1))
            with pytest.raises(WrongThread):
                await backend.put(checkpoint("t2", "a", 1))
            bad = checkpoint("t1", "b", 2, "a")
            bad.state["x"] = object()
            with pytest.raises(InvalidJson):
                await backend.put(bad)
            assert [each.checkpoint_id for each in await backend.list_checkpoints("t1")] == ["a"]
            await store.users.create("Bob", id="bob")
            assert await AgentStoreCheckpointer(store.scoped("bob")).get("a") is None
        with pytest.raises(InvalidInput, match="Pass an AsyncStore"):
            AgentStoreCheckpointer(None)

    asyncio.run(run())


def test_rewind_fork_and_prune_delete_no_thread(opening_async):
    async def run():
        async with opening_async() as store:
            backend = AgentStoreCheckpointer(store)
            for n in range(1, 7):
                await backend.put(checkpoint("t", f"c{n}", n, tags=["m"] if n == 2 else []))
            forked = await backend.fork("c5", "t-fork")
            assert forked.messages == (await backend.get("c5")).messages
            with pytest.raises(AlreadyExists):
                await backend.fork("c5", "t-fork")
            with pytest.raises(NotFound):
                await backend.fork("none", "other")
            assert (await backend.rewind("t", 4)).metadata.checkpoint_id == "c4"
            assert await backend.rewind("t", 6) is None
            assert await backend.rewind("none", 1) is None
            assert (await backend.get_latest("t")).metadata.step == 4
            assert await backend.prune("t", keep_last=1, keep_tags=["m"]) == 2
            assert [each.step for each in await backend.list_checkpoints("t")] == [4, 2]
            assert await backend.prune("t", max_age=timedelta(days=1)) == 0
            assert await backend.prune("none", keep_last=1) == 0
            assert await backend.get("c2") == checkpoint("t", "c2", 2, tags=["m"])

    asyncio.run(run())


def test_a_long_thread_is_stored_once_and_put_by_several_at_once(engine_url):
    async def run():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as two:
            engine = CheckpointEngine(AgentStoreCheckpointer(one))
            messages = []
            before = (await one.statistics()).bytes
            for n in range(60):
                messages.append({"role": "user", "content": f"{n:04} " + "x" * 500})
                await engine.snapshot("long", messages, {"n": n}, {})
            grown = (await one.statistics()).bytes - before
            assert grown < sum(500 * n for n in range(60)) / 3
            latest = await AgentStoreCheckpointer(two).get_latest("long")
            assert (latest.messages, latest.state) == (messages, {"n": 59})
            points = await engine.list_time_travel_points("long")
            assert len(points) == 50  # the engine asks for so many
            await asyncio.gather(
                *(
                    AgentStoreCheckpointer((one, two)[n % 2]).put(
                        checkpoint("many", f"m{n}", n % 9)
                    )
                    for n in range(30)
                )
            )
            assert len(await AgentStoreCheckpointer(one).list_checkpoints("many")) == 30

    asyncio.run(run())
