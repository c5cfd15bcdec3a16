"""Removing checkpoints so that those that stay are whole: with all their values, and a parent.

What stays is led past what goes: its parent is then the nearest ancestor that stays. A value
goes with the last checkpoint that holds it, or anything that was built on it.

Some checkpoints lack a value that is made of their ancestors: of the nearest one that holds it, and
of the pending writes from there on. Those ancestors stay until nothing that stays is made of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import starmap
from typing import Any, Literal, NamedTuple, TypedDict

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Dialect,
    Integer,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    select,
    true,
    tuple_,
    update,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.statements import Stacked, dialect_of
from agentstore.errors import InvalidInput
from agentstore.execution.unit import Unit
from agentstore.records import DeletionReceipt
from agentstore.records.base import Page
from agentstore.records.work import CheckpointRecord
from agentstore.repositories import operations
from agentstore.repositories.checkpoints.puts import (
    WRITE,
    in_order,
    tags_of,
    write_record,
)
from agentstore.repositories.checkpoints.threads import (
    COLUMNS,
    all_checkpoints,
    checkpoint_info,
    checkpoints_of,
    chosen_by,
    in_namespace,
)
from agentstore.repositories.checkpoints.values import (
    Encoded,
    Entries,
    Lines,
    Piece,
    body_of,
    drop_unneeded,
    unpacked,
    values_of,
)
from agentstore.repositories.operations import MOST, Only, chunks, equal, given, whose
from agentstore.schema import Tables
from agentstore.values import validation
from agentstore.values.encoding import encode_text
from agentstore.values.validation import At, Cursors, Wanted, check_limit, has_all, wanted_at

Rows = Sequence[Any]
Doomed = Callable[[Rows], Iterable[Row[Any]]]
"""Chooses from the checkpoints of a namespace, the latest first, those that are to go."""


def in_threads(tables: Tables) -> dict[str, Table]:
    """Give the tables of what is in threads by their plain names, what refers before the rest."""
    # Read off the tables, as ``upkeep.deletion`` does.
    prefix, every = len(tables.names.prefix), reversed(tables.metadata.sorted_tables)
    return {table.name[prefix:]: table for table in every if "thread_id" in table.c}


def remove_all(unit: Unit, thread_id: str) -> DeletionReceipt:
    """Delete a thread that is locked, and everything in it."""
    counts: dict[str, int] = {}
    for name, table in in_threads(unit.tables).items():
        theirs = delete(table).where(table.c.thread_id == thread_id)
        if gone := unit.connection.execute(theirs).rowcount:
            counts[name] = gone
    threads = unit.tables.checkpoint_threads
    unit.connection.execute(delete(threads).where(threads.c.id == thread_id))
    counts["checkpoint_threads"] = 1
    return DeletionReceipt(dict(sorted(counts.items())))


def unless_kept(
    now: datetime,
    keep_last: int | None,
    max_age: timedelta | None,
    keep_tags: Sequence[str],
    keep_ids: Sequence[str] = (),
) -> Doomed:
    """Check a policy, and make a function that chooses the checkpoints that it does not keep.

    Raises:
        InvalidInput: There is no policy, or an argument of it is not valid.
    """
    milestones, named = set(tags_of(keep_tags)), set(keep_ids)
    if keep_last is not None:
        validation.amount("keep_last", keep_last)
    oldest = None
    if max_age is not None:
        if not isinstance(max_age, timedelta) or max_age < timedelta(0):
            raise InvalidInput("max_age must be a timedelta, zero or more.")
        try:
            oldest = now - max_age
        except OverflowError:
            raise InvalidInput("max_age reaches back before the year 1.") from None
    if keep_last is None and oldest is None and not milestones and not named:
        raise InvalidInput(
            "There is no policy. Say what to keep: keep_last, max_age, keep_tags or keep_ids; "
            "delete_thread() deletes all."
        )

    def doomed(rows: Rows) -> Iterable[Row[Any]]:
        for number, row in enumerate(rows):
            kept = (
                number < max(keep_last or 0, 1)  # the latest stays: the steps count on from it
                or (oldest is not None and row.created_at >= oldest)
                or not milestones.isdisjoint(row.tags)
                or row.id in named
            )
            if not kept:
                yield row

    return doomed


def namespaces_of(unit: Unit, thread_id: str) -> list[str]:
    """Give the namespaces in which a thread has checkpoints."""
    checkpoints = unit.tables.checkpoints.c
    query = select(checkpoints.namespace).distinct().where(checkpoints.thread_id == thread_id)
    return sorted(unit.connection.execute(query).scalars())


def would_go(unit: Unit, thread_id: str, namespace: str, choose: Doomed) -> DeletionReceipt:
    """Count the checkpoints that ``remove`` would remove."""
    rows = _rows(unit, thread_id, namespace)
    return _receipt(Counter(checkpoints=len(_going(unit, thread_id, namespace, rows, choose))))


def remove(unit: Unit, thread_id: str, namespace: str, choose: Doomed) -> DeletionReceipt:
    """Remove checkpoints of a thread that is locked, but for those that others are made of."""
    rows = _rows(unit, thread_id, namespace)
    doomed = _going(unit, thread_id, namespace, rows, choose)
    return _receipt(_take_away(unit, thread_id, namespace, rows, doomed))


def _going(unit: Unit, thread_id: str, namespace: str, rows: Rows, choose: Doomed) -> set[str]:
    doomed = {row.id: row for row in choose(rows)}
    c = unit.tables.checkpoints.c
    lacking: list[tuple[str, set[str]]] = []
    for chunk in chunks([r.pk for r in rows if r.parent_id in doomed and r.id not in doomed]):
        query = select(c.pk, c.parent_id, c.metadata, c.entries).where(c.pk.in_(chunk))
        for row in unit.connection.execute(query):
            if names := made_of_ancestors(row.metadata):
                lacking.append((row.parent_id, names - unpacked(row.entries, row.pk).keys()))
    return {*doomed} - _holding(unit, (thread_id, namespace), doomed, lacking)


def total(receipts: Iterable[DeletionReceipt]) -> DeletionReceipt:
    """Add receipts up."""
    counts: Counter[str] = Counter()
    for receipt in receipts:
        counts.update(receipt.rows)
    return _receipt(counts)


def _rows(unit: Unit, thread_id: str, namespace: str) -> Rows:
    checkpoints = unit.tables.checkpoints.c
    query = checkpoints_of(unit.tables).with_only_columns(
        checkpoints.pk,
        checkpoints.id,
        checkpoints.parent_id,
        checkpoints.step,
        checkpoints.tags,
        checkpoints.run_id,
        checkpoints.created_at,
    )
    return unit.connection.execute(
        query.order_by(checkpoints.step.desc(), checkpoints.pk.desc()),
        {"thread_id": thread_id, "namespace": namespace},
    ).all()


@lru_cache(maxsize=256)
def weight(tables: Tables) -> ColumnElement[int]:
    """Say how many rows may go with a checkpoint, as an expression: pieces, about, and writes."""
    c, writes = tables.checkpoints.c, tables.checkpoint_writes
    pending = (
        select(func.count())
        .where(
            writes.c.thread_id == c.thread_id,
            writes.c.namespace == c.namespace,
            writes.c.checkpoint_id == c.id,
        )
        .scalar_subquery()
    )
    return (case((c.lines.is_(None), 1), else_=4) + pending).label("weight")


def as_many_as(rows: Rows, most: int) -> list[Any]:
    """Take the first of rows with a ``weight``, up to so much in all, and one at least."""
    few: list[Any] = []
    for row in rows:
        most -= row.weight
        if most < 0 and few:
            break
        few.append(row)
    return few


def remove_some(
    unit: Unit, thread_id: str, namespace: str, going: Rows, *, values: bool = True
) -> Counter[str]:
    """Remove a few checkpoints of a thread that is locked, without reading its others.

    Args:
        unit: In a write transaction.
        thread_id: The thread.
        namespace: Its namespace.
        going: Rows with ``pk``, ``id`` and ``parent_id``; see ``needed_by_others``.
        values: Whether values go that nothing needs any more. To look for them reads the lines
            that they are on; not needed when the whole thread is to be deleted.

    Returns:
        For each table that lost rows, how many.
    """
    doomed = {row.id for row in going}
    led_past = _children(unit, (thread_id, namespace), doomed)
    return +_take_away(unit, thread_id, namespace, [*going, *led_past], doomed, values=values)


def _children(unit: Unit, place: tuple[str, str], doomed: Collection[str]) -> list[Any]:
    """Read the children of checkpoints, but for those that are among them."""
    c = unit.tables.checkpoints.c
    found: list[Any] = []
    for chunk in chunks(sorted(doomed)):
        query = select(c.pk, c.id, c.parent_id, c.metadata).where(
            c.thread_id == place[0], c.namespace == place[1], c.parent_id.in_(chunk)
        )
        found += [row for row in unit.connection.execute(query) if row.id not in doomed]
    return found


def _take_away(
    unit: Unit,
    thread_id: str,
    namespace: str,
    rows: Rows,
    doomed: set[str],
    *,
    values: bool = True,
) -> Counter[str]:
    """Remove the doomed ones of the rows, which hold these and all that came from them."""
    if not doomed:
        return Counter()
    checkpoints, writes = unit.tables.checkpoints, unit.tables.checkpoint_writes
    led_past = [
        {"its_pk": row.pk, "new_parent": parent} for row, parent in _new_parents(rows, doomed)
    ]
    if led_past:
        change = update(checkpoints).where(checkpoints.c.pk == bindparam("its_pk"))
        unit.connection.execute(change.values(parent_id=bindparam("new_parent")), led_past)
    counts: Counter[str] = Counter()
    going = [row for row in _children_first(rows) if row.id in doomed]
    lines: set[int] = set()
    for chunk in chunks(going):
        theirs = checkpoints.c.pk.in_([row.pk for row in chunk])
        for held in unit.connection.execute(select(checkpoints.c.lines).where(theirs)).scalars():
            lines.update(map(int, held or ()))
        pending = delete(writes).where(
            writes.c.thread_id == thread_id,
            writes.c.namespace == namespace,
            writes.c.checkpoint_id.in_([row.id for row in chunk]),
        )
        counts["checkpoint_writes"] += unit.connection.execute(pending).rowcount
        counts["checkpoints"] += unit.connection.execute(delete(checkpoints).where(theirs)).rowcount
    if values:
        counts["checkpoint_values"] = drop_unneeded(unit, thread_id, namespace, lines)
    return counts


def _new_parents(rows: Rows, doomed: set[str]) -> Iterable[tuple[Row[Any], str | None]]:
    """Give the rows that stay and whose parent goes, each with its nearest ancestor that stays."""
    parents = {row.id: row.parent_id for row in rows}
    for row in rows:
        if row.id in doomed or row.parent_id not in doomed:
            continue
        passed = [row.parent_id]
        ancestor = parents[row.parent_id]
        while ancestor in doomed:
            passed.append(ancestor)
            ancestor = parents[ancestor]
        parents.update(dict.fromkeys(passed, ancestor))  # the next one need not climb again
        yield row, ancestor


def _children_first(rows: Rows) -> list[Row[Any]]:
    """Order checkpoints so that none comes before those that came from it."""
    here = {row.id for row in rows}
    children: dict[str | None, list[Row[Any]]] = {}
    for row in rows:
        children.setdefault(row.parent_id if row.parent_id in here else None, []).append(row)
    ordered = list(children.get(None, ()))
    for row in ordered:  # grows while it is walked along
        ordered += children.get(row.id, ())
    return ordered[::-1]


def _receipt(counts: Counter[str]) -> DeletionReceipt:
    return DeletionReceipt({table: gone for table, gone in sorted(counts.items()) if gone})


# Values that a checkpoint lacks, because they are made of its ancestors.
#
# LangGraph's ``DeltaChannel`` is such a value. What must stay is seen from what goes: of a few
# checkpoints, without reading the rest of the thread, and under its lock.


_COUNTERS = "counters_since_delta_snapshot"
"""The key in LangGraph's metadata that lists such values. Some of them may not be written yet."""

