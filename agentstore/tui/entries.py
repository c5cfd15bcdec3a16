"""Messages of a branch, with what is shown beside them, read in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentstore.records import AttachmentRecord, MessageRecord, Page, SummaryRecord
from agentstore.tui.stretches import ListPart
from agentstore.values.paging import MAX_LIMIT

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


class BranchEntries:
    """Reads the messages of a branch. A place is ``NextTo``; None means the end of the branch."""

    def __init__(self, store: Any, session_id: str, branch: str) -> None:
        """Say which branch of which store."""
        self._store = store
        self.session_id = session_id
        self.branch = branch

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
