"""All that there is of one message: every field, and its text to the last character."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from rich.text import Text
from textual.strip import Strip

from agentstore.records import UsageRecord
from agentstore.tui.drawing import cut, text_lines
from agentstore.tui.entries import ShownMessage
from agentstore.tui.rows import Rows
from agentstore.tui.screens import ListScreen
from agentstore.tui.stretches import ListPart, Stretch
from agentstore.values.chat.pieces import pieces_of
from agentstore.values.text.terminal import attached, money, on_one_line

_PIECE = 2_000
"""Characters of a paragraph; a longer one is several."""
_PART = 40
_ELSEWHERE = ("content", "tool_calls")
"""Fields that are told as text."""


class ReaderScreen(ListScreen["_Paragraph"]):
    """A message, whole."""

    def __init__(self, entry: ShownMessage) -> None:
        """Show a message."""
        super().__init__()
        self._entry = entry
        self._used: list[UsageRecord] = []
        self._told: list[_Paragraph] = []
        self.rows = Rows(_draw, lambda paragraph: paragraph[0])
        self.stretch = Stretch(self._read)

    async def start(self) -> None:
        """Read what its turn used, and show the beginning."""
        message = self._entry.message
        if message.id:
            page = await self.browser.store.usage.list(
                message.session_id, branch=message.branch, turn=message.turn, limit=20
            )
            self._used = [*page]
        self._told = [(n, *told) for n, told in enumerate(self._paragraphs())]
        self.head(Text(f"{message.role} message #{message.seq}", style="bold"))
        await super().start()

    async def _read(self, place: int | None) -> ListPart[_Paragraph]:
        first = place or 0
        last = first + _PART
        told = tuple(self._told[first:last])
        more = last if last < len(self._told) else None
        return ListPart(told, first - _PART if first else None, more)

    def _paragraphs(self) -> Iterator[tuple[str, str]]:
        """Give what is told, each with its style."""
        message = self._entry.message
        for piece in pieces_of(message):
            if piece.kind == "call":
                yield "bold yellow", f"call of {piece.name}  {piece.call_id}"
            yield from (("", text) for text in _paragraphs_of(piece.text))
            yield "", ""
        if self._entry.marks:
            yield "", f"marks: {', '.join(self._entry.marks)}"
        for file in self._entry.files:
            words = attached(file.name, file.media_type, file.size)
            yield "", f"attached: {words}, id {file.id}"
        for used in self._used:
            cost = "not known" if used.cost is None else money(used.cost)
            words = f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out, cost {cost}"
            yield "", f"its turn used: {used.model or 'a model'}, {words}"
        for field in fields(message):
            value = getattr(message, field.name)
            if field.repr and field.name not in _ELSEWHERE and value not in (None, {}, []):
                told = _told(value)
                yield from (("dim", text) for text in _paragraphs_of(f"{field.name}: {told}"))


_Paragraph = tuple[int, str, str]
"""Its number, its style, its text."""


def _paragraphs_of(text: str) -> Iterator[str]:
    """Give a text in pieces that can be drawn at once, broken between lines where it has some."""
    start = 0
    while start < len(text):
        end = min(start + _PIECE, len(text))
        line_end = text.rfind("\n", start, end) if end < len(text) else -1
        if line_end > start:
            yield text[start:line_end]
            start = line_end + 1
        else:
            yield text[start:end]
            start = end


def _told(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, indent=2)
    return str(value)


def _draw(paragraph: _Paragraph, width: int) -> list[Strip]:
    _, style, text = paragraph
    if not text:
        return [Strip.blank(1)]
    if style.startswith("bold"):
        return [cut(Text(on_one_line(text), style=style), width)]
    return text_lines(text, width, style)