_STEPS = 100
"""Checkpoints on a path that one statement reads: as many as LangGraph lets lack a value."""


def made_of_ancestors(metadata: Any) -> set[str]:
    """Name the values that are made of a checkpoint's ancestors, unless it holds them itself."""
    counters = metadata.get(_COUNTERS) if metadata else None
    return {*counters} if isinstance(counters, dict) else set()


def needed_by_others(
    unit: Unit,
    place: tuple[str, str],
    going: Rows,
    goes: ColumnElement[bool],
    keep_tags: Collection[str],
) -> set[str]:
    """Say which of some checkpoints must not go yet, because one that stays is made of them.

    Reads from them down to what stays, or holds the values itself. Where no value is made of
    ancestors it is one statement, which reads their children.

    Args:
        unit: One that sees one state.
        place: Their thread and namespace.
        going: Rows with ``id`` and ``parent_id``.
        goes: The condition under which any checkpoint goes.
        keep_tags: Tags that keep one all the same.

    Returns:
        Their ids.
    """
    rows: dict[str, Any] = {row.id: row for row in going}
    lacks = {row.id: made_of_ancestors(row.metadata) for row in _children(unit, place, rows)}
    passed: dict[str, Any] = {}
    lacking: list[tuple[str, set[str]]] = []
    start = sorted(id for id, names in lacks.items() if names)
    while start:
        ids, start = start, []
        for chunk in chunks(ids):
            for row in sorted(_below(unit, place, chunk, goes), key=lambda row: int(row.depth)):
                if row.id not in passed:
                    passed[row.id] = row
                    holds = unpacked(row.entries, row.pk).keys()
                    named = row.id if row.id in lacks else row.parent_id
                    lacks[row.id] = lacks[named] - holds
                    if not row.goes or not {*keep_tags}.isdisjoint(row.tags):
                        lacking.append((row.parent_id, made_of_ancestors(row.metadata) - holds))
                        lacks[row.id] = set()
                if row.depth == _STEPS and lacks[row.id]:
                    start.append(row.id)
    return rows.keys() & _holding(unit, place, rows | passed, lacking)


