"""The checkpoint savers: ``AgentStoreSaver`` on a ``Store``, ``AsyncAgentStoreSaver`` on another.

What they do is written once, in ``operations``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from agentstore.integrations.langgraph.calls import Calls, run, run_async
from agentstore.integrations.langgraph.checkpoints import Allowed
from agentstore.integrations.langgraph.operations import SaverOperations

if TYPE_CHECKING:
    from agentstore import AsyncScopedStore, AsyncStore, ScopedStore, Store

T = TypeVar("T")

_PAGE = 50
"""Checkpoints that a list reads at a time, with their values."""


class AgentStoreSaver(SaverOperations):
    """A LangGraph checkpointer on a ``Store``, for ``invoke`` and ``stream``.

    Every thread of a program may use it at once. Closing the store is its owner's business.
    """

    def __init__(
        self,
        store: Store | ScopedStore,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[Allowed] = (),
        revive: bool = False,
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
        """
        super().__init__(serde=serde, allowed=allowed, revive=revive)
        self._checkpoints = store.checkpoints

    def _run(self, calls: Calls[T]) -> T:
        return run(calls, self._checkpoints)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Give a checkpoint with the writes after it, of one moment; without an id, the latest."""
        return self._run(self._calls_get(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Go over checkpoints, the largest id first, some of them read at a time."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            found, cursor = self._run(self._calls_page(config, filter, before, size, cursor))
            yield from found
            left = None if left is None else left - len(found)
            if cursor is None:
                return

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint. It is durable when this returns."""
        return self._run(self._calls_put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save what a task wrote after a checkpoint, which need not be there yet."""
        self._run(self._calls_put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread and all that is in it."""
        self._run(self._calls_delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs; what came after them has their nearest ancestor left."""
        self._run(self._calls_delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread to a new one; raises ``AlreadyExists`` if that is there already."""
        self._run(self._calls_copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the latest checkpoint of each namespace, and what its delta channels need."""
        self._run(self._calls_prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Give what delta channels are to be rebuilt of: see ``BaseCheckpointSaver``."""
        return self._run(self._calls_delta(config, channels))


class AsyncAgentStoreSaver(SaverOperations):
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
    ) -> None:
        """Save into a store; see ``AgentStoreSaver``."""
        super().__init__(serde=serde, allowed=allowed, revive=revive)
        self._checkpoints = store.checkpoints

    async def _run(self, calls: Calls[T]) -> T:
        return await run_async(calls, self._checkpoints)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See ``AgentStoreSaver.get_tuple``."""
        return await self._run(self._calls_get(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See ``AgentStoreSaver.list``."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            found, cursor = await self._run(self._calls_page(config, filter, before, size, cursor))
            for each in found:
                yield each
            left = None if left is None else left - len(found)
            if cursor is None:
                return

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See ``AgentStoreSaver.put``."""
        return await self._run(self._calls_put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """See ``AgentStoreSaver.put_writes``."""
        await self._run(self._calls_put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """See ``AgentStoreSaver.delete_thread``."""
        await self._run(self._calls_delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See ``AgentStoreSaver.delete_for_runs``."""
        await self._run(self._calls_delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See ``AgentStoreSaver.copy_thread``."""
        await self._run(self._calls_copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See ``AgentStoreSaver.prune``."""
        await self._run(self._calls_prune(thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See ``AgentStoreSaver.get_delta_channel_history``."""
        return await self._run(self._calls_delta(config, channels))
