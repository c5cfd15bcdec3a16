"""What messages hold as HTML: Markdown, JSON and plain text, each cut where it is long.

Nothing of it is trusted. HTML in Markdown is text; a link goes to http, https or mail and nowhere
else; a picture is a link, since loading it would tell its server who reads what.

What is made of a text is bounded by its length: a table of short rows, a link that is used again
and again, or nested JSON could become a hundred times as long. A text that becomes too long, or
whose time is over, is shown as it is, with a word about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from html import escape
from time import monotonic
from typing import Any, Literal
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.parser_block import ParserBlock
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from agentstore.explorer.web.visible import visible

_SCHEMES = ("http", "https", "mailto")
_STRING = re.compile(r'("(?:\\(?:.|\Z)|[^"\\])*(?:"|\Z))(\s*:)?', re.DOTALL)
"""Also one that is cut off: were it none, its beginnings at each quotation mark would be tried."""


MOST_TIMES = 8
"""How many characters of HTML may be made of one of a text."""

_MOST_BESIDE = 2_000
"""So many more may be made of any text."""

_MOST_FORMATTED = 100_000
"""Longer texts are not read as Markdown."""

_MOST_READ = 200_000
"""Longer JSON is not read, and not written in lines."""

UNTIL: ContextVar[float] = ContextVar("UNTIL", default=float("inf"))
"""When texts are no longer formatted, by ``time.monotonic``."""


class TooCostly(Exception):
    """What is to be shown would be too long, or took too much time."""


class Allowance:
    """How much a page still takes: when it is full, only beginnings are shown."""

    def __init__(
        self,
        characters: int = 120_000,
        *,
        said: int = 4_000,
        called: int = 1_500,
        parts: int = 600,
        parts_of_one: int = 100,
        pictures: bool = True,
    ) -> None:
        """Begin with room for so many characters.

        Args:
            characters: Of all texts together.
            said: Of a text.
            called: Of the arguments of a call, and of its result.
            parts: How many texts and calls of all messages together.
            parts_of_one: How many texts, and how many calls, of one message.
            pictures: Whether pictures in messages are shown.
        """
        self._left = characters
        self._parts = parts
        self._parts_of_one = parts_of_one
        self.pictures = pictures
        self.said = said
        self.called = called

    def cut(self, text: str, most: int) -> str:
        """Give the beginning of a text, as much as there is room for, and at least a line."""
        taken = text[: max(min(most, self._left), 200)]
        self._left -= len(taken)
        return taken

    def made(self, html: Markup, text: str) -> Markup:
        """Count what was made of a text, where that is much more than the text."""
        self._left -= max(len(html) // 4 - len(text), 0)
        return html

    def parts(self, wanted: int) -> int:
        """Give how many of so many parts of a message are shown: at least one."""
        shown = min(wanted, self._parts_of_one, max(self._parts, 1))
        self._parts -= shown
        return shown


def markdown(text: str) -> Markup:
    """Give a text in Markdown as HTML."""
    most = MOST_TIMES * len(text) + _MOST_BESIDE
    if len(text) > _MOST_FORMATTED:
        return _as_it_is(text)
    try:
        made = _markdown().render(visible(text), {"most": most})
    except TooCostly:
        return _as_it_is(text)
    if len(made) > most:
        return _as_it_is(text)
    return Markup(made)  # noqa: S704 - it escapes; see the module


def _as_it_is(text: str) -> Markup:
    note = Markup('<p class="left">Too costly to format: this is the raw text.</p>')
    return note + plain(text)


def plain(text: str) -> Markup:
    """Give a text as it is."""
    return Markup("<pre>{}</pre>").format(_escaped(text))


def document(text: str) -> Any:
    """Give what a text says as JSON, if it is an object or a list; else None."""
    if len(text) > _MOST_READ or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def pretty(text: str) -> Markup:
    """Give written JSON as HTML, keys and strings in colours; it may be cut anywhere."""
    parts: list[Markup] = []
    end, left = 0, MOST_TIMES * len(text) + _MOST_BESIDE
    for found in _STRING.finditer(text):
        left -= len('<span class="k"></span>') + found.end() - end
        if left < 0:
            return _as_it_is(text)
        kind = "k" if found[2] else "s"
        parts.append(_escaped(text[end : found.start()]))
        parts.append(Markup('<span class="{}">{}</span>').format(kind, _escaped(found[1])))
        parts.append(_escaped(found[2] or ""))
        end = found.end()
    return Markup("<pre>{}{}</pre>").format(Markup().join(parts), _escaped(text[end:]))


def _escaped(text: str) -> Markup:
    """Escape what stands between tags: quotes may stay, and JSON is full of them."""
    return Markup(escape(text, quote=False))  # noqa: S704


def written(value: Any, most: int | None = None) -> str:
    """Write a value as JSON, in lines; or on one line, where most of these would be white space.

    Args:
        value: The value.
        most: How many characters are needed: what is given may end after these.
    """
    whole = _on_one_line(value)
    room = 4 * len(whole) + _MOST_BESIDE
    if len(whole) > _MOST_READ and most is None:
        return whole
    parts, length = [], 0
    try:
        for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
            parts.append(part)
            length += len(part)
            if length > room:
                return whole
            if most is not None and length >= most:
                break
    except RecursionError:
        return whole
    return "".join(parts)


def _on_one_line(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "… (too deeply nested)"


def length_of(value: Any) -> int:
    """Give how many characters a value has as JSON on one line."""
    return len(_on_one_line(value))


def safe_link(address: str) -> bool:
    """Say whether a link may go there: to http, https or mail."""
    try:
        return urlsplit(address.strip()).scheme.lower() in _SCHEMES
    except ValueError:
        return False


@cache
def _markdown() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False})
    made.block = _Blocks()
    made.configure("commonmark", {"html": False}).enable(["table", "strikethrough"])
    made.validateLink = safe_link  # type: ignore[method-assign,assignment]
    made.add_render_rule("link_open", _link)
    made.add_render_rule("image", _image)
    made.add_render_rule("table_open", _table)
    made.add_render_rule("table_close", lambda *_: "</table></div>\n")
    made.add_render_rule("th_open", _cell)
    made.add_render_rule("td_open", _cell)
    for level in ("heading_open", "heading_close"):
        made.add_render_rule(level, _heading)
    return made


class _Blocks(ParserBlock):
    """Parses blocks, of which there are no more than what the text is long enough for."""

    def parse(
        self, src: str, md: MarkdownIt, env: EnvType, outTokens: list[Token]
    ) -> list[Token] | None:
        """Parse a text."""
        if not src:
            return None
        state = _State(src, md, env, outTokens)
        self.tokenize(state, state.line, state.lineMax)
        return state.tokens


class _State(StateBlock):
    """Counts the tokens: a row of a table has as many cells as its head, however short it is."""

    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        """Add a token.

        Raises:
            TooCostly: There are too many, or the time is over.
        """
        if len(self.tokens) > 2 * len(self.src) + _MOST_BESIDE or monotonic() > UNTIL.get():
            raise TooCostly
        return super().push(ttype, tag, nesting)


def _count(token: Token, env: EnvType) -> None:
    """Count the address and the title of a link, which may be defined once and used everywhere.

    Raises:
        TooCostly: There are too many characters of them.
    """
    env["most"] -= sum(len(str(each)) for each in token.attrs.values())
    if env["most"] < 0:
        raise TooCostly


def _link(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    _count(tokens[index], env)
    tokens[index].attrSet("rel", "noopener noreferrer nofollow")
    return renderer.renderToken(tokens, index, options, env)


def _image(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    _count(tokens[index], env)
    words = renderer.renderInlineAsText(tokens[index].children, options, env)
    return offered(str(tokens[index].attrGet("src") or ""), f"picture: {words}".rstrip(": "))


def offered(address: str, words: str) -> Markup:
    """Give a link to what is elsewhere and is not loaded; if it is not a safe one, its words."""
    if not safe_link(address):
        return Markup('<span class="dim">[{}]</span>').format(words)
    link = Markup('<a href="{}" rel="noopener noreferrer nofollow">[{}]</a>')
    return link.format(address, words)


def _table(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return '<div class="scroll" tabindex="0"><table>'


def _cell(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Align a cell by a class: the policy allows no style attributes."""
    side = str(tokens[index].attrGet("style") or "").removeprefix("text-align:")
    kind = f' class="{side}"' if side in ("left", "center", "right") else ""
    return f"<{tokens[index].tag}{kind}>"


def _heading(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Keep headings of messages below those of the page."""
    level = min(int(tokens[index].tag[1:]) + 2, 6)
    return f"<h{level}>" if tokens[index].nesting == 1 else f"</h{level}>\n"
