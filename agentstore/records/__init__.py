"""What repositories return: frozen records, complete in themselves.

Nothing loads lazily, nothing expires, nothing depends on an open connection: a record is what
the database said at one moment. Times are aware and in UTC, money is in Decimal dollars (or
whatever currency the application counts in), tokens are whole numbers, durations milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Generic, TypeVar, cast

from agentstore.errors import UnsoundRow

T = TypeVar("T")


def complete(record: T) -> T:
    """Give a record that was read, if nothing is None in it that is never NULL in the database.

    Raises:
        UnsoundRow: Something is.
    """
    for name in _never_none(cast("Hashable", type(record))):
        if getattr(record, name) is None:
            raise UnsoundRow("", name, "NULL")
    return record


@cache
def _never_none(record: Hashable) -> tuple[str, ...]:
    kinds = {each.name: str(each.type) for each in fields(cast("Any", record))}
    return tuple(name for name, kind in kinds.items() if "None" not in kind and kind != "Any")


def maker(record: type[T]) -> Callable[..., T]:
    """Give a function that makes a frozen record of its fields, in their order.

    The ``__init__`` of a frozen dataclass sets each field through ``object.__setattr__``: 2.6 µs
    for 18 fields, against 0.4 here, which for 50 messages is a tenth of reading a history. So
    a twin that is not frozen is filled, and then declared to be the record that it equals.
    """
    names = [each.name for each in fields(cast("Any", record))]
    blank: Any = make_dataclass(record.__name__, names, slots=True)

    def make(*values: Any) -> T:
        filled = blank(*values)
        filled.__class__ = record
        return cast("T", filled)

    return make


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list.

    Attributes:
        items: The records, in the order of the list.
        next_cursor: What to pass for the next page; None on the last one.
    """

    items: tuple[T, ...]
    next_cursor: str | None

    def __iter__(self) -> Iterator[T]:
        """Iterate over this page's records."""
        return iter(self.items)

    def __len__(self) -> int:
        """Count this page's records."""
        return len(self.items)


@dataclass(frozen=True, slots=True)
class DeletionReceipt:
    """What a deletion removed.

    Attributes:
        rows: For each table that lost rows, how many, by the table's plain name. In a scope without
            ``blobs``, whose bytes may be those of other users too.
    """

    rows: Mapping[str, int]

    @property
    def total(self) -> int:
        """How many rows are gone, in all tables together."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """What a clean-up of expired sessions did.

    Attributes:
        sessions: The ids of the sessions that are gone, those that expired first coming first.
        rows: For each table that lost rows, how many, by the table's plain name.
        postponed: How many sessions stayed because they had been active since it was last noted
            when they might expire.
    """

    sessions: tuple[str, ...]
    rows: Mapping[str, int]
    postponed: int

    @property
    def total(self) -> int:
        """How many rows are gone, in all tables together."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a retention policy deleted, or would delete.

    Attributes:
        rows: For each table that lost rows, how many, by the table's plain name.
        rules: What each rule removed of its own kind: ``users``, those whose deletion had been
            interrupted, ``sessions``, ``tool_logs``,
            ``checkpoints``, ``tasks``, ``reservations``; and ``streams``, the messages that were
            given up.
        freed_bytes: By how much the database's files have become smaller; what others wrote
            meanwhile is in it.
        dry_run: Whether this was only counted, and nothing was deleted.
    """

    rows: Mapping[str, int]
    rules: Mapping[str, int]
    freed_bytes: int
    dry_run: bool

    @property
    def total(self) -> int:
        """How many rows are gone, or would be, in all tables together."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user.

    Attributes:
        quota_total: Tokens that the user may consume in all; None means without limit.
        quota_used: Tokens consumed.
        quota_reserved: Tokens set aside for calls under way.
    """

    id: str
    name: str
    email: str | None
    quota_total: int | None
    quota_used: int
    quota_reserved: int
    preferences: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    @property
    def quota_remaining(self) -> int | None:
        """Tokens that can still be consumed; None means without limit."""
        if self.quota_total is None:
            return None
        return max(0, self.quota_total - self.quota_used - self.quota_reserved)


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """Tokens set aside for a call whose cost is known only afterwards."""

    id: str
    user_id: str
    tokens: int
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """A key of a user, as far as it is stored.

    Attributes:
        prefix: What a key begins with behind ``ask_``, to tell keys apart.
    """

    id: str
    user_id: str
    name: str
    prefix: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class IssuedApiKey:
    """A key that was just made.

    Attributes:
        key: The key itself, this once; a repr does not show it.
        record: What is stored of it.
    """

    key: str = field(repr=False)
    record: ApiKeyRecord


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session.

    Attributes:
        version: Grows with each change of state, metadata, config or the pending question; pass
            it as ``expected_version`` to change only what you have read.
        message_count: Messages, on all branches.
        total_tokens: Sum of their ``token_count``.
        total_cost: Sum of their ``cost``.
        last_seq: The newest message's sequence number; it never goes down.
        question: What the agent waits for the user to answer, in status ``waiting_user``.
        ttl: How long after its last activity the session expires; None means never.
    """

    id: str
    user_id: str | None
    status: str
    title: str | None
    model: str | None
    metadata: dict[str, Any]
    config: dict[str, Any]
    state: Any
    version: int
    question: str | None
    asked_at: datetime | None
    message_count: int
    total_tokens: int
    total_cost: Decimal
    last_seq: int
    ttl: timedelta | None
    created_at: datetime
    last_active_at: datetime
    updated_at: datetime

    @property
    def expires_at(self) -> datetime | None:
        """When the session expires if nothing happens in it any more; None means never."""
        return None if self.ttl is None else self.last_active_at + self.ttl


