"""The lines of values in the database: gone on with, and dropped when nobody needs them.

What the lines mean is said in ``values``, beside this module; here are the queries. The caller has
locked the thread of a line that it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    Dialect,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import UnsoundRow
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.checkpoints.value_parts import Part, held_by, one_value
from agentstore.repositories.checkpoints.values import (
    Encoded,
    Piece,
    Plan,
    Stored,
    Version,
    joined,
    plan,
)

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
        UnsoundRow: A piece was to be merged and is not there.
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
        raise UnsoundRow("checkpoint_values", "start", "no piece where one was to be merged")
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
            gone += _cut(unit, thread_id, {k: n for k, n in needed.items() if n >= 0})
        pending = below
    return gone


def _cut(unit: Unit, thread_id: str, needed: Mapping[int, int]) -> int:
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
        raise UnsoundRow("checkpoint_values", "data", "fewer bytes than were stored")
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
