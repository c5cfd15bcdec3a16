"""What each method does on a scoped store, and how it is guarded there.

``store.scoped(user_id)`` gives the same methods for one user's data. A *scope* is that user. Above
each public method of a repository stands a *decision*:

```text
@scopes.names(message_id=scopes.message)   run it; first look whether the ids in these arguments
                                           name something of the user's
@scopes.SESSION, @scopes.USER ...          the same, for what many methods name
@scopes.KEEPS                              run it: it adds the condition itself, see ``operations``
@scopes.Refused("why")                     raise NotAllowedInScope: it is for all users' data
```

A *kind* says what an argument names (a session, a task, a thread ...). If it names something of
somebody else, the body gets an id that does not exist instead, in the same transaction. So the
answer is the same for what belongs to others and for what is not there.

The invariants: a method without a decision is refused, and a test holds that there is none; what
is made in a scope belongs to its user. On PostgreSQL, row-level security enforces the same once
more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import Signature, signature
from typing import Any, TypeVar, cast

from sqlalchemy import ColumnElement, Select, bindparam, select
from sqlalchemy.exc import IntegrityError

from agentstore.engines.base.dialect import Mode
from agentstore.engines.base.statements import Builder
from agentstore.errors import (
    AgentStoreError,
    AlreadyExists,
    CrossTenantAccess,
    NotAllowedInScope,
    WrongOwner,
    WrongThread,
    named,
    printed,
)
from agentstore.execution.unit import Unit
from agentstore.repositories import operations
from agentstore.repositories.checkpoints.threads import in_root
from agentstore.repositories.operations import (
    MOST_IDS,
    Only,
    Operation,
    Repository,
    among,
    chunks,
    equal,
    operation,
    several,
    whose,
)
from agentstore.schema import Tables
from agentstore.schema.conversations import key_for
from agentstore.values.types import new_id

# How a method is run in a scope: ids that are not its user's are those of nothing.
#
# Each argument that names something has a *kind*: a function that is given its value before the
# method's body runs, in the same transaction, and gives the value that the body gets. Where the
# value names something of somebody else, or nothing, the body gets an id that does not exist, so
# it does what it does for what is not there, whatever that is. An error that names this id then
# names the one that was passed.
#
# A method that writes locks the session or thread that is named, so that nobody deletes it, and
# makes another one under its id, before the body is done. An owner never changes otherwise.


Taken = Callable[["ScopedCall"], AgentStoreError | None]
"""Says what it means that the database, which hides others' rows, refuses a key as taken."""


class ScopedCall:
    """A call in a scope: its arguments, and the ids in them that are replaced.

    Attributes:
        arguments: By name, those left out with their defaults.
        thread: The thread of the checkpoint that is named, as far as one was looked for.
    """

    def __init__(self, unit: Unit, arguments: dict[str, Any], *, locks: bool) -> None:
        """Take the arguments as they were passed."""
        self.unit = unit
        self.arguments = arguments
        self.thread: str | None = None
        self._locks = locks
        self._replaced: dict[str, str] = {}

    @property
    def user(self) -> str:
        """The user of the scope."""
        assert self.unit.only is not None, "only a unit with a scope is guarded"
        return self.unit.only

    def absent(self, id: str) -> str:
        """Give an id that does not exist, always the same one for the same id."""
        return self._replaced.setdefault(id, new_id())

    def find(self, statement: Builder, id: str, *shape: Any) -> Any:
        """Run one of the statements below; give the first row."""
        shape = whose(self.unit), self._locks, *shape
        return self.unit.first(statement, *shape, id=id, only=self.unit.only)

    def named_again(self, error: AgentStoreError) -> None:
        """Have an error name what was passed."""
        for passed, given in self._replaced.items():
            for attribute, value in vars(error).items():
                if value == given:
                    setattr(error, attribute, passed)
            error.args = tuple(
                each.replace(repr(given), named(passed)).replace(given, printed(passed))
                if isinstance(each, str)
                else each
                for each in error.args
            )


Kind = Callable[[ScopedCall, Any], Any]
"""What is done with an argument: it gives the value for the body. None names nothing."""


M = TypeVar("M", bound=Callable[..., Any])


class Decision:
    """What a method is in a scope; it decorates the method."""

    def __call__(self, method: M) -> M:
        """Write it down with the method."""
        method.in_scope = self  # type: ignore[attr-defined]
        return method


