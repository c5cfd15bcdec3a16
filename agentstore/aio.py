"""The store: repositories over one database, asynchronously.

Every repository method is written once, synchronously. Here the asynchronous classes are made of
them: whatever has a decorator of ``repositories.operations`` becomes a coroutine function, with
the same signature and docstring. Type checkers and editors read ``async_repositories.pyi``
instead, which ``make docs`` writes from the same methods, as a test holds.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache, cached_property, partial, wraps
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Self,
    TypeVar,
    Unpack,
)

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from agentstore import repositories
from agentstore.database import adopt_engine, open_async_engine, open_engine, parse_url, show_url
from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import Mode
from agentstore.errors import NotAllowedInScope
from agentstore.execution.async_runners import (
    AsyncStoreRunner,
    AsyncUnitRunner,
    GreenletRunner,
    ThreadRunner,
    bridged,
    open_database,
    run_with_retries,
    store_is_closed,
)
from agentstore.execution.observation import Observer, observer_for, watching
from agentstore.execution.runners import (
    Scope,
    ScopedRunner,
    UnitRunner,
    announcing,
    refuse_inside_own_transaction,
    refuse_to_write,
)
from agentstore.execution.unit import (
    AsyncRunner,
    Runner,
    UnitFailure,
    register_for_fork,
    store_of_parent,
)
from agentstore.health import DEFAULT_TIMEOUT, AsyncProbe
from agentstore.records.upkeep import HealthRecord, Statistics
from agentstore.repositories.listing import Pages, declare
from agentstore.repositories.operations import Operation, Repository, Units
from agentstore.repositories.scopes import scoped
from agentstore.repositories.upkeep.statistics import Order, statistics
from agentstore.repositories.vectors import warn_of_other_model
from agentstore.settings import Consistency, Settings, StoreOptions, settings_for
from agentstore.transactions import Repositories, Transaction, in_transaction, scoped_transaction
from agentstore.turns import AsyncTurn

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    from agentstore.async_repositories import (
        AsyncAttachments,
        AsyncBranches,
        AsyncCheckpoints,
        AsyncMarks,
        AsyncMemories,
        AsyncMessages,
        AsyncSearch,
        AsyncSessions,
        AsyncSummaries,
        AsyncTasks,
        AsyncToolLogs,
        AsyncUsage,
        AsyncUsers,
    )
    from agentstore.engines.base.dialect import EngineDialect
    from agentstore.records import Page, PruneReport
    from agentstore.repositories.upkeep.pruning import Progress
    from agentstore.retention import RetentionPolicy


T = TypeVar("T")


class AsyncRepository:
    """The queries of one aggregate, for coroutines."""

    __slots__ = ("_runner",)

    repository: ClassVar[type[Repository]]
    """The repository whose methods are lifted."""

    def __init__(self, runner: AsyncRunner) -> None:
        """Bind to what runs the methods: a store, or a transaction."""
        self._runner = runner


def lift(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Make a coroutine function of a repository's method, with the same arguments."""
    described: Operation = method.operation  # type: ignore[attr-defined]
    body, mode, make, owners = described

    @wraps(method)
    async def call(self: AsyncRepository, /, *args: Any, **kwargs: Any) -> Any:
        return await self._runner.run(
            Mode.WRITE if owners and [n for n in owners if kwargs.get(n) is not None] else mode,
            make(body, self.repository, args, kwargs),
            repeatable=kwargs.get("idempotency_key") is not None,
        )

    prepared = getattr(method, "prepared", None)
    if prepared is None:
        return call

    @wraps(method)
    async def call_prepared(self: AsyncRepository, /, *args: Any, **kwargs: Any) -> Any:
        embeddings = getattr(self._runner, "embeddings", None)  # None in a transaction
        if embeddings is not None:
            args, kwargs = (), await greenlet_spawn(prepared, embeddings, args, kwargs)
        return await call(self, *args, **kwargs)

    return call_prepared


