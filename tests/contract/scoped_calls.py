"""Every public method, called with the ids of somebody else: the arguments, and what they name.

``Their("session")`` stands for an id of the other user's, ``My("session")`` for one of one's own.
A test holds that there is a call for every method that is not refused in a scope, and that each
argument which names something is somebody else's in one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from agentstore.values.embeddings import Question
from tests.contract.tenants import methods, refused
from tests.programs.probes import MODEL


@dataclass(frozen=True)
class Ids:
    """What a user has, one of each, by their ids."""

    user: str
    session: str
    message: str
    stream: str
    task: str
    running: str
    log: str
    attachment: str
    reservation: str
    api_key: str
    thread: str
    checkpoint: str
    run: str
    task_key: str

    def written(self, text: str) -> str:
        """Put the names of what is meant into the place of ids."""
        for each in sorted(fields(self), key=lambda field: -len(getattr(self, field.name))):
            text = text.replace(getattr(self, each.name), f"<{each.name}>")
        return text


NOBODYS = Ids(*(f"no such {field.name} as this" for field in fields(Ids)))
"""What nobody has."""


@dataclass(frozen=True)
class Their:
    """An id of the other user's."""

    what: str


@dataclass(frozen=True)
class My:
    """An id of one's own."""

    what: str


@dataclass(frozen=True)
class State:
    """A state of a session, as ``state_dict`` gives it."""

    session: Their
    user: Their | My


def filled(value: Any, mine: Ids, theirs: Ids) -> Any:
    """Put ids into the place of what stands for them."""
    match value:
        case My(what):
            return getattr(mine, what)
        case Their(what):
            return getattr(theirs, what)
        case State(session, user):
            return {
                "version": 1,
                "session_id": filled(session, mine, theirs),
                "user_id": filled(user, mine, theirs),
                "branch": "main",
            }
        case list():
            return [filled(each, mine, theirs) for each in value]
        case Mapping():
            return {name: filled(each, mine, theirs) for name, each in value.items()}
    return value


def names_something_of_theirs(value: Any) -> bool:
    """Say whether an argument is, or holds, an id of the other user's."""
    if isinstance(value, list):
        return any(map(names_something_of_theirs, value))
    return isinstance(value, Their | State)


NAMED = {
    "user_id": Their("user"), "session_id": Their("session"), "message_id": Their("message"),
    "task_id": Their("task"), "thread_id": Their("thread"), "log_id": Their("log"),
    "attachment_id": Their("attachment"), "key_id": Their("api_key"),
    "reservation_id": Their("reservation"),
}  # fmt: skip
"""What a parameter names that a method cannot be called without."""

GIVEN = {
    "tokens": 1, "data": b"X", "media_type": "x/y", "name": "side", "external_id": "e",
    "tool": "search",
}  # fmt: skip
"""What else it is given; any text will do for those that are not here."""

USER, SESSION, MESSAGE, TASK, THREAD = ({name: NAMED[name]} for name in [*NAMED][:5])
STREAM = {"message_id": Their("stream")}
CHECKPOINTS = (
    {"checkpoint_id": Their("checkpoint")},
    {"checkpoint_id": Their("checkpoint"), "thread_id": Their("thread")},
    {"checkpoint_id": My("checkpoint"), "thread_id": Their("thread")},
    {"checkpoint_id": Their("checkpoint"), "thread_id": My("thread")},
)

MEANT = Question("meaning", MODEL, MODEL.packed([3, 4]))
"""A search by meaning, whose vector is that of all that is the same."""

