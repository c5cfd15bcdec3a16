"""The storage layer for AI agents: sessions, messages, tasks, tool logs, quotas, checkpoints.

The same repositories on SQLite and on PostgreSQL, synchronous (``Store``) and asynchronous
(``AsyncStore``); only the URL differs. Beside the two stores and their ``Settings`` this gives
what annotations need (``ScopedStore``, ``Transaction``, ``Turn`` and their asynchronous twins), and
every record and every error by its name: ``from agentstore import MessageRecord, NotFound``.
"""

# ruff: noqa: F405 - a checker follows the stars
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentstore.aio import AsyncScopedStore, AsyncStore, AsyncTransaction
    from agentstore.errors import *  # noqa: F403
    from agentstore.records import *  # noqa: F403
    from agentstore.settings import Settings
    from agentstore.store import Store
    from agentstore.transactions import ScopedStore, Transaction
    from agentstore.turns import AsyncTurn, Turn
    from agentstore.values.embeddings import Embeddings

    __version__: str

__all__ = [
    "AgentStoreError",
    "AlreadyExists",
    "ApiKeyRecord",
    "AsyncScopedStore",
    "AsyncStore",
    "AsyncTransaction",
    "AsyncTurn",
    "AttachmentRecord",
    "AttachmentTooLarge",
    "AuthenticationFailed",
    "BackupDiffers",
    "BackupError",
    "BackupIncomplete",
    "BackupNeedsUpgrade",
    "BackupOutdated",
    "BackupUnderWay",
    "BeingDeleted",
    "BranchInUse",
    "BranchRecord",
    "CheckpointInfo",
    "CheckpointRecord",
    "CheckpointTree",
    "ConnectionLost",
    "ConstraintViolation",
    "CopyDiffers",
    "CopyInterrupted",
    "CopySuperseded",
    "CopyUnfinished",
    "CountedBranch",
    "CounterOverflow",
    "CrossTenantAccess",
    "DatabaseBusy",
    "DatabaseCorrupt",
    "DatabaseError",
    "DatabaseFull",
    "DatabaseReadOnly",
    "DatabaseReplaced",
    "DatabaseTotals",
    "DatabaseUnreachable",
    "DayStatistics",
    "DeletionReceipt",
    "EmbeddingFailed",
    "EmbeddingModelChanged",
    "Embeddings",
    "ExpiryReport",
    "ExportIncomplete",
    "Finding",
    "ForeignLog",
    "ForeignObjects",
    "HealthRecord",
    "IllegalTransition",
    "ImportDiffers",
    "ImportSuperseded",
    "InterruptedTurn",
    "InvalidCursor",
    "InvalidEmbedding",
    "InvalidInput",
    "InvalidJson",
    "InvalidRow",
    "InvalidRows",
    "IssuedApiKey",
    "Items",
    "JobInterrupted",
    "LeaseLost",
    "LimitOutOfRange",
    "MemoryHit",
    "MemoryRecord",
    "MessageList",
    "MessageRecord",
    "NaiveDatetime",
    "NameReserved",
    "NotABackup",
    "NotADatabase",
    "NotASource",
    "NotAllowedInScope",
    "NotFound",
    "Page",
    "PoolUse",
    "PriceUnknown",
    "PruneReport",
    "QuotaExceeded",
    "ReadNodeRecord",
    "ReplicationRecord",
    "ReservationRecord",
    "RestoreInterrupted",
    "RestoredSession",
    "SchemaDamaged",
    "SchemaError",
    "SchemaFromFuture",
    "SchemaMissing",
    "SchemaOutdated",
    "ScopedStore",
    "SearchHit",
    "SearchIndexStale",
    "SearchStatus",
    "SecretRefused",
    "SessionBusy",
    "SessionCounters",
    "SessionRecord",
    "SessionSummary",
    "Settings",
    "Severity",
    "SourceChanged",
    "StaleSession",
    "StandbyRecord",
    "Statistics",
    "Store",
    "StreamEnded",
    "StreamUnfinished",
    "SummaryRecord",
    "TableNameConflict",
    "TableStatistics",
    "TakenByAnother",
    "TakenInTarget",
    "TargetExists",
    "TargetNotEmpty",
    "TaskBatch",
    "TaskRecord",
    "ThreadRecord",
    "ToolLogRecord",
    "ToolStatistics",
    "ToolStats",
    "Transaction",
    "TransactionConflict",
    "TransactionMisuse",
    "TranscriptError",
    "Turn",
    "TurnMessages",
    "TurnRecord",
    "TurnTooLarge",
    "TurnToolUse",
    "TypeNotAllowed",
    "UnsupportedUrl",
    "UsageRecord",
    "UsageSum",
    "UserChanged",
    "UserRecord",
    "UserStatistics",
    "UserStats",
    "VectorModelRecord",
    "VectorStatus",
    "WriteRecord",
    "WrongOwner",
    "WrongSession",
    "WrongThread",
]
"""Written out: it is what type checkers take for public."""

_HOMES = {
    "AsyncScopedStore": "aio",
    "AsyncStore": "aio",
    "AsyncTransaction": "aio",
    "AsyncTurn": "turns",
    "Embeddings": "values.embeddings",
    "ScopedStore": "transactions",
    "Settings": "settings",
    "Store": "store",
    "Transaction": "transactions",
    "Turn": "turns",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: a program with one kind of store loads one."""
    if name == "__version__":
        return import_module("importlib.metadata").version("agentstore-db")
    if name.startswith("_"):  # asked for by tools that look around; no reason to load anything
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name)
    if home is None:
        home = "records" if name in import_module(f"{__name__}.records").__all__ else "errors"
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be asked for, too."""
    return sorted({*globals(), *__all__, "__version__"})
