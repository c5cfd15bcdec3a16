"""A message as lines: who, when, how many tokens, what it says; calls and results folded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual.strip import Strip

from agentstore.tui.drawing import cut, indented, markdown_lines, text_lines, with_found
from agentstore.tui.entries import ShownMessage
from agentstore.values.chat.pieces import MessagePiece, pieces_of
from agentstore.values.states import COMPLETE
from agentstore.values.text.terminal import attached, brief, money, on_one_line

STYLES = {
    "system": "magenta",
    "developer": "magenta",
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "yellow",
}
_FOLDED = 1_500
"""Characters of a text, and lines, that are drawn while it is folded."""
_FOLDED_LINES = 16
_FOLDED_FILES = 5
_OPENED = 20_000
"""Characters that are drawn when it is not; the rest is seen with all that there is of it."""
_GLANCE = 300
"""Characters of a call or a result that one line is made of."""


@dataclass(frozen=True, slots=True)
class MessageLook:
    """How messages are drawn.

    Attributes:
        opened: Those that are not folded, by their ids.
        raw: Whether Markdown is left as it was written.
        words: What was searched for, to be marked.
    """

    opened: frozenset[str] = frozenset()
    raw: bool = False
    words: tuple[str, ...] = ()


def entry_lines(entry: ShownMessage, width: int, look: MessageLook) -> list[Strip]:
    """Draw a message, and a line above it where a turn begins."""
    message = entry.message
    opened = message.id in look.opened
    lines = [Strip.blank(1)]
    if entry.new_turn:
        label = f"── turn {message.turn} · {message.created_at:%Y-%m-%d} UTC "
        lines.append(cut(Text(label.ljust(width, "─"), style="dim"), width))
    lines.append(cut(_label(entry), width))
    for piece in pieces_of(message):
        lines += indented(_piece(piece, message.role, width - 2, opened, look.raw), 2)
    for file in entry.files if opened else entry.files[:_FOLDED_FILES]:
        line = Text.assemble(("+ ", "yellow"), attached(file.name, file.media_type, file.size))
        lines += indented([cut(line, width - 2)], 2)
    if not opened and len(entry.files) > _FOLDED_FILES:
        rest = f"… {len(entry.files) - _FOLDED_FILES:,} more attachments: Enter unfolds them"
        lines += indented([cut(Text(rest, style="dim"), width - 2)], 2)
    return with_found(lines, look.words)


def _label(entry: ShownMessage) -> Text:
    message = entry.message
    if message.status == "summary":
        return Text("summary of what is above", style="bold blue")
    label = Text.assemble((message.role, STYLES.get(message.role, "")))
    if message.name:
        label.append(f" {on_one_line(message.name)}")
    facts = [f"#{message.seq}", f"{message.created_at:%H:%M:%S}"]
    if message.token_count:
        facts.append(f"{brief(message.token_count)} tokens")
    if message.cost:
        facts.append(f"cost {money(message.cost)}")
    label.append(f"  {'  '.join(facts)}", style="dim")
    if message.status != COMPLETE:
        label.append(f"  {message.status}", style="bold red")
    for mark in entry.marks:
        label.append(f"  [{on_one_line(mark)}]", style="blue")
    return label


def _piece(piece: MessagePiece, role: str, width: int, opened: bool, raw: bool) -> Sequence[Strip]:
    if piece.kind == "call":
        return _call(piece, width, opened)
    if role == "tool":
        return _result(piece.text, width, opened)
    if piece.kind == "data":
        return _folded(piece.text, width, "dim") if not opened else _whole(piece.text, width)
    shown = piece.text[: _OPENED if opened else _FOLDED]
    lines = text_lines(shown, width) if raw else markdown_lines(shown, width)
    if not opened and len(lines) > _FOLDED_LINES:
        rest = f"… {len(piece.text):,} characters: Enter unfolds them"
        return [*lines[:_FOLDED_LINES], cut(Text(rest, style="dim"), width)]
    return [*lines, *_rest(piece.text, len(shown), opened, width)]


def _call(call: MessagePiece, width: int, opened: bool) -> Sequence[Strip]:
    line = Text.assemble(("▾ " if opened else "▸ ", "yellow"), (on_one_line(call.name), "bold"))
    if opened:
        if call.call_id:
            line.append(f"  {on_one_line(call.call_id)}", style="dim")
        return [cut(line, width), *indented(_whole(_pretty(call.text), width - 2, "yellow"), 2)]
    line.append(f"  {_glance(call.text)}", style="yellow")
    return [cut(line, width)]


def _result(text: str, width: int, opened: bool) -> Sequence[Strip]:
    if opened:
        return _whole(_pretty(text), width)
    return _folded(text, width, "")


def _folded(text: str, width: int, style: str) -> Sequence[Strip]:
    size = f"  {len(text):,} characters" if len(text) > width else ""
    line = Text.assemble(("▸ ", "yellow"), (_glance(text), style))
    line.truncate(max(width - len(size), 2), overflow="ellipsis")
    line.append(size, style="dim")
    return [cut(line, width)]


def _whole(text: str, width: int, style: str = "") -> Sequence[Strip]:
    shown = text[:_OPENED]
    return [*text_lines(shown, width, style), *_rest(text, len(shown), True, width)]


def _rest(text: str, shown: int, opened: bool, width: int) -> Sequence[Strip]:
    if shown >= len(text):
        return ()
    how = "o shows all" if opened else "Enter unfolds them"
    return [cut(Text(f"… {len(text) - shown:,} more characters: {how}", style="dim"), width)]


def _glance(text: str) -> str:
    return on_one_line(text[:_GLANCE])


def _pretty(text: str) -> str:
    """Give JSON with its lines indented; anything else as it is."""
    if len(text) > _OPENED or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except ValueError:
        return text
