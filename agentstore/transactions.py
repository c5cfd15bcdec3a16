"""Repositories, bound to what runs them: a transaction, or a store as one user has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, TypeVar

from agentstore import repositories
from agentstore.engines.base.dialect import Mode
from agentstore.errors import InvalidInput, NotAllowedInScope
from agentstore.execution.observation import Observer
from agentstore.execution.runners import Scope, ScopedRunner, joined
from agentstore.execution.unit import Runner, Unit

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    from agentstore.repositories import (
        Attachments,
        Branches,
        Checkpoints,
        Marks,
        Memories,
        Messages,
        Search,
        Sessions,
        Summaries,
        Tasks,
        ToolLogs,
        Usage,
        Users,
    )
    from agentstore.repositories.operations import Repository
    from agentstore.store import Store
    from agentstore.turns import Turn


T = TypeVar("T")
R = TypeVar("R", bound="Repository")


class Repositories:
    """The repositories, bound to whatever runs them: a store, or a transaction.

    Each is imported and bound when it is first used: most programs need a few.
    """

    _scoped = False

    def __init__(self, runner: Runner, observer: Observer | None = None) -> None:
        """Have one runner run all calls, watched if there is an observer."""
        self._calls = runner
        self._observer = observer

    @cached_property
    def users(self) -> Users:
        """Users, what they prefer, their quotas and API keys."""
        return self._bound("users", repositories.Users)

    @cached_property
    def sessions(self) -> Sessions:
        """Conversations: owner, title, status, documents, time to live."""
        return self._bound("sessions", repositories.Sessions)

    @cached_property
    def messages(self) -> Messages:
        """What was said: saved, streamed, read as a model takes it, searched, followed."""
        return self._bound("messages", repositories.Messages)

    @cached_property
    def tool_logs(self) -> ToolLogs:
        """What calls of tools were given, gave, and took."""
        return self._bound("tool_logs", repositories.ToolLogs)

    @cached_property
    def tasks(self) -> Tasks:
        """Work to be done, once, by whatever worker claims it."""
        return self._bound("tasks", repositories.Tasks)

    @cached_property
    def usage(self) -> Usage:
        """What models used and cost, and sums of it."""
        return self._bound("usage", repositories.Usage)

    @cached_property
    def search(self) -> Search:
        """The search index: how it is, and how it is rebuilt."""
        return self._bound("search", repositories.Search)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """States of agents by thread and step, with forks and pending writes."""
        return self._bound("checkpoints", repositories.Checkpoints)

    @cached_property
    def attachments(self) -> Attachments:
        """Files beside messages."""
        return self._bound("attachments", repositories.Attachments)

    @cached_property
    def branches(self) -> Branches:
        """The ways in which a conversation goes on, their turns, compaction."""
        return self._bound("branches", repositories.Branches)

    @cached_property
    def marks(self) -> Marks:
        """Short texts on messages, by which they are found or left out."""
        return self._bound("marks", repositories.Marks)

    @cached_property
    def summaries(self) -> Summaries:
        """The compressed memory of a conversation."""
        return self._bound("summaries", repositories.Summaries)

    @cached_property
    def memories(self) -> Memories:
        """JSON objects under namespaces and keys, across conversations."""
        return self._bound("memories", repositories.Memories)

    def turn(
        self,
        session_id: str,
        *,
        reserve: int | None = None,
        user: str | None = None,
        ttl: timedelta = timedelta(minutes=10),
        tool_call_id: str | None = None,
    ) -> Turn:
        """Begin a turn: what it saves, what it uses, and whose quota pays for it.

        ``turn.save``, ``turn.log``, ``turn.history`` and ``turn.chat`` are those of ``messages``
        and ``tool_logs`` in the turn's session; ``turn.usage(answer.usage)`` records what a model
        used, any number of times, and consumes it from the quota, even if it is more than was
        reserved. At the end of the block the rest is released, also if it raises. Each call
        is committed by itself, so wait for a model as long as you like. ``turn.stream(chunks)``
        saves an answer while it comes; ``turn.begin``, ``append`` and ``finish`` do so piece by
        piece.

        Args:
            session_id: The session.
            reserve: The most tokens that the turn may use, to be set aside until it ends. None
                leaves quotas alone; what is used is recorded all the same.
            user: Whose quota; None means that of the session's user.
            ttl: How long until the rest is released if this process dies.
            tool_call_id: The call of a tool that this turn is made for: ``turn.log`` has it unless
                it is given another.

        Examples:
            >>> with store.turn(session.id, reserve=4_000) as turn:
            ...     turn.save("user", question)
            ...     answer = client.responses.create(model=model, input=turn.chat())
            ...     turn.usage(answer)
            ...     turn.save("assistant", answer.output_text)

        Raises:
            InvalidInput: An argument is out of range. The block raises what its calls raise, and
                at its beginning ``QuotaExceeded``, before anything is written.
        """
        from agentstore.turns import Turn  # which few programs need, with its repositories

        return Turn(self, session_id, reserve, user, ttl, tool_call_id)

    def _bound(self, name: str, kind: type[R]) -> R:
        if self._scoped:
            from agentstore.repositories.scopes import scoped

            kind = scoped(kind)
        if self._observer is not None:
            kind = self._observer.watched(name, kind)
        return kind(self._calls)


class Transaction(Repositories):
    """The repositories inside one transaction."""


class ScopedTransaction(Transaction):
    """The repositories inside one transaction, for one user's data."""

    _scoped = True


