"""Conversations in and out, as JSONL in chat format: one conversation a line.

A line is an object with ``messages``, a list of chat messages (role, content, tool_calls,
tool_call_id, name), and usually ``id``, ``title``, ``user``, ``model`` and ``metadata``. What
goes in comes out equal, message by message and key by key, the keys in their order: keys that
agentstore has no column for, and unusual orders, are kept beside the columns.

A session that has branches is exported as its active branch tells it, and comes back as a session
with that conversation alone.

What the format does not say is not in an export: other branches, token counts, costs, times,
marks, tool logs, tasks. It is for conversations; a whole database is moved by copying it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agentstore.errors import InvalidInput, TranscriptError
from agentstore.records import CHAT_KEYS, MessageRecord, SessionRecord
from agentstore.store import Repositories, Store, Transaction

KEYS = ("id", "title", "user", "model", "metadata", "messages")
"""The keys of a conversation that have a place of their own, in their usual order."""

_LAYOUT = "agentstore.transcript"
"""The key of a session's metadata that keeps what an unusual line looked like."""

_BATCH_MESSAGES = 2000
"""Messages in one transaction: the sync of its commit no longer counts beyond that."""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    Attributes:
        conversations: How many were stored.
        messages: How many messages they hold.
        skipped: Conversations whose id was there already; they were left as they are.
    """

    conversations: int
    messages: int
    skipped: int

    def __add__(self, other: Imported) -> Imported:
        """Add up."""
        return Imported(
            self.conversations + other.conversations,
            self.messages + other.messages,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    size: int
    conversation: dict[str, Any]


def import_file(
    store: Store, path: str | Path, *, atomic: bool = False, progress: Progress | None = None
) -> Imported:
    """Import a file of conversations, in batches, reading it once and never whole.

    Users that are named and not there are created. A conversation whose id is there already is
    skipped, so an import that was cut off is repeated to go on.

    Args:
        store: Where to.
        path: A file of JSON lines in UTF-8.
        atomic: Import all or nothing, in one transaction, during which, on SQLite, nobody else
            can write. Otherwise what came before a broken line stays.
        progress: Called with the bytes that were read since the last call.

    Raises:
        TranscriptError: A line is not a conversation; it names the line.
        OSError: The file cannot be read.
    """
    with Path(path).open("rb") as file:
        return import_lines(store, file, str(path), atomic=atomic, progress=progress)


def import_lines(
    store: Store,
    lines: BinaryIO | Iterable[bytes],
    source: str = "the input",
    *,
    atomic: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Import conversations from lines of bytes; see ``import_file``."""
    total = Imported(0, 0, 0)
    if atomic:
        with store.transaction() as transaction:
            for batch in _batches(lines, source):
                total += _store_batch(transaction, batch, source)
                _tell(progress, batch)
        return total
    try:
        for batch in _batches(lines, source):
            total += _store_in_transactions(store, batch, source)
            _tell(progress, batch)
    except TranscriptError as error:
        stored = total.conversations + error.imported
        raise TranscriptError(source, error.line, error.problem, stored) from error.__cause__
    return total


def export_lines(
    store: Store, *, session_id: str | None = None, user_id: str | None = None
) -> Iterator[bytes]:
    """Export conversations, in the order in which they were created, one line each.

    Each line is consistent in itself; conversations that are written to meanwhile may be
    exported with or without what is added. One conversation at a time is held in memory. The
    same conversations give the same bytes, whatever the engine.

    Args:
        store: Where from.
        session_id: Only this session.
        user_id: Only this user's sessions.

    Raises:
        NotFound: There is no such session.
    """
    if session_id is not None:
        yield _line(store, store.sessions.get(session_id))
        return
    cursor: str | None = None
    while True:
        page = store.sessions.walk(limit=200, cursor=cursor)
        for session in page:
            if user_id is None or session.user_id == user_id:
                yield _line(store, session)
        cursor = page.next_cursor
        if cursor is None:
            return


def to_conversation(session: SessionRecord, messages: Iterable[MessageRecord]) -> dict[str, Any]:
    """Give a session as a conversation in chat format; it is written as JSON as it is."""
    metadata = dict(session.metadata)
    layout = metadata.pop(_LAYOUT, None)
    values: dict[str, Any] = {
        "id": session.id,
        "title": session.title,
        "user": session.user_id,
        "model": session.model,
        "metadata": metadata,
        "messages": [message.to_chat() for message in messages],
    }
    if not isinstance(layout, dict):
        if not metadata:
            del values["metadata"]
        return values
    extra = layout["extra"]
    return {key: extra[key] if key in extra else values[key] for key in layout["keys"]}


