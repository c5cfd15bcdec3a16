"""A program whose event loop ends again and again while saves are in flight.

``python -m tests.programs.endings URL HOW ROUNDS`` with HOW ``return`` or ``interrupt``. Each round
is one ``asyncio.run`` around a store that nobody closes, with 1 to 64 callers that save without
pause. A round that has not ended after ``PATIENCE`` seconds ends the program, with a traceback.
It prints one line of JSON: how many saves were acknowledged, how many of those are not there, and
how many seconds the slowest round took.
"""

import asyncio
import faulthandler
import gc
import json
import random
import signal
import sys
import time
from typing import Any

from agentstore import AsyncStore, Store

PATIENCE = 30
MOST_CALLERS = 64


async def save_until_the_end(
    url: str, session_id: str, callers: int, pause: float, how: str, acknowledged: list[str]
) -> None:
    """Have callers save without pause, and end in their midst."""
    store = AsyncStore(url)
    await store.open()

    async def caller() -> None:
        while True:
            saved = await store.messages.save(session_id, "user", "hello")
            acknowledged.append(saved.id)

    loop = asyncio.get_running_loop()
    loop.saving = [asyncio.ensure_future(caller()) for _ in range(callers)]  # type: ignore[attr-defined]
    if how == "interrupt":
        loop.call_later(pause, signal.raise_signal, signal.SIGINT)
        await asyncio.Event().wait()
    await asyncio.sleep(pause)


def end_again_and_again(url: str, how: str, rounds: int) -> dict[str, Any]:
    """End so many loops, and look whether what was acknowledged is there."""
    rng = random.Random(rounds)  # noqa: S311 - when to end
    acknowledged: list[str] = []
    slowest = 0.0
    with Store(url) as store:
        session_id = store.sessions.create().id
    for number in range(rounds):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        callers = min(MOST_CALLERS, 1 << (number % 7))
        pause = rng.uniform(0, 0.06)
        begun = time.monotonic()
        try:
            asyncio.run(save_until_the_end(url, session_id, callers, pause, how, acknowledged))
        except KeyboardInterrupt:
            assert how == "interrupt"
        slowest = max(slowest, time.monotonic() - begun)
        gc.collect()
    faulthandler.cancel_dump_traceback_later()
    with Store(url) as store:
        there = {message.id for message in store.messages.history(session_id, None)}
        assert store.sessions.verify(session_id).agree
    return {
        "rounds": rounds,
        "acknowledged": len(acknowledged),
        "lost": len(set(acknowledged) - there),
        "slowest": round(slowest, 2),
    }


if __name__ == "__main__":
    print(json.dumps(end_again_and_again(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