def lift_units(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Make a coroutine function of a repository's method that is several units of work."""

    @wraps(method)
    async def call(self: AsyncRepository, /, *args: Any, **kwargs: Any) -> Any:
        return await bridged(
            self._runner, lambda runner: method(self.repository(runner), *args, **kwargs)
        )

    return call


def lift_pages(method: Callable[..., Any]) -> Callable[..., AsyncGenerator[Any, None]]:
    """Make an asynchronous generator of a repository's method that goes over pages."""
    pages: Pages = method.pages  # type: ignore[attr-defined]

    @wraps(method, updated=())
    async def iterate(
        self: AsyncRepository, /, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        following: dict[str, str] | None = {}
        while following is not None:
            page: Page[Any] = await getattr(self, pages.method)(*args, **{**kwargs, **following})
            for item in pages.items(page):
                yield item
            following = pages.following(page)

    declare(iterate, AsyncGenerator, method.__annotations__["return"].__args__[0], None)
    return iterate


def lifted(repository: type[Repository]) -> type[AsyncRepository]:
    """Make the asynchronous class of a repository: each of its methods, under its own name."""
    methods: dict[str, Any] = {}
    for name in dir(repository):
        method = getattr(repository, name)
        if hasattr(method, "pages"):
            methods[name] = lift_pages(method)
        elif hasattr(method, "several_units"):
            methods[name] = lift_units(method)
        elif hasattr(method, "operation"):
            methods[name] = lift(method)
    named = {"__slots__": (), "__doc__": repository.__doc__}
    return type(
        f"Async{repository.__name__}",
        (AsyncRepository,),
        named | {"repository": repository} | methods,
    )


if not TYPE_CHECKING:  # who reads async_repositories.pyi, which is written from the same methods
    for _name in repositories.__all__:
        globals()[f"Async{_name}"] = lifted(getattr(repositories, _name))


class AsyncRepositories:
    """The repositories, bound to whatever runs them, each when it is first used."""

    users: AsyncUsers
    sessions: AsyncSessions
    messages: AsyncMessages
    tool_logs: AsyncToolLogs
    tasks: AsyncTasks
    usage: AsyncUsage
    search: AsyncSearch
    checkpoints: AsyncCheckpoints
    attachments: AsyncAttachments
    branches: AsyncBranches
    marks: AsyncMarks
    summaries: AsyncSummaries
    memories: AsyncMemories

    _scoped = False

    def __init__(self, runner: AsyncRunner, observer: Observer | None = None) -> None:
        """Have one runner run all calls, watched if there is an observer."""
        self._calls = runner
        self._observer = observer

    def _bound(self, name: str, kind: Any) -> Any:
        if self._scoped:
            kind = _scoped(kind)
        if self._observer is not None:
            kind = self._observer.watched(name, kind)
        return kind(self._calls)

    def turn(
        self,
        session_id: str,
        *,
        reserve: int | None = None,
        user: str | None = None,
        ttl: timedelta = timedelta(minutes=10),
        tool_call_id: str | None = None,
    ) -> AsyncTurn:
        """Begin a turn, for ``async with``; see ``Store.turn``."""
        return AsyncTurn(self, session_id, reserve, user, ttl, tool_call_id)


if not TYPE_CHECKING:
    for _name, _there in vars(Repositories).items():
        if isinstance(_there, cached_property):
            _kind = globals()[f"Async{_there.func.__annotations__['return']}"]
            _here = cached_property(partial(AsyncRepositories._bound, name=_name, kind=_kind))
            _here.__doc__ = _there.__doc__
            _here.__set_name__(AsyncRepositories, _name)
            setattr(AsyncRepositories, _name, _here)


class AsyncTransaction(AsyncRepositories):
    """The repositories inside one transaction. Calls made at once run one after the other."""


class AsyncScopedTransaction(AsyncTransaction):
    """The repositories inside one transaction, for one user's data."""

    _scoped = True


@cache
def _scoped(lifted: type[AsyncRepository]) -> type[AsyncRepository]:
    """Give the lifted repository for scopes; see ``scopes.scoped``."""
    repository = scoped(lifted.repository)
    methods: dict[str, Any] = {
        name: lift(method) if hasattr(method, "operation") else _refused(method)
        for name, method in vars(repository).items()
        if inspect.isfunction(method)
    }
    names = {"__slots__": (), "__doc__": lifted.__doc__, "repository": repository}
    return type(lifted.__name__, (lifted,), names | methods)


def _refused(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(method)
    async def refuse(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)  # which raises

    return refuse


class AsyncStore(AsyncRepositories):
    """A ``Store`` for coroutines: the same methods, awaited, and ``iter...`` by ``async for``.

    It belongs to the event loop in which it is first used; any number of tasks may share it there.

    Examples:
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
        self._settings = settings = settings_for(**options)
        self._observer = observer_for(settings, parse_url(url) if engine is None else engine.url)
        self._unit_runner: AsyncUnitRunner
        if engine is not None:
            dialect = adopt_engine(engine, settings, asynchronous=True)
            self._url, watched = engine.url, engine.sync_engine
            self._unit_runner = self._greenlets(engine, dialect, settings, owns_engine=False)
        else:
            self._url = parse_url(url)
            dialect = dialect_for(self._url)
            if dialect.threads_async_work and not dialect.names_async_driver(self._url):
                if settings.read_url is not None:
                    from agentstore.execution.standbys import require_server

                    require_server(dialect, "read_url")
                own = watched = open_engine(self._url, settings)
                runner = UnitRunner(own, dialect, settings, owns_engine=True)
                self._unit_runner = ThreadRunner(runner, owns_engine=True)
            else:
                async_engine = open_async_engine(self._url, settings)
                watched = async_engine.sync_engine
                self._unit_runner = self._greenlets(
                    async_engine, dialect, settings, owns_engine=True
                )
        self._standbys = getattr(self._unit_runner, "standbys", None)
        if self._observer is not None and self._standbys is not None:
            self._observer.follow(self._standbys.lags)
        self._opened = False
        self._closed = self._inherited = False
        register_for_fork(self)
        self._opening = asyncio.Lock()
        super().__init__(AsyncStoreRunner(self), self._observer)
        self._announce = announcing(self._observer)
        self._watch = watching(self._observer)
        ask = self._unit_runner.once
        if isinstance(self._unit_runner, GreenletRunner):  # the primary, not a standby
            ask = partial(GreenletRunner.once, self._unit_runner)
        self._probe = AsyncProbe(watched, ask, settings, self.open, lambda: self._closed)

    @staticmethod
    def _greenlets(
        engine: AsyncEngine, dialect: EngineDialect, settings: Settings, *, owns_engine: bool
    ) -> GreenletRunner:
        if settings.read_url is None:
            return GreenletRunner(engine, dialect, settings, owns_engine=owns_engine)
        from agentstore.execution.standbys import AsyncStandbyRunner  # which few stores need

        return AsyncStandbyRunner(engine, dialect, settings, owns_engine=owns_engine)

    def __repr__(self) -> str:
        """Name the database, without its password."""
        return f"AsyncStore({show_url(self._url)!r})"

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
        if self._inherited:
            raise store_of_parent()
        async with self._opening:
            if self._closed:
                raise store_is_closed()
            if not self._opened:
                await open_database(self._unit_runner)
                if self._settings.embeddings is not None:
                    await self._unit_runner.once(Mode.READ, warn_of_other_model)
                if self._standbys is not None:
                    self._standbys.start()
                self._opened = True

    async def close(self) -> None:
        """Close the store's connections; those of an engine handed in stay open.

        Calls and transactions that run are waited for, up to ``busy_timeout``. In a process that
        was forked this does nothing: they are its parent's.

        Raises:
            TransactionMisuse: This is called inside the store's own transaction.
        """
        if self._inherited:
            return
        refuse_inside_own_transaction(self)
        self._closed = True
        self._opened = False
        await self._unit_runner.close()

    def after_fork(self) -> None:
        """Refuse all further calls; called in a child that was forked."""
        self._closed = self._inherited = True
        self._opened = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Make several calls one; see ``Store.transaction``."""
        await self.open()
        refuse_to_write(self._settings)
        with self._announce(self):
            try:
                async with self._unit_runner.transaction() as runner:
                    yield AsyncTransaction(runner, self._observer)
            except UnitFailure as problem:
                raise problem.error from problem.__cause__

    def joined(
        self, connection: AsyncConnection | AsyncSession | async_scoped_session[Any]
    ) -> AsyncTransaction:
        """Give the repositories inside a transaction of the application's own.

        See ``Store.joined``. Calls that are made at once run one after the other.
        """
        return AsyncTransaction(self._in_callers_transaction(connection), self._observer)

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Run a synchronous function in a transaction, in one hop; see ``Store.run``."""
        await self.open()
        refuse_to_write(self._settings)
        body = in_transaction(work, self._observer)
        with self._announce(self):
            return await run_with_retries(self._unit_runner, Mode.WRITE, body, repeatable=False)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a synchronous function that sees one moment, in one hop; see ``Store.read``."""
        await self.open()
        body = in_transaction(work, self._observer)
        with self._announce(self):
            return await run_with_retries(self._unit_runner, Mode.SNAPSHOT, body, repeatable=True)

    async def prune(
        self,
        policy: RetentionPolicy,
        *,
        dry_run: bool = False,
        reclaim: bool = True,
        progress: Progress | None = None,
    ) -> PruneReport:
        """Delete what a retention policy does not keep; see ``Store.prune``."""
        from agentstore.repositories.upkeep.pruning import prune  # few programs need it

        def run(runner: Runner) -> PruneReport:
            return prune(Units(runner), policy, dry_run=dry_run, reclaim=reclaim, progress=progress)

        with self._watch("prune"):
            return await bridged(AsyncStoreRunner(self), run)

    async def health(self, timeout: float = DEFAULT_TIMEOUT) -> HealthRecord:  # noqa: ASYNC109
        """Say whether the store can do its work now; see ``Store.health``. Opens the store."""
        with self._watch("health"):
            found = await self._probe.health(timeout)
        standbys = self._standbys
        return found if standbys is None else replace(found, read_nodes=standbys.records())

    def reading(
        self, consistency: Consistency = "own", *, after: str | None = None
    ) -> AbstractContextManager[None]:
        """Say what this task's reads have to see, in a block; see ``Store.reading``."""
        from agentstore.execution.standbys import reading  # which few stores need

        return reading(self._standbys, consistency, after)

    async def position(self) -> str:
        """Give the position of the server's log; see ``Store.position``."""
        from agentstore.execution.standbys import written

        await self.open()
        with self.reading("primary"):
            return await run_with_retries(self._unit_runner, Mode.READ, written, repeatable=True)

    async def statistics(
        self,
        days: int = 30,
        *,
        top: int = 10,
        order: Order = "cost",
        exact: bool | None = None,
    ) -> Statistics:
        """Say how much the database holds, and how fast it grows; see ``Store.statistics``."""
        with self._watch("statistics"):
            body = partial(statistics, days=days, top=top, order=order, exact=exact)
            refuse_inside_own_transaction(self)
            await self.open()
            return await run_with_retries(self._unit_runner, Mode.SNAPSHOT, body, repeatable=True)

    def scoped(self, user_id: str) -> AsyncScopedStore:
        """Give the same repositories for one user's data; see ``Store.scoped``."""
        return AsyncScopedStore(self, Scope(user_id))

    def _in_callers_transaction(self, connection: object) -> AsyncStoreRunner:
        return AsyncStoreRunner(self, self._unit_runner.joined(connection))


class AsyncScopedStore(AsyncRepositories):
    """A store as one user has it, for coroutines; see ``ScopedStore``.

    Attributes:
        user_id: The user.
    """

    _scoped = True

    def __init__(self, store: AsyncStore, scope: Scope) -> None:
        """Share the connections of a store."""
        self._store = store
        self._scope = scope
        self.user_id = scope.user_id
        super().__init__(ScopedRunner(store._calls, scope.run), store._observer)

    def __repr__(self) -> str:
        """Name the database, without its password, and not the user."""
        return f"{self._store!r}.scoped(...)"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Make several calls one, in the scope; see ``Store.transaction``."""
        async with self._store.transaction() as transaction:
            runner = transaction._calls
            await runner.run(Mode.READ, self._scope.enter, repeatable=True)
            scoped_runner = ScopedRunner(runner, self._scope.run_entered)
            yield AsyncScopedTransaction(scoped_runner, self._store._observer)

    def joined(
        self, connection: AsyncConnection | AsyncSession | async_scoped_session[Any]
    ) -> AsyncTransaction:
        """Give the repositories in the application's transaction; see ``Store.joined``."""
        runner = self._store._in_callers_transaction(connection)
        visiting = ScopedRunner(runner, self._scope.visit)
        return AsyncScopedTransaction(visiting, self._store._observer)

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Run a synchronous function in a transaction of the scope; see ``Store.run``."""
        observer = self._store._observer
        return await self._store.run(lambda tx: work(scoped_transaction(tx, self._scope, observer)))

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a synchronous function that sees one moment of the scope; see ``Store.read``."""
        observer = self._store._observer
        return await self._store.read(
            lambda tx: work(scoped_transaction(tx, self._scope, observer))
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuse what the store itself offers beyond this."""
            if not name.startswith("_") and hasattr(AsyncStore, name):
                raise NotAllowedInScope(f"AsyncStore.{name}()")
            raise AttributeError(name)
