"""What writers do: calls of every kind that writes, and what to note about each.

A caller is a generator of deeds. It is handed what the deed's calls returned, or None if they
failed, so the same callers are driven by threads, by coroutines, and by one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from tests.chaos.ledger import state_of


class Call(NamedTuple):
    """A call of a repository's method, to be made on whichever kind of store."""

    repository: str
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def on(self, store: Any) -> Any:
        return getattr(getattr(store, self.repository), self.method)(
            *self.arguments, **self.options
        )


def call(path: str, *arguments: Any, **options: Any) -> Call:
    repository, _, method = path.partition(".")
    return Call(repository, method, arguments, options)


@dataclass(frozen=True)
class Deed:
    """One call, or several in one transaction, and what is to be noted of them."""

    what: str
    n: int
    calls: list[Call]
    facts: dict[str, Any] = field(default_factory=dict)
    found: Callable[[list[Any]], dict[str, Any]] = lambda _: {}
    """What else is to be noted, of what the calls returned."""
    wrong: Callable[[list[Any]], bool] = lambda _: False
    """Whether the calls returned what they must not."""


@dataclass(frozen=True)
class Home:
    """Where a process writes; all of it is there before it begins."""

    name: str
    shared: str
    message_id: str

    @property
    def user(self) -> str:
        return f"{self.name}.user"

    @property
    def states(self) -> str:
        return f"{self.name}.state"

    @classmethod
    def make(cls, store: Any, name: str, shared: str) -> Home:
        with store.transaction() as tx:
            if tx.sessions.find(shared) is None:
                tx.sessions.create(id=shared)
            tx.users.create(name, id=f"{name}.user")
            tx.sessions.create(f"{name}.user", id=name)
            tx.sessions.create(f"{name}.user", id=f"{name}.state")
            carrier = tx.messages.save(f"{name}.state", "user", "carries attachments")
        return cls(name, shared, carrier.id)


Caller = Generator[Deed, "list[Any] | None", None]


def messages(caller: str, home: Home, draw: random.Random) -> Caller:
    for n in count():
        session, size = (home.name, home.shared)[n % 2], 1 + n % 4
        padding = "天 é" * draw.randrange(80)
        texts = [f"{caller} {n} {place}/{size} {padding}" for place in range(1, size + 1)]
        saves = [call("messages.save", session, "user", text, token_count=1) for text in texts]
        if size == 2:
            many = [{"role": "user", "content": text, "token_count": 1} for text in texts]
            saves = [call("messages.save_many", session, many)]
        elif size == 3:
            saves.insert(0, call("sessions.get", session))
        facts = {"session": session, "texts": texts}
        answers = yield Deed("messages", n, saves, facts, _places)
        if answers is not None and draw.random() < 0.3:
            last = _flat(answers)[-1]
            yield Deed(
                "read",
                n,
                [call("messages.find", last.id)],
                wrong=lambda read, last=last: read[0] is None or read[0].content != last.content,
            )


def _flat(answers: list[Any]) -> list[Any]:
    saved: list[Any] = []
    for answer in answers:
        saved += answer if isinstance(answer, list) else [answer] if hasattr(answer, "seq") else []
    return saved


def _places(answers: list[Any]) -> dict[str, Any]:
    saved = _flat(answers)
    return {"ids": [one.id for one in saved], "seqs": [one.seq for one in saved]}


def papers(caller: str, home: Home, draw: random.Random) -> Caller:
    """Tool logs, usage, quotas and attachments."""
    for n in count():
        key = f"{caller} {n}"
        if n % 4 == 0:
            value = [{"key": key}, [n, "é" * draw.randrange(300)], n + 0.5]
            yield Deed(
                "log",
                n,
                [
                    call("tool_logs.log", home.name, "tool", input=value[0], output=value[1],
                        elapsed_ms=value[2]),
                ],
                {"session": home.name, "value": value},
                _id,
            )  # fmt: skip
        elif n % 4 == 1:
            used = call(
                "usage.record", home.name, model="m", input_tokens=1, output_tokens=3, cost=0
            )
            yield Deed("usage", n, [used], {"session": home.name})
        elif n % 4 == 2:
            yield Deed("quota", n, [call("users.consume_quota", home.user, 1)], {"user": home.user})
        else:
            # Every other one has bytes that others attach as well.
            text = "shared " * 99 if n % 8 == 3 else key * 99
            adding = call("attachments.add", home.message_id, text.encode(), "text/plain")
            yield Deed("attachment", n, [adding], {"text": text}, _id)


