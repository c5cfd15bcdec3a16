"""The operations of a checkpoint saver: see ``calls``. All calls are of ``store.checkpoints``."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

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
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from agentstore.errors import InvalidInput, NotFound
from agentstore.integrations.langgraph.calls import Call, Calls
from agentstore.integrations.langgraph.checkpoints import (
    Allowed,
    AllowedSerializer,
    Seen,
    channel_of,
    config_of,
    dumped,
    is_ours,
    pending_write,
    run_of,
    space_of,
    step_of,
    tuple_of,
    values_of,
)
from agentstore.records import CheckpointRecord, Page


class SaverOperations(BaseCheckpointSaver[str]):
    """What both savers do."""

    def __init__(
        self,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[Allowed] = (),
        revive: bool = False,
    ) -> None:
        """Begin with nothing seen; see ``AgentStoreSaver``."""
        if serde is not None and (allowed := [*allowed]):
            raise InvalidInput(
                "allowed is for the saver's own serializer; pass it to the one in serde instead."
            )
        super().__init__(serde=AllowedSerializer(allowed) if serde is None else serde)
        self._seen = Seen()
        self._revive = revive

    def _if_missing(self, config: RunnableConfig) -> Literal["make", "refuse"]:
        """Say what to do if the thread is not there: a run that had it finds it deleted."""
        thread, space, id = _place(config)
        named = {space: id}
        for outer, its_id in (config["configurable"].get("checkpoint_map") or {}).items():
            named.setdefault(space_of(outer), its_id)
        return "refuse" if any(self._had((thread, *place)) for place in named.items()) else "make"

    def _had(self, place: tuple[str, str, Any]) -> bool:
        """Say whether a checkpoint was there, so that it was deleted if it is not."""
        return not self._revive and self._seen.has(place)

    def get_next_version(self, current: str | int | None, channel: None = None) -> str:
        """Give a channel's next version: one more, and different in each fork of a thread."""
        last = int(str(current).partition(".")[0]) if current else 0
        return f"{last + 1:032}.{secrets.token_hex(8)}"

    def _calls_get(self, config: RunnableConfig) -> Calls[CheckpointTuple | None]:
        thread, space, id = _place(config)
        if id is None:
            found = yield lambda c: c.latest(thread, space, writes=True, order="id")
        else:
            found = yield lambda c: c.find(id, thread, space, writes=True)
        if found is None:
            return None
        read = tuple_of(self.serde, found)
        self._seen.add((thread, space, found.id), read.checkpoint)
        return read

    def _calls_put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Calls[RunnableConfig]:
        thread, space, parent = _place(config)
        id = checkpoint["id"]
        if self._if_missing(config) == "refuse":
            self._seen.expect((thread, space, id))  # its writes may overtake it
        as_before = self._seen.unchanged((thread, space, parent), checkpoint, new_versions)
        try:
            yield self._put(config, checkpoint, metadata, as_before)
        except NotFound as error:
            if not as_before or error.kind in ("checkpoint", "checkpoint thread"):
                raise
            # The parent has gone since it was seen, or is another one.
            yield self._put(config, checkpoint, metadata, set())
        self._seen.add((thread, space, id), checkpoint)
        return config_of(thread, space, id)

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        as_before: set[str],
    ) -> Call:
        thread, space, parent = _place(config)
        id = checkpoint["id"]
        values, plain = values_of(self.serde, config, checkpoint, metadata, but=as_before)
        return lambda c: c.put(
            thread,
            values,
            id,
            parent_id="" if parent in (None, id) else parent,
            parent_missing="refuse" if self._had((thread, space, parent)) else "root",
            step=step_of(id),
            metadata=plain,
            namespace=space,
            run_id=run_of(plain),
            inherit=[*as_before],
            thread_missing=self._if_missing(config),
        )

    def _calls_put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Calls[None]:
        thread, space, id = _place(config)
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
            thread_missing=self._if_missing(config),
        )

    def _calls_page(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int,
        cursor: str | None,
    ) -> Calls[tuple[list[CheckpointTuple], str | None]]:
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
                return [], None
            below = f"{only}\0"  # so that it comes first, and not all that came after it
        page: Page[CheckpointRecord] = yield lambda c: c.list(
            thread,
            namespace=space,
            limit=limit,
            cursor=cursor,
            order="id",
            before=below,
            where={(key,): value for key, value in (filter or {}).items()},
            writes=True,
        )
        found = [
            tuple_of(self.serde, record)
            for record in page
            if is_ours(record.namespace) and only in (None, "", record.id)
        ]
        ended = only and (not page.items or page.items[-1].id < only)
        return found, None if ended else page.next_cursor

    def _calls_delete_thread(self, thread_id: str) -> Calls[None]:
        with suppress(NotFound):
            yield lambda c: c.delete_thread(str(thread_id))

    def _calls_delete_for_runs(self, run_ids: Sequence[str]) -> Calls[None]:
        for run in run_ids:
            yield lambda c, run=run: c.delete_run(str(run))  # type: ignore[misc]

    def _calls_copy_thread(self, source: str, target: str) -> Calls[None]:
        with suppress(NotFound):
            yield lambda c: c.copy_thread(str(source), str(target))

    def _calls_prune(self, thread_ids: Sequence[str], strategy: str) -> Calls[None]:
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids must be a sequence of thread ids, not a str")
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"Unknown prune strategy: {strategy!r}")
        for each in thread_ids:
            thread = str(each)
            if strategy == "delete":
                yield from self._calls_delete_thread(thread)
                continue
            for space in (yield lambda c, t=thread: c.namespaces(t)):  # type: ignore[misc]
                if is_ours(space):
                    yield from self._keep_latest(thread, space)

    def _keep_latest(self, thread: str, space: str) -> Calls[None]:
        latest = yield lambda c: c.latest(thread, space, order="id")
        if latest is None:
            return
        kept = [latest.id]
        # A delta channel is made of the writes since the nearest ancestor that has it whole.
        missing = set(latest.metadata.get("counters_since_delta_snapshot") or ())
        missing -= latest.values.keys()
        ancestors = (yield lambda c: c.path(latest.id, thread, space)) if missing else ()
        for info in ancestors[1:]:
            if not missing:
                break
            record = yield lambda c, id=info.id: c.find(id, thread, space)  # type: ignore[misc]
            missing -= record.values.keys() if record else set()
            kept.append(info.id)
        yield lambda c: c.prune(thread, keep_ids=kept, namespace=space)

    def _calls_delta(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Calls[Mapping[str, DeltaChannelHistory]]:
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


def _place(config: RunnableConfig) -> tuple[str, str, Any]:
    """Give the thread of a configuration, our namespace, and the checkpoint's id or None."""
    named = config["configurable"]
    space = space_of(named.get("checkpoint_ns") or "")
    return str(named["thread_id"]), space, get_checkpoint_id(config) or None
