"""The other side of ``worker``: starting such processes, and telling them what to do."""

import json
from typing import Any, Self

from tests.programs.forking import Forked


class Worker:
    """A process that runs ``tests.programs.worker``."""

    def __init__(self) -> None:
        self._process = Forked("worker")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def prepare(self, do: str, **arguments: Any) -> None:
        """Say what is to be done, and wait until the process is ready for it."""
        self._process.say(json.dumps({"do": do, **arguments}))
        assert self.answer() == {"ready": True}

    def go(self) -> None:
        """Let it begin, or whatever else a line means to it."""
        self._process.say("")

    def answer(self) -> dict[str, Any]:
        """Wait for a line; an empty one means that the process has ended."""
        line = self._process.line()
        return json.loads(line) if line else {}

    def kill(self) -> None:
        """Kill it outright, if it still runs, and give its pipes back."""
        self._process.kill()

    def kill_and_read(self) -> list[dict[str, Any]]:
        """Kill it outright and give what it had said by then; a line cut short was not said."""
        return [json.loads(line) for line in self._process.kill()]


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
