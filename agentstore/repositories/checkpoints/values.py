"""How the values of checkpoints are written, and what two versions of a value share.

A value is encoded once, whole, to bytes: its *body*. A body mostly begins as the parent's did, or
differs from it in the middle, and what is equal is not stored again. What is stored is on *lines*,
in pieces that follow each other. A piece goes on at the end of what the line is so far; or it has a
``prefix`` and a ``suffix``, and takes the place of what is between these:

```text
version        its body is     what is stored of it           its lines
1              aaaa            line 1: at 0 "aaaa"            1 to 4
2, after 1     aaaabb          line 1: at 4 "bb"              1 to 6
3, after 2     aaXabb          line 1: at 6 "X", 2 and 3      1 to 7
4, after 2     aaaabbc         line 2: at 0 "c", 6 and 0      1 to 6, 2 to 1
```

A version is the first so many bytes of its lines, whatever their pieces. So the last pieces of a
line can be merged where they are, and older versions stay what they are. 4 cannot go on along line
1, as 3 is there; it begins a line of its own, whose first piece goes on from what is below it.

The body of a JSON list is what is between its brackets, and that of ``Items`` their bytes: both
grow at their end alone. Other JSON is its text. A value that is small and does not grow is not on
a line: it is stored whole with each checkpoint, also where the parent has the same.

What a checkpoint holds stands in its own row: in ``entries`` each value by its name, a version of
it or the small value itself; in ``lines`` again the lines, so that one statement reads a checkpoint
with the pieces of its values. A reader sees a line before its last pieces were merged, or after.

The invariant, held by property tests: whatever was stored before, the version that ``plan`` gives
reads back as exactly the value, to the order of keys and the sign of zero.

Whether a body begins as the parent's did is told by a digest of as many bytes, so that a put does
not read the history; if it does not, the parent is read and compared byte by byte. Nothing is
compressed: to decompress 448 messages takes three times as long as to read them as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    Connection,
    Dialect,
    Executable,
    Integer,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)

from agentstore.engines.base.statements import Prepared, dialect_of, prepared
from agentstore.errors import InvalidInput, InvalidRow, named
from agentstore.execution.unit import RecentBodies, Unit
from agentstore.records.work import Items
from agentstore.repositories.operations import chunks
from agentstore.schema import Tables
from agentstore.values import validation
from agentstore.values.encoding import (
    decode_text,
    dump_json_bytes,
    encode_text,
    load_json_bytes,
)
from agentstore.values.types import Document

MAX_DEPTH = 32
"""Pieces with a prefix under a version, on all of its lines; then it is stored whole."""

WORTH_SHARING = 256
"""Bytes from which on a changed value is compared with the parent's: a row takes about as many."""

LARGEST_PIECE = 256 * 1024
"""Bytes from which on a piece is not merged any more: a put copies no more than some of them."""

ALIKE = 3
"""Pieces of about one size that a line keeps: with a fourth one they become one piece."""

LARGEST_SMALL = 512
"""Bytes up to which a value that does not grow is small: a row on a line takes about as many."""

MOST_SMALL = 4096
"""Bytes of a checkpoint's small values together, with their names; the others are on lines."""

OTHER_BYTES = "other bytes than were stored"
"""What an error says of bytes that have another digest."""

FEWER_BYTES = "fewer bytes than were stored"

_DIGEST_BYTES = 20
_ENTRIES_DIGEST_BYTES = 8
_WHOLE_KINDS = ("json", "bytes")
"""What does not grow at its end."""


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


class Version(NamedTuple):
    """A value on lines.

    Attributes:
        kind: As ``Encoded`` has it.
        size: How many bytes its body has.
        items: As ``Encoded`` has it.
        digest: Of its body.
        depth: How many pieces with a prefix it is made of.
        lines: The lines that it consists of, each on the one before it: a number, and how many
            bytes of its pieces.
    """

    kind: str
    size: int
    items: int
    digest: bytes
    depth: int
    lines: tuple[tuple[int, int], ...]


Entry = Encoded | Version
"""What a checkpoint holds under a name: a small value, or a version of one."""

Entries = dict[str, Entry]


