"""The store: repositories over one database, synchronous and asynchronous.

```text
store.messages.save(...)       an operation of a repository
   runner                      gets a connection, begins a transaction, repeats after a conflict
      unit                     the connection, the tables, the clock, for one transaction
         body                  the method as it is written: checks, then SQL
```

``Store`` and ``AsyncStore`` open a database and have thirteen repositories as attributes. A call
on one of them is a transaction of its own. ``transaction()`` and ``run()`` make several calls one;
``scoped()`` gives the same methods for one user's data.

Every method is written once, in a repository. ``AsyncStore`` *lifts* it: the same signature and
docstring, as a coroutine. A test holds that no method is missing on either side.

The invariants: a call inside the store's own open transaction is refused, because it would wait
for itself; a closed store, and one that was inherited by a fork, refuse every call.

``aio`` has the asynchronous store, ``transactions`` the repositories of a transaction or a scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from sqlalchemy import URL, Connection, Engine, event

from agentstore.database import adopt_engine, open_engine, parse_url, show_url
from agentstore.engines import dialect_for
from agentstore.engines.base.dialect import Mode
from agentstore.errors import TransactionMisuse
from agentstore.execution.observation import observer_for, watching
from agentstore.execution.runners import (
    CallersRunner,
    Scope,
    StoreRunner,
    UnitRunner,
    announcing,
    in_own_transaction,
    joined,
    refuse_inside_own_transaction,
    refuse_to_write,
)
from agentstore.execution.unit import (
    Runner,
    UnitFailure,
    register_for_fork,
    store_of_parent,
)
from agentstore.health import DEFAULT_TIMEOUT, Probe
from agentstore.repositories.operations import Units
from agentstore.settings import Consistency, StoreOptions, settings_for
from agentstore.transactions import Repositories, ScopedStore, Transaction, in_transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

    from agentstore.records import HealthRecord, PruneReport, Statistics
    from agentstore.repositories.upkeep.pruning import Progress
    from agentstore.repositories.upkeep.statistics import Order
    from agentstore.retention import RetentionPolicy


# The store: repositories over one database, synchronously.
#
# A call on one of the store's repositories is a transaction of its own. ``transaction()`` makes
# several calls one; ``run()`` does the same with a function, and repeats it after a conflict.
#
# A store may be used from any number of threads. A process that is forked must open its own; the
# one that it inherits from its parent refuses all calls.


T = TypeVar("T")


class Store(Repositories):
    """A database for agents: sessions, messages, tasks, checkpoints and what belongs to them.

    Any number of threads may share a store. A call that writes is one transaction.

    Examples:
        >>> with Store("sqlite:///agent.db") as store:
        ...     session = store.sessions.create(title="Weather")
        ...     message = store.messages.save(session.id, "user", "How is the weather?")
    """

    def __init__(
        self,
        url: str | URL | None = None,
        *,
        engine: Engine | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Open a database; a new SQLite file is created with the newest schema.

        Args:
            url: ``sqlite:///file.db``, or only the path of the file, ``sqlite://`` (in memory) or
                ``postgresql://user@host/database``; None means ``AGENTSTORE_URL``, else
                ``sqlite:///agentstore.db``.
            engine: An engine of the application's own, instead of a URL. Connection events are
                added to it; closing the store does not dispose of it.
            options: See ``Settings``.

        Raises:
            UnsupportedUrl: The URL is not one of those.
            DatabaseError: The database cannot be reached, read or written.
            SchemaError: Its schema is missing, behind or ahead; the error says what to run.
        """
        settings = settings_for(**options)
        self._owns_engine = engine is None
        self._observer = observer_for(settings, parse_url(url) if engine is None else engine.url)
        if engine is None:
            parsed = parse_url(url)
            dialect = dialect_for(parsed)
            engine = open_engine(parsed, settings)
        else:
            dialect = adopt_engine(engine, settings, asynchronous=False)
        self._engine = engine
        self._closed = self._inherited = False
        kind: type[UnitRunner] = UnitRunner
        if settings.read_url is not None:
            from agentstore.execution.standbys import StandbyRunner  # which few stores need

            kind = StandbyRunner
        self._runner = kind(engine, dialect, settings, owns_engine=self._owns_engine)
        self._standbys = getattr(self._runner, "standbys", None)
        if self._observer is not None and self._standbys is not None:
            self._observer.follow(self._standbys.lags)
        super().__init__(StoreRunner(self, self._runner), self._observer)
        self._announce = announcing(self._observer)
        self._watch = watching(self._observer)
        register_for_fork(self)
        self._probe = Probe(
            engine, partial(UnitRunner.once, self._runner), settings, lambda: self._closed
        )
        try:
            self._runner.open()
            if settings.embeddings is not None:
                from agentstore.repositories.vectors import warn_of_other_model

                self._runner.run(Mode.READ, warn_of_other_model, repeatable=True)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        """Name the database, without its password."""
        return f"Store({show_url(self._engine.url)!r})"

    def __enter__(self) -> Self:
        """Give the store, which is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the store."""
        self.close()

    def close(self) -> None:
        """Close the store's connections; those of an engine handed in stay open.

        Calls that are running in other threads complete normally; this waits for those that write.
        In a forked process it does nothing, because the connections are the parent's.
        """
        if self._inherited:
            return
        self._closed = True
        self._runner.close(wait=not in_own_transaction(self))
        if self._owns_engine:
            # Those of calls that are not over would come back to a pool that nobody disposes of.
            event.listen(self._engine.pool, "checkin", lambda _, record: record.invalidate())
            self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run several calls as one transaction: all take effect or, if the block raises, none.

        Inside the block use the repositories of the transaction, not the store's. On SQLite
        nobody else can write until the block ends, so do not wait for a model in it.

        Raises:
            TransactionMisuse: The store is called inside the block, or is closed.
            DatabaseReadOnly: The store only reads.
            ConnectionLost: The connection broke; ``in_doubt`` says whether during the commit.
        """
        self._require_open()
        refuse_to_write(self._runner.settings)
        with self._announce(self):
            try:
                with self._runner.transaction() as unit:
                    unit.connection.begin()
                    with joined(unit) as runner:
                        yield Transaction(runner, self._observer)
            except UnitFailure as problem:
                raise problem.error from problem.__cause__

    def joined(self, connection: Connection | Session | scoped_session[Any]) -> Transaction:
        """Give the repositories inside a transaction of the application's own.

        What they write is committed, or rolled back, with whatever else the application does in
        that transaction or savepoint. Nothing is repeated after a conflict. It costs nothing to
        make, and can be used for later transactions of the connection too. On SQLite nobody else
        can write from the first write on until the application ends its transaction.

        Args:
            connection: A connection of the engine that was handed to the store, or an ORM session
                on that engine. If none is open, a transaction begins, as with any statement. A
                session is flushed before each call, unless ``autoflush`` is off; objects that it
                has loaded are not refreshed.

        Raises:
            InvalidInput: It is neither.
            TransactionMisuse: The call, not this method: the connection is of another engine, in
                AUTOCOMMIT or closed, or its transaction has failed.
            TransactionConflict: The call: the database does not let this transaction write any
                more. Roll it back and repeat it.
        """
        return Transaction(self._in_callers_transaction(connection), self._observer)

    def run(self, work: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction, and again if the database rolled it back for a
        conflict or lost the connection before the commit.

        Args:
            work: Gets the transaction's repositories. It may run several times, so it should
                have no effects elsewhere.

        Returns:
            What the function returned.
        """
        self._require_open()
        refuse_to_write(self._runner.settings)
        body = in_transaction(work, self._observer)
        with self._announce(self):
            # A function of the application's has locks and thread-locals of the thread it is in.
            return self._runner.run(Mode.WRITE, body, repeatable=False, here=True)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a function whose calls all see the database as it was at one moment.

        It makes no other call wait, and waits for none: on SQLite it does not queue with the
        writers. While it runs, the space of rows that are deleted meanwhile cannot be reused.

        Args:
            work: Gets a transaction's repositories, of which only methods that read may be called.
                It runs again if the connection is lost, so it should have no effects elsewhere.

        Returns:
            What the function returned.

        Raises:
            TransactionMisuse: The function called something that writes, or the store itself.
        """
        self._require_open()
        body = in_transaction(work, self._observer)
        with self._announce(self):
            return self._runner.run(Mode.SNAPSHOT, body, repeatable=True)

    def prune(
        self,
        policy: RetentionPolicy,
        *,
        dry_run: bool = False,
        reclaim: bool = True,
        progress: Progress | None = None,
    ) -> PruneReport:
        """Delete what a retention policy does not keep, while others work.

        Works in short transactions: of up to 1,000 rows, and of fewer where rows are large, so
        that no other writer waits long; on SQLite with pauses between them. Every row is checked
        again in the transaction that deletes it: a session that was active meanwhile stays, and so
        does a task that was revived; rows that somebody else has locked are skipped. Checkpoints
        that stay keep all their values. If it is interrupted, what is deleted stays deleted, and
        the next call continues. A session with more than 500 rows is closed in one transaction and
        deleted in the following ones: once closed, it is not found any more, takes nothing more,
        and none of its tasks run; some of its rows can still be read by their ids until they are
        deleted, see ``sessions.delete_expired``. What expires after the call began is left to the
        next call.

        Args:
            policy: What is to be kept, and for how long.
            dry_run: Only count what would be deleted, without a lock; nothing is written.
            reclaim: Give the space back to the system where the engine can, in small steps: on
                SQLite free pages of files that were made with ``auto_vacuum=INCREMENTAL``; on
                PostgreSQL by VACUUM of the tables.
            progress: Called with a rule's name and how many rows it has deleted so far; in a dry
                run with how many sessions, tasks or other things of the rule were counted.

        Raises:
            InvalidInput: The policy has no rule.
            TransactionMisuse: This is called inside the store's own transaction.
        """
        from agentstore.repositories.upkeep.pruning import prune  # few programs need it

        units = Units(StoreRunner(self, self._runner))
        with self._watch("prune"):
            return prune(units, policy, dry_run=dry_run, reclaim=reclaim, progress=progress)

    def health(self, timeout: float = DEFAULT_TIMEOUT) -> HealthRecord:
        """Check whether the store is ready, for a readiness probe.

        Cheap: two or three statements that read no rows of the application's. If the database is
        down, damaged, overloaded or at another revision, the record says so, and nothing is
        raised. May be called anywhere and at any time, also when the store is closed; calls that
        are made at once share one check.

        Args:
            timeout: How many seconds to wait for an answer, up to an hour.

        Raises:
            InvalidInput: The timeout is not above 0, or longer than an hour.
        """
        with self._watch("health"):
            found = self._probe.health(timeout)
        standbys = self._standbys
        return found if standbys is None else replace(found, read_nodes=standbys.records())

    def reading(
        self, consistency: Consistency = "own", *, after: str | None = None
    ) -> AbstractContextManager[None]:
        """Say what this thread or task's reads have to see, in a block; see ``read_url``.

        Without ``read_url`` all reads go to the one server there is. Calls that write, transactions
        and ``run`` always go to the primary.

        Args:
            consistency: ``own``, as without a block: all that this store wrote before, but in
                transactions of the application's own (``joined``). ``any``: what is not older
                than ``max_staleness``. ``primary``: all that was committed.
            after: What ``position`` of a store gave, in whatever process: also all that was
                committed before that.

        Raises:
            InvalidInput: An argument is not one of these.
        """
        from agentstore.execution.standbys import reading  # which few stores need

        return reading(self._standbys, consistency, after)

    def position(self) -> str:
        """Give the position of the server's log, for ``reading(after=...)`` of another process.

        Whatever was committed before is before it. It is one more query, at the primary; what it
        gives is short text, and means something to standbys of this server alone.

        Raises:
            InvalidInput: The engine has no such position: it is SQLite.
        """
        from agentstore.execution.standbys import written

        self._require_open()
        with self.reading("primary"):
            return self._runner.run(Mode.READ, written, repeatable=True)

    def statistics(
        self,
        days: int = 30,
        *,
        top: int = 10,
        order: Order = "cost",
        exact: bool | None = None,
    ) -> Statistics:
        """Say how much the database holds, how fast it grows, and by whom.

        All figures are of one state of the database, and memory does not grow with it. If
        everything is counted, every table is read once and ``messages`` twice; if not, only
        the rows of the window are read, and the other figures are estimates or left out.

        Args:
            days: The days of the window, in UTC, today included; up to 3,660.
            top: How many users, tools and models to name at most, up to 1,000.
            order: Whether users and models are sorted by ``cost`` or by ``tokens``, the highest
                first: by those that were used, then by those of messages. Tools are sorted by
                calls. Ties are sorted by the other figure, then by name.
            exact: Whether to count everything; None means if the database has up to 256 MiB.

        Raises:
            InvalidInput: An argument is out of range.
            LimitOutOfRange: ``top`` is.
        """
        from agentstore.repositories.upkeep.statistics import statistics  # few programs need it

        with self._watch("statistics"):
            body = partial(statistics, days=days, top=top, order=order, exact=exact)
            self._require_open()
            refuse_inside_own_transaction(self)
            return self._runner.run(Mode.SNAPSHOT, body, repeatable=True)

    def scoped(self, user_id: str) -> ScopedStore:
        """Give the same repositories for one user's data; other data are treated as missing.

        It shares this store's connections and costs nothing to create: create one for each request.

        Args:
            user_id: The user. The id is not checked; the scope of an unknown user is empty.

        Raises:
            InvalidInput: The user id is not a valid key.
        """
        return ScopedStore(self, Scope(user_id))

    def after_fork(self) -> None:
        """Refuse all further calls; called in a child that was forked."""
        self._closed = self._inherited = True

    def _in_callers_transaction(self, connection: object) -> Runner:
        return StoreRunner(self, CallersRunner(self._runner, connection))

    def _require_open(self) -> None:
        if self._inherited:
            raise store_of_parent()
        if self._closed:
            raise TransactionMisuse("This store is closed. Open another Store.")
