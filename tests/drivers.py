"""The ways to talk to the engines, and the servers that this machine has."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentstore import AsyncStore, Store
from agentstore.testing import BlockingStore
from tests.servers import Installation, installations

FULL = bool(os.environ.get("AGENTSTORE_TEST_FULL"))
"""Whether everything is run, as long as it is meant to be; see ``selection``."""

PG_URL = os.environ.get("AGENTSTORE_TEST_PG_URL")
INSTALLATIONS: list[Installation] = [] if PG_URL else installations()
VERSIONS = ["given"] if PG_URL else [found.version for found in INSTALLATIONS]


@dataclass(frozen=True)
class Driver:
    """One way to talk to one engine."""

    name: str
    engine: str
    asynchronous: bool
    url: Callable[[str], str] = str

    def open(self, url: str, **options: Any) -> Any:
        """Open a store that is driven synchronously, whichever it is."""
        if self.asynchronous:
            return BlockingStore(lambda: AsyncStore(self.url(url), **options))
        return Store(self.url(url), **options)


DRIVERS = (
    Driver("sqlite3", "sqlite", asynchronous=False),
    Driver("sqlite3-async", "sqlite", asynchronous=True),
    Driver("aiosqlite", "sqlite", asynchronous=True,
        url=lambda url: url.replace("sqlite:", "sqlite+aiosqlite:")),
    Driver("psycopg", "postgresql", asynchronous=False),
    Driver("psycopg-async", "postgresql", asynchronous=True),
)  # fmt: skip
