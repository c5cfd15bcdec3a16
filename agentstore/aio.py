"""The store: repositories over one database, asynchronously.

Every repository method is written once, synchronously; here it is lifted, one line each. What
a method does, returns and raises is said where it is written, and its docstring is the same
object. A test holds that none is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from datetime import date, timedelta
from functools import partial, wraps
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from agentstore.database import adopt_engine, open_async_engine, open_engine, parse_url, show_url
from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import Mode
from agentstore.errors import UnscopedOnly
from agentstore.execution.async_runners import (
    AsyncUnitRunner,
    GreenletRunner,
    ThreadRunner,
    bridged,
    open_database,
    run_with_retries,
    store_is_closed,
)
from agentstore.execution.runners import (
    AsyncScopedRunner,
    Scope,
    UnitRunner,
    announcing,
    refuse_inside_own_transaction,
    refuse_to_write,
)
from agentstore.execution.unit import (
    AsyncRunner,
    Runner,
    Trouble,
    Unit,
    observer_for,
    of_this_process,
    store_of_parent,
    watching,
)
from agentstore.health import DEFAULT_TIMEOUT, AsyncProbe
from agentstore.records.upkeep import HealthRecord, Statistics
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
from agentstore.repositories.listing import Pages, declare
from agentstore.repositories.operations import Operation, Repository, Units
from agentstore.repositories.scopes import public_methods, scoped
from agentstore.repositories.upkeep.statistics import Order, statistics
from agentstore.settings import StoreOptions, settings_for
from agentstore.transactions import AsyncTurn, Transaction, in_transaction, scoped_transaction

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    from agentstore.records import (
        CheckpointInfo,
        CheckpointRecord,
        Page,
        PruneReport,
        SessionRecord,
        SessionSummary,
        UsageSum,
    )
    from agentstore.repositories.checkpoints.removal import CheckpointFilters
    from agentstore.repositories.session_pages import SessionFilters
    from agentstore.repositories.upkeep.pruning import Progress
    from agentstore.repositories.usage import SumFilters
    from agentstore.repositories.usage_sums import One
    from agentstore.retention import RetentionPolicy


R = TypeVar("R", bound=Repository)
R_co = TypeVar("R_co", bound=Repository, covariant=True)
"""Covariant: what is lifted from a base of a repository is also the repository's."""
Bound = TypeVar("Bound", bound="AsyncRepositories")
P = ParamSpec("P")
T = TypeVar("T")


class AsyncRepository(Generic[R_co]):
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
            described.mode_for(kwargs),
            described.work(self.repository, args, kwargs),
            repeatable=kwargs.get("idempotency_key") is not None,
        )
        return cast("T", result)

    return call


def lift_units(
    method: Callable[Concatenate[R, P], T],
) -> Callable[Concatenate[AsyncRepository[R], P], Coroutine[Any, Any, T]]:
    """Make a coroutine function of a repository's method that is several units of work."""

    @wraps(method)
    async def call(self: AsyncRepository[R], /, *args: P.args, **kwargs: P.kwargs) -> T:
        def run(runner: Runner) -> T:
            return method(cast("R", self.repository(runner)), *args, **kwargs)

        return await bridged(self._runner, run)

    return call


