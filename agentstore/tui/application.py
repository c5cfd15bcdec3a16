"""The application: a store that only reads, its first screen, and what all screens ask of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.strip import Strip

from agentstore.stores.aio import AsyncScopedStore, AsyncStore
from agentstore.tui.conversation import ConversationScreen
from agentstore.tui.drawing import cut
from agentstore.tui.following import FollowScreen
from agentstore.tui.rows import Rows
from agentstore.tui.screens import ListScreen
from agentstore.tui.search import SearchScreen
from agentstore.tui.sessions import SessionsScreen
from agentstore.tui.stretches import ListPart, Stretch

_KEYS = {
    "j,down": "j ↓",
    "k,up": "k ↑",
    "pagedown,space,ctrl+d": "PgDn Space",
    "pageup,ctrl+u": "PgUp",
    "slash": "/",
    "question_mark": "?",
    "g,home": "g Home",
    "G,end": "G End",
    "enter": "Enter",
    "escape": "Esc",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What is shown first.

    Attributes:
        session_id: A session; None shows all.
        follow: Follow it, or the whole store.
    """

    session_id: str | None = None
    follow: bool = False


class Browser(App[None]):
    """Sessions and conversations in a terminal, in the terminal's own colours."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True)
    ]

    def __init__(
        self,
        store: AsyncStore | AsyncScopedStore,
        where: str,
        instant: Callable[[str], datetime],
        wish: Wish | None = None,
    ) -> None:
        """Browse a store.

        Args:
            store: What to read; open it with ``read_only=True``.
            where: What to call the database.
            instant: Reads times and ages in filters.
            wish: What to show first.
        """
        super().__init__()
        self.theme = "ansi-dark"
        self.store: Any = store
        self.where = where
        self.instant = instant
        self.fault: Exception | None = None
        self._wish = wish or Wish()

    @property
    def scoped(self) -> bool:
        """Whether the store is one user's."""
        return isinstance(self.store, AsyncScopedStore)

    def on_mount(self) -> None:
        """Show the sessions, or what is wanted first."""
        wish = self._wish
        self.push_screen(SessionsScreen())
        if wish.session_id is not None:
            self.push_screen(ConversationScreen(wish.session_id, follow=wish.follow))
        elif wish.follow:
            self.push_screen(FollowScreen())

    def failed(self, error: Exception) -> None:
        """End because of a fault of the program's own, which the caller raises."""
        self.fault = error
        self.exit()

    def show_search(self, session_id: str | None = None) -> None:
        """Search a session, or all of them."""
        self.push_screen(SearchScreen(session_id))

    def show_keys(self, screen: Screen[Any]) -> None:
        """Show the keys of a screen."""
        self.push_screen(KeysScreen(screen))


class KeysScreen(ListScreen[tuple[str, str]]):
    """The keys of a screen."""

    def __init__(self, screen: Screen[Any]) -> None:
        """Show all that work there."""
        super().__init__()
        kinds = [Rows, *(kind for kind in type(screen).__mro__ if issubclass(kind, ListScreen))]
        self._keys = [
            (_KEYS.get(binding.key, binding.key), binding.description)
            for kind in kinds
            for binding in kind.__dict__.get("BINDINGS", ())
            if isinstance(binding, Binding)
        ]
        self.rows = Rows(_key_line, lambda each: each)
        self.stretch = Stretch(self._all)

    async def _all(self, _: object) -> ListPart[tuple[str, str]]:
        self.head(Text("Keys", style="bold"))
        return ListPart(tuple(self._keys), None, None)


def _key_line(each: tuple[str, str], width: int) -> list[Strip]:
    return [cut(Text.assemble((f"{each[0]:<12}", "bold cyan"), each[1]), width)]


def browse(
    open_store: Callable[[], AsyncStore],
    where: str,
    instant: Callable[[str], datetime],
    *,
    user: str | None = None,
    wish: Wish | None = None,
) -> None:
    """Browse a database until somebody quits.

    Raises:
        DatabaseError: It cannot be opened.
    """

    async def run() -> Browser:
        async with open_store() as store:
            browser = Browser(store if user is None else store.scoped(user), where, instant, wish)
            # Without the mouse: the terminal's own is for selecting text.
            await browser.run_async(mouse=False)
            return browser

    logging.disable()  # its lines would be drawn over the screen
    try:
        browser = asyncio.run(run())
    finally:
        logging.disable(logging.NOTSET)
    if browser.fault is not None:
        raise browser.fault
