"""Moving everything from one database to another, of the same engine or of the other one.

The source is only read, in one transaction, so that what arrives is one state of it. The target
has to be empty. While a copy is under way nobody can open the target: instead of its revision it
has a word that no version of agentstore accepts, and only the last transaction, after both sides
were read again and found equal, writes the revision. So a copy that was killed never looks
complete. The target records how far the copy has come, in the transactions that bring the rows,
and another run continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, BigInteger, Connection, Delete, Text, bindparam, delete

from agentstore import migrations
from agentstore.engines.base.moving import Key, Kind, Row, TableDigest, TableShape
from agentstore.errors import (
    AgentStoreError,
    ConstraintViolation,
    CopyDiffers,
    CopyInterrupted,
    CopySuperseded,
    CopyUnfinished,
    DatabaseError,
    InvalidInput,
    SchemaOutdated,
    TransactionConflict,
)
from agentstore.moving.copy_ends import (
    AGAIN,
    Contents,
    CopyReport,
    End,
    Journal,
    OnProgress,
    Progress,
    Quarantine,
    TableReport,
    Timing,
    compare,
    read_both,
    upgraded,
)
from agentstore.moving.copying_users import copy_users
from agentstore.repositories.operations import ids_of
from agentstore.schema import PLAIN, Names
from agentstore.values.tokens import tokenizer_of
from agentstore.values.types import SOUGHT_ID

__all__ = [
    "CopyReport",
    "OnProgress",
    "Progress",
    "Ready",
    "TableReport",
    "copy",
    "forget",
    "verify",
]

if TYPE_CHECKING:
    from agentstore.engines.sqlite.moving import ChangeLog


# Copying a database into another one, comparing two, and giving a copy up.


def copy(
    source: str | URL,
    target: str | URL,
    *,
    source_names: Names = PLAIN,
    target_names: Names = PLAIN,
    resume: bool = False,
    upgrade: bool = False,
    quarantine: Path | None = None,
    follow: Ready | None = None,
    users: Sequence[str] | None = None,
    move: bool = False,
    progress: OnProgress | None = None,
) -> CopyReport:
    """Copy everything from one database into another, which is empty; or single users.

    The search index is not copied: it is rebuilt from the messages, by the first searches or by
    ``store.search.reindex()``, with the same stems. Everything else is, with the numbers of the
    rows.

    Args:
        source: What is copied; only read, in one transaction. Others may go on writing to it;
            what they write after the beginning is not in the copy.
        target: Where to. A SQLite file that is not there is made; a PostgreSQL database has to be
            there. It is brought to head; agentstore's tables in it have to be empty.
        source_names: Schema and prefix of the source's tables.
        target_names: Schema and prefix of the target's tables.
        resume: Resume a copy of the same source that was interrupted. Tables of which an
            earlier run brought a part, and that have changed since, are copied again. A run that
            is not dead after all is superseded: it ends with CopySuperseded.
        upgrade: Where the source is behind head, copy a copy of it that is upgraded first.
            Only for SQLite files; it needs room for the file in the folder of temporary files.
        quarantine: A file to which invalid rows are written: of a wrong type, no
            UTF-8, referring to nothing. Without it they are refused. It must not be there yet, and
            is made only where there are such rows. A resumed run, or one that follows and finds
            others in the end, makes another one beside it, with a number.
        follow: Bring also what is written to the source meanwhile, and end when this, which is
            asked once the target is less than a second behind, says that nobody writes to the
            source any more. Only from a SQLite file, in which a table and triggers keep a log
            until the copy ends; see ``forget``. Who writes nevertheless after the yes waits
            until the target is open.
        users: Copy only these users with all that is theirs, into a target that may be in use.
            Each comes in one transaction, with row numbers that are new there and all ids as they
            are. Run the same again after an interruption: who is there, and equal, is only
            compared. None of ``resume``, ``upgrade``, ``quarantine`` and ``follow`` goes with it.
        move: Of users: close each in the source in the moment that the target has them, so that no
            write is lost, then delete them there.
        progress: Called now and then.

    Returns:
        What both sides hold. They are equal, or this raises.

    Raises:
        TargetNotEmpty: The target holds rows.
        CopyUnfinished: A copy into it was begun, and ``resume`` is not given.
        InvalidInput: The file for invalid rows is there already, or cannot be written; or what
            was begun into the target came from elsewhere.
        InvalidRows: The source holds rows that no other database would take. The target is as it
            was.
        SchemaError: The source is not at head; the error says what to run.
        CopyInterrupted: A database failed in the middle. Fix it, then run this with ``resume``.
        CopySuperseded: Another run, with ``resume``, goes on with this copy.
        CopyDiffers: The two sides are not equal. The target stays closed.
        DatabaseError: A database cannot be reached, or failed before anything was copied.
        NotFound: The source has no such user.
        TakenInTarget: The target has another user, or something of another's, under such an id.
        UserChanged: A user was written to all the time, and was not copied.
    """
    if users is not None and (resume or upgrade or quarantine is not None or follow is not None):
        raise InvalidInput(
            "resume, upgrade, quarantine and follow are for copies of everything. After an "
            "interruption run the same copy of users again."
        )
    if move and users is None:
        raise InvalidInput("move is for users: pass users too.")
    with ExitStack() as stack:
        from_ = stack.enter_context(closing(End(source, source_names, read_only=True)))
        to = stack.enter_context(closing(End(target, target_names, read_only=False)))
        if from_.names == to.names and from_.is_at(to):
            raise InvalidInput(
                "The source and the target are the same database. Choose another target."
            )
        if users is not None:
            if not (wanted := ids_of("users", users)):
                raise InvalidInput("users names no user. Pass the ids of those to copy.")
            if move and to.dialect.file_based and from_.is_at(to):
                raise InvalidInput(
                    "Users cannot be moved within one SQLite file, which has one writer. Copy "
                    "them without move, then delete them in the source."
                )
            return copy_users(from_, to, wanted, progress or (lambda _: None), move=move)
        origin = from_.fingerprint
        try:
            from_.require_head()
        except SchemaOutdated:
            if not upgrade:
                raise
            if follow is not None:
                raise InvalidInput(
                    "A source with an old schema cannot be followed. Run agentstore upgrade on it "
                    "first."
                ) from None
            from_ = stack.enter_context(upgraded(from_))
        report = progress or (lambda _: None)
        journal = Journal(to.names)
        following = None
        if follow is not None:
            writable = stack.enter_context(closing(End(source, source_names, read_only=False)))
            following = Following(writable, to, journal, follow, report)
        work = CopyRun(from_, to, journal, origin, report)
        return work.run(resume=resume, quarantine=quarantine, following=following)


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
        InvalidRows: One of them holds invalid rows.
        DatabaseError: A database cannot be reached, or failed.
    """
    report = progress or (lambda _: None)
    started = time.monotonic()
    with ExitStack() as stack:
        ends = (
            stack.enter_context(closing(End(source, source_names, read_only=True))),
            stack.enter_context(closing(End(target, target_names, read_only=True))),
        )
        for end in ends:
            end.require_head()
        pool = stack.enter_context(ThreadPoolExecutor(len(ends)))
        theirs = pool.submit(_read_whole, ends[1], lambda _: None)
        ours = _read_whole(ends[0], report)
        rows = compare(ours.digests, theirs.result().digests)
    return CopyReport(rows, seconds={"verifying": time.monotonic() - started})


