"""Reading the rows of an archive, as ``pg_restore`` writes them out: the text form of COPY.

Source: PostgreSQL documentation, COPY, "Text Format". Columns are between tabs; a backslash begins
what stands for a control character, or, before an N, for NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any

from agentstore.dialects.digests import Summing
from agentstore.dialects.moving import Digest, Kind, Row, Shape

_COPY = re.compile(rb'COPY ("?)([^" .]+)\1\.("?)([^" .]+)\3 \((.*)\) FROM stdin;\n')
_END = b"\\.\n"
_BATCH = 500
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_STANDS_FOR = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class Lines:
    """The rows of one table; they can be read once."""

    def __init__(self, source: IO[bytes]) -> None:
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

    def digest(self, shape: Shape, columns: Sequence[str]) -> Digest:
        """Compute the digest of the table."""
        reads = [_READERS[kind] for _, kind in shape.columns]
        places = [columns.index(name) for name, _ in shape.columns]
        summing = Summing([kind for _, kind in shape.columns])
        rows = iter(self)
        while batch := [_row(line, places, reads) for line in islice(rows, _BATCH)]:
            summing.add(batch)
        return summing.digest()

    def skip(self) -> None:
        """Go behind the last one."""
        if not self._ended:
            self.count()


def read_rows(source: IO[bytes], schema: str) -> Iterator[tuple[str, list[str], Lines]]:
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
    return tuple(values)


def _unescaped(found: re.Match[bytes]) -> bytes:
    return _STANDS_FOR.get(found[1], found[1])


def _instant(field: bytes) -> bytes:
    instant = datetime.fromisoformat(field.decode()).astimezone(UTC)
    return instant.isoformat(timespec="microseconds").encode()


_READERS: dict[Kind, Callable[[bytes], Any] | None] = {
    Kind.TEXT: None,
    Kind.JSON: None,
    Kind.INSTANT: _instant,
    Kind.WHOLE: int,
    Kind.REAL: float,
    Kind.FLAG: lambda field: int(field == b"t"),
    Kind.BYTES: lambda field: bytes.fromhex(field[2:].decode()),
}
