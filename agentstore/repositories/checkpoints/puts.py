"""Putting checkpoints: the parent is found, and the values are shared with it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Dialect, Row, insert, literal, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.errors import InvalidInput, InvalidRow, NotFound, WrongThread, named, shown
from agentstore.execution.unit import NeedsTransaction, Unit, in_autocommit
from agentstore.records.base import maker, twin
from agentstore.records.work import CheckpointInfo, WriteRecord
from agentstore.repositories.checkpoints import threads
from agentstore.repositories.checkpoints.values import (
    Encoded,
    Entries,
    Piece,
    Plan,
    drop_unneeded,
    held_lines,
    packed,
    planned,
    tails_after,
    write_pieces,
)
from agentstore.repositories.operations import adding, adding_missing, changing, removing
from agentstore.schema import Tables
from agentstore.values import validation
from agentstore.values.encoding import dump_json, load_json
from agentstore.values.types import Document, new_id, shifted

NO_PARENT = ""
"""Instead of a parent's id: the checkpoint is a root."""

NO_TAGS = Document("[]")


class CheckpointDraft(NamedTuple):
    """A checkpoint that may be put, checked as far as it can be without the database.

    Attributes:
        id: None for a new one.
        parent_id: None for the latest, or what it was; see ``NO_PARENT``.
        roots: Whether it is a root if the parent is not there.
        makes_thread: Whether the thread is made if it is not there.
        step: None for one more than the parent's, or what it was.
        inherit: The names of values that are as in the parent; None for all that it has.
        owners: ``user_id`` and ``session_id`` of the thread.
        created_at: None for the present, or what it was.
        row: The columns that are stored as they are.
    """

    thread_id: str
    namespace: str
    id: str | None
    parent_id: str | None
    step: int | None
    values: Mapping[str, Encoded]
    inherit: Collection[str] | None
    owners: Mapping[str, str | None]
    created_at: datetime | None
    row: Mapping[str, Any]
    roots: bool = False
    makes_thread: bool = True


def tags_of(tags: object) -> tuple[str, ...]:
    """Require tags: a str is a single one, and the same one twice is one.

    Raises:
        InvalidInput: They are something else.
    """
    if isinstance(tags, str):
        tags = (tags,)
    if not isinstance(tags, list | tuple | set | frozenset):
        raise InvalidInput(f"tags must be a list of str, not {type(tags).__name__}.")
    return tuple(dict.fromkeys(validation.text("a tag", tag) for tag in tags))


def put_checkpoint(unit: Unit, new: CheckpointDraft) -> CheckpointInfo:
    """Put a checkpoint, or put one again.

    Raises:
        NeedsTransaction: In autocommit: it needs a transaction.
    """
    if in_autocommit(unit):
        return _put_if_unchanged(unit, new)
    if unit.dialect.single_writer and (put := _put_after_last(unit, new)) is not None:
        return put
    reads_before_write, found, seen = new.parent_id is None, None, None
    if unit.dialect.single_writer:
        found, seen = threads.read_parent(unit, new.thread_id, new.namespace, new.parent_id)
    # Where each statement is a round trip, and for a new thread, as many numbers of lines as may be
    # needed are set aside with entering, one at least (see ``unchanged``). Elsewhere it is known
    # first how many are: mostly none, and then the thread's row stays as it is.
    ahead = 0 if seen is not None else max(1, len(new.values))
    if seen is not None and seen.newest and not any(new.owners.values()):
        first = seen.last_line + 1
    else:
        first = threads.enter_thread(
            unit,
            new.thread_id,
            new.owners,
            lines=ahead,
            seen=seen,
            makes=new.makes_thread,
            first=seen is None and (unit.dialect.single_writer or new.parent_id == NO_PARENT),
        )
    lines = count(first)
    if reads_before_write and (existing := _existing(unit, new)) is not None:
        return _put_again(unit, new, existing, lines, first + ahead)
    try:
        if not unit.dialect.single_writer and new.parent_id != NO_PARENT:
            found, _ = threads.read_parent(unit, new.thread_id, new.namespace, new.parent_id)
        parent = found or _no_parent(new, new.parent_id)
        row, entries, plans = _planned(unit, new, parent, lines.__next__)
    except NotFound:
        _existing(unit, new)  # an id of another thread is the first thing to be said
        raise
    last_line = _set_aside(unit, new.thread_id, lines, first + ahead)
    written: list[Any] | bool | None = None
    if not unit.dialect.single_writer:
        written = _put_at_once(unit, row, plans)
    if written is None:
        written = _put_in_turn(unit, row, plans, skips=True)
    if not written:
        if not reads_before_write and (existing := _existing(unit, new)) is not None:
            return _put_again(unit, new, existing, lines, max(first + ahead, next(lines)))
        # Whose id that is, is hidden: the engine itself says that it is taken.
        written = _put_in_turn(unit, row, plans, skips=False)
    if unit.dialect.single_writer:
        _note(unit, row, entries, plans, parent, last_line)
    return _info(row)


