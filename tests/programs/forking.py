"""Processes of their own that cost no start of Python, for that takes half a second of a core.

One process, which has imported the programs and done nothing else, forks itself for each that a
test asks for. What it forks runs a program as if it had just been started: with standard input and
output of its own, in one thread, and without a connection, a store or an event loop. It is killed,
and ends, for itself alone.

What is asked for comes over a socket, as one JSON object: ``{"run": program, "with": arguments}``
beside the two ends of pipes, answered by the number of the process, or ``{"reap": number}``,
answered by how it ended. Until that is asked the number stays its own.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAMS = ("worker", "worker_tasks")
MOST = 65_536
"""Bytes of a message."""


class Forked:
    """A process that runs one of the programs, seen from the one that asked for it."""

    def __init__(self, program: str, *arguments: Any) -> None:
        """Start it."""
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        request = {"run": program, "with": arguments}
        try:
            self.pid = _ask(request, [theirs_in, theirs_out])
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
            self.stdin = os.fdopen(ours_in, "w", encoding="utf-8")
            self.stdout = os.fdopen(ours_out, encoding="utf-8")
        self._ended: int | None = None

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        self.stdin.write(line + "\n")
        self.stdin.flush()

    def line(self) -> str:
        """Wait for what it says next; "" at its end, or if it died in the midst of a line."""
        line = self.stdout.readline()
        return line if line.endswith("\n") else ""

    def send(self, number: int) -> None:
        """Send it a signal, whether it still runs or not."""
        if self._ended is None:
            os.kill(self.pid, number)

    def end(self) -> list[str]:
        """Let its input end, and wait until it has; give what it had still said."""
        if self._ended is not None:
            return []
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        with self.stdout:
            rest = self.stdout.read()
        self._ended = _ask({"reap": self.pid})
        # A line that was cut short was not said.
        return [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]

    def kill(self) -> list[str]:
        """Kill it outright, and give what it had said by then."""
        self.send(signal.SIGKILL)
        return self.end()

    def ended_with(self) -> int:
        """Say how it ended: the status that it gave, or the signal below zero."""
        self.end()
        assert self._ended is not None
        return self._ended


_asking = threading.Lock()


def _ask(request: dict[str, Any], descriptors: list[int] | None = None) -> int:
    with _asking:
        control = _forker()
        socket.send_fds(control, [json.dumps(request).encode()], descriptors or [])
        return int(json.loads(control.recv(MOST)))


@functools.cache
def _forker() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.programs.forking", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(control: socket.socket) -> tuple[str, list[Any]] | None:
    """Fork, as one is asked to; give what to run where that was done, or None at the end."""
    while True:
        asked, descriptors, *_ = socket.recv_fds(control, MOST, 2)
        if not asked:
            return None
        request = json.loads(asked)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif answer := os.fork():
            for each in descriptors:
                os.close(each)
        else:
            control.close()
            for place, each in enumerate(descriptors):
                os.dup2(each, place)
                os.close(each)
            sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            return request["run"], request["with"]
        control.sendall(json.dumps(answer).encode())


def main() -> None:
    programs = {name: importlib.import_module(f"tests.programs.{name}") for name in PROGRAMS}
    gc.freeze()  # or the first collection of each child would copy all that was imported
    with socket.socket(fileno=int(sys.argv[1])) as control:
        wanted = serve(control)
    if wanted is not None:
        name, arguments = wanted
        programs[name].main(*arguments)


if __name__ == "__main__":
    main()
