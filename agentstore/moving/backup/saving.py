"""Saving a database in a file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sqlalchemy import URL

from agentstore import migrations
from agentstore.engines.base.saving import Holdings
from agentstore.engines.registry import database_files
from agentstore.errors import (
    BackupDiffers,
    BackupIncomplete,
    BackupNeedsUpgrade,
    CopyDiffers,
    CopyInterrupted,
    SchemaOutdated,
    UnsoundRows,
)
from agentstore.models.tables import PLAIN, Names
from agentstore.moving import copying as transfer
from agentstore.moving.backup.comparing import OnProgress, Timing, tables_of
from agentstore.moving.backup.file_copies import copy_file
from agentstore.moving.backup.records import BackupReport
from agentstore.moving.copying.ends import End
from agentstore.moving.new_files import NewFile
from agentstore.settings import default_url, utc_now

_UNSOUND = (
    "A backup cannot hold such rows; none was made. Repair them, or save the database with "
    "pg_dump, which keeps them as they are."
)


def backup(
    url: str | URL | None,
    target: str | Path,
    *,
    names: Names = PLAIN,
    progress: OnProgress | None = None,
) -> BackupReport:
    """Save a database in a new SQLite file, while others use it; ``Store`` can open it.

    The backup has the state of the moment at which it began; see the package.

    Args:
        url: The database; None means ``AGENTSTORE_URL``, else ``sqlite:///agentstore.db``.
        target: The path of the file, which only this user will be able to read. Its folder has to
            be there.
        names: Schema and prefix of the tables. A SQLite file is saved whole, whatever else is in
            it; of a PostgreSQL database only these tables are saved.
        progress: Called now and then.

    Returns:
        What was saved.

    Raises:
        TargetExists: There is something under this name already, or left over from a database
            that was there. It is as it was.
        BackupUnderWay: Another process is making this file.
        BackupIncomplete: Row-level security hides rows from this role.
        SchemaError: There is no agentstore schema, or that of a server is behind head; the error
            says what to do.
        UnsoundRows: The file cannot hold some rows of a server.
        BackupDiffers: What was written is not what was to be saved. It is gone again.
        DatabaseError: The database or the disk failed; there is no file.
    """
    report = progress or (lambda _: None)
    timing = Timing()
    path = Path(target)
    with (
        closing(End(default_url() if url is None else url, names, read_only=True)) as end,
        NewFile(path, beside=database_files().beside(path)).in_the_making() as new,
    ):
        dangling = 0
        if end.dialect.file_based:
            database_files().path(end.url)  # which refuses one in memory
            end.dialect.require_existing(end.url)
            copied = copy_file(end, new.path, report, timing)
            holdings, taken_at, version = copied.holdings, copied.taken_at, copied.version
            dangling = copied.dangling
        else:
            taken_at = utc_now()
            version = _version(end)
            holdings = _copy_rows(end, new.path, report, timing)
        size = new.publish()
    return BackupReport(
        database=str(end),
        file=str(path),
        engine=end.dialect.checks.system,
        version=version,
        revision=holdings.revision,
        taken_at=taken_at,
        bytes=size,
        tables=tables_of(holdings),
        dangling=dangling,
        unsound=holdings.unsound,
        seconds=timing.seconds,
    )


def _version(end: End) -> str:
    """Give a server's version; refuse one behind head, and a role that does not see all rows."""
    with end.reading() as connection:
        try:
            migrations.check(connection, end.names)
        except SchemaOutdated as error:
            raise BackupNeedsUpgrade(error.current, error.head) from None
        hidden = end.dialect.checks.hidden(connection, end.tables)
        if hidden is not None:
            raise BackupIncomplete(hidden.reason)
        return end.dialect.checks.status(connection, end.tables).version


def _copy_rows(end: End, file: Path, progress: OnProgress, timing: Timing) -> Holdings:
    """Copy all rows of a server into a database file."""
    made = database_files()
    with timing.of("copying"):
        try:
            copied = transfer.copy(
                end.url,
                made.url(file),
                source_names=end.names,
                target_names=Names(None, end.names.prefix),
                progress=progress,
            )
        except CopyInterrupted as error:
            # Nothing is left that could be resumed.
            raise error.__cause__ or error from None
        except CopyDiffers as error:
            raise BackupDiffers(error.tables, "The backup") from error
        except UnsoundRows as error:
            raise UnsoundRows(error.rows, error.total, _UNSOUND) from None
    with timing.of("verifying"):
        made.finish(file)
        made.check(file)
    return Holdings(
        migrations.HEAD,
        {table.name: table.target_rows for table in copied.tables},
        {table.name: table.target_digest for table in copied.tables},
    )