def forget(source: str | URL, *, source_names: Names = PLAIN) -> bool:
    """Take away the log that a followed copy left in its source, where it will not be resumed.

    Returns:
        Whether there was one.
    """
    with closing(End(source, source_names, read_only=False)) as end:
        end.dialect.require_existing(end.url)
        log = change_log(end)
        with end.working() as connection, connection.begin():
            there = log.is_kept(connection, end.names)
            log.end(connection, end.names)
    return there


def _read_whole(end: End, progress: OnProgress) -> Contents:
    with end.reading() as connection:
        contents = read_both(end, connection, progress)
    contents.require_sound()
    return contents


# One run of a copy: read, load, index, follow, compare, open.


_GIVE_UP = (
    f"{CopyInterrupted.advice} To give the copy up, run it with --forget: otherwise the source "
    "keeps its log of changes forever."
)


@dataclass
class CopyRun:
    """One run of a copy; the origin is what tells the source, as it was given, from others."""

    _source: End
    _target: End
    _journal: Journal
    _origin: str
    _progress: OnProgress
    _timing: Timing = field(default_factory=Timing)

    def run(
        self, *, resume: bool, quarantine: Path | None, following: Following | None
    ) -> CopyReport:
        """Do what is left of the copy; see ``copy``."""
        resumed = self._require_room(resume=resume)
        aside = None if quarantine is None else Quarantine(quarantine, resumed=resumed)
        with ExitStack() as stack:
            unbegun = stack.enter_context(ExitStack())
            # Whatever changes from here on is in the log, if there is to be one.
            if following is not None and following.begin():
                unbegun.callback(_give_up, following)
            with self._source.reading() as reading:
                contents = self._inspect(reading, aside)
                if not resumed:
                    self._begin()
                unbegun.pop_all()
                stack.enter_context(self._stopping(followed=following is not None))
                writing = stack.enter_context(self._target.working())
                with self._target.translating():
                    self._target.dialect.moving.prepare_to_load(writing)
                if resumed:
                    self._take_over(writing)
                with self._timing.of("loading"):
                    loading = self._loading(reading, writing)
                    if following is None or not following.may_go_on(writing):
                        self._forget_followed(writing)
                        loading.all(contents)
                        if resumed:
                            loading.changed(contents)
                        if following is not None:
                            following.has_loaded(writing)
                counters = self._source.dialect.moving.counters(reading, self._source.tables)
            with self._timing.of("indexing"):
                self._run_statements(writing, last=False)
                if following is None:
                    self._refresh(writing)
            tables = None
            if following is not None:
                contents = self._follow(following, writing, aside)
                stack.enter_context(following.stopped(writing))
                tables = following.verdict
                with self._source.reading() as reading:
                    if tables is None:
                        contents = self._inspect(reading, aside)
                        if contents.flaws:  # some may have been brought while they were valid
                            self._forget_followed(writing)
                            self._loading(reading, writing).changed(contents)
                    counters = self._source.dialect.moving.counters(reading, self._source.tables)
            with self._timing.of("indexing"):
                if following is None:
                    self._run_statements(writing, last=True)
                else:
                    self._run_last_at_once(writing)
                self._complete(writing, counters)
            if tables is None:
                tables = compare(contents.digests, self._verify(contents, writing))
            self._open()
        if following is not None:
            following.end()
            self._prove()
        listed = str(aside.newest) if aside is not None and contents.flaws else None
        return CopyReport(tables, len(contents.flaws), resumed, self._timing, listed)

    def _follow(
        self, following: Following, writing: Connection, aside: Quarantine | None
    ) -> Contents:
        """Follow until the writers have stopped; compare both sides before they are asked to.

        Returns:
            What the source held before they were asked.
        """
        with self._timing.of("following"):
            following.catch_up(writing, ready=False)
        self._refresh(writing)
        with following.level(writing) as reading:
            contents = self._inspect(reading, aside)
            if not contents.flaws:
                following.keep(contents, self._verify(contents, writing))
        with self._timing.of("following"):
            following.catch_up(writing, ready=True)
        return contents

    def _require_room(self, *, resume: bool) -> bool:
        """Say whether a copy is resumed; refuse a target that is no place for one."""
        revision = self._target.revision()
        if revision == migrations.UNFINISHED:
            if not resume:
                raise CopyUnfinished(revision, migrations.HEAD)
            with self._target.working() as connection, connection.begin():
                origin = self._journal.source(connection)
            if origin != self._origin:
                raise InvalidInput(
                    "The unfinished copy into this database came from another source. Pass that "
                    "source, or start over with an empty database."
                )
            return True
        if revision is not None:
            with self._target.working() as connection, connection.begin():
                self._target.require_empty(connection, resume=resume)
        return False

    def _inspect(self, reading: Connection, quarantine: Quarantine | None) -> Contents:
        """Read the source whole, and deal with what is invalid."""
        with self._timing.of("reading"):
            longest = self._target.dialect.moving.longest_entry
            contents = read_both(self._source, reading, self._progress, longest, quarantine)
        if quarantine is None:
            contents.require_sound()
        else:
            quarantine.keep(contents.flaws)
        return contents

    def _begin(self) -> None:
        """Make an empty target ready; until here it was as it had been."""
        with self._timing.of("loading"):
            migrations.upgrade(self._target.url, names=self._target.names)
            with self._target.working() as connection, connection.begin():
                # First: another run that begins at the same moment waits here.
                migrations.close_for_copy(connection, self._target.names)
                if self._journal.is_there(connection):
                    raise CopyUnfinished(migrations.UNFINISHED, migrations.HEAD)
                self._target.require_empty(connection)
                stripped = self._target.dialect.moving.strip(connection, self._target.tables)
                self._journal.begin(connection, self._origin, stripped)

    def _forget_followed(self, writing: Connection) -> None:
        with self._target.committing(writing):
            self._journal.forget_followed(writing)

    def _loading(self, reading: Connection, writing: Connection) -> Loading:
        return Loading(self._source, self._target, self._journal, reading, writing, self._progress)

    def _take_over(self, writing: Connection) -> None:
        """Stop whichever run was the last one, then drop what it brought back last."""
        with self._target.committing(writing):
            migrations.close_for_copy(writing, self._target.names)  # an end of it is waited for
            self._journal.take_over(writing)
        with self._target.committing(writing):  # rows may come and go again
            loosened = self._target.dialect.moving.loosen(writing, self._target.tables)
            self._journal.add_last(writing, loosened)

    def _run_statements(self, writing: Connection, *, last: bool) -> None:
        """Bring back what was dropped; what is quick goes together into one transaction."""
        with self._target.committing(writing):
            left = self._journal.statements(writing, last=last)
        names, done = [*left], 0
        while done < len(names):
            self._progress(Progress("indexing", names[done], done, len(names)))
            first, until = done, time.monotonic() + _TOGETHER_SECONDS
            with self._target.committing(writing):
                while done == first or (done < len(names) and time.monotonic() < until):
                    writing.exec_driver_sql(left[names[done]])
                    done += 1
                self._journal.has_run(writing, *names[first:done], last=last)

    def _run_last_at_once(self, writing: Connection) -> None:
        """Bring back what comes last while writers wait, and leave the rest to ``_prove``."""
        self._progress(Progress("indexing", "", 0, None))
        moving = self._target.dialect.moving
        with self._target.committing(writing):
            left = self._journal.statements(writing, last=True)
            for statement in left.values():
                writing.exec_driver_sql(moving.unproven(statement))
            self._journal.has_run(writing, *left, last=True)

    def _complete(self, writing: Connection, counters: Mapping[str, int]) -> None:
        """Bring what no statement brings."""
        dialect, tables = self._target.dialect, self._target.tables
        with self._target.committing(writing):
            self._journal.require_own(writing)
            dialect.moving.set_counters(writing, tables, counters)
            with self._source.reading() as reading:
                origin = self._source.dialect.search(reading, self._source.tables)
                made = origin.state(1, thorough=True).segmentation
                asleep = origin.is_empty()
            tokenizer = str(tokenizer_of(made).made_anew(None, None))
            dialect.search(writing, tables).reset(tokenizer, asleep=asleep)

    def _refresh(self, writing: Connection) -> None:
        """Refresh the planner's statistics, which reading row by row needs too."""
        with self._timing.of("indexing"), self._target.translating():
            tables = [shape.table for shape in self._target.shapes]
            self._target.dialect.moving.refresh(writing, tables)

    def _verify(self, contents: Contents, writing: Connection) -> dict[str, TableDigest]:
        """Read the target whole; where it differs, the next run looks at every table again."""
        found = {}
        with self._timing.of("verifying"), self._target.reading() as connection:
            for shape in self._target.shapes:
                self._progress(Progress("verifying", shape.name, 0, None))
                digest, _ = self._target.dialect.moving.examine(connection, shape, {})
                found[shape.name] = digest
                self._progress(Progress("verifying", shape.name, digest.rows, digest.rows))
        different = [name for name, digest in contents.digests.items() if found[name] != digest]
        if different:
            self._forget_followed(writing)
            raise CopyDiffers(tuple(different), AGAIN)
        return found

    def _open(self) -> None:
        """Let the target be opened; this commit waits for the disk, with all that came before."""
        with self._target.working() as connection, connection.begin():
            migrations.open_after_copy(connection, self._target.names)
            self._journal.require_complete(connection)
            self._journal.end(connection)

    def _prove(self) -> None:
        """Do what need not be done before others write; nothing is lost if it is not done."""
        moving = self._target.dialect.moving
        with self._timing.of("indexing"), self._target.working() as connection:
            moving.prepare_to_load(connection)
            moving.prove(connection, self._target.tables)

    @contextmanager
    def _stopping(self, *, followed: bool) -> Iterator[None]:
        """Say how to go on after a failure."""
        try:
            yield
        except CopySuperseded:
            raise
        except AgentStoreError as error:
            if self._is_superseded():
                raise CopySuperseded from error
            if isinstance(error, CopyDiffers):
                raise
            advice = _GIVE_UP if followed else CopyInterrupted.advice
            raise CopyInterrupted(str(error), advice) from error

    def _is_superseded(self) -> bool:
        with suppress(AgentStoreError), self._target.reading() as connection:
            return self._journal.is_superseded(connection)
        return False


