"""What each public method is in a scope: one table, which a test holds complete.

A method is run under a ``Guard`` that says what its arguments name; or it is refused, because it
is for all users' data or for none of theirs. One that is not in the table is refused. Those whose
guard names nothing keep to the scope by themselves (see ``scoping``), or have nothing to keep to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from typing import Any, TypeVar, cast

from agentstore.errors import UnscopedOnly
from agentstore.repositories.base.operations import Operation, Repository, operation
from agentstore.repositories.scopes import guarding as its
from agentstore.repositories.scopes.guarding import Guard, Kind

R = TypeVar("R", bound=Repository)


@dataclass(frozen=True)
class Refused:
    """The method is not available on a scoped store.

    Attributes:
        why: The reason, in short.
    """

    why: str


def names(**kinds: Kind) -> Guard:
    """Say what arguments name."""
    return Guard(kinds)


KEEPS = Guard()
"""The method keeps to the scope by itself."""

_UNDECIDED = Refused("no decision is in the table")
_WORKERS = Refused("workers take the tasks of all users")
_EVERYBODYS = Refused("it tidies up for everybody")
_INDEX = Refused("all users share the index")
_SESSION = names(session_id=its.session)
_SAVES = names(session_id=its.session_to_save)
_MESSAGE = names(message_id=its.message)
_TASK = names(task_id=its.task)
_USER = names(user_id=its.user)
_THREAD = names(thread_id=its.thread)
_CHECKPOINT = names(checkpoint_id=its.checkpoint, thread_id=its.thread)

Decision = Guard | Refused

DECISIONS: dict[str, dict[str, Decision]] = {
    "Users": {
        "create": Refused("a scope has one user, who is there already"),
        "get": _USER,
        "find": _USER,
        "list": KEEPS,
        "find_by_preference": KEEPS,
        "update": _USER,
        "delete": KEEPS,
        "check_quota": _USER,
        "consume_quota": _USER,
        "reservations": _USER,
        "reserve_quota": _USER,
        "reserve_for_session": _SESSION,
        "settle_quota": names(reservation_id=its.reservation),
        "release_quota": names(reservation_id=its.reservation),
        "issue_api_key": _USER,
        "authenticate": Refused("whose a key is, is not known before"),
        "touch_api_key": names(key_id=its.api_key),
        "api_keys": _USER,
        "revoke_api_key": names(key_id=its.api_key),
    },
    "Sessions": {
        "create": Guard({"user_id": its.owner}, its.session_taken),
        "ensure": KEEPS,
        "get": _SESSION,
        "find": _SESSION,
        "restore": _SESSION,
        "state_dict": _SESSION,
        "load_state_dict": names(state=its.state),
        "find_ids": KEEPS,
        "list": names(user_id=its.only_user),
        "walk": KEEPS,
        "count": names(user_id=its.only_user),
        "rename": _SESSION,
        "update": _SESSION,
        "patch": _SESSION,
        "pause": _SESSION,
        "resume": _SESSION,
        "complete": _SESSION,
        "cancel": _SESSION,
        "fail": _SESSION,
        "wait_for_user": _SESSION,
        "answer": _SESSION,
        "reset": _SESSION,
        "delete": _SESSION,
        "delete_expired": _EVERYBODYS,
        "verify": _SESSION,
    },
    "Messages": {
        "save": _SAVES,
        "save_many": _SAVES,
        "save_chat": _SAVES,
        "begin": _SESSION,
        "append": _MESSAGE,
        "finish": _MESSAGE,
        "give_up": _MESSAGE,
        "give_up_idle": _EVERYBODYS,
        "get": _MESSAGE,
        "find": _MESSAGE,
        "find_by_external_id": _SESSION,
        "find_many": _SESSION,
        "find_by_tool": _SESSION,
        "history": _SESSION,
        "chat": _SESSION,
        "payloads": _SESSION,
        "page": _SESSION,
        "search": KEEPS,
        "follow": Refused("it follows the messages of all sessions"),
        "update": _MESSAGE,
        "pop": _SESSION,
        "replace_tail": _SESSION,
        "delete": names(session_id=its.session, ids=its.few_messages),
        "delete_by_mark": _SESSION,
        "size": _SESSION,
        "clear": _SESSION,
    },
    "ToolLogs": {
        "log": names(session_id=its.session, message_id=its.message),
        "get": names(log_id=its.tool_log),
        "find": names(log_id=its.tool_log),
        "list": _SESSION,
        "stats": _SESSION,
    },
    "Tasks": {
        "create": Guard(
            {"session_id": its.own_session, "idempotency_key": its.task_key}, its.task_key_taken
        ),
        "get": _TASK,
        "find": _TASK,
        "list": _SESSION,
        "count": _SESSION,
        "start": _TASK,
        "complete": _TASK,
        "fail": _TASK,
        "pause": _TASK,
        "resume": _TASK,
        "retry": _TASK,
        "cancel": _TASK,
        "heartbeat": _TASK,
        "release": _TASK,
        "claim": _WORKERS,
        "heartbeat_many": _WORKERS,
        "complete_many": _WORKERS,
        "fail_many": _WORKERS,
        "rescue": _WORKERS,
        "requeue": _WORKERS,
        "due": _WORKERS,
        "watch": _WORKERS,
    },
    "Usage": {
        "stats": _USER,
        "record": names(session_id=its.session, reservation_id=its.reservation),
        "list": _SESSION,
        "delete": _SESSION,
        "replace": _SESSION,
        "sum_by": names(session_id=its.session, user_id=its.only_user),
        "of_sessions": KEEPS,
        "totals": Refused("it counts the whole database"),
    },
    "Search": {
        "status": _INDEX,
        "refresh": _INDEX,
        "reindex": _INDEX,
    },
    "Checkpoints": {
        "put": Guard(
            {
                "user_id": its.owner,
                "session_id": its.session,
                "thread_id": its.thread_to_put,
            },
            its.checkpoint_taken,
        ),
        "put_writes": names(user_id=its.owner, session_id=its.session, thread_id=its.thread_to_put),
        "get": _CHECKPOINT,
        "find": _CHECKPOINT,
        "latest": _THREAD,
        "list": _THREAD,
        "namespaces": _THREAD,
        "threads": names(session_id=its.session, user_id=its.user),
        "path": _CHECKPOINT,
        "tree": _THREAD,
        "fork": Guard(_CHECKPOINT.kinds, its.checkpoint_taken),
        "rewind": _THREAD,
        "copy_thread": names(thread_id=its.thread, to_thread=its.thread_to_put),
        "delete_thread": _THREAD,
        "delete": _THREAD,
        "delete_before": _THREAD,
        "delete_run": _THREAD,
        "prune": _THREAD,
        "writes": _THREAD,
    },
    "Memories": {
        "put": names(user_id=its.owner),
        **dict.fromkeys(
            ("get", "find", "delete", "touch", "list", "search", "namespaces"),
            names(user_id=its.only_user),
        ),
        "delete_expired": _EVERYBODYS,
    },
    "Branches": {
        "create": _SESSION,
        "get": _SESSION,
        "active": _SESSION,
        "list": _SESSION,
        "switch": _SESSION,
        "rename": _SESSION,
        "delete": _SESSION,
        "compact": _SESSION,
        "turns": _SESSION,
        "by_turn": _SESSION,
        "tool_usage": _SESSION,
        "find_turns": _SESSION,
    },
    "Marks": {
        "of": names(ids=its.messages),
        "count": _SESSION,
        "update": names(session_id=its.session, ids=its.few_messages),
    },
    "Summaries": {
        "put": _SESSION,
        "find": _SESSION,
        "delete": _SESSION,
    },
    "Attachments": {
        "add": _MESSAGE,
        "get": names(attachment_id=its.attachment),
        "find": names(attachment_id=its.attachment),
        "read": names(attachment_id=its.attachment),
        "list": _MESSAGE,
        "list_of_session": _SESSION,
        "delete": names(attachment_id=its.attachment),
    },
}
"""By repository and method."""


def decision_on(repository: type[Repository], method: str) -> Decision:
    """Say what a method is in a scope."""
    return DECISIONS.get(repository.__name__, {}).get(method, _UNDECIDED)


def public_methods(repository: type[Repository]) -> dict[str, Callable[..., Any]]:
    """Give what a repository offers, by name."""
    offered = {name: getattr(repository, name) for name in dir(repository) if name[0] != "_"}
    return {
        name: method
        for name, method in offered.items()
        if hasattr(method, "operation") or hasattr(method, "several_units")
    }


_made: dict[type[Repository], type[Repository]] = {}


def scoped(repository: type[R]) -> type[R]:
    """Give the repository for scopes: the same methods, guarded or refused.

    Its units have a user; see ``ScopedUnit``.
    """
    if repository not in _made:
        _made[repository] = _make(repository)
    return cast("type[R]", _made[repository])


def _make(repository: type[Repository]) -> type[Repository]:
    methods: dict[str, Any] = {}
    for name, method in public_methods(repository).items():
        decision = decision_on(repository, name)
        if isinstance(decision, Refused):
            methods[name] = _refused(repository, name, method)
        elif hasattr(method, "operation"):
            methods[name] = _guarded(repository, method, decision)
        # What is several units of work has no unit to check in: its units keep to the scope.
    names = {"__slots__": (), "__doc__": repository.__doc__}
    return type(repository.__name__, (repository,), names | methods)


def _refused(
    repository: type[Repository], name: str, method: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(method, updated=())
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnscopedOnly(f"{repository.__name__}.{name}()")

    return refuse


def _guarded(
    repository: type[Repository], method: Callable[..., Any], guard: Guard
) -> Callable[..., Any]:
    described: Operation = method.operation  # type: ignore[attr-defined]
    of_method = signature(method)
    without_self = Signature([*of_method.parameters.values()][1:])

    @wraps(method)
    def body(self: Repository, /, *args: Any, **kwargs: Any) -> Any:
        # Bodies that call one another do so without guards: what they are given is looked at once.
        return guard.run(repository(self.unit), described, without_self, args, kwargs)

    return operation(described.mode)(body)
