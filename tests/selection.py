"""What `make test` leaves to `make test-all`; and that it does so is said at the end of each run.

The same subjects are covered by both. Left are repetitions: the body of a repository's method on
more than one driver of an engine, all but the first case of a test on a server where all run in
the process, what is marked `long`, and everything on aiosqlite and on older servers, which come to
the same code as their neighbours. Left are also the tests of each revision, which never changes
again (databases of older versions go through all of them), and those of the tools.

`make quick` takes from that the tests of what was changed, by the table `TESTS_OF`, and of these
those that need no server: ``python -m tests.selection`` prints their modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.drivers import FULL, VERSIONS, Driver

EVERYWHERE = {
    "test_connections",
    "test_engines",
    "test_fidelity",
    "test_joined",
    "test_transactions",
}
"""The modules whose tests always run on every driver and every server."""

EVERY_DRIVER = EVERYWHERE | {
    "test_allocations", "test_content_in_errors", "test_forks", "test_full_disk", "test_gathered",
    "test_health", "test_operations", "test_poolers", "test_secrecy", "test_server_settings",
    "test_silence", "test_threads",
}  # fmt: skip
"""Those whose subject is how a driver or a runner works, on all but aiosqlite and older servers."""

TOOLS = {
    "test_bench", "test_bench_peers", "test_benchmarks", "test_chaos", "test_distribution",
    "test_servers",
}  # fmt: skip
"""Those of the tests' own tools, of the benchmarks and of the packages that are built."""

ON_SQLITE = bool(os.environ.get("AGENTSTORE_TEST_ON_SQLITE"))
"""Whether what runs on a server is left out."""

TESTS_OF = {
    "agentstore/aio.py": "parity store_contract messages",
    "agentstore/cli/conversations.py": "cli cli_reading",
    "agentstore/cli/keeping.py": "cli_keeping cli_spending",
    "agentstore/cli/moving.py": "cli_moving cli_saving cli_transcripts",
    "agentstore/cli/operations.py": "cli_health cli_first_hour",
    "agentstore/cli/ui.py": "cli_ui",
    "agentstore/cli/*": "cli cli_failures",
    "agentstore/database/*": "urls connections",
    "agentstore/doctor.py": "doctor",
    "agentstore/engines/*/append.py": "messages gathered",
    "agentstore/engines/*/search.py": "search search_waiting",
    "agentstore/engines/*/moving.py": "copy backup",
    "agentstore/engines/*/checks.py": "doctor health statistics",
    "agentstore/engines/foreign.py": "importing",
    "agentstore/engines/*": "engines messages transactions",
    "agentstore/errors.py": "errors words_of_failures reprs",
    "agentstore/execution/telemetry.py": "telemetry",
    "agentstore/execution/*": "gathered transactions writer gatherers async_runners",
    "agentstore/explorer/*": "explorer explorer_pages",
    "agentstore/health.py": "health cli_health",
    "agentstore/integrations/langchain.py": "langchain",
    "agentstore/integrations/langgraph/*": "langgraph langgraph_store langgraph_ttl",
    "agentstore/integrations/openai.py": "openai",
    "agentstore/integrations/pydantic_ai.py": "pydantic_ai",
    "agentstore/integrations/*": "docs",
    "agentstore/migrations.py": "one_path refusals",
    "agentstore/models.py": "models models_agree",
    "agentstore/moving/backup.py": "backup restore",
    "agentstore/moving/cop*": "copy",
    "agentstore/moving/frameworks/*": "importing import_openai import_tutorial",
    "agentstore/moving/*": "transcripts import_formats backup",
    "agentstore/records/*": "reprs parity messages",
    "agentstore/repositories/attachments.py": "attachments",
    "agentstore/repositories/branch*": "branches forks",
    "agentstore/repositories/checkpoints/*": "checkpoints checkpoint_values threads",
    "agentstore/repositories/claims.py": "tasks task_queue",
    "agentstore/repositories/line*": "branches forks history",
    "agentstore/repositories/memories.py": "memories",
    "agentstore/repositories/messages/marks.py": "marks",
    "agentstore/repositories/messages/*": "messages history turns streams",
    "agentstore/repositories/scopes.py": "scope scoped",
    "agentstore/repositories/search.py": "search search_waiting",
    "agentstore/repositories/tasks.py": "tasks task_queue",
    "agentstore/repositories/tool_logs.py": "tool_logs",
    "agentstore/repositories/upkeep/*": "statistics retention deleting_users",
    "agentstore/repositories/usage*": "usage turn_usage",
    "agentstore/repositories/users.py": "users api_keys quotas",
    "agentstore/repositories/*": "sessions pages messages",
    "agentstore/retention.py": "retention",
    "agentstore/schema/*": "schema models_agree models",
    "agentstore/settings.py": "environment urls",
    "agentstore/testing/*": "store_contract",
    "agentstore/transactions.py": "transactions scoped turns",
    "agentstore/tui/*": "parts browse",
    "agentstore/values/chat.py": "chat chat_repairs",
    "agentstore/values/encoding.py": "encoding fidelity",
    "agentstore/values/pric*": "prices",
    "agentstore/values/genai.py": "prices",
    "agentstore/values/redaction.py": "redaction secrecy",
    "agentstore/values/token*": "token_use segmentation",
    "agentstore/values/*": "bad_input cli_reading paging",
    "agentstore/worker.py": "worker",
    "agentstore/*": "store_contract front_door messages",
    "alembic/*": "one_path round_trips models_agree",
    "docs/*": "docs architecture pages_of_docs",
    "examples/*": "examples docs",
    "*.md": "docs",
    "tests/selection.py": "selection",
    "tests/*": "messages",
    "Makefile": "selection",
    "pyproject.toml": "selection",
}
"""Which tests are of a file: those of the first pattern that fits, without ``test_``."""

