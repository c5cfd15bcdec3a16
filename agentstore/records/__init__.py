"""What repositories return: frozen records, complete in themselves.

Nothing loads lazily, nothing expires, nothing depends on an open connection: a record is what
the database said at one moment. Times are aware and in UTC, money is in Decimal dollars (or
whatever currency the application counts in), tokens are whole numbers, durations milliseconds.

A ``...Record`` is one row, or what belongs to it. A ``Page`` has records and a cursor for the next
page. A report or receipt says what a call did, a ``Finding`` what ``agentstore doctor`` found.

The invariant: this package imports nothing but errors, so every other one may use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentstore.records.base import Page
    from agentstore.records.branches import BranchRecord, CountedBranch, TurnRecord
    from agentstore.records.checkpoints import (
        CheckpointInfo,
        CheckpointRecord,
        CheckpointTree,
        Items,
        ThreadRecord,
        WriteRecord,
    )
    from agentstore.records.deletions import DeletionReceipt, ExpiryReport, PruneReport
    from agentstore.records.findings import Finding, Severity
    from agentstore.records.health import (
        DayStatistics,
        HealthRecord,
        PoolUse,
        Statistics,
        TableStatistics,
        ToolStatistics,
        UserStatistics,
    )
    from agentstore.records.memories import MemoryHit, MemoryRecord
    from agentstore.records.messages import (
        AttachmentRecord,
        MessageList,
        MessageRecord,
        SummaryRecord,
    )
    from agentstore.records.search import SearchHit, SearchStatus
    from agentstore.records.sessions import (
        RestoredSession,
        SessionCounters,
        SessionRecord,
        SessionSummary,
    )
    from agentstore.records.tasks import TaskBatch, TaskRecord
    from agentstore.records.usage import (
        DatabaseTotals,
        ToolLogRecord,
        ToolStats,
        TurnMessages,
        TurnToolUse,
        UsageRecord,
        UsageSum,
    )
    from agentstore.records.users import (
        ApiKeyRecord,
        IssuedApiKey,
        ReservationRecord,
        UserRecord,
        UserStats,
    )

__all__ = [
    "ApiKeyRecord",
    "AttachmentRecord",
    "BranchRecord",
    "CheckpointInfo",
    "CheckpointRecord",
    "CheckpointTree",
    "CountedBranch",
    "DatabaseTotals",
    "DayStatistics",
    "DeletionReceipt",
    "ExpiryReport",
    "Finding",
    "HealthRecord",
    "IssuedApiKey",
    "Items",
    "MemoryHit",
    "MemoryRecord",
    "MessageList",
    "MessageRecord",
    "Page",
    "PoolUse",
    "PruneReport",
    "ReservationRecord",
    "RestoredSession",
    "SearchHit",
    "SearchStatus",
    "SessionCounters",
    "SessionRecord",
    "SessionSummary",
    "Severity",
    "Statistics",
    "SummaryRecord",
    "TableStatistics",
    "TaskBatch",
    "TaskRecord",
    "ThreadRecord",
    "ToolLogRecord",
    "ToolStatistics",
    "ToolStats",
    "TurnMessages",
    "TurnRecord",
    "TurnToolUse",
    "UsageRecord",
    "UsageSum",
    "UserRecord",
    "UserStatistics",
    "UserStats",
    "WriteRecord",
]

_HOMES = {
    "base": "Page",
    "branches": "BranchRecord CountedBranch TurnRecord",
    "checkpoints": "CheckpointInfo CheckpointRecord CheckpointTree Items ThreadRecord WriteRecord",
    "deletions": "DeletionReceipt ExpiryReport PruneReport",
    "findings": "Finding Severity",
    "health": "DayStatistics HealthRecord PoolUse Statistics TableStatistics ToolStatistics "
    "UserStatistics",
    "memories": "MemoryHit MemoryRecord",
    "messages": "AttachmentRecord MessageList MessageRecord SummaryRecord",
    "search": "SearchHit SearchStatus",
    "sessions": "RestoredSession SessionCounters SessionRecord SessionSummary",
    "tasks": "TaskBatch TaskRecord",
    "usage": "DatabaseTotals ToolLogRecord ToolStats TurnMessages TurnToolUse UsageRecord UsageSum",
    "users": "ApiKeyRecord IssuedApiKey ReservationRecord UserRecord UserStats",
}
"""By module."""


def __getattr__(name: str) -> Any:
    """Import a record when it is asked for: making the classes takes longer than reading them."""
    for module, names in _HOMES.items():
        if name in names.split():
            globals()[name] = value = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the records, too."""
    return sorted({*globals(), *__all__})
