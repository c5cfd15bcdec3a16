"""A conversation: the messages of a branch, read in both directions, and followed as they come."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.strip import Strip

from agentstore.records import SessionRecord
from agentstore.records.findings import counted
from agentstore.tui.entries import BranchEntries, NextTo, ShownMessage
from agentstore.tui.messages import MessageLook, entry_lines
from agentstore.tui.places import BranchesScreen, TurnsScreen
from agentstore.tui.reader import ReaderScreen
from agentstore.tui.rows import Rows
from agentstore.tui.screens import ListScreen
from agentstore.tui.stretches import MOST, Stretch
from agentstore.values.chat.pieces import pieces_of
from agentstore.values.states import STREAMING
from agentstore.values.text.terminal import age, brief, money, on_one_line, printable

_REQUESTS = 10_000
"""Of a session that made more, what the last ones used is added up."""

_STREAMS = 10
"""How many of the last messages may be growing."""


class ConversationScreen(ListScreen[ShownMessage]):
    """The messages of a branch of a session."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "open_message", "Whole"),
        Binding("e", "unfold_all", "Unfold"),
        Binding("m", "raw", "Markdown", show=False),
        Binding("b", "branches", "Branches"),
        Binding("t", "turns", "Turns"),
        Binding("n", "turn(1)", "Next turn", show=False),
        Binding("p", "turn(-1)", "Turn before", show=False),
        Binding("slash", "search", "Search"),
        Binding("f", "follow", "Follow"),
        Binding("y", "copy", "Copy its text", show=False),
    ]

    def __init__(
        self,
        session_id: str,
        branch: str | None = None,
        *,
        seq: int | None = None,
        words: tuple[str, ...] = (),
        follow: bool = False,
    ) -> None:
        """Show a session.

        Args:
            session_id: The session.
            branch: The branch; None means the active one.
            seq: The number of a message to go to; None means the end.
            words: What was searched for.
            follow: Follow new messages from the beginning.
        """
        super().__init__()
        self.session_id = session_id
        self.branch = branch
        self.following = follow
        self._seq = seq
        self._look = MessageLook(words=words)
        self._all = False
        self._session: SessionRecord | None = None
        self._used: str | None = None
        self.rows = Rows(self._draw, _key, empty="No messages.")

    def _draw(self, entry: ShownMessage, width: int) -> list[Strip]:
        look = self._look
        if self._all:
            look = MessageLook(look.opened ^ {entry.message.id}, look.raw, look.words)
        return entry_lines(entry, width, look)

    # --- Reading ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the session, and the messages around the place that is wanted."""
        store = self.browser.store
        self._session = await store.sessions.get(self.session_id)
        if self.branch is None:
            self.branch = (await store.branches.active(self.session_id)).name
        self.stretch = Stretch(BranchEntries(store, self.session_id, self.branch))
        await self._go(self._seq)
        used = await store.usage.of_sessions([self.session_id], most=_REQUESTS)
        for sums in used.values():
            more = "+" if sums.partial else ""
            tokens, cost = f"{brief(sums.total_tokens)}{more}", f"{money(sums.cost)}{more}"
            self._used = f"{tokens} used tokens, {cost}"
        self._say()
        if self.following:
            self.keep_looking(self._look_for_new)

    async def _go(self, seq: int | None) -> None:
        """Read around a message, and go to it; None means the end."""
        await self.stretch.open(None if seq is None else NextTo("before", seq + 1))
        if seq is not None and not any(e.message.seq == seq for e in self.stretch.items):
            self.notice(f"Message #{seq} is not on this branch any more.")
        self.show()
        self.rows.go_to_end()
        found = [entry for entry in self.stretch.items if entry.message.seq == seq]
        if found:
            self.rows.go_to(_key(found[0]))
        self._say()

    def _say(self) -> None:
        session = self._session
        if session is None:
            return
        title = Text(on_one_line(session.title or session.id), style="bold")
        facts = [
            f"branch {self.branch}",
            session.status,
            session.model,
            session.user_id and f"user {session.user_id}",
            counted(session.message_count, "message"),
            f"{brief(session.total_tokens)} message tokens",
            self._used,
            f"active {age(session.last_active_at)}",
        ]
        lines = [title, Text()]
        if self.following:
            lines[1].append("● following", style="bold green")
        for fact in (on_one_line(fact) for fact in facts if fact):
            if lines[1].plain and lines[-1].cell_len + cell_len(fact) + 3 > self.app.size.width:
                lines.append(Text())
            lines[-1].append(f" · {fact}" if lines[-1].plain else fact, style="dim")
        if session.question is not None:
            asks = ("waiting for an answer: ", "bold magenta")
            lines.append(Text.assemble(asks, on_one_line(session.question)))
        self.head(*lines)

    def on_resize(self) -> None:
        """Cut the heading again."""
        self._say()

    def action_beginning(self) -> None:
        """Go to the beginning of the branch."""
        self.read(partial(self._jump, "beginning"))

    def action_end(self) -> None:
        """Go to the end of the branch."""
        if self.stretch.has_later:
            self.read(partial(self._jump, "end"))
        else:
            self.rows.go_to_end()

    async def _jump(self, where: str) -> None:
        if where == "end":
            await self._go(None)
            return
        if self.stretch.has_earlier:
            await self.stretch.open(NextTo("behind", 0))
        self.show()
        self.rows.go_to_beginning()

    def action_turn(self, by: int) -> None:
        """Go to where the next turn begins, or this one or the one before."""
        keys = [_key(entry) for entry in self.rows.items]
        here = keys.index(_key(self.rows.chosen)) if self.rows.chosen else 0
        range_ = range(here + 1, len(keys)) if by > 0 else range(here - 1, -1, -1)
        for n in range_:
            if self.rows.items[n].new_turn:
                self.rows.go_to(keys[n])
                return
        self.rows.action_page(by)

    # --- Looks -----------------------------------------------------------------------------------

    def on_rows_chosen(self) -> None:
        """Unfold the message, or fold it."""
        if (entry := self.rows.chosen) is not None:
            opened = self._look.opened ^ {entry.message.id}
            self._look = MessageLook(opened, self._look.raw, self._look.words)
            self.rows.redraw_item(_key(entry))

    def action_unfold_all(self) -> None:
        """Unfold all messages, or fold them."""
        self._all = not self._all
        self._look = MessageLook(raw=self._look.raw, words=self._look.words)
        self.rows.redraw()

    def action_raw(self) -> None:
        """Show Markdown as it was written, or drawn."""
        self._look = MessageLook(self._look.opened, not self._look.raw, self._look.words)
        self.rows.redraw()

    def action_open_message(self) -> None:
        """Show all that there is of a message."""
        if (entry := self.rows.chosen) is not None:
            self.app.push_screen(ReaderScreen(entry))

    def action_copy(self) -> None:
        """Hand the text of a message to the terminal's clipboard."""
        if (entry := self.rows.chosen) is not None:
            told = "\n".join(piece.text for piece in pieces_of(entry.message))
            self.app.copy_to_clipboard(printable(told))
            self.notice("Copied, if the terminal allows it.")

    # --- Elsewhere -------------------------------------------------------------------------------

    def action_branches(self) -> None:
        """Show the branches as a tree, and go to the one that is chosen."""
        self.app.push_screen(BranchesScreen(self.session_id, self.branch), self._switch)

    def _switch(self, branch: str | None) -> None:
        if branch is not None and branch != self.branch:
            self.branch, self._seq = branch, None
            self.read(self.start)

    def action_turns(self) -> None:
        """List the turns, and go to the one that is chosen."""
        if self.branch is not None:
            self.app.push_screen(TurnsScreen(self.session_id, self.branch), self._turn_chosen)

    def _turn_chosen(self, seq: int | None) -> None:
        if seq is not None:
            self.read(partial(self._go, seq))

    def action_search(self) -> None:
        """Search the messages of this session."""
        self.browser.show_search(self.session_id)

    # --- Following -------------------------------------------------------------------------------

    def action_follow(self) -> None:
        """Follow new messages, or stop."""
        self.following = not self.following
        if self.following:
            self.action_end()
            self.keep_looking(self._look_for_new)
        else:
            self.stop_looking()
        self._say()

    async def _look_for_new(self) -> bool:
        session = await self.browser.store.sessions.get(self.session_id)
        streams = any(e.message.status == STREAMING for e in self.rows.items[-_STREAMS:])
        if streams or session != self._session:
            self._session = session
            await self._take_new()
            self._say()
        return False

    async def _take_new(self) -> None:
        """Read the end of the branch again, if that is what is held.

        Where somebody reads further up, and would lose the place, it is only said that there is
        more behind.
        """
        if self._busy or self.stretch.has_later:
            return
        assert self.branch is not None
        newest = await BranchEntries(self.browser.store, self.session_id, self.branch)(None)
        held, first = self.stretch.items, newest.items[0].message.seq if newest.items else 0
        older = [entry for entry in held if entry.message.seq < first]
        joined = len(older) < len(held) or newest.earlier is None
        kept = [*(older if joined else ()), *newest.items]
        reads = bool(held) and not self.rows.at_end
        more = self.stretch.has_earlier
        if reads and (not joined or len(kept) > MOST):
            kept, later = held, NextTo("behind", held[-1].message.seq)
        else:
            more = (more if older and joined else newest.earlier is not None) or len(kept) > MOST
            kept, later = kept[-MOST:], None
        earlier = NextTo("before", kept[0].message.seq) if more and kept else None
        self.stretch.put(kept, earlier, later)
        self.show()
        if not reads:
            self.rows.go_to_end()


def _key(entry: ShownMessage) -> str:
    return entry.message.id or f"summary {entry.message.branch}"
