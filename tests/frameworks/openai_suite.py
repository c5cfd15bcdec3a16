"""Runs the OpenAI Agents SDK's own suites with our sessions in the place of the SDK's.

    python tests/frameworks/openai_suite.py [--source openai_agents-0.24.0.tar.gz] [--only advanced]

It needs the extra ``openai``, and what the SDK's tests need beside it: ``pytest-asyncio
pytest-mock inline-snapshot sqlalchemy aiosqlite``. Tests that ask for private parts of the SDK's
classes are left out (see ``openai_plugin``). It prints how many passed, and fails if they are fewer
than there were.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = "0.24.0"
SUITES = {
    "advanced": (["tests/extensions/memory/test_advanced_sqlite_session.py"], 76),
    "sqlite": (["tests/memory/test_session.py"], 39),
    "sqlalchemy": (["tests/extensions/memory/test_sqlalchemy_session.py"], 23),
    "limit and deferred": (
        ["tests/memory/test_session_limit.py", "tests/deferred_session_writes"],
        175,
    ),
}
"""What is run, and how many tests of it passed when this was written, on both engines."""


def source_of(given: Path | None, folder: Path) -> Path:
    """Unpack the SDK's source distribution, which is downloaded if none is given."""
    if given is None:
        wanted = ["--no-deps", "--no-binary", ":all:", f"openai-agents=={VERSION}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder, *wanted]
        subprocess.run(command, check=True)
        (given,) = folder.glob("*.tar.gz")
    with tarfile.open(given) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"openai_agents-{VERSION}"


@contextmanager
def templates(folder: Path) -> Iterator[dict[str, str]]:
    """Make a database at head on each engine, to be copied."""
    from agentstore import migrations
    from tests.conftest import Servers
    from tests.drivers import VERSIONS

    file = folder / "template.db"
    migrations.upgrade(f"sqlite:///{file}")
    servers = Servers(folder)
    try:
        yield {"sqlite": str(file), "postgresql": servers.new_database(VERSIONS[0])}
    finally:
        servers.stop()


def run(source: Path, paths: list[str], template: str, kind: str) -> tuple[int, int]:
    """Run a suite; give how many passed, and how many failed."""
    environment = {
        **os.environ,
        "AGENTSTORE_SUITE_TEMPLATE": template,
        "AGENTSTORE_SUITE_STORE": kind,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
        ),
    }
    options = ["-p", "openai_plugin", "-p", "no:cacheprovider", "-q", "--tb=line", "--timeout=60"]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    ran = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    counts = {
        word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", ran.stdout)
    }
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if failed or not counts:
        print(ran.stdout[-6000:], ran.stderr[-2000:])
    return counts.get("passed", 0), failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--only", choices=SUITES, action="append")
    parser.add_argument("--engine", choices=["sqlite", "postgresql"], action="append")
    parser.add_argument("--store", choices=["async", "sync"], default="async")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    fewer = False
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        source = source_of(arguments.source, folder)
        with templates(folder) as made:
            for engine in arguments.engine or made:
                for suite in arguments.only or SUITES:
                    paths, expected = SUITES[suite]
                    passed, failed = run(source, paths, made[engine], arguments.store)
                    print(f"{engine:10} {suite:18} {passed} of {passed + failed}", flush=True)
                    fewer = fewer or passed < expected or bool(failed)
    return int(fewer)


if __name__ == "__main__":
    sys.exit(main())
