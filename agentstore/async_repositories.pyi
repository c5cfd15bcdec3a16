"""The asynchronous repositories, as type checkers and editors see them.

``python -m docs.async_stub`` wrote this file; ``agentstore.aio`` makes the classes when the
program runs. What a method does, returns and raises is said where it is written.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Unpack, overload

from agentstore.aio import AsyncRepository
from agentstore.engines.base.dialect import TaskSignal
from agentstore.records import (
    ApiKeyRecord,
    AttachmentRecord,
    BranchRecord,
    CountedBranch,
    DatabaseTotals,
    DeletionReceipt,
    ExpiryReport,
    InterruptedTurn,
    IssuedApiKey,
    MemoryHit,
    MemoryRecord,
    MessageRecord,
    Page,
    ReservationRecord,
    RestoredSession,
    SearchHit,
    SearchStatus,
    SessionCounters,
    SessionRecord,
    SessionSummary,
    SummaryRecord,
    TaskBatch,
    TaskRecord,
    ToolLogRecord,
    ToolStats,
    TurnMessages,
    TurnRecord,
    TurnToolUse,
    UsageRecord,
    UsageSum,
    UserRecord,
    UserStats,
    VectorStatus,
)
from agentstore.records.base import Role, SessionStatus, TaskStatus
from agentstore.records.work import (
    CheckpointInfo,
    CheckpointRecord,
    CheckpointTree,
    ThreadRecord,
    WriteRecord,
)
from agentstore.repositories import search as pages
from agentstore.repositories import vectors
from agentstore.repositories.branches import Teller
from agentstore.repositories.checkpoints.removal import CheckpointFilters, CheckpointOrder
from agentstore.repositories.checkpoints.threads import ROOT
from agentstore.repositories.claims import DEFAULT_LEASE
from agentstore.repositories.messages.append import Marks, NewMessage, OnDuplicate, Unknown
from agentstore.repositories.messages.history import Unanswered
from agentstore.repositories.new_sessions import CreateSession
from agentstore.repositories.operations import UNSET, Unset
from agentstore.repositories.search import Progress
from agentstore.repositories.session_pages import SessionFilters
from agentstore.repositories.sessions import WholeSession
from agentstore.repositories.usage import SumFilters
from agentstore.repositories.usage_sums import Branch, One
from agentstore.values.chat import ChatMessage
from agentstore.values.embeddings import Embedded, Question
from agentstore.values.validation import DEFAULT_BACKOFF, DEFAULT_LIMIT, MAX_LIMIT, Backoff, Wanted

class AsyncAttachments(AsyncRepository):
    """See ``Attachments``."""

    __slots__ = ()
    async def add(
        self,
        message_id: str,
        data: bytes | bytearray | memoryview,
        media_type: str,
        *,
        name: str | None = None,
    ) -> AttachmentRecord:
        """Attach bytes to a message."""
    async def get(self, attachment_id: str) -> AttachmentRecord:
        """Give an attachment, without its bytes."""
    async def find(self, attachment_id: str) -> AttachmentRecord | None:
        """Give an attachment, without its bytes, or None."""
    async def read(self, attachment_id: str) -> bytes:
        """Give the bytes of an attachment, after comparing them with their digest."""
    async def list(
        self, message_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[AttachmentRecord]:
        """List what is attached to a message, in the order in which it was added."""
    def iter(
        self, message_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[AttachmentRecord, None]:
        """Go over all pages of ``list``."""
    async def list_of_session(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[AttachmentRecord]:
        """List what is attached to the messages of a session, in the order in which it was added."""
    def iter_list_of_session(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[AttachmentRecord, None]:
        """Go over all pages of ``list_of_session``."""
    async def delete(self, attachment_id: str) -> DeletionReceipt:
        """Delete an attachment, and its bytes if nothing else refers to them."""

class AsyncBranches(AsyncRepository):
    """See ``Branches``."""

    __slots__ = ()
    async def create(
        self,
        session_id: str,
        *,
        from_turn: int | None = None,
        after_turn: int | None = None,
        containing: str | None = None,
        name: str | None = None,
        branch: str | None = None,
        reserve: bool = False,
    ) -> BranchRecord:
        """Make a branch, which becomes the active one."""
    async def get(self, session_id: str, name: str) -> BranchRecord:
        """Give a branch."""
    async def active(self, session_id: str) -> BranchRecord:
        """Give the active branch: the one to which messages are added, also after a restart."""
    async def switch(self, session_id: str, name: str) -> BranchRecord:
        """Make a branch the active one, for all who use the session."""
    async def rename(self, session_id: str, name: str, new_name: str) -> BranchRecord:
        """Give a branch another name."""
    async def delete(
        self, session_id: str, name: str, *, force: bool = False, then: str | None = None
    ) -> int:
        """Delete a branch, and those messages that no other branch shows."""
    async def compact(
        self,
        session_id: str,
        summary: str,
        *,
        from_turn: int = 1,
        to_turn: int,
        role: Teller = "system",
        token_count: int = 0,
        branch: str | None = None,
        keep_as: str | None = None,
    ) -> MessageRecord:
        """Replace turns of a branch with a summary of them."""
    async def turns(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        messages: bool = False,
    ) -> Page[TurnRecord]:
        """List the turns of a branch, in the order of the conversation."""
    def iter_turns(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        messages: bool = False,
    ) -> AsyncGenerator[TurnRecord, None]:
        """Go over all pages of ``turns``."""
    async def by_turn(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[TurnMessages]:
        """Give the messages of a branch grouped by turn, in the order of the conversation."""
    def iter_by_turn(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> AsyncGenerator[TurnMessages, None]:
        """Go over all pages of ``by_turn``."""
    async def tool_usage(self, session_id: str, *, branch: str | None = None) -> list[TurnToolUse]:
        """Count the calls of each tool in each turn of a branch."""
    async def find_turns(
        self,
        session_id: str,
        text: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TurnRecord]:
        """Find the turns of a branch whose user message contains a text, in their order."""
    def iter_find_turns(
        self,
        session_id: str,
        text: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AsyncGenerator[TurnRecord, None]:
        """Go over all pages of ``find_turns``."""
    async def list(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[CountedBranch]:
        """List the branches of a session in the order of their making, main first."""
    def iter(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[CountedBranch, None]:
        """Go over all pages of ``list``."""
    async def _grow(self, session_id: str, parent: int, through: int, name: str | None) -> int:
        """Make a branch of what another shows up to a message's number; it becomes the active one."""

