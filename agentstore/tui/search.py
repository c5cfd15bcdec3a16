"""Search over messages, with the words that were found marked; Enter goes to the message."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.strip import Strip

from agentstore.records import Page, SearchHit, SessionRecord
from agentstore.tui.conversation import ConversationScreen
from agentstore.tui.drawing import cut, indented, lines_of
from agentstore.tui.filters import SEARCH_WORDS, search_filters
from agentstore.tui.messages import STYLES
from agentstore.tui.rows import Rows
from agentstore.tui.screens import ListScreen
from agentstore.tui.stretches import ByCursor, Stretch
from agentstore.values.text.snippets import CLOSE, OPEN
from agentstore.values.text.terminal import age, on_one_line

_PAGE = 20
_MARKS = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")


class SearchScreen(ListScreen[SearchHit]):
    """Messages that hold what was typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "ask", "Search")]
    asks = SEARCH_WORDS

    def __init__(self, session_id: str | None = None, words: str = "") -> None:
        """Search a session, or all of them."""
        super().__init__()
        self._session_id = session_id
        self._words = words
        self._filters: dict[str, Any] = {}
        self._titles: dict[str, str] = {}
        self.rows = Rows(self._draw, lambda hit: hit.message.id, empty="Type words, and Enter.")
        self.stretch = Stretch(ByCursor(self._page))

    def begin(self) -> None:
        """Wait for words, or search at once."""
        self._say()
        self.rows.show(())
        if self._words:
            self.asked(self._words)
        else:
            self.action_ask()

    def on_resize(self) -> None:
        """Cut the heading again."""
        self._say()

    def _say(self) -> None:
        within = "all messages" if self._session_id is None else "this session"
        line = Text.assemble(("search ", "bold"), (f"{within}  ", "dim"))
        self.head(line.append(on_one_line(self._words), style="yellow"))

    def action_back(self) -> None:
        """Leave the line if something was searched; else the screen."""
        if not self._words:
            self.remove_class("asking")
        super().action_back()

    def asked(self, line: str) -> None:
        """Search."""
        self._words, self._filters = search_filters(line, self.browser.instant)
        self.line = line.strip()
        if self._session_id is not None:
            self._filters["session_id"] = self._session_id
        self._say()
        if self._words:
            self.stretch = Stretch(ByCursor(self._page))
            self.remove_class("asking")
            self.rows.focus()
            self.read(self.start)

    async def start(self) -> None:
        """Read the first page."""
        if self._words:
            await super().start()

    def show(self) -> None:
        """Show what is held."""
        few = "Nothing was found."
        if self.stretch.has_later:
            few = "Nothing yet: ↓ looks further back."
        self.rows.show(self.stretch.items, empty=few)

    async def _page(self, cursor: str | None) -> Page[SearchHit]:
        store = self.browser.store
        page: Page[SearchHit] = await store.messages.search(
            self._words, limit=_PAGE, cursor=cursor, **self._filters
        )
        held = {hit.message.session_id for hit in self.stretch.items}
        self._titles = {key: title for key, title in self._titles.items() if key in held}
        for session_id in {hit.message.session_id for hit in page} - self._titles.keys():
            session: SessionRecord | None = await store.sessions.find(session_id)
            self._titles[session_id] = (session.title if session else None) or session_id
        return page

    def _draw(self, hit: SearchHit, width: int) -> list[Strip]:
        message = hit.message
        line = Text.assemble((message.role, STYLES.get(message.role, "")))
        line.append(f"  #{message.seq}  {age(message.created_at)}  ", style="dim")
        line.append(on_one_line(self._titles.get(message.session_id, "")), style="bold")
        snippet = Text()
        for number, piece in enumerate(_MARKS.split(on_one_line(hit.snippet))):
            snippet.append(piece, style="bold reverse yellow" if number % 2 else "")
        return [cut(line, width), *indented(lines_of(snippet, width - 2), 2)]

    def on_rows_chosen(self) -> None:
        """Go to the message, on the branch on which it was written."""
        if (hit := self.rows.chosen) is not None:
            words = tuple({found.casefold() for found in _MARKS.findall(hit.snippet) if found})
            message = hit.message
            self.app.push_screen(
                ConversationScreen(message.session_id, message.branch, seq=message.seq, words=words)
            )
