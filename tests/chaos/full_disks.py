"""The disk fills up under writers, to the last byte, and is freed again.

A small file system holds the SQLite file; on PostgreSQL, by turns, the tables or the log (a server
that cannot write its log stops). While it is full, calls are refused with typed errors, and reading
goes on; when there is room again so does writing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from agentstore import Store
from agentstore.errors import AgentStoreError, DatabaseError
from tests.chaos.arena import POSTGRESQL, SQLITE, Arena, Unavailable, newest
from tests.chaos.server_kills import start_again
from tests.chaos.sieges import besiege
from tests.programs.disks import can_mount, small_disk
from tests.programs.probes import connect
from tests.servers import Server

TITLE = "full disks"
ENGINES = (SQLITE, POSTGRESQL)

BLOWS = 3
MEGABYTES = 160
"""Room for what is written between the blows; the blows take what is left."""
FULL_SECONDS = 0.5


def run(arena: Arena) -> None:
    if not can_mount(arena.folder / "try"):
        raise Unavailable("only root can mount a small file system")
    while arena.more():
        if arena.engine == SQLITE:
            _file(arena)
        else:
            _tables(arena)
            if arena.more():
                _log(arena)


def _file(arena: Arena) -> None:
    with small_disk(arena.folder / f"disk-{arena.number()}", MEGABYTES) as disk:
        path = disk / "store.db"
        shutil.copy(arena.house.template(), path)
        url = f"sqlite:///{path}"
        besiege(arena, url, lambda: fill(arena, disk, url), blows=min(BLOWS, arena.left))
        arena.end_children()


def _tables(arena: Arena) -> None:
    with Server(newest(), durable=True) as server:
        url = arena.database(server)
        with small_disk(server.directory / "space", MEGABYTES) as disk:
            owner = server.directory.stat()
            os.chown(disk, owner.st_uid, owner.st_gid)
            name = make_url(url).database
            with connect(server.url) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
                connection.execute(f'ALTER DATABASE "{name}" SET TABLESPACE small')
            besiege(arena, url, lambda: fill(arena, disk, url), blows=min(BLOWS, arena.left))
            arena.end_children()
            server.stop_hard()  # before its files go


def _log(arena: Arena) -> None:
    server = Server(newest(), durable=True)
    with server:
        url = arena.database(server)
        with connect(server.url) as connection:
            connection.execute("ALTER SYSTEM SET max_wal_size = '64MB'")
        with small_disk(server.directory / "space", MEGABYTES) as disk:
            server.stop_hard()
            owner = server.directory.stat()
            log = server.directory / "data" / "pg_wal"
            shutil.copytree(log, disk / "pg_wal")
            shutil.rmtree(log)
            log.symlink_to(disk / "pg_wal")
            for place in (disk, *disk.rglob("*")):
                os.chown(place, owner.st_uid, owner.st_gid)
            server.restart()

            def strike() -> None:
                fill(arena, disk, url, before=lambda: use_up_log(server))
                with contextlib.suppress(psycopg.OperationalError), connect(server.url):
                    return
                start_again(server)

            besiege(arena, url, strike, blows=min(BLOWS, arena.left))
            arena.end_children()
            server.stop_hard()


def use_up_log(server: Server) -> None:
    """Begin new segments of the log until there is no room for one, and the server stops."""
    for _ in range(20):
        with contextlib.suppress(psycopg.Error), connect(server.url) as connection:
            connection.execute("SELECT pg_logical_emit_message(false, 'chaos', 'x')")
            connection.execute("SELECT pg_switch_wal()")


def fill(arena: Arena, disk: Path, url: str, before: Callable[[], object] = lambda: None) -> None:
    """Leave no byte free for a while, and read meanwhile."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    before()
    end = time.monotonic() + FULL_SECONDS
    while time.monotonic() < end:
        reads(arena, url)
        time.sleep(0.05)
    ballast.unlink()


def reads(arena: Arena, url: str) -> None:
    """Open a store and read; to be refused is in order, by a typed error, until it is open."""
    try:
        store = Store(url, connect_timeout=2.0)
    except DatabaseError as error:
        arena.tally.errors[type(error).__name__] += 1
        return
    with store:
        for read in READS:
            try:
                read(store)
            except AgentStoreError as error:
                if arena.engine == SQLITE:
                    arena.tally.blame(f"reading on a full disk: {type(error).__name__}: {error}")
                else:  # the server may have stopped, or has no room for sorting
                    arena.tally.errors[type(error).__name__] += 1


READS: tuple[Callable[[Store], object], ...] = (
    lambda store: [
        store.messages.history(one.id, limit=5) for one in store.sessions.list(limit=5).items
    ],
    lambda store: store.messages.search("天"),
    lambda store: store.tasks.count(),
)
