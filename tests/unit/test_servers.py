"""The PostgreSQL servers of the test-suite start anywhere and leave nothing behind."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import LiteralString
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests import servers
from tests.programs.probes import wait_until
from tests.servers import Installation, Server, installations

INSTALLATIONS = installations()
ROOT = Path(__file__).parents[2]
STARTS_A_SERVER = """
import sys
from pathlib import Path
from tests.servers import Installation, Server
server = Server(Installation(Path(sys.argv[1]), "", ""))
server.start()
print(server.url, flush=True)
sys.stdin.read()
"""

NAMES = [f"{each.origin}-{each.version}" for each in INSTALLATIONS]


def each_installation(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with each installation; all but the first come to the same code."""
    first = pytest.mark.long(but=[f"*{name}" for name in NAMES[:1]])
    return first(pytest.mark.parametrize("installation", INSTALLATIONS, ids=NAMES)(test))


sees_processes = pytest.mark.skipif(
    not Path("/proc/self/cwd").exists(), reason="only Linux shows where other processes work"
)


@pytest.fixture(scope="module", params=INSTALLATIONS, ids=lambda each: each.origin)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Return a server of each installation, which the tests share and do not stop."""
    with Server(request.param) as server:
        yield server


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the directories that the servers have created so far, whether they still exist."""
    created: list[Path] = []
    create = servers._temporary_directory

    def recorded(**options: bool) -> Path:
        created.append(create(**options))
        return created[-1]

    monkeypatch.setattr(servers, "_temporary_directory", recorded)
    return created


def connect(url: str) -> psycopg.Connection:
    """Connect to the database of an SQLAlchemy URL."""
    return psycopg.connect(url.replace("+psycopg", ""))


def ask(url: str, question: LiteralString) -> object:
    """Return the first column of the first row of the answer."""
    with connect(url) as connection:
        row = connection.execute(question).fetchone()
    return row and row[0]


