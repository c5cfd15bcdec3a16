"""Conversations in and out: files of any known format in, JSONL in chat format out.

What a file holds is told by its records: see ``formats``. In chat format a line is an object with
``messages``, a list of chat messages (role, content, tool_calls, tool_call_id, name), and usually
``id``, ``title``, ``user``, ``model`` and ``metadata``. What goes in comes out equal, message by
message and key by key, the keys in their order: keys that agentstore has no column for, and unusual
orders, are kept beside the columns. A line that could not
be exported unchanged is refused: one with a key twice in an object, or digits that a float would
lose. So is one with a message that has no role and is no item of the Responses API that is known,
though a store may hold such items from an adapter, and export them.

An exported line becomes the same session when it is imported again: by its ``id``, or, if it has
none, by the digest of what it says. What is kept beside the columns never replaces what is in them.

What is imported of other formats has their branches, their usage and their times. Of a session with
branches, the active branch is exported, and is imported as a session with that conversation only.

An export leaves out what the format has no place for: other branches, token counts, costs, times,
marks, tool logs, tasks. It is for conversations; a whole database is moved by copying it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from agentstore.engines.base.moving import Flaw
from agentstore.errors import (
    AgentStoreError,
    AlreadyExists,
    ConnectionLost,
    CrossTenantAccess,
    DatabaseBusy,
    DatabaseUnreachable,
    ExportIncomplete,
    InvalidInput,
    NotAllowedInScope,
    NotFound,
    SchemaError,
    TransactionMisuse,
    TranscriptError,
)
from agentstore.execution.runners import ScopedRunner
from agentstore.execution.unit import Unit
from agentstore.moving.copy_ends import Quarantine, SetAside
from agentstore.moving.formats import Formats
from agentstore.moving.frameworks.llm import logs_of_llm
from agentstore.moving.frameworks.sources import ODD, make_user
from agentstore.moving.json_records import (
    END_OF_ARRAY,
    SQLITE,
    Broken,
    Conversation,
    OtherFile,
    Said,
    load_strictly,
    records_of,
)
from agentstore.moving.runs import Found
from agentstore.moving.traces import ANSWER
from agentstore.records import MessageRecord, SessionRecord
from agentstore.repositories.messages.append import draft
from agentstore.repositories.sessions import WholeSession
from agentstore.settings import Settings
from agentstore.store import Store
from agentstore.transactions import Repositories, ScopedTransaction, Transaction, runner_of
from agentstore.values import validation
from agentstore.values.chat import FromChat, from_chat, is_known_item
from agentstore.values.token_use import TokenUse
from agentstore.values.validation import MAIN

__all__ = [
    "KEYS",
    "Imported",
    "Progress",
    "conversation_id",
    "export_lines",
    "import_conversation",
    "import_file",
    "import_lines",
    "to_conversation",
]


# Conversations of a file into a store.


Progress = Callable[[int], None]
"""Called with the bytes that were read since the last call."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    Attributes:
        conversations: How many were stored.
        messages: How many messages were stored.
        skipped: Conversations that were there already, or twice in the file; those that are there
            were left as they are.
        unnamed: How many of those that were stored had no id, and got one that says what they hold.
        skipped_unnamed: How many of those that were skipped had no id: the same is there.
        set_aside: How many lines were broken and set aside.
        problems: The first twenty of these, each as its number and what is wrong.
        quarantine: The file that lists them; None if there are none.
        branches: How many branches they have beside the active ones.
        continued: How many were there already and have more messages in the file now, which were
            added to them.
        grown: How many of those that were skipped have other messages in the file than when they
            were imported, and branches, or a session with messages of its own. They were left as
            they are. To import one again, delete its session first.
        formats: How many of those that were stored were in another format, by its name.
        left_out: What is in the file and no part of a conversation: how many, by what it is.
    """

    conversations: int
    messages: int
    skipped: int
    unnamed: int = 0
    skipped_unnamed: int = 0
    set_aside: int = 0
    problems: tuple[tuple[int, str], ...] = ()
    quarantine: str | None = None
    branches: int = 0
    continued: int = 0
    grown: int = 0
    formats: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Imported) -> Imported:
        """Add up what was stored and skipped."""
        names = dict.fromkeys((*self.formats, *other.formats))
        return Imported(
            self.conversations + other.conversations,
            self.messages + other.messages,
            self.skipped + other.skipped,
            self.unnamed + other.unnamed,
            self.skipped_unnamed + other.skipped_unnamed,
            branches=self.branches + other.branches,
            continued=self.continued + other.continued,
            grown=self.grown + other.grown,
            formats={n: self.formats.get(n, 0) + other.formats.get(n, 0) for n in names},
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
    progress: Progress | None = None,
    quarantine: Path | None = None,
) -> Imported:
    """Import a file of conversations of any known format, in batches, reading it once.

    One conversation at a time is in memory, and never a whole file of several.

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
        path: A file of JSON in UTF-8: lines, one array, or one value; or a database of ``llm``. Its
            format is found out: see ``formats``.
        atomic: Import all or nothing, in one transaction, during which, on SQLite, nobody else
            can write. Otherwise what came before a broken line stays.
        progress: Called with the bytes that were read since the last call.
        quarantine: A file to be made for broken lines, if there are any: a JSON object a line,
            with the ``reason`` and, in ``row``, the number of the line and its ``text``. If there
            is such a file, another is made beside it, with a number in its name.

    Raises:
        InvalidInput: Both ``atomic`` and ``quarantine`` were passed, or that file cannot be made;
            or no file can have this name.
        TranscriptError: Lines are not conversations; one has another's id; one's id is that of
            another user's session. It names the lines.
        OSError: The file cannot be read.
    """
    with validation.file_path("path", path).open("rb") as file:
        return import_lines(
            store, file, str(path), atomic=atomic, progress=progress, quarantine=quarantine
        )


def import_lines(
    store: Store,
    lines: BufferedIOBase | Iterable[bytes],
    source: str = "the input",
    *,
    atomic: bool = False,
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
    tell = progress or (lambda _: None)
    store_all = _store_at_once if atomic else _store_in_batches
    with ExitStack() as stack:
        found: Iterable[Found] | None = None
        if (
            isinstance(lines, BufferedReader)
            and lines.peek(16).startswith(SQLITE)
            and isinstance(lines.name, str)
        ):
            found = stack.enter_context(logs_of_llm(lines.name))
        reading = Reading(lines, source, store.sessions._scope(), aside, found)
        total = store_all(store, reading, tell)
        if not reading.is_sound():
            for size in reading.check_rest():
                tell(size)
            raise reading.error(total.conversations)
    total = replace(total, left_out=dict(reading.formats.left_out))
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
    done = _store(repositories, conversation_id(conversation), conversation)
    return done.messages if done.conversations else None


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
            done += _store(transaction, line.session_id, line.conversation)
        except (InvalidInput, AlreadyExists, CrossTenantAccess, NotAllowedInScope) as error:
            raise _LineRefused(line, str(error)) from error
    return done


def _store(repositories: Repositories, session_id: str, conversation: dict[str, Any]) -> Imported:
    user = as_key(conversation.get("user"))
    made = conversation if isinstance(conversation, Conversation) else None
    unnamed = int(conversation.get("id") is None)
    there = repositories.sessions.find(session_id)
    if there is not None:
        if there.user_id != user:
            raise InvalidInput("Its id is taken by another user's session. Give it another id.")
        grown = made is not None and there.metadata.get("imported") != made["metadata"]["imported"]
        if made is None or not grown:
            return Imported(0, 0, 1, 0, unnamed)
        return _go_on(repositories, session_id, made, unnamed)
    lines = _lines_of(conversation)
    drafts = [new_messages(messages) for messages in lines]
    make_user(repositories, user)
    repositories, times = _then(repositories, conversation["messages"], made)
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
    seqs = [_save(repositories, session_id, lines[0], drafts[0], times)]
    numbers, shared = [0], [0]
    branches = [] if made is None else made.branches
    for branch, new in zip(branches, drafts[1:], strict=True):
        place = branch.shared - shared[branch.parent]  # in what the other line has of its own
        through = seqs[branch.parent][place - 1] if place else 0
        parent = numbers[branch.parent]
        numbers.append(repositories.branches._grow(session_id, parent, through, branch.name))
        shared.append(branch.shared)
        seqs.append(_save(repositories, session_id, branch.messages, new, times))
    if branches:
        repositories.branches.switch(session_id, MAIN)
    count = sum(map(len, drafts))
    formats = {} if made is None else {made.form: 1}
    return Imported(1, count, 0, unnamed, branches=len(branches), formats=formats)


def _go_on(
    repositories: Repositories, session_id: str, made: Conversation, unnamed: int
) -> Imported:
    """Add what a conversation has more than its session, if that is all in which they differ."""
    locked = repositories.sessions.update(session_id)  # nobody else adds to it meanwhile
    said, stored = made["messages"], locked.message_count
    there = repositories.messages.chat(session_id, None, keep_tool_calls=False, unanswered="keep")
    if made.form == ANSWER and there and there[-1].get("role") != "assistant":
        said = [*there, *said]
    if made.branches or stored > len(said) or len(repositories.branches.list(session_id)) > 1:
        return Imported(0, 0, 1, 0, unnamed, grown=1)
    if there != said[:stored]:
        return Imported(0, 0, 1, 0, unnamed, grown=1)
    new = said[stored:]
    imported = {"imported": made["metadata"]["imported"]}
    repositories.sessions.patch(session_id, metadata=imported)
    repositories, times = _then(repositories, new, made)
    _save(repositories, session_id, new, new_messages(new), times)
    return Imported(0, len(new), 0, continued=1)


def _then(
    repositories: Repositories, messages: Sequence[dict[str, Any]], made: Conversation | None
) -> tuple[Repositories, _Times]:
    """Let what another format has be stored as of when it was said."""
    begun = None if made is None else made.at
    times = _Times(next((m.at for m in messages if isinstance(m, Said) and m.at), begun))
    if made is not None and isinstance(repositories, Repositories):  # and no stand-in of a test's
        kind = ScopedTransaction if repositories._scoped else Transaction
        repositories = kind(ScopedRunner(runner_of(repositories), times.visit))
    return repositories, times


def _save(
    repositories: Repositories,
    session_id: str,
    messages: Sequence[dict[str, Any]],
    drafts: Sequence[FromChat],
    times: _Times,
) -> list[int]:
    """Save messages at the end of the active branch, as many at once as were said at one time.

    Returns:
        Their numbers.
    """
    seqs: list[int] = []
    begin = 0
    for end, message in enumerate(messages, 1):
        said = message if isinstance(message, Said) else _NOTHING_KNOWN
        times.at = said.at or times.at
        used = said.usage is not None or said.cost is not None
        after = getattr(messages[end], "at", None) if end < len(messages) else None
        if end < len(messages) and not used and after in (None, times.at):
            continue
        saved = repositories.messages.save_many(session_id, drafts[begin:end])
        seqs += [record.seq for record in saved]
        begin = end
        if used:
            repositories.usage.record(
                session_id,
                usage=said.usage or TokenUse(),
                model=said.model,
                cost=said.cost,
                requests=said.requests,
            )
    return seqs


_NOTHING_KNOWN = Said({})


class _Times:
    """Lets what is written be as old as in the source.

    Attributes:
        at: When it is now; None for the present.
    """

    def __init__(self, at: datetime | None) -> None:
        self.at = at
        self._settings: tuple[Settings, Settings] | None = None

    def visit(self, unit: Unit, work: Callable[[Unit], T]) -> T:
        """Run a body at that time."""
        if self._settings is None or self._settings[0] is not unit.settings:
            clock = unit.settings.clock
            own = replace(unit.settings, clock=lambda: self.at or clock())
            self._settings = unit.settings, own
        return work(replace(unit, settings=self._settings[1]))


def _size(batch: Sequence[Line]) -> int:
    return sum(line.size for line in batch)


# Records of a file as conversations, or as what is wrong with them.


T = TypeVar("T")

_MOST_NAMED = 20
"""Broken lines that an error names; the rest is counted."""

_BATCH_MESSAGES = 2000
"""Messages in one transaction: the sync of its commit no longer counts beyond that."""

_BATCH_BYTES = 8 * 2**20
"""Bytes of lines in memory, but for a line that has more."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is a conversation.

    Attributes:
        session_id: The id of the session that it is stored as.
        raw: Its bytes, where broken lines are set aside.
    """

    number: int
    size: int
    session_id: str
    conversation: dict[str, Any]
    raw: bytes


class Reading:
    """Reads lines, once and one by one, and keeps what is wrong with them.

    Attributes:
        formats: What tells records apart.
        aside: Where broken lines are set aside; None if the first of them ends the import.
        problems: The first broken lines, each as its number and what is wrong.
    """

    def __init__(
        self,
        lines: BufferedIOBase | Iterable[bytes],
        source: str,
        user_id: str | None = None,
        aside: SetAside | None = None,
        found: Iterable[Found] | None = None,
    ) -> None:
        """Take the lines of a source, or what was found in it; who names no user is this one's."""
        self.formats = Formats()
        self._lines = lines
        self._source = source
        self._user_id = user_id
        self._seen: dict[int, int] = {}
        self.aside = aside
        self.problems: list[tuple[int, str]] = []
        self._broken = 0
        self._ended = False
        self._read = self._conversations(self._found() if found is None else found)

    def is_sound(self) -> bool:
        """Whether nothing is wrong so far that ends the import."""
        return not (self._broken if self.aside is None else self._ended)

    def batches(self) -> Iterator[list[Line]]:
        """Give conversations in batches, up to the first line that is broken."""
        batch: list[Line] = []
        messages = size = 0
        for line in self._read:
            if not self.is_sound():
                break
            if line is None:
                continue
            batch.append(line)
            messages += sum(map(len, _lines_of(line.conversation))) + 1
            size += line.size
            if messages >= _BATCH_MESSAGES or size >= _BATCH_BYTES:
                yield batch
                if not self.is_sound():
                    return
                batch, messages, size = [], 0, 0
        if batch:
            yield batch

    def refuse(self, number: int, problem: str, raw: bytes) -> None:
        """Note what is wrong with a line, and set it aside where broken lines are."""
        self._broken += 1
        self.problems = sorted([*self.problems, (number, problem)])[:_MOST_NAMED]
        if self.aside is not None:
            line = raw.rstrip(b"\r\n")
            try:
                text: Any = line.decode("utf-8-sig")
            except UnicodeDecodeError:
                text = {"hex": line.hex()}
            row = {"line": number, "text": text}
            self.aside.add([Flaw("lines", f"line {number}", problem, 0, row)])

    def check(self, line: Line) -> None:
        """Note what is wrong with a conversation, as far as it says that by itself."""
        try:
            _check(line.conversation)
        except InvalidInput as error:
            self.refuse(line.number, str(error), line.raw)

    def check_rest(self) -> Iterator[int]:
        """Note what is wrong with the lines that were not read yet, and give their sizes."""
        for line in self._read:
            if line is not None:
                self.check(line)
                yield line.size

    def error(self, imported: int) -> TranscriptError:
        """Give the error that names the broken lines."""
        return TranscriptError(self._source, tuple(self.problems), self._broken, imported)

    def _found(self) -> Iterator[Found | None]:
        """Tell records apart; None where one is broken."""
        number = 0
        try:
            for number, raw in enumerate(records_of(self._lines), start=1):
                try:
                    text = self._text(raw)
                    if text.strip():
                        record = text if raw == END_OF_ARRAY else load_strictly(text)
                        yield from self.formats.take(number, raw, record)
                except (Broken, *ODD) as broken:
                    self.refuse(number, _reason(broken), raw)
                    yield None
        except OtherFile as other:
            self._ended = True
            self.refuse(number + 1, str(other), b"")
            yield None
        else:
            yield from self.formats.end()

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8-sig")  # files that were put together have several marks
        except UnicodeDecodeError as error:
            raise Broken(f"not UTF-8 (byte {error.start})") from None

    def _conversations(self, found: Iterable[Found | None]) -> Iterator[Line | None]:
        """Give conversations; None where something is broken, which is noted."""
        for one in found:
            if one is None:
                yield None
                continue
            try:
                size = len(one.raw)
                for conversation in one.convert():
                    yield self._line(one, size, conversation)
                    size = 0
            except (Broken, *ODD) as broken:
                self.refuse(one.number, _reason(broken), one.raw)
                yield None

    def _line(self, found: Found, size: int, conversation: dict[str, Any]) -> Line | None:
        _require_conversation(conversation)
        conversation = with_user(conversation, self._user_id)
        named = conversation
        if isinstance(conversation, Conversation):
            named = {**conversation, "branches": conversation.branches}
        session_id = conversation_id(named)
        whole = b"" if conversation.get("id") is None else found.raw.strip()
        if whole and named is not conversation:
            whole = json.dumps(named).encode()
        # Hashes have a key of this process, so nobody can write lines that are alike to it. With
        # the number in one integer, a million conversations take 137 MB; ids and tuples 270 MB.
        line = found.number << 64 | hash(whole) % 2**64
        before = self._seen.setdefault(hash(session_id), line)
        if (before ^ line) % 2**64:
            problem = f"it has the id of line {before >> 64} but differs from it"
            self.refuse(found.number, problem, found.raw)
            return None
        raw = b"" if self.aside is None else found.raw
        return Line(found.number, size, session_id, conversation, raw)


