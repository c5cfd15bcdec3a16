"""What a LangGraph checkpoint is in agentstore, and back.

Each channel is a value under its own name, and what else the checkpoint has is one more value. All
are bytes that the saver's serializer made. A list is ``Items``, each of them serialized on its own:
of a history that grew, only the new messages are stored. A serializer other than LangGraph's own
gets each value whole: what encrypts must not show how long a list is.

LangGraph's namespaces are below ``langgraph``. Its root is not ours, in which an id is in one
thread alone: LangGraph copies threads with their ids.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from math import isfinite
from threading import Lock
from typing import Any

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)

from agentstore.errors import InvalidInput, TypeNotAllowed, shown
from agentstore.records import CheckpointRecord, Items, WriteRecord

_ROOT = "langgraph"
_BELOW = "langgraph|"

REST = "\x01checkpoint"
"""The name of what a checkpoint has beside its channels, and its id."""

_MOST_SEEN = 256
"""Checkpoints whose channels a saver keeps in mind."""

_MOST_PLACES = 10_000
"""Checkpoints of which a saver knows that they were there: some 3 MB."""

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
        self._places: dict[tuple[str, str, Any], None] = {}

    def add(self, place: tuple[str, str, Any], checkpoint: Checkpoint) -> None:
        """Take note of a checkpoint, which was put or read at a place."""
        there = checkpoint["channel_values"]
        versions = {c: v for c, v in checkpoint["channel_versions"].items() if c in there}
        with self._lock:
            self._versions.pop(place, None)
            self._versions[place] = versions
            if len(self._versions) > _MOST_SEEN:
                del self._versions[next(iter(self._versions))]
        self.expect(place)

    def expect(self, place: tuple[str, str, Any]) -> None:
        """Take note that a checkpoint is there, or will be, in a thread that is."""
        with self._lock:
            self._places.pop(place, None)
            self._places[place] = None
            if len(self._places) > _MOST_PLACES:
                del self._places[next(iter(self._places))]

    def has(self, place: tuple[str, str, Any]) -> bool:
        """Say whether a checkpoint was there, or is to come."""
        with self._lock:
            return place in self._places

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


Allowed = type | tuple[str, str]
"""A class, or its module and its name."""

_DATA = {
    "langchain_core.agents": ("AgentAction", "AgentActionMessageLog", "AgentFinish", "AgentStep"),
    "langchain_core.documents.base": ("Blob",),
    "langchain_core.outputs.chat_generation": ("ChatGeneration", "ChatGenerationChunk"),
    "langchain_core.outputs.chat_result": ("ChatResult",),
    "langchain_core.outputs.generation": ("Generation", "GenerationChunk"),
    "langchain_core.outputs.llm_result": ("LLMResult",),
    "langchain_core.outputs.run_info": ("RunInfo",),
    "langchain_core.prompt_values": ("StringPromptValue", "ChatPromptValue"),
    "langgraph.types": ("CacheKey", "CachePolicy", "RetryPolicy"),
}
"""Classes that hold data, beside those that LangGraph's serializer always makes."""

_refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)


def _note_refused(event: SerdeEvent) -> None:
    refused = _refused.get()
    if refused is not None and event["kind"].endswith("_blocked"):
        names = event["module"], event["name"], event.get("method")
        refused.append(".".join(str(name) for name in names if name is not None))


register_serde_event_listener(_note_refused)


class AllowedSerializer(JsonPlusSerializer):
    """LangGraph's serializer, which makes objects of allowed classes only.

    What is stored names a class, or any function, and LangGraph's calls it. Here reading a value
    that names another one raises ``TypeNotAllowed``, and nothing of it is called.
    """

    def __init__(self, allowed: Iterable[Allowed] = ()) -> None:
        """Allow what LangGraph and LangChain need, and more.

        Args:
            allowed: Classes of the application that its state holds, or pairs of a module and a
                name.

        Raises:
            InvalidInput: ``allowed`` holds something else.
        """
        if not isinstance(allowed, list | tuple | set | frozenset):
            raise InvalidInput("allowed must be a list of classes, or of pairs of str.")
        names: set[tuple[str, ...]] = {(m, name) for m, those in _DATA.items() for name in those}
        for each in allowed:
            pair = isinstance(each, tuple | list) and [*map(type, each)] == [str, str]
            if pair or isinstance(each, type):
                names.add(_name_of(each))
            else:
                raise InvalidInput(
                    "allowed must hold classes, or pairs of a module and a name, such as "
                    f"('my.models', 'Plan'), not {shown(each)}."
                )
        self._named = frozenset(names)
        parts = [(*module.split("."), name) for module, name in names]
        super().__init__(allowed_msgpack_modules=names, allowed_json_modules=parts)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Read a value.

        Raises:
            TypeNotAllowed: It names what is not allowed.
        """
        if data[0] == "json":
            json.loads(data[1], object_hook=self._check_json)
        refused: list[str] = []
        token = _refused.set(refused)
        try:
            return super().loads_typed(data)
        finally:
            _refused.reset(token)
            if refused:  # also where what was left in its place led to another error
                raise TypeNotAllowed(refused[0])

    def with_msgpack_allowlist(
        self, extra_allowlist: Iterable[tuple[str, ...] | type]
    ) -> AllowedSerializer:
        """Allow also what a graph names: LangGraph asks, if it is strict."""
        extra = [*extra_allowlist]
        clone = super().with_msgpack_allowlist(extra)
        assert isinstance(clone, AllowedSerializer)
        clone._named = self._named | {_name_of(each) for each in extra}
        return clone

    def allows(self, module: object, name: object, method: object = None) -> bool:
        """Say whether a stored value may name this."""
        if method is not None:
            return (module, name, method) in SAFE_MSGPACK_METHODS
        return (module, name) in SAFE_MSGPACK_TYPES or (module, name) in self._named

    def check(self, kind: str, data: bytes) -> None:
        """Check a value that is not to be made.

        Raises:
            TypeNotAllowed: It names what is not allowed.
            ValueError: It is not of its kind.
        """
        refused: list[str] = []

        def look(code: int, data: bytes) -> None:
            held = ormsgpack.unpackb(data, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
            if code in _NAMING and isinstance(held, list) and len(held) > 1:
                named = [*held[:2], *(held[3:4] if code == EXT_METHOD_SINGLE_ARG else ())]
                if not self.allows(*named):
                    refused.append(".".join(map(str, named)))

        if kind == "json":
            json.loads(data, object_hook=self._check_json)
        elif kind == "msgpack":
            try:
                look(-1, data)
            finally:
                if refused:  # also where something after it cannot be read
                    raise TypeNotAllowed(refused[0])

    def _check_json(self, value: dict[str, Any]) -> dict[str, Any]:
        names = value.get("id")
        makes = value.get("lc") == 2 and value.get("type") == "constructor"
        if makes and isinstance(names, list) and names:
            *module, name = map(str, names)
            if not self.allows(".".join(module), name):
                raise TypeNotAllowed(".".join([*module, name]))
        return value


def _name_of(each: type | tuple[str, ...]) -> tuple[str, ...]:
    return (each.__module__, each.__name__) if isinstance(each, type) else tuple(each)


_NAMING = (
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
)

_BY_ITEM = (JsonPlusSerializer, AllowedSerializer)


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
    if type(serde) in _BY_ITEM and all(item.startswith(_MSGPACK) for item in stored):
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
    by_item = type(serde) in _BY_ITEM
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
