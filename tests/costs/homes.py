"""A database at head for the tests of one module, by each driver."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentstore import Store
from tests.conftest import VERSIONS, Driver, Servers

_FILES: dict[str, Any] = {"synchronous": "OFF"}
"""They need not survive a power cut; that changes no count."""
_NO_PINGS: dict[str, Any] = {"ping_after": 86_400.0}
"""A machine that stands still for seconds would have the connection tested before its next use."""


@dataclass(frozen=True)
class Home:
    """A database, a driver, and a synchronous store that prepares what is needed.

    Attributes:
        options: For the store that is looked at.
    """

    driver: Driver
    url: str
    preparing: Store
    options: dict[str, Any]

    def open(self) -> Any:
        """Open a store by the driver, driven synchronously."""
        return self.driver.open(self.url, **self.options)


@contextmanager
def home_of(driver: Driver, servers: Servers, template: Path, folder: Path) -> Iterator[Home]:
    """Make a database, of the newest server, for what is looked at does not depend on its age."""
    if driver.engine == "sqlite":
        path = folder / "test.db"
        shutil.copy(template, path)
        url = f"sqlite:///{path}"
    else:
        url = servers.new_database(VERSIONS[0])
    with Store(url, **_FILES) as preparing:
        yield Home(driver, url, preparing, {**_FILES, **_NO_PINGS})
    if driver.engine == "postgresql":
        servers.drop(VERSIONS[0], url)
