"""Saving a database in a file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sqlalchemy import URL

from agentstore import migrations
from agentstore.engines.base.saving import Archives, Holdings
from agentstore.engines.registry import database_files
from agentstore.errors import ArchiverMissing, CopyInterrupted, InvalidInput, UnsoundRows
from agentstore.models.tables import PLAIN, Names
from agentstore.moving import copying as transfer
from agentstore.moving.backup.comparing import (
    OnProgress,
    Timing,
    look_into,
    require_equal,
    steps,
    tables_of,
)
from agentstore.moving.backup.file_copies import copy_file
from agentstore.moving.backup.records import BackupReport, Format
from agentstore.moving.copying.ends import End
from agentstore.moving.placing import NewFile
from agentstore.settings import default_url, utc_now

_FORMATS = ("auto", "native", "portable")
_UNSOUND = (
    "A portable backup cannot hold such rows; none was made. Repair them, or use --format native, "
    "which keeps them as they are."
)


def backup(
    url: str | URL | None,
    target: str | Path,
    *,
    names: Names = PLAIN,
    format: Format = "auto",
    progress: OnProgress | None = None,
) -> BackupReport:
    """Save a database in a new file, while others use it.

    The backup has the state of the moment at which it began; see the package.

    Args:
        url: The database; None means ``AGENTSTORE_URL``, else ``sqlite:///agentstore.db``.
        target: The path of the file, which only this user will be able to read. Its folder has to
            be there.
        names: Schema and prefix of the tables. A SQLite file is saved whole, whatever else is in
            it; of a PostgreSQL database only these tables are saved.
        format: ``portable`` is a SQLite file, which ``Store`` can open. ``native`` is the same
            for SQLite, and an archive of ``pg_dump`` for PostgreSQL. ``auto`` is native where
            there is a ``pg_dump`` for the server.
        progress: Called now and then.

    Returns:
        What was saved.

    Raises:
        TargetExists: There is something under this name already, or left over from a database
            that was there. It is as it was.
        BackupUnderWay: Another process is making this file.
        ArchiverMissing: ``native`` cannot be had; or the database is behind head, and ``auto``
            cannot.
        BackupIncomplete: Row-level security hides rows from this role.
        SchemaError: There is no agentstore schema, or it cannot be saved; the error says what to
            do.
        UnsoundRows: The portable format cannot hold some rows of a server. The native one can.
        BackupDiffers: What was written is not what was to be saved. It is gone again.
        DatabaseError: The database, the disk or ``pg_dump`` failed; there is no file.
    """
    if format not in _FORMATS:
        raise InvalidInput(f"format must be one of {', '.join(_FORMATS)}.")
    report = progress or (lambda _: None)
    timing = Timing()
    path = Path(target)
    with (
        closing(End(default_url() if url is None else url, names, read_only=True)) as end,
        NewFile(path, beside=database_files().beside(path)).in_the_making() as new,
    ):
        archives = end.dialect.archives
        dangling = 0
        if archives is None:
            database_files().path(end.url)  # which refuses one in memory
            end.dialect.require_existing(end.url)
            copied = copy_file(end, new.path, report, timing)
            holdings, taken_at, version = copied.holdings, copied.taken_at, copied.version
            dangling, used = copied.dangling, "native"
        else:
            taken_at = utc_now()
            used, version = _choose(end, archives, format)
            if used == "native":
                holdings = _archive(end, archives, new.path, report, timing)
            else:
                holdings = _portable(end, new.path, report, timing)
        size = new.publish()
    return BackupReport(
        database=str(end),
        file=str(path),
        format=used,
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


def _choose(end: End, archives: Archives, format: Format) -> tuple[str, str]:
    """Give the format that is used, and the server's version."""
    with end.reading() as connection:
        revision = migrations.current(connection, end.names)
        if revision is None:
            migrations.check(connection, end.names)  # its error says what to do
        archives.require_all_visible(connection, end.names)
        version = end.dialect.checks.pulse(connection, end.tables).version
        obstacle = None if format == "portable" else archives.obstacle(connection, end.url)
    if format == "portable" or (obstacle and format == "auto" and revision == migrations.HEAD):
        return "portable", version
    if obstacle:
        raise ArchiverMissing(obstacle)
    return "native", version


def _archive(
    end: End, archives: Archives, file: Path, progress: OnProgress, timing: Timing
) -> Holdings:
    """Let the server's program write it; both see the same snapshot."""
    with end.reading() as connection:
        with timing.of("reading"):
            holdings = look_into(end, connection, progress)
        with timing.of("saving"):
            archives.save(connection, end.url, end.names, file, steps(progress, "saving", "bytes"))
    with timing.of("verifying"), end.reading() as connection:
        found = archives.holdings(file, connection, end.names, end.shapes, migrations.HEAD)
        require_equal(holdings, found, "The archive")
    return holdings


def _portable(end: End, file: Path, progress: OnProgress, timing: Timing) -> Holdings:
    """Copy all rows into a database file."""
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
            # Nothing is left that could be gone on with.
            raise error.__cause__ or error from None
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