class Piece(NamedTuple):
    """A row of ``models.CheckpointValue``: what is stored of a version, on a line."""

    line: int
    start: int
    data: bytes
    prefix: int | None = None
    suffix: int = 0


class Plan(NamedTuple):
    """What is to be stored: a version, and the piece that it needs, if it needs one.

    Attributes:
        merges: Whether the piece takes the place of those of its line that begin where it does, or
            later.
    """

    version: Version
    piece: Piece | None = None
    merges: bool = False


class Tail(NamedTuple):
    """How far a line goes by now.

    Attributes:
        end: How many bytes its pieces have.
        pieces: Where those begin that can be merged with what follows them.
    """

    end: int
    pieces: Sequence[int] = ()


Rope = list[bytes]
"""Bytes that follow each other, not copied into one yet."""


def encode(value: Any, name: str = "value") -> Encoded:
    """Write a value as bytes.

    Raises:
        InvalidJson: JSON cannot say it.
        InvalidInput: ``Items`` are not of bytes, or their count is no number of items.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded("bytes", bytes(value))
    if isinstance(value, Items):
        if type(value.data) is not bytes:
            raise InvalidInput(f"{name}.data must be bytes, not {type(value.data).__name__}.")
        return Encoded("items", value.data, validation.amount(f"{name}.count", value.count))
    written = dump_json_bytes(value, name)
    if isinstance(value, list | tuple):
        return Encoded("list", written[1:-1], len(value))
    return Encoded("json", written)


def decode(kind: str, rope: Rope, items: int) -> Any:
    """Undo ``encode``.

    Raises:
        InvalidRow: The bytes are no such value.
    """
    try:
        if kind == "list":
            rope = [b"[", *rope, b"]"]
        body = rope[0] if len(rope) == 1 else b"".join(rope)
        if kind == "bytes":
            return body
        return Items(body, items) if kind == "items" else load_json_bytes(body)
    except Exception:  # noqa: BLE001 - whose words would quote it
        raise InvalidRow("checkpoint_values", "data", f"bytes that are not {kind}") from None


def digest_of(data: bytes) -> bytes:
    """Give the digest of a body: SHA-256, which processors compute, cut short."""
    return hashlib.sha256(data).digest()[:_DIGEST_BYTES]


def joined(below: Rope, length: int, pieces: Iterable[Piece]) -> Rope:
    """Put together what a line is, up to so many bytes of it.

    Args:
        below: What the lines before it are.
        length: How many bytes of its pieces.
        pieces: Those that begin before that, in their order.

    Raises:
        InvalidRow: There are fewer bytes.
    """
    rope, end, size = [*below], 0, sum(map(len, below))
    for _, start, data, prefix, suffix in pieces:
        if start != end:
            break
        if end + len(data) > length:
            data = data[: length - end]
        end += len(data)
        if prefix is None:
            rope.append(data)
            size += len(data)
            continue
        behind = size - suffix
        if size <= _COPIED:
            whole = rope[0] if len(rope) == 1 else b"".join(rope)
            rope = [whole[:prefix] + data + whole[behind:]]
        else:
            rope = [*_cut(rope, 0, prefix), data, *_cut(rope, behind, size)]
        size = prefix + len(data) + suffix
    if end != length:
        raise InvalidRow("checkpoint_values", "data", FEWER_BYTES)
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
    parent: Version | None,
    tail: Tail,
    *,
    new_line: Callable[[], int],
    read: Callable[[Version], bytes],
    bodies: RecentBodies,
) -> Plan:
    """Say how a value is stored beside the version before it.

    Args:
        new: The value.
        parent: The version whose bytes it may share, if any.
        tail: How far the last line of that goes.
        new_line: Gives the number of a line that nobody uses.
        read: Reads the parent's body. Called only if the value is neither the parent's nor goes on
            from it.
        bodies: Those that were planned last. A body that begins with one of them is compared with
            its bytes, which is fast, and only what follows these is digested.
    """
    kind, body, items = new
    size = len(body)
    if parent is None or parent.kind != kind:
        return _whole(new, digest_of(body), new_line)
    _, before, _, of_parent, depth, lines = parent
    known = bodies.get(of_parent)
    same = known is not None and len(known[0]) == before and body.startswith(known[0])
    if known is not None and same:
        hashed, digest = known[1].copy(), of_parent
    else:
        hashed = hashlib.sha256(body if before >= size else memoryview(body)[:before])
        digest = hashed.digest()[:_DIGEST_BYTES]
        same = digest == of_parent
    if size == before:
        if same:
            return Plan(Version(kind, size, items, digest, depth, lines))
    elif size > before:
        hashed.update(memoryview(body)[before:])
        digest = hashed.digest()[:_DIGEST_BYTES]
        if same:  # the next one goes on from this one
            bodies.pop(of_parent, None)
    if size <= _KEPT:
        bodies.note(digest, (body, hashed))
    line, length = lines[-1]
    is_tip = length == tail.end
    if same and is_tip and before:
        start = _merged_from(tail.pieces, length, length + size - before)
        piece = Piece(line, start, body[before - (length - start) :])
        end = length + size - before
        version = Version(kind, size, items, digest, depth, (*lines[:-1], (line, end)))
        return Plan(version, piece, start < length)
    if min(before, size) < WORTH_SHARING:
        return _whole(new, digest, new_line)
    prefix, suffix = before, 0
    if not same:
        old = read(parent)
        most = min(len(old), size - 1)  # there is a byte to store
        prefix = _alike(most, lambda n: old[:n] == body[:n])
        most = min(len(old) - prefix, size - prefix - 1)
        suffix = _alike(most, lambda n: old[len(old) - n :] == body[size - n :])
    if depth >= MAX_DEPTH or prefix + suffix < size // 2:
        return _whole(new, digest, new_line)
    data = body[prefix : size - suffix]
    if is_tip:
        piece = Piece(line, length, data, prefix, suffix)
        lines = (*lines[:-1], (line, length + len(data)))
    else:
        piece = Piece(new_line(), 0, data, prefix, suffix)
        lines = (*lines, (piece.line, len(data)))
    return Plan(Version(kind, size, items, digest, depth + 1, lines), piece)


_KEPT = 65_536
"""Bytes up to which a body is kept in memory."""


def _whole(new: Encoded, digest: bytes, new_line: Callable[[], int]) -> Plan:
    kind, body, items = new
    line, size = new_line(), len(body)
    return Plan(Version(kind, size, items, digest, 0, ((line, size),)), Piece(line, 0, body))


def _alike(most: int, alike: Callable[[int], bool]) -> int:
    """Count the bytes that are alike at one end, by halves: so they are compared in C."""
    if alike(most):
        return most
    least = 0
    while most - least > 1:
        middle = (least + most) // 2
        if alike(middle):
            least = middle
        else:
            most = middle
    return least


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
    alike, first = 0, start
    for begin in reversed(pieces):
        if first - begin >= LARGEST_PIECE:
            break
        size, own = (first - begin).bit_length() // 2, (end - start).bit_length() // 2
        if size > own:
            break
        first = begin
        alike = alike + 1 if size == own else 0
        if size < own or alike == ALIKE:
            start, alike = first, 0
    return start


# What a checkpoint holds, as it stands in its row.

_read_entries = msgspec.msgpack.Decoder(dict[str, list[Any]]).decode
_LINES = len(Version._fields)


def packed(entries: Entries) -> dict[str, Any]:
    """Give the columns of what a checkpoint holds; see ``models.Checkpoint``.

    The bytes begin with a digest of what follows, cut short: a msgpack map of names.
    """
    if not entries:
        return {"entries": None, "lines": None}
    named = entries
    if not "".join(entries).isascii():
        named = {encode_text(name): each for name, each in entries.items()}
    data = msgspec.msgpack.encode(named)
    lines = [f'"{line}":{length}' for line, length in held_lines(entries)]
    return {
        "entries": hashlib.sha256(data).digest()[:_ENTRIES_DIGEST_BYTES] + data,
        "lines": Document(f"{{{','.join(lines)}}}") if lines else None,
    }


def held_lines(entries: Mapping[str, Entry]) -> list[tuple[int, int]]:
    """Give the lines of what a checkpoint holds, each with how many bytes of it are needed."""
    versions = [each for each in entries.values() if isinstance(each, Version)]
    return [line for each in versions for line in each.lines]


def unpacked(stored: bytes | None, checkpoint_pk: int) -> Entries:
    """Give what a checkpoint holds, in the order of the names.

    Raises:
        InvalidRow: The bytes are not those that were stored.
    """
    if stored is None:
        return {}
    data = stored[_ENTRIES_DIGEST_BYTES:]
    try:
        if hashlib.sha256(data).digest()[:_ENTRIES_DIGEST_BYTES] != stored[:_ENTRIES_DIGEST_BYTES]:
            raise ValueError
        read = _read_entries(data)
        if not "".join(read).isascii():
            read = {decode_text(name): each for name, each in read.items()}
        return {
            name: Version._make((*each[:-1], tuple(map(tuple, each[-1]))))
            if len(each) == _LINES
            else Encoded(*each)
            for name, each in read.items()
        }
    except (TypeError, ValueError, msgspec.MsgspecError):  # whose words would quote it
        wrong = "checkpoints", "entries", OTHER_BYTES, f"pk={checkpoint_pk}"
        raise InvalidRow(*wrong) from None


# The lines of values in the database: gone on with, read, and dropped when nobody needs them.
#
# The caller has locked the thread of a line that it changes.


def planned(
    unit: Unit,
    thread_id: str,
    values: Mapping[str, Encoded],
    entries: Entries,
    shared: Mapping[str, Entry],
    tails: Mapping[int, Tail],
    new_line: Callable[[], int],
) -> list[Plan]:
    """Add values to what a checkpoint holds, and say what is to be stored; nothing is written yet.

    Args:
        unit: In a write transaction that has locked the thread.
        thread_id: The thread.
        values: By name.
        entries: What the checkpoint holds already.
        shared: What the values may share with, by name.
        tails: How far the lines of these go.
        new_line: Gives the number of a line that nobody uses.
    """
    room = MOST_SMALL
    for name, entry in entries.items():
        if isinstance(entry, Encoded):
            room -= len(name) + len(entry.body)
    read = partial(_body, unit.connection, unit.tables, thread_id)
    plans: list[Plan] = []
    for name, new in values.items():
        size = len(new.body)
        if new.kind in _WHOLE_KINDS and size <= LARGEST_SMALL and len(name) + size <= room:
            entries[name] = new
            room -= len(name) + size
            continue
        before = shared.get(name)
        parent = before if isinstance(before, Version) else None
        tail = Tail(-1) if parent is None else tails.get(parent.lines[-1][0], Tail(-1))
        plans.append(plan(new, parent, tail, new_line=new_line, read=read, bodies=unit.bodies))
        entries[name] = plans[-1].version
    return plans


def tails_of(pieces: Iterable[tuple[int, int, int, int | None]]) -> dict[int, Tail]:
    """Give how far lines go: of the line, start, bytes and prefix of each of their pieces."""
    ends: dict[int, int] = {}
    begins: dict[int, list[int]] = {}
    for line, start, size, prefix in sorted(pieces):
        if not start or prefix is not None:
            begins[line] = []
        else:
            begins.setdefault(line, []).append(start)
        ends[line] = start + size
    return {line: Tail(ends[line], begins[line]) for line in ends}


def tails_after(
    entries: Mapping[str, Entry], tails: Mapping[int, Tail], plans: Iterable[Plan]
) -> dict[int, Tail]:
    """Give how far the lines of a checkpoint go, once its pieces are stored.

    Args:
        entries: What it holds.
        tails: How far those lines went that are not new.
        plans: What is stored for it.
    """
    tips = [each.lines[-1][0] for each in entries.values() if isinstance(each, Version)]
    after = {line: tails[line] for line in tips if line in tails}
    for _, piece, merges in plans:
        if piece is None:
            continue
        line, start, data, prefix, _ = piece
        before: Sequence[int] = ()
        if start and prefix is None:
            before = [n for n in after[line].pieces if not merges or n < start]
            before.append(start)
        after[line] = Tail(start + len(data), before)
    return after


def write_pieces(unit: Unit, thread_id: str, plans: Iterable[Plan]) -> None:
    """Write the pieces of values; the unit is in a write transaction that locked the thread."""
    drop, store = _writing(unit.tables, dialect_of(unit.connection))
    for _, piece, merges in plans:
        if piece is not None:
            row = {"thread_id": thread_id, **dict(zip(Piece._fields, piece, strict=True))}
            if merges:
                drop.execute_many(unit.connection, [row])
            store.execute_many(unit.connection, [row])


def drop_unneeded(unit: Unit, thread_id: str, namespace: str, lines: Iterable[int]) -> int:
    """Delete the bytes of these lines that no version consists of any more.

    A line goes when no checkpoint has it; else what is behind the end of the longest version goes.

    Args:
        unit: In a write transaction that has locked the thread.
        thread_id: The thread.
        namespace: The one of the checkpoints that had the lines, and alone can have them.
        lines: Their numbers.

    Returns:
        How many pieces went.
    """
    points, values = unit.tables.checkpoints, unit.tables.checkpoint_values.c
    held, line, length = unit.dialect.each_line(points.c.lines)
    gone = 0
    for chunk in chunks(sorted(lines)):
        needed: dict[int, int] = dict.fromkeys(chunk, -1)
        longest = select(line, func.max(length)).select_from(points.join(held, true()))
        longest = longest.where(points.c.thread_id == thread_id, points.c.namespace == namespace)
        for each, most in unit.connection.execute(longest.where(line.in_(chunk)).group_by(line)):
            needed[each] = most
        of_them = and_(values.thread_id == thread_id, values.line.in_(chunk))
        query = select(values.line, values.start, func.length(values.data)).where(of_them)
        going, shorter = [], []
        for each, start, size in unit.connection.execute(query):
            at = {"of_thread": thread_id, "of_line": each, "at": start}
            if start >= needed[each] and (start or needed[each] < 0):
                going.append(at)
            elif start + size > needed[each]:
                shorter.append({**at, "size": needed[each] - start})
        table = unit.tables.checkpoint_values
        this = and_(
            values.thread_id == bindparam("of_thread"),
            values.line == bindparam("of_line"),
            values.start == bindparam("at"),
        )
        if going:
            unit.connection.execute(delete(table).where(this), going)
        if shorter:
            rest = func.substr(values.data, 1, bindparam("size", type_=Integer))
            unit.connection.execute(update(table).where(this).values(data=rest), shorter)
        gone += len(going)
    return gone


def drop_some_unneeded(unit: Unit, thread_id: str, most: int) -> int:
    """Delete up to so many of the pieces of a thread that no checkpoint consists of any more.

    Reads all checkpoints that the thread has. Returns how many pieces went.
    """
    points, table = unit.tables.checkpoints, unit.tables.checkpoint_values
    values = table.c
    held, line, length = unit.dialect.each_line(points.c.lines)
    needed = (
        select(line.label("line"), func.max(length).label("length"))
        .select_from(points.join(held, true()))
        .where(points.c.thread_id == thread_id)
        .group_by(line)
        .subquery("needed")
    )
    behind = and_(values.start > 0, values.start >= needed.c.length)
    own = values.thread_id, values.line, values.start
    going = (
        select(*own)
        .join_from(table, needed, needed.c.line == values.line, isouter=True)
        .where(values.thread_id == thread_id, or_(needed.c.line.is_(None), behind))
        .limit(most)
    )
    return unit.connection.execute(delete(table).where(tuple_(*own).in_(going))).rowcount


def _body(connection: Connection, tables: Tables, thread_id: str, version: Version) -> bytes:
    """Read the body of a version."""
    reading, _ = prepared(_line, dialect_of(connection), (), tables)
    rope: Rope = []
    for line, length in version.lines:
        asked = {"thread_id": thread_id, "line": line, "length": length}
        pieces = map(Piece._make, reading.fetch(connection, asked))
        rope = joined(rope, length, sorted(pieces))
    return b"".join(rope)


def _line(tables: Tables) -> Executable:
    """Read the pieces that the first ``length`` bytes of a ``line`` are in."""
    values = tables.checkpoint_values.c
    return select(*(values[name] for name in Piece._fields)).where(
        values.thread_id == bindparam("thread_id"),
        values.line == bindparam("line"),
        values.start < bindparam("length"),
    )


@lru_cache(maxsize=256)
def _writing(tables: Tables, driver: Dialect) -> tuple[Prepared, Prepared]:
    """Give what deletes a line's pieces from one place on, and what inserts a piece."""
    values = tables.checkpoint_values
    from_there = delete(values).where(
        values.c.thread_id == bindparam("thread_id"),
        values.c.line == bindparam("line"),
        values.c.start >= bindparam("start"),
    )
    storing = Prepared(insert(values).inline(), driver, [column.name for column in values.c])
    return Prepared(from_there, driver), storing


