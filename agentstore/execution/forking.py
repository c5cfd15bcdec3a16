"""What a process that was forked has of its parent's stores: nothing that it may use.

Connections, locks and threads do not go through a fork: a socket would be read by two processes,
each of which gets the other's answers; SQLite forgets its locks; a lock may be held by a thread
that is not there. So whatever holds one is told in the child, once, and refuses from then on. That
costs nothing where nobody forks. ``subprocess``, and ``multiprocessing`` by ``spawn``, begin fresh.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from agentstore.errors import TransactionMisuse


class LeftBehind(Protocol):
    """What is of the process that made it."""

    def left_behind(self) -> None:
        """Hear, in a child that was forked, that this is the parent's; take no lock."""


_ours: WeakSet[LeftBehind] = WeakSet()


def of_this_process(thing: LeftBehind) -> None:
    """Have something told in each child that is forked from now on."""
    _ours.add(thing)


def _in_child() -> None:
    things = list(_ours)
    _ours.clear()
    for thing in things:
        with suppress(Exception):  # the others have to hear all the same
            thing.left_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def store_of_parent() -> TransactionMisuse:
    """Say that a store was taken through a fork."""
    return TransactionMisuse(
        "This store was opened before the process was forked and belongs to the parent process. "
        "Open one store in each process after the fork, or start processes by spawn."
    )
