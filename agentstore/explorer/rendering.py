"""What pages share: the templates' environment, messages as HTML, charts, and a request.

In templates everything is escaped, and a name that is missing is an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from html import escape
from importlib.resources import files
from inspect import iscoroutinefunction
from math import ceil, floor, log10
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markdown_it import MarkdownIt
from markdown_it.parser_block import ParserBlock
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentstore.errors import InvalidInput
from agentstore.values.serialized import BELOW, step_of
from agentstore.values.snippets import CLOSE, OPEN, age_of, money

if TYPE_CHECKING:
    from agentstore.health import Probe
    from agentstore.records import SessionRecord
    from agentstore.settings import Settings
    from agentstore.store import Store
    from agentstore.values.redaction import Secrets


_PACKAGE = "agentstore.explorer"


def render(template: str, values: Mapping[str, Any]) -> str:
    """Make a page of a template."""
    return visible(environment().get_template(template).render(values))


def link(page: str, **query: object) -> str:
    """Give the relative address of a page of the explorer; what is None is left out of the query.

    Ids may be any text, lone surrogates included.
    """
    given = {name: str(value) for name, value in query.items() if value is not None}
    return f"{page}?{urlencode(given, errors='surrogatepass')}" if given else page


@cache
def environment() -> Environment:
    """Give the environment of all templates."""
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"bar": bar, "link": _link, "static": _static}
    made.filters |= {
        "ago": ago,
        "ahead": ahead,
        "brief": brief,
        "clock": lambda instant: _time(instant, f"{instant:%H:%M:%S}"),
        "day": lambda instant: f"{instant:%Y-%m-%d}",
        "duration": duration,
        "inline": lambda text: marked(text.replace(OPEN, "[").replace(CLOSE, "]")),
        "last_line": last_line,
        "money": money,
        "number": "{:,}".format,
        "px": lambda place: f"{place:.1f}".removesuffix(".0"),
        "short": short,
        "size": weight,
        "space": lambda name: name.removeprefix(BELOW) or "root",
        "step": step_of,
        "when": when,
        "words": lambda name: name.replace("_", " "),
    }
    return made


@cache
def static_file(name: str) -> tuple[bytes, str]:
    """Give one of the explorer's own files, and what changes with what is in it.

    Raises:
        OSError: There is none of this name.
    """
    content = (files(_PACKAGE) / "static" / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]


@pass_context
def _link(context: Context, page: str, **query: object) -> str:
    return f"{context.get('up', '')}{link(page, **query)}"


@pass_context
def _static(context: Context, name: str) -> str:
    return f"{context.get('up', '')}static/{name}?v={static_file(name)[1]}"


def short(text: str, most: int = 200) -> str:
    """Give a text, or its beginning if it is longer than so many characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def duration(milliseconds: float) -> str:
    """Write how long something took."""
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    seconds = milliseconds / 1_000
    return f"{seconds:.2f} s" if seconds < 60 else f"{seconds / 60:,.1f} min"


def when(instant: datetime) -> Markup:
    """Write a time: its day and minute in UTC."""
    return _time(instant, f"{instant:%Y-%m-%d %H:%M}")


def ago(instant: datetime) -> Markup:
    """Write how long ago a time was; its date, if that was long ago."""
    if datetime.now(UTC) - instant >= timedelta(days=14):
        return _time(instant, f"{instant:%Y-%m-%d}")
    age = age_of(instant)
    return _time(instant, age if age == "now" else f"{age} ago")


def _time(instant: datetime, words: str) -> Markup:
    stamp = f"{instant:%Y-%m-%dT%H:%M:%SZ}"
    title = f"{instant:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(stamp, title, words)


# What messages hold as HTML: Markdown, JSON and plain text, each cut where it is long.
#
# Nothing of it is trusted. HTML in Markdown is text; a link goes to http, https or mail and
# nowhere else; a picture is a link, since loading it would tell its server who reads what.
#
# What is made of a text is bounded by its length: a table of short rows, a link that is used again
# and again, or nested JSON could become a hundred times as long. A text that becomes too long, or
# whose time is over, is shown as it is, with a word about it.


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


