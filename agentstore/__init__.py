"""The storage layer for AI agents: sessions, messages, tasks, tool logs, quotas, checkpoints.

The same repositories on SQLite and on PostgreSQL, synchronous (``Store``) and asynchronous
(``AsyncStore``); only the URL differs.
"""

from agentstore.aio import AsyncStore
from agentstore.errors import AgentStoreError
from agentstore.settings import Settings
from agentstore.store import Store

__all__ = ["AgentStoreError", "AsyncStore", "Settings", "Store"]
