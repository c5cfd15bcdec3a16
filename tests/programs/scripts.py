"""Scripts, each run in a process that was forked with the package already imported."""

import os
import runpy
import sys
import warnings
from pathlib import Path

from tests.chaos.writers import CONTEXT

ROOT = Path(__file__).parents[2]


def run_script(script: Path, *, code: int = 0) -> str:
    """Run a script in its folder, as Python with ``-W error`` would; give what it printed.

    It is to end with the code, or by the signal that a negative one names.
    """
    output = script.with_suffix(".out")
    process = CONTEXT.Process(target=_run, args=(script, output))
    process.start()
    process.join()
    printed = output.read_text(encoding="utf-8")
    assert process.exitcode == code, printed
    return printed


def _run(script: Path, output: Path) -> None:
    with output.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(script.parent)
    os.environ |= {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    os.environ.pop("AGENTSTORE_URL", None)
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    warnings.simplefilter("error")
    runpy.run_path(str(script), run_name="__main__")
