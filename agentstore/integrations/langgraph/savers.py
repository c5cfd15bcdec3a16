"""The checkpoint savers: ``AgentStoreSaver`` on a ``Store``, ``AsyncAgentStoreSaver`` on another.

What they do is written once, in ``SaverOperations``.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from collections.abc import (
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from datetime import timedelta
from math import isfinite
from threading import Lock
from time import monotonic
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS
from langgraph.store.base import TTLConfig

from agentstore.aio import AsyncRepositories
from agentstore.errors import (
    AgentStoreError,
    InvalidInput,
    NotAllowedInScope,
    NotFound,
)
from agentstore.integrations import Call, Calls, T, of_kind, run, run_async, settled
from agentstore.integrations.langgraph.calls import (
    AsyncSweeper,
    Sweeper,
    awaited,
    called,
    checked,
    log,
)
from agentstore.integrations.langgraph.serializer import Allowed, AllowedSerializer
from agentstore.records import CheckpointRecord, Items, Page, WriteRecord
from agentstore.retention import RetentionPolicy
from agentstore.transactions import Repositories

if TYPE_CHECKING:
    from agentstore import AsyncScopedStore, AsyncStore, ScopedStore, Store


# The operations of a checkpoint saver. All calls are of ``store.checkpoints``.


class SaverOperations(BaseCheckpointSaver[str]):
    """What both savers do."""

    def __init__(
        self,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[Allowed] = (),
        revive: bool = False,
        ttl: TTLConfig | None = None,
    ) -> None:
        """Begin with nothing seen; see ``AgentStoreSaver``."""
        if serde is not None and (allowed := [*allowed]):
            raise InvalidInput(
                "allowed is for the saver's own serializer; pass it to the one in serde instead."
            )
        super().__init__(serde=AllowedSerializer(allowed) if serde is None else serde)
        self._seen = Seen()
        self._revive = revive
        self.ttl_config = checked(ttl)
        minutes = (ttl or {}).get("default_ttl")
        self._part = None if minutes is None else timedelta(minutes=minutes) / _PARTS
        self._refreshes = (ttl or {}).get("refresh_on_read", True)

    @abstractmethod
    async def _arun(self, calls: Calls[T]) -> T:
        """Make the calls of an operation for a coroutine."""

    def _touch(self, thread: str) -> Calls[None]:
        """Have a thread count as used: one write at most in a tenth of its time to live."""
        if self._part is None or not self._seen.is_due(thread, self._part):
            return
        try:
            yield lambda c: c.touch(thread, every=self._part)
        except AgentStoreError as error:  # what was asked for is done all the same
            log.warning("%s", error)

    def _policy(self, store: object) -> RetentionPolicy | None:
        """Say which threads have expired: a tenth later, because not every use is written down."""
        if not hasattr(store, "prune"):
            raise NotAllowedInScope("sweep_ttl()")
        if self._part is None:
            return None
        idle = self._part * (_PARTS + 1)
        return RetentionPolicy(threads_idle=idle, thread_namespaces=(_ROOT,))

    def _if_missing(
        self, config: RunnableConfig, place: tuple[str, str, Any]
    ) -> Literal["make", "refuse"]:
        """Say what to do if the thread is not there: a run that had it finds it deleted."""
        had = self._had(place)
        for outer, id in (config["configurable"].get("checkpoint_map") or {}).items():
            space = space_of(outer)
            had = had or (space != place[1] and self._had((place[0], space, id)))
        return "refuse" if had else "make"

    def _had(self, place: tuple[str, str, Any]) -> bool:
        """Say whether a checkpoint was there, so that it was deleted if it is not."""
        return not self._revive and self._seen.has(place)

    def get_next_version(self, current: str | int | None, channel: None = None) -> str:
        """Give a channel's next version: one more, and different in each fork of a thread."""
        last = int(str(current).partition(".")[0]) if current else 0
        # The system's random bits: of Python's, programs that seed them alike get the same.
        return f"{last + 1:032}.{secrets.token_hex(8)}"

    @awaited
    def aget_tuple(self, config: RunnableConfig) -> Calls[CheckpointTuple | None]:
        """Give a checkpoint with the writes after it, of one moment; without an id, the latest."""
        thread, space, id = _place(config)
        if id is None:
            found = yield lambda c: c.latest(thread, space, writes=True, order="id")
        else:
            found = yield lambda c: c.find(id, thread, space, writes=True)
        if found is None:
            return None
        read = tuple_of(self.serde, found)
        self._seen.add((thread, space, found.id), read.checkpoint)
        if self._refreshes:
            yield from self._touch(thread)
        return read

    @awaited
    def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Calls[RunnableConfig]:
        """Save a checkpoint. It is durable when this returns."""
        before = thread, space, parent = _place(config)
        id = checkpoint["id"]
        missing = self._if_missing(config, before)
        if missing == "refuse":
            self._seen.expect((thread, space, id))  # its writes may overtake it
        as_before = self._seen.unchanged(before, checkpoint, new_versions)

        def put(as_before: set[str]) -> Call:
            values, plain = values_of(self.serde, config, checkpoint, metadata, but=as_before)
            return lambda c: c.put(
                thread,
                values,
                id,
                parent_id="" if parent in (None, id) else parent,
                parent_missing="refuse" if self._had(before) else "root",
                step=step_of(id),
                next_node=next_of(checkpoint["channel_values"]),
                metadata=plain,
                namespace=space,
                run_id=run_of(plain),
                inherit=tuple(as_before),
                thread_missing=missing,
            )

        try:
            yield put(as_before)
        except NotFound as error:
            if not as_before or error.kind in ("checkpoint", "checkpoint thread"):
                raise
            # The parent has gone since it was seen, or is another one.
            yield put(set())
        self._seen.add((thread, space, id), checkpoint)
        if self._part is not None:
            self._seen.is_due(thread, self._part)  # a put is a use by itself
        return config_of(thread, space, id)

    @awaited
    def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> Calls[None]:
        """Save what a task wrote after a checkpoint, which need not be there yet."""
        place = thread, space, id = _place(config)
        # What is special has a place of its own, where the last one counts; else the first does.
        placed = {
            WRITES_IDX_MAP.get(channel, n): (channel, dumped(self.serde, value))
            for n, (channel, value) in enumerate(writes)
        }
        yield lambda c: c.put_writes(
            thread,
            id,
            task_id,
            [*placed.values()],
            task_path=task_path,
            namespace=space,
            positions=[*placed],
            replace=[channel in WRITES_IDX_MAP for channel, _ in placed.values()],
            thread_missing=self._if_missing(config, place),
        )
        yield from self._touch(thread)

    def _pages(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[Calls[list[CheckpointTuple]]]:
        """Give an operation for each page, which must be run before the next one is asked for."""
        named = config["configurable"] if config else {}
        thread, space = None, None
        if named:
            thread = str(named["thread_id"])
            if (namespace := named.get("checkpoint_ns")) is not None:
                space = space_of(namespace)
        only = get_checkpoint_id(config) if config else None
        below = get_checkpoint_id(before) if before else None
        if only:
            if below is not None and below <= only:
                return
            below = f"{only}\0"  # so that it comes first, and not all that came after it
        left, cursor, more = limit, None, True

        def page() -> Calls[list[CheckpointTuple]]:
            nonlocal left, cursor, more
            read: Page[CheckpointRecord] = yield lambda c: c.list(
                thread,
                namespace=space,
                limit=_PAGE if left is None else min(left, _PAGE),
                cursor=cursor,
                order="id",
                before=below,
                where={(key,): value for key, value in (filter or {}).items()},
                writes=True,
            )
            found = [
                tuple_of(self.serde, record)
                for record in read
                if is_ours(record.namespace) and only in (None, "", record.id)
            ]
            cursor = read.next_cursor
            ended = only and (not read.items or read.items[-1].id < only)
            left = None if left is None else left - len(found)
            more = cursor is not None and not ended
            return found

        while more and (left is None or left > 0):
            yield page()

    @awaited
    def adelete_thread(self, thread_id: str) -> Calls[None]:
        """Delete a thread and all that is in it."""
        with suppress(NotFound):
            yield lambda c: c.delete_thread(str(thread_id))

    @awaited
    def adelete_for_runs(self, run_ids: Sequence[str]) -> Calls[None]:
        """Delete the checkpoints of runs; what came after them has their nearest ancestor left."""
        for each in run_ids:
            yield lambda c, id=str(each): c.delete_run(id)  # type: ignore[misc]

    @awaited
    def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> Calls[None]:
        """Copy a thread to a new one; raises ``AlreadyExists`` if that is there already."""
        with suppress(NotFound):
            yield lambda c: c.copy_thread(str(source_thread_id), str(target_thread_id))

    @awaited
    def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> Calls[None]:
        """Keep the latest checkpoint of each namespace, and what its delta channels need."""
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids must be a sequence of thread ids, not a str")
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"Unknown prune strategy: {strategy!r}")
        for each in thread_ids:
            thread = str(each)
            if strategy == "delete":
                with suppress(NotFound):
                    yield lambda c, t=thread: c.delete_thread(t)  # type: ignore[misc]
                continue
            for space in (yield lambda c, t=thread: c.namespaces(t)):  # type: ignore[misc]
                latest = is_ours(space) and (
                    yield lambda c, t=thread, s=space: c.latest(t, s, order="id")  # type: ignore[misc]
                )
                if latest:
                    kept = {"keep_ids": [latest.id], "namespace": space}
                    yield lambda c, t=thread, kept=kept: c.prune(t, **kept)  # type: ignore[misc]

    @awaited
    def aget_delta_channel_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Calls[Mapping[str, DeltaChannelHistory]]:
        """Give what delta channels are to be rebuilt of: see ``BaseCheckpointSaver``."""
        if not channels:
            return {}
        thread, space, target = _place(config)
        if target is None:
            latest = yield lambda c: c.latest(thread, space, order="id")
            target = None if latest is None else latest.id
        path: Sequence[Any] = ()
        if target is not None:
            with suppress(NotFound):
                path = yield lambda c: c.path(target, thread, space)
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        for info in path[1:]:
            if len(seeds) == len(writes):
                break
            record = yield lambda c, id=info.id: c.find(id, thread, space, writes=True)  # type: ignore[misc]
            if record is None:
                break
            for write in reversed(record.writes):
                if write.channel in writes and write.channel not in seeds:
                    writes[write.channel].append(pending_write(self.serde, write))
            for channel in writes.keys() & record.values.keys() - seeds.keys():
                seeds[channel] = channel_of(self.serde, record.values[channel])
        found: dict[str, DeltaChannelHistory] = {}
        for channel, history in writes.items():
            found[channel] = {"writes": history[::-1]}
            if channel in seeds:
                found[channel]["seed"] = seeds[channel]
        return found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Go over checkpoints, the largest id first, some of them read at a time."""
        for page in self._pages(config, filter, before, limit):
            for each in await self._arun(page):
                yield each


def _place(config: RunnableConfig) -> tuple[str, str, Any]:
    """Give the thread of a configuration, our namespace, and the checkpoint's id or None."""
    named = config["configurable"]
    space = space_of(named.get("checkpoint_ns") or "")
    return str(named["thread_id"]), space, get_checkpoint_id(config) or None