class AsyncCheckpoints(AsyncRepository):
    """See ``Checkpoints``."""

    __slots__ = ()
    async def put(
        self,
        thread_id: str,
        values: Mapping[str, Any],
        checkpoint_id: str | None = None,
        parent_id: str | None = None,
        step: int | None = None,
        tags: Sequence[str] = (),
        summary: str = "",
        next_node: str = "",
        metadata: Mapping[str, Any] | None = None,
        namespace: str = ROOT,
        run_id: str | None = None,
        created_at: datetime | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        inherit: Sequence[str] = (),
        parent_missing: Literal["refuse", "root"] = "refuse",
        thread_missing: Literal["make", "refuse"] = "make",
    ) -> CheckpointInfo:
        """Put a checkpoint, or put one again under its id, which replaces all that it holds."""
    async def get(
        self,
        checkpoint_id: str,
        thread_id: str | None = None,
        namespace: str = ROOT,
        *,
        writes: bool = False,
    ) -> CheckpointRecord:
        """Give a checkpoint with its values, by one statement whatever it holds."""
    async def find(
        self,
        checkpoint_id: str,
        thread_id: str | None = None,
        namespace: str = ROOT,
        *,
        writes: bool = False,
    ) -> CheckpointRecord | None:
        """Give a checkpoint with its values, or None; see ``get``."""
    async def latest(
        self,
        thread_id: str,
        namespace: str = ROOT,
        *,
        writes: bool = False,
        order: CheckpointOrder = "step",
    ) -> CheckpointRecord | None:
        """Give the latest checkpoint of a thread with its values; None if there is none."""
    @overload
    async def list(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: Literal[True],
        writes: bool = False,
        **filters: Unpack[CheckpointFilters],
    ) -> Page[CheckpointRecord]:
        """List checkpoints, the latest first."""
    @overload
    async def list(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: bool = False,
        writes: Literal[True],
        **filters: Unpack[CheckpointFilters],
    ) -> Page[CheckpointRecord]:
        """List checkpoints, the latest first."""
    @overload
    async def list(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: bool = False,
        writes: bool = False,
        **filters: Unpack[CheckpointFilters],
    ) -> Page[CheckpointInfo]:
        """List checkpoints, the latest first."""
    @overload
    def iter(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: Literal[True],
        writes: bool = False,
        **filters: Unpack[CheckpointFilters],
    ) -> AsyncGenerator[CheckpointRecord, None]:
        """Go over all pages of ``list``."""
    @overload
    def iter(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: bool = False,
        writes: Literal[True],
        **filters: Unpack[CheckpointFilters],
    ) -> AsyncGenerator[CheckpointRecord, None]:
        """Go over all pages of ``list``."""
    @overload
    def iter(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: bool = False,
        writes: bool = False,
        **filters: Unpack[CheckpointFilters],
    ) -> AsyncGenerator[CheckpointInfo, None]:
        """Go over all pages of ``list``."""
    async def namespaces(self, thread_id: str) -> tuple[str, ...]:
        """Give the namespaces in which a thread has checkpoints, sorted; none if it is not there."""
    async def threads(
        self,
        thread_id: str | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[ThreadRecord]:
        """List threads, each with its latest checkpoint; the last one that was put into is first."""
    def iter_threads(
        self,
        thread_id: str | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[ThreadRecord, None]:
        """Go over all pages of ``threads``."""
    async def path(
        self, checkpoint_id: str, thread_id: str | None = None, namespace: str = ROOT
    ) -> tuple[CheckpointInfo, ...]:
        """Give a checkpoint and its ancestors, itself first and the root last."""
    async def tree(self, thread_id: str, namespace: str = ROOT) -> CheckpointTree:
        """Give all checkpoints of a thread, without their values, and how they are related."""
    async def fork(
        self,
        checkpoint_id: str,
        *,
        thread_id: str | None = None,
        to_thread: str | None = None,
        new_checkpoint_id: str | None = None,
        namespace: str = ROOT,
    ) -> CheckpointInfo:
        """Fork at a checkpoint: put a copy of it, from which to continue in another way."""
    async def rewind(self, thread_id: str, step: int, *, namespace: str = ROOT) -> CheckpointRecord:
        """Go back to a step: delete all checkpoints after it, so that it is the latest again."""
    async def copy_thread(
        self,
        thread_id: str,
        to_thread: str,
        *,
        on_existing: Literal["refuse", "replace"] = "refuse",
    ) -> int:
        """Copy a thread with all namespaces and pending writes to a new one with the same owners."""
    async def delete_thread(self, thread_id: str) -> DeletionReceipt:
        """Delete a thread and everything in it."""
    async def delete(
        self, thread_id: str, ids: Sequence[str], *, namespace: str = ROOT
    ) -> DeletionReceipt:
        """Delete checkpoints by their ids, as ``delete_before`` does."""
    async def delete_before(
        self, thread_id: str, step: int, *, namespace: str = ROOT
    ) -> DeletionReceipt:
        """Delete the checkpoints whose step is smaller, with their pending writes."""
    async def delete_run(self, run_id: str, *, thread_id: str | None = None) -> DeletionReceipt:
        """Delete the checkpoints of a run, in a thread or in all, as ``delete_before`` does."""
    async def prune(
        self,
        thread_id: str,
        *,
        keep_last: int | None = None,
        max_age: timedelta | None = None,
        keep_tags: Sequence[str] = (),
        keep_ids: Sequence[str] = (),
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> DeletionReceipt:
        """Delete the checkpoints that no policy keeps, as ``delete_before`` does."""
    async def put_writes(
        self,
        thread_id: str,
        checkpoint_id: str,
        task_id: str,
        writes: Sequence[tuple[str, Any]],
        *,
        task_path: str = "",
        namespace: str = ROOT,
        positions: Sequence[int] | None = None,
        replace: bool | Sequence[bool] = False,
        thread_missing: Literal["make", "refuse"] = "make",
        session_id: str | None = None,
        user_id: str | None = None,
    ) -> int:
        """Store what a task wrote after a checkpoint, before the next one is put."""
    async def writes(
        self, thread_id: str, checkpoint_id: str, *, namespace: str = ROOT
    ) -> tuple[WriteRecord, ...]:
        """Give the pending writes after a checkpoint, by task path, task and position."""

class AsyncMarks(AsyncRepository):
    """See ``Marks``."""

    __slots__ = ()
    async def of(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Give the marks of messages, each message's in alphabetical order."""
    async def count(self, session_id: str) -> dict[str, int]:
        """Count the messages of a session that have each mark, on all branches."""
    async def update(
        self,
        session_id: str,
        new: str | Enum | None,
        old: str | Enum | None = None,
        ids: Sequence[str] | None = None,
        *,
        external_ids: Sequence[str] | None = None,
    ) -> int:
        """Change the marks of messages of a session."""

class AsyncMemories(AsyncRepository):
    """See ``Memories``."""

    __slots__ = ()
    async def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Mapping[str, Any],
        *,
        ttl: timedelta | None = None,
        embed: bool | Sequence[str] | Embedded | None = None,
        user_id: str | None = None,
    ) -> MemoryRecord:
        """Put a memory, in the place of the one that is there under this key."""
    async def get(
        self, namespace: Sequence[str], key: str, *, user_id: str | None = None
    ) -> MemoryRecord:
        """Give a memory."""
    async def find(
        self, namespace: Sequence[str], key: str, *, user_id: str | None = None
    ) -> MemoryRecord | None:
        """Give a memory, or None."""
    async def delete(
        self, namespace: Sequence[str], key: str, *, user_id: str | None = None
    ) -> bool:
        """Delete a memory; say whether it was there."""
    async def touch(
        self, namespace: Sequence[str], keys: Sequence[str], *, user_id: str | None = None
    ) -> int:
        """Have memories with a time to live be kept for that time from now on."""
    async def list(
        self,
        namespace: Sequence[str] = (),
        *,
        where: Wanted | None = None,
        vectors: Literal["made", "pending", "none"] | None = None,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[MemoryRecord]:
        """List the memories of a namespace and of all below it."""
    def iter(
        self,
        namespace: Sequence[str] = (),
        *,
        where: Wanted | None = None,
        vectors: Literal["made", "pending", "none"] | None = None,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[MemoryRecord, None]:
        """Go over all pages of ``list``."""
    async def search(
        self,
        text: str,
        namespace: Sequence[str] = (),
        *,
        by: Literal["words", "meaning", "both"] | Question = "words",
        match: Literal["all", "any"] = "all",
        where: Wanted | None = None,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[MemoryHit, ...]:
        """Find memories by the words of their values or by their meaning, the best first."""
    async def embed_pending(
        self, limit: int | None = None, *, progress: vectors.Progress | None = None
    ) -> int:
        """Make the vectors of memories that wait for them, and of messages, of all users."""
    async def reembed(
        self, *, forget_others: bool = False, progress: vectors.Progress | None = None
    ) -> int:
        """Make the vectors of all memories, and messages, that have none of the store's model."""
    async def vector_status(self) -> VectorStatus:
        """Say of which models there are vectors, and how many rows wait for theirs."""
    async def namespaces(
        self,
        prefix: Sequence[str] = (),
        *,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[tuple[str, ...]]:
        """List the namespaces that have memories, sorted by their names as UTF-8."""
    def iter_namespaces(
        self,
        prefix: Sequence[str] = (),
        *,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[tuple[str, ...], None]:
        """Go over all pages of ``namespaces``."""
    async def delete_expired(self, limit: int | None = None) -> int:
        """Delete memories whose time to live is over, of all users, some at a time."""

class AsyncMessages(AsyncRepository):
    """See ``Messages``."""

    __slots__ = ()
    async def save(
        self,
        session_id: str,
        role: Role,
        content: str | list[Any] | None = None,
        *,
        tool_calls: list[dict[str, Any]] | None = None,
        tool_call_id: str | None = None,
        name: str | None = None,
        token_count: int = 0,
        cost: Decimal | int | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Any = None,
        external_id: str | None = None,
        marks: Marks = None,
        on_duplicate: OnDuplicate = "skip",
        idempotency_key: str | None = None,
        branch: str | None = None,
        create_session: CreateSession = False,
    ) -> MessageRecord:
        """Append a message to a branch, and count it, in one transaction."""
    async def save_many(
        self,
        session_id: str,
        messages: Collection[NewMessage | Mapping[str, Any]],
        *,
        on_duplicate: OnDuplicate = "skip",
        idempotency_key: str | None = None,
        branch: str | None = None,
        create_session: CreateSession = False,
    ) -> list[MessageRecord]:
        """Append messages in their order, all or none."""
    async def save_chat(
        self,
        session_id: str,
        messages: ChatMessage | Sequence[ChatMessage],
        *,
        marks: Marks = None,
        token_counter: Callable[[dict[str, Any]], int] | None = None,
        unknown: Unknown = "refuse",
        idempotency_key: str | None = None,
        branch: str | None = None,
        create_session: CreateSession = False,
    ) -> list[MessageRecord]:
        """Append chat messages as the models' clients give and take them, all or none."""
    async def begin(
        self,
        session_id: str,
        role: Role = "assistant",
        *,
        name: str | None = None,
        tool_call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        external_id: str | None = None,
        marks: Marks = None,
        idempotency_key: str | None = None,
    ) -> MessageRecord:
        """Append an empty message, to be written piece by piece; see ``save``."""
    async def append(self, message_id: str, text: str, *, position: int | None = None) -> int:
        """Add a piece of text to a message that is being streamed; one statement."""
    async def finish(
        self,
        message_id: str,
        content: str | list[Any] | None = None,
        *,
        tool_calls: list[dict[str, Any]] | None = None,
        token_count: int = 0,
        cost: Decimal | int | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Any = None,
    ) -> MessageRecord:
        """Finish a message that is being streamed; from now on it is like any other."""
    async def abort(self, message_id: str) -> MessageRecord:
        """End a message that is being streamed as it is; it stays in status ``incomplete``."""
    async def abort_stale(self, limit: int = 100) -> int:
        """Abort the messages that got no piece for ``stream_timeout`` seconds."""
    async def get(self, message_id: str) -> MessageRecord:
        """Give a message."""
    async def find(self, message_id: str) -> MessageRecord | None:
        """Give a message, or None."""
    async def find_by_external_id(self, session_id: str, external_id: str) -> MessageRecord | None:
        """Give the message of the session that has this external id, or None."""
    async def find_many(
        self, session_id: str, external_ids: Sequence[str]
    ) -> dict[str, MessageRecord]:
        """Give the messages of a session that have these external ids."""
    async def find_by_tool(
        self, session_id: str, tool: str, *, limit: int = 50, cursor: str | None = None
    ) -> Page[MessageRecord]:
        """List the messages of a session that call this tool, the newest first."""
    def iter_find_by_tool(
        self, session_id: str, tool: str, *, limit: int = 50, cursor: str | None = None
    ) -> AsyncGenerator[MessageRecord, None]:
        """Go over all pages of ``find_by_tool``."""
    async def history(
        self,
        session_id: str,
        limit: int | None = 50,
        *,
        keep_tool_calls: bool = True,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
        prepend_summary: bool = False,
        unanswered: Unanswered = "placeholder",
        keep_system: bool = True,
        max_tokens: int | None = None,
        token_counter: Callable[[MessageRecord], int] | None = None,
    ) -> list[MessageRecord]:
        """Give the last messages of a branch as the models accept them, as a ``MessageList``."""
    async def chat(
        self,
        session_id: str,
        limit: int | None = 50,
        *,
        keep_tool_calls: bool = True,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
        prepend_summary: bool = False,
        unanswered: Unanswered = "placeholder",
        keep_system: bool = True,
        max_tokens: int | None = None,
        token_counter: Callable[[dict[str, Any]], int] | None = None,
    ) -> list[dict[str, Any]]:
        """Give the last messages of a branch for ``messages=`` or ``input=``, the oldest first."""
    async def payloads(
        self,
        session_id: str,
        limit: int | None = 50,
        *,
        keep_tool_calls: bool = True,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
        unanswered: Unanswered = "placeholder",
        keep_system: bool = True,
        max_tokens: int | None = None,
        token_counter: Callable[[Any], int] | None = None,
    ) -> list[Any]:
        """Give the payloads of the last messages of a branch, the oldest first."""
    async def page(
        self,
        session_id: str,
        *,
        before: str | None = None,
        limit: int = 100,
        branch: str | None = None,
        through: int | None = None,
    ) -> Page[MessageRecord]:
        """Page backwards through a branch."""
    def iter(
        self,
        session_id: str,
        *,
        before: str | None = None,
        limit: int = 100,
        branch: str | None = None,
        through: int | None = None,
    ) -> AsyncGenerator[MessageRecord, None]:
        """Go over all pages of ``page``, the newest first."""
    async def follow(self, cursor: str | None = None, *, limit: int = 100) -> Page[MessageRecord]:
        """Follow new messages, of all sessions and branches: give those since the last call."""
    async def search(
        self,
        text: str,
        *,
        by: Literal["words", "meaning", "both"] = "words",
        user_id: str | None = None,
        session_id: str | None = None,
        role: Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: pages.SearchOrder = "relevance",
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[SearchHit]:
        """Find messages by their words or by their meaning, on all branches, in any language."""
    def iter_search(
        self,
        text: str,
        *,
        by: Literal["words", "meaning", "both"] = "words",
        user_id: str | None = None,
        session_id: str | None = None,
        role: Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: pages.SearchOrder = "relevance",
        limit: int = 20,
        cursor: str | None = None,
    ) -> AsyncGenerator[SearchHit, None]:
        """Go over all pages of ``search``."""
    async def update(
        self,
        message_id: str,
        *,
        content: str | list[Any] | Unset | None = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        marks: Marks | Unset = UNSET,
        token_count: int | Unset = UNSET,
        cost: Decimal | int | str | Unset = UNSET,
        payload: Any = UNSET,
    ) -> MessageRecord:
        """Change the given parts of a message in place, and leave the rest."""
    async def pop(self, session_id: str, *, branch: str | None = None) -> MessageRecord | None:
        """Remove the last message of a branch and return it; None if the branch is empty."""
    async def replace_tail(
        self,
        session_id: str,
        expected: Sequence[str],
        messages: ChatMessage | Sequence[ChatMessage],
        *,
        unknown: Unknown = "refuse",
        branch: str | None = None,
    ) -> bool:
        """Replace the last messages of a branch by others, if they are still the last ones."""
    async def delete(
        self,
        ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        external_ids: Sequence[str] = (),
    ) -> int:
        """Delete messages, on every branch that shows them; ids that do not exist are ignored."""
    async def delete_by_mark(self, session_id: str, mark: Marks) -> int:
        """Delete the messages of a session that have a mark, or any of several, on all branches."""
    async def size(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
    ) -> int:
        """Count the messages of a branch."""
    async def clear(self, session_id: str) -> int:
        """Delete all messages of a session, on all branches; the session itself stays."""

class AsyncSearch(AsyncRepository):
    """See ``Search``."""

    __slots__ = ()
    async def status(self) -> SearchStatus:
        """Say whether the index is whole, of this version, and how many changes it lacks."""
    async def refresh(self, limit: int | None = None) -> int:
        """Bring the index up to date now, as a search would."""
    async def reindex(self, progress: Progress | None = None) -> int:
        """Rebuild the index, and create what is missing of its tables and triggers."""

class AsyncSessions(AsyncRepository):
    """See ``Sessions``."""

    __slots__ = ()
    async def create(
        self,
        user_id: str | None = None,
        *,
        title: str | None = None,
        model: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        state: Any = None,
        ttl: timedelta | None = None,
        id: str | None = None,
    ) -> SessionRecord:
        """Create a session, active and empty."""
    async def ensure(
        self,
        id: str,
        user_id: str | None = None,
        *,
        title: str | None = None,
        model: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        state: Any = None,
        ttl: timedelta | None = None,
    ) -> SessionRecord:
        """Give the session with this id; create it if there is none."""
    async def get(self, session_id: str) -> SessionRecord:
        """Give a session."""
    async def find(self, session_id: str) -> SessionRecord | None:
        """Give a session, or None."""
    async def find_ids(self, beginnings: Sequence[str], *, limit: int = 1000) -> list[str]:
        """Find the ids that begin so, of those that agentstore made itself."""
    async def restore(self, session_id: str, limit: int | None = None) -> RestoredSession:
        """Give all that an agent needs to go on with a session after its process died."""
    async def state_dict(self, session_id: str) -> dict[str, Any]:
        """Give what is needed to find the session again, and no message: a small JSON object
        with its id, its user's and the name of its active branch."""
    async def load_state_dict(
        self, state: Mapping[str, Any], *, strict: bool = True
    ) -> SessionRecord:
        """Go back to the session of a ``state_dict``, and to the branch that was active then."""
    @overload
    async def list(
        self, /, *, documents: Literal[True], **filters: Unpack[SessionFilters]
    ) -> Page[SessionRecord]:
        """List sessions, the one with the newest activity first, or with the oldest."""
    @overload
    async def list(
        self, /, *, documents: bool = False, **filters: Unpack[SessionFilters]
    ) -> Page[SessionSummary]:
        """List sessions, the one with the newest activity first, or with the oldest."""
    @overload
    def iter(
        self, /, *, documents: Literal[True], **filters: Unpack[SessionFilters]
    ) -> AsyncGenerator[SessionRecord, None]:
        """Go over all pages of ``list``."""
    @overload
    def iter(
        self, /, *, documents: bool = False, **filters: Unpack[SessionFilters]
    ) -> AsyncGenerator[SessionSummary, None]:
        """Go over all pages of ``list``."""
    async def interrupted(
        self,
        *,
        older_than: timedelta = timedelta(minutes=5),
        user_id: str | None = None,
        limit: int = 500,
        cursor: str | None = None,
    ) -> Page[InterruptedTurn]:
        """List turns that began and did not end, of the sessions with the newest activity first."""
    def iter_interrupted(
        self,
        *,
        older_than: timedelta = timedelta(minutes=5),
        user_id: str | None = None,
        limit: int = 500,
        cursor: str | None = None,
    ) -> AsyncGenerator[InterruptedTurn, None]:
        """Go over all pages of ``interrupted``."""
    async def walk(
        self, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[SessionRecord]:
        """List sessions in the order of their creation, to visit every one."""
    def iter_walk(
        self, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[SessionRecord, None]:
        """Go over all pages of ``walk``."""
    async def count(
        self, *, user_id: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """Count sessions, of a user and in a status if given."""
    async def rename(self, session_id: str, title: str | None) -> SessionRecord:
        """Change the title."""
    async def update(
        self,
        session_id: str,
        *,
        title: str | Unset | None = UNSET,
        model: str | Unset | None = UNSET,
        metadata: Mapping[str, Any] | Unset = UNSET,
        config: Mapping[str, Any] | Unset = UNSET,
        state: Any = UNSET,
        ttl: timedelta | Unset | None = UNSET,
        expected_version: int | None = None,
    ) -> SessionRecord:
        """Change what is given and leave the rest; documents are replaced whole."""
    async def patch(
        self,
        session_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        expected_version: int | None = None,
    ) -> SessionRecord:
        """Change some keys of the metadata and of the state, and leave the others."""
    async def pause(self, session_id: str) -> SessionRecord:
        """Go from active to paused."""
    async def resume(self, session_id: str) -> SessionRecord:
        """Go from paused to active. A finished session stays finished, and a question pending
        is answered with ``answer``."""
    async def complete(self, session_id: str) -> SessionRecord:
        """Finish the session. Raises as ``pause`` does."""
    async def cancel(self, session_id: str) -> SessionRecord:
        """Finish the session before its time. Raises as ``pause`` does."""
    async def fail(self, session_id: str, *, reason: str | None = None) -> SessionRecord:
        """Finish the session as failed. One that has failed already stays as it is."""
    async def wait_for_user(self, session_id: str, question: str) -> SessionRecord:
        """Ask the user something and wait; the question survives a restart."""
    async def answer(self, session_id: str, text: str) -> MessageRecord:
        """Answer the pending question: in one transaction the answer becomes a user message,
        the question is gone and the session is active."""
    async def reset(self, session_id: str) -> int:
        """Take away all that was said: messages, branches, summaries, and the usage recorded."""
    async def delete(self, session_id: str) -> DeletionReceipt:
        """Delete a session and everything below."""
    async def delete_expired(
        self, *, batch_size: int = 20, limit: int | None = None
    ) -> ExpiryReport:
        """Delete the sessions whose time to live has run out, with everything below."""
    async def verify(self, session_id: str) -> SessionCounters:
        """Compute what the messages add up to, beside what the session's counters say."""
    async def _ids_after(
        self, after: int, limit: int, user_id: str | None
    ) -> Sequence[tuple[int, str]]: ...
    async def _read_whole(self, session_id: str) -> WholeSession: ...
    async def _scope(self) -> str | None: ...
    async def _keep_layout(self, session_id: str, layout: Any) -> None: ...

class AsyncSummaries(AsyncRepository):
    """See ``Summaries``."""

    __slots__ = ()
    async def put(
        self,
        session_id: str,
        content: str,
        *,
        through_seq: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        branch: str | None = None,
    ) -> SummaryRecord:
        """Write the summary of a branch, in place of what it had of its own."""
    async def find(self, session_id: str, *, branch: str | None = None) -> SummaryRecord | None:
        """Give the summary of a branch, or None."""
    async def delete(self, session_id: str, *, branch: str | None = None) -> bool:
        """Delete the summary that a branch has of its own."""

class AsyncTasks(AsyncRepository):
    """See ``Tasks``."""

    __slots__ = ()
    async def create(
        self,
        session_id: str | None,
        kind: str,
        payload: Any = None,
        *,
        priority: int = 0,
        run_at: datetime | None = None,
        max_retries: int = 0,
        queue: str = "default",
        alone_in_session: bool = False,
        idempotency_key: str | None = None,
    ) -> TaskRecord:
        """Create a task, pending."""
    async def get(self, task_id: str) -> TaskRecord:
        """Give a task."""
    async def find(self, task_id: str) -> TaskRecord | None:
        """Give a task, or None."""
    async def list(
        self,
        *,
        session_id: str | None = None,
        status: TaskStatus | None = None,
        queue: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[TaskRecord]:
        """List tasks, the newest first, of a session, in a status, in a queue if given."""
    def iter(
        self,
        *,
        session_id: str | None = None,
        status: TaskStatus | None = None,
        queue: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[TaskRecord, None]:
        """Go over all pages of ``list``."""
    async def count(
        self, *, session_id: str | None = None, queue: str | None = None
    ) -> dict[str, dict[str, int]]:
        """Count tasks: for each queue, how many are in which status; what is 0 is left out."""
    async def start(self, task_id: str) -> TaskRecord:
        """Go from pending to running, and count the attempt; nobody else can claim it then."""
    async def complete(
        self, task_id: str, result: Any = None, *, fence: int | None = None
    ) -> TaskRecord:
        """Go from running to completed, with a result, any JSON."""
    async def fail(
        self,
        task_id: str,
        error: str | None = None,
        *,
        fence: int | None = None,
        retry: bool = True,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> TaskRecord:
        """Say that the attempt failed, and with what; secrets are redacted by the store's policy."""
    async def pause(self, task_id: str) -> TaskRecord:
        """Go from pending or running to paused. Raises as ``start`` does."""
    async def resume(self, task_id: str) -> TaskRecord:
        """Go from paused to pending. Raises as ``start`` does."""
    async def retry(self, task_id: str) -> TaskRecord:
        """Go from failed or dead to pending, to be started again. Raises as ``start`` does."""
    async def cancel(self, task_id: str, *, fence: int | None = None) -> TaskRecord:
        """Go to cancelled from pending, running or paused. Raises as ``start`` does."""
    async def claim(
        self,
        worker: str,
        *,
        queues: str | Sequence[str] = "default",
        kinds: str | Sequence[str] | None = None,
        limit: int = 1,
        lease: float = DEFAULT_LEASE,
    ) -> tuple[TaskRecord, ...]:
        """Take tasks that are due, each with a lease and a fencing token."""
    async def heartbeat(
        self, task_id: str, *, fence: int, lease: float = DEFAULT_LEASE
    ) -> TaskRecord:
        """Renew the lease on a task."""
    async def heartbeat_many(
        self, held: Sequence[TaskRecord], *, lease: float = DEFAULT_LEASE
    ) -> TaskBatch:
        """Renew the leases on tasks, in one statement."""
    async def release(self, task_id: str, *, fence: int) -> TaskRecord:
        """Give a task back, to be claimed by others at once; it does not count as a failure."""
    async def complete_many(self, done: Sequence[tuple[TaskRecord, Any]]) -> TaskBatch:
        """Complete tasks with their results, in one transaction."""
    async def fail_many(
        self,
        failed: Sequence[tuple[TaskRecord, str | None]],
        *,
        retry: bool = True,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> TaskBatch:
        """Say that attempts failed, each with its error, in one transaction; see ``fail``."""
    async def rescue(
        self, *, limit: int = 100, backoff: Backoff = DEFAULT_BACKOFF
    ) -> tuple[TaskRecord, ...]:
        """Take away the tasks of all queues whose leases have run out."""
    async def requeue(
        self, *, queue: str = "default", kind: str | None = None, limit: int = MAX_LIMIT
    ) -> int:
        """Make dead tasks pending again, the oldest first, with all their retries."""
    async def due(
        self, *, queues: str | Sequence[str] = "default", kinds: str | Sequence[str] | None = None
    ) -> float | None:
        """Give the seconds until a pending task is due: 0.0 if one is, None if there is none."""
    async def watch(self) -> TaskSignal:
        """Give what tells that tasks may have become claimable; ``Worker`` waits for it."""

class AsyncToolLogs(AsyncRepository):
    """See ``ToolLogs``."""

    __slots__ = ()
    async def log(
        self,
        session_id: str,
        tool: str,
        *,
        input: Any = None,
        output: Any = None,
        elapsed_ms: float | None = None,
        success: bool | None = None,
        error: str | None = None,
        message_id: str | None = None,
        tool_call_id: str | None = None,
    ) -> ToolLogRecord:
        """Log one call of a tool; secrets are redacted by the store's policy."""
    async def get(self, log_id: str) -> ToolLogRecord:
        """Give a log."""
    async def find(self, log_id: str) -> ToolLogRecord | None:
        """Give a log, or None."""
    async def list(
        self,
        *,
        session_id: str | None = None,
        tool: str | None = None,
        success: bool | None = None,
        text: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: Literal["newest", "oldest"] = "newest",
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[ToolLogRecord]:
        """List logs, the last written first; with ``since`` or ``until``, by their times."""
    def iter(
        self,
        *,
        session_id: str | None = None,
        tool: str | None = None,
        success: bool | None = None,
        text: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: Literal["newest", "oldest"] = "newest",
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[ToolLogRecord, None]:
        """Go over all pages of ``list``."""
    async def stats(
        self,
        *,
        session_id: str | None = None,
        tool: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[ToolStats, ...]:
        """Add up the calls of each tool, the most called first, then by name."""

class AsyncUsage(AsyncRepository):
    """See ``Usage``."""

    __slots__ = ()
    async def stats(
        self, user_id: str, days: float = 7, *, until: datetime | None = None
    ) -> UserStats:
        """Add up what a user did in the last days."""
    async def record(
        self,
        session_id: str,
        *,
        usage: object = UNSET,
        input_tokens: int = 0,
        output_tokens: int = 0,
        total_tokens: int | None = None,
        cached_input_tokens: int = 0,
        requests: int = 1,
        model: str | None = None,
        cost: Decimal | int | str | None = None,
        details: Mapping[str, Any] | None = None,
        turn: int | None = None,
        branch: Branch = None,
        reservation_id: str | None = None,
    ) -> UsageRecord:
        """Record what requests to a model used. It is added to what the turn has used so far."""
    async def list(
        self,
        session_id: str,
        *,
        branch: Branch = None,
        turn: int | None = None,
        from_turn: int | None = None,
        to_turn: int | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[UsageRecord]:
        """List what was recorded of a session, by branch, turn and time of recording."""
    def iter(
        self,
        session_id: str,
        *,
        branch: Branch = None,
        turn: int | None = None,
        from_turn: int | None = None,
        to_turn: int | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[UsageRecord, None]:
        """Go over all pages of ``list``."""
    async def delete(
        self, session_id: str, *, branch: Branch = None, turn: int | None = None
    ) -> int:
        """Delete what was recorded of a session; the arguments are those of ``list``."""
    async def replace(
        self,
        session_id: str,
        *,
        turn: int | None = None,
        branch: Branch = None,
        usage: object = UNSET,
        input_tokens: int = 0,
        output_tokens: int = 0,
        total_tokens: int | None = None,
        cached_input_tokens: int = 0,
        requests: int = 1,
        model: str | None = None,
        cost: Decimal | int | str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> UsageRecord:
        """Record what a turn used in the place of all that was recorded for it before."""
    @overload
    async def sum_by(
        self, dimension: Literal["turn", "branch"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[int], ...]:
        """Add up what was used, for each value of a dimension."""
    @overload
    async def sum_by(
        self, dimension: Literal["session"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[str], ...]:
        """Add up what was used, for each value of a dimension."""
    @overload
    async def sum_by(
        self, dimension: Literal["user", "model"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[str | None], ...]:
        """Add up what was used, for each value of a dimension."""
    @overload
    async def sum_by(
        self, dimension: Literal["day", "week", "month"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[date], ...]:
        """Add up what was used, for each value of a dimension."""
    @overload
    async def sum_by(
        self, dimension: Literal["branch_turn"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[tuple[int, int]], ...]:
        """Add up what was used, for each value of a dimension."""
    @overload
    async def sum_by(
        self, dimension: Literal["total"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[None], ...]:
        """Add up what was used, for each value of a dimension."""
    @overload
    async def sum_by(
        self, dimension: tuple[One, One], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[tuple[Any, Any]], ...]:
        """Add up what was used, for each value of a dimension."""
    async def of_sessions(
        self, ids: Sequence[str], *, most: int | None = None
    ) -> dict[str, UsageSum]:
        """Add up what was recorded of each of some sessions, by one statement for a list."""
    async def totals(self) -> DatabaseTotals:
        """Count the rows of every table, exactly, and add the messages up."""

class AsyncUsers(AsyncRepository):
    """See ``Users``."""

    __slots__ = ()
    async def create(
        self,
        name: str,
        *,
        email: str | None = None,
        quota_total: int | None = None,
        preferences: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> UserRecord:
        """Create a user."""
    async def ensure(
        self,
        id: str | None = None,
        *,
        email: str | None = None,
        name: str | None = None,
        quota_total: int | None = None,
        preferences: Mapping[str, Any] | None = None,
    ) -> UserRecord:
        """Give the user with this id or, without one, with this email address; or create one."""
    async def get(self, user_id: str) -> UserRecord:
        """Give a user."""
    async def find(self, user_id: str) -> UserRecord | None:
        """Give a user, or None."""
    async def list(
        self,
        *,
        email: str | None = None,
        text: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[UserRecord]:
        """List users, the newest first."""
    def iter(
        self,
        *,
        email: str | None = None,
        text: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[UserRecord, None]:
        """Go over all pages of ``list``."""
    async def names(self, ids: Sequence[str]) -> dict[str, str]:
        """Give the names of users, by their ids; who does not exist is left out."""
    async def find_by_preference(
        self,
        path: str | Sequence[str],
        value: Any,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[UserRecord]:
        """List the users who have this value at this place in their preferences, newest first."""
    def iter_find_by_preference(
        self,
        path: str | Sequence[str],
        value: Any,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[UserRecord, None]:
        """Go over all pages of ``find_by_preference``."""
    async def update(
        self,
        user_id: str,
        *,
        name: str | Unset = UNSET,
        email: str | Unset | None = UNSET,
        quota_total: int | Unset | None = UNSET,
        preferences: Mapping[str, Any] | Unset = UNSET,
    ) -> UserRecord:
        """Change what is given and leave the rest."""
    async def delete(self, user_id: str) -> DeletionReceipt:
        """Delete a user and all that is theirs: sessions and everything below, keys, threads."""
    async def check_quota(self, user_id: str, tokens: int) -> bool:
        """Say whether the user could consume so many tokens now."""
    async def consume_quota(self, user_id: str, tokens: int) -> int | None:
        """Consume tokens, if so many are left."""
    async def reservations(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[ReservationRecord]:
        """List what is set aside of a user's quota now, the first to expire first."""
    def iter_reservations(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[ReservationRecord, None]:
        """Go over all pages of ``reservations``."""
    async def reserve_quota(
        self,
        user_id: str,
        tokens: int,
        *,
        ttl: timedelta = timedelta(minutes=10),
        session_id: str | None = None,
    ) -> ReservationRecord:
        """Set tokens aside for a call whose cost is known only afterwards."""
    async def reserve_for_session(
        self, session_id: str, tokens: int, *, ttl: timedelta = timedelta(minutes=10)
    ) -> ReservationRecord:
        """Set tokens of the session's user aside; see ``reserve_quota``."""
    async def settle_quota(self, reservation_id: str, tokens: int) -> int | None:
        """Consume what a call really cost, and give back the rest of its reservation."""
    async def release_quota(self, reservation_id: str) -> int | None:
        """Give a reservation back: the call was not made, or its process died."""
    async def issue_api_key(
        self, user_id: str, name: str = "", *, expires_at: datetime | None = None
    ) -> IssuedApiKey:
        """Make a key for a user."""
    async def authenticate(self, key: str) -> ApiKeyRecord:
        """Say whose key this is."""
    async def touch_api_key(self, key_id: str) -> None:
        """Note that a key was used just now. Apart from ``authenticate``, which only reads."""
    async def api_keys(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[ApiKeyRecord]:
        """List a user's keys, the newest first, the revoked ones included."""
    def iter_api_keys(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[ApiKeyRecord, None]:
        """Go over all pages of ``api_keys``."""
    async def revoke_api_key(self, key_id: str) -> ApiKeyRecord:
        """Stop a key from working, for good. Revoking it again changes nothing."""
