"""What is measured: stages, which are contents of a database, and the lines of each.

A line of times is one operation of both programs, run in turn. A line of bytes is what a database
grew by, of one program and of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from benchmarks.checkpoints import ADDED, FIRST, MESSAGE_BYTES
from benchmarks.peers import work
from benchmarks.peers.work import (
    CALLERS,
    LONG,
    READ,
    SMALL,
    TALK,
    TOKENS,
    Measure,
    Side,
    Sizes,
    timed,
)


@dataclass(frozen=True, slots=True)
class Growth:
    """What one thing takes in the database that so many operations make."""

    key: str
    title: Callable[[Sizes], str]
    each: Callable[[Sizes], int]


@dataclass(frozen=True, slots=True)
class Line:
    """One operation.

    Attributes:
        title: Its name in the table, with the sizes.
        needs: The operations that a program must have.
        often: How often it runs in a round.
        at_once: How often in one turn of a round.
        unit: What is counted per second.
        check: Gives what both programs must have in common after the line.
        grows: What the database grew by is a line too, if this is there.
    """

    key: str
    title: Callable[[Sizes], str]
    needs: tuple[str, ...]
    measure: Measure
    often: Callable[[Sizes], int]
    at_once: int
    unit: str
    check: Callable[[Side], Coroutine[Any, Any, Any]]
    grows: Growth | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Contents of a database, and the lines that are measured on it.

    Attributes:
        fill: Makes the contents.
        shared: Whether its lines only read, so that agentstore's side serves all peers.
        bytes_title: If there is one, what the contents take is a line, and another with the index
            that agentstore makes of them for its first search.
    """

    name: str
    needs: tuple[str, ...]
    fill: Callable[[Side], Coroutine[Any, Any, None]]
    lines: tuple[Line, ...]
    shared: bool = False
    bytes_title: Callable[[Sizes], str] | None = None


_LAST_LONG, _LAST_SMALL = work.last(LONG), work.last(SMALL)
_CHAT, _ITEMS = work.dicts("chat"), work.dicts("items")


def _of_a_graph(mean: int) -> tuple[Line, Line]:
    """Give the lines of states of so many messages."""
    latest, given = work.graph_latest(mean)
    kind = "HumanMessage, AIMessage, ToolMessage"
    return (
        Line(
            f"graph_put_{mean}",
            lambda _s: f"LangGraph: put a state of some {mean} messages ({kind})",
            ("put_graph",),
            work.graph_put(mean),
            lambda s: s.graph,
            3,
            "puts/s",
            given,
        ),
        Line(
            f"graph_latest_{mean}",
            lambda _s: f"LangGraph: get a state of some {mean} messages",
            ("latest_graph",),
            latest,
            lambda s: s.reads,
            5,
            "reads/s",
            given,
        ),
    )


STAGES = (
    Stage(
        "append",
        ("append",),
        work.empty,
        (
            Line(
                "append",
                lambda _s: "append a turn of 2 items, one caller",
                ("append",),
                work.append,
                lambda s: s.appends,
                5,
                "turns/s",
                work.nothing_lost,
            ),
            Line(
                "burst",
                lambda _s: f"append a turn of 2 items, {CALLERS} callers at once",
                ("append",),
                work.burst,
                lambda _s: 2,
                1,
                "turns/s",
                work.nothing_lost,
            ),
        ),
    ),
    Stage(
        "long",
        ("last",),
        work.long,
        (
            Line(
                "last",
                lambda s: f"last {READ} items of {s.items:,}",
                ("last",),
                _LAST_LONG[0],
                lambda s: s.reads,
                5,
                "reads/s",
                _LAST_LONG[1],
            ),
            Line(
                "chat",
                lambda s: f"last {READ} of {s.items:,} as dicts of the chat APIs",
                ("chat",),
                _CHAT[0],
                lambda s: s.reads,
                5,
                "reads/s",
                _CHAT[1],
            ),
        ),
        shared=True,
    ),
    Stage(
        "items",
        ("items",),
        work.items,
        (
            Line(
                "items",
                lambda s: f"last {READ} of {s.items:,} as a framework's items",
                ("items",),
                _ITEMS[0],
                lambda s: s.reads,
                5,
                "reads/s",
                _ITEMS[1],
            ),
        ),
        shared=True,
    ),
    Stage(
        "beside",
        ("last",),
        work.beside,
        (
            Line(
                "beside",
                lambda s: f"last {READ} of 60, beside {s.others} x {s.items:,}",
                ("last",),
                _LAST_SMALL[0],
                lambda s: s.reads,
                5,
                "reads/s",
                _LAST_SMALL[1],
            ),
        ),
        shared=True,
    ),
    Stage(
        "listed",
        ("list_all",),
        work.listed,
        (
            Line(
                "list_all",
                lambda s: f"list {s.listed:,} sessions",
                ("list_all",),
                timed(lambda program, _side, _number: program.list_all()),
                lambda s: s.lists,
                2,
                "lists/s",
                work.all_listed,
            ),
            Line(
                "list_newest",
                lambda s: f"list the newest 20 of {s.listed:,} sessions",
                ("list_newest",),
                timed(lambda program, _side, _number: program.list_newest(20)),
                lambda s: s.lists,
                2,
                "lists/s",
                work.some_listed,
            ),
        ),
        shared=True,
    ),
    Stage(
        "talk",
        ("branch",),
        work.talk,
        (
            Line(
                "sum_usage",
                lambda s: f"sum the usage of {s.turns:,} turns",
                ("sum_usage",),
                timed(lambda program, _side, _number: program.sum_usage(TALK)),
                lambda s: s.reads,
                5,
                "sums/s",
                work.tokens,
            ),
            Line(
                "record_usage",
                lambda _s: "record a turn's usage",
                ("record_usage",),
                timed(lambda program, _side, _number: program.record_usage(TALK, TOKENS)),
                lambda s: s.appends,
                5,
                "records/s",
                work.nothing,
            ),
            Line(
                "branch",
                lambda s: f"branch at turn {s.turns:,}",
                ("branch",),
                work.branch,
                lambda s: s.branches,
                2,
                "branches/s",
                work.branch_texts,
                Growth("branch_bytes", lambda s: "bytes of that branch", lambda _s: 1),
            ),
        ),
    ),
    Stage(
        "kept",
        ("last",),
        work.kept,
        (),
        bytes_title=lambda s: f"bytes on disk, {s.kept * s.items:,} messages",
    ),
    Stage(
        "checkpoints",
        ("put",),
        work.nothing,
        (
            Line(
                "put",
                lambda s: (
                    f"{s.puts} puts, {FIRST} to {FIRST + ADDED * (s.puts - 1)} messages "
                    f"of {MESSAGE_BYTES} bytes"
                ),
                ("put",),
                work.put,
                lambda s: s.puts,
                5,
                "puts/s",
                work.states,
                Growth("put_bytes", lambda s: f"bytes of {s.puts} such puts", lambda s: s.puts),
            ),
            Line(
                "latest",
                lambda _s: "get the latest state",
                ("latest",),
                timed(lambda program, _side, _number: program.latest("thread-0")),
                lambda s: s.reads,
                5,
                "reads/s",
                work.states,
            ),
            Line(
                "list_states",
                lambda _s: "the newest 20 checkpoints with their states",
                ("list_states",),
                timed(lambda program, _side, _number: program.list_states("thread-0", 20)),
                lambda s: s.lists,
                2,
                "lists/s",
                work.states,
            ),
        ),
    ),
    Stage(
        "graph",
        ("put_graph",),
        work.graph,
        tuple(line for mean in work.STATES for line in _of_a_graph(mean)),
    ),
)