_PAGE = 50
"""Checkpoints that a list reads at a time, with their values."""

_PARTS = 10
"""Parts of its time to live; in each, the use of a thread is written down once at most."""


class AgentStoreSaver(Sweeper, SaverOperations):
    """A LangGraph checkpointer on a ``Store``, for ``invoke`` and ``stream``.

    Every thread of a program may use it at once. Closing the store is its owner's business.
    ``ainvoke`` and ``astream`` go too: each call is then made in a thread, and one that is
    cancelled ends first. A service on an event loop is faster with ``AsyncAgentStoreSaver``.
    """

    def __init__(
        self,
        store: Store | ScopedStore,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[Allowed] = (),
        revive: bool = False,
        ttl: TTLConfig | None = None,
    ) -> None:
        """Save into a store.

        Args:
            store: Also one that is ``scoped`` to a user: then threads are the user's.
            serde: What makes bytes of values, such as LangGraph's ``EncryptedSerializer``; left
                out, ``AllowedSerializer``: LangGraph's own, which makes allowed classes only.
            allowed: Classes of the application that its state holds, or pairs of a module and a
                name.
            revive: Whether a run that goes on after its thread was deleted makes it again; left
                out, its next put raises ``NotFound``.
            ttl: How long threads are kept after their last use, as LangGraph writes it:
                ``{"default_ttl": 60, "refresh_on_read": True, "sweep_interval_minutes": 5}``. To
                read is a use if ``refresh_on_read`` says so, or nothing. ``sweep_ttl`` deletes
                what has expired, and ``start_ttl_sweeper`` does so now and then.

        Raises:
            InvalidInput: ``ttl`` or ``allowed`` is something else.
        """
        super().__init__(serde=serde, allowed=allowed, revive=revive, ttl=ttl)
        of_kind(store, Repositories)
        self._store, self._checkpoints = store, store.checkpoints

    def _run(self, calls: Calls[T]) -> T:
        return run(calls, self._checkpoints)

    async def _arun(self, calls: Calls[T]) -> T:
        # What comes after it must not find it half done.
        return await settled(asyncio.to_thread(self._run, calls))

    get_tuple = called(SaverOperations.aget_tuple)
    put = called(SaverOperations.aput)
    put_writes = called(SaverOperations.aput_writes)
    delete_thread = called(SaverOperations.adelete_thread)
    delete_for_runs = called(SaverOperations.adelete_for_runs)
    copy_thread = called(SaverOperations.acopy_thread)
    prune = called(SaverOperations.aprune)
    get_delta_channel_history = called(SaverOperations.aget_delta_channel_history)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Go over checkpoints, the largest id first, some of them read at a time."""
        for page in self._pages(config, filter, before, limit):
            yield from self._run(page)

    def sweep_ttl(self) -> int:
        """Delete the threads of all users that have expired, as ``prune`` does; give how many.

        Raises:
            NotAllowedInScope: The store is scoped to a user.
        """
        if (policy := self._policy(self._store)) is None:
            return 0
        store = cast("Store", self._store)
        return store.prune(policy, reclaim=False).rules.get("threads", 0)


class AsyncAgentStoreSaver(AsyncSweeper, SaverOperations):
    """A LangGraph checkpointer on an ``AsyncStore``, for ``ainvoke`` and ``astream``.

    Like its store it belongs to one event loop. A call that is cancelled has happened or not, as
    with the store.
    """

    def __init__(
        self,
        store: AsyncStore | AsyncScopedStore,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[Allowed] = (),
        revive: bool = False,
        ttl: TTLConfig | None = None,
    ) -> None:
        """Save into a store; see ``AgentStoreSaver``."""
        super().__init__(serde=serde, allowed=allowed, revive=revive, ttl=ttl)
        of_kind(store, AsyncRepositories)
        self._store, self._checkpoints = store, store.checkpoints

    async def _arun(self, calls: Calls[T]) -> T:
        return await run_async(calls, self._checkpoints)

    async def sweep_ttl(self) -> int:
        """Delete what has expired; see ``AgentStoreSaver.sweep_ttl``."""
        if (policy := self._policy(self._store)) is None:
            return 0
        store = cast("AsyncStore", self._store)
        return (await store.prune(policy, reclaim=False)).rules.get("threads", 0)


# What a LangGraph checkpoint is in agentstore, and back.
#
# Each channel is a value under its own name, and what else the checkpoint has is one more value.
# All are bytes that the saver's serializer made. A list is ``Items``, its msgpack without the
# header that counts them: of a history that grew, only the new messages are stored. All of it is
# serialized, because a message can be changed where it is. What a serializer other than LangGraph's
# own makes is stored as it is: what encrypts must not show how long a list is.
#
# LangGraph's namespaces are below ``langgraph``. Its root is not ours, in which an id is in one
# thread alone: LangGraph copies threads with their ids.


_ROOT = "langgraph"
_BELOW = "langgraph|"

REST = "\x01checkpoint"
"""The name of what a checkpoint has beside its channels, and its id."""

_BRANCH = "branch:to:"
"""What the channels that lead to a node begin with."""

START = "__start__"
_LONGEST_NEXT = 200

_MOST_SEEN = 256
"""Checkpoints whose channels a saver keeps in mind."""

_MOST_PLACES = 10_000
"""Checkpoints of which a saver knows that they were there: some 3 MB."""

_HEADERS = {0xDC: 3, 0xDD: 5}
"""How msgpack begins a list of 16 items or more, and in how many bytes; else it takes one."""

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
        self._uses: dict[str, float] = {}

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

    def is_due(self, thread: str, every: timedelta) -> bool:
        """Take note that a thread is used; say whether it was not in so much time before."""
        now = monotonic()
        with self._lock:
            last = self._uses.get(thread)
            if last is not None and now - last < every.total_seconds():
                return False
            self._uses.pop(thread, None)
            self._uses[thread] = now
            if len(self._uses) > _MOST_PLACES:
                del self._uses[next(iter(self._uses))]
        return True

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
    if isinstance(stored, Items):
        array = b"".join((b"\xdd", stored.count.to_bytes(4, "big"), stored.data))
        return serde.loads_typed(("msgpack", array))
    return loaded(serde, stored)


def items_of(kind: str, data: bytes, count: int) -> bytes | Items:
    """Give what is stored of a serialized list: of msgpack, all but the header that counts them."""
    if kind != "msgpack":
        return kind.encode() + b"\0" + data
    return Items(data[_HEADERS.get(data[0], 1) :], count)


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
        channel: items_of(*serde.dumps_typed(value), len(value))
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


def next_of(channels: Mapping[str, Any]) -> str:
    """Name the nodes that a checkpoint's channels lead to, as far as a line has room for them."""
    sent = channels.get(TASKS) or ()
    named = [getattr(each, "node", None) for each in sent] if isinstance(sent, list) else []
    named += [name.removeprefix(_BRANCH) for name in channels if name.startswith(_BRANCH)]
    named += [START] if START in channels else []
    return ", ".join(sorted({name for name in named if isinstance(name, str)}))[:_LONGEST_NEXT]


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
    kind = type(value)
    if kind in _SCALARS:
        return kind is not float or isfinite(value)
    if not levels:
        return False
    if kind in (list, tuple):
        return all(_is_json(item, levels - 1) for item in value)
    return kind is dict and all(
        type(key) is str and _is_json(item, levels - 1) for key, item in value.items()
    )


_SCALARS = {NoneType, str, bool, int, float}