def _below(
    unit: Unit, place: tuple[str, str], ids: Sequence[str], goes: ColumnElement[bool]
) -> Rows:
    """Read some checkpoints and what came from them, down to so many steps."""
    points = unit.tables.checkpoints
    child = points.alias("child")
    here = points.c.thread_id == place[0], points.c.namespace == place[1]
    first = select(points.c.pk, points.c.id, literal(0, Integer).label("depth"))
    walk = first.where(*here, points.c.id.in_(ids)).cte("below", recursive=True)
    down = and_(
        child.c.thread_id == place[0],
        child.c.namespace == place[1],
        child.c.parent_id == walk.c.id,
        walk.c.depth < _STEPS,
    )
    walk = walk.union_all(select(child.c.pk, child.c.id, walk.c.depth + 1).join(walk, down))
    columns = [points.c[name] for name in ("pk", "id", "parent_id", "tags", "metadata", "entries")]
    query = select(*columns, walk.c.depth, goes.label("goes"))
    query = query.join(walk, walk.c.pk == points.c.pk)
    return unit.connection.execute(query).all()


def _holding(
    unit: Unit,
    place: tuple[str, str],
    rows: Mapping[Any, Any],
    lacking: Iterable[tuple[str, set[str]]],
) -> set[str]:
    """Say which checkpoints have something of the values that others lack.

    Args:
        unit: One that sees one state.
        place: Their thread and namespace.
        rows: Those that are asked about, by their ids.
        lacking: The parents of others, with the names of what these lack.
    """
    points, writes = unit.tables.checkpoints.c, unit.tables.checkpoint_writes.c
    holding: set[str] = set()
    asked: dict[str, set[str]] = {}
    for parent, names in lacking:
        left, row = {*names}, rows.get(parent)
        while left and row is not None:
            path: dict[int, str] = {}
            while row is not None and len(path) < _STEPS:
                path[row.pk] = row.id
                row = rows.get(row.parent_id)
            entries = select(points.pk, points.entries).where(points.pk.in_(path))
            held = {row.pk: row.entries for row in unit.connection.execute(entries)}
            channels = select(writes.checkpoint_id, writes.channel).where(
                writes.thread_id == place[0],
                writes.namespace == place[1],
                writes.checkpoint_id.in_(path.values()),
                writes.channel.in_(left),
            )
            written: dict[str, set[str]] = {}
            for each, channel in unit.connection.execute(channels.distinct()):
                written.setdefault(each, set()).add(channel)
            for pk, each in path.items():
                left -= asked.setdefault(each, set())  # somebody else has asked from here on
                asked[each] |= left
                whole = unpacked(held[pk], pk).keys()
                if not left.isdisjoint(whole | written.get(each, set())):
                    holding.add(each)
                left -= whole
    return holding


