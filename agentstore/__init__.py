"""The storage layer for AI agents: sessions, messages, tasks, tool logs, quotas, checkpoints.

The same repositories on SQLite and on PostgreSQL, synchronous (``Store``) and asynchronous
(``AsyncStore``); only the URL differs. Beside the two stores and their ``Settings`` this gives
every record and every error by its name: ``from agentstore import MessageRecord, NotFound``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentstore.errors import *  # noqa: F403
    from agentstore.records import *  # noqa: F403
    from agentstore.settings import Settings
    from agentstore.stores.aio import AsyncStore
    from agentstore.stores.store import Store

    __version__: str

__all__ = ["AsyncStore", "Settings", "Store"]

_HOMES = {"AsyncStore": "stores.aio", "Settings": "settings", "Store": "stores.store"}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: a program with one kind of store loads one."""
    if name == "__version__":
        return import_module("importlib.metadata").version("agentstore-db")
    if name.startswith("_"):  # asked for by tools that look around; no reason to load anything
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    else:
        value = _public().get(name)
        if value is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be asked for, too."""
    return sorted({*globals(), *__all__, *_public(), "__version__"})


def _public() -> dict[str, Any]:
    """Give the classes of errors and records by their names."""
    modules = [import_module(f"{__name__}.{name}") for name in ("errors", "records")]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__.startswith(module.__name__)
        and not name.startswith("_")
    }
