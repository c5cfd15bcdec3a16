"""How the values of checkpoints are written, and what two versions of a value share.

A value is encoded once, whole, to bytes: its *body*. A body mostly begins as the parent's did, or
differs from it in the middle, and what is equal is not stored again. What is stored is on *lines*,
in pieces that follow each other. A piece goes on at the end of what the line is so far; or it has a
``prefix`` and a ``suffix``, and takes the place of what is between these:

```text
version        its body is     what is stored of it
1              aaaa            line 1: at 0 "aaaa"
2, after 1     aaaabb          line 1: at 4 "bb"
3, after 2     aaXabb          line 1: at 6 "X", prefix 2, suffix 3
4, after 2     aaaabbc         line 2: at 0 "c", base (line 1, 6), prefix 6
```

A version is the first so many bytes of a line, whatever its pieces. So the last pieces of a line
can be merged where they are, and older versions stay what they are. 4 cannot go on along line 1, as
3 is there; it begins a line of its own, on the one that it goes on from.

The body of a JSON list is what is between its brackets, and that of ``Items`` their msgpack without
the header that counts them: both grow at their end alone. Other JSON is its text.

The invariant, held by property tests: whatever was stored before, the version that ``plan`` gives
reads back as exactly the value, to the order of keys and the sign of zero.

Whether a body begins as the parent's did is told by a digest of as many bytes, so that a put does
not read the history; if it does not, the parent is read and compared byte by byte. Nothing is
compressed: to decompress 448 messages takes three times as long as to read them as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from agentstore.errors import InvalidJson, UnsoundRow
from agentstore.records.checkpoints import Items
from agentstore.values.encoding import dump_json_bytes, load_json_bytes

MAX_DEPTH = 32
"""Pieces with a prefix under a version, on its line and those below it; then it is stored whole."""

WORTH_SHARING = 256
"""Bytes from which on a changed value is compared with the parent's: a row takes about as many."""

LARGEST_PIECE = 256 * 1024
"""Bytes from which on a piece is not merged any more: a put copies no more than some of them."""

ALIKE = 3
"""Pieces of about one size that a line keeps: with a fourth one they become one piece."""

OTHER_BYTES = "other bytes than were stored"
"""What an error says of bytes that have another digest."""

_DIGEST_BYTES = 20

_HEADERS = {0x90: 1, 0xDC: 3, 0xDD: 5}
"""How msgpack begins a list: up to 15, 65,535 or more items; and in how many bytes."""

_read_items = msgspec.msgpack.Decoder(list[bytes]).decode


class Encoded(NamedTuple):
    """A value as bytes.

    Attributes:
        kind: ``json``, ``list``, ``bytes`` or ``items``.
        body: See the module.
        items: How many items the value has, if it is a list; 0 for other values.
    """

    kind: str
    body: bytes
    items: int = 0


@dataclass(frozen=True, slots=True)
class Version:
    """What an entry says; see ``models.CheckpointEntry``."""

    kind: str
    line: int
    length: int
    size: int
    items: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """A version that the next one may share with, and its line.

    Attributes:
        of: The row number of a checkpoint that holds it.
        depth: How many pieces with a prefix it is made of.
        end: How many bytes the line has by now.
        pieces: Where those pieces begin that can be merged with what follows them.
        parts: All of its pieces with their bytes, if they were read.
    """

    of: int
    version: Version
    depth: int
    end: int
    pieces: Sequence[int] = ()
    parts: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece as it is read or written; see ``models.CheckpointValue``."""

    line: int
    start: int
    data: bytes
    base_line: int | None = None
    base_length: int | None = None
    prefix: int | None = None
    suffix: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be stored: a version, and the piece that it needs, if it needs one.

    Attributes:
        merges: Whether the piece takes the place of those of its line that begin where it does, or
            later.
    """

    version: Version
    piece: Piece | None = None
    merges: bool = False


Rope = list[bytes]
"""Bytes that follow each other, not copied into one yet."""