def in_transaction(
    work: Callable[[Transaction], T], observer: Observer | None = None
) -> Callable[[Unit], T]:
    """Make a body of a function that wants a transaction's repositories."""

    def body(unit: Unit) -> T:
        with joined(unit) as runner:
            result = work(Transaction(runner, observer))
            if iscoroutine(result):  # none of its calls was made, and nobody would notice
                result.close()
                raise InvalidInput(
                    "Pass a plain function, not a coroutine function (async def). Its calls take "
                    "no await: tx.messages.save(...). For awaited calls use transaction()."
                )
            return result

    return body


def runner_of(bound: Repositories) -> Runner:
    """Give what the repositories are bound to."""
    return bound._calls


class ScopedStore(Repositories):
    """A store as one user has it; ``Store.scoped`` gives one.

    Data of other users, or of no user, does not exist here: their ids are answered like ids that
    do not exist, and lists, searches and sums leave them out. What is made is the user's. Methods
    for all users' data raise ``NotAllowedInScope``. On PostgreSQL, row-level security enforces the
    same.

    Attributes:
        user_id: The user.
    """

    _scoped = True

    def __init__(self, store: Store, scope: Scope) -> None:
        """Share the connections of a store."""
        self._store = store
        self._scope = scope
        self.user_id = scope.user_id
        super().__init__(ScopedRunner(runner_of(store), scope.run), store._observer)

    def __repr__(self) -> str:
        """Name the database, without its password, and not the user."""
        return f"{self._store!r}.scoped(...)"

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Make several calls one, in the scope; see ``Store.transaction``."""
        with self._store.transaction() as transaction:
            yield self._within(transaction)

    def joined(self, connection: Connection | Session | scoped_session[Any]) -> Transaction:
        """Give the repositories in the application's transaction; see ``Store.joined``."""
        runner = self._store._in_callers_transaction(connection)
        return ScopedTransaction(ScopedRunner(runner, self._scope.visit), self._store._observer)

    def run(self, work: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction of the scope; see ``Store.run``."""
        return self._store.run(lambda transaction: work(self._within(transaction)))

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a function that sees one moment of the scope; see ``Store.read``."""
        return self._store.read(lambda transaction: work(self._within(transaction)))

    def _within(self, transaction: Transaction) -> Transaction:
        return scoped_transaction(transaction, self._scope, self._store._observer)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuse what the store itself offers beyond this."""
            if not name.startswith("_") and hasattr(type(self._store), name):
                raise NotAllowedInScope(f"Store.{name}()")
            raise AttributeError(name)


def scoped_transaction(
    transaction: Transaction, scope: Scope, observer: Observer | None
) -> Transaction:
    """Give the repositories of an open transaction for one user's data."""
    runner = runner_of(transaction)
    runner.run(Mode.READ, scope.enter, repeatable=True)
    return ScopedTransaction(ScopedRunner(runner, scope.run_entered), observer)
