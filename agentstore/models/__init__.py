"""The tables, as declarative models.

They are public, for queries of your own; the repositories return records
(``agentstore.records``), never instances of these. The models describe the newest revision of the
schema; they never create it, which only the revisions do (``agentstore.migrations``).

The words that are used here:

- ``pk`` is the number of a row in the order of creation. It never leaves the database.
- ``id`` is what the world sees: text, which other tables refer to.
- *Names* are the schema and the prefix under which a database has its tables. ``tables`` gives
  the tables under other names; ``Tables`` has each as an attribute.
- A user who is *being deleted* has a mark, and all queries leave out what is theirs: ``deleting``
  has these conditions.

The invariants: what belongs to a user, a session or a thread says so itself, so scoping and
deleting need no joins; and a column's type refuses, on reading, what it would not have written.
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