@dataclass(slots=True)
class Allowance:
    """How much a page still takes: when it is full, only beginnings are shown.

    Attributes:
        characters: Of all texts together.
        said: Of a text.
        called: Of the arguments of a call, and of its result.
        parts: How many texts and calls of all messages together.
        parts_of_one: How many texts, and how many calls, of one message.
        pictures: Whether pictures in messages are shown.
    """

    characters: int = 120_000
    _: KW_ONLY
    said: int = 4_000
    called: int = 1_500
    parts: int = 600
    parts_of_one: int = 100
    pictures: bool = True

    def cut(self, text: str, most: int) -> str:
        """Give the beginning of a text, as much as there is room for, and at least a line."""
        taken = text[: max(min(most, self.characters), 200)]
        self.characters -= len(taken)
        return taken

    def made(self, html: Markup, text: str) -> Markup:
        """Count what was made of a text, where that is much more than the text."""
        self.characters -= max(len(html) // 4 - len(text), 0)
        return html

    def few(self, wanted: int) -> int:
        """Give how many of so many parts of a message are shown: at least one."""
        shown = min(wanted, self.parts_of_one, max(self.parts, 1))
        self.parts -= shown
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


_BEGIN, _END = "\ue000", "\ue001"
"""Around hits while Markdown is read: letters of no script, so they change nothing in it."""

_LEFT_OVER = re.compile(
    r"`+|(?<!\w)\*\*+(?=\S)|(?<=\S)\*\*+(?!\w)"
    r"|^#{1,6} |(?<=\s)#{2,6} (?=\S)|\|?(?: ?:?-{2,}:? ?\|)+"
)
"""Signs of Markdown that lost their other end, or the beginning of their line."""


def marked(snippet: str, *, as_it_is: bool = False) -> Markup:
    """Give a snippet of Markdown as HTML on one line, the hits in it marked.

    Args:
        snippet: What ``values.snippets.snippet`` gives.
        as_it_is: Whether it is no Markdown.
    """
    text = visible(snippet.replace(_BEGIN, "").replace(_END, ""))
    text = re.sub(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}", rf"{_BEGIN}\1{_END}", text)
    tokens = [Token("text", "", 0, content=text)]
    if not as_it_is:
        tokens = _snippets().parseInline(text)[0].children or []
    made: list[Markup] = []
    inside = False
    addresses: list[str] = []
    while tokens:
        token = tokens.pop(0)
        said = token.content
        if token.type == "link_open":
            addresses.append(str(token.attrGet("href")))
        elif token.type == "link_close":
            address = addresses.pop()
            said = f" ({address})" if _BEGIN in address and not token.markup else ""
        elif token.type == "image":
            tokens[:0] = token.children or []
            said = ""
        elif token.type in ("softbreak", "hardbreak"):
            said = " "
        elif token.type == "text" and not as_it_is:
            said = _LEFT_OVER.sub("", said)
        elif token.tag in ("strong", "em", "s"):
            made.append(Markup("<{}{}>").format("/" if token.nesting < 0 else "", token.tag))
        for piece in re.split(f"([{_BEGIN}{_END}])", said):
            if piece in (_BEGIN, _END):
                inside = piece == _BEGIN
            elif piece:
                shown = _escaped(piece)
                if token.type == "code_inline":
                    shown = Markup("<code>{}</code>").format(shown)
                made.append(Markup("<mark>{}</mark>").format(shown) if inside else shown)
    return Markup().join(made)


@cache
def _snippets() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
    made.normalizeLink = lambda url: url  # type: ignore[method-assign]
    made.validateLink = lambda url: True  # type: ignore[method-assign]
    return made


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
    made.add_render_rule("link_open", _linked)
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


def _linked(
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


# Bars drawn as SVG on the server: they need no script, print, and follow the theme.
#
# Here is where things are; how they are written is in the template of all drawings.


def drawing(kind: str, **values: Any) -> Markup:
    """Draw something by its macro in ``drawings.html``."""
    macro = getattr(environment().get_template("drawings.html").module, kind)
    return Markup(macro(**values).strip())  # noqa: S704 - it escapes


_WIDTH, _HEIGHT = 460, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 10, 24
"""Pixels around the bars: for the numbers at the axis, and for the labels below."""

_TICKS = 4
_LEAST = 1e-9
"""What is less is drawn as nothing: money has nine digits behind the point."""
_LABELS = 6
"""As many labels as have room below the bars."""

_WIDEST = 34


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a plot.

    Attributes:
        label: What it is of.
        parts: What is stacked in it, from below; none is negative.
        said: What it says in words, with its label.
    """

    label: str
    parts: tuple[float, ...]
    said: str

    @property
    def height(self) -> float:
        """All parts together."""
        return sum(self.parts)


def columns(title: str, values: Sequence[Column], written: Callable[[float], str]) -> Markup:
    """Draw columns beside each other on an axis that begins at 0.

    Args:
        title: What is drawn, for who does not see it; the highest column is named after it.
        values: The columns, from left to right.
        written: How a number at the axis is written.
    """
    highest = max(values, key=lambda each: each.height, default=None)
    said = title if highest is None else f"{title}; the highest is {highest.said}"
    ticks = axis(0 if highest is None else highest.height)
    room = _HEIGHT - _TOP - _BOTTOM
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(values), 1)
    width = min(step * (0.72 if step > 4 else 0.9), _WIDEST)
    every = max(1, ceil(len(values) / _LABELS))
    # From the right: the last column is the one that people look for.
    labelled = range((len(values) - 1) % every if values else 0, len(values), every)
    return drawing(
        "plot",
        said=said,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        lines=[(_TOP + room * (1 - tick / ticks[-1]), written(tick)) for tick in ticks],
        columns=[
            (
                value.said,
                _LEFT + step * place + (step - width) / 2,
                width,
                [*_stacked(value.parts, room / ticks[-1])],
            )
            for place, value in enumerate(values)
        ],
        labels=[(_LEFT + step * (place + 0.5), values[place].label) for place in labelled],
    )


def _stacked(parts: Sequence[float], scale: float) -> Iterator[tuple[int, float, float]]:
    """Give the number, the top and the height of each part of a column; what there is is seen."""
    bottom = float(_HEIGHT - _BOTTOM)
    for number, part in enumerate(parts, 1):
        height = part * scale
        if part > 0:
            height = max(height, 1.0) if bottom == _HEIGHT - _BOTTOM else height
            yield number, bottom - height, height
        bottom -= height


def axis(highest: float) -> tuple[float, ...]:
    """Choose round numbers for an axis, from 0 to at least the highest value."""
    if highest < _LEAST:
        return (0.0, 1.0)
    rough = highest / _TICKS
    power: float = 10.0 ** floor(log10(rough))
    step = next(each for each in (1, 2, 2.5, 5, 10) if rough <= each * power * 1.000001) * power
    return tuple(step * number for number in range(ceil(highest / step - 1e-9) + 1))


def bar(value: float, most: float, parts: Sequence[float] = ()) -> Markup:
    """Draw a bar for a row of a table, which says the numbers itself.

    Args:
        value: How long it is.
        most: How long the longest of the table is.
        parts: What it consists of, from the left: what is beyond the first is drawn paler.
    """
    if most <= 0 or value <= 0:
        return Markup("")
    length = max(100 * min(value / most, 1.0), 1.0)
    first = length * min(parts[0] / value, 1.0) if parts else length
    return drawing("bar", parts=[(0.0, first), (first, length - first)])


# Characters that are not seen, or that change how others are seen, shown as what they are.
#
# It is done to whole pages, after they are made: no template of ours has such a character, and
# what takes its place has no meaning in HTML.


_UNSEEN = re.compile(
    "(?:[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n))+"
)
"""Control characters, what overrides the direction of a text, and lone surrogates. Marks and
joiners, which right-to-left texts and emoji need, stay."""


def visible(text: str) -> str:
    """Give a text in which everything is seen, and which UTF-8 can encode."""
    return _UNSEEN.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    return f"‹U+{' '.join(f'{ord(each):04X}' for each in found[0])}›"


# Numbers and times in few characters, for tables and axes.


def brief(number: float) -> str:
    """Write a number in few characters, such as 0.05, 250, 1.2k or 34M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def last_line(text: str) -> str:
    """Give the last line of a text that is not empty: of a traceback, the error."""
    return text.rstrip().rpartition("\n")[2].strip()


def ahead(instant: datetime) -> str:
    """Write how far ahead a time is, such as in 4 min; of one that has passed, that it is over."""
    seconds = (instant - datetime.now(UTC)).total_seconds()
    if seconds <= 0:
        return "over"
    for limit, size, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"in {seconds / size:.0f} {unit}"
    return f"in {seconds / 86_400:,.0f} d"


def weight(count: int) -> str:
    """Write how many bytes there are, such as 512 bytes, 3.4 kB or 12 MB."""
    return f"{count} bytes" if count < 1_000 else f"{brief(count)[:-1]} {brief(count)[-1]}B"


# A request as a page sees it: what it asks for, the store, and how to answer.


P = ParamSpec("P")
T = TypeVar("T")

FORMATTING: float = 5
"""Seconds, after which the texts of a page are shown as they are."""

MAKING: float = 20
"""Seconds, after which a page is not waited for."""


class Asker:
    """Calls methods of a store of either kind.

    Attributes:
        store: The store. It is typed as a ``Store``; call its methods by ``ask``.
    """

    def __init__(self, store: object) -> None:
        """Ask this store."""
        self.store = cast("Store", store)

    @property
    def settings(self) -> Settings:
        """The store's own."""
        probe: Probe = getattr(self.store, "_store", self.store)._probe
        return probe.settings

    @property
    def secrets(self) -> Secrets:
        """The store's own rules of what a secret is."""
        return self.settings.secrets

    async def ask(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the store: in a thread if it is a synchronous one."""
        if iscoroutinefunction(method):
            return cast("T", await method(*args, **kwargs))
        return await run_in_threadpool(method, *args, **kwargs)


class Visit(Asker):
    """A request.

    Attributes:
        query: What the address asks for, by name; of several of a name the last.
        nav: The pages of the head, by their addresses; see ``application``.
        token: What forms that edit have to send back; empty where nothing may be edited.
    """

    def __init__(
        self,
        request: Request,
        store: object,
        name: str,
        nav: dict[str, str],
        part_of: str,
        token: str = "",
    ) -> None:
        """Read a request for the page of this name."""
        super().__init__(store)
        self.query = read_query(request)
        self.nav = nav
        self.token = token
        self._name = name
        self._part_of = part_of

    def has(self, page: str) -> bool:
        """Say whether the explorer has the page of this name."""
        return page in self.nav

    def given(self, name: str) -> str | None:
        """Give what the query says by this name; None if it says nothing."""
        return self.query.get(name) or None

    def needed(self, name: str) -> str:
        """Give what the query has to say by this name.

        Raises:
            InvalidInput: It does not.
        """
        found = self.given(name)
        if found is None:
            raise InvalidInput(f"The address lacks {name}=.")
        return found

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        """Give a whole number of the query, no smaller and no larger than that.

        Raises:
            InvalidInput: What the query has is not a whole number.
        """
        found = self.given(name)
        if found is None:
            return default
        if not (found.isascii() and found.isdigit()):
            raise InvalidInput(f"{name}= must be a whole number.")
        return min(max(int(found[:20]), least), most)

    async def narrowed_to(self) -> SessionRecord | None:
        """Give the session to whose records the page is narrowed, if it is there."""
        id = self.given("session")
        return None if id is None else await self.ask(self.store.sessions.find, id)

    async def names(self, ids: Iterable[object]) -> dict[str, str]:
        """Give the names of users, up to 1,000, by their ids; see ``users.names``."""
        given = [id for id in ids if isinstance(id, str)]
        return await self.ask(self.store.users.names, given) if given else {}

    async def titles(self, ids: Iterable[str | None]) -> dict[str, str]:
        """Give the titles of sessions, up to 1,000, by their ids; of one without a title its id."""
        given = [id for id in ids if id is not None]
        titles = await self.ask(self.store.sessions.titles, given) if given else {}
        return {id: titles.get(id) or id for id in given}

    async def whose(self) -> tuple[str | None, dict[str, str]]:
        """Give the id of the user that the query means, and the name of that user.

        The query has an id, or a part of a name, address or id that one user has.

        Raises:
            HTTPException: Several have it; it leads to the list of them.
        """
        user = self.given("user")
        names = await self.names([user])
        if user is not None and not names:
            alike = (await self.ask(self.store.users.list, text=user, limit=2)).items
            if len(alike) > 1:
                raise HTTPException(303, headers={"Location": link("users", q=user)})
            user = alike[0].id if alike else user
            names = {each.id: each.name for each in alike}
        return user, names

    def here(self, **changes: object) -> str:
        """Give this page's address with other values in the query; None takes one out."""
        return link(self._name, **{**self.query, **changes})

    async def make(self, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make something of what was read, in a thread: the event loop has others to answer.

        Raises:
            TooCostly: It takes too long.
        """
        UNTIL.set(min(UNTIL.get(), monotonic() + FORMATTING))
        made = asyncio.ensure_future(run_in_threadpool(make, *args, **kwargs))
        done, _ = await asyncio.wait([made], timeout=MAKING)
        if not done:
            raise TooCostly
        return made.result()

    async def page(self, template: str, /, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Answer with a page.

        Args:
            template: Its template.
            status: Its HTTP status.
            values: What the template needs beyond ``asked``.
        """
        nav = [(name, title, name == self._part_of) for name, title in self.nav.items() if title]
        values = {"visit": self, "nav": nav, "up": "", **values}
        return HTMLResponse(await self.make(render, template, values), status)


def read_query(request: Request) -> dict[str, str]:
    """Read the query of an address, lone surrogates included.

    Raises:
        InvalidInput: It is no text.
    """
    raw = request.scope["query_string"].decode("latin-1")
    try:
        return dict(parse_qsl(raw, errors="surrogatepass", max_num_fields=100))
    except ValueError:
        raise InvalidInput("The address is not in UTF-8, or has more than 100 fields.") from None
