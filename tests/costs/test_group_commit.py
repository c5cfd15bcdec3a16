"""Many who save at once share their commits: of what a save costs, the sync is the dearest."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from agentstore import AsyncStore
from benchmarks.counting import WriteAheadLog

CALLERS = 64


def test_saves_that_queue_up_while_the_file_is_locked_take_two_commits(sqlite_template, tmp_path):
    """The first has the lead alone; whoever comes while it waits for the lock shares the next."""
    path = tmp_path / "test.db"
    path.write_bytes(sqlite_template.read_bytes())
    log = WriteAheadLog(path)

    async def save_at_once() -> int:
        async with AsyncStore(f"sqlite:///{path}") as store:
            session = await store.sessions.create()
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                log.commits()  # from here on
                saves = [
                    asyncio.create_task(store.messages.save(session.id, "user", str(number)))
                    for number in range(CALLERS)
                ]
                await everybody_waits(saves)
                other.execute("ROLLBACK")
                await asyncio.gather(*saves)
                saved = await store.messages.history(session.id, None)
                assert [message.content for message in saved] == list(map(str, range(CALLERS)))
                return log.commits()

    assert 1 <= asyncio.run(save_at_once()) <= 2


async def everybody_waits(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Give each task many more turns than it needs to queue up; none can be done meanwhile."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
