"""The two databases of a copy, opened without a store; its journal, flaws and report."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any
from weakref import finalize

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    Text,
    delete,
    insert,
    inspect,
    literal,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable, DropTable

from agentstore import migrations
from agentstore.database import open_engine, parse_url, show_url
from agentstore.engines import database_files, dialect_for
from agentstore.engines.base.dialect import EngineDialect, Mode, cause_of
from agentstore.engines.base.moving import Flaw, Key, Stripped, TableDigest, TableShape, shapes
from agentstore.errors import (
    BackupUnderWay,
    CopySuperseded,
    DatabaseError,
    DatabaseUnreachable,
    InvalidInput,
    InvalidRows,
    TargetExists,
    TargetNotEmpty,
)
from agentstore.moving.new_files import NewFile
from agentstore.schema import Names, Tables, tables
from agentstore.settings import settings_for

_WHERE = ("host", "hostaddr", "port", "dbname", "service")
"""What in a URL's query says which database it is."""


class End:
    """One side of a copy.

    Attributes:
        url: Where it is.
        dialect: Its engine's ways.
        names: Where the tables are.
    """

    def __init__(self, url: str | URL, names: Names, *, read_only: bool) -> None:
        """Keep what is needed to open it.

        Raises:
            InvalidInput: It lives in memory.
        """
        self.url = parse_url(url)
        self.dialect: EngineDialect = dialect_for(self.url)
        self.names = names if self.dialect.schemas else Names(None, names.prefix)
        self._read_only = read_only
        if not self.dialect.many_connections(self.url):
            raise InvalidInput(
                "A database in memory cannot be copied: only one connection sees it. Pass a file."
            )

    def __str__(self) -> str:
        """Name it, without its password."""
        return show_url(self.url)

    @cached_property
    def engine(self) -> Engine:
        """The engine; a source has to be there already."""
        return open_engine(
            self.url,
            settings_for(create=not self._read_only, read_only=self._read_only, pool_size=3),
        )

    @cached_property
    def place(self) -> tuple[object, ...]:
        """Say which database it is, by whatever user or path; nothing of it is a secret."""
        database = self.url.database
        if self.dialect.file_based:
            database = os.path.realpath(database_files().path(self.url))
        told = (self.url.query.get(name) for name in _WHERE)
        return (self.url.get_backend_name(), self.url.host, self.url.port, database, *told)

    def is_at(self, other: End) -> bool:
        """Say whether both are in one database, under whatever names of tables."""
        if self.dialect.file_based and other.dialect.file_based:
            return database_files().same(self.url, other.url)
        return self.place == other.place

    @cached_property
    def fingerprint(self) -> str:
        """A hash of where it is and of its tables' names, which tells it from others."""
        words = json.dumps([*self.place, self.names.schema, self.names.prefix])
        return hashlib.sha256(words.encode()).hexdigest()

    @cached_property
    def tables(self) -> Tables:
        """The tables."""
        return tables(self.names)

    @cached_property
    def shapes(self) -> tuple[TableShape, ...]:
        """The tables as they travel, those that others refer to first."""
        return shapes(self.tables)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database, and changes nothing."""
        with self.translating(), self._connected(Mode.SNAPSHOT) as connection:
            connection.begin()
            yield connection
            connection.commit()

    @contextmanager
    def working(self) -> Iterator[Connection]:
        """Give a connection for transactions that write."""
        with self.translating(), self._connected(Mode.WRITE) as connection:
            yield connection

    @contextmanager
    def committing(self, connection: Connection) -> Iterator[None]:
        """Do a transaction on such a connection, also while the other end is read."""
        with self.translating(), connection.begin():
            yield

    @contextmanager
    def _connected(self, mode: Mode) -> Iterator[Connection]:
        with self.dialect.modes(self.engine)[mode].connect() as connection:
            self.dialect.take_over(connection)
            try:
                yield connection
            finally:
                connection.rollback()
                connection.invalidate()  # whatever was set on it goes with it

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Make the driver's errors ours, also those of its own cursors."""
        driver = self.engine.dialect.loaded_dbapi
        try:
            yield
        except DBAPIError as error:
            raise self.dialect.diagnose(error).error from cause_of(error)
        except driver.Error as error:
            wrapped = DBAPIError.instance(
                None, None, error, driver.Error, hide_parameters=True, dialect=self.engine.dialect
            )
            assert isinstance(wrapped, DBAPIError)
            raise self.dialect.diagnose(wrapped).error from cause_of(wrapped)

    def revision(self) -> str | None:
        """Read its revision; None where there is no schema, or no file yet."""
        try:
            self.dialect.require_existing(self.url)
        except DatabaseUnreachable:
            return None
        with self.translating(), self.engine.connect() as connection:
            return migrations.current(connection, self.names)

    def require_head(self) -> None:
        """Refuse a database that is not at head; see ``migrations.check``."""
        self.dialect.require_existing(self.url)
        with self.translating(), self.engine.connect() as connection:
            migrations.check(connection, self.names)

    def require_empty(self, connection: Connection, *, resume: bool = False) -> None:
        """Refuse a database that holds rows.

        Args:
            connection: To the database.
            resume: Whether a copy was to be resumed, of which nothing is left to do.

        Raises:
            TargetNotEmpty: It does.
        """
        there = set(inspect(connection).get_table_names(schema=self.names.schema))
        for shape in self.shapes:  # one that is behind head has not all of them, nor columns
            if shape.table.name not in there:
                continue
            any_row = select(literal(1)).select_from(shape.table).limit(1)
            if connection.execute(any_row).first() is not None:
                advice = _NOTHING_TO_RESUME if resume else TargetNotEmpty.advice
                raise TargetNotEmpty(shape.name, str(self), advice)

    def close(self) -> None:
        """Close its connections."""
        self.engine.dispose()