CALLS: dict[str, tuple[dict[str, Any], ...]] = {
    "sessions.count": (USER,),
    "memories.namespaces": (USER,),
    "tasks.count": (SESSION,),
    "tasks.list": (SESSION,),
    "tool_logs.stats": (SESSION,),
    "users.names": ({"ids": [Their("user")]}, {"ids": [My("user"), Their("user")]}),
    "sessions.titles": ({"ids": [Their("session")]}, {"ids": [My("session"), Their("session")]}),
    "users.update": (USER | {"name": "X", "preferences": {"a": 2}},),
    "users.reserve_quota": (USER | {"tokens": 1}, USER | {"tokens": 1} | SESSION),
    "sessions.load_state_dict": ({"state": State(Their("session"), Their("user"))},
        {"state": State(Their("session"), My("user"))}),
    "sessions.list": (USER, USER | {"documents": True},
        USER | {"title": "same", "metadata": {}, "preview": True}, USER | {"failed": True}),
    "sessions.interrupted": (USER | {"older_than": timedelta(0)},),
    "sessions.update": (SESSION | {"state": 1}, SESSION | {"title": "X"},
        SESSION | {"state": 1, "expected_version": 99}),
    "sessions.patch": (SESSION | {"metadata": {"a": 1}, "state": {"a": 1}},
        SESSION | {"metadata": {}, "expected_version": 99}),
    "messages.save": (SESSION | {"role": "user", "content": "X"},
        SESSION | {"role": "user", "content": "X", "branch": "side"},
        SESSION | {"role": "user", "content": "X", "create_session": False},
        SESSION | {"role": "user", "content": "X", "idempotency_key": "k"},
        SESSION | {"role": "user", "content": "X", "external_id": "e", "on_duplicate": "replace"}),
    "messages.save_many": (SESSION | {"messages": [{"role": "user", "content": "X"}]},
        SESSION | {"messages": []}),
    "messages.save_chat": (SESSION | {"messages": {"role": "user", "content": "X"}},
        SESSION | {"messages": []}),
    "messages.append": (STREAM | {"text": "X"}, STREAM | {"text": "X", "position": 0}),
    "messages.finish": (STREAM,),
    "messages.abort": (STREAM,),
    "messages.find_many": (SESSION | {"external_ids": ["e", "same"]},),
    "messages.history": (SESSION, SESSION | {"limit": None}, SESSION | {"mark": "same"},
        SESSION | {"prepend_summary": True}),
    "messages.chat": (SESSION, SESSION | {"limit": None}, SESSION | {"prepend_summary": True}),
    "messages.payloads": (SESSION, SESSION | {"limit": None}, SESSION | {"mark": "same"}),
    "messages.search": ({"text": "same"} | SESSION, {"text": "same"} | USER,
        {"text": "same"} | SESSION | USER, {"text": "same"} | SESSION | {"user_id": My("user")},
        {"text": "same"} | SESSION | {"order": "recent"}),
    "messages.update": (MESSAGE | {"content": "X"}, MESSAGE | {"metadata": {}, "marks": ["x"]},
        STREAM | {"token_count": 2}),
    "messages.pop": (SESSION, SESSION | {"branch": "main"}),
    "messages.replace_tail": (SESSION | {"expected": [Their("message")], "messages": []},
        {"session_id": My("session"), "expected": [Their("message")], "messages": []}),
    "messages.delete": ({"ids": [Their("message")]}, {"ids": [Their("message")]} | SESSION,
        {"ids": [My("message")]} | SESSION,
        {"ids": [Their("message")], "session_id": My("session")},
        SESSION | {"external_ids": ["e", "same"]}),
    "messages.delete_by_mark": (SESSION | {"mark": "same"},),
    "messages.size": (SESSION, SESSION | {"mark": "same"}),
    "tool_logs.log": (SESSION | {"tool": "search"},
        {"session_id": My("session"), "tool": "search"} | MESSAGE,
        SESSION | {"tool": "search", "tool_call_id": "c"} | MESSAGE),
    "tool_logs.list": (SESSION, SESSION | {"text": "same"}, SESSION | {"tool": "search"}),
    "tasks.create": (SESSION | {"kind": "mail"},),
    "tasks.complete": ({"task_id": Their("running")},),
    "tasks.fail": ({"task_id": Their("running")}, {"task_id": Their("running"), "fence": 1}),
    "tasks.cancel": (TASK, TASK | {"fence": 1}),
    "tasks.heartbeat": ({"task_id": Their("running"), "fence": 1},),
    "tasks.release": ({"task_id": Their("running"), "fence": 1},),
    "usage.record": (SESSION | {"input_tokens": 1},
        SESSION | {"input_tokens": 1, "model": "none", "cost": 1},
        SESSION | {"usage": {"prompt_tokens": 1}},
        {"session_id": My("session"), "input_tokens": 1, "reservation_id": Their("reservation")}),
    "usage.list": (SESSION, SESSION | {"branch": "main"}),
    "usage.delete": (SESSION, SESSION | {"branch": "main", "turn": 1}),
    "usage.replace": (SESSION | {"turn": 1, "branch": 0}, SESSION | {"branch": "main"}),
    "usage.sum_by": ({"dimension": "total"} | SESSION, {"dimension": "session"} | USER,
        {"dimension": "turn"} | SESSION, {"dimension": "branch_turn", "branch": "main"} | SESSION),
    "usage.of_sessions": ({"ids": [Their("session")]}, {"ids": [My("session"), Their("session")]}),
    "checkpoints.put": ({"thread_id": My("thread"), "values": {}, "parent_id": Their("checkpoint")},
        {"thread_id": My("thread"), "values": {}} | SESSION),
    "checkpoints.put_writes": ({"thread_id": My("thread"), "checkpoint_id": "c", "task_id": "t",
            "writes": []} | SESSION,),
    "checkpoints.get": CHECKPOINTS,
    "checkpoints.find": CHECKPOINTS,
    "checkpoints.list": (THREAD, {"thread_id": My("thread"), "parent_id": Their("checkpoint")}),
    "checkpoints.threads": (USER, SESSION, THREAD),
    "checkpoints.path": CHECKPOINTS,
    "checkpoints.fork": (*CHECKPOINTS, {"checkpoint_id": Their("checkpoint"), "to_thread": "new"}),
    "checkpoints.rewind": (THREAD | {"step": 0},),
    "checkpoints.copy_thread": (THREAD | {"to_thread": "new"},),
    "checkpoints.delete": (THREAD | {"ids": [Their("checkpoint")]},),
    "checkpoints.delete_before": (THREAD | {"step": 99},),
    "checkpoints.delete_run": ({"run_id": Their("run")}, {"run_id": My("run")} | THREAD,
        {"run_id": Their("run")} | THREAD),
    "checkpoints.prune": (THREAD | {"keep_last": 1},
        THREAD | {"keep_ids": [Their("checkpoint")], "dry_run": True}),
    "checkpoints.writes": (THREAD | {"checkpoint_id": Their("checkpoint")},
        {"thread_id": My("thread"), "checkpoint_id": Their("checkpoint")}),
    "branches.create": (SESSION, SESSION | {"from_turn": 1}),
    "branches.compact": (SESSION | {"summary": "X", "to_turn": 1},),
    "branches.find_turns": (SESSION | {"text": "same"},),
    "marks.of": ({"ids": [Their("message")]},),
    "marks.update": (SESSION | {"new": "X"},
        {"session_id": My("session"), "new": "X", "ids": [Their("message")]},
        SESSION | {"new": "X", "external_ids": ["e", "same"]}),
    **{
        f"memories.{name}": ({"namespace": ["same"], "key": "same"} | USER,)
        for name in ("get", "find", "delete")
    },
    "memories.touch": ({"namespace": ["same"], "keys": ["same"]} | USER,),
    "memories.list": (USER, {"namespace": ["same"]} | USER),
    "memories.search": ({"text": "same"} | USER, {"text": "same", "by": MEANT} | USER),
}  # fmt: skip
"""By method: the arguments of each call."""

