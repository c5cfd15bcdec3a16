"""The tables, as declarative models.

They are public, for queries of your own; the repositories return records
(``agentstore.records``), never instances of these.
"""

from agentstore.models.base import NAMING_CONVENTION, Base, name_types
from agentstore.models.checkpoints import (
    Checkpoint,
    CheckpointEntry,
    CheckpointThread,
    CheckpointValue,
    CheckpointWrite,
)
from agentstore.models.messages import (
    Attachment,
    Blob,
    Message,
    MessageChunk,
    MessageMark,
    MessageToolCall,
)
from agentstore.models.sessions import Branch, BranchSegment, Session, SessionData, Summary
from agentstore.models.users import ApiKey, QuotaReservation, User, UserPreference
from agentstore.models.work import Task, ToolLog, TurnUsage

name_types(Base.metadata)

__all__ = [
    "NAMING_CONVENTION",
    "ApiKey",
    "Attachment",
    "Base",
    "Blob",
    "Branch",
    "BranchSegment",
    "Checkpoint",
    "CheckpointEntry",
    "CheckpointThread",
    "CheckpointValue",
    "CheckpointWrite",
    "Message",
    "MessageChunk",
    "MessageMark",
    "MessageToolCall",
    "QuotaReservation",
    "Session",
    "SessionData",
    "Summary",
    "Task",
    "ToolLog",
    "TurnUsage",
    "User",
    "UserPreference",
]