@dataclass(frozen=True, slots=True)
class SessionCounters:
    """A session's counters beside what its messages add up to.

    Attributes:
        stored: ``message_count``, ``total_tokens`` and ``total_cost`` of the session.
        counted: The same, computed from the messages.
    """

    session_id: str
    stored: tuple[int, int, Decimal]
    counted: tuple[int, int, Decimal]

    @property
    def agree(self) -> bool:
        """Whether the counters are right."""
        return self.stored == self.counted


@dataclass(frozen=True, slots=True)
class BranchRecord:
    """A branch of a session.

    Attributes:
        number: Counts from 0, which is main, in its session; never used again.
        parent: The branch that it grew from; None for main, or if that is gone.
        fork_turn: The last turn that they had in common when it grew.
        fork_seq: The last sequence number that they had in common.
        current: Whether it is the active one, to which messages are added.
    """

    session_id: str
    number: int
    name: str
    parent: str | None
    fork_turn: int
    fork_seq: int
    current: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class CountedBranch(BranchRecord):
    """A branch, and how much it shows.

    Attributes:
        messages: Messages, those that it shares with others included.
        turns: User messages among them.
    """

    messages: int
    turns: int


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn of a branch: a user message, and what follows it.

    Attributes:
        number: Its number; turns that were deleted leave gaps.
        seq: The sequence number of the user message.
        text: What the user said, as far as it is text.
        can_branch: Whether ``branches.create(from_turn=...)`` can begin here: not while the
            user message is still being written.
    """

    session_id: str
    number: int
    seq: int
    message_id: str
    text: str
    can_branch: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message.

    Attributes:
        seq: Its number in its session; larger is later, and there are no ties.
        branch: The number of the branch in which it was written; 0 is main.
        turn: The turn that it belongs to; a user message begins one, 0 precedes the first.
        content: Text, or a list of content blocks, or None.
        status: ``complete``; ``streaming`` while it is being written, ``incomplete`` if that was
            given up; ``summary`` for what a history begins with, on demand, and is no message.
        payload: A framework's own item, whole.
    """

    id: str
    session_id: str
    seq: int
    branch: int
    turn: int
    role: str
    content: str | list[Any] | None
    tool_calls: list[Any] | None
    tool_call_id: str | None
    name: str | None
    token_count: int
    cost: Decimal
    metadata: dict[str, Any] | None
    payload: Any
    external_id: str | None
    status: str
    created_at: datetime
    chat_keys: list[str] | None = field(default=None, repr=False)

    def to_chat(self) -> dict[str, Any]:
        """Give the message as the chat APIs take it.

        Returns:
            A new dict with role, content and, where they are set, tool_calls, tool_call_id and
            name. An imported message has the very keys, in the order, that it was imported with;
            its role may be ``function``, which is stored as ``tool``.
        """
        chat: dict[str, Any] = {"role": self.role, "content": self.content}
        for key in ("tool_calls", "tool_call_id", "name"):
            if (value := getattr(self, key)) is not None:
                chat[key] = value
        return chat if self.chat_keys is None else self._laid_out(chat)

    def _laid_out(self, chat: dict[str, Any]) -> dict[str, Any]:
        """Put a chat message into the layout that it was imported with.

        Whatever the row says of that, the role is the message's, and nothing that is set is left
        out.
        """
        extra = self.payload if isinstance(self.payload, dict) else {}
        keys = self.chat_keys if isinstance(self.chat_keys, list) else []
        found = {
            key: getattr(self, key) if key in CHAT_KEYS else extra[key]
            for key in keys
            if isinstance(key, str) and (key in CHAT_KEYS or key in extra)
        }
        missing = {
            key: value
            for key, value in chat.items()
            if key not in found and (key == "role" or value is not None)
        }
        found = {**missing, **found}
        if self.role == "tool" and extra.get("role") == OLD_TOOL_ROLE:
            found["role"] = OLD_TOOL_ROLE
        return found