def encode(value: Any, name: str = "value") -> Encoded:
    """Write a value as bytes.

    Raises:
        InvalidJson: JSON cannot say it, or an item of ``Items`` is something else than bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return Encoded("bytes", bytes(value))
    if isinstance(value, Items):
        for position, item in enumerate(value):
            if not isinstance(item, bytes):
                raise InvalidJson(f"{name}[{position}]", "an item of Items is not bytes")
        packed = msgspec.msgpack.encode(value)
        header = _HEADERS.get(packed[0], 1)
        return Encoded("items", packed[header:], len(value))
    written = dump_json_bytes(value, name)
    if isinstance(value, list | tuple):
        return Encoded("list", written[1:-1], len(value))
    return Encoded("json", written)


def decode(kind: str, rope: Rope, items: int) -> Any:
    """Undo ``encode``.

    Raises:
        UnsoundRow: The bytes are no such value.
    """
    try:
        if kind == "items":
            rope = [b"\xdd", items.to_bytes(4, "big"), *rope]
        elif kind == "list":
            rope = [b"[", *rope, b"]"]
        body = b"".join(rope)
        if kind == "bytes":
            return body
        return Items(_read_items(body)) if kind == "items" else load_json_bytes(body)
    except Exception:  # noqa: BLE001 - whose words would quote it
        raise UnsoundRow("checkpoint_values", "data", f"bytes that are not {kind}") from None


def digest_of(data: bytes) -> bytes:
    """Give the digest of a body: SHA-256, which processors compute, cut short."""
    return hashlib.sha256(data).digest()[:_DIGEST_BYTES]


def joined(below: Rope, length: int, pieces: Iterable[Any]) -> Rope:
    """Put together what a line is, up to so many bytes of it.

    Args:
        below: What its base is.
        length: How many bytes of its pieces.
        pieces: Those that begin before that, in their order; ``Piece``s, or rows that are like
            them.

    Raises:
        UnsoundRow: There are fewer bytes.
    """
    rope, end, size = [*below], 0, sum(map(len, below))
    for piece in pieces:
        if piece.start != end or piece.data is None:
            break
        data = piece.data if end + len(piece.data) <= length else piece.data[: length - end]
        end += len(data)
        if piece.prefix is None:
            rope.append(data)
            size += len(data)
            continue
        behind = size - piece.suffix
        if size <= _COPIED:
            whole = rope[0] if len(rope) == 1 else b"".join(rope)
            rope = [whole[: piece.prefix] + data + whole[behind:]]
        else:
            rope = [*_cut(rope, 0, piece.prefix), data, *_cut(rope, behind, size)]
        size = piece.prefix + len(data) + piece.suffix
    if end != length:
        raise UnsoundRow("checkpoint_values", "data", "fewer bytes than were stored")
    return rope


_COPIED = 65_536
"""Bytes up to which they are copied for each piece that changes something in their middle."""


def _cut(rope: Rope, start: int, end: int) -> Rope:
    """Give the bytes of a rope from one place to another."""
    found, at = [], 0
    for part in rope:
        if at < end and at + len(part) > start:
            found.append(part[max(start - at, 0) : end - at])
        at += len(part)
    return found


def plan(
    new: Encoded,
    parent: Stored | None,
    *,
    new_line: Callable[[], int],
    read: Callable[[], bytes],
) -> Plan:
    """Say how a value is stored beside the version before it.

    Args:
        new: The value.
        parent: The version whose bytes it may share, if any.
        new_line: Gives the number of a line that nobody uses.
        read: Reads the parent's body. Asked only if the value is neither the parent's nor goes on
            from it.
    """
    body, size = new.body, len(new.body)
    if parent is None or parent.version.kind != new.kind:
        return _whole(new, digest_of(body), new_line)
    before, length = parent.version.size, parent.version.length
    hashed = hashlib.sha256(memoryview(body)[:before])
    same = hashed.digest()[:_DIGEST_BYTES] == parent.version.digest
    hashed.update(memoryview(body)[before:])
    digest = hashed.digest()[:_DIGEST_BYTES]
    if same and size == before:
        return Plan(replace(parent.version, items=new.items))
    is_tip = length == parent.end
    if same and is_tip and before:
        start = _merged_from(parent.pieces, length, length + size - before)
        data = body[before - (length - start) :]
        piece = Piece(parent.version.line, start, data, depth=parent.depth)
        return Plan(_version(new, piece, digest), piece, merges=start < length)
    if min(before, size) < WORTH_SHARING:
        return _whole(new, digest, new_line)
    prefix, suffix = before, 0
    if not same:
        old = read()
        prefix = min(_alike(old, body, _begin_alike), size - 1)  # there is a byte to store
        suffix = _alike(old[prefix:], body[prefix + 1 :], _end_alike)
    depth = parent.depth + 1
    if depth > MAX_DEPTH or prefix + suffix < size // 2:
        return _whole(new, digest, new_line)
    data = body[prefix : size - suffix]
    if is_tip:
        piece = Piece(parent.version.line, length, data, None, None, prefix, suffix, depth)
    else:
        piece = Piece(new_line(), 0, data, parent.version.line, length, prefix, suffix, depth)
    return Plan(_version(new, piece, digest), piece)


def _whole(new: Encoded, digest: bytes, new_line: Callable[[], int]) -> Plan:
    piece = Piece(new_line(), 0, new.body)
    return Plan(_version(new, piece, digest), piece)


def _version(new: Encoded, piece: Piece, digest: bytes) -> Version:
    length = piece.start + len(piece.data)
    return Version(new.kind, piece.line, length, len(new.body), new.items, digest)


def _alike(one: bytes, other: bytes, alike: Callable[[bytes, bytes, int], bool]) -> int:
    """Count the bytes that are alike at one end, by halves: so they are compared in C."""
    least, most = 0, min(len(one), len(other))
    if alike(one, other, most):
        return most
    while most - least > 1:
        middle = (least + most) // 2
        if alike(one, other, middle):
            least = middle
        else:
            most = middle
    return least


def _begin_alike(one: bytes, other: bytes, count: int) -> bool:
    return one[:count] == other[:count]


def _end_alike(one: bytes, other: bytes, count: int) -> bool:
    return one[len(one) - count :] == other[len(other) - count :]


def _merged_from(pieces: Sequence[int], start: int, end: int) -> int:
    """Say where a piece has to begin that is to end a line, so that a line has few of them.

    It takes in the last pieces that are much smaller than it, and those of about its own size when
    there are enough of them: sizes are powers of four. So of n pieces of one size there remain no
    more than three for each power, and each byte is written again once for each.

    Args:
        pieces: Where those begin that can be merged.
        start: Where the line ends.
        end: Where it will end.
    """
    begins, alike, first = [*pieces], 0, start
    while begins and first - begins[-1] < LARGEST_PIECE:
        size, own = _power(first - begins[-1]), _power(end - start)
        if size > own:
            break
        first = begins.pop()
        alike = alike + 1 if size == own else 0
        if size < own or alike == ALIKE:
            start, alike = first, 0
    return start


def _power(size: int) -> int:
    return size.bit_length() // 2
