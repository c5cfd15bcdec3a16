"""What the screens share: a heading, a list, a line for what went wrong, and the keys.

All reading is done by workers, on a store that only reads. What the database refuses is said in one
line, and ``r`` tries again; nothing that is on the screen is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Input, Static
from textual.worker import WorkType

from agentstore.errors import AgentStoreError, InvalidInput
from agentstore.tui.rows import Rows
from agentstore.tui.stretches import Stretch, nothing
from agentstore.values.text.terminal import on_one_line

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
        self.browser.show_keys(self)

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
