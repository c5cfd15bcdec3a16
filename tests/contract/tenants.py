"""What two tenants call, at random: every public method, with arguments of every kind.

The methods and their parameters are read off the repositories; what a parameter is given is a
table, and a parameter that is not in it stops the suite. A few calls come first, so that there is
something to be found; the last ones delete the tenants themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from agentstore.records import (
    ApiKeyRecord,
    AttachmentRecord,
    BranchRecord,
    IssuedApiKey,
    MessageRecord,
    ReservationRecord,
    SearchHit,
    SessionSummary,
    TaskRecord,
    ToolLogRecord,
)
from agentstore.records.work import CheckpointInfo, ThreadRecord
from agentstore.repositories.operations import UNSET, Repository
from agentstore.repositories.scopes import Refused, decision_on, public_methods
from agentstore.testing import REPOSITORIES
from agentstore.transactions import Repositories
from agentstore.values.validation import Backoff
from tests.contract.clocks import HOUR, NOON

ACTORS = ("alice", "bob")
NOBODYS = "no such id as this"
_WORDS = ("alpha", "beta", "gamma", "secret", "launch codes", "zebra")
_CALL = {"id": "call", "function": {"name": "search", "arguments": "{}"}}
_BYTES = (b"salary: 3000", b"salary: 4000", b"", b"x" * 5_000)
_MOMENTS = (NOON - HOUR, NOON + timedelta(seconds=100), NOON + HOUR)


@dataclass(frozen=True)
class Chosen:
    """Stands for something that a tenant has when it is called.

    Attributes:
        kind: Of which kind.
        at: Which of them, from 0 to 1, which is the first.
        theirs: Whether it is the other tenant's.
        otherwise: What to pass where there is none.
    """

    kind: str
    at: float
    theirs: bool = False
    otherwise: Any = NOBODYS


@dataclass(frozen=True)
class Step:
    """One call: whose, of what, with which arguments, and whether in a transaction of its own."""

    actor: str
    method: str
    arguments: dict[str, Any]
    together: bool = False
    by_worker: bool = False


def kind_of(given: Any) -> Iterator[tuple[str, Any]]:
    """Say what may be passed on of an answer, and as what."""
    match given:
        case SessionSummary(id=id, status=status):
            yield from (("session", id), (f"session {status}", id))
        case MessageRecord(id=id, status=status):
            yield ("message" if status == "complete" else "stream"), id
        case SearchHit(message=message):
            yield "message", message.id
        case TaskRecord(id=id, status=status, lease_expires_at=until):
            status = "failed" if status == "dead" else status
            yield from (("task", id), (f"task {status if until is None else 'held'}", id))
        case ToolLogRecord(id=id):
            yield "log", id
        case AttachmentRecord(id=id):
            yield "attachment", id
        case ReservationRecord(id=id):
            yield "reservation", id
        case IssuedApiKey(record=ApiKeyRecord(id=id)):
            yield "key", id
        case BranchRecord(name=name, session_id=session_id) if name != "main":
            yield "session with branches", session_id
        case CheckpointInfo(id=id, thread_id=thread_id):
            yield from (("checkpoint", id), ("thread", thread_id))
        case ThreadRecord(id=id):
            yield "thread", id


def repositories_by_name() -> dict[str, type[Repository]]:
    """Give the classes of the repositories, by the names that a store has for them."""
    unbound: Any = Repositories(None)  # type: ignore[arg-type]
    return {name: type(getattr(unbound, name)) for name in REPOSITORIES}


def methods() -> dict[str, list[inspect.Parameter]]:
    """Give every public method, with its parameters."""
    return {
        f"{repository}.{name}": [*inspect.signature(method).parameters.values()][1:]
        for repository, kind in repositories_by_name().items()
        for name, method in public_methods(kind).items()
    }


def refused() -> set[str]:
    """Give those that are not to be had in a scope."""
    kinds = repositories_by_name()
    return {
        method
        for method in methods()
        for repository, _, name in (method.partition("."),)
        if isinstance(decision_on(kinds[repository], name), Refused)
    }


# --- What parameters are given ---------------------------------------------------------------

Draw = Callable[[Random, str], Any]


def _one_of(*values: Any) -> Draw:
    return lambda random, _: random.choice(values)


def _words(random: Random, _: str) -> str:
    return " ".join(random.sample(_WORDS, 2))


def _thing(kind: str) -> Draw:
    """Something of one's own mostly, sometimes of the other's, seldom nobody's."""

    def draw(random: Random, _: str) -> Any:
        if (chance := random.random()) > 0.98:
            return NOBODYS
        return Chosen(kind, random.random(), theirs=chance > 0.8)

    return draw