def _give_up(following: Following) -> None:
    """Take the log of a copy that came to nothing away, if that can be done."""
    with suppress(AgentStoreError):
        following.end()


# Bringing rows, piece by piece; the journal knows in the same transaction what has arrived.


_PORTION_SECONDS, _PORTION_ROWS = 1.0, 100_000
"""A transaction of the target ends after so long, or so many rows."""

_TOGETHER_SECONDS = 0.5
"""One that brings indexes and constraints back takes no further one after so long."""


@dataclass
class Loading:
    """Brings the rows of a source that is read in one transaction."""

    _source: End
    _target: End
    _journal: Journal
    _reading: Connection
    _writing: Connection
    _progress: OnProgress

    def all(self, contents: Contents) -> None:
        """Bring every table, each from the last row that has arrived on."""
        for own, theirs in zip(self._source.shapes, self._target.shapes, strict=True):
            self._table(own, theirs, contents)

    def changed(self, contents: Contents) -> None:
        """Bring those tables once more that do not hold what they should.

        They changed after an earlier run had brought a part of them.
        """
        for own, theirs in zip(self._source.shapes, self._target.shapes, strict=True):
            with self._target.committing(self._writing):
                found, _ = self._target.dialect.moving.examine(self._writing, theirs, {})
            if found != contents.digests[own.name]:
                self._empty(own, theirs)
                self._table(own, theirs, contents)

    def _table(self, own: TableShape, theirs: TableShape, contents: Contents) -> None:
        """Load a table; begin again where what has arrived of it is in the way.

        Where the source went on between two runs, a row may have now what is unique and was that
        of another one, which has arrived.
        """
        try:
            with self._target.translating():
                self._rest(own, theirs, contents)
        except (ConstraintViolation, TransactionConflict):
            with self._target.committing(self._writing):
                self._journal.require_own(self._writing)
                after, _ = self._journal.arrived(self._writing, own.name)
            if after is None:
                raise
            self._empty(own, theirs)
            self._rest(own, theirs, contents)

    def _empty(self, own: TableShape, theirs: TableShape) -> None:
        with self._target.committing(self._writing):
            self._writing.execute(delete(theirs.table))
            self._journal.forget(self._writing, own.name)

    def _rest(self, own: TableShape, theirs: TableShape, contents: Contents) -> None:
        total = contents.digests[own.name].rows
        with self._target.committing(self._writing):
            after, count = self._journal.arrived(self._writing, own.name)
        moving = self._source.dialect.moving
        with closing(moving.read(self._reading, own, after, contents.left_out)) as rows:
            portions = _Portions(self._source, rows, own)
            while portions.more:
                self._progress(Progress("loading", own.name, count, total))
                with self._target.committing(self._writing):
                    self._target.dialect.moving.load(self._writing, theirs, portions.next())
                    if portions.last_key is not None:
                        count += portions.count
                        self._journal.has_arrived(self._writing, own.name, portions.last_key, count)
        self._progress(Progress("loading", own.name, count, count))


