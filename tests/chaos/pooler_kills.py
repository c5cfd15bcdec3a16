"""A pgbouncer between the writers and their server is killed, or told to end, and started again.

It pools by transactions, as most do, and the store is opened with its default settings: what a
caller reads back must be what it wrote, whichever connection the pooler gave it. Connections of
the server's are ended below it, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

import psycopg
from sqlalchemy import make_url

from tests.chaos.arena import Arena, Unavailable, newest, wait_for
from tests.chaos.sieges import besiege
from tests.programs.probes import drop_connections
from tests.servers import Server, _launcher, _temporary_directory

TITLE = "kills of a pooler"
ENGINES = ("postgresql",)

BLOWS = 10
PAUSE = 3.0
"""Longer than elsewhere: each blow ends what the pooler's connections have prepared."""
PORT = 6432
SETTINGS = """\
[databases]
* = host={server} user=postgres
[pgbouncer]
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
ignore_startup_parameters = extra_float_digits,options
"""


def run(arena: Arena) -> None:
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise Unavailable("pgbouncer is not installed")
    server = arena.enter(Server(newest(), durable=True))
    pooler = arena.enter(Pooler(program, server))
    arena.tally.note = pooler.version
    while arena.more():
        below = arena.database(server)
        above = str(make_url(below).set(query={"host": str(pooler.folder), "port": str(PORT)}))

        def strike(below: str = below) -> None:
            way = arena.random.choice((*HOW, None))
            if way is None:
                drop_connections(below)
            else:
                pooler.stop(way)
                pooler.start()

        blows = min(BLOWS, arena.left)
        besiege(arena, above, strike, blows=blows, pause=PAUSE, look_at=lambda below=below: below)
        arena.drop(below, server)


HOW = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
"""At once; at once, in good order; when all transactions are over."""


class Pooler:
    """A pgbouncer with a folder of its own, as a context manager."""

    def __init__(self, program: str, server: Server) -> None:
        self._program = program
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        self.version = said.stdout.splitlines()[0]
        self.folder: Path

    def __enter__(self) -> Self:
        self.folder = _temporary_directory()
        settings = self.folder / "pgbouncer.ini"
        text = SETTINGS.format(server=self._server.directory, port=PORT, folder=self.folder)
        settings.write_text(text)
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder)

    def start(self) -> None:
        # As the account that the server runs as: it refuses to be root, like the server.
        command = [*_launcher().prefix, self._program, "-q", str(self.folder / "pgbouncer.ini")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        if not wait_for(self._answers):
            end = (self.folder / "log").read_text(errors="replace")[-1000:]
            raise Unavailable(f"pgbouncer does not answer: {end}")

    def stop(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        place = f"host={self.folder} port={PORT} user=postgres dbname=postgres connect_timeout=5"
        try:
            psycopg.connect(place, autocommit=True, prepare_threshold=None).close()
        except psycopg.OperationalError:
            return False
        return True
