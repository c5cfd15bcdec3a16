"""A list that is scrolled: items of any height, one of them chosen.

It holds the lines of the items that it was given, and asks for more when one comes near an end.
Whatever comes or goes at either end, what is on the screen stays where it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Generic, Literal, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from agentstore.tui.drawing import text_lines

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
    def lines_held(self) -> int:
        """How many lines it holds."""
        return sum(len(lines) for _, lines in self._drawn.values())

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