MOST = 6
"""How many modules of tests `make quick` runs."""

CASES = 1
"""How many cases of one test run on a server where all of them run in the process.

Of a test on two engines, such as one that copies, it is so many of each pair of them.
"""

ONE_EACH = ("sqlite3", "psycopg-async", "sqlite3-async", "psycopg", "aiosqlite")
"""Of the drivers of an engine that a test can be on, the first of these stands for all."""

LONG = "that are long"
ON_A_SERVER = "on PostgreSQL"
DRIVERS = "on further drivers"
SERVERS = "on aiosqlite and older servers"
FURTHER = "further cases on a server"
OF_TOOLS = "of the tools"
BROWSER = "in a browser"

IN_BROWSER = "test_in_browser"
"""The module whose tests are run where there are a browser and what drives it."""

_LEFT = pytest.StashKey[Counter[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make test-all` is for, and count it."""
    config.stash[_LEFT] = Counter()
    if not can_browse():
        _leave(config, items, [_of_a_browser(item) for item in items])
    if FULL:
        return
    if not any("::" in each for each in config.args):
        _require_known_ids(items)
    on: dict[object, set[Driver]] = defaultdict(set)
    for item in items:
        on[_function(item)].update(_drivers(item))
    _leave(config, items, [_reason(item, on[_function(item)]) for item in items])
    _leave(config, items, list(_further(items)))
    if ON_SQLITE:
        _leave(config, items, [_on_a_server(item) for item in items])


@cache
def chromium() -> str | None:
    """Give where a Chromium is: ``AGENTSTORE_CHROMIUM``, or one of the system's."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = (shutil.which(name) for name in names)
    given = os.environ.get("AGENTSTORE_CHROMIUM") or next((path for path in found if path), None)
    return given or _installed_by_playwright()


def _installed_by_playwright() -> str | None:
    """Give where ``playwright install chromium`` put one."""
    homes = {"darwin": "~/Library/Caches/ms-playwright"}
    home = Path(homes.get(sys.platform, "~/.cache/ms-playwright")).expanduser()
    found = sorted(home.glob("chromium-*/chrome-*/chrome"))
    return str(found[-1]) if found else None


def can_browse() -> bool:
    """Say whether there are a browser, what drives it, and what looks at its pages."""
    driven = find_spec("playwright") and find_spec("axe_playwright_python")
    return bool(driven) and chromium() is not None


def _of_a_browser(item: pytest.Item) -> str | None:
    return BROWSER if item.path.stem == IN_BROWSER else None


def _on_a_server(item: pytest.Item) -> str | None:
    versions = {value for value in _values(item) if isinstance(value, str)} & {*VERSIONS}
    return ON_A_SERVER if versions or "postgresql" in _engines(item) else None


def _leave(config: pytest.Config, items: list[pytest.Item], reasons: list[str | None]) -> None:
    left = [item for item, reason in zip(items, reasons, strict=True) if reason]
    config.stash[_LEFT].update(reason for reason in reasons if reason)
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item, reason in zip(items, reasons, strict=True) if not reason]


def _reason(item: pytest.Item, on: set[Driver]) -> str | None:
    if item.get_closest_marker("long") and not any(_like(item, each) for each in _but(item)):
        return LONG
    if item.path.stem in TOOLS:
        return OF_TOOLS
    if item.path.stem in EVERYWHERE:
        return None
    texts = [value for value in _values(item) if isinstance(value, str)]
    if any(text in VERSIONS[1:] or "+aiosqlite:" in text for text in texts):
        return SERVERS
    for driver in _drivers(item):
        if driver.name == "aiosqlite":
            return SERVERS
        names = [other.name for other in on if other.engine == driver.engine]
        if item.path.stem not in EVERY_DRIVER and driver.name != min(names, key=ONE_EACH.index):
            return DRIVERS
    return None


def _further(items: list[pytest.Item]) -> Iterator[str | None]:
    """Find the cases of a test on a server that are left, as all of them run in the process."""
    inside = {_function(item) for item in items if "sqlite" in [*_engines(item)][:1]}
    seen: Counter[object] = Counter()
    for item in items:
        function, engines = _function(item), tuple(_engines(item))
        if engines[:1] == ("postgresql",) and item.path.stem not in EVERY_DRIVER:
            seen[function, engines] += 1
            yield FURTHER if function in inside and seen[function, engines] > CASES else None
        else:
            yield None


def _engines(item: pytest.Item) -> Iterator[str]:
    """Say which engines a test is on: mostly one, none, or two where something is copied."""
    for value in _values(item):
        if isinstance(value, Driver):
            yield value.engine
        elif value in ("sqlite", "postgresql"):
            yield str(value)


def _require_known_ids(items: list[pytest.Item]) -> None:
    """Refuse an id that no parameter has any more: what it stands for would never run."""
    known = {(_function(item), each) for item in items for each in _but(item) if _like(item, each)}
    for item in items:
        for each in _but(item):
            if (_function(item), each) not in known:
                raise pytest.UsageError(f"{item.nodeid}: no parameter is like {each!r}")


def _but(item: pytest.Item) -> Iterable[str]:
    mark = item.get_closest_marker("long")
    return mark.kwargs.get("but", ()) if mark else ()


def _like(item: pytest.Item, pattern: str) -> bool:
    return fnmatchcase(item.callspec.id, pattern)


def _function(item: pytest.Item) -> object:
    return item.parent, getattr(item, "originalname", item.name)


def _drivers(item: pytest.Item) -> Iterable[Driver]:
    return (value for value in _values(item) if isinstance(value, Driver))


def _values(item: pytest.Item) -> Iterator[Any]:
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        yield from value if isinstance(value, tuple) else (value,)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that prints what this one, of several, left out: each leaves the same."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = dict(session.config.stash.get(_LEFT, Counter()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear of it."""
    node.config.stash[_LEFT] = Counter(getattr(node, "workeroutput", {}).get("left", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say it."""
    left = config.stash.get(_LEFT, Counter())
    if count := left.pop(BROWSER, 0):
        terminalreporter.write_line(
            f"{count} tests {BROWSER} are left to `make test-ui`: Chromium, playwright or "
            "axe-playwright-python is not here"
        )
    if left:
        parts = ", ".join(f"{count:,} {what}" for what, count in left.most_common())
        terminalreporter.write_line(
            f"{left.total():,} tests are left to `make test-all` (AGENTSTORE_TEST_FULL=1): {parts}"
        )


def modules_for(files: Iterable[str]) -> list[str]:
    """Give the modules of tests of these files, those of most files first."""
    root = Path(__file__).parent
    votes: Counter[str] = Counter()
    for file in files:
        if fnmatchcase(file, "tests/*/test_*.py"):
            votes[file] += (root.parent / file).exists()
            continue
        fitting = (tests for pattern, tests in TESTS_OF.items() if fnmatchcase(file, pattern))
        for name in next(fitting, "").split():
            found = sorted(root.glob(f"*/test_{name}.py"))
            votes.update(str(each.relative_to(root.parent)) for each in found)
    frameworks = "tests/frameworks/"  # which are in another environment
    chosen = [module for module, count in votes.most_common() if count]
    return [module for module in chosen if not module.startswith(frameworks)]


def changed_files() -> list[str]:
    """Give the files that are not as they are where this branch left main."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True)
        return done.stdout.splitlines()

    base = next(iter(git("merge-base", "HEAD", "main")), "HEAD")
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", base), *new})


if __name__ == "__main__":
    modules = modules_for(changed_files())
    print(*modules[:MOST])
    if left := modules[MOST:]:
        print(f"Left to make test: {' '.join(left)}", file=sys.stderr)
