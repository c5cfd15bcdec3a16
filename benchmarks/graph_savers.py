"""LangGraph's savers beside ours, call by call in turn, on both engines, each durable.

    .venv-peers/bin/python -m benchmarks.graph_savers

A thread of 60 steps, as a graph makes them: messages that grow by one, or a small state of plain
dicts, and a channel that never changes. Prints how many times faster ours is at the median of the
calls, below 1 it is slower; the time of both; and the processor's time of this process for a call.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from sqlalchemy import URL

from agentstore import Store
from agentstore.integrations.langgraph import AgentStoreSaver
from benchmarks.places import ENGINES, opened
from benchmarks.raw import durability

STEPS = 60
TEXT = "A sentence about the weather, as long as sentences are. "

Saver = BaseCheckpointSaver[Any]

READS: dict[str, Callable[[Saver, Any, int], Any]] = {
    "get_tuple": lambda saver, thread, _: saver.get_tuple(thread),
    "list(20)": lambda saver, thread, _: list(saver.list(thread, limit=20)),
}


class Thread:
    """A graph's calls of one saver."""

    def __init__(self, saver: Saver, thread: str, kind: str, sentences: int = 4) -> None:
        self.saver, self.kind, self.sentences = saver, kind, sentences
        self.name = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        self.config: Any = self.name
        self.versions: dict[str, Any] = {}
        self.values: dict[str, Any] = {"settings": {"model": "a", "tools": ["b", "c"] * 20}}
        self.new = dict.fromkeys(self.values)

    def step(self, n: int) -> None:
        """Put a checkpoint, and the writes of the task after it."""
        if self.kind == "messages":
            said: Any = AIMessage(f"{n} {TEXT * self.sentences}", id=f"message-{n}")
            self.values["messages"] = [*self.values.get("messages", []), said]
            changed = ["messages"]
        else:
            said = {"n": n, "note": TEXT}
            self.values |= {"last": said, "count": n}
            changed = ["last", "count"]
        self.values["branch:to:agent"] = None
        for channel in (*changed, "branch:to:agent", *self.new):
            version = self.versions.get(channel)
            self.versions[channel] = self.saver.get_next_version(version, None)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = dict(self.values)
        checkpoint["channel_versions"] = dict(self.versions)
        new = {c: self.versions[c] for c in (*changed, "branch:to:agent", *self.new)}
        self.new = {}
        metadata: Any = {"source": "loop", "step": n, "parents": {}}
        self.config = self.saver.put(self.config, checkpoint, metadata, new)
        writes = [(changed[0], said), ("branch:to:agent", None)]
        self.saver.put_writes(self.config, writes, f"task-{n}", "~__pregel_pull, agent")


def beside(title: str, ours: Callable[[int], Any], theirs: Callable[[int], Any], n: int) -> None:
    """Time the same call of both, in turn; print a row."""
    wall: tuple[list[float], list[float]] = ([], [])
    spent: tuple[list[float], list[float]] = ([], [])
    for number in range(n):
        for call, times, worked in zip((ours, theirs), wall, spent, strict=True):
            began, used = time.perf_counter(), time.process_time()
            call(number)
            times.append(time.perf_counter() - began)
            worked.append(time.process_time() - used)
    (mine, other), (work, their_work) = (map(statistics.median, each) for each in (wall, spent))
    print(
        f"{title:36} {other / mine:6.2f} {mine * 1e3:8.2f} {other * 1e3:8.2f}"
        f" {work * 1e3:8.2f} {their_work * 1e3:8.2f}"
    )


@contextmanager
def theirs_on(url: URL) -> Iterator[tuple[Saver, str]]:
    """Give LangGraph's own saver, and how durable it is."""
    if url.get_backend_name() == "sqlite":
        with SqliteSaver.from_conn_string(f"{url.database}") as saver:
            saver.setup()
            yield saver, durability(saver.conn)
        return
    from langgraph.checkpoint.postgres import PostgresSaver

    url = url.set(drivername="postgresql")
    main = url.set(database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(main, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{url.database}"')
    place = url.render_as_string(hide_password=False)
    with PostgresSaver.from_conn_string(place) as postgres:
        postgres.setup()
        yield postgres, durability(postgres.conn)


def size(url: URL) -> int:
    """Give the bytes of an SQLite file, with what its log has."""
    return sum(path.stat().st_size for path in Path(str(url.database)).parent.glob("*.db*"))


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--engine", choices=ENGINES, action="append")
    print(f"{'ms':36} {'faster':>6} {'ours':>8} {'theirs':>8} {'CPU':>8} {'theirs':>8}")
    for engine in asked.parse_args().engine or ENGINES:
        with opened(engine) as places:
            there = places.url("theirs")
            with Store(places.make("ours")) as store, theirs_on(there) as (other, kept):
                print(f"{engine}, theirs {kept}")
                mine = AgentStoreSaver(store)
                for kind in ("messages", "dicts"):
                    one, two = Thread(mine, kind, kind), Thread(other, kind, kind)
                    beside(f"{kind}: put + writes", one.step, two.step, STEPS)
                    for title, call in READS.items():
                        ours, theirs = partial(call, mine, one.name), partial(call, other, one.name)
                        beside(f"{kind}: {title}", ours, theirs, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        weighed = []
        for whose in ("ours", "theirs"):
            home = Path(folder, whose)
            home.mkdir()
            url = URL.create("sqlite", database=str(home / "a.db"))
            if whose == "ours":
                with Store(url) as store:
                    thread = Thread(AgentStoreSaver(store), "t", "messages", 24)
                    for n in range(200):
                        thread.step(n)
            else:
                with theirs_on(url) as (other, _):
                    thread = Thread(other, "t", "messages", 24)
                    for n in range(200):
                        thread.step(n)
            weighed.append(size(url))
        print(f"bytes of 200 puts: {weighed[0]} of {weighed[1]}, 1/{weighed[1] / weighed[0]:.0f}")


if __name__ == "__main__":
    main()
