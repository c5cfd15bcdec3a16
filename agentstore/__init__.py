"""The storage layer for AI agents: sessions, messages, tasks, tool logs, quotas, checkpoints.

The same repositories on SQLite and on PostgreSQL, synchronous (``Store``) and asynchronous
(``AsyncStore``); only the URL differs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentstore.errors import AgentStoreError
    from agentstore.settings import Settings
    from agentstore.stores.aio import AsyncStore
    from agentstore.stores.store import Store

__all__ = ["AgentStoreError", "AsyncStore", "Settings", "Store"]

_HOMES = {
    "AgentStoreError": "errors",
    "AsyncStore": "stores.aio",
    "Settings": "settings",
    "Store": "stores.store",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: a program with one kind of store loads one."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be asked for, too."""
    return sorted({*globals(), *__all__})