TAKEN: dict[str, tuple[dict[str, Any], ...]] = {
    "sessions.create": ({"id": Their("session")},),
    "sessions.ensure": ({"id": Their("session")},),
    "tasks.create": ({"session_id": My("session"), "kind": "mail",
            "idempotency_key": Their("task_key")},),
    "checkpoints.put": (THREAD | {"values": {}},
        {"thread_id": My("thread"), "values": {}, "checkpoint_id": Their("checkpoint")},
        {"thread_id": My("thread"), "values": {}, "checkpoint_id": Their("checkpoint"),
            "parent_id": ""}),
    "checkpoints.put_writes": (THREAD | {"checkpoint_id": "c", "task_id": "t",
            "writes": [("channel", 1)]},),
    "checkpoints.fork": ({"checkpoint_id": My("checkpoint"),
            "new_checkpoint_id": Their("checkpoint")},
        {"checkpoint_id": My("checkpoint"), "to_thread": Their("thread")}),
    "checkpoints.copy_thread": ({"thread_id": My("thread"), "to_thread": Their("thread")},
        {"thread_id": My("thread"), "to_thread": Their("thread"), "on_existing": "replace"}),
}  # fmt: skip
"""Ids that a caller chooses, and somebody else has: that they are taken is all that one learns."""

