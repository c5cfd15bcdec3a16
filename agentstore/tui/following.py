"""New messages of all sessions, as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.strip import Strip

from agentstore.records import MessageRecord, Page
from agentstore.tui.conversation import ConversationScreen
from agentstore.tui.drawing import cut
from agentstore.tui.entries import ShownMessage, entries_of
from agentstore.tui.messages import MessageLook, entry_lines
from agentstore.tui.reader import ReaderScreen
from agentstore.tui.rows import Rows
from agentstore.tui.screens import ListScreen
from agentstore.tui.stretches import MOST
from agentstore.values.states import STREAMING
from agentstore.values.text.terminal import on_one_line

_FIRST, _BATCH = 20, 500
_MOST_STREAMS = 50
"""Messages that are looked at again while they are being written."""


class FollowScreen(ListScreen[ShownMessage]):
    """The last messages of the whole store, and those that come."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open_message", "Whole")]

    def __init__(self) -> None:
        """Begin with the last messages that are there."""
        super().__init__()
        self._cursor: str | None = None
        self.rows = Rows(_draw, lambda entry: entry.message.id, empty="No messages yet.")

    async def start(self) -> None:
        """Follow, until the screen is left."""
        self.head(Text.assemble(("● following ", "bold green"), ("all sessions", "dim")))
        self.keep_looking(self._look)

    async def _look(self) -> bool:
        store = self.browser.store
        limit = _FIRST if self._cursor is None else _BATCH
        page: Page[MessageRecord] = await store.messages.follow(self._cursor, limit=limit)
        items = self.stretch.items
        streams = [each.message for each in items if each.message.status == STREAMING]
        grown = {
            message.id: message
            for stream in streams[-_MOST_STREAMS:]
            if (message := await store.messages.find(stream.id)) is not None
        }
        new = await entries_of(store, page.items)
        if grown or new or self._cursor is None:
            held = [replace(e, message=grown.get(e.message.id, e.message)) for e in items]
            self._add(held, new)
        self._cursor = page.next_cursor
        return len(new) == _BATCH

    def _add(self, held: list[ShownMessage], new: Sequence[ShownMessage]) -> None:
        stays = not self.rows.at_end and bool(held)
        self.stretch.put([*held, *new][-MOST:], None)
        self.show()
        if not stays:
            self.rows.go_to_end()

    def on_rows_chosen(self) -> None:
        """Open the session at the message."""
        if (entry := self.rows.chosen) is not None:
            message = entry.message
            self.app.push_screen(
                ConversationScreen(message.session_id, message.branch, seq=message.seq)
            )

    def action_open_message(self) -> None:
        """Show all that there is of a message."""
        if (entry := self.rows.chosen) is not None:
            self.app.push_screen(ReaderScreen(entry))


def _draw(entry: ShownMessage, width: int) -> list[Strip]:
    lines = entry_lines(replace(entry, new_turn=False), width, MessageLook())
    whose = Text(f"session {on_one_line(entry.message.session_id)}", style="dim")
    return [lines[0], cut(whose, width), *lines[1:]]
