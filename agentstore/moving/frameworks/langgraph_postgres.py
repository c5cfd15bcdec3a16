"""``PostgresSaver`` and ``AsyncPostgresSaver`` of LangGraph.

A checkpoint is JSON there, with the small values in it; the others are rows of their own, by
channel and version, which checkpoints share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Row, TableClause, select, tuple_

from agentstore.moving.frameworks.langgraph import SaverTables, Values, threads
from agentstore.moving.frameworks.langgraph_bytes import parts, require_allowed, typed, unpacked
from agentstore.moving.frameworks.pieces import BrokenRow, ImportPiece, Note, SetClock
from agentstore.moving.frameworks.sources import OpenSource, table_of

_PLACE = ("thread_id", "checkpoint_ns", "checkpoint_id")
_CHECKPOINTS = table_of("checkpoints", *_PLACE, "parent_checkpoint_id", "checkpoint", "metadata")
_BLOBS = table_of("checkpoint_blobs", *_PLACE[:2], "channel", "version", "type", "blob")
_WRITE = ("task_id", "idx", "channel", "type", "blob")
_OLD_WRITES = table_of("checkpoint_writes", *_PLACE, *_WRITE)
_WRITES = table_of("checkpoint_writes", *_PLACE, "task_path", *_WRITE)
_SENDS = "__pregel_tasks"
"""The channel in which checkpoints before version 4 had what was sent after their parents."""


def read(source: OpenSource, clock: SetClock, note: Note) -> Iterator[ImportPiece]:
    """Give the threads of a source."""
    for needed in (_CHECKPOINTS, _BLOBS, _OLD_WRITES):
        source.require(needed, "LangGraph's PostgresSaver")
    writes = _writes_of(source)
    yield from threads(source, SaverTables(_CHECKPOINTS, writes, "C", _decode), clock, note)


def _writes_of(source: OpenSource) -> TableClause:
    return _WRITES if "task_path" in source.columns(_WRITES.name) else _OLD_WRITES


def _decode(source: OpenSource, row: Row[Any]) -> tuple[Values, Mapping[str, Any]]:
    checkpoint = row.checkpoint
    if not isinstance(checkpoint, dict):
        raise BrokenRow("it is no checkpoint")
    inline, versions = checkpoint.get("channel_values") or {}, checkpoint.get("channel_versions")
    if not isinstance(inline, dict) or not isinstance(versions, dict):
        raise BrokenRow("it is no checkpoint")
    channels: Values = {name: parts("msgpack", value) for name, value in inline.items()}
    for channel, kind, blob in _blobs(source, row, versions):
        if kind != "empty":
            channels[channel] = _value(source, kind, blob)
    if (checkpoint.get("v") or 0) < 4 and row.parent_checkpoint_id:
        sends = _sends(source, row)
        if sends:
            channels[_SENDS] = sends
            newest = max(versions.values()) if versions else f"{1:032}.0"
            checkpoint = {**checkpoint, "channel_versions": {**versions, _SENDS: newest}}
    return channels, checkpoint


def _value(source: OpenSource, kind: str, blob: object) -> bytes | list[bytes]:
    """Give a value as the saver stores it: a list item by item, and other types as they are."""
    data = bytes(blob) if isinstance(blob, bytes | memoryview) else b""
    if kind not in ("msgpack", "json"):
        return typed(kind, data)
    require_allowed(kind, data, source.allowed)
    return parts(*unpacked(kind, data))


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


def _sends(source: OpenSource, row: Row[Any]) -> list[bytes]:
    """Give what was sent after the parent, as LangGraph's saver does."""
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
        sends.append(typed(kind, bytes(blob)))
    return sends
