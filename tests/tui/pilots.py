"""A browser that tests press the keys of, and whose screen they read."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

from rich.segment import Segment
from textual.widgets import Input

from agentstore import AsyncStore
from agentstore.cli.output import instant
from agentstore.tui.application import Browser

_PATIENCE = 500


class Hand:
    """Presses keys, and reads the screen when what they began is done."""

    def __init__(self, pilot: Any, store: AsyncStore) -> None:
        self.pilot, self.app, self.store = pilot, pilot.app, store

    async def press(self, *keys: str) -> str:
        """Press keys, one after the other; give what is on the screen then."""
        for key in keys or ("",):
            if key:
                await self.pilot.press(key)
            await self.settle()
        return self.text

    async def type(self, line: str) -> str:
        """Type a line into the input that is open, instead of what is in it, and Enter."""
        self.app.screen.query_one(Input).value = line
        return await self.press("enter")

    async def settle(self) -> None:
        """Wait for what was begun, but for what follows."""
        for _ in range(_PATIENCE):
            await self.pilot.pause()
            reading = [w for w in self.app.workers if w.group == "list" and not w.is_finished]
            if not reading:
                return
            await self.app.workers.wait_for_complete(reading)
        raise AssertionError("It reads without end.")

    async def until(self, condition: Callable[[str], Any]) -> str:
        """Wait until the screen is so."""
        for _ in range(_PATIENCE):
            if condition(self.text):
                return self.text
            await self.pilot.pause(0.01)
        raise AssertionError(self.text)

    @property
    def lines(self) -> list[list[Segment]]:
        """What is on the screen, by lines."""
        return [list(line) for line in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join("".join(s.text for s in line).rstrip() for line in self.lines)

    def marked(self) -> list[str]:
        """Give what is drawn reversed, other than where somebody types."""
        found = [s for line in self.lines for s in line if s.style and s.style.reverse]
        return [s.text for s in found if s.text.strip()]


@asynccontextmanager
async def browsing(url, size=(80, 24), user=None, **first):
    """Browse a database."""
    async with AsyncStore(url, read_only=True) as store:
        browser = Browser(store if user is None else store.scoped(user), "a.db", instant, **first)
        async with browser.run_test(size=size) as pilot:
            hand = Hand(pilot, store)
            await hand.settle()
            yield hand
        if browser.fault is not None:
            raise browser.fault