class _Portions:
    """Cuts the rows of a table into pieces that are committed one by one.

    Attributes:
        count: The rows of the last piece.
        last_key: The key of its last row; None if it had no row.
        more: Whether there may be another one.
    """

    def __init__(self, source: End, rows: Iterator[Row], shape: TableShape) -> None:
        self._source = source
        self._rows = rows
        self._key = shape.key_positions
        self.count = 0
        self.last_key: Key | None = None
        self.more = True

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
            else:
                self.more = False
        if row is not None:
            self.last_key = tuple(row[place] for place in self._key)


# Following a source that goes on being written to, until its writers go over to the target.
#
# From before the first row is read the source keeps a log of the keys of rows that change. A
# round takes what the log has gained, and replaces these rows in the target by what they are now,
# or takes them out, all in one transaction that also notes how far the log was followed. So a
# round may be done twice. As all that the log holds at one moment is taken together with the rows
# of the same moment, the target holds after each round exactly one state of the source.
#
# Before anybody is asked to stop, both sides are read whole at one such state, and compared. From
# then on each round compares what it replaced, and keeps the digests of the whole tables up to
# date: they are sums over rows, so what goes is taken off and what comes is added. So nothing
# that was compared is read again at the end, unless its row changed, and the end takes as long as
# the last changes do, however large the database is. Invalid rows end this: whether
# others refer to them cannot be told from the changes, so then all is read once more at the end.


