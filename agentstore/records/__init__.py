"""What repositories return: frozen records, complete in themselves.

Nothing loads lazily, nothing expires, nothing depends on an open connection: a record is what
the database said at one moment. Times are aware and in UTC, money is in Decimal dollars (or
whatever currency the application counts in), tokens are whole numbers, durations milliseconds.

A ``...Record`` is one row, or what belongs to it. A ``Page`` has records and a cursor for the next
page. A report or receipt says what a call did, a ``Finding`` what ``agentstore doctor`` found.

The invariant: this package imports nothing but errors, so every other one may use it.
"""

# ruff: noqa: F403 - type checkers resolve the star imports
from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "base": "Page",
    "conversations": "BranchRecord CountedBranch InterruptedTurn TurnRecord MemoryHit MemoryRecord "
    "AttachmentRecord MessageList MessageRecord SummaryRecord SearchHit SearchStatus "
    "RestoredSession SessionCounters SessionRecord SessionSummary "
    "VectorModelRecord VectorStatus",
    "work": "CheckpointInfo CheckpointRecord CheckpointTree Items ThreadRecord WriteRecord "
    "TaskBatch TaskRecord DatabaseTotals ToolLogRecord ToolStats TurnMessages "
    "TurnToolUse UsageRecord UsageSum ApiKeyRecord IssuedApiKey ReservationRecord "
    "UserRecord UserStats",
    "upkeep": "DeletionReceipt ExpiryReport PruneReport Finding Severity DayStatistics "
    "HealthRecord PoolUse ReadNodeRecord ReplicationRecord StandbyRecord Statistics "
    "TableStatistics ToolStatistics UserStatistics",
}
"""By module."""

_NAMES = sorted(" ".join(_HOMES.values()).split())

if TYPE_CHECKING:
    from agentstore.records.base import Page as Page
    from agentstore.records.conversations import *
    from agentstore.records.upkeep import *
    from agentstore.records.work import *
else:
    __all__ = _NAMES


def __getattr__(name: str) -> Any:
    """Import a record when it is asked for: making the classes takes longer than reading them."""
    for module, names in _HOMES.items():
        if name in names.split():
            globals()[name] = value = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the records, too."""
    return sorted({*globals(), *_NAMES})
