"""Threads of LangGraph's checkpoint savers.

The saver of agentstore stores each channel by itself, where LangGraph's store a checkpoint as a
whole. So their bytes are taken apart and put together again, as msgpack and
no further: no class of an application is needed for that, or made. What a task wrote stays as it
is, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import ormsgpack
from sqlalchemy import Row, Select, TableClause, and_, exists, select, tuple_

from agentstore.errors import TypeNotAllowed, named
from agentstore.integrations.langgraph.savers import (
    REST,
    items_of,
    json_part,
    next_of,
    run_of,
    space_of,
    step_of,
)
from agentstore.integrations.langgraph.serializer import AllowedSerializer
from agentstore.moving.frameworks.sources import (
    ODD,
    BrokenRow,
    ImportPiece,
    Line,
    Note,
    OpenSource,
    PieceRefused,
    SetClock,
    State,
    flaw,
    in_chunks,
    table_of,
    time_of,
)
from agentstore.records import CheckpointRecord, Items, WriteRecord
from agentstore.store import Store
from agentstore.transactions import Transaction

Values = dict[str, Any]


class SaverTables(NamedTuple):
    """What two savers have different names for.

    Attributes:
        checkpoints: The table of checkpoints.
        writes: The table of pending writes, whose last column is the value.
        collation: By which texts are sorted as the ids are; None where they are anyway.
        decode: Gives the channels of a checkpoint, each as the saver stores it; and the rest of
            it.
    """

    checkpoints: TableClause
    writes: TableClause
    collation: str | None
    decode: Callable[[OpenSource, Row[Any]], tuple[Values, Mapping[str, Any]]]


class SavedCheckpoint(NamedTuple):
    """A checkpoint on its way."""

    namespace: str
    id: str
    parent: str | None
    time: Any
    values: Values
    metadata: dict[str, Any]
    writes: list[WriteRecord]

    @property
    def size(self) -> int:
        """How many bytes it has, about."""
        held = sum(len(v.data if isinstance(v, Items) else v) for v in self.values.values())
        return held + sum(len(write.value) for write in self.writes)


class LangGraphThread(ImportPiece):
    """A thread, with all its namespaces."""

    called = "thread"
    table = "checkpoints"

    def __init__(
        self, source: OpenSource, thread_id: str, tables: SaverTables, clock: SetClock
    ) -> None:
        """Take its id, and where it is."""
        self.key = thread_id
        self.row = {"thread_id": thread_id}
        self._source = source
        self._tables = tables
        self._clock = clock
        self._broken: set[tuple[str, str]] = set()
        self._made = False

    def write(self, store: Store, tell: Callable[[int], None]) -> State:
        """Put the checkpoints that are not there yet, the oldest of each namespace first."""
        begun = bool(store.checkpoints.namespaces(self.key))
        wrote = False
        for chunk in in_chunks(self._missing(store, begun), self._put):
            store.run(chunk.write)
            wrote, self._made = True, not begun
            tell(chunk.rows)
        strays = ((None, len(each[1].value), each) for each in self._stray_writes(None))
        for chunk in in_chunks(strays, self._put_strays):
            store.run(chunk.write)
        return "new" if not begun else "resumed" if wrote else "there"

    def undo(self, store: Store) -> None:
        """Delete the thread, if this run made it."""
        if self._made:
            store.checkpoints.delete_thread(self.key)

    def source_lines(self, note: Note) -> Iterator[Line]:
        """Give the checkpoints, and what tasks wrote after them."""
        for each in self._checkpoints(note):
            yield "checkpoints", _said(each)
            for write in each.writes:
                yield "writes", _said_of_write(each.namespace, each.id, write)
        for place, write in self._stray_writes(note):
            yield "writes", _said_of_write(*place, write)

    def target_lines(self, store: Store, state: State) -> Iterator[Line]:
        """Give the same of the thread that was put."""
        for each in self._checkpoints(None):
            space = space_of(each.namespace)
            found = store.checkpoints.find(each.id, self.key, space, writes=True)
            if found is None:
                continue
            yield "checkpoints", _said(_of_record(each.namespace, found))
            own = {(write.task_id, write.position) for write in each.writes}
            for write in found.writes or ():
                if state != "there" or (write.task_id, write.position) in own:
                    yield "writes", _said_of_write(each.namespace, each.id, write)
        strays = groupby(self._stray_writes(None), key=lambda stray: stray[0])
        for (namespace, id), _ in strays:
            for write in store.checkpoints.writes(self.key, id, namespace=space_of(namespace)):
                yield "writes", _said_of_write(namespace, id, write)

    # --- Writing -----------------------------------------------------------------------------

    def _missing(self, store: Store, begun: bool) -> Iterator[tuple[None, int, SavedCheckpoint]]:
        """Give the checkpoints that are to be put; another run put the first ones of them.

        Raises:
            PieceRefused: The first is not there, though the thread is.
        """
        looking, first = begun, True
        for each in self._checkpoints(None):
            if looking:
                found = store.checkpoints.find(each.id, self.key, space_of(each.namespace))
                if found is None and first:
                    raise PieceRefused("the target has another thread of this name")
                looking, first = found is not None, False
            if not looking:
                yield None, each.size, each

    def _put(self, tx: Transaction, checkpoints: list[SavedCheckpoint]) -> None:
        """Put checkpoints as the saver does."""
        for each in checkpoints:
            self._clock.set(time_of(each.time))
            space = space_of(each.namespace)
            tx.checkpoints.put(
                self.key,
                each.values,
                each.id,
                parent_id="" if each.parent is None else each.parent,
                parent_missing="root",
                step=step_of(each.id),
                next_node=next_of(each.values),
                metadata=each.metadata,
                namespace=space,
                run_id=run_of(each.metadata),
            )
            self._put_writes(tx, (each.namespace, each.id), each.writes)

    def _put_strays(
        self, tx: Transaction, strays: list[tuple[tuple[str, str], WriteRecord]]
    ) -> None:
        for place, some in groupby(strays, key=lambda stray: stray[0]):
            self._put_writes(tx, place, [write for _, write in some])

    def _put_writes(
        self, tx: Transaction, place: tuple[str, str], writes: list[WriteRecord]
    ) -> None:
        by_task = sorted(writes, key=lambda write: (write.task_id, write.task_path))
        for (task, path), some in groupby(by_task, key=lambda w: (w.task_id, w.task_path)):
            own = [*some]
            tx.checkpoints.put_writes(
                self.key,
                place[1],
                task,
                [(write.channel, write.value) for write in own],
                task_path=path,
                namespace=space_of(place[0]),
                positions=[write.position for write in own],
            )

    # --- Reading -----------------------------------------------------------------------------

    def _checkpoints(self, note: Note | None) -> Iterator[SavedCheckpoint]:
        """Read the checkpoints that are sound, by namespace and id."""
        columns = self._tables.checkpoints.c
        query = select(self._tables.checkpoints).where(columns.thread_id == self.key)
        for row in self._source.rows(self._sorted(query, self._tables.checkpoints)):
            place = (row.checkpoint_ns, row.checkpoint_id)
            try:
                found = self._checkpoint(row, note)
            except (BrokenRow, *ODD) as error:
                self._broken.add(place)
                if note is not None:
                    odd = f"it is not as the saver writes it ({type(error).__name__})"
                    said = str(error) if isinstance(error, BrokenRow) else odd
                    note(flaw(self.table, self._named(*place), said, row._mapping))
            else:
                yield found

    def _checkpoint(self, row: Row[Any], note: Note | None) -> SavedCheckpoint:
        space, id, parent = row.checkpoint_ns, row.checkpoint_id, row.parent_checkpoint_id
        if not all(isinstance(text, str) for text in (space, id, parent or "")):
            raise BrokenRow("its id is no text in UTF-8")
        channels, rest = self._tables.decode(self._source, row)
        if rest.get("id", id) != id:
            raise BrokenRow("it has the id of another one")
        metadata = _json_object(row.metadata)
        plain = json_part(metadata)
        others = {k: v for k, v in metadata.items() if k not in plain}
        rest = {k: v for k, v in rest.items() if k not in ("id", "channel_values")}
        if REST in channels:
            raise BrokenRow("a channel has a name that is kept for the saver")
        values = {**channels, REST: typed("msgpack", packed((rest, others) if others else rest))}
        writes = [*self._writes(space, id, note)]
        return SavedCheckpoint(
            space, id, self._parent(space, id, parent), rest.get("ts"), values, plain, writes
        )

    def _parent(self, space: str, id: str, parent: str | None) -> str | None:
        """Give the parent, if it is there and sound; the saver has no others."""
        if not parent or parent == id or (space, parent) in self._broken:
            return None
        columns = self._tables.checkpoints.c
        query = select(columns.checkpoint_id).where(
            columns.thread_id == self.key,
            columns.checkpoint_ns == space,
            columns.checkpoint_id == parent,
        )
        if self._source.connection.execute(query).first() is None:
            return None
        if parent.encode("utf-8", "surrogatepass") > id.encode("utf-8", "surrogatepass"):
            raise BrokenRow("its parent comes after it")
        return parent

    def _writes(self, space: str, id: str, note: Note | None) -> Iterator[WriteRecord]:
        columns = self._tables.writes.c
        query = select(self._tables.writes).where(
            columns.thread_id == self.key,
            columns.checkpoint_ns == space,
            columns.checkpoint_id == id,
        )
        found = (self._write(row, note) for row in self._source.connection.execute(query))
        yield from _in_order(write for write in found if write is not None)

    def _stray_writes(self, note: Note | None) -> Iterator[tuple[tuple[str, str], WriteRecord]]:
        """Give what was written after checkpoints that are not there, or not yet."""
        writes, checkpoints = self._tables.writes.c, self._tables.checkpoints.c
        there = and_(
            checkpoints.thread_id == writes.thread_id,
            checkpoints.checkpoint_ns == writes.checkpoint_ns,
            checkpoints.checkpoint_id == writes.checkpoint_id,
        )
        query = select(self._tables.writes).where(
            writes.thread_id == self.key, ~exists().where(there)
        )
        rows = self._source.rows(self._sorted(query, self._tables.writes))
        for place, some in groupby(rows, key=lambda row: (row.checkpoint_ns, row.checkpoint_id)):
            found = (self._write(row, note) for row in some)
            for write in _in_order(write for write in found if write is not None):
                yield place, write

    def _write(self, row: Row[Any], note: Note | None) -> WriteRecord | None:
        path = getattr(row, "task_path", "")
        value = row[-1]
        try:
            if not all(isinstance(t, str) for t in (row.task_id, row.channel, path, row.type)):
                raise BrokenRow("it has what is no text in UTF-8")
            if type(row.idx) is not int:
                raise BrokenRow("its place is no number")
            if not isinstance(value, bytes | memoryview) and value is not None:
                raise BrokenRow("its value is not bytes")
            require_allowed(row.type, bytes(value or b""), self._source.allowed)
        except BrokenRow as broken:
            if note is not None:
                place = self._named(row.checkpoint_ns, row.checkpoint_id)
                key = f"{place} task_id={row.task_id!r} idx={row.idx}"
                note(flaw(self._tables.writes.name, key, str(broken), row._mapping))
            return None
        stored = typed(row.type, bytes(value or b""))
        return WriteRecord(row.task_id, row.idx, row.channel, stored, path)

    def _sorted(self, query: Select[Any], table: TableClause) -> Select[Any]:
        by = [table.c.checkpoint_ns, table.c.checkpoint_id]
        if self._tables.collation is not None:
            return query.order_by(*(column.collate(self._tables.collation) for column in by))
        return query.order_by(*by)

    def _named(self, space: object, id: object) -> str:
        return f"thread_id={self.key!r} checkpoint_ns={space!r} checkpoint_id={id!r}"


def threads(
    source: OpenSource, tables: SaverTables, clock: SetClock, note: Note
) -> Iterator[ImportPiece]:
    """Give the threads of a source, by their ids."""
    ids = [select(each.c.thread_id) for each in (tables.checkpoints, tables.writes)]
    both = ids[0].union(ids[1]).subquery()
    for (thread_id,) in source.rows(select(both.c.thread_id).order_by(both.c.thread_id)):
        if isinstance(thread_id, str):
            yield LangGraphThread(source, thread_id, tables, clock)
        else:
            row = {"thread_id": thread_id}
            note(flaw(tables.checkpoints.name, "thread_id", "it is no text in UTF-8", row))


# --- Values: bytes of LangGraph's serializer, taken apart as far as msgpack and JSON say them ----


def typed(kind: str, data: bytes) -> bytes:
    """Give bytes with their type in front, as the saver stores them."""
    return kind.encode() + b"\0" + data


_allowing = lru_cache(maxsize=16)(AllowedSerializer)


def require_allowed(kind: object, data: bytes, allowed: tuple[tuple[str, str], ...]) -> None:
    """Require that a value names only what the saver makes.

    Raises:
        BrokenRow: It names something else.
    """
    try:
        _allowing(allowed).check(str(kind), data)
    except TypeNotAllowed as error:
        raise BrokenRow(f"it names {named(error.type)}, which no --allow does") from None
    except (ValueError, RecursionError):
        return  # nobody can read it, so nothing is made of it


def packed(value: object) -> bytes:
    """Write msgpack as LangGraph does.

    Raises:
        BrokenRow: It has what msgpack cannot say.
    """
    try:
        return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, RecursionError) as error:
        raise BrokenRow(f"msgpack cannot say it ({type(error).__name__})") from None


def unpacked(kind: object, data: bytes) -> tuple[str, Any]:
    """Read a value as far as JSON or msgpack say it; what is of other types stays closed.

    Returns:
        How the value's parts are to be written, and the value.

    Raises:
        BrokenRow: It cannot be read without the serializer that wrote it.
    """
    try:
        if kind == "msgpack":
            return kind, ormsgpack.unpackb(
                data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS
            )
        if kind == "json":
            return kind, json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenRow(f"its bytes are no {kind} ({type(error).__name__})") from None
    raise BrokenRow(
        f"its bytes are of the type {named(kind)}, which only the serializer that wrote them reads"
    )


def part(kind: str, value: object) -> bytes | Items:
    """Write a value of a channel as the saver stores it."""
    if value is None:
        return typed("null", b"")
    if isinstance(value, bytes):
        return typed("bytes", value)
    if type(value) is list and kind == "msgpack":
        return items_of(kind, packed(value), len(value))
    data = packed(value) if kind == "msgpack" else json.dumps(value).encode()
    return typed(kind, data)


def _json_object(stored: object) -> dict[str, Any]:
    try:
        if isinstance(stored, bytes | str):
            stored = json.loads(stored)
    except (ValueError, RecursionError):
        raise BrokenRow("its metadata are not JSON") from None
    if stored is None:
        return {}
    if not isinstance(stored, dict):
        raise BrokenRow("its metadata are no JSON object")
    return stored


# --- Comparing ---------------------------------------------------------------------------------


def _of_record(namespace: str, found: CheckpointRecord) -> SavedCheckpoint:
    return SavedCheckpoint(
        namespace,
        found.id,
        found.parent_id,
        None,
        dict(found.values),
        dict(found.metadata),
        list(found.writes or ()),
    )


def _said(each: SavedCheckpoint) -> bytes:
    values = {name: _digest(value) for name, value in each.values.items()}
    all_of_it = [each.namespace, each.id, each.parent, each.metadata, values]
    return json.dumps(all_of_it, sort_keys=True).encode()


def _said_of_write(namespace: str, id: str, write: WriteRecord) -> bytes:
    place = [namespace, id, write.task_path, write.task_id, write.position, write.channel]
    return json.dumps([*place, _digest(write.value)]).encode()


def _digest(value: bytes | Items) -> list[Any] | str:
    if isinstance(value, Items):
        return [value.count, hashlib.sha256(value.data).hexdigest()]
    return hashlib.sha256(value).hexdigest()


def _in_order(writes: Iterable[WriteRecord]) -> list[WriteRecord]:
    """Sort writes as the store does."""
    return sorted(writes, key=lambda write: (write.task_path, write.task_id, write.position))


# ``SqliteSaver`` and ``AsyncSqliteSaver`` of LangGraph.


_PLACE = ("thread_id", "checkpoint_ns", "checkpoint_id")
_CHECKPOINTS = table_of(
    "checkpoints", *_PLACE, "parent_checkpoint_id", "type", "checkpoint", "metadata"
)
_WRITE = ("task_id", "idx", "channel", "type", "value")
_OLD_WRITES = table_of("writes", *_PLACE, *_WRITE)
_WRITES = table_of("writes", *_PLACE, "task_path", *_WRITE)


def read(source: OpenSource, clock: SetClock, note: Note) -> Iterator[ImportPiece]:
    """Give the threads of a source."""
    for needed in (_CHECKPOINTS, _OLD_WRITES):
        source.require(needed, "LangGraph's SqliteSaver")
    writes = _WRITES if "task_path" in source.columns("writes") else _OLD_WRITES
    yield from threads(source, SaverTables(_CHECKPOINTS, writes, None, _decode), clock, note)


def _decode(source: OpenSource, row: Row[Any]) -> tuple[Values, Mapping[str, Any]]:
    if not isinstance(row.checkpoint, bytes):
        raise BrokenRow("its value is not bytes")
    require_allowed(row.type, row.checkpoint, source.allowed)
    kind, checkpoint = unpacked(row.type, row.checkpoint)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("channel_values"), dict):
        raise BrokenRow("it is no checkpoint")
    channels = checkpoint["channel_values"]
    return {name: part(kind, value) for name, value in channels.items()}, checkpoint


# ``PostgresSaver`` and ``AsyncPostgresSaver`` of LangGraph.
#
# A checkpoint is JSON there, with the small values in it; the others are rows of their own, by
# channel and version, which checkpoints share.


_CHECKPOINTS_POSTGRESQL = table_of(
    "checkpoints", *_PLACE, "parent_checkpoint_id", "checkpoint", "metadata"
)
_BLOBS = table_of("checkpoint_blobs", *_PLACE[:2], "channel", "version", "type", "blob")
_WRITE_POSTGRESQL = ("task_id", "idx", "channel", "type", "blob")
_OLD_WRITES_POSTGRESQL = table_of("checkpoint_writes", *_PLACE, *_WRITE_POSTGRESQL)
_WRITES_POSTGRESQL = table_of("checkpoint_writes", *_PLACE, "task_path", *_WRITE_POSTGRESQL)
_SENDS = "__pregel_tasks"
"""The channel in which checkpoints before version 4 had what was sent after their parents."""


def read_postgresql(source: OpenSource, clock: SetClock, note: Note) -> Iterator[ImportPiece]:
    """Give the threads of a source."""
    for needed in (_CHECKPOINTS_POSTGRESQL, _BLOBS, _OLD_WRITES_POSTGRESQL):
        source.require(needed, "LangGraph's PostgresSaver")
    writes = _writes_of(source)
    yield from threads(
        source, SaverTables(_CHECKPOINTS_POSTGRESQL, writes, "C", _decode_postgresql), clock, note
    )


def _writes_of(source: OpenSource) -> TableClause:
    return (
        _WRITES_POSTGRESQL
        if "task_path" in source.columns(_WRITES_POSTGRESQL.name)
        else _OLD_WRITES_POSTGRESQL
    )


def _decode_postgresql(source: OpenSource, row: Row[Any]) -> tuple[Values, Mapping[str, Any]]:
    checkpoint = row.checkpoint
    if not isinstance(checkpoint, dict):
        raise BrokenRow("it is no checkpoint")
    inline, versions = checkpoint.get("channel_values") or {}, checkpoint.get("channel_versions")
    if not isinstance(inline, dict) or not isinstance(versions, dict):
        raise BrokenRow("it is no checkpoint")
    channels: Values = {name: part("msgpack", value) for name, value in inline.items()}
    for channel, kind, blob in _blobs(source, row, versions):
        if kind != "empty":
            channels[channel] = _value(source, kind, blob)
    if (checkpoint.get("v") or 0) < 4 and row.parent_checkpoint_id:
        sends = _sends(source, row)
        if sends is not None:
            channels[_SENDS] = sends
            newest = max(versions.values()) if versions else f"{1:032}.0"
            checkpoint = {**checkpoint, "channel_versions": {**versions, _SENDS: newest}}
    return channels, checkpoint


def _value(source: OpenSource, kind: str, blob: object) -> bytes | Items:
    """Give a value as the saver stores it; of other types than it reads, as it is."""
    data = bytes(blob) if isinstance(blob, bytes | memoryview) else b""
    if kind not in ("msgpack", "json"):
        return typed(kind, data)
    require_allowed(kind, data, source.allowed)
    return part(*unpacked(kind, data))


def _blobs(
    source: OpenSource, row: Row[Any], versions: Mapping[str, Any]
) -> Iterator[tuple[str, str, object]]:
    blobs = _BLOBS.c
    wanted = [(channel, str(version)) for channel, version in versions.items()]
    query = select(blobs.channel, blobs.type, blobs.blob).where(
        blobs.thread_id == row.thread_id,
        blobs.checkpoint_ns == row.checkpoint_ns,
        tuple_(blobs.channel, blobs.version).in_(wanted),
    )
    for found in source.connection.execute(query) if wanted else ():
        yield found.channel, found.type, found.blob


def _sends(source: OpenSource, row: Row[Any]) -> bytes | Items | None:
    """Give what was sent after the parent, as LangGraph's saver does; None if nothing was."""
    writes = _writes_of(source)
    order = [writes.c[name] for name in ("task_path", "task_id", "idx") if name in writes.c]
    query = (
        select(writes.c.type, writes.c.blob)
        .where(
            writes.c.thread_id == row.thread_id,
            writes.c.checkpoint_id == row.parent_checkpoint_id,
            writes.c.channel == _SENDS,
        )
        .order_by(*order)
    )
    found = source.connection.execute(query)
    sends = []
    for kind, blob in found:
        require_allowed(kind, bytes(blob), source.allowed)
        sends.append(unpacked(kind, bytes(blob))[1])
    return part("msgpack", sends) if sends else None
