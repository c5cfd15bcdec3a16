"""How commands print: for people with rich, for programs as JSON.

On a terminal lines fit its width, and what is too long ends in "…". Anywhere else, such as in a
pipe or a file, nothing is cut and no line is broken.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agentstore.errors import InvalidInput
from agentstore.records import AttachmentRecord, MessageRecord
from agentstore.records.base import COMPLETE
from agentstore.retention import duration
from agentstore.values.chat import MessagePiece, parse_message, pieces_of
from agentstore.values.snippets import ROLE_STYLES, attached, on_one_line, printable

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

_ENDLESS = 100_000
"""Columns of what is no terminal, for tables."""

_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_COMMANDS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON may hold as it is, and a terminal may obey."""


def say(line: str) -> None:
    """Print one line: no markup, and no breaks that a program would stumble over."""
    out.print(Text(printable(line, kept="")), soft_wrap=True)


def hint(line: str) -> None:
    """Print a line about what was printed, broken where a terminal ends."""
    out.print(Text(printable(line, kept=""), style="dim"), soft_wrap=not out.is_terminal)


def print_cut(line: Text) -> None:
    """Print a line, cut where a terminal ends."""
    if out.is_terminal:
        out.print(line, overflow="ellipsis", no_wrap=True)
    else:
        out.print(line, soft_wrap=True)


def print_table(rows: Table) -> None:
    """Print a table, as wide as a terminal, and elsewhere as wide as it is."""
    if out.is_terminal:
        out.print(rows)
        return
    for column in rows.columns:
        column.min_width, column.width = column.width or column.min_width, None
    wide = Console(file=out.file, width=_ENDLESS, highlight=False, color_system=None)
    wide.print(rows, soft_wrap=True)


def rule(title: str) -> Rule:
    """Make a line across the terminal that begins with a title."""
    return Rule(Text(title, style="dim"), align="left", style="dim", characters="─")


def columns() -> int:
    """Give the width of the terminal; elsewhere it is 80."""
    return out.width


# --- For programs ------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print one document, for programs."""
    out.file.write(_written(plain(value), indent=2) + "\n")


def print_json_lines(values: Iterable[Any]) -> None:
    """Print documents, one a line, each at once."""
    for value in values:
        out.file.write(_written(plain(value)) + "\n")
    out.file.flush()


def print_json_list(values: Iterable[Any]) -> None:
    """Print one list, an element a line, without ever holding all of it."""
    comma = ""
    out.file.write("[")
    for value in values:
        out.file.write(f"{comma}\n{_written(plain(value))}")
        comma = ","
    out.file.write("\n]\n" if comma else "]\n")


def plain(value: Any) -> Any:
    """Give a record, or whatever is made of records, as JSON can say it.

    Instants and days are ISO 8601, money is a string, durations are seconds; of an enumeration's
    member it is the value.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in dataclasses.fields(value) if field.repr]
        return {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, date):  # a datetime is one, too
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Enum):
        return value.value
    return value.total_seconds() if isinstance(value, timedelta) else value


def _written(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    text = _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(getattr(out.file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # half a character, or a terminal that knows few of them
        return json.dumps(value, indent=indent)
    return text


# --- For people --------------------------------------------------------------------------------


def bar(share: float, width: int) -> str:
    """Draw a bar of a chart, to an eighth of a character; what is not nothing is seen."""
    eighths: int = max(round(share * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def table(*names: str, right: Collection[str] = (), header: bool = True) -> Table:
    """Begin a table without lines, columns two spaces apart, that leaves no spaces behind them.

    Args:
        names: Of its first columns.
        right: Those of them whose values stand on the right.
        header: Whether the names are shown.
    """
    begun = Table(box=None, show_header=header, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        begun.add_column(name, justify="right" if name in right else "left")
    return begun


def fitting(widths: Mapping[str, int], less_wanted: Iterable[str], room: int) -> dict[str, int]:
    """Give the columns that a terminal has room for; those that are wanted less go first."""
    left = dict(widths)
    for name in less_wanted:
        if out.is_terminal and sum(left.values()) + 2 * len(left) > room:
            left.pop(name, None)
    return left


def progress(total: int | None) -> Progress:
    """Make a bar on standard error; none where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn()
        if total is None or total > 10_000
        else TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


# Times and ages on the command line: each option that takes one of the two takes the other too.
#
# A time is in ISO 8601, such as 2026-03-01 or 2026-03-01T12:30+01:00; without a zone it is in UTC.
# An age is made of whole numbers of w, d, h, m or s, such as 30d or 1d12h.


def instant(text: str) -> datetime:
    """Read a time; an age means so long ago.

    Raises:
        InvalidInput: It is neither.
    """
    found = _read(text)
    return datetime.now(UTC) - found if isinstance(found, timedelta) else found


def age(text: str) -> timedelta:
    """Read an age; a time means from then until now.

    Raises:
        InvalidInput: It is neither, or a time that is to come.
    """
    found = _read(text)
    if isinstance(found, timedelta):
        return found
    if (passed := datetime.now(UTC) - found) < timedelta(0):
        raise InvalidInput("This time must be in the past.")
    return passed


def seconds(text: str | float) -> float:
    """Read how long to wait: a number of seconds, or as an age is written.

    Raises:
        InvalidInput: It is neither.
    """
    try:
        if (found := float(text)) >= 0:  # not a NaN, which no waiting reaches
            return found
    except ValueError:
        pass
    try:
        return duration(str(text)).total_seconds()
    except InvalidInput:
        raise InvalidInput("This must be a number of seconds, or text such as 30s or 5m.") from None


def _read(text: str) -> datetime | timedelta:
    try:
        return duration(text)
    except InvalidInput:
        pass
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            "A time must be like 2026-03-01 or 2026-03-01T12:30+01:00 (without a zone it is UTC), "
            "an age like 30d or 1d12h."
        ) from None


Since = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        parser=instant,
        metavar="TIME",
        help="Not before this time, such as 2026-03-01 (UTC), or 7d ago.",
    ),
]
"""The option that begins a stretch of time."""
Until = Annotated[
    datetime | None,
    typer.Option("--until", parser=instant, metavar="TIME", help="Only before this time."),
]
"""The option that ends it."""


# A message on the terminal: whatever it holds, as text and never as markup.


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
    style = ROLE_STYLES.get(message.role, "")
    label = Text.assemble((message.role, style))
    if message.name:
        label.append(f" {on_one_line(message.name)}", style=style)
    day = f"{message.created_at:%Y-%m-%d} " if dated else ""
    at = f"  {day}{message.created_at:%H:%M:%S}" if message.session_id else ""
    label.append(f"  #{message.seq}{at}", style="dim")
    parsed = parse_message(message.to_chat())
    for key in parsed.results if parsed else ():
        if isinstance(key, str):
            label.append(f"  answers {on_one_line(key)}", style="dim")
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
    console: Console, text: str | Text, *, style: str = "", indent: int = 2, most: int | None = None
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
