"""What the engines do to be read whole and to be loaded whole.

Rows travel in one form, whatever engine they come from: text as it is stored, JSON as its text,
ids that agentstore made as text, instants as ISO-8601 text in UTC, flags as 0 and 1, whole numbers,
floats, bytes, and None.

The digest of a table does not depend on the order of its rows. Each row is written as one line of
bytes, column after column: text, ids and JSON as ``4:text``, with the length in bytes, and ``:``
for NULL; all else as its text and a comma, nothing and a comma for NULL; of bytes their SHA-256 in
hexadecimal, of a float its eight bytes, the largest first, in hexadecimal. The SHA-256 of the line
begins with two whole numbers of eight bytes with a sign, the largest byte first, and these are
summed over all rows. So a row that is missing, doubled or different changes the sums.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from shlex import quote
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Boolean, Float, LargeBinary, Text, column, table
from sqlalchemy.types import TypeEngine

from agentstore.schema import indexed_texts
from agentstore.schema.conversations import SessionId
from agentstore.values.types import EnumText, Json, Nanos, OwnId, SafeText, UtcDateTime

if TYPE_CHECKING:
    from sqlalchemy import URL, Column, ColumnElement, Connection, Table

    from agentstore.errors import InvalidRow
    from agentstore.records.upkeep import Finding, ReplicationRecord
    from agentstore.schema import Names, Tables


MOST_FLAWS = 100_000
"""Invalid rows, before it is given up: they are kept in memory."""

_MODULUS = 2**64


class Kind(Enum):
    """What a column holds."""

    TEXT = "text"
    ID = "an id"
    JSON = "JSON"
    INSTANT = "an instant"
    WHOLE = "a whole number"
    REAL = "a number"
    FLAG = "a flag"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table as it travels.

    Attributes:
        name: Its plain name, which is the same on both sides.
        table: The table itself, under the names of this side.
        columns: Its columns in their order, with their kinds.
        key: The columns of its primary key.
        only: A SELECT of the keys of the rows that travel; None means all rows.
        added: What is added to whole numbers when they are read, by their columns: so rows travel
            with the numbers that they get where they go.
    """

    name: str
    table: Table
    columns: tuple[tuple[str, Kind], ...]
    key: tuple[str, ...]
    only: str | None = None
    added: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def indexed(self) -> tuple[tuple[str, ...], ...]:
        """The texts that stand side by side in an entry of an index, by their columns' names."""
        return indexed_texts(self.table)

    def column(self, name: str) -> Column[Any]:
        """Give a column by the name that it has in the database."""
        return next(column for column in self.table.columns if column.name == name)

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Where the columns of the key are among the columns."""
        names = [name for name, _ in self.columns]
        return tuple(names.index(name) for name in self.key)

    @property
    def shown_key(self) -> tuple[str, ...]:
        """The columns by which a row is named to people: the key, and ``id`` where there is one."""
        return self.key if "id" in self.key or "id" not in self.table.c else (*self.key, "id")


_KINDS: tuple[tuple[type[Any], Kind], ...] = (
    (OwnId, Kind.ID),
    (Json, Kind.JSON),
    (UtcDateTime, Kind.INSTANT),
    (Boolean, Kind.FLAG),
    (Float, Kind.REAL),
    (LargeBinary, Kind.BYTES),
    (BigInteger, Kind.WHOLE),
    (Nanos, Kind.WHOLE),
    (SessionId, Kind.WHOLE),
    (SafeText, Kind.TEXT),
)


def shapes(tables: Tables) -> tuple[TableShape, ...]:
    """Give the tables as they travel, those that others refer to first."""
    prefix = len(tables.names.prefix)
    return tuple(
        TableShape(
            name=table.name[prefix:],
            table=table,
            columns=tuple((column.name, _kind(column.type)) for column in table.columns),
            key=tuple(column.name for column in table.primary_key),
        )
        for table in tables.metadata.sorted_tables
    )


def _kind(column: TypeEngine[Any]) -> Kind:
    return next(kind for known, kind in _KINDS if isinstance(column, known))


def words_of(shape: TableShape, name: str) -> str | None:
    """Write the words of which a column holds one, for ``IN``; None if it may hold any."""
    kind = shape.column(name).type
    return f"({', '.join(map(repr, sorted(kind.words)))})" if isinstance(kind, EnumText) else None


@dataclass(frozen=True, slots=True)
class TableDigest:
    """What a table holds, whatever the order of its rows.

    Attributes:
        rows: How many.
        sums: The sums of their hashes' two halves.
    """

    rows: int
    sums: tuple[int, int]

    def after(self, gone: TableDigest, come: TableDigest) -> TableDigest:
        """Give the digest of the table once some rows are gone from it, and others are there."""
        first, second = (
            old - less + more
            for old, less, more in zip(self.sums, gone.sums, come.sums, strict=True)
        )
        return TableDigest(self.rows - gone.rows + come.rows, (first, second))

    def __str__(self) -> str:
        """Write the sums as 32 hexadecimal digits."""
        return "".join(f"{each % _MODULUS:016x}" for each in self.sums)


@dataclass(frozen=True, slots=True)
class Flaw:
    """A row that no other database would take.

    Attributes:
        table: Its table's plain name.
        key: Its primary key, shown.
        reason: What is wrong with it.
        number: What the engine calls the row.
        values: The row, shown, by columns.
    """

    table: str
    key: str
    reason: str
    number: int
    values: Mapping[str, Any]


LeftOut = Mapping[str, Collection[int]]
"""The numbers of rows that are left out, by their tables' plain names."""

