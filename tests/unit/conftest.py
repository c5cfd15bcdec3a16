"""The command line, run in this process: a new one for each command would take a second."""

import io
import os
import sys
from dataclasses import dataclass

import pytest

from agentstore import cli
from tests.conftest import INSTALLATIONS


@dataclass(frozen=True)
class Printed:
    """What a command printed."""

    stdout: str
    stderr: str


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in a folder of its own, 80 columns wide, and look at its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("AGENTSTORE_URL", raising=False)
    programs = os.pathsep.join(str(found.bin) for found in INSTALLATIONS)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def run_command(*arguments, code=0, given="", **environment):
        capsys.readouterr()
        with monkeypatch.context() as during:
            during.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
            for name, value in environment.items():
                during.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                cli.main([str(argument) for argument in arguments])
        printed = Printed(*capsys.readouterr())
        assert ended.value.code == code, printed
        return printed

    return run_command


@pytest.fixture
def url(tmp_path, sqlite_template):
    """A file at head, for the commands of ``told``."""
    path = tmp_path / "agents.db"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture
def told(run, url):
    """Run a command on the file; give what it printed, on standard error if it failed."""

    def run_command(*arguments, code=0):
        printed = run(*arguments, code=code, AGENTSTORE_URL=url)
        return printed.stdout if code == 0 else printed.stderr

    return run_command


@pytest.fixture
def lacking(monkeypatch):
    """Have a package of ours be imported again, without what an extra brings.

    What was imported before is there again after the test, also as attributes of its packages:
    otherwise later tests would change one copy of a module, and run another.
    """

    def lack(package, *brought):
        for module in [name for name in sys.modules if name.startswith(f"{package}.")]:
            parent, _, name = module.rpartition(".")
            monkeypatch.delattr(sys.modules.get(parent), name, raising=False)
            monkeypatch.delitem(sys.modules, module)
        for module in brought:
            monkeypatch.setitem(sys.modules, module, None)

    return lack
