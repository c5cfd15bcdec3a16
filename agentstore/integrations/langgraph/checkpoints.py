"""What a LangGraph checkpoint is in agentstore, and back.

Each channel is a value under its own name, and what else the checkpoint has is one more value. All
are bytes that the saver's serializer made. A list is ``Items``, each of them serialized on its own:
of a history that grew, only the new messages are stored. A serializer other than LangGraph's own
gets each value whole: what encrypts must not show how long a list is.

LangGraph's namespaces are below ``langgraph``. Its root is not ours, in which an id is in one
thread alone: LangGraph copies threads with their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isfinite
from threading import Lock
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agentstore.records import CheckpointRecord, Items, WriteRecord

_ROOT = "langgraph"
_BELOW = "langgraph|"

REST = "\x01checkpoint"
"""The name of what a checkpoint has beside its channels, and its id."""

_MOST_SEEN = 256
"""Checkpoints whose channels a saver keeps in mind."""

_MSGPACK = b"msgpack\0"
_LONGEST_RUN_ID = 255
_DEEPEST = 100
"""Levels of nesting up to which metadata are stored as JSON, and can be filtered by."""


class Seen:
    """The versions of channels in checkpoints that were put or read last.

    What a channel holds at a version is always the same: a child with the version of its parent
    need not store the value, nor serialize it. That is asked of both, and not only of what
    LangGraph says to be new.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = Lock()
        self._versions: dict[tuple[str, str, Any], dict[str, Any]] = {}

    def add(self, place: tuple[str, str, Any], checkpoint: Checkpoint) -> None:
        """Take note of a checkpoint, which was put or read at a place."""
        there = checkpoint["channel_values"]
        versions = {c: v for c, v in checkpoint["channel_versions"].items() if c in there}
        with self._lock:
            self._versions.pop(place, None)
            self._versions[place] = versions
            if len(self._versions) > _MOST_SEEN:
                del self._versions[next(iter(self._versions))]

    def unchanged(
        self, parent: tuple[str, str, Any], checkpoint: Checkpoint, new: ChannelVersions
    ) -> set[str]:
        """Name the channels that are as in the parent."""
        with self._lock:
            before = self._versions.get(parent, {})
        now = checkpoint["channel_versions"]
        return {
            channel
            for channel in checkpoint["channel_values"]
            if channel not in new and channel in before and before[channel] == now.get(channel)
        }


def space_of(namespace: str) -> str:
    """Give the namespace that we have for one of LangGraph's."""
    return _BELOW + namespace if namespace else _ROOT


def is_ours(space: str) -> bool:
    """Say whether a namespace is one of LangGraph's."""
    return space == _ROOT or space.startswith(_BELOW)


def config_of(thread_id: str, space: str, checkpoint_id: str) -> RunnableConfig:
    """Give the configuration that names a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": space[len(_BELOW) :],
            "checkpoint_id": checkpoint_id,
        }
    }


def dumped(serde: SerializerProtocol, value: Any) -> bytes:
    """Serialize a value, its type in front."""
    kind, data = serde.dumps_typed(value)
    return kind.encode() + b"\0" + data


def loaded(serde: SerializerProtocol, data: bytes) -> Any:
    """Undo ``dumped``."""
    kind, _, rest = data.partition(b"\0")
    return serde.loads_typed((kind.decode(), rest))


def channel_of(serde: SerializerProtocol, stored: Any) -> Any:
    """Give the value of a channel as it was put."""
    if not isinstance(stored, Items):
        return loaded(serde, stored)
    if type(serde) is JsonPlusSerializer and all(item.startswith(_MSGPACK) for item in stored):
        items = (item[len(_MSGPACK) :] for item in stored)
        array = b"".join((b"\xdd", len(stored).to_bytes(4, "big"), *items))
        return serde.loads_typed(("msgpack", array))  # in one call, as it was before
    return [loaded(serde, item) for item in stored]


def values_of(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    *,
    but: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the values of a checkpoint by name, and those of its metadata that JSON can say.

    Args:
        serde: What makes bytes of values.
        config: Where the checkpoint is to be put.
        checkpoint: The checkpoint.
        metadata: Its metadata.
        but: Channels whose values are not to be given.

    Raises:
        ValueError: A channel has the name that is kept for the rest of the checkpoint.
    """
    if REST in checkpoint["channel_values"]:
        raise ValueError(f"A channel must not be named {REST!r}. Rename it.")
    by_item = type(serde) is JsonPlusSerializer
    values: dict[str, Any] = {
        channel: Items(dumped(serde, item) for item in value)
        if by_item and type(value) is list
        else dumped(serde, value)
        for channel, value in checkpoint["channel_values"].items()
        if channel not in but
    }
    every = get_serializable_checkpoint_metadata(config, metadata)
    plain = json_part(every)
    rest = {k: v for k, v in checkpoint.items() if k not in ("id", "channel_values")}
    others = {k: v for k, v in every.items() if k not in plain}
    values[REST] = dumped(serde, (rest, others) if others else rest)
    return values, plain


def json_part(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Give those of the metadata that JSON can say."""
    return {key: value for key, value in metadata.items() if _is_json(value, _DEEPEST)}


def run_of(metadata: Mapping[str, Any]) -> str | None:
    """Give the run that metadata name; None where they do not, or in no way that is indexed."""
    run = metadata.get("run_id")
    return run if isinstance(run, str) and 0 < len(run) <= _LONGEST_RUN_ID else None


def tuple_of(serde: SerializerProtocol, record: CheckpointRecord) -> CheckpointTuple:
    """Give what LangGraph reads of a checkpoint that was put by a saver."""
    values = dict(record.values)
    rest: Any = loaded(serde, values.pop(REST))
    others: Mapping[str, Any] = {}
    if isinstance(rest, tuple | list):
        rest, others = rest
    place = record.thread_id, record.namespace
    channels = {name: channel_of(serde, value) for name, value in values.items()}
    checkpoint: Any = {**rest, "id": record.id, "channel_values": channels}
    metadata: Any = {**record.metadata, **others}
    return CheckpointTuple(
        config=config_of(*place, record.id),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=None if record.parent_id is None else config_of(*place, record.parent_id),
        pending_writes=[pending_write(serde, write) for write in record.writes or ()],
    )


def pending_write(serde: SerializerProtocol, write: WriteRecord) -> PendingWrite:
    """Give what LangGraph reads of a pending write."""
    return write.task_id, write.channel, loaded(serde, write.value)


def step_of(checkpoint_id: str) -> int:
    """Give the step of a checkpoint: a number that grows as the ids do, by which LangGraph sorts.

    Of a UUID of version 6, as LangGraph makes them, it is the 60 bits of its time; its own
    ``metadata["step"]`` falls behind when a graph goes on from an earlier checkpoint.
    """
    digits = checkpoint_id.replace("-", "")
    if len(checkpoint_id) == 36 and len(digits) == 32:
        try:
            return int(digits[:12] + digits[13:16], 16)
        except ValueError:
            pass
    return int.from_bytes(checkpoint_id.encode("utf-8", "replace")[:7].ljust(7, b"\0"), "big")


def _is_json(value: Any, levels: int) -> bool:
    """Say whether JSON can say a value, and gives it back equal, but for tuples."""
    if value is None or isinstance(value, str | bool | int):
        return type(value) in (type(None), str, bool, int)
    if type(value) is float:
        return isfinite(value)
    if not levels:
        return False
    if type(value) in (list, tuple):
        return all(_is_json(item, levels - 1) for item in value)
    return type(value) is dict and all(
        type(key) is str and _is_json(item, levels - 1) for key, item in value.items()
    )
