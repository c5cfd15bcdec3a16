"""The application: a store that only reads, its first screen, and what all screens ask of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.strip import Strip

from agentstore.aio import AsyncScopedStore, AsyncStore
from agentstore.records import (
    Page,
    SearchHit,
    SessionRecord,
    SessionSummary,
    ToolLogRecord,
    UsageSum,
)
from agentstore.tui import in_columns, session_cells, snippet_text
from agentstore.tui.conversation import ConversationScreen, FollowScreen
from agentstore.tui.lists import (
    SEARCH_WORDS,
    SESSION_WORDS,
    ByCursor,
    Rows,
    Stretch,
    cut,
    indented,
    lines_of,
    search_filters,
    session_filters,
)
from agentstore.tui.screens import ListScreen
from agentstore.values.snippets import (
    HIT,
    LAST_REQUESTS,
    ROLE_STYLES,
    age_of,
    on_one_line,
)


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
        session_id: str | None = None,
        follow: bool = False,
    ) -> None:
        """Browse a store.

        Args:
            store: What to read; open it with ``read_only=True``.
            where: What to call the database.
            instant: Reads times and ages in filters.
            session_id: A session to show first; None shows all.
            follow: Follow it, or the whole store.
        """
        super().__init__()
        self.theme = "ansi-dark"
        self.store: Any = store
        self.where = where
        self.instant = instant
        self.fault: Exception | None = None
        self._first = session_id, follow

    @property
    def scoped(self) -> bool:
        """Whether the store is one user's."""
        return isinstance(self.store, AsyncScopedStore)

    def on_mount(self) -> None:
        """Show the sessions, or what is wanted first."""
        session_id, follow = self._first
        self.push_screen(SessionsScreen())
        if session_id is not None:
            self.push_screen(ConversationScreen(session_id, follow=follow))
        elif follow:
            self.push_screen(FollowScreen())

    def failed(self, error: Exception) -> None:
        """End because of a fault of the program's own, which the caller raises."""
        self.fault = error
        self.exit()

    def show_search(self, session_id: str | None = None) -> None:
        """Search a session, or all of them."""
        self.push_screen(SearchScreen(session_id))


def browse(
    open_store: Callable[[], AsyncStore],
    where: str,
    instant: Callable[[str], datetime],
    *,
    user: str | None = None,
    session_id: str | None = None,
    follow: bool = False,
) -> None:
    """Browse a database until somebody quits.

    Raises:
        DatabaseError: It cannot be opened.
    """

    async def run() -> Browser:
        async with open_store() as store:
            seen = store if user is None else store.scoped(user)
            browser = Browser(seen, where, instant, session_id, follow)
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


# The list of sessions, the one with the newest activity first.


_PAGE = 50

_FACTS = {"ACTIVE": 6, "STATUS": 12, "TURNS": 5, "MSGS": 5, "TOKENS": 6, "COST": 10}
_FACTS |= {"USER": 12, "MODEL": 18}
_WIDE = {"MSGS": 88, "USER": 104, "MODEL": 124}
"""From how many columns on these are shown."""


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session, what its requests used, None if nothing was recorded, and its user's name."""

    summary: SessionSummary
    used: UsageSum | None
    user: str | None