def _put_after_last(unit: Unit, new: CheckpointDraft) -> CheckpointInfo | None:
    """Put a child of the checkpoint that this store put last in its place, without reading that.

    The engine has one writer. The statement that inserts it sees to it that its parent, the thread
    and the lines are as they were then. Where they are not, or the id is taken, it inserts nothing.

    Returns:
        None if it is to be put in another way; nothing is written then.
    """
    newest = [*unit.put_last][-1:] == [(new.thread_id, new.namespace)]
    last = _put_last(unit, new)
    if last is None or any(new.owners.values()):
        return None
    enter = {"wanted": new.thread_id, "lines": 0}
    if not newest and unit.first(threads.entering, unit.dialect, **enter) is None:
        return None
    numbers, parent = count(last.last_line + 1), last.checkpoint
    try:
        row, entries, plans = _planned(unit, new, parent, numbers.__next__)
    except (NotFound, InvalidRow):
        return None
    tails: dict[int, tuple[int, str]] = {}
    for _, piece, merges in plans:
        if piece is not None and piece.line <= last.last_line:
            end, pieces = parent.tails[piece.line]
            behind = sum(start >= piece.start for start in pieces) if merges else 0
            tails[piece.line] = piece.start, f"{end},{behind}"
    seen = {"seen": last.last_line, "parent_step": parent.step, "held": parent.stored}
    parameters = {**row, **seen}
    for n, (line, (start, tail)) in enumerate(tails.items()):
        parameters |= {f"line_{n}": line, f"from_{n}": start, f"tail_{n}": tail}
    following = _following(unit.tables, dialect_of(unit.connection), len(tails))
    if not following.count(unit.connection, parameters):
        return None
    last_line = _set_aside(unit, new.thread_id, numbers, last.last_line + 1)
    write_pieces(unit, new.thread_id, plans)
    _note(unit, row, entries, plans, parent, last_line)
    return _info(row)


def _put_last(unit: Unit, new: CheckpointDraft) -> threads.PutLast | None:
    """Take the checkpoint that was put last, if it is the parent of a new one.

    Whichever it is, it is forgotten until the new one is noted in its place: so it is never tried a
    second time, and no other thread can put another one in between taking it and looking at it.
    """
    last: threads.PutLast | None = unit.put_last.pop((new.thread_id, new.namespace), None)
    return last if last is not None and last.checkpoint.id == new.parent_id else None


def _note(
    unit: Unit,
    row: Mapping[str, Any],
    entries: Entries,
    plans: list[Plan],
    parent: threads.Parent,
    last_line: int,
    thread_pk: int | None = None,
) -> None:
    """Note a checkpoint that was put; see ``threads.PutLast``."""
    tails = tails_after(entries, parent.tails, plans)
    put = threads.Parent(row["id"], row["step"], entries, tails, row["entries"])
    place = row["thread_id"], row["namespace"]
    unit.put_last.note(place, threads.PutLast(put, last_line, thread_pk))