def _things(kind: str) -> Draw:
    one = _thing(kind)
    return lambda random, actor: [one(random, actor) for _ in range(random.randint(1, 3))]


def _name(letter: str, most: int) -> Draw:
    """An id that a caller chooses: one of one's own mostly, or one that the other may choose."""

    def draw(random: Random, actor: str) -> str:
        whose = actor if random.random() < 0.85 else _other(actor)
        return f"{whose}-{letter}{random.randrange(most)}"

    return draw


def _user(random: Random, actor: str) -> str:
    return random.choices((actor, _other(actor), NOBODYS), (75, 20, 5))[0]


def _not_oneself(random: Random, actor: str) -> str:
    return random.choice((_other(actor), NOBODYS))


def _other(actor: str) -> str:
    return ACTORS[actor == ACTORS[0]]


def _state(random: Random, actor: str) -> dict[str, Any]:
    return {
        "version": 1,
        "session_id": _thing("session")(random, actor),
        "user_id": _user(random, actor),
        "branch": "main",
    }


def _pieces(random: Random, _: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": random.choice(_WORDS)}, {"role": "assistant"}]


def _one_token(_: Any) -> int:
    return 1


_DOCUMENT = _one_of({"v": 1}, {"v": 2}, {})
_BRANCH = _one_of("side", "side", "other")
_OF_BRANCHES = ("create", "get", "switch", "rename", "delete")
_NUMBER = _one_of(0, 1, 2)
_TOOL = _one_of("search", "mail")
_MARK = _one_of("m1", "m2")
_IN_A_STATUS = {
    "sessions.resume.session_id": "session paused",
    "sessions.answer.session_id": "session waiting_user",
    "tasks.start.task_id": "task pending",
    "tasks.resume.task_id": "task paused",
    "tasks.retry.task_id": "task failed",
    "tasks.complete.task_id": "task held",
    "tasks.fail.task_id": "task held",
    "tasks.heartbeat.task_id": "task held",
    "tasks.release.task_id": "task held",
    "branches.get.session_id": "session with branches",
    "branches.switch.session_id": "session with branches",
    "branches.rename.session_id": "session with branches",
    "branches.delete.session_id": "session with branches",
}
"""What would seldom be in a status from which it can go on, were it any."""
_MONEY = _one_of(0, 1, "0.25")

DRAWN: dict[str, Draw] = {
    "session_id": _thing("session"),
    "message_id": _thing("message"),
    "task_id": _thing("task"),
    "log_id": _thing("log"),
    "attachment_id": _thing("attachment"),
    "key_id": _thing("key"),
    "reservation_id": _thing("reservation"),
    "thread_id": _thing("thread"),
    "checkpoint_id": _thing("checkpoint"),
    "parent_id": _thing("checkpoint"),
    "before": _thing("message"),
    "containing": _thing("message"),
    "ids": _things("message"),
    "expected": _things("message"),
    "user_id": _user,
    "to_thread": _name("t", 9),
    "new_checkpoint_id": _name("c", 9),
    "run_id": _one_of("r1", "r2"),
    "external_id": _one_of("x1", "x2", "x3"),
    "external_ids": _one_of(["x1", "x2"], ["x3"], []),
    "idempotency_key": _one_of("k1", "k2", "k3"),
    "tool_call_id": _one_of("call"),
    "title": _words,
    "content": _words,
    "summary": _words,
    "question": _words,
    "error": _words,
    "text": _one_of(*_WORDS),
    "name": _one_of("search", "side"),
    "model": _one_of("gpt-4o", "nobody-sells-this"),
    "metadata": _DOCUMENT,
    "config": _DOCUMENT,
    "details": _DOCUMENT,
    "payload": _DOCUMENT,
    "state": _DOCUMENT,
    "input": _DOCUMENT,
    "output": _DOCUMENT,
    "result": _DOCUMENT,
    "preferences": _one_of({"a": {"b": 1}}, {"a": {"b": 2}}),
    "path": _one_of("a.b"),
    "value": _one_of(1, 2),
    "email": _one_of("same@example.org", "other@example.org"),
    "role": _one_of("user", "assistant", "system"),
    "tool_calls": _one_of([_CALL], None),
    "messages": _pieces,
    "on_duplicate": _one_of("refuse", "skip", "replace"),
    "marks": _one_of(["m1"], ["m1", "m2"]),
    "mark": _MARK,
    "exclude_mark": _MARK,
    "new": _MARK,
    "old": _MARK,
    "tool": _TOOL,
    "elapsed_ms": _one_of(1.5, 20),
    "success": _one_of(True, False),
    "limit": _one_of(1, 2, 50),
    "since": _one_of(*_MOMENTS[:2]),
    "until": _one_of(*_MOMENTS[1:]),
    "order": _one_of("relevance", "recent"),
    "position": _one_of(0, 1),
    "keep_tool_calls": _one_of(True, False),
    "prepend_summary": _one_of(True, False),
    "unanswered": _one_of("placeholder", "drop", "keep"),
    "unknown": _one_of("refuse", "keep"),
    "keep_system": _one_of(True, False),
    "max_tokens": _one_of(None, 100, 10**6),
    "token_counter": _one_of(_one_token, _one_token, None),
    "documents": _one_of(True, False),
    "preview": _one_of(True, False),
    "token_count": _NUMBER,
    "cost": _MONEY,
    "tokens": _one_of(1, 5, 10**7),
    "quota_total": _one_of(10**6, None),
    "kind": lambda _, actor: actor,
    "queue": _one_of("default", "other"),
    "priority": _NUMBER,
    "run_at": _one_of(*_MOMENTS),
    "max_retries": _NUMBER,
    "alone_in_session": _one_of(True, False),
    "fence": _one_of(1, 1, 1, 2, None),
    "retry": _one_of(True, False),
    "backoff": _one_of(Backoff(first=1, longest=1, jitter=0)),
    "lease": _one_of(5.0, 60.0),
    "status": _one_of("active", "paused", "completed"),
    "strict": _one_of(True, False),
    "expected_version": _one_of(1, 2),
    "days": _one_of(1, 7),
    "dimension": _one_of(
        "session", "turn", "branch", "branch_turn", "user", "model", "day", "total"
    ),
    "input_tokens": _one_of(1, 50),
    "output_tokens": _NUMBER,
    "total_tokens": _one_of(100),
    "cached_input_tokens": _one_of(0, 1),
    "requests": _one_of(1, 2),
    "usage": _one_of({"prompt_tokens": 7, "completion_tokens": 2}, UNSET, UNSET),
    "turn": _one_of(1, 2),
    "branch": _BRANCH,
    "create_session": _one_of(True, False, {"title": "made by a save"}),
    "from_turn": _one_of(1, 2),
    "to_turn": _one_of(1, 2),
    "after_turn": _one_of(1, 2),
    "new_name": _one_of("new", "side"),
    "keep_as": _one_of("kept"),
    "force": _one_of(True, False),
    "then": _one_of("main", "side"),
    "reserve": _one_of(True, False),
    "branches.turns.messages": _one_of(True, False),
    "through": _one_of(1, 2),
    "through_seq": _one_of(1, 2),
    "values": _one_of({"list": [1]}, {"list": [1, 2], "text": "secret" * 200}, {}),
    "writes": _one_of([("channel", 1)], [("channel", {"a": 1}), ("other", b"x")]),
    "positions": _one_of(None),
    "replace": _one_of(True, False),
    "task_path": _one_of("", "p"),
    "every": _one_of(timedelta(0), timedelta(hours=1)),
    "namespace": _one_of("", "", "inner"),
    "step": _one_of(0, 1, 2),
    "tags": _one_of(["t1"], []),
    "keep_tags": _one_of(["t1"]),
    "next_node": _one_of("node"),
    "created_at": _one_of(*_MOMENTS),
    "keep_last": _one_of(1, 2),
    "max_age": _one_of(HOUR),
    "parent_missing": _one_of("root", "refuse"),
    "thread_missing": _one_of("make", "refuse"),
    "on_existing": _one_of("replace", "refuse"),
    "where": _one_of({"v": 1}, {"v": 2}),
    "dry_run": _one_of(True, False),
    "data": _one_of(*_BYTES),
    "media_type": _one_of("text/plain"),
    "key": _one_of("k1", "k2"),
    "keys": _one_of(["k1"], ["k1", "k2"]),
    "prefix": _one_of([], ["n"]),
    # What means something else in one method than in the others.
    "sessions.interrupted.older_than": _one_of(timedelta(0), HOUR),
    "users.delete.user_id": _not_oneself,
    "users.names.ids": _one_of([*ACTORS], []),
    "users.reserve_quota.ttl": _one_of(timedelta(minutes=2)),
    "users.reserve_for_session.ttl": _one_of(timedelta(minutes=2)),
    "users.issue_api_key.expires_at": _one_of(NOON + 24 * HOUR),
    "sessions.create.id": _name("s", 6),
    "sessions.ensure.id": _name("s", 6),
    "sessions.ensure.ttl": _one_of(HOUR, None),
    "sessions.create.ttl": _one_of(HOUR, None),
    "sessions.update.ttl": _one_of(HOUR, None),
    "sessions.load_state_dict.state": _state,
    "sessions.find_ids.beginnings": _one_of([f"01{n:02x}" for n in range(256)]),
    "sessions.find_ids.limit": _one_of(1_000),
    "messages.append.message_id": _thing("stream"),
    "messages.finish.message_id": _thing("stream"),
    "messages.abort.message_id": _thing("stream"),
    "tasks.create.idempotency_key": _name("k", 3),
    "tasks.list.status": _one_of("pending", "running"),
    **{parameter: _thing(kind) for parameter, kind in _IN_A_STATUS.items()},
    "usage.record.branch": _one_of(0, 1, "side"),
    "usage.replace.branch": _one_of(0, None, "side"),
    "usage.list.branch": _one_of(0, None, "side"),
    "usage.list.turn": _one_of(None),
    "usage.delete.branch": _one_of(0, None, "side"),
    "usage.delete.turn": _one_of(1, None),
    "usage.sum_by.branch": _one_of(0, 1, "side"),
    "usage.sum_by.top": _one_of(1_000, None),
    **{f"branches.{each}.name": _BRANCH for each in _OF_BRANCHES},
    "branches.create.branch": _one_of("main"),
    "branches.create.from_turn": _one_of(1, None, None),
    "branches.create.after_turn": _one_of(1, None, None),
    **{
        f"memories.{each}.namespace": _one_of(["n"], ["n", "inner"], ["other"])
        for each in ("put", "get", "find", "delete", "touch", "list", "search")
    },
    "memories.put.embed": _one_of(False),
    **{f"{each}.search.by": _one_of("words") for each in ("memories", "messages")},
    "memories.list.vectors": _one_of("none", None),
    "memories.search.match": _one_of("all", "any"),
    "memories.put.value": _one_of({"v": 1, "text": "apple"}, {"v": 2}),
    "memories.put.ttl": _one_of(HOUR, timedelta(minutes=2), None),
    "memories.put.user_id": lambda _, actor: actor,
    "checkpoints.put.thread_id": _name("t", 3),
    "checkpoints.put.checkpoint_id": _name("c", 6),
    "checkpoints.list.before": _name("c", 6),
    # By id the answers would differ: those that the store makes in one moment are in no order.
    "sessions.list.order": _one_of("newest", "oldest"),
    "sessions.list.failed": _one_of(True, False),
    "sessions.fail.reason": _one_of(None, "same"),
    "checkpoints.list.order": _one_of("step"),
    "checkpoints.latest.order": _one_of("step"),
    "checkpoints.latest.writes": _one_of(True, False),
    "checkpoints.list.writes": _one_of(True, False),
    "checkpoints.list.values": _one_of(True, False),
    "checkpoints.get.writes": _one_of(True, False),
    "checkpoints.find.writes": _one_of(True, False),
    "checkpoints.list.namespace": _one_of("", "inner", None),
    "checkpoints.delete.ids": _things("checkpoint"),
    "sessions.titles.ids": _things("session"),
    "usage.of_sessions.ids": _things("session"),
    "usage.of_sessions.most": _one_of(None, 1, 100),
    "checkpoints.prune.keep_ids": _things("checkpoint"),
    "checkpoints.put.inherit": _one_of((), (), ("list",)),
    "checkpoints.put_writes.thread_id": _name("t", 3),
    "checkpoints.put_writes.checkpoint_id": _name("c", 6),
    "checkpoints.put_writes.task_id": _one_of("t"),
}
"""By parameter, or by method and parameter; a cursor is that of an earlier call."""

_FIRST = (
    "sessions.create", "messages.save", "messages.save", "branches.create", "messages.begin",
    "attachments.add", "attachments.add", "tool_logs.log", "tasks.create", "tasks.create",
    "checkpoints.put", "users.reserve_quota", "users.issue_api_key", "memories.put",
)  # fmt: skip
"""What there is to begin with."""

_OFTEN = {
    "sessions.create": 3, "messages.save": 10, "messages.save_many": 3, "messages.begin": 5,
    "messages.append": 3, "messages.search": 5, "tool_logs.log": 3, "tasks.create": 6,
    "usage.record": 3, "checkpoints.put": 6, "checkpoints.put_writes": 2, "branches.create": 4,
    "attachments.add": 8, "attachments.delete": 6, "users.reserve_quota": 3,
    "users.issue_api_key": 2, "memories.put": 4, "sessions.pause": 3, "sessions.resume": 3,
    "sessions.wait_for_user": 3, "sessions.answer": 3, "tasks.retry": 3, "branches.delete": 4,
    "branches.rename": 4, "checkpoints.fork": 3, "sessions.delete": 0, "messages.clear": 0,
    "checkpoints.delete_thread": 0,
}  # fmt: skip
"""How often these are drawn beside once, where others are once; what takes much away seldom."""


_ALWAYS = ("fence", "backoff", "name")
"""What is passed always: little comes of a call without it, or, of a pause, chance."""


def undrawn() -> list[str]:
    """Give the parameters of methods that a scope has for which nothing is drawn."""
    return [
        f"{method}({parameter.name})"
        for method, parameters in methods().items()
        for parameter in parameters
        if method not in refused() and parameter.name != "cursor"
        if _draw_for(method, parameter.name) is None
    ]


def _draw_for(method: str, parameter: str) -> Draw | None:
    return DRAWN.get(f"{method}.{parameter}", DRAWN.get(parameter))


def program(seed: int, steps: int) -> list[Step]:
    """Draw what the two do: the same for the same seed."""
    random = Random(seed)  # noqa: S311
    offered, for_nobody = methods(), refused()
    drawn: list[Step] = []

    def draw(actor: str, method: str) -> None:
        together = method not in for_nobody and random.random() < 0.15
        drawn.append(Step(actor, method, _arguments(random, actor, method, offered), together))

    for actor in ACTORS * 2:
        for method in _FIRST:
            draw(actor, method)
    deck = [(actor, method) for actor in ACTORS for method in offered]
    often = [name for name in offered for _ in range(_OFTEN.get(name, name not in for_nobody))]
    while len(deck) < steps - len(drawn):
        deck.append((random.choice(ACTORS), random.choice(often)))
    random.shuffle(deck)
    for n, (actor, method) in enumerate(deck):
        if n % 12 == 0:  # or nobody would hold a task
            drawn.append(Step(actor, "tasks.claim", {}, by_worker=True))
        draw(actor, method)
    drawn += [Step(actor, "users.delete", {"user_id": actor}) for actor in ACTORS]
    return drawn


def _arguments(
    random: Random, actor: str, method: str, offered: dict[str, list[inspect.Parameter]]
) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for parameter in offered[method]:
        optional = parameter.default is not parameter.empty
        if optional and parameter.name not in _ALWAYS and random.random() < 0.6:
            continue
        if parameter.name == "cursor":
            arguments["cursor"] = Chosen(f"page of {method}", random.random(), otherwise=None)
        elif (how := _draw_for(method, parameter.name)) is not None:
            arguments[parameter.name] = how(random, actor)
    return arguments
