"""Reading the rows of an archive, as ``pg_restore`` writes them out: the text form of COPY.

Source: PostgreSQL documentation, COPY, "Text Format". Columns are between tabs; a backslash begins
what stands for a control character, or, before an N, for NULL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from agentstore.engines.base.digests import Summing, batches
from agentstore.engines.base.moving import MOST_FLAWS, Digest, Kind, Row, Shape
from agentstore.errors import DatabaseCorrupt

_COPY = re.compile(rb'COPY ("?)([^" .]+)\1\.("?)([^" .]+)\3 \((.*)\) FROM stdin;\n')
_END = b"\\.\n"
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_STANDS_FOR = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_BEYOND = re.compile(rb"-?infinity|[0-9]{5,}-.*|.* BC", re.DOTALL)
"""Instants that the server can hold and no other engine can."""

_UNSOUND = object()
"""Stands for a value that no other engine can hold."""


class LeftOut:
    """The rows of an archive that have no part in the digests, as in a database that is read whole.

    These are the rows that no other engine can hold, and those that refer to one of these. An
    archive may have a row before the one that it refers to; so it is read again, all of it, until
    no more such rows are found. One without them is read once.
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        """Begin with none."""
        self.rows = 0
        self._before = 0
        self._gone: dict[tuple[str, tuple[str, ...]], set[Row]] = {}
        self._references: dict[str, list[tuple[tuple[int, ...], set[Row]]]] = {}
        for shape in shapes:
            self._references[shape.name] = [
                (
                    _places(shape, [element.parent.name for element in constraint.elements]),
                    self._gone.setdefault(
                        (
                            constraint.referred_table.name,
                            tuple(element.column.name for element in constraint.elements),
                        ),
                        set(),
                    ),
                )
                for constraint in shape.table.foreign_key_constraints
            ]

    def begin(self) -> None:
        """Begin to read the archive, from its first row on."""
        self._before, self.rows = self.rows, 0

    def is_settled(self) -> bool:
        """Say whether this reading found what the one before did."""
        return self.rows == self._before

    def takes(self, shape: Shape, row: Row) -> bool:
        """Say whether a row is left out.

        Raises:
            DatabaseCorrupt: There are too many of them.
        """
        if _UNSOUND not in row and not any(
            gone and tuple(row[place] for place in places) in gone
            for places, gone in self._references[shape.name]
        ):
            return False
        for (table, columns), gone in self._gone.items():
            if table == shape.table.name:
                key = tuple(row[place] for place in _places(shape, columns))
                if None not in key:  # to which nothing can refer
                    gone.add(key)
        self.rows += 1
        if self.rows > MOST_FLAWS:
            raise DatabaseCorrupt(
                f"More than {MOST_FLAWS:,} rows hold values that agentstore never writes. Check "
                "the database that was saved: it may belong to another program."
            )
        return True


def _places(shape: Shape, columns: Sequence[str]) -> tuple[int, ...]:
    names = [name for name, _ in shape.columns]
    return tuple(names.index(name) for name in columns)


class Lines:
    """The rows of one table; they can be read once."""

    def __init__(self, source: Iterator[bytes]) -> None:
        """Stand before the first row."""
        self._source = source
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        """Give them, without the end of the line."""
        for line in self._source:
            if line == _END:
                self._ended = True
                return
            yield line[:-1]

    def count(self) -> int:
        """Count them."""
        return sum(1 for _ in self)

    def digest(self, shape: Shape, columns: Sequence[str], left_out: LeftOut) -> tuple[int, Digest]:
        """Count the rows, and compute the digest of those that are not left out."""
        rows = 0
        reads = [_READERS[kind] for _, kind in shape.columns]
        places = [columns.index(name) for name, _ in shape.columns]
        summing = Summing([kind for _, kind in shape.columns])
        for batch in batches(_row(line, places, reads) for line in self):
            rows += len(batch)
            summing.add([row[:-1] for row in batch if not left_out.takes(shape, row)])
        return rows, summing.digest()

    def skip(self) -> None:
        """Go behind the last one."""
        if not self._ended:
            self.count()


def read_rows(source: Iterator[bytes], schema: str) -> Iterator[tuple[str, list[str], Lines]]:
    """Give the tables of a schema: the name, the columns in their order, and the rows.

    Args:
        source: What ``pg_restore`` writes.
        schema: The schema's name.
    """
    for line in source:
        found = _COPY.fullmatch(line)
        if found is None:
            continue
        lines = Lines(source)
        if found[2].decode() == schema:
            columns = [name.strip('"') for name in found[5].decode().split(", ")]
            yield found[4].decode(), columns, lines
        lines.skip()


def _row(line: bytes, places: Sequence[int], reads: Sequence[Callable[[bytes], Any] | None]) -> Row:
    """Read a row; behind its values comes the length of the line."""
    fields = line.split(b"\t")
    values: list[Any] = []
    for place, read in zip(places, reads, strict=True):
        field = fields[place]
        if field == b"\\N":
            values.append(None)
            continue
        if b"\\" in field:
            field = _ESCAPED.sub(_unescaped, field)
        values.append(field if read is None else read(field))
    return *values, len(line)


def _unescaped(found: re.Match[bytes]) -> bytes:
    return _STANDS_FOR.get(found[1], found[1])


def _instant(field: bytes) -> object:
    try:
        instant = datetime.fromisoformat(field.decode()).astimezone(UTC)
    except OverflowError:
        return _UNSOUND
    except ValueError:
        if _BEYOND.fullmatch(field):
            return _UNSOUND
        raise
    return instant.isoformat(timespec="microseconds").encode()


def _real(field: bytes) -> object:
    number = float(field)
    return number if math.isfinite(number) else _UNSOUND


_READERS: dict[Kind, Callable[[bytes], Any] | None] = {
    Kind.TEXT: None,
    Kind.JSON: None,
    Kind.INSTANT: _instant,
    Kind.WHOLE: int,
    Kind.REAL: _real,
    Kind.FLAG: lambda field: int(field == b"t"),
    Kind.BYTES: lambda field: bytes.fromhex(field[2:].decode()),
}
