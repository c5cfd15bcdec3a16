"""What the explorer costs beside what it asks the database: ``python -m benchmarks.explorer``.

A database is filled with ordinary sessions, a long one, and usage, tool calls, tasks, branches and
checkpoints beside. Each page is asked of the application in this process; then the calls of the
store that it made are made alone. What is left is the page's own: templates, Markdown, drawings.
It is said in time, and in time that this process computed, which other programs do not add to.
Last, ``agentstore ui`` is started as its users do: how long its first page takes, and what memory
ten thousand requests leave behind.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlencode, urlsplit

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sqlalchemy import URL

from agentstore import Store
from agentstore.explorer import explorer
from agentstore.explorer.rendering import Visit
from benchmarks.databases import Databases
from benchmarks.filling import SHORT, Grown, fill
from benchmarks.places import ENGINES, RESULTS, opened

BESIDE_MS, BYTES, FIRST_SECONDS = 100, 200_000, 1.5
"""What a page may take beside its queries, what it may weigh, and when the first one is there."""

_INDEXED = 100_000
"""Messages up to which they are indexed for a search, which takes a minute for a million."""

THREAD = "thread-0"

Page = tuple[str, dict[str, Any]]
Ask = Callable[[], Any]
Took = tuple[float, float]
"""Seconds that passed, and those of them in which this process computed."""

_progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is, and how often a page is asked for."""

    messages: int = 20_000
    beside: int = 2_000
    visits: int = 15
    requests: int = 10_000


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explorer", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument(
        "--messages", type=int, default=Sizes().messages, help="3000000 take minutes"
    )
    parser.add_argument("--requests", type=int, default=Sizes().requests)
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    parser.add_argument("--json", type=Path, default=RESULTS / "explorer.json", metavar="PATH")
    arguments = parser.parse_args()
    sizes = Sizes(messages=arguments.messages, requests=arguments.requests)
    if arguments.quick:
        sizes = Sizes(messages=2_000, beside=50, visits=2, requests=60)
    document: dict[str, Any] = {"messages": sizes.messages, "pages": [], "servers": []}
    for engine in [arguments.engine] if arguments.engine else ENGINES:
        with opened(engine) as databases:
            _measure(databases, sizes, document)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _print(document)


def _measure(databases: Databases, sizes: Sizes, document: dict[str, Any]) -> None:
    engine = databases.name
    with _progress.status(f"{engine}: filling a database of {sizes.messages:,} messages"):
        url = fill(databases, "explored", Grown.of(sizes.messages, short=1_000))
        with Store(url) as store:
            pages = _fill_beside(store, sizes.beside)
            if sizes.messages <= _INDEXED:
                store.search.reindex()
                pages.append(("search", {"q": "flight"}))
    with Store(url, read_only=True) as store:
        for page in pages:
            with _progress.status(f"{engine}: {page[0]}"):
                measured = _page(store, page, sizes.visits)
            document["pages"].append({"engine": engine, **measured})
    with _progress.status(f"{engine}: agentstore ui"):
        document["servers"].append({"engine": engine, **_server(url, pages, sizes.requests)})


def _fill_beside(store: Store, count: int) -> list[Page]:
    """Fill what is not a message, and give the pages with what they are to show."""
    session = Grown.of(20_000, short=1_000).name(0)
    with store.transaction() as tx:
        for number in range(count):
            tx.usage.record(
                session,
                turn=number % 40,
                input_tokens=number,
                output_tokens=10,
                model=f"model-{number % 7}",
                cost=Decimal(number).scaleb(-4),
            )
            tx.tool_logs.log(session, f"tool-{number % 30}", elapsed_ms=float(number % 977))
            tx.tasks.create(session, f"kind-{number % 5}", {"n": number}, queue=f"q{number % 4}")
        for number in range(min(count, 100)):
            parent, turn = ("main", 1 + number % 40) if number % 3 else (None, None)
            tx.branches.create(session, from_turn=turn, branch=parent, name=f"branch-{number}")
            tx.messages.save(session, "user", f"Another way, {number}.")
    history: list[dict[str, Any]] = []
    for number in range(min(count, 200)):
        history.append({"role": "user", "content": f"Step {number}: {'what next? ' * 40}"})
        store.checkpoints.put(THREAD, {"messages": history, "step": number})
        store.checkpoints.put(f"thread-{number + 1}", {"step": number})
    latest, before = store.checkpoints.list(THREAD, limit=2).items
    task = store.tasks.list(limit=1).items[0]
    return [
        ("sessions", {}),
        ("sessions", {"order": "oldest"}),
        ("session", {"id": session}),
        ("session", {"id": SHORT}),
        ("branches", {"id": session}),
        ("compare", {"id": session, "left": "main", "right": "branch-7"}),
        ("checkpoints", {}),
        ("thread", {"id": THREAD}),
        ("checkpoint", {"thread": THREAD, "id": latest.id}),
        ("checkpoint", {"thread": THREAD, "id": latest.id, "against": before.parent_id}),
        ("tasks", {}),
        ("tasks", {"status": "pending"}),
        ("task-counts", {}),
        ("task", {"id": task.id}),
        ("usage", {}),
        ("usage", {"days": 366}),
        ("usage.csv", {"by": "tool"}),
        ("health", {}),
        ("health", {"sizes": 1}),
    ]


# --- Pages ---------------------------------------------------------------------------------------


