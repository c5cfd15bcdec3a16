"""AgentScope 1.0: the memory of an agent.

A memory is a session, and each ``Msg`` one message of it, whose id is the ``external_id``. Name,
content and marks are where every message has them; what else a ``Msg`` has is the ``payload``. The
compressed summary is the session's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from agentscope.memory import MemoryBase
from agentscope.message import Msg

from agentstore.aio import AsyncRepositories
from agentstore.errors import NotFound
from agentstore.integrations import Marks, agentscope_message, key_of, of_kind, with_user

if TYPE_CHECKING:
    from agentstore.records import MessageRecord


class AgentStoreMemory(MemoryBase):
    """The memory of an agent, which lasts: its messages, their marks and the compressed summary.

    It has no length: an agent takes a memory of length 0 for none. ``state_dict`` has the summary
    alone, as AgentScope's own lasting memories do; one that is loaded counts in this object, until
    ``update_compressed_summary`` stores another.
    """

    def __init__(
        self,
        store: AsyncRepositories,
        *,
        session_id: str = "default",
        user_id: str | None = None,
        key_ttl: int | None = None,
    ) -> None:
        """Read and write a session's messages.

        Args:
            store: An ``AsyncStore``, or ``store.scoped(user_id)``.
            session_id: The session; with a user, of this user: others may have the same.
            user_id: The user, who is made if there is none.
            key_ttl: Seconds after the last message when the memory is empty again; None means
                never. ``sessions.delete_expired`` deletes what has expired. Pass it wherever the
                session is used, and see that the clocks of these machines agree.
        """
        super().__init__()
        self.store = of_kind(store, AsyncRepositories)
        self.user_id = user_id
        self.session_id = session_id
        self.key_ttl = key_ttl
        users = () if user_id is None else (user_id,)
        self._key = key_of(*users, session_id)
        ttl = None if key_ttl is None else timedelta(seconds=key_ttl)
        self._new: dict[str, Any] = {"user_id": user_id, "ttl": ttl}
        self._summary_was_loaded = False

    async def add(
        self,
        memories: Msg | list[Msg] | None,
        marks: Marks = None,
        skip_duplicated: bool = True,
        **kwargs: Any,
    ) -> None:
        """Add messages, all or none.

        Args:
            memories: One or several.
            marks: The marks of each.
            skip_duplicated: Whether to leave out those that are there, by their ids; otherwise
                ``AlreadyExists`` is raised.
            **kwargs: Ignored.
        """
        given = [memories] if isinstance(memories, Msg) else [] if memories is None else memories
        if not isinstance(given, list) or not all(isinstance(each, Msg) for each in given):
            raise TypeError("memories must be a Msg, a list of them, or None.")
        if not given:
            return
        new = [
            agentscope_message({**each.to_dict(), "invocation_id": each.invocation_id}, marks)
            for each in given
        ]
        on_duplicate: Literal["skip", "refuse"] = "skip" if skip_duplicated else "refuse"
        if await self._has_expired():
            await self.store.messages.clear(self._key)
            await self.store.summaries.delete(self._key)
        await with_user(
            self.store,
            self.user_id,
            lambda: self.store.messages.save_many(
                self._key, new, on_duplicate=on_duplicate, create_session=self._new
            ),
        )

    async def delete(self, msg_ids: list[str], **kwargs: Any) -> int:
        """Delete messages by their ids; give how many were deleted."""
        messages = self.store.messages
        return await self._counted(
            lambda: messages.delete(msg_ids, session_id=self._key, external_ids=msg_ids)
        )

    async def delete_by_mark(self, mark: str | list[str], *args: Any, **kwargs: Any) -> int:
        """Delete the messages that have a mark, or any of several; give how many were deleted."""
        return await self._counted(lambda: self.store.messages.delete_by_mark(self._key, mark))

    async def size(self) -> int:
        """Count the messages."""
        return await self._counted(lambda: self.store.messages.size(self._key))

    async def clear(self) -> None:
        """Delete the messages; the summary stays."""
        try:
            await self.store.messages.clear(self._key)
        except NotFound:
            return

    async def get_memory(
        self,
        mark: Marks = None,
        exclude_mark: Marks = None,
        prepend_summary: bool = True,
        **kwargs: Any,
    ) -> list[Msg]:
        """Give the messages, the oldest first.

        Args:
            mark: Only those that have this mark, or any of these.
            exclude_mark: Not those that have this mark, or any of these.
            prepend_summary: Whether the compressed summary comes first, as a message of the user.
            **kwargs: Ignored.
        """
        records: Sequence[MessageRecord] = ()
        try:
            if not await self._has_expired():
                records = await self.store.messages.history(
                    self._key,
                    None,
                    mark=mark,
                    exclude_mark=exclude_mark,
                    prepend_summary=prepend_summary and not self._summary_was_loaded,
                    unanswered="keep",
                )
        except NotFound:
            records = ()
        if prepend_summary and not self._summary_was_loaded:
            found = [record.content for record in records if record.status == "summary"]
            self._compressed_summary = str(found[0]) if found else ""
        messages = [_message(record) for record in records if record.status != "summary"]
        if prepend_summary and self._compressed_summary:
            messages.insert(0, Msg("user", self._compressed_summary, "user"))
        return messages

    async def update_messages_mark(
        self, new_mark: str | None, old_mark: str | None = None, msg_ids: list[str] | None = None
    ) -> int:
        """Put a mark on messages, in the place of another one, or take it away.

        Args:
            new_mark: The mark to put on them; None takes ``old_mark`` away, or all marks.
            old_mark: Only on messages that have this mark, which goes.
            msg_ids: Only on these messages.

        Returns:
            How many messages were changed.
        """
        marks, ids = self.store.marks, {"ids": msg_ids, "external_ids": msg_ids}
        return await self._counted(lambda: marks.update(self._key, new_mark, old_mark, **ids))

    async def update_compressed_summary(self, summary: str) -> None:
        """Store the compressed summary; an empty one takes it away."""
        await with_user(
            self.store,
            self.user_id,
            lambda: self.store.sessions.ensure(self._key, **self._new),
        )
        if summary:
            await self.store.summaries.put(self._key, summary)
        else:
            await self.store.summaries.delete(self._key)
        await super().update_compressed_summary(summary)
        self._summary_was_loaded = False

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Take the summary of a ``state_dict``, in this object."""
        super().load_state_dict(dict(state_dict), strict)
        self._summary_was_loaded = True

    async def _counted(self, call: Callable[[], Awaitable[int]]) -> int:
        """Make a call that counts; of a session that is not there, or is over, it is 0."""
        try:
            return 0 if await self._has_expired() else await call()
        except NotFound:
            return 0

    async def _has_expired(self) -> bool:
        """Say whether the session is over; it is told its time to live if that is new."""
        if self.key_ttl is None:
            return False
        found = await self.store.sessions.find(self._key)
        if found is None:
            return False
        ttl = timedelta(seconds=self.key_ttl)
        if found.ttl != ttl:
            await self.store.sessions.update(self._key, ttl=ttl)
        return found.last_active_at + ttl <= datetime.now(UTC)


def _message(record: MessageRecord) -> Msg:
    """Give what was added, or a message of what others have saved."""
    own = record.payload if record.external_id and isinstance(record.payload, dict) else {}
    role = record.role if record.role in ("user", "assistant") else "system"
    message = Msg(
        record.name or role,
        record.content if record.content is not None else "",
        own.get("role", role),
        metadata=own.get("metadata"),
        timestamp=own.get("timestamp") or record.created_at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
        invocation_id=own.get("invocation_id"),
    )
    message.id = record.external_id or record.id
    return message
