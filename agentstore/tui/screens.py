"""What the screens share: a heading, a list, a line for what went wrong, and the keys.

All reading is done by workers, on a store that only reads. What the database refuses is said in one
line, and ``r`` tries again; nothing that is on the screen is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Input, Static

from agentstore.errors import AgentStoreError, InvalidInput
from agentstore.tui.rows import Rows
from agentstore.tui.stretches import Stretch, nothing
from agentstore.values.text.terminal import on_one_line

if TYPE_CHECKING:
    from agentstore.tui.application import Browser

T = TypeVar("T")


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
        self.stretch: Stretch[T] = Stretch(nothing)
        self._busy = self._dry = False
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

    def read(self, work: Callable[[], Awaitable[None]], *, group: str = "list") -> None:
        """Do work with the store, beside the screen; what it refuses is said in a line."""

        async def guarded() -> None:
            try:
                await work()
            except InvalidInput as error:
                self.notice(str(error))
            except AgentStoreError as error:
                self._again = work
                self.notice(f"{error} (r: try again)")
            except Exception as error:  # noqa: BLE001 - a fault of ours, for the command line to say
                self.browser.failed(error)
            else:
                self.notice(None)
            finally:
                if group == "list":
                    self._busy = False

        if group == "list":
            self._busy = True
        self.run_worker(guarded(), group=group, exclusive=True)

    # --- What all do -----------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Lay it out."""
        yield Static(id="head")
        yield from self.above()
        yield self.rows
        yield Static(id="notice")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.rows.focus()
        self.read(self.start)

    def on_rows_near_end(self, event: Rows.NearEnd) -> None:
        """Read more where little is left; what brought nothing is gone on with only if asked."""
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
        """Try again what failed; else read anew."""
        work, self._again = self._again or self.start, None
        self.read(work)

    def action_back(self) -> None:
        """Leave the line, or the screen."""
        if self.has_class("asking"):
            self.remove_class("asking")
            self.rows.focus()
        elif len(self.app.screen_stack) > 2:
            self.dismiss(None)
        else:
            self.app.exit()

    def action_beginning(self) -> None:
        """Go to the beginning of what is held; what precedes it is read then."""
        self.rows.go_to_beginning()

    def action_end(self) -> None:
        """Go to the end of what is held."""
        self.rows.go_to_end()

    def action_ask(self) -> None:
        """Open the line."""
        self.add_class("asking")
        self.query_one(Input).focus()

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
        try:
            self.asked(event.value)
        except InvalidInput as error:
            self.notice(str(error))
            event.input.focus()