def directory_of(url: str) -> Path:
    """Return the directory in which the server of a URL keeps all it has."""
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def processes_of(directory: Path) -> list[str]:
    """Return the ids of a server's processes: all work in its directory, even a removed one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # It is gone by now, or it belongs to somebody else.
        with contextlib.suppress(OSError):
            if str((process / "cwd").readlink()).startswith(f"{directory}/"):
                found.append(process.name)
    return found


def wait_until_gone(directory: Path) -> None:
    """Return when no process of a server is left, or fail after 20 seconds."""
    deadline = time.monotonic() + 20
    while left := processes_of(directory):
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.02)


@contextlib.contextmanager
def python_with_a_server(installation):
    """Run a Python that starts a server and goes on until its standard input is closed."""
    # A copy for another account is to be made here: a Python that is killed would leave it behind.
    reachable = servers._reachable(installation.bin)
    python = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SERVER, str(reachable)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with python:
        assert python.stdout is not None
        directory = directory_of(python.stdout.readline().strip())
        try:
            assert processes_of(directory)
            yield python, directory
        finally:
            python.kill()
            python.wait()
            wait_until_gone(directory)
            shutil.rmtree(directory, ignore_errors=True)


def installation_of_scripts(directory: Path, *, initdb: str, postgres: str) -> Installation:
    """Create an installation whose programs are shell scripts."""
    binaries = directory / "bin"
    binaries.mkdir()
    for name, script in (("initdb", initdb), ("postgres", postgres)):
        (binaries / name).write_text(f"#!/bin/sh\n{script}\n")
        (binaries / name).chmod(0o755)
    return Installation(binaries, "0", "system")


def test_the_newest_of_several_installations_is_found_by_number(tmp_path, monkeypatch):
    for version in ("9.6.24", "16.14", "18.4", "17.9 (Debian 17.9-1)"):
        place = tmp_path / version[:2].strip(".")
        place.mkdir()
        said = f"echo 'postgres (PostgreSQL) {version}'"
        installation_of_scripts(place, initdb="exit 0", postgres=said)
    # One that cannot create a data directory does not count, however new it is.
    broken = tmp_path / "19"
    broken.mkdir()
    said = "echo 'postgres (PostgreSQL) 19.1'"
    installation_of_scripts(broken, initdb="exit 0", postgres=said)
    (broken / "bin" / "initdb").unlink()
    monkeypatch.setattr(servers, "_wheel_directories", lambda: tmp_path.glob("*/bin"))
    monkeypatch.setattr(servers, "_system_directories", lambda: tmp_path.glob("1?/bin"))
    expected = Installation((tmp_path / "18" / "bin").resolve(), "18.4", "wheel")
    assert installations() == [expected]


@each_installation
@pytest.mark.parametrize(("durable", "waits"), [(False, "off"), (True, "on")])
def test_a_server_waits_for_the_disk_only_if_it_is_durable(installation, durable, waits):
    with Server(installation, durable=durable) as server:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert ask(server.url, f"show {setting}") == waits


def test_a_server_is_reachable_through_its_socket_only(server):
    assert ask(server.url, "show listen_addresses") == ""
    assert directory_of(server.url).stat().st_mode & 0o077 == 0


def test_a_database_is_dropped_whoever_is_connected(server):
    url = server.create_database("busy")
    with connect(url) as connection:
        server.drop_database("busy")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        connect(url)


def test_a_server_is_started_before_it_is_used_and_only_once(server):
    idle = Server(INSTALLATIONS[0])
    for use in (lambda: idle.url, idle.restart, lambda: idle.create_database("any")):
        with pytest.raises(RuntimeError, match="not started"):
            use()
    with pytest.raises(RuntimeError, match="already started"):
        server.start()
    assert ask(server.url, "select 1") == 1


@sees_processes
@each_installation
def test_a_stopped_server_leaves_no_process_and_no_directory(installation):
    server = Server(installation)
    server.start()
    directory = directory_of(server.url)
    with connect(server.url):
        assert processes_of(directory)
        server.stop()
    assert not processes_of(directory)
    assert not directory.exists()
    server.stop()


@sees_processes
@each_installation
def test_a_python_that_is_killed_leaves_no_server_and_the_next_one_removes_its_files(installation):
    if "setpriv" not in servers._launcher().prefix:
        pytest.skip("only setpriv ties a server to a Python that is killed")
    with python_with_a_server(installation) as (python, directory):
        os.utime(directory, (0, 0))
        servers._remove(servers._temporary_directory(durable=False))
        assert directory.exists()  # however old
        python.kill()
        python.wait()
        wait_until_gone(directory)
        with contextlib.suppress(FileNotFoundError):  # who starts a server just now removes it too
            os.utime(directory, (0, 0))
        servers._remove(servers._temporary_directory(durable=False))
        wait_until(lambda: not directory.exists())


@sees_processes
@each_installation
def test_a_python_that_forgets_to_stop_leaves_no_server(installation):
    with python_with_a_server(installation) as (python, directory):
        python.communicate()
        assert python.returncode == 0
        assert not processes_of(directory)
        assert not directory.exists()


@each_installation
@pytest.mark.parametrize("durable", [False, True])
def test_a_hard_stop_breaks_connections_and_keeps_what_was_committed(installation, durable):
    with Server(installation, durable=durable) as server:
        with connect(server.url) as connection:
            connection.execute("create table kept as select 42 as answer")
            connection.commit()
            server.stop_hard()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        with pytest.raises(psycopg.OperationalError):
            ask(server.url, "select 1")
        server.restart()
        assert ask(server.url, "select answer from kept") == 42


def test_a_failing_initdb_is_quoted_and_leaves_nothing(tmp_path, temporary):
    broken = installation_of_scripts(
        tmp_path, initdb='[ "$1" = --version ] || { echo no room >&2; exit 1; }', postgres="exit 0"
    )
    with pytest.raises(RuntimeError, match="no room"):
        Server(broken).start()
    assert not temporary[-1].exists()


def test_a_failing_server_is_quoted_at_once_and_leaves_nothing(tmp_path, temporary):
    broken = installation_of_scripts(
        tmp_path, initdb="exit 0", postgres="echo FATAL: out of luck >&2; exit 1"
    )
    before = time.monotonic()
    with pytest.raises(RuntimeError, match="FATAL: out of luck"):
        Server(broken).start()
    assert time.monotonic() - before < 10
    assert not temporary[-1].exists()


def test_a_c_library_without_the_utf8_locale_gets_the_plain_one(tmp_path, temporary):
    said = 'case "$*" in *C.UTF-8) echo invalid locale name \\"C.UTF-8\\" >&2; exit 1;; esac'
    plain = installation_of_scripts(tmp_path, initdb=said, postgres="echo came so far; exit 1")
    with pytest.raises(RuntimeError, match="came so far"):
        Server(plain).start()


@each_installation
def test_root_runs_an_installation_that_only_root_can_reach(installation, tmp_path, temporary):
    if servers._launcher().owner is None:
        pytest.skip("no account is stepped down to here")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = installation.bin.parent.parent
    for neighbour in (package, package.with_name(f"{package.name}.libs")):
        (closed / neighbour.name).symlink_to(neighbour)
    hidden = closed / installation.bin.relative_to(package.parent)
    with Server(Installation(hidden, installation.version, installation.origin)) as server:
        assert ask(server.url, "select 1") == 1
        assert len(temporary) == 2, "the copy and the data"


def test_root_without_setpriv_and_unshare_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="install util-linux"):
        servers._launcher.__wrapped__()


def test_a_user_without_setpriv_runs_the_server_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "true").symlink_to(shutil.which("true") or "true")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert servers._launcher.__wrapped__() == ((), None)


@pytest.mark.parametrize(
    ("statement", "kept"),
    [
        ("INSERT INTO t (n) VALUES (7), (8)", True),
        ("SELECT nextval('t_id_seq')", True),
        ("UPDATE version SET v = 2", False),
        ("CREATE TABLE more ()", False),
        ("DROP TABLE t", False),
        ("ALTER TABLE t ADD m int", False),
        ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", False),
        ("CREATE INDEX ON t (n)", False),
        ("GRANT SELECT ON t TO public", False),
        ("COMMENT ON TABLE t IS 'of a test'", False),
        ("REVOKE ALL ON SCHEMA public FROM public", False),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", False),
        ("INSERT INTO t (n) VALUES (1); ANALYZE t", False),
        ("ALTER DATABASE spare SET jit = off", False),
        ("INSERT INTO t (n) SELECT generate_series(1, 5000)", False),
    ],
)  # fmt: skip
def test_a_database_serves_the_next_test_if_only_rows_have_come(server, statement, kept):
    url = server.create_database("spare")
    try:
        with connect(url) as connection:
            connection.execute("CREATE TABLE t (id serial, n int); CREATE TABLE version (v int)")
            connection.execute("INSERT INTO version VALUES (1)")
        spare = servers.Spare(url)
        with spare.connection, connect(url) as connection:
            connection.execute(statement)
            connection.commit()
            assert not spare.emptied()  # somebody is still there
            connection.close()
            assert spare.emptied() == kept
            if kept:
                assert ask(url, "SELECT count(*) FROM t") == 0
                assert ask(url, "SELECT sum(n_dead_tup) FROM pg_stat_user_tables") == 0
                assert ask(url, "SELECT nextval('t_id_seq')") == 1
    finally:
        server.drop_database("spare")
