"""Bringing rows, piece by piece; the journal knows in the same transaction what has arrived."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from sqlalchemy import Connection, delete

from agentstore.engines.base.moving import Key, Row, TableShape
from agentstore.errors import ConstraintViolation, TransactionConflict
from agentstore.moving.copying.ends import End
from agentstore.moving.copying.inspection import Contents
from agentstore.moving.copying.journal import Journal
from agentstore.moving.copying.records import OnProgress, Progress

_PORTION_SECONDS, _PORTION_ROWS = 1.0, 100_000
"""A transaction of the target ends after so long, or so many rows."""


class Loading:
    """Brings the rows of a source that is read in one transaction."""

    def __init__(
        self,
        source: End,
        target: End,
        journal: Journal,
        reading: Connection,
        writing: Connection,
        progress: OnProgress,
    ) -> None:
        """Keep the two connections."""
        self._source = source
        self._target = target
        self._journal = journal
        self._reading = reading
        self._writing = writing
        self._progress = progress

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
            while True:
                self._progress(Progress("loading", own.name, count, total))
                with self._target.committing(self._writing):
                    self._target.dialect.moving.load(self._writing, theirs, portions.next())
                    if portions.last_key is None:
                        break
                    count += portions.count
                    self._journal.has_arrived(self._writing, own.name, portions.last_key, count)
        self._progress(Progress("loading", own.name, count, count))


class _Portions:
    """Cuts the rows of a table into pieces that are committed one by one.

    Attributes:
        count: The rows of the last piece.
        last_key: The key of its last row; None if it had no row.
    """

    def __init__(self, source: End, rows: Iterator[Row], shape: TableShape) -> None:
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
