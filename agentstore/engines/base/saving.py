"""What is needed to save a database in a file: a Protocol.

A backup is a database that can be opened as it is. The engine whose databases are files makes and
checks it, whatever engine the rows come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import func, select

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import URL, Connection, Table, TableClause


OnSteps = Callable[[int, int | None], None]
"""Gets how many pages are done, and how many there are, where that is known."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a database, or a file, holds.

    Attributes:
        revision: The schema's.
        rows: How many rows each table has, by its plain name, parents first.
        digests: What is in each table; empty where it is not at head.
        unsound: How many rows no other database would take; they are in no digest.
    """

    revision: str
    rows: Mapping[str, int]
    digests: Mapping[str, str] = field(default_factory=dict)
    unsound: int = 0

    def differing(self, other: Holdings) -> tuple[str, ...]:
        """Name the tables that are not the same in both."""
        found = [name for name, rows in self.rows.items() if other.rows.get(name) != rows]
        found += [
            name
            for name, digest in self.digests.items()
            if name in other.digests and other.digests[name] != digest and name not in found
        ]
        return tuple(found)


class Files(Protocol):
    """Databases that are files."""

    def url(self, file: Path) -> URL:
        """Name a file."""

    def path(self, url: URL) -> Path:
        """Give the file of a URL.

        Raises:
            InvalidInput: The database lives in memory.
        """

    def beside(self, file: Path) -> tuple[Path, ...]:
        """Give the files that would be taken for a part of the database if they were there."""

    def copy(self, connection: Connection, file: Path, progress: OnSteps) -> None:
        """Copy the state that a connection sees into a file that is empty.

        Args:
            connection: In a transaction that has read already. Others may write meanwhile.
            file: Where to; whatever is in it after an error is of no use.
            progress: Gets the pages.
        """

    def finish(self, file: Path) -> None:
        """Make a database one file, with nothing beside it; nobody else has it open."""

    def check(self, file: Path) -> int:
        """Read a file whole, and see whether it is sound.

        Returns:
            How many rows refer to nothing.

        Raises:
            DatabaseCorrupt: It is damaged.
        """

    def counts(self, connection: Connection) -> dict[str, int]:
        """Count the rows of every table in the file, of all users."""


def count_rows(
    connection: Connection, tables: Iterable[Table | TableClause], there: set[str]
) -> dict[str, int]:
    """Count the rows of those tables that are there, by their names."""
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in tables
        if table.name in there
    }
