"""What the engines know about themselves, as a Protocol: how they are, and how large.

Kept beside ``EngineDialect`` and loaded only when somebody asks: a store that works pays nothing
for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agentstore.schema import Tables


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a database says of itself when it is asked briefly.

    Attributes:
        version: Of the server, or of the library.
        revision: The schema's; None where its table is empty.
        writable: Whether it takes writes, as far as can be told without one.
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


class Checks(Protocol):
    """One engine's ways to say how it is."""

    system: str
    """The engine's name in lower case, as tools that watch databases call it."""

    def pulse(self, connection: Connection, tables: Tables) -> Pulse:
        """Say how it is, in one statement or without leaving the process."""

    def footprint(self, connection: Connection, tables: Tables) -> Footprint:
        """Say how much there is, without reading rows."""

    def table_sizes(
        self, connection: Connection, tables: Tables, *, exact: bool
    ) -> Mapping[str, TableSize]:
        """Give every table by its plain name, and ``search_index`` for all that belongs to it.

        Args:
            connection: Where to look.
            tables: The tables.
            exact: Measure, even where that reads every page of the database.
        """
