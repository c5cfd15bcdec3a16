"""How commands print: for people with rich, for programs as JSON.

On a terminal lines fit its width, and what is too long ends in "…". Anywhere else, such as in a
pipe or a file, nothing is cut and no line is broken.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agentstore.values.text.terminal import printable

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


def table(*, header: bool = True) -> Table:
    """Begin a table without lines, columns two spaces apart, that leaves no spaces behind them."""
    return Table(box=None, show_header=header, pad_edge=False, padding=(0, 2, 0, 0))


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
