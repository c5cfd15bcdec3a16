"""Tasks, usage, tool calls, users with their reservations and keys, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from agentstore.records.base import TaskStatus, briefly
from agentstore.records.conversations import MessageRecord


@briefly("id", "session_id", "queue", "kind", "status", "attempts")
@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task.

    Attributes:
        priority: Larger is claimed first.
        run_at: When it may be started at the earliest.
        attempts: How often it was started.
        failures: How many attempts failed, or were abandoned: their lease ran out.
        max_retries: How often a failed attempt may be repeated.
        alone_in_session: Whether it waits while another such task of its session runs.
        cancel_requested: Whether its worker is asked to stop.
        fence: The fencing token of the latest attempt; every attempt has a larger one.
        worker: Who holds it under a lease; None if nobody does.
        lease_expires_at: Until when, unless a heartbeat comes.
        started_at: When it was last started; the other times likewise are the last ones.
    """

    id: str
    session_id: str | None
    queue: str
    kind: str
    status: TaskStatus
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


# What was used: tokens, cost, tool calls.


UsageKey: TypeAlias = "int | str | date | tuple[Any, ...] | None"

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", covariant=True, default=UsageKey)
else:
    from typing import TypeVar

    K = TypeVar("K", covariant=True)


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


@briefly("id", "session_id", "tool", "success", "elapsed_ms")
@dataclass(frozen=True, slots=True)
class ToolLogRecord:
    """One call of a tool, secrets redacted as the store's policy says.

    Attributes:
        tool_call_id: The id by which the model called it; None if that was not said.
        success: Whether it succeeded.
        elapsed_ms: How long it took; None if that was not said.
        created_at: When it was logged, so at its end.
    """

    id: str
    session_id: str
    message_id: str | None
    tool_call_id: str | None
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
        p50_ms: Their median, by the nearest-rank method: the smallest value that at least 50 %
            of the calls did not exceed.
        p95_ms: Their 95th percentile, likewise.
        p99_ms: Their 99th percentile, likewise.
    """

    tool: str
    calls: int
    failures: int
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class UsageSum(Generic[K]):
    """What requests to models add up to.

    Attributes:
        key: What they have in common: a turn's or a branch's number, both with the branch's first,
            a session's or a user's id, a model's name, a ``date`` in UTC (of a week its Monday, of
            a month its first); None for what has none, and for a total. Of two dimensions both.
        requests: How many there were.
        input_tokens: Tokens read.
        output_tokens: Tokens written.
        total_tokens: Both, or what the provider counted.
        cost: What they cost, as far as it is known.
        unpriced_requests: Requests whose cost is not known; the cost leaves them out.
        partial: Whether only the last records were added up, as many as ``usage.of_sessions`` was
            allowed to read: there may be more.
        models: In ``usage.of_sessions``, the models of these requests, the most used first.
    """

    key: K
    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: Decimal
    unpriced_requests: int
    partial: bool = False
    models: tuple[str, ...] = ()


def total_of(sums: Iterable[UsageSum[Any]]) -> UsageSum[None]:
    """Add sums up."""
    found = [*sums]
    return UsageSum(
        None,
        sum(each.requests for each in found),
        sum(each.input_tokens for each in found),
        sum(each.output_tokens for each in found),
        sum(each.total_tokens for each in found),
        sum((each.cost for each in found), Decimal(0)),
        sum(each.unpriced_requests for each in found),
    )


@briefly("id", "session_id", "branch", "turn", "model", "input_tokens", "output_tokens", "cost")
@dataclass(frozen=True, slots=True)
class UsageRecord:
    """The use of a model, in a turn of a branch of a session.

    Attributes:
        branch: The number of the branch, which is never used again.
        turn: The turn; 0 precedes the first.
        model: The model that answered; None if nobody said.
        requests: How many requests to it the record stands for.
        input_tokens: Tokens read, cached ones included.
        output_tokens: Tokens written, reasoning included.
        total_tokens: What the provider counts as total, mostly the sum of both; a quota pays these.
        cost: In the currency of the store's prices; None if the model has no price.
        details: Parts of the tokens, such as ``cached_input_tokens``, and what else was passed.
    """

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
class DatabaseTotals:
    """How many rows the database holds, and what its messages add up to.

    Attributes:
        rows: For each table its rows, by the table's plain name.
    """

    rows: Mapping[str, int]
    sessions_by_status: Mapping[str, int]
    tokens: int
    cost: Decimal


# Users, their reservations and API keys.


@briefly("id", "quota_total", "quota_used", "quota_reserved")
@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user.

    Attributes:
        quota_total: Tokens that the user may consume in all; None means without limit.
        quota_used: Tokens consumed: by ``consume_quota``, and what turns used.
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
    """Tokens set aside for a call whose cost is known only afterwards.

    Attributes:
        expires_at: When they are free again, unless they are settled or released before.
        session_id: The session of the turn that set them aside; None outside of one.
    """

    id: str
    user_id: str
    tokens: int
    created_at: datetime
    expires_at: datetime
    session_id: str | None


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """A key of a user, as far as it is stored.

    Attributes:
        prefix: What a key begins with behind ``ask_``, to tell keys apart.
        last_used_at: When ``touch_api_key`` was last called; ``authenticate`` does not note it.
        expires_at: From when on it authenticates nobody; None means never.
        revoked_at: Since when it does not, because it was revoked.
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
class UserStats:
    """What a user did in a window of time.

    Attributes:
        since: The window's beginning, which belongs to it.
        until: The window's end, which does not.
        sessions: Sessions that were created, or got a message, in the window.
        messages: Messages created in the window.
        tokens: Sum of their ``token_count``, which is not what models used: see ``usage.sum_by``.
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


# What the repository of checkpoints returns.


@dataclass(frozen=True, slots=True, repr=False)
class Items:
    """A value of a checkpoint that is a list which its owner encoded, msgpack for example.

    It is stored and read without a look into it; of one that grew, only what was added is stored.

    Attributes:
        data: The bytes of the items, one after the other, with nothing before or after them that
            changes when the list grows.
        count: How many items they are; it is given back as it was put.
    """

    data: bytes
    count: int

    def __repr__(self) -> str:
        """Say how many they are, and nothing of what they say."""
        return f"Items(count={self.count!r})"


@briefly("id", "thread_id", "namespace", "step")
@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint without its values.

    Attributes:
        namespace: ``""`` is the root namespace; a subgraph may have one of its own.
        parent_id: What it came from, in the same thread and namespace; None for a root.
        step: How far the thread had come; larger is later.
        tags: What marks it, as a milestone for example.
        next_node: Where the agent is to go on.
        run_id: The run that put it.
        created_at: As it was given, or when it was put.
    """

    id: str
    thread_id: str
    namespace: str
    parent_id: str | None
    step: int
    tags: tuple[str, ...]
    summary: str
    next_node: str
    metadata: dict[str, Any]
    run_id: str | None
    created_at: datetime