def _put_if_unchanged(unit: Unit, new: CheckpointDraft) -> CheckpointInfo:
    """Put a new checkpoint by two statements, without a lock between them.

    The first one reads the thread and the parent; it is left out where this store put the parent
    last. The second one inserts, unless another caller has put into the thread since. So a put
    waits for the server once or twice, and others do not wait for it. The second one makes a thread
    too that is not there yet.

    Raises:
        NeedsTransaction: Another caller has, or reading failed, or there is no such thread or
            parent, or the checkpoint is there already. Nothing of it is stored; a transaction finds
            out.
    """
    if any(new.owners.values()):
        raise NeedsTransaction
    last = there = _put_last(unit, new)
    found = None if last is None else last.checkpoint
    try:
        if last is None and new.parent_id != NO_PARENT:
            found, seen = threads.read_parent(unit, new.thread_id, new.namespace, new.parent_id)
            if seen is not None:
                there = threads.PutLast(threads.Parent(), seen.last_line, seen.pk)
        numbers = count(1 if there is None else there.last_line + 1)
        parent = found or _no_parent(new, new.parent_id)
        row, entries, plans = _planned(unit, new, parent, numbers.__next__)
    except (NotFound, InvalidRow, DBAPIError):
        raise NeedsTransaction from None
    enter: ReturningInsert[Any] | ReturningUpdate[Any]
    entered: dict[str, Any]
    if there is None:
        taken = new.namespace == threads.ROOT and new.id is not None  # perhaps, in another thread
        if taken or not new.makes_thread or unit.scope is not None:
            raise NeedsTransaction
        enter = threads.beginning(unit.tables, unit.dialect)
        entered = {"lines": max(1, len(new.values))}
    else:
        entered = {"wanted": new.thread_id, "thread_pk": there.thread_pk, "seen": there.last_line}
        entered["lines"] = next(numbers) - there.last_line
        unused: threads.Unused | None = "root" if new.namespace == threads.ROOT else "place"
        enter = threads.unchanged(unit.tables, unit.dialect, None if new.id is None else unused)
    if not (put := _put_at_once(unit, row, plans, (enter, entered))):
        if last is not None:
            return _put_if_unchanged(unit, new)
        raise NeedsTransaction
    before, thread_pk = (0, put[0][1]) if there is None else (there.last_line, there.thread_pk)
    _note(unit, row, entries, plans, parent, before + entered["lines"], thread_pk)
    return _info(row)


def _info(row: Mapping[str, Any]) -> CheckpointInfo:
    """Give the record of a row that was put."""
    tags = () if row["tags"] is NO_TAGS else tuple(load_json(row["tags"]))
    metadata = {} if row["metadata"] is None else load_json(row["metadata"])
    made = _blank_info(
        row["id"],
        row["thread_id"],
        row["namespace"],
        row["parent_id"],
        row["step"],
        tags,
        row["summary"],
        row["next_node"],
        metadata,
        row["run_id"],
        row["created_at"],
    )
    made.__class__ = CheckpointInfo
    info: CheckpointInfo = made
    return info


_blank_info = twin(CheckpointInfo)


def _existing(unit: Unit, new: CheckpointDraft) -> Row[Any] | None:
    """Find the checkpoint that has the id already; raises WrongThread."""
    if new.id is None:
        return None
    if new.namespace != threads.ROOT:
        return threads.find_checkpoint(unit, new.id, new.thread_id, new.namespace)
    found = threads.find_checkpoint(unit, new.id, None, threads.ROOT, any_owner=True)
    if found is not None and found.thread_id != new.thread_id:
        raise WrongThread(new.thread_id, new.id)
    return found


def _planned(
    unit: Unit, new: CheckpointDraft, parent: threads.Parent, new_line: Callable[[], int]
) -> tuple[dict[str, Any], Entries, list[Plan]]:
    """Give the columns of a new checkpoint, what it holds, and what is to be stored on lines."""
    entries, plans = _held(unit, new, parent, threads.Parent(), new_line)
    row = {
        **new.row,
        **packed(entries),
        "thread_id": new.thread_id,
        "namespace": new.namespace,
        "id": new_id() if new.id is None else new.id,
        "parent_id": parent.id,
        "step": validation.amount("step", parent.step + 1) if new.step is None else new.step,
        "created_at": new.created_at or unit.now(),
    }
    return row, entries, plans


def _held(
    unit: Unit,
    new: CheckpointDraft,
    parent: threads.Parent,
    own: threads.Parent,
    new_line: Callable[[], int],
) -> tuple[Entries, list[Plan]]:
    """Give what a checkpoint is to hold, and what is to be stored on lines for it.

    Args:
        unit: In a write transaction.
        new: The checkpoint.
        parent: What it goes on from.
        own: What it is so far, if it is put again.
        new_line: Gives the number of a line that nobody uses.
    """
    entries: Entries = {}
    for name in parent.entries if new.inherit is None else new.inherit:
        if name not in parent.entries:
            raise NotFound("value", name, "The parent has none of this name; pass it in values.")
        entries[name] = parent.entries[name]
    shared, tails = parent.entries, parent.tails
    if own.entries:
        shared, tails = {**shared, **own.entries}, {**tails, **own.tails}
    return entries, planned(unit, new.thread_id, new.values, entries, shared, tails, new_line)