def _reason(error: Exception) -> str:
    """Say what is wrong, in no words of the record's own."""
    if isinstance(error, Broken):
        return str(error)
    return f"not as its format writes it ({type(error).__name__})"


# --- What a conversation is --------------------------------------------------------------------


def _require_conversation(conversation: dict[str, Any]) -> None:
    messages = conversation.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise Broken("'messages' must be a list of objects")
    for key in ("id", "user"):
        if not isinstance(as_key(conversation.get(key)), str | None):
            raise Broken(f"{key!r} must be a string, a whole number or null")
    for key in ("title", "model"):
        if not isinstance(conversation.get(key), str | None):
            raise Broken(f"{key!r} must be a string or null")
    if not isinstance(conversation.get("metadata"), dict | None):
        raise Broken("'metadata' must be an object or null")


def _lines_of(conversation: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Give the messages of a conversation, then those of each of its branches."""
    branches = conversation.branches if isinstance(conversation, Conversation) else ()
    return [conversation["messages"], *(branch.messages for branch in branches)]


def _check(conversation: dict[str, Any]) -> None:
    """Require what storing it would, without a database.

    Raises:
        InvalidInput: Something in it cannot be stored.
    """
    validation.optional_key("id", as_key(conversation.get("id")))
    validation.optional_key("user", as_key(conversation.get("user")))
    validation.json_object("metadata", conversation.get("metadata"))
    validation.document("line", layout_of(conversation))
    for messages in _lines_of(conversation):
        for number, message in enumerate(new_messages(messages)):
            draft(message, f"messages[{number}].")


def new_messages(said: Sequence[dict[str, Any]]) -> list[FromChat]:
    """Give chat messages as the arguments that save them.

    Raises:
        InvalidInput: One has no role, and is no item of the Responses API.
    """
    messages = []
    for number, one in enumerate(said):
        if "role" not in one and not is_known_item(one):
            raise InvalidInput(
                f"messages[{number}] must have a role, or be an item of the Responses API: of a "
                "known type, a call with name and call_id, a result with its call's id. Convert "
                "what another program wrote to chat format first."
            )
        message = from_chat(one)
        if isinstance(one, Said):
            message.update(metadata=one.metadata, external_id=one.external_id)
        messages.append(message)
    return messages


# Conversations out of a store.


_PAGE = 500
_OF_ALL = (ConnectionLost, DatabaseBusy, DatabaseUnreachable, SchemaError, TransactionMisuse)
"""What fails for one session then fails for the others too."""
_OF_ONE = (AgentStoreError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
"""What rows may raise that no store wrote."""


def export_lines(
    store: Store, *, session_id: str | None = None, user_id: str | None = None
) -> Iterator[bytes]:
    """Export conversations, in the order in which they were created, one line each.

    Each line is of one moment; conversations that are written to meanwhile may be exported with or
    without what is added. One conversation at a time is held in memory. The same conversations
    give the same bytes, whatever the engine. Whatever a session holds, it stops no other one from
    being exported, and is exported as no other one's.

    Args:
        store: Where from.
        session_id: Only this session.
        user_id: Only this user's sessions.

    Raises:
        NotFound: There is no such session.
        ExportIncomplete: Some sessions cannot be read; after all others were exported.
    """
    broken: list[str] = []
    total = 0
    cause: Exception | None = None
    for found in _ids(store, user_id) if session_id is None else [session_id]:
        try:
            line = _line(store.sessions._read_whole(found))
        except NotFound:
            if session_id is not None:
                raise
            continue  # deleted meanwhile
        except _OF_ALL:
            raise
        except _OF_ONE as error:
            cause = cause or error
            total += 1
            broken = [*broken, found][:_MOST_NAMED]
            continue
        yield line
    if total:
        raise ExportIncomplete(tuple(broken), total) from cause


def _ids(store: Store, user_id: str | None) -> Iterator[str]:
    last = 0
    while rows := store.sessions._ids_after(last, _PAGE, user_id):
        for _, found in rows:
            yield found
        last = rows[-1][0]


def _line(whole: WholeSession) -> bytes:
    conversation = to_conversation(whole.session, whole.messages, whole.layout)
    text = json.dumps(conversation, ensure_ascii=False)
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # lone surrogates, which only escapes can say
        return json.dumps(conversation).encode("ascii") + b"\n"


# How a line is laid out: which keys it has, in which order, and those without a column.
#
# What is stored of that may have been written by anybody who can write to the database, so it is
# believed only in what it can say: an order, and values of keys that have no column.


KEYS = ("id", "title", "user", "model", "metadata", "messages")
"""The keys of a conversation that have a place of their own, in their usual order."""

_IDS = ("id", "user")


def conversation_id(conversation: dict[str, Any]) -> str:
    """Give the id of the session that a conversation is stored as.

    Returns:
        Its ``id``, a whole number in its decimal digits. Without one, ``sha256:`` and the SHA-256,
        in hexadecimal, of the conversation as JSON in ASCII, without ``id``, its keys sorted and no
        spaces between: the user is a part of it, and two lines that say the same have the same.
    """
    given: str | None = as_key(conversation.get("id"))
    if given is not None:
        return given
    named = {key: value for key, value in conversation.items() if key != "id"}
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def as_key(value: Any) -> Any:
    """Give an id as it is stored: of a whole number its decimal digits."""
    return str(value) if type(value) is int else value


def with_user(conversation: dict[str, Any], user_id: str | None) -> dict[str, Any]:
    """Give a conversation that names its user, if it named none."""
    if user_id is None or conversation.get("user") is not None:
        return conversation
    if isinstance(conversation, Conversation):
        conversation["user"] = user_id
        return conversation
    return {**conversation, "user": user_id}


def layout_of(conversation: dict[str, Any]) -> dict[str, Any] | None:
    """Give what has to be kept of a line beside its columns; None where it is a usual one."""
    usual = [key for key in KEYS if key != "metadata" or conversation.get(key)]
    given = {key: conversation[key] for key in _IDS if type(conversation.get(key)) is int}
    if conversation.get("metadata", {}) is None:
        given["metadata"] = None
    if list(conversation) == usual and not given:
        return None
    extra = {key: value for key, value in conversation.items() if key not in KEYS}
    layout = {"keys": list(conversation), "extra": extra}
    return {**layout, "given": given} if given else layout


def to_conversation(
    session: SessionRecord, messages: Iterable[MessageRecord], layout: Any = None
) -> dict[str, Any]:
    """Give a session as a conversation in chat format; it is written as JSON as it is.

    Args:
        session: The session.
        messages: What it is to have as messages.
        layout: What ``layout_of`` gave of the line that it was made of, if it was.
    """
    values: dict[str, Any] = {
        "id": session.id,
        "title": session.title,
        "user": session.user_id,
        "model": session.model,
        "metadata": session.metadata,
        "messages": [message.to_chat() for message in messages],
    }
    found = _valid(layout)
    if found is None:
        return {key: value for key, value in values.items() if key != "metadata" or value}
    keys, extra = found
    values |= _given(layout, values)
    laid_out = {key: extra[key] if key in extra else values[key] for key in keys}
    # What was set since stands before what the line had.
    since = {
        key: values[key]
        for key in KEYS
        if key not in laid_out and key != "id" and (values[key] or key == "messages")
    }
    line = {**since, **laid_out}
    if "id" in line or conversation_id(line) == session.id:
        return line
    return {"id": session.id, **line}


def _valid(layout: Any) -> tuple[list[str], dict[str, Any]] | None:
    """Give the usable keys and values of a stored layout; None if it is not a layout."""
    if not isinstance(layout, dict):
        return None
    keys, extra = layout.get("keys"), layout.get("extra")
    if not isinstance(keys, list) or not isinstance(extra, dict):
        return None
    others = {key: value for key, value in extra.items() if key not in KEYS}
    known = [key for key in keys if isinstance(key, str) and (key in KEYS or key in others)]
    return known, others


def _given(layout: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Give what a line had in other words than the columns: ids as numbers, null as metadata.

    Only what says the same as the columns do.
    """
    given = layout.get("given")
    if not isinstance(given, dict):
        return {}
    found = {
        key: given[key]
        for key in _IDS
        if type(given.get(key)) is int and as_key(given[key]) == values[key]
    }
    if given.get("metadata", {}) is None and not values["metadata"]:
        found["metadata"] = None
    return found
