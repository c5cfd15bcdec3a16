"""A process of its own that opens a store and writes, as the lines on its standard input say.

A command is a JSON object on one line, with what to do under ``do``. The process answers
``{"ready": true}`` and begins when the next line comes, whatever it says: several processes that
were told the same begin together. Then it answers ``{"done": ...}`` or ``{"error": ...}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from agentstore import AsyncStore, Store, migrations
from agentstore.errors import AlreadyExists


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def write(url: str, own: str, shared: str, count: int) -> list[str]:
    """Write by turns into a session of one's own and into one that all write to."""
    with Store(url) as store:
        store.sessions.create(id=own)
        with contextlib.suppress(AlreadyExists):
            store.sessions.create(id=shared)
        sessions = [own, shared] * (count // 2)
        return [store.messages.save(s, "user", "hello", token_count=1).id for s in sessions]


def write_async(url: str, own: str, shared: str, count: int) -> list[str]:
    """Do the same with coroutines, all at once."""

    async def main() -> list[str]:
        async with AsyncStore(url) as store:
            await store.sessions.create(id=own)
            with contextlib.suppress(AlreadyExists):
                await store.sessions.create(id=shared)
            sessions = [own, shared] * (count // 2)
            saves = (store.messages.save(s, "user", "hello", token_count=1) for s in sessions)
            return [saved.id for saved in await asyncio.gather(*saves)]

    return asyncio.run(main())


def upgrade(url: str) -> str:
    return migrations.upgrade(url)


def append(url: str, session_id: str) -> None:
    """Append units of one or two messages without end, and say which are acknowledged.

    The text of each message says its unit, its place in it, and how many the unit has.
    """
    with Store(url) as store:
        first = store.sessions.get(session_id).last_seq
        for number, texts in enumerate(_units(first)):
            way = number % 3
            if way == 0:
                saved = [store.messages.save(session_id, "user", texts[0], token_count=1)]
            elif way == 1:
                saved = store.messages.save_many(
                    session_id, [{"role": "user", "content": t, "token_count": 1} for t in texts]
                )
            else:
                with store.transaction() as tx:
                    saved = [tx.messages.save(session_id, "user", t, token_count=1) for t in texts]
            say({"acknowledged": [message.id for message in saved]})


def _units(first: int) -> Iterator[list[str]]:
    number = 0
    while True:
        size = 1 if number % 3 == 0 else 2
        yield [f"{first}-{number} {place} of {size}" for place in range(1, size + 1)]
        number += 1


def hold(url: str, seconds_to_wait: float) -> None:
    """Hold SQLite's write lock until the next line comes, or the end of the input."""
    import sqlite3

    connection = sqlite3.connect(url, timeout=seconds_to_wait, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say({"acknowledged": []})
    sys.stdin.readline()
    connection.rollback()
    connection.close()


COMMANDS = {
    "write": write,
    "write_async": write_async,
    "upgrade": upgrade,
    "append": append,
    "hold": hold,
}


def main() -> None:
    while line := sys.stdin.readline():
        command = json.loads(line)
        work = COMMANDS[command.pop("do")]
        say({"ready": True})
        if not sys.stdin.readline():
            return
        try:
            done = work(**command)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is to see it
            say({"error": f"{type(error).__name__}: {error}"})
        else:
            say({"done": done})


if __name__ == "__main__":
    main()
