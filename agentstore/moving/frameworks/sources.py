"""The database of a framework, opened to be read and for nothing else.

All that is read is of one moment: one transaction lasts from the beginning to the end.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar

from sqlalchemy import (
    URL,
    ColumnClause,
    ColumnElement,
    Connection,
    CursorResult,
    Row,
    Select,
    TableClause,
    column,
    inspect,
    table,
)
from sqlalchemy.exc import DBAPIError

from agentstore.database import parse_url, show_url
from agentstore.engines import database_files, dialect_for
from agentstore.engines.base.moving import Flaw
from agentstore.engines.foreign import foreign, in_utc, is_computed
from agentstore.errors import (
    DatabaseUnreachable,
    IllegalTransition,
    ImportSuperseded,
    InvalidInput,
    NotASource,
    StaleSession,
)
from agentstore.records import MessageRecord, SessionRecord
from agentstore.store import Store
from agentstore.transactions import Repositories, Transaction
from agentstore.values import validation
from agentstore.values.types import utc_now

_AT_ONCE = 50
"""Rows of a query that are in memory."""


def table_of(name: str, *columns: str) -> TableClause:
    """Describe a table of a framework: the columns that are read, some of them a text."""
    return table(name, *map(column, " ".join(columns).split()))


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A database that is being read.

    Attributes:
        connection: In a transaction, which sees one moment.
        name: What to call it in words; without a password.
        framework: Whose it is to be, in words.
        fingerprint: What tells it from others; nobody can read it.
        allowed: The classes that its values may name, beside a framework's own.
        unread: Results of which not all rows were read.
    """

    connection: Connection
    name: str
    framework: str
    fingerprint: str
    allowed: tuple[tuple[str, str], ...] = ()
    unread: set[CursorResult[Any]] = field(default_factory=set, compare=False, repr=False)

    def rows(self, query: Select[Any]) -> Iterator[Row[Any]]:
        """Give the rows of a query, of which only some are in memory at a time.

        A server keeps them until all were read, or the generator is closed.
        """
        with self.connection.execute(query.execution_options(yield_per=_AT_ONCE)) as result:
            self.unread.add(result)
            try:
                yield from result
            finally:
                self.unread.discard(result)

    def set_by_database(self, time: ColumnClause[Any]) -> ColumnElement[Any]:
        """Give a column of times that the database itself set, in UTC."""
        return in_utc(self.connection, time)

    def columns(self, table: str) -> frozenset[str]:
        """Give the names of a table's columns; none if there is no such table.

        Raises:
            NotASource: It is a view, or virtual.
        """
        inspector = inspect(self.connection)
        if not inspector.has_table(table):
            return frozenset()
        if is_computed(self.connection, table):
            problem = (
                f"{table} is a view or a virtual table, which may never end: make a table of it"
            )
            raise NotASource(self.name, self.framework, problem)
        return frozenset(column["name"] for column in inspector.get_columns(table))

    def require(self, needed: TableClause, framework: str) -> None:
        """Require a table that has these columns.

        Raises:
            NotASource: The table is missing, or lacks a column.
        """
        wanted = set(needed.c.keys()) - {"rowid"}  # which every table has, and none lists
        if not wanted <= self.columns(needed.name):
            raise NotASource(self.name, framework, f"it has no table {needed.name} like that")


def require_another(source: str, target: str | URL | None) -> None:
    """Refuse to write into the file that is read.

    Raises:
        InvalidInput: The two are one file.
    """
    urls = [parse_url(source), parse_url(target)]
    dialects = [(dialect_for(url), url) for url in urls]
    files = all(each.file_based and each.many_connections(url) for each, url in dialects)
    if files and database_files().same(*urls):
        raise InvalidInput(
            "The file is to be read and not to be changed. Import it into another database."
        )


