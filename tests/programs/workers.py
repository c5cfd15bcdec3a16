"""The other side of ``worker``: starting such processes, and telling them what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class Worker:
    """A process that runs ``tests.programs.worker``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.programs.worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def prepare(self, do: str, **arguments: Any) -> None:
        """Say what is to be done, and wait until the process is ready for it."""
        self._say(json.dumps({"do": do, **arguments}))
        assert self.answer() == {"ready": True}

    def go(self) -> None:
        """Let it begin, or whatever else a line means to it."""
        self._say("")

    def answer(self) -> dict[str, Any]:
        """Wait for a line; an empty one means that the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else {}

    def kill(self) -> None:
        """Kill it outright, if it still runs, and give its pipes back."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def kill_and_read(self) -> list[dict[str, Any]]:
        """Kill it outright and give what it had said by then; a line cut short was not said."""
        self._process.kill()
        assert self._process.stdout is not None
        rest = self._process.stdout.read()
        self.kill()
        return [json.loads(line) for line in rest.splitlines(keepends=True) if line[-1] == "\n"]

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def run_together(workers: list[Worker], commands: list[dict[str, Any]]) -> list[Any]:
    """Have each worker carry out its command, all at the same moment, and give what they did."""
    pairs = list(zip(workers, commands, strict=True))
    for worker, command in pairs:
        worker.prepare(**command)
    for worker, _ in pairs:
        worker.go()
    answers = [worker.answer() for worker, _ in pairs]
    failed = [a for a in answers if "done" not in a]
    if failed:
        raise AssertionError(f"{len(failed)} processes failed: {failed}")
    return [a["done"] for a in answers]
