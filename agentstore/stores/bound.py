"""Repositories, bound to what runs them: a transaction, or a store as one user has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from agentstore.engines.base.dialect import Mode
from agentstore.errors import UnscopedOnly
from agentstore.execution.observation import Observer
from agentstore.execution.runners import joined
from agentstore.execution.scoped import Scope, ScopedRunner
from agentstore.execution.unit import Runner, Unit
from agentstore.repositories import (
    Attachments,
    Branches,
    Checkpoints,
    Marks,
    Messages,
    Search,
    Sessions,
    Summaries,
    Tasks,
    ToolLogs,
    Usage,
    Users,
)
from agentstore.repositories.base.operations import Repository
from agentstore.repositories.scopes.table import scoped

if TYPE_CHECKING:
    from agentstore.stores.store import Store

T = TypeVar("T")


class Repositories:
    """The repositories, bound to whatever runs them: a store, or a transaction."""

    def __init__(self, runner: Runner) -> None:
        """Bind all repositories to one runner."""
        self.users = Users(runner)
        self.sessions = Sessions(runner)
        self.messages = Messages(runner)
        self.tool_logs = ToolLogs(runner)
        self.tasks = Tasks(runner)
        self.usage = Usage(runner)
        self.search = Search(runner)
        self.checkpoints = Checkpoints(runner)
        self.attachments = Attachments(runner)
        self.branches = Branches(runner)
        self.marks = Marks(runner)
        self.summaries = Summaries(runner)


class Transaction(Repositories):
    """The repositories inside one transaction."""


class ScopedTransaction(Transaction):
    """The repositories inside one transaction, for one user's data."""

    def __init__(self, runner: Runner) -> None:
        """Bind all repositories, guarded, to a runner of the scope."""
        super().__init__(runner)
        _guard(self, runner)


def _guard(repositories: Repositories, runner: Runner) -> None:
    """Put the repositories for scopes into the places of the others."""
    for name, bound in vars(repositories).items():
        if isinstance(bound, Repository):
            setattr(repositories, name, scoped(type(bound))(runner))


def in_transaction(
    work: Callable[[Transaction], T], observer: Observer | None = None
) -> Callable[[Unit], T]:
    """Make a body of a function that wants a transaction's repositories."""

    def body(unit: Unit) -> T:
        with joined(unit) as runner:
            transaction = Transaction(runner)
            if observer is not None:
                observer.watch(transaction)
            return work(transaction)

    return body


def runner_of(repositories: Repositories) -> Runner:
    """Give what the repositories are bound to."""
    runner = repositories.users._runner
    assert runner is not None, "these are not repositories of a unit"
    return runner


class ScopedStore(Repositories):
    """A store as one user has it; ``Store.scoped`` gives one.

    Data of other users, or of no user, does not exist here: their ids are answered like ids that
    do not exist, and lists, searches and sums leave them out. What is made is the user's. Methods
    for all users' data raise ``UnscopedOnly``. On PostgreSQL, row-level security enforces the same.

    Attributes:
        user_id: The user.
    """

    def __init__(self, store: Store, scope: Scope) -> None:
        """Share the connections of a store."""
        self._store = store
        self._scope = scope
        self.user_id = scope.user_id
        runner = ScopedRunner(runner_of(store), scope)
        super().__init__(runner)
        _guard(self, runner)
        if store._observer is not None:
            store._observer.watch(self)

    def __repr__(self) -> str:
        """Name the database, without its password, and not the user."""
        return f"{self._store!r}.scoped(...)"

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Make several calls one, in the scope; see ``Store.transaction``."""
        with self._store.transaction() as transaction:
            yield self._within(transaction)

    def run(self, work: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction of the scope; see ``Store.run``."""
        return self._store.run(lambda transaction: work(self._within(transaction)))

    def _within(self, transaction: Transaction) -> Transaction:
        return scoped_transaction(transaction, self._scope, self._store._observer)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuse what the store itself offers beyond this."""
            if not name.startswith("_") and hasattr(type(self._store), name):
                raise UnscopedOnly(f"Store.{name}()")
            raise AttributeError(name)


def scoped_transaction(
    transaction: Transaction, scope: Scope, observer: Observer | None
) -> Transaction:
    """Give the repositories of an open transaction for one user's data."""
    runner = runner_of(transaction)
    runner.run(Mode.READ, scope.enter, repeatable=True)
    here = ScopedTransaction(ScopedRunner(runner, scope, entered=True))
    if observer is not None:
        observer.watch(here)
    return here
