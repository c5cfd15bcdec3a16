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

The body of a JSON list is what is between its brackets, and that of ``Items`` their bytes: both
grow at their end alone. Other JSON is its text.

The invariant, held by property tests: whatever was stored before, the version that ``plan`` gives
reads back as exactly the value, to the order of keys and the sign of zero.

Whether a body begins as the parent's did is told by a digest of as many bytes, so that a put does
not read the history; if it does not, the parent is read and compared byte by byte. Nothing is
compressed: to decompress 448 messages takes three times as long as to read them as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    Connection,
    Dialect,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.statements import Prepared, Stacked, dialect_of
from agentstore.errors import InvalidInput, InvalidRow, named
from agentstore.execution.unit import Unit
from agentstore.records.work import Items
from agentstore.repositories.operations import chunks
from agentstore.schema import Tables
from agentstore.values import validation
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
        InvalidJson: JSON cannot say it.
        InvalidInput: ``Items`` are not of bytes, or their count is no number of items.
    """
    if isinstance(value, bytes | bytearray | memoryview):
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


def joined(below: Rope, length: int, pieces: Iterable[Any]) -> Rope:
    """Put together what a line is, up to so many bytes of it.

    Args:
        below: What its base is.
        length: How many bytes of its pieces.
        pieces: Those that begin before that, in their order; ``Piece``s, or rows that are like
            them.

    Raises:
        InvalidRow: There are fewer bytes.
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
        raise InvalidRow("checkpoint_values", "data", "fewer bytes than were stored")
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


# The lines of values in the database: gone on with, and dropped when nobody needs them.
#
# What the lines mean is said in ``values``, beside this module; here are the queries. The caller
# has locked the thread of a line that it changes.


Entering = tuple[ReturningUpdate[Any], Mapping[str, Any]]
"""A statement that enters a thread, and its parameters."""

Shared = Mapping[str, Stored]
"""By name, a version that the next one may share with."""


class PieceAt(NamedTuple):
    """A row of what ``with_pieces`` reads: a piece of a line that a checkpoint's value is on.

    ``data`` is None if the value is long.
    """

    checkpoint_pk: int
    name: str
    kind: str
    line: int
    length: int
    size: int
    item_count: int
    digest: bytes
    start: int
    prefix: int | None
    suffix: int
    depth: int
    base_line: int | None
    bytes: int
    data: Any  # bytes, or None


_SHORT = 2048
"""Bytes up to which the body of a value is read with what the next one may share of it."""


def planned(
    unit: Unit, values: Mapping[str, Encoded], shared: Shared, new_line: Callable[[], int]
) -> dict[str, Plan]:
    """Say what is to be stored for values; nothing is written yet.

    Args:
        unit: In a write transaction that has locked the thread.
        values: By name.
        shared: What they may share with.
        new_line: Gives the number of a line that nobody uses.
    """
    plans: dict[str, Plan] = {}
    for name, new in values.items():
        parent = shared.get(name)
        read = partial(_read, unit, parent, name)
        plans[name] = plan(new, parent, new_line=new_line, read=read)
    return plans


def write_values(
    unit: Unit,
    thread_id: str,
    checkpoint_pk: int,
    plans: Mapping[str, Plan],
    inherited: Mapping[str, Version],
) -> None:
    """Write the values of a checkpoint that has none.

    Args:
        unit: In a write transaction that has locked the thread.
        thread_id: The thread.
        checkpoint_pk: The checkpoint's row number.
        plans: By name.
        inherited: Versions that it has as they are, by name.
    """
    statements = _statements(unit.tables, dialect_of(unit.connection))
    merging, pieces = [], []
    for found in plans.values():
        if found.piece is not None:
            pieces.append(_piece_row(thread_id, found.piece))
            merging += pieces[-1:] if found.merges else []
    if merging:
        statements.drop.execute_many(unit.connection, merging)
    if pieces:
        statements.pieces.execute_many(unit.connection, pieces)
    entries = [
        {**entry, "checkpoint_pk": checkpoint_pk, "thread_id": thread_id}
        for entry in _entry_rows(plans, inherited)
    ]
    if entries:
        statements.entries.execute_many(unit.connection, entries)


