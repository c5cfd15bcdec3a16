"""A conversation: the messages of a branch, read in both directions, and followed as they come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.strip import Strip

from agentstore.records import MessageRecord, Page, SessionRecord
from agentstore.records.upkeep import counted
from agentstore.tui.lists import (
    MOST,
    BranchEntries,
    NextTo,
    Rows,
    ShownMessage,
    Stretch,
    cut,
    entries_of,
    indented,
    markdown_lines,
    text_lines,
    with_found,
)
from agentstore.tui.screens import BranchesScreen, ListScreen, ReaderScreen, TurnsScreen
from agentstore.values.chat import MessagePiece, pieces_of
from agentstore.values.snippets import (
    ROLE_STYLES,
    age_of,
    attached,
    brief,
    money,
    on_one_line,
    printable,
)
from agentstore.values.validation import COMPLETE, STREAMING

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
        self._user: str | None = None
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
        if (owner := self._session.user_id) is not None:
            self._user = f"user {(await store.users.names([owner])).get(owner, owner)}"
        if self.branch is None:
            self.branch = (await store.branches.active(self.session_id)).name
        self.stretch = Stretch(BranchEntries(store, self.session_id, self.branch))
        await self._go(self._seq)
        used = await store.usage.of_sessions([self.session_id], most=_REQUESTS)
        for sums in used.values():
            more = "+" if sums.partial else ""
            tokens, cost = f"{brief(sums.total_tokens)}{more}", f"{money(sums.cost)}{more}"
            self._used = f"{tokens} used tokens, {cost}"
        self.say()
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
        self.say()

    def say(self) -> None:
        """Say what is seen, in the heading."""
        session = self._session
        if session is None:
            return
        title = Text(on_one_line(session.title or session.id), style="bold")
        facts = [
            f"branch {self.branch}",
            session.status,
            session.model,
            self._user,
            counted(session.message_count, "message"),
            f"{brief(session.total_tokens)} message tokens",
            self._used,
            f"active {age_of(session.last_active_at)}",
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
        if session.failure is not None:
            lines.append(Text.assemble(("failed: ", "bold red"), on_one_line(session.failure)))
        self.head(*lines)

    def action_beginning(self) -> None:
        """Go to the beginning of the branch."""
        self.read(self._to_beginning)

    def action_end(self) -> None:
        """Go to the end of the branch."""
        if self.stretch.has_later:
            self.read(partial(self._go, None))
        else:
            self.rows.go_to_end()

    async def _to_beginning(self) -> None:
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
        self.say()

    async def _look_for_new(self) -> bool:
        session = await self.browser.store.sessions.get(self.session_id)
        streams = any(e.message.status == STREAMING for e in self.rows.items[-_STREAMS:])
        if streams or session != self._session:
            self._session = session
            await self._take_new()
            self.say()
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


# A message as lines: who, when, how many tokens, what it says; calls and results folded.


_FOLDED = 1_500
"""Characters of a text, and lines, that are drawn while it is folded."""
_FOLDED_LINES = 16
_FOLDED_FILES = 5
_OPENED = 20_000
"""Characters that are drawn when it is not; the rest is seen with all that there is of it."""
_GLANCE = 300
"""Characters of a call or a result that one line is made of."""


@dataclass(frozen=True, slots=True)
class MessageLook:
    """How messages are drawn.

    Attributes:
        opened: Those that are not folded, by their ids.
        raw: Whether Markdown is left as it was written.
        words: What was searched for, to be marked.
    """

    opened: frozenset[str] = frozenset()
    raw: bool = False
    words: tuple[str, ...] = ()


def entry_lines(entry: ShownMessage, width: int, look: MessageLook) -> list[Strip]:
    """Draw a message, and a line above it where a turn begins."""
    message = entry.message
    opened = message.id in look.opened
    lines = [Strip.blank(1)]
    if entry.new_turn:
        label = f"── turn {message.turn} · {message.created_at:%Y-%m-%d} UTC "
        lines.append(cut(Text(label.ljust(width, "─"), style="dim"), width))
    lines.append(cut(_label(entry), width))
    for piece in pieces_of(message):
        lines += indented(_piece(piece, message.role, width - 2, opened, look.raw))
    for file in entry.files if opened else entry.files[:_FOLDED_FILES]:
        line = Text.assemble(("+ ", "yellow"), attached(file.name, file.media_type, file.size))
        lines += indented([cut(line, width - 2)])
    if not opened and len(entry.files) > _FOLDED_FILES:
        rest = f"… {len(entry.files) - _FOLDED_FILES:,} more attachments: Enter unfolds them"
        lines += indented([cut(Text(rest, style="dim"), width - 2)])
    return with_found(lines, look.words)


def _label(entry: ShownMessage) -> Text:
    message = entry.message
    if message.status == "summary":
        return Text("summary of what is above", style="bold blue")
    label = Text.assemble((message.role, ROLE_STYLES.get(message.role, "")))
    if message.name:
        label.append(f" {on_one_line(message.name)}")
    facts = [f"#{message.seq}", f"{message.created_at:%H:%M:%S}"]
    if message.token_count:
        facts.append(f"{brief(message.token_count)} tokens")
    if message.cost:
        facts.append(f"cost {money(message.cost)}")
    label.append(f"  {'  '.join(facts)}", style="dim")
    if message.status != COMPLETE:
        label.append(f"  {message.status}", style="bold red")
    for mark in entry.marks:
        label.append(f"  [{on_one_line(mark)}]", style="blue")
    return label


def _piece(piece: MessagePiece, role: str, width: int, opened: bool, raw: bool) -> Sequence[Strip]:
    if piece.kind == "call":
        return _call(piece, width, opened)
    if role == "tool":
        return _result(piece.text, width, opened)
    if piece.kind == "data":
        return _folded(piece.text, width, "dim") if not opened else _whole(piece.text, width)
    shown = piece.text[: _OPENED if opened else _FOLDED]
    lines = text_lines(shown, width) if raw else markdown_lines(shown, width)
    if not opened and len(lines) > _FOLDED_LINES:
        rest = f"… {len(piece.text):,} characters: Enter unfolds them"
        return [*lines[:_FOLDED_LINES], cut(Text(rest, style="dim"), width)]
    return [*lines, *_rest(piece.text, len(shown), opened, width)]


def _call(call: MessagePiece, width: int, opened: bool) -> Sequence[Strip]:
    line = Text.assemble(("▾ " if opened else "▸ ", "yellow"), (on_one_line(call.name), "bold"))
    if opened:
        if call.call_id:
            line.append(f"  {on_one_line(call.call_id)}", style="dim")
        return [cut(line, width), *indented(_whole(_pretty(call.text), width - 2, "yellow"))]
    line.append(f"  {_glance(call.text)}", style="yellow")
    return [cut(line, width)]


def _result(text: str, width: int, opened: bool) -> Sequence[Strip]:
    if opened:
        return _whole(_pretty(text), width)
    return _folded(text, width, "")


def _folded(text: str, width: int, style: str) -> Sequence[Strip]:
    size = f"  {len(text):,} characters" if len(text) > width else ""
    line = Text.assemble(("▸ ", "yellow"), (_glance(text), style))
    line.truncate(max(width - len(size), 2), overflow="ellipsis")
    line.append(size, style="dim")
    return [cut(line, width)]


def _whole(text: str, width: int, style: str = "") -> Sequence[Strip]:
    shown = text[:_OPENED]
    return [*text_lines(shown, width, style), *_rest(text, len(shown), True, width)]


def _rest(text: str, shown: int, opened: bool, width: int) -> Sequence[Strip]:
    if shown >= len(text):
        return ()
    how = "o shows all" if opened else "Enter unfolds them"
    return [cut(Text(f"… {len(text) - shown:,} more characters: {how}", style="dim"), width)]


def _glance(text: str) -> str:
    return on_one_line(text[:_GLANCE])


def _pretty(text: str) -> str:
    """Give JSON with its lines indented; anything else as it is."""
    if len(text) > _OPENED or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except ValueError:
        return text


# New messages of all sessions, as they come.


_FIRST, _BATCH = 20, 500
_MOST_STREAMS = 50
"""Messages that are looked at again while they are being written."""


class FollowScreen(ListScreen[ShownMessage]):
    """The last messages of the whole store, and those that come."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open_message", "Whole")]

    def __init__(self) -> None:
        """Begin with the last messages that are there."""
        super().__init__()
        self._cursor: str | None = None
        self.rows = Rows(_draw, lambda entry: entry.message.id, empty="No messages yet.")

    async def start(self) -> None:
        """Follow, until the screen is left."""
        self.head(Text.assemble(("● following ", "bold green"), ("all sessions", "dim")))
        self.keep_looking(self._look)

    async def _look(self) -> bool:
        store = self.browser.store
        limit = _FIRST if self._cursor is None else _BATCH
        page: Page[MessageRecord] = await store.messages.follow(self._cursor, limit=limit)
        items = self.stretch.items
        streams = [each.message for each in items if each.message.status == STREAMING]
        grown = {
            message.id: message
            for stream in streams[-_MOST_STREAMS:]
            if (message := await store.messages.find(stream.id)) is not None
        }
        new = await entries_of(store, page.items)
        if grown or new or self._cursor is None:
            held = [replace(e, message=grown.get(e.message.id, e.message)) for e in items]
            self._add(held, new)
        self._cursor = page.next_cursor
        return len(new) == _BATCH

    def _add(self, held: list[ShownMessage], new: Sequence[ShownMessage]) -> None:
        stays = not self.rows.at_end and bool(held)
        self.stretch.put([*held, *new][-MOST:], None)
        self.show()
        if not stays:
            self.rows.go_to_end()

    def on_rows_chosen(self) -> None:
        """Open the session at the message."""
        if (entry := self.rows.chosen) is not None:
            message = entry.message
            self.app.push_screen(
                ConversationScreen(message.session_id, message.branch, seq=message.seq)
            )

    def action_open_message(self) -> None:
        """Show all that there is of a message."""
        if (entry := self.rows.chosen) is not None:
            self.app.push_screen(ReaderScreen(entry))


def _draw(entry: ShownMessage, width: int) -> list[Strip]:
    lines = entry_lines(replace(entry, new_turn=False), width, MessageLook())
    whose = Text(f"session {on_one_line(entry.message.session_id)}", style="dim")
    return [lines[0], cut(whose, width), *lines[1:]]