Lines = Mapping[int, Sequence[Piece]]
"""The pieces of a thread's lines, in their order."""


def body_of(version: Version, lines: Lines) -> Rope:
    """Put a version together.

    Raises:
        InvalidRow: Bytes are missing.
    """
    rope: Rope = []
    for line, length in version.lines:
        pieces = lines.get(line, ())
        if not rope and len(pieces) == 1 and pieces[0][3] is None and len(pieces[0][2]) == length:
            rope = [pieces[0][2]]  # as most are
        else:
            rope = joined(rope, length, [piece for piece in pieces if piece[1] < length])
    return rope


def values_of(checkpoint_pk: int, entries: Entries, lines: Lines) -> dict[str, Any]:
    """Give the values of one checkpoint, by their names in order.

    Args:
        checkpoint_pk: Its number.
        entries: What it holds.
        lines: Their pieces.

    Raises:
        InvalidRow: The bytes are not those that were stored. The digest is compared of bytes alone;
            for JSON that would take as long as to read it, so the doctor does it.
    """
    values: dict[str, Any] = {}
    for name in sorted(entries):
        entry = entries[name]
        if isinstance(entry, Encoded):
            kind, body, items = entry
            values[name] = body if kind == "bytes" else decode(kind, [body], items)
            continue
        try:
            rope = body_of(entry, lines)
            values[name] = value = decode(entry.kind, rope, entry.items)
            if entry.kind == "bytes" and digest_of(value) != entry.digest:
                raise InvalidRow("checkpoint_values", "data", OTHER_BYTES)
        except InvalidRow as error:
            key = f"of the checkpoint with pk={checkpoint_pk}, name={named(name)}"
            raise InvalidRow(error.table, error.column, error.problem, key) from None
    return values


