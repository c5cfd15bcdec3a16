"""The storage layer for AI agents: sessions, messages, tasks, tool logs, quotas, checkpoints.

The same repositories on SQLite and on PostgreSQL, synchronous (``Store``) and asynchronous
(``AsyncStore``); only the URL differs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentstore.aio import AsyncStore
    from agentstore.errors import AgentStoreError
    from agentstore.settings import Settings
    from agentstore.store import Store

    __version__: str

__all__ = ["AgentStoreError", "AsyncStore", "Settings", "Store"]

_HOMES = {
    "AgentStoreError": "errors",
    "AsyncStore": "aio",
    "Settings": "settings",
    "Store": "store",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: a program with one kind of store loads one."""
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("agentstore-db")
    elif name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be asked for, too."""
    return sorted({*globals(), *__all__, "__version__"})
