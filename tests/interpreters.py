"""Run all of the suite on one Python, and what `make test` runs on each other that is found here.

For `make test-all`; needs no package. Each version has an environment of its own; the one that
called this has the whole suite. What `make test` leaves out are repetitions with other drivers,
servers and sizes, which do not come to other code on another Python. The tests of `make test` run
once more with the newest SQLAlchemy 2.0, on the Python that called this; its types are left out,
as they differ. It says at its end which versions ran, and how that went.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
"""Those that the package's classifiers name."""

OLDER = "constraints-sqlalchemy-2.0.txt"
"""What takes the place of SQLAlchemy 2.1."""

_ASKED = "import sys; print('{}.{}'.format(*sys.version_info))"


def found(version: str) -> str | None:
    """Give the first Python of a version that starts; the shims of pyenv are there but may not."""
    for candidate in _candidates(version):
        said = subprocess.run(
            [candidate, "-c", _ASKED], capture_output=True, text=True, check=False
        )
        if said.stdout.strip() == version:
            return candidate
    return None


def _candidates(version: str) -> Iterator[str]:
    yield sys.executable
    if path := shutil.which(f"python{version}"):
        yield path
    kept = Path.home() / ".pyenv" / "versions"
    yield from map(str, sorted(kept.glob(f"{version}.*/bin/python"), reverse=True))


def environment(python: str) -> str:
    """Name the folder of a Python's environment: that of `make test` is the caller's own."""
    return ".venv" if python == sys.executable else f".venv-{_version(python)}"


def _version(python: str) -> str:
    return subprocess.check_output([python, "-c", _ASKED], text=True).strip()


def main(make: str = "make") -> int:
    """Run `make` for each Python and SQLAlchemy 2.0; give 1 if one failed, or no Python is here."""
    results = {}
    for version in VERSIONS:
        python = found(version)
        if python is None:
            results[f"Python {version}"] = "not found here"
            continue
        command = [make, "everything", f"PYTHON={python}", f"VENV={environment(python)}"]
        whole = {"AGENTSTORE_TEST_FULL": "1"} if python == sys.executable else {}
        results[f"Python {version}"] = _run(command, **whole)
    tested = "passed" in results.values()
    older = [f"PYTHON={sys.executable}", "VENV=.venv-sqlalchemy-2.0", f"PINS={OLDER}"]
    results["SQLAlchemy 2.0"] = _run([make, "suite", *older])
    for version, result in results.items():
        print(f"{version}: {result}")
    return int("failed" in results.values() or not tested)


def _run(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, env={**os.environ, **environment}, check=False)
    return "failed" if done.returncode else "passed"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