def put_at_once(
    unit: Unit,
    row: Mapping[str, Any],
    plans: Mapping[str, Plan],
    inherited: Mapping[str, Version],
    entering: Entering | None = None,
) -> bool | None:
    """Insert a checkpoint with its values by one statement, if the engine has one.

    Args:
        unit: In a write transaction that has locked the thread, unless the statement enters it.
        row: The checkpoint's columns, but for its number.
        plans: By name.
        inherited: Versions that it has as they are, by name.
        entering: A statement that enters the thread, and its parameters.

    Returns:
        Whether it was; not if the id is taken, or the thread was not entered. None if it is to be
        put in another way.

    Raises:
        InvalidRow: A piece was to be merged and is not there.
    """
    enter, entered = entering or (None, {})
    pieces, merged = (
        [_piece_row("", p.piece) for p in plans.values() if p.piece and p.merges is merges]
        for merges in (False, True)
    )
    what = unit.tables, unit.dialect, dialect_of(unit.connection)
    putting = _putting(*what, enter, bool(merged))
    if putting is None or sum(len(row["data"]) for row in (*pieces, *merged)) > _MOST_AT_ONCE:
        return None
    parameters = {**entered, **{f"c_{name}": value for name, value in row.items()}}
    tables = unit.tables
    for prefix, table, rows in (
        ("p_", tables.checkpoint_values, pieces),
        *([("m_", tables.checkpoint_values, merged)] if merged else ()),
        ("e_", tables.checkpoint_entries, _entry_rows(plans, inherited)),
    ):
        for column in table.columns:
            if column.name not in ("thread_id", "checkpoint_pk"):
                parameters[prefix + column.name] = [each[column.name] for each in rows]
    found = putting.fetch(unit.connection, parameters)
    if found and found[0][0] != len(merged):
        raise InvalidRow("checkpoint_values", "start", "no piece where one was to be merged")
    return bool(found)


_MOST_AT_ONCE = 65_536
"""Bytes that travel in an array, in which each takes two characters."""


def _entry_rows(
    plans: Mapping[str, Plan], inherited: Mapping[str, Version]
) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "line": version.line,
            "start": 0,
            "length": version.length,
            "kind": version.kind,
            "size": version.size,
            "item_count": version.items,
            "digest": version.digest,
        }
        for name, version in (
            *((name, found.version) for name, found in plans.items()),
            *inherited.items(),
        )
    ]


def stored_by(rows: Iterable[PieceAt]) -> dict[str, Stored]:
    """Give what the next values may share with, by name."""
    found: dict[str, Stored] = {}
    in_order = sorted(rows, key=attrgetter("name", "start"))
    for name, group in groupby(in_order, key=attrgetter("name")):
        depth, pieces, parts = 0, list[int](), list[PieceAt]()
        for row in group:
            if row.start < row.length:
                depth = row.depth
                parts.append(row)
            pieces = [*pieces, row.start] if row.start and row.prefix is None else []
        version = Version(
            row.kind, row.line, row.length, row.size, row.item_count, bytes(row.digest)
        )
        known = row.size <= _SHORT and parts and parts[0].base_line is None
        end = row.start + row.bytes
        found[name] = Stored(row.checkpoint_pk, version, depth, end, pieces, parts if known else ())
    return found


def with_pieces(tables: Tables, chosen: CTE) -> Select[Any]:
    """Read the lines of a checkpoint's values: a row for each ``PieceAt``.

    Args:
        tables: The tables.
        chosen: Selects the checkpoint, ``pk`` among its columns.
    """
    entries, values = tables.checkpoint_entries, tables.checkpoint_values
    held = entries.c.checkpoint_pk == chosen.c.pk
    on_line = and_(values.c.thread_id == entries.c.thread_id, values.c.line == entries.c.line)
    short = entries.c.size <= literal_column(str(_SHORT), Integer)
    return select(
        *(entries.c[column] for column in PieceAt._fields[:8]),
        *(values.c[column] for column in PieceAt._fields[8:13]),
        func.length(values.c.data, type_=Integer),
        case((short, values.c.data)),
    ).select_from(chosen.join(entries, held).join(values, on_line))


def drop_entries(unit: Unit, checkpoint_pks: Iterable[int]) -> tuple[int, set[int]]:
    """Take the values away from checkpoints; their lines stay.

    Returns:
        How many entries went, and the lines that they named.
    """
    entries = unit.tables.checkpoint_entries
    gone, lines = 0, set[int]()
    for chunk in chunks(list(checkpoint_pks)):
        theirs = entries.c.checkpoint_pk.in_(chunk)
        lines.update(unit.connection.execute(select(entries.c.line).where(theirs)).scalars())
        gone += unit.connection.execute(delete(entries).where(theirs)).rowcount
    return gone, lines


