import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentstore import migrations
from agentstore.schema import PLAIN
from tests.conftest import FULL
from tests.migrations.support import WITH_PREFIX, WITH_SCHEMA_AND_PREFIX, Databases, Tree
from tests.servers import installations

PLACES = {
    "sqlite": ("sqlite", PLAIN),
    "sqlite-prefix": ("sqlite", WITH_PREFIX),
    "postgresql": ("postgresql", PLAIN),
    "postgresql-schema-prefix": ("postgresql", WITH_SCHEMA_AND_PREFIX),
}


@pytest.fixture(params=PLACES if FULL else ["sqlite", "postgresql-schema-prefix"])
def databases(request: pytest.FixtureRequest, servers: Any, tmp_path: Path) -> Databases:
    """Empty databases of one engine, and what their tables are to be called."""
    return _databases(request.param, servers, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def plain_databases(request: pytest.FixtureRequest, servers: Any, tmp_path: Path) -> Databases:
    """Those whose tables carry the plain names."""
    return _databases(request.param, servers, tmp_path)


@pytest.fixture(params=["sqlite-prefix", "postgresql-schema-prefix"])
def named_databases(request: pytest.FixtureRequest, servers: Any, tmp_path: Path) -> Databases:
    """Those whose tables carry names of their own."""
    return _databases(request.param, servers, tmp_path)


@pytest.fixture(params=["postgresql", "postgresql-schema-prefix"])
def server_databases(request: pytest.FixtureRequest, servers: Any, tmp_path: Path) -> Databases:
    """Those on a server."""
    return _databases(request.param, servers, tmp_path)


@pytest.fixture
def upgraded(sqlite_template: Path, tmp_path: Path) -> str:
    """A file that was brought to head, under the plain names."""
    shutil.copy(sqlite_template, tmp_path / "upgraded.db")
    return f"sqlite:///{tmp_path / 'upgraded.db'}"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree of revisions that a test can add to, in this process."""
    folder = tmp_path / "revisions"
    shutil.copytree(
        migrations.script_location(), folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    return Tree(folder, monkeypatch)


_heads: dict[str, str] = {}
"""For each place a database at head, to make copies of: cheaper than migrating for each test."""


def _databases(place: str, servers: Any, tmp_path: Path) -> Databases:
    engine, names = PLACES[place]
    if engine == "sqlite":

        def make(name: str) -> str:
            return f"sqlite:///{tmp_path / name}.db"

        def upgraded() -> str:
            if place not in _heads:
                _heads[place] = str(servers.home / f"{place}.db")
                migrations.upgrade(f"sqlite:///{_heads[place]}", names=names)
            shutil.copy(_heads[place], tmp_path / "head.db")
            return make("head")

        return Databases(make, names, upgraded)
    # The schema is the same on every server: one stands for all.
    given = os.environ.get("AGENTSTORE_TEST_PG_URL")
    version = "given" if given else installations()[0].version

    def clone() -> str:
        if place not in _heads:
            _heads[place] = servers.new_database(version, empty=True)
            migrations.upgrade(_heads[place], names=names)
        return str(servers.new_database(version, like=_heads[place]))

    return Databases(lambda _: servers.new_database(version, empty=True), names, clone)