make_message_record = maker(MessageRecord)
"""Makes a message of all its fields, faster than its constructor."""

CHAT_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name")
"""The keys of a chat message that have columns of their own, in their usual order."""

OLD_TOOL_ROLE = "function"
"""What the role of tools was called; a message that has it is stored with the role ``tool``."""


@dataclass(frozen=True, slots=True)
class RestoredSession:
    """All that an agent needs to go on with a session, of one moment.

    Attributes:
        session: The session, with its state.
        branch: The name of its active branch.
        history: That branch's messages, the oldest first.
        summary: The compressed memory of that branch; None if there is none.
    """

    session: SessionRecord
    branch: str
    history: tuple[MessageRecord, ...]
    summary: str | None

    @property
    def question(self) -> str | None:
        """What the user was asked and has not answered yet."""
        return self.session.question


@dataclass(frozen=True, slots=True)
class AttachmentRecord:
    """Bytes beside a message, without the bytes themselves.

    Attributes:
        digest: Their SHA-256, in hexadecimal.
        size: How many there are.
        media_type: What they are, as it was said when they were attached.
    """

    id: str
    message_id: str
    session_id: str
    digest: str
    size: int
    media_type: str
    name: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """The compressed memory of a branch of a session.

    Attributes:
        branch: The number of the branch for which it was written.
        through_seq: The sequence number of the last message that it tells of.
    """

    session_id: str
    branch: int
    content: str
    through_seq: int
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    def to_message(self) -> MessageRecord:
        """Give it as the message with which a history begins; that is not stored as one."""
        return MessageRecord(
            id="",
            session_id=self.session_id,
            seq=0,
            branch=self.branch,
            turn=0,
            role="system",
            content=self.content,
            tool_calls=None,
            tool_call_id=None,
            name=None,
            token_count=0,
            cost=Decimal(0),
            metadata=self.metadata,
            payload=None,
            external_id=None,
            status="summary",
            created_at=self.updated_at,
        )


@dataclass(frozen=True, slots=True)
class TurnMessages:
    """The messages of one turn, in their order; 0 is what precedes the first user message."""

    number: int
    messages: tuple[MessageRecord, ...]


@dataclass(frozen=True, slots=True)
class TurnToolUse:
    """How often a tool was called in a turn."""

    turn: int
    tool: str
    calls: int


