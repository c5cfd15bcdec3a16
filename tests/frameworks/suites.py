"""The frameworks' own tests, with our class in the place of theirs.

    python -m tests.frameworks.suites a2a tests/server/tasks/test_inmemory_task_store.py    # of 1.3
    python -m tests.frameworks.suites agentscope tests/memory_test.py    # of AgentScope v1.0.21
    python -m tests.frameworks.suites agentos tests/test_checkpoint_engine.py    # of its sdist
    python -m tests.frameworks.suites chatkit tests/test_store.py    # of its sdist
    python -m tests.frameworks.suites agent_framework tests/workflow/test_checkpoint.py

Prints how many passed, beside the ceiling: how many can, because the others ask for another
library's private parts. It fails if fewer do. On SQLite files, or with ``--engine postgresql``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentstore import AsyncStore, migrations
from tests.drivers import INSTALLATIONS
from tests.servers import Server

CEILINGS = {"a2a": 39, "agent_framework": 41, "agentos": 17, "agentscope": 6, "chatkit": 30}


class Databases:
    """Makes a database for each test that asks for one, at head."""

    def __init__(self, server: Server | None) -> None:
        self.server = server
        self.home = Path(tempfile.mkdtemp())
        self.numbers = itertools.count()

    def new(self) -> str:
        name = f"suite_{next(self.numbers)}"
        url = f"sqlite:///{self.home / name}.db"
        if self.server is not None:
            url = self.server.create_database(name, None)
        migrations.upgrade(url)
        return url


def put_agentscope(databases: Databases) -> None:
    from agentscope import memory

    from agentstore.integrations.agentscope import AgentStoreMemory

    stores: dict[object, AsyncStore] = {}

    class Ours(AgentStoreMemory):
        """Takes what their memories take; those of one engine or pool share a store."""

        def __init__(self, session_id="s", user_id=None, key_ttl=None, **place: Any) -> None:
            shared = next(iter(place.values()), object())
            if shared not in stores:
                stores[shared] = AsyncStore(databases.new())
            store = stores[shared]
            super().__init__(store, session_id=session_id, user_id=user_id, key_ttl=key_ttl)

        async def close(self) -> None:
            await self.store.close()

    for name in ("InMemoryMemory", "AsyncSQLAlchemyMemory", "RedisMemory"):
        setattr(memory, name, Ours)


class Once:
    """An adapter with a store for each call: each of their tests has a loop, and closes nothing."""

    def __init__(self, url: str, adapter: Callable[[Any], Any]) -> None:
        self.url, self.adapter = url, adapter

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with AsyncStore(self.url) as store:
                return await getattr(self.adapter(store), name)(*args, **kwargs)

        return call


def put_agentos(databases: Databases) -> None:
    from agentos.checkpoint import sqlite

    from agentstore.integrations.agentos import AgentStoreCheckpointer

    urls: dict[str, str] = {}

    def ours(db_path: str = "checkpoints.db") -> Any:
        if db_path not in urls:
            urls[db_path] = databases.new()
        return Once(urls[db_path], AgentStoreCheckpointer)

    sqlite.SQLiteCheckpointer = ours


def put_a2a(databases: Databases) -> None:
    from a2a.server import tasks

    from agentstore.integrations.a2a import AgentStoreTaskStore

    def ours(use_copying: bool = True) -> Any:
        return Once(databases.new(), AgentStoreTaskStore)

    tasks.InMemoryTaskStore = ours


def put_chatkit(databases: Databases) -> None:
    from pydantic import create_model

    from agentstore.integrations.chatkit import AgentStoreChatKitStore

    class Ours(AgentStoreChatKitStore[Any]):
        """Takes what the store of their tests takes; each test has one of its own."""

        def __init__(self, path: str) -> None:
            super().__init__(AsyncStore(databases.new()), lambda context: context.user_id)

    for name, has in (
        ("helpers", {}),
        ("helpers.mock_store", {"SQLiteStore": Ours}),
        ("tests._types", {"RequestContext": create_model("RequestContext", user_id=(str, ...))}),
    ):
        sys.modules[name] = module = ModuleType(name)
        vars(module).update(has)


def put_agent_framework(databases: Databases) -> None:
    import agent_framework

    from agentstore.integrations.agent_framework import AgentStoreCheckpointStorage

    kinds = ("ApprovalRequest", "CustomData", "ExecutorState", "ToolApprovalRequest")
    own = [f"test_checkpoint:_Test{kind}" for kind in kinds]
    adapter = partial(AgentStoreCheckpointStorage, allowed_checkpoint_types=own)

    def ours(*path: object, allowed_checkpoint_types: object = None) -> Any:
        return Once(databases.new(), adapter)

    module: Any = agent_framework
    module.FileCheckpointStorage = module.InMemoryCheckpointStorage = ours


PUT = {
    "a2a": put_a2a,
    "agent_framework": put_agent_framework,
    "agentos": put_agentos,
    "agentscope": put_agentscope,
    "chatkit": put_chatkit,
}


class Counted:
    """Counts what passed."""

    passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("framework", choices=sorted(PUT))
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    options = arguments.parse_args()
    server = Server(INSTALLATIONS[0]) if options.engine == "postgresql" else None
    if server is not None:
        server.start()
    counted = Counted()
    try:
        PUT[options.framework](Databases(server))
        flags = [
            "-q", "-p", "no:cacheprovider", "--asyncio-mode=auto", "--noconftest",
            "--import-mode=importlib", "-W", "ignore", "-c", "/dev/null", "--tb=short",
        ]  # fmt: skip
        pytest.main([*flags, "--rootdir", str(options.file.parent), str(options.file)], [counted])
    finally:
        if server is not None:
            server.stop()
    ceiling = CEILINGS[options.framework]
    print(f"{options.framework} on {options.engine}: {counted.passed} of {ceiling}")
    sys.exit(counted.passed < ceiling)


if __name__ == "__main__":
    main()
