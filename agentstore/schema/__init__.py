"""The tables, as SQLAlchemy Core defines them.

This is what the repositories build their statements of: SQLAlchemy's ORM is not loaded for it. The
public models (``agentstore.models``) map the same tables and say what each is for; a test holds
that they have the same columns. The tables describe the newest revision of the schema; they never
create it, which only the revisions do (``agentstore.migrations``).
"""

from agentstore.schema import checkpoints, memories, messages, sessions, users, work
from agentstore.schema.base import METADATA
from agentstore.schema.tables import attach

__all__ = [
    "METADATA",
    "attach",
    "checkpoints",
    "memories",
    "messages",
    "sessions",
    "users",
    "work",
]
