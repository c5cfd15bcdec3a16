"""Copying a database file into a new one, page by page, and checking the copy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agentstore.engines.base.saving import Holdings
from agentstore.engines.registry import database_files
from agentstore.errors import BackupDiffers
from agentstore.moving.backup.comparing import OnProgress, Timing, look_into, require_equal, steps
from agentstore.moving.copying.ends import End
from agentstore.settings import utc_now


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied.

    Attributes:
        holdings: What both files hold.
        taken_at: When that state was current.
        version: The version of the library.
        dangling: How many rows refer to nothing.
    """

    holdings: Holdings
    taken_at: datetime
    version: str
    dangling: int


def copy_file(source: End, file: Path, progress: OnProgress, timing: Timing) -> Copied:
    """Copy a database file, which others may write to meanwhile, into an empty one.

    Pages are copied as they are, so tables under other names come too. Writers are not held up;
    what they write stays in the WAL until the source has been read.

    Raises:
        DatabaseCorrupt: The copy is damaged.
        BackupDiffers: The copy does not hold the same.
        SchemaError: It has no agentstore schema, or one that this version does not know.
    """
    made = database_files()
    with source.reading() as connection:
        taken_at = utc_now()
        counts = made.counts(connection)  # the first look: from here on there is one state
        with timing.of("copying"):
            made.copy(connection, file, steps(progress, "copying", "pages"))
        with timing.of("reading"):
            holdings = look_into(source, connection, progress)
        version = source.dialect.checks.status(connection, source.tables).version
    with timing.of("verifying"):
        made.finish(file)
        dangling = made.check(file)
        copy = End(made.url(file), source.names, read_only=True)
        try:
            with copy.reading() as connection:
                found = made.counts(connection)
                different = tuple(name for name in counts if found.get(name) != counts[name])
                if different:
                    raise BackupDiffers(different, "The copy")
                require_equal(holdings, look_into(copy, connection, lambda _: None), "The copy")
        finally:
            copy.close()
    return Copied(holdings, taken_at, version, dangling)