@contextmanager
def upgraded(source: End) -> Iterator[End]:
    """Copy the source's file, and upgrade that."""
    if not source.dialect.file_based:
        raise InvalidInput(
            "Only a SQLite file can be upgraded in a copy. Run agentstore upgrade on the source."
        )
    files = database_files()
    with tempfile.TemporaryDirectory(prefix="agentstore-") as folder:
        file = Path(folder) / "copy.db"
        with source.reading() as connection:
            migrations.current(connection, source.names)  # from this look on there is one state
            files.copy(connection, file, lambda _done, _total: None)
        url = files.url(file)
        migrations.upgrade(url, names=source.names)
        with closing(End(url, source.names, read_only=True)) as end:
            yield end


# The rows which a copy or an import sets aside, and the files that list them.
#
# Such a file may hold the only copy of them. So nothing that is there is ever written over, and
# each list is whole and on the disk, for its owner alone, before the copy goes on.


_IN_MEMORY = 1 << 20
"""Bytes of rows that are kept in memory."""

NAMED = 1000
"""Rows of which table, key and reason are kept."""


def _closed(lines: IO[bytes]) -> None:
    with suppress(OSError):  # a full disk has been told of
        lines.close()


class SetAside:
    """Rows that are set aside. There may be as many as the source has, so few are kept in memory.

    Attributes:
        named: Table, key and reason of the first of them.
    """

    def __init__(self, quarantine: Quarantine | None = None) -> None:
        """Begin without any.

        Args:
            quarantine: Where they will be listed. Until then they are in a file beside it, which
                has no name and is gone with the process. None keeps only the names of the first.
        """
        self.named: list[tuple[str, str, str]] = []
        self._count = 0
        self._digest = hashlib.sha256()
        self._place: Path | None = None
        self._lines: IO[bytes] | None = None
        if quarantine is not None:
            self._place = quarantine.file
            self._lines = SpooledTemporaryFile(_IN_MEMORY, dir=str(self._place.parent))  # noqa: SIM115
            finalize(self, _closed, self._lines)

    def __len__(self) -> int:
        """Count them."""
        return self._count

    def add(self, flaws: Iterable[Flaw]) -> None:
        """Set rows aside; raises InvalidInput if there is no room for them."""
        for flaw in flaws:
            self._count += 1
            if self._count <= NAMED:
                self.named.append((flaw.table, flaw.key, flaw.reason))
            if self._lines is not None and self._place is not None:
                row = {"table": flaw.table, "reason": flaw.reason, "row": dict(flaw.values)}
                line = json.dumps(row).encode() + b"\n"
                self._digest.update(line)
                try:
                    self._lines.write(line)
                except OSError as error:
                    raise _refused(self._place, _said_by(error)) from error

    def digest(self) -> bytes:
        """Tell these rows from others."""
        return self._digest.digest()

    def lines(self) -> Iterator[bytes]:
        """Give them as JSON, a line each."""
        if self._lines is not None:
            self._lines.seek(0)
            yield from self._lines


