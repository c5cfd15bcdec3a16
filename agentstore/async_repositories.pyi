"""The asynchronous repositories, as type checkers and editors see them.

``python -m docs.async_stub`` wrote this file; ``agentstore.aio`` makes the classes when the
program runs. What a method does, returns and raises is as where it is written.
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
from agentstore.repositories.checkpoints import removal
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
    """What is attached to messages."""

    __slots__ = ()
    async def add(
        self,
        message_id: str,
        data: bytes | bytearray | memoryview,
        media_type: str,
        *,
        name: str | None = None,
    ) -> AttachmentRecord:
        """Attach bytes to a message.

        The same bytes are stored once, however often and by whom they are attached; each call makes
        an attachment of its own. Bytes that are stored already are not sent again.

        Args:
            message_id: The message.
            data: The bytes, up to ``max_attachment_bytes`` of the store's settings; none are
                fine.
            media_type: What they are, such as ``image/png``; taken as it is said.
            name: What to call them, such as a file's name; need not be unique.

        Raises:
            NotFound: There is no such message.
            AttachmentTooLarge: There are more bytes than the limit; nothing was written.
            InvalidInput: An argument cannot be stored.
        """
    async def get(self, attachment_id: str) -> AttachmentRecord:
        """Give an attachment, without its bytes.

        Raises:
            NotFound: There is none with this id.
        """
    async def find(self, attachment_id: str) -> AttachmentRecord | None:
        """Give an attachment, without its bytes, or None."""
    async def read(self, attachment_id: str) -> bytes:
        """Give the bytes of an attachment, after comparing them with their digest.

        Raises:
            NotFound: There is none with this id.
            InvalidRow: The bytes in the database are not those that were attached.
        """
    async def list(
        self, message_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[AttachmentRecord]:
        """List what is attached to a message, in the order in which it was added.

        Args:
            message_id: The message; one that is not there has nothing.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
    def iter(
        self, message_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[AttachmentRecord, None]:
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def list_of_session(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[AttachmentRecord]:
        """List what is attached to the messages of a session, in the order in which it was added.

        Args:
            session_id: The session; one that is not there has nothing.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
    def iter_list_of_session(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[AttachmentRecord, None]:
        """Go over all pages of ``list_of_session``.

        Arguments, order and errors are those of ``list_of_session``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def delete(self, attachment_id: str) -> DeletionReceipt:
        """Delete an attachment, and its bytes if nothing else refers to them.

        Returns:
            How many rows went, for each table.

        Raises:
            NotFound: There is none with this id.
        """

class AsyncBranches(AsyncRepository):
    """The branches of sessions, and the turns on them.

    What happens on one branch is not seen on another, but for what deletes messages themselves:
    ``messages.delete``, ``messages.delete_by_mark`` and ``messages.clear``. A message is there as
    long as a branch shows it.
    """

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
        """Make a branch, which becomes the active one.

        Nothing is copied: the cost does not depend on the length of the conversation. Say at most
        one of ``from_turn``, ``after_turn`` and ``containing``; without any the branch begins
        with all that there is.

        Args:
            session_id: The session.
            from_turn: The first turn that the branch does not show: it begins with what precedes
                this turn, which for turn 1 may be nothing.
            after_turn: The last turn that the branch begins with; 0 is what precedes turn 1.
            containing: Like ``from_turn``, for the first turn whose user message contains this
                text: any case, any script, every character as itself.
            name: Its name, unique in the session; left out, it is called ``branch-`` and its
                number.
            branch: The branch that it grows from; None for the active one.
            reserve: Whether its name is never to be used again in the session, also once it is
                deleted, or the session is reset. So who kept the name finds this branch or none.

        Raises:
            NotFound: There is no such session, branch or turn.
            AlreadyExists: The name is taken; ``NameReserved`` if the branch that had it is gone.
            InvalidInput: More than one place to begin was given, or an argument is not valid.
        """
    async def get(self, session_id: str, name: str) -> BranchRecord:
        """Give a branch.

        Raises:
            NotFound: There is no such session or branch.
        """
    async def active(self, session_id: str) -> BranchRecord:
        """Give the active branch: the one to which messages are added, also after a restart.

        Raises:
            NotFound: There is no such session.
        """
    async def switch(self, session_id: str, name: str) -> BranchRecord:
        """Make a branch the active one, for all who use the session.

        Raises:
            NotFound: There is no such session or branch.
        """
    async def rename(self, session_id: str, name: str, new_name: str) -> BranchRecord:
        """Give a branch another name.

        Raises:
            NotFound: There is no such session or branch.
            AlreadyExists: The name is taken; ``NameReserved`` if the branch that had it is gone.
            InvalidInput: It is main, which keeps its name, as one does whose name is reserved; or
                the new name is not valid.
        """
    async def delete(
        self, session_id: str, name: str, *, force: bool = False, then: str | None = None
    ) -> int:
        """Delete a branch, and those messages that no other branch shows.

        Branches that grew from it go on showing what they did. Its name is free again, unless it
        was reserved when the branch was created.

        Args:
            session_id: The session.
            name: The branch.
            force: Delete it also if it is the active one; then the branch that it grew from
                becomes that, or main if that is gone.
            then: Delete it also if it is the active one; then the branch with this name becomes
                that. Another active branch stays it.

        Returns:
            How many messages were deleted.

        Raises:
            NotFound: There is no such session or branch.
            BranchInUse: It is the active one, and neither ``force`` nor ``then`` was given.
            InvalidInput: It is main, or ``then`` names the branch itself.
        """
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
        """Replace turns of a branch with a summary of them.

        Only this branch shows the summary, and branches that are made from it later; usage stays
        as it was recorded. The replaced messages are deleted unless another branch
        shows them: ``keep_as`` makes one.

        Args:
            session_id: The session.
            summary: The text that replaces them.
            from_turn: The first turn that is replaced; 0 begins with what precedes turn 1.
            to_turn: The last one.
            role: The role of the summary: system, developer or assistant.
            token_count: The tokens of the summary.
            branch: The branch's name; None for the active one.
            keep_as: The name of a branch to be made, which shows all as it was.

        Returns:
            The summary, a message with the sequence number and the turn of the last one that it
            replaces. Its metadata says which turns, and how many messages, in ``summary_of``.

        Raises:
            NotFound: There is no such session, branch or turn.
            AlreadyExists: There is a branch called ``keep_as`` already.
            InvalidInput: An argument cannot be stored, or ``to_turn`` comes before ``from_turn``.
            StreamUnfinished: One of these messages is still being streamed.
        """
    async def turns(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        messages: bool = False,
    ) -> Page[TurnRecord]:
        """List the turns of a branch, in the order of the conversation.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.
            limit: How many at most.
            cursor: The ``next_cursor`` of the page before.
            messages: Give the whole user message of each turn too, with its payload and metadata.

        Raises:
            NotFound: There is no such session or branch.
        """
    def iter_turns(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        messages: bool = False,
    ) -> AsyncGenerator[TurnRecord, None]:
        """Go over all pages of ``turns``.

        Arguments, order and errors are those of ``turns``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def by_turn(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[TurnMessages]:
        """Give the messages of a branch grouped by turn, in the order of the conversation.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.
            limit: How many turns; turn 0 comes with the first ones and is not counted.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session or branch.
        """
    def iter_by_turn(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> AsyncGenerator[TurnMessages, None]:
        """Go over all pages of ``by_turn``.

        Arguments, order and errors are those of ``by_turn``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def tool_usage(self, session_id: str, *, branch: str | None = None) -> list[TurnToolUse]:
        """Count the calls of each tool in each turn of a branch.

        Returns:
            In the order of the turns, and of the tools' names in each.

        Raises:
            NotFound: There is no such session or branch.
        """
    async def find_turns(
        self,
        session_id: str,
        text: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TurnRecord]:
        """Find the turns of a branch whose user message contains a text, in their order.

        Every character counts as itself. Case does not, in any script that has it, nor does how
        accents are encoded. All turns of the branch may have to be read; ``messages.search``
        looks words up in an index instead.

        Args:
            session_id: The session.
            text: What to look for.
            branch: The branch's name; None for the active one.
            limit: How many at most.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: The text is empty.
        """
    def iter_find_turns(
        self,
        session_id: str,
        text: str,
        *,
        branch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AsyncGenerator[TurnRecord, None]:
        """Go over all pages of ``find_turns``.

        Arguments, order and errors are those of ``find_turns``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def list(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[CountedBranch]:
        """List the branches of a session in order of creation, main first.

        Its counts are kept in the row of each branch, so the cost does not grow with messages.

        Raises:
            NotFound: There is no such session.
        """
    def iter(
        self, session_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[CountedBranch, None]:
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def _grow(self, session_id: str, parent: int, through: int, name: str | None) -> int:
        """Make a branch of what another shows up to a message's number; it becomes the active one.

        Returns:
            Its number.
        """

class AsyncCheckpoints(AsyncRepository):
    """The checkpoints of threads.

    A thread is created by the first put. Its checkpoints are a tree. The latest checkpoint is the
    one with the highest step, and of several with that step the one that was put last. A namespace
    is a tree of its own in the thread, for a subgraph for example; the root namespace is ``""``.
    """

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
        """Put a checkpoint, or put one again under its id, which replaces all that it holds.

        A value that equals the parent's is not stored again; of a changed value, the beginning and
        the end that equal the parent's are not. So a whole history may be put at every step. Puts
        into one thread run one after the other; threads do not wait for each other on PostgreSQL.

        Args:
            thread_id: The thread.
            values: All of the state, by name: ``messages``, ``state``, ``tools_result``, any
                other. JSON, bytes, or ``Items``; a dict of bytes is neither.
            checkpoint_id: The application's own id; left out, a UUIDv7 is made.
            parent_id: The parent, in this thread and namespace. Left out, the latest; or, if the
                checkpoint is put again, its parent so far. ``""`` makes a root.
            step: Left out, one more than the parent's, 0 for a root; or its step so far.
            tags: Names by which ``prune`` can keep checkpoints; a str is a single one.
            summary: A text for people.
            next_node: Where the agent continues.
            metadata: A JSON object of the application's.
            namespace: The namespace.
            run_id: The run that it belongs to; see ``delete_run``.
            created_at: Left out, the present by the store's clock; or its time so far.
            session_id: The session that the thread belongs to, and is deleted with.
            user_id: The user, likewise.
            inherit: The names of values that are the same as in the parent, and are not passed.
            parent_missing: What to do if there is no such parent: ``refuse``, or make it a root.
            thread_missing: What to do if there is no such thread: ``make`` it, or ``refuse``,
                because it was there and has been deleted.

        Returns:
            The checkpoint, without its values.

        Raises:
            WrongThread: The id is taken in another thread. (In a namespace that is not the
                root, each thread has its own ids.)
            WrongOwner: The thread belongs to another session or user.
            NotFound: There is no such parent, session or user, or the session, that of the
                thread included, is being deleted; or the parent has no value of a name in
                ``inherit``; or the thread is missing and not to be made.
            NaiveDatetime: ``created_at`` has no time zone.
            InvalidJson: JSON cannot represent a value.
            InvalidInput: An argument cannot be stored, or the parent descends from the checkpoint.
        """
    async def get(
        self,
        checkpoint_id: str,
        thread_id: str | None = None,
        namespace: str = ROOT,
        *,
        writes: bool = False,
    ) -> CheckpointRecord:
        """Give a checkpoint with its values, by one statement whatever it holds.

        Args:
            checkpoint_id: Its id.
            thread_id: Only if it is in this thread. Needed with a namespace.
            namespace: Only in this one.
            writes: Whether to add the pending writes after it, as of the same moment.

        Raises:
            NotFound: There is no such checkpoint.
        """
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
        order: removal.CheckpointOrder = "step",
    ) -> CheckpointRecord | None:
        """Give the latest checkpoint of a thread with its values; None if there is none.

        Args:
            thread_id: The thread.
            namespace: The namespace.
            writes: As in ``get``.
            order: What says which is the latest; see ``list``.
        """
    @overload
    async def list(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: Literal[True],
        writes: bool = False,
        **filters: Unpack[removal.CheckpointFilters],
    ) -> Page[CheckpointRecord]:
        """List checkpoints, the latest first.

        Args:
            thread_id: The thread; left out, all threads.
            namespace: The namespace; None for all of them.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
            order: ``step``, and of several with one step the one that was put last; or ``id``,
                compared as UTF-8, for ids that grow with time. PostgreSQL sorts the ids of the
                namespace for that.
            before: Only smaller ids; with ``order="id"``. No checkpoint need have it.
            where: Only those whose metadata have these values, by paths: keys with dots between,
                or tuples of keys.
            parent_id: Only those that came from this one; with a thread and a namespace.
            values: Whether each has its values. All values of the page are then in memory at once.
            writes: Whether each has its values and the pending writes after it.

        Raises:
            InvalidInput: An argument cannot be asked for.
        """
    @overload
    async def list(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: bool = False,
        writes: Literal[True],
        **filters: Unpack[removal.CheckpointFilters],
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
        **filters: Unpack[removal.CheckpointFilters],
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
        **filters: Unpack[removal.CheckpointFilters],
    ) -> AsyncGenerator[CheckpointRecord, None]:
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    @overload
    def iter(
        self,
        /,
        thread_id: str | None = None,
        *,
        values: bool = False,
        writes: Literal[True],
        **filters: Unpack[removal.CheckpointFilters],
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
        **filters: Unpack[removal.CheckpointFilters],
    ) -> AsyncGenerator[CheckpointInfo, None]:
        """Go over all pages of ``list``."""
    async def namespaces(self, thread_id: str) -> tuple[str, ...]:
        """Give the namespaces in which a thread has checkpoints, sorted; none if it is not there.

        Sorted as Python sorts, ``""`` first.
        """
    async def threads(
        self,
        thread_id: str | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[ThreadRecord]:
        """List threads, each with its latest checkpoint, the most recently written first.

        The order is that of the puts themselves, whatever ``created_at`` says.

        Args:
            thread_id: Only this thread, if it is there.
            user_id: Only threads of this user.
            session_id: Only threads of this session.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
    def iter_threads(
        self,
        thread_id: str | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[ThreadRecord, None]:
        """Go over all pages of ``threads``.

        Arguments, order and errors are those of ``threads``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def path(
        self, checkpoint_id: str, thread_id: str | None = None, namespace: str = ROOT
    ) -> tuple[CheckpointInfo, ...]:
        """Give a checkpoint and its ancestors, itself first and the root last.

        Raises:
            NotFound: There is no such checkpoint; see ``get``.
        """
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
        """Fork at a checkpoint: put a copy of it, from which to continue in another way.

        The new checkpoint has the values, summary, next node and metadata of the old one, but not
        its tags and its run. Within the thread it is a child of the old one, one step later, and
        shares its values; to continue from it, put with its id as ``parent_id``. In a new thread,
        which has the old one's user and session, it is the root, with the same step, and shares
        nothing: either thread may be deleted.

        Args:
            checkpoint_id: The checkpoint to copy.
            thread_id: Only if it is in this thread.
            to_thread: The new thread; left out, the checkpoint's own.
            new_checkpoint_id: The new checkpoint's id; left out, a UUIDv7 is made.
            namespace: Only in this one; the new one is in it as well.

        Raises:
            NotFound: There is no such checkpoint.
            AlreadyExists: The new thread or the new checkpoint is there already.
            WrongThread: The new id is taken in another thread.
            InvalidInput: Some of its state is made of its ancestors, as LangGraph's delta channels
                are: a copy without them would lack it.
        """
    async def rewind(self, thread_id: str, step: int, *, namespace: str = ROOT) -> CheckpointRecord:
        """Go back to a step: delete all checkpoints after it, so that it is the latest again.

        The target is the checkpoint of this step on the path from the latest to the root. All
        later checkpoints are deleted, on other paths as well; to keep them, fork from the target.

        Returns:
            The target, with its values.

        Raises:
            NotFound: There is no such thread, or no checkpoint of this step on the path;
                nothing was deleted.
        """
    async def copy_thread(
        self,
        thread_id: str,
        to_thread: str,
        *,
        on_existing: Literal["refuse", "replace"] = "refuse",
    ) -> int:
        """Copy a thread with all namespaces and pending writes to a new one with the same owners.

        Checkpoints of the root namespace get new ids, because an id belongs to one thread; in
        other namespaces they keep theirs. The two threads share nothing.

        Args:
            thread_id: The thread.
            to_thread: The new one.
            on_existing: What to do if the new thread exists already: ``refuse``, or
                ``replace`` it and everything in it.

        Returns:
            How many checkpoints were copied.

        Raises:
            NotFound: There is no such thread.
            AlreadyExists: The new thread exists already.
            InvalidInput: The two threads are the same.
        """
    async def delete_thread(self, thread_id: str) -> DeletionReceipt:
        """Delete a thread and everything in it.

        Returns:
            How many rows were deleted, for each table.

        Raises:
            NotFound: There is no such thread.
        """
    async def delete(
        self, thread_id: str, ids: Sequence[str], *, namespace: str = ROOT
    ) -> DeletionReceipt:
        """Delete checkpoints by their ids, as ``delete_before`` does.

        Ids that do not exist are ignored.

        Raises:
            NotFound: There is no such thread.
            InvalidInput: ``ids`` is no list of ids.
        """
    async def delete_before(
        self, thread_id: str, step: int, *, namespace: str = ROOT
    ) -> DeletionReceipt:
        """Delete the checkpoints whose step is smaller, with their pending writes.

        Those that stay keep all their values; their parent is the nearest ancestor that stays. If
        one that stays is made of its ancestors, as with LangGraph's delta channels, those that hold
        something of it stay too.

        Returns:
            How many rows were deleted, for each table; checkpoints are ``rows["checkpoints"]``.

        Raises:
            NotFound: There is no such thread.
        """
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
        """Delete the checkpoints that no policy keeps, as ``delete_before`` does.

        The latest one always stays, so that steps continue to count up.

        Args:
            thread_id: The thread.
            keep_last: Keep this many of the latest.
            max_age: Keep checkpoints that are not older than this.
            keep_tags: Keep checkpoints that have one of these tags.
            keep_ids: Keep these.
            namespace: Only in this one; left out, in each on its own.
            dry_run: Only count the checkpoints that would be deleted.

        Raises:
            NotFound: There is no such thread.
            InvalidInput: There is no policy.
        """
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
        """Store what a task wrote after a checkpoint, before the next one is put.

        Checkpoint and thread need not exist yet; the thread is then created, unless
        ``thread_missing`` says otherwise.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint that the task began from.
            task_id: The task.
            writes: Pairs of a channel and a value, JSON or bytes.
            task_path: Where the task stands in the graph; orders the writes.
            namespace: The checkpoint's.
            positions: The writes' places in the task; left out, 0, 1, 2, ... They may be
                negative.
            replace: Replace writes at these positions; otherwise existing writes stay, so that a
                repeated task changes nothing. Or a list that says so of each write.
            thread_missing: As in ``put``.
            session_id: As in ``put``.
            user_id: As in ``put``.

        Returns:
            How many were stored.

        Raises:
            WrongOwner: The thread belongs to another session or user.
            NotFound: There is no such session or user, or the session is being deleted; or the
                thread is missing and not to be made.
            InvalidInput: An argument cannot be stored.
        """
    async def touch(self, thread_id: str, *, every: timedelta = timedelta(0)) -> bool:
        """Mark a thread as used now, for ``threads_idle`` of a retention policy.

        A new checkpoint counts by itself; pending writes, changes of a checkpoint and reads do not.
        The order of ``threads`` stays.

        Args:
            thread_id: The thread.
            every: Write nothing if it was touched within this time.

        Returns:
            Whether the mark was written.

        Raises:
            NotFound: There is no such thread.
            InvalidInput: ``every`` is no timedelta, or negative.
        """
    async def writes(
        self, thread_id: str, checkpoint_id: str, *, namespace: str = ROOT
    ) -> tuple[WriteRecord, ...]:
        """Give the pending writes after a checkpoint, by task path, task and position."""

class AsyncMarks(AsyncRepository):
    """The marks of messages.

    A mark is a str of 1 to 255 characters. It is on the message, on whatever branch that is seen.
    """

    __slots__ = ()
    async def of(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Give the marks of messages, each message's in alphabetical order.

        Args:
            ids: The messages.

        Returns:
            By their ids; a message that has no mark, or does not exist, is left out.
        """
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
        """Change the marks of messages of a session.

        ===========  ===========  ============================================
        ``new``      ``old``      what happens
        ===========  ===========  ============================================
        a mark       None         every message gets ``new``
        a mark       a mark       where ``old`` is, ``new`` takes its place
        None         a mark       ``old`` is taken away
        None         None         all marks are taken away
        ===========  ===========  ============================================

        Args:
            session_id: The session.
            new: The mark to be there afterwards; an ``Enum`` of str counts as its value.
            old: The mark to be gone afterwards.
            ids: Only of these messages, up to 5,000; ids that do not exist, or are of
                another session, are ignored. None means all messages of the session.
            external_ids: The same, by the application's own ids. With both, the messages of
                either.

        Returns:
            How many messages were changed, each counted once. One that has ``new`` already, and
            no ``old``, is not changed.

        Raises:
            NotFound: There is no such session.
            InvalidInput: A mark is no str, or is empty or too long; or there are too many ids.
        """

class AsyncMemories(AsyncRepository):
    """JSON objects under a namespace and a key: what an agent keeps across conversations.

    A namespace is a list of names, such as ``["notes", "travel"]``; a key is unique in it. Each
    user has namespaces of their own. Without ``user_id`` a method works on memories that belong to
    no user. An expired memory is not found any more.
    """

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
        """Put a memory; it replaces an existing one with this key.

        On a store with embeddings its vector is made before the transaction. If the embedding
        function fails, and in ``transaction()``, the memory is stored without a vector and waits
        for ``embed_pending``; until then it is found by words only.

        Args:
            namespace: A list of names.
            key: Its key in the namespace.
            value: A JSON object.
            ttl: How long it is kept from now on; None means forever.
            embed: Whether it is found by meaning, or the fields that are: paths such as ``text``
                or ``notes[*].text``, each with its own vector. None means yes if the store has
                embeddings, by their fields.
            user_id: Whose it is; None for nobody's.

        Raises:
            NotFound: There is no such user.
            InvalidEmbedding: The embedding function gave something else than vectors.
            InvalidInput: An argument cannot be stored; owner, namespace and key may have 2,400
                bytes together.
            InvalidJson: JSON cannot say the value.
        """
    async def get(
        self, namespace: Sequence[str], key: str, *, user_id: str | None = None
    ) -> MemoryRecord:
        """Give a memory.

        Raises:
            NotFound: There is none under this key.
        """
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
        """Restart the time to live of memories.

        Args:
            namespace: Where they are.
            keys: Their keys, up to 1,000; those of others, and of what is gone, change nothing.
            user_id: Whose they are.

        Returns:
            How many are kept for longer.
        """
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
        """List the memories of a namespace and of all below it.

        Namespaces come in descending order, and in each the memory that was put last comes first.

        Args:
            namespace: The first names of the namespaces; left out, all.
            where: Only those whose values have these, by paths: keys with dots between, or tuples
                of keys. Values are compared after they were read.
            vectors: Only those that have a vector, whose vector is ``pending``, or that have none.
            user_id: Whose they are.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
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
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
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
        """Find memories by the words of their values or by their meaning, the best first.

        The words, phrases and signs of a query are those of ``messages.search``, without stems.
        There is no index of memories: the whole namespace is scanned, some rows at a time.

        By meaning, the text's vector is compared with those of all memories of the namespace, so
        no near one is missed. Memories without a vector are not found this way. ``both`` fuses the
        list by meaning with the list by words, by their ranks.

        Args:
            text: What to look for.
            namespace: The first names of the namespaces; left out, all.
            by: ``words``, ``meaning`` or ``both``.
            match: Whether a memory must have all the words, or any of them, such as of a sentence:
                then those come first that have more of them. English words that are in most
                sentences, such as ``the``, do not count beside others; phrases in quotes stay
                together.
            where: Only those whose values have these, by paths; see ``list``.
            user_id: Whose they are.
            limit: How many to give at most.

        Raises:
            InvalidInput: The text cannot be looked for, or an argument is out of range.
            EmbeddingModelChanged: The vectors here are of another model than the store's.
            EmbeddingFailed: The embedding function raised something.
            InvalidEmbedding: It gave something else than a vector.
            TransactionMisuse: This is by meaning, in a transaction.
        """
    async def embed_pending(
        self, limit: int | None = None, *, progress: vectors.Progress | None = None
    ) -> int:
        """Compute the pending vectors of memories and messages, of all users.

        Pending are memories whose embedding function failed, memories that were put in a
        transaction, and all messages of the embeddings' roles without a vector. Each batch is
        committed at once, so this can be interrupted. A row that changes meanwhile gets no outdated
        vector. A text for which the function fails stays pending and does not stop the others.

        Args:
            limit: Of how many at most; None means all.
            progress: Called after each batch with how many are done, and of how many.

        Returns:
            How many have got their vectors.

        Raises:
            InvalidInput: The store has no embeddings, or this is called in a transaction.
            EmbeddingFailed: The embedding function raised something. If it did for some texts
                alone, all others were tried first, and ``failed`` says for how many it did.
            InvalidEmbedding: It gave something else than vectors.
        """
    async def reembed(
        self, *, forget_others: bool = False, progress: vectors.Progress | None = None
    ) -> int:
        """Compute vectors for all memories and messages that have none of the store's model.

        That is so after the model or its dimensions have changed, and for memories that were put
        before the store had embeddings. The vectors of other models stay, and are searched by
        stores that are opened with them; from the end of this on, the new ones are searched. If it
        is interrupted, the next call continues. Others may put and search meanwhile.

        Args:
            forget_others: Whether to delete the vectors of all other models in the end.
            progress: Called after each batch with how many are done, and of how many.

        Returns:
            How many have got vectors.

        Raises:
            InvalidInput: The store has no embeddings, or this is called in a transaction.
            EmbeddingFailed: The embedding function raised something. If it did for some texts
                alone, ``failed`` says for how many: these wait for ``embed_pending``, the new
                vectors of all others are searched, and those of other models are not deleted.
            InvalidEmbedding: It gave something else than vectors.
        """
    async def vector_status(self) -> VectorStatus:
        """Say of which models there are vectors, and how many rows wait for theirs.

        It counts them all.
        """
    async def namespaces(
        self,
        prefix: Sequence[str] = (),
        *,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[tuple[str, ...]]:
        """List the namespaces that have memories, sorted by their names as UTF-8.

        Args:
            prefix: Only those that begin with these names.
            user_id: Whose they are.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
    def iter_namespaces(
        self,
        prefix: Sequence[str] = (),
        *,
        user_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[tuple[str, ...], None]:
        """Go over all pages of ``namespaces``.

        Arguments, order and errors are those of ``namespaces``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def delete_expired(self, limit: int | None = None) -> int:
        """Delete expired memories of all users, in small transactions.

        Readers do not find them anyway; this frees their space. So does ``prune`` with
        ``expired_memories``.

        Args:
            limit: How many to delete at most; None means all that have expired by now.

        Returns:
            How many were deleted.
        """

class AsyncMessages(AsyncRepository):
    """The messages of sessions, in the order of their sequence numbers."""

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
        """Append a message to a branch, and count it, in one transaction.

        Any number of callers may save at once; each message gets the next sequence number, and
        two sessions never wait for each other on PostgreSQL.

        Args:
            session_id: The session.
            role: system, developer, user, assistant or tool.
            content: Text, or a list of content blocks (JSON), or None.
            tool_calls: A list of JSON objects, kept with their keys in order. The name of each
                tool, at ``function.name`` or ``name``, is indexed for ``find_by_tool``.
            tool_call_id: Which call a tool message answers.
            name: The name of the speaker, or of the tool that answered.
            token_count: The message's size in tokens, as it takes room in a model's context. What a
                call of a model used is for ``usage.record``.
            cost: Money that it counts for: a Decimal, an int or a str, never a float.
            metadata: A JSON object of the application's.
            payload: Any JSON: a framework's own item, whole.
            external_id: The application's own id, unique in the session.
            marks: A mark or several, to find the message by, or to leave it out: see ``history``.
            on_duplicate: What to do if the external id is there already: ``skip`` writes
                nothing and returns what is there, ``refuse`` raises AlreadyExists, ``replace``
                writes this into its place: id, number and time stay, and so do its marks unless
                others are named.
            idempotency_key: Makes a repeated call a no-op that returns the first one's result.
                With it, a call whose outcome was in doubt is repeated by the store itself.
            branch: The branch's name; None for the active one. Naming the active branch costs
                nothing extra; another one needs a transaction of several statements. The active
                branch does not change.
            create_session: Whether to create the session if there is none, in the same
                transaction; a dict of arguments of ``sessions.create`` instead of True says with
                which. If the session exists, it stays as it is, and the call costs nothing extra.
                Any number of callers and processes may do this at once: one of them creates it.

        Raises:
            NotFound: There is no such session, branch or user.
            AlreadyExists: The external id is taken, and ``on_duplicate`` is ``refuse``; or the
                session was to be made, and is another user's, or being deleted.
            InvalidInput: An argument cannot be stored, or a message would be replaced by one of
                another role.
        """
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
        """Append messages in their order, all or none.

        Args:
            session_id: The session.
            messages: Mappings with the arguments of ``save`` as keys; ``role`` is required.
            on_duplicate: As in ``save``, for each message that has an external id.
            idempotency_key: As in ``save``, for the call as a whole.
            branch: As in ``save``.
            create_session: As in ``save``; also if there are no messages.

        Returns:
            A record for each message, in the same order; for a skipped one, what was there.

        Raises:
            NotFound: There is no such session, branch or user.
            AlreadyExists: An external id is taken, and ``on_duplicate`` is ``refuse``; or as in
                ``save``.
            InvalidInput: A message cannot be stored; the error says which.
        """
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
        """Append chat messages as the models' clients give and take them, all or none.

        ``chat`` gives them back equal, with all keys in their order, unknown keys too. Of a whole
        answer of Anthropic's ``chat`` gives the role and the content, because the API refuses the
        other keys; they are in the record's ``payload``.

        Args:
            session_id: The session.
            messages: A message or a list: messages of the chat completions or of Anthropic, items
                of the Responses API, as dicts or as the clients' own objects. An object is taken
                as the clients send it, which is what ``model_dump(mode="json",
                exclude_unset=True)`` gives.
            marks: Marks of each: see ``save``.
            token_counter: Counts the tokens of a message without usage. If it is left out, such a
                message has a token count of 0.
            unknown: What becomes of a JSON object that is no such message or item: ``refuse`` it,
                or ``keep`` it whole, as a framework's session does. ``chat`` gives it back equal;
                its role counts if agentstore knows it, and is ``assistant`` if not. All keys of
                an answer of Anthropic's are given back then.
            idempotency_key: As in ``save``, for the call as a whole.
            branch: As in ``save``.
            create_session: As in ``save``; also if there are no messages.

        Returns:
            A record for each message, in the same order. ``function`` is stored as role ``tool``,
            an item without a role as ``assistant``, or, if it is a result, as ``tool``.

        Raises:
            NotFound: There is no such session, branch or user.
            AlreadyExists: As in ``save``.
            InvalidInput: A message cannot be stored; the error says which.
        """
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
        branch: str | None = None,
    ) -> MessageRecord:
        """Append an empty message, to be written piece by piece; see ``save``.

        Meanwhile a reader sees the text that has arrived, in status ``streaming``; in status
        ``incomplete`` if no piece has arrived for ``stream_timeout`` seconds, because the writer
        has died, or hangs. Beginning and finishing are activity of the session; a piece is not.

        Returns:
            The message, in status ``streaming``; pass its ``id`` to the other calls.

        Raises:
            NotFound: There is no such session or branch.
            AlreadyExists: The external id is taken.
            InvalidInput: An argument cannot be stored.
        """
    async def append(self, message_id: str, text: str, *, position: int | None = None) -> int:
        """Add a piece of text to a message that is being streamed; one statement.

        Each call is as durable as any write, so gather what comes within some tenths of a second
        into one.

        Args:
            message_id: The message.
            text: The piece.
            position: The number of this piece, counted from 0. With it a repeated call adds
                nothing; without it every call adds.

        Returns:
            How many pieces the message has now.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was aborted.
            InvalidInput: The text is no str, or a piece before this one is missing.
        """
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
        """Finish a message that is being streamed; from now on it is like any other.

        Args:
            message_id: The message.
            content: What it says; None means what has come. The other arguments are those of
                ``save``; metadata left out is what ``begin`` was given.
            tool_calls: See ``save``.
            token_count: See ``save``.
            cost: See ``save``.
            metadata: See ``save``.
            payload: See ``save``.

        Returns:
            The message, in status ``complete``.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was aborted.
            InvalidInput: An argument cannot be stored.
        """
    async def abort(self, message_id: str) -> MessageRecord:
        """End a message that is being streamed as it is; it stays in status ``incomplete``.

        Raises:
            NotFound: There is no such message.
            StreamEnded: It is finished, or was aborted before.
        """
    async def abort_stale(self, limit: int = 100) -> int:
        """Abort the messages that got no piece for ``stream_timeout`` seconds.

        Readers see these as incomplete anyway; this joins their pieces, and ends them for their
        writers too, if a writer is still alive.

        Args:
            limit: How many at most, up to 1,000.

        Returns:
            How many were aborted; call again if that is the limit.
        """
    async def get(self, message_id: str) -> MessageRecord:
        """Give a message.

        Raises:
            NotFound: There is none with this id.
        """
    async def find(self, message_id: str) -> MessageRecord | None:
        """Give a message, or None."""
    async def find_by_external_id(self, session_id: str, external_id: str) -> MessageRecord | None:
        """Give the message of the session that has this external id, or None."""
    async def find_many(
        self, session_id: str, external_ids: Sequence[str]
    ) -> dict[str, MessageRecord]:
        """Give the messages of a session that have these external ids.

        Args:
            session_id: The session.
            external_ids: The application's own ids, up to 5,000; those that do not exist are
                ignored.

        Returns:
            The messages by their external ids, in the order of the messages.

        Raises:
            InvalidInput: ``external_ids`` is no list of ids, or has more than 5,000.
        """
    async def find_by_tool(
        self, session_id: str, tool: str, *, limit: int = 50, cursor: str | None = None
    ) -> Page[MessageRecord]:
        """List the messages of a session that call this tool, the newest first."""
    def iter_find_by_tool(
        self, session_id: str, tool: str, *, limit: int = 50, cursor: str | None = None
    ) -> AsyncGenerator[MessageRecord, None]:
        """Go over all pages of ``find_by_tool``.

        Arguments, order and errors are those of ``find_by_tool``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
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
        """Give the last messages of a branch as the models accept them, as a ``MessageList``.

        The oldest comes first. What an API would refuse is repaired in what is returned, never in
        what is stored: each call has its result, each result stands where the API wants it, and
        one without a call, or a second one of the same call, is left out. A message that holds
        a result which is moved, and something else, is split in two. See ``unanswered``.

        One query; two where the branch shows messages of others and this store reads it for the
        first time. One more where the cut falls behind more than four messages that belong to an
        earlier call, and for a history of Anthropic's that would begin with a call. The cost
        depends on ``limit`` and not on how much the session or the database holds.

        Args:
            session_id: The session.
            limit: How many; 0 gives none, None gives all.
            keep_tool_calls: Begin earlier where the cut would separate a tool's result from its
                call, which the chat APIs refuse; so there may be a few more than ``limit``. A
                history of Anthropic's that would begin with a call begins with the user message of
                that turn, even if others stand between.
            branch: The branch's name; None for the active one.
            mark: Only messages that have this mark, or any of these.
            exclude_mark: Leave out messages that have this mark, or any of these.
            prepend_summary: Put the branch's summary before the messages, after the prompts, if it
                has one, as a message of role system that is not stored as one: its id is empty, its
                number 0, its status ``summary``. It is one more query, and ``limit`` does not count
                it.
            unanswered: What to do with a call that has no result: ``placeholder`` adds a message
                that says that it was interrupted, in the call's own format; it is not stored, its
                id is empty, its status ``interrupted``. A call whose result cannot be a text, such
                as one of a computer tool, is dropped. ``drop`` leaves out the message that calls,
                with all its results. ``keep`` gives all messages as they are stored. With marks, a
                result that they leave out is missing too.
            keep_system: Keep the system and developer messages that precede the first user message,
                among the first four messages of the branch, even if the limit cuts them off; so
                there may be up to four more than ``limit``. Not those that ``exclude_mark`` leaves
                out, and none with ``mark``.
            max_tokens: Give no more than the newest turns that have so many tokens together, with
                prompts and summary. ``limit`` counts too; None reads as far back as is needed.
            token_counter: Counts the tokens of a message; without it ``token_count`` counts. It is
                called while the history is read, so it must not use the store.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: A mark is not a str of 1 to 255 characters; or without ``token_counter`` a
                message has no ``token_count``.
            LimitOutOfRange: The limit is negative or not a whole number.
            TurnTooLarge: The newest turn alone has more than ``max_tokens``.
        """
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
        """Give the last messages of a branch for ``messages=`` or ``input=``, the oldest first.

        The same as ``MessageRecord.to_chat`` of each message of ``history``, with the same
        arguments, errors and queries, but faster: only what a chat message has is read. What
        ``save_chat`` saved comes back equal. A ``payload`` that ``save`` was given is not read;
        see ``payloads``.

        Args:
            session_id: See ``history``, as for the others.
            limit: See ``history``.
            keep_tool_calls: See ``history``.
            branch: See ``history``.
            mark: See ``history``.
            exclude_mark: See ``history``.
            prepend_summary: See ``history``.
            unanswered: See ``history``.
            keep_system: See ``history``.
            max_tokens: See ``history``.
            token_counter: See ``history``; it is given a message as this method returns it.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: A mark is not a str of 1 to 255 characters; or without ``token_counter`` a
                message has no ``token_count``.
            LimitOutOfRange: The limit is negative or not a whole number.
            TurnTooLarge: The newest turn alone has more than ``max_tokens``.
        """
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
        """Give the payloads of the last messages of a branch, the oldest first.

        Calls and results are looked for in the payloads, and repaired there, if they have one of
        the three formats. A call of an unknown format is left as it is.

        Args:
            session_id: The session.
            limit: See ``history``, as for the others.
            keep_tool_calls: See ``history``.
            branch: See ``history``.
            mark: See ``history``.
            exclude_mark: See ``history``.
            unanswered: See ``history``.
            keep_system: See ``history``.
            max_tokens: See ``history``.
            token_counter: See ``history``; it is given a payload.

        Returns:
            A payload for each message that ``history`` would give, apart from repairs; None for a
            message without one.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: A mark is not a str of 1 to 255 characters; or without ``token_counter`` a
                message has no ``token_count``.
            LimitOutOfRange: The limit is negative or not a whole number.
            TurnTooLarge: The newest turn alone has more than ``max_tokens``.
        """
    async def page(
        self,
        session_id: str,
        *,
        before: str | None = None,
        limit: int = 100,
        branch: str | None = None,
        through: int | None = None,
    ) -> Page[MessageRecord]:
        """Page backwards through a branch.

        Args:
            session_id: The session.
            before: The ``next_cursor`` of the page before; None begins with the newest.
            limit: How many, up to 1,000.
            branch: The branch's name; None for the one that is active when the page is read.
            through: Without a cursor: begin with the message of this sequence number, or the
                newest that is older; None begins with the newest.

        Returns:
            Messages with the oldest first, as in a history; ``next_cursor`` leads to older ones.

        Raises:
            NotFound: There is no such session or branch.
            InvalidCursor: The cursor is of another session or list.
            LimitOutOfRange: The limit is over the maximum.
        """
    def iter(
        self,
        session_id: str,
        *,
        before: str | None = None,
        limit: int = 100,
        branch: str | None = None,
        through: int | None = None,
    ) -> AsyncGenerator[MessageRecord, None]:
        """Go over all pages of ``page``, the newest first.

        Arguments, order and errors are those of ``page``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def follow(self, cursor: str | None = None, *, limit: int = 100) -> Page[MessageRecord]:
        """Follow new messages, of all sessions and branches: give those since the last call.

        Each of them once, in the order in which they were saved. A streamed message is given when
        it begins. On PostgreSQL a message whose transaction ends late is given late, after others;
        it is missed only if some 60 transactions that began after it were rolled back or are still
        open.

        Args:
            cursor: The ``next_cursor`` of the call before. None begins with the newest messages.
            limit: How many, up to 1,000. If so many were given, call again at once.

        Returns:
            Messages, the oldest first; there always is a ``next_cursor``.
        """
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
        """Find messages by their words or by their meaning, on all branches, in any language.

        What any caller saved before the call is found: the index is brought up to date first,
        only for the user if one is named. That is a write if there are new messages, and costs
        nothing otherwise. If other writers block it, or in a transaction, the search reads the new
        messages itself. The first 250,000 characters of a message are searched; see
        ``Settings.search_characters``.

        By meaning, the text's vector is compared with those of all messages of the embeddings'
        ``roles`` that the other arguments let through, of the first 8,000 characters of each. What
        was saved since the last search has no vectors yet: those of the newest are made first, by
        one call of the embedding function; what is left waits for ``memories.embed_pending``.
        ``both`` fuses that list with the best by words, by their ranks.

        Args:
            text: Words, all of which a message must hold; ``"words in quotes"`` in a row;
                ``begin*`` for what begins so; ``-word`` for what must not be in it; ``this OR
                that``. Case, accents' encoding and width do not matter. Chinese, Japanese, Korean
                or Thai is found inside a sentence. Other characters separate words and have no
                meaning. If the store has stems, words outside of quotes find other forms of the
                word. Up to 1,000 characters; without a word in it nothing is found.
            by: ``words``, ``meaning`` or ``both``. By the latter two the best are found at once,
                without an order or a cursor; the score is the cosine, or the sum of both ranks.
            user_id: Only in this user's sessions.
            session_id: Only in this session.
            role: Only messages of this role.
            since: Only messages created at this time or later.
            until: Only messages created before this time.
            order: ``relevance``, the best first, within each 500 of the most recent hits;
                ``recent``, the last created first.
            limit: How many, up to 1,000.
            cursor: The ``next_cursor`` of the page before, of the same search.

        Returns:
            Hits. Order and scores are the same on both engines. A page reads at most some 10,000
            entries of the index, and messages that are not in it yet: if few of them pass the
            filters, it has fewer hits than ``limit``, or none, and a ``next_cursor``. The last page
            has no cursor.

        Raises:
            SearchIndexStale: The index is damaged, of another version or other stems, or being
                rebuilt where the scope's role sees only part of it. The error says what to run.
            InvalidInput: An argument cannot be asked for; the text is empty, or says only what
                not to find; or the store's embeddings are not for such messages.
            EmbeddingModelChanged: The vectors here are of another model than the store's.
            EmbeddingFailed: The embedding function raised something.
            InvalidEmbedding: It gave something else than vectors.
            TransactionMisuse: This is by meaning, in a transaction.
        """
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
        """Go over all pages of ``search``.

        Arguments, order and errors are those of ``search``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
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
        """Change the given parts of a message in place, and leave the rest.

        Every branch that shows the message shows it changed: to keep the first version, make a
        branch before it, and save another message there. Its id, number, turn, time, role,
        tool calls, external id and attachments stay. Searches find the new text and not the old
        one, and the session's tokens and cost change by the difference. An update is not activity
        of the session.

        Args:
            message_id: The message.
            content: See ``save``.
            metadata: See ``save``; it replaces what was there, whole. None takes it away.
            marks: See ``save``; they replace those that were there. None or ``[]`` takes them away.
            token_count: See ``save``. It does not follow the content by itself.
            cost: See ``save``.
            payload: See ``save``. It does not follow the content by itself.

        Returns:
            The message as it is now.

        Raises:
            NotFound: There is no such message.
            StreamUnfinished: It is still being streamed.
            CounterOverflow: The session's counters have no room.
            InvalidInput: An argument cannot be stored.
        """
    async def pop(self, session_id: str, *, branch: str | None = None) -> MessageRecord | None:
        """Remove the last message of a branch and return it; None if the branch is empty.

        Other branches that show it continue to show it; it is deleted if none does.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.

        Raises:
            NotFound: There is no such session or branch.
        """
    async def replace_tail(
        self,
        session_id: str,
        expected: Sequence[str],
        messages: ChatMessage | Sequence[ChatMessage],
        *,
        unknown: Unknown = "refuse",
        branch: str | None = None,
    ) -> bool:
        """Replace the last messages of a branch by others, if they are still the last ones.

        For compaction: read a history, let a model shorten it, and replace it without losing what
        others saved meanwhile. The check and the change are one transaction. Other branches that
        show the replaced messages continue to show them.

        Args:
            session_id: The session.
            expected: The ids of the messages to replace, in their order.
            messages: The new messages, as for ``save_chat``; ``[]`` for none.
            unknown: As in ``save_chat``.
            branch: The branch's name; None for the active one.

        Returns:
            Whether it was done. If not, these are not the last messages any more, and nothing was
            changed.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: ``expected`` is no list of ids, or has none; or a message cannot be
                stored.
        """
    async def delete(
        self,
        ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        external_ids: Sequence[str] = (),
    ) -> int:
        """Delete messages, on every branch that shows them; ids that do not exist are ignored.

        Args:
            ids: The messages, of one session or of several, up to 5,000: it is one transaction.
            session_id: Delete only messages of this session.
            external_ids: More messages of that session, by the application's own ids, up to 5,000.

        Returns:
            How many were deleted.

        Raises:
            InvalidInput: A list is no list of ids, or has more than 5,000; or there are external
                ids and no session.
        """
    async def delete_by_mark(self, session_id: str, mark: Marks) -> int:
        """Delete the messages of a session that have a mark, or any of several, on all branches.

        Returns:
            How many were deleted, each counted once.

        Raises:
            NotFound: There is no such session.
            InvalidInput: A mark is not a str of 1 to 255 characters.
        """
    async def size(
        self,
        session_id: str,
        *,
        branch: str | None = None,
        mark: Marks = None,
        exclude_mark: Marks = None,
    ) -> int:
        """Count the messages of a branch.

        Without filters it costs the same however many there are; with them, as many index entries
        are read as there are messages.

        Args:
            session_id: The session.
            branch: The branch's name; None for the active one.
            mark: See ``history``.
            exclude_mark: See ``history``.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: A mark is not a str of 1 to 255 characters.
        """
    async def clear(self, session_id: str) -> int:
        """Delete all messages of a session, on all branches; the session itself stays.

        Its branches stay too, empty, and its summary.

        Returns:
            How many were deleted.

        Raises:
            NotFound: There is no such session.
        """

class AsyncSearch(AsyncRepository):
    """The index behind ``messages.search``."""

    __slots__ = ()
    async def status(self) -> SearchStatus:
        """Say whether the index is whole, of this version, and how many changes it lacks."""
    async def refresh(self, limit: int | None = None) -> int:
        """Bring the index up to date now, as a search would.

        In batches of 200 messages or 256 kB, each in a transaction of its own, so that other
        writers get their turn. May run beside anything, itself included.

        Args:
            limit: Stop when so many changes are done; None means all that wait.

        Returns:
            How many changes were taken into the index.

        Raises:
            SearchIndexStale: The index is damaged, or of another version.
        """
    async def reindex(self, progress: Progress | None = None) -> int:
        """Rebuild the index, and create what is missing of its tables and triggers.

        Needed after an upgrade of agentstore that cuts text differently, after a damage, and
        for a large database that had no index yet. Messages can be read and written meanwhile,
        searches raise SearchIndexStale while much is missing. If it is interrupted, calling it
        again, or ``refresh``, finishes it.

        Args:
            progress: Called after each batch with the number of messages done and their total.

        Returns:
            How many messages were indexed.
        """

class AsyncSessions(AsyncRepository):
    """The sessions, and what an agent needs to come back to life."""

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
        """Create a session, active and empty.

        Args:
            user_id: The user that it belongs to; None for no user.
            title: For people.
            model: The model that it talks to.
            metadata: A JSON object of the application's.
            config: Model settings, a JSON object without secrets.
            state: Any JSON value: what the agent needs to go on.
            ttl: How long after its last activity it expires, in whatever status it is then; it
                stays until ``delete_expired`` is called. None means never. Activity is a message,
                or the creation.
            id: The application's own id; left out, a UUIDv7 is made.

        Raises:
            NotFound: There is no such user.
            AlreadyExists: The id is taken.
            SecretRefused: The config holds a secret and the policy refuses it.
            InvalidInput: An argument cannot be stored.
        """
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
        """Give the session with this id; create it if there is none.

        One statement if it is there. Any number of callers, in any number of processes, may do this
        at once: one of them creates it, and all get the same. The other arguments say what a new
        session begins with; one that is there stays as it is.

        Args:
            id: The application's own id.
            user_id: The user that it belongs to; None takes anybody's, and creates one of nobody's.
            title: See ``create``, as for the others.
            model: See ``create``.
            metadata: See ``create``.
            config: See ``create``.
            state: See ``create``.
            ttl: See ``create``.

        Raises:
            TakenByAnother: The session is there and belongs to another user than ``user_id`` or, in
                a scope, than the scope's; or it is being deleted.
            NotFound: There is no such user.
            SecretRefused: The config holds a secret and the policy refuses it.
            InvalidInput: An argument cannot be stored, whether or not the session is there.
        """
    async def get(self, session_id: str) -> SessionRecord:
        """Give a session.

        Raises:
            NotFound: There is no such session.
        """
    async def find(self, session_id: str) -> SessionRecord | None:
        """Give a session, or None."""
    async def find_ids(self, beginnings: Sequence[str], *, limit: int = 1000) -> list[str]:
        """Find ids by their beginnings, of those that agentstore made itself.

        Args:
            beginnings: The first characters of ids, four at least, in lower case with hyphens. A
                single one is passed in a list, too.
            limit: How many ids to give at most, up to 1,000.

        Returns:
            The ids that begin with any of them, in alphabetical order.

        Raises:
            InvalidInput: No id that agentstore makes begins so.
        """
    async def titles(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Give the titles of sessions by their ids, in that order; what is not there is left out.

        Args:
            ids: The sessions, up to 1,000.
        """
    async def restore(self, session_id: str, limit: int | None = None) -> RestoredSession:
        """Give all that an agent needs to continue a session after its process died.

        The messages are as ``messages.history`` gives them: a call that was interrupted has a
        placeholder for its result. Two queries that see one state of the database; one where the
        session has no messages.

        Args:
            session_id: The session.
            limit: How many messages of the active branch, the last ones; None means all. With a
                limit there may be a few more, and another query: see ``messages.history``.

        Raises:
            NotFound: There is no such session.
            LimitOutOfRange: The limit is negative or not a whole number.
        """
    async def state_dict(self, session_id: str) -> dict[str, Any]:
        """Give what is needed to find the session again, and no message: a small JSON object
        with its id, its user's and the name of its active branch.

        Raises:
            NotFound: There is no such session.
        """
    async def load_state_dict(
        self, state: Mapping[str, Any], *, strict: bool = True
    ) -> SessionRecord:
        """Go back to the session of a ``state_dict``, and to the branch that was active then.

        Args:
            state: What ``state_dict`` gave, perhaps in another process.
            strict: Whether it must be just that, and the branch be there still. Otherwise other
                keys are ignored, and so is a branch that is gone.

        Raises:
            NotFound: There is no such session of that user, or, if strict, no such branch.
            InvalidInput: It is no such object.
        """
    @overload
    async def list(
        self, /, *, documents: Literal[True], **filters: Unpack[SessionFilters]
    ) -> Page[SessionRecord]:
        """List sessions, the one with the newest activity first, or with the oldest.

        Activity is a message, or the creation. The order is that of the writes themselves,
        whatever the clock said. A session that is written to while one pages moves to the
        newest, so it may be seen twice, or, if it was further down, only on the first page.

        User, status and ``failed`` have an index. The other filters read up to 2,000 sessions of
        these for a page: where they let few through, it has fewer sessions than ``limit``, or none,
        and a ``next_cursor`` to go on. The last page has no cursor.

        Args:
            user_id: Only this user's.
            status: Only in this status.
            title: Only with this in the title; case does not count, in any script.
            model: Only of this model.
            since: Only those whose last activity was at this time or later.
            until: Only those whose last activity was before this time.
            metadata: Only with these values in the metadata, by their paths, such as
                ``{"project.name": "x"}``; a tuple of keys is a path where a key holds a dot. Values
                are compared as JSON, objects and lists whole.
            failed: Only those that failed, or in which a logged call of a tool, or a task, did.
            order: ``newest`` or ``oldest`` activity first.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
            documents: Give metadata, config and state too, and when they were changed: a
                ``SessionRecord`` of each session instead of a ``SessionSummary``.
            preview: Give the first 200 characters of what the user said first on main, on one line:
                one more statement. None where nothing was said, or nothing that is text, or where
                content blocks have more than 20,000 characters.

        Raises:
            InvalidInput: A filter cannot be asked for.
        """
    @overload
    async def list(
        self, /, *, documents: bool = False, **filters: Unpack[SessionFilters]
    ) -> Page[SessionSummary]:
        """List sessions, the one with the newest activity first, or with the oldest."""
    @overload
    def iter(
        self, /, *, documents: Literal[True], **filters: Unpack[SessionFilters]
    ) -> AsyncGenerator[SessionRecord, None]:
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
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
        """List turns that began and did not end, of the sessions with the newest activity first.

        A turn has not ended where its session is active and its last message is the user's, a
        tool's, a call of a tool, or not complete; or where a message is being streamed, a task of
        the session runs, or something is reserved for it. It is left out while somebody works on
        it: if the session, a piece of a stream or a reservation is newer than ``older_than``, or a
        task has a lease that has not run out. A model that takes longer than ``older_than`` makes a
        turn look interrupted.

        Args:
            older_than: For how long nothing must have happened.
            user_id: Only this user's.
            limit: How many sessions to look at, up to 1,000: a page may have fewer turns, or none,
                and a ``next_cursor`` to go on.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            InvalidInput: The time is negative or no timedelta.
        """
    def iter_interrupted(
        self,
        *,
        older_than: timedelta = timedelta(minutes=5),
        user_id: str | None = None,
        limit: int = 500,
        cursor: str | None = None,
    ) -> AsyncGenerator[InterruptedTurn, None]:
        """Go over all pages of ``interrupted``.

        Arguments, order and errors are those of ``interrupted``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def walk(
        self, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[SessionRecord]:
        """List sessions in the order of their creation, to visit every one.

        Unlike ``list``, nothing moves while one pages: each session is seen exactly once.
        """
    def iter_walk(
        self, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[SessionRecord, None]:
        """Go over all pages of ``walk``.

        Arguments, order and errors are those of ``walk``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def count(
        self, *, user_id: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """Count sessions, of a user and in a status if given."""
    async def rename(self, session_id: str, title: str | None) -> SessionRecord:
        """Change the title.

        Raises:
            NotFound: There is no such session.
        """
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
        """Change what is given and leave the rest; documents are replaced whole.

        Args:
            session_id: The session.
            title: See ``create``.
            model: See ``create``.
            metadata: See ``create``.
            config: See ``create``.
            state: See ``create``.
            ttl: See ``create``. It counts from the last activity and not from now, so it may be
                over already.
            expected_version: The ``version`` that the caller has read. With it, nothing is
                changed if somebody else changed the documents since.

        Raises:
            StaleSession: The session is at another version.
            NotFound: There is no such session.
            SecretRefused: The config holds a secret and the policy refuses it.
            InvalidInput: An argument cannot be stored.
        """
    async def patch(
        self,
        session_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        expected_version: int | None = None,
    ) -> SessionRecord:
        """Change some keys of the metadata and of the state, and leave the others.

        One level deep: what stands under a key is replaced whole, and None is a value like any
        other. Several callers may do so at once, and each one's keys are there afterwards.

        Args:
            session_id: The session.
            metadata: The keys to set.
            state: The keys to set; the state must be an object, or None, which counts as empty.
            expected_version: See ``update``.

        Raises:
            StaleSession: The session is at another version.
            NotFound: There is no such session.
            InvalidInput: An argument cannot be stored, or the state is no object.
        """
    async def pause(self, session_id: str) -> SessionRecord:
        """Go from active to paused.

        Raises:
            IllegalTransition: The session is in a status from which it cannot.
            NotFound: There is no such session.
        """
    async def resume(self, session_id: str) -> SessionRecord:
        """Go from paused to active. A finished session stays finished, and a question pending
        is answered with ``answer``.

        Raises:
            IllegalTransition: The session is not paused.
            NotFound: There is no such session.
        """
    async def complete(self, session_id: str) -> SessionRecord:
        """Finish the session. Raises as ``pause`` does."""
    async def cancel(self, session_id: str) -> SessionRecord:
        """Finish the session before its time. Raises as ``pause`` does."""
    async def fail(self, session_id: str, *, reason: str | None = None) -> SessionRecord:
        """Finish the session as failed. One that has failed already stays as it is.

        Args:
            session_id: The session.
            reason: Why, for people: ``failure`` of the session. Secrets are redacted as those of
                tool logs are.

        Raises:
            IllegalTransition: The session was completed or cancelled.
            NotFound: There is no such session.
            SecretRefused: The reason holds a secret and the policy refuses it.
        """
    async def wait_for_user(self, session_id: str, question: str) -> SessionRecord:
        """Ask the user something and wait; the question survives a restart.

        Raises:
            IllegalTransition: The session is not active.
            NotFound: There is no such session.
        """
    async def answer(self, session_id: str, text: str) -> MessageRecord:
        """Answer the pending question: in one transaction the answer becomes a user message,
        the question is gone and the session is active.

        Returns:
            The user message.

        Raises:
            IllegalTransition: The session does not wait for an answer.
            NotFound: There is no such session.
        """
    async def reset(self, session_id: str) -> int:
        """Delete all that was said: messages, branches, summaries, and the usage recorded.

        The session stays, with its title, owner, state, metadata, tool logs, tasks and checkpoints.
        Numbers of messages and branches continue; names of branches are free again, except
        reserved ones. Its ``epoch`` grows by one, in the same transaction. A process that keeps
        something of the session in memory keeps the epoch too: another one means a reset since.

        Returns:
            How many messages were deleted.

        Raises:
            NotFound: There is no such session.
        """
    async def delete(self, session_id: str) -> DeletionReceipt:
        """Delete a session and everything that belongs to it.

        Returns:
            How many rows were deleted from each table.

        Raises:
            NotFound: There is no such session.
        """
    async def delete_expired(
        self, *, batch_size: int = 20, limit: int | None = None
    ) -> ExpiryReport:
        """Delete expired sessions, with everything that belongs to them.

        A session expires when there was no activity in it for longer than its ``ttl``, by the
        store's clock, in whatever status it is: also one that waits for its user. One that is
        active meanwhile stays: whether it has expired is decided under a lock on it, and one that
        somebody else is writing to is passed over.

        Works in transactions of up to ``batch_size`` sessions and 500 rows, so that no writer waits
        long. A session with more rows ends in one transaction, which also deletes all its tasks
        that could still run. From then on ``get`` and ``find`` do not find it, ``count`` leaves it
        out, its history is empty, and writes to it or into its threads raise NotFound. Its rows are
        deleted in the following transactions. Until then its messages, logs, attachments and usage
        can be read by their own ids, and in lists, sums and searches of all sessions; its
        checkpoints can be read by thread, and each is deleted whole, the latest of a namespace
        last. Its id stays taken until all is deleted. On PostgreSQL a write that began just before
        the end may succeed just after it, and is deleted with the rest.

        Any number of callers may clean up at once. If one is interrupted, what it has deleted stays
        deleted, and the next call continues. A transaction that a broken connection leaves in doubt
        is repeated, and what it deleted is missing from the report.

        Inside a transaction everything is deleted at once, whatever its size.

        Args:
            batch_size: Sessions in one transaction at most, up to 1,000.
            limit: How many sessions to delete at most; None means all that have expired by now.

        Raises:
            InvalidInput: ``batch_size`` or ``limit`` is out of range.
        """
    async def verify(self, session_id: str) -> SessionCounters:
        """Compute what the messages add up to, beside what the session's counters say.

        Raises:
            NotFound: There is no such session.
        """
    async def _ids_after(
        self, after: int, limit: int, user_id: str | None
    ) -> Sequence[tuple[int, str]]:
        """Give the row numbers and ids of sessions, of a user if given, in the order of creation.

        Args:
            after: The last row number before; 0 begins.
            limit: How many to give at most.
            user_id: Whose sessions; None for all.
        """
    async def _read_whole(self, session_id: str) -> WholeSession:
        """Read a session, its layout and the messages of its active branch; raises NotFound."""
    async def _scope(self) -> str | None: ...
    async def _keep_layout(self, session_id: str, layout: Any) -> None:
        """Write down how the line of an import was laid out that a session was made of.

        Raises:
            NotFound: There is no such session.
        """

class AsyncSummaries(AsyncRepository):
    """The summaries of sessions, one for each branch that has its own.

    A summary is no message: clearing the messages leaves it, and a history begins with it only
    where ``prepend_summary`` says so. A branch without one has that of the branch it grew from,
    unless that tells of messages which came after.
    """

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
        """Write the summary of a branch, in place of what it had of its own.

        Args:
            session_id: The session.
            content: The text.
            through_seq: The sequence number of the last message that it tells of; None means the
                last one of the branch as it is now.
            metadata: A JSON object of the application's.
            branch: The branch's name; None for the active one.

        Raises:
            NotFound: There is no such session or branch.
            InvalidInput: An argument cannot be stored.
        """
    async def find(self, session_id: str, *, branch: str | None = None) -> SummaryRecord | None:
        """Give the summary of a branch, or None.

        Raises:
            NotFound: There is no such session or branch.
        """
    async def delete(self, session_id: str, *, branch: str | None = None) -> bool:
        """Delete the summary that a branch has of its own.

        Returns:
            Whether there was one.

        Raises:
            NotFound: There is no such session or branch.
        """

class AsyncTasks(AsyncRepository):
    """The tasks, in a session or on their own.

    ``start``, ``complete`` and ``fail`` alone are enough where one program does its own tasks.
    Workers that share them ``claim`` them: such a task is held under a lease, and from then on
    only its holder, who passes its ``fence``, can complete it or make it fail.
    """

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
        """Create a task, pending.

        In ``store.transaction()`` it is created together with whatever else is written there, or
        not at all.

        Args:
            session_id: The session that it belongs to; None for a task on its own.
            kind: What is to be done; the application's own word.
            payload: Any JSON.
            priority: The highest goes first.
            run_at: When it may be started at the earliest; None means now, by the clock that
                leases go by.
            max_retries: How often a failed attempt may be repeated. That a worker dies is one:
                with 0 the task is dead then.
            queue: Which workers take it.
            alone_in_session: Whether it waits while another task of its session that asked for
                the same runs.
            idempotency_key: Unique in its queue: a repeated call returns the first one's task.

        Raises:
            NotFound: There is no such session, or it is being deleted.
            AlreadyExists: The idempotency key is that of a task whose user is being deleted.
            NaiveDatetime: ``run_at`` has no time zone.
            InvalidInput: An argument cannot be stored.
        """
    async def get(self, task_id: str) -> TaskRecord:
        """Give a task.

        Raises:
            NotFound: There is no such task.
        """
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
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def count(
        self, *, session_id: str | None = None, queue: str | None = None
    ) -> dict[str, dict[str, int]]:
        """Count tasks: for each queue, how many are in which status; what is 0 is left out.

        Reads an index of all tasks, or of those of the session or the queue.

        Args:
            session_id: Only this session's.
            queue: Only this queue's.
        """
    async def start(self, task_id: str) -> TaskRecord:
        """Go from pending to running, and count the attempt; nobody else can claim it then.

        There is no lease: if this process dies, the task stays running.

        Raises:
            IllegalTransition: The task is in a status from which it cannot.
            SessionBusy: It asked to be alone in its session, and is not.
            NotFound: There is no such task.
        """
    async def complete(
        self, task_id: str, result: Any = None, *, fence: int | None = None
    ) -> TaskRecord:
        """Go from running to completed, with a result, any JSON.

        Args:
            task_id: The task.
            result: What came of it.
            fence: ``fence`` of the record that ``claim`` returned, if it was claimed.

        Raises:
            LeaseLost: Somebody else holds the task, or nobody does any more.
            IllegalTransition: The task is not running.
            NotFound: There is no such task.
        """
    async def fail(
        self,
        task_id: str,
        error: str | None = None,
        *,
        fence: int | None = None,
        retry: bool = True,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> TaskRecord:
        """Record that the attempt failed, and why; secrets are redacted by the store's policy.

        A task that was claimed is pending again after a pause as long as ``failures`` does not
        exceed ``max_retries``, then dead. A task that was started with ``start``, or with
        ``retry=False``, is failed. If its cancellation was requested, it is cancelled.

        Args:
            task_id: The task.
            error: What went wrong.
            fence: ``fence`` of the record that ``claim`` returned, if it was claimed.
            retry: Whether trying again may help.
            backoff: How long to wait before.

        Raises:
            LeaseLost: Somebody else holds the task, or nobody does any more.
            IllegalTransition: The task is not running.
            NotFound: There is no such task.
            SecretRefused: A secret was found and the policy refuses it.
            InvalidInput: An argument cannot be stored, or ``backoff`` is no ``Backoff``.
        """
    async def pause(self, task_id: str) -> TaskRecord:
        """Go from pending or running to paused. Raises as ``start`` does.

        A task that a worker holds is taken away from it: the worker learns of it at its next
        heartbeat, and its later calls about the task are refused.
        """
    async def resume(self, task_id: str) -> TaskRecord:
        """Go from paused to pending. Raises as ``start`` does."""
    async def retry(self, task_id: str) -> TaskRecord:
        """Go from failed or dead to pending, to be started again. Raises as ``start`` does.

        What failed before still counts: a dead task is given one more attempt. ``requeue`` gives
        dead tasks all their retries again.
        """
    async def cancel(self, task_id: str, *, fence: int | None = None) -> TaskRecord:
        """Go to cancelled from pending, running or paused. Raises as ``start`` does.

        A task that a worker holds keeps running, with ``cancel_requested``: the worker learns of
        it at its next heartbeat, and confirms by calling this with its fence. If it completes the
        task instead, that counts; if it fails, dies or gives it back, the task is cancelled.

        Args:
            task_id: The task.
            fence: The fence of the worker that holds the task, to confirm.

        Raises:
            LeaseLost: The caller with this fence does not hold the task any more.
        """
    async def claim(
        self,
        worker: str,
        *,
        queues: str | Sequence[str] = "default",
        kinds: str | Sequence[str] | None = None,
        limit: int = 1,
        lease: float = DEFAULT_LEASE,
    ) -> tuple[TaskRecord, ...]:
        """Take tasks that are due, each with a lease and a fencing token.

        No task is given to two callers, however many ask at once, and no caller waits: tasks that
        another one is claiming are skipped.

        Args:
            worker: Who claims; for people, and for ``worker`` of the records.
            queues: From which queues, all alike: up to 100.
            kinds: Only tasks of these kinds; None means all.
            limit: How many at most, up to 1,000.
            lease: Seconds until the tasks are given to others if no heartbeat comes.

        Returns:
            The tasks, running now: highest priority first, then oldest. Empty if none is due.
            Of the tasks of a session that ask to be alone there is at most one, and none while
            another one runs.

        Raises:
            InvalidInput: An argument cannot be asked for.
        """
    async def heartbeat(
        self, task_id: str, *, fence: int, lease: float = DEFAULT_LEASE
    ) -> TaskRecord:
        """Renew the lease on a task.

        Args:
            task_id: The task.
            fence: ``fence`` of the record that ``claim`` returned.
            lease: Seconds from now until it runs out.

        Returns:
            The task. If ``cancel_requested``, stop and call ``cancel`` with the fence.

        Raises:
            LeaseLost: The caller does not hold the task any more: stop.
            NotFound: There is no such task.
        """
    async def heartbeat_many(
        self, held: Sequence[TaskRecord], *, lease: float = DEFAULT_LEASE
    ) -> TaskBatch:
        """Renew the leases on tasks, in one statement.

        Args:
            held: Records that ``claim`` returned, up to 1,000.
            lease: Seconds from now until they run out.
        """
    async def release(self, task_id: str, *, fence: int) -> TaskRecord:
        """Give a task back, to be claimed by others at once; it does not count as a failure.

        Returns:
            The task: pending, or cancelled if that was asked for.

        Raises:
            LeaseLost: The caller does not hold the task any more.
            NotFound: There is no such task.
        """
    async def complete_many(self, done: Sequence[tuple[TaskRecord, Any]]) -> TaskBatch:
        """Complete tasks with their results, in one transaction.

        Args:
            done: Records that ``claim`` returned, up to 1,000, each with its result, any JSON.

        Returns:
            The tasks that were completed, and the ids of those that were lost.

        Raises:
            InvalidJson: A result is not JSON; nothing was written.
        """
    async def fail_many(
        self,
        failed: Sequence[tuple[TaskRecord, str | None]],
        *,
        retry: bool = True,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> TaskBatch:
        """Say that attempts failed, each with its error, in one transaction; see ``fail``.

        Args:
            failed: Records that ``claim`` returned, up to 1,000, each with what went wrong.
            retry: Whether trying again may help.
            backoff: How long to wait before.

        Returns:
            The tasks that were held, and the ids of those that were lost.
        """
    async def rescue(
        self, *, limit: int = 100, backoff: Backoff = DEFAULT_BACKOFF
    ) -> tuple[TaskRecord, ...]:
        """Recover the tasks of all queues whose leases have run out.

        Each counts as a failed attempt: the task is pending again after a pause, or dead if it
        has no retries left, or cancelled if that was asked for. Workers call this now and then.

        If the clock was set back since a lease was given or renewed, the lease starts again now,
        with the length that it had.

        Args:
            limit: How many at most, up to 1,000.
            backoff: How long to wait before they are tried again.

        Returns:
            The tasks, as they are now, the longest overdue first, then the one that was created
            first.
        """
    async def requeue(
        self, *, queue: str = "default", kind: str | None = None, limit: int = MAX_LIMIT
    ) -> int:
        """Make dead tasks pending again, the oldest first, with all their retries.

        Args:
            queue: Of which queue.
            kind: Only tasks of this kind; None means all.
            limit: How many at most, up to 1,000.

        Returns:
            How many were made pending.
        """
    async def due(
        self, *, queues: str | Sequence[str] = "default", kinds: str | Sequence[str] | None = None
    ) -> float | None:
        """Give the seconds until a pending task is due: 0.0 if one is, None if there is none.

        Tasks that wait to be alone in their session count as the others do, so there may be
        nothing to claim although the answer is 0.0.
        """
    async def watch(self) -> TaskSignal:
        """Give what tells that tasks may have become claimable; ``Worker`` waits for it.

        It has a connection of its own, to the primary, from ``open()`` to ``close()``.
        """

class AsyncToolLogs(AsyncRepository):
    """The calls of tools."""

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
        """Log one call of a tool; secrets are redacted by the store's policy.

        Args:
            session_id: The session in which it was called.
            tool: The tool's name.
            input: What it was called with, any JSON.
            output: What it gave, any JSON.
            elapsed_ms: How long it took, in milliseconds, up to 10**12.
            success: Whether it did what it should; by default, whether there is no ``error``.
            error: What went wrong: the call failed.
            message_id: The message that called it, of the same session.
            tool_call_id: The id by which the model called it, as in the message's ``tool_calls``:
                it tells which of several calls of one tool this was.

        Raises:
            NotFound: There is no such session or message, or the session is being deleted.
            WrongSession: The message is of another session.
            SecretRefused: A secret was found and the policy refuses it.
            InvalidInput: An argument cannot be stored, or a call with an error is said to have
                succeeded.
        """
    async def get(self, log_id: str) -> ToolLogRecord:
        """Give a log.

        Raises:
            NotFound: There is no such tool log.
        """
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
        """List logs, the last written first; with ``since`` or ``until``, by their times.

        Args:
            session_id: Only of this session.
            tool: Only of this tool.
            success: False gives those that failed, True the others.
            text: Only with this in the tool's name or the error; case does not count, in any
                script. It has no index: a page looks through up to 40 times ``limit`` logs, and may
                have none and a ``next_cursor`` to go on.
            since: Only from this instant on.
            until: Only before this instant.
            order: ``newest`` first, or ``oldest`` first.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NaiveDatetime: ``since`` or ``until`` has no time zone.
            InvalidInput: ``success`` is no bool, or ``order`` is another word.
        """
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
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def stats(
        self,
        *,
        session_id: str | None = None,
        tool: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[ToolStats, ...]:
        """Add up the calls of each tool, the most called first, then by name.

        The arguments are as for ``list``.
        """

class AsyncUsage(AsyncRepository):
    """What users and the database as a whole have used."""

    __slots__ = ()
    async def stats(
        self, user_id: str, days: float = 7, *, until: datetime | None = None
    ) -> UserStats:
        """Add up what a user did in the last days.

        Sessions, messages, tokens and cost are those **of the window**, not the lifetime totals
        of sessions that were touched in it. The window ends at ``until``, which does not belong
        to it, and began so many times 24 hours earlier.

        Args:
            user_id: The user.
            days: The window's length, more than 0.
            until: The window's end; None means now, this instant included.

        Raises:
            NotFound: There is no such user.
            InvalidInput: The number of days is not positive.
        """
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
        """Record what requests to a model used. It is added to what the turn has used so far.

        Args:
            session_id: The session.
            usage: What the provider's client says, in the place of the numbers of tokens: the
                ``usage`` of an answer of OpenAI's or Anthropic's, or the whole answer, which
                names the model too; objects and dicts. Cached and reasoning tokens and the like
                are counted in the details. See ``agentstore.values.token_use``.
            input_tokens: Tokens read, the cached ones included.
            output_tokens: Tokens written.
            total_tokens: What the provider counts as total; None, or 0, means the sum of both.
            cached_input_tokens: How many of the tokens read were cached; for the price.
            requests: How many requests there were.
            model: The model; None means the answer's, where ``usage`` is one, or the session's.
            cost: What it cost; None means by the store's ``prices``, and unknown if the model
                has no price there.
            details: A JSON object of the application's.
            turn: The turn; None means the active branch's last one, or that of the one named.
            branch: The branch's number, or its name; None means the active one. A number that
                comes with a turn is not looked up: what a branch used that was deleted meanwhile
                is recorded all the same.
            reservation_id: The reservation of a quota that pays, in the same transaction: so many
                tokens are consumed, and so many fewer are reserved. What is more than it has is
                consumed too. Pass to ``settle_quota`` only what was not recorded like this.

        Raises:
            NotFound: There is no such session, or it is being deleted; or no such branch, or
                reservation.
            CounterOverflow: The reservation's user has consumed as much as can be counted.
            InvalidInput: An amount is negative, no whole number, or more than 10**9; or the cost,
                whether passed or computed, is more than 1,000.
        """
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
        """List what was recorded of a session, by branch, turn and time of recording.

        Args:
            session_id: The session.
            branch: Only this branch: its number, or its name. None means all, those that are
                deleted included.
            turn: Only this turn.
            from_turn: Only this turn and later ones.
            to_turn: Only this turn and earlier ones.
            limit: How many, up to 1,000.
            cursor: The ``next_cursor`` of the page before.

        Raises:
            NotFound: There is no such session, or nothing was recorded and no branch has this name.
            InvalidInput: Both a turn and a range of turns were given.
        """
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
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def delete(
        self, session_id: str, *, branch: Branch = None, turn: int | None = None
    ) -> int:
        """Delete what was recorded of a session; the arguments are those of ``list``.

        Returns:
            How many records were deleted.

        Raises:
            NotFound: There is no such session, or nothing was recorded and no branch has this name.
        """
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
        """Record what a turn used in the place of all that was recorded for it before.

        The arguments, and what is raised, are those of ``record``.
        """
    @overload
    async def sum_by(
        self, dimension: Literal["turn", "branch"], **filters: Unpack[SumFilters]
    ) -> tuple[UsageSum[int], ...]:
        """Add up what was used, for each value of a dimension.

        Args:
            dimension: ``turn``, ``branch``, ``branch_turn`` (turns of each branch),
                ``session``, ``user``, ``model``, ``day``, ``week`` or ``month`` (in UTC; a
                week begins on Monday) or ``total``, which gives one sum of all; or two of
                them, as in ``("week", "model")``: then a key is a pair. Turns and branches are
                numbered in their session: pass ``session_id`` with them.
            session_id: Only this session.
            user_id: Only this user's sessions.
            model: Only this model.
            branch: Only this branch: its number, or its name, with ``session_id``.
            since: Only from this instant on.
            until: Only before this instant.
            top: Only so many, up to 1,000, that cost most; of equals those of more tokens.

        Returns:
            The sums, by their keys, ascending, none first; with ``top`` what cost most first.

        Raises:
            NotFound: Nothing was recorded, and no branch has this name.
            InvalidInput: The dimension is unknown; or turns or branches are without a session.
            LimitOutOfRange: ``top`` is.
            NaiveDatetime: ``since`` or ``until`` has no time zone.
        """
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
        """Add up what was recorded of each of some sessions, by one statement for a list.

        Args:
            ids: The sessions, up to 1,000.
            most: How many records of a session to read at most, the last ones: then the time that
                this takes does not grow with them. A sum of so many is ``partial``. None reads all.

        Returns:
            The sums by the sessions' ids, in their order; without those that do not exist or used
            nothing.

        Raises:
            InvalidInput: ``ids`` is no list of ids, or has more than 1,000; or ``most`` is no
                number of 1 or more.
        """
    async def totals(self) -> DatabaseTotals:
        """Count the rows of every table, exactly, and add the messages up.

        Rows of users who are being deleted count as long as they are there; sessions by their
        status, tokens and costs leave them out.

        Reads the whole database: for people and reports, not for a hot path.
        """

class AsyncUsers(AsyncRepository):
    """The users: who they are, what they prefer, what they may spend, their keys."""

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
        """Create a user.

        Args:
            name: What to call the user; need not be unique.
            email: Contact data, not an identity: need not be unique.
            quota_total: Tokens that the user may consume in all; None means without limit.
            preferences: A JSON object.
            id: The application's own id; left out, a UUIDv7 is made.

        Raises:
            AlreadyExists: The id is taken; ``BeingDeleted`` if by a user whose deletion has not
                ended.
            InvalidInput: An argument cannot be stored.
        """
    async def ensure(
        self,
        id: str | None = None,
        *,
        email: str | None = None,
        name: str | None = None,
        quota_total: int | None = None,
        preferences: Mapping[str, Any] | None = None,
    ) -> UserRecord:
        """Give the user with this id or, without one, with this email address; or create one.

        One statement if the user is there. Any number of callers, in any number of processes, may
        do this at once: one of them creates the user, and all get the same. The other arguments say
        what a new user begins with; one that is there stays as it is.

        Args:
            id: The application's own id; None looks for the email address.
            email: The address; of several users who have it the first one is given.
            name: What to call a new user; None means the email address or, without one, the id.
            quota_total: See ``create``.
            preferences: See ``create``.

        Raises:
            BeingDeleted: There is a user with this id, whose deletion has not ended.
            InvalidInput: Neither an id nor an email address was passed, or an argument cannot be
                stored, whether or not the user is there.
        """
    async def get(self, user_id: str) -> UserRecord:
        """Give a user.

        Raises:
            NotFound: There is no such user.
        """
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
        """List users, the newest first.

        With ``text`` up to 2,000 users are read for a page: it may have fewer users than the limit,
        or none, and say where to go on.

        Args:
            email: Only those with this email address.
            text: Only those who have this in their name, address or id; case does not count, in any
                script.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
    def iter(
        self,
        *,
        email: str | None = None,
        text: str | None = None,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[UserRecord, None]:
        """Go over all pages of ``list``.

        Arguments, order and errors are those of ``list``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def names(self, ids: Sequence[str]) -> dict[str, str]:
        """Give the names of users, by their ids; who does not exist is left out.

        Args:
            ids: The users, up to 1,000.
        """
    async def find_by_preference(
        self,
        path: str | Sequence[str],
        value: Any,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[UserRecord]:
        """List the users who have this value at this place in their preferences, newest first.

        Args:
            path: Keys with dots between, such as ``ui.theme``; a list of keys where one of them
                holds a dot.
            value: Any JSON value; objects and lists are compared whole.
            limit: How many to give at most.
            cursor: The ``next_cursor`` of the page before.
        """
    def iter_find_by_preference(
        self,
        path: str | Sequence[str],
        value: Any,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> AsyncGenerator[UserRecord, None]:
        """Go over all pages of ``find_by_preference``.

        Arguments, order and errors are those of ``find_by_preference``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def update(
        self,
        user_id: str,
        *,
        name: str | Unset = UNSET,
        email: str | Unset | None = UNSET,
        quota_total: int | Unset | None = UNSET,
        preferences: Mapping[str, Any] | Unset = UNSET,
    ) -> UserRecord:
        """Change what is given and leave the rest.

        ``preferences`` replaces the whole object.

        Raises:
            NotFound: There is no such user.
            InvalidInput: An argument cannot be stored.
        """
    async def delete(self, user_id: str) -> DeletionReceipt:
        """Delete a user and everything that belongs to the user: sessions, keys, threads.

        A user with up to 500 rows is deleted in one transaction. With more rows, a first short
        transaction hides everything: from then on nothing of the user is found, listed, counted,
        claimed or written, and keys authenticate nobody. The rows are deleted in the following
        transactions, of up to 500 rows each and fewer if they are large, so that no other writer
        waits long; on SQLite with pauses between them.

        If that is interrupted, the rest stays hidden: call this again, or ``prune`` or
        ``sessions.delete_expired``, to continue. Until it ends, the ids of the user and of what
        belongs to the user stay taken. Bytes that other attachments use too are kept.

        Inside a transaction everything is deleted at once, and other writers wait for its end.

        Returns:
            How many rows were deleted from each table, by all calls together. If several callers
            delete the same user at once, the one that finishes gets this, and the others get
            receipts without rows.

        Raises:
            NotFound: There is no such user.
            ConnectionLost: It is not known whether the last transaction was committed; call this
                again.
        """
    async def check_quota(self, user_id: str, tokens: int) -> bool:
        """Say whether the user could consume so many tokens now.

        The answer is out of date as soon as it is given; only ``consume_quota`` decides.

        Raises:
            NotFound: There is no such user.
            InvalidInput: The amount is negative or not a whole number.
        """
    async def consume_quota(self, user_id: str, tokens: int) -> int | None:
        """Consume tokens, if so many are left.

        Returns:
            The tokens left; None for a user without limit.

        Raises:
            QuotaExceeded: Fewer are left; none were consumed.
            CounterOverflow: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such user.
            InvalidInput: The amount is negative, not a whole number or more than 10**9.
        """
    async def reservations(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[ReservationRecord]:
        """List the open reservations of a user's quota, the first to expire first.

        They belong to calls that are running, or whose process died. ``release_quota`` gives a
        reservation back before it expires.
        """
    def iter_reservations(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[ReservationRecord, None]:
        """Go over all pages of ``reservations``.

        Arguments, order and errors are those of ``reservations``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def reserve_quota(
        self,
        user_id: str,
        tokens: int,
        *,
        ttl: timedelta = timedelta(minutes=10),
        session_id: str | None = None,
    ) -> ReservationRecord:
        """Reserve tokens for a call whose cost is known only afterwards.

        Args:
            user_id: The user.
            tokens: The most that the call may cost, above 0.
            ttl: After which time the reservation expires if nobody settles it, up to a year.
            session_id: The session that the call is for, by which ``sessions.interrupted`` lists
                the reservation; it is checked only in a scope.

        Raises:
            QuotaExceeded: Fewer are left; none were reserved.
            CounterOverflow: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such user.
            InvalidInput: The amount or the time is not positive.
        """
    async def reserve_for_session(
        self, session_id: str, tokens: int, *, ttl: timedelta = timedelta(minutes=10)
    ) -> ReservationRecord:
        """Reserve tokens of the session's user; see ``reserve_quota``.

        Raises:
            QuotaExceeded: Fewer are left; none were reserved.
            CounterOverflow: The user has no limit, but has consumed as much as can be counted.
            NotFound: There is no such session, or it is being deleted.
            InvalidInput: The amount or the time is not positive, or the session has no user.
        """
    async def settle_quota(self, reservation_id: str, tokens: int) -> int | None:
        """Consume what a call really cost, and give back the rest of its reservation.

        What was recorded by ``usage.record(reservation_id=)`` is consumed already.

        What was spent is spent: it is counted in full, also if it is more than was reserved, or
        than is left, and also if the reservation has expired.

        Returns:
            The tokens left, never below 0; None for a user without limit.

        Raises:
            NotFound: There is no such reservation: it was settled or released.
            CounterOverflow: The user has consumed as much as can be counted.
            InvalidInput: The amount is negative or not a whole number.
        """
    async def release_quota(self, reservation_id: str) -> int | None:
        """Give a reservation back: the call was not made, or its process died.

        Returns:
            The tokens left; None for a user without limit.

        Raises:
            NotFound: There is no such reservation: it was settled or released.
        """
    async def issue_api_key(
        self, user_id: str, name: str = "", *, expires_at: datetime | None = None
    ) -> IssuedApiKey:
        """Make a key for a user.

        Args:
            user_id: Whose key it is.
            name: What to call it, for people.
            expires_at: When it stops to work; None means never.

        Returns:
            The key, which is shown only here, and what is stored of it.

        Raises:
            NotFound: There is no such user.
            NaiveDatetime: ``expires_at`` has no time zone.
        """
    async def authenticate(self, key: str) -> ApiKeyRecord:
        """Say whose key this is. Call ``touch_api_key`` as well to record when it was used.

        The time that it takes does not tell how much of a key was right: the digests are
        compared in constant time, also where there is no such key.

        Returns:
            The key's record; its ``user_id`` is who calls.

        Raises:
            AuthenticationFailed: The key is unknown, revoked or expired; which of these is in
                ``reason``, for the application's own log.
        """
    async def touch_api_key(self, key_id: str) -> None:
        """Record that a key was used just now; ``authenticate`` does not, because it only reads.

        Raises:
            NotFound: There is no such key.
        """
    async def api_keys(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[ApiKeyRecord]:
        """List a user's keys, the newest first, the revoked ones included."""
    def iter_api_keys(
        self, user_id: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> AsyncGenerator[ApiKeyRecord, None]:
        """Go over all pages of ``api_keys``.

        Arguments, order and errors are those of ``api_keys``; ``limit`` says how many are read at a
        time. Each page is a call of its own, made when it is needed. Nothing is open between two of them.
        """
    async def revoke_api_key(self, key_id: str) -> ApiKeyRecord:
        """Stop a key from working, for good. Revoking it again changes nothing.

        Raises:
            NotFound: There is no such key.
        """
