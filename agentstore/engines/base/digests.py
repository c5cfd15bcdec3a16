"""Digests of rows that were read as text; ``agentstore.engines.base.moving`` has the formula."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from agentstore.engines.base.moving import Kind, Row, TableDigest

_HALVES: Callable[[bytes], tuple[int, int]] = struct.Struct(">qq16x").unpack
_REAL = struct.Struct(">d").pack
_BATCH_ROWS, _BATCH_LENGTH = 500, 4_000_000
"""A batch that is digested together ends at so many rows, or characters."""


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Give rows together; the last value of each is its length, or so."""
    batch: list[Row] = []
    room = _BATCH_LENGTH
    for row in rows:
        batch.append(row)
        room -= row[-1]
        if room < 0 or len(batch) == _BATCH_ROWS:
            yield batch
            batch, room = [], _BATCH_LENGTH
    if batch:
        yield batch


class Summing:
    """Sums up the hashes of rows.

    Text, ids, JSON and instants are bytes, flags and whole numbers are whole numbers.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        """Take the kinds of the columns."""
        self._writers = [_WRITERS[kind] for kind in kinds]
        self._rows = 0
        self._first = 0
        self._second = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows, each with as many values as there are columns."""
        self._rows += len(rows)
        for line in self._lines(rows):
            first, second = _HALVES(hashlib.sha256(line).digest())
            self._first += first
            self._second += second

    def digest(self) -> TableDigest:
        """Give what they come to."""
        return TableDigest(self._rows, (self._first, self._second))

    def _lines(self, rows: Sequence[Row]) -> Iterator[bytes]:
        if not rows:
            return iter(())
        columns = zip(*rows, strict=True)
        written = [write(column) for write, column in zip(self._writers, columns, strict=True)]
        return map(b"".join, zip(*written, strict=True))


def _text(column: Sequence[Any]) -> list[bytes]:
    return [b":" if value is None else b"%d:%b" % (len(value), value) for value in column]


def _whole(column: Sequence[Any]) -> list[bytes]:
    return [b"," if value is None else b"%d," % value for value in column]


def _instant(column: Sequence[Any]) -> list[bytes]:
    return [b"," if value is None else value + b"," for value in column]


def _real(column: Sequence[Any]) -> list[bytes]:
    # Adding zero takes the sign off a zero, which SQLite does not always keep.
    return [
        b"," if value is None else b"%b," % _REAL(value + 0.0).hex().encode() for value in column
    ]


def _bytes(column: Sequence[Any]) -> list[bytes]:
    return [
        b"," if value is None else b"%b," % hashlib.sha256(value).hexdigest().encode()
        for value in column
    ]


_WRITERS: dict[Kind, Callable[[Sequence[Any]], list[bytes]]] = {
    Kind.TEXT: _text,
    Kind.ID: _text,
    Kind.JSON: _text,
    Kind.INSTANT: _instant,
    Kind.WHOLE: _whole,
    Kind.REAL: _real,
    Kind.FLAG: _whole,
    Kind.BYTES: _bytes,
}
