"""From texts to the lines of a terminal, whatever they hold.

All that comes from the database goes through ``printable`` first, so a terminal gets no character
that it would obey, and is handed on as ``Text`` or as parsed Markdown, so nothing in it is ever
markup. HTML in Markdown is text, links are not sent as links, and what is drawn at once is bounded.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from agentstore.values.text.terminal import printable

_STYLES = Theme(
    {
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.block_quote": "italic",
        "markdown.list": "none",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)
_CONSOLE = Console(
    file=io.StringIO(),
    force_terminal=True,
    color_system="truecolor",
    legacy_windows=False,
    markup=False,
    emoji=False,
    highlight=False,
    theme=_STYLES,
)
_NARROWEST = 8
_FOUND = Style(bold=True, reverse=True, color="yellow")


def lines_of(what: RenderableType, width: int) -> list[Strip]:
    """Draw something in so many columns; no line is longer."""
    width = max(width, _NARROWEST)
    options = _CONSOLE.options.update(width=width, height=None)
    return [Strip(line).crop(0, width) for line in _CONSOLE.render_lines(what, options, pad=False)]


def text_lines(text: str, width: int, style: str = "") -> list[Strip]:
    """Draw a text as it is, broken where the columns end."""
    shown = Text(printable(text).expandtabs(4), style=style, overflow="fold", end="")
    return lines_of(shown, width)


def markdown_lines(text: str, width: int) -> list[Strip]:
    """Draw Markdown; what cannot be drawn as that is drawn as text."""
    from agentstore.tui.markdowns import PlainMarkdown

    shown = printable(text).expandtabs(4)
    try:
        lines = lines_of(PlainMarkdown(shown), width)
    except Exception:  # noqa: BLE001 - libraries that stumble over a text must not hide it
        return text_lines(text, width)
    empty = [True, *(not line.text.strip() for line in lines)]
    lines = [line for line, *both in zip(lines, empty, empty[1:], strict=False) if not all(both)]
    if lines and not lines[-1].text.strip():
        lines.pop()
    return lines or text_lines(text, width)


def cut(line: Text, width: int) -> Strip:
    """Draw one line, and cut it where the columns end."""
    line = Text().append_text(line)  # or a style of the whole would be forgotten
    line.truncate(max(width, _NARROWEST), overflow="ellipsis")
    return Strip(list(line.render(_CONSOLE)))


def indented(lines: Iterable[Strip], columns: int) -> list[Strip]:
    """Put lines further to the right."""
    space = Segment(" " * columns)
    return [Strip([space, *line]) for line in lines]


def with_found(lines: Sequence[Strip], words: Sequence[str]) -> list[Strip]:
    """Mark words that were found, wherever they stand in the lines."""
    if not words:
        return [*lines]
    wanted = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    return [_marked(line, wanted) for line in lines]


def _marked(line: Strip, wanted: re.Pattern[str]) -> Strip:
    ends = [end for found in wanted.finditer(line.text) for end in found.span()]
    if not ends:
        return line
    marked = Text()
    for text, style, _ in line:
        marked.append(text, style)
    for start, end in zip(ends[::2], ends[1::2], strict=True):
        marked.stylize(_FOUND, start, end)
    marked.end = ""
    return Strip(list(marked.render(_CONSOLE)))