# Checkpoints with their values and the writes after them, each of one moment.
#
# One statement reads whatever a checkpoint has: a row for each piece of a value, and one for each
# pending write. So a reader sees all of a put, a prune or a write, or nothing of it.


_AMONG = (8, 32, 128, 512, 1024)
"""How many numbers of checkpoints a statement takes: the next that is enough."""


class _ReadState(NamedTuple):
    """What was read of a checkpoint: its columns, what it holds, pieces, the rows of writes."""

    point: tuple[Any, ...]
    entries: Entries
    lines: Lines
    writes: list[Any]

    @property
    def pk(self) -> int:
        """Its number."""
        return int(self.point[0])

    def record(self, *, writes: bool) -> CheckpointRecord:
        """Make a record, with the pending writes or without any."""
        pending = in_order(starmap(write_record, self.writes)) if writes else None
        pk, id, thread, space, parent, step, tags, summary, node, metadata, run, at = self.point
        info = id, thread, space, parent, step, tuple(tags), summary, node, metadata or {}, run, at
        return CheckpointRecord(*info, values_of(pk, self.entries, self.lines), pending)


def find_state(
    unit: Unit, by: str, parameters: Mapping[str, Any], *, writes: bool = False
) -> CheckpointRecord | None:
    """Find a checkpoint with its values, by one statement.

    Args:
        unit: The open unit.
        by: What finds it; see ``chosen_by``.
        parameters: What that needs.
        writes: Whether the writes after it are read as well.
    """
    found = _read(unit, by, parameters, writes=writes)
    return found[0].record(writes=writes) if found else None


