"""Copying a database into another one, comparing two, and giving a copy up."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import URL

from agentstore.errors import (
    InvalidInput,
    SchemaOutdated,
)
from agentstore.models.tables import PLAIN, Names
from agentstore.moving.copying.ends import End, opened, upgraded
from agentstore.moving.copying.following import Following, Ready, change_log
from agentstore.moving.copying.inspection import Contents, compare, inspect
from agentstore.moving.copying.journal import Journal
from agentstore.moving.copying.records import CopyReport, OnProgress
from agentstore.moving.copying.runs import CopyRun


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
    progress: OnProgress | None = None,
) -> CopyReport:
    """Copy everything from one database into another, which is empty.

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
            is not dead after all is overtaken: it ends with CopyOvertaken.
        upgrade: Where the source is behind head, copy a copy of it that is upgraded first.
            Only for SQLite files; it needs room for the file in the folder of temporary files.
        quarantine: A file to which rows are written that are not sound: of a wrong type, no
            UTF-8, referring to nothing. Without it they are refused. It must not be there yet, and
            is made only where there are such rows. A resumed run, or one that follows and finds
            others in the end, makes another one beside it, with a number.
        follow: Bring also what is written to the source meanwhile, and end when this, which is
            asked once the target is less than a second behind, says that nobody writes to the
            source any more. Only from a SQLite file, in which a table and triggers keep a log
            until the copy ends; see ``forget``. Who writes nevertheless after the yes waits
            until the target is open.
        progress: Called now and then.

    Returns:
        What both sides hold. They are equal, or this raises.

    Raises:
        TargetNotEmpty: The target holds rows.
        CopyUnfinished: A copy into it was begun, and ``resume`` is not given.
        InvalidInput: The file for unsound rows is there already, or cannot be written; or what
            was begun into the target came from elsewhere.
        UnsoundRows: The source holds rows that no other database would take. The target is as it
            was.
        SchemaError: The source is not at head; the error says what to run.
        CopyInterrupted: A database failed in the middle. Mend it, then run this with ``resume``.
        CopyOvertaken: Another run, with ``resume``, goes on with this copy.
        CopyDiffers: The two sides are not equal. The target stays closed.
        DatabaseError: A database cannot be reached, or failed before anything was copied.
    """
    with ExitStack() as stack:
        from_ = stack.enter_context(opened(source, source_names, read_only=True))
        to = stack.enter_context(opened(target, target_names, read_only=False))
        _refuse_the_same(from_, to)
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
            writable = stack.enter_context(opened(source, source_names, read_only=False))
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
        UnsoundRows: One of them holds rows that are not sound.
        DatabaseError: A database cannot be reached, or failed.
    """
    report = progress or (lambda _: None)
    started = time.monotonic()
    with ExitStack() as stack:
        ends = (
            stack.enter_context(opened(source, source_names, read_only=True)),
            stack.enter_context(opened(target, target_names, read_only=True)),
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
    with opened(source, source_names, read_only=False) as end:
        end.dialect.require_existing(end.url)
        log = change_log(end)
        with end.working() as connection, connection.begin():
            there = log.is_kept(connection, end.names)
            log.end(connection, end.names, end.shapes)
    return there


def _read_whole(end: End, progress: OnProgress) -> Contents:
    with end.reading() as connection:
        contents = inspect(end, connection, progress)
    contents.require_sound()
    return contents


def _refuse_the_same(source: End, target: End) -> None:
    if source.names == target.names and source.place == target.place:
        raise InvalidInput(
            "The source and the target are the same database. Choose another target."
        )
