"""A message on the terminal: whatever it holds, as text and never as markup."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from agentstore.cli.output import on_one_line, printable
from agentstore.records import MessageRecord
from agentstore.values.states import COMPLETE

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
    console: Console, message: MessageRecord, marks: Sequence[str] = (), *, full: bool = False
) -> None:
    """Print one message: who and what number it is, its text, and the tools that it calls.

    Args:
        console: Where to.
        message: The message.
        marks: Its marks.
        full: Whether tools' results are printed however long they are.
    """
    style = _STYLES.get(message.role, "")
    label = Text.assemble((message.role, style))
    if message.name:
        label.append(f" {on_one_line(message.name)}", style=style)
    label.append(f"  #{message.seq}", style="dim")
    if message.tool_call_id:
        label.append(f"  answers {on_one_line(message.tool_call_id)}", style="dim")
    if message.status != COMPLETE:
        label.append(f"  {message.status}", style="bold red")
    for mark in marks:
        label.append("  ")
        label.append(f"[{on_one_line(mark)}]", style="blue")
    console.print(label)
    for text, is_prose in _pieces(message):
        most = _MOST if message.role == "tool" else None
        if not is_prose:
            most = _MOST_OF_A_BLOCK
        style = "" if is_prose else "dim"
        print_text(console, text, style=style, most=None if full else most)
    for call in message.tool_calls or ():
        _print_call(console, call, None if full else _MOST)


def print_text(
    console: Console, text: str, *, style: str = "", indent: int = 2, most: int | None = None
) -> None:
    """Print a text, indented and broken where the terminal ends; cut if it is longer than that."""
    rest = 0 if most is None else len(text) - most
    shown = Text(printable(text if rest <= 0 else text[:most]), style=style)
    if rest > 0:
        shown.append(f"\n… {rest:,} more characters: --full shows them", style="dim")
    width = max(console.width - indent, 2)
    for line in shown.wrap(console, width, overflow="fold", tab_size=4):
        line.rstrip()  # or copying it from a terminal would copy spaces, too
        line.pad_left(indent if line.plain else 0)
        console.print(line, soft_wrap=True)


def _pieces(message: MessageRecord) -> Iterator[tuple[str, bool]]:
    """Give what a message holds, piece by piece, and whether each is prose."""
    if isinstance(message.content, str):
        if message.content:
            yield message.content, True
        return
    for block in message.content or ():
        text = block.get("text") if isinstance(block, dict) else block
        if isinstance(text, str):
            yield text, True
        else:
            yield _json(block), False


def _print_call(console: Console, call: Any, most: int | None) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    described = function if isinstance(function, dict) else call
    if not isinstance(described, dict):
        print_text(console, f"→ {_json(call)}", style="yellow", most=most)
        return
    line = Text.assemble(("→ ", "yellow"), (on_one_line(str(described.get("name", "?"))), "bold"))
    if isinstance(call_id := call.get("id"), str):
        line.append(f"  {on_one_line(call_id)}", style="dim")
    line.pad_left(2)
    console.print(line, soft_wrap=True)
    arguments = described.get("arguments", described.get("input"))
    if arguments is not None:
        written = arguments if isinstance(arguments, str) else _json(arguments)
        print_text(console, written, style="yellow", indent=4, most=most)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