@contextmanager
def opened(source: str, framework: str) -> Iterator[OpenSource]:
    """Open the database of a framework.

    Args:
        source: The path of a file, or a URL.
        framework: Which one, for the words of an error.

    Raises:
        DatabaseUnreachable: There is no such file, or the server does not answer.
        NotASource: It cannot be read.
        SourceChanged: Somebody wrote to a file that nobody seemed to have open.
    """
    url = parse_url(source)
    asked = sorted((name, value) for name, value in url.query.items() if "password" not in name)
    place = [str(part) for part in (url.host, url.port, url.database, asked)]
    if dialect_for(url).file_based:
        place = [str(database_files().path(url).resolve())]
    digest = hashlib.sha256(json.dumps(place).encode()).hexdigest()
    try:
        with foreign(url) as engine, engine.connect() as connection:
            found = OpenSource(connection, show_url(url), framework, digest)
            try:
                yield found
            finally:
                for result in [*found.unread]:  # before the connection, which they read from
                    result.close()
    except DBAPIError as error:
        known = dialect_for(url).diagnose(error).error
        if isinstance(known, DatabaseUnreachable):
            raise known from None
        raise NotASource(show_url(url), framework, _problem(error.orig)) from None


def _problem(error: BaseException | None) -> str:
    """Say why it cannot be read, in no words that may quote a row."""
    code = getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None)
    kind = type(error).__name__
    return f"it cannot be read ({kind}{f', {code}' if code else ''})"


# What is imported as one: a conversation, a thread, a user; and how it is resumed.
#
# A piece is written in transactions of bounded size. Where it needs several, the session says in
# its metadata, in the same transactions, how far it has come: another run goes on there, and only
# the last one takes that away. So what has no such note is whole, or is not of an import's
# making.


T = TypeVar("T")

IMPORTING = "agentstore_import"
"""Where in a session's metadata it is noted how far its import has come."""

MOST_ROWS, MOST_BYTES = 500, 4 * 2**20
"""Rows and bytes in one transaction, but for a row that has more."""

ODD = (
    TypeError,
    AttributeError,
    LookupError,
    ValueError,
    ArithmeticError,
    RecursionError,
    IllegalTransition,
)
"""The errors that a row raises whose values have types that the framework does not write."""

State = Literal["new", "resumed", "there"]
"""Whether this run made a piece, resumed it, or found it there."""

Line = tuple[str, bytes]
"""What kind of thing something is, and all of its content, to be compared."""

Note = Callable[[Flaw], None]
"""Takes a row that is set aside."""

Mapped = Mapping[str, Any]


class PieceRefused(Exception):
    """A piece cannot be imported; says why, without quoting it."""


class BrokenRow(Exception):
    """A row of a source cannot be stored; says why, without quoting it."""


