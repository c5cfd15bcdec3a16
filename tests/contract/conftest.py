import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from agentstore import Store
from tests.conftest import VERSIONS
from tests.contract.clocks import Clock


@pytest.fixture
def new(servers: Any, tmp_path: Path, sqlite_template: Path) -> Iterator[Callable[..., str]]:
    """Give what makes databases: without anything, at head, or like another one."""
    made: list[str] = []
    numbers = itertools.count()

    def make(engine, *, head=False, like=None, kept=False):
        if engine == "postgresql":
            url = servers.new_database(VERSIONS[0], empty=not head, like=like)
            if not kept:
                made.append(url)
            return url
        path = (servers.home if kept else tmp_path) / f"{next(numbers)}{uuid.uuid4().hex}.db"
        if head or like is not None:
            shutil.copy(sqlite_template if like is None else str(make_url(like).database), path)
        return f"sqlite:///{path}"

    yield make
    for url in made:
        servers.drop(VERSIONS[0], url)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(place: Any, clock: Clock) -> Iterator[Any]:
    """A store by each driver, whose clock the test sets."""
    with place.open(clock=clock) as store:
        yield store


@pytest.fixture(params=["sqlite", "postgresql"])
def one_store(request: Any, servers: Any, sqlite_template: Path, tmp_path: Path) -> Iterator[Store]:
    """A store on each engine, whose statements can be counted: no other thread sends any."""
    if request.param == "sqlite":
        shutil.copy(sqlite_template, tmp_path / "test.db")
        with Store(f"sqlite:///{tmp_path / 'test.db'}") as opened:
            yield opened
        return
    url = servers.new_database(VERSIONS[0])
    with Store(url) as opened:
        yield opened
    servers.drop(VERSIONS[0], url)
