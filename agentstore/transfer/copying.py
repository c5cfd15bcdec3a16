"""Copying a database: read, load, index, compare, open."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, delete

from agentstore import migrations
from agentstore.dialects.moving import Digest, Key, Row, Shape
from agentstore.engine import parse_url
from agentstore.errors import (
    AgentStoreError,
    CopyDiffers,
    CopyInterrupted,
    CopyUnfinished,
    InvalidInput,
    SchemaOutdated,
)
from agentstore.schema import PLAIN, Names
from agentstore.segmentation import VERSION
from agentstore.transfer.ends import End
from agentstore.transfer.inspection import Contents, compare, inspect, set_aside
from agentstore.transfer.journal import Journal
from agentstore.transfer.records import CopyReport, OnProgress, Progress

_PORTION_SECONDS, _PORTION_ROWS = 1.0, 100_000
"""A transaction of the target ends after so long, or so many rows."""


def copy(
    source: str | URL,
    target: str | URL,
    *,
    source_names: Names = PLAIN,
    target_names: Names = PLAIN,
    resume: bool = False,
    upgrade: bool = False,
    quarantine: Path | None = None,
    progress: OnProgress | None = None,
) -> CopyReport:
    """Copy everything from one database into another, which is empty.

    The search index is not copied: it is made anew from the messages, by the first searches or by
    ``store.search.reindex()``. Everything else is, with the numbers of the rows.

    Args:
        source: What is copied; only read, in one transaction. Others may go on writing to it;
            what they write after the beginning is not in the copy.
        target: Where to. A SQLite file that is not there is made; a PostgreSQL database has to be
            there. It is brought to head; agentstore's tables in it have to be empty.
        source_names: Schema and prefix of the source's tables.
        target_names: Schema and prefix of the target's tables.
        resume: Go on with a copy of the same source that was interrupted. Tables of which an
            earlier run brought a part, and that have changed since, are copied again.
        upgrade: Where the source is behind head, copy a copy of it that is upgraded first.
            Only for SQLite files; it needs room for the file in the folder of temporary files.
        quarantine: A file to which rows are written that are not sound: of a wrong type, no
            UTF-8, referring to nothing. Without it they are refused.
        progress: Called now and then.

    Returns:
        What both sides hold. They are equal, or this raises.

    Raises:
        TargetNotEmpty: The target holds rows.
        CopyUnfinished: A copy into it was begun, and ``resume`` is not given.
        UnsoundRows: The source holds rows that no other database would take. The target is as it
            was.
        SchemaError: The source is not at head; the error says what to run.
        CopyInterrupted: A database failed in the middle. Mend it, then run this with ``resume``.
        CopyDiffers: The two sides are not equal. The target stays closed.
        DatabaseError: A database cannot be reached, or failed before anything was copied.
    """
    with ExitStack() as stack:
        from_ = stack.enter_context(_open(source, source_names, read_only=True))
        to = stack.enter_context(_open(target, target_names, read_only=False))
        _refuse_the_same(from_, to)
        try:
            from_.require_head()
        except SchemaOutdated:
            if not upgrade:
                raise
            from_ = stack.enter_context(_upgraded(from_))
        work = _Copy(from_, to, str(parse_url(source)), progress or (lambda _: None))
        return work.run(resume=resume, quarantine=quarantine)


def verify(
    source: str | URL,
    target: str | URL,
    *,
    source_names: Names = PLAIN,
    target_names: Names = PLAIN,
    progress: OnProgress | None = None,
) -> CopyReport:
    """Compare two databases; only reads, each in one transaction, both at the same time.

    Raises:
        SchemaError: One of them is not at head.
        UnsoundRows: One of them holds rows that are not sound.
        DatabaseError: A database cannot be reached, or failed.
    """
    report = progress or (lambda _: None)
    started = time.monotonic()
    with ExitStack() as stack:
        ends = (
            stack.enter_context(_open(source, source_names, read_only=True)),
            stack.enter_context(_open(target, target_names, read_only=True)),
        )
        for end in ends:
            end.require_head()
        pool = stack.enter_context(ThreadPoolExecutor(len(ends)))
        theirs = pool.submit(_read_whole, ends[1], lambda _: None)
        ours = _read_whole(ends[0], report)
        rows = compare(ours.digests, theirs.result().digests)
    return CopyReport(rows, seconds={"verifying": time.monotonic() - started})


def _read_whole(end: End, progress: OnProgress) -> Contents:
    with end.reading() as connection:
        contents = inspect(end, connection, progress)
    contents.require_sound()
    return contents


class _Copy:
    """One run of a copy."""

    def __init__(self, source: End, target: End, origin: str, progress: OnProgress) -> None:
        self._source = source
        self._target = target
        self._origin = origin
        self._progress = progress
        self._journal = Journal(target.names)
        self._seconds: dict[str, float] = {}

    def run(self, *, resume: bool, quarantine: Path | None) -> CopyReport:
        resumed = self._require_room(resume=resume)
        with self._source.reading() as reading:
            with self._timed("reading"):
                contents = inspect(self._source, reading, self._progress)
            if quarantine is None:
                contents.require_sound()
            else:
                set_aside(contents.flaws, quarantine)
            if not resumed:
                self._begin()
            try:
                digests = self._bring(reading, contents, resumed=resumed)
            except AgentStoreError as error:
                if isinstance(error, CopyDiffers):
                    raise
                raise CopyInterrupted(str(error)) from error
        tables = compare(contents.digests, digests)
        return CopyReport(tables, len(contents.flaws), resumed, self._seconds)

    def _require_room(self, *, resume: bool) -> bool:
        """Say whether a copy is gone on with; refuse a target that is no place for one."""
        revision = self._target.revision()
        if revision == migrations.UNFINISHED:
            if not resume:
                raise CopyUnfinished(revision, migrations.HEAD)
            with self._target.working() as connection:
                connection.begin()
                origin = self._journal.source(connection)
            if origin != self._origin:
                raise InvalidInput(
                    "The copy that was begun into this database came from another source. Name "
                    "that one, or begin anew with an empty database."
                )
            return True
        if revision is not None:
            with self._target.working() as connection:
                connection.begin()
                self._target.require_empty(connection)
        return False

    def _begin(self) -> None:
        """Make an empty target ready; the last moment at which nothing has happened."""
        with self._timed("loading"):
            migrations.upgrade(self._target.url, names=self._target.names)
            with self._target.working() as connection:
                connection.begin()
                self._target.require_empty(connection)
                statements = self._target.dialect.moving.strip(connection, self._target.tables)
                self._journal.begin(connection, self._origin, statements)
                migrations.close_for_copy(connection, self._target.names)
                connection.commit()

    def _bring(
        self, reading: Connection, contents: Contents, *, resumed: bool
    ) -> dict[str, Digest]:
        target, moving = self._target, self._target.dialect.moving
        with target.working() as writing:
            moving.hasten(writing)
            with self._timed("loading"):
                for shape, theirs in zip(self._source.shapes, target.shapes, strict=True):
                    self._load(reading, writing, shape, theirs, contents)
                if resumed:
                    self._load_changed_again(reading, writing, contents)
            with self._timed("indexing"):
                self._index(writing)
        with self._timed("verifying"), target.reading() as checking:
            digests = self._digests(checking)
        different = [name for name, found in contents.digests.items() if digests[name] != found]
        if different:
            raise CopyDiffers(tuple(different))
        self._open()
        return digests

    def _load(
        self,
        reading: Connection,
        writing: Connection,
        shape: Shape,
        theirs: Shape,
        contents: Contents,
    ) -> None:
        """Bring a table's rows, from the last that has arrived on."""
        total = contents.digests[shape.name].rows
        with writing.begin():
            after, count = self._journal.arrived(writing, shape.name)
        moving = self._target.dialect.moving
        with self._source.translating():
            rows = self._source.dialect.moving.read(reading, shape, after, contents.left_out)
            portions = _Portions(self._source, shape, rows)
        while True:
            self._progress(Progress("loading", shape.name, count, total))
            with writing.begin():
                moving.load(writing, theirs, portions.next())
                if portions.last_key is None:
                    break
                count += portions.count
                self._journal.has_arrived(writing, shape.name, portions.last_key, count)
        self._progress(Progress("loading", shape.name, count, count))

    def _load_changed_again(
        self, reading: Connection, writing: Connection, contents: Contents
    ) -> None:
        """Bring those tables once more that changed between two runs."""
        for shape, theirs in zip(self._source.shapes, self._target.shapes, strict=True):
            with writing.begin():
                found, _ = self._target.dialect.moving.examine(writing, theirs, {})
            if found == contents.digests[shape.name]:
                continue
            with writing.begin():
                writing.execute(delete(theirs.table))
                self._journal.forget(writing, shape.name)
            self._load(reading, writing, shape, theirs, contents)

    def _index(self, writing: Connection) -> None:
        """Make the keys and indexes, each in a transaction of its own, then all that is left."""
        moving, tables = self._target.dialect.moving, self._target.tables
        with writing.begin():
            left = self._journal.statements(writing)
        for done, (name, statement) in enumerate(left.items()):
            self._progress(Progress("indexing", name, done, len(left)))
            with writing.begin():
                writing.exec_driver_sql(statement)
                self._journal.has_run(writing, name)
        with self._source.reading() as reading:
            counters = self._source.dialect.moving.counters(reading, self._source.tables)
        with writing.begin():
            moving.set_counters(writing, tables, counters)
            self._target.dialect.search.reset(writing, tables, VERSION)
        moving.refresh(writing, [shape.table for shape in self._target.shapes])
        self._progress(Progress("indexing", "", len(left), len(left)))

    def _digests(self, connection: Connection) -> dict[str, Digest]:
        found = {}
        for shape in self._target.shapes:
            self._progress(Progress("verifying", shape.name, 0, None))
            digest, _ = self._target.dialect.moving.examine(connection, shape, {})
            found[shape.name] = digest
            self._progress(Progress("verifying", shape.name, digest.rows, digest.rows))
        return found

    def _open(self) -> None:
        """Let the target be opened; this commit waits for the disk, with all that came before."""
        with self._target.working() as connection, connection.begin():
            self._journal.end(connection)
            migrations.open_after_copy(connection, self._target.names)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._seconds[step] = self._seconds.get(step, 0.0) + time.monotonic() - started


