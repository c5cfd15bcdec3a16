"""Following a source that goes on being written to, until its writers go over to the target.

From before the first row is read the source keeps a log of the keys of rows that change. A round
takes what the log has gained, and replaces these rows in the target by what they are now, or takes
them out, all in one transaction that also notes how far the log was followed. So a round may be
done twice. As all that the log holds at one moment is taken together with the rows of the same
moment, the target holds after each round exactly one state of the source.

Before anybody is asked to stop, both sides are read whole at one such state, and compared. From
then on each round compares what it replaced, and keeps the digests of the whole tables up to date:
they are sums over rows, so what goes is taken off and what comes is added. So nothing that was
compared is read again at the end, unless its row changed, and the end takes as long as the last
changes do, however large the database is. Rows that are not sound end this: whether others refer
to them cannot be told from the changes, so then all is read once more at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Connection, Delete, Text, bindparam, delete

from agentstore.engines.base.moving import Key, Kind, TableDigest, TableShape
from agentstore.errors import CopyDiffers, DatabaseError, InvalidInput
from agentstore.moving.copying.ends import End
from agentstore.moving.copying.inspection import AGAIN, Contents, compare
from agentstore.moving.copying.journal import Journal
from agentstore.moving.copying.records import OnProgress, Progress, TableReport
from agentstore.values.own_ids import SOUGHT_ID

if TYPE_CHECKING:
    from agentstore.engines.sqlite.changes import ChangeLog

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
                self._log.end(connection, names, self._source.shapes)

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
                for own, theirs in zip(self._source.shapes, self._target.shapes, strict=True):
                    self._replace(reading, writing, own, theirs, after, upto)
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
        self,
        reading: Connection,
        writing: Connection,
        own: TableShape,
        theirs: TableShape,
        after: int,
        upto: int,
    ) -> None:
        """Take out all rows of a table that changed, then bring those that are there now.

        In this order, because a row may have now what is unique and was another's before.
        """
        names = self._source.names
        query = _deletion(theirs)
        gone = []
        for keys in self._log.keys(reading, names, own, after, upto):
            if self._digests is not None:
                gone.append(self._target.dialect.moving.examine(writing, theirs, {}, among=keys)[0])
            writing.execute(query, [dict(zip(theirs.key, key, strict=True)) for key in keys])
        for place, keys in enumerate(self._log.keys(reading, names, own, after, upto)):
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