@dataclass(frozen=True, slots=True)
class ToolLogRecord:
    """One call of a tool, secrets redacted as the store's policy says."""

    id: str
    session_id: str
    message_id: str | None
    tool: str
    input: Any
    output: Any
    success: bool
    error: str | None
    elapsed_ms: float | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ToolStats:
    """What the calls of one tool add up to.

    Attributes:
        calls: How many there were.
        failures: How many of them failed.
        mean_ms: Mean of their ``elapsed_ms``, over the calls that have one; None if none has.
        p95_ms: Their 95th percentile, by the nearest-rank method: the smallest value that at
            least 95 % of the calls did not exceed.
    """

    tool: str
    calls: int
    failures: int
    mean_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What requests to models add up to.

    Attributes:
        key: What they have in common: a turn's or a branch's number, a session's or a user's
            id, a model's name, a ``date`` in UTC; None for what has none, and for a total.
        requests: How many there were.
        input_tokens: Tokens read.
        output_tokens: Tokens written.
        total_tokens: Both, or what the provider counted.
        cost: What they cost, as far as it is known.
        unpriced_requests: Requests whose cost is not known; the cost leaves them out.
    """

    key: int | str | date | None
    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: Decimal
    unpriced_requests: int


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """The use of a model, in a turn of a branch of a session."""

    id: str
    session_id: str
    branch: int
    turn: int
    model: str | None
    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: Decimal | None
    details: dict[str, Any] | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class UserStats:
    """What a user did in a window of time.

    Attributes:
        since: The window's beginning, which belongs to it.
        until: The window's end, which does not.
        sessions: Sessions that were created, or got a message, in the window.
        messages: Messages created in the window.
        tokens: Sum of their ``token_count``.
        cost: Sum of their ``cost``.
        tools: The tools called in the window, the most called first.
    """

    user_id: str
    since: datetime
    until: datetime
    sessions: int
    messages: int
    tokens: int
    cost: Decimal
    tools: tuple[ToolStats, ...]


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task.

    Attributes:
        run_at: When it may be started at the earliest.
        attempts: How often it was started.
        failures: How many attempts failed, or were abandoned: their lease ran out.
        max_retries: How often a failed attempt may be repeated.
        alone_in_session: Whether it waits while another such task of its session runs.
        cancel_requested: Whether whoever runs it is asked to stop.
        fence: The fencing token of the latest attempt; every attempt has a larger one.
        worker: Who holds it under a lease; None if nobody does.
        lease_expires_at: Until when, unless a heartbeat comes.
        started_at: When it was last started; the other times likewise are the last ones.
    """

    id: str
    session_id: str | None
    queue: str
    kind: str
    status: str
    priority: int
    payload: Any
    result: Any
    error: str | None
    run_at: datetime
    attempts: int
    failures: int
    max_retries: int
    alone_in_session: bool
    cancel_requested: bool
    fence: int
    worker: str | None
    lease_expires_at: datetime | None
    idempotency_key: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    paused_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    cancelled_at: datetime | None
    dead_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """What became of a batch of tasks that a worker handed back.

    Attributes:
        settled: Those that it held, as they are now, in the order given.
        lost: The ids of those that it did not hold any more, in the order given; nothing of
            them was changed, and what was done for them is to be discarded.
    """

    settled: tuple[TaskRecord, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that was found.

    Attributes:
        snippet: Up to some 160 characters of its text around the first hit, with ``**`` before
            and after each; nothing in it is escaped.
        score: How well it fits: above 0, and up to 2.2 for each word or phrase. Of two messages
            that hold a word equally often the shorter one has more.
    """

    message: MessageRecord
    snippet: str
    score: float


@dataclass(frozen=True, slots=True)
class SearchStatus:
    """The state of the search index.

    Attributes:
        segmentation: The version of the segmentation that made it, and how many characters of a
            message are in it, such as ``1:250000``; None if that is lost.
        needed: The same of an index that ``reindex`` would make.
        pending: Changes of messages that are not in it yet; a search takes them in first.
        trouble: What is wrong with it, if only ``reindex`` can mend it; None if all is well.
    """

    segmentation: str | None
    needed: str
    pending: int
    trouble: str | None


@dataclass(frozen=True, slots=True)
class DatabaseTotals:
    """How many rows the database holds, and what its messages add up to.

    Attributes:
        rows: For each table its rows, by the table's plain name.
    """

    rows: Mapping[str, int]
    sessions_by_status: Mapping[str, int]
    tokens: int
    cost: Decimal
