"""The nodes of values in the database: read, written, and dropped when nobody needs them.

What the nodes mean is said in ``values``, beside this module; here are the queries. A version is
read by one statement, whatever it is made of: its own line and the lines below are found by
recursion, the nodes of each by a range of the primary key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

from sqlalchemy import (
    CTE,
    FromClause,
    Integer,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
)

from agentstore.errors import UnsoundRow, named
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.checkpoints.values import (
    Chain,
    NewNode,
    Node,
    Part,
    Stretch,
    assemble,
    digest_of_bytes,
    next_node,
)
from agentstore.values.encoding import key_step

NODE_COLUMNS = (
    "line",
    "length",
    "start",
    "base_line",
    "base_length",
    "depth",
    "position",
    "kind",
    "digest",
)

Shared = Mapping[str, tuple[Node, bool]]
"""By name, a version that the next one may share with, and whether it is its line's last node."""


def load_values(unit: Unit, thread_id: str, checkpoint_pk: int) -> dict[str, Any]:
    """Read the values of a checkpoint, in the order of their names, by one statement."""
    found = unit.connection.execute(
        _parts(unit.tables), {"thread_id": thread_id, "checkpoint_pk": checkpoint_pk}
    )
    kinds: dict[str, str] = {}
    digests: dict[str, bytes] = {}
    parts: dict[str, list[Part]] = {}
    levels: dict[str, int] = {}
    # Sorted here: the engines would move the data about to sort it.
    for name, level, start, _, kind, encoding, data, digest in sorted(found, key=_lowest_first):
        kinds[name] = kind
        digests[name] = digest
        on_new_line = levels.get(name) != level
        levels[name] = level
        parts.setdefault(name, []).append((start if on_new_line else None, encoding, data))
    return {
        name: _value(kinds[name], parts[name], digests[name], checkpoint_pk, name)
        for name in sorted(parts)
    }


def _value(kind: str, parts: list[Part], digest: bytes, checkpoint_pk: int, name: str) -> Any:
    """Give a value; of JSON the digest is not compared, which would take longer than reading it."""
    try:
        value = assemble(kind, parts)
        if kind == "bytes" and digest_of_bytes(value) != digest:
            raise UnsoundRow("checkpoint_values", "data", OTHER_BYTES)
    except UnsoundRow as error:
        key = f"of the checkpoint with pk={checkpoint_pk}, name={named(name)}"
        raise UnsoundRow(error.table, error.column, error.problem, key) from None
    return value


OTHER_BYTES = "other bytes than were stored"


def store_values(
    unit: Unit,
    thread_id: str,
    checkpoint_pk: int,
    values: Mapping[str, Any],
    shared: Shared,
    first_line: int,
) -> None:
    """Write the values of a checkpoint that has none.

    Args:
        unit: In a write transaction that has locked the thread.
        thread_id: The thread.
        checkpoint_pk: The checkpoint's row number.
        values: JSON or bytes by name.
        shared: What they may share with.
        first_line: The first of as many numbers of lines as there are values.

    Raises:
        InvalidJson: JSON cannot say a value. Nothing was written for any of them.
    """
    nodes, entries = planned(unit, thread_id, values, shared, first_line)
    write_nodes(unit, thread_id, nodes)
    write_entries(unit, thread_id, checkpoint_pk, entries)


def planned(
    unit: Unit, thread_id: str, values: Mapping[str, Any], shared: Shared, first_line: int
) -> tuple[list[NewNode], dict[str, Node]]:
    """Say which nodes values need, and which node each name stands for; see ``store_values``."""
    lines: Iterator[int] = count(first_line)
    nodes: list[NewNode] = []
    entries: dict[str, Node] = {}
    extended: set[tuple[int, int]] = set()
    for position, (name, value) in enumerate(values.items()):
        parent, is_tip = shared.get(name, (None, False))
        found = next_node(
            f"values{key_step(name, position)}",
            value,
            parent,
            is_tip=is_tip and (parent is None or (parent.line, parent.length) not in extended),
            new_line=lambda: next(lines),
            chain_of=lambda node: read_chain(unit, thread_id, node),
        )
        if isinstance(found, NewNode):
            nodes.append(found)
            if parent is not None and found.node.line == parent.line:
                extended.add((parent.line, parent.length))
            found = found.node
        entries[name] = found
    return nodes, entries


