"""What messages hold as HTML: Markdown, JSON and plain text, each cut where it is long.

Nothing of it is trusted. HTML in Markdown is text; a link goes to http, https or mail and nowhere
else; a picture is a link, since loading it would tell its server who reads what.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from agentstore.explorer.web.visible import visible

_SCHEMES = ("http", "https", "mailto")
_STRING = re.compile(r'("(?:\\(?:.|\Z)|[^"\\])*(?:"|\Z))(\s*:)?', re.DOTALL)
"""Also one that is cut off: were it none, its beginnings at each quotation mark would be tried."""


class Allowance:
    """How much text a page still takes: when it is full, only beginnings are shown."""

    def __init__(
        self, characters: int = 120_000, *, said: int = 4_000, called: int = 1_500
    ) -> None:
        """Begin with room for so many characters.

        Args:
            characters: Of all texts together.
            said: Of a text.
            called: Of the arguments of a call, and of its result.
        """
        self._left = characters
        self.said = said
        self.called = called

    def cut(self, text: str, most: int) -> str:
        """Give the beginning of a text, as much as there is room for, and at least a line."""
        taken = text[: max(min(most, self._left), 200)]
        self._left -= len(taken)
        return taken


def markdown(text: str) -> Markup:
    """Give a text in Markdown as HTML."""
    return Markup(_markdown().render(visible(text)))  # noqa: S704 - it escapes; see the module


def plain(text: str) -> Markup:
    """Give a text as it is."""
    return Markup("<pre>{}</pre>").format(_escaped(text))


def document(text: str) -> Any:
    """Give what a text says as JSON, if it is an object or a list; else None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def pretty(text: str) -> Markup:
    """Give written JSON as HTML, keys and strings in colours; it may be cut anywhere."""
    parts: list[Markup] = []
    end = 0
    for found in _STRING.finditer(text):
        kind = "k" if found[2] else "s"
        parts.append(_escaped(text[end : found.start()]))
        parts.append(Markup('<span class="{}">{}</span>').format(kind, _escaped(found[1])))
        parts.append(_escaped(found[2] or ""))
        end = found.end()
    return Markup("<pre>{}{}</pre>").format(Markup().join(parts), _escaped(text[end:]))


def _escaped(text: str) -> Markup:
    """Escape what stands between tags: quotes may stay, and JSON is full of them."""
    return Markup(escape(text, quote=False))  # noqa: S704


def written(value: Any) -> str:
    """Write a value as JSON, in lines."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def safe_link(address: str) -> bool:
    """Say whether a link may go there: to http, https or mail."""
    try:
        return urlsplit(address.strip()).scheme.lower() in _SCHEMES
    except ValueError:
        return False


@cache
def _markdown() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
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


def _link(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    tokens[index].attrSet("rel", "noopener noreferrer nofollow")
    return renderer.renderToken(tokens, index, options, env)


def _image(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
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