FOR_SOMEBODY_ELSE: dict[str, tuple[dict[str, Any], ...]] = {
    "sessions.create": (USER,),
    "sessions.ensure": ({"id": "new"} | USER, {"id": Their("session")} | USER),
    "checkpoints.put": ({"thread_id": "new", "values": {}} | USER,),
    "checkpoints.put_writes": (
        {"thread_id": "new", "checkpoint_id": "c", "task_id": "t", "writes": []} | USER,
    ),
    "memories.put": ({"namespace": ["same"], "key": "same", "value": {}} | USER,),
}
"""Making something for somebody else."""

WHOLE: dict[str, tuple[dict[str, Any], ...]] = {
    "users.list": ({}, {"email": "same@example.org"}, {"text": "same"}),
    "users.find_by_preference": ({"path": "a", "value": 1},),
    "sessions.list": ({}, {"status": "active"}, {"documents": True},
        {"title": "same", "preview": True}, {"failed": True}),
    "sessions.walk": ({},),
    "sessions.interrupted": ({"older_than": timedelta(0)},),
    "sessions.count": ({},),
    "messages.search": ({"text": "same"}, {"text": "same", "order": "recent"}),
    "tool_logs.list": ({}, {"tool": "search"}, {"success": True}, {"text": "same"}),
    "tool_logs.stats": ({},),
    "sessions.find_ids": ({"beginnings": [f"01{n:02x}" for n in range(256)]},),
    "tasks.count": ({}, {"queue": "default"}),
    "tasks.list": ({}, {"status": "pending"}, {"queue": "default"}),
    "usage.sum_by": tuple(
        {"dimension": each, "top": top}
        for each in ("session", "user", "model", "day", "total")
        for top in (None, 1)
    ),
    "checkpoints.threads": ({},),
    "checkpoints.list": ({"namespace": None, "order": "id", "writes": True},),
    "memories.list": ({},),
    "memories.search": ({"text": "same"}, {"text": "same", "by": MEANT}),
    "memories.namespaces": ({},),
}  # fmt: skip
"""Calls that name nothing, and see all that there is."""

NO_IDS = {
    "external_id": "unique in its session, which is named with it",
    "tool_call_id": "the model's own word",
    "checkpoints.put_writes(checkpoint_id)": "need not be there, and is looked for in its thread",
    "checkpoints.put_writes(task_id)": "the graph's own word",
    "checkpoints.put(run_id)": "a label",
}
"""Arguments that look like ids of something in the database, and are not."""


def _by_signature() -> dict[str, tuple[dict[str, Any], ...]]:
    """Call what the tables leave out with what is of somebody else's, and what else is required."""
    there = CALLS.keys() | TAKEN.keys() | FOR_SOMEBODY_ELSE.keys() | WHOLE.keys() | refused()
    return {
        method: (
            {
                each.name: NAMED.get(each.name, GIVEN.get(each.name, "X"))
                for each in parameters
                if each.default is each.empty
            },
        )
        for method, parameters in methods().items()
        if method not in there
    }


CALLS |= _by_signature()

__all__ = [
    "CALLS", "FOR_SOMEBODY_ELSE", "NOBODYS", "NO_IDS", "TAKEN", "WHOLE", "Ids", "filled",
    "names_something_of_theirs",
]  # fmt: skip
