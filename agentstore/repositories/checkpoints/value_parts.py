"""How values are read from their lines, with the checkpoints that hold them.

Whatever versions a checkpoint has are read by one statement, with the checkpoint. So a reader sees
a line before its last pieces were merged, or after, and never in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import CTE, Connection, Integer, Select, and_, exists, func, literal_column, select

from agentstore.errors import UnsoundRow, named
from agentstore.models.tables import Tables
from agentstore.repositories.checkpoints.values import Encoded, Rope, decode, digest_of, joined


class Part(NamedTuple):
    """A row of what ``with_parts`` reads: a piece of a version, or of a line below it.

    All behind ``checkpoint_pk`` are None if the checkpoint has no values; if a version has no
    bytes, all that is of a piece.

    Attributes:
        level: How many bases lie above the piece's line.
        length: How many bytes of that line are needed.
    """

    checkpoint_pk: int
    name: str
    kind: str
    item_count: int
    digest: bytes
    level: int
    line: int
    length: int
    start: int
    base_line: int | None
    prefix: int | None
    suffix: int
    data: bytes


_OF_PIECE = Part._fields.index("start")

BASE = Part._fields.index("base_line")
"""Where a row says whether there is more to read, of lines below."""

OTHER_BYTES = "other bytes than were stored"


@dataclass(frozen=True, slots=True)
class Held:
    """A version as it was read."""

    kind: str
    items: int
    digest: bytes
    rope: Rope

    @property
    def encoded(self) -> Encoded:
        """What it is, still encoded."""
        return Encoded(self.kind, b"".join(self.rope), self.items)


def held_by(parts: Iterable[Part]) -> dict[str, Held]:
    """Put the versions of one checkpoint together, in the order of their names.

    Raises:
        UnsoundRow: A version lacks bytes.
    """
    found: dict[str, Held] = {}
    # Sorted here: the engines would move the data about to sort it.
    in_order = sorted((part for part in parts if part.name is not None), key=_lowest_first)
    for name, group in groupby(in_order, key=attrgetter("name")):
        rope: Rope = []
        try:
            for _, pieces in groupby(group, key=attrgetter("level")):
                rows = list(pieces)
                own = rows[0]
                rope = joined(rope, own.length, rows if own.start is not None else ())
        except UnsoundRow as error:
            raise _at(error, own.checkpoint_pk, name) from None
        found[name] = Held(own.kind, own.item_count, own.digest, rope)
    return found


def values_of(checkpoint_pk: int, versions: Mapping[str, Held]) -> dict[str, Any]:
    """Give the values of one checkpoint.

    Raises:
        UnsoundRow: The bytes are not those that were stored. The digest is compared of bytes alone;
            for JSON that would take as long as to read it, so the doctor does it.
    """
    values: dict[str, Any] = {}
    for name, held in versions.items():
        try:
            values[name] = value = decode(held.kind, held.rope, held.items)
            if held.kind == "bytes" and digest_of(value) != held.digest:
                raise UnsoundRow("checkpoint_values", "data", OTHER_BYTES)
        except UnsoundRow as error:
            raise _at(error, checkpoint_pk, name) from None
    return values


def _at(error: UnsoundRow, checkpoint_pk: int, name: str) -> UnsoundRow:
    key = f"of the checkpoint with pk={checkpoint_pk}, name={named(name)}"
    return UnsoundRow(error.table, error.column, error.problem, key)


def _lowest_first(part: Part) -> tuple[str, int, int]:
    return part.name, -part.level, part.start


def shared_out(parts: Sequence[Part]) -> dict[int, dict[str, Held]]:
    """Give checkpoints of one thread, by their numbers, their versions in the order of their names,
    where the pieces of a line were read with its longest version alone.

    Raises:
        UnsoundRow: A version lacks bytes.
    """
    pieces: dict[int, list[Part]] = {}
    for part in parts:
        if part.start is not None:
            pieces.setdefault(part.line, []).append(part)
    for line in pieces.values():
        line.sort(key=attrgetter("start"))
    found: dict[int, dict[str, Held]] = {part.checkpoint_pk: {} for part in parts}
    own = {(part.name, part.checkpoint_pk): part for part in parts if part.name is not None}
    for name, pk in sorted(own):
        part = own[name, pk]
        on_line = pieces.get(part.line, ())
        try:
            rope = joined([], part.length, [p for p in on_line if p.start < part.length])
        except UnsoundRow as error:
            raise _at(error, pk, name) from None
        found[pk][name] = Held(part.kind, part.item_count, part.digest, rope)
    return found


def with_parts(
    tables: Tables,
    chosen: Select[Any] | CTE,
    *,
    bases: bool,
    several: bool = False,
    name: Any = None,
) -> Select[Any]:
    """Read checkpoints with all of their values, in no order: a row for each ``Part``.

    Args:
        tables: The tables.
        chosen: Selects the checkpoints, ``pk`` among their columns; a CTE, if the statement has
            other uses for it. Behind the columns of the part
            come all columns of the checkpoint, in the rows of first pieces alone.
        bases: Whether lines below are read too, by recursion, which takes twice as long. If not, a
            row with a base says that there are some.
        several: Whether the pieces of a line come with its longest version alone; see
            ``shared_out``. Not with ``bases``.
        name: Only the value of this name.
    """
    zero = literal_column("0", Integer)
    entries, pieces = tables.checkpoint_entries, tables.checkpoint_values
    points: Any = chosen
    if not isinstance(chosen, CTE):
        points = chosen.cte("chosen") if bases or several else chosen.subquery("chosen")
    held = entries.c.checkpoint_pk == points.c.pk
    held = held if name is None else and_(held, entries.c.name == name)
    lines: Any = entries
    if bases:
        lines = _lines(tables, points, held)
    elif several:
        longest = (entries.c.length.desc(), entries.c.checkpoint_pk, entries.c.name)
        line = (entries.c.thread_id, entries.c.line)
        number = func.row_number().over(partition_by=line, order_by=longest).label("number")
        lines = select(entries, number).join_from(points, entries, held).subquery("numbered")
    if lines is not entries:
        held = lines.c.checkpoint_pk == points.c.pk
    level = lines.c.level if bases else zero
    own = [lines.c[column] for column in Part._fields[1:5]]
    read = [pieces.c[column] for column in Part._fields[_OF_PIECE:]]
    taken = and_(
        pieces.c.thread_id == lines.c.thread_id,
        pieces.c.line == lines.c.line,
        pieces.c.start < lines.c.length,
        *([lines.c.number == 1] if several else []),
    )
    point = tables.checkpoints.alias("point")
    is_first = and_(point.c.pk == points.c.pk, func.coalesce(pieces.c.start, zero) == zero)
    joined = points.outerjoin(lines, held).outerjoin(pieces, taken).outerjoin(point, is_first)
    own += [level, lines.c.line, lines.c.length]
    part = (points.c.pk.label("checkpoint_pk"), *own, *read)
    return select(*part, *point.c).select_from(joined)


def _lines(tables: Tables, points: Any, held: Any) -> CTE:
    """Go down from versions to the lines below."""
    entries, first = tables.checkpoint_entries, tables.checkpoint_values.alias("first")
    columns = ("checkpoint_pk", "name", "kind", "item_count", "digest")
    lines = (
        select(
            *(entries.c[column] for column in columns),
            literal_column("0", Integer).label("level"),
            entries.c.thread_id,
            entries.c.line,
            entries.c.length,
        )
        .join_from(points, entries, held)
        .cte("lines", recursive=True)
    )
    begins = and_(
        first.c.thread_id == lines.c.thread_id,
        first.c.line == lines.c.line,
        first.c.start == literal_column("0", Integer),
        first.c.base_line.is_not(None),
    )
    below = select(
        *(lines.c[column] for column in columns),
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
    last = 0
    while pks := connection.execute(chosen.where(points.pk > last)).scalars().all():
        held = select(entries.checkpoint_pk, entries.name).where(
            entries.checkpoint_pk.in_(pks), (entries.size <= _ALWAYS_READ) | ~followed
        )
        for pk, name in connection.execute(held.order_by(entries.checkpoint_pk, entries.name)):
            this = select(points.pk).where(points.pk == pk)
            rows = connection.execute(with_parts(tables, this, bases=True, name=name))
            if not _is_sound([Part(*row[: len(Part._fields)]) for row in rows]):
                yield f"checkpoint_pk={pk}, name={named(name)}"
        last = pks[-1]


def _is_sound(parts: list[Part]) -> bool:
    try:
        versions = held_by(parts)
        values_of(0, versions)
        return all(digest_of(held.encoded.body) == held.digest for held in versions.values())
    except UnsoundRow:
        return False
