"""Saving a database in a file while it is in use, and restoring a database from such a file.

Each backup is complete. It is read in one transaction, so it has one state of the database, and it
is compared with that state before it gets its name. So a file with that name is never incomplete,
whatever happens to the process or to the machine, and an existing file is never replaced. The same
is true of a database that is restored into a file; one on a server cannot be opened until it was
compared.

These functions are synchronous and take as long as the disks; call them with
``asyncio.to_thread`` from coroutines.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from stat import S_ISREG

from sqlalchemy import URL, Connection, inspect

from agentstore import migrations
from agentstore.engines import database_files
from agentstore.engines.base.dialect import Holdings, count_rows
from agentstore.errors import (
    BackupDiffers,
    BackupIncomplete,
    BackupNeedsUpgrade,
    BackupOutdated,
    BackupUnderWay,
    CopyDiffers,
    CopyInterrupted,
    CopySuperseded,
    CopyUnfinished,
    ForeignObjects,
    InvalidRows,
    NotABackup,
    RestoreInterrupted,
    SchemaFromFuture,
    SchemaMissing,
    SchemaOutdated,
    printed,
)
from agentstore.moving import copying
from agentstore.moving.copy_ends import End, Timing
from agentstore.moving.copy_ends import read_both as read_whole
from agentstore.moving.new_files import NewFile, translating
from agentstore.schema import PLAIN, Names
from agentstore.settings import default_url
from agentstore.values import validation
from agentstore.values.types import utc_now

__all__ = ["BackupReport", "RestoreReport", "SavedTable", "backup", "restore"]


# Saving a database in a file.


_INVALID = (
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
        InvalidInput: No file can have this name.
        TargetExists: There is something under this name already, or left over from a database
            that was there. It is as it was.
        BackupUnderWay: Another process is making this file.
        BackupIncomplete: Row-level security hides rows from this role.
        SchemaError: There is no agentstore schema, or that of a server is behind head; the error
            says what to do.
        InvalidRows: The file cannot hold some rows of a server.
        BackupDiffers: What was written is not what was to be saved. It is gone again.
        DatabaseError: The database or the disk failed; there is no file.
    """
    report = progress or (lambda _: None)
    timing = Timing()
    path = validation.file_path("target", target)
    with (
        closing(End(default_url() if url is None else url, names, read_only=True)) as end,
        NewFile(path, beside=database_files().beside(path)).in_the_making() as new,
    ):
        dangling = 0
        if end.dialect.file_based:
            database_files().path(end.url)  # which refuses one in memory
            end.dialect.require_existing(end.url)
            holdings, taken_at, version, dangling = copy_file(end, new.path, report, timing)
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
        invalid=holdings.invalid,
        seconds=timing,
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
            copied = copying.copy(
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
        except InvalidRows as error:
            raise InvalidRows(error.rows, error.total, _INVALID) from None
    with timing.of("verifying"):
        made.finish(file)
        made.check(file)
    return _holdings(migrations.HEAD, copied)


def _holdings(revision: str, copied: copying.CopyReport) -> Holdings:
    return Holdings(
        revision,
        {table.name: table.target_rows for table in copied.tables},
        {table.name: table.target_digest for table in copied.tables},
    )


# Making a database of a backup.


_SQLITE = b"SQLite format 3\x00"
_INVALID_BACKUP = (
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
    allowed: Iterable[str] = (),
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
        allowed: Names of triggers, views and virtual tables of yours that the backup may have.
            Others that no revision of agentstore made are refused, because they could change or
            hide what is stored. The log of a copy that followed is left out.
        progress: Called now and then.

    Returns:
        What was restored. The database holds what the backup does, or this raises.

    Raises:
        InvalidInput: No file can have the name of the backup.
        NotABackup: The file is something else, or has no tables of these names.
        ForeignObjects: It has triggers or the like that no revision made and ``allowed`` does not
            name.
        BackupOutdated: It is behind head, and ``upgrade`` is not given.
        SchemaFromFuture: A newer version of agentstore made it.
        TargetExists: There is such a file already.
        TargetNotEmpty: The database holds rows.
        InvalidRows: The server would not take some rows of a file.
        BackupUnderWay: Another process restores into it.
        BackupDiffers: The backup is not the expected one; or what was restored is not what the
            backup holds, and the database cannot be opened.
        RestoreInterrupted: Something failed in the middle. On a server, what was brought stays
            closed until the same call ends well.
        DatabaseError: The database or the disk failed, before anything was made.
    """
    file = validation.file_path("source", source)
    report = progress or (lambda _: None)
    with translating(file):
        if not S_ISREG(file.stat().st_mode):  # to open a pipe could take for ever
            raise NotABackup(str(file), "it is a folder, a device or a pipe")
        with file.open("rb") as opened:
            beginning = opened.read(len(_SQLITE))
    if beginning != _SQLITE:
        raise NotABackup(str(file), "it is no SQLite file" if beginning else "it is empty")
    wanted = None if expected is None else tuple(expected)
    with closing(End(default_url() if url is None else url, names, read_only=False)) as target:
        work = _Restore(file, target, upgrade, wanted, frozenset(allowed), report)
        return work.file() if target.dialect.file_based else work.rows()


@dataclass
class _Restore:
    """One run."""

    _file: Path
    _target: End
    _upgrade: bool
    _expected: tuple[SavedTable, ...] | None
    _allowed: frozenset[str]
    _progress: OnProgress
    _timing: Timing = field(default_factory=Timing)

    def file(self) -> RestoreReport:
        """Make a file of a file."""
        made = database_files()
        path = made.path(self._target.url)
        with NewFile(path, beside=made.beside(path)).in_the_making() as new, self._source() as end:
            logs = self._require_known(end)
            self._require_usable(_revision(end, self._file))
            holdings, *_ = copy_file(end, new.path, self._progress, self._timing)
            self._require_expected(holdings)
            for names in logs:
                made.unfollow(new.path, names)
            revision = holdings.revision
            if revision != migrations.HEAD:
                with self._timing.of("upgrading"):
                    revision = migrations.upgrade(made.url(new.path), names=end.names)
                    made.finish(new.path)
            new.publish()
        return self._report(holdings, revision, indexed=True)

    def rows(self) -> RestoreReport:
        """Bring the rows of a file to a server."""
        with self._source() as end:
            self._require_known(end)
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
                    copied = copying.copy(
                        end.url,
                        self._target.url,
                        source_names=end.names,
                        target_names=self._target.names,
                        resume=resume,
                        upgrade=self._upgrade,
                        progress=self._progress,
                    )
                except CopySuperseded as error:
                    raise BackupUnderWay(str(self._target)) from error
                except CopyDiffers as error:
                    raise BackupDiffers(error.tables, "The database") from error
                except CopyInterrupted as error:
                    raise RestoreInterrupted(str(error.__cause__ or error)) from error
                except InvalidRows as error:
                    raise InvalidRows(error.rows, error.total, _INVALID_BACKUP) from None
        return self._report(_holdings(revision, copied), migrations.HEAD, indexed=False)

    def _source(self) -> closing[End]:
        names = Names(None, self._target.names.prefix)
        return closing(End(database_files().url(self._file), names, read_only=True))

    def _require_known(self, end: End) -> list[Names]:
        """Refuse a file with code that no revision made; look at nothing that it could stand for.

        Returns:
            The names of agentstore's tables in the file: there may be some of several prefixes.
        """
        made = database_files()
        with end.reading() as connection:
            code = made.code(connection)
            names_of_code = {name for _, name, _ in code}
            tables = set(inspect(connection).get_table_names()) - names_of_code
            several = [
                Names(None, name[: -len(_VERSION)]) for name in tables if name.endswith(_VERSION)
            ]
            revisions = {names: migrations.current(connection, names) for names in several}
        usable = revisions.get(end.names) in migrations.REVISIONS
        if not usable and f"{end.names.prefix}{_VERSION}" not in names_of_code:
            return several  # the error is another one
        known = set[tuple[str, str, str]]()
        for names, revision in revisions.items():
            if revision in migrations.REVISIONS:
                known.update(_made_by(revision, names))
        foreign = [
            f"{kind} {printed(name)}"
            for kind, name, sql in code
            if (kind, name, sql) not in known
            and name not in self._allowed
            and not (kind == "trigger" and any(made.logs(name, names) for names in several))
        ]
        if foreign:
            more = len(foreign) - _MOST_SHOWN
            shown = (*foreign[:_MOST_SHOWN], *((f"and {more:,} more",) if more > 0 else ()))
            raise ForeignObjects(str(self._file), shown)
        return several

    def _require_usable(self, revision: str) -> None:
        """Refuse a backup of a revision that cannot be restored, or was not asked for."""
        if revision not in migrations.UPGRADED:
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
            seconds=self._timing,
        )


_VERSION = "alembic_version"
_MOST_SHOWN = 10


@cache
def _made_by(revision: str, names: Names) -> tuple[tuple[str, str, str], ...]:
    """Give what the revisions make that is code, up to one."""
    made = database_files()
    with tempfile.TemporaryDirectory() as folder:
        url = made.url(Path(folder) / "made.db")
        migrations.upgrade(url, revision, names=names)
        with closing(End(url, names, read_only=True)) as end, end.reading() as connection:
            return tuple(made.code(connection))


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


# What a database holds, whatever its revision, and whether two hold the same.


OnProgress = copying.OnProgress


def look_into(end: End, connection: Connection, progress: OnProgress) -> Holdings:
    """Read a database, in the connection's transaction.

    Args:
        end: The database.
        connection: Where to look.
        progress: Gets the tables.

    Raises:
        SchemaMissing: There is nothing of agentstore's under these names.
        SchemaFromFuture: A newer version made it.
        CopyUnfinished: It does not hold everything yet.
    """
    found = migrations.current(connection, end.names)
    if found is None:
        migrations.check(connection, end.names)  # its error says what to do
        raise SchemaMissing(migrations.HEAD, "agentstore upgrade")
    if found == migrations.UNFINISHED:
        raise CopyUnfinished(found, migrations.HEAD)
    if found not in migrations.UPGRADED:
        raise SchemaFromFuture(found, migrations.HEAD)
    if found == migrations.HEAD:
        contents = read_whole(end, connection, progress)
        rows = {
            name: digest.rows + len(contents.left_out.get(name, ()))
            for name, digest in contents.digests.items()
        }
        digests = {name: str(digest) for name, digest in contents.digests.items()}
        return Holdings(found, rows, digests, len(contents.flaws))
    there = set(inspect(connection).get_table_names(schema=end.names.schema))
    counted = count_rows(connection, (shape.table for shape in end.shapes), there)
    return Holdings(
        found, {s.name: counted[s.table.name] for s in end.shapes if s.table.name in counted}
    )


def tables_of(holdings: Holdings) -> tuple[SavedTable, ...]:
    """Write what was found."""
    return tuple(
        SavedTable(name, rows, holdings.digests.get(name)) for name, rows in holdings.rows.items()
    )


# What a backup, and a restore, say of themselves.


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
        invalid: How many rows, these included, no other database would take; they are saved, but
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
    invalid: int
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


# Copying a database file into a new one, page by page, and checking the copy.


def copy_file(
    source: End, file: Path, progress: OnProgress, timing: Timing
) -> tuple[Holdings, datetime, str, int]:
    """Copy a database file, which others may write to meanwhile, into an empty one.

    Pages are copied as they are, so tables under other names come too. Writers are not held up;
    what they write stays in the WAL until the source has been read.

    Returns:
        What both files hold, when that state was current, the version of the library, and how many
        rows refer to nothing.

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
            made.copy(
                connection,
                file,
                lambda n, all: progress(copying.Progress("copying", "pages", n, all)),
            )
        with timing.of("reading"):
            holdings = look_into(source, connection, progress)
        version = source.dialect.checks.status(connection, source.tables).version
    with timing.of("verifying"):
        made.finish(file)
        dangling = made.check(file)
        copy = End(made.url(file), source.names, read_only=True)
        with closing(copy), copy.reading() as connection:
            found = made.counts(connection)
            different = tuple(name for name in counts if found.get(name) != counts[name])
            if not different:
                different = holdings.differing(look_into(copy, connection, lambda _: None))
            if different:
                raise BackupDiffers(different, "The copy")
    return holdings, taken_at, version, dangling
