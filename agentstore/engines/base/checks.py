"""What the engines know about themselves: how they are, and how large.

Kept beside ``EngineDialect`` and loaded only when somebody asks: a store that works pays nothing
for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnElement, Connection

    from agentstore.models.tables import Names, Tables
    from agentstore.records.findings import Finding


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
        mend: What to do about it.
    """

    tables: tuple[str, ...]
    reason: str
    mend: str


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What is examined.

    Attributes:
        url: The database.
        tables: Its tables.
        deep: Whether whole tables, and every page, may be read.
        shown: The URL without its password, as a command takes it.
        day: Today, in UTC.
    """

    url: URL
    tables: Tables
    deep: bool
    shown: str
    day: date
    _connection: Connection | None

    @property
    def connection(self) -> Connection:
        """A connection that only reads. Only examinations that need one may ask."""
        assert self._connection is not None, "this examination said that it needs no connection"
        return self._connection

    def command(self, words: str) -> str:
        """Give a command on this database, as a shell takes it."""
        return command_line(words, self.shown, self.tables.names)


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

    @abstractmethod
    def status(self, connection: Connection, tables: Tables) -> DatabaseStatus:
        """Say how it is, in two statements or without leaving the process."""

    @abstractmethod
    def octets(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """Give the bytes that a text takes, which is not NULL."""

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
