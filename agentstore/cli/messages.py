"""A message on the terminal: whatever it holds, as text and never as markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from agentstore.records import AttachmentRecord, MessageRecord
from agentstore.values.chat.pieces import MessagePiece, pieces_of
from agentstore.values.states import COMPLETE
from agentstore.values.text.terminal import attached, on_one_line, printable

_STYLES = {
    "system": "magenta",
    "developer": "magenta",
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "yellow",
}
_MOST = 1_000
"""Characters of a tool's result, and of its arguments."""
_MOST_OF_A_BLOCK = 150
"""Characters of a block that is no text: a picture, for example."""


def print_message(
    console: Console,
    message: MessageRecord,
    marks: Sequence[str] = (),
    files: Sequence[AttachmentRecord] = (),
    *,
    full: bool = False,
    dated: bool = True,
) -> None:
    """Print one message: who, what number and when it is, its text, and the tools that it calls.

    Args:
        console: Where to.
        message: The message.
        marks: Its marks.
        files: Its attachments.
        full: Whether tools' results are printed however long they are, as they are where there
            is no terminal.
        dated: Whether the day stands before the time. Both are in UTC.
    """
    full = full or not console.is_terminal
    style = _STYLES.get(message.role, "")
    label = Text.assemble((message.role, style))
    if message.name:
        label.append(f" {on_one_line(message.name)}", style=style)
    day = f"{message.created_at:%Y-%m-%d} " if dated else ""
    label.append(f"  #{message.seq}  {day}{message.created_at:%H:%M:%S}", style="dim")
    if message.tool_call_id:
        label.append(f"  answers {on_one_line(message.tool_call_id)}", style="dim")
    if message.status != COMPLETE:
        label.append(f"  {message.status}", style="bold red")
    for mark in marks:
        label.append("  ")
        label.append(f"[{on_one_line(mark)}]", style="blue")
    console.print(label, soft_wrap=not console.is_terminal)
    for piece in pieces_of(message):
        if piece.kind == "call":
            _print_call(console, piece, None if full else _MOST)
        elif piece.kind == "text":
            most = _MOST if message.role == "tool" and not full else None
            print_text(console, piece.text, most=most)
        else:
            most = None if full else _MOST_OF_A_BLOCK
            print_text(console, piece.text, style="dim", most=most)
    for file in files:
        line = Text.assemble(("+ ", "yellow"), attached(file.name, file.media_type, file.size))
        line.append(f"  {file.id}", style="dim")
        line.pad_left(2)
        console.print(line, soft_wrap=True)


def print_text(
    console: Console,
    text: str | Text,
    *,
    style: str = "",
    indent: int = 2,
    most: int | None = None,
) -> None:
    """Print a text, indented and broken where a terminal ends; cut if it is longer than that."""
    rest = 0 if most is None else len(text) - most
    shown = (
        text
        if isinstance(text, Text)
        else Text(printable(text if rest <= 0 else text[:most]), style=style)
    )
    if rest > 0:
        shown.append(f"\n… {rest:,} more characters: --full shows them", style="dim")
    lines = shown.split(allow_blank=True)
    if console.is_terminal:
        width = max(console.width - indent, 2)
        lines = shown.wrap(console, width, overflow="fold", tab_size=4)
    for line in lines:
        line.rstrip()  # or copying it from a terminal would copy spaces, too
        line.pad_left(indent if line.plain else 0)
        console.print(line, soft_wrap=True)


def _print_call(console: Console, call: MessagePiece, most: int | None) -> None:
    line = Text.assemble(("→ ", "yellow"), (on_one_line(call.name), "bold"))
    if call.call_id:
        line.append(f"  {on_one_line(call.call_id)}", style="dim")
    line.pad_left(2)
    console.print(line, soft_wrap=True)
    if call.text:
        print_text(console, call.text, style="yellow", indent=4, most=most)
