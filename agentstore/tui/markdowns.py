"""Markdown for a terminal; imported with the first text that is drawn, since it takes a while."""

from __future__ import annotations

from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown

_READER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
_READER.disable("image")


class PlainHeading(Heading):
    """A heading at the left, without a box around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in bold, and those of the first two levels underlined."""
        self.text.justify = "left"
        self.text.stylize("bold underline" if self.tag in ("h1", "h2") else "bold")
        yield self.text


class PlainMarkdown(Markdown):
    """Markdown in which HTML is text, addresses are seen, and lines end where they were ended."""

    elements: ClassVar = {**Markdown.elements, "heading_open": PlainHeading}

    def __init__(self, text: str) -> None:
        """Read a text."""
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _READER.parse(text)
        for block in self.parsed:
            for token in block.children or ():
                token.type = "hardbreak" if token.type == "softbreak" else token.type