_ALWAYS_READ = 65_536
"""Bytes up to which each version is read to look for damage; of a larger one, the line's longest
of some checkpoints that follow each other, which has the bytes of the others."""


def damaged_versions(connection: Connection, tables: Tables, most: int) -> Iterator[str]:
    """Read the versions of values, those of so many checkpoints at a time; name the damaged ones.

    What is no entry at all is left to who looks at the rows of checkpoints.
    """
    points, last = tables.checkpoints.c, 0
    query = select(points.pk, points.thread_id, points.entries).order_by(points.pk).limit(most)
    while rows := connection.execute(query.where(points.pk > last)).all():
        found: list[tuple[int, str, str, Version]] = []
        longest: dict[tuple[str, int], int] = {}
        for pk, thread_id, stored in rows:
            with suppress(InvalidRow):
                for name, entry in unpacked(stored, pk).items():
                    if isinstance(entry, Version):
                        found.append((pk, thread_id, name, entry))
                        line, length = entry.lines[-1]
                        longest[thread_id, line] = max(length, longest.get((thread_id, line), 0))
        for pk, thread_id, name, entry in found:
            line, length = entry.lines[-1]
            if entry.size <= _ALWAYS_READ or length == longest[thread_id, line]:
                try:
                    body = _body(connection, tables, thread_id, entry)
                    decode(entry.kind, [body], entry.items)
                    sound = digest_of(body) == entry.digest
                except InvalidRow:
                    sound = False
                if not sound:
                    yield f"checkpoint_pk={pk}, name={named(name)}"
        last = rows[-1].pk
