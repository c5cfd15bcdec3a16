"""One cache of compiled statements for all engines of a run.

Each test opens a store, and so an engine, of its own, and each engine would compile the same few
hundred statements again. What it compiles depends on its dialect's settings alone: those that have
the same may have the same text.
"""

from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Dialect, Engine
from sqlalchemy.util import LRUCache, memoized_property

_PLAIN = (str, int, float, tuple, frozenset, type(None), type, FunctionType, ModuleType)


_known: WeakKeyDictionary[Dialect, tuple[tuple[int, ...], object]] = WeakKeyDictionary()


class _Shared:
    """A cache, as far as engines use one, whose keys do not tell dialects of a kind apart."""

    def __init__(self) -> None:
        self._compiled: LRUCache[Any, Any] = LRUCache(5_000)

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return self._compiled.get((_kind(key[0]), *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._compiled[(_kind(key[0]), *key[1:])] = compiled

    def clear(self) -> None:
        self._compiled.clear()


def _kind(dialect: Dialect) -> object:
    """Give what all dialects have in common that compile alike; worked out anew if one changed."""
    values = tuple(map(id, vars(dialect).values()))
    if (known := _known.get(dialect)) is None or known[0] != values:
        known = _known[dialect] = values, _settings(dialect)
    return known[1]


def _settings(dialect: Dialect) -> object:
    settings = [
        (name, value)
        for name, value in vars(dialect).items()
        if isinstance(value, _PLAIN) and not _is_remembered(dialect, name, value)
    ]
    return type(dialect), frozenset(settings)


def _is_remembered(dialect: Dialect, name: str, value: object) -> bool:
    """Say whether SQLAlchemy puts it in a method's or a property's place once that was asked."""
    own = getattr(type(dialect), name, None)
    return isinstance(own, memoized_property) or (isinstance(value, FunctionType) and callable(own))


def share_compiled_statements() -> None:
    """Give every engine that is made from now on the same cache, unless it is to have none."""
    shared, name = _Shared(), "_compiled_cache"

    def set_cache(engine: Engine, own: object) -> None:
        vars(engine)[name] = None if own is None else shared

    setattr(Engine, name, property(lambda engine: vars(engine)[name], set_cache))
