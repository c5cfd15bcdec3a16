"""The memory of a process that walks a conversation page by page.

It is the most that was ever resident, as the kernel counts it, above what the process held once
agentstore was imported. What a half of the walk needs the other needs again, so what the second
half adds must be nothing, however long the conversation is.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import URL

PAGE = 1_000
FLAT = 1.0
"""Megabytes that the second half may add: the allocator's own to and fro."""


def walk(url: URL, session_id: str, size: int) -> dict[str, Any]:
    """Walk a conversation of a known size in a process of its own.

    Returns:
        Megabytes: ``imported`` and ``opened`` before the walk, and above ``imported`` the peaks
        ``first_half`` and ``whole``.
    """
    program = [sys.executable, "-m", "benchmarks.memory", url.render_as_string(hide_password=False)]
    done = subprocess.run(  # noqa: S603 - this very program
        [*program, session_id, str(size)], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def is_flat(walked: dict[str, Any]) -> bool:
    """Say whether the second half of a walk took no more memory than the first."""
    return bool(walked["whole"] - walked["first_half"] <= FLAT)


def _walk(url: str, session_id: str, size: int) -> dict[str, Any]:
    from agentstore import Store

    imported = peak()
    with Store(url) as store:
        opened = half = peak()
        seen, cursor = 0, None
        while True:
            page = store.messages.page(session_id, before=cursor, limit=PAGE)
            seen += len(page.items)
            cursor = page.next_cursor
            if seen <= size // 2:
                half = peak()
            if cursor is None:
                break
    assert seen == size, f"the walk met {seen} messages of {size}"
    return {
        "messages": seen,
        "imported": round(imported, 1),
        "opened": round(opened - imported, 1),
        "first_half": round(half - imported, 1),
        "whole": round(peak() - imported, 1),
    }


def peak() -> float:
    """Give the megabytes that this process has held at most.

    Where there is no /proc, rusage tells; on Linux it would count the parent's, until exec.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    divisor = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / divisor


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("session")
    parser.add_argument("size", type=int)
    arguments = parser.parse_args()
    print(json.dumps(_walk(arguments.url, arguments.session, arguments.size)))