def _set_aside(unit: Unit, thread_id: str, lines: Iterator[int], kept: int) -> int:
    """Set aside the numbers of lines that were given; those below ``kept`` are already.

    Returns:
        The largest number that is set aside now.
    """
    if (end := next(lines)) > kept:
        threads = unit.tables.checkpoint_threads
        keeping = update(threads).where(threads.c.id == thread_id).values(last_line=end - 1)
        unit.connection.execute(keeping)
    return max(end, kept) - 1


def _put_again(
    unit: Unit, new: CheckpointDraft, existing: Row[Any], lines: Iterator[int], kept: int
) -> CheckpointInfo:
    """Change a checkpoint; its place in the tree stays, unless another one is given."""
    parent_id, step = existing.parent_id, existing.step
    parent = threads.Parent()
    if new.parent_id is not None or new.inherit:
        asked = (parent_id or NO_PARENT) if new.parent_id is None else new.parent_id
        found, _ = threads.read_parent(unit, new.thread_id, new.namespace, asked)
        parent = found or _no_parent(new, asked)
        parent_id = parent.id
        if new.parent_id is not None:
            step = validation.amount("step", parent.step + 1)
        above = new.parent_id and threads.find_checkpoint(unit, asked, new.thread_id, new.namespace)
        if above and any(row.pk == existing.pk for row in threads.path_rows(unit, above)):
            raise InvalidInput(
                "parent_id names the checkpoint itself, or one that came from it. Pass one that "
                "was there before, or leave it out."
            )
    itself = (
        threads.read_parent(unit, new.thread_id, new.namespace, existing.pk)[0] or threads.Parent()
    )
    entries, plans = _held(unit, new, parent, itself, lines.__next__)
    _set_aside(unit, new.thread_id, lines, kept)
    checkpoints = unit.tables.checkpoints
    values = {
        **new.row,
        **packed(entries),
        "parent_id": parent_id,
        "step": step if new.step is None else new.step,
        "created_at": new.created_at or existing.created_at,
    }
    change = update(checkpoints).where(checkpoints.c.pk == existing.pk).values(values)
    written = unit.connection.execute(change.returning(*checkpoints.c)).one()
    write_pieces(unit, new.thread_id, plans)
    needed = dict(held_lines(entries))
    less = [line for line, end in held_lines(itself.entries) if needed.get(line, -1) < end]
    drop_unneeded(unit, new.thread_id, new.namespace, less)
    return threads.checkpoint_info(written)


def _no_parent(new: CheckpointDraft, parent_id: str | None) -> threads.Parent:
    """Give what a root goes on from; raises NotFound if there has to be a parent."""
    if parent_id in (None, NO_PARENT) or new.roots:
        return threads.Parent()
    raise NotFound(
        "checkpoint",
        parent_id,
        "A parent must be in the same thread and namespace; fork() leads to another thread.",
    )


def _put_in_turn(unit: Unit, row: Mapping[str, Any], plans: list[Plan], *, skips: bool) -> bool:
    """Insert a checkpoint, then its pieces; ``skips`` is to give False if the id is taken."""
    inserting = _insert(unit.tables, unit.dialect, dialect_of(unit.connection), skips)
    if not inserting.execute_many(unit.connection, [row]):
        return False
    write_pieces(unit, row["thread_id"], plans)
    return True