def drop_unneeded(unit: Unit, thread_id: str, lines: Iterable[int]) -> int:
    """Delete the bytes of these lines, and of those below, that no version consists of any more.

    A line goes when no entry and no base names it; until then its first piece stays, and of the
    others what is behind the end of the longest version goes.

    Returns:
        How many pieces went.
    """
    values, entries = unit.tables.checkpoint_values, unit.tables.checkpoint_entries
    gone = 0
    pending = set(lines)
    while pending:  # once for each level of lines that became free, MAX_DEPTH at most
        below: set[int] = set()
        for chunk in chunks(sorted(pending)):
            needed = dict.fromkeys(chunk, -1)
            held = select(entries.c.line, func.max(entries.c.length)).where(
                entries.c.thread_id == thread_id, entries.c.line.in_(chunk)
            )
            based = select(values.c.base_line, func.max(values.c.base_length)).where(
                values.c.thread_id == thread_id, values.c.base_line.in_(chunk)
            )
            for query in (held.group_by(entries.c.line), based.group_by(values.c.base_line)):
                for line, length in unit.connection.execute(query):
                    needed[line] = max(needed[line], length)
            free = [line for line, length in needed.items() if length < 0]
            whole = delete(values).where(values.c.thread_id == thread_id, values.c.line.in_(free))
            if free:
                bases = unit.connection.execute(whole.returning(values.c.base_line)).scalars().all()
                gone += len(bases)
                below.update(base for base in bases if base is not None)
            gone += _cut_pieces(unit, thread_id, {k: n for k, n in needed.items() if n >= 0})
        pending = below
    return gone


def _cut_pieces(unit: Unit, thread_id: str, needed: Mapping[int, int]) -> int:
    """Delete what lines have behind the ends of their longest versions, but for their first pieces.

    Returns:
        How many pieces went.
    """
    if not needed:
        return 0
    values = unit.tables.checkpoint_values.c
    further = and_(values.thread_id == thread_id, values.line.in_([*needed]), values.start > 0)
    query = select(values.line, values.start, func.length(values.data)).where(further)
    gone, shorter = [], []
    for line, start, size in unit.connection.execute(query):
        at = {"of_thread": thread_id, "of_line": line, "at": start}
        if start >= needed[line]:
            gone.append(at)
        elif start + size > needed[line]:
            shorter.append({**at, "size": needed[line] - start})
    table = unit.tables.checkpoint_values
    this = and_(
        values.thread_id == bindparam("of_thread"),
        values.line == bindparam("of_line"),
        values.start == bindparam("at"),
    )
    if gone:
        unit.connection.execute(delete(table).where(this), gone)
    if shorter:
        rest = func.substr(values.data, 1, bindparam("size", type_=Integer))
        unit.connection.execute(update(table).where(this).values(data=rest), shorter)
    return len(gone)


def _read(unit: Unit, parent: Stored | None, name: str) -> bytes:
    """Read the body of a value that a checkpoint holds."""
    assert parent is not None
    if parent.parts:
        return b"".join(joined([], parent.version.length, parent.parts))
    driver = dialect_of(unit.connection)
    parameters = {"wanted": parent.of, "name": name}
    lines, pieces = one_value(unit.tables, driver, bases=False).fetch(unit.connection, parameters)
    if any(Part._make(piece).base_line is not None for piece in pieces):
        with_bases = one_value(unit.tables, driver, bases=True)
        lines, pieces = with_bases.fetch(unit.connection, parameters)
    found = held_by(lines, pieces)
    if not found:
        raise InvalidRow("checkpoint_values", "data", "fewer bytes than were stored")
    return found[parent.of][name].encoded.body


def _piece_row(thread_id: str, piece: Piece) -> dict[str, Any]:
    return {
        "thread_id": thread_id,
        "line": piece.line,
        "start": piece.start,
        "base_line": piece.base_line,
        "base_start": None if piece.base_line is None else 0,
        "base_length": piece.base_length,
        "prefix": piece.prefix,
        "suffix": piece.suffix,
        "depth": piece.depth,
        "data": piece.data,
    }


@dataclass(frozen=True, slots=True)
class _Statements:
    drop: Prepared
    pieces: Prepared
    entries: Prepared


@lru_cache(maxsize=256)
def _putting(
    tables: Tables,
    dialect: EngineDialect,
    driver: Dialect,
    enter: ReturningUpdate[Any] | None,
    merges: bool,
) -> Prepared | None:
    statement = dialect.putting(tables, enter, merges=merges)
    return None if statement is None else Prepared(statement, driver)


@lru_cache(maxsize=256)
def _statements(tables: Tables, driver: Dialect) -> _Statements:
    values, entries = tables.checkpoint_values, tables.checkpoint_entries
    from_there = delete(values).where(
        values.c.thread_id == bindparam("thread_id"),
        values.c.line == bindparam("line"),
        values.c.start >= bindparam("start"),
    )
    return _Statements(
        Prepared(from_there, driver),
        Prepared(insert(values).inline(), driver, [column.name for column in values.c]),
        Prepared(insert(entries).inline(), driver, [column.name for column in entries.c]),
    )


