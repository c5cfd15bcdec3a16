"""What `make test` runs of all the tests, and what `make test-all` runs."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.drivers import DRIVERS
from tests.interpreters import OLDER, VERSIONS, found
from tests.selection import EVERY_DRIVER, ONE_EACH

ROOT = Path(__file__).parents[2]
LEFT = "are left to `make test-all`"


def collected(*arguments, full=""):
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "pytest_timeout"]
    env = {**os.environ, "AGENTSTORE_TEST_FULL": full, "PYTHONPATH": str(ROOT)}
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
