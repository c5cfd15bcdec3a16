"""Connections to PostgreSQL in a process that was forked.

The child has the parent's sockets. Whatever it wrote to one, were it only the rollback of what its
own copy of a block had begun, or a farewell, would reach the parent's session. So each of them is
replaced by a socket that leads nowhere.
"""

from __future__ import annotations

import os
import socket
from typing import Any
from weakref import WeakSet

from psycopg import OperationalError

_open: WeakSet[Any] = WeakSet()
"""The driver's connections of our own engines."""


def note(own: Any) -> None:
    """Take note of a new connection of an engine that is ours."""
    _open.add(own)


def sever(own: Any) -> None:
    """Replace a connection's socket; in the child."""
    try:
        number = own.pgconn.socket
    except OperationalError:
        return  # it is closed
    nowhere, other = socket.socketpair()
    with nowhere, other:
        os.dup2(nowhere.fileno(), number, inheritable=False)


def _in_child() -> None:
    for own in list(_open):
        sever(own)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