def write_nodes(unit: Unit, thread_id: str, nodes: Iterable[NewNode]) -> None:
    """Insert nodes."""
    rows = [
        {
            "thread_id": thread_id,
            "line": new.node.line,
            "length": new.node.length,
            "start": new.node.start,
            "base_line": None if new.node.base is None else new.node.base[0],
            "base_length": None if new.node.base is None else new.node.base[1],
            "depth": new.node.depth,
            "position": new.node.position,
            "kind": new.node.kind,
            "encoding": new.encoding,
            "digest": new.node.digest,
            "data": new.data,
        }
        for new in nodes
    ]
    if rows:
        unit.connection.execute(insert(unit.tables.checkpoint_values).inline(), rows)


def write_entries(
    unit: Unit, thread_id: str, checkpoint_pk: int, entries: Mapping[str, Node]
) -> None:
    """Insert which node each name of a checkpoint stands for."""
    rows = [
        {
            "checkpoint_pk": checkpoint_pk,
            "name": name,
            "thread_id": thread_id,
            "line": node.line,
            "length": node.length,
        }
        for name, node in entries.items()
    ]
    if rows:
        unit.connection.execute(insert(unit.tables.checkpoint_entries).inline(), rows)


def read_chain(unit: Unit, thread_id: str, node: Node) -> Chain:
    """Read a version whole: its own line first."""
    found = unit.connection.execute(
        _chain(unit.tables), {"thread_id": thread_id, "line": node.line, "length": node.length}
    )
    stretches: dict[int, list[NewNode]] = {}
    for row in sorted(found, key=lambda row: (row.level, row.length)):
        stored = NewNode(node_of(row), row.encoding, bytes(row.data))
        stretches.setdefault(row.level, []).append(stored)
    return [Stretch(nodes) for nodes in stretches.values()]


def drop_entries(unit: Unit, checkpoint_pks: Iterable[int]) -> tuple[int, set[int]]:
    """Take the values away from checkpoints; their nodes stay.

    Returns:
        How many entries went, and the lines that they were on.
    """
    entries = unit.tables.checkpoint_entries
    gone, lines = 0, set[int]()
    for chunk in chunks(list(checkpoint_pks)):
        theirs = entries.c.checkpoint_pk.in_(chunk)
        lines.update(unit.connection.execute(select(entries.c.line).where(theirs)).scalars())
        gone += unit.connection.execute(delete(entries).where(theirs)).rowcount
    return gone, lines


def drop_unneeded(unit: Unit, thread_id: str, lines: Iterable[int]) -> int:
    """Delete the nodes of these lines, and of those below, that no version consists of any more.

    A node is needed by every entry, and by every base, further along its line.

    Returns:
        How many nodes went.
    """
    nodes = unit.tables.checkpoint_values
    entries = unit.tables.checkpoint_entries
    above = nodes.alias("above")
    held = select(literal(1)).where(
        entries.c.thread_id == nodes.c.thread_id,
        entries.c.line == nodes.c.line,
        entries.c.length >= nodes.c.length,
    )
    built_on = select(literal(1)).where(
        above.c.thread_id == nodes.c.thread_id,
        above.c.base_line == nodes.c.line,
        above.c.base_length >= nodes.c.length,
    )
    gone = 0
    pending = set(lines)
    while pending:  # once for each level of lines that became free, MAX_DEPTH at most
        below: set[int] = set()
        for chunk in chunks(sorted(pending)):
            unneeded = delete(nodes).where(
                nodes.c.thread_id == thread_id,
                nodes.c.line.in_(chunk),
                ~held.exists(),
                ~built_on.exists(),
            )
            bases = unit.connection.execute(unneeded.returning(nodes.c.base_line)).scalars().all()
            gone += len(bases)
            below.update(base for base in bases if base is not None)
        pending = below
    return gone


