"""A process of its own that opens a store and writes, as the lines on its standard input say.

A command is a JSON object on one line, with what to do under ``do``. The process answers
``{"ready": true}`` and begins when the next line comes, whatever it says: several processes that
were told the same begin together. Then it answers ``{"done": ...}`` or ``{"error": ...}``.
"""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from agentstore import AsyncStore, Store, migrations
from agentstore.errors import AlreadyExists, NotFound
from agentstore.values.types import utc_now


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")  # in one piece, for several threads may say things
    sys.stdout.flush()


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


def crowd(url: str, session_ids: list[str], writers: int) -> None:
    """Have many threads write without end, each to one of the sessions; say what is acknowledged.

    Every eighth message has a transaction of its own, in which the session is read first.
    """
    with Store(url) as store:

        def write(number: int) -> None:
            session_id = session_ids[number % len(session_ids)]
            for turn in itertools.count(number):
                if turn % 8:
                    saved = store.messages.save(session_id, "user", "hello", token_count=1)
                else:
                    with store.transaction() as tx:
                        tx.sessions.get(session_id)
                        saved = tx.messages.save(session_id, "user", "hello", token_count=1)
                say({"acknowledged": saved.id})

        with ThreadPoolExecutor(writers) as executor:
            list(executor.map(write, range(writers)))


def crowd_async(url: str, session_ids: list[str], writers: int) -> None:
    """Do the same with tasks."""

    async def main() -> None:
        async with AsyncStore(url) as store:

            async def write(number: int) -> None:
                session_id = session_ids[number % len(session_ids)]
                for turn in itertools.count(number):
                    if turn % 8:
                        saved = await store.messages.save(session_id, "user", "hi", token_count=1)
                    else:
                        async with store.transaction() as tx:
                            await tx.sessions.get(session_id)
                            saved = await tx.messages.save(session_id, "user", "hi", token_count=1)
                    say({"acknowledged": saved.id})

            await asyncio.gather(*map(write, range(writers)))

    asyncio.run(main())


def _units(first: int) -> Iterator[list[str]]:
    number = 0
    while True:
        size = 1 if number % 3 == 0 else 2
        yield [f"{first}-{number} {place} of {size}" for place in range(1, size + 1)]
        number += 1


def converse(url: str, session_id: str) -> None:
    """Work on a session as an agent does, without end, and say what is acknowledged.

    Each round appends messages, keeps its number in the state, asks, and is answered. Before each
    of its calls it says what the call is to do, and afterwards that it is done.
    """

    def acknowledge(what: str, value: Any) -> None:
        say({"acknowledged": [what, value]})

    with Store(url) as store:
        restored = store.sessions.restore(session_id)
        state = restored.session.state or {"round": 0}
        if restored.question is not None:
            acknowledge("answered", store.sessions.answer(session_id, "an answer").id)
        while True:
            number = state["round"] + 1
            acknowledge("message", store.messages.save(session_id, "assistant", f"{number}").id)
            many = [{"role": "user", "content": f"{number} {n}"} for n in range(3)]
            for saved in store.messages.save_many(session_id, many):
                acknowledge("message", saved.id)
            state = {"round": number, "padding": "x" * 2_000}
            acknowledge("state", store.sessions.update(session_id, state=state).version)
            question = f"question {number}?"
            store.sessions.wait_for_user(session_id, question)
            acknowledge("asked", question)
            acknowledge("answered", store.sessions.answer(session_id, "an answer").id)


def stream(url: str, session_id: str) -> None:
    """Stream a message without end; say its id, and then each piece that is acknowledged."""
    with Store(url) as store:
        message_id = store.messages.begin(session_id).id
        say({"acknowledged": message_id})
        for number in itertools.count():
            store.messages.append(message_id, f"<{number}>", position=number)
            say({"acknowledged": f"<{number}>"})


def read_again(url: str, session_id: str, times: int) -> None:
    """Read a session once for each line, and say what was read."""
    with Store(url) as store:
        store.sessions.get(session_id)
        for _ in range(times):
            sys.stdin.readline()
            read = store.sessions.get(session_id)
            say({"acknowledged": [read.version, read.state, read.message_count]})


def clean_up(url: str) -> list[str]:
    """Delete expired sessions until none is left, by a clock that is ahead."""
    ahead = utc_now() + timedelta(hours=2)
    found: list[str] = []
    with Store(url, clock=lambda: ahead) as store:
        while deleted := store.sessions.delete_expired(batch_size=2, limit=4).sessions:
            found += deleted
    return found


def revive(url: str, session_ids: list[str]) -> list[str]:
    """Write into sessions, by a clock that is ahead; give those that took it."""
    ahead = utc_now() + timedelta(hours=2)
    found = []
    with Store(url, clock=lambda: ahead) as store:
        for session_id in session_ids:
            with contextlib.suppress(NotFound):
                store.messages.save(session_id, "user", "still here")
                found.append(session_id)
    return found


def ensure(url: str, session_ids: list[str], me: str) -> list[Any]:
    """Get or create sessions, with one's name for a title; give the titles that they have."""
    with Store(url) as store:
        return [store.sessions.ensure(id, title=me).title for id in session_ids]


def save_new(url: str, session_ids: list[str], me: str) -> list[Any]:
    """Save into sessions that may not be there, with one's name for their title; give the ids."""
    with Store(url) as store:
        return [
            store.messages.save(id, "user", me, create_session={"title": me}).id
            for id in session_ids
        ]


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
    "write": write, "write_async": write_async, "upgrade": upgrade, "append": append,
    "crowd": crowd, "crowd_async": crowd_async, "converse": converse, "stream": stream,
    "read_again": read_again, "clean_up": clean_up, "revive": revive, "ensure": ensure,
    "save_new": save_new, "hold": hold,
}  # fmt: skip


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
