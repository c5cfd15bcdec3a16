"""The store: repositories over one database, asynchronously.

Every repository method is written once, synchronously; here it is lifted, one line each. What
a method does, returns and raises is said where it is written, and its docstring is the same
object. A test holds that none is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from agentstore.async_runners import (
    AsyncUnitRunner,
    GreenletRunner,
    ThreadRunner,
    open_database,
    run_with_retries,
)
from agentstore.dialects import dialect_for
from agentstore.dialects.base import Mode
from agentstore.engine import adopt_engine, open_async_engine, open_engine, parse_url
from agentstore.errors import TransactionMisuse
from agentstore.recovery import Trouble
from agentstore.repositories import Messages, Sessions, Tasks, ToolLogs, Usage, Users
from agentstore.repositories.base import Operation, Repository
from agentstore.runners import (
    JoinRunner,
    UnitRunner,
    announce_transaction,
    refuse_inside_own_transaction,
)
from agentstore.settings import Settings, StoreOptions
from agentstore.store import Transaction
from agentstore.unit import AsyncRunner, Unit

R = TypeVar("R", bound=Repository)
P = ParamSpec("P")
T = TypeVar("T")


class AsyncRepository(Generic[R]):
    """The queries of one aggregate, for coroutines."""

    __slots__ = ("_runner",)

    repository: ClassVar[type[Repository]]
    """The repository whose methods are lifted."""

    def __init__(self, runner: AsyncRunner) -> None:
        """Bind to what runs the methods: a store, or a transaction."""
        self._runner = runner


def lift(
    method: Callable[Concatenate[R, P], T],
) -> Callable[Concatenate[AsyncRepository[R], P], Coroutine[Any, Any, T]]:
    """Make a coroutine function of a repository's method, with the same arguments."""
    described: Operation = method.operation  # type: ignore[attr-defined]

    @wraps(method)
    async def call(self: AsyncRepository[R], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result = await self._runner.run(
            described.mode,
            described.work(self.repository, args, kwargs),
            repeatable=kwargs.get("idempotency_key") is not None,
        )
        return cast("T", result)

    return call


class AsyncUsers(AsyncRepository[Users]):
    """See ``Users``."""

    __slots__ = ()
    repository = Users

    create = lift(Users.create)
    get = lift(Users.get)
    find = lift(Users.find)
    list = lift(Users.list)
    find_by_preference = lift(Users.find_by_preference)
    update = lift(Users.update)
    delete = lift(Users.delete)
    check_quota = lift(Users.check_quota)
    consume_quota = lift(Users.consume_quota)


class AsyncSessions(AsyncRepository[Sessions]):
    """See ``Sessions``."""

    __slots__ = ()
    repository = Sessions

    create = lift(Sessions.create)
    get = lift(Sessions.get)
    find = lift(Sessions.find)
    list = lift(Sessions.list)
    walk = lift(Sessions.walk)
    count = lift(Sessions.count)
    rename = lift(Sessions.rename)
    update = lift(Sessions.update)
    pause = lift(Sessions.pause)
    resume = lift(Sessions.resume)
    complete = lift(Sessions.complete)
    cancel = lift(Sessions.cancel)
    fail = lift(Sessions.fail)
    wait_for_user = lift(Sessions.wait_for_user)
    answer = lift(Sessions.answer)
    delete = lift(Sessions.delete)
    verify = lift(Sessions.verify)


class AsyncMessages(AsyncRepository[Messages]):
    """See ``Messages``."""

    __slots__ = ()
    repository = Messages

    save = lift(Messages.save)
    save_many = lift(Messages.save_many)
    get = lift(Messages.get)
    find = lift(Messages.find)
    find_by_external_id = lift(Messages.find_by_external_id)
    find_by_tool = lift(Messages.find_by_tool)
    history = lift(Messages.history)
    page = lift(Messages.page)
    pop = lift(Messages.pop)
    delete = lift(Messages.delete)
    clear = lift(Messages.clear)


class AsyncToolLogs(AsyncRepository[ToolLogs]):
    """See ``ToolLogs``."""

    __slots__ = ()
    repository = ToolLogs

    log = lift(ToolLogs.log)
    get = lift(ToolLogs.get)
    find = lift(ToolLogs.find)
    list = lift(ToolLogs.list)
    stats = lift(ToolLogs.stats)


class AsyncTasks(AsyncRepository[Tasks]):
    """See ``Tasks``."""

    __slots__ = ()
    repository = Tasks

    create = lift(Tasks.create)
    get = lift(Tasks.get)
    find = lift(Tasks.find)
    list = lift(Tasks.list)
    start = lift(Tasks.start)
    complete = lift(Tasks.complete)
    fail = lift(Tasks.fail)
    pause = lift(Tasks.pause)
    resume = lift(Tasks.resume)
    retry = lift(Tasks.retry)
    cancel = lift(Tasks.cancel)


class AsyncUsage(AsyncRepository[Usage]):
    """See ``Usage``."""

    __slots__ = ()
    repository = Usage

    stats = lift(Usage.stats)
    totals = lift(Usage.totals)


class AsyncRepositories:
    """The repositories, bound to whatever runs them: a store, or a transaction."""

    def __init__(self, runner: AsyncRunner) -> None:
        """Bind all repositories to one runner."""
        self.users = AsyncUsers(runner)
        self.sessions = AsyncSessions(runner)
        self.messages = AsyncMessages(runner)
        self.tool_logs = AsyncToolLogs(runner)
        self.tasks = AsyncTasks(runner)
        self.usage = AsyncUsage(runner)


class AsyncTransaction(AsyncRepositories):
    """The repositories inside one transaction. Calls made at once run one after the other."""


class AsyncStore(AsyncRepositories):
    """A database of agents' memory, for coroutines.

    A store belongs to the event loop in which it is first used.

    Example:
        >>> async with AsyncStore("sqlite:///agent.db") as store:
        ...     session = await store.sessions.create(title="Weather")
        ...     await store.messages.save(session.id, "user", "How is the weather?")
    """

    def __init__(
        self,
        url: str | URL | None = None,
        *,
        engine: AsyncEngine | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Say which database; it is opened by ``async with``, ``open()`` or the first call.

        Args:
            url: As for ``Store``.
            engine: An asynchronous engine of the application's own, instead of a URL.
                Connection events are added to it; closing the store does not dispose of it.
            options: See ``Settings``.

        Raises:
            UnsupportedUrl: The URL is not one of those that ``Store`` takes.
        """
        settings = Settings(**options)
        self._unit_runner: AsyncUnitRunner
        if engine is not None:
            self._url = engine.url
            dialect = adopt_engine(engine, settings)
            self._unit_runner = GreenletRunner(engine, dialect, settings, owns_engine=False)
        else:
            self._url = parse_url(url)
            dialect = dialect_for(self._url)
            if dialect.threads_async_work and not dialect.names_async_driver(self._url):
                runner = UnitRunner(open_engine(self._url, settings), dialect, settings)
                self._unit_runner = ThreadRunner(runner, owns_engine=True)
            else:
                async_engine = open_async_engine(self._url, settings)
                self._unit_runner = GreenletRunner(
                    async_engine, dialect, settings, owns_engine=True
                )
        self._opened = False
        self._closed = False
        self._opening = asyncio.Lock()
        super().__init__(_StoreRunner(self))

    def __repr__(self) -> str:
        """Name the database, without its password."""
        return f"AsyncStore({self._url.render_as_string(hide_password=True)!r})"

    async def __aenter__(self) -> Self:
        """Open the database."""
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the store."""
        await self.close()

    async def open(self) -> None:
        """Open the database, if that is not done; see ``Store`` for what may be raised."""
        if self._opened:
            return
        async with self._opening:
            if self._closed:
                raise TransactionMisuse("This store is closed. Open another AsyncStore.")
            if not self._opened:
                await open_database(self._unit_runner)
                self._opened = True

    async def close(self) -> None:
        """Close the store's connections; those of an engine handed in stay open."""
        self._closed = True
        self._opened = False
        await self._unit_runner.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Make several calls one; see ``Store.transaction``."""
        await self.open()
        with announce_transaction(self):
            try:
                async with self._unit_runner.transaction() as runner:
                    yield AsyncTransaction(runner)
            except Trouble as problem:
                raise problem.error from problem.__cause__

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Run a synchronous function in a transaction, in one hop; see ``Store.run``."""
        await self.open()

        def body(unit: Unit) -> T:
            joined = JoinRunner(unit)
            try:
                return work(Transaction(joined))
            finally:
                joined.close()

        with announce_transaction(self):
            return await run_with_retries(self._unit_runner, Mode.WRITE, body, repeatable=False)


class _StoreRunner:
    """Runs a store's own calls, and catches those inside its own transaction."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        store = self._store
        refuse_inside_own_transaction(store)
        if not store._opened:
            await store.open()
        return await run_with_retries(store._unit_runner, mode, work, repeatable=repeatable)
