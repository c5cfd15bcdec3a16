"""Patroni moves the primary among three servers, and writers go on.

All is as people run it: etcd keeps who leads; Patroni starts, promotes and rewinds the servers;
commits wait for the standby that Patroni names, and no other one is promoted. Writers find the
primary through HAProxy, which asks Patroni, or by the URL of all three servers
(``target_session_attrs=read-write``), by turns.

Where networks may be made, which takes root, each server has one of its own, with a wire to a
switch, which is pulled for a cut; then no port of the machine is used. Elsewhere all listen on
127.0.0.1, and in the place of a cut all of a server's processes are frozen, and later ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg

from agentstore import migrations
from tests.chaos.arena import Arena, Unavailable, newest, wait_for
from tests.chaos.ledger import OK, Note
from tests.chaos.sieges import besiege
from tests.programs.probes import connect
from tests.servers import _launcher, _reachable, _run, _temporary_directory, installations

TITLE = "failovers by Patroni"
ENGINES = ("postgresql",)

PROGRAMS = {"patroni": "--version", "patronictl": "version", "etcd": "--version", "haproxy": "-v"}
"""With what each says its version."""
BLOWS = 2
TTL, LOOP, RETRY = 20, 2, 5
"""Seconds: after which a leader that is silent leads no more, the least that Patroni takes; between
two of Patroni's looks; for how long it tries to reach etcd."""
HEALING = 120.0
"""Seconds after a blow within which two standbys must follow again, one of them synchronous."""
SUBNET = "10.66.7"

SERVER = """\
scope: agents
name: {name}
restapi: {{listen: "{host}:{rest}", connect_address: "{host}:{rest}"}}
etcd3: {{host: "{etcd}"}}
bootstrap:
  dcs:
    ttl: {ttl}
    loop_wait: {loop}
    retry_timeout: {retry}
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      parameters: {{max_connections: 200, wal_keep_size: 512MB, shared_buffers: 64MB}}
  initdb: [encoding: UTF8, locale: C.UTF-8]
postgresql:
  listen: "{host}:{port}"
  connect_address: "{host}:{port}"
  data_dir: {folder}/data
  bin_dir: {bin}
  pgpass: {folder}/pgpass
  pg_hba: [local all all trust, host all all all trust, host replication all all trust]
  parameters: {{unix_socket_directories: {folder}, unix_socket_permissions: "0777"}}
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: follower}}
"""
BALANCER = """\
defaults
    mode tcp
    timeout connect 4s
    timeout client 30m
    timeout server 30m
    timeout check 2s
listen primary
    bind {place}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 1s fall 3 rise 2 on-marked-down shutdown-sessions
"""
STATE = """
SELECT NOT pg_is_in_recovery(), count(*), count(*) FILTER (WHERE sync_state = 'sync')
FROM pg_stat_replication WHERE state = 'streaming'
"""


def run(arena: Arena) -> None:
    cluster = arena.enter(Cluster())
    arena.tally.note = cluster.versions
    pauses: dict[str, float] = {}
    blows = _shuffled(arena, cluster.blows)
    era = 0
    while arena.more():
        name, era = f"chaos_{era}", era + 1
        migrations.upgrade(cluster.create_database(name))
        struck: list[tuple[str, float]] = []

        def strike(struck: list[tuple[str, float]] = struck) -> None:
            way, blow = next(blows)
            struck.append((way, time.monotonic()))
            blow()

        notes = besiege(
            arena,
            (cluster.by_haproxy, cluster.by_all_servers)[era % 2](name),
            strike,
            blows=min(BLOWS, arena.left),
            look_at=lambda name=name: cluster.primary().url(name),
            network=cluster.network,
        )
        ends = [*(at for _, at in struck[1:]), float("inf")]
        for (way, at), end in zip(struck, ends, strict=True):
            pauses[way] = max(pauses.get(way, 0.0), longest_pause(notes, at, end))
        said = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in sorted(pauses.items()))
        arena.tally.note = f"{cluster.versions}; longest pauses: {said}"