Key = tuple[Any, ...]
Row = tuple[Any, ...]
Among = Sequence[Key] | None
"""The keys of the rows that are looked at, by the primary key's index; None for all rows."""


@dataclass(frozen=True, slots=True)
class Stripped:
    """The statements that bring back what was dropped, by names, in their order.

    Attributes:
        indexes: Keys and indexes.
        last: What is brought back when no row changes any more: references, triggers, policies.
    """

    indexes: dict[str, str]
    last: dict[str, str]


class Moving(ABC):
    """How one engine is read and loaded, in a transaction unless a method says otherwise."""

    longest_entry: int | None
    """The most bytes of text in one entry of an index; None where there is no such limit."""

    @abstractmethod
    def dangling(
        self, connection: Connection, shape: TableShape, left_out: LeftOut, among: Among = None
    ) -> list[Flaw]:
        """Find the rows that refer to one that is not there, or is left out."""

    @abstractmethod
    def examine(
        self,
        connection: Connection,
        shape: TableShape,
        left_out: LeftOut,
        longest: int | None = None,
        among: Among = None,
    ) -> tuple[TableDigest, list[Flaw]]:
        """Read a table: digest what is valid and not left out, and say what is invalid.

        Args:
            connection: Where to read.
            shape: The table.
            left_out: The rows that are left out.
            longest: The ``longest_entry`` of where the rows are to go. An engine that has the
                limit itself need not look.
            among: The rows that are looked at.

        Raises:
            DatabaseCorrupt: So many rows are invalid that this is no data of ours.
        """

    @abstractmethod
    def read(
        self, connection: Connection, shape: TableShape, after: Key | None, left_out: LeftOut
    ) -> Generator[Row]:
        """Give a table's valid rows one by one, in the order of the key, from behind a key on."""

    @abstractmethod
    def load(self, connection: Connection, shape: TableShape, rows: Iterable[Row]) -> None:
        """Insert rows that are not there yet."""

    @abstractmethod
    def add(
        self, connection: Connection, shape: TableShape, rows: Iterable[Row], *, missing: bool
    ) -> None:
        """Insert rows beside others, into tables that are in use.

        Args:
            connection: Where to.
            shape: The table.
            rows: The rows.
            missing: Whether to leave out those whose key is there already.
        """

    @abstractmethod
    def reserve(
        self, connection: Connection, tables: Tables, counts: Mapping[str, int]
    ) -> dict[str, int]:
        """Take numbers for rows that are added in this transaction; nobody else gets these.

        Args:
            connection: Where to.
            tables: The tables.
            counts: How many in a row, by what they number: a table's plain name for ``pk``,
                ``activity`` for that of sessions, ``puts`` for that of checkpoint threads.

        Returns:
            For each the number before the first; nothing that is there has a larger one.
        """

    def hold(self, connection: Connection, tables: Tables) -> None:
        """Keep all others from writing until the transaction ends, where it does not by itself."""

    @abstractmethod
    def strip(self, connection: Connection, tables: Tables) -> Stripped:
        """Drop what makes loading slow: keys, indexes, triggers and the index for search.

        The last of these is not brought back by the statements: it is ``SearchIndex.reset``'s.
        """

    @abstractmethod
    def loosen(self, connection: Connection, tables: Tables) -> dict[str, str]:
        """Drop of that only what holds between rows, or is done when they change.

        Returns:
            ``Stripped.last``.
        """

    @abstractmethod
    def counters(self, connection: Connection, tables: Tables) -> dict[str, int]:
        """Read the counters that number rows: the last number given, by tables' plain names."""

    @abstractmethod
    def set_counters(
        self, connection: Connection, tables: Tables, counters: Mapping[str, int]
    ) -> None:
        """Let rows be numbered on from there, or from the largest number that there is."""

    @abstractmethod
    def prepare_to_load(self, connection: Connection) -> None:
        """Prepare a connection that only loads, and is in no transaction; closing it undoes it."""

    def refresh(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Refresh the planner's statistics; in no transaction."""

    def unproven(self, statement: str) -> str:
        """Give one of ``Stripped.last`` so that it reads no rows; ``prove`` does that later."""
        return statement

    def prove(self, connection: Connection, tables: Tables) -> None:
        """Let the engine see that what it has not read itself is so; in no transaction.

        Others may write meanwhile.
        """

    @abstractmethod
    def name_row(self, connection: Connection, tables: Tables, error: InvalidRow) -> InvalidRow:
        """Name the row that could not be read, as far as it is found soon; nothing is changed."""


# Digests of rows that were read as text; ``agentstore.engines.base.moving`` has the formula.


_HALVES: Callable[[bytes], tuple[int, int]] = struct.Struct(">qq16x").unpack
_REAL = struct.Struct(">d").pack
_BATCH_ROWS, _BATCH_LENGTH = 500, 4_000_000
"""A batch that is digested together ends at so many rows, or characters."""


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Give rows together; the last value of each is its length, or so."""
    batch: list[Row] = []
    room = _BATCH_LENGTH
    for row in rows:
        batch.append(row)
        room -= row[-1]
        if room < 0 or len(batch) == _BATCH_ROWS:
            yield batch
            batch, room = [], _BATCH_LENGTH
    if batch:
        yield batch


class Summing:
    """Sums up the hashes of rows.

    Text, ids, JSON and instants are bytes, flags and whole numbers are whole numbers.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        """Take the kinds of the columns."""
        self._writers = [_WRITERS[kind] for kind in kinds]
        self._rows = 0
        self._first = 0
        self._second = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows, each with as many values as there are columns."""
        self._rows += len(rows)
        for line in self._lines(rows):
            first, second = _HALVES(hashlib.sha256(line).digest())
            self._first += first
            self._second += second

    def digest(self) -> TableDigest:
        """Give what they come to."""
        return TableDigest(self._rows, (self._first, self._second))

    def _lines(self, rows: Sequence[Row]) -> Iterator[bytes]:
        if not rows:
            return iter(())
        columns = zip(*rows, strict=True)
        written = [write(column) for write, column in zip(self._writers, columns, strict=True)]
        return map(b"".join, zip(*written, strict=True))


def _text(column: Sequence[Any]) -> list[bytes]:
    return [b":" if value is None else b"%d:%b" % (len(value), value) for value in column]


def _whole(column: Sequence[Any]) -> list[bytes]:
    return [b"," if value is None else b"%d," % value for value in column]


def _instant(column: Sequence[Any]) -> list[bytes]:
    return [b"," if value is None else value + b"," for value in column]


def _real(column: Sequence[Any]) -> list[bytes]:
    # Adding zero takes the sign off a zero, which SQLite does not always keep.
    return [
        b"," if value is None else b"%b," % _REAL(value + 0.0).hex().encode() for value in column
    ]


def _bytes(column: Sequence[Any]) -> list[bytes]:
    return [
        b"," if value is None else b"%b," % hashlib.sha256(value).hexdigest().encode()
        for value in column
    ]


_WRITERS: dict[Kind, Callable[[Sequence[Any]], list[bytes]]] = {
    Kind.TEXT: _text,
    Kind.ID: _text,
    Kind.JSON: _text,
    Kind.INSTANT: _instant,
    Kind.WHOLE: _whole,
    Kind.REAL: _real,
    Kind.FLAG: _whole,
    Kind.BYTES: _bytes,
}


# What the engines know about themselves: how they are, and how large.
#
# Kept beside ``EngineDialect`` and loaded only when somebody asks: a store that works pays nothing
# for it.


def version_of(names: Names) -> ColumnElement[str | None]:
    """Give the column in which Alembic keeps the schema's revision."""
    name = f"{names.prefix}alembic_version"
    return table(name, column("version_num", Text), schema=names.schema).c.version_num


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """What a database says of itself when it is asked briefly.

    Attributes:
        version: Of the server, or of the library.
        revision: The schema's; None where its table is empty.
        writable: Whether it takes writes, as far as can be told without changing anything: its
            disk has room too.
    """

    version: str
    revision: str | None
    writable: bool


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a database takes on disk.

    Attributes:
        bytes: The database, or agentstore's part of it.
        free: How much of it is free for new rows; None where the engine does not say.
        log: The write-ahead log, where it belongs to this database alone.
    """

    bytes: int
    free: int | None
    log: int | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table's part of it.

    Attributes:
        rows: An estimate.
        bytes: With its indexes.
        measured: Whether ``bytes`` is more than an estimate.
    """

    rows: int
    bytes: int
    measured: bool


@dataclass(frozen=True, slots=True)
class Hidden:
    """Rows that the engine hides from the connected role, without an error.

    Attributes:
        tables: Those whose rows are not all seen.
        reason: Why, as the second half of a sentence.
        fix: What to do about it.
    """

    tables: tuple[str, ...]
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What is examined.

    Attributes:
        url: The database.
        tables: Its tables.
        deep: Whether whole tables, and every page, may be read.
        shown: The URL without its password, as a command takes it.
        day: Today, in UTC.
        synchronous_commit: What commits of a store with these settings wait for; None if the
            server says.
    """

    url: URL
    tables: Tables
    deep: bool
    shown: str
    day: date
    _connection: Connection | None
    synchronous_commit: str | None = None

    @property
    def connection(self) -> Connection:
        """A connection that only reads. Only examinations that need one may ask."""
        assert self._connection is not None, "this examination said that it needs no connection"
        return self._connection

    def command(self, words: str) -> str:
        """Give a command on this database, as a shell takes it."""
        return command_line(words, self.shown, self.tables.names)


FOREIGN_CODE = (
    "agentstore did not create the {} {}. It may change or drop what is written, and the writer "
    "gets no error."
)
"""What is said of a trigger or a rule that no revision made."""


def command_line(words: str, shown_url: str, names: Names) -> str:
    """Give a command of agentstore's on a database, as a shell takes it."""
    place = f" --schema {names.schema}" if names.schema else ""
    prefix = f" --table-prefix {names.prefix}" if names.prefix else ""
    return f"agentstore {words} --url {quote(shown_url)}{place}{prefix}"


@dataclass(frozen=True, slots=True)
class Examination:
    """One thing to look at.

    Attributes:
        name: What findings name as their check.
        look: Looks, and gives what it finds. It may raise what the database does.
        unconnected: Whether it needs no connection, and so is done where there is none.
        at_head: Whether it looks at what only the newest revision is sure to have made.
    """

    name: str
    look: Callable[[CheckContext], Iterable[Finding]]
    unconnected: bool = False
    at_head: bool = False


class Checks(ABC):
    """How one engine reports its state and its size."""

    system: str
    """The engine's name in lower case, as tools that watch databases call it."""

    examinations: tuple[Examination, ...]
    """What ``agentstore doctor`` looks at, apart from what it always does."""

    @abstractmethod
    def status(self, connection: Connection, tables: Tables) -> DatabaseStatus:
        """Say how it is, in two statements or without leaving the process."""

    def replication(
        self, connection: Connection, asked: str | None = None
    ) -> ReplicationRecord | None:
        """Say who follows whom, in one statement; None where the engine has no replication.

        Args:
            connection: Where to look. What it looks at ends with an error where a server does not
                know these questions, so it comes last in a transaction.
            asked: What commits wait for, where the store says so.
        """
        return None

    def hidden(self, connection: Connection, tables: Tables) -> Hidden | None:
        """Say which rows are hidden from the connected role; None where all are seen."""
        return None

    @abstractmethod
    def footprint(self, connection: Connection, tables: Tables) -> Footprint:
        """Say how much there is, without reading rows."""

    @abstractmethod
    def table_sizes(
        self, connection: Connection, tables: Tables, *, exact: bool
    ) -> Mapping[str, TableSize]:
        """Give every table by its plain name, and ``search_index`` for all that belongs to it.

        Args:
            connection: Where to look.
            tables: The tables.
            exact: Measure, even where that reads every page of the database.
        """