class SessionsScreen(ListScreen[ListedSession]):
    """The sessions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search"),
        Binding("f", "ask", "Filter"),
        Binding("F", "follow", "Follow all"),
    ]
    asks = SESSION_WORDS

    def __init__(self) -> None:
        """Show all sessions."""
        super().__init__()
        self._filters: dict[str, Any] = {}
        self.rows = Rows(_row, lambda each: each.summary.id, empty="No sessions.")

    async def start(self) -> None:
        """Read the first page."""
        self.stretch = Stretch(ByCursor(self._page))
        await super().start()

    async def _page(self, cursor: str | None) -> Page[ListedSession]:
        store = self.browser.store
        page: Page[SessionSummary] = await store.sessions.list(
            limit=_PAGE, cursor=cursor, preview=True, **self._filters
        )
        used = await store.usage.of_sessions([each.id for each in page], most=LAST_REQUESTS)
        owners = [each.user_id for each in page if each.user_id is not None]
        names = await store.users.names(owners) if owners else {}
        listed = tuple(
            ListedSession(each, used.get(each.id), names.get(each.user_id or "", each.user_id))
            for each in page
        )
        return Page(listed, page.next_cursor)

    def begin(self) -> None:
        """Begin to read."""
        self.say()
        super().begin()

    def say(self) -> None:
        """Say what is seen, in the heading."""
        where = Text.assemble(("agentstore", "bold"), "  ", (self.browser.where, "dim"))
        if self.line:
            where.append("  only ", style="dim")
            where.append(on_one_line(self.line), style="yellow")
        columns = _cells({name: Text(name) for name in _FACTS}, self.size.width)
        names = Text("  ").append_text(columns).append("TITLE")
        names.stylize("dim")
        self.head(where, names)

    def show(self) -> None:
        """Show what is held."""
        few = "No session is like this." if self.line else "No sessions."
        if self.stretch.has_later and not self.stretch.items:
            few = "Nothing yet: ↓ looks further back."
        self.rows.show(self.stretch.items, empty=few)

    def asked(self, line: str) -> None:
        """Filter."""
        self._filters = session_filters(line, self.browser.instant)
        self.line = line.strip()
        self.remove_class("asking")
        self.refresh_bindings()
        self.say()
        self.read(self.start)

    def action_back(self) -> None:
        """Leave the line, or the filter."""
        if self.has_class("asking"):
            super().action_back()
        elif self.line:
            self.notice(None)
            self.asked("")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer a way back only if there is one."""
        return action != "back" or bool(self.line) or self.has_class("asking")

    def on_rows_chosen(self) -> None:
        """Open the session."""
        if (chosen := self.rows.chosen) is not None:
            self.app.push_screen(ConversationScreen(chosen.summary.id))

    def action_search(self) -> None:
        """Search all messages."""
        self.browser.show_search()

    def action_follow(self) -> None:
        """Follow all messages."""
        if self.browser.scoped:
            self.notice("With --user, follow one session: open it, and press f.")
        else:
            self.app.push_screen(FollowScreen())


def _cells(cells: dict[str, Text], width: int) -> Text:
    return in_columns(cells, {n: room for n, room in _FACTS.items() if width >= _WIDE.get(n, 0)})


def _row(listed: ListedSession, width: int) -> list[Strip]:
    session = listed.summary
    line = _cells(session_cells(session, listed.used, listed.user), width + 3)
    if session.title:
        line.append(on_one_line(session.title))
    else:
        line.append(on_one_line(session.preview or session.id), style="dim")
    return [cut(line, width)]


# Search over messages, with the words that were found marked; Enter goes to the message.


_FOUND_PAGE, _ERROR = 20, 500
"""Hits of a page, and characters of an error."""


