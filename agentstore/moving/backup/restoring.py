"""Making a database of a backup."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL

from agentstore import migrations
from agentstore.engines.base.saving import Holdings
from agentstore.engines.registry import database_files
from agentstore.errors import (
    BackupDiffers,
    BackupOutdated,
    BackupUnderWay,
    CopyDiffers,
    CopyInterrupted,
    CopyOvertaken,
    CopyUnfinished,
    NotABackup,
    RestoreInterrupted,
    SchemaFromFuture,
    SchemaMissing,
    UnsoundRows,
)
from agentstore.models.tables import PLAIN, Names
from agentstore.moving import copying as transfer
from agentstore.moving.backup.comparing import (
    OnProgress,
    Timing,
    look_into,
    tables_of,
)
from agentstore.moving.backup.file_copies import copy_file
from agentstore.moving.backup.records import RestoreReport, SavedTable
from agentstore.moving.copying.ends import End
from agentstore.moving.new_files import NewFile, translating
from agentstore.settings import default_url

_SQLITE = b"SQLite format 3\x00"
_UNSOUND = (
    "The server would refuse such rows; nothing was restored. The backup is a database file: use "
    "agentstore copy, which leaves these rows out with --quarantine FILE."
)


def restore(
    source: str | Path,
    url: str | URL | None,
    *,
    names: Names = PLAIN,
    upgrade: bool = False,
    expected: Iterable[SavedTable] | None = None,
    progress: OnProgress | None = None,
) -> RestoreReport:
    """Make a database of a backup.

    It goes into a new SQLite file, page by page, or into a PostgreSQL database, row by row.

    Args:
        source: The path of the backup; only read.
        url: Where to; None means ``AGENTSTORE_URL``, else ``sqlite:///agentstore.db``. A SQLite
            file must not be there; a PostgreSQL database has to be there, and agentstore's
            tables in it have to be empty, or missing.
        names: Schema and prefix of the tables; a file's have the same prefix.
        upgrade: Bring what is restored to head, where the backup is behind. The backup itself
            stays as it is.
        expected: What ``backup`` reported of all tables; a backup that holds anything else is
            refused.
        progress: Called now and then.

    Returns:
        What was restored. The database holds what the backup does, or this raises.

    Raises:
        NotABackup: The file is something else, or has no tables of these names.
        BackupOutdated: It is behind head, and ``upgrade`` is not given.
        SchemaFromFuture: A newer version of agentstore made it.
        TargetExists: There is such a file already.
        TargetNotEmpty: The database holds rows.
        UnsoundRows: The server would not take some rows of a file.
        BackupUnderWay: Another process restores into it.
        BackupDiffers: The backup is not the expected one; or what was restored is not what the
            backup holds, and the database cannot be opened.
        RestoreInterrupted: Something failed in the middle. On a server, what was brought stays
            closed until the same call ends well.
        DatabaseError: The database or the disk failed, before anything was made.
    """
    file = Path(source)
    report = progress or (lambda _: None)
    with translating(file), file.open("rb") as opened:
        beginning = opened.read(len(_SQLITE))
    if beginning != _SQLITE:
        raise NotABackup(str(file), "it is no SQLite file" if beginning else "it is empty")
    wanted = None if expected is None else tuple(expected)
    with closing(End(default_url() if url is None else url, names, read_only=False)) as target:
        work = _Restore(file, target, upgrade, wanted, report)
        return work.file() if target.dialect.file_based else work.rows()


class _Restore:
    """One run."""

    def __init__(
        self,
        file: Path,
        target: End,
        upgrade: bool,
        expected: tuple[SavedTable, ...] | None,
        progress: OnProgress,
    ) -> None:
        self._file = file
        self._target = target
        self._upgrade = upgrade
        self._expected = expected
        self._progress = progress
        self._timing = Timing()

    def file(self) -> RestoreReport:
        """Make a file of a file."""
        made = database_files()
        path = made.path(self._target.url)
        with NewFile(path, beside=made.beside(path)).in_the_making() as new, self._source() as end:
            self._require_usable(_revision(end, self._file))
            copied = copy_file(end, new.path, self._progress, self._timing)
            self._require_expected(copied.holdings)
            revision = copied.holdings.revision
            if revision != migrations.HEAD:
                with self._timing.of("upgrading"):
                    revision = migrations.upgrade(made.url(new.path), names=end.names)
                    made.finish(new.path)
            new.publish()
        return self._report(copied.holdings, revision, indexed=True)

    def rows(self) -> RestoreReport:
        """Bring the rows of a file to a server."""
        with self._source() as end:
            revision = _revision(end, self._file)
            self._require_usable(revision)
            if self._expected is not None:
                with end.reading() as connection:
                    self._require_expected(look_into(end, connection, self._progress))
            with self._timing.of("checking"):
                database_files().check(self._file)
            resume = self._target.revision() == migrations.UNFINISHED
            with self._timing.of("copying"):
                try:
                    copied = transfer.copy(
                        end.url,
                        self._target.url,
                        source_names=end.names,
                        target_names=self._target.names,
                        resume=resume,
                        upgrade=self._upgrade,
                        progress=self._progress,
                    )
                except CopyOvertaken as error:
                    raise BackupUnderWay(str(self._target)) from error
                except CopyDiffers as error:
                    raise BackupDiffers(error.tables, "The database") from error
                except CopyInterrupted as error:
                    raise RestoreInterrupted(str(error.__cause__ or error)) from error
                except UnsoundRows as error:
                    raise UnsoundRows(error.rows, error.total, _UNSOUND) from None
        holdings = Holdings(
            revision,
            {table.name: table.target_rows for table in copied.tables},
            {table.name: table.target_digest for table in copied.tables},
        )
        return self._report(holdings, migrations.HEAD, indexed=False)

    def _source(self) -> closing[End]:
        names = Names(None, self._target.names.prefix)
        return closing(End(database_files().url(self._file), names, read_only=True))

    def _require_usable(self, revision: str) -> None:
        """Refuse a backup of a revision that cannot be restored, or was not asked for."""
        if revision not in migrations.REVISIONS:
            raise SchemaFromFuture(revision, migrations.HEAD)
        if revision != migrations.HEAD and not self._upgrade:
            raise BackupOutdated(revision, migrations.HEAD)

    def _require_expected(self, holdings: Holdings) -> None:
        """Refuse a backup that is not the expected one."""
        if self._expected is None:
            return
        found = {table.name: table for table in tables_of(holdings)}
        wanted = {table.name: table for table in self._expected}
        names = dict.fromkeys([*found, *wanted])
        different = tuple(name for name in names if found.get(name) != wanted.get(name))
        if different:
            raise BackupDiffers(different, "The backup")

    def _report(self, holdings: Holdings, revision: str, *, indexed: bool) -> RestoreReport:
        return RestoreReport(
            file=str(self._file),
            database=str(self._target),
            backup_revision=holdings.revision,
            revision=revision,
            tables=tables_of(holdings),
            indexed=indexed,
            seconds=self._timing.seconds,
        )


def _revision(end: End, file: Path) -> str:
    try:
        revision = end.revision()
    except SchemaMissing:
        revision = None
    if revision is None:
        raise NotABackup(str(file), "it has no agentstore tables with this prefix")
    if revision == migrations.UNFINISHED:
        raise CopyUnfinished(revision, migrations.HEAD)
    return revision