def find_encoded(unit: Unit, pk: int) -> dict[str, Encoded]:
    """Read the values of a checkpoint without decoding them."""
    [state] = _read(unit, "pk", {"wanted": pk})
    return {
        name: each
        if isinstance(each, Encoded)
        else Encoded(each.kind, b"".join(body_of(each, state.lines)), each.items)
        for name, each in state.entries.items()
    }


def states_page(
    unit: Unit,
    place: tuple[str, str],
    order: str,
    limit: int,
    after: Sequence[Any] | None,
    *,
    writes: bool,
) -> list[tuple[list[Any], CheckpointRecord]]:
    """Read checkpoints of a place with all their values, the latest first, by one statement.

    Args:
        unit: The open unit.
        place: The thread and the namespace.
        order: ``step`` or ``id``.
        limit: How many to give at most.
        after: The key of the one before; in the order of ids, an id does.
        writes: Whether the writes after them are read as well.

    Returns:
        Each with its key: its step or its id, and its number.
    """
    parameters = {"thread_id": place[0], "namespace": place[1], "limit": limit}
    by = "page" if order == "step" else "page by id"
    if after is not None:
        by = f"next {by}"
        parameters |= dict(zip((order if order == "step" else "below", "pk"), after, strict=False))
    states = _read(unit, by, parameters, several=True, writes=writes)
    first = COLUMNS.index(order)
    found = [([state.point[first], state.pk], state) for state in states]
    found.sort(key=lambda each: _as_stored(*each[0]), reverse=True)
    return [(key, state.record(writes=writes)) for key, state in found]


def _as_stored(first: Any, pk: int) -> tuple[Any, int]:
    """Give a key that sorts as the engine does: a text as it is there; UTF-8 has the same order."""
    return (encode_text(first) if isinstance(first, str) else first), pk


def states_of(unit: Unit, pks: Sequence[int], *, writes: bool) -> dict[int, CheckpointRecord]:
    """Read checkpoints by their numbers, with their values; those that are gone are left out.

    Args:
        unit: The open unit.
        pks: Their numbers, as many as a page may have.
        writes: Whether the writes after them are read as well.
    """
    if not pks:
        return {}
    size = next(size for size in _AMONG if size >= len(pks))
    parameters = {f"pk_{n}": pks[min(n, len(pks) - 1)] for n in range(size)}
    states = _read(unit, size, parameters, several=True, writes=writes)
    return {state.pk: state.record(writes=writes) for state in states}


def _read(
    unit: Unit,
    by: str | int,
    parameters: Mapping[str, Any],
    *,
    several: bool = False,
    writes: bool = False,
) -> list[_ReadState]:
    what = unit.tables, unit.dialect, dialect_of(unit.connection), by, several, writes
    points, pieces, *pending = _statement(*what).fetch(unit.connection, parameters)
    threads: dict[str, dict[int, list[Any]]] = {}
    for thread, *piece in sorted(pieces):
        threads.setdefault(thread, {}).setdefault(piece[0], []).append(piece)
    states = {}
    for *point, stored in points:
        lines = threads.get(point[_THREAD], {})
        states[point[0]] = _ReadState(tuple(point), unpacked(stored, point[0]), lines, [])
    for row in pending[0] if pending else ():
        states[row[0]].writes.append(row[1:])
    return [*states.values()]


