"""Poolers in front of PostgreSQL: pgbouncer as far as this machine has one, and one of our own.

Ours is for what a pooler in transaction mode does to its clients, on any machine: a client has a
server's connection for one transaction, and the next one is on whichever was free for the longest
time. So with two of them, two transactions in a row of one client are never on the same.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, make_url

from tests.servers import _launcher

OURS = "ours"
PROGRAM = os.environ.get("AGENTSTORE_TEST_PGBOUNCER") or shutil.which(
    "pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/usr/local/bin"
)
POOLERS = [OURS, *(["pgbouncer"] if PROGRAM else [])]


def description() -> str:
    """Say what there is, for the head of the tests' output."""
    if PROGRAM is None:
        return "poolers: our own (there is no pgbouncer)"
    return f"poolers: our own, pgbouncer {'.'.join(map(str, pgbouncer_version()))}"


def pgbouncer_version() -> tuple[int, ...]:
    said = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said.stdout)
    return tuple(int(number) for number in found.groups()) if found else ()


@contextlib.contextmanager
def pooled(kind: str, url: str, **options: Any) -> Iterator[str]:
    """Give the URL of a pooler in transaction mode in front of a database."""
    if kind == OURS:
        with _Pooler(url) as pooler:
            yield pooler.url
    else:
        with _pgbouncer(url, **options) as through:
            yield through


# --- pgbouncer -------------------------------------------------------------------------------


@contextlib.contextmanager
def _pgbouncer(url: str, *, prepared: int = 0, mode: str = "transaction") -> Iterator[str]:
    launcher = _launcher()
    directory = Path(tempfile.mkdtemp(prefix="pgb-", dir="/tmp"))
    to = make_url(url)
    known = pgbouncer_version() >= (1, 21)
    (directory / "ini").write_text(
        f"[databases]\n{to.database} = {_conninfo(to)}\n"
        "[pgbouncer]\nlisten_addr =\nlisten_port = 6432\nauth_type = any\n"
        f"unix_socket_dir = {directory}\npool_mode = {mode}\n"
        "default_pool_size = 2\nserver_round_robin = 1\n"
        + (f"max_prepared_statements = {prepared}\n" if known else "")
    )
    directory.chmod(0o755)
    if launcher.owner:
        os.chown(directory, *launcher.owner)
    process = subprocess.Popen(
        [*launcher.prefix, str(PROGRAM), str(directory / "ini")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    through = to.set(host=None, port=None).update_query_dict(
        {"host": str(directory), "port": "6432"}
    )
    try:
        _wait_for(through, process)
        yield through.render_as_string(hide_password=False)
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(directory)


def _wait_for(url: URL, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(_conninfo(url)).close()
        except psycopg.OperationalError:
            assert process.poll() is None, "pgbouncer ended"
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def _conninfo(url: URL) -> str:
    given: dict[str, Any] = {
        "host": url.host, "port": url.port, "user": url.username, "password": url.password,
        "dbname": url.database, **url.query,
    }  # fmt: skip
    return make_conninfo("", **{name: value for name, value in given.items() if value})


# --- One of our own ----------------------------------------------------------------------------


class _Pooler:
    """A pooler; each client is a thread's."""

    def __init__(self, url: str) -> None:
        """Pool two connections to a database."""
        self._to = make_url(url)
        self._directory = tempfile.mkdtemp(prefix="pool-", dir="/tmp")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._directory}/.s.PGSQL.6432")
        self._listener.listen(50)
        conninfo = make_conninfo(_conninfo(self._to), sslmode="disable", gssencmode="disable")
        self._servers = [pq.PGconn.connect(conninfo.encode()) for _ in range(2)]
        self._free: queue.Queue[pq.PGconn] = queue.Queue()
        for server in self._servers:
            assert server.status == pq.ConnStatus.OK, server.error_message
            self._free.put(server)
        self._clients: list[socket.socket] = []

    @property
    def url(self) -> str:
        through = self._to.set(host=None, port=None).update_query_dict(
            {"host": self._directory, "port": "6432"}
        )
        return through.render_as_string(hide_password=False)

    def __enter__(self) -> _Pooler:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for server in self._servers:
            server.finish()
        shutil.rmtree(self._directory)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), client:
            if self._greet(client):
                while self._one_transaction(client):
                    pass

    def _greet(self, client: socket.socket) -> bool:
        """Answer what a client begins with; say whether it goes on."""
        while True:
            (length,) = struct.unpack("!I", _read(client, 4))
            (code,) = struct.unpack("!I", _read(client, length - 4)[:4])
            if code == 196608:
                break
            if code == 80877102:  # somebody wants to cancel something
                return False
            client.sendall(b"N")  # no encryption
        server = self._servers[0]
        told = [_message(b"R", struct.pack("!I", 0))]
        for name in (b"server_version", b"client_encoding", b"DateStyle", b"TimeZone"):
            value = server.parameter_status(name) or b""
            told.append(_message(b"S", name + b"\0" + value + b"\0"))
        told.append(_message(b"K", secrets.token_bytes(8)))  # of no process, as pgbouncer does
        client.sendall(b"".join(told) + _message(b"Z", b"I"))
        return True

    def _one_transaction(self, client: socket.socket) -> bool:
        """Lend a server's connection until it is idle again; say whether the client goes on."""
        kind, body = _frame(client)
        if kind == b"X":
            return False
        pgconn = self._free.get()
        try:
            server = socket.socket(fileno=os.dup(pgconn.socket))
            server.setblocking(True)
            with server:
                return _lend(client, server, kind, body)
        finally:
            self._free.put(pgconn)


_UNANSWERED = (b"P", b"B", b"D", b"E", b"C")
"""What a client sends on its way to a Sync."""


def _lend(client: socket.socket, server: socket.socket, kind: bytes, body: bytes) -> bool:
    goes_on, answers = True, 0
    while True:
        answers += kind in (b"Q", b"S", b"F")
        server.sendall(_message(kind, body))
        if kind in _UNANSWERED:  # the server may send the beginning of an answer, and then waits
            kind, body = _frame(client)
            continue
        while True:
            sources = [server, client] if goes_on else [server]
            readable, _, _ = select.select(sources, [], [])
            if server in readable:
                told, said = _frame(server)
                client.sendall(_message(told, said))
                answers -= told == b"Z"
                if told == b"Z" and said == b"I" and not answers:
                    return goes_on
                continue
            try:
                kind, body = _frame(client)
            except EOFError:
                kind = b"X"
            if kind == b"X":  # what it has begun is rolled back
                goes_on, kind, body = False, b"Q", b"ROLLBACK\0"
            break


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _frame(source: socket.socket) -> tuple[bytes, bytes]:
    head = _read(source, 5)
    return head[:1], _read(source, struct.unpack("!I", head[1:])[0] - 4)


def _read(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = source.recv(count - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found