def _put_at_once(
    unit: Unit,
    row: Mapping[str, Any],
    plans: list[Plan],
    entering: tuple[ReturningInsert[Any] | ReturningUpdate[Any], Mapping[str, Any]] | None = None,
) -> list[Any] | None:
    """Insert a checkpoint with its pieces by one statement, if the engine has one.

    Args:
        unit: In a write transaction that has locked the thread, unless the statement enters it.
        row: The checkpoint's columns, but for its number.
        plans: What is to be stored for its values.
        entering: A statement that enters the thread, and its parameters.

    Returns:
        One row, with the number of a thread that was made. An empty list if the id is taken or the
        thread was not entered. None if this engine, or so much data, needs another way.

    Raises:
        InvalidRow: A piece was to be merged and is not there.
    """
    enter, entered = entering or (None, {})
    pieces, merged = (
        [each.piece for each in plans if each.piece and each.merges is merges]
        for merges in (False, True)
    )
    putting = _putting(unit.tables, unit.dialect, dialect_of(unit.connection), enter, bool(merged))
    if putting is None or sum(len(each.data) for each in (*pieces, *merged)) > _MOST_AT_ONCE:
        return None
    parameters = {**entered, **{f"c_{name}": value for name, value in row.items()}}
    for prefix, rows in (("p_", pieces), *([("m_", merged)] if merged else ())):
        for name in Piece._fields:
            parameters[prefix + name] = [getattr(each, name) for each in rows]
    found = putting.fetch(unit.connection, parameters)
    if found and found[0][0] != len(merged):
        raise InvalidRow("checkpoint_values", "start", "no piece where one was to be merged")
    return found


_MOST_AT_ONCE = 65_536
"""Bytes that travel in an array, in which each takes two characters."""


@lru_cache(maxsize=256)
def _putting(
    tables: Tables,
    dialect: EngineDialect,
    driver: Dialect,
    enter: ReturningInsert[Any] | ReturningUpdate[Any] | None,
    merges: bool,
) -> Prepared | None:
    statement = dialect.putting(tables, enter, merges=merges)
    return None if statement is None else Prepared(statement, driver)


@lru_cache(maxsize=256)
def _insert(tables: Tables, dialect: EngineDialect, driver: Dialect, skips: bool) -> Prepared:
    points = tables.checkpoints
    columns = [column.name for column in points.c if column.name != "pk"]
    inserting = dialect.insert_missing(points) if skips else insert(points)
    return Prepared(inserting.inline(), driver, columns)


@lru_cache(maxsize=256)
def _following(tables: Tables, driver: Dialect, lines: int) -> Prepared:
    return Prepared(threads.following(tables, lines), driver)


# Pending writes: what a task wrote after a checkpoint, before the next one is put.


COMPRESS_FROM = 256
"""Bytes from which compressing is tried; below, zlib's header eats what is gained."""

_WORTHWHILE = 0.9
"""What is compressed by less than a tenth is stored as it is, and read without the work."""


def rows_of(
    writes: Sequence[tuple[str, Any]], positions: Sequence[int] | None
) -> dict[int, dict[str, Any]]:
    """Check the writes of a task; give their columns by position.

    Raises:
        InvalidInput: They are no pairs, or the positions are not as many, or not different.
        InvalidJson: JSON cannot say a value.
    """
    if not isinstance(writes, list | tuple):
        raise InvalidInput("writes must be a list of pairs: a channel and a value.")
    if not isinstance(positions, list | tuple | range | None):
        raise InvalidInput(f"positions must be a list of whole numbers, not {shown(positions)}.")
    places = [
        validation.amount(f"positions[{number}]", position, least=-(2**31))
        for number, position in enumerate(range(len(writes)) if positions is None else positions)
    ]
    if len(places) != len(writes) or len(set(places)) != len(places):
        raise InvalidInput(
            "positions must be as many whole numbers as there are writes, no two same."
        )
    rows = {}
    for number, (place, write) in enumerate(zip(places, writes, strict=True)):
        if not isinstance(write, list | tuple) or len(write) != 2:
            raise InvalidInput(f"writes[{number}] must be a pair: a channel and a value.")
        channel, value = write
        kind, encoding, data = encode(value, f"writes[{number}]")
        rows[place] = {
            "position": place,
            "channel": validation.text(f"writes[{number}]", channel),
            "kind": kind,
            "encoding": encoding,
            "data": data,
        }
    return rows


def replacing(replace: bool | Sequence[bool], positions: Iterable[int]) -> list[int]:
    """Give the positions of the writes that take the place of others.

    Raises:
        InvalidInput: It is no flag, nor one for each write.
    """
    places = [*positions]
    if isinstance(replace, list | tuple):
        if len(replace) != len(places):
            raise InvalidInput("replace must be a bool, or one for each write.")
        for number, flag in enumerate(replace):
            validation.flag(f"replace[{number}]", flag)
        return [place for place, flag in zip(places, replace, strict=True) if flag]
    validation.flag("replace", replace)
    return places if replace else []