class SetClock:
    """A clock that an import sets, so that what it writes is as old as in the source."""

    def __init__(self) -> None:
        """Begin at the present."""
        self._at: datetime = utc_now()

    def __call__(self) -> datetime:
        """Give the time that was set."""
        return self._at

    def set(self, at: datetime | None) -> None:
        """Set the time; None leaves it as it is."""
        self._at = at or self._at


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is written in one transaction.

    Attributes:
        place: How far the piece has come with it, as JSON.
        rows: How many rows of the source it is made of.
        write: Writes it; may be called again if the transaction has to be repeated.
    """

    place: Any
    rows: int
    write: Callable[[Transaction], object]


class ImportPiece(ABC):
    """What is imported as one.

    Attributes:
        table: The table of the source that has a row of it.
        key: What tells it from others there.
        row: The values of that row, as far as they are known.
        called: What it is called in words.
        unordered: The kinds of lines whose order says nothing.
    """

    called: str = "session"
    unordered: frozenset[str] = frozenset()
    table: str
    key: str
    row: Mapping[Any, Any]

    @abstractmethod
    def write(self, store: Store, tell: Callable[[int], None]) -> State:
        """Write what is not there yet, and tell how many rows that was.

        Raises:
            PieceRefused: It cannot be written, or another one has its place.
        """

    @abstractmethod
    def undo(self, store: Store) -> None:
        """Delete what imports of this source made of it, and nothing else."""

    @abstractmethod
    def source_lines(self, note: Note) -> Iterator[Line]:
        """Read the source: what is sound of it, and note what is not."""

    @abstractmethod
    def target_lines(self, store: Store, state: State) -> Iterator[Line]:
        """Read what the source's lines were made into.

        Of a piece that was there already, what has been added since is left out. Called after the
        lines of the source were read.
        """


class SessionPiece(ImportPiece):
    """A piece that is a session.

    Attributes:
        session_id: The id of the session.
        state: What ``write`` found.
    """

    def __init__(
        self, session_id: str, row: Mapping[Any, Any], clock: SetClock, source: OpenSource
    ) -> None:
        """Take the id, the source's row, the clock to be set, and the source."""
        self.session_id = self.key = session_id
        self.row = row
        self.clock = clock
        self.state: State = "new"
        self._source = source
        self._count = 0  # of messages that are sound
        self._ended = False

    @abstractmethod
    def begin(self, tx: Transaction) -> SessionRecord:
        """Make the session."""

    @abstractmethod
    def chunks(self, after: Any) -> Iterator[Chunk]:
        """Give what is to be written, behind a place; None is the beginning."""

    def finish(self, tx: Transaction) -> Mapped:
        """Write what comes last; give what the metadata are to say besides."""
        return {}

    def write(self, store: Store, tell: Callable[[int], None]) -> State:
        """Write the session, chunk by chunk; see ``ImportPiece``."""
        there = store.sessions.find(self.session_id)
        place: Any = None
        if there is not None:
            note = there.metadata.get(IMPORTING)
            if not isinstance(note, dict):
                self.state = "there"
                return self.state
            if note.get("source") != self._source.fingerprint:
                raise PieceRefused("an import from another source has begun it, and not finished")
            place = note.get("place")
        self.state = "new" if there is None else "resumed"
        chunks = self.chunks(place)
        chunk = next(chunks, None)
        while True:
            following = None if chunk is None else next(chunks, None)
            there = store.run(partial(self._write, there, chunk, following is None))
            tell(0 if chunk is None else chunk.rows)
            if following is None:
                self._ended = True
                return self.state
            chunk = following

    def undo(self, store: Store) -> None:
        """Delete the session, if it is of this source and unfinished, or this run finished it."""
        there = store.sessions.find(self.session_id)
        note = None if there is None else there.metadata.get(IMPORTING)
        own = isinstance(note, dict) and note.get("source") == self._source.fingerprint
        if own or (there is not None and self._ended):
            store.sessions.delete(self.session_id)

    def imported_messages(
        self, store: Store, count: int, branch: str | None = None
    ) -> Iterator[MessageRecord]:
        """Read the messages of a branch, the newest first.

        Of a session that was there already, only the oldest ``count``: the others were added later.

        Raises:
            NotFound: There is no such branch.
        """
        size = store.messages.size(self.session_id, branch=branch)
        since = max(0, size - count) if self.state == "there" else 0
        messages = store.messages.iter(self.session_id, branch=branch, limit=200)
        return islice(messages, since, None)

    def _write(
        self, there: SessionRecord | None, chunk: Chunk | None, last: bool, tx: Transaction
    ) -> SessionRecord:
        """Write a chunk, if the session is still as this run left it."""
        version = None if there is None else there.version
        session = self.begin(tx) if there is None else there
        if not last and chunk is not None:
            note = {"source": self._source.fingerprint, "place": chunk.place}
            session = self._noted(tx, version, {IMPORTING: note})
        elif there is not None:
            session = self._noted(tx, version, {IMPORTING: None})
        if chunk is not None:
            chunk.write(tx)
        if last:
            kept = {k: v for k, v in session.metadata.items() if k != IMPORTING}
            metadata = {**kept, **self.finish(tx)}
            if metadata != session.metadata:
                session = tx.sessions.update(self.session_id, metadata=metadata)
        return session

    def _noted(self, tx: Transaction, version: int | None, note: Mapped) -> SessionRecord:
        """Note a place; the session is locked from here on."""
        try:
            return tx.sessions.patch(self.session_id, metadata=note, expected_version=version)
        except StaleSession:
            raise ImportSuperseded(self.session_id) from None