_THREAD = COLUMNS.index("thread_id")


@lru_cache(maxsize=512)
def _statement(
    tables: Tables,
    dialect: EngineDialect,
    driver: Dialect,
    by: str | int,
    several: bool,
    writes: bool,
) -> Stacked:
    checkpoints = tables.checkpoints.c
    chosen = _among(tables, by) if isinstance(by, int) else chosen_by(tables, dialect, by)
    columns = [checkpoints[column] for column in (*COLUMNS, "entries")]
    points = chosen.with_only_columns(*columns, checkpoints.lines).cte("chosen")
    queries = [
        select(*(points.c[column.name] for column in columns)),
        _pieces(tables, dialect, points, several=several),
    ]
    return Stacked([*queries, _pending(tables, points)] if writes else queries, driver)


def _pieces(tables: Tables, dialect: EngineDialect, points: CTE, *, several: bool) -> Select[Any]:
    """Read the pieces of what checkpoints hold, each behind its thread's id.

    ``several`` may have a line in common, whose pieces come once.
    """
    values = tables.checkpoint_values
    held, line, length = dialect.each_line(points.c.lines)
    source: Any = points.join(held, true())
    thread: Any = points.c.thread_id
    if several:
        needed = (
            select(thread, line.label("line"), func.max(length).label("length"))
            .select_from(source)
            .group_by(thread, line)
            .subquery("needed")
        )
        source, thread, line, length = needed, *needed.c
    taken = and_(values.c.thread_id == thread, values.c.line == line, values.c.start < length)
    columns = [values.c[column] for column in ("thread_id", *Piece._fields)]
    return select(*columns).select_from(source.join(values, taken))


def _among(tables: Tables, size: int) -> Select[Any]:
    points = tables.checkpoints
    return select(points).where(
        points.c.pk.in_([bindparam(f"pk_{n}", type_=BigInteger) for n in range(size)])
    )


def _pending(tables: Tables, points: CTE) -> Select[Any]:
    """Read the writes after checkpoints, each behind the number of its own."""
    pending = tables.checkpoint_writes.c
    after = and_(
        pending.thread_id == points.c.thread_id,
        pending.namespace == points.c.namespace,
        pending.checkpoint_id == points.c.id,
    )
    columns = (pending[name] for name in WRITE)
    return select(points.c.pk, *columns).join_from(points, tables.checkpoint_writes, after)


# Lists of checkpoints: of a thread or of all, narrowed by namespace, id and metadata.
#
# Metadata are compared here and not by the engine, so that both let the same through. Values and
# writes are read of those alone that are on the page, by one statement more.


CheckpointOrder = Literal["step", "id"]
"""What says which checkpoint is the latest."""

ORDERS = ("step", "id")

_LOOKED_AT = 250
"""Checkpoints that are read at a time where metadata decide which of them are listed."""