@dataclass(frozen=True)
class Guard(Decision):
    """How a method is to be run in a scope.

    Attributes:
        kinds: By argument; the others are passed on as they are.
        taken: See ``Taken``.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    taken: Taken = lambda _: None

    def run(
        self,
        repository: Repository,
        described: Operation,
        signature: inspect.Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a method's body in the open unit.

        Args:
            repository: Of the unit, and without guards.
            described: The method.
            signature: The method's, without ``self``.
            args: What was passed.
            kwargs: What was passed by name.

        Raises:
            CrossTenantAccess: Something was to be made for somebody else.
        """
        unit = repository.unit
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = ScopedCall(
            unit, bound.arguments, locks=described.mode not in (Mode.READ, Mode.SNAPSHOT)
        )
        try:
            if unit.only is not None:
                passed = dict(bound.arguments)
                bound.arguments |= {
                    name: kind(call, passed[name]) for name, kind in self.kinds.items()
                }
            work = described.call(described.body, type(repository), bound.args, bound.kwargs)
            return work(unit)
        except IntegrityError:
            if unit.scope is not None and (meaning := self.taken(call)) is not None:
                raise meaning from None
            raise
        except WrongOwner as error:
            if error.thread_id == bound.arguments.get("to_thread"):
                raise AlreadyExists("checkpoint thread", error.thread_id) from None
            call.named_again(error)
            raise
        except AgentStoreError as error:
            call.named_again(error)
            raise


# --- The kinds of what arguments name --------------------------------------------------------


def _of(statement: Builder, *shape: str) -> Kind:
    def kind(call: ScopedCall, value: Any) -> Any:
        if not isinstance(value, str) or call.find(statement, value, *shape) is not None:
            return value
        return call.absent(value)

    return kind


def user(call: ScopedCall, value: Any) -> Any:
    """A user who is asked after."""
    return value if value == call.user or not isinstance(value, str) else call.absent(value)


def only_user(call: ScopedCall, value: Any) -> Any:
    """A user to whom a list is narrowed: the scope's, if none is named."""
    return call.user if value is None else user(call, value)


def owner(call: ScopedCall, value: Any) -> Any:
    """A user for whom something is made: the scope's, if none is named."""
    if value is not None and value != call.user:
        raise CrossTenantAccess("user_id", value)
    return call.user


_ID: ColumnElement[str] = bindparam("id")


def _session(tables: Tables, only: Only, locks: bool) -> Select[Any]:
    sessions = tables.sessions.c
    query = select(sessions.pk).where(sessions.id == _ID, sessions.user_id == only)
    return query.with_for_update(key_share=True) if locks else query


def _any_session(tables: Tables, only: Only, locks: bool) -> Select[Any]:
    return select(tables.sessions.c.pk).where(tables.sessions.c.id == _ID)


def _in_session(tables: Tables, only: Only, locks: bool, table: str) -> Select[Any]:
    rows, sessions = tables[table].c, tables.sessions
    owning = key_for(sessions.c, rows.session_id) == rows.session_id
    query = select(rows.pk).join(sessions, owning)
    return query.where(rows.id == _ID, sessions.c.user_id == only)


def _of_user(tables: Tables, only: Only, locks: bool, table: str) -> Select[Any]:
    rows = tables[table].c
    return select(rows.pk).where(rows.id == _ID, rows.user_id == only)


def _thread(tables: Tables, only: Only, locks: bool) -> Select[Any]:
    query = _any_thread(tables, only, locks)
    query = query.where(*operations.threads(tables, only, tables.checkpoint_threads.c.id))
    return query.with_for_update(key_share=True) if locks else query


def _any_thread(tables: Tables, only: Only, locks: bool) -> Select[Any]:
    threads = tables.checkpoint_threads.c
    return select(threads.id).where(threads.id == _ID)


def _thread_of_checkpoint(tables: Tables, only: Only, locks: bool) -> Select[Any]:
    threads, checkpoints = tables.checkpoint_threads, tables.checkpoints
    theirs = operations.threads(tables, only, threads.c.id)
    query = (
        select(threads.c.id)
        .join(checkpoints, checkpoints.c.thread_id == threads.c.id)
        .where(checkpoints.c.id == _ID, in_root(checkpoints), *theirs)
    )
    return query.with_for_update(key_share=True, of=threads) if locks else query


session = _of(_session)
message = _of(_in_session, "messages")
task = _of(_in_session, "tasks")
tool_log = _of(_in_session, "tool_logs")
attachment = _of(_in_session, "attachments")
api_key = _of(_of_user, "api_keys")
reservation = _of(_of_user, "quota_reservations")
thread = _of(_thread)


def session_to_save(call: ScopedCall, value: Any) -> Any:
    """A session that may be created if it does not exist; the id of another user's is refused."""
    given = session(call, value)
    if given is value or not call.arguments["create_session"]:
        return given
    if call.find(_any_session, value) is not None and session(call, value) is not value:
        raise AlreadyExists("session", value)
    return value  # nobody's, or made for this user since the first look


def own_session(call: ScopedCall, value: Any) -> Any:
    """The session of what would have no user without one."""
    if value is None:
        raise CrossTenantAccess("session_id", None)
    return session(call, value)


def messages(call: ScopedCall, values: Any) -> Any:
    """A list of messages, those of others among them."""
    if not isinstance(values, list | tuple | set | frozenset) or not all(
        isinstance(value, str) for value in values
    ):
        return values
    found: set[str] = set()
    for chunk in chunks(list(dict.fromkeys(values))):
        asked = several("id", chunk)
        found.update(id for (id,) in call.unit.rows(_these, len(asked), only=call.user, **asked))
    return [value if value in found else call.absent(value) for value in values]


