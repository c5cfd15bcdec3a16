"""Draws docs/pictures/explorer-*.png: ``python -m docs.explorer_pictures``.

It needs Chromium and what drives it, which ``make browser`` installs, Pillow, which ``make bench``
installs, and fonts that have Chinese and Arabic.
"""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn

from agentstore import Store
from agentstore.explorer import explorer

PICTURES = Path(__file__).parent / "pictures"
_WIDTH = 1180
_COLOURS = 96

_PRICES = {  # of a million tokens read, and of a million written
    "gpt-4o": (Decimal("2.5"), Decimal(10)),
    "gpt-4o-mini": (Decimal("0.15"), Decimal("0.6")),
    "claude-sonnet-4": (Decimal(3), Decimal(15)),
}
_TALKS = (
    ("Cancel an economy ticket", "I have to cancel my trip to Denver. Is there a refund?"),
    ("Baggage to Tokyo", "How many bags may I take to Tokyo without paying for them?"),
    ("机票改签", "我想把周五去上海的航班改到周六早上。"),
    ("A seat at the window", "Can I still have a window seat on the flight tonight?"),
    ("Refund of a delayed flight", "My flight was six hours late. What can I ask for?"),
    ("Travel with a dog", "May my dog fly in the cabin with me?"),
    ("Upgrade with points", "Do my points suffice for business class?"),
    ("رحلة إلى عمّان", "هل توجد رحلة مباشرة إلى عمّان غدًا؟"),
    ("Group of twelve", "Twelve of us want to sit together. How do we book that?"),
    ("Wrong name on a ticket", "My name is misspelled on the ticket. Is a change free?"),
    ("Lost suitcase", "My suitcase did not arrive with the flight from Boston."),
    ("Travel insurance", "Does the insurance pay for a cancellation because of illness?"),
)
_USERS = ("mia_li_3668", "raj_sanchez_7340", "emma_kim_9957", "omar_davis_3817")
_TOOLS = (("get_reservation_details", 210), ("search_direct_flight", 900), ("calculate", 3))
_ANSWERS = (
    "Let me look at the rules of your ticket. One moment, please.",
    "A cancellation is free within 24 hours of booking, and with insurance in case of illness.",
    "I have found two flights. The first one leaves at 09:10 and is nonstop.",
    "This fare has no refund after cancellation, but you may change the date for 40 dollars.",
    "I have sent the confirmation to the address in your profile. Is there anything else?",
)
_ANSWER = """You are booked in **economy** on HAT069. There are two nonstop flights that day:

| flight | leaves | price |
|---|---|--:|
| HAT223 | 09:10 | +$34 |
| HAT180 | 17:45 | +$12 |

A cancellation within 24 hours of booking is *free*. Shall I take the one in the morning?
"""


class _Clock:
    """The time at which a conversation is said to have been held."""

    def __init__(self) -> None:
        self.time = datetime.now(UTC)

    def __call__(self) -> datetime:
        self.time += timedelta(milliseconds=700)
        return self.time


def fill(store: Store, clock: _Clock) -> tuple[str, str]:
    """Make two weeks of conversations; give the last one's id, and that of a checkpoint."""
    chance = random.Random(7)  # noqa: S311 - for pictures
    now = clock.time
    for user in _USERS:
        store.users.create(user, id=user)
    hours = sorted(14 * 24 * chance.random() ** 2 for _ in range(80))
    for number, before in reversed([*enumerate(hours)]):
        clock.time = now - timedelta(hours=before)
        _small_talk(store, chance, *_TALKS[number % len(_TALKS)])
    clock.time = now - timedelta(seconds=30)
    return _conversation(store), _checkpoints(store)


def _small_talk(store: Store, chance: random.Random, title: str, question: str) -> None:
    model = chance.choice([*_PRICES])
    session = store.sessions.create(chance.choice(_USERS), title=title, model=model).id
    for turn in range(chance.randint(1, 6)):
        store.messages.save(session, "user", question if turn == 0 else "And then?")
        tool, usual = chance.choice(_TOOLS)
        failed = chance.random() < 0.1
        store.tool_logs.log(
            session, tool, elapsed_ms=round(usual * chance.uniform(0.5, 3), 1), success=not failed
        )
        store.messages.save(session, "assistant", chance.choice(_ANSWERS))
        _use(store, session, model, chance.randint(2_000, 24_000), chance.randint(90, 900))
    if chance.random() < 0.3:
        store.sessions.complete(session)