def _id(answers: list[Any]) -> dict[str, Any]:
    return {"id": answers[0].id}


def checkpoints(caller: str, home: Home, draw: random.Random) -> Caller:
    parent = None
    for n in count():
        id = f"{caller} {n}"
        put = call(
            "checkpoints.put", caller, state_of(caller, n), checkpoint_id=id, parent_id=parent
        )
        if (yield Deed("checkpoint", n, [put], {"id": id})) is None:
            continue
        parent = id
        if draw.random() < 0.3:
            writes = [("c", n), ("d", caller)]
            put = call("checkpoints.put_writes", caller, id, "task", writes)
            yield Deed("pending", n, [put], {"id": id})


def tasks(caller: str, home: Home, draw: random.Random) -> Caller:
    """Create, claim and complete, in a queue that all processes share."""
    for n in count():
        key, queue = f"{caller} {n}", home.shared
        facts = {"queue": queue, "step": "created", "payload": {"key": key}}
        create = call(
            "tasks.create", home.name, "job", {"key": key}, queue=queue, idempotency_key=key
        )
        yield Deed("task", n, [create], facts, _id)
        facts = {"queue": queue, "step": "claimed"}
        claim = call("tasks.claim", caller, queues=queue)
        claimed = yield Deed("task", n, [claim], facts, _claim)
        if not claimed or not claimed[0]:
            continue
        task = claimed[0][0]
        facts = {"queue": queue, "step": "completed", "payload": task.payload, "result": [key]}
        complete = call("tasks.complete", task.id, [key], fence=task.fence)
        yield Deed("task", n, [complete], facts, _id)


def _claim(answers: list[Any]) -> dict[str, Any]:
    if not answers[0]:
        return {"what": "nothing"}
    task = answers[0][0]
    return {"id": task.id, "fence": task.fence, "payload": task.payload}


def states(caller: str, home: Home, draw: random.Random) -> Caller:
    for n in count():
        update = call("sessions.update", home.states, state=state_of(caller, n))
        yield Deed("state", n, [update], {"session": home.states})


def readers(caller: str, home: Home, draw: random.Random) -> Caller:
    """Write a little, and read much, in many ways: an answer may be that to another's question."""
    known: list[tuple[Call, Callable[[Any], bool]]] = [
        (call("users.find", home.user), lambda one: one.name == home.name),
        (call("users.check_quota", home.user, 5), lambda enough: enough is True),
        (call("sessions.find", home.states), lambda one: one.id == home.states),
        (
            call("messages.history", home.states, limit=5),
            lambda page: [one.id for one in page] == [home.message_id],
        ),
    ]
    for n in count():
        text, value = f"{caller} {n} 1/1 ", [{"key": f"{caller} {n}"}, None, None]
        save = call("messages.save", home.name, "user", text, token_count=1)
        facts = {"session": home.name, "texts": [text]}
        if saved := (yield Deed("messages", n, [save], facts, _places)):
            find = call("messages.find", saved[0].id)
            known.append((find, lambda one, text=text: one.content == text))
        log = call("tool_logs.log", home.name, "tool", input=value[0])
        if logged := (yield Deed("log", n, [log], {"session": home.name, "value": value}, _id)):
            find = call("tool_logs.find", logged[0].id)
            known.append((find, lambda one, wanted=value[0]: one.input == wanted))
        for _ in range(12):
            find, right = known[draw.randrange(len(known))]
            yield Deed(
                "read", n, [find], wrong=lambda got, right=right: not (got[0] and right(got[0]))
            )
        del known[4:-20]


KINDS = (messages, papers, checkpoints, tasks, states, readers)
CROWD = (*(messages,) * 7, *(papers,) * 3, *(checkpoints,) * 2, *(tasks,) * 2, states, readers)
"""Sixteen callers; only one keeps the state, which has one owner in real life, too."""
