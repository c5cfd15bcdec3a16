"""Run all of the suite on one Python, and what `make test` runs on each other that is found here.

For `make test-all`; needs no package. Each version has an environment of its own; the one that
called this has the whole suite. What `make test` leaves out are repetitions with other drivers,
servers and sizes, which do not come to other code on another Python. It says at its end which
versions ran, and how that went.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
"""Those that the package's classifiers name."""

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
    """Run `make everything` for each; give 1 if one failed, or if there is none."""
    results = {}
    for version in VERSIONS:
        python = found(version)
        if python is None:
            results[version] = "not found here"
            continue
        command = [make, "everything", f"PYTHON={python}", f"VENV={environment(python)}"]
        whole = {"AGENTSTORE_TEST_FULL": "1"} if python == sys.executable else {}
        done = subprocess.run(command, env={**os.environ, **whole}, check=False)
        results[version] = "failed" if done.returncode else "passed"
    for version, result in results.items():
        print(f"Python {version}: {result}")
    return int("failed" in results.values() or "passed" not in results.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
