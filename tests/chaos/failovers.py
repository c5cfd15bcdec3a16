"""A server is killed for good, and its standby takes over: what was acknowledged is there.

The server commits only what its standby has, too (``synchronous_standby_names``). Writers are given
both places in one URL, ``host=one,two&target_session_attrs=read-write``, and are to find the other
by themselves. Then that one gets a standby of its own, and is the next to be killed.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from tests.chaos.arena import Arena, newest, wait_for
from tests.chaos.sieges import besiege
from tests.programs.probes import connect
from tests.servers import Installation, Server, _launcher, _run

TITLE = "failovers to a standby"
ENGINES = ("postgresql",)

SYNCHRONOUS = "ALTER SYSTEM SET synchronous_standby_names = '*'"
ALONE = "ALTER SYSTEM SET synchronous_standby_names = ''"


class Standby(Server):
    """A server that follows another one, until it is promoted."""

    def __init__(self, installation: Installation, leader: Server) -> None:
        super().__init__(installation, durable=True)
        self._leader: Server | None = leader

    def _initialise(self) -> None:
        assert self._leader is not None
        command: list[str | Path] = [*_launcher().prefix, str(self._bin / "pg_basebackup")]
        place = f"host={self._leader.directory} user=postgres"
        command += ["-D", "data", "-d", place, "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        done = _run(*command, cwd=self.directory)
        if done.returncode != 0:
            raise RuntimeError(f"pg_basebackup failed:\n{done.stderr}")


def run(arena: Arena) -> None:
    leader = arena.enter(Server(newest(), durable=True))
    while arena.more():
        standby = arena.enter(Standby(newest(), leader))
        tell(leader.url, SYNCHRONOUS)
        if not wait_for(lambda leader=leader: follows(leader)):
            raise RuntimeError("the standby does not follow")
        # A database for each failover: the one before stays as it was compared.
        url = arena.database(leader)
        places = f"{leader.directory},{standby.directory}"
        query = {"host": places, "target_session_attrs": "read-write"}
        both = str(make_url(url).set(query=query))
        there = str(make_url(url).set(query={"host": str(standby.directory)}))
        used = [url]

        def strike(
            leader: Server = leader,
            standby: Server = standby,
            there: str = there,
            used: list[str] = used,
        ) -> None:
            leader.stop_hard(arena.random.choice((signal.SIGKILL, signal.SIGQUIT)))
            time.sleep(arena.random.uniform(0, 0.3))
            tell(standby.url, "SELECT pg_promote()")
            # It has no standby yet, for which its commits would wait.
            tell(standby.url, ALONE)
            used[0] = there

        besiege(arena, both, strike, blows=1, look_at=lambda used=used: used[0])
        leader.stop()
        leader = standby


def tell(url: str, statement: str) -> None:
    with connect(url) as connection:
        connection.execute(statement)
        connection.execute("SELECT pg_reload_conf()")


def follows(leader: Server) -> bool:
    query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    try:
        with connect(leader.url) as connection:
            return bool(connection.execute(query).fetchone()[0])
    except psycopg.OperationalError:
        return False