class _Portions:
    """Cuts a stream of rows into pieces that are committed one by one.

    Attributes:
        count: The rows of the last piece.
        last_key: The key of its last row; None if it had no row.
    """

    def __init__(self, source: End, shape: Shape, rows: Iterator[Row]) -> None:
        self._source = source
        self._rows = rows
        self._key = shape.key_positions
        self.count = 0
        self.last_key: Key | None = None

    def next(self) -> Iterator[Row]:
        """Give the next piece; an error of the source is the source's, wherever it is met."""
        self.count, self.last_key = 0, None
        deadline = time.monotonic() + _PORTION_SECONDS
        row: Row | None = None
        with self._source.translating():
            for row in self._rows:
                yield row
                self.count += 1
                if self.count == _PORTION_ROWS or time.monotonic() > deadline:
                    break
        if row is not None:
            self.last_key = tuple(row[place] for place in self._key)


@contextmanager
def _open(url: str | URL, names: Names, *, read_only: bool) -> Iterator[End]:
    end = End(url, names, read_only=read_only)
    try:
        yield end
    finally:
        end.close()


def _refuse_the_same(source: End, target: End) -> None:
    same_place = source.names == target.names
    if same_place and _place(source.url) == _place(target.url):
        raise InvalidInput("The source and the target are the same database. Name another target.")


def _place(url: URL) -> tuple[object, ...]:
    database = url.database
    if url.host is None and database and Path(database).exists():
        database = str(Path(database).resolve())
    return url.get_backend_name(), url.host, url.port, database, url.query.get("host")


@contextmanager
def _upgraded(source: End) -> Iterator[End]:
    """Copy the source's file, and upgrade that."""
    with tempfile.TemporaryDirectory(prefix="agentstore-") as folder:
        with source.reading() as connection:
            url = source.dialect.moving.duplicate(connection, Path(folder))
        migrations.upgrade(url, names=source.names)
        with _open(url, source.names, read_only=True) as end:
            yield end