def _shuffled(
    arena: Arena, blows: dict[str, Callable[[], None]]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Give all of them in a random order, again and again."""
    while True:
        yield from arena.random.sample(sorted(blows.items()), len(blows))


def longest_pause(notes: list[Note], at: float, end: float) -> float:
    """Give the longest time around a blow, up to the next, in which a caller saved no message.

    Only callers count that do nothing else, and had saved one in the second before.
    """
    others = {note["caller"] for note in notes if note["what"] != "messages"}
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for note in (note for note in notes if note["end"] == OK and note["caller"] not in others):
        if note["at"] > at:
            after.setdefault(note["caller"], min(note["at"], end))
        elif note["at"] > at - 1.0:
            before[note["caller"]] = note["at"]
    return max((after[who] - before[who] for who in before.keys() & after.keys()), default=0.0)


@dataclass
class Place:
    """Where one server is; ``space`` is the process whose network it has, None for the machine's.

    Patroni is started there, and starts the server.
    """

    name: str
    folder: Path
    host: str
    port: int
    rest: int
    space: int | None
    patroni: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        """Give the URL of a database there, by a socket, which is there in each network."""
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}&port={self.port}"

    def server(self) -> list[int]:
        """Give the server's first process, and those that it started; none if it does not run."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
            children = Path(f"/proc/{first}/task/{first}/children").read_text()
            return [first, *map(int, children.split())]
        return []

    def state(self) -> tuple[Any, ...]:
        """Say whether it takes writes, how many follow it, and how many of them in each commit."""
        url = f"{self.url('postgres')}&connect_timeout=5"
        with contextlib.suppress(psycopg.OperationalError), connect(url) as connection:
            return connection.execute(STATE).fetchone() or ()
        return (False, 0, 0)


class Cluster:
    """Three servers with Patroni, etcd and HAProxy in one folder, as a context manager."""

    def __init__(self) -> None:
        """Look for the programs.

        Raises:
            Unavailable: Some are not installed.
        """
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        found = {name: shutil.which(name, path=path) for name in PROGRAMS}
        if missing := [name for name, program in found.items() if program is None]:
            raise Unavailable(
                f"not installed: {', '.join(missing)}; apt-get install --no-install-recommends "
                "patroni etcd-server haproxy, and keep the services from starting"
            )
        newest()
        # A system's Patroni knows the servers of its time: rather the system's than the wheel's.
        self._bin = _reachable(installations()[-1].bin)
        self._programs = {name: str(program) for name, program in found.items()}
        told = (_run(self._programs[name], PROGRAMS[name]).stdout for name in PROGRAMS)
        numbers = [re.search(r"\d+\.[\d.]*\d", said) for said in told]
        self.versions = ", ".join(
            f"{name} {number[0]}"
            for name, number in zip(PROGRAMS, numbers, strict=True)
            if number and name != "patronictl"
        )
        self.network: str | None = None
        self.blows = {
            "switchover": self._switch_over,
            "kill -9 of the server": self._kill_server,
            "kill -9 of Patroni and the server": self._kill_both,
        }
        self._places: list[Place] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def by_haproxy(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@{self._balanced}/{database}"

    def by_all_servers(self, database: str) -> str:
        hosts = "&".join(f"host={place.host}:{place.port}" for place in self._places)
        return f"postgresql+psycopg://postgres@/{database}?{hosts}&target_session_attrs=read-write"

    def create_database(self, name: str) -> str:
        place = self.primary()
        with connect(place.url("postgres")) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return place.url(name)

    def primary(self, *, but: Place | None = None) -> Place:
        """Wait for one that takes writes."""
        found: list[Place] = []

        def look() -> bool:
            found[:] = [each for each in self._places if each is not but and each.state()[0]]
            return bool(found)

        if not wait_for(look, HEALING):
            raise RuntimeError(f"none of the servers takes writes after {HEALING:g} s")
        return found[0]

    # --- Starting and ending ---------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.folder = _temporary_directory()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._places:
            self._kill(place)
        for process in self._started:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)

    def _start(self) -> None:
        spaces: list[int | None] = [None] * 3
        host, hosts = "127.0.0.1", ["127.0.0.1"] * 3
        if _run("unshare", "--net", "ip", "link", "set", "lo", "up").returncode == 0:
            spaces = [*self._wired()]
            host, hosts = f"{SUBNET}.1", [f"{SUBNET}.1{number}" for number in (1, 2, 3)]
            self.blows["cut of the network"] = self._cut
        else:
            self.blows["frozen server"] = self._freeze
        with contextlib.ExitStack() as kept:
            taken = [kept.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(9)]
            ports = [each.getsockname()[1] for each in taken]
        etcd, peer, self._balanced = (f"{host}:{port}" for port in ports[:3])
        places = zip((1, 2, 3), hosts, ports[3:6], ports[6:], spaces, strict=True)
        for number, its_host, port, rest, space in places:
            name = f"n{number}"
            place = Place(name, self.folder / name, its_host, port, rest, space)
            self._places.append(place)
            place.folder.mkdir()
            if owner := _launcher().owner:
                os.chown(place.folder, *owner)
            timing = {"ttl": TTL, "loop": LOOP, "retry": RETRY}
            settings = SERVER.format(**vars(place), **timing, etcd=etcd, bin=self._bin)
            (place.folder / "patroni.yml").write_text(settings)
        balancer = BALANCER.format(place=self._balanced)
        for place in self._places:
            address = f"{place.host}:{place.port}"
            balancer += f"    server {place.name} {address} check port {place.rest}\n"
        (self.folder / "haproxy.cfg").write_text(balancer)
        data, here = self.folder / "etcd", f"http://{etcd}"
        data.mkdir(mode=0o700)
        if owner := _launcher().owner:
            os.chown(data, *owner)
        options = [f"--data-dir={data}", f"--listen-client-urls={here}"]
        options += [f"--advertise-client-urls={here}", f"--listen-peer-urls=http://{peer}"]
        options += [f"--initial-advertise-peer-urls=http://{peer}"]
        options += [f"--initial-cluster=default=http://{peer}"]
        self._started.append(self._launch("etcd", *options))
        for place in self._places:
            self._start_patroni(place)
        configured = ("-db", "-f", str(self.folder / "haproxy.cfg"))
        self._started.append(self._launch("haproxy", *configured))
        self._heal()

    def _wired(self) -> Iterator[int]:
        """Make a switch in a network of its own, and a network on a wire for each server."""
        switch = self._make_network()
        self.network = f"/proc/{switch}/ns/net"
        self._ip(switch, "link add switch type bridge")
        self._ip(switch, f"address add {SUBNET}.1/24 dev switch")
        self._ip(switch, "link set switch up")
        for number in (1, 2, 3):
            space = self._make_network()
            self._ip(switch, f"link add n{number} type veth peer name wire netns {space}")
            self._ip(switch, f"link set n{number} master switch up")
            self._ip(space, f"address add {SUBNET}.1{number}/24 dev wire")
            self._ip(space, "link set wire up")
            yield space

    def _make_network(self) -> int:
        """Give the process whose network it is, and with which it ends."""
        command = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity")
        holder = subprocess.Popen(command, start_new_session=True)
        self._started.append(holder)
        ours, its = (Path(f"/proc/{who}/ns/net") for who in ("self", holder.pid))
        if not wait_for(lambda: its.readlink() != ours.readlink()):
            raise RuntimeError("no network was made")
        self._ip(holder.pid, "link set lo up")
        return holder.pid

    def _ip(self, space: int, command: str) -> None:
        done = _run("nsenter", f"--net=/proc/{space}/ns/net", "ip", *command.split())
        if done.returncode != 0:
            raise RuntimeError(f"ip {command}: {done.stderr}")

    def _launch(
        self, program: str, *options: str, network: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program under the servers' account, at the switch or in another network."""
        network = network or self.network
        command = [] if network is None else ["nsenter", f"--net={network}"]
        command += [*_launcher().prefix, self._programs[program], *options]
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _start_patroni(self, place: Place) -> None:
        network = None if place.space is None else f"/proc/{place.space}/ns/net"
        settings = str(place.folder / "patroni.yml")
        place.patroni = self._launch("patroni", settings, network=network)

    def _kill(self, place: Place) -> None:
        """Kill Patroni and all of the server's processes, and wait until they are gone."""
        server = place.server()
        if place.patroni is not None:
            place.patroni.kill()
            place.patroni.wait()
            place.patroni = None
        _signal(server, signal.SIGKILL)
        if not wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in server)):
            raise RuntimeError(f"{place.name} outlives SIGKILL")

    def _heal(self) -> None:
        """Wait until all follow, so that the next blow is the only one."""

        def healthy() -> bool:
            states = [place.state() for place in self._places]
            whole = sorted(states)[-1] == (True, 2, 1) and sum(first for first, *_ in states) == 1
            # The server waits for a standby before Patroni has noted that this one may lead.
            return whole and "Sync Standby" in self._patronictl("list")

        if not wait_for(healthy, HEALING):
            log = (self.folder / "patroni.log").read_text(errors="replace")[-3000:]
            raise RuntimeError(f"the servers are not whole after {HEALING:g} s; Patroni: {log}")

    def _patronictl(self, *asked: str) -> str:
        log = self.folder / "patronictl.log"
        log.unlink(missing_ok=True)
        settings = str(self._places[0].folder / "patroni.yml")
        if self._launch("patronictl", "-c", settings, *asked).wait(HEALING) != 0:
            raise RuntimeError(f"patronictl {asked[0]}: {log.read_text(errors='replace')[-1000:]}")
        return log.read_text()

    # --- Blows -----------------------------------------------------------------------------------

    def _switch_over(self) -> None:
        self._patronictl("switchover", "--force")
        self._heal()

    def _kill_server(self) -> None:
        """Kill the server alone: Patroni lives, and starts it again or lets another one lead."""
        _signal(self.primary().server()[:1], signal.SIGKILL)
        self._heal()

    def _kill_both(self) -> None:
        """Kill all that ran there, as if the machine had lost its power; later it is started."""
        place = self.primary()
        self._kill(place)
        self.primary(but=place)
        self._start_patroni(place)
        self._heal()

    def _cut(self) -> None:
        """Pull the wire of the primary, and put it in again when another one leads."""
        place = self.primary()
        switch = int(str(self.network).split("/")[2])
        self._ip(switch, f"link set {place.name} nomaster")
        self.primary(but=place)
        self._ip(switch, f"link set {place.name} master switch")
        self._heal()

    def _freeze(self) -> None:
        """Stop all that runs there, and end it when another one leads, as a watchdog would.

        Without one, Patroni 3.0.2 takes the lead back when it goes on, even from a new leader.
        """
        place = self.primary()
        assert place.patroni is not None
        _signal([place.patroni.pid, *place.server()], signal.SIGSTOP)
        self.primary(but=place)
        self._kill(place)
        self._start_patroni(place)
        self._heal()


def _signal(processes: list[int], how: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, how)