def _batches(lines: Iterable[bytes], source: str) -> Iterator[list[_Line]]:
    """Read lines into batches. A broken line ends the reading only after the batch before it
    was handed out.
    """
    batch: list[_Line] = []
    messages = 0
    for number, line in enumerate(lines, start=1):
        try:
            parsed = _parse(number, line, source)
        except TranscriptError:
            if batch:
                yield batch
            raise
        if parsed is None:
            continue
        batch.append(parsed)
        messages += len(parsed.conversation["messages"])
        if messages >= _BATCH_MESSAGES or len(batch) >= _BATCH_MESSAGES:
            yield batch
            batch, messages = [], 0
    if batch:
        yield batch


def _parse(number: int, line: bytes, source: str) -> _Line | None:
    def broken(problem: str) -> TranscriptError:
        return TranscriptError(source, number, problem, 0)

    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise broken(f"not UTF-8 (byte {error.start})") from None
    if not text.strip():
        return None
    try:
        conversation = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise broken(f"not JSON: {error}") from None
    if not isinstance(conversation, dict):
        raise broken("not a JSON object")
    messages = conversation.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise broken("'messages' is not a list of objects")
    for key in ("id", "title", "user", "model"):
        if not isinstance(conversation.get(key), str | None):
            raise broken(f"{key!r} is neither a string nor null")
    if not isinstance(conversation.get("metadata", {}), dict):
        raise broken("'metadata' is not an object")
    return _Line(number, len(line), conversation)


def _store_in_transactions(store: Store, batch: list[_Line], source: str) -> Imported:
    """Store a batch in one transaction; if a line is refused, those before it in another."""
    try:
        return store.run(lambda transaction: _store_batch(transaction, batch, source))
    except TranscriptError as error:
        before = [line for line in batch if line.number < error.line]
        stored = 0
        if before:
            done = store.run(lambda transaction: _store_batch(transaction, before, source))
            stored = done.conversations
        raise TranscriptError(source, error.line, error.problem, stored) from error.__cause__


def _store_batch(transaction: Transaction, batch: list[_Line], source: str) -> Imported:
    conversations = messages = skipped = 0
    for line in batch:
        try:
            count = import_conversation(transaction, line.conversation)
        except InvalidInput as error:
            raise TranscriptError(source, line.number, str(error), 0) from error
        if count is None:
            skipped += 1
        else:
            conversations += 1
            messages += count
    return Imported(conversations, messages, skipped)


def import_conversation(repositories: Repositories, conversation: dict[str, Any]) -> int | None:
    """Store one conversation.

    Returns:
        How many messages it has; None if its id is there already, and nothing was stored.

    Raises:
        InvalidInput: Something in it cannot be stored.
    """
    session_id = conversation.get("id")
    user = conversation.get("user")
    if session_id is not None and repositories.sessions.find(session_id) is not None:
        return None
    if user is not None and repositories.users.find(user) is None:
        repositories.users.create(user, id=user)
    session = repositories.sessions.create(
        user,
        id=session_id,
        title=conversation.get("title"),
        model=conversation.get("model"),
        metadata=_metadata(conversation),
    )
    messages = [_message(message) for message in conversation["messages"]]
    if messages:
        repositories.messages.save_many(session.id, messages)
    return len(messages)


def _metadata(conversation: dict[str, Any]) -> dict[str, Any]:
    given = conversation.get("metadata", {})
    metadata = dict(given)
    usual = [key for key in KEYS if key != "metadata" or metadata]
    if list(conversation) != usual or _LAYOUT in metadata:
        extra = {key: value for key, value in conversation.items() if key not in KEYS}
        if _LAYOUT in metadata:  # the application's own key of that name
            extra["metadata"] = given
        metadata[_LAYOUT] = {"keys": list(conversation), "extra": extra}
    return metadata


def _message(chat: dict[str, Any]) -> dict[str, Any]:
    message = {key: chat[key] for key in CHAT_KEYS if key in chat}
    usual = ["role", "content"]
    usual += [key for key in CHAT_KEYS[2:] if chat.get(key) is not None]
    if list(chat) != usual:
        message["chat_keys"] = list(chat)
        if extra := {key: value for key, value in chat.items() if key not in CHAT_KEYS}:
            message["payload"] = extra
    return message


def _line(store: Store, session: SessionRecord) -> bytes:
    conversation = to_conversation(session, store.messages.history(session.id, None))
    text = json.dumps(conversation, ensure_ascii=False)
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # lone surrogates, which only escapes can say
        return json.dumps(conversation).encode("ascii") + b"\n"


def _tell(progress: Progress | None, batch: list[_Line]) -> None:
    if progress is not None:
        progress(sum(line.size for line in batch))