Ready = Callable[[], bool]
"""Asked again and again once the target is less than a second behind: whether nobody writes to
the source any more, so that the copy can end."""

_CLOSE = 1.0
"""Seconds that a round may have taken, for the target to be close behind."""

_PAUSE = 0.1
"""Seconds between two rounds, and between two questions."""


class Following:
    """Brings the changes of a source."""

    def __init__(
        self, source: End, target: End, journal: Journal, ready: Ready, progress: OnProgress
    ) -> None:
        """Keep the ends; the source's is one that can be written to.

        Raises:
            InvalidInput: The source's engine keeps no such log.
        """
        self._source = source
        self._target = target
        self._journal = journal
        self._ready = ready
        self._progress = progress
        self._log = change_log(source)
        self._id = ""
        self._rows = 0
        self._digests: tuple[dict[str, TableDigest], dict[str, TableDigest]] | None = None

    def begin(self) -> bool:
        """Let the source log its changes, unless it does so already.

        Returns:
            Whether this made the log.
        """
        names = self._source.names
        with self._source.working() as connection, connection.begin():
            found = self._log.identity(connection, names, self._source.shapes)
            self._id = found or self._log.begin(connection, names, self._source.shapes)
        return found is None

    def end(self) -> None:
        """Let it log no more, unless the log is another one by now."""
        names = self._source.names
        with self._source.working() as connection, connection.begin():
            if self._log.identity(connection, names, self._source.shapes) == self._id:
                self._log.end(connection, names)

    def may_go_on(self, writing: Connection) -> bool:
        """Say whether the target holds what the source did at some change in this very log."""
        with self._target.committing(writing):
            return self._journal.followed(writing, self._id) is not None

    def has_loaded(self, writing: Connection) -> None:
        """Note that the target holds what the source did at some time since the log began."""
        with self._target.committing(writing):
            self._journal.has_followed(writing, self._id, 0)

    def catch_up(self, writing: Connection, *, ready: bool) -> None:
        """Follow until the target is close behind.

        Args:
            writing: Where the changes are brought.
            ready: Whether to go on until one is told that nobody writes any more.
        """
        while True:
            started = time.monotonic()
            with self.level(writing):
                pass
            if time.monotonic() - started < _CLOSE and (not ready or self._ready()):
                return
            time.sleep(_PAUSE)

    @contextmanager
    def stopped(self, writing: Connection) -> Iterator[None]:
        """Lock the source against writers for the last round, once all has arrived."""
        with self._source.working() as holding:
            with self.level(writing):
                pass
            with holding.begin():  # writers wait from here on
                with self.level(writing):
                    pass
                yield

    @contextmanager
    def level(self, writing: Connection) -> Iterator[Connection]:
        """Bring what has changed; give a connection to the source as the target is then."""
        names = self._source.names
        with self._target.committing(writing):
            done = self._journal.followed(writing, self._id) or 0
        with self._source.reading() as reading:
            if self._log.identity(reading, names, self._source.shapes) != self._id:
                raise DatabaseError("The source's log of changes was removed by another program.")
            newest = self._log.newest(reading, names)
            if newest != done:
                self._round(reading, writing, done, newest)
            yield reading

    def _round(self, reading: Connection, writing: Connection, after: int, upto: int) -> None:
        try:
            with self._target.committing(writing):
                self._log.gather(reading, self._source.names, after, upto)
                for own, theirs in zip(self._source.shapes, self._target.shapes, strict=True):
                    self._replace(reading, writing, own, theirs)
                self._journal.has_followed(writing, self._id, upto)
        except CopyDiffers:
            with self._target.committing(writing):
                self._journal.forget_followed(writing)
            raise
        self._progress(Progress("following", "", self._rows, None))

    def keep(self, contents: Contents, digests: dict[str, TableDigest]) -> None:
        """Keep the digests of two whole databases that are level up to date from here on."""
        self._digests = (dict(contents.digests), dict(digests))

    @property
    def verdict(self) -> tuple[TableReport, ...] | None:
        """What both sides hold; None where that is to be read."""
        return None if self._digests is None else compare(*self._digests)

    def _replace(
        self, reading: Connection, writing: Connection, own: TableShape, theirs: TableShape
    ) -> None:
        """Take out all rows of a table that changed, then bring those that are there now.

        In this order, because a row may have now what is unique and was another's before.
        """
        query = _deletion(theirs)
        gone = []
        for keys in self._log.keys(reading, own):
            if self._digests is not None:
                gone.append(self._target.dialect.moving.examine(writing, theirs, {}, among=keys)[0])
            writing.execute(query, [dict(zip(theirs.key, key, strict=True)) for key in keys])
        for place, keys in enumerate(self._log.keys(reading, own)):
            self._target.dialect.moving.load(writing, theirs, self._log.rows(reading, own, keys))
            self._rows += len(keys)
            if self._digests is not None:
                self._compare(reading, writing, own, theirs, keys, gone[place])

    def _compare(
        self,
        reading: Connection,
        writing: Connection,
        own: TableShape,
        theirs: TableShape,
        keys: Sequence[Key],
        gone: TableDigest,
    ) -> None:
        """Compare rows that were replaced, and put them into the digests of the whole tables.

        Raises:
            CopyDiffers: They are not equal; what the round brought is given up.
        """
        ours, at = self._source.dialect.moving, self._target.dialect.moving
        longest = at.longest_entry
        here, flaws = ours.examine(reading, own, {}, longest, among=keys)
        if flaws or ours.dangling(reading, own, {}, among=keys):
            self._digests = None
            return
        there, _ = at.examine(writing, theirs, {}, among=keys)
        if here != there:
            raise CopyDiffers((own.name,), AGAIN)
        assert self._digests is not None
        for digests, come in zip(self._digests, (here, there), strict=True):
            digests[own.name] = digests[own.name].after(gone, come)


def change_log(source: End) -> ChangeLog:
    """Give the source's log.

    Raises:
        InvalidInput: Its engine keeps none.
    """
    log = source.dialect.change_log
    if log is None:
        raise InvalidInput(
            "Only a SQLite file can be followed. Stop the programs that write to the source and "
            "copy it without --follow, or use the server's replication."
        )
    return log


def _deletion(shape: TableShape) -> Delete:
    """Delete by the key as it travels: text as it is stored, which no type is to write again."""
    kinds = dict(shape.columns)
    types: dict[Kind, Any] = {Kind.WHOLE: BigInteger(), Kind.ID: SOUGHT_ID}
    conditions = [
        shape.column(name) == bindparam(name, type_=types.get(kinds[name], Text()))
        for name in shape.key
    ]
    return delete(shape.table).where(*conditions)