class CheckpointFilters(TypedDict, total=False):
    """What ``checkpoints.list`` and ``iter`` take by name, for type checkers.

    All but ``values`` and ``writes``, which say what is given.
    """

    namespace: str | None
    limit: int
    cursor: str | None
    order: CheckpointOrder
    before: str | None
    where: Wanted | None
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a list of checkpoints is narrowed to; None lets all through.

    Attributes:
        order: ``step``, and of several with one step the one that was put last; or ``id``, as
            text. The largest comes first.
        before: Only smaller ids.
        where: What must be at which paths of the metadata, as canonical JSON.
        parent_id: What they came from.
    """

    thread_id: str | None
    namespace: str | None
    order: str
    before: str | None
    where: At
    parent_id: str | None

    @classmethod
    def of(
        cls,
        thread_id: object,
        namespace: object,
        order: object,
        before: object,
        where: Wanted | None,
        parent_id: object,
    ) -> Asked:
        """Make one of a caller's arguments.

        Raises:
            InvalidInput: One of them cannot be asked for.
        """
        order = validation.choice("order", order, ORDERS)
        if before is not None and order != "id":
            raise InvalidInput("before is an id, in the order of ids. Pass order='id' with it.")
        if parent_id is not None and None in (thread_id, namespace):
            raise InvalidInput("parent_id is of a thread and a namespace. Pass both with it.")
        return cls(
            validation.optional_text("thread_id", thread_id),
            validation.optional_text("namespace", namespace),
            order,
            validation.optional_text("before", before),
            wanted_at("where", where),
            validation.optional_text("parent_id", parent_id),
        )

    @property
    def is_in_place(self) -> bool:
        """Whether all are in one namespace of one thread."""
        return None not in (self.thread_id, self.namespace)

    @property
    def is_plain(self) -> bool:
        """Whether it is all of a namespace of a thread, by steps."""
        return self.is_in_place and self.order == "step" and not (self.where or self.parent_id)


def checkpoints_page(
    unit: Unit, asked: Asked, limit: int, cursor: str | None, *, values: bool, writes: bool
) -> Page[Any]:
    """Read a page of checkpoints, by one statement; with values from several places, by two."""
    check_limit(limit)
    texts = int(asked.order == "id")
    where = [[*path, value] for path, value in asked.where]
    place = (asked.thread_id, asked.namespace)
    more: tuple[Any, ...] = () if asked.is_plain else (asked.order, asked.before, where)
    more += () if asked.parent_id is None else (asked.parent_id,)
    cursors = Cursors("checkpoints", *place, *more)
    after = None if cursor is None else cursors.read(cursor, 2, texts=texts)
    whole = asked.is_in_place and not asked.where and asked.parent_id is None
    if (values or writes) and whole:
        if after is None and asked.before is not None:
            after = [asked.before]  # a cursor is behind it
        there = (str(asked.thread_id), str(asked.namespace))
        found = states_page(unit, there, asked.order, limit + 1, after, writes=writes)
        following = cursors.make(found[limit - 1][0]) if len(found) > limit else None
        return Page(tuple(record for _, record in found[:limit]), following)
    rows = _listed_rows(unit, asked, limit, after)
    following = cursors.make(_key(rows[limit - 1], asked)) if len(rows) > limit else None
    rows = rows[:limit]
    if not values and not writes:
        return Page(tuple(map(checkpoint_info, rows)), following)
    states = states_of(unit, [row.pk for row in rows], writes=writes)
    return Page(tuple(states[row.pk] for row in rows if row.pk in states), following)


def _listed_rows(
    unit: Unit, asked: Asked, limit: int, after: Sequence[Any] | None
) -> list[Row[Any]]:
    """Read one row more than the page may have, if there are as many."""
    found: list[Row[Any]] = []
    size = max(limit + 1, _LOOKED_AT) if asked.where else limit + 1
    wanted = given(
        thread_id=asked.thread_id,
        namespace=asked.namespace,
        parent_id=asked.parent_id,
        before=asked.before,
    )
    only = whose(unit) if asked.thread_id is None else None
    while True:
        last = {} if after is None else {"last": after[0], "last_pk": after[1]}
        shape = unit.dialect, asked.order, only, (*wanted, *last)
        rows = unit.rows(_query, *shape, **wanted, **last, only=unit.only, most=size)
        found += (row for row in rows if has_all(row.metadata, asked.where))
        if len(rows) < size or len(found) > limit:
            return found[: limit + 1]
        after = _key(rows[-1], asked)


def _key(row: Row[Any], asked: Asked) -> list[Any]:
    return [row.id if asked.order == "id" else row.step, row.pk]


def _query(
    tables: Tables, dialect: EngineDialect, order: str, only: Only, asked: Sequence[str]
) -> Select[Any]:
    checkpoints = tables.checkpoints
    c = checkpoints.c
    by = dialect.by_bytes(c.id) if order == "id" else c.step
    query = all_checkpoints(tables).where(
        *operations.threads(tables, only, c.thread_id),
        *equal(c, [name for name in ("thread_id", "parent_id") if name in asked]),
    )
    if "namespace" in asked:
        query = query.where(in_namespace(checkpoints))
    if "before" in asked:
        query = query.where(by < bindparam("before", type_=c.id.type))
    if "last" in asked:
        last = bindparam("last", type_=by.type), bindparam("last_pk", type_=c.pk.type)
        query = query.where(tuple_(by, c.pk) < tuple_(*last))
    return query.order_by(by.desc(), c.pk.desc()).limit(MOST)
