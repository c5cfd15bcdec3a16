"""What is installed elsewhere is whole: built, installed into an empty environment, and used in
an empty folder, where nothing of the checkout can help.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path

import pytest

from agentstore import migrations

pytestmark = pytest.mark.packaging

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_SOURCE = ("__pycache__", "_alembic")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command without any help from this environment, and give what it prints."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "AGENTSTORE_URL")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, source: Path, target: Path) -> Path:
    """Build a wheel or an sdist with what is installed here."""
    arguments = ("-m", "build", f"--{kind}", "--no-isolation", "--outdir", target, source)
    run(sys.executable, *arguments, cwd=target.parent)
    (built,) = target.iterdir()
    return built


def source_files(folder: str) -> set[str]:
    """Give the files of a folder of the checkout, relative to it."""
    root = CHECKOUT / folder
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and not any(part in NOT_SOURCE for part in path.parts)
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", CHECKOUT, tmp_path_factory.mktemp("wheel") / "dist")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", CHECKOUT, tmp_path_factory.mktemp("sdist") / "dist")


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, and the libraries that it depends on beside it."""

    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def packages(self) -> Path:
        (found,) = self.home.glob("lib/python*/site-packages")
        return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    environment = Installed(tmp_path_factory.mktemp("environment") / "venv")
    venv.create(environment.home, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", environment.python, "--quiet")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=wheel.parent)
    # The libraries are borrowed from this environment. A line of a .pth file adds the folder and
    # runs none of the .pth files in it, so an editable installation there stays out.
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (environment.packages / "libraries.pth").write_text("\n".join(sorted(libraries)))
    return environment


# --- What is in it ---------------------------------------------------------------------------


def test_the_wheel_holds_the_package_and_the_revisions_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {f"agentstore/{name}" for name in source_files("agentstore")}
    revisions = {f"agentstore/_alembic/{name}" for name in source_files("alembic")}
    described = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - described == package | revisions
    looks = "agentstore/explorer/"
    assert {f"{looks}templates/base.html", f"{looks}static/htmx.LICENSE.txt"} <= names
    assert {"agentstore/py.typed", "agentstore/_alembic/env.py"} <= names
    assert {f"agentstore/_alembic/versions/{path.name}" for path in revision_files()} <= names


def revision_files() -> list[Path]:
    return sorted((CHECKOUT / "alembic" / "versions").glob("*.py"))


def test_the_wheel_says_what_it_needs_and_what_it_offers(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    described = message_from_string(archive.read(name).decode("utf-8"))
    needed = [line for line in described.get_all("Requires-Dist", []) if "extra ==" not in line]
    wanted = {
        "sqlalchemy[asyncio]", "alembic", "aiosqlite", "msgspec", "psycopg[binary]", "typer",
        "rich",
    }  # fmt: skip
    assert {line.split("<")[0].split(">")[0].strip() for line in needed} == wanted
    assert described["Name"] == PROJECT["name"]
    assert described["Requires-Python"] == ">=3.11"
    assert described["Version"] == PROJECT["version"]
    assert "# agentstore" in described.get_payload()
    (points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert "agentstore = agentstore.cli:main" in archive.read(points).decode("utf-8")


@pytest.mark.long
def test_the_source_distribution_can_be_tested_and_makes_the_same_wheel(sdist, wheel, tmp_path):
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in 3.11.3
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", **safely)  # noqa: S202 - we made it
    (root,) = (tmp_path / "source").iterdir()
    for needed in ("README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt"):
        assert (root / needed).is_file(), needed
    for needed in ("alembic.ini", "pyproject.toml", "tests/conftest.py", "docs", "examples"):
        assert (root / needed).exists(), needed
    for folder in ("agentstore", "alembic", "tests"):
        there = {p.relative_to(root / folder).as_posix() for p in (root / folder).rglob("*.*")}
        assert source_files(folder) <= there
    again = build("wheel", root, tmp_path / "dist")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def test_the_folder_of_the_revisions_is_no_package():
    """It would be found instead of the library of the same name."""
    assert not list((CHECKOUT / "alembic").rglob("__init__.py"))


def test_the_checkout_has_no_copy_of_the_revisions_that_would_be_found_first():
    assert not (CHECKOUT / "agentstore" / "_alembic").exists()
    assert migrations.script_location() == CHECKOUT / "alembic"


USE = """
import agentstore, asyncio, pathlib, sys
from agentstore import AsyncStore, Store, migrations

home = pathlib.Path(sys.argv[1]).resolve()
assert home in pathlib.Path(agentstore.__file__).resolve().parents, agentstore.__file__
assert home in migrations.script_location().parents, migrations.script_location()
assert "alembic" not in sys.modules
assert agentstore.__version__ == sys.argv[2], agentstore.__version__

with Store("sqlite:///one.db") as store:
    user = store.users.create("Ada", quota_total=10)
    session = store.sessions.create(user.id)
    store.messages.save(session.id, "user", "hello")
    assert [m.content for m in store.messages.history(session.id)] == ["hello"]

async def work():
    async with AsyncStore("sqlite+aiosqlite:///two.db") as store:
        session = await store.sessions.create()
        await store.messages.save(session.id, "user", "hello")

asyncio.run(work())
assert migrations.upgrade("sqlite:///three.db") == migrations.HEAD
assert migrations.downgrade("sqlite:///three.db", revision="base") == "base"
print(migrations.HEAD)
"""


def test_stores_and_migrations_work_in_an_empty_folder(installed, tmp_path):
    said = run(installed.python, "-c", USE, installed.home, PROJECT["version"], cwd=tmp_path)
    assert said.strip() == migrations.HEAD
    assert {path.name for path in tmp_path.glob("*.db")} == {"one.db", "two.db", "three.db"}


def test_the_command_works_in_an_empty_folder(installed, tmp_path):
    command = installed.home / "bin" / "agentstore"
    assert migrations.HEAD in run(command, "upgrade", cwd=tmp_path)
    assert (tmp_path / "agentstore.db").is_file()
    assert "up to date" in run(command, "current", cwd=tmp_path)


def test_a_type_checker_finds_the_types_of_what_is_installed(installed):
    assert (installed.packages / "agentstore" / "py.typed").is_file()
