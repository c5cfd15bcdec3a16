"""What `make test` runs of all the tests, and what `make test-all` runs."""

import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import Requirement

from tests.drivers import DRIVERS
from tests.interpreters import OLDER, VERSIONS, found
from tests.selection import EVERY_DRIVER, MOST, ONE_EACH, TESTS_OF, modules_for

ROOT = Path(__file__).parents[2]
LEFT = "are left to `make test-all`"


def collected(*arguments, full="", sqlite=""):
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "pytest_timeout"]
    env = {**os.environ, "AGENTSTORE_TEST_FULL": full, "PYTHONPATH": str(ROOT)}
    env["AGENTSTORE_TEST_ON_SQLITE"] = sqlite
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which takes a second
    env.pop("PYTEST_ADDOPTS", None)  # another -q would leave the names out
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def test_all_of_it_runs_on_the_versions_that_the_package_is_said_to_run_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [each.rpartition(" :: ")[2] for each in project["classifiers"] if "Python ::" in each]
    assert list(VERSIONS) == named


def test_both_releases_of_sqlalchemy_that_the_package_asks_for_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (asked,) = [
        each for each in map(Requirement, project["dependencies"]) if each.name == "sqlalchemy"
    ]
    pins = [(ROOT / name).read_text(encoding="utf-8") for name in ("constraints.txt", OLDER)]
    tested = [re.search(r"^SQLAlchemy==(.+)$", text, re.MULTILINE)[1] for text in pins]
    assert [version.rpartition(".")[0] for version in tested] == ["2.1", "2.0"]
    assert all(version in asked.specifier for version in tested)
    assert "2.0.35" not in asked.specifier
    assert "2.2" not in asked.specifier


def test_a_python_that_is_here_is_found_and_none_that_is_not():
    running = "{}.{}".format(*sys.version_info)
    assert found(running) == sys.executable
    assert found("3.2") is None


def test_the_modules_that_run_on_every_driver_are_there():
    assert {path.stem for path in (ROOT / "tests").rglob("test_*.py")} >= EVERY_DRIVER
    assert {driver.name for driver in DRIVERS} == {*ONE_EACH}


def test_what_is_left_out_is_said_with_its_reasons_and_the_long_run_leaves_nothing_out():
    pages, peers = "tests/contract/test_pages.py", "tests/unit/test_bench_peers.py"
    test = f"{pages}::test_a_cursor_is_good_for_its_own_query_only"
    short, long = collected(pages, peers), collected(pages, peers, full="1")
    (said,) = [line for line in short.splitlines() if LEFT in line]
    assert "2 that are long" in said
    assert "on aiosqlite and older servers" in said
    assert "on further drivers" in said
    assert short.count(test) == 2
    assert f"{test}[psycopg-async]" in short
    assert long.count(test) >= len(DRIVERS)
    assert LEFT not in long


def test_an_id_that_no_parameter_has_any_more_is_refused(tmp_path):
    file = tmp_path / "test_renamed.py"
    file.write_text(
        "import pytest\n"
        "@pytest.mark.long(but=['two'])\n"
        "@pytest.mark.parametrize('n', [1], ids=['one'])\n"
        "def test_renamed(n): pass\n"
    )
    options = ["-p", "tests.selection", "-c", str(ROOT / "pyproject.toml"), "--noconftest"]
    assert "no parameter is like 'two'" in collected(str(file), *options)


def test_every_module_has_tests_that_are_there_and_no_pattern_is_of_nothing():
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("*/**/*.*")]
    files += [path.name for path in ROOT.glob("*.*")] + ["Makefile"]
    patterns = [*TESTS_OF]
    first = {
        file: next((each for each in patterns if fnmatchcase(file, each)), None) for file in files
    }
    modules = {file for file in files if fnmatchcase(file, "agentstore/*.py")}
    assert {file for file in modules if not modules_for([file])} == set()
    assert {*patterns} - {*first.values()} == set(), "another pattern comes first, or nothing fits"
    there = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert {f"test_{name}" for names in TESTS_OF.values() for name in names.split()} <= there


def test_what_changed_is_tested_by_what_is_of_most_of_it():
    tasks, claims = "agentstore/repositories/tasks.py", "agentstore/repositories/claims.py"
    of_tasks = ["tests/contract/test_task_queue.py", "tests/contract/test_tasks.py"]
    assert sorted(modules_for([tasks])) == of_tasks
    found = modules_for(["agentstore/retention.py", tasks, claims])
    assert sorted(found[:2]) == of_tasks
    assert "tests/contract/test_retention.py" in found[2:]
    own = "tests/unit/test_selection.py"
    assert modules_for([own, "tests/unit/test_that_is_gone.py", "LICENSE"]) == [own]
    assert MOST >= 5


def test_the_quick_tests_need_no_server():
    of_tasks = "tests/contract/test_tasks.py"
    both, quick = collected(of_tasks), collected(of_tasks, sqlite="1")
    assert "[psycopg" in both
    assert "[psycopg" not in quick
    assert quick.count("[sqlite3") == both.count("[sqlite3")
    assert "on PostgreSQL" in quick
