"""How commands print: for people with rich, for programs as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

out = Console()
err = Console(stderr=True)


def say(line: str) -> None:
    """Print one line as it is: no markup, no breaks that a program would stumble over."""
    out.print(Text(line), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one document, for programs."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def printable(text: str) -> str:
    """Show control characters instead of sending them to the terminal."""
    return "".join(
        character
        if character in "\n\t" or character.isprintable()
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def progress(total: int) -> Progress:
    """Make a bar on standard error; none where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if total > 10_000 else TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