def lift_pages(
    method: Callable[Concatenate[R, P], Generator[T, None, None]],
) -> Callable[Concatenate[AsyncRepository[R], P], AsyncGenerator[T, None]]:
    """Make an asynchronous generator of a repository's method that goes over pages."""
    pages: Pages = method.pages  # type: ignore[attr-defined]

    @wraps(method, updated=())
    async def iterate(
        self: AsyncRepository[R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T, None]:
        following: dict[str, str] | None = {}
        while following is not None:
            page: Page[T] = await getattr(self, pages.method)(*args, **{**kwargs, **following})
            for item in pages.items(page):
                yield item
            following = pages.following(page)

    declare(iterate, AsyncGenerator, method.__annotations__["return"].__args__[0], None)
    return iterate


class AsyncUsers(AsyncRepository[Users]):
    """See ``Users``."""

    __slots__ = ()
    repository = Users

    create = lift(Users.create)
    get = lift(Users.get)
    find = lift(Users.find)
    list = lift(Users.list)
    iter = lift_pages(Users.iter)
    find_by_preference = lift(Users.find_by_preference)
    iter_find_by_preference = lift_pages(Users.iter_find_by_preference)
    update = lift(Users.update)
    delete = lift_units(Users.delete)
    check_quota = lift(Users.check_quota)
    consume_quota = lift(Users.consume_quota)
    reservations = lift(Users.reservations)
    iter_reservations = lift_pages(Users.iter_reservations)
    reserve_quota = lift(Users.reserve_quota)
    reserve_for_session = lift(Users.reserve_for_session)
    settle_quota = lift(Users.settle_quota)
    release_quota = lift(Users.release_quota)
    issue_api_key = lift(Users.issue_api_key)
    authenticate = lift(Users.authenticate)
    touch_api_key = lift(Users.touch_api_key)
    api_keys = lift(Users.api_keys)
    iter_api_keys = lift_pages(Users.iter_api_keys)
    revoke_api_key = lift(Users.revoke_api_key)


class AsyncSessions(AsyncRepository[Sessions]):
    """See ``Sessions``."""

    __slots__ = ()
    repository = Sessions

    create = lift(Sessions.create)
    ensure = lift_units(Sessions.ensure)
    get = lift(Sessions.get)
    find = lift(Sessions.find)
    find_ids = lift(Sessions.find_ids)
    restore = lift(Sessions.restore)
    state_dict = lift(Sessions.state_dict)
    load_state_dict = lift(Sessions.load_state_dict)
    if TYPE_CHECKING:

        @overload
        async def list(
            self, *, documents: Literal[True], **filters: Unpack[SessionFilters]
        ) -> Page[SessionRecord]: ...

        @overload
        async def list(
            self, *, documents: bool = False, **filters: Unpack[SessionFilters]
        ) -> Page[SessionSummary]: ...

        async def list(self, **_: Any) -> Any:
            """See ``Sessions.list``; ``lift`` would lose what the answer depends on."""

        @overload
        def iter(
            self, *, documents: Literal[True], **filters: Unpack[SessionFilters]
        ) -> AsyncGenerator[SessionRecord, None]: ...

        @overload
        def iter(
            self, *, documents: bool = False, **filters: Unpack[SessionFilters]
        ) -> AsyncGenerator[SessionSummary, None]: ...

        def iter(self, **_: Any) -> Any:
            """See ``Sessions.iter``."""

    else:
        list = lift(Sessions.list)
        iter = lift_pages(Sessions.iter)
    walk = lift(Sessions.walk)
    iter_walk = lift_pages(Sessions.iter_walk)
    count = lift(Sessions.count)
    rename = lift(Sessions.rename)
    update = lift(Sessions.update)
    patch = lift(Sessions.patch)
    pause = lift(Sessions.pause)
    resume = lift(Sessions.resume)
    complete = lift(Sessions.complete)
    cancel = lift(Sessions.cancel)
    fail = lift(Sessions.fail)
    wait_for_user = lift(Sessions.wait_for_user)
    answer = lift(Sessions.answer)
    reset = lift(Sessions.reset)
    delete = lift(Sessions.delete)
    delete_expired = lift_units(Sessions.delete_expired)
    verify = lift(Sessions.verify)
    _ids_after = lift(Sessions._ids_after)
    _read_whole = lift(Sessions._read_whole)
    _keep_layout = lift(Sessions._keep_layout)
    _scope = lift(Sessions._scope)


class AsyncMessages(AsyncRepository[Messages]):
    """See ``Messages``."""

    __slots__ = ()
    repository = Messages

    save = lift(Messages.save)
    save_many = lift(Messages.save_many)
    save_chat = lift(Messages.save_chat)
    begin = lift(Messages.begin)
    append = lift(Messages.append)
    finish = lift(Messages.finish)
    give_up = lift(Messages.give_up)
    give_up_idle = lift(Messages.give_up_idle)
    get = lift(Messages.get)
    find = lift(Messages.find)
    find_by_external_id = lift(Messages.find_by_external_id)
    find_many = lift(Messages.find_many)
    find_by_tool = lift(Messages.find_by_tool)
    iter_find_by_tool = lift_pages(Messages.iter_find_by_tool)
    history = lift(Messages.history)
    chat = lift(Messages.chat)
    payloads = lift(Messages.payloads)
    delete_by_mark = lift(Messages.delete_by_mark)
    size = lift(Messages.size)
    page = lift(Messages.page)
    iter = lift_pages(Messages.iter)
    follow = lift(Messages.follow)
    search = lift_units(Messages.search)
    iter_search = lift_pages(Messages.iter_search)
    update = lift(Messages.update)
    pop = lift(Messages.pop)
    replace_tail = lift(Messages.replace_tail)
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
    iter = lift_pages(ToolLogs.iter)
    stats = lift(ToolLogs.stats)


class AsyncTasks(AsyncRepository[Tasks]):
    """See ``Tasks``."""

    __slots__ = ()
    repository = Tasks

    create = lift(Tasks.create)
    get = lift(Tasks.get)
    find = lift(Tasks.find)
    list = lift(Tasks.list)
    iter = lift_pages(Tasks.iter)
    count = lift(Tasks.count)
    start = lift(Tasks.start)
    complete = lift(Tasks.complete)
    fail = lift(Tasks.fail)
    pause = lift(Tasks.pause)
    resume = lift(Tasks.resume)
    retry = lift(Tasks.retry)
    cancel = lift(Tasks.cancel)
    claim = lift(Tasks.claim)
    heartbeat = lift(Tasks.heartbeat)
    heartbeat_many = lift(Tasks.heartbeat_many)
    release = lift(Tasks.release)
    complete_many = lift(Tasks.complete_many)
    fail_many = lift(Tasks.fail_many)
    rescue = lift(Tasks.rescue)
    requeue = lift(Tasks.requeue)
    due = lift(Tasks.due)
    watch = lift(Tasks.watch)


class AsyncUsage(AsyncRepository[Usage]):
    """See ``Usage``."""

    __slots__ = ()
    repository = Usage

    stats = lift(Usage.stats)
    record = lift(Usage.record)
    list = lift(Usage.list)
    iter = lift_pages(Usage.iter)
    delete = lift(Usage.delete)
    replace = lift(Usage.replace)
    if TYPE_CHECKING:

        @overload
        async def sum_by(
            self, dimension: Literal["turn", "branch"], **filters: Unpack[SumFilters]
        ) -> tuple[UsageSum[int], ...]: ...

        @overload
        async def sum_by(
            self, dimension: Literal["session"], **filters: Unpack[SumFilters]
        ) -> tuple[UsageSum[str], ...]: ...

        @overload
        async def sum_by(
            self, dimension: Literal["user", "model"], **filters: Unpack[SumFilters]
        ) -> tuple[UsageSum[str | None], ...]: ...

        @overload
        async def sum_by(
            self, dimension: Literal["day", "week", "month"], **filters: Unpack[SumFilters]
        ) -> tuple[UsageSum[date], ...]: ...

        @overload
        async def sum_by(
            self, dimension: Literal["branch_turn"], **filters: Unpack[SumFilters]
        ) -> tuple[UsageSum[tuple[int, int]], ...]: ...

        @overload
        async def sum_by(
            self, dimension: Literal["total"], **filters: Unpack[SumFilters]
        ) -> tuple[UsageSum[None], ...]: ...

        @overload
        async def sum_by(
            self, dimension: tuple[One, One], **filters: Unpack[SumFilters]
        ) -> tuple[UsageSum[tuple[Any, Any]], ...]: ...

        async def sum_by(self, dimension: Any, **_: Any) -> Any:
            """See ``Usage.sum_by``."""

    else:
        sum_by = lift(Usage.sum_by)

    of_sessions = lift(Usage.of_sessions)
    totals = lift(Usage.totals)


class AsyncSearch(AsyncRepository[Search]):
    """See ``Search``."""

    __slots__ = ()
    repository = Search

    status = lift(Search.status)
    refresh = lift_units(Search.refresh)
    reindex = lift_units(Search.reindex)


class AsyncCheckpoints(AsyncRepository[Checkpoints]):
    """See ``Checkpoints``."""

    __slots__ = ()
    repository = Checkpoints

    put = lift(Checkpoints.put)
    get = lift(Checkpoints.get)
    find = lift(Checkpoints.find)
    latest = lift(Checkpoints.latest)
    if TYPE_CHECKING:

        @overload
        async def list(
            self,
            thread_id: str | None = None,
            *,
            values: Literal[True],
            writes: bool = False,
            **filters: Unpack[CheckpointFilters],
        ) -> Page[CheckpointRecord]: ...

        @overload
        async def list(
            self,
            thread_id: str | None = None,
            *,
            values: bool = False,
            writes: Literal[True],
            **filters: Unpack[CheckpointFilters],
        ) -> Page[CheckpointRecord]: ...

        @overload
        async def list(
            self,
            thread_id: str | None = None,
            *,
            values: bool = False,
            writes: bool = False,
            **filters: Unpack[CheckpointFilters],
        ) -> Page[CheckpointInfo]: ...

        async def list(self, thread_id: str | None = None, **_: Any) -> Any:
            """See ``Checkpoints.list``."""

        @overload
        def iter(
            self,
            thread_id: str | None = None,
            *,
            values: Literal[True],
            writes: bool = False,
            **filters: Unpack[CheckpointFilters],
        ) -> AsyncGenerator[CheckpointRecord, None]: ...

        @overload
        def iter(
            self,
            thread_id: str | None = None,
            *,
            values: bool = False,
            writes: Literal[True],
            **filters: Unpack[CheckpointFilters],
        ) -> AsyncGenerator[CheckpointRecord, None]: ...

        @overload
        def iter(
            self,
            thread_id: str | None = None,
            *,
            values: bool = False,
            writes: bool = False,
            **filters: Unpack[CheckpointFilters],
        ) -> AsyncGenerator[CheckpointInfo, None]: ...

        def iter(self, thread_id: str | None = None, **_: Any) -> Any:
            """See ``Checkpoints.iter``."""

    else:
        list = lift(Checkpoints.list)
        iter = lift_pages(Checkpoints.iter)
    namespaces = lift(Checkpoints.namespaces)
    threads = lift(Checkpoints.threads)
    iter_threads = lift_pages(Checkpoints.iter_threads)
    path = lift(Checkpoints.path)
    tree = lift(Checkpoints.tree)
    fork = lift(Checkpoints.fork)
    rewind = lift(Checkpoints.rewind)
    copy_thread = lift(Checkpoints.copy_thread)
    delete_thread = lift(Checkpoints.delete_thread)
    delete = lift(Checkpoints.delete)
    delete_before = lift(Checkpoints.delete_before)
    delete_run = lift(Checkpoints.delete_run)
    prune = lift(Checkpoints.prune)
    put_writes = lift(Checkpoints.put_writes)
    writes = lift(Checkpoints.writes)


class AsyncBranches(AsyncRepository[Branches]):
    """See ``Branches``."""

    __slots__ = ()
    repository = Branches

    create = lift(Branches.create)
    get = lift(Branches.get)
    active = lift(Branches.active)
    list = lift(Branches.list)
    iter = lift_pages(Branches.iter)
    switch = lift(Branches.switch)
    rename = lift(Branches.rename)
    delete = lift(Branches.delete)
    compact = lift(Branches.compact)
    turns = lift(Branches.turns)
    iter_turns = lift_pages(Branches.iter_turns)
    by_turn = lift(Branches.by_turn)
    iter_by_turn = lift_pages(Branches.iter_by_turn)
    tool_usage = lift(Branches.tool_usage)
    find_turns = lift(Branches.find_turns)
    iter_find_turns = lift_pages(Branches.iter_find_turns)


class AsyncMarks(AsyncRepository[Marks]):
    """See ``Marks``."""

    __slots__ = ()
    repository = Marks

    of = lift(Marks.of)
    count = lift(Marks.count)
    update = lift(Marks.update)


class AsyncSummaries(AsyncRepository[Summaries]):
    """See ``Summaries``."""

    __slots__ = ()
    repository = Summaries

    put = lift(Summaries.put)
    find = lift(Summaries.find)
    delete = lift(Summaries.delete)


class AsyncAttachments(AsyncRepository[Attachments]):
    """See ``Attachments``."""

    __slots__ = ()
    repository = Attachments

    add = lift(Attachments.add)
    get = lift(Attachments.get)
    find = lift(Attachments.find)
    read = lift(Attachments.read)
    list = lift(Attachments.list)
    iter = lift_pages(Attachments.iter)
    list_of_session = lift(Attachments.list_of_session)
    iter_list_of_session = lift_pages(Attachments.iter_list_of_session)
    delete = lift(Attachments.delete)


class AsyncMemories(AsyncRepository[Memories]):
    """See ``Memories``."""

    __slots__ = ()
    repository = Memories

    put = lift(Memories.put)
    get = lift(Memories.get)
    find = lift(Memories.find)
    delete = lift(Memories.delete)
    touch = lift(Memories.touch)
    list = lift(Memories.list)
    iter = lift_pages(Memories.iter)
    search = lift(Memories.search)
    namespaces = lift(Memories.namespaces)
    iter_namespaces = lift_pages(Memories.iter_namespaces)
    delete_expired = lift_units(Memories.delete_expired)


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
        self.search = AsyncSearch(runner)
        self.checkpoints = AsyncCheckpoints(runner)
        self.attachments = AsyncAttachments(runner)
        self.branches = AsyncBranches(runner)
        self.marks = AsyncMarks(runner)
        self.summaries = AsyncSummaries(runner)
        self.memories = AsyncMemories(runner)

    def turn(
        self,
        session_id: str,
        *,
        reserve: int | None = None,
        user: str | None = None,
        ttl: timedelta = timedelta(minutes=10),
    ) -> AsyncTurn:
        """Begin a turn, for ``async with``; see ``Store.turn``."""
        return AsyncTurn(self, session_id, reserve, user, ttl)


class AsyncTransaction(AsyncRepositories):
    """The repositories inside one transaction. Calls made at once run one after the other."""


class AsyncScopedTransaction(AsyncTransaction):
    """The repositories inside one transaction, for one user's data."""

    def __init__(self, runner: AsyncRunner) -> None:
        """Bind all repositories, guarded, to a runner of the scope."""
        super().__init__(runner)
        _guard(self, runner)


def _guard(repositories: AsyncRepositories, runner: AsyncRunner) -> None:
    """Put the repositories for scopes into the places of the others."""
    for name, bound in vars(repositories).items():
        if isinstance(bound, AsyncRepository):
            setattr(repositories, name, _scoped(type(bound))(runner))


_made: dict[type[AsyncRepository[Any]], type[AsyncRepository[Any]]] = {}


def _scoped(lifted: type[AsyncRepository[Any]]) -> type[AsyncRepository[Any]]:
    """Give the lifted repository for scopes; see ``scopes.scoped``."""
    if lifted not in _made:
        _made[lifted] = _make(lifted)
    return _made[lifted]


def _make(lifted: type[AsyncRepository[Any]]) -> type[AsyncRepository[Any]]:
    repository = scoped(lifted.repository)
    methods: dict[str, Any] = {}
    for name, method in public_methods(repository).items():
        if hasattr(method, "operation"):
            methods[name] = lift(method)
    for name in public_methods(lifted.repository).keys() - public_methods(repository).keys():
        methods[name] = _refused(getattr(repository, name))
    names = {"__slots__": (), "__doc__": lifted.__doc__, "repository": repository}
    return type(lifted.__name__, (lifted,), names | methods)


def _refused(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(method)
    async def refuse(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)  # which raises

    return refuse


class AsyncStore(AsyncRepositories):
    """A database of agents' memory, for coroutines.

    A store belongs to the event loop in which it is first used.

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
            self._unit_runner = GreenletRunner(engine, dialect, settings, owns_engine=False)
        else:
            self._url = parse_url(url)
            dialect = dialect_for(self._url)
            if dialect.threads_async_work and not dialect.names_async_driver(self._url):
                own = watched = open_engine(self._url, settings)
                runner = UnitRunner(own, dialect, settings, owns_engine=True)
                self._unit_runner = ThreadRunner(runner, owns_engine=True)
            else:
                async_engine = open_async_engine(self._url, settings)
                watched = async_engine.sync_engine
                self._unit_runner = GreenletRunner(
                    async_engine, dialect, settings, owns_engine=True
                )
        self._opened = False
        self._closed = self._inherited = False
        of_this_process(self)
        self._opening = asyncio.Lock()
        super().__init__(_AsyncStoreRunner(self))
        self._announce = announcing(self._observer)
        self._watch = watching(self._observer)
        if self._observer is not None:
            self._observer.watch(self)
        self._probe = AsyncProbe(
            watched, self._unit_runner.once, settings, self.open, lambda: self._closed
        )

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

    def left_behind(self) -> None:
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
                    yield self._watched(AsyncTransaction(runner))
            except Trouble as problem:
                raise problem.error from problem.__cause__

    def joined(
        self, connection: AsyncConnection | AsyncSession | async_scoped_session[Any]
    ) -> AsyncTransaction:
        """Give the repositories inside a transaction of the application's own.

        See ``Store.joined``. Calls that are made at once run one after the other.
        """
        return self._watched(AsyncTransaction(self._in_callers_transaction(connection)))

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
            return await bridged(_AsyncStoreRunner(self), run)

    async def health(self, timeout: float = DEFAULT_TIMEOUT) -> HealthRecord:  # noqa: ASYNC109
        """Say whether the store can do its work now; see ``Store.health``. Opens the store."""
        with self._watch("health"):
            return await self._probe.health(timeout)

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

    def _in_callers_transaction(
        self, connection: object, scope: Scope | None = None
    ) -> _AsyncStoreRunner:
        return _AsyncStoreRunner(self, self._unit_runner.joined(connection, scope))

    def _watched(self, transaction: Bound) -> Bound:
        if self._observer is not None:
            self._observer.watch(transaction)
        return transaction


class AsyncScopedStore(AsyncRepositories):
    """A store as one user has it, for coroutines; see ``ScopedStore``.

    Attributes:
        user_id: The user.
    """

    def __init__(self, store: AsyncStore, scope: Scope) -> None:
        """Share the connections of a store."""
        self._store = store
        self._scope = scope
        self.user_id = scope.user_id
        runner = AsyncScopedRunner(store.users._runner, scope)
        super().__init__(runner)
        _guard(self, runner)
        if store._observer is not None:
            store._observer.watch(self)

    def __repr__(self) -> str:
        """Name the database, without its password, and not the user."""
        return f"{self._store!r}.scoped(...)"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Make several calls one, in the scope; see ``Store.transaction``."""
        async with self._store.transaction() as transaction:
            runner = transaction.users._runner
            await runner.run(Mode.READ, self._scope.enter, repeatable=True)
            scoped_runner = AsyncScopedRunner(runner, self._scope, entered=True)
            yield self._store._watched(AsyncScopedTransaction(scoped_runner))

    def joined(
        self, connection: AsyncConnection | AsyncSession | async_scoped_session[Any]
    ) -> AsyncTransaction:
        """Give the repositories in the application's transaction; see ``Store.joined``."""
        runner = self._store._in_callers_transaction(connection, self._scope)
        return self._store._watched(AsyncScopedTransaction(runner))

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
                raise UnscopedOnly(f"AsyncStore.{name}()")
            raise AttributeError(name)


class _AsyncStoreRunner:
    """Runs a store's own calls, and catches those inside its own transaction.

    Calls that join a transaction of the application's have another runner than the others.
    """

    def __init__(self, store: AsyncStore, joined: AsyncRunner | None = None) -> None:
        self._store = store
        self._joined = joined

    async def run(self, mode: Mode, work: Callable[[Unit], T], *, repeatable: bool) -> T:
        store = self._store
        refuse_inside_own_transaction(store)
        if not store._opened:
            await store.open()
        refuse_to_write(store._settings, mode)
        if self._joined is not None:
            return await self._joined.run(mode, work, repeatable=repeatable)
        return await run_with_retries(store._unit_runner, mode, work, repeatable=repeatable)
