"""The list of sessions, the one with the newest activity first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.strip import Strip

from agentstore.records import Page, SessionSummary, UsageSum
from agentstore.tui.conversation import ConversationScreen
from agentstore.tui.drawing import cut
from agentstore.tui.filters import SESSION_WORDS, session_filters
from agentstore.tui.following import FollowScreen
from agentstore.tui.rows import Rows
from agentstore.tui.screens import ListScreen
from agentstore.tui.stretches import ByCursor, Stretch
from agentstore.values.text.terminal import STATUS_STYLES, age, brief, money, on_one_line

_PAGE = 50
_ADDED_UP = 200
"""Requests of each session: of one that made more, the last ones are added up."""

_FACTS = {"ACTIVE": 6, "STATUS": 12, "TURNS": 5, "MSGS": 5, "TOKENS": 6, "COST": 8}
_FACTS |= {"USER": 12, "MODEL": 18}
_WIDE = {"MSGS": 88, "USER": 104, "MODEL": 124}
"""From how many columns on these are shown."""


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session, and what its requests used; None if nothing was recorded."""

    summary: SessionSummary
    used: UsageSum | None


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
        used = await store.usage.of_sessions([each.id for each in page], most=_ADDED_UP)
        listed = tuple(ListedSession(each, used.get(each.id)) for each in page)
        return Page(listed, page.next_cursor)

    def begin(self) -> None:
        """Begin to read."""
        self._say()
        super().begin()

    def on_resize(self) -> None:
        """Have the columns that there is room for."""
        self._say()

    def _say(self) -> None:
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
        self._say()
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
    line = Text()
    for name, room in _FACTS.items():
        if width < _WIDE.get(name, 0):
            continue
        cell = cells[name]
        cell.truncate(room, overflow="ellipsis")
        if name in ("ACTIVE", "TURNS", "MSGS", "TOKENS", "COST"):
            line.append(" " * (room - cell.cell_len)).append_text(cell)
        else:
            line.append_text(cell).append(" " * (room - cell.cell_len))
        line.append("  ")
    return line


def _row(listed: ListedSession, width: int) -> list[Strip]:
    session, used = listed.summary, listed.used
    tokens, cost = session.total_tokens, session.total_cost
    if used is not None:
        tokens, cost = used.total_tokens, max(cost, used.cost)
    more = "+" if used is not None and used.partial else ""
    cells = {
        "ACTIVE": Text(age(session.last_active_at)),
        "STATUS": Text(session.status, style=STATUS_STYLES[session.status]),
        "TURNS": Text(brief(session.last_turn)),
        "MSGS": Text(brief(session.message_count)),
        "TOKENS": Text(f"{brief(tokens)}{more}"),
        "COST": Text(f"{money(cost)}{more}" if cost else "-"),
        "USER": Text(on_one_line(session.user_id or "-")),
        "MODEL": Text(on_one_line(session.model or "-")),
    }
    line = _cells(cells, width + 3)
    if session.title:
        line.append(on_one_line(session.title))
    else:
        line.append(on_one_line(session.preview or session.id), style="dim")
    return [cut(line, width)]