def store_pending(
    unit: Unit,
    task: Mapping[str, str],
    rows: dict[int, dict[str, Any]],
    owners: Mapping[str, str | None],
    *,
    replaced: Sequence[int],
    makes_thread: bool,
) -> int:
    """Store the writes of a task; give how many.

    Where another write is at a position, it stays, unless the position is in ``replaced``.

    Args:
        unit: One that can write; in a transaction if the thread has to be given owners.
        task: The columns that name the task's: thread, namespace, checkpoint, task.
        rows: What ``rows_of`` gave, and what else is in their rows.
        owners: As ``enter_thread`` takes them.
        replaced: Positions at which what is there gives way.
        makes_thread: Whether the thread is made if it is not there.

    Raises:
        NeedsTransaction: In autocommit: there is no such thread yet.
        NotFound: There is no such thread, and it is not to be made.
    """
    driver = dialect_of(unit.connection)
    storing = _storing(unit.tables, unit.dialect, driver, bool(replaced))
    fresh = [{**task, **row} for row in rows.values()]
    table = unit.tables.checkpoint_writes
    if storing is None or any(owners.values()):
        threads.enter_thread(unit, task["thread_id"], owners, lines=0, makes=makes_thread)
        if replaced:
            key = [column.name for column in table.primary_key]
            unit.each(removing, [{**task, **rows[at]} for at in replaced], table, *key)
        return unit.each(adding_missing, fresh, table, unit.dialect) if fresh else 0
    parameters: dict[str, Any] = {c.name: [row[c.name] for row in fresh] for c in table.c}
    parameters |= {"wanted": task["thread_id"], "lines": 0}
    if replaced:
        parameters["replaced"] = [*replaced]
    [[entered, stored]] = storing.fetch(unit.connection, parameters)
    if not entered:
        if in_autocommit(unit):  # a thread without these writes would stay, if the second failed
            raise NeedsTransaction
        threads.make_thread(unit, task["thread_id"], owners, makes=makes_thread)
        [[entered, stored]] = storing.fetch(unit.connection, parameters)
        if not entered:
            raise threads.why_not(unit, task["thread_id"])
    return int(stored)


@lru_cache(maxsize=256)
def _storing(
    tables: Tables, dialect: EngineDialect, driver: Dialect, replace: bool
) -> Prepared | None:
    statement = dialect.storing_writes(threads.entering(tables, dialect), tables, replace=replace)
    return None if statement is None else Prepared(statement, driver)


def touch_thread(unit: Unit, thread_id: str, every: timedelta) -> bool:
    """Write that a locked thread is used now, unless it was within this time; say whether it did.

    Its row stays as it is: threads are in the order of what was written into them.
    """
    now, table = unit.now(), unit.tables.checkpoint_writes
    recently = touched_since(unit.tables, literal(thread_id), shifted(now, -every))
    if every and unit.connection.execute(select(recently)).scalar():
        return False
    key = [column.name for column in table.primary_key]
    row: dict[str, Any] = {**dict.fromkeys((*key, "channel"), threads.TOUCHED), "task_path": ""}
    row |= dict(zip(("kind", "encoding", "data"), _instant(now), strict=True))
    row |= {"thread_id": thread_id, "position": 0}
    unit.count(removing, table, *key, **row)
    unit.count(adding, table, **row)
    return True


def touched_since(
    tables: Tables, thread_id: ColumnElement[str], since: datetime
) -> ColumnElement[bool]:
    """Give the condition that a thread was touched at a moment or later."""
    c = tables.checkpoint_writes.c
    these = [c[name] == threads.TOUCHED for name in ("namespace", "checkpoint_id", "task_id")]
    return (
        select(c.position)
        .where(c.thread_id == thread_id, *these, c.position == 0, c.data >= _instant(since)[2])
        .exists()
    )


def _instant(at: datetime) -> tuple[str, str, bytes]:
    """Write an instant so that what is later is larger, byte by byte."""
    return encode(at.isoformat(timespec="microseconds"))


def in_order(records: Iterable[WriteRecord]) -> tuple[WriteRecord, ...]:
    """Sort writes by task path, task and position."""
    return tuple(sorted(records, key=lambda w: (w.task_path, w.task_id, w.position)))


WRITE = ("task_id", "position", "channel", "task_path", "kind", "encoding", "data")
"""The columns that ``write_record`` takes."""

_make = maker(WriteRecord)


