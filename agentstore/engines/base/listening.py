"""Listening to the events of an engine, once."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, event

_heard: WeakKeyDictionary[Engine, set[tuple[str, Callable[..., Any]]]] = WeakKeyDictionary()
_lock = Lock()


def listen_once(engine: Engine, name: str, listener: Callable[..., Any]) -> bool:
    """Listen to an engine's event, or to its pool's, unless this listener does; say whether it did.

    ``event.contains`` is not asked, because it goes by ``id()``: a pool that an engine disposed of
    leaves its listeners, and their registration, to the next one, and its id to whatever comes.
    """
    with _lock:
        known = _heard.setdefault(engine, set())
        if (name, listener) in known:
            return False
        known.add((name, listener))
    event.listen(engine, name, listener)
    return True


def is_heard_by(engine: Engine, name: str, listener: Callable[..., Any]) -> bool:
    """Say whether ``listen_once`` has this listener listen to the engine."""
    with _lock:
        return (name, listener) in _heard.get(engine, ())