def _page(store: Store, page: Page, visits: int) -> dict[str, Any]:
    app = explorer(store)
    name, query = page

    async def visit() -> tuple[int, int]:
        return await _asked(app, name, query)

    async def measured() -> tuple[list[Took], int, int, list[Ask]]:
        with _noted() as calls:
            status, size = await visit()
        took: list[Took] = []
        for _ in range(visits):
            began = _now()
            await visit()
            took.append(_since(began))
        return took, status, size, calls

    took, status, size, calls = asyncio.run(measured())
    alone = []
    for _ in range(visits):
        began = _now()
        for call in calls:
            call()
        alone.append(_since(began))
    (whole, computed), (queries, asking) = (
        [1e3 * statistics.median(each) for each in zip(*times, strict=True)]
        for times in (took, alone)
    )
    return {
        "page": f"{name}?{urlencode({k: v for k, v in query.items() if k not in _IDS})}".strip("?"),
        "status": status,
        "calls": len(calls),
        "bytes": size,
        "median_ms": round(whole, 1),
        "queries_ms": round(queries, 1),
        "beside_ms": round(whole - queries, 1),
        "computed_beside_ms": round(computed - asking, 1),
        "met": status != 200 or (whole - queries <= BESIDE_MS and size <= BYTES),
    }


_IDS = ("id", "thread", "against")


def _now() -> Took:
    return perf_counter(), process_time()


def _since(began: Took) -> Took:
    return perf_counter() - began[0], process_time() - began[1]


@contextmanager
def _noted() -> Iterator[list[Ask]]:
    """Note what pages ask the store, to be asked again."""
    calls: list[Ask] = []
    ask = Visit.ask

    async def noted(self: Visit, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        calls.append(lambda: method(*args, **kwargs))
        return await ask(self, method, *args, **kwargs)

    Visit.ask = noted  # type: ignore[assignment,method-assign]
    try:
        yield calls
    finally:
        Visit.ask = ask  # type: ignore[method-assign]


async def _asked(app: Any, name: str, query: dict[str, Any]) -> tuple[int, int]:
    """Ask an application for a page; give its status and its bytes."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/{name}",
        "raw_path": f"/{name}".encode(),
        "root_path": "",
        "query_string": urlencode(query).encode(),
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    status = size = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status, size
        status = message.get("status", status)
        size += len(message.get("body", b""))

    await app(scope, receive, send)
    return status, size


# --- The server ----------------------------------------------------------------------------------


def _server(url: URL, pages: Sequence[Page], requests: int) -> dict[str, Any]:
    """Start the command, ask it for pages, and say how long that took and what it holds."""
    began = perf_counter()
    program = [sys.executable, "-m", "agentstore.cli", "ui", "--no-open", "--port", "0"]
    given = [*program, "--url", url.render_as_string(hide_password=False)]
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        try:
            assert server.stdout is not None
            address = urlsplit(server.stdout.readline().split()[-1])
            connection = http.client.HTTPConnection(address.hostname or "", address.port)
            cookie = _get(connection, f"/?{address.query}", "")[1]
            _get(connection, "/sessions", cookie)
            first, worked = perf_counter() - began, _worked(server.pid)
            addresses = [f"/{name}?{urlencode(query)}" for name, query in pages]
            memory = [_resident(server.pid)]
            for share in (requests // 10, requests - requests // 10):
                for each in islice(cycle(addresses), share):
                    _get(connection, each, cookie)
                memory.append(_resident(server.pid))
            connection.close()
        finally:
            server.terminate()
    return {
        "first_page_seconds": round(first, 2),
        "first_page_cpu_seconds": round(worked, 2),
        "requests": requests,
        "megabytes": [round(each, 1) for each in memory],
        "met": first <= FIRST_SECONDS,
    }


def _get(connection: http.client.HTTPConnection, path: str, cookie: str) -> tuple[int, str]:
    """Ask for a page; give its status, and the cookie that it sets."""
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    answer.read()
    return answer.status, (answer.getheader("Set-Cookie") or "").partition(";")[0]


def _worked(pid: int) -> float:
    """Give the seconds that a process has computed for, which no other load adds to."""
    user, system = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[13:15]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    """Give the megabytes that a process holds now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (each for each in status.splitlines() if each.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _print(document: dict[str, Any]) -> None:
    table = Table(title=f"The explorer on {document['messages']:,} messages", box=SIMPLE_HEAD)
    for heading in (
        "page",
        "engine",
        "status",
        "calls",
        "ms",
        "queries ms",
        "beside ms",
        "computed",
        "kB",
        "",
    ):
        table.add_column(heading, justify="left" if heading in ("page", "engine") else "right")
    for page in document["pages"]:
        table.add_row(
            page["page"],
            page["engine"],
            str(page["status"]),
            str(page["calls"]),
            f"{page['median_ms']:.1f}",
            f"{page['queries_ms']:.1f}",
            f"{page['beside_ms']:.1f}",
            f"{page['computed_beside_ms']:.1f}",
            f"{page['bytes'] / 1e3:.1f}",
            "" if page["met"] else "[red]missed[/]",
        )
    console = Console(width=max(Console().width, 110))
    console.print(table)
    for server in document["servers"]:
        start, early, late = server["megabytes"]
        console.print(
            f"{server['engine']}: the first page after {server['first_page_seconds']:.2f} s, "
            f"{server['first_page_cpu_seconds']:.2f} s of them computing; "
            f"{start:.1f} MB then, {early:.1f} MB after a tenth of {server['requests']:,} "
            f"requests, {late:.1f} MB after all."
        )


if __name__ == "__main__":
    main()
