"""What is measured, on which data, and what is aimed at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from benchmarks.data import OLD, TENTH, Contents, Message, messages

SAVED_INTO = "session-saved-into"
SHORT = "session-short"
LONG = "session-long"

GROWTH_AIM = 1.3
"""How much longer a read may take where the session or the table is large."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is, and how often each operation runs in a round."""

    short: int = 1_000
    long: int = 100_000
    few: int = 100
    many: int = 100_000
    batch: int = 100
    saves: int = 250
    batches: int = 10
    reads: int = 100


QUICK = Sizes(short=60, long=200, few=50, many=200, batch=10, saves=10, batches=2, reads=5)
"""Enough to see that everything runs; its figures say nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one database.

    Attributes:
        key: Its name in the JSON.
        title: Its name in the table.
        database: ``few`` or ``many``.
        call: Runs the operation on a store with one of the inputs; on an AsyncStore, the same
            call gives the coroutine to await.
        inputs: One for each operation; a case that reads begins again at the end of them.
        per_round: Operations in a round.
        per_turn: How many of them in one turn: some milliseconds.
        writes: Whether it writes, and so needs a twin of the database for each side.
        aims: The keys of the targets, by the kind of store.
        minimal: The key of the target for a Store beside a minimal program, if there is one.
    """

    key: str
    title: str
    database: str
    call: Callable[[Any, Any], Any]
    inputs: list[Any]
    per_round: int
    per_turn: int
    writes: bool = False
    aims: Mapping[str, str] = field(default_factory=dict)
    minimal: str = ""


def contents(sizes: Sizes) -> dict[str, Contents]:
    """Say what the databases hold."""
    return {
        "few": Contents(sizes.few, {SAVED_INTO: 0, SHORT: sizes.short}),
        "many": Contents(sizes.many, {SHORT: sizes.short, LONG: sizes.long}),
    }


def groups(sizes: Sizes, rounds: int) -> Iterator[list[Case]]:
    """Give the cases; those of one group are measured in turn with each other."""
    # One round more to warm up, and one operation more to count its round trips.
    saves = (rounds + 1) * sizes.saves + 1
    yield [
        Case(
            "save",
            "save one message",
            "few",
            _save,
            list(messages(saves)),
            sizes.saves,
            10,
            writes=True,
            aims={"Store": "save_sync", "AsyncStore": "save_async"},
            minimal="save_minimal",
        )
    ]
    batches = (rounds + 1) * sizes.batches + 1
    stream = messages(batches * sizes.batch)
    yield [
        Case(
            "save_many",
            f"save_many of {sizes.batch}",
            "few",
            _save_many,
            [list(islice(stream, sizes.batch)) for _ in range(batches)],
            sizes.batches,
            1,
            writes=True,
        )
    ]
    yield [
        Case(
            f"history_{name}",
            f"history(50) of {size:,}",
            "many",
            _history,
            [session_id],
            sizes.reads,
            5,
            aims={"Store": "history"} if name == "large" else {},
        )
        for name, session_id, size in (("small", SHORT, sizes.short), ("large", LONG, sizes.long))
    ]
    for what, call in (("mark", _marked), ("exclude_mark", _not_marked)):
        yield [
            Case(
                f"{what}_{name}",
                f"history(50, {what}=) of {size:,}",
                "many",
                call,
                [session_id],
                sizes.reads,
                5,
            )
            for name, session_id, size in (
                ("small", SHORT, sizes.short),
                ("large", LONG, sizes.long),
            )
        ]
    yield [
        Case(
            f"list_{name}",
            f"list(20) of {held.sessions:,}",
            database,
            _list,
            held.users[: sizes.reads],
            sizes.reads,
            5,
        )
        for name, database in (("small", "few"), ("large", "many"))
        for held in [contents(sizes)[database]]
    ]


def _save(store: Any, message: Message) -> Any:
    return store.messages.save(SAVED_INTO, **message)


def _save_many(store: Any, batch: list[Message]) -> Any:
    return store.messages.save_many(SAVED_INTO, batch)


def _history(store: Any, session_id: str) -> Any:
    return store.messages.history(session_id, 50)


def _marked(store: Any, session_id: str) -> Any:
    return store.messages.history(session_id, 50, mark=TENTH, unanswered="keep")


def _not_marked(store: Any, session_id: str) -> Any:
    return store.messages.history(session_id, 50, exclude_mark=OLD, unanswered="keep")


def _list(store: Any, user_id: str) -> Any:
    return store.sessions.list(user_id=user_id, limit=20)
