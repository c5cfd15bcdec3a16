"""``SqliteSaver`` and ``AsyncSqliteSaver`` of LangGraph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Row

from agentstore.moving.frameworks.langgraph import SaverTables, Values, threads
from agentstore.moving.frameworks.langgraph_bytes import parts, require_allowed, unpacked
from agentstore.moving.frameworks.pieces import BrokenRow, ImportPiece, Note, SetClock
from agentstore.moving.frameworks.sources import OpenSource, table_of

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
    return {name: parts(kind, value) for name, value in channels.items()}, checkpoint