class SearchScreen(ListScreen[SearchHit | ToolLogRecord]):
    """Messages that hold what was typed, or calls of tools that failed with it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "ask", "Search")]
    asks = SEARCH_WORDS

    def __init__(self, session_id: str | None = None, words: str = "") -> None:
        """Search a session, or all of them."""
        super().__init__()
        self._session_id = session_id
        self._words = words
        self._filters: dict[str, Any] = {}
        self._errors = False
        self._titles: dict[str, str] = {}
        self.rows = Rows(self._draw, _key_of, empty="Type words, and Enter.")
        self.stretch = Stretch(ByCursor(self._page))

    def begin(self) -> None:
        """Wait for words, or search at once."""
        self.say()
        self.rows.show(())
        if self._words:
            self.asked(self._words)
        else:
            self.action_ask()

    def say(self) -> None:
        """Say what is seen, in the heading."""
        within = "all messages" if self._session_id is None else "this session"
        if self._errors:
            within = "errors of tools" if self._session_id is None else "errors of this session"
        line = Text.assemble(("search ", "bold"), (f"{within}  ", "dim"))
        self.head(line.append(on_one_line(self._words), style="yellow"))

    def action_back(self) -> None:
        """Leave the line if something was searched; else the screen."""
        if not (self._words or self._errors):
            self.remove_class("asking")
        super().action_back()

    def asked(self, line: str) -> None:
        """Search."""
        self._words, self._filters = search_filters(line, self.browser.instant)
        self._errors = self._filters.pop("in", None) is not None
        self.line = line.strip()
        if self._session_id is not None:
            self._filters["session_id"] = self._session_id
        self.say()
        if self._words or self._errors:
            self.stretch = Stretch(ByCursor(self._page))
            self.remove_class("asking")
            self.rows.focus()
            self.read(self.start)

    async def start(self) -> None:
        """Read the first page."""
        if self._words or self._errors:
            await super().start()

    def show(self) -> None:
        """Show what is held."""
        few = "Nothing was found."
        if self.stretch.has_later:
            few = "Nothing yet: ↓ looks further back."
        self.rows.show(self.stretch.items, empty=few)

    async def _page(self, cursor: str | None) -> Page[SearchHit | ToolLogRecord]:
        store = self.browser.store
        search: Any = partial(store.messages.search, self._words)
        if self._errors:
            search = partial(store.tool_logs.list, success=False, text=self._words or None)
        page: Page[SearchHit | ToolLogRecord] = await search(
            limit=_FOUND_PAGE, cursor=cursor, **self._filters
        )
        held = {_session_of(hit) for hit in self.stretch.items}
        self._titles = {key: title for key, title in self._titles.items() if key in held}
        for session_id in {_session_of(hit) for hit in page} - self._titles.keys():
            session: SessionRecord | None = await store.sessions.find(session_id)
            self._titles[session_id] = (session.title if session else None) or session_id
        return page

    def _draw(self, hit: SearchHit | ToolLogRecord, width: int) -> list[Strip]:
        if isinstance(hit, ToolLogRecord):
            line = Text.assemble((on_one_line(hit.tool), "bold red"))
            line.append(f"  {age_of(hit.created_at)}  ", style="dim")
            line.append(on_one_line(self._titles.get(hit.session_id, "")), style="bold")
            said = Text(on_one_line((hit.error or "failed")[:_ERROR]))
            return [cut(line, width), *indented(lines_of(said, width - 2))]
        message = hit.message
        line = Text.assemble((message.role, ROLE_STYLES.get(message.role, "")))
        line.append(f"  #{message.seq}  {age_of(message.created_at)}  ", style="dim")
        line.append(on_one_line(self._titles.get(message.session_id, "")), style="bold")
        return [cut(line, width), *indented(lines_of(snippet_text(hit.snippet), width - 2))]

    def on_rows_chosen(self) -> None:
        """Go to the message, on the branch on which it was written; of a call, to who called."""
        hit = self.rows.chosen
        if isinstance(hit, ToolLogRecord):
            self.read(partial(self._to_call, hit))
        elif hit is not None:
            words = tuple({found.casefold() for found in HIT.findall(hit.snippet) if found})
            message = hit.message
            self.app.push_screen(
                ConversationScreen(message.session_id, message.branch, seq=message.seq, words=words)
            )

    async def _to_call(self, log: ToolLogRecord) -> None:
        message = log.message_id and await self.browser.store.messages.find(log.message_id)
        place = (message.branch, message.seq) if message else (None, None)
        screen = ConversationScreen(log.session_id, place[0], seq=place[1])
        self.app.push_screen(screen)


def _key_of(hit: SearchHit | ToolLogRecord) -> str:
    return hit.id if isinstance(hit, ToolLogRecord) else hit.message.id


def _session_of(hit: SearchHit | ToolLogRecord) -> str:
    return hit.session_id if isinstance(hit, ToolLogRecord) else hit.message.session_id
