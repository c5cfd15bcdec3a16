"""Removing checkpoints so that those that stay are whole: with all their values, and a parent.

What stays is led past what goes: its parent is then the nearest ancestor that stays. A value
goes with the last checkpoint that holds it, or anything that was built on it.

Some checkpoints lack a value that is made of their ancestors: of the nearest one that holds it, and
of the pending writes from there on. Those ancestors stay until nothing that stays is made of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import starmap
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypedDict

from sqlalchemy import (
    CTE,
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
from agentstore.repositories.operations import (
    MOST,
    Only,
    among,
    changing,
    chunks,
    equal,
    several,
    whose,
)
from agentstore.schema import Tables
from agentstore.values import validation
from agentstore.values.encoding import encode_text
from agentstore.values.validation import At, Cursors, Wanted, check_limit, has_all

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


def remove(
    unit: Unit, thread_id: str, namespace: str, choose: Doomed, *, dry_run: bool = False
) -> DeletionReceipt:
    """Remove checkpoints of a thread that is locked, but for those that others are made of."""
    c = unit.tables.checkpoints.c
    needed = ("pk", "id", "parent_id", "step", "tags", "run_id", "created_at")
    query = checkpoints_of(unit.tables).with_only_columns(*(c[name] for name in needed))
    rows = unit.connection.execute(
        query.order_by(c.step.desc(), c.pk.desc()),
        {"thread_id": thread_id, "namespace": namespace},
    ).all()
    doomed = {row.id: row for row in choose(rows)}
    lacking: list[tuple[str, set[str]]] = []
    for chunk in chunks([r.pk for r in rows if r.parent_id in doomed and r.id not in doomed]):
        query = select(c.pk, c.parent_id, c.metadata, c.entries).where(c.pk.in_(chunk))
        for row in unit.connection.execute(query):
            if names := made_of_ancestors(row.metadata):
                lacking.append((row.parent_id, names - unpacked(row.entries, row.pk).keys()))
    going = {*doomed} - _holding(unit, (thread_id, namespace), doomed, lacking)
    if dry_run:
        return _receipt(Counter(checkpoints=len(going)))
    return _receipt(_take_away(unit, thread_id, namespace, rows, going))


def total(receipts: Iterable[DeletionReceipt]) -> DeletionReceipt:
    """Add receipts up."""
    counts: Counter[str] = Counter()
    for receipt in receipts:
        counts.update(receipt.rows)
    return _receipt(counts)


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
    """Remove the doomed ones of the rows, which hold these and all that came from them.

    Those that stay and whose parent goes get their nearest ancestor that stays.
    """
    if not doomed:
        return Counter()
    checkpoints, writes = unit.tables.checkpoints, unit.tables.checkpoint_writes
    parents = {row.id: row.parent_id for row in rows}
    led_past = []
    for row in rows:
        if row.id in doomed or row.parent_id not in doomed:
            continue
        passed = [row.parent_id]
        while (ancestor := parents[passed[-1]]) in doomed:
            passed.append(ancestor)
        parents.update(dict.fromkeys(passed, ancestor))  # the next one need not climb again
        led_past.append({"pk": row.pk, "parent_id": ancestor})
    if led_past:
        unit.each(changing, led_past, checkpoints, ("pk",), "parent_id")
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
    # Pieces with nothing in a column are left out, so that what is missing is told as damage.
    whole = (piece for piece in pieces if None not in (piece[0], piece[_DATA], piece[_SUFFIX]))
    for thread, *piece in sorted(whole):
        threads.setdefault(thread, {}).setdefault(piece[0], []).append(piece)
    states = {}
    for *point, stored in points:
        lines = threads.get(point[_THREAD], {})
        states[point[0]] = _ReadState(tuple(point), unpacked(stored, point[0]), lines, [])
    for row in pending[0] if pending else ():
        states[row[0]].writes.append(row[1:])
    return [*states.values()]


_THREAD = COLUMNS.index("thread_id")
_DATA, _SUFFIX = (1 + Piece._fields.index(name) for name in ("data", "suffix"))


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
    if isinstance(by, int):
        chosen = select(tables.checkpoints).where(among(checkpoints.pk, "pk", by))
    else:
        chosen = chosen_by(tables, dialect, by)
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
    # SQLite would read all pieces of the thread, and then look whether each is on one of the lines:
    # there are more with each step. What is to the left of an outer join it reads first.
    return select(*columns).select_from(source.join(values, taken, isouter=not several))


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

ORDERS: tuple[CheckpointOrder, ...] = ("step", "id")

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


def checkpoints_page(
    unit: Unit,
    wanted: Mapping[str, str],
    order: CheckpointOrder,
    where: At,
    limit: int,
    cursor: str | None,
    *,
    values: bool,
    writes: bool,
) -> Page[Any]:
    """Read a page of checkpoints, by one statement; with values from several places, by two.

    Args:
        unit: The open unit.
        wanted: ``thread_id``, ``namespace``, ``before`` and ``parent_id``, as far as given.
        order: See ``Checkpoints.list``.
        where: What must be at which paths of the metadata.
        limit: How many to give at most.
        cursor: Where to go on, or None.
        values: Whether with their values.
        writes: Whether with their values, and the pending writes after them.
    """
    check_limit(limit)
    in_place = {"thread_id", "namespace"} <= wanted.keys()
    parent = [wanted["parent_id"]] if "parent_id" in wanted else []
    more = [order, wanted.get("before"), [[*path, value] for path, value in where], *parent]
    if in_place and order == "step" and not where and not parent:
        more = []
    cursors = Cursors("checkpoints", wanted.get("thread_id"), wanted.get("namespace"), *more)
    after: Sequence[Any] | None = (
        None if cursor is None else cursors.read(cursor, 2, texts=int(order == "id"))
    )
    if (values or writes) and in_place and not where and not parent:
        return _states_page(unit, wanted, order, limit, after, cursors, writes=writes)
    found: list[Row[Any]] = []
    key = attrgetter(order, "pk")
    size = max(limit + 1, _LOOKED_AT) if where else limit + 1
    only = None if "thread_id" in wanted else whose(unit)
    while True:
        last = {} if after is None else {"last": after[0], "last_pk": after[1]}
        shape = unit.dialect, order, only, (*wanted, *last)
        rows = unit.rows(_query, *shape, **wanted, **last, only=unit.only, most=size)
        found += (row for row in rows if has_all(row.metadata, where))
        if len(rows) < size or len(found) > limit:
            break
        after = key(rows[-1])
    following = cursors.make(key(found[limit - 1])) if len(found) > limit else None
    found = found[:limit]
    if not (values or writes) or not found:
        return Page(tuple(map(checkpoint_info, found)), following)
    pks = several("pk", [row.pk for row in found])
    states = {each.pk: each for each in _read(unit, len(pks), pks, several=True, writes=writes)}
    there = (states[row.pk] for row in found if row.pk in states)  # some may be gone by now
    return Page(tuple(state.record(writes=writes) for state in there), following)


def _states_page(
    unit: Unit,
    wanted: Mapping[str, str],
    order: CheckpointOrder,
    limit: int,
    after: Sequence[Any] | None,
    cursors: Cursors,
    *,
    writes: bool,
) -> Page[CheckpointRecord]:
    """Read a page of the checkpoints of a place with all their values, by one statement."""
    by = "page" if order == "step" else "page by id"
    parameters = {**wanted, "limit": limit + 1}
    if after is None and "before" in wanted:
        after = [wanted["before"]]  # a cursor is behind it
    if after is not None:
        by = f"next {by}"
        parameters |= dict(zip((order if order == "step" else "below", "pk"), after, strict=False))
    states = _read(unit, by, parameters, several=True, writes=writes)
    first = COLUMNS.index(order)

    def key(state: _ReadState) -> tuple[Any, int]:  # as the engine compares: texts as stored
        value = state.point[first]
        return (value if order == "step" else encode_text(value)), state.pk

    states.sort(key=key, reverse=True)
    last = states[limit - 1] if len(states) > limit else None
    following = None if last is None else cursors.make([last.point[first], last.pk])
    return Page(tuple(state.record(writes=writes) for state in states[:limit]), following)


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
