"""Conversations of a file into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from agentstore.errors import (
    AgentStoreError,
    AlreadyExists,
    InvalidInput,
    OutsideScope,
    UnscopedOnly,
)
from agentstore.moving.copying.quarantine import Quarantine, SetAside
from agentstore.moving.transcripts.layouts import as_key, conversation_id, layout_of, with_user
from agentstore.moving.transcripts.reading import Format, Line, Reading, new_messages
from agentstore.stores.store import Repositories, Store, Transaction

Progress = Callable[[int], None]
"""Called with the bytes that were read since the last call."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    Attributes:
        conversations: How many were stored.
        messages: How many messages they hold.
        skipped: Conversations that were there already, or twice in the file; those that are there
            were left as they are.
        unnamed: How many of those that were stored had no id, and got one that says what they hold.
        skipped_unnamed: How many of those that were skipped had no id: the same is there.
        set_aside: How many lines were broken and set aside.
        problems: The first twenty of these, each as its number and what is wrong.
        quarantine: The file that lists them; None if there are none.
    """

    conversations: int
    messages: int
    skipped: int
    unnamed: int = 0
    skipped_unnamed: int = 0
    set_aside: int = 0
    problems: tuple[tuple[int, str], ...] = ()
    quarantine: str | None = None

    def __add__(self, other: Imported) -> Imported:
        """Add up what was stored and skipped."""
        return Imported(
            self.conversations + other.conversations,
            self.messages + other.messages,
            self.skipped + other.skipped,
            self.unnamed + other.unnamed,
            self.skipped_unnamed + other.skipped_unnamed,
        )


class _LineRefused(Exception):
    """The store does not take a line."""

    def __init__(self, line: Line, problem: str) -> None:
        self.line = line
        self.problem = problem


class _NotSound(Exception):
    """Ends a transaction in which nothing is to stay."""


def import_file(
    store: Store,
    path: str | Path,
    *,
    atomic: bool = False,
    format: Format = "chat",
    progress: Progress | None = None,
    quarantine: Path | None = None,
) -> Imported:
    """Import a file of conversations, in batches, reading it once and never whole.

    Users that are named and not there are created. A conversation whose id is there already is
    skipped, so an import that was cut off is repeated to go on. One without an id gets one that
    says what it holds (see ``conversation_id``), so it is skipped the second time too, in the same
    file or in another. In a scope one without a user is the scope's user's.

    Each batch goes into the search index once it is stored, unless the store is a scope.

    A line that is broken, or cannot be stored, ends the storing. The lines after it are still
    checked, so that the error names them all. With ``quarantine`` such lines are listed in a file
    instead, and all others are stored.

    Args:
        store: Where to.
        path: A file of JSON lines in UTF-8.
        atomic: Import all or nothing, in one transaction, during which, on SQLite, nobody else
            can write. Otherwise what came before a broken line stays.
        format: ``chat``, or ``sharegpt`` for lines with ``conversations`` of ``from`` and
            ``value``, which become chat messages, and are exported as such.
        progress: Called with the bytes that were read since the last call.
        quarantine: A file to be made for broken lines, if there are any: a JSON object a line,
            with the ``reason`` and, in ``row``, the number of the line and its ``text``. If there
            is such a file, another is made beside it, with a number in its name.

    Raises:
        InvalidInput: Both ``atomic`` and ``quarantine`` were passed, or that file cannot be made.
        TranscriptError: Lines are not conversations; one has another's id; one's id is that of
            another user's session. It names the lines.
        OSError: The file cannot be read.
    """
    with Path(path).open("rb") as file:
        return import_lines(
            store,
            file,
            str(path),
            atomic=atomic,
            format=format,
            progress=progress,
            quarantine=quarantine,
        )


def import_lines(
    store: Store,
    lines: BinaryIO | Iterable[bytes],
    source: str = "the input",
    *,
    atomic: bool = False,
    format: Format = "chat",
    progress: Progress | None = None,
    quarantine: Path | None = None,
) -> Imported:
    """Import conversations from lines of bytes; see ``import_file``."""
    if atomic and quarantine is not None:
        raise InvalidInput(
            "Pass atomic (--atomic) or quarantine (--quarantine), not both: with the one, a broken "
            "line leaves nothing imported; with the other, everything else is."
        )
    kept = None if quarantine is None else Quarantine(quarantine, resumed=True)
    aside = None if kept is None else SetAside(kept)
    if isinstance(lines, BufferedReader):
        # One JSON array may be one line of gigabytes: its first bytes are enough to refuse it.
        is_array = lines.peek(1).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        lines = [b"["] if is_array else lines
    reading = Reading(lines, source, format, store.sessions._scope(), aside)
    tell = progress or (lambda _: None)
    store_all = _store_at_once if atomic else _store_in_batches
    total = store_all(store, reading, tell)
    if not reading.is_sound():
        for size in reading.check_rest():
            tell(size)
        raise reading.error(total.conversations)
    if kept is None or not aside:
        return total
    kept.keep(aside)
    problems, file = tuple(reading.problems), str(kept.newest)
    return replace(total, set_aside=len(aside), problems=problems, quarantine=file)


def import_conversation(repositories: Repositories, conversation: dict[str, Any]) -> int | None:
    """Store one conversation.

    Returns:
        How many messages it has; None if its id is there already, and nothing was stored.

    Raises:
        InvalidInput: Something in it cannot be stored, or its id is that of another user's
            session.
    """
    conversation = with_user(conversation, repositories.sessions._scope())
    return _store(repositories, conversation_id(conversation), conversation)


def _store_in_batches(store: Store, reading: Reading, tell: Progress) -> Imported:
    total = Imported(0, 0, 0)
    for batch in reading.batches():
        stored = _store_in_transactions(store, reading, batch)
        _index(store, stored.messages)
        total += stored
        tell(_size(batch))
    return total


def _store_at_once(store: Store, reading: Reading, tell: Progress) -> Imported:
    total = Imported(0, 0, 0)
    batch: Sequence[Line] = ()
    try:
        with store.transaction() as transaction:
            for batch in reading.batches():
                total += _store_batch(transaction, batch)
                tell(_size(batch))
            if not reading.is_sound():
                raise _NotSound
    except _LineRefused as refused:
        _refuse(reading, refused, batch)
    except _NotSound:
        pass
    if not reading.is_sound():
        return Imported(0, 0, 0)
    _index(store, total.messages)
    return total


def _index(store: Store, messages: int) -> None:
    """Take as many messages into the search index as were stored, and leave the rest to searches.

    In a scope there is no index to be seen to; what keeps it from being written keeps no message.
    """
    if messages and store.sessions._scope() is None:
        with suppress(AgentStoreError):
            store.search.refresh(messages)


def _store_in_transactions(store: Store, reading: Reading, batch: Sequence[Line]) -> Imported:
    """Store a batch in one transaction; if a line is refused, those before it in another.

    Where broken lines are set aside, those behind it follow in the same way.
    """
    total = Imported(0, 0, 0)
    while batch:
        try:
            return total + store.run(partial(_store_batch, batch=batch))
        except _LineRefused as refused:
            place = batch.index(refused.line)
            _refuse(reading, refused, batch)
            total += _store_in_transactions(store, reading, batch[:place])
            batch = batch[place + 1 :] if reading.aside is not None else ()
    return total


def _refuse(reading: Reading, refused: _LineRefused, batch: Sequence[Line]) -> None:
    """Note a line that the store does not take; if it ends the import, check those behind it."""
    reading.refuse(refused.line.number, refused.problem, refused.line.raw)
    for line in batch if reading.aside is None else ():
        if line.number > refused.line.number:
            reading.check(line)


def _store_batch(transaction: Transaction, batch: Sequence[Line]) -> Imported:
    done = Imported(0, 0, 0)
    for line in batch:
        try:
            count = _store(transaction, line.session_id, line.conversation)
        except (InvalidInput, AlreadyExists, OutsideScope, UnscopedOnly) as error:
            raise _LineRefused(line, str(error)) from error
        unnamed = int(line.conversation.get("id") is None)
        stored = Imported(1, count or 0, 0, unnamed)
        done += Imported(0, 0, 1, 0, unnamed) if count is None else stored
    return done


def _store(repositories: Repositories, session_id: str, conversation: dict[str, Any]) -> int | None:
    user = as_key(conversation.get("user"))
    there = repositories.sessions.find(session_id)
    if there is not None:
        if there.user_id != user:
            raise InvalidInput("Its id is taken by another user's session. Give it another id.")
        return None
    messages = new_messages(conversation)
    if user is not None and repositories.users.find(user) is None:
        repositories.users.create(user, id=user)
    repositories.sessions.create(
        user,
        id=session_id,
        title=conversation.get("title"),
        model=conversation.get("model"),
        metadata=conversation.get("metadata"),
    )
    layout = layout_of(conversation)
    if layout is not None:
        repositories.sessions._keep_layout(session_id, layout)
    if messages:
        repositories.messages.save_many(session_id, messages)
    return len(messages)


def _size(batch: Sequence[Line]) -> int:
    return sum(line.size for line in batch)