# How values are read from their lines, with the checkpoints that hold them.
#
# Whatever versions a checkpoint has are read by one statement, with the checkpoint: the lines
# that they are on, and the pieces of these, each once. So a reader sees a line before its last
# pieces were merged, or after, and never in between.


class LineOf(NamedTuple):
    """What a version consists of: the line that it is on, or one below that.

    Attributes:
        level: How many bases lie above the line.
        length: How many bytes of the line are needed.
    """

    checkpoint_pk: int
    name: str
    kind: str
    item_count: int
    digest: bytes
    level: int
    thread_id: str
    line: int
    length: int


class Part(NamedTuple):
    """A piece of a line.

    Attributes:
        base_line: If it is not None, there is more to read, of lines below.
    """

    thread_id: str
    line: int
    start: int
    base_line: int | None
    prefix: int | None
    suffix: int
    data: bytes


_WHOLE = (0, None, None)
"""Where the only piece of a line begins, if it has no base."""


class VersionBytes(NamedTuple):
    """A version as it was read."""

    kind: str
    items: int
    digest: bytes
    rope: Rope

    @property
    def encoded(self) -> Encoded:
        """What it is, still encoded."""
        return Encoded(self.kind, b"".join(self.rope), self.items)


def held_by(lines: Iterable[Any], parts: Iterable[Any]) -> dict[int, dict[str, VersionBytes]]:
    """Put versions together, in the order of their names: by checkpoint and by name.

    Args:
        lines: Rows that are ``LineOf``.
        parts: Rows that are ``Part``: the pieces of these lines, in any order.

    Raises:
        InvalidRow: A version lacks bytes.
    """
    on_line: dict[tuple[str, int], list[Any]] = {}
    for part in parts:
        on_line.setdefault(part[:2], []).append(part)
    found: dict[int, dict[str, VersionBytes]] = {}
    rope: Rope = []
    # Sorted here: the engines would move the data about to sort it.
    from_below = sorted(lines, key=itemgetter(LineOf._fields.index("level")), reverse=True)
    for line in sorted(from_below, key=itemgetter(0, 1)):
        pk, name, kind, items, digest, level, thread_id, number, length = line
        own = on_line.get((thread_id, number), ())
        if not rope and len(own) == 1 and own[0][2:5] == _WHOLE and len(own[0][-1]) == length:
            rope = [own[0][-1]]  # as most are
        else:
            pieces = {part[2]: Part._make(part) for part in own if part[2] < length}
            try:
                rope = joined(rope, length, [pieces[start] for start in sorted(pieces)])
            except InvalidRow as error:
                raise _at(error, pk, name) from None
        if not level:
            found.setdefault(pk, {})[name] = VersionBytes(kind, items, digest, rope)
            rope = []
    return found


def values_of(
    checkpoint_pk: int, versions: Mapping[str, VersionBytes], small: Mapping[str, Encoded]
) -> dict[str, Any]:
    """Give the values of one checkpoint, by their names in order.

    Args:
        checkpoint_pk: Its number.
        versions: Those on lines.
        small: The others.

    Raises:
        InvalidRow: The bytes are not those that were stored. The digest is compared of bytes alone;
            for JSON that would take as long as to read it, so the doctor does it.
    """
    values: dict[str, Any] = {}
    for name in sorted((*versions, *small)) if small else versions:
        try:
            if name in small:
                kind, body, _ = small[name]
                values[name] = body if kind == "bytes" else decode(kind, [body], 0)
                continue
            held = versions[name]
            if held.kind != "bytes":
                values[name] = decode(held.kind, held.rope, held.items)
                continue
            values[name] = body = held.rope[0] if len(held.rope) == 1 else b"".join(held.rope)
            if digest_of(body) != held.digest:
                raise InvalidRow("checkpoint_values", "data", OTHER_BYTES)
        except InvalidRow as error:
            raise _at(error, checkpoint_pk, name) from None
    return values


def _at(error: InvalidRow, checkpoint_pk: int, name: str) -> InvalidRow:
    key = f"of the checkpoint with pk={checkpoint_pk}, name={named(name)}"
    return InvalidRow(error.table, error.column, error.problem, key)


