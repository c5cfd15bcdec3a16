"""What was used: tokens, cost, tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from agentstore.records.base import briefly
from agentstore.records.messages import MessageRecord

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
    """

    key: K
    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: Decimal
    unpriced_requests: int
    partial: bool = False


@briefly("id", "session_id", "branch", "turn", "model", "input_tokens", "output_tokens", "cost")
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
class DatabaseTotals:
    """How many rows the database holds, and what its messages add up to.

    Attributes:
        rows: For each table its rows, by the table's plain name.
    """

    rows: Mapping[str, int]
    sessions_by_status: Mapping[str, int]
    tokens: int
    cost: Decimal