def _these(tables: Tables, ids: int) -> Select[Any]:
    messages, sessions = tables.messages.c, tables.sessions
    query = select(messages.id).join(sessions, sessions.c.pk == messages.session_id)
    return query.where(sessions.c.user_id == bindparam("only"), among(messages.id, "id", ids))


def few_messages(call: ScopedCall, values: Any) -> Any:
    """The same, as many as one call may change: the body refuses more, without a look at them."""
    few = not isinstance(values, list | tuple | set | frozenset) or len(values) <= MOST_IDS
    return messages(call, values) if few else values


def thread_to_put(call: ScopedCall, value: Any) -> Any:
    """A thread that is created if it does not exist; the id of another user's is refused."""
    hidden = isinstance(value, str) and call.find(_thread, value) is None
    if (
        hidden
        and call.find(_any_thread, value) is not None
        and call.find(_thread, value) is None  # nor was it made for this user since
    ):
        raise WrongOwner(value, "user_id")
    return value


def checkpoint(call: ScopedCall, value: Any) -> Any:
    """A checkpoint of the thread that is named with it or, without one, of the root namespace."""
    if call.arguments.get("thread_id") is not None or not isinstance(value, str):
        return value
    found = call.find(_thread_of_checkpoint, value)
    if found is None:
        return call.absent(value)
    call.thread = found.id
    return value


def state(call: ScopedCall, value: Any) -> Any:
    """What ``sessions.state_dict`` gave."""
    if not isinstance(value, Mapping) or "session_id" not in value:
        return value
    return {**value, "session_id": session(call, value["session_id"])}


def _of_key(tables: Tables) -> Select[Any]:
    tasks = tables.tasks.c
    return select(tasks.id).where(*equal(tasks, ("queue", "idempotency_key")))


def task_key(call: ScopedCall, value: Any) -> Any:
    """An idempotency key of a task; refused if another user's task in the queue has it."""
    queue = call.arguments["queue"]
    if isinstance(value, str) and isinstance(queue, str):
        found = call.unit.first(_of_key, queue=queue, idempotency_key=value)
        if found is not None and call.find(_in_session, found.id, "tasks") is None:
            raise AlreadyExists("idempotency key of a task", value)
    return value


# --- Keys that are taken by what is hidden ---------------------------------------------------


def session_taken(call: ScopedCall) -> AgentStoreError | None:
    """A session's id is the caller's own."""
    id = call.arguments["id"]
    return None if id is None else AlreadyExists("session", id)


def task_key_taken(call: ScopedCall) -> AgentStoreError | None:
    """See ``task_key``."""
    key = call.arguments["idempotency_key"]
    return None if key is None else AlreadyExists("idempotency key of a task", key)


def checkpoint_taken(call: ScopedCall) -> AgentStoreError | None:
    """In the root namespace a checkpoint's id belongs to one thread."""
    given = call.arguments
    id = given.get("new_checkpoint_id", given.get("checkpoint_id"))
    target = given.get("to_thread") or given["thread_id"] or call.thread
    if id is None:
        return None
    return AlreadyExists("checkpoint", id) if target is None else WrongThread(target, id)


# What a decision can be, and those of which there are many.


R = TypeVar("R", bound=Repository)


@dataclass(frozen=True)
class Refused(Decision):
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

_UNDECIDED = Refused("nobody has decided what it does there")
WORKERS = Refused("workers take the tasks of all users")
EVERYBODYS = Refused("it tidies up for everybody")
INDEX = Refused("all users share the index")
SESSION = names(session_id=session)
SAVES = names(session_id=session_to_save)
MESSAGE = names(message_id=message)
TASK = names(task_id=task)
USER = names(user_id=user)
THREAD = names(thread_id=thread)
ONLY_USER = names(user_id=only_user)
ATTACHMENT = names(attachment_id=attachment)
TOOL_LOG = names(log_id=tool_log)
RESERVATION = names(reservation_id=reservation)
API_KEY = names(key_id=api_key)
CHECKPOINT = names(checkpoint_id=checkpoint, thread_id=thread)


def decision_on(repository: type[Repository], method: str) -> Decision:
    """Say what a method is in a scope."""
    decided: Decision = getattr(getattr(repository, method, None), "in_scope", _UNDECIDED)
    return decided


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
        elif isinstance(decision, Guard) and hasattr(method, "operation"):
            methods[name] = _guarded(repository, method, decision)
        # What is several units of work has no unit to check in: its units keep to the scope.
    names = {"__slots__": (), "__doc__": repository.__doc__}
    return type(repository.__name__, (repository,), names | methods)


def _refused(
    repository: type[Repository], name: str, method: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(method, updated=())
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotAllowedInScope(f"{repository.__name__}.{name}()")

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

    guarded = operation(described.mode)(body)
    prepare = getattr(method, "prepare", None)
    return guarded if prepare is None else operations.asks_first(prepare)(guarded)