def line_of(kind: str, value: object, *, sort_keys: bool = True) -> Line:
    """Give a line of JSON; without ``sort_keys`` the order of an object's keys counts, too."""
    return kind, json.dumps(value, sort_keys=sort_keys).encode()


def in_chunks(
    rows: Iterable[tuple[Any, int, Any]], write: Callable[[Transaction, list[Any]], object]
) -> Iterator[Chunk]:
    """Put rows together to chunks.

    Args:
        rows: The place behind each, its bytes, and what is to be written of it, None if nothing.
        write: Writes what is to be written of some rows.
    """
    batch: list[Any] = []
    place: Any = None
    count = size = 0
    for place, bytes_, row in rows:
        count, size = count + 1, size + bytes_
        if row is not None:
            batch.append(row)
        if count >= MOST_ROWS or size >= MOST_BYTES:
            yield _chunk(place, count, batch, write)
            batch, count, size = [], 0, 0
    if count:
        yield _chunk(place, count, batch, write)


def _chunk(
    place: Any, count: int, batch: list[Any], write: Callable[[Transaction, list[Any]], object]
) -> Chunk:
    return Chunk(place, count, lambda tx: write(tx, batch))


def time_of(value: object) -> datetime | None:
    """Read a time as databases write it, in UTC unless they say otherwise; else None."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.strip())
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def reason_in(error: BrokenRow | InvalidInput) -> str:
    """Give the first sentence of a message; the others say what a caller should do."""
    return str(error).partition(". ")[0]


def unless_broken(
    make: Callable[[], T], table: str, key: object, row: Mapping[Any, Any], note: Note | None
) -> T | None:
    """Give what is made of a row; None if it cannot be stored, which is noted if wanted."""
    try:
        return make()
    except (BrokenRow, InvalidInput) as broken:
        if note is not None:
            note(flaw(table, key, reason_in(broken), row))
        return None


def json_of(stored: object, what: str) -> Any:
    """Read JSON, or what a driver read of it; NULL and an empty text are None.

    Raises:
        BrokenRow: It is not JSON.
    """
    try:
        if isinstance(stored, str):
            return json.loads(stored) if stored else None
    except (ValueError, RecursionError):
        raise BrokenRow(f"{what}: not JSON") from None
    if stored is None or isinstance(stored, dict | list):
        return stored
    raise BrokenRow(f"{what}: not JSON")


def object_of(stored: object, what: str) -> dict[str, Any]:
    """Read a JSON object that can be stored; see ``json_of``.

    Raises:
        BrokenRow: It is no JSON object, or cannot be stored.
    """
    value = json_of(stored, what)
    if not isinstance(value, dict):
        raise BrokenRow(f"{what}: no JSON object")
    try:
        validation.json_object(what, value)
    except InvalidInput as error:
        raise BrokenRow(reason_in(error)) from None
    return value


def make_user(tx: Repositories, user_id: str | None) -> None:
    """Make a user, unless there is one, or none is named."""
    if user_id is not None and tx.users.find(user_id) is None:
        tx.users.create(user_id, id=user_id)


def flaw(table: str, key: object, reason: str, row: Mapping[Any, Any]) -> Flaw:
    """Give a row that is set aside, with its values as JSON can say them."""
    shown = key if isinstance(key, str) else f"id={key}"
    return Flaw(table, shown, reason.rstrip("."), 0, {str(k): _shown(v) for k, v in row.items()})


def _shown(value: object) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else {"number": repr(value)}
    if isinstance(value, list | dict):
        return value
    return str(value)
