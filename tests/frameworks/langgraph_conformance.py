"""LangGraph's conformance suite on both savers, on SQLite and on PostgreSQL.

Run it as ``python -m tests.frameworks.langgraph_conformance``; it needs
``langgraph-checkpoint-conformance``, prints passed and ceiling for each saver and engine, and ends
with 1 if a test failed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

from agentstore import AsyncStore, Store
from agentstore.integrations.langgraph import AgentStoreSaver, AsyncAgentStoreSaver
from tests.conftest import VERSIONS, Servers


async def passed_by(name: str, new_url: Callable[[], str], *, asynchronous: bool) -> bool:
    """Run the suite on new databases; say whether all of it passed."""

    async def saver() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        if asynchronous:
            async with AsyncStore(new_url()) as store:
                yield AsyncAgentStoreSaver(store)
        else:
            with Store(new_url()) as store:
                yield AgentStoreSaver(store)

    report = await validate(checkpointer_test(name)(saver))
    results = report.results.values()
    good = sum(each.tests_passed for each in results)
    bad = sum(each.tests_failed + each.tests_skipped for each in results)
    print(f"{name}: {good} of {good + bad}")
    for capability, result in report.results.items():
        for failure in result.failures or ():
            print(f"  {capability}: {failure}")
    return not bad


def main() -> int:
    """Run all four; give the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder))
        numbers = iter(range(1_000))
        engines = {
            "SQLite": lambda: f"sqlite:///{Path(folder) / f'{next(numbers)}.db'}",
            "PostgreSQL": lambda: servers.new_database(VERSIONS[0]),
        }
        try:
            passed = [
                asyncio.run(passed_by(f"{saver} on {engine}", new_url, asynchronous=asynchronous))
                for engine, new_url in engines.items()
                for saver, asynchronous in (
                    ("AgentStoreSaver", False),
                    ("AsyncAgentStoreSaver", True),
                )
            ]
        finally:
            servers.stop()
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
