"""The storage layer for AI agents: sessions, messages, tasks, tool logs, quotas, checkpoints.

The same repositories on SQLite and on PostgreSQL, synchronous (``Store``) and asynchronous
(``AsyncStore``); only the URL differs. Beside the two stores and their ``Settings`` this gives
what annotations need (``ScopedStore``, ``Transaction``, ``Turn`` and their asynchronous twins), and
every record and every error by its name: ``from agentstore import MessageRecord, NotFound``.
"""

# ruff: noqa: F403 - type checkers resolve the star imports
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentstore.aio import AsyncScopedStore as AsyncScopedStore
    from agentstore.aio import AsyncStore as AsyncStore
    from agentstore.aio import AsyncTransaction as AsyncTransaction
    from agentstore.errors import *
    from agentstore.records import *
    from agentstore.settings import Settings as Settings
    from agentstore.store import Store as Store
    from agentstore.transactions import ScopedStore as ScopedStore
    from agentstore.transactions import Transaction as Transaction
    from agentstore.turns import AsyncTurn as AsyncTurn
    from agentstore.turns import Turn as Turn
    from agentstore.values.embeddings import Embeddings as Embeddings

    __version__: str

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


@cache
def _homes() -> dict[str, str]:
    """Give the modules of all that can be asked for."""
    errors, records = (import_module(f"{__name__}.{home}") for home in ("errors", "records"))
    tree = [
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.AgentStoreError)
    ]
    return _HOMES | dict.fromkeys(records.__all__, "records") | dict.fromkeys(tree, "errors")


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: a program with one kind of store loads one."""
    if name == "__version__":
        return import_module("importlib.metadata").version("agentstore-db")
    if name == "__all__":
        return sorted(_homes())
    # Modules are asked for too, and names with an underscore by tools that look around: no reason
    # to load anything.
    home = _HOMES.get(name) or _homes().get(name) if name[:1].isupper() else None
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be asked for, too."""
    return sorted({*globals(), *_homes(), "__version__"})
