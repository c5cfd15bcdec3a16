"""A message on the terminal: whatever it holds, as text and never as markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from agentstore.cli.output import on_one_line, printable
from agentstore.records import MessageRecord
from agentstore.values.states import COMPLETE
from agentstore.values.text.readable import readable_text

_STYLES = {
    "system": "magenta",
    "developer": "magenta",
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "yellow",
}
_MOST = 1_000
"""Characters of a tool's result, and of its arguments."""
_ARGUMENTS = ("arguments", "input")
"""What the APIs call the arguments of a call."""
_MOST_OF_A_BLOCK = 150
"""Characters of a block that is no text: a picture, for example."""


def print_message(
    console: Console,
    message: MessageRecord,
    marks: Sequence[str] = (),
    *,
    full: bool = False,
    dated: bool = True,
) -> None:
    """Print one message: who, what number and when it is, its text, and the tools that it calls.

    Args:
        console: Where to.
        message: The message.
        marks: Its marks.
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
    calls = message.tool_calls or ()
    nothing = not (message.content or calls)
    for piece in _pieces(message.payload if nothing else message.content):
        text = piece if isinstance(piece, str) else readable_text(None, piece, None)
        if _is_call(piece):
            _print_call(console, piece, None if full else _MOST)
        elif text:
            print_text(console, text, most=_MOST if message.role == "tool" and not full else None)
        else:
            most = None if full else _MOST_OF_A_BLOCK
            print_text(console, _json(piece), style="dim", most=most)
    for call in calls:
        _print_call(console, call, None if full else _MOST)


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


def _pieces(held: Any) -> list[Any]:
    """Give what a message holds, piece by piece: texts, blocks, calls of tools."""
    if held is None or held == "":
        return []
    return held if isinstance(held, list) else [held]


def _is_call(piece: Any) -> bool:
    """Say whether a block, or a framework's own item, calls a tool."""
    return isinstance(piece, dict) and "name" in piece and not piece.keys().isdisjoint(_ARGUMENTS)


def _print_call(console: Console, call: Any, most: int | None) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    described = function if isinstance(function, dict) else call
    if not isinstance(described, dict):
        print_text(console, f"→ {_json(call)}", style="yellow", most=most)
        return
    line = Text.assemble(("→ ", "yellow"), (on_one_line(str(described.get("name", "?"))), "bold"))
    if isinstance(call_id := call.get("call_id", call.get("id")), str):
        line.append(f"  {on_one_line(call_id)}", style="dim")
    line.pad_left(2)
    console.print(line, soft_wrap=True)
    arguments = next((described[name] for name in _ARGUMENTS if name in described), None)
    if arguments is not None:
        written = arguments if isinstance(arguments, str) else _json(arguments)
        print_text(console, written, style="yellow", indent=4, most=most)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