def write_record(
    task: str, position: int, channel: str, path: str, kind: str, encoding: str, data: bytes
) -> WriteRecord:
    """Make a record of the columns of a pending write."""
    try:
        return _make(task, position, channel, decode(kind, encoding, data), path)
    except InvalidRow as error:
        key = f"task_id={named(task)}, position={position}"
        raise InvalidRow(error.table, error.column, error.problem, key) from None


def encode(value: Any, name: str = "value") -> tuple[str, str, bytes]:
    """Write a value: its kind, ``bytes`` or ``json``, its encoding, ``raw`` or ``zlib``, and the
    bytes.

    Raises:
        InvalidJson: It is not bytes, and JSON cannot say it.
    """
    is_bytes = isinstance(value, bytes | bytearray | memoryview)
    raw = bytes(value) if is_bytes else dump_json(value, name).encode()
    kind = "bytes" if is_bytes else "json"
    if len(raw) >= COMPRESS_FROM:
        packed = zlib.compress(raw)
        if len(packed) < len(raw) * _WORTHWHILE:
            return kind, "zlib", packed
    return kind, "raw", raw


def decode(kind: str, encoding: str, data: bytes) -> Any:
    """Undo ``encode``.

    Raises:
        InvalidRow: The bytes are no such value.
    """
    try:
        plain = zlib.decompress(data) if encoding == "zlib" else bytes(data)
        return plain if kind == "bytes" else load_json(plain.decode())
    except Exception:  # noqa: BLE001 - whose words would quote it
        wrong = f"bytes that are not {kind} in {encoding}"
        raise InvalidRow("checkpoint_writes", "data", wrong) from None


# Copying a thread: its checkpoints, their values and the pending writes beside them.


def copy_all(unit: Unit, thread: Row[Any], target: str) -> int:
    """Copy all checkpoints and pending writes of a thread; give how many checkpoints.

    Args:
        unit: In a write transaction.
        thread: The thread, locked.
        target: The id of the new thread.

    Raises:
        InvalidInput: With this id an entry would be too long for an index.
    """
    source = thread.id
    owners = {"user_id": thread.user_id, "session_id": thread.session_id}
    threads.enter_thread(unit, target, owners, lines=thread.last_line)
    tables, connection = unit.tables, unit.connection
    checkpoints = tables.checkpoints
    query = select(checkpoints).where(checkpoints.c.thread_id == source)
    rows = sorted(connection.execute(query).mappings(), key=lambda row: int(row["pk"]))
    new_ids = {
        (row["namespace"], row["id"]): new_id() if row["namespace"] == threads.ROOT else row["id"]
        for row in rows
    }
    # A parent may stand behind its child, if it was put again; so parents are told afterwards.
    copies = [
        {
            **{column: value for column, value in row.items() if column != "pk"},
            "thread_id": target,
            "id": new_ids[row["namespace"], row["id"]],
            "parent_id": None,
        }
        for row in rows
    ]
    for copied in copies:
        threads.require_ids((target, copied["namespace"]), copied["id"])
    if copies:
        connection.execute(insert(checkpoints).inline(), copies)
    parents = [
        {**child, "parent_id": new_ids[row["namespace"], row["parent_id"]]}
        for row, child in zip(rows, copies, strict=True)
        if row["parent_id"] is not None
    ]
    if parents:
        key = ("thread_id", "namespace", "id")
        unit.each(changing, parents, checkpoints, key, "parent_id")
    # Values are copied in the database, without bringing their bytes here.
    values = tables.checkpoint_values
    theirs = [
        literal(target, each.type).label(each.name) if each is values.c.thread_id else each
        for each in values.c
    ]
    pieces = select(*theirs).where(values.c.thread_id == source)
    connection.execute(insert(values).from_select([each.name for each in values.c], pieces))
    writes = tables.checkpoint_writes
    pending = connection.execute(select(writes).where(writes.c.thread_id == source)).mappings()
    copies = [
        {
            **row,
            "thread_id": target,
            "checkpoint_id": new_ids.get(
                (row["namespace"], row["checkpoint_id"]), row["checkpoint_id"]
            ),
        }
        for row in pending
    ]
    for copied in copies:
        threads.require_ids(
            (target, copied["namespace"]), copied["checkpoint_id"], copied["task_id"]
        )
    if copies:
        connection.execute(insert(writes).inline(), copies)
    return len(rows)
