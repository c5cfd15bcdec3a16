"""A PostgreSQL server dies under its writers: its first process, or one that serves or writes.

When one of its processes is killed outright the server ends all others and recovers by itself;
when the first is, it is started again here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psycopg

from tests.chaos.arena import Arena, newest, wait_for
from tests.chaos.sieges import besiege
from tests.programs.probes import connect
from tests.servers import Server

TITLE = "kills of servers"
ENGINES = ("postgresql",)

BLOWS = 10
FIRST = (signal.SIGKILL, signal.SIGQUIT, signal.SIGINT)
SERVING = (signal.SIGKILL, signal.SIGQUIT, signal.SIGTERM)


def run(arena: Arena) -> None:
    server = arena.enter(Server(newest(), durable=True))
    while arena.more():
        url = arena.database(server)
        besiege(arena, url, lambda: strike(arena, server), blows=min(BLOWS, arena.left))
        arena.drop(url, server)


def strike(arena: Arena, server: Server) -> None:
    kind = arena.random.choice(("first", "client backend", "client backend", "walwriter"))
    if kind == "first":
        server.stop_hard(arena.random.choice(FIRST))
        start_again(server)
        return
    pids = processes(server, kind)
    if pids:
        how = arena.random.choice(SERVING if kind == "client backend" else SERVING[:1])
        with contextlib.suppress(ProcessLookupError):
            os.kill(arena.random.choice(pids), how)
        # It takes the others a moment to hear of it; then nobody is let in until all is well.
        time.sleep(0.05)
        processes(server, kind)


def processes(server: Server, kind: str) -> list[int]:
    """Give the ids of the server's processes of a kind, but for the one that looks."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type = %s AND pid <> pg_backend_pid() "
        "ORDER BY pid"
    )
    found: list[int] = []

    def look() -> bool:
        with contextlib.suppress(psycopg.OperationalError), connect(server.url) as connection:
            found[:] = [pid for (pid,) in connection.execute(query, (kind,))]
            return True
        return False  # it recovers from the blow before

    wait_for(look)
    return found


def start_again(server: Server) -> None:
    """Start a server whose first process was killed: it refuses while others of it still end."""
    for _ in range(100):
        try:
            return server.restart()
        except RuntimeError:
            time.sleep(0.1)
    server.restart()