class Quarantine:
    """Where one run writes its lists.

    Attributes:
        file: The first list's.
        newest: The file with the list that was kept last; None if there was no such row.
    """

    def __init__(self, file: Path, *, resumed: bool) -> None:
        """Name the first list's file.

        Args:
            file: Where it is to be.
            resumed: Whether an earlier run of the same copy may have written it. Then this one's
                list goes beside it, with a number in its name.

        Raises:
            InvalidInput: There is something already, or no folder for it.
        """
        self.file = file
        self._resumed = resumed
        self._written: bytes | None = None
        self.newest: Path | None = None
        if not file.parent.is_dir():
            raise _refused(file, "there is no such folder")
        if os.path.isdir(file) or (not resumed and os.path.lexists(file)):  # noqa: PTH112
            raise _refused(file, "it exists, and nothing is ever overwritten")

    def keep(self, rows: SetAside) -> None:
        """Write rows to a file that is not there yet, one JSON object a line.

        Bytes are written as ``{"hex": ...}``, text that is no UTF-8 as ``{"text": ...}`` with its
        bytes in hexadecimal, and what is no finite number as ``{"number": ...}``. Without a row,
        and where this run has written just these, no file is made.

        Raises:
            InvalidInput: The file cannot be written.
        """
        digest = rows.digest()
        if not rows or digest == self._written:
            return
        for number in count(1):
            file = self.file
            if number > 1:
                file = file.with_name(f"{file.stem}.{number}{file.suffix}")
            try:
                _write(file, rows)
            except TargetExists as error:
                if not self._resumed and self._written is None:
                    raise _refused(file, "it exists, and nothing is ever overwritten") from error
            else:
                self._written, self.newest = digest, file
                return


def _write(file: Path, rows: SetAside) -> None:
    try:
        with NewFile(file).in_the_making() as new:
            with new.path.open("wb") as target:
                target.writelines(rows.lines())
            new.publish()
    except (BackupUnderWay, DatabaseError) as error:
        raise _refused(file, str(error)) from error
    except (OSError, ValueError) as error:
        raise _refused(file, _said_by(error)) from error


