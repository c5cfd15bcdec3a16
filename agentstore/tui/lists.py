"""A list that is scrolled: items of any height, one of them chosen.

It holds the lines of the items that it was given, and asks for more when one comes near an end.
Whatever comes or goes at either end, what is on the screen stays where it is.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from string import digits
from typing import Any, ClassVar, Generic, Literal, TypeVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from agentstore.errors import InvalidInput
from agentstore.records import AttachmentRecord, MessageRecord, Page, SummaryRecord
from agentstore.values.snippets import printable
from agentstore.values.validation import MAX_LIMIT, ROLES, SESSION_STATUSES

T = TypeVar("T")

_GUTTER = 2
_CHOSEN = Style(color="cyan", bold=True)


class Rows(Widget, Generic[T], can_focus=True):
    """The list; see the module's docstring."""

    DEFAULT_CSS = "Rows { height: 1fr; width: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "Down", show=False),
        Binding("k,up", "move(-1)", "Up", show=False),
        Binding("pagedown,space,ctrl+d", "page(1)", "Page down", show=False),
        Binding("pageup,ctrl+u", "page(-1)", "Page up", show=False),
        Binding("enter", "choose", "Open", show=False),
    ]

    class Chosen(Message):
        """Somebody pressed Enter on an item."""

    class NearEnd(Message):
        """Little is left in a direction.

        Attributes:
            asked: Whether somebody moved; else the list itself changed.
        """

        def __init__(self, end: Literal["earlier", "later"], *, asked: bool) -> None:
            """Say in which."""
            super().__init__()
            self.end = end
            self.asked = asked

    def __init__(
        self,
        draw: Callable[[T, int], list[Strip]],
        key: Callable[[T], Hashable],
        *,
        empty: str = "Nothing here.",
    ) -> None:
        """Say how an item is drawn in so many columns, and what tells it from others."""
        super().__init__()
        self._draw = draw
        self._key = key
        self._empty = empty
        self._items: list[T] = []
        self._drawn: dict[Hashable, tuple[T, list[Strip]]] = {}
        self._ends: list[int] = []
        self._cursor = self._top = 0
        self._loaded = False

    # --- What it holds ---------------------------------------------------------------------------

    @property
    def items(self) -> Sequence[T]:
        """What it holds."""
        return self._items

    @property
    def chosen(self) -> T | None:
        """The item at the cursor."""
        return self._items[self._cursor] if self._items else None

    @property
    def at_end(self) -> bool:
        """Whether the last line is on the screen."""
        return self._top >= self._bottom

    def show(self, items: Sequence[T], *, empty: str | None = None) -> None:
        """Hold these items; what was on the screen, and is among them, stays where it was."""
        self._loaded = True
        self._empty = self._empty if empty is None else empty
        chosen = self._key_at(self._cursor)
        at = self._at(self._top)
        anchor, within = self._key_at(at), self._top - self._start(at)
        self._items = [*items]
        keys = [self._key(item) for item in items]
        self._redraw(keep=True)
        places = {key: n for n, key in enumerate(keys)}
        self._cursor = places.get(chosen, min(self._cursor, max(len(items) - 1, 0)))
        if anchor in places:
            self._top = self._start(places[anchor]) + within
        self._settle(asked=False)

    def redraw(self) -> None:
        """Draw all again: something changed in how items are drawn."""
        at = self._at(self._top)
        self._redraw(keep=False)
        self._top = min(self._top, self._start(at) + self._height(at)) if self._items else 0
        self._show_cursor()

    def redraw_item(self, key: Hashable) -> None:
        """Draw one item again."""
        self._drawn.pop(key, None)
        self._redraw(keep=True)
        self._show_cursor()

    def go_to(self, key: Hashable) -> bool:
        """Choose an item, and show its beginning; say whether it is there."""
        for n, item in enumerate(self._items):
            if self._key(item) == key:
                self._cursor = n
                self._top = self._start(n)
                self._settle()
                return True
        return False

    def go_to_end(self) -> None:
        """Choose the last item, and show its end."""
        self._cursor = max(len(self._items) - 1, 0)
        self._top = self._bottom
        self._settle()

    def go_to_beginning(self) -> None:
        """Choose the first item."""
        self._cursor = self._top = 0
        self._settle()

    # --- Keys -------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Choose the next item, or the one before; of one that is taller than the screen, go on."""
        if not self._items:
            return
        start, height = self._start(self._cursor), self._height(self._cursor)
        end = start + height
        if by > 0 and end > self._top + self.size.height > start:
            self._top += min(max(self.size.height // 2, 1), end - self._top - self.size.height)
        elif by < 0 and start < self._top < end:
            self._top -= min(max(self.size.height // 2, 1), self._top - start)
        else:
            self._cursor = min(max(self._cursor + by, 0), len(self._items) - 1)
            self._show_cursor()
            return
        self._settle()

    def action_page(self, by: int) -> None:
        """Go on by a screen."""
        self._scroll(by * max(self.size.height - 1, 1))
        if by > 0 and self.at_end:
            self._cursor = max(len(self._items) - 1, 0)
        elif by < 0 and self._top == 0:
            self._cursor = 0
        self._settle()

    def action_choose(self) -> None:
        """Tell that the item was chosen."""
        if self._items:
            self.post_message(self.Chosen())

    def on_resize(self) -> None:
        """Break the lines again."""
        at_end = self.at_end
        self.redraw()
        if at_end and self._top:
            self._top = self._bottom
            self._settle()

    def _scroll(self, lines: int) -> None:
        self._top += lines
        self._settle()
        first, last = self._at(self._top), self._at(self._top + self.size.height - 1)
        self._cursor = min(max(self._cursor, first), last)

    # --- Places ----------------------------------------------------------------------------------

    @property
    def _bottom(self) -> int:
        """The top line when the last one is at the bottom."""
        return max((self._ends[-1] if self._ends else 0) - self.size.height, 0)

    def _start(self, n: int) -> int:
        return self._ends[n - 1] if 0 < n <= len(self._ends) else 0

    def _height(self, n: int) -> int:
        return self._ends[n] - self._start(n) if self._ends else 0

    def _at(self, line: int) -> int:
        """Give the item that a line belongs to."""
        return min(bisect_right(self._ends, max(line, 0)), max(len(self._ends) - 1, 0))

    def _key_at(self, n: int) -> Hashable | None:
        return self._key(self._items[n]) if self._items else None

    def _show_cursor(self) -> None:
        start, height = self._start(self._cursor), self._height(self._cursor)
        low, room = start + height - self.size.height, self.size.height
        if start < self._top or height > room:
            self._top = start
        elif low > self._top:
            self._top = low
        self._settle()

    def _settle(self, *, asked: bool = True) -> None:
        self._top = min(max(self._top, 0), self._bottom)
        self.refresh()
        if not self._loaded or not self.size.height:
            return
        if self._top < self.size.height:
            self.post_message(self.NearEnd("earlier", asked=asked))
        if self._top > self._bottom - self.size.height:
            self.post_message(self.NearEnd("later", asked=asked))

    # --- Drawing ---------------------------------------------------------------------------------

    def _redraw(self, *, keep: bool) -> None:
        width = max(self.size.width - _GUTTER - 1, 1)
        kept = self._drawn if keep else {}
        drawn: dict[Hashable, tuple[T, list[Strip]]] = {}
        self._ends = []
        end = 0
        for item in self._items:
            key = self._key(item)
            known = kept.get(key)
            drawn[key] = known if known and known[0] == item else (item, self._draw(item, width))
            end += len(drawn[key][1])
            self._ends.append(end)
        self._drawn = drawn

    def render_line(self, y: int) -> Strip:
        """Draw a line of the screen."""
        width = self.size.width
        if not self._items:
            words = self._empty if self._loaded else "Reading …"
            lines = text_lines(words, max(width - _GUTTER, 1), "dim")
            held = lines[y - 1] if 0 < y <= len(lines) else Strip.blank(0)
            return Strip([Segment(" " * _GUTTER), *held]).adjust_cell_length(width)
        line = self._top + y
        if line >= self._ends[-1]:
            return Strip.blank(width)
        at = self._at(line)
        chosen = at == self._cursor
        gutter = Segment("▌ " if chosen else "  ", _CHOSEN if chosen else None)
        strip = self._drawn[self._key(self._items[at])][1][line - self._start(at)]
        if chosen and self._height(at) == 1:
            strip = strip.apply_style(Style(bold=True))
        return Strip([gutter, *strip]).adjust_cell_length(width)


# A part of a list that is too long to hold: what was loaded around a place, and no more.
#
# A list is read by parts. Each says where the one before it and the one behind it are, so one can
# go both ways; parts at the other end are let go when there are more than ``MOST`` items. However
# far somebody scrolls, memory stays the same.


MOST = 300
"""Items that are held, and one part more while it is added."""


@dataclass(frozen=True, slots=True)
class ListPart(Generic[T]):
    """A few items in their order.

    Attributes:
        earlier: Where the part before this one is; None at the beginning.
        later: Where the next one is; None at the end.
    """

    items: tuple[T, ...]
    earlier: Any
    later: Any


PartSource = Callable[[Any], Awaitable[ListPart[T]]]
"""Reads the part of a list that is at a place; None means where reading begins."""


async def nothing(_: Any) -> ListPart[Any]:
    """Read an empty list."""
    return ListPart((), None, None)


class ByCursor(Generic[T]):
    """Reads a list that is paged by cursors, forwards and, by remembering these, backwards."""

    def __init__(self, read: Callable[[str | None], Awaitable[Page[T]]]) -> None:
        """Say how to read the page at a cursor."""
        self._read = read
        self._cursors: list[str | None] = [None]

    async def __call__(self, place: int | None) -> ListPart[T]:
        """Read the page with this number."""
        number = place or 0
        page = await self._read(self._cursors[number])
        more = page.next_cursor is not None
        if more:
            self._cursors[number + 1 :] = [page.next_cursor]
        return ListPart(page.items, number - 1 if number else None, number + 1 if more else None)


class Stretch(Generic[T]):
    """What is held of a list."""

    def __init__(self, source: PartSource[T]) -> None:
        """Hold nothing yet."""
        self._source = source
        self._parts: list[ListPart[T]] = []

    @property
    def items(self) -> list[T]:
        """All that is held, in order."""
        return [item for part in self._parts for item in part.items]

    @property
    def has_earlier(self) -> bool:
        """Whether there is more before what is held."""
        return bool(self._parts) and self._parts[0].earlier is not None

    @property
    def has_later(self) -> bool:
        """Whether there is more behind what is held."""
        return bool(self._parts) and self._parts[-1].later is not None

    async def open(self, place: Any = None) -> None:
        """Start over at a place."""
        self._parts = [await self._source(place)]

    async def load_earlier(self) -> None:
        """Read the part before what is held."""
        part = await self._source(self._parts[0].earlier)
        self._parts.insert(0, part)
        while self._held() - len(self._parts[-1].items) >= MOST:
            self._parts.pop()

    async def load_later(self) -> None:
        """Read the part behind what is held."""
        self._parts.append(await self._source(self._parts[-1].later))
        while self._held() - len(self._parts[0].items) >= MOST:
            self._parts.pop(0)

    def put(self, items: Sequence[T], earlier: Any, later: Any = None) -> None:
        """Hold these instead; see ``ListPart``."""
        self._parts = [ListPart(tuple(items), earlier, later)]

    def _held(self) -> int:
        return sum(len(part.items) for part in self._parts)


# Messages of a branch, with what is shown beside them, read in both directions.


PAGE = 50
_PROBE = 1_000
"""The most messages that a page may have."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message as it is shown.

    Attributes:
        new_turn: Whether a turn begins with it.
        files: What is attached to it.
    """

    message: MessageRecord
    marks: tuple[str, ...]
    new_turn: bool
    files: tuple[AttachmentRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class NextTo:
    """A place in a branch: beside the message with a sequence number, or where that would be."""

    side: Literal["before", "behind"]
    seq: int


@dataclass(frozen=True)
class BranchEntries:
    """Reads the messages of a branch. A place is ``NextTo``; None means the end of the branch."""

    _store: Any
    session_id: str
    branch: str

    async def __call__(self, place: NextTo | None) -> ListPart[ShownMessage]:
        """Read the part at a place."""
        if place is not None and place.side == "behind":
            messages, more = await self._behind(place.seq)
            earlier: Any = NextTo("before", messages[0].seq) if messages else None
        else:
            page = await self._page(None if place is None else place.seq, PAGE)
            messages, more = page.items, place is not None
            older = page.next_cursor is not None
            earlier = NextTo("before", messages[0].seq) if older else None
        last = NextTo("behind", messages[-1].seq) if messages and more else None
        return ListPart(await self._entries(messages), earlier, last)

    async def _page(self, before: int | None, limit: int) -> Page[MessageRecord]:
        page: Page[MessageRecord] = await self._store.messages.page(
            self.session_id,
            through=None if before is None else before - 1,
            limit=limit,
            branch=self.branch,
        )
        return page

    async def _behind(self, seq: int) -> tuple[Sequence[MessageRecord], bool]:
        """Read the first messages behind a number, and say whether there are more behind those.

        Pages go backwards. So it asks for what precedes a number that is a little larger, and,
        where other branches took all numbers between the two, for one that is much larger.
        """
        step, grows = PAGE, True
        while True:
            page = await self._page(seq + step + 1, min(step, _PROBE))
            found = [message for message in page if message.seq > seq]
            if len(found) == _PROBE < step:  # and there may be more of them than a page has
                step, grows = step // 2, False
                continue
            if found:
                return found[:PAGE], True
            newest = await self._page(None, 1)
            if not newest.items or newest.items[-1].seq <= seq + step:
                return (), False
            seq += step
            step = step * 4 if grows else step

    async def _entries(self, messages: Sequence[MessageRecord]) -> tuple[ShownMessage, ...]:
        entries = await entries_of(self._store, messages)
        files = await self._files(messages)
        entries = tuple(
            replace(each, files=tuple(files.get(each.message.id, ()))) for each in entries
        )
        summary: SummaryRecord | None = await self._store.summaries.find(
            self.session_id, branch=self.branch
        )
        if summary is None:
            return entries
        told = ShownMessage(summary.to_message(), (), False)
        return tuple(
            each
            for entry in entries
            for each in ((entry, told) if entry.message.seq == summary.through_seq else (entry,))
        )

    async def _files(self, messages: Sequence[MessageRecord]) -> dict[str, list[AttachmentRecord]]:
        """Read what is attached: by one query, unless the session has very many."""
        attachments = self._store.attachments
        found = await attachments.list_of_session(self.session_id, limit=MAX_LIMIT)
        pages = [found]
        if found.next_cursor is not None:
            pages = [await attachments.list(message.id) for message in messages]
        files: dict[str, list[AttachmentRecord]] = {}
        for file in (each for page in pages for each in page):
            files.setdefault(file.message_id, []).append(file)
        return files


async def entries_of(store: Any, messages: Sequence[MessageRecord]) -> tuple[ShownMessage, ...]:
    """Give messages with their marks, read in one statement."""
    marks = await store.marks.of([message.id for message in messages if message.id])
    turn: int | None = None
    entries: list[ShownMessage] = []
    for message in messages:
        new = message.begins_turn or (turn is not None and message.turn != turn)
        entries.append(ShownMessage(message, marks.get(message.id, ()), new))
        turn = message.turn
    return tuple(entries)


# One line that narrows a list: ``user:alice status:failed since:7d words of the title``.


Instant = Callable[[str], datetime]
"""Reads a time, such as 2026-03-01, or an age, such as 7d."""

SESSION_WORDS = "user: status: is:failed model: since: until: KEY=VALUE  words of the title"
SEARCH_WORDS = "words  user: session: role: since: until: order:recent in:errors"

_NO_FILTER = ("/", ":", *digits)
"""How what is behind a colon begins in an address or a time: https://, std::list, localhost:80."""

_WORD = re.compile(r'([a-z]+):("[^"]*"|\S+)|([^\s"=:]+)=("[^"]*"|\S+)|("[^"]*"|\S+)')


def session_filters(line: str, instant: Instant) -> dict[str, Any]:
    """Read the filters of a list of sessions.

    Raises:
        InvalidInput: There is no such filter, or a status or a time cannot be read.
    """
    choices: dict[str, Sequence[str]] = {"status": SESSION_STATUSES, "is": ("failed",)}
    names = {"user": "user_id", "status": "status", "is": "failed", "model": "model"}
    found, metadata, rest = _read(line, names, instant, choices)
    if "failed" in found:
        found["failed"] = True
    if metadata:
        found["metadata"] = metadata
    if title := " ".join(word.strip('"') for word in rest):
        found["title"] = title
    return found


def search_filters(line: str, instant: Instant) -> tuple[str, dict[str, Any]]:
    """Read what to search for, and where; ``in`` is there if that is errors of tools.

    Raises:
        InvalidInput: There is no such filter, or a role, an order or a time cannot be read.
    """
    names = {"user": "user_id", "session": "session_id", "role": "role", "order": "order"}
    names["in"] = "in"
    choices: dict[str, Sequence[str]] = {"role": ROLES, "order": ("relevance", "recent")}
    choices["in"] = ("errors",)
    found, _, rest = _read(line, names, instant, choices, pairs=False)
    if "in" in found and found.keys() & {"user_id", "role", "order"}:
        raise InvalidInput("in:errors goes with session:, since: and until:.")
    if "in" in found:  # one text, looked for as it stands
        rest = [word.strip('"') for word in rest]
    return " ".join(rest), found


def _read(
    line: str,
    names: dict[str, str],
    instant: Instant,
    choices: dict[str, Sequence[str]],
    *,
    pairs: bool = True,
) -> tuple[dict[str, Any], dict[tuple[str, ...], Any], list[str]]:
    found: dict[str, Any] = {}
    metadata: dict[tuple[str, ...], Any] = {}
    rest: list[str] = []
    for word in _WORD.finditer(line):
        name, value, path, wanted, _ = word.groups()
        value = (value or "").strip('"')
        if name in ("since", "until"):
            found[name] = instant(value)
        elif name in names:
            if value not in choices.get(name, (value,)):
                raise InvalidInput(f"{name} must be one of {', '.join(choices[name])}.")
            found[names[name]] = value
        elif path and pairs:
            metadata[tuple(path.split("."))] = _json(wanted)
        elif name and not value.startswith(_NO_FILTER):
            known = ", ".join(f"{each}:" for each in (*names, "since", "until"))
            raise InvalidInput(
                f"There is no filter {name}:, only {known}. Put words with a colon in quotes."
            )
        else:
            rest.append(word.group())
    return found, metadata, rest


def _json(text: str) -> Any:
    """Read JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# From texts to the lines of a terminal, whatever they hold.
#
# All that comes from the database goes through ``printable`` first, so a terminal gets no
# character that it would obey, and is handed on as ``Text`` or as parsed Markdown, so nothing in
# it is ever markup. HTML in Markdown is text, links are not sent as links, and what is drawn at
# once is bounded.


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


def indented(lines: Iterable[Strip]) -> list[Strip]:
    """Put lines two columns to the right."""
    space = Segment("  ")
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


# Markdown for a terminal; imported with the first text that is drawn, since it takes a while.


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
