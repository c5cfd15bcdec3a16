"""What the screens share: a heading, a list, a line for what went wrong, and the keys.

All reading is done by workers, on a store that only reads. What the database refuses is said in one
line, and ``r`` tries again; nothing that is on the screen is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Footer, Input, Static
from textual.worker import WorkType

from agentstore.errors import AgentStoreError, InvalidInput
from agentstore.records import CountedBranch, Page, TurnRecord, UsageRecord
from agentstore.records.upkeep import counted
from agentstore.tui import branch_line, in_tree_order
from agentstore.tui.lists import (
    ByCursor,
    ListPart,
    Rows,
    ShownMessage,
    Stretch,
    cut,
    nothing,
    text_lines,
)
from agentstore.values.chat import pieces_of
from agentstore.values.snippets import attached, money, on_one_line
from agentstore.values.validation import MAX_LIMIT

if TYPE_CHECKING:
    from agentstore.tui.application import Browser


T = TypeVar("T")

INTERVAL = 0.5
"""Seconds between two looks for what is new."""
_AFTER_FAILURE = 2.0


class ListScreen(Screen[Any], Generic[T]):
    """A screen with one list."""

    DEFAULT_CSS = """
    ListScreen #head { height: auto; max-height: 3; }
    ListScreen #notice { height: auto; max-height: 4; display: none; color: ansi_red; }
    ListScreen Input { height: 1; border: none; padding: 0 1; display: none; }
    ListScreen Input:focus { border: none; }
    ListScreen.asking Input { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("q", "quit", "Quit"),
        Binding("r", "reload", "Reload", show=False),
        Binding("g,home", "beginning", "Beginning", show=False),
        Binding("G,end", "end", "End", show=False),
        Binding("question_mark", "keys", "Keys"),
    ]
    asks: ClassVar[str | None] = None
    """What may be typed into the line above the list; None if there is none."""

    rows: Rows[T]

    def __init__(self) -> None:
        """Read nothing yet."""
        super().__init__()
        self.line = ""  # what was typed last, and holds
        self.stretch: Stretch[T] = Stretch(nothing)
        self._busy = self._dry = self._failing = False
        self._readings = 0
        self._again: Callable[[], Awaitable[None]] | None = None

    # --- For screens -----------------------------------------------------------------------------

    @property
    def browser(self) -> Browser:
        """The application."""
        return cast("Browser", self.app)

    def above(self) -> Sequence[Widget]:
        """Give what stands between the heading and the list."""
        if self.asks is None:
            return ()
        return (Input(placeholder=self.asks, select_on_focus=False),)

    async def start(self) -> None:
        """Read what is shown first."""
        await self.stretch.open()
        self.show()

    def show(self) -> None:
        """Show what is held."""
        self.rows.show(self.stretch.items)

    def asked(self, line: str) -> None:
        """Do what was typed."""

    def say(self) -> None:
        """Say what is seen, in the heading."""

    def on_resize(self) -> None:
        """Cut the heading again."""
        self.say()

    def head(self, *lines: Text) -> None:
        """Say what is seen."""
        for line in lines:
            line.truncate(max(self.app.size.width, 1), overflow="ellipsis")
        self.query_one("#head", Static).update(Text("\n").join(lines))

    def notice(self, words: str | None) -> None:
        """Say what went wrong, or that all is well."""
        line = self.query_one("#notice", Static)
        line.display = words is not None
        line.update(Text(on_one_line(words or "")))

    def read(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work with the store, beside the screen; what it refuses is said in a line."""
        self._readings += 1
        this, self._busy = self._readings, True

        async def guarded() -> None:
            try:
                await work()
            except InvalidInput as error:
                self._fail(str(error))
            except AgentStoreError as error:
                self._again = work
                self._fail(f"{error} (r: try again)")
            except Exception as error:  # noqa: BLE001 - a fault of ours, for the command line to say
                self.browser.failed(error)
            else:
                self._succeed()
            finally:
                if this == self._readings:
                    self._busy = False

        self._run(guarded, "list")

    def keep_looking(self, look: Callable[[], Awaitable[bool]]) -> None:
        """Look for what is new until the screen is left, whatever the database does meanwhile.

        Args:
            look: Says whether to look again at once.
        """

        async def loop() -> None:
            while True:
                wait = INTERVAL
                try:
                    wait *= not await look()
                    self._succeed()
                except AgentStoreError as error:
                    self._fail(f"{error} (It is tried again and again.)")
                    wait = _AFTER_FAILURE
                except Exception as error:  # noqa: BLE001 - as above
                    self.browser.failed(error)
                    return
                await asyncio.sleep(wait)

        self._run(loop, "follow")

    def _run(self, task: WorkType[None], group: str) -> None:
        self.run_worker(task, group=group, exclusive=True)

    def stop_looking(self) -> None:
        """Look no more."""
        self.workers.cancel_group(self, "follow")

    def _fail(self, words: str) -> None:
        self._failing = True
        self.notice(words)

    def _succeed(self) -> None:
        if self._failing:
            self._failing = False
            self.notice(None)

    # --- What all do -----------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Lay it out."""
        yield Static(id="head")
        yield from self.above()
        yield self.rows
        yield Static(id="notice")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin."""
        self.rows.focus()
        self.begin()

    def begin(self) -> None:
        """Read what is shown first."""
        self.read(self.start)

    def on_rows_near_end(self, event: Rows.NearEnd) -> None:
        """Read more where little is left; after a read that brought nothing, only if asked."""
        more = self.stretch.has_earlier if event.end == "earlier" else self.stretch.has_later
        if self._busy or not more or (self._dry and not event.asked):
            return
        load = self.stretch.load_earlier if event.end == "earlier" else self.stretch.load_later

        async def load_and_show() -> None:
            before = len(self.stretch.items)
            await load()
            self._dry = len(self.stretch.items) == before
            self.show()

        self.read(load_and_show)

    def action_reload(self) -> None:
        """Try again what failed; else read again."""
        self.notice(None)
        work, self._again = self._again or self.start, None
        self.read(work)

    def action_back(self) -> None:
        """Leave the line, or the screen."""
        self.notice(None)
        if self.has_class("asking"):
            self.remove_class("asking")
            self.rows.focus()
        else:
            self.dismiss(None)

    def action_beginning(self) -> None:
        """Go to the beginning of what is held; what precedes it is read then."""
        self.rows.go_to_beginning()

    def action_end(self) -> None:
        """Go to the end of what is held."""
        self.rows.go_to_end()

    def action_ask(self) -> None:
        """Open the line, with what holds in it."""
        self.add_class("asking")
        line = self.query_one(Input)
        line.value = self.line
        line.cursor_position = len(self.line)
        line.focus()

    def action_keys(self) -> None:
        """Show all keys."""
        self.app.push_screen(KeysScreen(self))

    def action_quit(self) -> None:
        """End the program."""
        self.app.exit()

    @on(Input.Submitted)
    def take_line(self, event: Input.Submitted) -> None:
        """Do what was typed, and go to the list."""
        self.rows.focus()
        self.notice(None)
        try:
            self.asked(event.value)
        except InvalidInput as error:
            self.notice(str(error))
            event.input.focus()


# The keys of a screen.


_KEYS = {
    "j,down": "j ↓",
    "k,up": "k ↑",
    "pagedown,space,ctrl+d": "PgDn Space",
    "pageup,ctrl+u": "PgUp",
    "slash": "/",
    "question_mark": "?",
    "g,home": "g Home",
    "G,end": "G End",
    "enter": "Enter",
    "escape": "Esc",
}


class KeysScreen(ListScreen[tuple[str, str]]):
    """The keys of a screen."""

    def __init__(self, screen: Screen[Any]) -> None:
        """Show all that work there."""
        super().__init__()
        kinds = [Rows, *(kind for kind in type(screen).__mro__ if issubclass(kind, ListScreen))]
        self._keys = [
            (_KEYS.get(binding.key, binding.key), binding.description)
            for kind in kinds
            for binding in kind.__dict__.get("BINDINGS", ())
            if isinstance(binding, Binding)
        ]
        self.rows = Rows(_key_line, lambda each: each)
        self.stretch = Stretch(self._all)

    async def _all(self, _: object) -> ListPart[tuple[str, str]]:
        self.head(Text("Keys", style="bold"))
        return ListPart(tuple(self._keys), None, None)


def _key_line(each: tuple[str, str], width: int) -> list[Strip]:
    return [cut(Text.assemble((f"{each[0]:<12}", "bold cyan"), each[1]), width)]


# All that there is of one message: every field, and its text to the last character.


_PIECE = 2_000
"""Characters of a paragraph; a longer one is several."""
_PART = 40
_ELSEWHERE = ("content", "tool_calls")
"""Fields that are told as text."""


class ReaderScreen(ListScreen["_Paragraph"]):
    """A message, whole."""

    def __init__(self, entry: ShownMessage) -> None:
        """Show a message."""
        super().__init__()
        self._entry = entry
        self._used: list[UsageRecord] = []
        self._told: list[_Paragraph] = []
        self.rows = Rows(_draw, lambda paragraph: paragraph[0])
        self.stretch = Stretch(self._read)

    async def start(self) -> None:
        """Read what its turn used, and show the beginning."""
        message = self._entry.message
        if message.id:
            page = await self.browser.store.usage.list(
                message.session_id, branch=message.branch, turn=message.turn, limit=20
            )
            self._used = [*page]
        self._told = [(n, *told) for n, told in enumerate(self._paragraphs())]
        self.head(Text(f"{message.role} message #{message.seq}", style="bold"))
        await super().start()

    async def _read(self, place: int | None) -> ListPart[_Paragraph]:
        first = place or 0
        last = first + _PART
        told = tuple(self._told[first:last])
        more = last if last < len(self._told) else None
        return ListPart(told, first - _PART if first else None, more)

    def _paragraphs(self) -> Iterator[tuple[str, str]]:
        """Give what is told, each with its style."""
        message = self._entry.message
        for piece in pieces_of(message):
            if piece.kind == "call":
                yield "bold yellow", f"call of {piece.name}  {piece.call_id}"
            yield from (("", text) for text in _paragraphs_of(piece.text))
            yield "", ""
        if self._entry.marks:
            yield "", f"marks: {', '.join(self._entry.marks)}"
        for file in self._entry.files:
            words = attached(file.name, file.media_type, file.size)
            yield "", f"attached: {words}, id {file.id}"
        for used in self._used:
            cost = "not known" if used.cost is None else money(used.cost)
            words = f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out, cost {cost}"
            yield "", f"its turn used: {used.model or 'a model'}, {words}"
        for field in fields(message):
            value = getattr(message, field.name)
            if field.repr and field.name not in _ELSEWHERE and value not in (None, {}, []):
                told = _told(value)
                yield from (("dim", text) for text in _paragraphs_of(f"{field.name}: {told}"))


_Paragraph = tuple[int, str, str]
"""Its number, its style, its text."""


def _paragraphs_of(text: str) -> Iterator[str]:
    """Give a text in pieces that can be drawn at once, broken between lines where it has some."""
    start = 0
    while start < len(text):
        end = min(start + _PIECE, len(text))
        line_end = text.rfind("\n", start, end) if end < len(text) else -1
        if line_end > start:
            yield text[start:line_end]
            start = line_end + 1
        else:
            yield text[start:end]
            start = end


def _told(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, indent=2)
    return str(value)


def _draw(paragraph: _Paragraph, width: int) -> list[Strip]:
    _, style, text = paragraph
    if not text:
        return [Strip.blank(1)]
    if style.startswith("bold"):
        return [cut(Text(on_one_line(text), style=style), width)]
    return text_lines(text, width, style)


# Places in a session to go to: its branches as a tree, and the turns of a branch.


_MOST_BRANCHES = 5 * MAX_LIMIT
"""Branches that are drawn: to draw one, its parent must be known."""
_Drawn = tuple[str, CountedBranch]


class BranchesScreen(ListScreen[_Drawn]):
    """The branches of a session; it gives the name of the one that is chosen."""

    def __init__(self, session_id: str, shown: str | None) -> None:
        """Show the branches of a session, one of which is shown."""
        super().__init__()
        self._session_id = session_id
        self._shown = shown
        self.rows = Rows(self._draw, lambda each: each[1].number)
        self.stretch = Stretch(self._all)

    async def _all(self, _: Any) -> ListPart[_Drawn]:
        found: list[CountedBranch] = []
        more = ""
        async for branch in self.browser.store.branches.iter(self._session_id, limit=MAX_LIMIT):
            if len(found) == _MOST_BRANCHES:
                more = ", and more"
                break
            found.append(branch)
        words = counted(len(found), "branch", "branches")
        self.head(Text(f"{words}{more}: Enter goes to one", style="dim"))
        return ListPart(tuple(in_tree_order(found)), None, None)

    def _draw(self, each: _Drawn, width: int) -> list[Strip]:
        return [cut(branch_line(*each, shown=each[1].name == self._shown), width)]

    def show(self) -> None:
        """Show the tree, with the cursor at the branch that is shown."""
        super().show()
        for _, branch in self.stretch.items:
            if branch.name == self._shown:
                self.rows.go_to(branch.number)

    def on_rows_chosen(self) -> None:
        """Go to the branch."""
        if (chosen := self.rows.chosen) is not None:
            self.dismiss(chosen[1].name)


class TurnsScreen(ListScreen[TurnRecord]):
    """The turns of a branch; it gives the number of the message that begins the chosen one."""

    def __init__(self, session_id: str, branch: str) -> None:
        """List the turns of a branch."""
        super().__init__()
        self._where = (session_id, branch)
        self.rows = Rows(_turn, lambda turn: turn.seq, empty="No turns.")
        self.stretch = Stretch(ByCursor(self._page))

    async def _page(self, cursor: str | None) -> Page[TurnRecord]:
        session_id, branch = self._where
        self.head(Text(f"turns of branch {on_one_line(branch)}: Enter goes to one", style="dim"))
        page: Page[TurnRecord] = await self.browser.store.branches.turns(
            session_id, branch=branch, limit=100, cursor=cursor
        )
        return page

    def on_rows_chosen(self) -> None:
        """Go to the turn."""
        if (turn := self.rows.chosen) is not None:
            self.dismiss(turn.seq)


def _turn(turn: TurnRecord, width: int) -> list[Strip]:
    line = Text(f"{turn.number:>5}  {turn.created_at:%Y-%m-%d %H:%M}  ", style="dim")
    return [cut(line.append(on_one_line(turn.text[:width]), style="not dim"), width)]