def node_of(row: Row[Any] | Any) -> Node:
    """Make a node of a row that has ``NODE_COLUMNS``."""
    base = None if row.base_line is None else (row.base_line, row.base_length)
    return Node(
        row.line,
        row.length,
        row.start,
        base,
        row.depth,
        row.position,
        row.kind,
        bytes(row.digest),
    )


def last_length(nodes: Table) -> Any:
    """Give the length of the last node on a node's line, as an expression."""
    along = nodes.alias("along")
    return (
        select(func.max(along.c.length))
        .where(along.c.thread_id == nodes.c.thread_id, along.c.line == nodes.c.line)
        .correlate(nodes)
        .scalar_subquery()
    )


@lru_cache(maxsize=64)
def _parts(tables: Tables) -> Select[Any]:
    """Read the versions that a checkpoint names, in no order."""
    nodes, entries = tables.checkpoint_values, tables.checkpoint_entries
    begun = (
        select(entries.c.name, *_position(nodes))
        .join(nodes, _same_node(nodes, entries))
        .where(entries.c.checkpoint_pk == bindparam("checkpoint_pk"))
    )
    lines, along = _lines(tables, begun)
    columns = (
        lines.c.name,
        lines.c.level,
        nodes.c.start,
        nodes.c.length,
        nodes.c.kind,
        nodes.c.encoding,
        nodes.c.data,
        nodes.c.digest,
    )
    return select(*columns).select_from(along)


def _lowest_first(row: Any) -> tuple[int, int]:
    return -row.level, row.length


@lru_cache(maxsize=64)
def _chain(tables: Tables) -> Select[Any]:
    """Read one version with all that is known of its nodes, in no order."""
    nodes = tables.checkpoint_values
    begun = select(literal("", nodes.c.kind.type).label("name"), *_position(nodes)).where(
        nodes.c.thread_id == bindparam("thread_id"),
        nodes.c.line == bindparam("line"),
        nodes.c.length == bindparam("length"),
    )
    lines, along = _lines(tables, begun)
    columns = [nodes.c[column] for column in (*NODE_COLUMNS, "encoding", "data")]
    return select(lines.c.level, *columns).select_from(along)


def _lines(tables: Tables, begun: Select[Any]) -> tuple[CTE, FromClause]:
    """Go down from versions to the lines below; give the lines, and their nodes beside them."""
    nodes = tables.checkpoint_values
    below = nodes.alias("below")
    thread_id = bindparam("thread_id", type_=nodes.c.thread_id.type)
    lines = begun.cte("lines", recursive=True)
    base = and_(
        below.c.thread_id == thread_id,
        below.c.line == lines.c.base_line,
        below.c.length == lines.c.base_length,
    )
    lower = select(lines.c.name, *_position(below, lines.c.level + 1)).join(below, base)
    lines = lines.union_all(lower)
    taken = and_(
        nodes.c.thread_id == thread_id,
        nodes.c.line == lines.c.line,
        nodes.c.length <= lines.c.length,
    )
    return lines, lines.join(nodes, taken)


def _position(nodes: FromClause, level: Any = None) -> list[Any]:
    named = [nodes.c[column] for column in ("line", "length", "base_line", "base_length")]
    return [*named, (literal(0, Integer) if level is None else level).label("level")]


def _same_node(nodes: Table, entries: Table) -> Any:
    return and_(
        nodes.c.thread_id == entries.c.thread_id,
        nodes.c.line == entries.c.line,
        nodes.c.length == entries.c.length,
    )
