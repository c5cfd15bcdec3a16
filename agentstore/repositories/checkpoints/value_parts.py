"""How values are read from their lines, with the checkpoints that hold them.

Whatever versions a checkpoint has are read by one statement, with the checkpoint: the lines that
they are on, and the pieces of these, each once. So a reader sees a line before its last pieces were
merged, or after, and never in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    Connection,
    Dialect,
    Integer,
    Select,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    select,
)

from agentstore.engines.base.prepared import Stacked, dialect_of
from agentstore.errors import UnsoundRow, named
from agentstore.models.tables import Tables
from agentstore.repositories.checkpoints.values import (
    OTHER_BYTES,
    Encoded,
    Rope,
    decode,
    digest_of,
    joined,
)


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


class Held(NamedTuple):
    """A version as it was read."""

    kind: str
    items: int
    digest: bytes
    rope: Rope

    @property
    def encoded(self) -> Encoded:
        """What it is, still encoded."""
        return Encoded(self.kind, b"".join(self.rope), self.items)


def held_by(lines: Iterable[Any], parts: Iterable[Any]) -> dict[int, dict[str, Held]]:
    """Put versions together, in the order of their names: by checkpoint and by name.

    Args:
        lines: Rows that are ``LineOf``.
        parts: Rows that are ``Part``: the pieces of these lines, in any order.

    Raises:
        UnsoundRow: A version lacks bytes.
    """
    on_line: dict[tuple[str, int], list[Any]] = {}
    for part in parts:
        on_line.setdefault(part[:2], []).append(part)
    found: dict[int, dict[str, Held]] = {}
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
            except UnsoundRow as error:
                raise _at(error, pk, name) from None
        if not level:
            found.setdefault(pk, {})[name] = Held(kind, items, digest, rope)
            rope = []
    return found


def values_of(
    checkpoint_pk: int, versions: Mapping[str, Held], small: Mapping[str, Encoded]
) -> dict[str, Any]:
    """Give the values of one checkpoint, by their names in order.

    Args:
        checkpoint_pk: Its number.
        versions: Those on lines.
        small: The others.

    Raises:
        UnsoundRow: The bytes are not those that were stored. The digest is compared of bytes alone;
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
                raise UnsoundRow("checkpoint_values", "data", OTHER_BYTES)
        except UnsoundRow as error:
            raise _at(error, checkpoint_pk, name) from None
    return values


def _at(error: UnsoundRow, checkpoint_pk: int, name: str) -> UnsoundRow:
    key = f"of the checkpoint with pk={checkpoint_pk}, name={named(name)}"
    return UnsoundRow(error.table, error.column, error.problem, key)


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
            if not _is_sound(*found):
                yield f"checkpoint_pk={pk}, name={named(name)}"
        last = pks[-1]


@lru_cache(maxsize=256)
def one_value(tables: Tables, driver: Dialect, *, bases: bool) -> Stacked:
    """Give what reads the value of a ``name`` of the checkpoint whose ``pk`` is ``wanted``."""
    pk = tables.checkpoints.c.pk
    chosen = select(pk).where(pk == bindparam("wanted", type_=pk.type)).cte("chosen")
    name = bindparam("name", type_=tables.checkpoint_entries.c.name.type)
    return Stacked(value_queries(tables, chosen, bases=bases, several=False, name=name), driver)


def _is_sound(lines: list[Any], parts: list[Any]) -> bool:
    try:
        for pk, versions in held_by(lines, parts).items():
            values_of(pk, versions, {})
            if any(digest_of(held.encoded.body) != held.digest for held in versions.values()):
                return False
        return True
    except UnsoundRow:
        return False
