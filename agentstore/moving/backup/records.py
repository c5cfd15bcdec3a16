"""What a backup, and a restore, say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table in a backup.

    Attributes:
        name: Its plain name.
        rows: How many rows it has.
        digest: What they are; ``agentstore.engines.base.moving`` has the formula. None where the
            backup is of an older revision.
    """

    name: str
    rows: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What was saved.

    Attributes:
        database: The URL, without its password.
        file: The path of the backup.
        engine: The database's engine.
        version: The version of the server, or of the library.
        revision: The schema's.
        taken_at: When, by this machine's clock, the state was current that the backup has.
        bytes: The size of the file.
        tables: All tables of these names, those that others refer to first.
        dangling: How many rows of a database file refer to nothing; agentstore leaves none.
        unsound: How many rows, these included, no other database would take; they are saved, but
            have no part in the digests.
        seconds: How long each step took.
    """

    database: str
    file: str
    engine: str
    version: str
    revision: str
    taken_at: datetime
    bytes: int
    tables: tuple[SavedTable, ...]
    dangling: int
    unsound: int
    seconds: Mapping[str, float]

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return sum(table.rows for table in self.tables)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was restored.

    Attributes:
        file: The path of the backup.
        database: The URL of the new database, without its password.
        backup_revision: The revision that the backup is at.
        revision: The revision that the database is at now.
        tables: What the backup holds, and the database, before it was upgraded, does too.
        indexed: Whether the search index came with the backup; if not, the first searches make it.
        seconds: How long each step took.
    """

    file: str
    database: str
    backup_revision: str
    revision: str
    tables: tuple[SavedTable, ...]
    indexed: bool
    seconds: Mapping[str, float]

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return sum(table.rows for table in self.tables)
