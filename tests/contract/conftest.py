import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

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