def _use(store: Store, session: str, model: str, read: int, written: int) -> None:
    to_read, to_write = _PRICES[model]
    cost = (read * to_read + written * to_write) / 1_000_000
    store.usage.record(session, model=model, input_tokens=read, output_tokens=written, cost=cost)


def _conversation(store: Store) -> str:
    title = "Change the flight to Chicago"
    session = store.sessions.create(_USERS[0], title=title, model="gpt-4o").id
    question = (
        "Hi, I'd like to change my upcoming flight from **New York** to Chicago to a nonstop one, "
        "and know what a cancellation would cost."
    )
    save = store.messages.save
    save(session, "user", question)
    asked = (
        ("get_reservation_details", '{"reservation_id": "4WQ150"}'),
        ("search_direct_flight", '{"origin": "JFK", "destination": "ORD", "date": "2026-11-31"}'),
    )
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(asked, 1)
    ]
    said = save(session, "assistant", None, tool_calls=calls, token_count=54)
    log = store.tool_logs.log
    log(session, asked[0][0], elapsed_ms=212, message_id=said.id)
    booked = '{"flight": "HAT069", "cabin": "economy", "passengers": 1}'
    save(session, "tool", booked, tool_call_id="call_1")
    error = "InvalidDate: 2026-11-31 is no day"
    log(session, asked[1][0], elapsed_ms=1_710, success=False, error=error, message_id=said.id)
    save(session, "tool", "Error: InvalidDate", tool_call_id="call_2")
    answer = save(session, "assistant", _ANSWER, token_count=412, cost="0.0018")
    store.marks.update(session, "liked", ids=[answer.id])
    _use(store, session, "gpt-4o", 1_200, 412)
    return session


def _checkpoints(store: Store) -> str:
    thread = f"booking/{_USERS[0]}"
    flights = [{"number": "HAT223", "leaves": "09:10", "price": 186}]
    context: dict[str, Any] = {"reservation_id": "4WQ150", "cabin": "economy", "price": 152}
    said: list[Any] = []
    for step in range(7):
        role = "user" if step % 2 == 0 else "assistant"
        said.append({"role": role, "content": f"{_TALKS[step][1]} ({step})"})
        if step == 6:
            context = {"reservation_id": "4WQ150", "cabin": "business", "flights": flights}
        put = store.checkpoints.put(
            thread,
            {"messages": list(said), "context": context},
            step=step,
            next_node="agent",
            run_id="run-1",
            metadata={"source": "loop", "step": step},
        )
    return put.id


@dataclass(frozen=True)
class _Shot:
    """A picture.

    Attributes:
        name: Of the file, behind ``explorer-``.
        page: Which page, with its query.
        height: In pixels.
    """

    name: str
    page: str
    height: int
    dark: bool = False


@contextmanager
def _served(store: Store) -> Iterator[str]:
    config = uvicorn.Config(explorer(store), log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


async def _draw(address: str, shots: list[_Shot]) -> None:
    from PIL import Image  # the module's docstring says who installs these two
    from playwright.async_api import async_playwright

    from tests.selection import chromium

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        for shot in shots:
            page = await browser.new_page(
                viewport={"width": _WIDTH, "height": shot.height},
                color_scheme="dark" if shot.dark else "light",
            )
            await page.goto(address + shot.page, wait_until="load")
            await page.wait_for_timeout(500)  # plots are drawn by a script
            drawn = Image.open(BytesIO(await page.screenshot()))
            few = drawn.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
            few.save(PICTURES / f"explorer-{shot.name}.png", optimize=True)
        await browser.close()


def main() -> None:
    """Write the pictures."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/agent.db"
        with Store(url, clock=clock) as store:
            session, checkpoint = fill(store, clock)
            store.search.refresh()
        thread = f"booking/{_USERS[0]}"
        shots = [
            _Shot("conversation", f"session?{urlencode({'id': session})}", 900),
            _Shot("sessions", "sessions", 700),
            _Shot("search", "search?q=refund&order=recent", 560, dark=True),
            _Shot(
                "checkpoint",
                f"checkpoint?{urlencode({'thread': thread, 'id': checkpoint})}",
                640,
                dark=True,
            ),
            _Shot("usage", "usage", 760),
        ]
        with Store(url, read_only=True) as store, _served(store) as address:
            asyncio.run(_draw(address, shots))


if __name__ == "__main__":
    main()
