"""``SqliteSaver`` and ``AsyncSqliteSaver`` of LangGraph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Row, column, table

from agentstore.errors import NotASource
from agentstore.moving.frameworks.langgraph import SaverTables, Values, threads
from agentstore.moving.frameworks.langgraph_bytes import parts, unpacked
from agentstore.moving.frameworks.pieces import BrokenRow, Hands, ImportPiece, Note
from agentstore.moving.frameworks.sources import OpenSource

_PLACE = ("thread_id", "checkpoint_ns", "checkpoint_id")
_CHECKPOINTS = table(
    "checkpoints",
    *(column(name) for name in (*_PLACE, "parent_checkpoint_id", "type", "checkpoint", "metadata")),
)
_OLD_WRITES = (*_PLACE, "task_id", "idx", "channel", "type", "value")
_WRITES = (*_PLACE, "task_path", *_OLD_WRITES[3:])


def read(source: OpenSource, hands: Hands, note: Note) -> Iterator[ImportPiece]:
    """Give the threads of a source."""
    there = source.columns("checkpoints"), source.columns("writes")
    if not there[0] >= set(_CHECKPOINTS.c.keys()) or not there[1] >= set(_OLD_WRITES):
        raise NotASource(
            source.name, "LangGraph's SqliteSaver", "it has no tables checkpoints and writes"
        )
    names = _WRITES if "task_path" in there[1] else _OLD_WRITES
    writes = table("writes", *(column(name) for name in names))
    yield from threads(source, SaverTables(_CHECKPOINTS, writes, None, _decode), hands, note)


def _decode(_: OpenSource, row: Row[Any]) -> tuple[Values, Mapping[str, Any]]:
    if not isinstance(row.checkpoint, bytes):
        raise BrokenRow("its value is not bytes")
    kind, checkpoint = unpacked(row.type, row.checkpoint)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("channel_values"), dict):
        raise BrokenRow("it is no checkpoint")
    channels = checkpoint["channel_values"]
    return {name: parts(kind, value) for name, value in channels.items()}, checkpoint
