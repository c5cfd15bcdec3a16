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
        records = import_module(f"{__name__}.records")
        value = getattr(records, name) if name in records.__all__ else _errors().get(name)
        if value is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be asked for, too."""
    records = import_module(f"{__name__}.records").__all__
    return sorted({*globals(), *__all__, *records, *_errors(), "__version__"})


def _errors() -> dict[str, Any]:
    """Give the classes of errors by their names."""
    errors = import_module(f"{__name__}.errors")
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and value.__module__ == errors.__name__
        and not name.startswith("_")
    }