@briefly("id", "thread_id", "namespace", "step")
@dataclass(frozen=True, slots=True)
class CheckpointRecord(CheckpointInfo):
    """A checkpoint with its values.

    Attributes:
        values: JSON, bytes or ``Items``, by name.
        writes: The pending writes after it, by task path, task and position; None if they were
            not asked for.
    """

    values: dict[str, Any]
    writes: tuple[WriteRecord, ...] | None = None


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """A thread of checkpoints.

    Attributes:
        latest: The latest checkpoint of its root namespace or, where that has none, of the first
            that has; None if only writes have come so far.
    """

    id: str
    user_id: str | None
    session_id: str | None
    created_at: datetime
    latest: CheckpointInfo | None


@dataclass(frozen=True, slots=True)
class CheckpointTree:
    """How the checkpoints of a thread came from each other.

    Flat, because a long thread is a deep tree.

    Attributes:
        checkpoints: All of them by id, the earliest step first.
        roots: The ids of those without a parent, in the same order.
        children: For each id those that came from it, in the same order.
    """

    checkpoints: Mapping[str, CheckpointInfo]
    roots: tuple[str, ...]
    children: Mapping[str, tuple[str, ...]]

    @property
    def leaves(self) -> tuple[str, ...]:
        """The ids of those that nothing came from yet: the ends of the thread's lines."""
        return tuple(id for id in self.checkpoints if not self.children[id])


@briefly("task_id", "position", "channel")
@dataclass(frozen=True, slots=True)
class WriteRecord:
    """A pending write of a task: a value for a channel, before the next checkpoint.

    Attributes:
        task_id: The task of the step, as the framework names it; no task of ``store.tasks``.
        position: Its place among the task's writes; negative for a framework's own.
        task_path: Where the task is in the graph; writes are sorted by it first.
    """

    task_id: str
    position: int
    channel: str
    value: Any
    task_path: str
