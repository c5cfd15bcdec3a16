"""One run of a copy: read, load, index, follow, compare, open."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection

from agentstore import migrations
from agentstore.engines.base.moving import TableDigest
from agentstore.errors import (
    AgentStoreError,
    CopyDiffers,
    CopyInterrupted,
    CopyOvertaken,
    CopyUnfinished,
    InvalidInput,
)
from agentstore.moving.copying.ends import End
from agentstore.moving.copying.following import Following
from agentstore.moving.copying.inspection import AGAIN, Contents, compare, inspect
from agentstore.moving.copying.journal import Journal
from agentstore.moving.copying.loading import Loading
from agentstore.moving.copying.quarantine import Quarantine
from agentstore.moving.copying.records import CopyReport, OnProgress, Progress
from agentstore.values.text.manners import manner_of

_GIVE_UP = (
    f"{CopyInterrupted.advice} To give the copy up, run it with --forget: otherwise the source "
    "keeps its log of changes forever."
)


class CopyRun:
    """One run of a copy."""

    def __init__(
        self, source: End, target: End, journal: Journal, origin: str, progress: OnProgress
    ) -> None:
        """Keep the ends; the origin is what tells the source, as it was given, from others."""
        self._source = source
        self._target = target
        self._origin = origin
        self._progress = progress
        self._journal = journal
        self._seconds: dict[str, float] = {}

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
                    self._loosen(writing)
                with self._timed("loading"):
                    loading = self._loading(reading, writing)
                    if following is None or not following.may_go_on(writing):
                        self._forget_followed(writing)
                        loading.all(contents)
                        if resumed:
                            loading.changed(contents)
                        if following is not None:
                            following.has_loaded(writing)
                counters = self._source.dialect.moving.counters(reading, self._source.tables)
            with self._timed("indexing"):
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
                        if contents.flaws:  # some may have been brought while they were sound
                            self._forget_followed(writing)
                            self._loading(reading, writing).changed(contents)
                    counters = self._source.dialect.moving.counters(reading, self._source.tables)
            with self._timed("indexing"):
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
        return CopyReport(tables, len(contents.flaws), resumed, self._seconds, listed)

    def _follow(
        self, following: Following, writing: Connection, aside: Quarantine | None
    ) -> Contents:
        """Follow until the writers have stopped; compare both sides before they are asked to.

        Returns:
            What the source held before they were asked.
        """
        with self._timed("following"):
            following.catch_up(writing, ready=False)
        self._refresh(writing)
        with following.level(writing) as reading:
            contents = self._inspect(reading, aside)
            if not contents.flaws:
                following.keep(contents, self._verify(contents, writing))
        with self._timed("following"):
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
                self._target.require_empty(connection)
        return False

    def _inspect(self, reading: Connection, quarantine: Quarantine | None) -> Contents:
        """Read the source whole, and deal with what is not sound."""
        with self._timed("reading"):
            longest = self._target.dialect.moving.longest_entry
            contents = inspect(self._source, reading, self._progress, longest, quarantine)
        if quarantine is None:
            contents.require_sound()
        else:
            quarantine.keep(contents.flaws)
        return contents

    def _begin(self) -> None:
        """Make an empty target ready; until here it was as it had been."""
        with self._timed("loading"):
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
        """Stop whichever run was the last one, before anything of what it relies on is dropped."""
        with self._target.committing(writing):
            migrations.close_for_copy(writing, self._target.names)  # an end of it is waited for
            self._journal.take_over(writing)

    def _loosen(self, writing: Connection) -> None:
        """Drop what an earlier run brought back last, for rows may come and go again."""
        with self._target.committing(writing):
            loosened = self._target.dialect.moving.loosen(writing, self._target.tables)
            self._journal.add_last(writing, loosened)

    def _run_statements(self, writing: Connection, *, last: bool) -> None:
        """Bring back what was dropped, each in a transaction of its own."""
        with self._target.committing(writing):
            left = self._journal.statements(writing, last=last)
        for done, (name, statement) in enumerate(left.items()):
            self._progress(Progress("indexing", name, done, len(left)))
            with self._target.committing(writing):
                writing.exec_driver_sql(statement)
                self._journal.has_run(writing, name, last=last)

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
                origin, theirs = self._source.dialect.search, self._source.tables
                made = origin.state(reading, theirs, 1, thorough=True).segmentation
            dialect.search.reset(writing, tables, str(manner_of(made).made_anew(None, None)))

    def _refresh(self, writing: Connection) -> None:
        """Refresh the planner's statistics, which reading row by row needs too."""
        with self._timed("indexing"), self._target.translating():
            tables = [shape.table for shape in self._target.shapes]
            self._target.dialect.moving.refresh(writing, tables)

    def _verify(self, contents: Contents, writing: Connection) -> dict[str, TableDigest]:
        """Read the target whole; where it differs, the next run looks at every table again."""
        found = {}
        with self._timed("verifying"), self._target.reading() as connection:
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
        with self._timed("indexing"), self._target.working() as connection:
            moving.prepare_to_load(connection)
            moving.prove(connection, self._target.tables)

    @contextmanager
    def _stopping(self, *, followed: bool) -> Iterator[None]:
        """Say how to go on after a failure."""
        try:
            yield
        except CopyOvertaken:
            raise
        except AgentStoreError as error:
            if self._is_overtaken():
                raise CopyOvertaken from error
            if isinstance(error, CopyDiffers):
                raise
            advice = _GIVE_UP if followed else CopyInterrupted.advice
            raise CopyInterrupted(str(error), advice) from error

    def _is_overtaken(self) -> bool:
        with suppress(AgentStoreError), self._target.reading() as connection:
            return self._journal.is_overtaken(connection)
        return False

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._seconds[step] = self._seconds.get(step, 0.0) + time.monotonic() - started


def _give_up(following: Following) -> None:
    """Take the log of a copy that came to nothing away, if that can be done."""
    with suppress(AgentStoreError):
        following.end()