def value_queries(
    tables: Tables, points: CTE, *, bases: bool, several: bool, name: Any = None
) -> tuple[Select[Any], Select[Any]]:
    """Give what reads the values of checkpoints: one query for each ``LineOf``, and one for each
    ``Part``, in no order.

    Args:
        tables: The tables.
        points: Selects the checkpoints, ``pk`` among their columns.
        bases: Whether lines below are read too, by recursion. If not, a part with a base says that
            there are some.
        several: Whether they are several, whose versions may be on one line: its pieces come once.
        name: Only the value of this name.
    """
    entries, pieces = tables.checkpoint_entries, tables.checkpoint_values
    held = entries.c.checkpoint_pk == points.c.pk
    held = held if name is None else and_(held, entries.c.name == name)
    lines = _lines(tables, points, held) if bases else _tops(tables, points, held).cte("lines")
    needed: Any = lines
    if several or bases:
        line = (lines.c.thread_id, lines.c.line)
        longest = func.max(lines.c.length).label("length")
        needed = select(*line, longest).group_by(*line).subquery("needed")
    taken = and_(
        pieces.c.thread_id == needed.c.thread_id,
        pieces.c.line == needed.c.line,
        pieces.c.start < needed.c.length,
    )
    return (
        select(*(lines.c[column] for column in LineOf._fields)),
        select(*(pieces.c[column] for column in Part._fields)).join_from(needed, pieces, taken),
    )


def _tops(tables: Tables, points: CTE, held: Any) -> Select[Any]:
    """Read the lines that versions are on."""
    entries = tables.checkpoint_entries.c
    columns: list[Any] = [entries[name] for name in LineOf._fields if name != "level"]
    columns.insert(LineOf._fields.index("level"), literal_column("0", Integer).label("level"))
    return select(*columns).join_from(points, tables.checkpoint_entries, held)


def _lines(tables: Tables, points: CTE, held: Any) -> CTE:
    """Go down from versions to the lines below."""
    first = tables.checkpoint_values.alias("first")
    lines = _tops(tables, points, held).cte("lines", recursive=True)
    begins = and_(
        first.c.thread_id == lines.c.thread_id,
        first.c.line == lines.c.line,
        first.c.start == literal_column("0", Integer),
        first.c.base_line.is_not(None),
    )
    below = select(
        *(lines.c[column] for column in LineOf._fields[:5]),
        lines.c.level + literal_column("1", Integer),
        lines.c.thread_id,
        first.c.base_line,
        first.c.base_length,
    ).join_from(lines, first, begins)
    return lines.union_all(below)


_ALWAYS_READ = 65_536
"""Bytes up to which each version is read to look for damage; of a larger one, the line's last."""


def damaged_versions(connection: Connection, tables: Tables, most: int) -> Iterator[str]:
    """Read the versions of values, those of so many checkpoints at a time; name the damaged ones.

    Of a history that grows only the last version is read, which has the bytes of all others.
    """
    points, entries = tables.checkpoints.c, tables.checkpoint_entries.c
    longer = tables.checkpoint_entries.alias("longer").c
    followed = exists().where(
        longer.thread_id == entries.thread_id,
        longer.line == entries.line,
        longer.length > entries.length,
    )
    chosen = select(points.pk).order_by(points.pk).limit(most)
    last, reading = 0, one_value(tables, dialect_of(connection), bases=True)
    while pks := connection.execute(chosen.where(points.pk > last)).scalars().all():
        held = select(entries.checkpoint_pk, entries.name).where(
            entries.checkpoint_pk.in_(pks), (entries.size <= _ALWAYS_READ) | ~followed
        )
        for pk, name in connection.execute(held.order_by(entries.checkpoint_pk, entries.name)):
            found = reading.fetch(connection, {"wanted": pk, "name": name})
            if not _is_valid(*found):
                yield f"checkpoint_pk={pk}, name={named(name)}"
        last = pks[-1]


@lru_cache(maxsize=256)
def one_value(tables: Tables, driver: Dialect, *, bases: bool) -> Stacked:
    """Give what reads the value of a ``name`` of the checkpoint whose ``pk`` is ``wanted``."""
    pk = tables.checkpoints.c.pk
    chosen = select(pk).where(pk == bindparam("wanted", type_=pk.type)).cte("chosen")
    name = bindparam("name", type_=tables.checkpoint_entries.c.name.type)
    return Stacked(value_queries(tables, chosen, bases=bases, several=False, name=name), driver)


def _is_valid(lines: list[Any], parts: list[Any]) -> bool:
    try:
        for pk, versions in held_by(lines, parts).items():
            values_of(pk, versions, {})
            if any(digest_of(held.encoded.body) != held.digest for held in versions.values()):
                return False
        return True
    except InvalidRow:
        return False