def _said_by(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _refused(file: Path, reason: str) -> InvalidInput:
    return InvalidInput(
        f"The invalid rows cannot be written to {file} ({reason.rstrip('.')}). Choose "
        "another file for them."
    )


# What a database holds, and which of its rows no other database would take.


AGAIN = "run the same command again with --resume"
"""What to do where the two sides of a copy differ."""

_NOTHING_TO_RESUME = (
    "There is nothing to resume: the copy is complete, or none was begun. Compare the two "
    "databases with --verify-only, or copy into an empty one."
)


@dataclass(slots=True)
class Contents:
    """What was found.

    Attributes:
        digests: Of every table, by its plain name, the rows that are valid.
        flaws: The other rows.
        left_out: Their numbers, by table.
    """

    digests: dict[str, TableDigest] = field(default_factory=dict)
    flaws: SetAside = field(default_factory=SetAside)
    left_out: dict[str, set[int]] = field(default_factory=dict)

    def leave_out(self, flaws: Collection[Flaw]) -> None:
        """Leave rows out."""
        self.flaws.add(flaws)
        for flaw in flaws:
            self.left_out.setdefault(flaw.table, set()).add(flaw.number)

    def require_sound(self) -> None:
        """Refuse what has flaws; raises InvalidRows."""
        if self.flaws:
            raise InvalidRows(tuple(self.flaws.named), len(self.flaws))


def read_both(
    end: End,
    connection: Connection,
    progress: OnProgress,
    longest: int | None = None,
    quarantine: Quarantine | None = None,
) -> Contents:
    """Read a database whole.

    A row that refers to one that is left out is left out too. So is one for which an index of where
    it is to go has no room; see ``Moving.examine``.
    """
    contents = Contents(flaws=SetAside(quarantine))
    moving = end.dialect.moving
    for shape in end.shapes:  # parents come first
        progress(Progress("reading", shape.name, 0, None))
        left_out = contents.left_out
        contents.leave_out(moving.dangling(connection, shape, left_out))
        digest, flaws = moving.examine(connection, shape, left_out, longest)
        contents.leave_out(flaws)
        if contents.left_out.get(shape.name) and _refers_to_itself(shape):
            while dangling := moving.dangling(connection, shape, left_out):
                contents.leave_out(dangling)
            digest, _ = moving.examine(connection, shape, left_out, longest)
        contents.digests[shape.name] = digest
        progress(Progress("reading", shape.name, digest.rows, digest.rows))
    return contents


def compare(
    source: dict[str, TableDigest], target: dict[str, TableDigest]
) -> tuple[TableReport, ...]:
    """Set what two databases hold side by side."""
    return tuple(
        TableReport(name, digest.rows, target[name].rows, str(digest), str(target[name]))
        for name, digest in source.items()
    )


def _refers_to_itself(shape: TableShape) -> bool:
    constraints = shape.table.foreign_key_constraints
    return any(constraint.referred_table is shape.table for constraint in constraints)


# The book that a copy keeps in its target: what has arrived, and what is still to be done.
#
# It is written in the transactions that it speaks of, so it is right whatever happens to the
# process or to the machine. The last transaction takes it away.
#
# It also says which run goes on with the copy. A run that takes a copy over enters its own name;
# each transaction of a run asks whether it is still the one, and holds that until it is
# committed. So of two runs into one target only the later one changes anything, and only it can
# open the target.


_SOURCE, _RUN, _FOLLOWED, _TABLE = "source", "run", "followed", "table "


class Journal:
    """The book, by its entries' names; values are JSON."""

    def __init__(self, names: Names) -> None:
        """Name its table, and this run."""
        self._run = secrets.token_hex(8)
        self._table = Table(
            f"{names.prefix}agentstore_copy",
            MetaData(schema=names.schema),
            Column("name", Text, primary_key=True),
            Column("value", Text, nullable=False),
        )

    def is_there(self, connection: Connection) -> bool:
        """Say whether a copy was begun."""
        return inspect(connection).has_table(self._table.name, schema=self._table.schema)

    def begin(self, connection: Connection, source: str, stripped: Stripped) -> None:
        """Begin the book: where the rows come from, and what is to be run after they came."""
        connection.execute(CreateTable(self._table))
        self._put(connection, _RUN, self._run)
        self._write(connection, _SOURCE, source)
        self._write(connection, _statements(last=False), stripped.indexes)
        self._write(connection, _statements(last=True), stripped.last)

    def take_over(self, connection: Connection) -> None:
        """Note that this run goes on; any other one is refused from here on.

        Raises:
            CopySuperseded: The copy has ended.
        """
        if not self.is_there(connection):
            raise CopySuperseded
        self._put(connection, _RUN, self._run)

    def is_superseded(self, connection: Connection) -> bool:
        """Say whether another run goes on, or has ended the copy."""
        return not self.is_there(connection) or self._read(connection, _RUN) != self._run

    def require_own(self, connection: Connection) -> None:
        """Let nobody take over before the end of the transaction.

        Raises:
            CopySuperseded: Somebody has.
        """
        query = select(self._table.c.value).where(self._table.c.name == _RUN).with_for_update()
        if connection.execute(query).scalar() != json.dumps(self._run):
            raise CopySuperseded

    def require_complete(self, connection: Connection) -> None:
        """Require what ``require_own`` does, and that all that was dropped is back."""
        self.require_own(connection)
        if any(self.statements(connection, last=last) for last in (False, True)):
            raise CopySuperseded

    def end(self, connection: Connection) -> None:
        """Take it away."""
        connection.execute(DropTable(self._table))

    def source(self, connection: Connection) -> str:
        """Say where the rows come from."""
        found: str = self._read(connection, _SOURCE)
        return found

    def statements(self, connection: Connection, *, last: bool) -> dict[str, str]:
        """Give what is still to be run, in its order; see ``Stripped``."""
        found: dict[str, str] = self._read(connection, _statements(last=last))
        return found

    def has_run(self, connection: Connection, *names: str, last: bool) -> None:
        """Note that statements were run."""
        left = self.statements(connection, last=last)
        for name in names:
            del left[name]
        self._write(connection, _statements(last=last), left)

    def add_last(self, connection: Connection, statements: dict[str, str]) -> None:
        """Note what has to be run once more when all rows are there."""
        left = self.statements(connection, last=True)
        self._write(connection, _statements(last=True), left | statements)

    def followed(self, connection: Connection, log: str) -> int | None:
        """Give the number of the last change in a log that was brought.

        None where changes of this log may not be brought: not all has come that the source held
        before them.
        """
        found = self._read(connection, _FOLLOWED)
        return found["number"] if found is not None and found["log"] == log else None

    def has_followed(self, connection: Connection, log: str, number: int) -> None:
        """Note it."""
        self._write(connection, _FOLLOWED, {"log": log, "number": number})

    def forget_followed(self, connection: Connection) -> None:
        """Note that rows have to be brought, or compared, before any further change."""
        self.require_own(connection)
        self._delete(connection, _FOLLOWED)

    def arrived(self, connection: Connection, table: str) -> tuple[Key | None, int]:
        """Give the key of the last row that has arrived, and how many have."""
        found = self._read(connection, _TABLE + table)
        return (None, 0) if found is None else (tuple(found["key"]), found["rows"])

    def has_arrived(self, connection: Connection, table: str, key: Key, rows: int) -> None:
        """Note the last row that has arrived, and how many have."""
        self._write(connection, _TABLE + table, {"key": list(key), "rows": rows})

    def forget(self, connection: Connection, table: str) -> None:
        """Note that nothing of a table has arrived."""
        self.require_own(connection)
        self._delete(connection, _TABLE + table)

    def _read(self, connection: Connection, name: str) -> Any:
        query = select(self._table.c.value).where(self._table.c.name == name)
        value = connection.execute(query).scalar()
        return None if value is None else json.loads(value)

    def _write(self, connection: Connection, name: str, value: Any) -> None:
        self.require_own(connection)
        self._put(connection, name, value)

    def _put(self, connection: Connection, name: str, value: Any) -> None:
        self._delete(connection, name)
        row = {"name": name, "value": json.dumps(value)}
        connection.execute(insert(self._table), row)

    def _delete(self, connection: Connection, name: str) -> None:
        connection.execute(delete(self._table).where(self._table.c.name == name))


def _statements(*, last: bool) -> str:
    return "last statements" if last else "statements"


# What a copy says of itself.


class Timing(dict[str, float]):
    """How many seconds each step takes."""

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Add to a step."""
        started = time.monotonic()
        yield
        self[step] = self.get(step, 0.0) + time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is.

    Attributes:
        step: ``reading``, ``loading``, ``indexing``, ``following`` or ``verifying``.
        subject: The table, or the name of the index.
        done: Rows so far.
        total: Rows in all; None where that is not known.
    """

    step: str
    subject: str
    done: int
    total: int | None


OnProgress = Callable[[Progress], None]
"""Gets the progress of a copy, in the thread of the call."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """A table on both sides.

    Attributes:
        name: Its plain name.
        source_rows: Rows of the source, without those that were set aside.
        target_rows: Rows of the target.
        source_digest: What the source holds; ``agentstore.engines.base.moving`` has the formula.
        target_digest: What the target holds.
    """

    name: str
    source_rows: int
    target_rows: int
    source_digest: str
    target_digest: str

    @property
    def equal(self) -> bool:
        """Whether both hold the same."""
        return (self.source_rows, self.source_digest) == (self.target_rows, self.target_digest)


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy, or a comparison, found.

    Attributes:
        tables: All tables, those that others refer to first.
        set_aside: How many rows of the source were set aside as invalid.
        resumed: Whether this went on with a copy that had been begun.
        seconds: How long each step took.
        quarantine: The file that lists the rows that were set aside; None if there are none.
        there: Of a copy of users, those whom the target had already, equal.
    """

    tables: tuple[TableReport, ...]
    set_aside: int = 0
    resumed: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    quarantine: str | None = None
    there: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows the target holds."""
        return sum(table.target_rows for table in self.tables)

    @property
    def equal(self) -> bool:
        """Whether both sides hold the same."""
        return all(table.equal for table in self.tables)
