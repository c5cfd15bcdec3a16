"""What the engines do to be saved in a file, as Protocols.

There are two kinds of such files. A database file is a database that can be opened as it is; the
engine whose databases are files makes and checks them, whatever engine the rows come from. An
archive is what the programs write that come with a server; only they can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import func, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import URL, Connection, Table, TableClause

    from agentstore.engines.base.moving import Shape
    from agentstore.models.tables import Names

OnSteps = Callable[[int, int | None], None]
"""Gets how many pages or bytes are done, and how many there are, where that is known."""


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
        """Count the rows of every table in the file, whoever's it is."""


class Archives(Protocol):
    """Archives, made and read by programs that come with a server."""

    def obstacle(self, connection: Connection, url: URL) -> str | None:
        """Say why the program cannot be used for this server; None if it can."""

    def require_all_visible(self, connection: Connection, names: Names) -> None:
        """Refuse to save as somebody from whom row-level security hides rows.

        Raises:
            BackupIncomplete: It hides some, or would.
        """

    def save(
        self, connection: Connection, url: URL, names: Names, file: Path, progress: OnSteps
    ) -> None:
        """Write agentstore's tables, as a connection sees them, into a file.

        Args:
            connection: In a transaction that sees one state.
            url: The same database.
            names: Its tables' names.
            file: Where to; it is there, and empty.
            progress: Gets the bytes that were written.

        Raises:
            ArchiverMissing: The program cannot be used.
            DatabaseError: It failed; whatever is in the file is of no use.
        """

    def holdings(
        self, file: Path, connection: Connection, names: Names, shapes: Sequence[Shape], head: str
    ) -> Holdings:
        """Read an archive whole; digests are computed of what is at ``head``.

        Raises:
            NotABackup: It holds no tables of these names, or is damaged.
            ArchiverMissing: No program here can read it.
        """

    def place(self, connection: Connection, names: Names) -> AbstractContextManager[None]:
        """Keep others from restoring into the same database.

        Raises:
            BackupUnderWay: Somebody does so now.
        """

    def load(self, file: Path, url: URL, names: Names, *, server: Connection) -> None:
        """Replace agentstore's tables by those of an archive, all or none.

        The table of the revision is left as it is, and so are functions. The tables are there,
        made by the revision that the archive is at.

        Raises:
            ArchiverMissing: The program cannot be used.
            DatabaseError: It failed; the database is as it was.
        """


def count_rows(
    connection: Connection, tables: Iterable[Table | TableClause], there: set[str]
) -> dict[str, int]:
    """Count the rows of those tables that are there, by their names."""
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in tables
        if table.name in there
    }


_DATABASE, _ARCHIVE = b"SQLite format 3\x00", b"PGDMP\x01"


def is_database(beginning: bytes) -> bool:
    """Say whether a file that begins so is a database file."""
    return beginning.startswith(_DATABASE)


def is_archive(beginning: bytes) -> bool:
    """Say whether a file that begins so is an archive."""
    return beginning.startswith(_ARCHIVE)


BEGINNING = len(_DATABASE)
"""How many bytes of a file say what it is."""
