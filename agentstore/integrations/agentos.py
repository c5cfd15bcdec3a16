"""AgentOS: a backend for checkpoints.

A checkpoint of AgentOS's is a checkpoint of a thread. What its messages, state and results have in
common with the checkpoint before is stored once. Its time, as the text that it was, and its parent
are in the ``metadata``, because a parent may be of another thread there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from agentos.checkpoint.base import Checkpoint, CheckpointBackend, CheckpointMetadata

from agentstore.aio import AsyncRepositories
from agentstore.errors import NotFound
from agentstore.integrations import of_kind

if TYPE_CHECKING:
    from agentstore.records import CheckpointInfo, CheckpointRecord, DeletionReceipt, Page

T = TypeVar("T")

_MOST = 1000
"""What a page may hold."""


class AgentStoreCheckpointer(CheckpointBackend):
    """The checkpoints of AgentOS's threads, in an ``AsyncStore``.

    ``rewind``, ``fork`` and ``prune`` are what AgentOS's engine does by deleting whole threads.
    """

    def __init__(self, store: AsyncRepositories) -> None:
        """Read and write a store's threads.

        Args:
            store: An ``AsyncStore``, or ``store.scoped(user_id)``.
        """
        self.store = of_kind(store, AsyncRepositories)

    async def put(self, checkpoint: Checkpoint) -> str:
        """Put a checkpoint, or put one again, which replaces all that it holds; give its id.

        Raises:
            WrongThread: The id is taken in another thread.
        """
        given = checkpoint.metadata
        parent = given.parent_checkpoint_id or None

        async def put(parent_id: str | None) -> None:
            await self.store.checkpoints.put(
                given.thread_id,
                {
                    "messages": checkpoint.messages,
                    "state": checkpoint.state,
                    "tools_result": checkpoint.tools_result,
                },
                given.checkpoint_id,
                parent_id,
                step=given.step,
                tags=given.tags,
                summary=given.summary,
                next_node=checkpoint.next_node,
                metadata={"created_at": given.created_at, "parent": given.parent_checkpoint_id},
            )

        try:
            await put(parent)
        except NotFound:
            if parent is None:
                raise
            # It is of another thread, or gone: what is stored once is shared with the latest.
            await put(None)
        return given.checkpoint_id

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """Give a checkpoint, or None."""
        return _checkpoint(await self.store.checkpoints.find(checkpoint_id))

    async def get_latest(self, thread_id: str) -> Checkpoint | None:
        """Give the checkpoint of a thread with the highest step, or None."""
        return _checkpoint(await self.store.checkpoints.latest(thread_id))

    async def list_threads(self, limit: int = 50, offset: int = 0) -> list[CheckpointMetadata]:
        """Give the latest checkpoint of each thread, the one that was put into last first."""
        threads = self.store.checkpoints.threads
        found = await _some(lambda n, at: threads(limit=n, cursor=at), limit, offset)
        return [_metadata(thread.latest) for thread in found if thread.latest is not None]

    async def list_checkpoints(
        self, thread_id: str, limit: int = 100, offset: int = 0
    ) -> list[CheckpointMetadata]:
        """Give the checkpoints of a thread, the one with the highest step first."""

        async def page(many: int, cursor: str | None) -> Page[CheckpointInfo]:
            return await self.store.checkpoints.list(thread_id, limit=many, cursor=cursor)

        return [_metadata(found) for found in await _some(page, limit, offset)]

    async def delete_thread(self, thread_id: str) -> int:
        """Delete a thread; give how many checkpoints were deleted."""
        return await _deleted(self.store.checkpoints.delete_thread(thread_id))

    async def delete_before(self, thread_id: str, before_step: int) -> int:
        """Delete the checkpoints with a smaller step; give how many."""
        return await _deleted(self.store.checkpoints.delete_before(thread_id, before_step))

    async def rewind(self, thread_id: str, step: int) -> Checkpoint | None:
        """Go back to a step, and delete what came later; nothing else goes.

        Returns:
            The checkpoint of this step, which is the latest again; None if there is no such step on
            the path to the latest one, and nothing was deleted.
        """
        try:
            return _checkpoint(await self.store.checkpoints.rewind(thread_id, step))
        except NotFound:
            return None

    async def fork(self, checkpoint_id: str, to_thread: str) -> Checkpoint:
        """Begin a new thread with a copy of a checkpoint; the old one stays as it is.

        Raises:
            NotFound: There is no such checkpoint.
            AlreadyExists: The new thread is there already.
        """
        made = await self.store.checkpoints.fork(checkpoint_id, to_thread=to_thread)
        found = _checkpoint(await self.store.checkpoints.get(made.id))
        assert found is not None, "get() gives one, or raises"
        return found

    async def prune(
        self,
        thread_id: str,
        *,
        keep_last: int | None = None,
        max_age: timedelta | None = None,
        keep_tags: Sequence[str] = (),
    ) -> int:
        """Delete the checkpoints of a thread that no rule keeps; the latest one always stays.

        Args:
            thread_id: The thread.
            keep_last: Keep the latest so many.
            max_age: Keep what was put no longer ago than this.
            keep_tags: Keep what has one of these tags.

        Returns:
            How many were deleted.
        """
        return await _deleted(
            self.store.checkpoints.prune(
                thread_id, keep_last=keep_last, max_age=max_age, keep_tags=keep_tags
            )
        )


async def _deleted(deleting: Awaitable[DeletionReceipt]) -> int:
    try:
        return (await deleting).rows.get("checkpoints", 0)
    except NotFound:
        return 0


async def _some(
    page: Callable[[int, str | None], Awaitable[Page[T]]], limit: int, offset: int
) -> list[T]:
    """Give what pages hold from an offset on: they lead on by cursors."""
    found: list[T] = []
    cursor = None
    while (wanted := offset + limit - len(found)) > 0:
        given = await page(min(wanted, _MOST), cursor)
        found += given.items
        if (cursor := given.next_cursor) is None:
            break
    return found[offset:]


def _metadata(info: CheckpointInfo) -> CheckpointMetadata:
    own: dict[str, Any] = info.metadata
    return CheckpointMetadata(
        thread_id=info.thread_id,
        checkpoint_id=info.id,
        step=info.step,
        parent_checkpoint_id=own.get("parent", info.parent_id),
        created_at=own.get("created_at", info.created_at.isoformat()),
        tags=[*info.tags],
        summary=info.summary,
    )


def _checkpoint(record: CheckpointRecord | None) -> Checkpoint | None:
    if record is None:
        return None
    return Checkpoint(
        metadata=_metadata(record),
        messages=record.values.get("messages", []),
        state=record.values.get("state", {}),
        tools_result=record.values.get("tools_result", {}),
        next_node=record.next_node,
    )
